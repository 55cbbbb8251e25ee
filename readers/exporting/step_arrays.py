"""The values of an episode as arrays: parts of its spaces, and step columns that are there at every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import Space, spaces

from ...store.dynamic.column_groups import EXTRA, INFO, POLICY, ColumnGroup
from ...store.dynamic.logical_types import LogicalType
from ...store.errors import DatasetError
from ...store.spaces.arrow import elements_of
from ..episode import Episode
from .target import Export

#: Spaces whose values are one array.
SIMPLE_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text)
_PYTHON_TYPES = {"b": bool, "i": int, "u": int, "f": float}
KeyPath = tuple[str, ...]


def check_space(space: Space, what: str, target: str, path: KeyPath = ()) -> None:
    """Refuse a space that has a part without arrays of one shape or texts.

    Raises:
        DatasetError: it has one, or no part at all.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple) and len(space.spaces):
        for key, part in parts_of(space):
            check_space(part, what, target, (*path, key))
    elif not isinstance(space, _ARRAYS):
        raise DatasetError(
            f"{target} cannot hold {'.'.join((what, *path))}, which is {space}: it holds arrays, texts, and "
            "Dicts and Tuples of them."
        )


def parts_of(space: spaces.Dict | spaces.Tuple) -> list[tuple[str, Space]]:
    """Return the parts of a space with their keys; those of a Tuple are numbers."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return [(str(index), part) for index, part in enumerate(space.spaces)]


def leaves(values: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the arrays and lists of texts in stacked values of a space, with their paths."""
    if isinstance(values, Mapping | tuple):
        named = values.items() if isinstance(values, Mapping) else ((str(i), v) for i, v in enumerate(values))
        for key, part in named:
            yield from leaves(part, (*path, key))
    else:
        yield path, values if isinstance(values, list) else np.asarray(values)


def number_array(values: Any) -> np.ndarray | None:
    """Return arrays, or lists and tuples of numbers, as one array; None if that would change a number.

    Booleans, integers and floats do not mix, integers fit into 64 bits, and all rows have one shape.
    """
    if not isinstance(values, np.ndarray):
        kinds = set(_kinds(values))
        try:
            array = np.array(values)
        except ValueError:  # rows of several shapes
            return None
        # Of integers beyond 64 bits NumPy makes floats or objects.
        if len(kinds) != 1 or not kinds & {array.dtype, _PYTHON_TYPES.get(array.dtype.kind)}:
            return None
        values = array
    return values if values.dtype.kind in "biuf" else None


def _kinds(values: Any) -> Iterator[Any]:
    """Yield the type of each number in nested lists, and the dtype of each array."""
    if isinstance(values, list | tuple):
        for value in values:
            yield from _kinds(value)
    else:
        yield getattr(values, "dtype", type(values))


class StepColumns:
    """The columns of infos, policy outputs and the user's own, an episode at a time.

    Args:
        export: of the episodes.
    """

    def __init__(self, export: Export) -> None:
        schema = export.context.snapshot.steps_schema
        self._fields = {group: list(filter(group.owns, schema)) for group in (INFO, POLICY, EXTRA)}

    def of(self, episode: Episode) -> Iterator[tuple[ColumnGroup, KeyPath, Any]]:
        """Yield the columns that an episode has: group, path and values.

        Values are an array of T+1 values (see `Episode.info_arrays` and `Episode.policy` for exceptions) or a
        list of as many texts; None if they are neither, or not there at every step, or if a key is no text.
        """
        for group, fields in self._fields.items():
            if fields:
                yield from ((group, *column) for column in self._of_group(episode, group, fields))

    def _of_group(
        self, episode: Episode, group: ColumnGroup, fields: list[pa.Field]
    ) -> Iterator[tuple[KeyPath, Any]]:
        count = episode.length + 1
        table = episode._block.table(fields, episode._start, count)
        if group.json_column in table.column_names and table.column(group.json_column).null_count < count:
            for path, values in leaves(by_key(episode, group)):
                texts = isinstance(values, list) and all(isinstance(each, str) for each in values)
                plain = texts or (isinstance(values, np.ndarray) and values.dtype.kind in "biuf")
                yield path, values if plain and all(isinstance(key, str) for key in path) else None
            return
        for field, column in zip(fields, table.columns, strict=True):
            logical = LogicalType.of_column(field)
            if logical is None or logical.form in ("json", "timestamp") or column.null_count == count:
                continue
            cells = column.combine_chunks()
            if not episode.has_last_observation or (group is POLICY and not cells[count - 1].is_valid):
                cells = cells.slice(0, count - 1)
            yield group.path(field.name), _values(cells, logical)


def text_keys(path: tuple[Any, ...]) -> KeyPath:
    """Return a path with keys that are no texts in angle brackets."""
    return tuple(key if isinstance(key, str) else f"<{key!r}>" for key in path)


def by_key(episode: Episode, group: ColumnGroup) -> Any:
    """Return the infos, policy outputs or own columns of an episode."""
    return getattr(episode, {INFO: "info_arrays", POLICY: "policy"}.get(group, "extra"))


def _values(cells: pa.Array, logical: LogicalType) -> Any:
    """Return the values of a column, an array or a list of texts; None if they are not of one shape."""
    if cells.null_count or logical.form == "list":
        return None
    if logical.dtype is None:
        return cells.to_pylist()
    elements, shape = elements_of(cells)
    if shape is None or elements.null_count:
        return None
    values = elements.to_numpy(zero_copy_only=False)
    if logical.form != "array":
        return values
    inner = shape if logical.shape == (-1,) else logical.shape
    return values.astype(logical.dtype, copy=False).reshape(len(cells), *inner)


def refuse_spaces(target: str, column: str, space: spaces.Space, allowed: tuple[type, ...]) -> None:
    """Refuse a space, or a part of a Dict, that is of none of these types."""
    parts = space.spaces if isinstance(space, spaces.Dict) and spaces.Dict in allowed else {"": space}
    simple = tuple(each for each in allowed if each is not spaces.Dict)
    for key, part in parts.items():
        if not isinstance(part, simple):
            name = f"{column}.{key}" if key else column
            kinds = ", ".join(each.__name__ for each in allowed)
            raise DatasetError(f"{target} cannot hold {name!r}, a {type(part).__name__}; it holds {kinds}.")
