"""The explorer in a real, headless Chromium: `make test-explorer`."""

import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import duckdb
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from mpe2 import simple_spread_v3
from playwright.sync_api import Browser, expect, sync_playwright

import episodelake as el
from explorer_pages import (
    HOSTILE,
    PAGE_PATIENCE,
    Explorer,
    Visit,
    colours,
    contrast,
    crowded,
    explored,
    launched,
    make_long_store,
    make_sick_store,
    make_store,
    misplaced,
    pixels,
    settle,
    unnamed,
)
from live_writer import SPACES, LiveWriter
from plain_agents import play_parallel, random_policy
from waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow
expect.set_options(timeout=PAGE_PATIENCE)
Open = Callable[[Explorer], Visit]
# Read the step that is shown, keep the browser busy, and click.
BUSY_THEN_CLICK = """(button) => {
    const begun = document.querySelector(".timeline .t").textContent.split(" ")[2];
    const end = performance.now() + 4000;
    while (performance.now() < end);
    button.click();
    return begun;
}"""


# The mean of the frame that a video shows, NaN while it looks for it.
PLAYED = """(video) => {
    const context = new OffscreenCanvas(24, 24).getContext("2d");
    context.drawImage(video, 0, 0);
    const data = context.getImageData(0, 0, 24, 24).data;
    return video.seeking ? NaN : data.filter((_, i) => i % 4 < 3).reduce((a, b) => a + b) / (24 * 24 * 3);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for all tests."""
    with sync_playwright() as playwright, launched(playwright) as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """120 episodes of three runs, with images."""
    store = make_store(tmp_path_factory.mktemp("page") / "lake")
    store.card = {"title": HOSTILE, "description": "Random pixels. " * 20, "author": [HOSTILE, "B"]}
    return store


