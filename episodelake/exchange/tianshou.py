"""Tianshou's replay buffers, in memory or as `save_hdf5` writes them.

Row k holds the observation, action, reward and flags of one transition, `policy` beside its observation, and
`info` as the step returned it, so it belongs to the next observation (`Collector` of Tianshou 2 adds it so).
`terminated` and `truncated` are the columns of these names. In a full buffer the oldest row is the one after
the newest (`ReplayBuffer.sample_indices(0)`). Each environment of a `VectorReplayBuffer` has a ring of its
own; its last episode is cut unless it has a flag. The last observation comes from `obs_next`; a buffer with
`ignore_obs_next=True` lacks it.

`save_hdf5` pickles what HDF5 does not hold: arrays of objects, the generator, and the parts of a
`VectorReplayBuffer`, which share the arrays of the whole. None of that is read.

`view.to` makes a full `ReplayBuffer`, of which `last_index` is the last row; its own `from_data` leaves it at
0, so that the first transition would have itself as the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from .. import EpisodeView
from ..errors import DatasetError
from ..plugin import (
    ForeignDataset,
    Format,
    ImportOptions,
    Match,
    reading,
    require,
)
from ..plugin.columns import INFO, POLICY
from ..readers.exporting.conversions import Converted, flat_transitions
from ..readers.exporting.step_arrays import SIMPLE_SPACES, refuse_spaces
from ..writers.importing.flat import (
    BEGUN,
    FlatDataset,
    FlatRows,
    action_space_of,
    array_tree,
    class_names,
    tree_leaves,
    unrolled,
)
from ..writers.importing.hdf5 import (
    Hdf5Dataset,
    flags_of,
    looked_into,
    member,
    members,
    missing_names,
    plain,
    space_of,
)

_NEEDED = ("obs", "act", "rew", "terminated", "truncated")
_MAPPING = {
    "observation": "obs",
    "action": "act",
    "reward": "rew",
    "terminated": "terminated",
    "truncated": "truncated",
    "info": "info",
    "policy": "policy",
}
_TYPE = "__data_type__"
_ARRAYS = ("ndarray", "Tensor")


def _detect(source: Any) -> Match:
    """Look at the classes of an object, or for the names in a file."""
    if "ReplayBuffer" in class_names(source, "tianshou"):
        return Match(f"it is a {type(source).__name__} of Tianshou")
    return looked_into(source, _look)


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a buffer."""
    if "ReplayBuffer" in class_names(source, "tianshou"):
        return _Buffer(source, options)
    return _File(source, options)


def _look(file: Any) -> Match:
    lacking = missing_names(file, "_meta", "last_index") + missing_names(file.attrs, "maxsize", "_size")
    if lacking:
        return Match(f"it has no {', '.join(lacking)}", len(lacking))
    return Match(f"it has the _meta of a buffer for {file.attrs['maxsize']:,} transitions")


class _Buffer(FlatDataset):
    """A buffer in memory."""

    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__()
        _set_rows(self, type(source).__name__, _tree(source._meta), vars(source), options)


class _File(Hdf5Dataset, FlatDataset):
    """A file of `save_hdf5`."""

    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__(source, "Tianshou")
        _look(self.file).check(f"{self.path} is no buffer of Tianshou")
        with reading(self.path):
            state = plain(members(self.file.attrs))
            for name in ("last_index", "_lengths", "_extend_offset", "_altered_indices"):
                if name in self.file:
                    state[name] = self.file[name][()]
            values = _arrays_of(self.file["_meta"])
        _set_rows(self, str(self.path), values, state, options)


class _Pickled:
    """Stands for an array of objects, which is pickled."""

    dtype = np.dtype(object)


def _arrays_of(node: Any) -> Any:
    """Return the arrays of a group of a file."""
    if hasattr(node, "items"):
        return {name: _arrays_of(part) for name, part in members(node).items()}
    return node if member(node.attrs, _TYPE) in _ARRAYS else _Pickled()


def _tree(batch: Any) -> Any:
    """Return the arrays of a `Batch`, which keeps them as attributes."""
    if "Batch" in class_names(batch, "tianshou"):
        batch = vars(batch)
    return (
        {key: _tree(part) for key, part in batch.items()} if isinstance(batch, Mapping) else array_tree(batch)
    )


