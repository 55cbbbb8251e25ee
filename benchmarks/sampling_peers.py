"""The peers of the sampling benchmark, and the bare gather as the limit.

A contender is a peer's process and what it calls its kind of buffer. `prepare` fills it; `transitions`,
`windows`, `first_batch` and `memory` then measure it. Every answer is in seconds for one batch, or in
bytes. The limits run in this process: numpy's fancy indexing over contiguous arrays, and a copy of as many
bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import sampling_data
from peer_process import D3RLPY, LEROBOT, MINARI_TORCH, TORCHRL, EnvRecipe, Peer

SIZE = 256
WINDOW = 64
LENGTH = 1_000


@dataclass(frozen=True)
class Contender:
    """A peer's sampler.

    Attributes:
        label: what the table calls it.
        recipe: how its environment is made.
        kind: what is said to the process besides the sizes; empty where it has one kind only.
        options: arguments of `transitions` and `windows` alone, such as the number of workers.
        steps: the most steps it is given, where writing a million takes too long.
        batches: how many batches of transitions and of windows are drawn for one measurement.
        on_disk: whether it has a form on disk that can be opened.
        has_windows: whether windows are measured too.
    """

    label: str
    recipe: EnvRecipe
    kind: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)
    steps: int = 1_000_000
    batches: tuple[int, int] = (100, 20)
    on_disk: bool = True
    has_windows: bool = True


CONTENDERS = {
    "torchrl-memmap": Contender("TorchRL, LazyMemmapStorage", TORCHRL, {"kind": "memmap"}, batches=(400, 40)),
    "torchrl-tensor": Contender(
        "TorchRL, LazyTensorStorage", TORCHRL, {"kind": "tensor"}, batches=(400, 40), on_disk=False
    ),
    "torchrl-prefetch": Contender(
        "TorchRL, LazyMemmapStorage, prefetch of 2",
        TORCHRL,
        {"kind": "memmap"},
        {"prefetch": 2},
        batches=(400, 0),
        has_windows=False,
    ),
    "d3rlpy": Contender("d3rlpy", D3RLPY),
    "minari": Contender("Minari, DataLoader", MINARI_TORCH),
    "minari-workers": Contender("Minari, DataLoader, 2 workers", MINARI_TORCH, options={"workers": 2}),
    "lerobot": Contender("LeRobot", LEROBOT, steps=20_000, batches=(4, 1)),
}


class Peers:
    """The processes of the contenders, each started at its first question and kept until `close`."""

    def __init__(self, environments: Path, folder: Path) -> None:
        self._environments = environments
        self._folder = folder
        self._running: dict[str, Peer] = {}

    def of(self, contender: Contender) -> Peer:
        """Return the process of a contender; contenders of one recipe share it and what it holds."""
        name = contender.recipe.name
        if name not in self._running:
            self._running[name] = self._new(contender)
        return self._running[name]

    def prepare(self, contender: Contender, steps: int) -> dict[str, Any]:
        """Let a contender make its copy of the data, in memory and on disk, and return its answer."""
        steps = min(steps, contender.steps)
        return self.of(contender).ask("build", **contender.kind, steps=steps, length=LENGTH)

    def transitions(self, contender: Contender) -> float:
        """Return the seconds of a batch of 256 transitions."""
        batches = contender.batches[0]
        arguments = {**contender.kind, **contender.options, "batches": batches, "size": SIZE}
        return self.of(contender).ask("transitions", **arguments)["seconds"] / batches

    def windows(self, contender: Contender) -> float:
        """Return the seconds of a batch of 256 windows of 64 steps."""
        batches = contender.batches[1]
        arguments = {**contender.kind, **contender.options, "batches": batches, "size": SIZE}
        answer = self.of(contender).ask("windows", **arguments, window=WINDOW, length=LENGTH)
        return answer["seconds"] / batches

    def first_batch(self, contender: Contender, steps: int) -> float:
        """Return the seconds from the files that `prepare` left to the first batch, imports not counted."""
        arguments: dict[str, Any] = {**contender.kind, "size": SIZE}
        if contender.recipe is TORCHRL:
            arguments["steps"] = steps
        return self.of(contender).ask("first_batch", **arguments)["seconds"]

    def memory(self, contender: Contender, steps: int) -> dict[str, int]:
        """Return what a new process takes to hold the data and sample it: `peak`, `held`, `before`, in bytes.

        `before` is what the process had after its imports; the others are above it. The files of `prepare`
        are made anew by those contenders that fill memory without them.
        """
        arguments: dict[str, Any] = {**contender.kind, "size": SIZE, "window": WINDOW, "length": LENGTH}
        if contender.recipe is not LEROBOT:
            arguments["steps"] = min(steps, contender.steps)
        fresh = self._new(contender)
        try:
            return fresh.ask("memory", **arguments)
        finally:
            fresh.close()

    def close(self) -> None:
        """End all processes."""
        for peer in self._running.values():
            peer.close()

    def _new(self, contender: Contender) -> Peer:
        return Peer(self._environments, self._folder, contender.recipe)


def prioritized(torchrl: Peer, steps: int, batches: int = 400) -> dict[str, float] | None:
    """Return TorchRL's seconds of a prioritized batch with its update, and of the sampler alone.

    None where its compiled part does not load beside the installed torch.
    """
    answer = torchrl.ask("prioritized", steps=steps, batches=batches, size=SIZE)
    if "unavailable" in answer:
        return None
    return {name: answer[name] / batches for name in ("seconds", "sampler")}


def frames(torchrl: Peer, batches: int = 20) -> tuple[float, int]:
    """Return TorchRL's seconds of 256 transitions between frames, and how many bytes were moved."""
    answer = torchrl.ask("frames", batches=batches, size=SIZE)
    return answer["seconds"] / batches, answer["bytes"]


