"""The files of Dopamine's replay buffer: `$store$_NAME_ckpt.N.gz` for each array, and its counters.

The buffer is a ring: the row that was added as the r-th is in slot r modulo its capacity. `add_count` is the
number of rows added, so it gives the rows of a checkpoint their numbers in the whole run.
"""

from __future__ import annotations

import gzip
import pickle
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DatasetError
from ...plugin import reading
from ...writers.importing.hdf5 import as_flags
from ...writers.importing.npy import NpyFile

NEEDED = ("observation", "action", "reward", "terminal")
_FILE = re.compile(r"(\$store\$_)?(.+)_ckpt\.(\d+)\.gz")
COUNTERS = ("add_count", "invalid_range")
ENDS = "episode_end_indices"


@dataclass(frozen=True)
class Checkpoint:
    """One state of the ring.

    Attributes:
        number: N of its files.
        arrays: the files of its arrays, by name.
        others: its other files, by name.
        added: how many rows had been added.
        capacity: how many slots there are.
        margin: the length of `invalid_range`: of a stack of observations and the n steps of a return.
    """

    number: int
    arrays: Mapping[str, Path]
    others: Mapping[str, Path]
    added: int = 0
    capacity: int = 0
    margin: int = 0

    @property
    def first(self) -> int:
        """The number of the oldest row."""
        return max(0, self.added - self.capacity)

    def open(self, name: str) -> NpyFile:
        """Open an array.

        Raises:
            DatasetError: it is missing, damaged or pickled.
        """
        if name not in self.arrays:
            raise DatasetError(f"Checkpoint {self.number} has no {name}; it has {', '.join(self.arrays)}.")
        return _opened(self.arrays[name])

    def values(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return the values of some rows of a small array."""
        with closing(self.open(name)) as file:
            return file[()][rows % self.capacity]

    def ends(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that end episodes, and which of them are terminal.

        Raises:
            DatasetError: a flag is neither 0 nor 1, or the indices are no set of slots.
        """
        terminal = as_flags(self.values("terminal", rows), str(self.arrays["terminal"]))
        ended = terminal.copy()
        if ENDS in self.others:
            slots = _slots(self.others[ENDS])
            ended |= np.isin(rows % self.capacity, slots)
        at = np.flatnonzero(ended)
        return rows[at], terminal[at]


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints of a folder in order, without reading them."""
    checkpoints: dict[int, Checkpoint] = {}
    for path in sorted(folder.iterdir()):
        if match := _FILE.fullmatch(path.name):
            number = int(match[3])
            checkpoint = checkpoints.setdefault(number, Checkpoint(number, {}, {}))
            (checkpoint.arrays if match[1] else checkpoint.others)[match[2]] = path  # type: ignore[index]
    return [checkpoints[number] for number in sorted(checkpoints) if checkpoints[number].arrays]


def read_counters(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return checkpoints with their counters.

    The last log of a DQN replay dataset has its cursor as `add_count`. It is counted on from the one before,
    with a full ring for each log between them.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    counted: list[Checkpoint] = []
    for each in checkpoints:
        lacking = [name for name in COUNTERS if name not in each.others]
        if lacking:
            raise DatasetError(
                f"Checkpoint {each.number} has no {', '.join(lacking)}; its valid rows are unknown."
            )
        with closing(each.open("terminal")) as terminal:
            capacity = terminal[()].size
        added, margin = (_whole_array(each.others[name]) for name in COUNTERS)
        if added.shape or added.dtype.kind not in "iu" or added < 0 or not capacity:
            raise DatasetError(
                f"{each.others['add_count']} is {added!s:.50} for {capacity} slots; expected a whole number."
            )
        count = int(added)
        if counted and count < counted[-1].added:
            last = counted[-1]
            count = last.added + (count - last.added) % capacity + (each.number - last.number - 1) * capacity
        counted.append(replace(each, added=count, capacity=capacity, margin=margin.size))
    return counted


def _opened(path: Path) -> NpyFile:
    return NpyFile(str(path.parent), path.name, partial(gzip.open, path))


def _whole_array(path: Path) -> np.ndarray:
    with closing(_opened(path)) as file:
        return file[()]


class _Kind:
    """In place of a dtype of NumPy in a pickle; its values are not used."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def _whole(_: Any, data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


#: In place of what a pickled set of whole numbers calls, of Python or NumPy.
_CALLED = {"set": set, "scalar": _whole, "dtype": _Kind}


class _Slots(pickle.Unpickler):
    """Reader of a pickled set of integers; it calls nothing that the file names."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a placeholder."""
        if module.partition(".")[0] in ("builtins", "__builtin__", "numpy") and name in _CALLED:
            return _CALLED[name]
        raise pickle.UnpicklingError(f"it calls {module}.{name}")


def _slots(path: Path) -> np.ndarray:
    """Return the slots of a pickled set.

    Raises:
        DatasetError: the file is damaged, or holds something else.
    """
    with reading(f"{path}, a set of whole numbers,"), gzip.open(path) as file:
        slots = _Slots(file).load()
    if not isinstance(slots, set) or not all(type(each) is int for each in slots):
        raise DatasetError(f"{path} holds no set of whole numbers.")
    return np.array(sorted(slots), np.int64)
