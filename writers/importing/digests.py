"""Digests of the content of episodes, by which an import knows those that a store has already.

A digest covers all values of an episode as its format gives them: equal digests mean equal episodes. Where
they differ, `same_content` compares what is stored, since a later release may give other dtypes.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.names import EPISODE
from ...store.spaces.arrow import LISTS
from ..episodes.source_keys import SOURCE_DIGEST, SOURCE_KEY
from .formats import ForeignEpisode

#: 128 bits.
_DIGITS = 32


_PARTS = [each.name for each in fields(ForeignEpisode)]
_PLAIN = frozenset({str, bool, int, float, type(None)})
# Not unions, which Python would build anew each time.
_SEQUENCES = (list, tuple, np.ndarray)
_WITH_TEXTS = (str, int, float, complex, np.generic, datetime.date, datetime.timedelta, type(None))
#: Numpy builds the text of a dtype anew each time. Records may be equal and have different texts.
_text_of = lru_cache(str)


class _Unknown(Exception):
    """A value has no bytes of its own."""


def content_digest(episode: ForeignEpisode) -> str | None:
    """Return the digest of an episode of arrays; None if it holds objects that have none."""
    digest = hashlib.sha256()
    try:
        for name in _PARTS:
            _add(digest, getattr(episode, name))
    except _Unknown:
        return None
    return digest.hexdigest()[:_DIGITS]


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        kind = value.dtype if value.dtype.fields else _text_of(value.dtype)
        digest.update(f"a{kind}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    # Asking for the type first saves what an abstract class takes to answer.
    elif type(value) not in _PLAIN and isinstance(value, Mapping):
        digest.update(b"m%d" % len(value))
        for key, part in value.items():
            _add(digest, key)
            _add(digest, part)
    elif isinstance(value, _SEQUENCES):
        digest.update(b"l%d" % len(value))
        for part in value:
            _add(digest, part)
    else:
        content = value if isinstance(value, bytes) else _plain_bytes(value)
        digest.update(b"p%d:" % len(content))
        digest.update(content)


def _plain_bytes(value: Any) -> bytes:
    if not isinstance(value, _WITH_TEXTS):
        raise _Unknown
    return repr(value).encode(errors="surrogatepass")


def table_digests(steps: pa.Table, episodes: pa.Table) -> list[str | None]:
    """Return the digest of each episode of a table, in the order of the rows of `episodes`.

    Args:
        steps: rows of these episodes, with those of each as neighbours.
    """
    ids = steps.column(EPISODE).combine_chunks()
    changes = pc.call_function("not_equal", [ids.slice(1), ids.slice(0, max(0, len(ids) - 1))])
    starts = [0, *(np.flatnonzero(changes.to_numpy(zero_copy_only=False)) + 1).tolist()]
    order = {ids[start].as_py(): number for number, start in enumerate(starts)} if len(ids) else {}
    if len(order) < len(starts):  # refused by the writer
        return [None] * episodes.num_rows
    starts.append(len(ids))
    seed, rows = _rows_of_all(steps)
    facts_seed, facts = _rows_of_all(episodes)
    seed.update(facts_seed.digest())
    digests: list[str | None] = []
    for row, key in enumerate(episodes.column(EPISODE).to_pylist()):
        number = order.get(key)
        digest = seed.copy()
        if number is not None:
            rows(digest, starts[number], starts[number + 1])
            facts(digest, row, row + 1)
        digests.append(None if number is None else digest.hexdigest()[:_DIGITS])
    return digests


def _rows_of_all(table: pa.Table) -> tuple[Any, Callable[[Any, int, int], None]]:
    """Return a digest of the columns' names and types, and what adds the rows of all columns to one."""
    names = sorted(name for name in table.column_names if name != EPISODE)
    columns = {name: _storage(pa.concat_arrays(table.column(name).chunks)) for name in names if len(table)}
    types = [(name, str(values.type)) for name, values in columns.items()]
    planes = [plane for name, values in columns.items() for plane in _planes(values, name)]
    # One array of bytes, for one update for each episode.
    wide = [plane.row_bytes() for plane in planes if plane.edges is None and not plane.nulls_of]
    matrix = np.concatenate(wide, axis=1) if wide else np.empty((len(table), 0), np.uint8)
    ragged = [plane for plane in planes if plane.edges is not None and not plane.nulls_of]
    nulls = [plane for plane in planes if plane.nulls_of]

    def update(digest: Any, start: int, stop: int) -> None:
        digest.update(b"%d:" % (stop - start))
        digest.update(matrix[start:stop])
        for plane in ragged:
            digest.update(plane.of_rows(start, stop))
        for plane in nulls:
            # Other rows may have a NULL where these have none.
            if (missing := plane.of_rows(start, stop)).any():
                digest.update(f"{plane.nulls_of}:".encode())
                digest.update(missing)

    return hashlib.sha256(repr((names, types)).encode()), update