def _set_rows(
    dataset: FlatDataset,
    place: str,
    values: Mapping[str, Any],
    state: Mapping[str, Any],
    options: ImportOptions,
) -> None:
    """Give a dataset what a buffer states, and its rows."""
    lacking = missing_names(values, *_NEEDED)
    lanes = _lanes(state)
    if lacking or not any(filled for _, _, filled, _ in lanes):
        reason = f"it has no {', '.join(lacking)}" if values else "it is empty"
        raise DatasetError(f"{place} holds no transitions: {reason}.")
    altered = [state, *(vars(each) for each in state.get("buffers", ()))]
    if any(np.size(each.get("_altered_indices", ())) for each in altered):
        raise DatasetError(
            f"{place} has goals and rewards that HERReplayBuffer replaced in sampling. Import it before "
            "it is sampled, or after a transition is added."
        )
    for name in _NEEDED:
        for path, array in tree_leaves(values[name]).items():
            _check_numbers(array, ".".join((name, *path)), place)
    flags = {name: flags_of(place, values[name], name) for name in ("terminated", "truncated")}
    rows = FlatRows(
        place=place,
        observation=values["obs"],
        action=values["act"],
        reward=values["rew"],
        following=values.get("obs_next"),
        passed=_columns(dataset, "policy", values, len(flags["terminated"])),
        arrived=_columns(dataset, "info", values, len(flags["terminated"])),
        order=unrolled(lanes),
        lanes=[filled for _, _, filled, _ in lanes],
        terminated=flags["terminated"],
        truncated=flags["truncated"],
    )
    for name in sorted(set(values) - {*_NEEDED, "done", "obs_next", "info", "policy"}):
        dataset.losses.add(f"{name}, which is no column of Tianshou")
    dataset.losses.add(BEGUN, sum(oldest > 0 for _, _, _, oldest in lanes))
    dataset.mapping = {ours: theirs for ours, theirs in _MAPPING.items() if theirs in values}
    dataset.observation_space = options.observation_space or space_of(rows.observation, "observation_space")
    dataset.action_space = options.action_space or action_space_of(rows.action)
    shape = rows.reward.shape[1:]
    dataset.reward_shape = () if shape == (1,) else shape
    dataset.set_rows(rows, options)


def _lanes(state: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """Return the ring of each environment, as `unrolled` takes them."""
    if "_lengths" not in state:
        full = state["_size"] >= state["maxsize"]
        return [(0, state["maxsize"], state["_size"], state["_insertion_idx"] if full else 0)]
    edges = np.asarray(state["_extend_offset"]).tolist()
    lanes = []
    for index, (filled, newest) in enumerate(zip(state["_lengths"], state["last_index"], strict=True)):
        first, capacity = edges[index], edges[index + 1] - edges[index]
        full = filled >= capacity
        lanes.append((first, capacity, int(filled), (int(newest) + 1 - first) % capacity if full else 0))
    return lanes


def _columns(dataset: ForeignDataset, name: str, values: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return `info` or `policy` by column of `steps`, without what is no array of numbers."""
    group = INFO if name == "info" else POLICY
    columns: dict[str, Any] = {}
    for path, array in tree_leaves(values.get(name, {})).items():
        if getattr(array, "dtype", np.dtype(object)).kind not in "biufSU" or len(array) != rows:
            dataset.losses.add(f"{'.'.join((name, *path))}, whose values are no numbers")
        else:
            columns[group.column(path)] = array
    return columns


def _check_numbers(array: Any, name: str, place: str) -> None:
    dtype = getattr(array, "dtype", np.dtype(object))
    if dtype.kind not in "biuf":
        raise DatasetError(f"{place}: {name} has the dtype {dtype}; expected arrays of numbers.")


def to_tianshou(view: EpisodeView, target: str) -> Converted:
    """Return a full `tianshou.data.ReplayBuffer`."""
    data = require("tianshou.data", "view.to.tianshou()", "tianshou")
    flat, export = flat_transitions(view, target)
    manifest = export.context.snapshot.manifest
    for column, space in (("observation", manifest.observation_space), ("action", manifest.action_space)):
        refuse_spaces(target, column, space, (*SIMPLE_SPACES, spaces.Dict))
    buffer = data.ReplayBuffer(len(flat))
    buffer.set_batch(
        data.Batch(
            obs=flat.observation,
            act=flat.action,
            rew=flat.reward,
            terminated=flat.terminated,
            truncated=flat.truncated,
            done=flat.done,
            obs_next=flat.next_observation,
        )
    )
    buffer._size = len(flat)
    buffer.last_index[:] = len(flat) - 1
    return buffer, export.losses


FORMAT = Format(
    "tianshou",
    "'episodelake[hdf5]'",
    "a ReplayBuffer of Tianshou, or an HDF5 file with _meta and maxsize, as save_hdf5 writes it",
    _detect,
    _open,
)
