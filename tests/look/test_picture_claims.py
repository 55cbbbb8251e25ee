"""What charts, cards, frames and videos promise, held against counts by loops and against other decoders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

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

gymnasium.register_envs(ale_py)
CHARTS = ("returns", "learning_curve", "lengths", "return_histogram", "actions", "visitation")


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


def cards(store: el.EpisodeStore) -> Iterator[str]:
    """The cards of a store, a view and its episodes."""
    yield store._repr_html_()
    yield store.filter("length > 0")._repr_html_()
    for episode in store[:2]:
        yield episode._repr_html_()


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


def test_a_store_being_written_is_drawn(tmp_path: Path) -> None:
    """A card and charts show the version that a store object shows, while another run writes on."""
    store = cartpole(tmp_path / "store", 2)
    before = len(store)
    play(store.record(gymnasium.make("CartPole-v1"), run="later"), 3, 20)
    assert len(rows_with(store.plot.returns(), "episode")) == before
    assert len(rows_with(store.refresh().plot.returns(), "episode")) == before + 3
