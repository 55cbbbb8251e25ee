"""The explorer on a million episodes: latency of the first page and of clicks, in Chromium.

Each visit begins with an empty browser cache. Clicks are timed inside the page, from the event to the frame
that shows the result. No peer shows episodes of a store in a browser.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from filtering import build
from measure import Row, Samples
from setting import Setting

FIRST_PAGE_SECONDS = 2.0
CLICK_MILLISECONDS = 150.0
CLICKS = 3
_COMMAND = "from episodelake.terminal.start import main; main()"
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
_ROW = ".episodes-table tbody tr:has(.mono)"
#: Does something, and resolves to the milliseconds until a text on the page is another one.
_TIMED = """([place, action, argument]) => new Promise((resolve, reject) => {
  const read = () => [...document.querySelectorAll(place)].map((each) => each.textContent).join("|");
  const before = read();
  const start = performance.now();
  const target = document.querySelector(action);
  // As after a click of a mouse: keys are for the page, not for the box that was typed in.
  if (target === document.body) document.activeElement.blur();
  if (argument === "click") target.click();
  else target.dispatchEvent(new KeyboardEvent("keydown", { key: argument, code: argument, bubbles: true }));
  const look = () => {
    if (read() !== before) resolve(performance.now() - start);
    else if (performance.now() - start > 10000) reject(new Error(`${argument} at ${action}: no answer`));
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""


def run(setting: Setting) -> list[Row]:
    """Build the store once, serve it, and visit the page again and again."""
    chromium = _chromium()
    episodes = setting.choose(1_000_000, 20_000)
    path = setting.fresh("explored")
    build(path, np.random.default_rng(0).standard_normal((episodes, 2)))
    first: list[float] = []
    clicks: dict[str, list[float]] = {}
    with _served(path) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        for _ in range(setting.repeats):
            first.append(_visit(browser, url, clicks))
        browser.close()
    many = f"{episodes:,} episodes"
    return [
        Row(f"explorer: first page, {many}", "s", Samples(tuple(first)), limit=FIRST_PAGE_SECONDS),
        *(
            Row(f"explorer: {name}, {many}", "ms", Samples(tuple(times)), limit=CLICK_MILLISECONDS)
            for name, times in clicks.items()
        ),
    ]


def _visit(browser: Browser, url: str, clicks: dict[str, list[float]]) -> float:
    """Seconds until the overview stands on the page; then some clicks of each kind."""
    context = browser.new_context(viewport={"width": 1500, "height": 1000})
    page = context.new_page()
    start = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.locator(".end-row").first.wait_for()
    seconds = time.perf_counter() - start
    page.locator(".q-tab", has_text="Episodes").click()
    page.locator(_ROW).first.wait_for()
    # The charts come after the rows; a person who clicks meanwhile would wait for them too.
    page.locator(".overview canvas").wait_for()
    page.locator(".first .facts").first.wait_for()
    page.wait_for_timeout(500)
    for number in range(CLICKS):
        _click_around(page, number, clicks)
    context.close()
    return seconds


def _click_around(page: Page, number: int, clicks: dict[str, list[float]]) -> None:
    """One click of each kind; each gives another answer than the page shows."""
    rows = f"{_ROW} td:nth-child(3)"
    box = page.get_by_placeholder("SQL condition")
    box.fill(f"length = {1 + number % 2} AND episode_return > {number / 10}")
    box.evaluate("(box) => box.setAttribute('data-filter', 'here')")
    # What was typed travels to the server by itself, before Enter.
    page.wait_for_timeout(200)
    places = {
        "filter": (".list-side .q-table__bottom", "[data-filter]", "Enter"),
        "sort": (rows, ".episodes-table th:nth-child(4) button", "click"),
        "next page": (rows, ".list-side .q-table__bottom button[aria-label='Next page']", "click"),
        "open an episode": (".first .episode-id", f"{_ROW}:nth-child({6 + number}) td:nth-child(4)", "click"),
        "next step": (".first .facts", "body", "ArrowRight"),
    }
    for name, place in places.items():
        clicks.setdefault(name, []).append(page.evaluate(_TIMED, list(place)))
        page.wait_for_timeout(600)


@contextmanager
def _served(path: Path) -> Iterator[str]:
    """The command on a store; its address."""
    command = [sys.executable, "-c", _COMMAND, "explore", str(path), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line.strip() for line in process.stdout if line.startswith("http://"))
        finally:
            process.kill()


def _chromium() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise SystemExit("exploring needs Chromium (Debian: apt-get install chromium).")
    return found
