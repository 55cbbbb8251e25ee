"""Rows of the episodes table by position, read one file at a time."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from ..store.agents.lanes import lanes_of
from ..store.dynamic.alignment import align_to_schema
from ..store.errors import CorruptStoreError
from ..store.layout import EPISODES
from ..store.segments.file_checks import check_listed
from ..store.segments.parquet import open_parquet, reading_error
from ..store.snapshot import Snapshot

_KEPT_FILES = 4


class EpisodeRowReader:
    """Finds the row of an episode in the files of one snapshot; keeps the last few files in memory.

    Safe to use from several threads.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._stops = np.cumsum([file.rows for file in snapshot.episode_files], dtype=np.int64)
        self._tables: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Rows in memory stay in this process."""
        return EpisodeRowReader, (self.snapshot,)

    def find(self, position: int) -> tuple[pa.Table, int]:
        """Return the table of one file, with every column of the snapshot, and the episode's row in it.

        Raises:
            CorruptStoreError: the file is damaged or has another number of rows than was committed.
        """
        index = int(np.searchsorted(self._stops, position, side="right"))
        first = int(self._stops[index - 1]) if index else 0
        with self._lock:
            if index not in self._tables:
                self._tables[index] = self._read(index)
                while len(self._tables) > _KEPT_FILES:
                    self._tables.popitem(last=False)
            self._tables.move_to_end(index)
            return self._tables[index], position - first

    def _read(self, index: int) -> pa.Table:
        file = self.snapshot.episode_files[index]
        path = self.snapshot.layout.table(EPISODES) / file.name
        try:
            found = open_parquet(path).read()
        except (pa.ArrowException, OSError) as error:
            raise reading_error(path, error) from error
        if found.num_rows != file.rows:
            raise CorruptStoreError(f"{path} has {found.num_rows} rows; {file.rows} were committed.")
        missing = {field.name for field in self.snapshot.schema.episodes}.difference(found.column_names)
        if missing:
            raise CorruptStoreError(
                f"{path} has no column {', '.join(sorted(missing))}. The file is damaged."
            )
        check_listed(path, file, self.snapshot.episodes_schema)
        if found.column("episode_id").null_count or not self._fitting(found):
            raise CorruptStoreError(f"{path} has an episode without an id, or with an impossible length.")
        try:
            return align_to_schema(found, self.snapshot.episodes_schema)
        except pa.ArrowException as error:
            raise reading_error(path, error) from error

    def _fitting(self, rows: pa.Table) -> bool:
        """Return whether the lengths go with the numbers of rows."""
        schema = self.snapshot.schema
        if schema.groups:
            return not lanes_of(rows, schema).bad.any()
        return np.array_equal(rows.column("length").to_numpy() + 1, rows.column("row_count").to_numpy())
