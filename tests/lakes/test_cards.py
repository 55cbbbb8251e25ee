"""Cards: what stores, views and episodes show in a notebook, and that nothing makes them raise."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright

import episodelake as el
from agent_environments import Comings
from effort import looped, some, with_folders
from episodelake.readers.blocks import SegmentFile
from episodelake.readers.charts import html
from episodelake.readers.charts.html import duration, number
from episodelake.testing.adapters import case
from picture_stores import HOSTILE, Page, cartpole, is_harmless, pictures, raw, scores
from plain_agents import play_parallel, random_policy

RETURNS = {"ppo": [float(value) for value in range(20)], "dqn": [-3.5, 100.25]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Two runs, of 20 and of 2 episodes."""
    return scores(tmp_path_factory.mktemp("cards") / "store", RETURNS)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """An episode of agents that come and go."""
    env = Comings()
    store = el.create(tmp_path_factory.mktemp("team") / "store", env)
    with store.record(env, run="team") as recorder:
        play_parallel(recorder, random_policy(env, 0), 0)
    return store.refresh()


def card(shown: el.EpisodeView | el.Episode) -> Page:
    """The card of a store, view or episode, taken apart; it has to be harmless, its drawings well-formed."""
    text = shown._repr_html_()
    for drawing in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(drawing)
    page = Page(text)
    assert is_harmless(page)
    return page


def test_a_store_shows_its_key_figures(store: el.EpisodeStore) -> None:
    """Episodes, transitions, runs, ends and quantiles are those of the files."""
    text = card(store).text
    ((episodes, transitions, runs),) = raw(
        store, "SELECT count(*), sum(length)::BIGINT, count(DISTINCT run_id) FROM episodes"
    )
    assert f"{episodes} episodes {transitions} transitions {runs} runs" in text
    for reason, count in raw(store, "SELECT end_reason, count(*) FROM episodes GROUP BY 1"):
        assert f"{reason} {count} {count / episodes:.1%} {count / episodes:.1%}" in text
    values = np.array([value for own in RETURNS.values() for value in own])
    low, median, high = np.quantile(values, [0.1, 0.5, 0.9])
    figures = (values.min(), low, median, values.mean(), high, values.max())
    assert "return " + " ".join(number(float(value)) for value in figures) in text
    assert "Box(-9.0, 9.0, (2,), float32)" in text
    assert "Discrete(4, start=1)" in text
    assert str(store.path) in text
    size = sum(file.stat().st_size for file in store.path.rglob("*.parquet"))
    shown = re.search(r"([\d.]+) kB in \d+ Parquet files", text)
    assert shown is not None
    # A run that has ended is a second file, which the first no longer counts beside.
    assert 0.5 * size < float(shown[1]) * 1000 <= 1.01 * size


def test_the_size_says_which_files_it_counts(store: el.EpisodeStore) -> None:
    """Beside the size stands the number of Parquet files of the version, which are not all of the folder."""
    runs = {run for (run,) in raw(store, "SELECT run_id FROM runs")}
    segments = len(list(store.path.glob("steps/*.parquet"))) + len(
        list(store.path.glob("episodes/*.parquet"))
    )
    assert f"kB in {segments + len(runs)} Parquet files" in card(store).text


def test_each_run_has_a_line(store: el.EpisodeStore) -> None:
    """Runs one after the other would look like one that learned; a single run has a line with a band."""
    several, single = store._repr_html_(), store.filter("episode_return < 20 AND episode_return >= 0")
    assert "mean by episode of each run: ppo dqn." in " ".join(card(store).text.replace("\xa0", " ").split())
    drawing = next(each for each in re.findall(r"<svg.*?</svg>", several) if "Return over time" in each)
    ends = [line.get("d", "") for line in ElementTree.fromstring(drawing).iter() if line.tag.endswith("path")]
    # Places are those of the longest run: the second, of 2 episodes, ends at the second of 20 places.
    last = [float(re.split(r"[ML]", end)[-1].split()[0]) for end in ends]
    assert last == pytest.approx([297.0, 3 + 294 / 19], abs=0.06)
    assert "polygon" not in drawing
    alone = next(each for each in re.findall(r"<svg.*?</svg>", single._repr_html_()) if "Return over" in each)
    assert "polygon" in alone


