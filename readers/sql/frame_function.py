"""`frame_at` in SQL: a function of Python that decodes the frames of the rows of a vector."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from ...store.errors import (
    CorruptStoreError,
    EpisodelakeError,
    MissingPackageError,
    QueryError,
    StoreAccessError,
)
from ..context import ReadContext
from ..video_frames import frame_cells, frame_keys
from .macros import FRAME_AT, FRAME_FUNCTION

#: Errors that a query raises as they are.
_OWN = (CorruptStoreError, MissingPackageError, StoreAccessError)


class FrameFunction:
    """The function that the macro `frame_at` of a connection calls, over the episodes of a context."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self._raised: EpisodelakeError | None = None

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Add it to a connection."""
        kinds = ["BIGINT" if name == "t" else "VARCHAR" for name in frame_keys(self._context)]
        carried: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
        # DuckDB counts parameters.
        calls: dict[int, Any] = {
            2: lambda columns, episodes, t: self._call(columns, episodes, t),
            3: lambda columns, episodes, agents, t: self._call(columns, episodes, agents, t),
        }
        call = calls[len(kinds)]
        connection.create_function(FRAME_FUNCTION, call, ["VARCHAR", *kinds], "BLOB", **carried)

    def _call(self, *columns: pa.ChunkedArray) -> pa.Array:
        try:
            return frame_cells(self._context, *columns)
        except EpisodelakeError as error:
            self._raised = error
            raise

    def check(self, error: Exception) -> None:
        """Raise the error of our tree for one of DuckDB's that has its text.

        Raises:
            CorruptStoreError, MissingPackageError, StoreAccessError: as the function raised it.
            QueryError: an argument was wrong.
        """
        raised = self._raised
        if raised is None or str(raised) not in str(error):
            return
        self._raised = None
        if isinstance(raised, _OWN):
            raise raised from error
        raise QueryError(f"{FRAME_AT}: {raised}") from error
