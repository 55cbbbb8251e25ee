"""TorchRL's data: TensorDicts, storages and replay buffers, in memory and in folders of `memmap` and `dumps`.

The layout is that of TorchRL's collectors (TED): row k has the observation and action, and under `next` what
the step returned. Observations are the keys that stand in both, but for flags and counters; a key beside
`next` alone came from the policy. Terminated is `next.terminated`, truncated `next.truncated`; `next.done`
with one of them gives the other. Alone it does not tell the two apart, so such an episode is cut. A
TensorDict of several dimensions has time in the last one, a storage of several in the first. In one dimension
an episode is cut where `traj_ids` change, unless a flag is set there.

The last observation comes from `next`. It is missing where it is NaN, and where all of those that follow a
flag are zeros, as in the D4RL datasets of TorchRL. Folders need neither TorchRL nor torch, and nothing in
them is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DatasetError, InvalidArgumentError
from ...plugin import (
    ForeignDataset,
    Format,
    ImportOptions,
    Match,
    inside,
    reading,
)
from ...plugin.columns import INFO, POLICY
from ...plugin.files import exists, is_folder
from ...writers.importing.flat import (
    BEGUN,
    FlatDataset,
    FlatRows,
    Tree,
    action_space_of,
    array_tree,
    class_names,
    tree_leaves,
    unrolled,
)
from ...writers.importing.formats import NO_REWARDS, SPACES
from ...writers.importing.hdf5 import flags_of, space_of

_DTYPES = {
    f"torch.{name}": name for name in ("float16", "float32", "float64", "uint8", "int8", "int16", "bool")
}
_DTYPES |= {f"torch.{name}": name for name in ("int32", "int64", "uint16", "uint32", "uint64")}
_EXPECTED = "Expected a TensorDict, a storage, a replay buffer, or a folder of TensorDict.memmap or dumps"


@dataclass(frozen=True)
class FoundRows:
    """Keys of a TensorDict by their meaning.

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
        """Whether the oldest row of a storage comes after newer ones."""
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
    if "ListStorage" in class_names(source, "torchrl"):
        # A list that may still grow has its rows in order.
        filled, cursor = (len(source), cursor) if len(source) >= source.max_size else (None, None)
        source = _stacked(place, source._storage)
    elif "Storage" in class_names(source, "torchrl"):
        filled, source = len(source), source._storage
    if "TensorDictBase" not in class_names(source, "tensordict"):
        raise DatasetError(f"{place} holds no TensorDict. {_EXPECTED}.")
    with reading(place):
        return FoundRows(place, array_tree(source), tuple(source.batch_size), filled, cursor)


def _stacked(place: str, items: list[Any]) -> Any:
    """Return the transitions of a `ListStorage` as one TensorDict.

    Raises:
        DatasetError: an item is no transition, or they have other keys or shapes.
    """
    for index, item in enumerate(items):
        if "TensorDictBase" not in class_names(item, "tensordict") or len(item.batch_size):
            shown = getattr(item, "batch_size", type(item).__name__)
            raise DatasetError(
                f"{place}: item {index} is {shown}; expected TensorDicts of one transition, of batch size []."
            )
    if not items:
        raise DatasetError(f"{place} holds no transitions: it is empty.")
    with reading(place):
        import torch

        return torch.stack(list(items))  # pyright: ignore[reportArgumentType]


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
        if exists(folder / "storage_metadata.json"):
            filled = int(json.loads((folder / "storage_metadata.json").read_text())["len"])
        if exists(path / "writer" / "metadata.json"):
            cursor = int(json.loads((path / "writer" / "metadata.json").read_text())["cursor"])
        return FoundRows(str(path), _memmaps(folder, meta), tuple(meta["shape"]), filled, cursor)


def is_written(path: Path) -> bool:
    """Return whether a folder has a TensorDict, or a buffer with one."""
    try:
        return _is_tensordict(_meta(_storage_folder(path)))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return False


def _storage_folder(path: Path) -> Path:
    return path / "storage" if is_folder(path / "storage") else path


def _meta(folder: Path) -> dict[str, Any]:
    meta = json.loads((folder / "meta.json").read_text())
    return meta if isinstance(meta, dict) else {}


def _is_tensordict(meta: Mapping[str, Any]) -> bool:
    return "TensorDict" in str(meta.get("_type")) and "shape" in meta


