"""Dynamic columns across batches, segments and runs: kinds that meet, names that clash, many keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el

SPACES: dict[str, Any] = {
    "observation_space": spaces.Box(-1, 1, (2,), np.float32),
    "action_space": spaces.Discrete(2),
}
ZERO = np.zeros(2, np.float32)


def write(
    writer: el.EpisodeWriter, infos: list[dict[str, Any]], extras: list[dict[str, Any]] | None = None
) -> str:
    """Write one episode with these infos (and user columns), one per observation."""
    extras = extras or [{}] * len(infos)
    episode = writer.begin(ZERO, infos[0], extra=extras[0])
    for info, extra in zip(infos[1:], extras[1:], strict=True):
        episode.append(0, 1.0, ZERO, info=info, extra=extra)
    return episode.end().episode_id


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return one == other or one != one


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """An empty store."""
    return el.create(tmp_path / "store", **SPACES)


@pytest.mark.parametrize("name", ["number", "kind", "row_start", "segment", "Observations"])
def test_user_columns_may_have_the_journals_names(store: el.EpisodeStore, name: str) -> None:
    """Names that only the journal or another table uses are free for user columns."""
    with store.writer() as writer:
        write(writer, [{}, {}], [{name: 1}, {name: 2}])
    assert store.refresh()[0].extra[name].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["metadata", "Info", "policy", "reward", "T", "_json", "_kind", "agent_id"])
def test_user_columns_with_a_meaning_are_refused(store: el.EpisodeStore, name: str) -> None:
    """A name that a steps column or a family has is refused, ignoring case, and the writer goes on."""
    with store.writer() as writer:
        with pytest.raises(el.errors.InvalidArgumentError, match=name):
            writer.begin(ZERO, extra={name: {"x": 1}})
        write(writer, [{}, {}])
    assert len(store.refresh()) == 1


def test_two_live_runs_that_disagree_about_a_kind(store: el.EpisodeStore) -> None:
    """Two writers commit a key that is new to both under different kinds; both get their values back."""
    with store.writer() as one, store.writer() as two:
        first = write(one, [{"x": 1.5}, {"x": 2.5}])
        second = write(two, [{"x": "a"}, {"x": "b"}])
        third = write(two, [{"X": 7}, {"x": 8}])
        one.seal()
    store.refresh()
    assert store[first].infos == [{"x": 1.5}, {"x": 2.5}]
    assert store[second].infos == [{"x": "a"}, {"x": "b"}]
    assert same(store[third].infos, [{"X": 7}, {"x": 8}])