@pytest.mark.further
def test_cells_are_aligned_against_the_styles_of_notebooks(store: el.EpisodeStore) -> None:
    """In a browser, with the rule of JupyterLab for tables, texts stand left and numbers right."""
    notebook = "<style>.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th { text-align: right }</style>"
    page_text = f"{notebook}<div class='jp-RenderedHTMLCommon'>{store._repr_html_()}</div>"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content(page_text)
        found = page.eval_on_selector_all(
            "td, th",
            "cells => cells.map(c => [c.classList.contains('el-number'), getComputedStyle(c).textAlign])",
        )
        browser.close()
    assert {(number, align) for number, align in found} == {(True, "right"), (False, "left")}


@looped(("seconds", "told"), [(0.0, "0 ms"), (0.0005, "0.5 ms"), (0.9, "900 ms"), (1.0, "1.000 s")])
def test_short_episodes_lasted_milliseconds(seconds: float, told: str) -> None:
    """Below a second a time is told in thousandths, so that none is 0.000 s."""
    assert duration(seconds) == told


def test_a_view_shows_its_own_episodes(store: el.EpisodeStore) -> None:
    """A filter and a slice have cards of what they keep, without the size of the store."""
    text = card(store.filter("episode_return > 15")).text
    assert text.startswith("EpisodeView")
    assert "5 episodes" in text
    assert "some of its episodes" in text
    assert "Parquet" not in text
    assert "1 episode 1 transition 1 run " in card(store[3:4]).text


def test_an_episode_shows_what_is_known_of_it(store: el.EpisodeStore) -> None:
    """Id, length, return, end, seed and signals stand in its card."""
    episode = store[4]
    page = card(episode)
    for part in (episode.id, episode.run_id, "terminated", "seed 4", "2 steps 4 return", "observation[1]"):
        assert part in page.text
    assert page.tags.count("svg") == 4


