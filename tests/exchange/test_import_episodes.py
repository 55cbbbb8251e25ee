"""Episodes of an import that do not fit, or before a place that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import episodelake as el
from episodelake.importing.importer import import_episodes
from episodelake.writers.importing.formats import ForeignDataset, ForeignEpisode, Part

SPACE = gymnasium.spaces.Dict(
    {"arm": gymnasium.spaces.Box(-9, 9, (2, 2), np.float32), "on": gymnasium.spaces.MultiBinary(3)}
)
ACTIONS = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(5), gymnasium.spaces.Box(0, 1, (2,))))


def episode(length: int, number: int, **others: Any) -> dict[str, Any]:
    """Return arguments of `write_episode` for an episode with seeded values."""
    random = np.random.default_rng(number)
    rows = length + (others.get("last_observation") != "missing")
    return {
        "observations": {
            "arm": random.random((rows, 2, 2), np.float32),
            "on": random.integers(0, 2, (rows, 3), np.int8),
        },
        "actions": (random.integers(0, 5, length), random.random((length, 2), np.float32)),
        "rewards": random.normal(size=length),
        "terminations": number % 3 == 0,
        "truncations": number % 3 == 1,
        **others,
    }


EPISODES = [
    episode(2, 0, infos=[{"x": 1}, {}, {"x": 3, "y": "z"}], seed=2**70, options={"hard": True}),
    episode(90, 1, policy={"value": np.arange(90.0)}, metadata={"task": "push", "deep": {"er": [1, 2]}}),
    episode(1, 2, last_observation="missing", extra={"mark": np.array([7])}),
    episode(70, 3, last_observation="missing", seed=4),
    episode(5, 4, extra={"mark": np.arange(6)}, infos={"x": np.arange(6)}),
]


class _Dataset(ForeignDataset):
    identity = "seeded"
    observation_space, action_space = SPACE, ACTIONS

    def __init__(self, episodes: list[dict[str, Any]]) -> None:
        super().__init__()
        self._episodes = episodes

    def parts(self) -> Iterator[Part]:
        for number, given in enumerate(self._episodes):
            yield Part((str(number),), partial(self._load, given))

    def _load(self, given: dict[str, Any]) -> ForeignEpisode:
        self.losses.add("a mark")
        return ForeignEpisode(**given)


def imported(path: Path, episodes: list[dict[str, Any]], on_error: Any = "raise") -> Any:
    """Import episodes into a new store and return the counts."""
    store = el.create(path, observation_space=SPACE, action_space=ACTIONS)
    with store.writer() as writer:
        dataset = _Dataset(episodes)
        done = import_episodes(dataset, writer, {}, {}, on_error=on_error, progress=lambda done, total: None)
    assert dataset.losses == {"a mark": len(episodes) - len(done.skipped)}
    return done


@pytest.mark.parametrize("wrong", ["shape", "dtype"])
def test_an_episode_that_does_not_fit_is_named(tmp_path: Path, wrong: str) -> None:
    """The error names it and those before it are kept; skipping leaves out it alone."""
    arm = np.zeros((4, 2, 3), np.float32) if wrong == "shape" else np.zeros((4, 2, 2))
    odd = episode(3, 9)
    odd["observations"]["arm"] = arm
    episodes = [*EPISODES[:2], odd, *EPISODES[3:]]
    with pytest.raises(el.errors.SpaceMismatchError, match=r"arm") as caught:
        imported(tmp_path / "raised", episodes)
    assert caught.value.__notes__ == ["Episode 2 of The source."]
    assert len(el.open(tmp_path / "raised")) == 2
    done = imported(tmp_path / "skipped", episodes, "skip")
    assert [key for key, _ in done.skipped] == ["2"]
    assert [each.length for each in el.open(tmp_path / "skipped")] == [2, 90, 70, 5]


def test_episodes_before_a_damaged_place_are_written(tmp_path: Path) -> None:
    """Where a source cannot be read on, the episodes before that place are there."""

    class Torn(_Dataset):
        def parts(self) -> Iterator[Part]:
            yield from super().parts()
            raise OSError("torn")

    store = el.create(tmp_path / "store", observation_space=SPACE, action_space=ACTIONS)
    with store.writer() as writer, pytest.raises(el.errors.DatasetError, match="torn"):
        dataset = Torn(EPISODES)
        import_episodes(dataset, writer, {}, {}, on_error="raise", progress=lambda done, total: None)
    assert len(store.refresh()) == len(EPISODES)
