"""Sampling: what a loader's batch costs beside the peers', beside a bare gather, and what a loader holds.

A million steps of 17 floats in and 6 out, in episodes of 1,000 steps; batches of 256 transitions and of 256
windows of 64 steps, in shuffled order. Our loader draws, gathers and hands out numpy arrays in this process,
from memory. `sampling` has the peer that comes closest and the limits; `sampling-peers` has the others, whose
environments take some gigabytes.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq

import episodelake as el
import sampling_data
from episodelake.readers.loading.priorities import Priorities
from measure import Row, Samples, interleave, scaled
from sampling_peers import (
    CONTENDERS,
    LENGTH,
    SIZE,
    WINDOW,
    BareGather,
    FrameLimit,
    Peers,
    frames,
    prioritized,
)
from setting import Setting

STEPS = 1_000_000
MEMORY_SCRIPT = Path(__file__).resolve().parent / "sampling_memory.py"
FRAMES = 20_000
TRANSITIONS_TARGET, WINDOWS_TARGET = 1 / 10, 1 / 15
BARE_TARGET = 2.0
FRAMES_TARGET = 1 / 0.6
DECODE_TARGET = 1 / 0.8
BUFFER = 64 << 20
_COLUMNS = ["observation", "action", "reward", "terminated", "truncated"]


def run(setting: Setting) -> list[Row]:
    """Measure ours beside TorchRL and the limits."""
    steps = setting.choose(STEPS, 50_000)
    path = make_store(setting, steps)
    peers = Peers(setting.environments, setting.folder)
    try:
        return [
            *_batches(setting, path, steps, peers, ["torchrl-memmap", "torchrl-tensor"]),
            *_against_limits(setting, path, steps),
            *_frames(setting, peers),
            *_start(setting, path, steps, peers),
            *_building(setting, path),
            *_streaming(setting, path),
            *_priorities(setting, peers),
            *_memory(setting, path, steps, peers),
        ]
    finally:
        peers.close()


def run_peers(setting: Setting) -> list[Row]:
    """Measure ours beside the other peers."""
    steps = setting.choose(STEPS, 50_000)
    path = make_store(setting, steps)
    peers = Peers(setting.environments, setting.folder)
    try:
        return _batches(setting, path, steps, peers, ["d3rlpy", "minari", "minari-workers", "lerobot"])
    finally:
        peers.close()


def make_store(setting: Setting, steps: int) -> Path:
    """Write the common data into a store of ours."""
    path = setting.folder / f"sampling-{steps}"
    if path.exists():
        return path
    store = el.create(
        path,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (sampling_data.OBSERVATION_SIZE,), np.float32),
        action_space=gym.spaces.Box(-np.inf, np.inf, (sampling_data.ACTION_SIZE,), np.float32),
    )
    with store.writer() as writer:
        for episode in sampling_data.episodes(steps, LENGTH):
            terminations, truncations = episode.flags()
            writer.write_episode(
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards.astype(np.float64),
                terminations=terminations,
                truncations=truncations,
            )
    return path


def make_frames(setting: Setting, count: int) -> Path:
    """Write frames into a store of ours."""
    path = setting.fresh(f"sampling-frames-{count}")
    store = el.create(
        path,
        observation_space=gym.spaces.Box(0, 255, sampling_data.FRAME_SHAPE, np.uint8),
        action_space=gym.spaces.Discrete(4),
    )
    with store.writer() as writer:
        for start in range(0, count, LENGTH):
            writer.write_episode(
                observations=sampling_data.frames(LENGTH + 1, start),
                actions=np.zeros(LENGTH, np.int64),
                rewards=np.zeros(LENGTH),
                terminations=np.zeros(LENGTH, bool),
                truncations=np.arange(LENGTH) == LENGTH - 1,
            )
    return path


def seconds_of(loader: el.Loader, batches: int) -> float:
    """Return the seconds of a batch, over epochs as they come; the first one is not counted."""
    stream = itertools.chain.from_iterable(itertools.repeat(loader))
    next(stream)
    start = time.perf_counter()
    for _ in range(batches):
        next(stream)
    return (time.perf_counter() - start) / batches


def _transitions(path: Path) -> el.Loader:
    loader = el.open(path).loader(SIZE, shuffle=True)
    batch = next(iter(loader))
    sampling_data.check_transitions(batch["observation"], batch["next_observation"], np.zeros(SIZE, bool))
    return loader


def _windows(path: Path) -> el.Loader:
    loader = el.open(path).loader(SIZE, window=WINDOW, shuffle=True)
    sampling_data.check_windows(next(iter(loader))["observation"], LENGTH)
    return loader


def _batches(setting: Setting, path: Path, steps: int, peers: Peers, names: list[str]) -> list[Row]:
    for name in names:
        peers.prepare(CONTENDERS[name], steps)
    transitions, windows = _transitions(path), _windows(path)
    sides: Mapping[str, Callable[[], float]] = {
        "transitions": partial(seconds_of, transitions, 2_000),
        "windows": partial(seconds_of, windows, 200),
        **{f"transitions {name}": partial(peers.transitions, CONTENDERS[name]) for name in names},
        **{f"windows {name}": partial(peers.windows, CONTENDERS[name]) for name in names},
    }
    found = interleave(sides, setting.repeats)
    rows = []
    for what, work, target in [
        ("transitions", f"batch of {SIZE} transitions", TRANSITIONS_TARGET),
        ("windows", f"batch of {SIZE} windows of {WINDOW}", WINDOWS_TARGET),
    ]:
        for name in names:
            theirs = scaled(found[f"{what} {name}"], 1e6)
            bound = target if name == "torchrl-memmap" else None
            rows.append(Row(work, "us", scaled(found[what], 1e6), CONTENDERS[name].label, theirs, bound))
    return rows


def _against_limits(setting: Setting, path: Path, steps: int) -> list[Row]:
    bare = BareGather(steps)
    sides = {
        "transitions": partial(seconds_of, _transitions(path), 2_000),
        "bare transitions": bare.transitions,
        "windows": partial(seconds_of, _windows(path), 200),
        "bare windows": bare.windows,
        "bare rows": bare.windows_by_row,
    }
    found = {name: scaled(values, 1e6) for name, values in interleave(sides, setting.repeats).items()}
    transitions, windows = f"batch of {SIZE} transitions", f"batch of {SIZE} windows of {WINDOW}"
    return [
        Row(transitions, "us", found["transitions"], "bare gather", found["bare transitions"]),
        Row(windows, "us", found["windows"], "bare gather of rows", found["bare rows"], BARE_TARGET),
        Row(windows, "us", found["windows"], "bare gather of runs", found["bare windows"]),
    ]


def _frames(setting: Setting, peers: Peers) -> list[Row]:
    """Frames in memory: 256 transitions between them, beside a copy of as many bytes."""
    count = setting.choose(FRAMES, 2_000)
    path = make_frames(setting, count)
    loader = el.open(path).loader(SIZE, columns=["observation", "next_observation"], shuffle=True)
    limit, torchrl = FrameLimit(count), peers.of(CONTENDERS["torchrl-tensor"])
    torchrl.ask("build_frames", count=count)
    sides: Mapping[str, Callable[[], Any]] = {
        "ours": partial(seconds_of, loader, 20),
        "limit": limit.measure,
        "theirs": lambda: frames(torchrl)[0],
    }
    found = interleave(sides, setting.repeats)
    work = f"batch of {SIZE} transitions between 84x84x4 frames"
    ours = scaled(found["ours"], 1e3)
    copied = scaled([each.fresh_copy for each in found["limit"]], 1e3)
    return [
        Row(work, "ms", ours, "memcpy", copied, FRAMES_TARGET),
        Row(work, "ms", ours, "TorchRL, LazyTensorStorage", scaled(found["theirs"], 1e3)),
    ]


def _start(setting: Setting, path: Path, steps: int, peers: Peers) -> list[Row]:
    """From a store that was not open to the first batch; the peer has arrays in files, as `mmap` has."""
    torchrl = CONTENDERS["torchrl-memmap"]
    mapped = el.Cache("mmap", folder=setting.fresh("mapped"))

    def first(cache: el.Cache) -> None:
        next(iter(el.open(path).loader(SIZE, shuffle=True, cache=cache)))

    first(mapped)
    sides = {
        "memory": lambda: _timed(lambda: first(el.Cache("memory"))),
        "mapped": lambda: _timed(lambda: first(mapped)),
        "theirs": lambda: peers.first_batch(torchrl, steps),
    }
    costs = {name: scaled(seconds, 1e3) for name, seconds in interleave(sides, setting.repeats).items()}
    peer = (torchrl.label, costs["theirs"])
    return [
        Row("open, and first batch from memory", "ms", costs["memory"], *peer),
        Row("open, and first batch from mapped files", "ms", costs["mapped"], *peer),
    ]


def _building(setting: Setting, path: Path) -> list[Row]:
    """Reading the columns into arrays, beside pyarrow's own reading of the same columns."""
    store = el.open(path)
    files = [str(file) for file in sorted(path.glob("steps/*.parquet"))]

    def read() -> None:
        for file in files:
            pq.read_table(file, columns=_COLUMNS)

    sides = {"ours": lambda: _timed(lambda: store.loader(SIZE)), "theirs": lambda: _timed(read)}
    found = interleave(sides, setting.repeats)
    ours, theirs = scaled(found["ours"], 1e3), scaled(found["theirs"], 1e3)
    return [Row("columns into memory", "ms", ours, "pyarrow read_table", theirs, DECODE_TARGET)]