class BareGather:
    """The limit: the same data in contiguous arrays, and numpy's fancy indexing with nothing around it.

    Observations are held once, T+1 an episode. `transitions` draws its indices anew for each batch; windows
    are gathered from a view of all windows, so that one index names a whole run.
    """

    def __init__(self, steps: int) -> None:
        count = steps // LENGTH
        self.observations = np.empty((count * (LENGTH + 1), sampling_data.OBSERVATION_SIZE), np.float32)
        self.actions = np.zeros((count * (LENGTH + 1), sampling_data.ACTION_SIZE), np.float32)
        self.rewards = np.zeros(count * (LENGTH + 1), np.float32)
        self.terminated = np.zeros(count * (LENGTH + 1), bool)
        for episode in sampling_data.episodes(steps, LENGTH):
            start = episode.number * (LENGTH + 1)
            self.observations[start : start + LENGTH + 1] = episode.observations
            self.actions[start : start + LENGTH] = episode.actions
            self.rewards[start : start + LENGTH] = episode.rewards
            self.terminated[start : start + LENGTH] = episode.flags()[0]
        self._random = np.random.default_rng(0)

    @property
    def held(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self._columns())

    def transitions(self, batches: int = 2_000) -> float:
        """Return the seconds of a batch of 256 transitions."""
        batch = self._draw_transitions()
        seconds = _seconds(self._draw_transitions, batches)
        sampling_data.check_transitions(batch[0], batch[3], np.zeros(SIZE, bool))
        return seconds

    def windows(self, batches: int = 200) -> float:
        """Return the seconds of a batch of 256 windows of 64 steps, from observations to the flag."""
        views = [_runs(column, WINDOW) for column in self._columns()]

        def draw() -> list[np.ndarray]:
            rows = self._rows(LENGTH - WINDOW + 1)
            return [view[rows].reshape(SIZE, WINDOW, -1) for view in views]

        sampling_data.check_windows(draw()[0], LENGTH)
        return _seconds(draw, batches)

    def windows_by_row(self, batches: int = 200) -> float:
        """Return the seconds of the same batch gathered with an index of every step."""
        steps = np.arange(WINDOW)

        def draw() -> list[np.ndarray]:
            rows = self._rows(LENGTH - WINDOW + 1)[:, None] + steps
            return [column.take(rows, axis=0) for column in self._columns()]

        sampling_data.check_windows(draw()[0], LENGTH)
        return _seconds(draw, batches)

    def _draw_transitions(self) -> list[np.ndarray]:
        rows = self._rows(LENGTH)
        batch = [column.take(rows, axis=0) for column in self._columns()]
        batch.insert(3, self.observations.take(rows + 1, axis=0))
        return batch

    def _rows(self, starts: int) -> np.ndarray:
        """Draw one row per element, among the first `starts` of any episode."""
        count = len(self.rewards) // (LENGTH + 1)
        numbers, steps = np.divmod(self._random.integers(0, count * starts, SIZE), starts)
        return numbers * (LENGTH + 1) + steps

    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.observations, self.actions, self.rewards, self.terminated


@dataclass(frozen=True)
class FrameLimits:
    """Seconds to move the bytes of one batch of 256 transitions between 84x84x4 frames.

    Attributes:
        copy: one contiguous copy into memory that was used before.
        fresh_copy: the same into memory that is asked of the operating system for each batch.
        gather: numpy's gather of both observations into memory that was used before.
        fresh_gather: the same into new arrays.
    """

    copy: float
    fresh_copy: float
    gather: float
    fresh_gather: float


class FrameLimit:
    """Frames held once in one array, and the copies that nothing can beat."""

    def __init__(self, count: int) -> None:
        self._frames = sampling_data.frames(count + 1)
        self._random = np.random.default_rng(0)
        self._target = np.zeros((2, SIZE, *sampling_data.FRAME_SHAPE), np.uint8)

    def measure(self, batches: int = 20) -> FrameLimits:
        """Measure all four, one after the other."""
        last = len(self._frames) - 1
        target = self._target

        def block() -> np.ndarray:
            start = self._random.integers(0, last - 2 * SIZE)
            return self._frames[start : start + 2 * SIZE].reshape(target.shape)

        def gather() -> None:
            rows = self._random.integers(0, last, SIZE)
            self._frames.take(rows, axis=0, out=target[0], mode="clip")
            self._frames.take(rows + 1, axis=0, out=target[1], mode="clip")

        def fresh_gather() -> tuple[np.ndarray, np.ndarray]:
            rows = self._random.integers(0, last, SIZE)
            return self._frames.take(rows, axis=0), self._frames.take(rows + 1, axis=0)

        return FrameLimits(
            copy=_seconds(lambda: np.copyto(target, block()), batches),
            fresh_copy=_seconds(lambda: block().copy(), batches),
            gather=_seconds(gather, batches),
            fresh_gather=_seconds(fresh_gather, batches),
        )


def _runs(column: np.ndarray, window: int) -> np.ndarray:
    """Return a read-only view whose row i is rows i to i + window of a column, one after the other."""
    width = column[0].size
    shape = (len(column) - window + 1, window * width)
    strides = (width * column.itemsize, column.itemsize)
    return np.lib.stride_tricks.as_strided(column, shape, strides, writeable=False)


def _seconds(draw: Callable[[], Any], batches: int) -> float:
    draw()
    start = time.perf_counter()
    for _ in range(batches):
        draw()
    return (time.perf_counter() - start) / batches
