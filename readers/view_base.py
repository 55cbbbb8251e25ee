"""`DescribedView`: the store and the version that a view shows, its tables as Polars frames, and SQL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ..store.agents import AgentGroup
from ..store.card import Card
from ..store.common.arguments import flag, missing_attribute
from ..store.errors import InvalidArgumentError
from ..store.layout import Layout
from ..store.manifest import Manifest, read_card
from .context import ContextView, Parameters, SqlCondition
from .frames import episodes_frame, runs_frame, steps_frame, transitions_only

if TYPE_CHECKING:
    import duckdb
    import gymnasium

    from .sql.session import ThreadSessions

#: What only a store has: it is written to, kept in order, or moves on to another version.
STORE_ONLY = (
    *("record", "writer", "team_writer", "replay_buffer", "artifacts", "save_environment"),
    *("delete_environment", "annotate", "label", "map_episodes", "drop_annotation", "split"),
    *("compact", "delete", "vacuum", "verify", "tag", "untag", "refresh", "leave_out_damaged", "handle"),
    *("explore", "rename", "drop_columns"),
)


class DescribedView(ContextView):
    """The part of a view that describes its store and version, and answers in dataframes and SQL."""

    # Type checkers find names that are not there by themselves.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a conversion by its name elsewhere, `to_pandas`; else raise an AttributeError, which
            says where a store has what a view lacks.
            """
            kind = name.removeprefix("to_")
            if kind != name and not kind.startswith("_") and hasattr(self.to, kind):
                return getattr(self.to, kind)
            if name not in STORE_ONLY:
                raise missing_attribute(self, name, "view")
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: it is of the whole store or "
                "moves on. Call it on the store, as open(view.url) gives it.",
                name=name,
                obj=self,
            )

    @property
    def _layout(self) -> Layout:
        return self.context.snapshot.layout

    @property
    def _manifest(self) -> Manifest:
        return self.context.snapshot.manifest

    @property
    def path(self) -> Path:
        """The store's folder.

        Raises:
            InvalidArgumentError: it is on an object store and has none; see `url`.
        """
        local = self._layout.root.local
        if local is None:
            raise InvalidArgumentError(f"{self.url} is no folder of this machine. Use the property url.")
        return local

    @property
    def url(self) -> str:
        """Where the store is: the absolute path of its folder, or its URL."""
        return str(self._layout.root)

    @property
    def id(self) -> str:
        """The store's identity, a random UUID in hexadecimal."""
        return self._manifest.store_id

    @property
    def observation_space(self) -> gymnasium.Space:
        """The space of every observation; where groups of agents differ, a Dict with one entry per group."""
        return self._manifest.observation_space

    @property
    def action_space(self) -> gymnasium.Space:
        """The space of every action; where groups of agents differ, a Dict with one entry per group."""
        return self._manifest.action_space

    @property
    def reward_shape(self) -> tuple[int, ...]:
        """() for scalar rewards, (k,) for k objectives."""
        return self._manifest.reward_shape

    @property
    def agent_groups(self) -> tuple[AgentGroup, ...]:
        """The agents of a multi-agent store, by their spaces; empty for a single agent."""
        return self._manifest.groups

    @property
    def version(self) -> int:
        """The version that this object shows; grows with every commit of episodes."""
        return self.context.snapshot.version

    @property
    def card(self) -> Card:
        """The dataset card: whatever its makers say of the store, as plain JSON.

        Of a store, assigning replaces it as a whole, atomically, and so does changing an entry:
        `store.card["title"] = "Pong"`, `store.card.update(...)`, `store.card["tags"].append("atari")`.
        """
        return Card(read_card(self._layout), self._write_card)

    def _write_card(self, card: Mapping[str, Any]) -> None:
        raise InvalidArgumentError("A view changes no card. Change the card of open(view.url).")

    @property
    def tags(self) -> dict[str, int]:
        """The tags of the store with the versions that they name."""
        from ..store.tags import read_tags

        return read_tags(self._layout)

    @property
    def annotations(self) -> pl.DataFrame:
        """The annotations of this version: name, table (`episodes` or `steps`) and type."""
        from ..store.annotations.annotations import annotation_list

        snapshot = self.context.snapshot
        rows = annotation_list(snapshot.episodes_schema, snapshot.annotation_files.annotations)
        schema = {"name": pl.String, "table": pl.String, "type": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def environments(self) -> pl.DataFrame:
        """Return the saved environments, by name and version.

        Columns: name, version, description, difficulty, env_id (the id of its spec), content_hash, files and
        bytes (how many files it has, and their size), created (UTC). The content hash is the SHA-256 of the
        spec, its arguments and the hashes of its files.

        Raises:
            CorruptStoreError: a saved environment is damaged.
        """
        return saved_environments(self._layout)

    def history(self) -> pl.DataFrame:
        """Return the commits up to this version, newest first, back to the oldest one that was not vacuumed.

        Columns: version, timestamp (UTC), operation, and how many episodes and steps (transitions) the
        commit added; null where it added none.
        """
        rows = [
            {
                "version": entry["version"],
                "timestamp": entry["timestamp"],
                "operation": entry.get("episodelake.operation") or entry["operation"].lower(),
                "episodes": _count(entry.get("episodelake.episodes")),
                "steps": _count(entry.get("episodelake.steps")),
            }
            for entry in self.context.snapshot.history()
        ]
        number = pl.Int64
        schema = {"version": number, "timestamp": pl.Datetime("ms", "UTC"), "operation": pl.String}
        return pl.DataFrame(rows, schema={**schema, "episodes": number, "steps": number}, orient="row")

    # Tables and queries

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: the same version, without DuckDB connections."""
        return {name: value for name, value in vars(self).items() if name != "_queries"}

    @property
    def episodes(self) -> pl.LazyFrame:
        """One row per episode of this view, in its order."""
        return episodes_frame(self.context.snapshot, self.context.positions)

    @property
    def steps(self) -> pl.LazyFrame:
        """T+1 rows per episode, in the view's order; on the last row action, reward and flags are null."""
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
        from .namespaces import EpisodeLazyFrame

        return EpisodeLazyFrame(self.steps).with_next_observation()

    def steps_where(
        self, condition: pl.Expr | str | SqlCondition, parameters: Parameters | None = None
    ) -> pl.LazyFrame:
        """Return the rows of `transitions` that fulfil a condition, in their order.

        `loader(transitions=condition)` loads the same ones. The condition may name the columns of
        `transitions_with_next` too. It sees the episodes of this view alone.

        Args:
            condition: a Polars expression, evaluated when the frame is collected; or the text of an SQL
                condition, evaluated at once.
            parameters: values of `?` or `$1` in the text, in order, or of `$name`, by name.

        Raises:
            QueryError: the condition is not valid, or names a column that is not there; the message lists
                those that are.
            CorruptStoreError: a file of the store is damaged.
        """
        from .steps_where import steps_where

        return steps_where(self.context, condition, parameters)

    @property
    def runs(self) -> pl.LazyFrame:
        """One row per run that these episodes come from (for a whole store: per run)."""
        return runs_frame(self.context.snapshot, self.context.positions)

    def connect(self, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
        """Return a new DuckDB connection with the views `runs`, `episodes`, `steps`, `transitions`, and the
        macros.

        docs/sql.md describes them. The caller owns the connection and closes it.

        Args:
            read_only: for untrusted queries: the connection sees nothing but these views. It cannot read
                or write files, load extensions, change settings or see variables. It reads steps through
                Arrow, which is slower, and keeps the columns of episodes that were read in memory. The first
                query that reads a damaged file fails, with its name.
        """
        from .sql.connections import connect

        read_only = flag("read_only", read_only)
        return connect(self.context, read_only=read_only, keep_rows=read_only)

    def sql(
        self, text: str, parameters: Parameters | None = None, *, read_only: bool = False
    ) -> duckdb.DuckDBPyRelation:
        """Run a DuckDB query over the views and macros of docs/sql.md.

        Args:
            text: the query. It may do whatever DuckDB can, so it is for the owner of this process.
            parameters: values of `?` or `$1` in the text, in order, or of `$name`, by name.
            read_only: run it as on a `connect(read_only=True)`, for untrusted queries.

        Returns:
            A relation, computed when it is shown or fetched: `.show()`, `.pl()`, `.df()`, `.arrow()`.
            What goes wrong only then (a failing cast, a damaged file) is a `duckdb.Error`; see `query`. It
            belongs to the thread that asked; each thread asks on a connection of its own.

        Raises:
            QueryError: the text is not valid, or no query; the message begins with the nearest names.
        """
        read_only = flag("read_only", read_only)
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
        read_only = flag("read_only", read_only)
        return self._queries.session(read_only=read_only).query(text, parameters)

    @cached_property
    def _queries(self) -> ThreadSessions:
        from .sql.session import ThreadSessions

        # The first of several threads makes it.
        return self.__dict__.setdefault("_queries", ThreadSessions(self.context))


def saved_environments(layout: Layout) -> pl.DataFrame:
    """Return the environments that are saved in a place; see `DescribedView.environments`."""
    from ..store.environments.records import Records, SavedEnvironment
    from .replaying.run_envs import of_saved

    rows = [
        (
            each.name,
            each.version,
            each.description,
            each.difficulty,
            each.release,
            each.metadata,
            of_saved(each).env_id,
            each.content_hash,
            len(each.files),
            sum(file.size for file in each.files),
            datetime.fromisoformat(each.created_at),
        )
        for each in Records(layout, SavedEnvironment).all()
    ]
    text, number = pl.String, pl.Int64
    columns: dict[str, Any] = {"name": text, "version": number, "description": text, "difficulty": text}
    columns |= {"release": text, "metadata": text}
    columns |= {"env_id": text, "content_hash": text, "files": number, "bytes": number}
    return pl.DataFrame(rows, {**columns, "created": pl.Datetime("ms", "UTC")}, orient="row")


def _count(text: str | None) -> int | None:
    return None if text is None else int(text)
