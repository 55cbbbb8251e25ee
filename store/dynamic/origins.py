"""Dtypes and shapes of array columns by the run of their rows, for frames that cannot keep them.

A frame of Polars, or a result of DuckDB, has no metadata: of an int8 array of shape (2, 3) it shows six
int16 numbers. But its rows have their `episode_id`, which names their run. So a process remembers the kinds
of the array columns of every run whose tables it has handed to an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from . import logical_types as kinds

_KINDS: dict[str, Mapping[str, str]] = {}


def array_kinds(fields: Iterable[pa.Field]) -> dict[str, str]:
    """Return the kinds of those columns whose values are arrays, by name; a file may claim any kind."""
    found = {field.name: kinds.field_kind(field) for field in fields}
    return {name: kind for name, kind in found.items() if kind is not None and kinds.is_array(kind)}


def remember(runs: Iterable[str], columns: Mapping[str, str]) -> None:
    """Remember the kinds of array columns in rows of some runs."""
    _KINDS.update(dict.fromkeys(runs, columns))


def remembered(episodes: Iterable[Any]) -> dict[str, str]:
    """Return the kinds of array columns in rows of episodes with these ids.

    Kinds on which the runs of these episodes do not agree are left out; all are if one of the ids is none of
    a remembered run.
    """
    found: dict[str, set[str]] = {}
    for run in {each.rpartition("/")[0] if isinstance(each, str) else None for each in episodes}:
        if run not in _KINDS:
            return {}
        for name, kind in _KINDS[run].items():
            found.setdefault(name, set()).add(kind)
    return {name: min(each) for name, each in found.items() if len(each) == 1}
