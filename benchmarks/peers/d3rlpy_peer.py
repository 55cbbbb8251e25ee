"""d3rlpy's side of the sampling and exchange benchmarks: a process that does one job per line of JSON.

It runs in a virtual environment of its own; see `peer_process`. Observations, actions and rewards are
float32. An episode has no last observation there, so the last transition of a truncated episode cannot be
sampled.
"""

from __future__ import annotations

import time
from pathlib import Path

from d3rlpy.dataset import Episode, InfiniteBuffer, ReplayBuffer

import sampling_data
import trajectories
from peer_side import Memory, serve, timed, versions

FILE = "buffer.h5"

_buffers: list[ReplayBuffer] = []


def build(steps: int, length: int) -> dict:
    """Hold the episodes in a buffer without a limit and dump it to a file."""
    start = time.perf_counter()
    episodes = [
        Episode(data.observations[:-1], data.actions, data.rewards[:, None], data.terminated)
        for data in sampling_data.episodes(steps, length)
    ]
    buffer = ReplayBuffer(InfiniteBuffer(), episodes=episodes)
    seconds = time.perf_counter() - start
    with open(FILE, "w+b") as file:
        buffer.dump(file)
    _buffers[:] = [buffer]
    return {"seconds": seconds, "steps": buffer.transition_count, "held": _bytes(buffer)}


def dump(arrays: str) -> dict:
    """Hold saved episodes in a buffer and dump it to a file; the reading of the arrays is not timed."""
    data = [
        Episode(each.observations[:-1], each.actions, each.rewards[:, None], bool(each.terminations[-1]))
        for each in trajectories.load(Path(arrays))
    ]
    start = time.perf_counter()
    with open(FILE, "w+b") as file:
        ReplayBuffer(InfiniteBuffer(), episodes=data).dump(file)
    return {"seconds": time.perf_counter() - start}


def load(arrays: str) -> dict:
    """Load what `dump` wrote."""
    start = time.perf_counter()
    with open(FILE, "rb") as file:
        ReplayBuffer.load(file, InfiniteBuffer())
    return {"seconds": time.perf_counter() - start}


def transitions(batches: int, size: int) -> dict:
    """Sample batches with `sample_transition_batch`."""
    buffer = _buffers[0]
    seconds, batch = timed(lambda: buffer.sample_transition_batch(size), batches)
    sampling_data.check_transitions(batch.observations, batch.next_observations, batch.terminals)
    return {"seconds": seconds}


def windows(batches: int, size: int, window: int, length: int) -> dict:
    """Sample batches with `sample_trajectory_batch`, which pads on the left where an episode begins."""
    buffer = _buffers[0]
    seconds, batch = timed(lambda: buffer.sample_trajectory_batch(size, window), batches)
    whole = batch.masks.astype(bool).all(axis=1)
    sampling_data.check_windows(batch.observations[whole], length)
    return {"seconds": seconds}


def first_batch(size: int) -> dict:
    """Load what `build` left on disk and sample one batch."""
    start = time.perf_counter()
    with open(FILE, "rb") as file:
        buffer = ReplayBuffer.load(file, InfiniteBuffer())
    buffer.sample_transition_batch(size)
    return {"seconds": time.perf_counter() - start}


def memory(steps: int, length: int, size: int, window: int) -> dict:
    """Fill a buffer, sample both units, and say what that took; to be asked of a new process."""
    taken = Memory()
    held = build(steps, length)["held"]
    transitions(20, size)
    windows(5, size, window, length)
    return taken.answer() | {"bytes": held}


def _bytes(buffer: ReplayBuffer) -> int:
    arrays = (
        array
        for episode in buffer.episodes
        for array in (episode.observations, episode.actions, episode.rewards)
    )
    return sum(array.nbytes for array in arrays)


COMMANDS = {
    "versions": versions("d3rlpy", "torch", "numpy", "gymnasium"),
    "build": build,
    "dump": dump,
    "load": load,
    "transitions": transitions,
    "windows": windows,
    "first_batch": first_batch,
    "memory": memory,
}

if __name__ == "__main__":
    serve(COMMANDS)
