"""The replay buffer beside bare numpy and the buffers of Tianshou, TorchRL, Stable-Baselines3 and cpprb.

Peers that the running environment lacks are left out. All sides run in one process, in turns; the figures are
medians of processor time. A peer's `add` only fills its buffer; ours also records the step into a store.

    python benchmarks/replay_buffer.py [STEPS]
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import episodelake as el

BATCH, SEQUENCES, LENGTH, EPISODE = 256, 16, 64, 1_000
ROUNDS, CALLS, ADDED = 9, 200, 4_000
RULE = {"alpha": 0.6, "beta": 0.4}
Task = Callable[[], object]


class Fixed(gymnasium.Env):
    """Takes no time: the same 17 floats at every step, and 6 floats as an action."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)

    def __init__(self) -> None:
        self.observation = np.arange(17, dtype=np.float32)
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode."""
        self.taken = 0
        return self.observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Go on, or end after `EPISODE` steps."""
        self.taken += 1
        return self.observation, 1.0, False, self.taken >= EPISODE, {}


ACTION = np.zeros(6, np.float32)
SHOWN = np.arange(17, dtype=np.float32)


def _play(env: gymnasium.Env, steps: int, after: Task = lambda: None, every: int = 1) -> None:
    env.reset()
    for step in range(steps):
        if env.step(ACTION)[3]:
            env.reset()
        if step % every == 0:
            after()


def _repeated(call: Task, count: int = CALLS) -> Task:
    def run() -> None:
        for _ in range(count):
            call()

    return run


def ours(steps: int, folder: Path, open_until_the_end: ExitStack) -> dict[str, dict[str, Task]]:
    """Return our tasks, by what they measure."""
    store = el.create(folder / "store", Fixed())
    buffer, ranked = store.replay_buffer(steps), store.replay_buffer(steps, prioritized=el.Prioritized())
    for one in (buffer, ranked):
        with store.record(Fixed(), buffer=one) as env:
            _play(env, steps, after=one.__len__, every=1_000)
    bare = Fixed()
    env = open_until_the_end.enter_context(store.record(Fixed(), buffer=buffer))
    plain = open_until_the_end.enter_context(el.create(folder / "plain", Fixed()).record(Fixed()))

    def update() -> None:
        unit = ranked.sample(BATCH)["unit"]
        ranked.update_priorities(unit, np.full(BATCH, 0.5))

    return {
        "add": {
            "environment alone": lambda: _play(bare, ADDED),
            "record, no buffer": lambda: _play(plain, ADDED),
            "record, sampled every 50 steps": lambda: _play(env, ADDED, lambda: buffer.sample(1), 50),
            "record, sampled every step": lambda: _play(env, ADDED, lambda: buffer.sample(1), 1),
        },
        "uniform": {"Episodelake": _repeated(lambda: buffer.sample(BATCH))},
        "5 steps": {"Episodelake": _repeated(lambda: buffer.sample(BATCH, n_step=5))},
        "sequences": {"Episodelake": _repeated(lambda: buffer.sample_sequences(SEQUENCES, LENGTH))},
        "prioritized": {"Episodelake": _repeated(update)},
    }


def bare(steps: int) -> dict[str, dict[str, Task]]:
    """Return numpy's tasks: gathers of the same rows from plain arrays."""
    shapes = ((17,), (6,), (), ())
    kinds = (np.float32, np.float32, np.float64, bool)
    arrays = [np.ones((steps, *shape), kind) for shape, kind in zip(shapes, kinds, strict=True)]
    observations, *others = arrays
    others.append(others[-1].copy())
    generator = np.random.default_rng(0)

    def gather() -> list[np.ndarray]:
        rows = generator.integers(0, steps - 1, BATCH)
        return [observations[rows], observations[rows + 1], *(array[rows] for array in others)]

    def stretch() -> list[np.ndarray]:
        rows = generator.integers(0, steps - LENGTH, SEQUENCES)[:, None] + np.arange(LENGTH)
        return [observations[rows], *(array[rows] for array in others)]

    return {"uniform": {"numpy": _repeated(gather)}, "sequences": {"numpy": _repeated(stretch)}}


def tianshou(steps: int) -> dict[str, dict[str, Task]]:
    """Return Tianshou's tasks."""
    from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer

    buffer = VectorReplayBuffer(steps, 1)
    ranked = PrioritizedVectorReplayBuffer(steps, 1, **RULE)
    row: Any = Batch(
        obs=SHOWN[None],
        act=ACTION[None],
        rew=np.ones(1),
        terminated=np.zeros(1, bool),
        truncated=np.zeros(1, bool),
        obs_next=SHOWN[None],
    )
    for _ in range(steps):
        buffer.add(row, buffer_ids=[0])
        ranked.add(row, buffer_ids=[0])

    def update() -> None:
        ranked.update_weight(ranked.sample(BATCH)[1], np.full(BATCH, 0.5))

    return {
        "add": {"Tianshou": _repeated(lambda: buffer.add(row, buffer_ids=[0]), ADDED)},
        "uniform": {"Tianshou": _repeated(lambda: buffer.sample(BATCH))},
        "prioritized": {"Tianshou": _repeated(update)},
    }


