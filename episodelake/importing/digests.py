"""Digests of the content of episodes, by which an import finds those that have changed.

A digest covers all values of an episode as its format gives them, their types and shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..plugin import LISTS, ForeignEpisode
from ..plugin.columns import EPISODE
from ..types import EncodedFrames
from ..writers.importing.columns import column_of

#: 128 bits.
_DIGITS = 32
_PARTS = [each.name for each in fields(ForeignEpisode)]
#: Arrays of more bytes are not copied.
_SMALL_BYTES = 4096
_PLAIN = frozenset({str, bool, int, float, type(None)})
_BINARY = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
#: Numpy builds the text of a dtype anew each time. Records may be equal and have different texts.
_text_of = lru_cache(str)


def content_digest(episode: ForeignEpisode) -> str:
    """Return the digest of an episode of arrays."""
    digest = hashlib.sha256()
    small: list[bytes] = []
    for name in _PARTS:
        _add(digest, small, getattr(episode, name))
    digest.update(b"".join(small))
    return digest.hexdigest()[:_DIGITS]


def _add(digest: Any, small: list[bytes], value: Any) -> None:
    """Add a value: few bytes to `small`, which comes before what the digest is given next."""
    kind = type(value)
    if kind in _PLAIN:  # most values
        text = repr(value).encode(errors="surrogatepass")
        small.append(b"p%d:%b" % (len(text), text))
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        name = value.dtype if value.dtype.fields else _text_of(value.dtype)
        small.append(f"a{name}{value.shape}".encode())
        if value.nbytes <= _SMALL_BYTES:
            small.append(value.tobytes())
        else:
            _flush(digest, small)
            digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    elif isinstance(value, Mapping):
        small.append(b"m%d" % len(value))
        for key, part in value.items():
            _add(digest, small, key)
            _add(digest, small, part)
    elif isinstance(value, EncodedFrames):
        small.append(f"v{value.shape}".encode())
        _flush(digest, small)
        for cell in value.cells:
            digest.update(b"%d:" % len(cell.as_buffer()))
            digest.update(cell.as_buffer())
    elif isinstance(value, (list, tuple, np.ndarray)):
        small.append(b"l%d" % len(value))
        for part in value:
            _add(digest, small, part)
    else:
        text = value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")
        small.append(b"p%d:%b" % (len(text), text))


def _flush(digest: Any, small: list[bytes]) -> None:
    digest.update(b"".join(small))
    small.clear()


def table_digests(steps: pa.Table, episodes: pa.Table) -> list[str]:
    """Return the digest of each episode of a table, in the order of the rows of `episodes`.

    An episode without steps, which the writer refuses, has the digest of its facts.

    Args:
        steps: rows of these episodes, with those of each as neighbours.
    """
    ids = steps.column(EPISODE).combine_chunks()
    changes = pc.call_function("not_equal", [ids.slice(1), ids.slice(0, max(0, len(ids) - 1))])
    edges = [0, *(np.flatnonzero(changes.to_numpy(zero_copy_only=False)) + 1).tolist(), len(ids)]
    names = ids.take(pa.array(edges[:-1])).to_pylist() if len(ids) else []
    spans = dict(zip(names, pairwise(edges), strict=False))
    chosen = [spans.get(key, (0, 0)) for key in episodes.column(EPISODE).to_pylist()]
    starts, stops = np.array(chosen, np.int64).reshape(-1, 2).T
    rows = np.arange(episodes.num_rows)
    seed, contents = _contents(steps, starts, stops)
    fact_seed, facts = _contents(episodes, rows, rows + 1)
    seed.update(fact_seed.digest())
    digests = []
    for parts in zip(contents, facts, strict=True):
        digest = seed.copy()
        for part in chain(*parts):
            digest.update(part)
        digests.append(digest.hexdigest()[:_DIGITS])
    return digests


def _contents(
    table: pa.Table, starts: np.ndarray, stops: np.ndarray
) -> tuple[Any, Iterator[tuple[Any, ...]]]:
    """Return a digest of all columns' names and types, and the bytes of each of some ranges of rows.

    The bytes are the same in a table that has these rows alone: the number of rows, the items of all levels,
    0 where they are NULL, and the NULLs of those levels that have any in this range.
    """
    names = sorted(name for name in table.column_names if name != EPISODE and len(table))
    columns = [_stored(column_of(table, name)) for name in names]
    levels = [level for name, values in zip(names, columns, strict=True) for level in _levels(values, name)]
    fixed = [level.items for level in levels if level.edges is None and not level.nulls_of]
    # One array for all of them, and so one update for each range.
    matrix = [_Level(np.concatenate(fixed, axis=1))] if fixed else []
    ragged = [level for level in levels if level.edges is not None and not level.nulls_of]
    nulls = [level for level in levels if level.nulls_of]
    counts = [b"%d:" % count for count in (stops - starts).tolist()]
    contents = (level.of_rows(starts, stops) for level in (*matrix, *ragged, *nulls))
    types = [(name, str(values.type)) for name, values in zip(names, columns, strict=True)]
    return hashlib.sha256(repr((names, types)).encode()), zip(counts, *contents, strict=True)


@dataclass(frozen=True)
class _Level:
    """The items of one level of a column.

    Attributes:
        items: uint8, the bytes of each item.
        edges: row k has the items from `edges[k]` to `edges[k + 1]`; None: it has item k.
        nulls_of: the name of the level, if the items say which of its values are NULL; otherwise "".
    """

    items: np.ndarray
    edges: np.ndarray | None = None
    nulls_of: str = ""

    def of_rows(self, starts: np.ndarray, stops: np.ndarray) -> Iterator[Any]:
        """Return the bytes of each of some ranges of rows; none for NULLs if there are none."""
        if self.edges is not None:
            starts, stops = self.edges[starts], self.edges[stops]
        width = self.items.shape[1]
        items: Any = np.ascontiguousarray(self.items).reshape(-1)
        content = memoryview(items)
        spans = zip((starts * width).tolist(), (stops * width).tolist(), strict=True)
        values = (content[start:stop] for start, stop in spans)
        if not self.nulls_of:
            return values
        places = np.flatnonzero(items)
        first, behind = (places.searchsorted(edges * width) for edges in (starts, stops))
        name, some = f"{self.nulls_of}:".encode(), (first < behind).tolist()
        return (name + bytes(each) if any else b"" for each, any in zip(values, some, strict=True))

    def grouped(self, size: int) -> _Level:
        """Return the level of rows that have so many of these rows each."""
        if self.edges is not None:
            return replace(self, edges=self.edges[::size])
        return replace(self, items=self.items.reshape(-1, size * self.items.shape[1]))

    def within(self, edges: np.ndarray) -> _Level:
        """Return the level of rows that have the rows from `edges[k]` to `edges[k + 1]`."""
        return replace(self, edges=edges if self.edges is None else self.edges[edges])


def _levels(values: Any, name: str, unset: np.ndarray | None = None) -> Iterator[_Level]:
    """Yield the levels of a column: its NULLs, the lengths of lists and texts, and its values.

    Args:
        unset: bool, the values that are NULL besides, since the list that has them is.
    """
    values = _stored(values)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    kind = values.type
    sized = isinstance(kind, pa.FixedSizeListType)
    if unset is not None and not sized and not pa.types.is_primitive(kind):
        values, unset = values.take(pa.array(np.arange(len(values)), mask=unset)), None
    missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else unset
    if missing is not None and unset is not None:
        missing = missing | unset
    if missing is not None:
        yield _Level(_bytes_of(missing), nulls_of=name)
    if sized:
        if size := kind.list_size:
            items = values.values.slice(values.offset * size, len(values) * size)
            below = None if missing is None else np.repeat(missing, size)
            yield from (each.grouped(size) for each in _levels(items, f"{name}[]", below))
    elif isinstance(kind, LISTS):
        lengths = pc.call_function("list_value_length", [values]).fill_null(0).to_numpy().astype(np.int64)
        yield _Level(_bytes_of(lengths))
        edges = np.concatenate([[0], np.cumsum(lengths)])
        # Items below a NULL are arbitrary, and `flatten` leaves them out.
        yield from (each.within(edges) for each in _levels(values.flatten(), f"{name}[]"))
    elif isinstance(kind, pa.StructType):
        for index, part in enumerate(values.flatten()):
            yield from _levels(part, f"{name}.{index}")
    elif pa.types.is_primitive(kind):
        width = kind.bit_width // 8
        content = np.frombuffer(values.buffers()[1] or b"", np.uint8)
        items = content[values.offset * width : (values.offset + len(values)) * width].reshape(-1, width)
        if missing is not None:
            items = items.copy()
            items[missing] = 0
        yield _Level(items)
    elif not pa.types.is_null(kind):
        texts = values if kind in _BINARY else pa.array(map(repr, values.to_pylist()))
        yield from _texts(texts.cast(pa.large_binary()).fill_null(b""))


def _stored(values: Any) -> Any:
    """Return the stored values of a column: times as integers, no extensions, no dictionaries."""
    while isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pa.types.is_temporal(values.type) and values.type.bit_width in (32, 64):
        return values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
    return values.dictionary_decode() if isinstance(values.type, pa.DictionaryType) else values


def _texts(values: Any) -> Iterator[_Level]:
    """Yield the levels of binary values without NULLs."""
    lengths = pc.call_function("binary_length", [values]).to_numpy()
    yield _Level(_bytes_of(lengths))
    edges = np.concatenate([[0], np.cumsum(lengths)])
    first = np.frombuffer(values.buffers()[1], np.int64)[values.offset] if len(values) else 0
    content = np.frombuffer(values.buffers()[2] or b"", np.uint8)[first : first + edges[-1]]
    yield _Level(content.reshape(-1, 1), edges)


def _bytes_of(numbers: np.ndarray) -> np.ndarray:
    """Return the bytes of each number."""
    return numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize)
