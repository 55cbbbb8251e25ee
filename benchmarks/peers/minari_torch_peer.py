"""Minari with torch's DataLoader, for the sampling benchmarks: a process that does one job per line of JSON.

It runs in a virtual environment of its own; see `peer_process`. Minari hands out whole episodes, so a
map-style dataset over the decoded episodes picks transitions and windows, and the DataLoader's own
collation stacks them. Observations, actions and rewards are float32.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import torch
from minari.data_collector import EpisodeBuffer
from torch.utils.data import DataLoader, Dataset

import sampling_data
from peer_side import Memory, serve, timed, versions

NAME = "sampling-v0"

_episodes: list[Any] = []


class Transitions(Dataset):
    """All transitions of decoded episodes."""

    def __init__(self, episodes: list[Any]) -> None:
        self._episodes = episodes
        self._ends = np.cumsum([len(episode.rewards) for episode in episodes])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        number = int(np.searchsorted(self._ends, index, side="right"))
        episode = self._episodes[number]
        t = index - int(self._ends[number]) + len(episode.rewards)
        return (
            episode.observations[t],
            episode.actions[t],
            episode.rewards[t],
            episode.observations[t + 1],
            episode.terminations[t],
        )


class Windows(Dataset):
    """All runs of `window` steps that lie within one decoded episode."""

    def __init__(self, episodes: list[Any], window: int) -> None:
        self._episodes = episodes
        self._window = window
        self._ends = np.cumsum([max(0, len(episode.rewards) - window + 1) for episode in episodes])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        number = int(np.searchsorted(self._ends, index, side="right"))
        episode = self._episodes[number]
        first = index - (int(self._ends[number - 1]) if number else 0)
        steps = slice(first, first + self._window)
        return (
            episode.observations[steps],
            episode.actions[steps],
            episode.rewards[steps],
            episode.terminations[steps],
        )


def build(steps: int, length: int) -> dict:
    """Write a dataset and decode all its episodes."""
    shutil.rmtree(Path(os.environ["MINARI_DATASETS_PATH"], NAME), ignore_errors=True)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            NAME,
            [_buffer(episode) for episode in sampling_data.episodes(steps, length)],
            observation_space=_box(sampling_data.OBSERVATION_SIZE),
            action_space=_box(sampling_data.ACTION_SIZE),
        )
    seconds = time.perf_counter() - start
    _episodes[:] = _decoded()
    return {"seconds": seconds, "steps": len(Transitions(_episodes)), "held": _bytes()}


def transitions(batches: int, size: int, workers: int = 0) -> dict:
    """Draw batches of transitions; the loader's iterator and its order are made before the clock starts."""
    loader = _loop(Transitions(_episodes), size, workers)
    seconds, batch = timed(lambda: next(loader), batches)
    sampling_data.check_transitions(batch[0], batch[3], np.zeros(size, bool))
    return {"seconds": seconds}


def windows(batches: int, size: int, window: int, length: int, workers: int = 0) -> dict:
    """Draw batches of windows."""
    loader = _loop(Windows(_episodes, window), size, workers)
    seconds, batch = timed(lambda: next(loader), batches)
    sampling_data.check_windows(batch[0], length)
    return {"seconds": seconds}


def whole_episodes(batches: int, size: int) -> dict:
    """Draw padded batches of whole episodes, decoded each time, as in Minari's tutorial."""
    dataset = minari.load_dataset(NAME)
    loader = iter(DataLoader(dataset, batch_size=size, shuffle=True, collate_fn=_padded))
    seconds, batch = timed(lambda: next(loader), batches)
    return {"seconds": seconds, "steps": int(batch["rewards"].numel())}


def first_batch(size: int) -> dict:
    """Open and decode what `build` left on disk and draw one batch."""
    start = time.perf_counter()
    next(_loop(Transitions(_decoded()), size, workers=0))
    return {"seconds": time.perf_counter() - start}


def memory(steps: int, length: int, size: int, window: int) -> dict:
    """Decode a dataset on disk, draw both units, and say what that took; to be asked of a new process."""
    taken = Memory()
    _episodes[:] = _decoded()
    transitions(20, size)
    windows(5, size, window, length)
    return taken.answer() | {"bytes": _bytes()}


def _decoded() -> list[Any]:
    return list(minari.load_dataset(NAME).iterate_episodes())


def _loop(dataset: Dataset, size: int, workers: int) -> Iterator[Any]:
    return iter(DataLoader(dataset, batch_size=size, shuffle=True, num_workers=workers, drop_last=True))


def _padded(batch: list[Any]) -> dict[str, torch.Tensor]:
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        name: pad([torch.as_tensor(getattr(episode, name)) for episode in batch], batch_first=True)
        for name in names
    }


def _bytes() -> int:
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    return sum(getattr(episode, name).nbytes for episode in _episodes for name in names)


def _buffer(episode: sampling_data.Episode) -> EpisodeBuffer:
    terminations, truncations = episode.flags()
    return EpisodeBuffer(
        id=episode.number,
        observations=episode.observations,
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=terminations,
        truncations=truncations,
    )


def _box(size: int) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)


COMMANDS = {
    "versions": versions("minari", "torch", "numpy", "gymnasium", "h5py"),
    "build": build,
    "transitions": transitions,
    "windows": windows,
    "whole_episodes": whole_episodes,
    "first_batch": first_batch,
    "memory": memory,
}

if __name__ == "__main__":
    serve(COMMANDS)
