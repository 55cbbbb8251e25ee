"""An environment that its seed decides entirely, and plain loops that say what a recording must hold.

Each observation holds the action that led to it, so a dropped action shows. Lengths, ends and infos are
drawn from the seed: keys come and go, some are nested, and each has a dtype of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import episodelake as el
from episodelake.store.common.compatibility import AutoresetMode

MODES = tuple(AutoresetMode)


class Scripted(gymnasium.Env):
    """Episodes of 1 to `longest` steps; `reuse` hands out one buffer, `fails_at` is the call that raises."""

    observation_space = Dict(place=Box(-1e6, 1e6, (3,), np.float32), mark=Box(0, 255, (2, 2), np.uint8))
    action_space = Discrete(7)

    def __init__(self, longest: int = 5, reuse: bool = False, fails_at: int = 0) -> None:
        self.longest, self.reuse, self.fails_at = longest, reuse, fails_at
        self.calls = 0
        self.place = np.zeros(3, np.float32)
        self.mark = np.zeros((2, 2), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Draw how long the episode is."""
        super().reset(seed=seed)
        self.t = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        return self._observation(0), self._info()

    def step(self, action: Any):
        """One step nearer to the end."""
        self.calls += 1
        self.t += 1
        if self.calls == self.fails_at:
            raise ArithmeticError("the motor stopped")
        last = self.t >= self.length
        kind = int(self.np_random.integers(3))
        reward = float(self.np_random.normal())
        return self._observation(int(action)), reward, last and kind != 1, last and kind != 0, self._info()

    def _observation(self, action: int) -> dict[str, np.ndarray]:
        self.place[:] = (action, self.t, self.np_random.random())
        self.mark[:] = self.np_random.integers(256, size=(2, 2))
        if self.reuse:
            return {"place": self.place, "mark": self.mark}
        return {"place": self.place.copy(), "mark": self.mark.copy()}

    def _info(self) -> dict[str, Any]:
        number = self.np_random.random()
        everything = {
            "count": int(self.t),
            "lucky": bool(number > 0.5),
            "speed": float(number),
            "small": np.full(2, number, np.float16),
            "name": f"step {self.t}",
            "whole": np.int16(self.t),
            "_private": int(self.t) + 1,
            "deep": {"x": float(number), "deeper": {"mask": np.array([self.t, 1], np.int8)}},
        }
        told = self.np_random.random(len(everything)) < 0.5
        return {key: value for (key, value), is_told in zip(everything.items(), told, strict=True) if is_told}


@dataclass
class Played:
    """One episode as a plain loop saw it; `ended_at` is the call of `step` that ended it, or None."""

    observations: list[Any] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    infos: list[Mapping[str, Any]] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    seed: int | None = None
    ended_at: int | None = None

    @property
    def end_reason(self) -> str:
        """What a store should call its end."""
        return "terminated" if self.terminated else "truncated" if self.truncated else "cut"


def rollout(
    env: gymnasium.Env, act: Callable[[int, Any], int], calls: int, *, seed: int | None, waits: bool
) -> list[Played]:
    """Play one environment for so many calls of `step`; with `waits` the call after an end only resets."""
    episodes: list[Played] = []

    def begin(with_seed: int | None) -> Any:
        seen, info = env.reset(seed=with_seed)
        episodes.append(Played([copied(seen)], infos=[info], seed=with_seed))
        return seen

    observation = begin(seed)
    over = False
    for call in range(calls):
        now = episodes[-1]
        if over and waits:
            observation, over = begin(None), False
            continue
        action = act(call, observation)
        observation, reward, now.terminated, now.truncated, info = env.step(action)
        now.observations.append(copied(observation))
        now.actions.append(action)
        now.rewards.append(float(reward))
        now.infos.append(info)
        over = now.terminated or now.truncated
        if over:
            now.ended_at = call
            if not waits:
                observation = begin(None)
    return [episode for episode in episodes if episode.actions]


def copied(value: Any) -> Any:
    """A value with arrays of its own."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [copied(item) for item in value]
    return np.array(value)


def assert_recorded(stored: Sequence[el.Episode], played: Sequence[Played]) -> None:
    """The stored episodes are the played ones, in this order, to the last bit and dtype."""
    assert [episode.length for episode in stored] == [len(episode.actions) for episode in played]
    for mine, plain in zip(stored, played, strict=True):
        for key, space in Scripted.observation_space.items():
            column = mine.observations[key]
            assert column.dtype == space.dtype
            assert np.array_equal(column, np.stack([seen[key] for seen in plain.observations]))
        assert mine.actions.tolist() == plain.actions
        assert mine.rewards.tolist() == plain.rewards
        assert mine.episode_return == sum(plain.rewards) or np.isclose(
            mine.episode_return, sum(plain.rewards)
        )
        quiet = [False] * (len(plain.actions) - 1)
        assert mine.terminations.tolist() == [*quiet, plain.terminated]
        assert mine.truncations.tolist() == [*quiet, plain.truncated]
        assert mine.end_reason == plain.end_reason
        assert len(mine.infos) == len(plain.infos)
        for ours, theirs in zip(mine.infos, plain.infos, strict=True):
            assert_same_value(ours, theirs)


def assert_same_value(ours: Any, theirs: Any) -> None:
    """Two infos are equal: keys, nesting, array dtypes, and the Python types of numbers."""
    if isinstance(theirs, Mapping):
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            assert_same_value(ours[key], value)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    else:
        plain = theirs.item() if isinstance(theirs, np.generic) else theirs
        assert type(ours) is type(plain)
        assert ours == plain


def by_place(observation: Any) -> np.ndarray:
    """A rule for a single environment or a batch: what to do follows from what is seen."""
    return (np.asarray(observation["place"])[..., 2] * 1000).astype(np.int64) % 7


def alone_by_place(index: int, seed: int, mode: AutoresetMode, calls: int, longest: int) -> list[Played]:
    """What the environment of this number does under the rule, alone."""
    waits = mode is AutoresetMode.NEXT_STEP
    return rollout(
        Scripted(longest), lambda _, seen: int(by_place(seen)), calls, seed=seed + index, waits=waits
    )


def assert_prefix(stored: list[el.Episode], alone: list[Played]) -> None:
    """The stored episodes are the first of those played; the last one may be a shorter part, a cut."""
    whole = stored if not stored or stored[-1].end_reason != "cut" else stored[:-1]
    assert_recorded(whole, alone[: len(whole)])
    for part in stored[len(whole) :]:
        theirs = alone[len(whole)]
        assert part.length <= len(theirs.actions)
        assert part.actions.tolist() == theirs.actions[: part.length]
        assert part.rewards.tolist() == theirs.rewards[: part.length]
        for ours, their in zip(part.infos, theirs.infos[: part.length + 1], strict=True):
            assert_same_value(ours, their)


def assert_table_played(
    stored: list[list[el.Episode]], table: np.ndarray, mode: AutoresetMode, seed: int, longest: int
) -> None:
    """Each environment's episodes are those of playing it alone, from its own seed."""
    for index, episodes in enumerate(stored):
        column = table[:, index]
        alone = rollout(
            Scripted(longest),
            lambda call, _, column=column: int(column[call]),
            len(table),
            seed=seed + index,
            waits=mode is AutoresetMode.NEXT_STEP,
        )
        assert_recorded(episodes, alone)
        assert [episode.seed for episode in episodes] == [seed + index] + [None] * (len(alone) - 1)


def tables(seed: int, calls: int, envs: int) -> np.ndarray:
    """Actions by call and environment."""
    return np.random.default_rng(seed).integers(7, size=(calls, envs))