def _memmaps(folder: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a folder by key; None for those that are no plain tensors."""
    arrays: dict[str, Any] = {}
    for name, entry in meta.items():
        if not isinstance(entry, dict):
            continue
        part = inside(folder, name)
        if entry.get("type") == "TensorDict":
            arrays[name] = _memmaps(part, _meta(part))
        elif entry.get("dtype") in _DTYPES and not entry.get("is_nested"):
            shape, dtype = tuple(entry["shape"]), _DTYPES[entry["dtype"]]
            file = folder / f"{name}.memmap"
            arrays[name] = (
                np.memmap(file, dtype, "r", shape=shape) if 0 not in shape else np.zeros(shape, dtype)
            )
        else:
            arrays[name] = None
    return arrays


def order_of(rows: FoundRows, values: Mapping[str, Any]) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Return the rows in order of time, how many belong to each environment, and where padding followed."""
    padded = np.array([], np.int64)
    if rows.filled is not None:
        capacity, lanes = rows.batch[0], int(np.prod(rows.batch[1:]))
        filled = rows.filled // max(1, lanes)
        oldest = (rows.cursor or 0) if rows.is_wrapped else 0
        order = unrolled([(lane, capacity, filled, oldest) for lane in range(lanes)], lanes)
        counts = [filled] * lanes
    else:
        length = rows.batch[-1] if rows.batch else 0
        order = np.arange(int(np.prod(rows.batch)))
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
    """Return whether another trajectory begins after each row in order of time, as bool."""
    changed = np.zeros(len(order), bool)
    if ids is not None:
        changed[:-1] = np.diff(ids[order]) != 0
    return changed


_FLAGS = ("terminated", "truncated", "done")
_COUNTERS = ("step_count", "reward_sum", "episode_reward", "is_init")
_OWN = ("next", "action", "collector", "index", "_weight", "priority_weight", *_FLAGS, *_COUNTERS)
_OBVIOUS = ("observation", "pixels")
_BLOCK_ROWS = 1024
_ORDER = "which row of a full storage is the oldest, which its replay buffer knows: the first is taken for it"
_DONES = "whether an episode that was done was terminated or truncated, which the data do not tell: it is cut"


def _detect(source: Any) -> Match:
    """Look at the classes of an object, or at meta.json of a folder."""
    if class_names(source, "tensordict") or class_names(source, "torchrl"):
        return Match(f"it is a {type(source).__name__} of TorchRL")
    if not isinstance(source, str | Path) or not is_folder(Path(source)):
        return Match("it is neither an object of TorchRL nor a folder", 9, related=False)
    match = is_written(Path(source))
    return Match(
        "it has meta.json of a TensorDict" if match else "it has no meta.json of a TensorDict", 1 - match
    )


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open an object or a folder."""
    rows = rows_in_folder(Path(source)) if isinstance(source, str | Path) else rows_in_memory(source)
    return _Data(rows, options)


class _Data(FlatDataset):
    def __init__(self, source: FoundRows, options: ImportOptions) -> None:
        super().__init__()
        values = self._flattened(source.values, source)
        after = values.get("next")
        if not isinstance(after, dict) or "action" not in values or not {*_FLAGS} & set(after):
            raise DatasetError(
                f"{source.place} has the keys {', '.join(values)}; expected TED: action and next.done."
            )
        order, lanes, padded = order_of(source, values)
        if not len(order):
            raise DatasetError(f"{source.place} holds no transitions: it is empty.")
        observed = _observed(source.place, values, after, options)
        following = _chosen(after, observed) if all(name in after for name in observed) else None
        terminated, truncated, done = self._ends(source.place, after)
        rows = FlatRows(
            place=source.place,
            observation=_chosen(values, observed),
            action=values["action"],
            reward=after.get("reward"),
            terminated=terminated,
            truncated=truncated,
            ends=np.union1d(padded, np.flatnonzero(done[order] | changes(ids_of(values), order))),
            following=following,
            followed=_followed(following, order, terminated | truncated | done),
            passed=self._columns(POLICY, {k: v for k, v in values.items() if k not in (*_OWN, *observed)}),
            arrived=self._columns(
                INFO, {k: v for k, v in after.items() if k not in (*_FLAGS, "reward", *observed)}
            ),
            order=order,
            lanes=lanes,
        )
        self.set_rows(rows, options)
        self.observation_space = options.observation_space or space_of(rows.observation, "observation_space")
        self.action_space = options.action_space or action_space_of(rows.action)
        self.losses.add(BEGUN, len(lanes) * source.is_wrapped)
        self.losses.add(_ORDER, len(lanes) * (source.is_full and source.cursor is None))
        if rows.reward is None:
            self.losses.add(NO_REWARDS, len(order))
        elif rows.reward.shape[1:] not in ((), (1,)):
            self.reward_shape = rows.reward.shape[1:]
        self.mapping = {
            "observation": ", ".join(observed),
            "action": "action",
            "reward": "next.reward",
            "terminated": "next.terminated",
            "truncated": "next.truncated",
        }

    def _flattened(self, values: Any, rows: FoundRows, path: str = "") -> Any:
        """Return arrays with one dimension for the batch; counts those that are no tensors of numbers."""
        if isinstance(values, Mapping):
            parts = {name: self._flattened(part, rows, f"{path}.{name}") for name, part in values.items()}
            return {name: part for name, part in parts.items() if part is not None}
        kind = getattr(values, "dtype", np.dtype(object)).kind
        if kind not in "biuf" or values.shape[: len(rows.batch)] != rows.batch:
            self.losses.add(f"{path[1:]}, which is no tensor of numbers")
            return None
        return values.reshape(int(np.prod(rows.batch)), *values.shape[len(rows.batch) :])

    def _columns(self, group: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        columns = {group.column(path): array for path, array in tree_leaves(values).items() if path}
        # Most keys have a last dimension of one.
        return {name: array[:, 0] if array.shape[1:] == (1,) else array for name, array in columns.items()}

    def _ends(self, place: str, after: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where episodes terminated, were truncated, and were done."""
        given = {name: flags_of(place, after[name], f"next.{name}") for name in _FLAGS if name in after}
        never = np.zeros(len(next(iter(given.values()))), bool)
        done, truncated = given.get("done", never), given.get("truncated", never)
        terminated = given.get("terminated", never)
        if "terminated" in given and "truncated" not in given:
            truncated = done & ~terminated
        elif "terminated" not in given and "truncated" in given:
            terminated = done & ~truncated
        elif "terminated" not in given:
            self.losses.add(_DONES, int(done.sum()))
        return terminated, truncated, done


def _observed(
    place: str, values: Mapping[str, Any], after: Mapping[str, Any], options: ImportOptions
) -> list[str]:
    """Return the keys of the observations."""
    if not isinstance(options.mapping, Mapping | None) or set(options.mapping or ()) - {"observation"}:
        raise InvalidArgumentError(
            f"mapping={options.mapping!r:.200} has other keys than 'observation', whose value names the "
            "keys of the observations."
        )
    given = (options.mapping or {}).get("observation", [])
    # A collector with `compact_obs=True` leaves next observations out.
    arrays = (
        ([given] if isinstance(given, str) else list(given))
        or [name for name in values if name in after and name not in (*_OWN, "reward")]
        or [name for name in _OBVIOUS if name in values]
    )
    lacking = [name for name in arrays if name not in values]
    if lacking or not arrays:
        raise DatasetError(
            f"{place} has no {', '.join(lacking) or 'key of observations'}; it has {', '.join(values)}. Name "
            'the keys with mapping={"observation": [...]}.'
        )
    return arrays


def _chosen(values: Mapping[str, Any], names: list[str]) -> Tree:
    return values[names[0]] if len(names) == 1 else {name: values[name] for name in names}


def _followed(following: Tree | None, order: np.ndarray, ended: np.ndarray) -> np.ndarray | None:
    """Return which rows that end an episode have a next observation; None if there are none at all."""
    if following is None:
        return None
    rows = order[ended[order]]
    there, zeros = np.ones(len(ended), bool), np.ones(len(ended), bool)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        for array in tree_leaves(following).values():
            values = array[block].reshape(len(block), -1)
            zeros[block] &= ~values.any(axis=1)
            if array.dtype.kind == "f" and values.shape[1]:
                there[block] &= ~np.isnan(values).all(axis=1)
    if len(rows) and zeros[rows].all():
        there[rows] = False
    return there


FORMAT = Format(
    "torchrl",
    None,
    "a TensorDict, storage or replay buffer of TorchRL, or a folder with meta.json of a TensorDict",
    _detect,
    _open,
    ("mapping", *SPACES),
)
