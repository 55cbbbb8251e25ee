"""The explorer in a real, headless Chromium, one user's walk after another: `make test-explorer`."""

import getpass
import re
import shutil
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
from playwright.sync_api import Browser, Locator, expect, sync_playwright

import episodelake as el
from explorer_pages import (
    HOSTILE,
    PAGE_PATIENCE,
    Explorer,
    Visit,
    add_run,
    colours,
    contrast,
    explored,
    launched,
    make_long_store,
    make_sick_store,
    make_store,
    pixels,
    redrawn,
    settle,
)
from live_writer import SPACES, LiveWriter
from plain_agents import play_parallel, random_policy
from waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow
expect.set_options(timeout=PAGE_PATIENCE)
Open = Callable[..., Visit]
HOSTILE_NAME = "odd/<img src=x onerror=alert(3)> & #?name=é"
ENDLESS = "SELECT count(*) FROM range(10000000000000) WHERE range % 7 = 3"
CAMERAS, STEPS = ("front", "left", "right", "wrist"), 30
# How many pixels of a canvas are black ink.
BLACK = """(canvas) => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const black = (i) => data[i] > 200 && Math.max(...data.slice(i - 3, i)) < 60;
    return data.filter((_, i) => i % 4 === 3 && black(i)).length;
}"""
# Read the step that is shown, keep the browser busy, and click.
BUSY_THEN_CLICK = """(button) => {
    const begun = document.querySelector(".timeline .t").textContent.split(" ")[2];
    const end = performance.now() + 4000;
    while (performance.now() < end);
    button.click();
    return begun;
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


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of every kind, one in a folder of a hostile name, and one that is damaged."""
    folder = tmp_path_factory.mktemp("stores") / "lake"
    make_store(folder / "pixels/three")
    make_sick_store(folder / "sick")
    make_long_store(folder / "long")
    make_robot_store(folder / "robot")
    env = gymnasium.make("CartPole-v1")
    with el.create(folder / HOSTILE_NAME, env).record(env) as recorder:
        recorder.reset(seed=1)
        recorder.step(0)
    replayed = gymnasium.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync")
    replayed.envs[0].unwrapped.force_mag = 11.0  # type: ignore[attr-defined]
    cartpole = el.create(folder / "cartpole", env)
    el.collect(replayed, lambda observations, infos, state: np.ones(1, int), cartpole, episodes=2, seed=1)
    el.create(folder / "empty", observation_space=Box(0, 1, (2,)), action_space=Discrete(2))
    agents = simple_spread_v3.parallel_env(max_cycles=6)
    with el.create(folder / "agents", agents).record(agents) as recorder:
        play_parallel(recorder, random_policy(agents, 1), seed=1)
    make_long_store(folder / "damaged")
    (folder / "damaged/store.json").write_text(f'{{"format": "{HOSTILE}"}}')
    return folder


def make_robot_store(path: Path) -> None:
    """Two episodes of four cameras, many joints and 240 keys of metadata.

    The frames of t are of the value 5 t. Browsers play the packets of two cameras; a third has a codec that
    few play, and the fourth is not encoded, and smaller.
    """
    sizes = dict.fromkeys(CAMERAS, (24, 24, 3)) | {"wrist": (16, 12, 3)}
    codecs = {"front": el.Video("h264"), "left": el.Video("av1"), "right": el.Video("hevc")}
    store = el.create(
        path,
        observation_space=Dict(
            {name: Box(0, 255, size, np.uint8) for name, size in sizes.items()}, joints=Box(-4, 4, (14,))
        ),
        action_space=Box(-1, 1, (7,)),
        encodings={f"observation.{name}": video for name, video in codecs.items()},
    )
    frames = {
        name: np.stack([np.full(size, 5 * t, np.uint8) for t in range(STEPS + 1)])
        for name, size in sizes.items()
    }
    joints = np.random.default_rng(0).uniform(-4, 4, (STEPS + 1, 14)).astype(np.float32)
    with store.writer() as writer:
        for number in range(2):
            writer.write_episode(
                observations={**frames, "joints": joints},
                actions=np.zeros((STEPS, 7), np.float32),
                rewards=np.ones(STEPS),
                terminations=True,
                truncations=False,
                infos=[{"battery": float(t)} for t in range(STEPS + 1)],
                metadata={f"key{key:03}": 1000 * number + key for key in range(240)},
            )


