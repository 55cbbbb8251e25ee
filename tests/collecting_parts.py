"""Environments and policies for the tests of collection, and the plain loops that they are compared with.

Everything stands at the top level, so that worker processes can import it.
"""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import episodelake as el
from nasty_environments import Rollout, advance
from waiting import journals, wait_for_journal

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)


class VaryingEnv(gym.Env):
    """Observes (t, episode, noise); an episode's length is drawn from its own generator, 1 to `longest`."""

    def __init__(self, longest: int = 7, action_space: spaces.Space | None = None) -> None:
        self.observation_space = OBSERVATIONS
        self.action_space = copy.deepcopy(action_space) or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.longest = longest
        self.episode = -1
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Draw a length."""
        super().reset(seed=seed)
        self.t = 0
        self.episode += 1
        self.length = int(self.np_random.integers(1, self.longest + 1))
        return self._look(), {"left": self.length}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Count one further; long episodes are truncated, short ones terminate."""
        self.t += 1
        done = self.t == self.length
        long = self.length > self.longest // 2
        reward = float(self.np_random.normal())
        return self._look(), reward, done and not long, done and long, {"left": self.length - self.t}

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1

    def _look(self) -> np.ndarray:
        return np.array([self.t, self.episode, self.np_random.normal()], np.float32)


