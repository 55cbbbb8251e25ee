"""The forms of imitation's trajectories: objects, Hugging Face folders, and the files of older releases.

Each gives the fields of one trajectory at a time, by name. Pickles are read only with `trust=True`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import DatasetError
from ...plugin import check_unpickled, inside, reading, require
from ...plugin.files import is_file
from ...writers.importing.boundary import closed_on_error
from ...writers.importing.flat import class_names, tree_leaves
from ...writers.importing.npy import NpzFile

FIELDS = ("obs", "acts", "terminal", "infos", "rews")
NEEDED = ("obs", "acts", "terminal")
_STATE = "state.json"


class Trajectories(ABC):
    """Trajectories by number.

    Attributes:
        place: names the source in messages.
        lost: what none of them brings, and how often.
    """

    place: str

    def __init__(self) -> None:
        self.lost: dict[str, int] = {}

    @abstractmethod
    def __len__(self) -> int:
        """Return how many there are."""

    @abstractmethod
    def read(self, index: int, names: Sequence[str] = FIELDS) -> dict[str, Any]:
        """Return those of some fields that a trajectory has.

        Raises:
            DatasetError: it is damaged.
        """

    def close(self) -> None:  # noqa: B027 (not all hold files)
        """Close files."""


class Objects(Trajectories):
    """A sequence of imitation's `Trajectory` objects."""

    place = "imitation"

    def __init__(self, trajectories: Sequence[Any]) -> None:
        super().__init__()
        self._trajectories = trajectories
        # Other sequences are imitation's own, and reading them takes long.
        for index, each in enumerate(trajectories if isinstance(trajectories, list | tuple) else ()):
            if not is_trajectory(each):
                raise DatasetError(
                    f"Trajectory {index} is a {type(each).__name__}; expected one of imitation's."
                )

    def __len__(self) -> int:
        return len(self._trajectories)

    def read(self, index: int, names: Sequence[str] = FIELDS) -> dict[str, Any]:
        """Return fields of an object; infos that are still texts as these."""
        trajectory = self._trajectories[index]
        fields = {name: getattr(trajectory, name) for name in names if hasattr(trajectory, name)}
        if hasattr(fields.get("obs"), "unwrap"):
            fields["obs"] = fields["obs"].unwrap()
        arrays = {name: fields[name] for name in ("obs", "acts", "rews") if name in fields}
        for path, values in tree_leaves(arrays).items():
            if not isinstance(values, np.ndarray):
                kind = type(values).__name__
                raise DatasetError(f"Trajectory {index}: {'.'.join(path)} is a {kind}; expected an array.")
        fields["infos"] = getattr(fields.get("infos"), "_encoded_list", fields.get("infos"))
        return fields


