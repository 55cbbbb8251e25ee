"""`EpisodeView`: a choice of episodes of one snapshot, and every way to look at them.

The whole store is the view of all its episodes. Filtering and slicing give smaller views with the same API;
they read the episodes table only. Steps are read when an episode, a frame or a query asks for them.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast, overload

import duckdb
import gymnasium
import numpy as np
import polars as pl
import polars.exceptions
import pyarrow as pa

from ..store.errors import CorruptStoreError, EpisodeNotFoundError, InvalidArgumentError, QueryError
from ..store.layout import EPISODES
from ..store.snapshot import Selection, Snapshot
from .agents import make_episode
from .blocks import Block, BlockReader, LostBlock
from .cards.accessor import CardedView
from .damaged_files import check_files
from .episode import Episode
from .episode_rows import EpisodeRowReader
from .frames import (
    POSITION,
    episodes_frame,
    positioned_episodes,
    runs_frame,
    steps_frame,
    transitions_only,
)
from .iteration import checked_slice, iterate
from .loading.feeding import FeedingView
from .loading.stats_view import MeasuredView
from .plots.accessor import PlottedView
from .replaying.environment import make_run_env
from .replaying.replay import ReplayReport
from .replaying.run_envs import RunEnv, chosen_run, run_envs
from .sql.query import available_episodes, connect, fetch, positions_where, run_sql


class SnapshotReader:
    """What all views of one snapshot share: open files and cached tables."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.blocks = BlockReader(snapshot)
        self.rows = EpisodeRowReader(snapshot)

    def __reduce__(self) -> tuple[Any, ...]:
        """Open files and connections are not taken along."""
        return SnapshotReader, (self.snapshot,)


