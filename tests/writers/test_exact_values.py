"""Values that are nearly what a column takes: recorded exactly or refused, in every recorder and writer."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import episodelake as el
from pools import Pool

ODD = 2**53 + 1


class Outcome(str, enum.Enum):  # noqa: UP042
    """Text with a name."""

    WIN = "win"


class Level(int, enum.Enum):
    """A number with a name."""

    ONE = 1


class Share(float, enum.Enum):
    """A fraction with a name."""

    HALF = 0.5


class Key(bytes):
    """Bytes of a class of their own."""


class Loud(str):
    """Text that prints as something else."""

    def __str__(self) -> str:
        return "LOUD"


class Odd(int):
    """A number that converts to another one."""

    def __int__(self) -> int:
        return 99


Pair = namedtuple("Pair", "left right")
NAMED: dict[str, tuple[Any, Any]] = {
    "text": (Outcome.WIN, "win"),
    "number": (Level.ONE, 1),
    "fraction": (Share.HALF, 0.5),
    "bytes": (Key(b"k"), b"k"),
    "loud": (Loud("quiet"), "quiet"),
    "odd": (Odd(5), 5),
    "strenum": (enum.StrEnum("Side", {"LEFT": "left"}).LEFT, "left"),  # type: ignore[attr-defined]
    "flags": (enum.IntFlag("Bits", {"A": 1, "B": 2})(3), 3),
    "numpy_text": (np.str_("t"), "t"),
    "numpy_bytes": (np.bytes_(b"b"), b"b"),
    "complex": (np.complex64(1 + 2j), 1 + 2j),
    "half": (np.float16(0.5), 0.5),
    "pair": (Pair(1, Outcome.WIN), (1, "win")),
    "ordered": (OrderedDict(a=Outcome.WIN, b=[Level.ONE]), {"a": "win", "b": [1]}),
    "set": ({Outcome.WIN}, frozenset({"win"})),
}
GIVEN = {key: given for key, (given, _) in NAMED.items()}
WANTED = {key: wanted for key, (_, wanted) in NAMED.items()}


class Giving(gym.Env):
    """Gives one reward, one observation and one info, for ever."""

    action_space = spaces.Discrete(2)

    def __init__(self, reward: Any = 1.0, observation: Any = 0.0, info: dict[str, Any] | None = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (), np.float64)
        self.reward, self.observation, self.info = reward, observation, info or {}
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin."""
        return np.zeros(()), dict(self.info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Give."""
        self.t += 1
        return self.observation, self.reward, False, False, dict(self.info)


def plain(value: Any) -> Any:
    """A value as Python has it."""
    return value.item() if isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0 else value


@pytest.mark.parametrize("length", [3, 3000])
def test_rewards_of_an_episode_may_be_arrays_of_one_item(tmp_path: Path, length: int) -> None:
    """A list of them, and an array of shape (T, 1); what makes no array of numbers is told."""
    store = el.create(tmp_path / "store", Giving())
    steps = {
        "observations": [0.0] * (length + 1),
        "actions": [0] * length,
        "terminations": True,
        "truncations": False,
    }
    with store.writer() as writer:
        for rewards in ([np.array([2.0])] * length, np.full((length, 1), 2, np.int64)):
            writer.write_episode(rewards=rewards, **steps)
        for wrong in ([np.array([1.0]), *[2.0] * (length - 1)], [[2**53 + 1]] * length, np.ones((length, 2))):
            with pytest.raises(el.errors.SpaceMismatchError):
                writer.write_episode(rewards=wrong, **steps)
        with pytest.raises(el.errors.SpaceMismatchError, match="observation"):
            odd = {**steps, "observations": [0.5, ODD, *[0.5] * (length - 1)]}
            writer.write_episode(rewards=[2.0] * length, **odd)
    assert [episode.rewards.tolist() for episode in store.refresh()] == [[2.0] * length] * 2


def first_values(policy: dict[str, Any]) -> dict[str, Any]:
    """What the policy said first, with nested keys as they were."""
    return {key: first_values(part) if isinstance(part, dict) else part[0] for key, part in policy.items()}


def test_values_of_named_classes_are_stored_as_what_they_are(tmp_path: Path) -> None:
    """Enums and subclasses of plain types come back as their value in every column family, SQL included."""
    store = el.create(tmp_path / "store", Giving())
    env = Giving(info=GIVEN)
    with store.record(
        env, metadata=GIVEN, step_callback=lambda step: GIVEN, episode_callback=lambda episode: GIVEN
    ) as recorder:
        recorder.reset(options=GIVEN)
        recorder.log(**GIVEN)
        recorder.step(0)
    el.collect(Giving(), lambda observation, info, state: (0, GIVEN), store, steps=1)
    envs = SyncVectorEnv([Giving] * 2)
    with store.record(envs) as recorder:
        recorder.reset()
        recorder.log(**{key: [given] * 2 for key, given in GIVEN.items()})
        recorder.step(np.zeros(2, np.int64))
    first, *others = store.refresh()
    assert first.metadata == WANTED
    assert first.infos == [WANTED] * 2
    for episode in (first, *others):
        assert plain(first_values(episode.policy)) == WANTED
    for column in ("text", "loud", "strenum"):
        wanted = WANTED[column]
        found = store.sql(f"select count(*) as n from episodes where \"metadata.{column}\" = '{wanted}'")
        assert found.fetchall()[0][0] == 1
        found = store.sql(f"select count(*) as n from steps where \"policy.{column}\" = '{wanted}'")
        assert found.fetchall()[0][0] == 4


def test_extras_of_different_shapes(tmp_path: Path) -> None:
    """A list has one value for each environment, of any shapes; a ragged tuple is refused."""
    store = el.create(tmp_path / "store", Giving())
    lists = [np.ones((2, 3)), np.zeros(4)]
    el.collect(
        SyncVectorEnv([Giving] * 2), lambda o, i, s: (np.zeros(2, int), {"own": lists}), store, steps=4
    )
    for episode in store.refresh():
        for value in episode.policy["own"][: episode.length]:
            assert np.array_equal(value, lists[episode.env_index])
    before = len(store), store.runs.collect().height
    pair = (np.ones((2, 3)), 3)
    with pytest.raises(el.errors.SpaceMismatchError, match="pair"):
        el.collect(
            SyncVectorEnv([Giving] * 2), lambda o, i, s: (np.zeros(2, int), {"pair": pair}), store, steps=4
        )
    assert (len(store.refresh()), store.runs.collect().height) == before
    pool = Pool([Giving() for _ in range(2)], 2)
    with store.record(pool) as recorder:
        recorder.async_reset()
        ids = recorder.recv()[-1]["env_id"]
        recorder.log(own=[lists[env] for env in ids.tolist()])
        recorder.step(np.zeros(2, np.int64), ids)
        run = recorder.run_id
    for episode in store.refresh():
        if episode.run_id == run:
            assert np.array_equal(episode.policy["own"][0], lists[episode.env_index])
    assert store.verify().faults == ()