def _streaming(setting: Setting, path: Path) -> list[Row]:
    """An epoch of a shuffled stream, beside pyarrow's decoding of each row group in turn."""
    loader = el.open(path).loader(SIZE, shuffle=True, cache=el.Cache("stream", buffer_bytes=BUFFER))
    files = [pq.ParquetFile(file) for file in sorted(path.glob("steps/*.parquet"))]

    def decode() -> None:
        for file in files:
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=_COLUMNS)

    def stream() -> None:
        for _ in loader:
            pass

    found = interleave({"ours": lambda: _timed(stream), "theirs": lambda: _timed(decode)}, setting.repeats)
    ours, theirs = scaled(found["ours"], 1e3), scaled(found["theirs"], 1e3)
    work = f"an epoch streamed, buffer of {BUFFER >> 20} MiB"
    return [Row(work, "ms", ours, "pyarrow row groups", theirs, DECODE_TARGET)]


def _priorities(setting: Setting, peers: Peers) -> list[Row]:
    """Drawing 256 units by priority and setting their priorities anew, among one and ten million."""
    rows = []
    for count in (setting.choose(1_000_000, 10_000), setting.choose(10_000_000, 100_000)):
        powers = np.random.default_rng(0).random(count)
        ours, cumulated = Priorities(el.Prioritized(), seed=0), powers.copy()
        ours.restore(powers)
        torchrl = prioritized(peers.of(CONTENDERS["torchrl-tensor"]), count)
        found = interleave(
            {
                "ours": lambda ours=ours: _drawn(ours, 500),
                "theirs": lambda cumulated=cumulated: _searched(cumulated, 5),
            },
            setting.repeats,
        )
        work = f"draw {SIZE} of {count:,} by priority, and set them"
        sides = {"numpy cumsum and searchsorted": scaled(found["theirs"], 1e6)}
        if torchrl is not None:
            sides["TorchRL, its sampler alone"] = Samples((torchrl["sampler"] * 1e6,))
        rows += [Row(work, "us", scaled(found["ours"], 1e6), peer, theirs) for peer, theirs in sides.items()]
    return rows