@pytest.fixture(scope="module")
def stores(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explorer]:
    """The command on that lake."""
    with explored(lake, tmp_path_factory.mktemp("exports")) as found:
        yield found


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens a page, of a lake that of a store; whatever goes wrong in its background fails the test."""
    visits: list[Visit] = []

    def opened(explorer: Explorer, name: str = "", pane: str | None = "Episodes", **options: object) -> Visit:
        context = browser.new_context(viewport={"width": 1500, "height": 1000}, **options)  # type: ignore[arg-type]
        found = Visit(context.new_page(), explorer.origin)
        found.page.goto(explorer.url)
        if name:
            found.page.wait_for_url(re.compile("/[^/?]{32}/$"))
            found.page.goto(f"{found.page.url}store?name={quote(name, safe='')}")
        if pane is not None:
            found.tab(pane)
        visits.append(found)
        return found

    yield opened
    for found in visits:
        found.leave()
    assert [fault for found in visits for fault in found.faults] == []


def test_an_analyst_finds_episodes_and_exports_them(
    explorer: Explorer, store: el.EpisodeStore, visit: Open
) -> None:
    """The newest episodes are listed, addresses, conditions, runs and brushes choose, and what is chosen or
    ticked is exported. The token has left the address, and the explored store stays as it was.
    """
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*")}
    seen = visit(explorer)
    page = seen.page
    expect(seen.rows).to_have_count(50)
    newest = range(119, 69, -1)
    assert seen.column("#") == [str(number) for number in newest]
    assert [float(text) for text in seen.column("return")] == [store[n].episode_return for n in newest]
    expect(seen.canvas(".overview")).to_be_visible()
    seen.opened(store[-1])
    assert colours(seen.canvas(".overview")) > 20
    assert re.fullmatch(re.escape(explorer.origin) + "/[^/?]{32}/([?]pane=episodes.*)?", page.url)
    expect(page.locator("header")).to_contain_text("120 episodes · 3 runs")
    expect(page).to_have_title(re.compile("lake.*Episodelake"))
    # Without --write the keys of labels do nothing.
    seen.press("g")
    expect(page.get_by_role("button", name="Good (G)")).to_have_count(0)

    # Twenty rows fit on a small screen, and the border of the list is dragged, or moved by keys.
    page.set_viewport_size({"width": 1440, "height": 900})
    settle(page)
    fitting = "(rows, floor) => rows.filter((row) => row.getBoundingClientRect().bottom <= floor).length"
    floor = seen.count.bounding_box()
    assert floor is not None and seen.rows.evaluate_all(fitting, floor["y"]) >= 20
    grip, side = page.get_by_role("separator", name="Border"), page.locator(".list-side")
    width = side.evaluate("(side) => side.clientWidth")
    seen.drag(grip, (0.5, 20), (15, 20))
    page.mouse.up()
    wait_until(lambda: side.evaluate("(side) => side.clientWidth") > width + 60, "a wider list")
    grip.focus()
    seen.press("ArrowLeft", "ArrowLeft", "ArrowLeft")
    wait_until(lambda: side.evaluate("(side) => side.clientWidth") < width + 40, "a narrower list")
    narrow = side.evaluate("(side) => side.clientWidth")
    assert narrow != width
    page.reload()
    wait_until(lambda: side.evaluate("(side) => side.clientWidth") == narrow, "the list as wide as before")
    page.set_viewport_size({"width": 1500, "height": 1000})

    # A misspelt column is reported and changes nothing; an error and an empty list offer a way out.
    seen.filter("episode_return > 100 and end_reason = 'truncated'")
    wanted = [e.id for e in store if e.episode_return > 100 and e.end_reason == "truncated"]
    seen.lists(len(wanted))
    assert set(seen.column("end")) == {"truncated"}
    seen.filter("lenght > 3")
    expect(page.locator(".problem", has_text="Nearest: length")).to_be_visible()
    seen.lists(len(wanted))
    seen.button("Clear the condition").click()
    seen.lists(120)
    expect(page.locator(".problem:visible")).to_have_count(0)
    seen.filter("length > 1000")
    expect(page.get_by_text("No episode fulfils the filter")).to_be_visible()
    seen.button("Clear the filter").click()
    seen.lists(120)
    expect(page.get_by_placeholder("SQL condition")).to_have_value("")

    # The filtered episodes are downloaded, and written as a store.
    seen.filter("length = 5")
    wanted = [episode.id for episode in store if episode.length == 5]
    seen.lists(len(wanted))
    expect(page.locator(".problem:visible")).to_have_count(0)
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="TXT").click()
    assert sorted(Path(download.value.path()).read_text().split()) == sorted(wanted)
    problem, write = page.locator(".q-dialog .problem"), page.get_by_role("button", name="Write")
    page.get_by_placeholder("best-episodes").fill("../elsewhere")
    write.click()
    expect(problem.filter(has_text="does not lie below")).to_be_visible()
    page.get_by_placeholder("best-episodes").fill("fives")
    write.click()
    expect(page.get_by_text(f"Wrote {len(wanted)} episodes")).to_be_visible()
    exported = el.open(explorer.folder / "fives")
    assert sorted(episode.id for episode in exported) == sorted(wanted)
    assert np.array_equal(exported[0].observations["camera"], store[exported[0].id].observations["camera"])
    write.click()
    expect(problem.filter(has_text="nothing is written over")).to_be_visible()
    seen.press("Escape")

    # A drag over a chart chooses episodes; its chip brings all back.
    seen.filter("")
    seen.lists(120)
    with redrawn(page.locator(".overview .chart-place")):
        page.get_by_role("tab", name="Lengths over episodes", exact=True).click()
    settle(page)
    seen.drag(seen.canvas(".overview"), (0.3, 20), (0.5, 80), (0.55, 130))
    page.mouse.up()
    settle(page)  # A slow mouse chooses on its way too.
    chip = page.locator(".overview .q-chip", has_text="chosen")
    expect(chip).to_be_visible()
    kept = int(chip.inner_text().split(" chosen")[0].split()[-1])
    assert 0 < kept < 120
    seen.lists(kept)
    page.get_by_role("button", name="Export").click()
    query = page.locator(".q-dialog .mono", has_text="SELECT").inner_text()
    assert "BETWEEN" in query and len(store.sql(query).fetchall()) == kept
    seen.press("Escape")
    chip.locator(".q-chip__icon--remove").click()
    seen.lists(120)
    expect(chip).to_be_hidden()

    # Rows that are ticked are exported alone, and stay ticked on other pages.
    seen.open_row(0)
    seen.opened(store[119])
    seen.tick(1, 3)
    seen.opened(store[119])  # Ticking opens nothing.
    page.get_by_role("button", name="Next page").click()
    expect(seen.count).to_contain_text("51-100")
    seen.tick(0)
    page.get_by_role("button", name="Export").click()
    expect(page.get_by_text("The rows that are ticked (3)")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    ids = re.findall(r'"episode_id": "([^"]+)"', Path(download.value.path()).read_text())
    assert ids == [store[118].id, store[116].id, store[69].id]
    seen.press("Escape")

    # A run of its own.
    seen.choose(page.get_by_label("Runs"), "seed1")
    seen.lists(40)
    assert {text.partition("/")[0] for text in seen.column("episode")} == {"seed1"}
    expect(page.locator("header")).to_contain_text("40 of 120 episodes · 1 of 3 runs")

    # The address has what the tab shows, and back and forward go through it.
    page.goto(page.url.partition("?")[0])
    seen.tab("Episodes")
    page.wait_for_url(re.compile("episode=.*000039"))
    condition = "length = 5 and episode_return > 60"
    seen.filter(condition)
    page.wait_for_url(re.compile("where=length"))
    seen.button("return").click()
    page.wait_for_url(re.compile("sort=-?episode_return"))
    wanted = seen.column("#")
    seen.open_row(2)
    seen.opened(store[int(wanted[2])])  # A key belongs to the episode on the screen.
    seen.press("ArrowRight")
    page.wait_for_url(re.compile("t=1"))
    copy = seen.copied()
    expect(copy.timeline).to_contain_text("t = 1 ")
    copy.opened(page.locator(".episode-id").inner_text())
    expect(copy.page.get_by_placeholder("SQL condition")).to_have_value(condition)
    wait_until(lambda: copy.column("#") == wanted, "the same list")
    while "where" in page.url:
        url = page.url
        page.go_back()
        page.wait_for_url(lambda now, url=url: now != url)
        expect(page.get_by_placeholder("SQL condition")).to_be_visible()
    seen.lists(120)
    page.go_forward()
    page.wait_for_url(re.compile("where=length"))
    wait_until(lambda: "of 120" not in seen.count.inner_text(), "the filter again")
    assert {path: path.stat().st_mtime_ns for path in store.path.rglob("*")} == before


def test_facets_narrow_the_list(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """A category, a drag and keys narrow the list by chips, which the address keeps and crosses remove."""
    seen = visit(explorer)
    page = seen.page
    rows = store.episodes.collect()
    ended = rows.filter(end_reason="truncated")
    facet, chips = page.locator(".facets"), page.locator(".chips .q-chip")
    truncated = facet.locator(".facet-row", has_text="truncated")
    expect(truncated).to_contain_text(str(len(ended)))
    truncated.click()
    seen.lists(len(ended))
    expect(chips).to_have_count(1)
    lengths = facet.get_by_role("slider", name="length")
    seen.drag(lengths, (0.3, 20), (0.7, 20))  # There are five lengths, from 3 to 7.
    expect(facet.locator(".facet-range")).to_contain_text("4 to 6")
    page.mouse.up()
    both = ended.filter(ended["length"].is_between(4, 6))
    seen.lists(len(both))
    assert set(seen.column("length")) <= {"4", "5", "6"}
    page.wait_for_url(re.compile("chips=end_reason.*chips=length"))
    copy = seen.copied()
    copy.lists(len(both))
    copy.page.close()
    lengths.focus()
    seen.press("ArrowRight", "ArrowRight", "Shift+ArrowRight", "Enter")
    seen.lists(ended["length"].is_between(4, 5).sum())
    expect(chips).to_have_count(2)
    seen.check()
    chips.filter(has_text="end_reason").get_by_role("button").click()
    seen.lists(rows["length"].is_between(4, 5).sum())

    # The list is a gallery, too: its pictures come, keys open, tick and compare them, and the address has it.
    seen.button("Gallery").click()
    shots = page.locator(".shot")
    expect(shots).to_have_count(min(50, rows["length"].is_between(4, 5).sum()))
    picture = shots.nth(1).locator("img")
    wait_until(
        lambda: picture.evaluate("(image) => image.naturalWidth / image.naturalHeight") == 9, "12 frames"
    )
    shots.nth(1).locator(".shot-open").focus()
    expect(picture).to_have_css("animation-name", "flick")
    seen.press("Space", "Enter")
    expect(shots.nth(1)).to_have_class(re.compile("open-a"))
    expect(shots.nth(1).get_by_role("checkbox")).to_be_checked()
    page.wait_for_url(re.compile("gallery="))
    seen.check()
    page.reload()
    expect(shots.nth(1)).to_have_class(re.compile("open-a"))
    seen.button("Gallery").click()

    # The columns of facets are chosen, also none.
    page.goto(page.url + "&facets=metadata.level")
    titles = facet.locator(".facet-title")
    expect(titles).to_have_text(["level"])
    seen.choose(facet.get_by_role("combobox", name="Facets"), "level")
    expect(titles).to_have_count(0)
    page.wait_for_url(re.compile("facets=_none"))
    page.reload()
    expect(facet).to_contain_text("0 of")
    expect(titles).to_have_count(0)
    seen.button("Facets").click()
    expect(facet).to_be_hidden()


def test_an_episode_is_played_and_compared(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """The slider moves the row, the frame and the cursor to the t that it says, another episode goes in step
    beside the first, and ticked ones are drawn over each other. Nothing in the texts of a store runs.
    """
    seen = visit(explorer)
    page = seen.page
    seen.opened(store[119])
    expect(seen.fact("note").first).to_have_text(HOSTILE)
    seen.button("About the data").click()
    expect(seen.fact("author", "about")).to_have_text(f"{HOSTILE}, B")
    seen.press("Escape")
    page.get_by_role("button", name="Play or pause").click()
    seen.at(store[119].length, store[119].length)
    expect(page.locator(".timeline button", has_text="play_arrow")).to_be_visible()
    for key, position in (("ArrowDown", 118), ("ArrowUp", 119)):
        seen.press(key)
        seen.opened(store[position])
    seen.open_row(4)
    episode = store[115]
    seen.opened(episode)
    expect(page.locator(".first .figures")).to_contain_text(f"{episode.episode_return:g}")
    chart = seen.canvas(".first")
    expect(chart).to_be_visible()
    for t in range(episode.length + 1):
        seen.at(t, episode.length)
        expect(seen.fact("lives")).to_have_text(str(t))
        action = str(episode.actions[t]) if t < episode.length else "\N{EN DASH}"
        expect(seen.fact("action")).to_have_text(action)
        seen.shows(episode.observations["camera"][t])
        seen.press("ArrowRight")
    with redrawn(chart):
        page.locator(".timeline .q-slider").click(position={"x": 2, "y": 10})
        seen.at(0, episode.length)
    assert colours(chart) > 10
    page.get_by_text("Metadata and summary").click()
    expect(seen.fact("run")).to_have_text(episode.run_id)

    # The shorter one waits at its end.
    other = store[114]
    seen.rows.nth(5).hover()
    seen.rows.nth(5).get_by_label("Open beside").click()
    seen.opened(other, "second")
    seen.opened(episode)
    seen.check()
    longest = max(episode.length, other.length)
    seen.press(*["ArrowRight"] * longest)
    seen.at(longest, longest)
    assert episode.length != other.length
    for pane, one in (("first", episode), ("second", other)):
        expect(seen.fact("lives", pane)).to_have_text(str(one.length))
        seen.shows(one.observations["camera"][-1], f".{pane} canvas.frame")
    page.locator(".first button", has_text="close").click()
    seen.opened(other)
    expect(page.locator(".episode-id")).to_have_count(1)

    # Those that are compared show their frames in step; another alignment moves them, a bad one is reported.
    seen.tick(1, 3)
    seen.button("Compare").click()
    caption, timeline = page.locator(".compare > .caption"), page.locator(".compare .timeline .t")
    cameras = [store[118].observations["camera"], store[116].observations["camera"]]

    def together(*steps: int) -> None:
        for number, (camera, t) in enumerate(zip(cameras, steps, strict=True), 1):
            seen.shows(camera[t], f".compare figure:nth-child({number}) canvas.frame")

    chart = seen.canvas(".compare .chart-place")
    expect(chart).to_be_visible()
    expect(caption).to_contain_text("2 episodes, aligned at start")
    expect(page.locator(".compare figcaption")).to_have_text(["seed2/38", "seed2/36"])
    assert colours(chart) > 10
    longest = max(store[118].length, store[116].length)
    expect(timeline).to_have_text(f"t = 0 / {longest}")
    together(0, 0)
    settle(page)
    with redrawn(chart):
        page.locator("body").press("ArrowRight")
        together(1, 1)
    box = page.get_by_label("Align at")
    for align, told in (("reward > 0", "aligned at reward > 0"), ("rewad > 0", "rewad")):
        box.fill(align)
        box.press("Enter")
        expect(caption).to_contain_text(told)
    seen.check()
    box.fill("end")
    box.press("Enter")
    page.get_by_label("Signals").last.click()
    page.get_by_role("option", name="reward", exact=True).click()
    expect(timeline).to_have_text(f"t = -{longest} / 0")
    page.keyboard.press("Escape")
    page.locator(".compare .q-slider").click(position={"x": 2, "y": 10})
    seen.press("End", "ArrowLeft")
    together(-2, -2)
    page.wait_for_url(re.compile("t=-1&compared=.*compared=.*align=end&overlaid=reward"))
    copy = seen.copied().page
    expect(copy.locator(".compare > .caption")).to_contain_text("2 episodes, aligned at end")
    expect(copy.locator(".compare .q-chip")).to_have_text(re.compile("reward"))
    expect(copy.locator(".compare .timeline .t")).to_have_text("t = -1 / 0")
    copy.get_by_role("button", name="First difference").click()
    expect(copy.locator(".compare .timeline .t")).not_to_have_text("t = -1 / 0")
    copy.get_by_role("tab", name="Episodes").click()
    copy.wait_for_url(lambda url: "compared" not in url)


def test_keys_names_colours_and_widths(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """Everything can be reached by keys and has a name, colours follow the system and a button, and on half a
    laptop and on a phone nothing lies over anything else or leaves the page.
    """
    seen = visit(explorer, color_scheme="dark")
    page, button = seen.page, seen.page.locator("header button", has_text="dark_mode")
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    expect(seen.canvas(".overview")).to_be_visible()
    settle(page)
    # The place of the chart: its canvas is another one each time that it is drawn.
    with redrawn(page.locator(".overview .chart-place")):
        button.click()
        expect(page.locator("body")).not_to_have_class(re.compile("body--dark"))

    # Heads sort, and a row is one stop.
    expect(page.locator(".episode-id")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "en-US"
    head = page.locator("th", has=seen.button("length"))
    head.get_by_role("button").focus()
    for key in ("Enter", "Space"):
        before = head.get_attribute("aria-sort")
        seen.press(key)
        wait_until(lambda before=before: head.get_attribute("aria-sort") != before, "another order")
        values = [int(text) for text in seen.column("length")]
        assert values == sorted(values, reverse=head.get_attribute("aria-sort") == "descending")
    stops = (
        "tr => [...tr.querySelectorAll('a, button, input, [tabindex]')].filter(e => e.tabIndex >= 0).length"
    )
    assert {row.evaluate(stops) for row in seen.rows.all()[:5]} == {1}
    third = seen.rows.nth(2)
    third.locator("button.open").focus()
    seen.press("Space")
    expect(third.get_by_role("checkbox")).to_be_checked()
    seen.press("Enter")
    expect(third).to_have_class(re.compile("open-a"))
    expect(third.locator("button.open")).to_be_focused()
    seen.press("Tab")
    expect(seen.rows.nth(3).locator("button.open")).to_be_focused()
    seen.button("Columns").click()
    expect(page.get_by_role("dialog", name="Columns").get_by_role("checkbox", name="length")).to_be_visible()
    seen.check()
    seen.press("Escape")
    for tab, part in (("Overview", "h2"), ("Episodes", ".bar"), ("SQL", "[aria-label='SQL query']")):
        seen.tab(tab)
        expect(page.locator(f".q-tab-panel:visible {part}").first).to_be_visible()
        seen.check()

    # Colours of the SQL box.
    editor = page.locator(".cm-editor")
    run = seen.button("Run").locator("span.block")
    for colour in ("rgb(255, 255, 255)", "rgb(30, 30, 30)"):
        expect(editor).to_have_css("background-color", colour)
        assert contrast(run) >= 4.5
        button.click()
    expect(editor).to_have_css("background-color", "rgb(255, 255, 255)")
    button.click()
    seen.tab("Episodes")
    expect(seen.canvas(".overview")).to_be_visible()
    settle(page)
    assert seen.canvas(".overview").evaluate(BLACK) == 0, "a chart that was hidden takes the new colours"
    button.click()
    seen.tab("SQL")

    for width in (1100, 700, 400):
        page.set_viewport_size({"width": width, "height": 800})
        seen.tab("Episodes")
        seen.open_row(2)
        position = int(seen.column("#")[2])
        seen.opened(store[position])
        expect(page.locator(".timeline")).to_be_in_viewport()
        expect(seen.canvas(".first")).to_be_visible()
        seen.check()
        seen.ask("SELECT name, count(*) AS episodes FROM episodes JOIN runs USING (run_id) GROUP BY ALL")
        expect(seen.canvas(".q-tab-panel .pane:has(.sql-text)")).to_be_visible()
        seen.check()
        page.get_by_role("button", name="Export").click()
        expect(page.get_by_role("dialog", name="Export")).to_be_visible()
        expect(page.get_by_placeholder("best-episodes")).to_be_in_viewport()
        seen.check()
        seen.press("Escape")


def test_queries(explorer: Explorer, store: el.EpisodeStore, visit: Open) -> None:
    """The editor completes names, a query gives a table and a chart, its episodes can be listed, and a row
    opens its episode at its t. Under an error no former result stands, and Stop ends a long query.
    """
    seen = visit(explorer)
    page = seen.page
    seen.opened(store[-1])
    seen.tab("SQL")
    box, offered = page.locator(".cm-content"), page.locator(".cm-completionLabel")
    result, problem = page.locator(".result-table tbody tr"), page.locator(".problem")

    def complete(text: str) -> None:
        box.click()
        seen.press("Control+A")
        page.keyboard.type(text)
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
    page.wait_for_timeout(500)
    seen.press("Enter")
    expect(box).to_have_text('select "metadata.level"')

    seen.ask("SELECT episode_id, episode_return, length FROM episodes WHERE episode_return > 200")
    wanted = [episode for episode in store if episode.episode_return > 200]
    expect(page.get_by_text(f"{len(wanted)} rows in")).to_be_visible()
    expect(result).to_have_count(min(25, len(wanted)))
    chart = seen.canvas(".q-tab-panel .pane:has(.sql-text)")
    expect(chart).to_be_visible()
    seen.check()
    assert colours(chart) > 5
    page.get_by_role("button", name="Show these episodes").click()
    seen.lists(len(wanted))
    episode = store[37]
    seen.ask(f"SELECT episode_id, t, reward FROM steps WHERE episode_id = '{episode.id}' ORDER BY t")
    expect(page.get_by_label("x", exact=True)).to_have_value("t")
    expect(page.get_by_label("y", exact=True)).to_have_value("reward")
    settle(page)
    earlier = chart.screenshot()
    result.nth(2).click()
    seen.opened(episode)
    seen.at(2, episode.length)
    seen.ask("SELECT episode_id, run_id FROM episodes")
    expect(page.get_by_text("120 rows in")).to_be_visible()
    expect(chart).to_be_hidden()
    seen.ask("SELECT 'gone' AS episode_id")
    expect(page.get_by_text("1 rows in")).to_be_visible()
    result.first.click()
    expect(page.get_by_text("gone is not in the newest version")).to_be_visible()
    seen.ask("SELECT retrun FROM episodes")
    expect(problem.filter(has_text="episode_return")).to_be_visible()
    expect(page.locator(".result-table")).to_be_hidden()
    expect(chart).to_be_hidden()
    for name in ("CSV", "Show these episodes"):
        expect(page.get_by_role("button", name=name)).to_be_hidden()
    seen.ask("SELECT t, -reward AS reward FROM steps LIMIT 4")
    expect(chart).to_be_visible()
    settle(page)
    assert chart.screenshot() != earlier, "the chart of an earlier query"
    seen.ask("SELECT retrun FROM episodes")
    expect(chart).to_be_hidden()
    box.press("Control+Enter")
    assert box.inner_text() == "SELECT retrun FROM episodes", "the key runs the query and adds nothing"
    seen.ask("SELECT * FROM read_csv('/etc/passwd')")
    expect(problem.filter(has_text="Permission")).to_be_visible()
    seen.ask("SELECT '<img src=x onerror=alert(3)>' AS \"<script>alert(4)</script>\", 1 AS one")
    expect(page.locator(".result-table td", has_text="onerror")).to_be_visible()
    assert page.locator("img[src='x']").count() == 0

    # While a long query runs the rest of the page works; then the next one runs.
    seen.ask(ENDLESS)
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    box.press("Control+Enter")
    page.wait_for_timeout(500)
    expect(stop).to_be_visible()
    seen.tab("Episodes")
    seen.filter("length = 3")
    seen.lists(sum(one.length == 3 for one in store))
    seen.tab("SQL")
    stop.click()
    expect(problem.filter(has_text="stopped")).to_be_visible()
    seen.ask("SELECT 42 AS answer")
    expect(page.locator(".result-table td", has_text="42")).to_be_visible()


def test_a_roboticist_labels_episodes(visit: Open, tmp_path: Path) -> None:
    """With --write keys and buttons label the open episode or the ticked rows, and undo them. Ctrl-C ends the
    command with a page open and a query running.
    """
    made = make_store(tmp_path / "labelled", runs=1, episodes=6)
    read = lambda: el.open(made.path)  # noqa: E731

    def labelled(name: str, *wanted: object) -> None:
        # The last episodes have these labels.
        def got() -> bool:
            # The button goes as soon as all is saved.
            page.evaluate("document.querySelector('[title=\"Save now\"]')?.click()")
            page.wait_for_timeout(300)
            return [one.annotations.get(name) for one in read()][-len(wanted) :] == list(wanted)

        wait_until(got, f"{name} of the last episodes to be {wanted}")

    with explored(made.path, tmp_path / "out", "--write") as explorer:
        seen = visit(explorer)
        page = seen.page
        left = page.locator(".label-left")
        seen.opened(made[5])
        expect(left).to_have_text("6 left")
        # The page does not wait for the server, and keys in the box of the note are text.
        seen.press("g", "b", "n")
        page.keyboard.type("bug: fell over")
        seen.press("Enter")
        seen.opened(made[3])
        expect(left).to_have_text("4 of 6 left")
        labelled("good", None, None, None, None, False, True)
        labelled("note", "bug: fell over", None, None)
        labelled("labelled_by", getpass.getuser(), getpass.getuser(), getpass.getuser())
        expect(page.locator(".episodes-table th", has_text="good")).to_be_visible()
        page.wait_for_function("document.activeElement.tagName !== 'INPUT'")
        seen.opened(made[3])
        seen.press("b")
        seen.opened(made[2])
        labelled("good", False, False, True)
        seen.rows.nth(0).click()
        expect(page.locator(".label-state")).to_contain_text(f"good \N{MIDDLE DOT} {getpass.getuser()}")
        seen.tick(0, 1)
        expect(page.get_by_text("labels go to the 2 ticked rows")).to_be_visible()
        page.get_by_role("button", name="Bad (B)").click()
        labelled("good", False, False)
        undo = page.get_by_role("button", name="Undo the last label (U)")
        for wanted in ([False, True], [False, True], [False, True], [None, True], [None, None]):
            undo.click()
            labelled("good", *wanted)
        expect(undo).to_be_disabled()
        labelled("note", *[None] * 6)

        # Keys of their own, and steps from a mark on.
        page.get_by_role("button", name="Keys and labels").click()
        box, keep = page.get_by_role("textbox", name="A key and a label"), seen.button("Save")
        for text, problem in (("s length=3", "was recorded"), ("u good=1", "a key of the page")):
            box.fill(text)
            keep.click()
            expect(page.locator(".q-dialog .problem")).to_contain_text(problem)
        box.fill("s outcome=slip\nd outcome=drop")
        keep.click()
        expect(page.get_by_role("button", name="Slip (S)")).to_be_visible()
        seen.opened(made[5])
        for row in range(2):
            seen.rows.nth(row).get_by_role("checkbox").click()
        expect(page.get_by_text("ticked rows")).to_be_hidden()
        seen.press("ArrowRight", "m", "ArrowRight", "s")
        expect(page.locator(".label-state")).to_contain_text("slip at t = 1 to 2")
        seen.press("d")
        seen.opened(made[4])
        labelled("outcome", None, "drop")
        steps = lambda: read()[5].step_annotations.get("outcome")  # noqa: E731
        wait_until(lambda: steps() == [None, "slip", "slip"], "the label of two steps")
        assert read().card["labels"] == ['s outcome="slip"', 'd outcome="drop"']
        seen.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_contain_text("undo the last label")
        seen.press("d", "Escape")  # A key of a dialog labels nothing.
        seen.check()
        seen.ask(ENDLESS)
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        explorer.interrupt()
        seen.leave()
        seen.faults.clear()  # The page reported that its server was gone.
    assert not any((tmp_path / "out").iterdir())


def test_the_overview(stores: Explorer, lake: Path, visit: Open) -> None:
    """The first screen has amounts, curves, runs, findings and ends. Findings and ends list their episodes, a
    finding opens the first one at its step, and runs that are ticked filter the page.
    """
    sick = el.open(lake / "sick")
    seen = visit(stores, "sick", pane=None)
    page = seen.page
    frame, report = sick.episodes.collect(), sick.health()
    facts, part = page.locator(".about-facts"), page.locator(".part-of")
    returns = ".distribution.returns"
    for text in (f"{len(frame):,}", f"{frame['length'].sum():,}", f"{frame['episode_return'].median():.6g}"):
        expect(facts.get_by_text(text, exact=True).first).to_be_visible()
    for place in (".part:has(.smoothing)", returns, ".beside-curve .part:last-child"):
        expect(seen.canvas(place)).to_be_visible()
    expect(page.locator(".finding")).to_have_count(len(report.findings))
    settle(page)
    with redrawn(page.locator(".part:has(.smoothing) .chart-place")):
        page.get_by_label("Colour").click()
        page.get_by_role("option", name="run.algo").click()
    seen.check()
    # A value that no bar is for opens by a click and closes by the keyboard.
    beyond = page.locator(f"{returns} .beyond")
    expect(beyond).to_contain_text("1 value beyond")
    with redrawn(seen.canvas(returns)):
        beyond.click()
    expect(beyond).to_contain_text("All values are shown")
    seen.press("Enter")
    expect(beyond).to_contain_text("1 value beyond")
    for finding, rows in list(zip(report.findings, report.parts(), strict=True))[:2]:
        page.locator(".finding", has_text=finding.message).click()
        seen.lists(len(finding.positions))
        assert set(seen.column("#")) == {str(position) for position in finding.positions}
        seen.opened(rows["episode_id"][0])
        seen.at(rows["t"][0] or 0, 12)
        why = report.reasons(int(finding.positions[0]))["reason"].to_list()
        expect(page.locator(".reason-bar .finding")).to_have_text(why)
        signal = "observation[1]" if finding.kind == "nan" else "reward"
        expect(page.locator(".player .picker .q-chip")).to_contain_text(signal)
        expect(seen.canvas(".first")).to_be_visible()
        seen.tab("Overview")
        expect(part).to_contain_text(f"{len(finding.positions)} of {len(frame)} episodes")
    page.get_by_role("button", name="Whole store").click()
    expect(part).to_be_hidden()

    # The runs, those that began last first.
    rows = page.locator(".runs-table tbody tr")
    expect(rows).to_have_count(4)
    for run, name in enumerate(("run3", "run2", "run1", "run0")):
        own = frame.filter(frame["run_id"].str.starts_with(name))
        returns_of_run = own["episode_return"].to_list()
        cells = rows.nth(run).locator("td").all_inner_texts()
        assert cells[1] == name and cells[5] == "30" and cells[7] == ("ppo" if run % 2 == 0 else "dqn")
        assert cells[3:5] == [f"{sum(returns_of_run[-3:]) / 3:.6g}", f"{max(returns_of_run):.6g}"]
        expect(rows.nth(run).locator("polyline")).to_be_attached()
    with redrawn(page.locator(".part:has(.smoothing) .chart-place")):
        rows.nth(0).get_by_role("checkbox").click()
    rows.nth(2).get_by_role("checkbox").click()
    expect(part).to_contain_text(f"60 of {len(frame)} episodes")
    expect(rows).to_have_count(4)
    seen.tab("Episodes")
    seen.lists(60)
    assert {text.partition("/")[0] for text in seen.column("episode")} <= {"run1", "run3"}
    page.wait_for_url(re.compile("runs=run3.*runs=run1"))
    seen.tab("Overview")
    page.get_by_role("button", name="All runs").click()
    expect(part).to_be_hidden()
    page.locator(".end-row", has_text="truncated").click()
    ended = frame.filter(end_reason="truncated")
    seen.lists(len(ended))
    expect(page.locator(".chips")).to_contain_text("end_reason = 'truncated'")
    seen.tab("Overview")
    expect(facts.get_by_text(f"{ended['length'].sum():,}", exact=True)).to_be_visible()
    expect(page.locator(".end-row")).to_have_count(1)
    expect(page.locator(returns)).to_contain_text(f"{len(ended)} episodes")
    settle(page)
    seen.drag(seen.canvas(returns), (0.4, 60), (0.98, 70))
    page.mouse.up()
    chip = page.locator(".chips .q-chip", has_text="episode_return BETWEEN")
    expect(chip).to_be_visible()
    kept = duckdb.sql(f"SELECT episode_return FROM ended WHERE {chip.inner_text().splitlines()[1]}").pl()
    assert 0 < len(kept) < len(ended) and ended["episode_return"].max() in kept["episode_return"]
    seen.lists(len(kept))


def test_an_operator_follows_a_store(stores: Explorer, lake: Path, visit: Open) -> None:
    """Episodes of another process appear by themselves; open and ticked ones stay, while they are there. A
    filter that fails on a newer version is reported, and without it that version shows.
    """
    growing = make_store(lake / "growing", runs=1, episodes=5)
    seen = visit(stores, "growing")
    page, header, export = seen.page, seen.page.locator("header"), seen.button("Export")
    seen.open_row(2)
    seen.opened(growing[2])
    seen.tick(0)
    add_run(growing, "later", 4, 9)
    seen.lists(9)
    expect(header).to_contain_text("9 episodes · 2 runs")
    assert seen.column("#") == [str(number) for number in range(8, -1, -1)]
    seen.opened(growing[2])
    expect(page.locator(".episodes-table tr.open-a td").nth(1)).to_have_text("2")
    export.click()
    expect(page.get_by_text("The rows that are ticked (1)")).to_be_visible()
    seen.press("Escape")
    gone = growing[4].id
    el.open(growing.path).delete(f"episode_id = '{gone}'")
    expect(header).to_contain_text("8 episodes")
    export.click()
    expect(page.get_by_text(f"1 ticked row left out: {gone} is not in the newest")).to_be_visible()
    seen.press("Escape")

    seen.filter('"metadata.level" < 9007199254740993')
    page.wait_for_url(re.compile("where="))
    seen.tab("Overview")
    part = page.locator(".part-of")
    expect(part).to_contain_text("8 of 8 episodes")
    with growing.refresh().writer() as writer:
        writer.write_episode(
            observations=growing[0].observations,
            actions=growing[0].actions,
            rewards=growing[0].rewards,
            terminations=True,
            truncations=False,
            metadata={"level": 2**70},
        )
    expect(part).to_contain_text("one is beyond 64 bits")
    part.get_by_role("button", name="Whole store").click()
    expect(part).to_be_hidden()
    expect(page.locator(".about-facts").get_by_text("9", exact=True)).to_be_visible()


def test_an_unsealed_episode_is_watched(stores: Explorer, lake: Path, visit: Open) -> None:
    """An unsealed episode is listed, opens, grows with the writer, and stays open as it becomes a row. One of
    a killed writer opens by its address beside a sealed one, and stays until its journal is gone.
    """
    store = el.create(lake / "live", observation_space=SPACES, action_space=Discrete(4))
    writer = LiveWriter(Path(store.path))
    for line in ("step 4", "end", "seal", "step 3"):
        writer.ask(line)
    listed = visit(stores, pane=None).page.locator("tr", has_text=re.compile("^live"))
    expect(listed.get_by_role("img", name="recording")).to_be_visible()
    seen = visit(stores, "live")
    page, header = seen.page, seen.page.locator("header")
    row = page.locator(".recording-table tbody tr")
    figures = page.locator(".episode.first .figures")
    expect(row).to_have_count(1)
    expect(row.locator("td")).to_have_text([re.compile("live/000001"), "3", "6", re.compile("recording")])
    expect(header).to_contain_text(re.compile(r"1 writer since .*\d\d:\d\d UTC"))
    row.locator("button").click()
    expect(figures).to_contain_text(re.compile("6.*return.*3.*steps.*recording", re.DOTALL))
    seen.at(3, 3)
    writer.ask("step 2")
    expect(row.locator("td").nth(1)).to_have_text("5")
    seen.at(5, 5)
    expect(page.locator(".episode.first canvas.frame")).to_have_attribute("aria-label", "camera at t = 5")
    seen.press("ArrowLeft")
    seen.at(4, 5)
    writer.ask("step 1")
    seen.at(4, 6)
    page.wait_for_url(re.compile("t=4"))
    page.reload()
    seen.at(4, 6)
    seen.check()
    writer.ask("end")
    expect(row.locator("td").nth(3)).to_contain_text("waits for its seal")
    expect(figures).to_contain_text("waits for its seal")
    writer.ask("seal")
    expect(page.locator(".recording-part")).to_be_hidden()
    expect(figures).to_contain_text("terminated")
    seen.at(4, 7)
    expect(page.locator(".episodes-table tr.open-a .open")).to_have_text(re.compile("live/000001"))
    writer.ask("close")
    expect(header).not_to_contain_text("writer")

    writer.kill()
    writer = LiveWriter(Path(store.path))
    writer.ask("step 3")
    expect(row).to_have_count(1)
    row.locator("button").click()
    seen.at(3, 3)
    unsealed, sealed = page.locator(".first .episode-id").inner_text(), store.refresh()[0].id
    address = page.url.split("&pane")[0] + "&pane=episodes"
    page.goto(f"{address}&episode={quote(unsealed)}&beside={quote(sealed)}&t=2")
    seen.opened(unsealed)
    seen.opened(sealed, "second")
    expect(seen.timeline).to_contain_text("t = 2 /")
    settle(page)
    page.goto(address)
    row.locator("button").click()
    seen.at(3, 3)
    writer.kill()
    expect(row).to_contain_text("its writer is gone")
    expect(header).not_to_contain_text("writer")
    shutil.rmtree(Path(store.path) / "journal")
    expect(page.locator(".recording-part")).to_be_hidden()
    expect(page.locator(".episode.first .problem")).to_contain_text("not in the newest version")
    seen.at(3, 3)


def listed_stores(rows: Locator) -> dict[str, list[str]]:
    """The cells of each store behind its name and its curve."""
    cells = [rows.nth(row).locator("td").all_inner_texts() for row in range(rows.count())]
    return {name: others for name, _, *others in cells}


def test_a_lake(stores: Explorer, lake: Path, visit: Open, tmp_path: Path) -> None:
    """Its stores are listed with their amounts; each opens, and a link leads back. No name leads out of it,
    and without its cookie no page answers. Stores come, are deleted, and others take their names.
    """
    make_long_store(tmp_path / "secret")
    (lake / "link").symlink_to(tmp_path / "secret")
    seen = visit(stores, pane=None)
    page, header, banner = seen.page, seen.page.locator("header"), seen.page.locator(".banner")
    rows = page.locator(".episodes-table tbody tr:has(.mono)")
    frame = el.lake(lake).stores()
    expect(rows).to_have_count(len(frame))
    amounts = f"{len(frame)} stores · {frame['episodes'].sum()} episodes"
    expect(header).to_contain_text(amounts)
    # Health comes store after store.
    expect(page.locator(".health", has_text=re.compile("checking|not checked"))).to_have_count(0)
    listed = listed_stores(rows)
    assert list(listed) == sorted(frame["store"]) and {"damaged", HOSTILE_NAME, "pixels/three"} < set(listed)
    for row in frame.iter_rows(named=True):
        _, health, episodes, steps, size, envs, updated, error = listed[row["store"]]
        if row["error"] is None:
            names = ", ".join(row["env_ids"])
            assert (episodes, steps, envs, error) == (f"{row['episodes']:,}", f"{row['steps']:,}", names, "")
            assert float(size.split()[0]) == pytest.approx(
                row["bytes"] / 1000 ** ("kMG".find(size[-2]) + 1), abs=0.06
            )
            found = len(el.open(lake / row["store"]).health().findings) if row["episodes"] else None
            assert health == {None: "", 0: "no findings", 1: "1 finding"}.get(found, f"{found} findings")
            assert updated == f"{row['updated']:%Y-%m-%d %H:%M:%S}"
        else:
            assert (episodes, steps, envs, updated) == ("", "", "", "") and "damaged" in error
    assert listed["long"][0] == "200" and float(listed["pixels/three"][0]) == 39 * 7
    curves = [
        name
        for name in listed
        if rows.filter(has=page.locator(f"a:text-is('{name}')")).locator("polyline").count()
    ]
    assert {"cartpole", "pixels/three", "robot", "sick"} <= set(curves) and not {"long", "empty"} & set(
        curves
    )
    seen.check()

    # A query over all of them; a row leads to its episode.
    seen.ask("SELECT store, episode_id, episode_return FROM episodes ORDER BY episode_return DESC LIMIT 3")
    best = page.locator(".result-table tbody tr")
    expect(best).to_have_count(3)
    assert best.nth(0).locator("td").all_inner_texts()[0] == "sick"
    seen.check()
    seen.ask("SELECT * FROM read_csv('/etc/passwd')")
    expect(page.locator(".problem", has_text="is no part of")).to_be_visible()
    seen.ask("SELECT store, episode_id, 3 AS t FROM episodes WHERE store = 'long'")
    best.get_by_text("long", exact=True).click()
    seen.opened(el.open(lake / "long")[0])
    seen.at(3, 200)
    # Its address has the query, for somebody else.
    page.go_back()
    expect(page.locator(".cm-content")).to_contain_text("3 AS t FROM episodes")
    assert "read_csv" not in page.url and "3+AS+t+FROM" in page.url
    seen.tab("Stores")
    expect(rows).to_have_count(len(frame))

    # No name leads out, and nothing shows without the token or the cookie.
    inside = page.url.partition("?")[0]
    outside = ("../secret", "link", "/etc", "pixels/../../secret", "%2e%2e/secret", "pixels/three/steps", "")
    for name in outside:
        page.goto(f"{inside}store?name={quote(name, safe='')}")
        expect(banner).to_have_text(re.compile(r"is no name of a store|is a link|no store"))
    for address in (f"{inside}store?name=pixels/three", f"{stores.origin}/store?name=pixels/three"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address, timeout=PATIENCE)
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(stores.origin, timeout=PATIENCE)
    text = refused.value.read().decode()
    assert "token" in text and "episodes" not in text

    # Its stores open.
    page.goto(inside)
    page.get_by_placeholder("Part of a name").fill("é")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name=HOSTILE_NAME).click()
    seen.tab("Episodes")
    expect(page.locator(".episode-id")).to_be_visible()
    expect(header).to_contain_text(HOSTILE_NAME)
    back = page.get_by_role("link", name="All stores")
    back.click()
    page.locator("td", has_text="120").first.click()
    expect(header).to_contain_text("120 episodes")
    back.click()
    page.get_by_role("link", name="damaged").click()
    expect(banner).to_contain_text("store.json")
    expect(rows).to_have_count(len(frame))
    page.get_by_role("link", name="pixels/three").click()
    expect(header).to_contain_text("120 episodes · 3 runs")
    seen.tab("Episodes")
    expect(seen.rows).to_have_count(50)
    expect(seen.canvas(".overview")).to_be_visible()
    seen.check()
    seen.filter("episode_return > 38")
    seen.lists(sum(episode.episode_return > 38 for episode in el.open(lake / "pixels/three")))
    back.click()
    page.get_by_role("link", name="empty").click()
    seen.tab("Episodes")
    expect(header).to_contain_text("0 episodes")
    expect(page.get_by_text("The store has no episodes yet")).to_be_visible()
    expect(page.get_by_text("No episode fulfils the filter")).to_have_count(0)
    back.click()
    page.get_by_role("link", name="agents").click()
    seen.tab("Episodes")
    seen.opened(el.open(lake / "agents")[0])
    expect(page.get_by_label("Agent")).to_be_visible()
    expect(seen.canvas(".first")).to_be_visible()
    back.click()

    # New stores and episodes show, a deleted store is named by its page, and another takes its name.
    expect(rows).to_have_count(len(frame))
    make_long_store(lake / "a new one")
    expect(page.get_by_role("link", name="a new one")).to_be_visible()
    expect(header).to_contain_text(f"{len(frame) + 1} stores · {frame['episodes'].sum() + 1} episodes")
    page.get_by_role("link", name="a new one").click()
    expect(page.locator(".about-facts")).to_be_visible()
    el.lake(lake).delete("a new one")
    expect(banner).to_contain_text("cannot be read, so this stays as it was")
    make_store(lake / "a new one", runs=1, episodes=7)
    page.reload()
    expect(header).to_contain_text("7 episodes · 1 run")
    el.lake(lake).delete("a new one")
    expect(banner).to_contain_text("cannot be read, so this stays as it was")
    page.reload()
    expect(banner).to_contain_text("has no store 'a new one'")


def test_a_robot_with_cameras_and_joints(stores: Explorer, lake: Path, visit: Open) -> None:
    """Cameras stand side by side by name, keys and thumbnails move them, and play loops. The list shows the
    first of many columns, others with a click; the picker draws any numbers, in the next episodes too.
    """
    robot = el.open(lake / "robot")
    seen = visit(stores, "robot")
    page, thumbnails = seen.page, seen.page.locator(".thumbnails img")
    expect(page.locator(".first figcaption")).to_have_text(list(CAMERAS))
    wrist = page.locator("canvas.frame[aria-label^='wrist']")
    seen.shows(robot[1].observations["wrist"][0], "canvas.frame[aria-label^='wrist']")
    seen.at(0, STEPS)
    expect(thumbnails).to_have_count(12)
    width = wrist.bounding_box()["width"]  # type: ignore[index]
    wrist.click()
    expect(page.locator("figure:popover-open")).to_be_visible()
    assert wrist.bounding_box()["width"] > 2 * width  # type: ignore[index]
    seen.press("ArrowRight")
    seen.at(1, STEPS)
    wrist.click()
    expect(page.locator("figure:popover-open")).to_have_count(0)
    thumbnails.last.click()
    seen.at(STEPS, STEPS)
    seen.press("Home")
    seen.at(0, STEPS)
    seen.press("Shift+ArrowRight")
    seen.at(10, STEPS)
    seen.press("+")
    expect(page.locator(".timeline .q-select")).to_contain_text("2x")
    seen.press("l")
    expect(page.get_by_role("button", name="Loop")).to_have_attribute("aria-pressed", "true")
    play = page.get_by_role("button", name="Play or pause")
    play.click()
    shown = [10]

    def back_again() -> bool:
        shown.append(seen.t)
        return shown[-1] < max(shown)

    wait_until(back_again, "the second round")
    play.click()
    expect(play).to_contain_text("play_arrow")
    t = seen.t
    for name in CAMERAS:
        frame = page.locator(f"canvas.frame[aria-label='{name} at t = {t}']")
        expect(frame).to_be_visible()
        assert (np.abs(pixels(frame).astype(int) - 5 * t) < 3 * (name != "wrist") + 1).all(), name
    seen.check()

    place = page.locator(".first .chart-place")
    expect(seen.canvas(".first")).to_be_visible()
    settle(page)
    picker, chips = page.locator(".first .q-select input"), page.locator(".first .q-chip")
    with redrawn(place):
        picker.fill("observation.joints[8:10]")
        picker.press("Enter")
    picker.fill("info.b")
    page.get_by_role("option", name="info.battery").click()
    expect(chips).to_contain_text(["observation.joints[8:10]", "info.battery"])
    picker.press("Escape")
    seen.press("Tab")
    seen.open_row(1)
    seen.opened(robot[0])
    expect(chips).to_contain_text(["observation.joints[8:10]", "info.battery"])

    heads = page.locator(".episodes-table thead th")
    expect(heads).to_have_count(2 + 30)
    seen.button("Columns").click()
    page.get_by_role("dialog", name="Columns").get_by_role("checkbox", name="metadata.key239").click()
    seen.press("Escape")
    expect(heads).to_have_count(3 + 30)
    expect(page.locator(".episodes-table tbody tr").first).to_contain_text("1239")


def test_long_episodes_and_replays(stores: Explorer, lake: Path, visit: Open) -> None:
    """A step moves the cursor of a chart alone, and playing waits for a slow browser. A replay shows from
    which step on its frames differ; without a seed none is offered.
    """
    seen = visit(stores, "long")
    page = seen.page
    chart = seen.canvas(".first")
    expect(chart).to_be_visible()
    settle(page)
    chart.evaluate("(canvas) => (canvas.dataset.first = 'yes')")
    play = page.get_by_role("button", name="Play or pause")
    with redrawn(chart):
        play.click()
        expect(seen.timeline).not_to_have_text("t = 0 / 200")
        # Busy for forty ticks of the player; nothing that was sent meanwhile is shown before the pause.
        begun = int(play.evaluate(BUSY_THEN_CLICK))
        expect(play).to_contain_text("play_arrow")
        ended = seen.t
        assert 0 < begun <= ended < begun + 10
    assert chart.get_attribute("data-first") == "yes"
    seen.press("ArrowRight")  # The button that was clicked has the focus.
    seen.at(ended + 1, 200)

    page.get_by_role("link", name="All stores").click()
    page.get_by_role("link", name="cartpole").click()
    seen.tab("Episodes")
    first, second = el.open(lake / "cartpole")
    assert (first.seed, second.seed) == (1, None)
    seen.opened(second)
    replay = page.get_by_role("button", name="Render a replay")
    expect(page.get_by_text("no seed was recorded")).to_be_visible()
    expect(replay).to_have_count(0)
    seen.open_row(1)
    seen.opened(first)
    replay.click()
    caption = page.locator(".first figcaption")
    expect(caption).to_have_text("replay")
    seen.press("ArrowRight")
    expect(caption).to_contain_text("not what was recorded, since step 1: observation[1] was")
    expect(page.locator(".first canvas.frame")).to_have_css("outline-style", "solid")
    seen.press("ArrowLeft")
    expect(caption).to_have_text("replay")
