"""What the tests of recording and reading share: real environments, made-up episodes, and the raw files.

`play` is the plain loop that a recording must equal: it copies what the environment gives and knows nothing
of the library. The functions at the end read a store's folders as any other program would: from the Delta
log's own JSON and by plain Python values, with no code of the library.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeAwareObservation

import episodelake as el


@dataclass(frozen=True)
class RealEnvironment:
    """An environment, how many episodes of it to play, and after how many steps to abandon one."""

    name: str
    make: Callable[[], gymnasium.Env]
    episodes: int
    most_steps: int = 10_000


@dataclass
class Trajectory:
    """One episode as the plain loop saw it: T+1 observations and infos, T of all others."""

    seed: int
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    terminations: list[bool] = field(default_factory=list)
    truncations: list[bool] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)

    @property
    def end_reason(self) -> str:
        """Return how the episode ended, by the meaning of the two flags."""
        if self.terminations[-1]:
            return "terminated"
        return "truncated" if self.truncations[-1] else "cut"


def _gym(name: str, **settings: Any) -> Callable[[], gymnasium.Env]:
    return lambda: gymnasium.make(name, **settings)


def _breakout() -> gymnasium.Env:
    # Tests that share only the helpers of this module also run where Atari is missing.
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Breakout-v5")


# Breakout's second episode is abandoned by reset, so that there is a `cut` one among real ones.
REAL_ENVIRONMENTS = [
    RealEnvironment("cartpole", _gym("CartPole-v1"), episodes=6),
    RealEnvironment("pendulum", _gym("Pendulum-v1"), episodes=2),
    RealEnvironment("acrobot", _gym("Acrobot-v1", max_episode_steps=60), episodes=3),
    RealEnvironment("mountain-car", _gym("MountainCarContinuous-v0", max_episode_steps=50), episodes=3),
    RealEnvironment("half-cheetah", _gym("HalfCheetah-v5", max_episode_steps=50), episodes=2),
    RealEnvironment("ant", _gym("Ant-v5", max_episode_steps=50), episodes=3),
    RealEnvironment("breakout", _breakout, episodes=2, most_steps=120),
    RealEnvironment("frozen-lake", _gym("FrozenLake-v1"), episodes=12),
    RealEnvironment("taxi", _gym("Taxi-v4", max_episode_steps=40), episodes=3),
    RealEnvironment("blackjack", _gym("Blackjack-v1"), episodes=20),
    RealEnvironment(
        "dict-observation",
        lambda: TimeAwareObservation(gymnasium.make("CartPole-v1"), flatten=False),
        episodes=4,
    ),
]


def play(env: gymnasium.Env, episodes: int, most_steps: int) -> list[Trajectory]:
    """Play seeded episodes with seeded random actions and keep a copy of all that was seen."""
    env.action_space.seed(1234)
    trajectories = []
    for seed in range(100, 100 + episodes):
        observation, info = env.reset(seed=seed)
        trajectory = Trajectory(seed, [copy.deepcopy(observation)], infos=[copy.deepcopy(info)])
        for _ in range(most_steps):
            action = env.action_space.sample()
            trajectory.actions.append(copy.deepcopy(action))
            observation, reward, terminated, truncated, info = env.step(action)
            trajectory.observations.append(copy.deepcopy(observation))
            trajectory.rewards.append(reward)
            trajectory.terminations.append(terminated)
            trajectory.truncations.append(truncated)
            trajectory.infos.append(copy.deepcopy(info))
            if terminated or truncated:
                break
        trajectories.append(trajectory)
    return trajectories


def equal_values(left: Any, right: Any) -> bool:
    """Tell whether two info values are the same in kind, dtype, shape and value; NaN is NaN.

    The order of keys is free. Numpy scalars count as the Python value that they hold, and tuples as lists,
    since infos come back so.
    """
    left, right = (value.item() if isinstance(value, np.generic) else value for value in (left, right))
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        kind = left.dtype == right.dtype and left.shape == right.shape
        return kind and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal_values(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal_values, left, right))
    if type(left) is not type(right):
        return False
    return left == right or (isinstance(left, float) and left != left and right != right)


NUMBERED_SPACES: dict[str, spaces.Space] = {
    "observation_space": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "action_space": spaces.Discrete(10),
}


def write_numbered(
    writer: el.EpisodeWriter, value: int, length: int, infos: bool = True
) -> el.types.EpisodeRow:
    """Write a made-up episode whose every value follows from `value` and t.

    Observation t is [value, t], action t is (value + t) % 10, reward t is value + t/8. Even values end
    terminated, odd ones truncated.
    """
    episode = writer.begin(
        np.array([value, 0], np.float32),
        {"clock": 0} if infos else {},
        seed=1000 + value,
        metadata={"value": value, "group": "odd" if value % 2 else "even"},
    )
    for t in range(length):
        last = t == length - 1
        episode.append(
            (value + t) % 10,
            value + t / 8,
            np.array([value, t + 1], np.float32),
            terminated=last and value % 2 == 0,
            truncated=last and value % 2 == 1,
            info={"clock": t + 1} if infos else {},
        )
    return episode.end()


def numbered_store(path: Path, lengths: list[int], seal_every: int | None = None) -> el.EpisodeStore:
    """Make a store of numbered episodes, the value of each being its position; all sealed, and refreshed."""
    store = el.create(path, **NUMBERED_SPACES)
    with store.writer(run="numbered") as writer:
        for value, length in enumerate(lengths):
            write_numbered(writer, value, length)
            if seal_every and (value + 1) % seal_every == 0:
                writer.seal()
    return store.refresh()


def values_of(episodes: Any) -> list[int]:
    """Return the values of numbered episodes, read from their observations."""
    return [int(episode.observations[0, 0]) for episode in episodes]


def numbered_return(value: int, length: int) -> float:
    """Return the exact return of a numbered episode."""
    return float(sum(value + t / 8 for t in range(length)))


def delta_files(table: Path) -> list[str]:
    """Return the paths of the Parquet files that a Delta table holds now, by replaying its log."""
    live: dict[str, None] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text("utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                live[unquote(action["add"]["path"])] = None
            elif "remove" in action:
                live.pop(unquote(action["remove"]["path"]), None)
    return [str(table / name) for name in live]


def raw_columns(space: spaces.Space, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Give the columns of one value of a space, as plain Python values, by the rules of the format alone."""
    match space:
        case spaces.Dict():
            for key, child in space.spaces.items():
                yield from raw_columns(child, f"{name}.{key}", value[key])
        case spaces.Tuple():
            for index, child in enumerate(space.spaces):
                yield from raw_columns(child, f"{name}.{index}", value[index])
        case spaces.Box() if space.dtype == np.uint8 and len(space.shape) >= 2:
            yield name, np.ascontiguousarray(value).tobytes()
        case spaces.Box():
            yield name, np.asarray(value).reshape(-1).tolist() if space.shape else np.asarray(value).item()
        case spaces.Discrete():
            yield name, int(value)
        case _:
            raise NotImplementedError(f"no rule written here for {space}")
