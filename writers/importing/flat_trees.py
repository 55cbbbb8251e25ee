"""Trees of arrays with one row for each step, of all episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...store.dynamic.column_groups import EXTRA, INFO
from ...store.errors import DatasetError
from .boundary import reading
from .flat import FlatDataset, FlatRows
from .formats import NO_REWARDS, ImportOptions
from .hdf5 import check_lengths, flags_of, leaves, members, plain, whole
from .layouts import TreeDataset, TreeLayout, is_below, is_reserved, leaves_of

_FLAGS = ("terminated", "truncated", "done", "last")


class FlatTree(TreeDataset, FlatDataset):
    """A dataset of one tree, with a row for each step of its episodes, one after the other.

    Attributes:
        left_out: why arrays without a role do not come over, for the losses.

    Raises:
        DatasetError: it lacks an array, or they have other lengths.
    """

    left_out = "the mapping does not name"

    def __init__(self, path: Path, file: Any, options: ImportOptions, layout: TreeLayout) -> None:
        super().__init__(path, file, options, layout)
        place = str(path)
        with reading(path):
            arrays = leaves(file)
            observation = self.part(file, layout.observation, place)
            action = self.part(file, layout.action, place)
            after = layout.there("following", file)
            following = None if after is None else self.part(file, after, place)
            single = {role: arrays[at] for role in ("reward", *_FLAGS) if (at := layout.there(role, file))}
            passed = self._infos(arrays) | self._extras(arrays, place)
            some = (observation, action, following, single, passed)
            named = [array for tree in some for array in leaves_of(tree)]
            total = check_lengths(path, {str(array.name).strip("/"): array for array in named})
            self.spaces_of(observation, action)
            self.card = plain(members(file.attrs))
        flags = {
            role: flags_of(path, single[role], getattr(layout, role)) for role in _FLAGS if role in single
        }
        if "last" in flags:
            flags["last"][-1:] = True
        if "reward" not in single:
            self.losses.add(NO_REWARDS, total - int(flags.get("last", np.zeros(1)).sum()))
        self.mapping = layout.described(file) | {
            name: str(array.name).strip("/") for name, array in passed.items() if not name.startswith("info.")
        }
        ends = [np.flatnonzero(flags[role]) for role in ("done", "last") if role in flags]
        ends += [self._ends_of(arrays, layout.episode, total)] if layout.episode else []
        terminated, truncated = _flags(flags, total)
        rows = FlatRows(
            place=place,
            observation=observation,
            action=action,
            reward=single.get("reward"),
            terminated=terminated,
            truncated=truncated,
            ends=np.unique(np.concatenate(ends)) if ends else None,
            following=following,
            stands=flags.get("last"),
            passed=passed,
        )
        self.set_rows(rows, options)

    def _infos(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        group = self.layout.info
        return {
            INFO.column(name.split("/")[1:]): array
            for name, array in arrays.items()
            if group is not None and is_below(name, group)
        }

    def _extras(self, arrays: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Return the arrays that become step columns, by their names; count those left out."""
        layout = self.layout
        rest = layout.without_role(arrays)
        layout.check_named(rest, place)
        named = {name: name for name in rest}
        if layout.extra is not None:
            named = {path: name for name, path in layout.extra.items() if path in rest}
            for path in rest.keys() - named.keys():
                self.losses.add(f"{path}, which {self.left_out}")
        return {
            EXTRA.column(((self.own_name,) if is_reserved(name) else ()) + tuple(name.split("/"))): rest[path]
            for path, name in named.items()
        }

    def _ends_of(self, arrays: Mapping[str, Any], path: str, total: int) -> np.ndarray:
        """Return the last rows of the episodes, of their ends or of the numbers of the episode of each row.

        Raises:
            DatasetError: the array has neither.
        """
        where = f"{self.path}: {path}"
        if path not in arrays:
            raise DatasetError(f"{self.path} has no {path}; it has {', '.join(list(arrays)[:20])}.")
        values = whole(arrays[path], where)
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise DatasetError(f"{where} has {values.dtype} of shape {values.shape}; expected whole numbers.")
        if len(values) == total:
            lasts = np.flatnonzero(np.append(values[1:] != values[:-1], True)[:total])
            if len(np.unique(values[lasts])) != len(lasts):
                raise DatasetError(f"{where}: the rows of an episode must be neighbours.")
            return lasts
        if len(values) and ((values[1:] < values[:-1]).any() or values[0] < 0 or values[-1] > total):
            raise DatasetError(f"{where}: {values[-8:]} are no ends of episodes in {total:,} rows.")
        return np.unique(values[values > 0]).astype(np.int64) - 1


def _flags(flags: Mapping[str, np.ndarray], total: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows terminate and which truncate an episode; `done` with one of them gives the other."""
    none, done = np.zeros(total, bool), flags.get("done")
    terminated, truncated = flags.get("terminated"), flags.get("truncated")
    if done is not None and terminated is not None and truncated is None:
        truncated = done & ~terminated
    elif done is not None and truncated is not None and terminated is None:
        terminated = done & ~truncated
    return none if terminated is None else terminated, none if truncated is None else truncated
