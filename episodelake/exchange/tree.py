"""Trees of arrays by a mapping of paths: HDF5 files and zarr stores that no other format recognises.

`episode` of the mapping says where the episodes are: a pattern of groups (`data/demo_*`), to which the other
paths are relative; `el.FILE`, where each file is one; or the path of an array of flat rows: as long as the
actions it has the episode of each row, and otherwise the end of each episode. Paths name arrays or groups; a
list of arrays makes vectors. Arrays that the mapping does not name are counted as lost.

The flags are those of the mapping, as for tables. Observations with a row more than the actions have the last
one; otherwise the last row of `next_observation` is it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DatasetError, InvalidArgumentError
from ..plugin import FlatTree, ForeignDataset, GroupedTree, ImportOptions, Match, TreeLayout, tree_format
from ..writers.importing.formats import SPACES
from ..writers.importing.hdf5 import member
from .table.mapping import FILE, ColumnMapping, column_mapping

_NOT_TAKEN = ("step", "agent", "info", "policy", "seed", "action_leads_to")


def _layout(mapping: ColumnMapping) -> TreeLayout:
    """Return the layout of a mapping.

    Raises:
        InvalidArgumentError: it names what only tables have.
    """
    metadata = _named(mapping.metadata)
    twice = sorted(path for path, count in Counter(metadata.values()).items() if count > 1)
    if twice:
        raise InvalidArgumentError(f"The mapping gives two names to the metadata {twice[0]}; give one.")
    given = [name for name in _NOT_TAKEN if getattr(mapping, name)]
    if given or not isinstance(mapping.episode, str) or not isinstance(mapping.reward, str | None):
        what = ", ".join(given) or "several columns for episode or reward"
        raise InvalidArgumentError(f"The mapping has {what}, which trees of arrays do not take; tables do.")
    return TreeLayout(
        episode="" if mapping.episode == FILE else mapping.episode,
        observation=mapping.observation,
        action=mapping.action,
        following=mapping.next_observation,
        reward=mapping.reward,
        terminated=mapping.terminated,
        truncated=mapping.truncated,
        done=mapping.done,
        extra=_named(mapping.extra),
        needed=True,
        metadata=metadata,
    )


def _named(paths: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return names to paths; without names, each path is its own."""
    if isinstance(paths, Mapping):
        return dict(paths)
    return {path: path for path in ([paths] if isinstance(paths, str) else paths)}


def _look(file: Any) -> Match:
    names = ", ".join(list(file)[:8]) or "nothing"
    return Match(f"it has {names}: name paths with mapping= (--map)", 1, mappable=True)


def _open(path: Path, file: Any, options: ImportOptions) -> ForeignDataset:
    if options.mapping is None:
        raise DatasetError(
            f"{path} is a tree of arrays, and which of them are observations and actions is unknown. It has "
            f"{', '.join(list(file)[:20])}. Name them with mapping=dict(observation=..., action=..., "
            'episode="data/demo_*") (--map).'
        )
    layout = _layout(column_mapping(options.mapping))
    is_flat = layout.episode and hasattr(member(file, layout.episode), "shape")
    if is_flat and layout.metadata:
        raise InvalidArgumentError(
            f"The mapping names metadata, and {path} has flat rows of all episodes. Name step columns with "
            "extra= instead."
        )
    return (FlatTree if is_flat else GroupedTree)(path, file, options, layout)


FORMAT = tree_format(
    "tree",
    ["hdf5", "zarr"],
    "'episodelake[hdf5]' or 'episodelake[zarr]'",
    "HDF5 files or zarr stores, one or a folder, with mapping= by path",
    _look,
    _open,
    checked=False,
    options=("mapping", *SPACES),
    general=True,
)
"""Trees of arrays by a mapping."""
