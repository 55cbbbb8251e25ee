"""Charts of characters: returns and lengths over time, histograms, learning curves, counts of actions.

Each is a table with sparklines over small aggregates: a row for each run or other series, or for each action.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ... import EpisodeView
from ...errors import NothingToDrawError
from ...plugin import ACTION, ChartSession, counted
from ...readers.charts.bins import Bins
from ...readers.charts.learning import learning_curves
from ...readers.charts.series import LARGEST, RETURN, RUN, VALUED, value_episodes
from ...readers.charts.steps import Element, elements_of, finite, step_rows
from ..output.page import Page
from ..output.sparkline import Line, span_of, stretches

#: The newest runs, which are drawn.
RUNS = 20
POINTS = 60
BINS = 40
#: A column of whole numbers with at most this many values gets a row for each.
VALUES = 24
#: The elements of a column that are drawn.
ELEMENTS = 8


@dataclass(frozen=True)
class Drawing:
    """A chart: a table, in which each list of numbers is drawn as a line.

    Attributes:
        rows: its numbers, as `--json` prints them.
        notes: remarks below it.
        one_scale: whether all lines have the same scale.
        shown: rows to draw instead.
    """

    rows: list[dict[str, Any]]
    notes: Sequence[str] = ()
    one_scale: bool = False
    shown: list[dict[str, Any]] | None = None

    def write(self, page: Page, rows: object = None) -> None:
        """Draw on a page.

        Raises:
            NothingToDrawError: there are no numbers.
        """
        if not self.rows:
            raise NothingToDrawError("There is nothing to draw: these episodes have no such numbers.")
        lines = [_numbers(row["points"]) for row in self.rows if "points" in row]
        span = span_of(lines) if self.one_scale else None
        cells = [_cells(row, span) for row in self.shown or self.rows]
        for keys in dict.fromkeys(map(tuple, cells)):
            page.table([row for row in cells if tuple(row) == keys], first=())
        if self.one_scale and len(lines) > 1:
            page.note("All lines have the same scale.")
        for note in self.notes:
            page.note(note)


def _cells(row: Mapping[str, Any], span: tuple[float, float] | None) -> dict[str, Any]:
    """Return a row of a chart as cells of a table."""
    cells = {name: value for name, value in row.items() if not isinstance(value, list) and value != ""}
    if "edges" in row:
        low, high = (row["edges"][0], row["edges"][-1]) if row["edges"] else (None, None)
        cells |= {"from": low, "to": high}
    drawn = {name: Line(_numbers(row[name]), span) for name in ("points", "counts") if name in row}
    return cells | drawn


def _numbers(points: Sequence[Any]) -> np.ndarray:
    return np.array([each["value"] if isinstance(each, dict) else each for each in points], np.float64)


@dataclass(frozen=True)
class RunSeries:
    """Values of the episodes of one run, or of another series, in the order in which they began.

    Attributes:
        name: the run or series; of several objectives, which one too.
        panel: the objective; empty where there is one.
        values: float64.
        kind: what it is: "run", or "series" of a chart by something else.
    """

    name: str
    panel: str
    values: np.ndarray
    kind: str


def drawn_series(view: EpisodeView, what: str, by: str | None) -> tuple[list[RunSeries], str]:
    """Return the returns or lengths by run, the oldest run first, and a note on runs that are left out.

    Args:
        view: the episodes; without any there are no series.
        what: `RETURN` or `LENGTH`.
        by: as for `Plots.returns`; None for the ids of runs, of which the newest are drawn. Of others those
            with the most episodes are.
    """
    if not len(view):
        return [], ""
    with ChartSession(view.context, steps=False) as bench:
        value_episodes(bench, what, by or RUN)
        key = "run_id" if by is None else "series"
        began = "SELECT episode_id, started_at FROM episodes"
        rows = bench.table(
            f"WITH placed AS (SELECT {key} AS name, panel, value, started_at, number "
            f"FROM {VALUED} JOIN ({began}) USING (episode_id)), "
            "sizes AS (SELECT name, min(started_at) AS began, count(*) AS size, count(*) OVER () AS total "
            "FROM placed GROUP BY name), "
            f"chosen AS (FROM sizes ORDER BY {'began' if by is None else 'size'} DESC, name LIMIT {RUNS}) "
            "SELECT name, panel, value, total FROM placed JOIN chosen USING (name) "
            f"ORDER BY began, name, len(panel), panel, {'number' if by is None else 'started_at, number'}"
        )
    frame = pl.DataFrame(rows)
    parts = frame.partition_by("name", "panel", maintain_order=True, as_dict=True)
    series = [
        RunSeries(_named(name, panel), panel, part["value"].to_numpy(), "run" if by is None else "series")
        for (name, panel), part in parts.items()
    ]
    total = frame["total"][0]
    kept = f"newest of {total:,} runs" if by is None else f"largest of {total:,} by {by}"
    return series, f"The {RUNS} {kept}." if total > RUNS else ""


def _named(series: str, panel: str) -> str:
    """Return the name of a line: of several objectives, with the one it is of."""
    return f"{series} [{panel.rpartition(' ')[2]}]" if panel else series


def time_drawing(series: Sequence[RunSeries], left_out: str) -> Drawing:
    """Draw a line per run."""
    rows = [{**_counts_of(each), **_spread(each.values), "points": _means(each.values)} for each in series]
    return Drawing(rows, _left_out(rows, left_out), one_scale=not any(each.panel for each in series))


def learning_drawing(
    view: EpisodeView, over: str = "episodes", by: str | None = None, smooth: int = 0
) -> Drawing:
    """Draw the median return over training, a line per run or group of runs; see `Plots.learning_curve`."""
    if not len(view):
        return Drawing([])
    drawn, curves = learning_curves(view.context, RETURN, over, by, smooth, "episodes")
    if over == "time":
        moments = pl.from_epoch(pl.col("x").cast(pl.Int64), "ms")
        curves = curves.with_columns(moments.dt.replace_time_zone("UTC"))
    rows: list[dict[str, Any]] = [
        {"series": name, "panel": panel, "episodes": part["episodes"].sum()}
        | {"points": part.drop("series", "panel").to_dicts()}
        for (name, panel), part in curves.partition_by(
            "series", "panel", maintain_order=True, as_dict=True
        ).items()
    ]
    notes = [f"{note[:1].upper()}{note[1:]}." for note in drawn.notes]
    median = "A point is the median return of the episodes of a stretch."
    return Drawing(rows, [median, *notes], one_scale=not any(row["panel"] for row in rows))


def _left_out(rows: Sequence[Mapping[str, Any]], left_out: str) -> list[str]:
    """Return notes on the runs and the episodes that are not drawn."""
    notes = [left_out] if left_out else []
    lost = sum(each["episodes"] - each["finite"] for each in rows)
    if lost:
        episodes = counted(sum(each["episodes"] for each in rows), "episode")
        notes.append(f"{lost:,} of {episodes} not drawn: their numbers are NaN or infinite.")
    return notes


def _counts_of(series: RunSeries) -> dict[str, Any]:
    finite = int(np.isfinite(series.values).sum())
    return {series.kind: series.name, "episodes": len(series.values), "finite": finite}


def _spread(values: np.ndarray) -> dict[str, float | None]:
    """Lowest, mean and highest without NaN, as `stats` has them; the mean of both infinities is NaN."""
    numbers = values[~np.isnan(values)]
    if not len(numbers):
        return dict.fromkeys(("lowest", "mean", "highest"))
    with np.errstate(invalid="ignore"):
        mean = numbers.mean()
    return {"lowest": float(numbers.min()), "mean": float(mean), "highest": float(numbers.max())}


def _means(values: np.ndarray) -> list[float]:
    """At most `POINTS` means of equal stretches."""
    return [float(part.mean()) for part in stretches(values, min(len(values), POINTS))]


def histogram_drawing(series: Sequence[RunSeries], left_out: str = "") -> Drawing:
    """Draw how often each value occurs, by run over the same bins."""
    finite = {each.name: each.values[np.isfinite(each.values)] for each in series}
    edges = _edges(np.concatenate(list(finite.values()))) if finite else np.zeros(0)
    rows = [
        {**_counts_of(each), "edges": edges.tolist(), "counts": _counts(finite[each.name], edges)}
        for each in series
    ]
    return Drawing(rows, _left_out(rows, left_out))


def _edges(values: np.ndarray) -> np.ndarray:
    """Return the edges of equal bins; the same edge twice for a single value, none without values."""
    if not len(values):
        return np.zeros(0)
    low, high = values.min(), values.max()
    return np.array([low, low]) if low == high else np.linspace(low, high, BINS + 1)


def _counts(values: np.ndarray, edges: np.ndarray) -> list[int]:
    if not len(edges):
        return []
    return [len(values)] if edges[0] == edges[-1] else np.histogram(values, edges)[0].tolist()


def actions_drawing(view: EpisodeView) -> Drawing:
    """Draw the counts of actions: by value for a few integers, else in bins."""
    if not len(view):
        return Drawing([])
    # Groups of agents may share columns.
    elements = {each.name: each for each in elements_of(view.context.snapshot.schema, ACTION)}
    drawn: Counter[str] = Counter()
    counts: list[dict[str, Any]] = []
    wild: dict[str, int] = {}
    with ChartSession(view.context, steps=True) as bench:
        notes = step_rows(bench, None, "transitions").notes
        for each in elements.values():
            if drawn[each.column] < ELEMENTS:
                drawn[each.column] += 1
                rows, wild[each.name] = _action_counts(bench, each)
                counts += rows
    lost = [
        f"{name}: {counted(n, 'value')} not drawn: NaN, infinite or beyond {LARGEST:g}."
        for name, n in wild.items()
        if n
    ]
    return Drawing(counts, [*notes, *lost], shown=_by_action(counts))


def _action_counts(bench: ChartSession, element: Element) -> tuple[list[dict[str, Any]], int]:
    """Return the counts of an element's values, or of its bins, and how many values fit no axis."""
    name, value = element.name, element.sql
    fits = finite(value)
    (all_of,) = bench.rows(
        f"SELECT approx_count_distinct({value}) FILTER ({fits}) AS distinct_values, "
        f"bool_and({value} = round({value}) AND abs({value}) < 1e15) FILTER ({fits}) AS whole, "
        f"min({value}) FILTER ({fits}) AS low, max({value}) FILTER ({fits}) AS high, "
        f"count(*) FILTER ({fits}) AS fitting, "
        f"count({value}) - count(*) FILTER ({fits}) AS wild FROM counted"
    )
    count, wild = all_of["fitting"], all_of["wild"]
    if not count:
        return [], wild
    if all_of["whole"] and all_of["distinct_values"] <= VALUES:
        each = f"SELECT {value} AS v, count(*) AS n FROM counted WHERE {fits} GROUP BY 1 ORDER BY 1"
        return [_counted(name, row["v"], row["v"], row["n"], count) for row in bench.rows(each)], wild
    low, high = all_of["low"], all_of["high"]
    bins = Bins(low, (high - low) / BINS or 1.0, BINS, False)
    places = bench.rows(
        f"SELECT {bins.sql(value)} AS place, count(*) AS n FROM counted WHERE {fits} GROUP BY 1"
    )
    numbers = {row["place"]: row["n"] for row in places}
    return [
        _counted(name, *bins.edges(index), numbers.get(index, 0), count) for index in range(bins.count)
    ], wild


def _counted(name: str, low: float, high: float, number: int, count: int) -> dict[str, Any]:
    return {"action": name, "from": low, "to": high, "count": number, "share": number / count}


def _by_action(counts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each value, and one for all bins of an element."""
    rows: list[dict[str, Any]] = []
    binned: dict[str, list[dict[str, Any]]] = {}
    for row in counts:
        if row["from"] == row["to"]:
            rows.append(
                {"action": row["action"], "value": row["from"], "count": row["count"], "share": row["share"]}
            )
        else:
            binned.setdefault(row["action"], []).append(row)
    for name, bins in binned.items():
        edges = [bins[0]["from"], bins[-1]["to"]]
        rows.append({"action": name, "edges": edges, "counts": [row["count"] for row in bins]})
    return rows