class _Plane(NamedTuple):
    """The items of one level of a column.

    Attributes:
        items: numbers, or whether they are NULL.
        edges: row k has the items from `edges[k]` to `edges[k + 1]`; None: it has item k.
        nulls_of: the name of the level, if these are its NULLs; otherwise "".
    """

    items: np.ndarray
    edges: np.ndarray | None = None
    nulls_of: str = ""

    def of_rows(self, start: int, stop: int) -> np.ndarray:
        """Return the items of some rows."""
        if self.edges is not None:
            start, stop = self.edges[start], self.edges[stop]
        return self.items[start:stop]

    def row_bytes(self) -> np.ndarray:
        """Return the bytes of item k as row k."""
        return np.ascontiguousarray(self.items).view(np.uint8).reshape(len(self.items), -1)

    def grouped(self, size: int) -> _Plane:
        """Return the plane with so many items as one."""
        if self.edges is not None:
            return self._replace(edges=self.edges[::size])
        width = size * math.prod(self.items.shape[1:])
        return self._replace(items=self.items.reshape(len(self.items) // size, width))

    def within(self, edges: np.ndarray) -> _Plane:
        """Return the plane of rows that have these items."""
        return self._replace(edges=edges if self.edges is None else self.edges[edges])


def _planes(values: Any, name: str) -> Iterator[_Plane]:
    """Yield the levels of a column: its NULLs, the lengths of lists and texts, and its numbers."""
    values = _storage(values)
    kind = values.type
    if values.null_count:
        yield _Plane(values.is_null().to_numpy(zero_copy_only=False), nulls_of=name)
    if pa.types.is_struct(kind):
        for index, part in enumerate(values.flatten()):
            yield from _planes(part, f"{name}.{index}")
    elif isinstance(kind, pa.FixedSizeListType):
        if kind.list_size:
            yield from (each.grouped(kind.list_size) for each in _planes(_items(values), f"{name}[]"))
    elif isinstance(kind, LISTS):
        edges = yield from _lengths(pc.call_function("list_value_length", [values]))
        yield from (each.within(edges) for each in _planes(values.flatten(), f"{name}[]"))
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        filled = values.fill_null(False if pa.types.is_boolean(kind) else 0) if values.null_count else values
        yield _Plane(filled.to_numpy(zero_copy_only=False))
    elif not pa.types.is_null(kind):
        texts = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind)
        if not (texts or pa.types.is_large_binary(kind)):
            values = pa.array(map(repr, values.to_pylist()))
        yield from _bytes(values.cast(pa.large_binary()))


def _lengths(lengths: Any) -> Generator[_Plane, None, np.ndarray]:
    """Yield the plane of some lengths, and return the edges between the items."""
    sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    yield _Plane(sizes)
    return np.concatenate([[0], np.cumsum(sizes)])


def _bytes(values: Any) -> Iterator[_Plane]:
    """Yield the levels of binary values."""
    filled = values.fill_null(b"") if values.null_count else values
    edges = yield from _lengths(pc.call_function("binary_length", [filled]))
    first = np.frombuffer(filled.buffers()[1], np.int64)[filled.offset] if len(filled) else 0
    yield _Plane(np.frombuffer(filled.buffers()[2] or b"", np.uint8)[first:]).within(edges)


def _storage(values: Any) -> Any:
    while isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pa.types.is_temporal(values.type) and values.type.bit_width in (32, 64):
        return values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _items(values: Any) -> Any:
    """Return the items of all lists of a fixed size; NULL in those that are NULL."""
    size = values.type.list_size
    items = values.values.slice(values.offset * size, len(values) * size)
    if not values.null_count:
        return items
    valid = np.repeat(values.is_valid().to_numpy(zero_copy_only=False), size)
    return items.take(pa.array(np.arange(len(items)), mask=~valid))


def same_content(ours: Any, theirs: Any) -> bool:
    """Return whether two stored episodes hold the same values."""
    names = ("observations", "actions", "rewards", "terminations", "truncations", "infos", "policy", "extra")
    names += ("seed", "options", "env_index", "end_reason", "has_last_observation")
    return all(_equal(getattr(ours, name), getattr(theirs, name)) for name in names) and _equal(
        *(
            {key: value for key, value in each.metadata.items() if key not in (SOURCE_KEY, SOURCE_DIGEST)}
            for each in (ours, theirs)
        )
    )


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if (
        isinstance(left, np.ndarray)
        and isinstance(right, np.ndarray)
        and object not in (left.dtype, right.dtype)
    ):
        if left.shape != right.shape:
            return False
        return bool(np.all((left == right) | ((left != left) & (right != right))))  # NaN, and NaT
    left, right = (
        each.item() if isinstance(each, np.ndarray) and not each.ndim else each for each in (left, right)
    )
    several = [isinstance(each, list | tuple | np.ndarray | Mapping) for each in (left, right)]
    if any(several):
        mapping = isinstance(left, Mapping) or isinstance(right, Mapping)
        return all(several) and not mapping and len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right) or bool(left != left and right != right)
