"""How the store writes Parquet: one place for codecs, encodings, pages and statistics.

zstd everywhere; BYTE_STREAM_SPLIT for floating-point leaves; delta encoding for `t`; dictionaries only where
values repeat (ids, texts, integers); large pages for binary columns, so that zstd sees many frames at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import CorruptStoreError
from .files import guard_access

_PAGE_BYTES = 1 << 20
_FRAME_PAGE_BYTES = 4 << 20
_COMPRESSION_LEVEL = 1


def _leaf(column: pa.Field) -> tuple[str, pa.DataType]:
    """The Parquet path and type of the one leaf of a column."""
    path, kind = column.name, column.type
    while pa.types.is_list(kind):
        path, kind = f"{path}.list.element", kind.value_type
    return path, kind


def writer_options(schema: pa.Schema, row_bytes: int) -> dict[str, Any]:
    """Keyword arguments for `pyarrow.parquet.ParquetWriter`.

    Args:
        schema: what is written.
        row_bytes: about how many bytes a row takes; decides how many rows a page takes.
    """
    leaves = [_leaf(column) for column in schema]
    delta = [path for path, _ in leaves if path == "t"]
    split = [path for path, kind in leaves if pa.types.is_floating(kind)]
    binary = any(pa.types.is_binary(kind) for _, kind in leaves)
    page = _FRAME_PAGE_BYTES if binary else _PAGE_BYTES
    return {
        "compression": "zstd",
        "compression_level": _COMPRESSION_LEVEL,
        "use_dictionary": [
            path for path, kind in leaves if path not in (*delta, *split) and not pa.types.is_binary(kind)
        ],
        "use_byte_stream_split": split,
        "column_encoding": dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
        "data_page_size": page,
        "write_batch_size": max(1, min(1024, page // max(1, row_bytes))),
        "write_statistics": [
            path for path, kind in leaves if "." not in path and not pa.types.is_binary(kind)
        ],
        "store_schema": False,
        "write_page_checksum": True,
    }


def open_parquet(
    path: Path, metadata: pq.FileMetaData | None = None, dictionaries: Sequence[str] = ()
) -> pq.ParquetFile:
    """Open a Parquet file of the store.

    Args:
        path: the file.
        metadata: its footer, if it was read before.
        dictionaries: columns to read dictionary-encoded.

    Raises:
        CorruptStoreError: the file is missing, truncated or no Parquet file; the message names it.
    """
    try:
        return pq.ParquetFile(
            path,
            metadata=metadata,
            read_dictionary=list(dictionaries) or None,
            page_checksum_verification=True,
        )
    except (OSError, KeyError, pa.ArrowException) as error:
        if isinstance(error, PermissionError):
            with guard_access("read", path):
                raise
        raise CorruptStoreError(
            f"The file {path} cannot be read: {error}. It is damaged or missing; the other files of "
            f"the store "
            "are not affected."
        ) from error


def sync_file(path: Path) -> None:
    """Make a written file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