def _drawn(priorities: Priorities, batches: int) -> float:
    random = np.random.default_rng(0)
    new = random.random((batches, SIZE))
    start = time.perf_counter()
    for number, changed in enumerate(new):
        units, _ = priorities.draw(0, np.arange(number * SIZE, (number + 1) * SIZE))
        priorities.change(units, changed)
    return (time.perf_counter() - start) / batches


def _searched(powers: np.ndarray, batches: int) -> float:
    random = np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(batches):
        reached = np.cumsum(powers)
        units = np.searchsorted(reached, random.random(SIZE) * reached[-1])
        powers[units] = random.random(SIZE)
    return (time.perf_counter() - start) / batches


def _memory(setting: Setting, path: Path, steps: int, peers: Peers) -> list[Row]:
    """What a new process takes to hold the columns and draw from them."""
    small = make_store(setting, 10_000)
    command = [sys.executable, MEMORY_SCRIPT, str(small), str(path)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    contender = CONTENDERS["torchrl-tensor"]
    theirs = peers.memory(contender, steps)
    work = "memory of a loader, above the process before"
    unit = "MB at the peak"
    ours = Samples((answer["peak"] / 1e6,))
    held, steady = (Samples((answer[name] / 1e6,)) for name in ("held", "steady"))
    return [
        Row(work, unit, ours, "bytes of its columns", held),
        Row(work, "MB, steady", steady, "bytes of its columns", held),
        Row(work, unit, ours, contender.label, Samples((theirs["peak"] / 1e6,))),
    ]


def _timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
