"""OGBench datasets: an `.npz` file with flat rows, of which `terminals` are the last of each trajectory.

A row has an observation and the action taken there. The row with a terminal holds the last observation of its
trajectory; OGBench's `load_dataset` leaves out its action, whose next observation is not stored, and takes no
row after it as the next one. The terminal says that "the dataset trajectory is over, regardless of task
completion", and the last transition that is kept had ended nothing, so every episode is cut.

Files have no rewards: these depend on the task, and OGBench computes them from `qpos` and `button_states`
when a task is chosen. Where a file has `rewards`, row k has that of transition k. Other arrays, `masks` among
them, become step columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.errors import DatasetError
from ..writers.importing.boundary import closed_on_error
from ..writers.importing.flat import FlatDataset, FlatRows, action_space_of, extra_column
from ..writers.importing.formats import NO_REWARDS, ForeignDataset, Format, ImportOptions, Match
from ..writers.importing.hdf5 import as_flags, box_of, check_lengths
from ..writers.importing.npy import NpzFile, look_into_npz, npz_path

_COLUMNS = ("observations", "actions", "terminals")
_REWARDS = "rewards"


def _detect(source: Any) -> Match:
    """Look for the arrays."""
    path = npz_path(source)
    if path is None:
        return Match("it is no .npz file", 3, related=False)
    return look_into_npz(path, *_COLUMNS)


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a file."""
    path = npz_path(source)
    if path is None:
        raise DatasetError(f"{source!s:.200} is no .npz file, so it is no OGBench dataset.")
    file = NpzFile(path)
    with closed_on_error(file):
        return _Dataset(file, options)


class _Dataset(FlatDataset):
    def __init__(self, file: NpzFile, options: ImportOptions) -> None:
        super().__init__()
        self._file, path = file, file.path
        arrays = {name: self._file.open(name) for name in dict.fromkeys((*_COLUMNS, *self._file.names))}
        total = check_lengths(path, arrays)
        observations, actions = arrays.pop("observations"), arrays.pop("actions")
        lasts = as_flags(arrays.pop("terminals")[()], f"{path}: terminals")
        lasts[-1:] = True
        rewards = arrays.pop(_REWARDS, None)
        if rewards is None:
            self.losses.add(NO_REWARDS, total - int(lasts.sum()))
        self.observation_space = options.observation_space or box_of(observations, "observation_space")
        self.action_space = options.action_space or action_space_of(actions)
        extras = {extra_column(name, "ogbench"): array for name, array in arrays.items()}
        self.mapping = {
            "observation": "observations",
            "action": "actions",
            "reward": "NaN" if rewards is None else _REWARDS,
            "last observation": "the rows with terminals",
            **{name: array.name for name, array in extras.items()},
        }
        rows = FlatRows(
            place=str(path),
            observation=observations,
            action=actions,
            reward=rewards,
            terminated=np.zeros(total, bool),
            truncated=np.zeros(total, bool),
            ends=np.flatnonzero(lasts),
            stands=lasts,
            passed=extras,
        )
        self.set_rows(rows, options)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


FORMAT = Format("ogbench", None, "an .npz file with observations, actions and terminals", _detect, _open)
