"""What charts, cards, frames and videos promise, held against counts by loops and against other decoders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import episodelake as el
from claimed_stores import (
    cartpole,
    columns_with_odd_names,
    damage,
    hostile_texts,
    odd_rewards,
    play,
    record,
    treasure,
    two_segments,
)
from waiting import PATIENCE

gymnasium.register_envs(ale_py)
CHARTS = ("returns", "lengths", "return_histogram", "actions", "visitation")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, el.EpisodeStore]:
    """Stores of real environments and of odd values, only read."""
    root = tmp_path_factory.mktemp("pictures")
    return {
        "cartpole": cartpole(root / "cartpole"),
        "blackjack": record(root / "blackjack", lambda: gymnasium.make("Blackjack-v1"), 6),
        "lake": record(root / "lake", lambda: gymnasium.make("FrozenLake-v1"), 4),
        "treasure": treasure(root / "treasure", 4),
        "breakout": record(root / "breakout", lambda: gymnasium.make("ALE/Breakout-v5"), 1, 14),
        "rewards": odd_rewards(root / "rewards"),
        "names": columns_with_odd_names(root / "names"),
        "hostile": hostile_texts(root / "hostile"),
        "empty": el.create(root / "empty", gymnasium.make("CartPole-v1")),
    }


def rows_of(chart: Any) -> list[list[dict]]:
    """The datasets that a chart carries, after strict JSON."""
    return list(json.loads(chart.to_json(), parse_constant=_refuse)["datasets"].values())


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def rows_with(chart: Any, *keys: str) -> list[dict]:
    """The rows of the one dataset of a chart that has these columns."""
    (rows,) = (rows for rows in rows_of(chart) if set(keys) <= set(rows[0]))
    return rows


@pytest.mark.further
def test_returns_hold_every_episode_of_a_small_store(stores: dict[str, el.EpisodeStore]) -> None:
    """Each dot of `plot.returns` is an episode with its own return; ids lead back to it."""
    dots = rows_with(stores["cartpole"].plot.returns(), "episode", "value")
    assert {row["episode"]: row["value"] for row in dots} == {
        episode.id: episode.rewards.sum() for episode in stores["cartpole"]
    }
    view = stores["cartpole"].filter("end_reason = 'truncated'")
    assert {row["episode"] for row in rows_with(view.plot.returns(), "episode")} == {
        episode.id for episode in view
    }


def test_returns_by_steps_and_by_any_column(stores: dict[str, el.EpisodeStore]) -> None:
    """The x axis counts steps of the run before each episode; colours are values of the column asked for."""
    store = stores["cartpole"]
    before, expected = Counter(), {}
    for episode in sorted(store, key=lambda episode: episode.number):
        expected[episode.id] = (before[episode.run_id], before[episode.run_id] + episode.length)
        before[episode.run_id] += episode.length
    for row in rows_with(store.plot.returns(over="steps"), "episode", "x"):
        assert expected[row["episode"]][0] <= row["x"] <= expected[row["episode"]][1]
    by_end = rows_with(store.plot.returns(by="end_reason"), "episode", "series")
    assert {row["episode"]: row["series"] for row in by_end} == {
        episode.id: episode.end_reason for episode in store
    }
    with pytest.raises(el.errors.InvalidArgumentError, match="end_reason"):
        store.plot.returns(by="end_raeson")
    with pytest.raises(el.errors.InvalidArgumentError, match="steps"):
        store.plot.returns(over="stpes")


def test_histograms_hold_every_episode(stores: dict[str, el.EpisodeStore]) -> None:
    """Bars of lengths and returns add up to all episodes, each within its edges."""
    for chart, value in (
        (stores["cartpole"].plot.lengths(), lambda episode: episode.length),
        (stores["cartpole"].plot.return_histogram(by="end_reason"), lambda episode: episode.rewards.sum()),
    ):
        for row in rows_with(chart, "from", "to", "episodes"):
            mine = [episode for episode in stores["cartpole"] if episode.end_reason == row["series"]]
            within = [episode for episode in mine if row["from"] <= value(episode) <= row["to"]]
            assert len(within) == row["episodes"]
        assert sum(row["episodes"] for row in rows_with(chart, "episodes")) == len(stores["cartpole"])


def test_actions_are_counted(stores: dict[str, el.EpisodeStore]) -> None:
    """The chart of actions has each discrete action as often as a Counter has."""
    for name in ("cartpole", "lake", "treasure"):
        rows = rows_with(stores[name].plot.actions(), "transitions")
        expected = Counter(int(action) for episode in stores[name] for action in episode.actions)
        assert {int(row["label"]): row["transitions"] for row in rows if row["transitions"]} == expected


def test_visitation_counts_every_observation(stores: dict[str, el.EpisodeStore]) -> None:
    """Visits add up to T+1 for each episode, whichever elements are on the axes."""
    expected = sum(episode.length + 1 for episode in stores["cartpole"])
    for x, y in ((None, None), ("observation[2]", "observation[3]"), ("observation[0]", None)):
        rows = rows_with(stores["cartpole"].plot.visitation(x, y), "visits")
        assert sum(row["visits"] for row in rows) == expected
    rows = rows_with(stores["lake"].plot.visitation(), "visits")
    places = Counter(int(place) for episode in stores["lake"] for place in episode.observations)
    assert sum(row["visits"] for row in rows) == sum(places.values())
    assert sum(row["visits"] > 0 for row in rows) == len(places)


def test_an_episode_is_drawn_value_by_value(stores: dict[str, el.EpisodeStore]) -> None:
    """`episode.plot` has each reward, action and element of the observation at its step."""
    episode = stores["cartpole"][0]
    points = {(row["signal"], row["t"]): row["value"] for rows in rows_of(episode.plot()) for row in rows}
    for t in range(episode.length):
        assert points["reward", t] == episode.rewards[t] and points["action", t] == episode.actions[t]
    for (t, element), value in np.ndenumerate(episode.observations):
        assert points[f"observation[{element}]", t] == pytest.approx(value)
    assert {row["signal"] for row in rows_with(episode.plot(["observation[2]"]), "signal")} == {
        "observation[2]"
    }
    with pytest.raises(el.errors.InvalidArgumentError, match="observation"):
        episode.plot(["obsrvation"])


@pytest.mark.sample
@pytest.mark.parametrize("name", ["treasure", "rewards", "names", "hostile", "blackjack"])
@pytest.mark.parametrize("kind", CHARTS)
def test_every_chart_of_every_store_is_strict_json(
    stores: dict[str, el.EpisodeStore], name: str, kind: str
) -> None:
    """NaN, infinities, vectors and odd names give a chart or a NothingToDrawError, never broken JSON."""
    try:
        assert rows_of(getattr(stores[name].plot, kind)())
    except el.errors.NothingToDrawError as error:
        assert kind == "visitation" and str(error)


@pytest.mark.parametrize("kind", CHARTS)
def test_an_empty_store_has_nothing_to_draw(stores: dict[str, el.EpisodeStore], kind: str) -> None:
    """Every chart of a store without episodes says that there are none."""
    with pytest.raises(el.errors.NothingToDrawError, match="no episodes"):
        getattr(stores["empty"].plot, kind)()


@pytest.mark.further
def test_charts_are_saved_as_what_the_suffix_says(stores: dict[str, el.EpisodeStore], tmp_path: Path) -> None:
    """SVG is XML with text, PNG a picture in light and dark, HTML needs no network, others are refused."""
    chart = stores["cartpole"].plot.returns()
    root = ElementTree.parse(chart.save(tmp_path / "x.svg") or tmp_path / "x.svg").getroot()
    assert root.tag.endswith("svg") and "return" in "".join(root.itertext()).lower()
    for theme in ("light", "dark"):
        chart.save(tmp_path / f"{theme}.png", theme=theme)
    light, dark = (
        np.asarray(Image.open(tmp_path / f"{theme}.png").convert("L")) for theme in ("light", "dark")
    )
    assert light[0, 0] > 200 > 80 > dark[0, 0]
    chart.save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)\s*=\s*[\"']?(https?:)?//", page)
    with pytest.raises(el.errors.InvalidArgumentError, match="svg"):
        chart.save(tmp_path / "x.pdf")


class Tags(HTMLParser):
    """Gathers the tags and their attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        self.tags.append((tag, dict(attrs)))