@pytest.fixture(scope="module")
def explorer(store: el.EpisodeStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explorer]:
    """The command on that store."""
    with explored(store.path, tmp_path_factory.mktemp("exports")) as found:
        yield found


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens a page; whatever goes wrong on it in the background fails the test."""
    visits: list[Visit] = []

    def opened(explorer: Explorer, pane: str | None = "Episodes", **options: object) -> Visit:
        context = browser.new_context(viewport={"width": 1500, "height": 1000}, **options)  # type: ignore[arg-type]
        found = Visit(context.new_page(), explorer.origin)
        found.page.goto(explorer.url)
        if pane is not None:
            found.page.get_by_role("tab", name=pane).click()
        visits.append(found)
        return found

    yield opened
    for found in visits:
        found.page.context.close()
    assert [fault for found in visits for fault in found.faults] == []


def test_it_opens(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """The newest episodes are listed, returns drawn, one is open, and the token has left the address."""
    seen = visit(explorer)
    expect(seen.rows).to_have_count(50)
    assert seen.column("#") == [str(number) for number in range(119, 69, -1)]
    assert [float(text) for text in seen.column("return")] == [
        store[n].episode_return for n in range(119, 69, -1)
    ]
    expect(seen.canvas(".overview")).to_be_visible()
    expect(seen.page.locator(".episode-id")).to_have_text(store[-1].id)
    assert colours(seen.canvas(".overview")) > 20
    assert re.fullmatch(re.escape(explorer.origin) + "/[^/?]{32}/([?]pane=episodes.*)?", seen.page.url)
    assert explorer.url.partition("token=")[2] not in seen.page.url
    expect(seen.page.locator("header")).to_contain_text("120 episodes · 3 runs")


def test_the_overview(visit: Open, tmp_path: Path) -> None:
    """The first screen has amounts, findings, curves and ends; findings and ends list their episodes."""
    sick = make_sick_store(tmp_path / "sick")
    with explored(sick.path, tmp_path / "out") as explorer:
        seen = visit(explorer, pane=None)
        page = seen.page
        frame = sick.episodes.collect()
        facts = page.locator(".about-facts")
        for text in (
            f"{len(frame):,}",
            f"{frame['length'].sum():,}",
            f"{frame['episode_return'].median():.6g}",
        ):
            expect(facts.get_by_text(text, exact=True).first).to_be_visible()
        for place in (
            ".part:has(.smoothing)",
            ".beside-curve .part:nth-child(2)",
            ".beside-curve .part:last-child",
        ):
            expect(seen.canvas(place)).to_be_visible()
        report = sick.health()
        expect(page.locator(".finding")).to_have_count(len(report.findings))
        curve = page.locator(".part:has(.smoothing) .chart-place")
        settle(page)
        before = curve.screenshot()
        page.get_by_label("Colour").click()
        page.get_by_role("option", name="run.algo").click()
        wait_until(lambda: curve.screenshot() != before, "another curve")
        assert crowded(page) == [] and unnamed(page) == []
        for finding in report.findings[:2]:
            page.locator(".finding", has_text=finding.message).click()
            expect(seen.count).to_contain_text(f"of {len(finding.positions)}")
            assert set(seen.column("#")) == {str(position) for position in finding.positions}
            page.get_by_role("tab", name="Overview").click()
            expect(page.locator(".part-of")).to_contain_text(
                f"{len(finding.positions)} of {len(frame)} episodes"
            )
        page.get_by_role("button", name="Whole store").click()
        expect(page.locator(".part-of")).to_be_hidden()
        page.locator(".end-row", has_text="truncated").click()
        ended = frame.filter(end_reason="truncated")
        expect(seen.count).to_contain_text(f"of {len(ended)}")
        expect(page.locator(".chips")).to_contain_text("end_reason = 'truncated'")
        page.get_by_role("tab", name="Overview").click()
        expect(facts.get_by_text(f"{ended['length'].sum():,}", exact=True)).to_be_visible()
        expect(page.locator(".end-row")).to_have_count(1)
        place = seen.canvas(".beside-curve .part:nth-child(2)")
        expect(page.locator(".beside-curve .part:nth-child(2)")).to_contain_text(f"{len(ended)} episodes")
        settle(page)
        box = place.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.98, box["y"] + 70, steps=4)
        page.mouse.up()
        chip = page.locator(".chips .q-chip", has_text="episode_return BETWEEN")
        expect(chip).to_be_visible()
        condition = chip.inner_text().split("\n")[1]
        kept = duckdb.sql(f"SELECT episode_return FROM ended WHERE {condition}").pl()
        assert 0 < len(kept) < len(ended) and ended["episode_return"].max() in kept["episode_return"]
        expect(seen.count).to_contain_text(f"of {len(kept)}")
        seen.leave()


def test_filter(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """A condition and a run choose episodes; a misspelt column is told and changes nothing."""
    seen = visit(explorer)
    seen.filter("episode_return > 100 and end_reason = 'truncated'")
    wanted = [e.id for e in store if e.episode_return > 100 and e.end_reason == "truncated"]
    expect(seen.count).to_contain_text(f"of {len(wanted)}")
    assert set(seen.column("end")) == {"truncated"}
    seen.filter("lenght > 3")
    expect(seen.page.locator(".problem", has_text="Nearest: length")).to_be_visible()
    expect(seen.count).to_contain_text(f"of {len(wanted)}")
    seen.filter("length > 1000")
    expect(seen.page.get_by_text("No episode fulfils the filter")).to_be_visible()
    seen.filter("")
    expect(seen.count).to_contain_text("of 120")
    expect(seen.page.locator(".problem:visible")).to_have_count(0)
    option = seen.page.get_by_role("option", name="seed1")

    def listed() -> bool:
        # The list closes when the page behind it is drawn anew, as after the filter before.
        if not option.is_visible():
            seen.page.get_by_label("Runs").click()
            seen.page.wait_for_timeout(1000)
        return option.is_visible()

    wait_until(listed, "the list of runs")
    option.click()
    expect(seen.count).to_contain_text("of 40")
    assert {text.partition("/")[0] for text in seen.column("episode")} == {"seed1"}
    expect(seen.page.locator("header")).to_contain_text("40 of 120 episodes · 1 of 3 runs")


def test_addresses(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """The address has what the tab shows: a new tab opens the same, and back and forward go through it."""
    seen = visit(explorer)
    page = seen.page
    expect(page).to_have_title(re.compile("lake.*Episodelake"))
    expect(page.locator(".episode-id")).to_have_text(store[-1].id)
    page.wait_for_url(re.compile("episode=.*000039"))
    seen.filter("length = 5 and episode_return > 60")
    page.wait_for_url(re.compile("where=length"))
    page.get_by_role("button", name="return", exact=True).click()
    page.wait_for_url(re.compile("sort=-?episode_return"))
    wanted = seen.column("#")
    seen.open_row(2)
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile("t=1"))
    opened = page.locator(".episode-id").inner_text()
    other = page.context.new_page()
    other.goto(page.url)
    copy = Visit(other, explorer.origin)
    expect(other.locator(".timeline .t")).to_contain_text("t = 1 ")
    expect(other.locator(".episode-id")).to_have_text(opened)
    expect(other.get_by_placeholder("SQL condition")).to_have_value("length = 5 and episode_return > 60")
    wait_until(lambda: copy.column("#") == wanted, "the same list")
    while "where" in page.url:
        before = page.url
        page.go_back()
        page.wait_for_url(lambda url, before=before: url != before)
        expect(page.get_by_placeholder("SQL condition")).to_be_visible()
    expect(seen.count).to_contain_text("of 120")
    page.go_forward()
    page.wait_for_url(re.compile("where=length"))
    wait_until(lambda: "of 120" not in seen.count.inner_text(), "the filter again")


def test_facets(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """A category, a drag and keys narrow the list by chips, which the address keeps and crosses remove."""
    seen = visit(explorer)
    page = seen.page
    rows = store.episodes.collect()
    facet, chips = page.locator(".facets"), page.locator(".chips .q-chip")
    expect(facet.locator(".facet-row", has_text="truncated")).to_contain_text(
        str((rows["end_reason"] == "truncated").sum())
    )
    facet.locator(".facet-row", has_text="truncated").click()
    rows = rows.filter(end_reason="truncated")
    expect(seen.count).to_contain_text(f"of {len(rows)}")
    expect(chips).to_have_count(1)
    lengths = facet.get_by_role("slider", name="length")
    box = lengths.bounding_box()
    assert box is not None
    # There are five lengths, from 3 to 7.
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 20, steps=3)
    expect(facet.locator(".facet-range")).to_contain_text("4 to 6")
    page.mouse.up()
    both = rows.filter(rows["length"].is_between(4, 6))
    expect(seen.count).to_contain_text(f"of {len(both)}")
    assert set(seen.column("length")) <= {"4", "5", "6"}
    page.wait_for_url(re.compile("chips=end_reason.*chips=length"))
    copy = page.context.new_page()
    copy.goto(page.url)
    expect(Visit(copy, explorer.origin).count).to_contain_text(f"of {len(both)}")
    lengths.focus()
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(seen.count).to_contain_text(f"of {rows['length'].is_between(4, 5).sum()}")
    expect(chips).to_have_count(2)
    assert unnamed(page) == [] and misplaced(page) == []
    chips.filter(has_text="end_reason").get_by_role("button").click()
    expect(seen.count).to_contain_text(f"of {store.episodes.collect()['length'].is_between(4, 5).sum()}")
    page.goto(page.url + "&facets=metadata.level")
    expect(facet.locator(".facet-title")).to_have_text(["level"])
    level = page.get_by_role("option", name="level", exact=True)

    def offered() -> bool:
        # The list closes when the page behind it is drawn anew, as at its start.
        if not level.is_visible():
            facet.get_by_role("combobox", name="Facets").click()
            page.wait_for_timeout(1000)
        return level.is_visible()

    wait_until(offered, "the columns of facets")
    level.click()
    expect(facet.locator(".facet-title")).to_have_count(0)
    page.wait_for_url(re.compile("facets=_none"))
    page.reload()
    expect(facet).to_contain_text("0 of")
    expect(facet.locator(".facet-title")).to_have_count(0)
    page.get_by_role("button", name="Facets", exact=True).click()
    expect(facet).to_be_hidden()


def test_keys_and_names(explorer: Explorer, visit: Open) -> None:
    """Everything can be reached by keys and has a name: heads sort, and a row is one stop."""
    seen = visit(explorer)
    page = seen.page
    expect(page.locator(".episode-id")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "en-US"
    head = page.locator("th", has=page.get_by_role("button", name="length", exact=True))
    head.get_by_role("button").focus()
    for key in ("Enter", "Space"):
        before = head.get_attribute("aria-sort")
        page.keyboard.press(key)
        wait_until(lambda before=before: head.get_attribute("aria-sort") != before, "another order")
        values = [int(text) for text in seen.column("length")]
        assert values == sorted(values, reverse=head.get_attribute("aria-sort") == "descending")
    stops = (
        "tr => [...tr.querySelectorAll('a, button, input, [tabindex]')].filter(e => e.tabIndex >= 0).length"
    )
    assert {row.evaluate(stops) for row in seen.rows.all()[:5]} == {1}
    seen.rows.nth(2).locator("button.open").focus()
    page.keyboard.press("Space")
    expect(seen.rows.nth(2).get_by_role("checkbox")).to_be_checked()
    page.keyboard.press("Enter")
    expect(seen.rows.nth(2)).to_have_class(re.compile("open-a"))
    expect(seen.rows.nth(2).locator("button.open")).to_be_focused()
    page.keyboard.press("Tab")
    expect(seen.rows.nth(3).locator("button.open")).to_be_focused()
    for tab in ("Overview", "Episodes", "SQL"):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(".q-tab-panel h2, .q-tab-panel .bar").first).to_be_visible()
        settle(page)
        assert misplaced(page) == []
    page.get_by_role("button", name="Export").click()
    expect(page.get_by_role("dialog", name="Export")).to_be_visible()
    assert unnamed(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Episodes").click()
    page.get_by_role("button", name="Columns").click()
    expect(page.get_by_role("dialog", name="Columns").get_by_role("checkbox", name="length")).to_be_visible()
    assert misplaced(page) == [] and unnamed(page) == []


def test_comparing(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """Ticked episodes are drawn over each other; another alignment draws them anew, a bad one is told."""
    seen = visit(explorer)
    page = seen.page
    expect(seen.rows).to_have_count(50)
    for row in (1, 3):
        seen.rows.nth(row).get_by_role("checkbox").click()
        expect(seen.rows.nth(row).get_by_role("checkbox")).to_be_checked()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(seen.canvas(".compare")).to_be_visible()
    expect(page.locator(".compare .caption")).to_contain_text("2 episodes, aligned at start")
    assert colours(seen.canvas(".compare")) > 10
    box = page.get_by_label("Align at")
    for align, told in (("reward > 0", "aligned at reward > 0"), ("rewad > 0", "rewad")):
        box.fill(align)
        box.press("Enter")
        expect(page.locator(".compare .caption")).to_contain_text(told)
    assert unnamed(page) == [] and misplaced(page) == []
    box.fill("end")
    box.press("Enter")
    page.get_by_label("Signals").last.click()
    page.get_by_role("option", name="reward", exact=True).click()
    page.wait_for_url(re.compile("compared=.*compared=.*align=end&overlaid=reward"))
    copy = page.context.new_page()
    copy.goto(page.url)
    expect(copy.locator(".compare .caption")).to_contain_text("2 episodes, aligned at end")
    expect(copy.locator(".compare .q-chip")).to_have_text(re.compile("reward"))
    copy.get_by_role("button", name="Close the comparison").click()
    copy.wait_for_url(lambda url: "compared" not in url)


def test_an_episode(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """Play stops at the end, up and down go through the list, a click shows an episode, and the slider moves
    the row, the frame and the cursor to the t that it says.
    """
    seen = visit(explorer)
    expect(seen.page.locator(".episode-id")).to_have_text(store[119].id)
    seen.page.get_by_role("button", name="Play or pause").click()
    last = store[119].length
    expect(seen.page.locator(".timeline .t")).to_have_text(f"t = {last} / {last}")
    expect(seen.page.locator(".timeline button", has_text="play_arrow")).to_be_visible()
    for key, position in (("ArrowDown", 118), ("ArrowUp", 119)):
        seen.page.keyboard.press(key)
        expect(seen.page.locator(".episode-id")).to_have_text(store[position].id)
    seen.open_row(4)
    episode = store[115]
    expect(seen.page.locator(".episode-id")).to_have_text(episode.id)
    expect(seen.page.locator(".first .figures")).to_contain_text(f"{episode.episode_return:g}")
    chart = seen.canvas(".first")
    expect(chart).to_be_visible()
    for t in range(episode.length + 1):
        expect(seen.page.locator(".timeline .t")).to_have_text(f"t = {t} / {episode.length}")
        expect(seen.page.locator(".first dt:text-is('lives') + dd")).to_have_text(str(t))
        expect(seen.page.locator(".first dt:text-is('action') + dd")).to_have_text(
            str(episode.actions[t]) if t < episode.length else "\N{EN DASH}"
        )
        seen.page.wait_for_function("() => document.querySelector('.first img.frame').complete")
        camera = episode.observations["camera"][t]
        wait_until(lambda camera=camera: np.array_equal(seen.frame("first"), camera), f"frame {t}")
        seen.page.keyboard.press("ArrowRight")
    before = chart.screenshot()
    slider = seen.page.locator(".timeline .q-slider")
    slider.click(position={"x": 2, "y": 10})
    expect(seen.page.locator(".timeline .t")).to_contain_text("t = 0 ")
    wait_until(lambda: chart.screenshot() != before, "another picture of the chart")
    assert colours(chart) > 10
    seen.page.get_by_text("Metadata and summary").click()
    expect(seen.page.locator(".first dt:text-is('run') + dd")).to_have_text(episode.run_id)


def test_two_side_by_side(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """A second episode stands beside the first; both go in step, and the shorter one waits at its end."""
    seen = visit(explorer)
    expect(seen.page.locator(".first .episode-id")).to_have_text(store[119].id)
    seen.rows.nth(5).hover()
    seen.rows.nth(5).get_by_label("Open beside").click()
    one, other = store[119], store[114]
    assert one.length != other.length or one.id != other.id
    expect(seen.page.locator(".second .episode-id")).to_have_text(other.id)
    expect(seen.page.locator(".first .episode-id")).to_have_text(one.id)
    assert unnamed(seen.page) == []
    longest = max(one.length, other.length)
    for _ in range(longest):
        seen.page.keyboard.press("ArrowRight")
    expect(seen.page.locator(".timeline .t")).to_have_text(f"t = {longest} / {longest}")
    for pane, episode in (("first", one), ("second", other)):
        expect(seen.page.locator(f".{pane} dt:text-is('lives') + dd")).to_have_text(str(episode.length))
        last = episode.observations["camera"][-1]
        wait_until(lambda pane=pane, last=last: np.array_equal(seen.frame(pane), last), "the last frame")
    seen.page.locator(".first button", has_text="close").click()
    expect(seen.page.locator(".first .episode-id")).to_have_text(other.id)
    expect(seen.page.locator(".episode-id")).to_have_count(1)


def test_a_step_moves_the_cursor_alone(visit: Open, tmp_path: Path) -> None:
    """The charts of an episode are not drawn again at each step, and playing waits for a slow browser."""
    long = make_long_store(tmp_path / "long")
    with explored(long.path, tmp_path / "out") as explorer:
        seen = visit(explorer)
        chart = seen.canvas(".first")
        expect(chart).to_be_visible()
        settle(seen.page)
        chart.evaluate("(canvas) => (canvas.dataset.first = 'yes')")
        before = chart.screenshot()
        play = seen.page.get_by_role("button", name="Play or pause")
        label = seen.page.locator(".timeline .t")
        play.click()
        expect(label).not_to_have_text("t = 0 / 200")
        # Busy for forty ticks of the player; nothing that was sent meanwhile is shown before the pause.
        begun = int(play.evaluate(BUSY_THEN_CLICK))
        expect(play).to_contain_text("play_arrow")
        ended = int(label.inner_text().split()[2])
        assert 0 < begun <= ended < begun + 10
        wait_until(lambda: chart.screenshot() != before, "another picture of the chart")
        assert chart.get_attribute("data-first") == "yes"
        seen.page.keyboard.press("ArrowRight")  # The button that was clicked has the focus.
        expect(label).to_have_text(f"t = {ended + 1} / 200")
        seen.leave()


def test_brush(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """Dragging over a chart keeps the episodes that its condition chooses; its chip brings all back."""
    seen = visit(explorer)
    expect(seen.canvas(".overview")).to_be_visible()
    chart = seen.page.locator(".overview .chart-place")
    before = chart.screenshot()
    seen.page.get_by_role("tab", name="Lengths over episodes", exact=True).click()
    wait_until(lambda: chart.screenshot() != before, "another picture of the chart")
    settle(seen.page)
    place = seen.canvas(".overview").bounding_box()
    assert place is not None
    seen.page.mouse.move(place["x"] + place["width"] * 0.3, place["y"] + 20)
    seen.page.mouse.down()
    seen.page.mouse.move(place["x"] + place["width"] * 0.5, place["y"] + 80, steps=4)
    seen.page.mouse.move(place["x"] + place["width"] * 0.55, place["y"] + 130, steps=4)
    seen.page.mouse.up()
    settle(seen.page)  # A slow mouse chooses on its way too.
    chip = seen.page.locator(".overview .q-chip", has_text="chosen")
    expect(chip).to_be_visible()
    kept = int(re.search(r"(\d+) chosen", chip.inner_text())[1])  # type: ignore[index]
    assert 0 < kept < 120
    expect(seen.count).to_contain_text(f"of {kept}")
    seen.page.get_by_role("button", name="Export").click()
    query = seen.page.locator(".q-dialog .mono", has_text="SELECT").inner_text()
    assert "BETWEEN" in query and len(store.sql(query).fetchall()) == kept
    seen.page.keyboard.press("Escape")
    chip.locator(".q-chip__icon--remove").click()
    expect(seen.count).to_contain_text("of 120")
    expect(chip).to_be_hidden()


def test_sql(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """A query gives a table and a chart; its episodes can be listed, and a row opens its episode at its t.
    Under an error no former result stands.
    """
    seen = visit(explorer)
    page, result = seen.page, seen.page.locator(".result-table tbody tr")
    _ask(seen, "SELECT episode_id, episode_return, length FROM episodes WHERE episode_return > 200")
    wanted = [episode for episode in store if episode.episode_return > 200]
    expect(page.get_by_text(f"{len(wanted)} rows in")).to_be_visible()
    expect(result).to_have_count(min(25, len(wanted)))
    chart = seen.canvas(".q-tab-panel .pane:has(.sql-text)")
    expect(chart).to_be_visible()
    assert colours(chart) > 5 and unnamed(page) == []
    page.get_by_role("button", name="Show these episodes").click()
    expect(seen.count).to_contain_text(f"of {len(wanted)}")
    episode = store[37]
    _ask(seen, f"SELECT episode_id, t, reward FROM steps WHERE episode_id = '{episode.id}' ORDER BY t")
    expect(page.get_by_label("x", exact=True)).to_have_value("t")
    expect(page.get_by_label("y", exact=True)).to_have_value("reward")
    result.nth(2).click()
    expect(page.locator(".episode-id")).to_have_text(episode.id)
    expect(page.locator(".timeline .t")).to_have_text(f"t = 2 / {episode.length}")
    _ask(seen, "SELECT episode_id, run_id FROM episodes")
    expect(page.get_by_text("120 rows in")).to_be_visible()
    expect(chart).to_be_hidden()
    _ask(seen, "SELECT 'gone' AS episode_id")
    expect(page.get_by_text("1 rows in")).to_be_visible()
    result.first.click()
    expect(page.get_by_text("gone is not in the newest version")).to_be_visible()
    _ask(seen, "SELECT retrun FROM episodes")
    expect(page.locator(".problem", has_text="episode_return")).to_be_visible()
    expect(page.locator(".result-table")).to_be_hidden()
    expect(chart).to_be_hidden()
    for name in ("CSV", "Show these episodes"):
        expect(page.get_by_role("button", name=name)).to_be_hidden()
    box = page.locator(".cm-content")
    box.press("Control+Enter")
    assert box.inner_text() == "SELECT retrun FROM episodes", "the key runs the query and adds nothing"
    _ask(seen, "SELECT * FROM read_csv('/etc/passwd')")
    expect(page.locator(".problem", has_text="Permission")).to_be_visible()


def test_sql_is_completed(explorer: Explorer, visit: Open) -> None:
    """The editor offers columns, tables and functions of the store, and quotes a name that needs it."""
    seen = visit(explorer)
    seen.page.get_by_role("tab", name="SQL").click()
    box = seen.page.locator(".cm-content")
    offered = seen.page.locator(".cm-completionLabel")

    def complete(text: str) -> None:
        box.click()
        seen.page.keyboard.press("Control+A")
        seen.page.keyboard.type(text)
        expect(offered.first).to_be_visible()

    def offers(*names: str) -> None:
        # The words of the text before are offered until those of this one are there.
        wait_until(lambda: set(names) <= set(offered.all_inner_texts()), f"{names} among the completions")

    def columns_are_there() -> bool:
        complete("select epi")
        return "episode_id" in offered.all_inner_texts()

    wait_until(columns_are_there, "the columns of the store")
    offers("episode_return", "episodes")
    complete("select medi")
    offers("median")
    complete("select metadata.le")
    offers("metadata.level")
    seen.page.wait_for_timeout(500)
    seen.page.keyboard.press("Enter")
    expect(box).to_have_text('select "metadata.level"')


def test_stopping_a_query(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """While a long query runs the rest of the page works; Stop ends the query and the next one runs."""
    seen = visit(explorer)
    _ask(seen, "SELECT count(*) FROM range(10000000000000) WHERE range % 7 = 3")
    stop = seen.page.get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    seen.page.locator(".cm-content").press("Control+Enter")
    seen.page.wait_for_timeout(500)
    expect(stop).to_be_visible()
    seen.page.get_by_role("tab", name="Episodes").click()
    seen.filter("length = 3")
    expect(seen.count).to_contain_text(f"of {len(store.filter('length = 3'))}")
    seen.page.get_by_role("tab", name="SQL").click()
    stop.click()
    expect(seen.page.locator(".problem", has_text="stopped")).to_be_visible()
    _ask(seen, "SELECT 42 AS answer")
    expect(seen.page.locator(".result-table td", has_text="42")).to_be_visible()


def test_labels(visit: Open, tmp_path: Path) -> None:
    """With --write keys and buttons label the open episode or the ticked rows, and undo them; else not."""
    made = make_store(tmp_path / "labelled", runs=1, episodes=6)
    read = lambda: el.open(made.path)  # noqa: E731
    column = lambda name: [one.annotations.get(name) for one in read()]  # noqa: E731
    with explored(made.path, tmp_path / "writes", "--write") as writes:
        seen = visit(writes)
        seen.page.get_by_role("tab", name="Episodes").click()
        state, keys = seen.page.locator(".label-state"), seen.page.keyboard
        opened = seen.page.locator(".first .episode-id")
        expect(opened).to_have_text(read()[5].id)
        keys.press("g")
        expect(opened).to_have_text(read()[4].id)
        wait_until(lambda: column("good") == [None] * 5 + [True], "the label of the newest episode")
        expect(seen.page.locator(".episodes-table th", has_text="good")).to_be_visible()
        keys.press("b")
        expect(opened).to_have_text(read()[3].id)
        wait_until(lambda: column("good") == [None] * 4 + [False, True], "the label of the next one")
        keys.press("n")
        expect(seen.page.get_by_role("textbox", name="Note")).to_be_focused()
        keys.type("fell over")
        keys.press("Enter")
        wait_until(lambda: column("note")[3:4] == ["fell over"], "the note")
        # Keys in its box are text.
        seen.page.wait_for_function("document.activeElement.tagName !== 'INPUT'")
        expect(opened).to_have_text(read()[3].id)
        keys.press("b")
        expect(opened).to_have_text(read()[2].id)
        wait_until(lambda: column("good")[3] is False, "the label after the note")
        seen.rows.nth(0).click()
        expect(state).to_have_text("good")
        for row in (0, 1):
            seen.rows.nth(row).get_by_role("checkbox").click()
            expect(seen.rows.nth(row).get_by_role("checkbox")).to_be_checked()
        seen.page.get_by_role("button", name="Bad (B)").click()
        wait_until(lambda: column("good")[4:] == [False, False], "the labels of the ticked rows")
        undo = seen.page.get_by_role("button", name="Undo the last label (U)")
        for wanted in ([False, True], [False, True], [False, True], [None, True], [None, None]):
            undo.click()
            wait_until(lambda wanted=wanted: column("good")[4:] == wanted, f"undone to {wanted}")
        expect(undo).to_be_disabled()
        assert column("note") == [None] * 6
        seen.leave()
    with explored(made.path, tmp_path / "reads") as reads:
        seen = visit(reads)
        seen.page.get_by_role("tab", name="Episodes").click()
        expect(seen.page.locator(".first .episode-id")).to_be_visible()
        version = read().version
        seen.page.keyboard.press("g")
        expect(seen.page.get_by_role("button", name="Good (G)")).to_have_count(0)
        seen.page.wait_for_timeout(1_000)
        assert read().version == version
        seen.leave()


def test_exports(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """Ids are downloaded, and the filtered episodes written as a store; the explored one stays as it was."""
    seen = visit(explorer)
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*")}
    seen.filter("length = 5")
    wanted = [episode.id for episode in store if episode.length == 5]
    expect(seen.count).to_contain_text(f"of {len(wanted)}")
    seen.page.get_by_role("button", name="Export").click()
    with seen.page.expect_download() as download:
        seen.page.get_by_role("button", name="TXT").click()
    assert sorted(Path(download.value.path()).read_text().split()) == sorted(wanted)
    folder = seen.page.get_by_placeholder("best-episodes")
    folder.fill("../elsewhere")
    seen.page.get_by_role("button", name="Write").click()
    expect(seen.page.locator(".q-dialog .problem", has_text="does not lie below")).to_be_visible()
    folder.fill("fives")
    seen.page.get_by_role("button", name="Write").click()
    expect(seen.page.get_by_text(f"Wrote {len(wanted)} episodes")).to_be_visible()
    copied = el.open(explorer.folder / "fives")
    assert sorted(episode.id for episode in copied) == sorted(wanted)
    assert np.array_equal(copied[0].observations["camera"], store[copied[0].id].observations["camera"])
    seen.page.get_by_role("button", name="Write").click()
    expect(seen.page.locator(".q-dialog .problem", has_text="nothing is written over")).to_be_visible()
    assert {path: path.stat().st_mtime_ns for path in store.path.rglob("*")} == before


def test_ticked_rows(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """Rows that are ticked are exported alone, and stay ticked on other pages."""
    seen = visit(explorer)
    for row in (1, 3):
        seen.rows.nth(row).get_by_role("checkbox").click()
        expect(seen.rows.nth(row).get_by_role("checkbox")).to_be_checked()
    expect(seen.page.locator(".episode-id")).to_have_text(store[119].id)  # Ticking opens nothing.
    seen.page.get_by_role("button", name="Next page").click()
    expect(seen.count).to_contain_text("51-100")
    seen.rows.nth(0).get_by_role("checkbox").click()
    seen.page.get_by_role("button", name="Export").click()
    expect(seen.page.get_by_text("The rows that are ticked (3)")).to_be_visible()
    with seen.page.expect_download() as download:
        seen.page.get_by_role("button", name="JSON").click()
    text = Path(download.value.path()).read_text()
    assert re.findall(r'"episode_id": "([^"]+)"', text) == [store[118].id, store[116].id, store[69].id]


def test_following(browser: Browser, visit: Open, tmp_path: Path) -> None:
    """What another process records appears by itself; what is open and ticked stays, while it is there."""
    growing = make_store(tmp_path / "growing", runs=1, episodes=5)
    with explored(growing.path, tmp_path / "out") as explorer:
        seen = visit(explorer)
        seen.open_row(2)
        expect(seen.page.locator(".episode-id")).to_have_text(growing[2].id)
        seen.rows.nth(0).get_by_role("checkbox").click()
        code = (
            "import episodelake as el, explorer_pages; "
            f"explorer_pages.add_run(el.open({str(growing.path)!r}), 'later', 4, 9)"
        )
        subprocess.run(
            [sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1], timeout=PATIENCE
        )
        expect(seen.count).to_contain_text("of 9")
        expect(seen.page.locator("header")).to_contain_text("9 episodes · 2 runs")
        assert seen.column("#") == [str(number) for number in range(8, -1, -1)]
        expect(seen.page.locator(".episode-id")).to_have_text(growing[2].id)
        expect(seen.page.locator(".episodes-table tr.open-a td").nth(1)).to_have_text("2")
        seen.page.get_by_role("button", name="Export").click()
        expect(seen.page.get_by_text("The rows that are ticked (1)")).to_be_visible()
        seen.page.keyboard.press("Escape")
        el.open(growing.path).delete(f"episode_id = '{growing[4].id}'")
        expect(seen.page.locator("header")).to_contain_text("8 episodes")
        seen.page.get_by_role("button", name="Export").click()
        gone = f"1 ticked row left out: {growing[4].id} is not in the newest"
        expect(seen.page.get_by_text(gone)).to_be_visible()
        seen.leave()


def test_a_filter_that_fails_on_a_newer_version(visit: Open, tmp_path: Path) -> None:
    """The overview shows the error; without the filter it shows the newer version."""
    growing = make_store(tmp_path / "growing", runs=1, episodes=5)
    with explored(growing.path, tmp_path / "out") as explorer:
        seen = visit(explorer)
        seen.filter('"metadata.level" < 9007199254740993')
        seen.page.wait_for_url(re.compile("where="))
        seen.page.get_by_role("tab", name="Overview").click()
        part = seen.page.locator(".part-of")
        expect(part).to_contain_text("5 of 5 episodes")
        with growing.writer() as writer:
            writer.write_episode(
                observations={
                    "camera": np.zeros((2, 16, 12, 3), np.uint8),
                    "place": np.zeros((2, 2), np.float32),
                },
                actions=[0],
                rewards=[0.0],
                terminations=True,
                truncations=False,
                metadata={"level": 2**70},
            )
        expect(part).to_contain_text("one is beyond 64 bits")
        part.get_by_role("button", name="Whole store").click()
        expect(part).to_be_hidden()
        expect(seen.page.locator(".about-facts")).to_contain_text("6")
        seen.leave()


def test_narrow_pages(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """On half a laptop and on a phone nothing lies over anything else or leaves the page."""
    for width in (1100, 700, 400):
        seen = visit(explorer)
        page = seen.page
        page.set_viewport_size({"width": width, "height": 800})
        seen.open_row(2)
        expect(page.locator(".episode-id")).to_have_text(store[117].id)
        expect(page.locator(".timeline")).to_be_in_viewport()
        expect(seen.canvas(".first")).to_be_visible()
        settle(page)
        assert crowded(page) == [], width
        _ask(seen, "SELECT name, count(*) AS episodes FROM episodes JOIN runs USING (run_id) GROUP BY ALL")
        expect(seen.canvas(".q-tab-panel .pane:has(.sql-text)")).to_be_visible()
        settle(page)
        assert crowded(page) == [], width
        page.get_by_role("button", name="Export").click()
        expect(page.get_by_placeholder("best-episodes")).to_be_in_viewport()
        settle(page)
        assert crowded(page) == [], width


def test_hostile_texts(explorer: Explorer, visit: Open) -> None:
    """Texts of the store are shown as they are, and nothing in them runs."""
    seen = visit(explorer)
    expect(seen.page.locator(".first dt:text-is('note') + dd").first).to_have_text(HOSTILE)
    seen.page.locator(".overview .q-expansion-item__container").get_by_text(HOSTILE).first.click()
    expect(seen.page.locator(".overview dt:text-is('author') + dd")).to_have_text(f"{HOSTILE}, B")
    _ask(seen, "SELECT '<img src=x onerror=alert(3)>' AS \"<script>alert(4)</script>\", 1 AS one")
    expect(seen.page.locator(".result-table td", has_text="onerror")).to_be_visible()
    assert seen.page.locator("img[src='x']").count() == 0


def test_light_and_dark(explorer: Explorer, visit: Callable[..., Visit]) -> None:
    """The page, its charts and the SQL box follow the system, and the button changes them."""
    seen = visit(explorer, color_scheme="dark")
    page, button = seen.page, seen.page.locator("header button", has_text="dark_mode")
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    expect(seen.canvas(".overview")).to_be_visible()
    # The place of the chart: its canvas is another one each time that it is drawn.
    chart = page.locator(".overview .chart-place")
    settle(page)
    picture = chart.screenshot()
    button.click()
    expect(page.locator("body")).not_to_have_class(re.compile("body--dark"))
    wait_until(lambda: chart.screenshot() != picture, "another picture of the chart")
    button.click()
    page.get_by_role("tab", name="SQL").click()
    editor = page.locator(".cm-editor")
    dark, light = "rgb(30, 30, 30)", "rgb(255, 255, 255)"
    run = page.get_by_role("button", name="Run", exact=True).locator("span.block")
    for colour in (dark, light):
        expect(editor).to_have_css("background-color", colour)
        assert contrast(run) >= 4.5
        button.click()
    expect(editor).to_have_css("background-color", dark)


def test_a_replay_that_differs(visit: Open, tmp_path: Path) -> None:
    """A replay tells from which step on its frames differ; without a seed none is offered."""
    recorded = el.create(tmp_path / "cartpole", gymnasium.make("CartPole-v1"))
    made = gymnasium.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync")
    made.envs[0].unwrapped.force_mag = 11.0  # type: ignore[attr-defined]
    el.collect(made, lambda observations, infos, state: np.ones(1, int), recorded, episodes=2, seed=1)
    first, second = recorded.refresh()
    assert (first.seed, second.seed) == (1, None)
    with explored(recorded.path, tmp_path / "out") as explorer:
        seen = visit(explorer)
        expect(seen.page.locator(".episode-id")).to_have_text(second.id)
        expect(seen.page.get_by_text("no seed was recorded")).to_be_visible()
        expect(seen.page.get_by_role("button", name="Render a replay")).to_have_count(0)
        seen.open_row(1)
        expect(seen.page.locator(".episode-id")).to_have_text(first.id)
        seen.page.get_by_role("button", name="Render a replay").click()
        caption = seen.page.locator(".first figcaption")
        expect(caption).to_have_text("replay")
        seen.page.keyboard.press("ArrowRight")
        expect(caption).to_contain_text("not what was recorded, since step 1: observation[1] was")
        expect(seen.page.locator(".first img.frame")).to_have_css("outline-style", "solid")
        seen.page.keyboard.press("ArrowLeft")
        expect(caption).to_have_text("replay")
        seen.leave()


def test_a_list_of_many_columns(visit: Open, tmp_path: Path) -> None:
    """Of 240 keys of metadata a list shows the first; others come with a click, with their values."""
    store = el.create(tmp_path / "wide", observation_space=Discrete(2), action_space=Discrete(2))
    with store.writer() as writer:
        for number in range(3):
            writer.write_episode(
                observations=[0, 1],
                actions=[0],
                rewards=[1.0],
                terminations=True,
                truncations=False,
                metadata={f"key{k:03}": 1000 * number + k for k in range(240)},
            )
    with explored(Path(store.path), tmp_path / "out") as explorer:
        page = visit(explorer).page
        heads = page.locator(".episodes-table thead th")
        expect(heads).to_have_count(2 + 30)
        page.get_by_role("button", name="Columns").click()
        page.get_by_role("dialog", name="Columns").get_by_role("checkbox", name="metadata.key239").click()
        page.keyboard.press("Escape")
        expect(heads).to_have_count(3 + 30)
        expect(page.locator(".episodes-table tbody tr").first).to_contain_text("2239")


def test_cameras_and_wide_columns(visit: Open, tmp_path: Path) -> None:
    """All cameras stand side by side by name; the picker draws any numbers, in the next episodes too."""
    space = Dict(
        front=Box(0, 255, (16, 24, 3), np.uint8),
        wrist=Box(0, 255, (16, 12, 3), np.uint8),
        joints=Box(-4, 4, (14,), np.float32),
    )
    rng = np.random.default_rng(0)
    robot = el.create(tmp_path / "robot", observation_space=space, action_space=Box(-1, 1, (7,)))
    with robot.writer() as writer:
        for _ in range(2):
            writer.write_episode(
                observations={
                    "front": rng.integers(0, 255, (6, 16, 24, 3), np.uint8),
                    "wrist": rng.integers(0, 255, (6, 16, 12, 3), np.uint8),
                    "joints": rng.uniform(-4, 4, (6, 14)).astype(np.float32),
                },
                actions=np.zeros((5, 7), np.float32),
                rewards=np.ones(5),
                terminations=True,
                truncations=False,
                infos=[{"battery": float(t)} for t in range(6)],
            )
    robot.refresh()
    with explored(robot.path, tmp_path / "out") as explorer:
        seen = visit(explorer)
        captions = seen.page.locator(".first figcaption")
        expect(captions).to_have_text(["front", "wrist"])
        for index, name in enumerate(("front", "wrist")):
            image = seen.page.locator(".first img.frame").nth(index)
            wanted = robot[1].observations[name][0]
            wait_until(lambda image=image, wanted=wanted: np.array_equal(pixels(image), wanted), name)
        place = seen.page.locator(".first .chart-place")
        expect(seen.canvas(".first")).to_be_visible()
        settle(seen.page)
        whole = place.screenshot()
        picker = seen.page.locator(".first .q-select input")
        picker.fill("observation.joints[8:10]")
        picker.press("Enter")
        wait_until(lambda: place.screenshot() != whole, "another chart")
        picker.fill("info.b")
        seen.page.get_by_role("option", name="info.battery").click()
        chips = seen.page.locator(".first .q-chip")
        expect(chips).to_contain_text(["observation.joints[8:10]", "info.battery"])
        picker.press("Escape")
        seen.page.keyboard.press("Tab")
        seen.open_row(1)
        expect(seen.page.locator(".episode-id")).to_have_text(robot[0].id)
        expect(chips).to_contain_text(["observation.joints[8:10]", "info.battery"])
        seen.leave()


def test_other_stores(visit: Open, tmp_path: Path) -> None:
    """Empty stores and those of several agents open, and say what does not apply."""
    box = gymnasium.spaces.Box(0, 1, (2,))
    empty = el.create(tmp_path / "empty", observation_space=box, action_space=gymnasium.spaces.Discrete(2))
    with explored(empty.path, tmp_path / "out") as explorer:
        seen = visit(explorer)
        expect(seen.page.locator("header")).to_contain_text("0 episodes")
        expect(seen.page.get_by_text("The store has no episodes yet")).to_be_visible()
        expect(seen.page.get_by_text("No episode fulfils the filter")).to_have_count(0)
        seen.leave()
    env = simple_spread_v3.parallel_env(max_cycles=6)
    agents = el.create(tmp_path / "agents", env)
    with agents.record(env) as recorder:
        play_parallel(recorder, random_policy(env, 1), seed=1)
    with explored(agents.path, tmp_path / "out") as explorer:
        seen = visit(explorer)
        expect(seen.page.locator(".episode-id")).to_have_text(agents.refresh()[0].id)
        expect(seen.page.get_by_label("Agent")).to_be_visible()
        expect(seen.canvas(".first")).to_be_visible()
        seen.leave()


def test_refusals(explorer: Explorer, browser: Browser) -> None:
    """Without the token nothing is shown, by HTTP and by WebSocket; nor under a strange name."""
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(explorer.origin)
    assert answer is not None and answer.status == 403
    assert "token" in page.content() and "episodes" not in page.content()
    context.close()
    with urllib.request.urlopen(explorer.url, timeout=PATIENCE) as welcome:
        cookie = welcome.headers["set-cookie"].partition(";")[0]
        path = welcome.read().decode().partition("url=")[2].partition('"')[0]
    own = f"Host: 127.0.0.1:{explorer.port}\r\nCookie: {cookie}"
    assert _handshake(explorer, path, own.partition("\r")[0]) == 403
    assert _handshake(explorer, path, f"{own}\r\nOrigin: http://evil.example") == 403
    assert _handshake(explorer, path, f"{own}\r\nOrigin: {explorer.origin}") == 101


def test_interrupt(store: el.EpisodeStore, visit: Open, tmp_path: Path) -> None:
    """Ctrl-C ends the command with status 0 and without a trace, with a page open and a query running."""
    with explored(store.path, tmp_path / "out") as explorer:
        seen = visit(explorer)
        expect(seen.rows).to_have_count(50)
        _ask(seen, "SELECT count(*) FROM range(10000000000000) WHERE range % 7 = 3")
        expect(seen.page.get_by_role("button", name="Stop")).to_be_visible()
        status, _, told = explorer.interrupt()
        seen.leave()
        seen.faults.clear()  # The page told that its server was gone.
    assert (status, "Traceback" in told) == (0, False), told
    assert not any((tmp_path / "out").iterdir())


def _ask(seen: Visit, query: str) -> None:
    seen.page.get_by_role("tab", name="SQL").click()
    box = seen.page.locator(".cm-content")
    box.click()
    seen.page.keyboard.press("Control+A")
    seen.page.keyboard.insert_text(query)
    expect(box).to_contain_text(query[:30])
    seen.page.get_by_role("button", name="Run").click()


def _handshake(explorer: Explorer, path: str, headers: str) -> int:
    """The status of the answer to a WebSocket's handshake."""
    text = (
        f"GET {path}_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{headers}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", explorer.port), timeout=PATIENCE) as connection:
        connection.sendall(text.encode())
        return int(connection.recv(4096).split(b" ")[1])


