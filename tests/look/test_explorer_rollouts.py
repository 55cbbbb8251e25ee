"""Rollouts in the explorer, in a real, headless Chromium: `make test-explorer`."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect, sync_playwright

import episodelake as el
from explorer_pages import PAGE_PATIENCE, Visit, crowded, explored, launched, misplaced, unnamed
from rollout_stores import make_rollouts

pytestmark = pytest.mark.slow
expect.set_options(timeout=PAGE_PATIENCE)


def test_rollouts_are_conversations(tmp_path: Path) -> None:
    """Messages, folded calls, branches and tints of one rollout; another sample of its group beside it; and
    nothing of what strangers wrote runs or is fetched.
    """
    make_rollouts(tmp_path / "talk")
    store = el.open(tmp_path / "talk")
    with store.writer() as writer:
        writer.write_rollout([{"role": "user", "content": f"line {number}"} for number in range(120)])
    *_, short, long = map(quote, store.refresh().episodes.collect()["episode_id"])
    with (
        explored(tmp_path / "talk", tmp_path / "out") as explorer,
        sync_playwright() as playwright,
        launched(playwright) as browser,
    ):
        page = browser.new_context(viewport={"width": 1500, "height": 1000}).new_page()
        seen = Visit(page, explorer.origin)
        page.goto(explorer.url)
        for choice in ("Policy version", "rewards.answer"):
            page.get_by_role("button", name=choice).click()
        page.wait_for_url(re.compile("what=rewards.answer&over=policy"))
        expect(seen.canvas(".part:has(.smoothing)")).to_be_visible()
        first, second = page.locator(".episode.first"), page.locator(".episode.second")
        turns = first.locator(".turn")
        # A long rollout comes a page at a time.
        inside = page.url.partition("?")[0]
        page.goto(f"{inside}?pane=episodes&episode={long}&t=60")
        expect(first.locator(".turn.current")).to_contain_text("line 60")
        expect(turns).to_have_count(50)
        first.get_by_role("button", name="Show 20 more of 120 messages").click()
        expect(turns.last).to_contain_text("line 119")
        first.get_by_role("button", name="Show 50 earlier of 120 messages").click()
        expect(turns.first).to_contain_text("line 0")
        expect(first.get_by_role("button", name=re.compile("Show"))).to_have_count(0)
        page.goto(f"{inside}?pane=episodes&episode={short}")
        expect(turns).to_have_count(5)
        expect(first.locator(".facts").first).to_contain_text("0.2 \N{MULTIPLICATION SIGN} 0.5")
        expect(turns.nth(3).locator(".turn-text")).to_contain_text("<img src=http://evil/x.png onerror=")
        assert page.locator(".turns img").count() == 0
        reasoning = turns.nth(4).locator("details", has_text="Reasoning")
        expect(reasoning.locator(".turn-text")).to_be_hidden()
        reasoning.locator("summary").click()
        expect(reasoning.locator(".turn-text")).to_have_text("hm\nwell")
        call = turns.nth(2).locator("details")
        call.locator("summary").click()
        expect(call).to_contain_text('"q": "a  b"')
        tokens = turns.nth(2).locator(".tokens i")
        expect(tokens).to_have_count(2)
        expect(tokens.nth(1)).to_have_attribute("title", "token 5, log-probability -2, advantage 1")
        colours = [each.evaluate("each => getComputedStyle(each).backgroundColor") for each in tokens.all()]
        assert colours[0] != colours[1]
        first.get_by_role("button", name="Tint: advantage").click()
        expect(tokens.nth(1)).to_have_class("up")
        first.get_by_role("tab", name="Branch 1, from 1").click()
        expect(turns).to_have_count(4)
        expect(page.locator(".timeline .t")).to_contain_text("t = 5 ")
        expect(first.locator(".turn.current")).to_contain_text("other")
        # Keys move between tabs while one has the focus.
        turns.first.click()
        page.keyboard.press("Home")
        expect(first.locator(".turn.current")).to_contain_text("be brief")
        assert unnamed(page) == [] and misplaced(page) == [] and crowded(page) == []
        # By the keyboard alone: from the branches back to the choice, open it, and take the first sample.
        first.get_by_role("tab", name="Branch 0").focus()
        page.keyboard.press("Shift+Tab")
        expect(first.get_by_label("Compare with")).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("option", name=re.compile("sample 0, reward 0.1"))).to_be_visible()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(second.locator(".turn")).to_have_count(5)
        expect(second.locator(".facts").nth(1)).to_contain_text("length")
        page.locator(".facets .facet-row", has_text="p0").first.click()
        expect(seen.count).to_contain_text("of 3")
        assert seen.faults == []
