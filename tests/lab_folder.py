"""A lab's folder of thirty datasets: seeded rollouts of three environments in the formats of eight tools."""

from __future__ import annotations

import csv
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DATA = Path(__file__).parent / "data" / "exchange"


@dataclass(frozen=True)
class Rollout:
    """One episode: T+1 observations, T actions and rewards, and how it ended."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool
    truncated: bool

    @property
    def end(self) -> str:
        """Its end reason."""
        return "terminated" if self.terminated else "truncated" if self.truncated else "cut"


Policy = Callable[[gymnasium.Env, np.ndarray], Any]


def at_random(env: gymnasium.Env, observation: np.ndarray) -> Any:
    """Draw an action."""
    return env.action_space.sample()


def by_rule(env: gymnasium.Env, observation: np.ndarray) -> Any:
    """Push with the velocity; works a little in all three environments."""
    if env.spec is not None and env.spec.id == "Pendulum-v1":
        return np.array([-2 * np.sign(observation[2])], np.float32)
    velocity = observation[3] + observation[2] if len(observation) == 4 else observation[1]
    return int(velocity > 0) if len(observation) == 4 else np.array([np.sign(velocity)], np.float32)


POLICIES: dict[str, Policy] = {"random": at_random, "rule": by_rule}
LIMITS = {"CartPole-v1": 30, "Pendulum-v1": 12, "MountainCarContinuous-v0": 15}


def made(env_id: str) -> gymnasium.Env:
    """An environment with short episodes."""
    return gymnasium.make(env_id, max_episode_steps=LIMITS[env_id])


def play(env_id: str, policy: str, seeds: Sequence[int], wrap: Any = None) -> list[Rollout]:
    """Play episodes in a real environment, and note what it returns.

    Args:
        env_id: the environment.
        policy: of `POLICIES`.
        seeds: of the episodes.
        wrap: a function that records the environment, such as Minari's collector.
    """
    env = made(env_id)
    env.action_space.seed(seeds[0])
    playing = env if wrap is None else wrap(env)
    rollouts = []
    for seed in seeds:
        observations, actions, rewards = [playing.reset(seed=seed)[0]], [], []
        ended = (False, False)
        while not any(ended):
            actions.append(POLICIES[policy](env, observations[-1]))
            observation, reward, *ended, _ = playing.step(actions[-1])
            observations.append(observation)
            rewards.append(float(reward))
        arrays = map(np.array, (observations, actions, rewards))
        rollouts.append(Rollout(*arrays, terminated=bool(ended[0]), truncated=bool(ended[1])))
    return rollouts


def _flat(rollouts: list[Rollout]) -> dict[str, np.ndarray]:
    """The transitions of all episodes behind one another, as D4RL has them."""
    last = [np.arange(len(each.rewards)) == len(each.rewards) - 1 for each in rollouts]
    return {
        "observations": np.concatenate([each.observations[:-1] for each in rollouts]),
        "next_observations": np.concatenate([each.observations[1:] for each in rollouts]),
        "actions": np.concatenate([each.actions for each in rollouts]),
        "rewards": np.concatenate([each.rewards for each in rollouts]),
        "terminals": np.concatenate([at & each.terminated for at, each in zip(last, rollouts, strict=True)]),
        "timeouts": np.concatenate([at & each.truncated for at, each in zip(last, rollouts, strict=True)]),
    }


def d4rl(path: Path, rollouts: list[Rollout]) -> None:
    """A file of D4RL."""
    with h5py.File(path, "w") as file:
        for name, values in _flat(rollouts).items():
            file[name] = values


def log(path: Path, rollouts: list[Rollout]) -> None:
    """A CSV file of the lab's own logger, whose rows are in the order of time and not of rollouts."""
    rows = [
        (tick, number, *each.observations[tick], each.actions[tick][0], each.rewards[tick], last, timeout)
        for number, each in enumerate(rollouts)
        for tick in range(len(each.rewards))
        for end in [tick == len(each.rewards) - 1]
        for last, timeout in [(int(end and each.terminated), int(end and each.truncated))]
    ]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["tick", "rollout", "x", "v", "force", "gain", "fell", "timeout"])
        writer.writerows(sorted(rows))


