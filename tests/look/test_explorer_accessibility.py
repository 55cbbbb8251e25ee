"""The explorer's pages as axe-core judges them: `make test-explorer`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect, sync_playwright

from explorer_pages import (
    PAGE_PATIENCE,
    Explorer,
    Visit,
    explored,
    launched,
    make_sick_store,
    make_store,
    settle,
)

pytestmark = pytest.mark.slow
expect.set_options(timeout=PAGE_PATIENCE)
IMPACTS = ("serious", "critical")


def test_axe_finds_nothing_serious(tmp_path: Path) -> None:
    """Of every tab, dialog and menu of a store that may be labelled, and of a lake, light and dark."""
    store = make_store(tmp_path / "lake" / "pixels", runs=2, episodes=6)
    make_sick_store(tmp_path / "lake" / "sick")
    with (
        explored(tmp_path / "lake" / "sick", tmp_path / "out") as sick,
        explored(Path(store.path), tmp_path / "out", "--write") as labelled,
        explored(tmp_path / "lake", tmp_path / "out") as lake,
        sync_playwright() as playwright,
        launched(playwright) as browser,
    ):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        faults: dict[str, list[str]] = {}

        @contextmanager
        def visited(explorer: Explorer) -> Iterator[Visit]:
            seen = Visit(context.new_page(), explorer.origin)
            seen.page.goto(explorer.url)
            yield seen
            seen.page.close()

        def look(seen: Visit, screen: str) -> None:
            for scheme in ("light", "dark"):
                seen.page.emulate_media(color_scheme=scheme)
                settle(seen.page)
                faults[f"{screen}, {scheme}"] = serious(seen.page)

        with visited(sick) as seen:
            expect(seen.page.locator(".finding").first).to_be_visible()
            expect(seen.canvas(".distribution.returns")).to_be_visible()
            look(seen, "overview")
            seen.tab("SQL")
            seen.ask("SELECT episode_id, episode_return, length FROM episodes")
            expect(seen.canvas(".q-tab-panel .pane:has(.sql-text)")).to_be_visible()
            look(seen, "SQL")
            seen.button("Examples").click()
            look(seen, "examples")
            seen.press("Escape")
            seen.ask("SELECT nothing")
            expect(seen.page.locator(".problem:visible").first).to_be_visible()
            look(seen, "an error of SQL")
        with visited(labelled) as seen:
            seen.tab("Episodes")
            expect(seen.canvas(".first")).to_be_visible()
            look(seen, "list and episode")
            seen.rows.nth(1).get_by_role("button", name="Open beside").click(force=True)
            expect(seen.page.locator(".second .episode-id")).to_be_visible()
            look(seen, "two episodes")
            seen.filter("length > 100")
            expect(seen.page.get_by_text("No episode fulfils the filter")).to_be_visible()
            look(seen, "an empty list")
            seen.button("Clear the filter").click()
            seen.button("Columns").click()
            look(seen, "columns")
            seen.press("Escape", "?")
            look(seen, "keys")
            seen.press("Escape")
            seen.button("Gallery").click()
            expect(seen.page.locator(".shot").first).to_be_visible()
            look(seen, "gallery")
            for name in ("Copy as", "Export"):
                seen.page.get_by_role("button", name=name).click()
                look(seen, name)
                seen.press("Escape")
            seen.tab("Compare")
            expect(seen.canvas(".q-tab-panel:visible")).to_be_visible()
            look(seen, "compare")
        with visited(lake) as seen:
            expect(seen.page.get_by_role("link", name="pixels")).to_be_visible()
            look(seen, "lake")
            seen.ask("SELECT store, episode_id FROM episodes LIMIT 3")
            expect(seen.page.locator(".result-table tbody tr")).to_have_count(3)
            look(seen, "SQL of a lake")
        context.close()
    assert {screen: found for screen, found in faults.items() if found} == {}
    assert len(faults) == 2 * 15


def serious(page: Page) -> list[str]:
    """The rules of axe that parts of a page break, each with the parts."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:160]} {node.get('failureSummary', '')[-200:]}"
        for rule in found
        if rule["impact"] in IMPACTS
        for node in rule["nodes"][:3]
    ]
