"""The numbers of episodes that a chart shows, and what tells them apart: the table that it is made from.

A *series* is what gets a colour: a run, an agent, an end reason, or the values of any column. A *panel* is
what gets axes of its own: an objective of vector rewards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

from ...store.errors import CorruptStoreError, InvalidArgumentError, NothingToDrawError
from ...store.layout import EPISODES, RUNS, TABLES
from ...store.snapshot import Snapshot
from ..amounts import counted
from ..damaged_files import check_readable, name_damaged
from ..sql.interrupting import carry_out
from ..sql.names_nearby import near_names
from ..sql.query import available_episodes
from ..sql.sources import Sources
from ..sql.text import quote

if TYPE_CHECKING:
    from ..view import EpisodeView

MOST_SERIES = 12
#: Values beyond are data, but no axis has room for them beside others.
LARGEST = 1e300
RUN, AGENT = "run", "agent"
RETURN, LENGTH = "return", "length"

#: A run is called by its name where no other run has it, else by its id.
_RUN = """(SELECT run_id, CASE WHEN name IS NULL OR count(*) OVER (PARTITION BY name) > 1
THEN run_id ELSE name END AS run {label} FROM runs)"""
_PLAIN = "episode_id, run_id, run, number, ended_at, length, end_reason, seed, steps"


class Workbench:
    """A DuckDB connection of its own, for the tables that a chart is aggregated from.

    Args:
        snapshot: what is read.
        connection: given back with `close`.
        tables: of the store, that it reads.
        segments: those whose steps it reads; None for all.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        connection: duckdb.DuckDBPyConnection,
        tables: Sequence[str],
        segments: frozenset[str] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._connection = connection
        self._tables = tables
        self._segments = segments

    def run(self, text: str) -> None:
        """Run a statement.

        Raises:
            CorruptStoreError: a file is damaged; the message names it, where that can be told.
        """
        with self._guarded():
            carry_out(lambda: self._connection.execute(text), self._connection.interrupt)

    def rows(self, text: str) -> list[dict[str, Any]]:
        """The rows of a query, by name of column."""
        with self._guarded():
            query = self._connection.sql
            return carry_out(lambda: query(text).to_arrow_table(), self._connection.interrupt).to_pylist()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.InterruptException, duckdb.OutOfMemoryException):
            raise
        except duckdb.Error as error:
            # The statements are ours, so it is a file: one that does not hold what its schema says, or one
            # for which the connection has no view.
            check_readable(self.snapshot, self._tables, self._segments)
            name_damaged(self.snapshot, error, self._tables, self._segments)
            raise CorruptStoreError(
                f"The store {self.snapshot.layout.root} cannot be read: {error}"
            ) from error

    def close(self) -> None:
        """Give the connection and its tables back."""
        self._connection.close()


@dataclass(frozen=True)
class Series:
    """One value per episode (or agent, or objective) of a view, with what it belongs to.

    They stand in the table `drawn` of the bench: episode_id, run_id, run, number, ended_at, length,
    end_reason, seed, steps (of its run, up to and with the episode), series, panel, value (finite).

    Attributes:
        bench: where the table is.
        by: what tells the series apart.
        names: of the series, the one with most values first.
        panels: the panels in order; one that is empty where there is a single one.
        count: how many values there are.
        largest: how many the largest series has in a panel.
        notes: what is left out.
    """

    bench: Workbench
    by: str
    names: tuple[str, ...]
    panels: tuple[str, ...]
    count: int
    largest: int
    notes: tuple[str, ...]


@contextlib.contextmanager
def step_bench(view: EpisodeView) -> Iterator[Workbench]:
    """A workbench with all tables of a view that has episodes.

    Raises:
        NothingToDrawError: the view has none.
        CorruptStoreError: a file is damaged.
    """
    check_any(view)
    snapshot = view._reader.snapshot
    with contextlib.closing(Workbench(snapshot, view.connect(), TABLES, view._segments)) as bench:
        yield bench


@contextlib.contextmanager
def episode_bench(view: EpisodeView) -> Iterator[Workbench]:
    """The same with the tables `episodes` and `runs` only, which a damaged file of steps does not disturb."""
    check_any(view)
    snapshot = view._reader.snapshot
    sources = Sources(snapshot)
    with contextlib.closing(Workbench(snapshot, sources.connection, (EPISODES, RUNS))) as bench:
        for table in (EPISODES, RUNS):
            snapshot.places(table)
        bench.run(f"CREATE VIEW {RUNS} AS {sources.table(RUNS)}")
        if view._positions is None:
            bench.run(f"CREATE VIEW {EPISODES} AS {sources.table(EPISODES)}")
        else:
            sources.connection.register(EPISODES, view.episodes.collect().to_arrow())
        yield bench


def check_any(view: EpisodeView) -> None:
    """Refuse a view without episodes.

    Raises:
        NothingToDrawError: it has none.
    """
    if not len(view):
        raise NothingToDrawError(
            "There is nothing to draw: the view has no episodes. Record some, or choose with a wider filter."
            + view._refresh_hint()
        )


