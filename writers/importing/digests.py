"""Digests of the content of episodes, by which an import knows those that a store has already.

A digest covers all values of an episode as its format gives them: equal digests mean equal episodes. Where
they differ, `same_content` compares what is stored, since a later release may give other dtypes.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.names import EPISODE
from ...store.spaces.arrow import LISTS
from ..episodes.source_keys import SOURCE_DIGEST, SOURCE_KEY
from .formats import ForeignEpisode

#: 128 bits.
_DIGITS = 32
#: Adds some rows of a column to a digest.
_Update = Callable[[Any, int, int], None]


class _Unknown(Exception):
    """A value has no bytes of its own."""


def content_digest(episode: ForeignEpisode) -> str | None:
    """Return the digest of an episode of arrays; None if it holds objects that have none."""
    digest = hashlib.sha256()
    try:
        for each in fields(episode):
            _add(digest, getattr(episode, each.name))
    except _Unknown:
        return None
    return digest.hexdigest()[:_DIGITS]


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"a{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    elif isinstance(value, Mapping):
        digest.update(b"m%d" % len(value))
        for key, part in value.items():
            _add(digest, key)
            _add(digest, part)
    elif isinstance(value, list | tuple | np.ndarray):
        digest.update(b"l%d" % len(value))
        for part in value:
            _add(digest, part)
    else:
        content = value if isinstance(value, bytes) else _plain_bytes(value)
        digest.update(b"p%d:" % len(content))
        digest.update(content)


def _plain_bytes(value: Any) -> bytes:
    if not isinstance(
        value, str | int | float | complex | np.generic | datetime.date | datetime.timedelta | None
    ):
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
    found: list[str | None] = []
    for row, key in enumerate(episodes.column(EPISODE).to_pylist()):
        number = order.get(key)
        digest = seed.copy()
        if number is not None:
            rows(digest, starts[number], starts[number + 1])
            facts(digest, row, row + 1)
        found.append(None if number is None else digest.hexdigest()[:_DIGITS])
    return found


def _rows_of_all(table: pa.Table) -> tuple[Any, _Update]:
    """Return a digest of the columns' names and widths, and what adds the rows of all columns to one."""
    names = sorted(name for name in table.column_names if name != EPISODE)
    columns = {name: _storage(pa.concat_arrays(table.column(name).chunks)) for name in names if len(table)}
    fixed = {name: values for name, values in columns.items() if _width(values.type)}
    widths = [(name, str(values.type), _width(values.type)) for name, values in columns.items()]
    digest = hashlib.sha256(repr((names, widths)).encode())
    # One array of bytes, for one update for each episode.
    parts = [plane for values in fixed.values() for plane in _planes(values)]
    matrix = np.concatenate(parts, axis=1) if parts else np.empty((len(table), 0), np.uint8)
    others = [_rows_of(values) for name, values in columns.items() if name not in fixed]
    others += [_inner_nulls(values) for values in fixed.values() if _has_inner_nulls(values)]

    def update(digest: Any, start: int, stop: int) -> None:
        digest.update(b"%d:" % (stop - start))
        digest.update(matrix[start:stop])
        for other in others:
            other(digest, start, stop)

    return digest, update


