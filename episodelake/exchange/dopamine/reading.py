"""Dopamine: folders with the checkpoints of its circular replay buffer, such as the DQN replay dataset.

A row has an observation (one frame of the stack), and the action, reward and terminal that followed. Rows
with `terminal` are terminated; the agents in TensorFlow set it at a time limit as well. Rows of
`episode_end_indices` without a terminal are truncated. Where the ring stops, an episode is cut. The
observation after an end is not stored (`last_observation`).

Each episode begins with rows of zeros, one fewer than a stack has frames; these are left out. The oldest rows
of the ring are left out in the same number, as Dopamine does: they may be such zeros. `invalid_range` has a
slot for each frame of a stack and each step of a return; how many are frames follows from the zeros.

Checkpoints are joined by the numbers of their rows in the run: rows that two of them have are read once, and
where there are rows that none of them has, an episode is cut.

`episode_end_indices` is a pickled set, read by an unpickler that knows sets of numbers only. The replay
buffer of Dopamine 4.1 in JAX, an Orbax checkpoint with stacked states, is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DatasetError
from ...plugin import ForeignDataset, Format, ImportOptions, Losses, Match
from ...plugin.files import is_folder
from ...writers.importing.boundary import closed_on_error
from ...writers.importing.flat import BEGUN, FlatDataset, FlatRows, action_space_of, extra_column
from ...writers.importing.hdf5 import box_of
from ...writers.importing.npy import NpyFile
from .checkpoints import COUNTERS, ENDS, NEEDED, Checkpoint, find_checkpoints, read_counters

_BLOCK_ROWS = 1 << 20


def _detect(source: Any) -> Match:
    """Look at the names of the files."""
    if not isinstance(source, str | Path) or not is_folder(Path(source)):
        return Match("it is not a folder", 3, related=False)
    checkpoints = find_checkpoints(Path(source))
    if not checkpoints:
        return Match("it has no files $store$_NAME_ckpt.N.gz", 2, related=False)
    lacking = [name for name in NEEDED if name not in checkpoints[0].arrays]
    if lacking:
        return Match(f"checkpoint {checkpoints[0].number} has no {', '.join(lacking)}", len(lacking))
    return Match(f"it has checkpoints {checkpoints[0].number} to {checkpoints[-1].number}")


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a folder."""
    _detect(source).check(f"{source!s:.200} has no checkpoints of Dopamine")
    dataset = _Dataset()
    with closed_on_error(dataset):
        dataset.read(Path(source), options)
    return dataset


class _Dataset(FlatDataset):
    def __init__(self) -> None:
        super().__init__()
        self._arrays: dict[str, Joined] = {}

    def read(self, folder: Path, options: ImportOptions) -> None:
        """Find the episodes, and open the arrays.

        Raises:
            DatasetError: a file is missing or damaged.
        """
        checkpoints = read_counters(find_checkpoints(folder))
        episodes = Episodes(stack_padding(checkpoints[0]), self.losses)
        for checkpoint in checkpoints:
            episodes.add(checkpoint)
        episodes.cut()
        if not episodes.spans:
            raise DatasetError(f"{folder} has no transitions.")
        extras = [name for name in checkpoints[0].arrays if name not in NEEDED]
        for name in (*NEEDED[:3], *extras):
            self._arrays[name] = Joined(name, episodes.spans)
        observation, action, reward, *_ = self._arrays.values()
        self.reward_shape = reward.shape[1:]
        self.observation_space = options.observation_space or box_of(observation, "observation_space")
        self.action_space = options.action_space or action_space_of(action)
        self.mapping = {
            **dict(zip(("observation", "action", "reward", "terminated"), NEEDED, strict=True)),
            "truncated": f"{ENDS} without terminal",
        }
        for name in sorted(set(checkpoints[0].others) - {*COUNTERS, ENDS}):
            self.losses.add(f"{name}, which is no array of transitions", len(checkpoints))
        lasts, terminated, truncated = episodes.flags()
        rows = FlatRows(
            place=str(folder),
            observation=observation,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            ends=lasts,
            passed={extra_column(name, "dopamine"): self._arrays[name] for name in extras},
        )
        self.set_rows(rows, options)

    def close(self) -> None:
        """Close the files."""
        for array in self._arrays.values():
            array.close()


#: A checkpoint, the number of the first row, and of the row after the last one.
Span = tuple[Checkpoint, int, int]

_BETWEEN = "rows that the ring had overwritten before the next checkpoint"
#: How many beginnings of episodes are compared with zeros.
_COMPARED = 8


def stack_padding(checkpoint: Checkpoint) -> int:
    """Return how many rows of zeros there are before each episode.

    They are as many as there are before each of the first episodes, and at most as many as `invalid_range`
    allows.
    """
    limit = checkpoint.margin - 2
    if limit < 1 or not checkpoint.added:
        return 0
    rows = np.arange(checkpoint.first, checkpoint.added)
    starts = np.array([0] * (checkpoint.first == 0) + (checkpoint.ends(rows)[0] + 1).tolist(), np.int64)
    slots = np.sort(starts[starts + limit <= checkpoint.added] % checkpoint.capacity)
    slots = slots[slots + limit <= checkpoint.capacity][:_COMPARED]
    filled = np.zeros((len(slots), limit), bool)
    for name in ("observation", "action", "reward"):
        with closing(checkpoint.open(name)) as file:
            for each, slot in zip(filled, slots.tolist(), strict=True):
                each |= _filled(file[slot : slot + limit])
    zeros = np.where(filled.any(axis=1), filled.argmax(axis=1), limit)
    return int(zeros.min(initial=limit))


