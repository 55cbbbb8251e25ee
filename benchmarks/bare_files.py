"""The bare Parquet files of a store, found without Episodelake."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from deltalake import DeltaTable


def files_of(store: Path, table: str) -> list[str]:
    """Return the paths of the Parquet files of one Delta table of a store, in the order of their names."""
    return sorted(_local(uri) for uri in DeltaTable(store / table).file_uris())


def _local(uri: str) -> str:
    return unquote(urlparse(uri).path) if uri.startswith("file://") else uri