# A lake


HOSTILE_NAME = "odd/<img src=x onerror=alert(3)> & #?name=é"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two stores, one in a folder of a hostile name, and one that is damaged."""
    make_store(tmp_path / "lake/pixels/three", episodes=40)
    hostile = tmp_path / "lake" / HOSTILE_NAME
    env = gymnasium.make("CartPole-v1")
    with el.create(hostile, env).record(env) as recorder:
        recorder.reset(seed=1)
        recorder.step(0)
    make_long_store(tmp_path / "lake/damaged")
    (tmp_path / "lake/damaged/store.json").write_text(f'{{"format": "{HOSTILE}"}}')
    return tmp_path / "lake"


def listed_stores(seen: Visit) -> dict[str, list[str]]:
    """The cells of each store behind its name."""
    rows = seen.page.locator(".episodes-table tbody tr:has(.mono)")
    cells = [rows.nth(row).locator("td").all_inner_texts() for row in range(rows.count())]
    return {name: others for name, *others in cells}


def test_a_lake(lake: Path, tmp_path: Path, visit: Open) -> None:
    """Its stores are listed with their amounts; a click opens one, and a link leads back. No name leads out
    of it, and without its cookie no page of a store answers.
    """
    make_long_store(tmp_path / "secret")
    (lake / "link").symlink_to(tmp_path / "secret")
    with explored(lake, tmp_path / "exports") as found:
        seen = visit(found, pane=None)
        page = seen.page
        expect(page.locator(".episodes-table tbody tr:has(.mono)")).to_have_count(3)
        frame = el.lake(lake).stores()
        listed = listed_stores(seen)
        assert list(listed) == ["damaged", HOSTILE_NAME, "pixels/three"]
        for row in frame.iter_rows(named=True):
            episodes, steps, envs, updated, error = listed[row["store"]]
            if row["error"] is None:
                amounts = f"{row['episodes']:,}", f"{row['steps']:,}", ", ".join(row["env_ids"])
                assert (episodes, steps, envs, error) == (*amounts, "")
                assert updated == f"{row['updated']:%Y-%m-%d %H:%M:%S}"
            else:
                assert (episodes, steps, envs, updated) == ("", "", "", "") and "damaged" in error
        expect(page.locator("header")).to_contain_text("3 stores · 121 episodes")
        assert not unnamed(page) and not crowded(page) and not misplaced(page)
        inside = page.url
        for name in (
            "../secret",
            "link",
            "/etc",
            "pixels/../../secret",
            "%2e%2e/secret",
            "pixels/three/steps",
            "",
        ):
            page.goto(f"{inside}store?name={quote(name, safe='')}")
            told = re.compile(r"is no name of a store|is a link|no store")
            expect(page.locator(".banner")).to_have_text(told)
        for address in (f"{inside}store?name=pixels/three", f"{found.origin}/store?name=pixels/three"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(address, timeout=PATIENCE)
        page.goto(inside)
        page.get_by_placeholder("Part of a name").fill("cartpole")
        expect(page.locator(".episodes-table tbody tr:has(.mono)")).to_have_count(1)
        page.get_by_role("link", name=HOSTILE_NAME).click()
        page.get_by_role("tab", name="Episodes").click()
        expect(page.locator(".episode-id")).to_be_visible()
        expect(page.locator("header")).to_contain_text(HOSTILE_NAME)
        page.get_by_role("link", name="All stores").click()
        page.locator("td", has_text="120").first.click()
        expect(page.locator("header")).to_contain_text("120 episodes · 3 runs")
        page.get_by_role("tab", name="Episodes").click()
        expect(seen.canvas(".overview")).to_be_visible()
        assert not crowded(page)
        page.get_by_role("link", name="All stores").click()
        page.get_by_role("link", name="damaged").click()
        expect(page.locator(".banner")).to_contain_text("store.json")
        expect(page.locator(".episodes-table tbody tr:has(.mono)")).to_have_count(3)
        page.get_by_role("link", name="pixels/three").click()
        page.get_by_role("tab", name="Episodes").click()
        expect(seen.rows).to_have_count(50)
        seen.filter("episode_return > 38")
        high = sum(episode.episode_return > 38 for episode in el.open(lake / "pixels/three"))
        expect(seen.count).to_contain_text(f"of {high}")
        seen.leave()
        status, _, told = found.interrupt()
    assert (status, "Traceback" in told) == (0, False), told


def test_a_lake_that_changes(lake: Path, tmp_path: Path, visit: Open) -> None:
    """New stores and episodes show, a deleted store is named by its page, and another takes its name."""
    with explored(lake, tmp_path / "exports") as found:
        seen = visit(found, pane=None)
        expect(seen.page.locator(".episodes-table tbody tr:has(.mono)")).to_have_count(3)
        make_long_store(lake / "a new one")
        expect(seen.page.get_by_role("link", name="a new one")).to_be_visible()
        expect(seen.page.locator("header")).to_contain_text("4 stores · 122 episodes")
        seen.page.get_by_role("link", name="a new one").click()
        expect(seen.page.locator(".about-facts")).to_be_visible()
        el.lake(lake).delete("a new one")
        expect(seen.page.locator(".banner")).to_contain_text("cannot be read, so this stays as it was")
        make_store(lake / "a new one", runs=1, episodes=7)
        seen.page.reload()
        expect(seen.page.locator("header")).to_contain_text("7 episodes · 1 run")
        el.lake(lake).delete("a new one")
        expect(seen.page.locator(".banner")).to_contain_text("cannot be read, so this stays as it was")
        seen.page.reload()
        expect(seen.page.locator(".banner")).to_contain_text("has no store 'a new one'")


@pytest.fixture
def recorded_store(tmp_path: Path) -> Iterator[tuple[el.EpisodeStore, LiveWriter]]:
    """A store with a sealed episode, and a writer in another process that has one open."""
    store = el.create(tmp_path / "live", observation_space=SPACES, action_space=Discrete(4))
    writer = LiveWriter(Path(store.path))
    for line in ("step 4", "end", "seal", "step 3"):
        writer.ask(line)
    yield store, writer
    writer.kill()


def test_an_episode_is_watched_until_it_is_sealed(
    recorded_store: tuple[el.EpisodeStore, LiveWriter], visit: Open, tmp_path: Path
) -> None:
    """An unsealed episode is listed, opens, grows with the writer, and stays open as it becomes a row."""
    store, writer = recorded_store
    with explored(Path(store.path), tmp_path / "out") as explorer:
        seen = visit(explorer)
        page = seen.page
        row = page.locator(".recording-table tbody tr")
        expect(row).to_have_count(1)
        expect(row.locator("td")).to_have_text([re.compile("live/000001"), "3", "6", re.compile("recording")])
        expect(page.locator("header")).to_contain_text("1 writer since 20")
        row.locator("button").click()
        figures = page.locator(".episode.first .figures")
        expect(figures).to_contain_text(re.compile("6.*return.*3.*steps.*recording", re.DOTALL))
        expect(page.locator(".timeline .t")).to_have_text("t = 3 / 3")
        writer.ask("step 2")
        expect(row.locator("td").nth(1)).to_have_text("5")
        expect(page.locator(".timeline .t")).to_have_text("t = 5 / 5")
        expect(page.locator(".episode.first img.frame")).to_have_attribute("alt", "camera at t = 5")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".timeline .t")).to_have_text("t = 4 / 5")
        writer.ask("step 1")
        expect(page.locator(".timeline .t")).to_have_text("t = 4 / 6")
        page.wait_for_url(re.compile("t=4"))
        page.reload()
        expect(page.locator(".timeline .t")).to_have_text("t = 4 / 6")
        settle(page)
        assert unnamed(page) == [] and misplaced(page) == [] and crowded(page) == []
        writer.ask("end")
        expect(row.locator("td").nth(3)).to_contain_text("waits for its seal")
        expect(figures).to_contain_text("waits for its seal")
        writer.ask("seal")
        expect(page.locator(".recording")).to_be_hidden()
        expect(figures).to_contain_text("terminated")
        expect(page.locator(".timeline .t")).to_have_text("t = 4 / 7")
        expect(page.locator(".episodes-table tr.open-a .open")).to_have_text(re.compile("live/000001"))
        writer.ask("close")
        expect(page.locator("header")).not_to_contain_text("writer")


def test_a_writer_that_is_killed_is_watched(
    recorded_store: tuple[el.EpisodeStore, LiveWriter], visit: Open, tmp_path: Path
) -> None:
    """An address opens an unsealed episode beside a sealed one; that of a killed writer stays until its
    journal is gone, and the page says so.
    """
    store, writer = recorded_store
    sealed = store.refresh()[0].id
    unsealed = sealed.replace("/000000", "/000001")
    with explored(Path(store.path), tmp_path / "out") as explorer:
        seen = visit(explorer)
        page = seen.page
        address = page.url.split("?")[0]
        page.goto(f"{address}?pane=episodes&episode={unsealed}&beside={sealed}&t=2")
        expect(page.locator(".episode.first .episode-id")).to_have_text(unsealed)
        expect(page.locator(".episode.second .episode-id")).to_have_text(sealed)
        expect(page.locator(".timeline .t")).to_contain_text("t = 2 /")
        settle(page)
        page.goto(f"{address}?pane=episodes")
        page.locator(".recording-table tbody tr button").click()
        expect(page.locator(".timeline .t")).to_have_text("t = 3 / 3")
        writer.kill()
        expect(page.locator(".recording-table tbody tr")).to_contain_text("its writer is gone")
        expect(page.locator("header")).not_to_contain_text("writer")
        shutil.rmtree(Path(store.path) / "journal")
        expect(page.locator(".recording")).to_be_hidden()
        expect(page.locator(".episode.first .problem")).to_contain_text("not in the newest version")
        expect(page.locator(".timeline .t")).to_have_text("t = 3 / 3")


def test_playback_of_four_cameras(visit: Open, tmp_path: Path) -> None:
    """Keys and thumbnails move, play loops, and all cameras show the step of the slider.

    The browser plays the packets of two; a third has a codec that few play, and the fourth is not encoded.
    """
    names, length = ("front", "left", "right", "wrist"), 30
    spaces = Dict({name: Box(0, 255, (24, 24, 3), np.uint8) for name in names})
    codecs = {"front": el.Video("h264"), "left": el.Video("av1"), "right": el.Video("hevc")}
    store = el.create(
        tmp_path / "robot",
        observation_space=spaces,
        action_space=Discrete(2),
        encodings={f"observation.{name}": video for name, video in codecs.items()},
    )
    images = np.stack([np.full((24, 24, 3), 5 * t, np.uint8) for t in range(length + 1)])
    with store.writer() as writer:
        writer.write_episode(
            observations=dict.fromkeys(names, images),
            actions=np.zeros(length, np.int64),
            rewards=np.ones(length),
            terminations=True,
            truncations=False,
        )
    with explored(Path(store.path), tmp_path / "out") as explorer:
        seen = visit(explorer)
        page = seen.page
        label, thumbnails = page.locator(".timeline .t"), page.locator(".thumbnails img")
        expect(label).to_have_text(f"t = 0 / {length}")
        expect(thumbnails).to_have_count(12)
        thumbnails.last.click()
        expect(label).to_have_text(f"t = {length} / {length}")
        page.keyboard.press("Home")
        expect(label).to_have_text(f"t = 0 / {length}")
        page.keyboard.press("Shift+ArrowRight")
        expect(label).to_have_text(f"t = 10 / {length}")
        page.keyboard.press("+")
        expect(page.locator(".timeline .q-select")).to_contain_text("2x")
        page.keyboard.press("l")
        loop = page.get_by_role("button", name="Loop")
        expect(loop).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="Play or pause").click()
        shown = [10]

        def back_again() -> bool:
            shown.append(int(label.inner_text().split()[2]))
            return shown[-1] < max(shown)

        wait_until(back_again, "the second round")
        page.get_by_role("button", name="Play or pause").click()
        expect(page.get_by_role("button", name="Play or pause")).to_contain_text("play_arrow")
        t = int(label.inner_text().split()[2])
        for name in names[:2]:
            frame = page.locator(f"video.frame[aria-label='{name} at t = {t}']")
            wait_until(lambda frame=frame: abs(frame.evaluate(PLAYED) - 5 * t) < 2, f"{name} at {t}")
        for name in names[2:]:
            frame = page.locator(f"img.frame[alt^='{name}']")
            expect(frame).to_have_attribute("alt", f"{name} at t = {t}")
            assert (np.abs(pixels(frame).astype(int) - 5 * t) < 2 * (name == "right") + 1).all()
        settle(page)
        assert unnamed(page) == [] and misplaced(page) == [] and crowded(page) == []
