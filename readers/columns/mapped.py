"""Columns that are decoded once into files of a cache folder and mapped: `cache="mmap"`.

Each column of a choice of episodes is one file, so that loaders with other columns share it. What is missing
is decoded in one go, by one process. A file belongs to a version of a store in its place, to the content
of the store's files, and to the rows of the episodes in them, so it never goes out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...store.common.arguments import expect, whole_number
from ...store.errors import CorruptStoreError, InvalidArgumentError, VersionNotFoundError
from ...store.snapshot import Snapshot
from .cache_folder import CacheFolder
from .column import Column
from .ragged import Ragged
from .selection import rows_digest
from .step_arrays import ColumnSource, StepArrays, read_arrays
from .tree import Tree, aligned, lay_out, leaves, map_leaves, row_bytes

CacheKind = Literal["memory", "mmap", "stream"]
_OPTIONS = {"memory": (), "mmap": ("folder", "max_bytes"), "stream": ("buffer_bytes",)}


@dataclass(frozen=True)
class Cache:
    """The place of a loader's columns; `store.loader(256, cache=el.Cache("mmap", folder="/scratch"))`.

    Args:
        kind: "memory", decoded; "mmap", decoded once into files of this machine that processes share;
            "stream", read again each epoch, in groups of row groups.
        folder: of "mmap"; None for `EPISODELAKE_CACHE`, or the user's folder for caches.
        max_bytes: of "mmap": most bytes of that folder; None for 50 GiB, or half of the disk if that is less.
        buffer_bytes: of "stream": most bytes of values at a time, video as it is encoded; None for 1 GiB.

    Raises:
        InvalidArgumentError: there is no such kind, an option is not one of this kind, or a value makes no
            sense.
    """

    kind: CacheKind = "memory"
    _: KW_ONLY
    folder: str | os.PathLike[str] | None = None
    max_bytes: int | None = None
    buffer_bytes: int | None = None

    def __post_init__(self) -> None:
        valid = isinstance(self.kind, str) and self.kind in _OPTIONS
        expect(valid, "cache", self.kind, "'memory', 'mmap', 'stream' or el.Cache(...)")
        for kind, names in _OPTIONS.items():
            given = [name for name in names if getattr(self, name) is not None]
            if given and kind != self.kind:
                raise InvalidArgumentError(
                    f"{' and '.join(given)} belong to Cache({kind!r}), not to Cache({self.kind!r}). Leave "
                    f"them out, or write Cache({kind!r}, ...)."
                )
        for name in ("max_bytes", "buffer_bytes"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        if self.kind == "mmap":
            CacheFolder.of(self.folder)

    @staticmethod
    def of(value: Any) -> Cache:
        """Return the argument `cache` of a loader as an object."""
        return value if isinstance(value, Cache) else Cache(value)


#: Part of a file's facts: files of another format are made again.
_FORMAT = 2
_OFFSET = np.zeros(0, np.int64)
#: The bytes that Linux reads around a row of a mapped file.
_READ_AHEAD = 128 << 10
#: The memory of a container, of control groups of version 2 and 1; without a limit a word, or a huge number.
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class MappedArrays(StepArrays):
    """Columns in files of a cache; read-only. Unpickling maps them again.

    Attributes:
        source: the columns in the store.
        folder: the cache.
        together: see `map_arrays`.
    """

    source: ColumnSource
    folder: CacheFolder
    together: float

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the source instead of the arrays."""
        return map_arrays, (self.source, self.folder, self.together)