def parquet(path: Path, rollouts: list[Rollout]) -> None:
    """A Parquet file with a row for each transition."""
    numbers = np.repeat(np.arange(len(rollouts)), [len(each.rewards) for each in rollouts])
    columns = {name: list(values) for name, values in _flat(rollouts).items()}
    names = {"terminals": "terminated", "timeouts": "truncated"}
    pq.write_table(pa.table({names.get(n, n): v for n, v in columns.items()} | {"episode": numbers}), path)


def lerobot(path: Path, rollouts: list[Rollout]) -> None:
    """A dataset of LeRobot v2.1."""
    kinds: dict[str, tuple[str, Callable[[Rollout], Any]]] = {
        "observation.state": ("float32", lambda each: list(each.observations[:-1].astype(np.float32))),
        "action": ("float32", lambda each: list(each.actions.astype(np.float32))),
        "next.reward": ("float32", lambda each: each.rewards.astype(np.float32)),
        "next.done": ("bool", lambda each: _flat([each])["terminals"]),
        "next.truncated": ("bool", lambda each: _flat([each])["timeouts"]),
        "timestamp": ("float32", lambda each: np.arange(len(each.rewards), dtype=np.float32) / 10),
        "frame_index": ("int64", lambda each: np.arange(len(each.rewards))),
    }
    shapes = {"observation.state": rollouts[0].observations[0].shape, "action": rollouts[0].actions[0].shape}
    numbers = {name: ("int64", None) for name in ("episode_index", "index", "task_index")}
    info = {
        "codebase_version": "v2.1",
        "fps": 10,
        "features": {
            name: {"dtype": kind, "shape": [*shapes.get(name, (1,))]}
            for name, (kind, _) in {**kinds, **numbers}.items()
        },
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": None,
    }
    (path / "meta").mkdir(parents=True)
    (path / "data/chunk-000").mkdir(parents=True)
    (path / "meta/info.json").write_text(json.dumps(info))
    (path / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "stay up"}\n')
    lines, row = [], 0
    for index, each in enumerate(rollouts):
        length = len(each.rewards)
        lines.append(json.dumps({"episode_index": index, "tasks": ["stay up"], "length": length}))
        columns = {name: pa.array(values(each)) for name, (_, values) in kinds.items()}
        columns |= {
            name: pa.array(np.full(length, at)) for name, at in (("episode_index", index), ("task_index", 0))
        }
        columns["index"] = pa.array(np.arange(row, row + length))
        pq.write_table(pa.table(columns), path / f"data/chunk-000/episode_{index:06d}.parquet")
        row += length
    (path / "meta/episodes.jsonl").write_text("\n".join(lines) + "\n")


def sb3(path: Path, rollouts: list[Rollout], env: gymnasium.Env) -> None:
    """A replay buffer that Stable-Baselines3 saved; without it, one that its tests had saved."""
    if find_spec("stable_baselines3") is None:
        shutil.copy(DATA / "sb3_buffer.pkl", path)
        return
    buffers: Any = import_module("stable_baselines3.common.buffers")
    flat = _flat(rollouts)
    size = len(flat["rewards"])
    buffer = buffers.ReplayBuffer(size + 5, env.observation_space, env.action_space, device="cpu")
    for row in range(size):
        timeout = bool(flat["timeouts"][row])
        values = (
            flat[name][row][None] for name in ("observations", "next_observations", "actions", "rewards")
        )
        done = np.array([flat["terminals"][row] or timeout])
        buffer.add(*values, done, [{"TimeLimit.truncated": timeout}])
    import_module("stable_baselines3.common.save_util").save_to_pkl(path, buffer)


