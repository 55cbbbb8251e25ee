"""What the tests of the explorer's page share: a store, the command in a process, Chromium and one visit."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from playwright.sync_api import Browser, Error, Locator, Page, Playwright, expect

import episodelake as el
from waiting import PATIENCE, wait_until

COMMAND = [sys.executable, "-c", "from episodelake.terminal.start import main; main()", "explore"]
#: Milliseconds for one expectation; less than elsewhere, since a broken page disappoints many of them.
PAGE_PATIENCE = 120_000
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--disable-dev-shm-usage"),
)
NO_CHROMIUM = (
    "There is no Chromium for the tests of the explorer's page. Install it (apt-get install chromium), "
    "or name one with EPISODELAKE_CHROMIUM=/path/to/chromium."
)
OBSERVATIONS = Dict({"camera": Box(0, 255, (16, 12, 3), np.uint8), "place": Box(-1, 1, (2,), np.float32)})


def chromium() -> str:
    """The path of a Chromium on this machine; without one the tests fail, and say what to install."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("EPISODELAKE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None or not Path(found).is_file():
        raise RuntimeError(NO_CHROMIUM)
    return found


def launched(playwright: Playwright) -> Browser:
    """A headless Chromium."""
    return playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))


def make_store(path: Path, runs: int = 3, episodes: int = 40) -> el.EpisodeStore:
    """Runs of episodes with images, whose returns grow with their number; every frame is of random pixels."""
    store = el.create(path, observation_space=OBSERVATIONS, action_space=Discrete(4))
    for run in range(runs):
        add_run(store, f"seed{run}", episodes, run)
    return store.refresh()


