"""TorchRL's side of the sampling benchmarks: a process that does one job per line of JSON.

It runs in a virtual environment of its own; see `peer_process`. A kind is a storage: `memmap` is
`LazyMemmapStorage`, `tensor` is `LazyTensorStorage`. Observations, actions and rewards are float32, flags
bool; the next observation is stored beside the observation, as TorchRL's collectors do it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)

import sampling_data
from peer_side import Memory, serve, timed, versions

STEPS_AT_ONCE = 100_000  # added to a prioritized buffer in one call

_storages: dict[str, Any] = {}


def threads(count: int) -> dict:
    """Let torch use so many threads. With one a core, small batches are slow on a busy machine."""
    torch.set_num_threads(count)
    return {"threads": torch.get_num_threads()}


def build(kind: str, steps: int, length: int) -> dict:
    """Fill a storage and, for `memmap`, leave its on-disk form in the folder `dumped`."""
    start = time.perf_counter()
    buffer = _buffer(_storage(kind, steps), RandomSampler(), 1)
    for episode in sampling_data.episodes(steps, length):
        buffer.extend(_transitions(episode))
    seconds = time.perf_counter() - start
    _storages[kind] = buffer.storage
    if kind == "memmap":
        shutil.rmtree("dumped", ignore_errors=True)
        buffer.dumps("dumped")
    return {"seconds": seconds, "steps": len(buffer), "held": _bytes(buffer.storage)}


def transitions(kind: str, batches: int, size: int, prefetch: int = 0) -> dict:
    """Sample batches of single transitions with `RandomSampler`."""
    buffer = _buffer(_storages[kind], RandomSampler(), size, prefetch)
    seconds, batch = timed(buffer.sample, batches)
    _check(batch)
    return {"seconds": seconds}


def windows(kind: str, batches: int, size: int, window: int, length: int) -> dict:
    """Sample batches of runs of steps with `SliceSampler`, which keeps the episodes' borders once found."""
    sampler = SliceSampler(slice_len=window, end_key=("next", "done"), cache_values=True)
    buffer = _buffer(_storages[kind], sampler, size * window)
    seconds, batch = timed(lambda: buffer.sample().reshape(size, window), batches)
    sampling_data.check_windows(batch["observation"], length)
    return {"seconds": seconds}


def first_batch(kind: str, steps: int, size: int) -> dict:
    """Open what `build` left on disk and sample one batch."""
    assert kind == "memmap"
    start = time.perf_counter()
    buffer = _buffer(LazyMemmapStorage(steps), RandomSampler(), size)
    buffer.loads("dumped")
    batch = buffer.sample()
    seconds = time.perf_counter() - start
    _check(batch)
    return {"seconds": seconds}


def memory(kind: str, steps: int, length: int, size: int, window: int) -> dict:
    """Fill a storage, sample both units, and say what that took; to be asked of a new process."""
    taken = Memory()
    held = build(kind, steps, length)["held"]
    transitions(kind, 20, size)
    windows(kind, 5, size, window, length)
    return taken.answer() | {"bytes": held}


def prioritized(steps: int, batches: int, size: int) -> dict:
    """Sample with priorities and update those of the batch.

    `sampler` is the part of the sampler alone, without the gather. Priorities start as seeded random numbers.
    """
    try:
        sampler = PrioritizedSampler(steps, alpha=0.6, beta=0.4)
    except RuntimeError as error:
        # Its compiled part is built for one release of torch; beside another it is missing.
        return {"unavailable": str(error)}
    storage = LazyTensorStorage(steps)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=size, priority_key="error")
    _fill_prioritized(buffer, steps)
    new = torch.rand(size)

    def draw() -> None:
        batch = buffer.sample()
        buffer.update_priority(batch["index"], new)

    def draw_index() -> None:
        index, _ = sampler.sample(storage, size)
        sampler.update_priority(index, new)

    seconds, _ = timed(draw, batches)
    alone, _ = timed(draw_index, batches)
    return {"seconds": seconds, "sampler": alone}


def build_frames(count: int) -> dict:
    """Hold frames in a `LazyTensorStorage`: each transition has its observation and the next one."""
    frames = torch.from_numpy(sampling_data.frames(count + 1))
    storage = LazyTensorStorage(count)
    buffer = _buffer(storage, RandomSampler(), 1)
    nothing = torch.zeros(count, 1, dtype=torch.bool)
    following = {"observation": frames[1:], "reward": torch.zeros(count, 1), "terminated": nothing}
    action = torch.zeros(count, dtype=torch.int64)
    buffer.extend(TensorDict({"observation": frames[:-1], "action": action, "next": following}, [count]))
    _storages["frames"] = storage
    return {"held": _bytes(storage)}


def frames(batches: int, size: int) -> dict:
    """Sample batches of transitions between frames."""
    buffer = _buffer(_storages["frames"], RandomSampler(), size)
    seconds, batch = timed(buffer.sample, batches)
    moved = batch["observation"].nbytes + batch["next", "observation"].nbytes
    return {"seconds": seconds, "bytes": moved}


def _fill_prioritized(buffer: TensorDictReplayBuffer, steps: int) -> None:
    random = torch.Generator().manual_seed(0)
    for start in range(0, steps, STEPS_AT_ONCE):
        count = min(STEPS_AT_ONCE, steps - start)
        rows = torch.randn(count, sampling_data.OBSERVATION_SIZE, generator=random)
        following = {"observation": rows, "reward": rows[:, :1], "terminated": rows[:, :1] > 3}
        action = rows[:, : sampling_data.ACTION_SIZE]
        buffer.extend(TensorDict({"observation": rows, "action": action, "next": following}, [count]))
        buffer.update_priority(torch.arange(start, start + count), torch.rand(count, generator=random))


def _storage(kind: str, steps: int) -> Any:
    if kind == "tensor":
        return LazyTensorStorage(steps)
    shutil.rmtree("memmap", ignore_errors=True)
    return LazyMemmapStorage(steps, scratch_dir=Path("memmap").absolute())


def _buffer(storage: Any, sampler: Any, size: int, prefetch: int = 0) -> ReplayBuffer:
    return ReplayBuffer(storage=storage, sampler=sampler, batch_size=size, prefetch=prefetch or None)


def _transitions(episode: sampling_data.Episode) -> TensorDict:
    observations = torch.from_numpy(episode.observations)
    terminated, truncated = (torch.from_numpy(flag[:, None]) for flag in episode.flags())
    following = {
        "observation": observations[1:],
        "reward": torch.from_numpy(episode.rewards[:, None]),
        "terminated": terminated,
        "truncated": truncated,
        "done": terminated | truncated,
    }
    action = torch.from_numpy(episode.actions)
    return TensorDict(
        {"observation": observations[:-1], "action": action, "next": following}, [episode.length]
    )


def _check(batch: TensorDict) -> None:
    following = batch["next"]
    sampling_data.check_transitions(
        batch["observation"], following["observation"], np.zeros(len(batch), bool)
    )


def _bytes(storage: Any) -> int:
    return sum(tensor.nbytes for tensor in storage[:].values(include_nested=True, leaves_only=True))


COMMANDS = {
    "versions": versions("torchrl", "tensordict", "torch", "numpy"),
    "threads": threads,
    "build": build,
    "transitions": transitions,
    "windows": windows,
    "first_batch": first_batch,
    "memory": memory,
    "prioritized": prioritized,
    "build_frames": build_frames,
    "frames": frames,
}

if __name__ == "__main__":
    serve(COMMANDS)
