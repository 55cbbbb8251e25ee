"""Episodes as flat arrays: the data that both sides of a benchmark write and read.

The main process makes the arrays once and saves them as `.npy` files; a peer process loads the same files.
This module is imported on both sides, so it needs only numpy and gymnasium.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium as gym
import numpy as np

ARRAYS = ("lengths", "observations", "actions", "rewards", "terminated", "truncated")


@dataclass(frozen=True)
class Trajectory:
    """One episode of T steps: observations (T+1, ...), actions (T, ...), rewards (T,), flags (T,)."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


@dataclass(frozen=True)
class Trajectories:
    """Many episodes back to back.

    `lengths` has T of each episode. `observations` has the T+1 observations of every episode one after the
    other; `actions` and `rewards` have T rows an episode; `terminated` and `truncated` one flag an episode.
    """

    kind: str
    lengths: np.ndarray
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @property
    def steps(self) -> int:
        """Transitions in all episodes together."""
        return int(self.lengths.sum())

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Trajectory]:
        ends = np.cumsum(self.lengths)
        for number, (end, length) in enumerate(zip(ends, self.lengths, strict=True)):
            start = end - length
            yield Trajectory(
                observations=self.observations[start + number : end + number + 1],
                actions=self.actions[start:end],
                rewards=self.rewards[start:end],
                terminations=_last_flag(length, self.terminated[number]),
                truncations=_last_flag(length, self.truncated[number]),
            )

    def save(self, folder: Path) -> Path:
        """Write one `.npy` file per array into `folder`, which is made if it does not exist."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        (folder / "kind").write_text(self.kind)
        return folder


def load(folder: Path) -> Trajectories:
    """Read what `Trajectories.save` wrote. The arrays are owned by the caller."""
    arrays = {name: np.load(folder / f"{name}.npy") for name in ARRAYS}
    return Trajectories(kind=(folder / "kind").read_text(), **arrays)


def spaces(kind: str) -> tuple[gym.Space, gym.Space]:
    """Return the observation and action space of a kind of data: `control`, `frames` or `pictures`."""
    if kind == "control":
        observation = gym.spaces.Box(-np.inf, np.inf, (17,), np.float64)
        return observation, gym.spaces.Box(-1.0, 1.0, (6,), np.float32)
    if kind == "frames":
        return gym.spaces.Box(0, 255, (210, 160, 3), np.uint8), gym.spaces.Discrete(4)
    if kind == "pictures":
        return gym.spaces.Box(0, 255, (84, 84, 3), np.uint8), gym.spaces.Box(-1.0, 1.0, (6,), np.float32)
    raise ValueError(f"unknown kind of data: {kind!r}")


def control(episodes: int, length: int, seed: int = 0) -> Trajectories:
    """Make float control data: each value drifts from step to step like a joint, with noise in every bit.

    Observations are 17 float64 and actions 6 float32, as in HalfCheetah. The noise fills the mantissas, so
    the data does not compress better than that of a simulator.
    """
    generator = np.random.default_rng(seed)
    observations = np.empty((episodes, length + 1, 17))
    observations[:, 0] = generator.standard_normal((episodes, 17))
    for t in range(length):
        noise = generator.standard_normal((episodes, 17))
        observations[:, t + 1] = 0.95 * observations[:, t] + 0.3 * noise
    actions = generator.uniform(-1.0, 1.0, (episodes * length, 6)).astype(np.float32)
    rewards = generator.standard_normal((episodes, length)) + generator.standard_normal((episodes, 1))
    return Trajectories(
        kind="control",
        lengths=np.full(episodes, length),
        observations=observations.reshape(-1, 17),
        actions=actions,
        rewards=rewards.reshape(-1),
        terminated=np.zeros(episodes, bool),
        truncated=np.ones(episodes, bool),
    )


def pictures(episodes: int, length: int) -> Trajectories:
    """Make frames of 84x84x3 bytes, a square that moves over a noisy background; actions as in `control`."""
    data = control(episodes, length)
    generator = np.random.default_rng(0)
    background = (
        generator.integers(0, 40, (84, 84, 3), np.uint8) + np.arange(84, dtype=np.uint8)[:, None, None]
    )
    frames = np.tile(background, (len(data.observations), 1, 1, 1))
    for frame, place in zip(frames, generator.integers(0, 72, (len(frames), 2)), strict=True):
        frame[place[0] : place[0] + 12, place[1] : place[1] + 12] = 230
    return replace(data, kind="pictures", observations=frames)


def play(env: gym.Env, kind: str, steps: int, seed: int = 0) -> Trajectories:
    """Play whole episodes with random seeded actions until at least `steps` steps were taken."""
    env.action_space.seed(seed)
    observations: list[np.ndarray] = []
    actions: list[np.ndarray] = []
    rewards: list[float] = []
    lengths: list[int] = []
    flags: list[tuple[bool, bool]] = []
    while len(actions) < steps:
        observation, _ = env.reset(seed=seed + len(lengths))
        observations.append(observation)
        start, terminated, truncated = len(actions), False, False
        while not (terminated or truncated):
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(float(reward))
        lengths.append(len(actions) - start)
        flags.append((terminated, truncated))
    terminated_flags, truncated_flags = np.array(flags, bool).T
    return Trajectories(
        kind=kind,
        lengths=np.array(lengths),
        observations=np.stack(observations),
        actions=np.stack(actions),
        rewards=np.array(rewards),
        terminated=terminated_flags,
        truncated=truncated_flags,
    )


def _last_flag(length: int, flag: bool) -> np.ndarray:
    flags = np.zeros(length, bool)
    flags[-1] = flag
    return flags