@dataclass(frozen=True)
class ColumnFile:
    """The file of a column: its leaves one after the other.

    Attributes:
        column: the column.
        rows: the number of rows.
        facts: describe the content, at the end of the file.
    """

    column: Column
    rows: int
    facts: Mapping[str, Any]

    @staticmethod
    def of(source: ColumnSource, selection: str, column: Column) -> ColumnFile:
        """Return the file of a column; `selection` as `_selection` returns it."""
        snapshot, rows = source.blocks.snapshot, source.index.rows
        facts = {
            **column.facts(snapshot, source.selection.pointers),
            "format": _FORMAT,
            "store": snapshot.manifest.store_id,
            "version": snapshot.version,
            "selection": selection,
            "episodes": len(source.index),
            "rows": rows,
            "leaves": [
                [name, leaf.dtype.str, list(leaf.shape[1:])] for name, leaf in leaves(column.template, "")
            ],
        }
        return ColumnFile(column, rows, facts)

    @cached_property
    def key(self) -> str:
        """Its name in the cache."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:40]

    def size(self, ragged: Tree) -> int:
        """Return the bytes of all leaves, at least 1: an empty file cannot be mapped.

        Args:
            ragged: the leaves whose rows differ in length; None for others.
        """

        def full(leaf: Any, own: Any) -> Any:
            if isinstance(own, Ragged):
                return own.offsets, full(leaf.values, own.values)
            if own is not None:
                return own
            return np.broadcast_to(np.empty((), leaf.dtype), (self.rows, *leaf.shape[1:]))

        return max(lay_out(map_leaves(full, self.column.template, ragged))[1], 1)

    def arrays(self, content: mmap.mmap | memoryview, ragged: Tree = None) -> Tree:
        """Return the leaves as arrays that share the content's memory.

        Args:
            content: the leaves; rows that differ in length are their offsets and then their values.
            ragged: as for `size`, to be written; None if the content is complete.
        """
        packed = _PackedLeaves(np.frombuffer(content, np.uint8))
        template = self.column.template
        owned = map_leaves(lambda leaf: None, template) if ragged is None else ragged
        return map_leaves(lambda leaf, own: packed.next(leaf, self.rows, own), template, owned)


@dataclass
class _PackedLeaves:
    """Leaves one after the other in memory, as `lay_out` places them.

    Attributes:
        memory: uint8.
        stop: where the last leaf ended.
    """

    memory: np.ndarray
    stop: int = 0

    def next(self, like: Any, count: int, own: Any) -> Any:
        """Return the next leaf.

        Args:
            like: a leaf of the same kind.
            count: its rows.
            own: what to write there first; None if it is there.
        """
        if not isinstance(like, Ragged):
            return self._array(like, count, own)
        offsets = self._array(_OFFSET, count + 1, None if own is None else own.offsets)
        values = self.next(like.values, int(offsets[-1]), None if own is None else own.values)
        return Ragged(values, offsets)

    def _array(self, like: np.ndarray, count: int, own: np.ndarray | None) -> np.ndarray:
        start = aligned(self.stop)
        self.stop = start + count * row_bytes(like)
        array = self.memory[start : self.stop].view(like.dtype).reshape(count, *like.shape[1:])
        if own is not None:
            array[...] = own
        return array


def _selection(source: ColumnSource) -> str:
    """Return a hash of the rows that are decoded: where they are, and how their episodes end."""
    snapshot = source.blocks.snapshot
    rows = rows_digest(snapshot, source.selection.pointers)
    digest = hashlib.sha256(json.dumps([snapshot.manifest.store_id, snapshot.version, rows]).encode())
    digest.update(source.index.end_reasons.astype("<i8").tobytes())
    return digest.hexdigest()


def map_arrays(source: ColumnSource, folder: CacheFolder, together: float) -> MappedArrays:
    """Map columns from the cache, after decoding those that it lacks.

    Files that are too large to stay in memory are read a page at a time where rows at random places are
    smaller than what the system else reads around each.

    Args:
        source: the columns in the store.
        folder: the cache.
        together: how many rows that follow each other are read from a random place; infinity for all of them.

    Raises:
        CorruptStoreError: a file of the store is damaged.
        StoreAccessError: the cache folder cannot be written, is full, or may not hold that much.
    """
    selection = _selection(source)
    files = [ColumnFile.of(source, selection, column) for column in source.columns]
    contents = {file.key: content for file in files if (content := folder.open(file.key, file.facts))}
    if len(contents) < len(files):
        with folder.building(selection[:40]):
            # Another process may have built them while this one waited.
            missing = [file for file in files if file.key not in contents]
            contents |= {
                file.key: content for file in missing if (content := folder.open(file.key, file.facts))
            }
            forget_vacuumed(source.blocks.snapshot, folder)
            missing = [file for file in missing if file.key not in contents]
            contents |= _build(source, folder, missing, frozenset(file.key for file in files))
    if sum(len(content) for content in contents.values()) > memory_bytes() / 2:
        for file in files:
            if together * row_bytes(file.column.template) < _READ_AHEAD:
                contents[file.key].madvise(mmap.MADV_RANDOM)
    columns = {file.column.name: file.arrays(memoryview(contents[file.key]).toreadonly()) for file in files}
    return MappedArrays(source.index, columns, source, folder, together)


def memory_bytes() -> float:
    """Return how much memory the process may use; infinity on a system without `madvise`."""
    if not hasattr(mmap, "MADV_RANDOM"):  # Windows
        return math.inf
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(file).read_bytes()))
    return min(limits)


def forget_vacuumed(snapshot: Snapshot, folder: CacheFolder) -> None:
    """Remove columns of versions that were vacuumed, here or on another machine, from a cache.

    Args:
        snapshot: any version of the store.
        folder: the cache.

    Raises:
        StoreAccessError: the cache folder cannot be read or written.
    """

    @lru_cache
    def kept(version: int) -> bool:
        try:
            Snapshot(snapshot.layout, snapshot.manifest, version).check_retained()
        except (CorruptStoreError, VersionNotFoundError):
            return False
        return True

    folder.forget(snapshot.manifest.store_id, kept)


def _build(
    source: ColumnSource, folder: CacheFolder, missing: Sequence[ColumnFile], kept: frozenset[str]
) -> dict[str, mmap.mmap]:
    """Decode columns into new files, and return their contents.

    Where rows differ in length, the size of a file is known once they are decoded. So these are decoded into
    memory first, and written when the file is there.
    """
    if not missing:
        return {}
    ragged = {file.key: _ragged_leaves(source, file.column) for file in missing}

    def fill(contents: Mapping[str, mmap.mmap]) -> None:
        into: dict[str, Tree] = {}
        columns: list[Column] = []
        for file in missing:
            arrays = file.arrays(contents[file.key], ragged[file.key])
            own = file.column.divided(arrays) if file.column.is_ragged else [(file.column, arrays)]
            for column, part in own:
                if not column.is_ragged:
                    columns.append(column)
                    into[column.name] = part
        read_arrays(replace(source, columns=tuple(columns)), into)

    sizes = {file.key: (file.size(ragged[file.key]), file.facts) for file in missing}
    return folder.add(sizes, kept, fill)


def _ragged_leaves(source: ColumnSource, column: Column) -> Tree:
    """Return the leaves of a column whose rows differ in length, decoded; None for others."""
    if not column.is_ragged:
        return map_leaves(lambda leaf: None, column.template)
    own = tuple(part for part in column.parts if part.is_ragged)
    arrays = read_arrays(replace(source, columns=own)).columns
    parts = (
        arrays[part.name] if part.is_ragged else map_leaves(lambda leaf: None, part.template)
        for part in column.parts
    )
    return column.composed(list(parts))