def minari_dataset(path: Path, env_id: str, policy: str, seeds: Sequence[int]) -> list[Rollout]:
    """A dataset that Minari recorded."""
    import minari

    collectors = []

    def collected(env: gymnasium.Env) -> Any:
        collectors.append(minari.DataCollector(env))
        return collectors[0]

    rollouts = play(env_id, policy, seeds, collected)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MINARI_DATASETS_PATH", str(path.parent / ".minari"))
        collectors[0].create_dataset("lab/data-v0")
    (path.parent / ".minari/lab/data-v0").rename(path)
    return rollouts


def committed_lerobot(path: Path) -> list[Rollout]:
    """A dataset that LeRobot itself wrote, with videos."""
    shutil.copytree(DATA / "lerobot-v3", path)
    values = dict(np.load(path / "expected.npz"))
    (path / "expected.npz").unlink()
    rows = [values["episode_index"] == index for index in range(3)]
    return [
        Rollout(
            np.empty(0), np.empty(0), values["next.reward"][at], bool(values["next.done"][at].any()), False
        )
        for at in rows
    ]


def committed_rlds(path: Path) -> list[Rollout]:
    """A dataset that TensorFlow Datasets wrote, whose last steps are observations."""
    shutil.copytree(DATA / "rlds/walk/1.0.0", path)
    values = dict(np.load(DATA / "rlds/expected.npz"))
    rollouts = []
    for split, index, steps in (("train", 0, 5), ("train", 1, 3), ("val", 0, 5), ("val", 1, 3)):
        keys = [f"{split}/{index}/{step}" for step in range(steps)]
        rewards = np.array([values[f"{key}/reward"] for key in keys[:-1]])
        terminated = bool(values[f"{keys[-1]}/is_terminal"])
        rollouts.append(Rollout(np.empty(0), np.empty(0), rewards, terminated, not terminated))
    return rollouts


def build(lab: Path) -> dict[str, tuple[str, str, str, list[Rollout]]]:
    """Write the thirty datasets; return of each its environment, algorithm, format and episodes, by path."""
    datasets: dict[str, tuple[str, str, str, list[Rollout]]] = {}
    numbers = count()

    def add(
        env_id: str, policy: str, name: str, kind: str, write: Callable[[Path, list[Rollout]], Any]
    ) -> None:
        seeds = [5 * next(numbers) + place for place in range(4)]
        path = lab / env_id / policy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "minari":
            rollouts = minari_dataset(path, env_id, policy, seeds)
        else:
            rollouts = play(env_id, policy, seeds)
            write(path, rollouts)
        if kind in ("lerobot", "sb3"):
            rollouts = [replace(each, rewards=each.rewards.astype(np.float32)) for each in rollouts]
        datasets[f"{env_id}/{policy}/{name}"] = (env_id, policy, kind, rollouts)

    for env_id in LIMITS:
        for policy in POLICIES:
            add(env_id, policy, "flat.hdf5", "d4rl", d4rl)
            add(env_id, policy, "collected", "minari", d4rl)
        add(env_id, "random", "more.hdf5", "d4rl", d4rl)
    for policy, name in (
        ("random", "mon"),
        ("random", "tue"),
        ("random", "wed"),
        ("rule", "thu"),
        ("rule", "fri"),
    ):
        add("MountainCarContinuous-v0", policy, f"{name}.csv", "table", log)
    for name in ("one", "two", "three"):
        env = made("Pendulum-v1")
        add("Pendulum-v1", "random", f"{name}.pkl", "sb3", lambda path, each, env=env: sb3(path, each, env))
    for env_id, policy in (
        ("Pendulum-v1", "rule"),
        ("Pendulum-v1", "random"),
        ("MountainCarContinuous-v0", "rule"),
    ):
        add(env_id, policy, "robot", "lerobot", lerobot)
    for policy in POLICIES:
        add("CartPole-v1", policy, "rows.parquet", "table", parquet)
    (lab / "so100/teleoperated").mkdir(parents=True)
    path = "so100/teleoperated/push"
    datasets[path] = ("so100", "teleoperated", "lerobot", committed_lerobot(lab / path))
    path = "so100/teleoperated/walk"
    datasets[path] = ("so100", "teleoperated", "rlds", committed_rlds(lab / path))
    return datasets