def add_run(store: el.EpisodeStore, name: str, episodes: int, seed: int) -> None:
    """Record a run."""
    rng = np.random.default_rng(seed)
    with store.writer(run=name, metadata={"note": HOSTILE}) as writer:
        for number in range(episodes):
            length = 3 + number % 5
            writer.write_episode(
                observations={
                    "camera": rng.integers(0, 255, (length + 1, 16, 12, 3), np.uint8),
                    "place": rng.uniform(-1, 1, (length + 1, 2)).astype(np.float32),
                },
                actions=rng.integers(0, 4, length),
                rewards=np.full(length, float(number)),
                terminations=number % 3 > 0,
                truncations=number % 3 == 0,
                infos=[{"lives": t, "note": HOSTILE} for t in range(length + 1)],
                metadata={"level": number // 10, "note": HOSTILE},
            )


def make_long_store(path: Path) -> el.EpisodeStore:
    """A single episode of 200 steps, without images."""
    store = el.create(path, observation_space=Box(-1, 1, (2,), np.float32), action_space=Discrete(4))
    with store.writer(run="long") as writer:
        writer.write_episode(
            observations=np.random.default_rng(0).uniform(-1, 1, (201, 2)).astype(np.float32),
            actions=np.arange(200) % 4,
            rewards=np.ones(200),
            terminations=True,
            truncations=False,
        )
    return store.refresh()


def make_sick_store(path: Path) -> el.EpisodeStore:
    """Four runs of two algorithms, with NaN in two episodes and an outlier."""
    store = el.create(path, observation_space=Box(-9, 9, (2,), np.float32), action_space=Discrete(4))
    rng = np.random.default_rng(1)
    for run in range(4):
        with store.writer(run=f"run{run}", metadata={"algo": "ppo" if run % 2 else "dqn"}) as writer:
            for number in range(30):
                observations = rng.normal(0, 1, (13, 2)).astype(np.float32)
                rewards = rng.normal(number / 10, 1, 12)
                if (run, number) in ((0, 3), (2, 7)):
                    observations[4, 1] = np.nan
                if (run, number) == (1, 5):
                    rewards[0] = 1e6
                writer.write_episode(
                    observations=observations,
                    actions=rng.integers(0, 4, 12),
                    rewards=rewards,
                    terminations=number % 3 > 0,
                    truncations=number % 3 == 0,
                )
    return store.refresh()


@dataclass
class Explorer:
    """A running `episodelake explore`.

    Attributes:
        process: the command.
        url: the address that it printed, with the token.
        folder: where it was started, and so where it writes stores.
    """

    process: subprocess.Popen[str]
    url: str
    folder: Path

    @property
    def origin(self) -> str:
        """The address without the token."""
        return self.url.partition("/?")[0]

    @property
    def port(self) -> int:
        """Where it listens."""
        found = urlsplit(self.url).port
        assert found is not None
        return found

    def interrupt(self) -> None:
        """Press Ctrl-C, which ends the command with status 0 and without a trace."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=PATIENCE)
        assert (self.process.returncode, "Traceback" in errors) == (0, False), errors


@contextmanager
def explored(store: Path, folder: Path, *options: str) -> Iterator[Explorer]:
    """The command on a store or a lake, in a process of its own, on a free port, until Ctrl-C."""
    folder.mkdir(exist_ok=True)
    command = [*COMMAND, str(store), "--no-browser", "--port", "0", *options]
    process = subprocess.Popen(
        command,
        cwd=folder,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        lines = iter(process.stdout.readline, "")
        url = next((line.strip() for line in lines if line.startswith("http://")), None)
        assert url is not None, process.stderr.read()
        explorer = Explorer(process, url, folder)
        yield explorer
        if process.poll() is None:
            explorer.interrupt()
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


@dataclass
class Visit:
    """One visit of a page, and all that must not happen on it.

    Attributes:
        page: the browser's page.
        faults: errors in the console, exceptions, dialogs, and requests that leave this machine.
    """

    page: Page
    origin: str
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        page = self.page
        page.set_default_timeout(PAGE_PATIENCE)
        page.on("console", lambda said: said.type == "error" and self.faults.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._asked(request.url))
        page.on("websocket", lambda socket: self._asked(socket.url))

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.origin).netloc:
            self.faults.append(f"left this machine: {url}")

    def copied(self) -> "Visit":
        """Open the address of this tab in another one; what goes wrong there is noted here."""
        other = self.page.context.new_page()
        other.goto(self.page.url)
        return Visit(other, self.origin, self.faults)

    def leave(self) -> None:
        """Close the page while its server is still there."""
        self.page.context.close()

    # Parts of the page

    @property
    def rows(self) -> Locator:
        """The rows of the list."""
        return self.page.locator(".episodes-table:not(.result-table) tbody tr:has(.mono)")

    def column(self, name: str) -> list[str]:
        """The texts of a column of the list."""
        heads = self.page.locator(".episodes-table:not(.result-table) th").all_inner_texts()
        index = next(
            index for index, text in enumerate(heads) if text.replace("arrow_upward", "").strip() == name
        )
        return [
            text.split("\n")[0].strip()
            for text in self.rows.locator(f"td:nth-child({index + 1})").all_inner_texts()
        ]

    @property
    def count(self) -> Locator:
        """How many episodes the list has, below it."""
        return self.page.locator(".episodes-table:not(.result-table) .q-table__bottom")

    def open_row(self, index: int) -> None:
        """Click a row, at its return."""
        self.rows.nth(index).locator("td").nth(3).click()

    def tick(self, *rows: int) -> None:
        """Tick rows of the list, one after another."""
        for row in rows:
            box = self.rows.nth(row).get_by_role("checkbox")
            box.click()
            expect(box).to_be_checked()

    def lists(self, amount: object) -> None:
        """Wait until the list has so many episodes."""
        expect(self.count).to_contain_text(re.compile(rf"of {amount}(?!\d)"))

    def opened(self, episode: el.Episode | str, pane: str = "first") -> None:
        """Wait until an episode is open."""
        wanted = episode if isinstance(episode, str) else episode.id
        expect(self.page.locator(f".{pane} .episode-id")).to_have_text(wanted)

    @property
    def timeline(self) -> Locator:
        """The step that is shown, beside the slider."""
        return self.page.locator(".timeline .t")

    def at(self, t: int, last: int) -> None:
        """Wait until a step is shown."""
        expect(self.timeline).to_have_text(f"t = {t} / {last}")

    @property
    def t(self) -> int:
        """The step that is shown now."""
        return int(self.timeline.inner_text().split()[2])

    def fact(self, name: str, pane: str = "first") -> Locator:
        """The text beside a name in a list of facts."""
        return self.page.locator(f".{pane} dt:text-is('{name}') + dd")

    def tab(self, name: str) -> None:
        """Open a tab of the page."""
        self.page.get_by_role("tab", name=name).click()

    def button(self, name: str) -> Locator:
        """The button of this very name."""
        return self.page.get_by_role("button", name=name, exact=True)

    def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for key in keys:
            self.page.keyboard.press(key)

    def choose(self, box: Locator, name: str) -> None:
        """Choose an option of a list, which closes when the page behind it is drawn anew."""
        option = self.page.get_by_role("option", name=name)

        def offered() -> bool:
            if not option.is_visible():
                box.click()
                self.page.wait_for_timeout(1000)
            return option.is_visible()

        wait_until(offered, f"the option {name}")
        option.click()

    def drag(self, part: Locator, *points: tuple[float, float]) -> None:
        """Drag over a part of the page, and leave the button down.

        Args:
            part: what lies below the points.
            points: shares of its width, and pixels from its top.
        """
        box = part.bounding_box()
        assert box is not None
        for number, (x, y) in enumerate(points):
            self.page.mouse.move(box["x"] + box["width"] * x, box["y"] + y, steps=4 if number else 1)
            if number == 0:
                self.page.mouse.down()

    def ask(self, query: str) -> None:
        """Run a query."""
        self.tab("SQL")
        box = self.page.locator(".cm-content")
        box.focus()  # Not by a click: completions may lie over it.
        self.press("Control+A")
        self.page.keyboard.insert_text(query)
        expect(box).to_contain_text(query[:30])
        self.button("Run").click()

    def check(self) -> None:
        """Elements in view have names and an outline for screen readers, and none covers another."""
        settle(self.page)
        found = unnamed(self.page), misplaced(self.page), crowded(self.page)
        assert found == ([], [], []), found

    def filter(self, condition: str) -> None:
        """Type a condition and press Enter."""
        box = self.page.get_by_placeholder("SQL condition")
        # What is typed before the page is connected may be overwritten by its first state.
        self.page.wait_for_function("window.did_handshake === true")
        box.fill(condition)
        box.press("Enter")

    def canvas(self, place: str) -> Locator:
        """The canvas of a chart."""
        return self.page.locator(f"{place} canvas").first

    def shows(self, frame: np.ndarray, place: str = ".first canvas.frame") -> None:
        """Wait until a frame is shown, pixel by pixel."""
        wait_until(lambda: np.array_equal(pixels(self.page.locator(place)), frame), f"the frame in {place}")


@contextmanager
def redrawn(part: Locator) -> Iterator[None]:
    """Wait at the end until a part of the page looks other than at the start."""
    before = part.screenshot()
    yield
    wait_until(lambda: _picture(part) not in {None, before}, "another picture")


def _picture(part: Locator) -> bytes | None:
    """Take a screenshot of a part; None while the page replaces its element."""
    try:
        return part.screenshot()
    except Error as error:
        if "not attached" not in str(error):
            raise
        return None


def pixels(canvas: Locator) -> np.ndarray:
    """The pixels of a canvas."""
    height, *data = canvas.evaluate(
        """(canvas) => {
            const context = canvas.getContext("2d");
            return [canvas.height, ...context.getImageData(0, 0, canvas.width, canvas.height).data];
        }"""
    )
    return np.array(data, np.uint8).reshape(height, -1, 4)[..., :3]


def unnamed(page: Page) -> list[str]:
    """Buttons, boxes to tick and sliders in view that a screen reader has no name for, or that are tiny."""
    return page.evaluate(
        """() => [...document.querySelectorAll("button, [role=button], [role=checkbox], [role=slider]")]
            .filter((each) => each.checkVisibility())
            .filter((each) => {
                const copy = each.cloneNode(true);
                copy.querySelectorAll("[aria-hidden=true]").forEach((icon) => icon.remove());
                const { width, height } = each.getBoundingClientRect();
                const tiny = each.tagName === "BUTTON" && Math.min(width, height) < 24;
                return tiny || !(each.getAttribute("aria-label") || copy.textContent).trim();
            })
            .map((each) => each.outerHTML.slice(0, 300))"""
    )


def misplaced(page: Page) -> list[str]:
    """Return faults of the outline of a page: headings, lists of facts, fields and scrolled parts."""
    return page.evaluate(
        """() => {
            const faults = [];
            const inView = (each) => each.checkVisibility();
            const shown = (all) => [...document.querySelectorAll(all)].filter(inView);
            const levels = shown("h1, h2, h3, h4, h5").map((each) => Number(each.tagName[1]));
            if (levels.filter((level) => level === 1).length !== 1) faults.push("h1: " + levels);
            levels.forEach((level, i) => i && level > levels[i - 1] + 1 && faults.push("skipped: " + levels));
            for (const box of shown("[role=menu] [role=checkbox]"))
                faults.push("no item of a menu: " + box.outerHTML.slice(0, 200));
            for (const list of shown("dl"))
                for (const part of list.children)
                    if (!["DT", "DD", "DIV"].includes(part.tagName)) faults.push("in dl: " + part.tagName);
            for (const field of shown("input:not([type=hidden]), textarea, [role=textbox], [role=dialog]"))
                if (!(field.ariaLabel || field.labels?.length || field.placeholder || field.closest("label")))
                    faults.push("no name: " + field.outerHTML.slice(0, 200));
            for (const part of shown("*"))
                if (part.scrollHeight > part.clientHeight + 1 && getComputedStyle(part).overflowY === "auto"
                    && part.tabIndex < 0 && !part.querySelector("a, button, input, [tabindex]"))
                    faults.push("cannot be scrolled by keys: " + part.outerHTML.slice(0, 200));
            return faults;
        }"""
    )


def contrast(part: Locator) -> float:
    """Return the contrast of the text of an element that has a background of its own or of a parent."""
    return part.evaluate(
        """(part) => {
            const light = (color) => {
                const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map((value) => {
                    const share = value / 255;
                    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
                });
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            let ground = part;
            while (getComputedStyle(ground).backgroundColor.endsWith(", 0)")) ground = ground.parentElement;
            const colors = [getComputedStyle(part).color, getComputedStyle(ground).backgroundColor];
            const [low, high] = colors.map(light).sort((a, b) => a - b);
            return (high + 0.05) / (low + 0.05);
        }"""
    )


def crowded(page: Page) -> list[str]:
    """What leaves the page sideways, and neighbours in a line of the page that lie over each other."""
    return page.evaluate(
        """() => {
            const found = [];
            const rect = (each) => each.getBoundingClientRect();
            const shown = (each) => each.checkVisibility() && rect(each).width > 0;
            const lines = ".explorer-header, .bar, .timeline, .panes, .q-splitter";
            for (const line of document.querySelectorAll(lines)) {
                const parts = [...line.children].filter(shown);
                parts.forEach((part, i) => parts.slice(i + 1).forEach((other) => {
                    const [a, b] = [rect(part), rect(other)];
                    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                    if (across > 1 && down > 1) found.push(part.className + " over " + other.className);
                }));
            }
            const inside = ".explorer-header > *, .bar > *, .timeline > *, canvas, .card, .pane";
            for (const each of document.querySelectorAll(inside))
                if (shown(each) && (rect(each).left < -1 || rect(each).right > innerWidth + 1))
                    found.push("out: " + each.className);
            if (document.documentElement.scrollWidth > innerWidth) found.push("all of it: out");
            return found;
        }"""
    )


def settle(page: Page) -> None:
    """Wait until a page has stayed as it is laid out for 40 of its frames, and longer than its charts put
    off drawing after a change. A browser that is slow draws few frames, and is waited for.
    """
    page.evaluate(
        """() => new Promise((settled) => {
            const laidOut = "canvas, .card, .pane, .timeline, .q-dialog *";
            const parts = () => [...document.querySelectorAll(laidOut)];
            const looks = () => JSON.stringify(parts().map((part) => part.getBoundingClientRect()));
            let [seen, last, frames, since] = [parts(), looks(), 0, performance.now()];
            const look = () => {
                const [now, found] = [looks(), parts()];
                const same = now === last && found.every((part, i) => part === seen[i]);
                [seen, last, frames] = [found, now, same ? frames + 1 : 0];
                if (!same) since = performance.now();
                if (frames >= 40 && performance.now() - since > 500) settled();
                else requestAnimationFrame(look);
            };
            look();
        })"""
    )


def colours(canvas: Locator) -> int:
    """How many colours a canvas has; a blank one has a single one."""
    return canvas.evaluate(
        """(canvas) => {
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const seen = new Set();
            for (let i = 0; i < data.length; i += 4)
                seen.add((data[i] << 24) | (data[i + 1] << 16) | (data[i + 2] << 8) | data[i + 3]);
            return seen.size;
        }"""
    )