def episode_series(bench: Workbench, what: str, by: str | None) -> Series:
    """The returns or lengths of episodes.

    Args:
        bench: of the view.
        what: `RETURN` or `LENGTH`.
        by: see `Plots.returns`.

    Raises:
        InvalidArgumentError: there is no such column to tell series by.
        NothingToDrawError: no value is a number that fits an axis.
    """
    schema = bench.snapshot.schema
    by = by or (AGENT if schema.groups else RUN)
    bench.run(f"CREATE TEMP TABLE valued AS {_valued(bench.snapshot, what, by)}")
    bench.run(
        "CREATE TEMP TABLE sizes AS SELECT series AS name, count(*) AS values FROM valued "
        f"WHERE {_fits('value')} GROUP BY 1 ORDER BY 2 DESC, 1"
    )
    bench.run(
        f"CREATE TEMP TABLE drawn AS SELECT * FROM valued WHERE {_fits('value')} "
        f"AND series IN (SELECT name FROM sizes ORDER BY values DESC, name LIMIT {MOST_SERIES})"
    )
    sizes = bench.rows("SELECT * FROM sizes ORDER BY values DESC, name")
    (told,) = bench.rows(
        "SELECT count(*) FILTER (NOT coalesce(" + _fits("value") + ", false)) AS wild FROM valued"
    )
    if not sizes:
        raise NothingToDrawError(f"There is nothing to draw: the {what}s of these episodes are not finite.")
    panels = [
        row["panel"] for row in bench.rows("SELECT DISTINCT panel FROM drawn ORDER BY len(panel), panel")
    ]
    shown = sizes[:MOST_SERIES]
    left = sum(row["values"] for row in sizes[MOST_SERIES:])
    notes = []
    if told["wild"]:
        notes.append(f"{counted(told['wild'], what)} not drawn: NaN, infinite or beyond {LARGEST:g}")
    if left:
        notes.append(
            f"the {MOST_SERIES} largest of {len(sizes):,} by {by}; {counted(left, what)} of others not drawn"
        )
    return Series(
        bench,
        by,
        tuple(row["name"] for row in shown),
        tuple(panels),
        sum(row["values"] for row in shown),
        shown[0]["values"] // max(len(panels), 1),
        tuple(notes),
    )


def _fits(value: str) -> str:
    return f"isfinite({value}) AND abs({value}) <= {LARGEST}"


def _valued(snapshot: Snapshot, what: str, by: str) -> str:
    """A query for every value with its series and panel."""
    schema = snapshot.schema
    label, of_run = _labels(snapshot, by)
    value = "episode_return" if what == RETURN else "length"
    if by == AGENT:
        lanes = "agent_returns" if what == RETURN else "agent_lengths"
        series = f"unnest(agents) AS series, unnest({lanes}) AS amount"
    else:
        series = f"{label} AS series, {value} AS amount"
    base = (
        "SELECT episode_id, episodes.run_id, run, number, ended_at, length, end_reason, seed, "
        f"sum(length) OVER (PARTITION BY episodes.run_id ORDER BY number) AS steps, {series} "
        f"FROM episodes LEFT JOIN {_RUN.format(label=of_run)} AS runs_of USING (run_id)"
    )
    if what != RETURN or not schema.reward_shape:
        return f"SELECT {_PLAIN}, series, '' AS panel, amount::DOUBLE AS value FROM ({base})"
    return (
        f"SELECT {_PLAIN}, series, 'objective ' || objective AS panel, "
        f"amount[objective + 1]::DOUBLE AS value "
        f"FROM ({base}), range({schema.reward_shape[0]}) AS objectives(objective)"
    )


def label_episodes(bench: Workbench, by: str) -> tuple[tuple[str, ...], str]:
    """Make the table `labels`: episode_id and _series, for the series with the most episodes.

    Returns:
        The series, the largest first, and a note on what is left out.
    """
    label, of_run = _labels(bench.snapshot, by)
    bench.run(
        f"CREATE TEMP TABLE labels AS SELECT episode_id, {label} AS _series "
        f"FROM episodes LEFT JOIN {_RUN.format(label=of_run)} AS runs_of USING (run_id)"
    )
    sizes = bench.rows("SELECT _series AS name FROM labels GROUP BY 1 ORDER BY count(*) DESC, 1")
    note = f"the {MOST_SERIES} largest of {len(sizes):,} by {by}" if len(sizes) > MOST_SERIES else ""
    return tuple(row["name"] for row in sizes[:MOST_SERIES]), note


def _labels(snapshot: Snapshot, by: str) -> tuple[str, str]:
    """SQL for the name of an episode's series, and for the column of `runs` that it needs.

    Raises:
        InvalidArgumentError: nothing is called so.
    """
    if by == RUN:
        return "run", ""
    if by == AGENT:
        if not snapshot.schema.groups:
            raise InvalidArgumentError(
                "by='agent': the store has a single agent. Leave it out, or use by='run'."
            )
        return "NULL", ""
    if by in snapshot.episodes_schema.names:
        return f"coalesce(episodes.{quote(by)}::VARCHAR, 'NULL')", ""
    if by in snapshot.runs_schema.names:
        return "coalesce(of_run, 'NULL')", f", {quote(by)}::VARCHAR AS of_run"
    known = [RUN, *([AGENT] if snapshot.schema.groups else []), *snapshot.episodes_schema.names]
    near = near_names(by, [*known, *snapshot.runs_schema.names], 3)
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise InvalidArgumentError(
        f"by={by!r} is no column of episodes or of runs.{meant} {available_episodes(snapshot)} "
        f"Of runs: {', '.join(snapshot.runs_schema.names)}."
    )