class LevelEnv(VaryingEnv):
    """A `VaryingEnv` whose observations depend on nothing but the seed and `options["level"]`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Note the level."""
        self.level = (options or {}).get("level", -1)
        observation, info = super().reset(seed=seed)
        return observation, {**info, "deep": dict(info)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Nest the info."""
        *result, info = super().step(action)
        return *result, {**info, "deep": dict(info)}  # type: ignore[return-value]

    def _look(self) -> np.ndarray:
        return np.array([self.t, self.level, self.np_random.normal()], np.float32)


class CoinEnv(gym.Env):
    """Its episodes are 2 or 20 steps long, with equal chance, and each step is worth 1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 20, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Toss the coin."""
        super().reset(seed=seed)
        self.t = 0
        self.length = 2 if self.np_random.random() < 0.5 else 20
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Count one further."""
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == self.length, False, {}


def make_levels() -> gym.vector.VectorEnv:
    """Make a vector environment of two `LevelEnv`s."""
    return gym.vector.SyncVectorEnv([LevelEnv, LevelEnv])


def five_hundred(number: int) -> int:
    """A seed for an episode."""
    return 500 + number


def make_varying() -> gym.Env:
    """Make a `VaryingEnv`."""
    return VaryingEnv()


def make_varying_pair() -> gym.vector.VectorEnv:
    """Make a vector environment of two."""
    return gym.vector.SyncVectorEnv([VaryingEnv, VaryingEnv])


def tilting(observation: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, dict[str, Any]]:
    """A policy without state for one `VaryingEnv`, with extras of several kinds."""
    action = np.array([np.sin(observation[2]), 0.5], np.float32)
    extras = {
        "value": float(observation[2]) / 2,
        "distribution": {"mean": action[:1] * 2, "scale": np.float64(0.1)},
        "left": info["left"],
    }
    return action, extras


def counting(observation: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, dict[str, Any], Any]:
    """A recurrent policy for one environment: its state says how often it was asked in this episode."""
    state = {"asked": np.zeros(1), "sum": (np.zeros(3),)} if state is None else state
    after = {"asked": state["asked"] + 1, "sum": (state["sum"][0] + observation,)}
    return np.zeros(2, np.float32), {"asked": float(state["asked"][0])}, after


def tilting_many(observation: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, dict[str, Any], Any]:
    """A recurrent policy for a vector environment; what it does for each depends on that one alone."""
    count = len(observation)
    if state is None:
        state = {"asked": np.zeros((count, 1), np.int64), "sum": (np.zeros((count, 3)),)}
    actions = np.stack([np.sin(observation[:, 2]), np.full(count, 0.5, np.float32)], axis=1)
    extras = {
        "asked": state["asked"][:, 0],
        "summed": state["sum"][0],
        "distribution": {"mean": 2 * actions[:, :1]},
        "temperature": 0.5,
    }
    return actions, extras, {"asked": state["asked"] + 1, "sum": (state["sum"][0] + observation,)}


def tilt(observation: Any, info: Any) -> np.ndarray:
    """What `tilting_many` does for one of them."""
    return np.array([np.sin(observation[2]), 0.5], np.float32)


def plain_steps(
    env: gym.Env, policy: Callable[[Any, Any], Any], steps: int, seed: int | None = None
) -> list[Rollout]:
    """What a plain loop sees in so many steps, with a reset wherever an episode ended."""
    rollouts: list[Rollout] = []
    while steps:
        observation, info = env.reset(seed=None if rollouts else seed)
        rollout = Rollout([copy.deepcopy(observation)], [copy.deepcopy(info)])
        rollouts.append(rollout)
        while steps:
            advance(env, rollout, policy(rollout.observations[-1], rollout.infos[-1]))
            steps -= 1
            if rollout.terminations[-1] or rollout.truncations[-1]:
                break
    return rollouts


@dataclass
class Tensor:
    """Behaves like a tensor of PyTorch, as far as a collector may know, and is no numpy array."""

    data: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.data.shape

    def detach(self) -> Tensor:
        """Itself."""
        return self

    def cpu(self) -> Tensor:
        """Itself."""
        return self

    def numpy(self) -> np.ndarray:
        """The same memory."""
        return self.data

    def clone(self) -> Tensor:
        """A copy."""
        return Tensor(self.data.copy())

    def __getitem__(self, rows: Any) -> Tensor:
        return Tensor(self.data[rows])

    def __setitem__(self, rows: Any, value: Any) -> None:
        self.data[rows] = value.data if isinstance(value, Tensor) else value


class Tracked(np.ndarray):
    """Behaves like a tensor of PyTorch with a graph, as far as a collector may know."""

    requires_grad = True

    def detach(self) -> np.ndarray:
        """The same numbers without it."""
        return np.asarray(self)


def forgetful(observation: Any, info: Mapping[str, Any], state: Any) -> Any:
    """A recurrent policy that refuses a state with gradients, and returns one."""
    if state is not None and isinstance(state["hidden"][0], Tracked):
        raise AssertionError("the state has gradients")
    hidden = np.zeros(1) if state is None else state["hidden"][0]
    return np.zeros(2, np.float32), None, {"hidden": [(hidden + 1).view(Tracked)]}


def tracked_many(observation: Any, info: Mapping[str, Any], state: Any) -> Any:
    """`tilting_many`, which refuses a state with gradients, and returns one."""
    if state is not None and isinstance(state["sum"][0], Tracked):
        raise AssertionError("the state has gradients")
    action, extras, state = tilting_many(observation, info, state)
    return action, extras, {**state, "sum": (state["sum"][0].view(Tracked),)}


# What happens in worker processes


@dataclass
class Doomed:
    """A policy that ends its process in one of several ways after so many steps; each way is taken once.

    Attributes:
        folder: where the ways that are taken are noted.
        store: the path of the store that is recorded into.
        ways: of "kill", "raise" and "exit".
        after: at which step.
    """

    folder: Path
    store: Path
    ways: tuple[str, ...]
    after: int
    asked: int = 0
    way: str | None = None

    def __call__(self, observation: Any, info: Mapping[str, Any], state: Any) -> Any:
        """Act, or die."""
        if self.asked == 0:
            self.way = self._claimed()
        self.asked += 1
        if self.asked == self.after and self.way is not None:
            self._die()
        return np.zeros(2, np.float32), {"asked": self.asked}

    def _claimed(self) -> str | None:
        for way in self.ways:
            try:
                (self.folder / way).touch(exist_ok=False)
                return way
            except FileExistsError:
                continue
        return None

    def _die(self) -> None:
        # What was recorded so far has to reach the journal first.
        wait_for_journal(own_journal(self.store), self.after - 1)
        if self.way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.way == "exit":
            os._exit(7)
        raise ValueError("the policy has lost its way")


def own_journal(store: Path) -> Path:
    """The folder of the journal that this process writes: it holds the lock beside it open."""
    opened = {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}
    (own,) = (path for path in journals(store) if os.path.realpath(f"{path}.lock") in opened)
    return own


def slowly(observation: Any, info: Mapping[str, Any], state: Any) -> Any:
    """A policy that takes a hundredth of a second."""
    time.sleep(0.01)
    return np.zeros(2, np.float32)


def stuck(observation: Any, info: Mapping[str, Any], state: Any) -> Any:
    """A policy that does not return any more after 30 steps."""
    time.sleep(1000 if state == 30 else 0.01)
    return np.zeros(2, np.float32), None, (state or 0) + 1


def interrupted(*arguments: Any, **options: Any) -> el.types.CollectStats:
    """Call `collect`, which Ctrl-C ends, and return the statistics that the exception has."""
    try:
        el.collect(*arguments, **options)
    except KeyboardInterrupt as interrupt:
        assert type(interrupt) is KeyboardInterrupt
        return interrupt.stats  # type: ignore[attr-defined]
    raise AssertionError("Ctrl-C did not end the call")
