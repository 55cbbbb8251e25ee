"""Digests of the content of episodes, by which an import finds those that have changed.

A digest covers all values of an episode as its format gives them, their types and shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.names import EPISODE
from ...store.spaces.arrow import LISTS
from .formats import ForeignEpisode

#: 128 bits.
_DIGITS = 32
_PARTS = [each.name for each in fields(ForeignEpisode)]
_PLAIN = frozenset({str, bool, int, float, type(None)})
_BINARY = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
#: Numpy builds the text of a dtype anew each time. Records may be equal and have different texts.
_text_of = lru_cache(str)


def content_digest(episode: ForeignEpisode) -> str:
    """Return the digest of an episode of arrays."""
    digest = hashlib.sha256()
    for name in _PARTS:
        _add(digest, getattr(episode, name))
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
    elif isinstance(value, (list, tuple, np.ndarray)):
        digest.update(b"l%d" % len(value))
        for part in value:
            _add(digest, part)
    else:
        content = value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")
        digest.update(b"p%d:" % len(content))
        digest.update(content)


def table_digests(steps: pa.Table, episodes: pa.Table) -> list[str]:
    """Return the digest of each episode of a table, in the order of the rows of `episodes`.

    An episode without steps, which the writer refuses, has the digest of its facts.

    Args:
        steps: rows of these episodes, with those of each as neighbours.
    """
    ids = steps.column(EPISODE).combine_chunks()
    changes = pc.call_function("not_equal", [ids.slice(1), ids.slice(0, max(0, len(ids) - 1))])
    edges = [0, *(np.flatnonzero(changes.to_numpy(zero_copy_only=False)) + 1).tolist(), len(ids)]
    spans = {ids[start].as_py(): (start, stop) for start, stop in pairwise(edges) if stop > start}
    (seed, columns), (facts_seed, facts) = _columns(steps), _columns(episodes)
    digests = []
    for row, key in enumerate(episodes.column(EPISODE).to_pylist()):
        digest = hashlib.sha256(seed + facts_seed)
        start, stop = spans.get(key, (0, 0))
        for values, fixed in columns:
            _add_rows(digest, values, fixed, start, stop)
        for values, fixed in facts:
            _add_rows(digest, values, fixed, row, row + 1)
        digests.append(digest.hexdigest()[:_DIGITS])
    return digests


@dataclass(frozen=True)
class _Fixed:
    """The bytes of a column whose rows all have as many items, and no NULLs.

    Attributes:
        content: of all rows.
        counts: how many items a row has at each level of its lists, from 1 for the row itself.
        size: how many bytes a row has.
    """

    content: memoryview
    counts: tuple[int, ...]
    size: int

    @staticmethod
    def of(values: Any) -> _Fixed | None:
        """Return the bytes of an Arrow array; None if rows differ in size, or one may be NULL."""
        counts = [1]
        while not values.null_count:
            kind = values.type
            if isinstance(kind, pa.BaseExtensionType):
                values = values.storage
            elif isinstance(kind, pa.FixedSizeListType):
                counts.append(counts[-1] * kind.list_size)
                values = values.flatten()
            elif pa.types.is_primitive(kind) and len(values):
                flags = pa.types.is_boolean(kind)
                items = values.to_numpy(zero_copy_only=False) if flags else values.buffers()[1]
                width = 1 if flags else kind.bit_width // 8
                first = 0 if flags else values.offset * width
                content = memoryview(items).cast("B")[first : first + len(values) * width]
                return _Fixed(content, tuple(counts), counts[-1] * width)
            else:
                break
        return None


def _columns(table: pa.Table) -> tuple[bytes, list[tuple[Any, _Fixed | None]]]:
    """Return the names and types of all columns but the episode's, and their values."""
    names = sorted(name for name in table.column_names if name != EPISODE and len(table))
    columns = [pa.concat_arrays(table.column(name).chunks) for name in names]
    types = repr([(name, str(each.type)) for name, each in zip(names, columns, strict=True)]).encode()
    return types, [(each, _Fixed.of(each)) for each in columns]


def _add_rows(digest: Any, values: Any, fixed: _Fixed | None, start: int, stop: int) -> None:
    """Add some rows of a column, as `_add_array` does; from its bytes if it has them, which is faster."""
    if fixed is None:
        _add_array(digest, values.slice(start, stop - start))
        return
    digest.update(b"".join([b"%d:" % ((stop - start) * count) for count in fixed.counts]))
    digest.update(fixed.content[start * fixed.size : stop * fixed.size])


def _add_array(digest: Any, values: Any) -> None:
    """Add the values of an Arrow array: which are NULL, the lengths of lists and texts, and the items."""
    while isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    digest.update(b"%d:" % len(values))
    if values.null_count:
        digest.update(values.is_null().to_numpy(zero_copy_only=False))
    kind = values.type
    # Items below a NULL are arbitrary, and `flatten` leaves them out. PyArrow's `drop_null` returns wrong
    # items of slices of nested lists of a fixed size.
    if isinstance(kind, LISTS):
        if not isinstance(kind, pa.FixedSizeListType):
            _add_array(digest, pc.call_function("list_value_length", [values]))
        _add_array(digest, values.flatten())
    elif isinstance(kind, pa.StructType):
        for part in values.flatten():
            _add_array(digest, part)
    elif isinstance(kind, pa.DictionaryType):
        _add_array(digest, values.dictionary_decode())
    else:
        _add_items(digest, values.drop_null() if values.null_count else values)


def _add_items(digest: Any, values: Any) -> None:
    """Add values without NULLs."""
    kind = values.type
    if pa.types.is_boolean(kind):
        digest.update(values.to_numpy(zero_copy_only=False))
    elif pa.types.is_primitive(kind):
        width = kind.bit_width // 8
        if len(values):
            digest.update(values.buffers()[1].slice(values.offset * width, len(values) * width))
    elif kind in _BINARY:
        _add_array(digest, pc.call_function("binary_length", [values]))
        digest.update(b"".join(values.cast(pa.large_binary()).to_pylist()))
    else:
        digest.update(repr(values.to_pylist()).encode(errors="surrogatepass"))
