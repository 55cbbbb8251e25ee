"""The numbers behind the charts of many episodes, for other libraries; no chart of Altair is made here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from ...store.common.arguments import one_of
from ...store.errors import InvalidArgumentError
from ...store.names import ACTION
from ..chart_session import ChartSession
from ..context import ReadContext
from ..formatting import counted
from .bins import Bins, Values, beyond_note, line_ends
from .learning import learning_curves
from .series import FITS, LARGEST, LENGTH, RETURN, RUN, VALUED, value_episodes
from .steps import Element, elements_of, finite, step_rows
from .visits import Visits

#: The most runs, or other series, whose values are returned.
MOST_SERIES = 20
#: A column of whole numbers with at most this many values gets a row for each.
VALUES = 24
BINS = 40
#: The most elements of a column of actions.
ELEMENTS = 8
CELLS = 50
#: The table of the values of some runs or series.
_CHOSEN = "chosen_values"


@dataclass(frozen=True)
class ChartNumbers:
    """The numbers behind a chart.

    Attributes:
        rows: a table; `Plots.numbers` describes its columns.
        notes: sentences on what the rows are, and on what is left out.
        ends: of "returns" and "lengths", where an axis ends that a few outliers do not flatten.
    """

    rows: pl.DataFrame
    notes: tuple[str, ...] = ()
    ends: tuple[float, float] | None = None


def chart_numbers(context: ReadContext, chart: str, **options: Any) -> ChartNumbers:
    """Return the numbers; see `Plots.numbers`. Options that are None were not given."""
    one_of("chart", chart, _CHARTS)
    numbers, taken = _CHARTS[chart]
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in taken:
            raise InvalidArgumentError(f"{name}={value!r}: the numbers of {chart!r} do not depend on it.")
    return numbers(context, **given)


def _returns(context: ReadContext, by: str | None = None) -> ChartNumbers:
    return _values(context, RETURN, by)


def _lengths(context: ReadContext, by: str | None = None) -> ChartNumbers:
    return _values(context, LENGTH, by)


def _values(context: ReadContext, what: str, by: str | None) -> ChartNumbers:
    """Return the values of the newest runs, the oldest of them first, or of the largest other series."""
    with ChartSession(context, steps=False) as bench:
        value_episodes(bench, what, by or RUN)
        key = "run_id" if by is None else "series"
        began = "SELECT episode_id, started_at FROM episodes"
        bench.rows(
            f"CREATE TEMP TABLE {_CHOSEN} AS WITH placed AS ("
            f"SELECT {key} AS name, panel, value, started_at, number "
            f"FROM {VALUED} JOIN ({began}) USING (episode_id)), "
            "sizes AS (SELECT name, min(started_at) AS began, count(*) AS size, count(*) OVER () AS total "
            "FROM placed GROUP BY name), "
            f"chosen AS (FROM sizes ORDER BY {'began' if by is None else 'size'} DESC, name "
            f"LIMIT {MOST_SERIES}) "
            "SELECT name AS series, placed.*, total, began FROM placed JOIN chosen USING (name)"
        )
        order = "number" if by is None else "started_at, number"
        rows = bench.table(
            f"SELECT series, panel, value, total FROM {_CHOSEN} "
            f"ORDER BY began, name, len(panel), panel, {order}"
        )
        drawable = bench.rows(f"SELECT DISTINCT panel FROM {_CHOSEN} WHERE {FITS} ORDER BY len(panel), panel")
        panels = {row["panel"]: line_ends(bench, row["panel"], _CHOSEN) for row in drawable}
    frame = pl.DataFrame(rows)
    total = frame["total"][0]
    kept = f"newest of {total:,} runs" if by is None else f"largest of {total:,} by {by}"
    notes = [f"The {MOST_SERIES} {kept}."] if total > MOST_SERIES else []
    notes += [f"{panel}{': ' * bool(panel)}{note}." for panel, (_, note) in panels.items() if note]
    lows, highs = zip(*(ends for ends, _ in panels.values()), strict=True) if panels else ((), ())
    ends = (min(lows), max(highs)) if panels else None
    return ChartNumbers(frame.drop("total"), tuple(notes), ends)


def _learning(
    context: ReadContext, over: str = "episodes", by: str | None = None, smooth: int = 0
) -> ChartNumbers:
    series, curves = learning_curves(context, RETURN, over, by, smooth, "episodes")
    if over == "time":
        moments = pl.from_epoch(pl.col("x").cast(pl.Int64), "ms")
        curves = curves.with_columns(moments.dt.replace_time_zone("UTC"))
    notes = (f"a point is the {series.middle} return of the episodes of a stretch", *series.notes)
    return ChartNumbers(curves, tuple(f"{note[:1].upper()}{note[1:]}." for note in notes))


def _actions(context: ReadContext) -> ChartNumbers:
    # Groups of agents may share columns.
    elements = {each.name: each for each in elements_of(context.snapshot.schema, ACTION)}
    drawn: Counter[str] = Counter()
    counts: list[dict[str, Any]] = []
    with ChartSession(context, steps=True) as bench:
        notes = list(step_rows(bench, None, "transitions").notes)
        for each in elements.values():
            if drawn[each.column] < ELEMENTS:
                drawn[each.column] += 1
                rows, wild, note = _action_counts(bench, each)
                counts += rows
                if wild:
                    lost = counted(wild, "value")
                    notes.append(f"{each.name}: {lost} not drawn: NaN, infinite or beyond {LARGEST:g}.")
                if note:
                    notes.append(f"{each.name}: {note}.")
    kinds = {"action": pl.String, "from": pl.Float64, "to": pl.Float64, "count": pl.Int64}
    return ChartNumbers(pl.DataFrame(counts, {**kinds, "share": pl.Float64}), tuple(notes))


def _action_counts(bench: ChartSession, element: Element) -> tuple[list[dict[str, Any]], int, str]:
    """Return the counts of an element's values, or of its bins, how many values fit no axis, and a note on
    outliers in the outer bins.
    """
    name, value = element.name, element.sql
    fits = finite(value)
    (all_of,) = bench.rows(
        f"SELECT approx_count_distinct({value}) FILTER ({fits}) AS distinct_values, "
        f"bool_and({value} = round({value}) AND abs({value}) < 1e15) FILTER ({fits}) AS whole, "
        f"count(*) FILTER ({fits}) AS fitting, "
        f"count({value}) - count(*) FILTER ({fits}) AS wild FROM counted"
    )
    count, wild = all_of["fitting"], all_of["wild"]
    if not count:
        return [], wild, ""
    if all_of["whole"] and all_of["distinct_values"] <= VALUES:
        each = f"SELECT {value} AS v, count(*) AS n FROM counted WHERE {fits} GROUP BY 1 ORDER BY 1"
        return [_counted(name, row["v"], row["v"], row["n"], count) for row in bench.rows(each)], wild, ""
    values = Values(bench, value, "counted", fits)
    low, high = values.usual_ends()
    bins = Bins(low, (high - low) / BINS or 1.0, BINS, False)
    places = bench.rows(
        f"SELECT {bins.sql(value)} AS place, count(*) AS n FROM counted WHERE {fits} GROUP BY 1"
    )
    numbers = {row["place"]: row["n"] for row in places}
    rows = [_counted(name, *bins.edges(index), numbers.get(index, 0), count) for index in range(bins.count)]
    note = beyond_note(values.beyond((low, high)), "value", (low, high))
    return rows, wild, note and f"outer bars: with {note}"


def _counted(name: str, low: float, high: float, number: int, count: int) -> dict[str, Any]:
    return {"action": name, "from": low, "to": high, "count": number, "share": number / count}


def _visitation(context: ReadContext) -> ChartNumbers:
    visits = Visits.of(context, None, None, CELLS)
    return ChartNumbers(pl.DataFrame(visits.numbers()), visits.rows.notes)


#: By chart, what computes its numbers, and the options that they depend on.
_CHARTS: dict[str, tuple[Callable[..., ChartNumbers], tuple[str, ...]]] = {
    "returns": (_returns, ("by",)),
    "lengths": (_lengths, ("by",)),
    "learning_curve": (_learning, ("over", "by", "smooth")),
    "actions": (_actions, ()),
    "visitation": (_visitation, ()),
}