class EpisodeView(FeedingView, MeasuredView, PlottedView, CardedView):
    """Some episodes of a snapshot, in an order, with length, positions, slices and iteration.

    Args:
        reader: the snapshot's reader.
        positions: int64, positions in the snapshot; None for all.
        conditions: the filters that gave these positions, one after the other; None if they came otherwise.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        positions: np.ndarray | None = None,
        conditions: tuple[pl.Expr | str, ...] | None = None,
    ) -> None:
        self._reader = reader
        self._positions = positions
        self._conditions = () if positions is None else conditions

    def __getstate__(self) -> dict[str, Any]:
        """A view can be pickled, and shows the same version afterwards; its DuckDB connections stay here."""
        kept = {
            name for name in vars(self) if not isinstance(getattr(type(self), name, None), cached_property)
        }
        return {name: value for name, value in vars(self).items() if name in kept}

    def __len__(self) -> int:
        """Number of episodes."""
        return self._reader.snapshot.episode_count if self._positions is None else len(self._positions)

    @overload
    def __getitem__(self, key: int | str) -> Episode: ...

    @overload
    def __getitem__(self, key: slice) -> EpisodeView: ...

    def __getitem__(self, key: int | str | slice) -> Episode | EpisodeView:
        """An episode by position in this view (negative: from the end) or by id; a smaller view by slice.

        Raises:
            EpisodeNotFoundError: there is no such position or id in this view.
            InvalidArgumentError: the key is of another kind, or a slice of other things than positions.
        """
        if isinstance(key, slice):
            return EpisodeView(self._reader, self._all_positions()[checked_slice(key)])
        if isinstance(key, str):
            return self._episode(self._position_of(key))
        if isinstance(key, bool) or not isinstance(key, int | np.integer):
            raise InvalidArgumentError(f"{key!r} is no position; expected an int, a slice or an episode id.")
        index = int(key)
        if not -len(self) <= index < len(self):
            raise EpisodeNotFoundError(
                f"There is no episode at position {index}: the view has {len(self)} episodes. "
                f"Positions go from {-len(self)} to {len(self) - 1}."
                if len(self)
                else f"There is no episode at position {index}: the view is empty." + self._refresh_hint()
            )
        index %= len(self)
        return self._episode(index if self._positions is None else int(self._positions[index]))

    def __iter__(self) -> Iterator[Episode]:
        """Yield every episode; each row group is read and decoded once."""
        return iterate(self._reader.blocks, self._reader.rows, self._all_positions())

    def __contains__(self, key: object) -> bool:
        """Whether an episode id is in this view."""
        if not isinstance(key, str):
            return False
        try:
            self._position_of(key)
        except EpisodeNotFoundError:
            return False
        return True

    def _refresh_hint(self) -> str:
        """What to say of a newer version where something was not found."""
        newer = self._reader.snapshot.newer_version()
        if newer is None:
            return ""
        shown = self._reader.snapshot.version
        return f" This shows version {shown} of the store; refresh() moves to version {newer}."

    def _all_positions(self) -> np.ndarray:
        return np.arange(len(self)) if self._positions is None else self._positions

    def _episode(self, position: int) -> Episode:
        block = self._reader.blocks.episode_block(position)
        return make_episode(self._reader.rows, position, block, 0, block.count)

    def described(self, key: int | str) -> Episode:
        """An episode like `view[key]`, also where its steps cannot be read: what its row says is there.

        Attributes that need steps raise `CorruptStoreError`.

        Raises:
            EpisodeNotFoundError: there is no such position or id in this view.
        """
        try:
            return self[key]
        except CorruptStoreError as error:
            position = self._position_of(key) if isinstance(key, str) else int(self._all_positions()[key])
            count = int(self._reader.snapshot.pointers.row_count[position])
            return make_episode(self._reader.rows, position, cast(Block, LostBlock(error)), 0, count)

    def _position_of(self, episode_id: str) -> int:
        frame = positioned_episodes(self._reader.snapshot, None).filter(pl.col("episode_id") == episode_id)
        try:
            found = frame.select(POSITION).collect()[POSITION].to_list()
        except polars.exceptions.PolarsError:
            check_files(self._reader.snapshot, EPISODES)
            raise
        if self._positions is not None:
            found = [position for position in found if (self._positions == position).any()]
        if not found:
            examples = ", ".join(repr(self[index].id) for index in range(min(3, len(self)))) or "none"
            raise EpisodeNotFoundError(
                f"There is no episode {episode_id!r} among these {len(self)}. Ids look like: {examples}."
                + self._refresh_hint()
            )
        return int(found[0])

    # Choosing

    def filter(self, condition: pl.Expr | str) -> EpisodeView:
        """The episodes that fulfil a condition over the episodes table.

        Args:
            condition: a Polars expression, or the text of an SQL condition.

        Raises:
            QueryError: the condition is not valid, or names a column that is not there; the message lists
                those that are.
        """
        snapshot = self._reader.snapshot
        conditions = None if self._conditions is None else (*self._conditions, condition)
        if isinstance(condition, str):
            positions = positions_where(snapshot, self._positions, condition)
            return EpisodeView(self._reader, positions, conditions)
        if not isinstance(condition, pl.Expr):
            raise QueryError(
                f"A filter of type {type(condition).__name__} was given; expected a Polars "
                f"expression or SQL text."
            )
        frame = positioned_episodes(snapshot, self._positions)
        try:
            found = frame.filter(condition).select(POSITION).collect()
        except polars.exceptions.PolarsError as error:
            check_files(snapshot, EPISODES)
            raise QueryError(
                f"The filter is not valid: {_reason(error)}\n"
                f"{available_episodes(snapshot)}{self._refresh_hint()}"
            ) from error
        return EpisodeView(self._reader, found[POSITION].to_numpy().astype(np.int64), conditions)

    def _renewed(self, snapshot: Snapshot) -> EpisodeView:
        """The same choice of episodes in another snapshot; only for views that are not slices."""
        view = EpisodeView(SnapshotReader(snapshot))
        for condition in self._conditions or ():
            view = view.filter(condition)
        return view

    def sample_episodes(self, n: int, seed: int | None = None, replace: bool = False) -> list[Episode]:
        """Draw `n` episodes, each with the same probability.

        Args:
            n: how many.
            seed: the same seed and the same view give the same episodes.
            replace: allow an episode to be drawn more than once.

        Raises:
            InvalidArgumentError: `n` is no number of episodes, or more than there are (without `replace`);
                `seed` is none.
        """
        if not isinstance(n, int | np.integer) or n < 0:
            raise InvalidArgumentError(f"n={n!r}: expected a whole number of at least 0.")
        if n > len(self) and not (replace and len(self)):
            raise InvalidArgumentError(
                f"Cannot draw {n!r} episodes from {len(self)}. Draw fewer, or draw with replace=True."
            )
        if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidArgumentError(f"seed={seed!r}: expected a number that is not negative, or None.")
        drawn = np.random.default_rng(seed).choice(len(self), n, replace) if n else []
        return [self[int(index)] for index in drawn]

    def selection(self) -> Selection:
        """These episodes as a merge takes them."""
        if self._positions is None:
            return Selection(self._reader.snapshot)
        ids = self.episodes.select("episode_id").collect()["episode_id"].to_list()
        return Selection(self._reader.snapshot, pa.array(ids, pa.string()))

    # Environments

    def make_env(
        self,
        run: str | None = None,
        *,
        trust: bool = False,
        strict: bool = False,
        render_mode: str | None = None,
        **changes: Any,
    ) -> gymnasium.Env:
        """Make the environment of a run again: `gymnasium.make` with the spec, wrappers and files it kept.

        Nothing is unpickled. Without trust only environments and wrappers of Gymnasium itself are made, with
        arguments that name no paths; see docs/environments.md. Files that the run kept are unpacked into a
        temporary folder, which goes with the environment. It shows nothing on the screen, and films nothing.

        Args:
            run: a run's id or name; None if all runs of these episodes have the same environment.
            trust: you trust whoever wrote the store: import the modules that the spec names.
            strict: packages of other versions are an error, not a warning.
            render_mode: another render mode than the recorded one ("human" is not taken over).
            changes: other arguments than the recorded ones, and `max_episode_steps` or
                `disable_env_checker`, as `gymnasium.make` takes them.

        Raises:
            EnvUnavailableError: something was not kept or is not installed; the message names it.
            UntrustedEnvError: it needs trust; the message says what for. Nothing was imported.
            InvalidArgumentError: there is no such run, or several with different environments.
            CorruptStoreError: what the run kept is damaged.
        """
        snapshot = self._reader.snapshot
        found = chosen_run(self._run_envs(), run)
        env, told = make_run_env(
            snapshot, found, trust=trust, strict=strict, render_mode=render_mode, changes=changes
        )
        if told is not None:
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        return env

    def _run_envs(self) -> dict[str, RunEnv]:
        """What the runs of this view kept."""
        found = run_envs(self._reader.snapshot)
        if self._positions is None:
            return found
        here = set(self.episodes.select("run_id").unique().collect()["run_id"].to_list())
        return {run_id: env for run_id, env in found.items() if run_id in here}

    def replay(self, env: Any = None, *, rtol: float = 0.0, atol: float = 0.0) -> list[ReplayReport]:
        """Replay every episode of this view; see `Episode.replay`.

        Args:
            env: used for all of them; None to make the environment of each run again.
            rtol, atol: as for `Episode.replay`.
        """
        if env is not None:
            return [episode.replay(env, rtol=rtol, atol=atol) for episode in self]
        reports, made = [], {}
        kept = self._run_envs()
        with contextlib.ExitStack() as stack:
            for episode in self:
                if episode.run_id not in made:
                    run = chosen_run(kept, episode.run_id)
                    again, told = make_run_env(self._reader.snapshot, run)
                    if told is not None:
                        warnings.warn(told, RuntimeWarning, stacklevel=2)
                    made[episode.run_id] = stack.enter_context(contextlib.closing(again))
                reports.append(episode.replay(made[episode.run_id], rtol=rtol, atol=atol))
        return reports

    # Frames and queries

    @property
    def episodes(self) -> pl.LazyFrame:
        """One row per episode of this view, in its order."""
        return episodes_frame(self._reader.snapshot, self._positions)

    @property
    def steps(self) -> pl.LazyFrame:
        """T+1 rows per episode; on the last row action, reward and flags are null."""
        return steps_frame(self._reader.snapshot, self._positions)

    @property
    def transitions(self) -> pl.LazyFrame:
        """T rows per episode: the steps without each episode's last row."""
        return transitions_only(self.steps)

    @property
    def runs(self) -> pl.LazyFrame:
        """One row per run that these episodes come from (for a whole store: per run)."""
        return runs_frame(self._reader.snapshot, self._positions)

    def connect(self, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
        """A new DuckDB connection with the views `runs`, `episodes`, `steps`, `transitions`, and the macros.

        docs/sql.md describes them. The caller owns the connection and closes it.

        Args:
            read_only: for queries of strangers: the connection sees nothing but these views. It cannot read
                or write files, load extensions, change settings or see variables. It reads steps through
                Arrow, which is slower, and keeps the episodes in memory.
        """
        return connect(self._reader.snapshot, self._positions, read_only=read_only)

    def sql(self, text: str, *, read_only: bool = False) -> duckdb.DuckDBPyRelation:
        """Run a DuckDB query over the views and macros of docs/sql.md.

        Args:
            text: the query. It may do whatever DuckDB can, so it is for the owner of this process.
            read_only: run it as on a `connect(read_only=True)`, for queries of strangers.

        Returns:
            A relation, computed when it is shown or fetched: `.show()`, `.pl()`, `.df()`, `.arrow()`.
            What goes wrong only then (a failing cast, a damaged file) is a `duckdb.Error`; see `query`. It is
            for one thread at a time.

        Raises:
            QueryError: the text is not valid, or no query; the message begins with the nearest names.
        """
        connection = self._confined if read_only else self._connection
        return run_sql(self._reader.snapshot, connection, text, self._segments)

    def query(self, text: str, *, read_only: bool = False) -> pl.DataFrame:
        """Run a DuckDB query as `sql` does, and return its result as a Polars frame.

        It is carried out at once; Ctrl-C stops it, and the next query is answered as ever. Threads may ask
        the same view: one query runs after the other.

        Raises:
            QueryError: the text is not valid, or what it asks fails as it runs.
            KeyboardInterrupt: the caller was interrupted.
        """
        with self._asking:
            connection = self._confined if read_only else self._connection
            return fetch(self._reader.snapshot, connection, text, self._segments)

    @cached_property
    def _asking(self) -> threading.Lock:
        """Held while a query runs: DuckDB's connections refuse a second one. All threads get the same."""
        return self.__dict__.setdefault("_asking", threading.Lock())

    @cached_property
    def _segments(self) -> frozenset[str] | None:
        """The files that hold the steps of this view; None for all of the snapshot."""
        return None if self._positions is None else self._reader.snapshot.segments_of(self._positions)

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self.connect()

    @cached_property
    def _confined(self) -> duckdb.DuckDBPyConnection:
        return self.connect(read_only=True)

    def __repr__(self) -> str:
        """Number of episodes and where they are."""
        snapshot = self._reader.snapshot
        place = f"{str(snapshot.layout.root)!r}, version {snapshot.version}"
        return f"{type(self).__name__}({len(self)} episodes, {place})"


def _reason(error: Exception) -> str:
    """What Polars says first; the plan of the query that follows tells a caller nothing."""
    return str(error).partition("\n")[0]