def _storage(values: Any) -> Any:
    while isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pa.types.is_temporal(values.type) and values.type.bit_width in (32, 64):
        return values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _width(kind: pa.DataType) -> int:
    """Return how many numbers a value of a type has; 0 if that differs, or is not known from the type."""
    size = kind.list_size if isinstance(kind, pa.FixedSizeListType) else 1
    kind = kind.value_type if isinstance(kind, pa.FixedSizeListType) else kind
    return size * (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _planes(values: Any) -> list[np.ndarray]:
    """Return the bytes of numbers or vectors, and of where they are NULL; uint8, one row per row."""
    count, width = len(values), _width(values.type)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    flat = _items(values)
    if flat.null_count:
        flat = flat.fill_null(False if pa.types.is_boolean(flat.type) else 0)
    numbers = flat.to_numpy(zero_copy_only=False).reshape(count, width)
    if not valid.all():
        # Behind a NULL may stand anything.
        numbers = np.where(valid[:, None], numbers, numbers.dtype.type(0))
    content = np.ascontiguousarray(numbers).view(np.uint8)
    return [content, valid.astype(np.uint8)[:, None]]


def _items(values: Any) -> Any:
    """Return the numbers of all vectors, also behind those that are NULL."""
    if not isinstance(values.type, pa.FixedSizeListType):
        return values
    size = values.type.list_size
    return values.values.slice(values.offset * size, len(values) * size)


def _has_inner_nulls(values: Any) -> bool:
    return isinstance(values.type, pa.FixedSizeListType) and bool(values.flatten().null_count)


def _inner_nulls(values: Any) -> _Update:
    """Return what adds the places of NULLs in vectors, where there are some."""
    size = values.type.list_size
    missing = _items(values).is_null().to_numpy(zero_copy_only=False).reshape(len(values), size)
    missing &= values.is_valid().to_numpy(zero_copy_only=False)[:, None]

    def update(digest: Any, start: int, stop: int) -> None:
        places = np.flatnonzero(missing[start:stop])
        if len(places):
            digest.update(b"i%d:" % len(places))
            digest.update(places)

    return update


def _rows_of(values: Any) -> _Update:
    """Return what adds rows of a column to a digest: where they are NULL, and their other values."""
    values = _storage(values)
    rows = _values_of(values)
    if not values.null_count:
        return rows
    valid = values.is_valid().to_numpy(zero_copy_only=False)

    def update(digest: Any, start: int, stop: int) -> None:
        missing = np.flatnonzero(~valid[start:stop])
        if len(missing):
            digest.update(b"n%d:" % len(missing))
            digest.update(missing)
        rows(digest, start, stop)

    return update


def _values_of(values: Any) -> _Update:
    kind = values.type
    if pa.types.is_struct(kind):
        return _all_of([_rows_of(part) for part in values.flatten()], str([field.name for field in kind]))
    if isinstance(kind, LISTS):
        return _lists_of(values)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _lists_of(values.cast(pa.large_binary()))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        filled = values.fill_null(False if pa.types.is_boolean(kind) else 0) if values.null_count else values
        numbers = np.ascontiguousarray(filled.to_numpy(zero_copy_only=False))

        def update(digest: Any, start: int, stop: int) -> None:
            digest.update(f"{numbers.dtype}{stop - start}:".encode())
            digest.update(numbers[start:stop])

        return update
    plain = values.to_pylist()
    return lambda digest, start, stop: digest.update(repr((str(kind), plain[start:stop])).encode())


def _all_of(parts: list[_Update], name: str) -> _Update:
    def update(digest: Any, start: int, stop: int) -> None:
        digest.update(name.encode())
        for part in parts:
            part(digest, start, stop)

    return update


def _lists_of(values: Any) -> _Update:
    """Return what adds rows of lists or bytes: their lengths, and what they hold."""
    if pa.types.is_large_binary(values.type):
        lengths = pc.call_function("binary_length", [values])
        filled = values.fill_null(b"") if values.null_count else values
        bounds = np.frombuffer(filled.buffers()[1], np.int64)[filled.offset :][: len(filled) + 1]
        data = filled.buffers()[2] or b""
        rows = _values_of(pa.array(np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]))
    else:
        lengths = pc.call_function("list_value_length", [values])
        rows = _rows_of(values.flatten())
    sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    edges = np.concatenate([[0], np.cumsum(sizes)])

    def update(digest: Any, start: int, stop: int) -> None:
        digest.update(sizes[start:stop])
        rows(digest, int(edges[start]), int(edges[stop]))

    return update


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
