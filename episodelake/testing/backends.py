"""`Backend`: a kind of place that stores are in, such as a folder, a mount or an object store."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import polars
from deltalake import DeltaTable

from .. import EpisodeStore, create, recover
from .. import open as open_store
from ..plugin import Layout
from ..plugin.files import Place
from ..store.recovery.recovery import RecoveredRun

_JOURNAL = "journal/"


@dataclass
class Backend:
    """A place for stores, and how to reach it. Contracts write below new folders of it, and leave them.

    Attributes:
        url: a folder, or a URL with a prefix.
        storage_options: the options of an object store, as `episodelake.create` takes them.
        shared: whether other processes of this machine see it.
    """

    url: str
    storage_options: Mapping[str, str] | None = None
    shared: bool = True

    def new(self) -> Backend:
        """Return an empty folder below this one."""
        return Backend(f"{self.url}/{uuid.uuid4().hex[:12]}", self.storage_options, self.shared)

    def at(self, name: str = "store") -> str:
        """Return the path or URL of a store."""
        return f"{self.url}/{name}"

    def create(self, name: str = "store", **arguments: Any) -> EpisodeStore:
        """Create a store."""
        return create(self.at(name), **arguments, storage_options=self.storage_options)

    def open(self, name: str = "store", version: int | str | None = None) -> EpisodeStore:
        """Open a store."""
        return open_store(self.at(name), version, storage_options=self.storage_options)

    def recover(self, name: str = "store") -> list[RecoveredRun]:
        """Recover the journals of a store."""
        return recover(self.at(name), storage_options=self.storage_options)

    def files(self, name: str = "store") -> list[str]:
        """Return the names of all files of a store but its journals, sorted."""
        entries = self._place(name).entries(deep=True)
        return sorted(entry.name for entry in entries if not entry.name.startswith(_JOURNAL))

    def read(self, file: str, name: str = "store") -> bytes:
        """Return the bytes of a file of a store."""
        return self._file(file, name).read()

    def write(self, file: str, data: bytes, name: str = "store") -> None:
        """Create or replace a file of a store."""
        place = self._file(file, name)
        place.parent.make_folder()
        place.write(data)

    def remove(self, file: str, name: str = "store") -> None:
        """Delete a file of a store."""
        self._file(file, name).remove()

    def contents(self, name: str = "store") -> dict[str, bytes]:
        """Return all files of a store but its journals."""
        return {file: self.read(file, name) for file in self.files(name)}

    def wipe(self, name: str = "store") -> None:
        """Delete all files of a store, journals included."""
        for entry in list(self._place(name).entries(deep=True)):
            self._file(entry.name, name).remove()

    def frame(self, table: str, name: str = "store") -> polars.DataFrame:
        """Return a table of a store as Polars reads it without the library."""
        return polars.read_delta(self._table(table, name))

    def count(self, table: str, name: str = "store") -> int:
        """Return the rows of a table of a store as DuckDB reads it without the library."""
        connection = _connection().cursor()
        connection.register("rows", self._table(table, name).to_pyarrow_dataset())
        (count,) = connection.execute("select count(*) from rows").fetchone() or (0,)
        return count

    def _table(self, table: str, name: str) -> DeltaTable:
        options = None if self.storage_options is None else dict(self.storage_options)
        return DeltaTable(str(self._place(name) / table), storage_options=options)

    def _place(self, name: str) -> Place:
        return Layout.at(self.at(name), self.storage_options).root

    def _file(self, file: str, name: str) -> Place:
        place = self._place(name)
        for part in file.split("/"):
            place = place / part
        return place


@functools.cache
def _connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()