def test_empty_stores_and_views_have_cards(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Where there are no episodes, the card says so and shows the spaces."""
    empty = card(el.create(tmp_path / "empty", gymnasium.make("CartPole-v1"))).text
    assert "0 episodes There are no episodes here." in empty
    assert "Discrete(2)" in empty
    assert "wider filter" in card(store.filter("length > 9")).text


def test_agents_and_objectives_have_rows(team: el.EpisodeStore, tmp_path: Path) -> None:
    """Several agents are told apart, and so are several objectives."""
    text = card(team).text
    assert "4 agents" in text
    for name, value in team[0].agent_returns.items():
        assert f"return of {name} {number(value)}" in text
        assert f"{name} {name.partition('_')[0]}" in card(team[0]).text
    assert "agent tank_0" in card(team[0].agent("tank_0")).text
    two = el.create(
        tmp_path / "two", observation_space=Discrete(3), action_space=Discrete(3), reward_shape=(2,)
    )
    with two.writer(run="two") as writer:
        writer.write_episode(
            observations=np.array([0, 1]), actions=np.array([1]), rewards=np.array([[1.5, -7.0]]),
            terminations=True, truncations=False,
        )  # fmt: skip
    text = card(two.refresh()).text
    assert "return, objective 0 1.5" in text
    assert "return, objective 1 -7" in text
    assert "[1.5, -7] return" in card(two[0]).text


def test_frames_are_shown_and_no_other_steps_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of images shows some of the first episode's; of steps it reads no other column."""
    frames = np.arange(9 * 9 * 3 * 12, dtype=np.uint8).reshape(12, 9, 9, 3)
    store = pictures(tmp_path / "store", frames)
    asked: list[str] = []
    read = SegmentFile.read

    def noted(self: SegmentFile, groups: object, columns: object, **options: object) -> object:
        asked.extend(list(columns))  # type: ignore[call-overload]
        return read(self, groups, columns, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentFile, "read", noted)
    page = card(store)
    assert page.tags.count("img") == 6
    assert "t = 0 t = 2 t = 4 t = 7 t = 9 t = 11" in page.text
    assert set(asked) == {"observation"}
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "pip install 'episodelake[explore]'" in card(store).text


def test_the_card_of_a_store_needs_no_steps(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Without images, the files of steps could be gone: the card is the same."""
    copy = tmp_path / "copy"
    shutil.copytree(store.path, copy)
    before = card(el.open(copy)).text
    for file in (copy / "steps").glob("*.parquet"):
        file.unlink()
    assert card(el.open(copy)).text == before


_A_DAMAGED_FILE_IS_TOLD_AND_THE: Any = [
    *itertools.product(["episodes", "runs", "steps"], ["gone", "cut", "zeros", "other"])
]


@pytest.mark.parametrize("cases", some(_A_DAMAGED_FILE_IS_TOLD_AND_THE, 4))
def test_a_damaged_file_is_told_and_the_rest_is_shown(
    store: el.EpisodeStore, tmp_path: Path, cases: Any
) -> None:
    """However a file is damaged, no card raises; what can be read is shown."""
    for folder, (table, how) in with_folders(cases, tmp_path):
        with case((table, how)):
            copy = folder / "copy"
            shutil.copytree(store.path, copy)
            opened, kept = el.open(copy), el.open(copy)
            episode = kept[1]
            for file in (copy / table).glob("*.parquet"):
                whole = file.read_bytes()
                if how == "gone":
                    file.unlink()
                else:
                    file.write_bytes(
                        {"cut": whole[: len(whole) // 2], "zeros": bytes(len(whole)), "other": b"x"}[how]
                    )
            text = card(opened).text
            assert "Box(-9.0, 9.0, (2,), float32)" in text
            assert ("cannot be shown" in text) is (table != "steps")
            if table != "steps":
                assert re.search(rf"/{table}/[\w.-]+\.parquet", text)
            told = card(episode).text
            assert "position 1" in told or episode.id in told
            if table == "steps" and how != "gone":
                assert "0 return" in told or "1 return" in told


def test_whatever_a_store_says_is_text(tmp_path: Path) -> None:
    """Names of runs and columns, metadata, options and infos are escaped wherever they are shown."""
    space = Dict({HOSTILE[1]: Box(0, 1, (), np.float32), "<b>": Text(5)})
    store = el.create(tmp_path / "store", observation_space=space, action_space=Discrete(2))
    space.seed(0)
    for name in HOSTILE:
        with store.writer(run=name, metadata={name: name}) as writer:
            writer.write_episode(
                observations=[space.sample(), space.sample()],
                actions=np.zeros(1, np.int64),
                rewards=np.ones(1),
                terminations=True,
                truncations=False,
                metadata={name: {"deep": name}, "plain": name},
                options={name: name},
            )
    store.refresh()
    for shown in (store, store[:2], *store):
        page = card(shown)
        assert "img" not in page.tags
        assert "cannot be shown" not in page.text
    texts = " ".join(card(episode).text for episode in store)
    assert "alert(1)" in texts
    assert "\x1b" not in texts


@given(st.text(), st.text(max_size=20))
def test_escaped_text_comes_back_as_one_text(value: str, other: str) -> None:
    """Any text in a card is a single piece of text for a browser, without control characters."""
    page = Page(f"<p>{html.text(value, 10_000)}</p><p>{html.code(other)}</p>")
    assert page.tags == ["p", "p", "code"]
    assert is_harmless(page)
    assert not any(ord(letter) < 32 for letter in "".join(page.words))


@given(
    st.lists(st.floats(), max_size=700),
    st.lists(st.integers(0, 10**12), max_size=50),
)
def test_drawings_are_well_formed(values: list[float], counts: list[int]) -> None:
    """Whatever the numbers, a drawing is XML whose coordinates are finite and inside."""
    array = np.array(values, np.float64)
    for drawing in (
        html.line_chart(array, label="<a&b>"),
        html.line_chart(array, stepped=True),
        html.lines_chart([[*enumerate(values)]], band=[(x, y - 1, y + 1) for x, y in enumerate(values)]),
        html.bar_chart(counts, (min(values, default=0.0), max(values, default=1.0))),
    ):
        root = ElementTree.fromstring(drawing)
        width, height = float(root.get("width", "nan")), float(root.get("height", "nan"))
        for node in root.iter():
            for name, limit in (("x", width), ("y", height), ("cx", width), ("cy", height)):
                assert 0 <= float(node.get(name, "0")) <= limit
            for x, y in re.findall(r"[ML](-?[\d.naif]+) (-?[\d.naif]+)", node.get("d", "")):
                assert 0 <= float(x) <= width
                assert 0 <= float(y) <= height


def test_a_drawing_is_the_line(store: el.EpisodeStore) -> None:
    """A line goes through its values in proportion, and breaks where there is none."""
    drawing = html.line_chart(np.array([0.0, 1.0, math.nan, 0.5]), width=106, height=26)
    path = ElementTree.fromstring(drawing).find("{http://www.w3.org/2000/svg}path")
    assert path is not None
    assert path.get("d") == "M3.0 23.0L36.3 3.0M103.0 13.0"


def test_numbers_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    """NaN and infinite returns do not spoil the figures, and are counted beside them."""
    store = scores(tmp_path / "store", {"a": [1.0, math.nan, math.inf, 3.0]})
    text = card(store).text
    assert "return 1 1.2 2 2 2.8 3 2 not finite" in text
    assert "cannot be shown" not in text
    nothing = card(store.filter("NOT isfinite(episode_return)")).text
    assert "return NULL NULL NULL NULL NULL NULL 2 not finite" in nothing
    assert "cannot be shown" not in nothing


def test_a_store_in_memory_has_a_card() -> None:
    """A store that is no folder has a card as well."""
    store = el.create("memory://cards", gymnasium.make("CartPole-v1"))
    with store.record(gymnasium.make("CartPole-v1"), run="m") as env:
        env.reset(seed=0)
        env.step(0)
    text = card(store.refresh()).text
    assert "1 episode 1 transition 1 run " in text
    assert "cannot be shown" not in text + card(store[0]).text


def test_a_card_is_small(tmp_path: Path) -> None:
    """A notebook is not filled: the card of a store without images stays below 30 kB."""
    assert len(cartpole(tmp_path / "store", range(10))._repr_html_()) < 30_000


def test_loaders_statistics_and_lakes_have_cards(tmp_path: Path) -> None:
    """A loader shows its next batch without moving, statistics and lakes show their tables, all escaped."""
    store = cartpole(tmp_path / "<b>lake" / "one", range(4))
    loader = store.loader(4, window=3, shuffle=True)
    page = Page(loader._repr_html_())
    assert is_harmless(page) and repr(loader) in page.text and "(4, 3, 4)" in page.text
    batch = next(iter(loader))
    assert {*batch} <= {*re.findall(r"[\w.]+", page.text)} and "position 0" in page.text
    assert "as the store grows" in store.loader(4, follow=el.Follow())._repr_html_()
    stats = store.stats()
    for shown in (stats, stats["observation"]):
        page = Page(shown._repr_html_())
        assert is_harmless(page) and f"{stats['observation'].mean[0]:.6f}" in page.text
    page = Page(el.lake(tmp_path / "<b>lake")._repr_html_())
    assert (
        is_harmless(page) and "<b>lake" in page.text and str(len(store)) in page.text and "b" not in page.tags
    )
