"""Where TorchRL keeps rows: in TensorDicts, storages, buffers and folders; and their order of time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...store.errors import DatasetError
from .hdf5 import reading
from .objects import array_tree, class_names, unrolled

_DTYPES = {
    f"torch.{name}": name for name in ("float16", "float32", "float64", "uint8", "int8", "int16", "bool")
}
_DTYPES |= {f"torch.{name}": name for name in ("int32", "int64", "uint16", "uint32", "uint64")}
_EXPECTED = "Expected a TensorDict, a storage, a replay buffer, or a folder of TensorDict.memmap or dumps"


@dataclass(frozen=True)
class FoundRows:
    """What was found.

    Attributes:
        place: names it in messages.
        values: arrays by key, whose first dimensions are `batch`.
        batch: the batch size.
        filled: how many rows a storage has; None if it is none.
        cursor: where the next one goes; None where only the buffer of the storage knows.
    """

    place: str
    values: Mapping[str, Any]
    batch: tuple[int, ...]
    filled: int | None = None
    cursor: int | None = None

    @property
    def is_wrapped(self) -> bool:
        """Whether the oldest row of a storage stands behind newer ones."""
        return self.is_full and bool(self.cursor)

    @property
    def is_full(self) -> bool:
        """Whether it is a storage without room for more rows."""
        return self.filled is not None and self.filled >= int(np.prod(self.batch))


def rows_in_memory(source: Any) -> FoundRows:
    """Return the rows of an object.

    Raises:
        DatasetError: it holds no TensorDict, or does not keep the order of time.
    """
    place = type(source).__name__
    filled, cursor = None, None
    if "ReplayBuffer" in class_names(source, "torchrl"):
        writer = source._writer
        if not class_names(writer, "torchrl") & {"RoundRobinWriter", "ImmutableDatasetWriter"}:
            raise DatasetError(f"{place} has a {type(writer).__name__}, which does not keep the order.")
        # Nothing is written to a dataset of TorchRL.
        cursor, source = int(getattr(writer, "_cursor", 0)), source._storage
    if "Storage" in class_names(source, "torchrl"):
        filled, source = len(source), source._storage
    if "TensorDictBase" not in class_names(source, "tensordict"):
        raise DatasetError(f"{place} holds no TensorDict. {_EXPECTED}.")
    with reading(place):
        return FoundRows(place, array_tree(source), tuple(source.batch_size), filled, cursor)


def rows_in_folder(path: Path) -> FoundRows:
    """Return the rows of a folder.

    Raises:
        DatasetError: it holds no TensorDict, or is damaged.
    """
    folder = _storage_folder(path)
    with reading(path):
        meta = _meta(folder)
        if not _is_tensordict(meta):
            raise DatasetError(f"{path} holds no TensorDict. {_EXPECTED}.")
        filled, cursor = None, None if folder == path else 0
        if (folder / "storage_metadata.json").exists():
            filled = int(json.loads((folder / "storage_metadata.json").read_text())["len"])
        if (path / "writer" / "metadata.json").exists():
            cursor = int(json.loads((path / "writer" / "metadata.json").read_text())["cursor"])
        return FoundRows(str(path), _memmaps(folder, meta), tuple(meta["shape"]), filled, cursor)


def is_folder(path: Path) -> bool:
    """Return whether a folder has a TensorDict, or a buffer with one."""
    try:
        return _is_tensordict(_meta(_storage_folder(path)))
    except (OSError, ValueError):
        return False


def _storage_folder(path: Path) -> Path:
    return path / "storage" if (path / "storage").is_dir() else path


def _meta(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "meta.json").read_text())
    return found if isinstance(found, dict) else {}


def _is_tensordict(meta: Mapping[str, Any]) -> bool:
    return "TensorDict" in str(meta.get("_type")) and "shape" in meta


def _memmaps(folder: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a folder by key; None for those that are no plain tensors."""
    found: dict[str, Any] = {}
    for name, entry in meta.items():
        if not isinstance(entry, dict):
            continue
        if Path(name).name != name:
            raise ValueError(f"the key {name!r} leads out of {folder}")
        if entry.get("type") == "TensorDict":
            found[name] = _memmaps(folder / name, _meta(folder / name))
        elif entry.get("dtype") in _DTYPES and not entry.get("is_nested"):
            shape, dtype = tuple(entry["shape"]), _DTYPES[entry["dtype"]]
            file = folder / f"{name}.memmap"
            found[name] = (
                np.memmap(file, dtype, "r", shape=shape) if 0 not in shape else np.zeros(shape, dtype)
            )
        else:
            found[name] = None
    return found


def order_of(found: FoundRows, values: Mapping[str, Any]) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Return the rows in order of time, how many belong to each environment, and where padding followed."""
    padded = np.array([], np.int64)
    if found.filled is not None:
        capacity, lanes = found.batch[0], int(np.prod(found.batch[1:]))
        filled = found.filled // max(1, lanes)
        oldest = (found.cursor or 0) if found.is_wrapped else 0
        order = unrolled([(lane, capacity, filled, oldest) for lane in range(lanes)], lanes)
        counts = [filled] * lanes
    else:
        length = found.batch[-1] if found.batch else 0
        order = np.arange(int(np.prod(found.batch)))
        counts = [length] * (len(order) // max(1, length))
        mask = values.get("collector", {}).get("mask")
        if mask is not None:
            # Of `split_trajectories`, which fills up each trajectory.
            order = np.flatnonzero(mask.reshape(-1))
            padded = np.cumsum(mask.reshape(-1, length).sum(axis=1)) - 1
            counts = [len(order)]
    ids = ids_of(values)
    if ids is not None and len(counts) == 1:
        _, firsts, numbers = np.unique(ids[order], return_index=True, return_inverse=True)
        if np.count_nonzero(np.diff(numbers)) >= len(firsts):
            # The steps of several environments take turns.
            order = order[np.argsort(firsts[numbers], kind="stable")]
    return order, counts, padded


def ids_of(values: Mapping[str, Any]) -> np.ndarray | None:
    """Return the trajectory of each row; None if there are none."""
    ids = values.get("collector", {}).get("traj_ids", values.get("traj_ids"))
    return None if ids is None or ids.size != len(ids) else np.asarray(ids).reshape(-1)


def changes(ids: np.ndarray | None, order: np.ndarray) -> np.ndarray:
    """Return whether another trajectory begins behind each row in order of time, as bool."""
    found = np.zeros(len(order), bool)
    if ids is not None:
        found[:-1] = np.diff(ids[order]) != 0
    return found