def cards(store: el.EpisodeStore) -> Iterator[str]:
    """The cards of a store, a view and its episodes."""
    yield store._repr_html_()
    yield store.filter("length > 0")._repr_html_()
    for episode in store[:2]:
        yield episode._repr_html_()


@pytest.mark.further
def test_text_of_a_store_is_no_markup(stores: dict[str, el.EpisodeStore], tmp_path: Path) -> None:
    """Hostile text stays text in cards, and cannot end the script of a saved chart."""
    for card in cards(stores["hostile"]):
        parser = Tags()
        parser.feed(card)
        assert {tag for tag, _ in parser.tags} & {"script", "img", "iframe", "b", "i"} <= {"b", "i"}
        assert not any(name.startswith("on") for _, attributes in parser.tags for name in attributes)
        assert "<script>alert" not in card and "<img src=x" not in card
    for number, chart in enumerate(
        [
            stores["hostile"].plot.returns(by="metadata.note"),
            stores["hostile"][0].plot(["info"]),
        ]
    ):
        chart.save(tmp_path / f"{number}.html")
        page = (tmp_path / f"{number}.html").read_text()
        assert "<script>alert" not in page and "</script>\x1b" not in page
        chart.save(tmp_path / f"{number}.svg")
        ElementTree.parse(tmp_path / f"{number}.svg")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", ["cartpole", "treasure", "breakout", "rewards", "names", "empty", "blackjack"]
)
def test_cards_have_the_key_figures(stores: dict[str, el.EpisodeStore], name: str) -> None:
    """A card of every kind of store is balanced HTML that has the number of episodes."""
    for card in cards(stores[name]):
        assert card.count("<div") == card.count("</div") and card.count("<svg") == card.count("</svg")
    assert re.search(
        rf"(?<!\d){len(stores[name])}(?!\d)",
        re.sub(r"<(style|svg).*?</\1>", "", stores[name]._repr_html_(), flags=re.S),
    )


