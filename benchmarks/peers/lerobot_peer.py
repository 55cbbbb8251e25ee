"""LeRobot's side of the sampling benchmarks: a process that does one job per line of JSON.

It runs in a virtual environment of its own; see `peer_process`. Its datasets have T observations an
episode, so the next observation of the last transition is the last one again, marked as padding. Everything
is float32. An item is read from the files' columns one at a time, and torch's DataLoader stacks them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = str(Path("huggingface").absolute())  # where it keeps a converted copy of the data

import torch

# torchvision's compiled part comes from the index for graphics cards and cannot be loaded beside a torch
# without them. No image is read here; two operators have to have names for the package to be imported.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402
from lerobot.datasets.sampler import EpisodeAwareSampler  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import sampling_data  # noqa: E402
from peer_side import Memory, serve, timed, versions  # noqa: E402

NAME = "benchmark/sampling"
RATE = 10  # steps a second; offsets are given in seconds
OBSERVATION, ACTION, REWARD, DONE = "observation.state", "action", "next.reward", "next.done"
FEATURES = {
    OBSERVATION: {"dtype": "float32", "shape": (sampling_data.OBSERVATION_SIZE,), "names": None},
    ACTION: {"dtype": "float32", "shape": (sampling_data.ACTION_SIZE,), "names": None},
    REWARD: {"dtype": "float32", "shape": (1,), "names": None},
    DONE: {"dtype": "bool", "shape": (1,), "names": None},
}


def build(steps: int, length: int) -> dict:
    """Write a dataset, one frame at a time, which is the only way in."""
    shutil.rmtree(_root(), ignore_errors=True)
    start = time.perf_counter()
    dataset = LeRobotDataset.create(NAME, RATE, FEATURES, root=_root(), use_videos=False)
    for episode in sampling_data.episodes(steps, length):
        terminated, truncated = episode.flags()
        done = terminated | truncated
        for t in range(length):
            frame = {
                OBSERVATION: episode.observations[t],
                ACTION: episode.actions[t],
                REWARD: episode.rewards[t : t + 1],
                DONE: done[t : t + 1],
            }
            dataset.add_frame(frame, task="sampling")
        dataset.save_episode()
    size = sum(file.stat().st_size for file in _root().rglob("*") if file.is_file())
    return {"seconds": time.perf_counter() - start, "steps": steps, "held": size}


def transitions(batches: int, size: int, workers: int = 0) -> dict:
    """Draw batches of transitions: the observation with the next one, the rest as it is."""
    loader = _loop(_transitions(), size, workers)
    seconds, batch = timed(lambda: next(loader), batches)
    observations = batch[OBSERVATION]
    padding = batch[f"{OBSERVATION}_is_pad"][:, 1]
    sampling_data.check_transitions(observations[:, 0], observations[:, 1], padding)
    return {"seconds": seconds}


def windows(batches: int, size: int, window: int, length: int, workers: int = 0) -> dict:
    """Draw batches of windows of all columns, from the first steps at which one fits into the episode."""
    offsets = [t / RATE for t in range(window)]
    columns = dict.fromkeys((OBSERVATION, ACTION, REWARD, DONE), offsets)
    dataset = LeRobotDataset(NAME, root=_root(), delta_timestamps=columns)
    loader = _loop(dataset, size, workers, left_out=window - 1)
    seconds, batch = timed(lambda: next(loader), batches)
    sampling_data.check_windows(batch[OBSERVATION], length)
    return {"seconds": seconds}


def first_batch(size: int) -> dict:
    """Open what `build` left on disk and draw one batch. The package keeps a converted copy, made before."""
    start = time.perf_counter()
    next(_loop(_transitions(), size, workers=0))
    return {"seconds": time.perf_counter() - start}


def memory(size: int, window: int, length: int) -> dict:
    """Open a dataset on disk, draw both units, and say what that took; to be asked of a new process."""
    taken = Memory()
    transitions(2, size)
    windows(1, size, window, length)
    return taken.answer()


def _transitions() -> LeRobotDataset:
    return LeRobotDataset(NAME, root=_root(), delta_timestamps={OBSERVATION: [0.0, 1 / RATE]})


def _loop(dataset: LeRobotDataset, size: int, workers: int, left_out: int = 0) -> Iterator[Any]:
    sampler = EpisodeAwareSampler(dataset.episode_data_index, drop_n_last_frames=left_out, shuffle=True)
    return iter(
        DataLoader(dataset, batch_size=size, sampler=sampler, num_workers=workers, drop_last=True)  # type: ignore
    )


def _root() -> Path:
    return Path("lerobot").absolute()


COMMANDS = {
    "versions": versions("lerobot", "torch", "numpy", "datasets"),
    "build": build,
    "transitions": transitions,
    "windows": windows,
    "first_batch": first_batch,
    "memory": memory,
}

if __name__ == "__main__":
    serve(COMMANDS)