class Episodes:
    """Spans of rows that belong to episodes, and the last row of each.

    Args:
        padding: the rows of zeros before each episode.
        losses: takes what is missing.

    Attributes:
        spans: in order of time, without padding; they do not wrap around the ring.
    """

    def __init__(self, padding: int, losses: Losses) -> None:
        self.spans: list[Span] = []
        self._padding = padding
        self._losses = losses
        self._total = 0
        self._ends: list[tuple[int, bool, bool]] = []
        #: The row after the last checkpoint, and the first one of the next span.
        self._behind = 0
        self._next = 0

    def add(self, checkpoint: Checkpoint) -> None:
        """Add the rows of a checkpoint that earlier ones do not have.

        Raises:
            DatasetError: it is damaged, or its padding is not zero.
        """
        rows = np.arange(max(checkpoint.first, self._behind), checkpoint.added)
        if not len(rows):
            return
        ended, terminal = checkpoint.ends(rows)
        padding = (ended[:, None] + np.arange(1, self._padding + 1)).ravel()
        if self._is_filled(checkpoint, padding[padding < checkpoint.added]):
            raise DatasetError(
                f"Checkpoint {checkpoint.number}: the {self._padding} rows after an episode are not zero, as "
                "Dopamine's padding is; where the next episode begins is unknown."
            )
        first = int(rows[0])
        if not self._behind or first > self._behind:
            self._start(checkpoint, first)
        for row, is_terminal in zip(ended.tolist(), terminal.tolist(), strict=True):
            self._span(checkpoint, first, row + 1)
            self.cut(is_terminal, not is_terminal)
            self._next = row + 1 + self._padding
        self._span(checkpoint, first, checkpoint.added)
        self._behind = checkpoint.added

    def cut(self, terminated: bool = False, truncated: bool = False) -> None:
        """End the episode with the last row."""
        if self._total and (not self._ends or self._ends[-1][0] < self._total - 1):
            self._ends.append((self._total - 1, terminated, truncated))

    def flags(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the last row of each episode, and both flags of all rows."""
        lasts = np.array([row for row, *_ in self._ends], np.int64)
        flags = np.zeros((2, self._total), bool)
        flags[:, lasts] = np.array([both for _, *both in self._ends]).T
        return lasts, flags[0], flags[1]

    def _start(self, checkpoint: Checkpoint, first: int) -> None:
        """Begin after rows that are in no checkpoint, or at the start of the run."""
        self.cut()
        if self._behind:
            self._losses.add(_BETWEEN, first - self._behind)
        self._next = first + self._padding
        edge = np.arange(first, min(self._next, checkpoint.added))
        if first or self._is_filled(checkpoint, edge):
            self._losses.add(BEGUN)

    def _span(self, checkpoint: Checkpoint, first: int, stop: int) -> None:
        """Add the rows of an episode, as far as they are in a checkpoint."""
        start = max(first, self._next)
        while start < stop:
            edge = min(stop, (start // checkpoint.capacity + 1) * checkpoint.capacity)
            before, begin, behind = self.spans[-1] if self.spans else (None, 0, 0)
            if before is checkpoint and behind == start and start % checkpoint.capacity:
                self.spans[-1] = checkpoint, begin, edge
            else:
                self.spans.append((checkpoint, start, edge))
            self._total += edge - start
            start = edge

    def _is_filled(self, checkpoint: Checkpoint, rows: np.ndarray) -> bool:
        """Return whether small arrays are not zero in some rows."""
        return any(_filled(checkpoint.values(name, rows)).any() for name in ("action", "reward", "terminal"))


class Joined:
    """An array of all checkpoints: the rows of some spans, one after the other.

    It has the attributes of an array of NumPy that importers use, and gives rows for a slice.

    Args:
        spans: of each, the checkpoint, its first row and the row after its last one. They do not wrap around
            the ring.
    """

    def __init__(self, name: str, spans: Sequence[Span]) -> None:
        self.name = name
        self._spans = spans
        self._offsets = np.cumsum([0, *(stop - start for _, start, stop in spans)])
        self._at: Checkpoint = spans[0][0]
        self._file = self._at.open(name)
        self.dtype, self._row = self._file.dtype, self._file.shape[1:]
        self.shape = (int(self._offsets[-1]), *self._row)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows.

        Raises:
            DatasetError: a file is damaged, or its array has another shape or dtype than the others.
        """
        start, stop, _ = rows.indices(len(self))
        stacked = np.empty((max(0, stop - start), *self._row), self.dtype)
        index = int(np.searchsorted(self._offsets, start, "right")) - 1
        while start < stop:
            checkpoint, first, _ = self._spans[index]
            begin, end = self._offsets[index], min(stop, self._offsets[index + 1])
            slot = (first + start - begin) % checkpoint.capacity
            part = self._opened(checkpoint)[slot : slot + end - start]
            stacked[len(stacked) - (stop - start) :][: len(part)] = part
            start, index = end, index + 1
        return stacked

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows in blocks."""
        return (self[start : start + _BLOCK_ROWS] for start in range(0, len(self), _BLOCK_ROWS))

    def _opened(self, checkpoint: Checkpoint) -> NpyFile:
        if checkpoint is not self._at:
            self._file.close()
            self._file, self._at = checkpoint.open(self.name), checkpoint
            if (self._file.dtype, self._file.shape[1:]) != (self.dtype, self._row):
                raise DatasetError(
                    f"{checkpoint.arrays[self.name]} has rows of shape {self._file.shape[1:]} and dtype "
                    f"{self._file.dtype}; earlier checkpoints have {self._row} and {self.dtype}."
                )
        return self._file

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _filled(values: np.ndarray) -> np.ndarray:
    """Return which rows are not zero."""
    return (values != 0).any(axis=tuple(range(1, values.ndim)))


FORMAT = Format("dopamine", None, "a folder with files $store$_observation_ckpt.N.gz", _detect, _open)
