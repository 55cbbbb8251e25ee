"""Columns that are decoded once into files of a cache folder and mapped: `cache="mmap"`.

Each column of a choice of episodes is one file, so that loaders with other columns share it. What is missing
is decoded in one go, by one process. A file belongs to a version of a store and to the rows that its episodes
have there, so it never goes out of date.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...store.errors import StoreAccessError
from ..blocks import BlockReader
from .cache_folder import CacheFolder, Draft
from .columns import Column
from .episode_index import EpisodeIndex, rows_digest
from .step_arrays import StepArrays, read_arrays
from .tree import Tree, leaves, map_leaves

#: Part of what a file says of itself: files of another format are made anew.
_FORMAT = 1
_ALIGNED = 64


@dataclass(frozen=True)
class MappedArrays(StepArrays):
    """Columns in files of a cache; read-only. Pickled, they are mapped again where they arrive.

    Attributes:
        source: what they are made from.
    """

    source: MappedSource

    def __reduce__(self) -> tuple[Any, ...]:
        """As what they are made from."""
        return map_arrays, (self.source,)


@dataclass(frozen=True)
class MappedSource:
    """What columns are decoded from, and where to.

    Attributes:
        blocks: opens the store's files.
        positions: int64, of the episodes in the snapshot.
        index: of the same episodes.
        columns: what is wanted.
        folder: the cache.
    """

    blocks: BlockReader
    positions: np.ndarray
    index: EpisodeIndex
    columns: tuple[Column, ...]
    folder: CacheFolder

    @cached_property
    def selection(self) -> str:
        """Tells the rows that are decoded from all others: a hash of where they are, and how episodes end."""
        snapshot = self.blocks.snapshot
        rows = rows_digest(snapshot, self.positions)
        digest = hashlib.sha256(json.dumps([snapshot.manifest.store_id, snapshot.version, rows]).encode())
        digest.update(self.index.end_reasons.astype("<i8").tobytes())
        return digest.hexdigest()

    def file_of(self, column: Column) -> ColumnFile:
        """Where a column is kept."""
        snapshot = self.blocks.snapshot
        annotation = getattr(column, "annotation", None)
        facts = {
            "format": _FORMAT,
            "store": snapshot.manifest.store_id,
            "version": snapshot.version,
            "selection": self.selection,
            "episodes": len(self.index),
            "rows": self.index.rows,
            "column": column.name,
            "leaves": [
                [name, leaf.dtype.str, list(leaf.shape[1:])] for name, leaf in leaves(column.template, "")
            ],
            "annotation": None if annotation is None else list(annotation.ids),
        }
        return ColumnFile(column, self.index.rows, facts)


@dataclass(frozen=True)
class ColumnFile:
    """The file of a column: its leaves one after the other.

    Attributes:
        column: the column.
        rows: how many.
        facts: what the file says of itself.
    """

    column: Column
    rows: int
    facts: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """Its name in the cache."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:40]

    @property
    def size(self) -> int:
        """Bytes of all leaves."""
        *_, (_, end) = self._places()
        return max(end, 1)

    def arrays(self, content: mmap.mmap) -> Tree:
        """The leaves as arrays that share the mapping's memory."""
        places = self._places()

        def array(leaf: np.ndarray) -> np.ndarray:
            start, stop = next(places)
            shape = (self.rows, *leaf.shape[1:])
            count = (stop - start) // leaf.itemsize
            return np.frombuffer(content, leaf.dtype, count, start if count else 0).reshape(shape)

        return map_leaves(array, self.column.template)

    def _places(self) -> Iterator[tuple[int, int]]:
        """Where each leaf begins and ends."""
        end = 0
        for _, leaf in leaves(self.column.template):
            start = -(-end // _ALIGNED) * _ALIGNED
            end = start + self.rows * int(np.prod(leaf.shape[1:])) * leaf.itemsize
            yield start, end
        if not end:
            yield 0, 0


def map_arrays(source: MappedSource) -> MappedArrays:
    """Map columns from the cache, and decode those first that are not in it.

    Raises:
        CorruptStoreError: a file of the store is damaged.
        StoreAccessError: the cache folder cannot be written, is full, or may not hold that much.
    """
    files = [source.file_of(column) for column in source.columns]
    found = {file.key: source.folder.open(file.key, file.facts) for file in files}
    if any(content is None for content in found.values()):
        with source.folder.building(source.selection[:40]):
            # Another process may have built them while this one waited.
            found |= {
                file.key: source.folder.open(file.key, file.facts)
                for file in files
                if found[file.key] is None
            }
            found |= _build(source, [file for file in files if found[file.key] is None], files)
    columns: dict[str, Tree] = {}
    for file in files:
        content = found[file.key]
        assert content is not None
        columns[file.column.name] = file.arrays(content)
    return MappedArrays(source.index, columns, source)


def _build(
    source: MappedSource, missing: Sequence[ColumnFile], wanted: Sequence[ColumnFile]
) -> dict[str, mmap.mmap]:
    """Decode columns into new files, and map these."""
    if not missing:
        return {}
    folder = source.folder
    kept = frozenset(file.key for file in wanted)
    drafts = folder.drafts({file.key: file.size for file in missing}, kept)
    try:
        _fill(source, missing, drafts)
        for file in missing:
            drafts[file.key].finish(file.facts)
        return {file.key: _opened(folder, file) for file in missing}
    finally:
        for draft in drafts.values():
            draft.close()


def _fill(source: MappedSource, missing: Sequence[ColumnFile], drafts: Mapping[str, Draft]) -> None:
    into = {file.column.name: file.arrays(drafts[file.key].content) for file in missing}
    columns = [file.column for file in missing]
    read_arrays(source.blocks, source.positions, source.index, columns, into)


def _opened(folder: CacheFolder, file: ColumnFile) -> mmap.mmap:
    found = folder.open(file.key, file.facts)
    if found is None:
        raise StoreAccessError(
            f"A file of the cache folder {folder.path} was damaged or removed while it was made. Choose "
            "another folder with cache_folder=..., or load with cache='memory'."
        )
    return found
