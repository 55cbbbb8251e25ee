"""`QueriedView`: the tables of a view as Polars frames, and DuckDB queries over them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import duckdb
import polars as pl

from .context import Parameters, ReadContext
from .frames import episodes_frame, runs_frame, steps_frame, transitions_only
from .namespaces import EpisodeLazyFrame
from .sql.connections import connect
from .sql.session import ThreadSessions


class QueriedView:
    """The part of a view that answers in dataframes and SQL."""

    context: ReadContext

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: the same version, without DuckDB connections."""
        return {name: value for name, value in vars(self).items() if name != "_queries"}

    @property
    def episodes(self) -> pl.LazyFrame:
        """One row per episode of this view, in its order."""
        return episodes_frame(self.context.snapshot, self.context.positions)

    @property
    def steps(self) -> pl.LazyFrame:
        """T+1 rows per episode; on the last row action, reward and flags are null."""
        return steps_frame(self.context.snapshot, self.context.positions)

    @property
    def transitions(self) -> pl.LazyFrame:
        """T rows per episode: the steps without each episode's last row."""
        return transitions_only(self.steps)

    @property
    def transitions_with_next(self) -> pl.LazyFrame:
        """The transitions with what came with the next observation: `next_observation`, `next_info.<key>`,
        `next_policy.<key>`.

        The info that `step` returned is on the row of the observation that came with it. So the cost, or the
        success, of a transition is its `next_info.cost`.
        """
        return EpisodeLazyFrame(self.steps).with_next_observation()

    @property
    def runs(self) -> pl.LazyFrame:
        """One row per run that these episodes come from (for a whole store: per run)."""
        return runs_frame(self.context.snapshot, self.context.positions)

    def connect(self, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
        """Return a new DuckDB connection with the views `runs`, `episodes`, `steps`, `transitions`, and the
        macros.

        docs/sql.md describes them. The caller owns the connection and closes it.

        Args:
            read_only: for queries of strangers: the connection sees nothing but these views. It cannot read
                or write files, load extensions, change settings or see variables. It reads steps through
                Arrow, which is slower, and keeps the episodes in memory.
        """
        return connect(self.context, read_only=read_only, keep_rows=read_only)

    def sql(
        self, text: str, parameters: Parameters | None = None, *, read_only: bool = False
    ) -> duckdb.DuckDBPyRelation:
        """Run a DuckDB query over the views and macros of docs/sql.md.

        Args:
            text: the query. It may do whatever DuckDB can, so it is for the owner of this process.
            parameters: values of `?` or `$1` in the text, in order, or of `$name`, by name.
            read_only: run it as on a `connect(read_only=True)`, for queries of strangers.

        Returns:
            A relation, computed when it is shown or fetched: `.show()`, `.pl()`, `.df()`, `.arrow()`.
            What goes wrong only then (a failing cast, a damaged file) is a `duckdb.Error`; see `query`. It
            belongs to the thread that asked; each thread asks on a connection of its own.

        Raises:
            QueryError: the text is not valid, or no query; the message begins with the nearest names.
        """
        return self._queries.session(read_only=read_only).sql(text, parameters)

    def query(
        self, text: str, parameters: Parameters | None = None, *, read_only: bool = False
    ) -> pl.DataFrame:
        """Run a DuckDB query as `sql` does, and return its result as a Polars frame.

        It runs at once, Ctrl-C stops it, and the view can be asked again afterwards. Threads may ask the same
        view at the same time.

        Raises:
            QueryError: the text is not valid, or what it asks fails as it runs.
            KeyboardInterrupt: the caller was interrupted.
        """
        return self._queries.session(read_only=read_only).query(text, parameters)

    @cached_property
    def _queries(self) -> ThreadSessions:
        # The first of several threads makes it.
        return self.__dict__.setdefault("_queries", ThreadSessions(self.context))