def stable_baselines3(steps: int) -> dict[str, dict[str, Task]]:
    """Return the tasks of Stable-Baselines3."""
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = ReplayBuffer(steps, Fixed.observation_space, Fixed.action_space, device="cpu")

    def add() -> None:
        buffer.add(SHOWN[None], SHOWN[None], ACTION[None], np.ones(1), np.zeros(1, bool), [{}])

    _repeated(add, steps)()
    return {
        "add": {"Stable-Baselines3": _repeated(add, ADDED)},
        "uniform": {"Stable-Baselines3": _repeated(lambda: buffer.sample(BATCH))},
    }


def torchrl(steps: int) -> dict[str, dict[str, Task]]:
    """Return TorchRL's tasks."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(steps), batch_size=BATCH)
    try:
        sampler = PrioritizedSampler(steps, **RULE)
    except RuntimeError as error:
        # Its extension in C++ is not built for every torch.
        print(f"TorchRL has no prioritized sampler here: {error}")
        sampler = None
    ranked = TensorDictReplayBuffer(
        storage=LazyTensorStorage(steps), sampler=sampler, batch_size=BATCH, priority_key="error"
    )

    def rows(*shape: int) -> TensorDict:
        values = {
            "observation": torch.zeros((*shape, 17)),
            "next_observation": torch.zeros((*shape, 17)),
            "action": torch.zeros((*shape, 6)),
            "reward": torch.zeros(shape),
            "terminated": torch.zeros(shape, dtype=torch.bool),
            "truncated": torch.zeros(shape, dtype=torch.bool),
        }
        return TensorDict(values, shape)

    row = rows()
    for start in range(0, steps, 1_000):
        buffer.extend(rows(min(1_000, steps - start)))
        ranked.extend(rows(min(1_000, steps - start)))

    def update() -> None:
        batch = ranked.sample()
        batch["error"] = torch.full((BATCH,), 0.5)
        ranked.update_tensordict_priority(batch)

    tasks = {
        "add": {"TorchRL": _repeated(lambda: buffer.add(row), ADDED)},
        "uniform": {"TorchRL": _repeated(buffer.sample)},
    }
    return tasks if sampler is None else {**tasks, "prioritized": {"TorchRL": _repeated(update)}}


def cpprb(steps: int) -> dict[str, dict[str, Task]]:
    """Return cpprb's tasks."""
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    columns: dict[str, Any] = {
        "obs": {"shape": 17},
        "next_obs": {"shape": 17},
        "act": {"shape": 6},
        "rew": {"dtype": np.float64},
        "terminated": {"dtype": bool},
        "truncated": {"dtype": bool},
    }
    buffer, ranked = ReplayBuffer(steps, columns), PrioritizedReplayBuffer(steps, columns, alpha=0.6)

    def add(into: Any) -> None:
        into.add(obs=SHOWN, next_obs=SHOWN, act=ACTION, rew=1.0, terminated=False, truncated=False)

    for one in (buffer, ranked):
        _repeated(lambda one=one: add(one), steps)()

    def update() -> None:
        ranked.update_priorities(ranked.sample(BATCH, beta=0.4)["indexes"], np.full(BATCH, 0.5))

    return {
        "add": {"cpprb": _repeated(lambda: add(buffer), ADDED)},
        "uniform": {"cpprb": _repeated(lambda: buffer.sample(BATCH))},
        "prioritized": {"cpprb": _repeated(update)},
    }


def main(steps: int) -> None:
    """Print a table."""
    sides: list[Callable[[int], dict[str, dict[str, Task]]]] = [bare]
    for peer in (tianshou, stable_baselines3, torchrl, cpprb):
        if importlib.util.find_spec(peer.__name__) is None:
            print(f"{peer.__name__} is not installed")
        else:
            sides.append(peer)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        measured = [ours(steps, Path(folder), stack), *(side(steps) for side in sides)]
        for work in ("add", "uniform", "5 steps", "sequences", "prioritized"):
            tasks = {name: task for tasks in measured for name, task in tasks.get(work, {}).items()}
            times: dict[str, list[float]] = {name: [] for name in tasks}
            for _ in range(ROUNDS):
                for name, task in tasks.items():
                    begun = time.process_time()
                    task()
                    times[name].append(time.process_time() - begun)
            calls = ADDED if work == "add" else CALLS
            for name, found in times.items():
                print(f"{work:12} {name:32} {statistics.median(found) / calls * 1e6:9.2f} us")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