class Folder(Trajectories):
    """A folder of `imitation.data.serialize.save`: a dataset of Hugging Face `datasets`, memory-mapped.

    Raises:
        DatasetError: it is damaged, or its rows were chosen by an index file.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.place = str(folder)
        with reading(folder):
            state = json.loads((folder / _STATE).read_bytes())
            files = [inside(folder, each["filename"]) for each in state["_data_files"]]
            if state.get("_indices_files") or state.get("_indices_data_files"):
                raise DatasetError(
                    f"{folder / _STATE} names indices; save the dataset again to write its rows."
                )
            self._table = pa.concat_tables(
                pa.ipc.open_stream(pa.memory_map(str(path))).read_all() for path in files
            )
            # Damaged offsets would read memory that is not the file's.
            self._table.validate(full=True)
        lacking = [name for name in NEEDED if name not in self._table.column_names]
        if lacking:
            raise DatasetError(f"{folder} has no {', '.join(lacking)}; it has {self._table.column_names}.")
        for name in self._table.column_names:
            if name not in FIELDS:
                self.lost[f"{name}, which is no field of imitation's trajectories"] = len(self)

    def __len__(self) -> int:
        return self._table.num_rows

    def read(self, index: int, names: Sequence[str] = FIELDS) -> dict[str, Any]:
        """Return fields of a row."""
        fields = {name: self._table.column(name)[index] for name in names if name in self._table.column_names}
        return {
            name: value.as_py()
            if name in ("infos", "terminal")
            else _stacked(value, f"{self.place}: trajectory {index}: {name}")
            for name, value in fields.items()
        }


def _stacked(cell: Any, place: str) -> np.ndarray:
    """Return nested lists of one length each as an array."""
    values = cell.values
    if values is None:
        raise DatasetError(f"{place} is NULL.")
    shape = [len(values)]
    while not pa.types.is_primitive(values.type):
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
            continue
        if values.null_count or not hasattr(values, "value_lengths"):
            raise DatasetError(f"{place} has the type {cell.type}; expected lists of numbers without NULL.")
        lengths = values.value_lengths().unique()
        if len(lengths) > 1:
            raise DatasetError(f"{place} has rows of different lengths: {lengths.to_pylist()[:5]}.")
        shape.append(lengths[0].as_py() if len(lengths) else 0)
        values = values.flatten()
    if values.null_count:
        raise DatasetError(f"{place} has {values.null_count} NULLs; expected numbers.")
    return values.to_numpy(zero_copy_only=False).reshape(shape)


class Npz(Trajectories):
    """An `.npz` file of older releases: the fields of all trajectories, and where each begins."""

    def __init__(self, path: Path, trust: bool) -> None:
        super().__init__()
        self.place = str(path)
        self._file = NpzFile(path)
        with closed_on_error(self._file):
            self._open(path, trust)

    def _open(self, path: Path, trust: bool) -> None:
        self._arrays = {name: self._file.open(name) for name in ("obs", "acts")}
        self._terminal = self._file.open("terminal")[()]
        if "rews" in self._file.names:
            self._arrays["rews"] = self._file.open("rews")
        cuts = self._file.open("indices")[()]
        self._ends = [0, *cuts.tolist(), len(self._arrays["acts"])]
        observed = len(self._arrays["acts"]) + len(self)
        if (
            cuts.dtype.kind not in "iu"
            or self._ends != sorted(self._ends)
            or len(self._terminal) != len(self)
        ):
            raise DatasetError(f"{path}: indices and terminal do not fit acts.")
        if len(self._arrays["obs"]) != observed:
            raise DatasetError(f"{path}: obs has {len(self._arrays['obs'])} rows; expected {observed}.")
        self._infos = None
        if "infos" in self._file.names:
            if trust:
                self._infos = np.load(path, allow_pickle=True)["infos"]
            else:
                self.lost["infos, which are pickled: trust=True reads them"] = len(self._arrays["acts"])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def read(self, index: int, names: Sequence[str] = FIELDS) -> dict[str, Any]:
        """Return rows of the arrays."""
        start, stop = self._ends[index : index + 2]
        fields: dict[str, Any] = {
            # A trajectory has one observation more than actions.
            name: array[start + index : stop + index + 1] if name == "obs" else array[start:stop]
            for name, array in self._arrays.items()
            if name in names
        }
        fields["terminal"] = self._terminal[index]
        if self._infos is not None:
            fields["infos"] = self._infos[start:stop]
        return fields

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def unpickled(path: Path) -> Objects:
    """Return the trajectories of a pickle of older releases.

    Raises:
        DatasetError: the import does not trust it, or it holds something else.
    """
    check_unpickled(path)
    require("imitation.data.types", "Reading pickled trajectories", "imitation")
    with reading(path):
        loaded = np.load(path, allow_pickle=True)
    if not isinstance(loaded, Sequence):
        raise DatasetError(f"{path} holds a {type(loaded).__name__}; expected a list of trajectories.")
    return Objects(loaded)


def is_trajectory(value: Any) -> bool:
    """Return whether an object is one of imitation's trajectories."""
    return bool(class_names(value, "imitation")) and all(hasattr(value, name) for name in NEEDED)


def folder_features(source: Any) -> Mapping[str, Any] | None:
    """Return the columns of a Hugging Face dataset on disk; None for any other source."""
    if not isinstance(source, str | Path) or not is_file(Path(source) / _STATE):
        return None
    try:
        return dict(json.loads((Path(source) / "dataset_info.json").read_bytes())["features"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