@pytest.mark.further
def test_a_damaged_file_leaves_cards_and_charts_of_episodes(tmp_path: Path) -> None:
    """With one file of steps damaged, what needs no steps is drawn; what needs them names the file."""
    store = two_segments(tmp_path / "store")
    file = damage(store, "first")
    store = el.open(store.path)
    assert store._repr_html_() and store[0]._repr_html_() and store[5].plot()
    for kind in ("returns", "lengths", "return_histogram"):
        assert rows_of(getattr(store.plot, kind)())
    with pytest.raises(el.errors.CorruptStoreError, match=re.escape(file.name)):
        store[0].plot()
    with pytest.raises(el.errors.CorruptStoreError, match=re.escape(file.name)):
        store.plot.visitation()
    assert rows_of(store.filter("run_id like 'second%'").plot.visitation())


@pytest.mark.further
def test_charts_of_many_episodes_stay_small(tmp_path: Path) -> None:
    """What a chart of 8,000 episodes carries is below a megabyte, and still counts them all."""
    store = el.create(
        "memory://claims-pictures", observation_space=spaces.Discrete(4), action_space=spaces.Discrete(2)
    )
    one = np.zeros(2, np.int64)
    with store.writer(run="many", durability="none") as writer:
        for number in range(8_000):
            writer.write_episode(
                observations=one, actions=one[:1], rewards=[number % 7], terminations=True, truncations=False
            )
    store.refresh()
    for kind in CHARTS:
        assert len(getattr(store.plot, kind)().to_json()) < 1_000_000
    rows = rows_with(store.plot.return_histogram(), "episodes")
    assert sum(row["episodes"] for row in rows) == 8_000
    assert len(store._repr_html_()) < 200_000


def test_importing_takes_no_package_for_pictures() -> None:
    """`import episodelake`, opening a store included, loads none of the packages that only drawing needs."""
    heavy = ["altair", "marimo", "PIL", "av", "matplotlib", "torch", "pandas", "vl_convert", "prompt_toolkit"]
    code = f"import sys, episodelake; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "[]"


def test_players_of_a_game_are_drawn_apart() -> None:
    """With several agents, the chart of returns has a series for each; cards and episodes are drawn."""
    path = Path(__file__).parent / "data" / "format-1-agents" / "store"
    store = el.open(path)
    assert len(store)
    dots = rows_with(store.plot.returns(), "episode", "series")
    expected = {(episode.id, agent) for episode in store for agent in episode.agents}
    assert {(row["episode"], row["series"]) for row in dots} == expected
    assert store[0]._repr_html_() and rows_of(store[0].plot())


def test_a_store_being_written_is_drawn(tmp_path: Path) -> None:
    """A card and charts show the version that a store object shows, while another run writes on."""
    store = cartpole(tmp_path / "store", 2)
    before = len(store)
    play(store.record(gymnasium.make("CartPole-v1"), run="later"), 3, 20)
    assert len(rows_with(store.plot.returns(), "episode")) == before
    assert len(rows_with(store.refresh().plot.returns(), "episode")) == before + 3
