"""Series of episodes: the tables that charts, cards and the terminal are made from.

A *series* is what gets a colour: a run, an agent, an end reason, or the values of any column. A *panel* is
what gets axes of its own: an objective of vector rewards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...store.common.arguments import suggest
from ...store.dynamic.column_groups import METADATA
from ...store.errors import InvalidArgumentError, NothingToDrawError
from ...store.snapshot import Snapshot
from ..chart_session import ChartSession
from ..formatting import counted
from ..sql.text import quote

MOST_SERIES = 12
#: Values beyond are data, but no axis has room for them beside others.
LARGEST = 1e300
#: What a value is that fits no axis.
WILD = (
    "CASE WHEN value IS NULL THEN 'NULL' WHEN isnan(value) THEN 'NaN' "
    f"WHEN isinf(value) THEN if(value > 0, 'inf', '-inf') ELSE if(value > 0, '>', '<-') || '{LARGEST:g}' END"
)
FITS = f"isfinite(value) AND abs(value) <= {LARGEST}"
#: Views of a bench: all values, those of the largest series that fit an axis, and these by stretch. As tables
#: they would hold columns that a chart of a million episodes does not need.
VALUED, DRAWN, PLACED = "valued", "drawn", "placed"
#: Whether the environment ended an episode; of a run without such episodes, any.
_UNFINISHED = "end_reason IN ('cut', 'interrupted')"
_ONLY_UNFINISHED = f"SELECT run_id FROM episodes GROUP BY 1 HAVING bool_and({_UNFINISHED})"
_FINISHED = f"(NOT {_UNFINISHED} OR run_id IN ({_ONLY_UNFINISHED}))"
RUN, AGENT = "run", "agent"
RETURN, LENGTH = "return", "length"
#: What the x axis of a chart may count: the column of `DRAWN`, and its title with a unit.
OVER = {
    "episodes": ("number", "episode of its run (number)"),
    "steps": ("steps", "steps of its run so far"),
    "time": ("epoch_ms(ended_at)", "end of the episode (UTC)"),
    "policy": ("policy", "policy version"),
}
#: Metadata of rollouts: what wrote them, and the parts of their rewards.
POLICY, PARTS = "metadata.policy_version", "metadata.rewards."

#: A run is called by its name where no other run has it, else by its id.
_RUN = """(SELECT run_id, CASE WHEN name IS NULL OR count(*) OVER (PARTITION BY name) > 1
THEN run_id ELSE name END AS run {label} FROM runs)"""
_PLAIN = "episode_id, run_id, run, number, ended_at, length, end_reason, seed, steps, policy"


@dataclass(frozen=True)
class Series:
    """One value per episode (or agent, or objective) of a view, with what it belongs to.

    They stand in the view `DRAWN` of the bench: episode_id, run_id, run, number, ended_at, length,
    end_reason, seed, steps (of its run, up to and with the episode), policy (version), series, panel, value
    (finite).

    Attributes:
        by: the column, `RUN` or `AGENT` that defines the series.
        names: of the series, largest first.
        total: number of series, including those left out.
        panels: the panels in order; one that is empty where there is a single one.
        count: number of values.
        largest: number of values of the largest series in a panel.
        notes: sentences on what is left out.
        middle: what a learning curve draws of each stretch: "median", or "mean" of values that are only two.
    """

    by: str
    names: tuple[str, ...]
    total: int
    panels: tuple[str, ...]
    count: int
    largest: int
    notes: tuple[str, ...]
    middle: str = "median"


def episode_series(bench: ChartSession, what: str, by: str | None, *, finished: bool = False) -> Series:
    """Return the returns or lengths of episodes that are finite, of the largest series.

    Args:
        bench: of the view.
        what: `RETURN`, `LENGTH`, or one of `values_of_episodes`.
        by: see `Plots.returns`.
        finished: leave out episodes that the environment did not end, of runs with others; unless nothing is
            left to draw.

    Raises:
        InvalidArgumentError: there is no such column to tell series by.
        NothingToDrawError: no value is a number that fits an axis.
    """
    schema = bench.snapshot.schema
    by = by or (AGENT if schema.groups else RUN)
    value_episodes(bench, what, by, _FINISHED if finished else "true")
    bench.rows(
        "CREATE OR REPLACE TEMP TABLE sizes AS SELECT series AS name, "
        f"count(*) FILTER ({FITS}) AS values, count(*) FILTER (NOT coalesce({FITS}, false)) AS wild "
        f"FROM {VALUED} GROUP BY 1"
    )
    bench.rows(
        f"CREATE OR REPLACE TEMP VIEW {DRAWN} AS SELECT * FROM {VALUED} WHERE {FITS} "
        f"AND series IN (SELECT name FROM sizes ORDER BY values DESC, name LIMIT {MOST_SERIES})"
    )
    counts = bench.rows("SELECT * FROM sizes ORDER BY values DESC, name")
    sizes, wild = [row for row in counts if row["values"]], sum(row["wild"] for row in counts)
    if not sizes and finished:
        return episode_series(bench, what, by)
    if not sizes:
        raise NothingToDrawError(f"There is nothing to draw: the {what}s of these episodes are not finite.")
    panels = [
        row["panel"] for row in bench.rows("SELECT DISTINCT panel FROM drawn ORDER BY len(panel), panel")
    ]
    shown = sizes[:MOST_SERIES]
    left = sum(row["values"] for row in sizes[MOST_SERIES:])
    notes = []
    if finished:
        (unfinished,) = bench.rows(f"SELECT count(*) AS n FROM episodes WHERE NOT {_FINISHED}")
        if unfinished["n"]:
            notes.append(f"{counted(unfinished['n'], 'unfinished episode')} (cut or interrupted) not drawn")
    if wild:
        notes.append(f"{counted(wild, what)} not drawn: NaN, infinite or beyond {LARGEST:g}")
    if left:
        notes.append(
            f"the {MOST_SERIES} largest of {len(sizes):,} by {by}; {counted(left, what)} of others not drawn"
        )
    return Series(
        by,
        tuple(row["name"] for row in shown),
        len(sizes),
        tuple(panels),
        sum(row["values"] for row in shown),
        shown[0]["values"] // max(len(panels), 1),
        tuple(notes),
    )


def value_episodes(bench: ChartSession, what: str, by: str, where: str = "true") -> None:
    """Make the view `VALUED`: a value per episode (or agent, or objective), with the columns of `Series`.

    Charts, cards and the terminal draw from it. Values may be NULL, NaN or infinite.

    Args:
        bench: of the view.
        what: `RETURN`, `LENGTH`, or one of `values_of_episodes`.
        by: the column, `RUN` or `AGENT` that defines the series.
        where: a condition over the columns of `episodes` that `Series` has.

    Raises:
        InvalidArgumentError: there is no such column to tell series by.
    """
    valued = _valued(bench.snapshot, what, by)
    bench.rows(f"CREATE OR REPLACE TEMP VIEW {VALUED} AS SELECT * FROM ({valued}) WHERE {where}")


def means_over(bench: ChartSession, x: str, stretches: str) -> list[dict[str, Any]]:
    """Means and quantiles of equal stretches of each series in `DRAWN`.

    Args:
        bench, x, stretches: as for `place_values`.

    Returns:
        Rows of series, panel, x (mean), value (mean), low and high (10 % and 90 %), episodes (count), and
        lowest_id and highest_id: the episodes with the extremes.
    """
    place_values(bench, x, stretches)
    return bench.rows(
        f"SELECT series, panel, avg(x)::DOUBLE AS x, avg(value / 4) * 4 AS value, "
        "quantile_cont(value, 0.1) AS low, quantile_cont(value, 0.9) AS high, count(*) AS episodes, "
        "arg_min(episode_id, value) AS lowest_id, arg_max(episode_id, value) AS highest_id "
        f"FROM {PLACED} GROUP BY series, panel, place ORDER BY series, panel, x"
    )


def place_values(bench: ChartSession, x: str, stretches: str) -> None:
    """Make the view `PLACED`: the values of `DRAWN` with x and place, the stretch of their series.

    Each series has stretches of its own: a short run beside a long one would else have a single one.

    Args:
        bench: with the table.
        x: an expression over it: what is divided into stretches.
        stretches: an expression for how many; `n` is the number of values, `runs` that of their runs.
            NULL draws every value.

    Raises:
        NothingToDrawError: x is NULL everywhere.
    """
    place = f"least(floor((x - low) / greatest(high - low, 1) * {stretches}), {stretches} - 1)"
    bench.rows(
        "CREATE OR REPLACE TEMP TABLE at_x AS SELECT * FROM "
        f"(SELECT episode_id, run_id, series, panel, value, {x} AS x FROM {DRAWN}) WHERE x IS NOT NULL"
    )
    if not bench.rows("SELECT 1 FROM at_x LIMIT 1"):
        raise NothingToDrawError("There is nothing to draw: no episode has a metadata.policy_version.")
    bench.rows(
        f"CREATE OR REPLACE TEMP VIEW {PLACED} AS "
        f"SELECT at_x.*, coalesce({place}, x) AS place FROM at_x "
        "JOIN (SELECT series, panel, min(x) AS low, max(x) AS high, count(*) AS n, "
        "count(DISTINCT run_id) AS runs FROM at_x "
        "GROUP BY series, panel) USING (series, panel)"
    )


def _valued(snapshot: Snapshot, what: str, by: str) -> str:
    """Return a query for every value with its series and panel."""
    schema = snapshot.schema
    label, of_run = _labels(snapshot, by)
    value = {RETURN: "episode_return", LENGTH: "length"}.get(what) or quote(f"{METADATA.prefix}{what}")
    policy = quote(POLICY) if POLICY in numeric_columns(snapshot) else "NULL::DOUBLE"
    if by == AGENT:
        lanes = "agent_returns" if what == RETURN else "agent_lengths"
        series = f"unnest(agents) AS series, unnest({lanes}) AS amount"
    else:
        series = f"{label} AS series, {value} AS amount"
    base = (
        "SELECT episode_id, episodes.run_id, run, number, ended_at, length, end_reason, seed, "
        f"sum(length) OVER (PARTITION BY episodes.run_id ORDER BY number) AS steps, {policy} AS policy, "
        f"{series} "
        f"FROM episodes LEFT JOIN {_RUN.format(label=of_run)} AS runs_of USING (run_id)"
    )
    if what != RETURN or not schema.reward_shape:
        return f"SELECT {_PLAIN}, series, '' AS panel, amount::DOUBLE AS value FROM ({base})"
    return (
        f"SELECT {_PLAIN}, series, 'objective ' || objective AS panel, "
        f"amount[objective + 1]::DOUBLE AS value "
        f"FROM ({base}), range({schema.reward_shape[0]}) AS objectives(objective)"
    )


def numeric_columns(snapshot: Snapshot) -> list[str]:
    """Return the columns of numbers that episodes have."""
    return [
        field.name
        for field in snapshot.episodes_schema
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    ]


def values_of_episodes(snapshot: Snapshot) -> list[str]:
    """Return what a learning curve can show: `RETURN`, `LENGTH` and parts of rewards, as "rewards.format"."""
    parts = [name for name in numeric_columns(snapshot) if name.startswith(PARTS)]
    return [RETURN, LENGTH, *(name.removeprefix(METADATA.prefix) for name in parts)]


def label_episodes(bench: ChartSession, by: str) -> tuple[tuple[str, ...], str]:
    """Make the table `labels`: episode_id and _series, for the series with the most episodes.

    Returns:
        The series, the largest first, and a note on what is left out.
    """
    label, of_run = _labels(bench.snapshot, by)
    bench.rows(
        f"CREATE TEMP TABLE labels AS SELECT episode_id, {label} AS _series "
        f"FROM episodes LEFT JOIN {_RUN.format(label=of_run)} AS runs_of USING (run_id)"
    )
    sizes = bench.rows("SELECT _series AS name FROM labels GROUP BY 1 ORDER BY count(*) DESC, 1")
    note = f"the {MOST_SERIES} largest of {len(sizes):,} by {by}" if len(sizes) > MOST_SERIES else ""
    return tuple(row["name"] for row in sizes[:MOST_SERIES]), note


def run_column(snapshot: Snapshot, name: str) -> str | None:
    """Return the column of `runs` that a name means: itself, or `run.` and a key of metadata or a column."""
    columns = snapshot.runs_schema.names
    key = name.removeprefix(f"{RUN}.")
    meant = (f"metadata.{key}", key) if key != name else (name,)
    return next((each for each in meant if each in columns), None)


def _labels(snapshot: Snapshot, by: str) -> tuple[str, str]:
    """Return SQL for the name of an episode's series, and for the column of `runs` that it needs.

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
    own = run_column(snapshot, by)
    if own is not None:
        return "coalesce(of_run, 'NULL')", f", {quote(own)}::VARCHAR AS of_run"
    known = [RUN, *([AGENT] if snapshot.schema.groups else []), *snapshot.episodes_schema.names]
    columns = snapshot.runs_schema.names
    if by.startswith(f"{RUN}."):
        columns = [f"{RUN}.{name.removeprefix(METADATA.prefix)}" for name in columns]
    meant = suggest(by, [*known, *columns])
    raise InvalidArgumentError(
        f"by={by!r} is no column of episodes or of runs.{meant} {ChartSession.available(snapshot)} "
        f"Of runs: {', '.join(snapshot.runs_schema.names)}."
    )
