"""Charts of characters: returns and lengths over time, histograms, learning curves, counts of actions.

Each is a table with sparklines over small aggregates: a row for each run or other series, or for each action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import EpisodeView
from ...errors import NothingToDrawError
from ...plugin import counted
from ..output.page import Page
from ..output.sparkline import Line, span_of, stretches
from .store_figures import run_labels

POINTS = 60
BINS = 40


@dataclass(frozen=True)
class Drawing:
    """A chart: a table, in which each list of numbers is drawn as a line.

    Attributes:
        rows: its numbers, as `--json` prints them.
        notes: remarks below it.
        span: the scale of all lines; None where each has its own.
        shown: rows to draw instead.
        labels: on a terminal, what runs are called in place of their ids.
    """

    rows: list[dict[str, Any]]
    notes: Sequence[str] = ()
    span: tuple[float, float] | None = None
    shown: list[dict[str, Any]] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def write(self, page: Page, rows: object = None) -> None:
        """Draw on a page.

        Raises:
            NothingToDrawError: there are no numbers.
        """
        if not self.rows:
            raise NothingToDrawError("There is nothing to draw: these episodes have no such numbers.")
        lines = [_numbers(row["points"]) for row in self.rows if "points" in row]
        cells = [_cells(row, self.span) for row in self.shown or self.rows]
        if page.is_terminal:
            named = {name: label for name, label in self.labels.items() if name != label}
            cells = [
                {**row, "run": named.get(row["run"], row["run"])} if "run" in row else row for row in cells
            ]
        if not any(row.get("beyond") for row in cells):
            cells = [{name: cell for name, cell in row.items() if name != "beyond"} for row in cells]
        for keys in dict.fromkeys(map(tuple, cells)):
            page.table([row for row in cells if tuple(row) == keys], first=())
        if self.span and len(lines) > 1:
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


@dataclass(frozen=True)
class DrawnSeries:
    """Some series.

    Attributes:
        series: the oldest run first.
        notes: on runs that are left out, and on outliers.
        ends: where an axis of all of them ends, before a few outliers; None where there is no finite value.
        labels: what runs are called, by their names in `series`.
    """

    series: list[RunSeries]
    notes: Sequence[str]
    ends: tuple[float, float] | None
    labels: Mapping[str, str]


def drawn_series(view: EpisodeView, what: str, by: str | None) -> DrawnSeries:
    """Return the returns or lengths by run.

    Args:
        view: the episodes.
        what: "returns" or "lengths".
        by: as for `Plots.returns`; None for the ids of runs, of which the newest are drawn. Of others those
            with the most episodes are.
    """
    numbers = view.plot.numbers(what, by=by)
    parts = numbers.rows.partition_by("series", "panel", maintain_order=True, as_dict=True)
    series = [
        RunSeries(_named(name, panel), panel, part["value"].to_numpy(), "run" if by is None else "series")
        for (name, panel), part in parts.items()
    ]
    runs = run_labels(view) if by is None else {}
    labels = {_named(name, panel): _named(runs[name], panel) for name, panel in parts if name in runs}
    return DrawnSeries(series, numbers.notes, numbers.ends, labels)


def _named(series: str, panel: str) -> str:
    """Return the name of a line: of several objectives, with the one it is of."""
    return f"{series} [{panel.rpartition(' ')[2]}]" if panel else series


def time_drawing(drawn: DrawnSeries) -> Drawing:
    """Draw a line per run."""
    rows = [
        {**_counts_of(each), **_spread(each.values), "points": _means(each.values)} for each in drawn.series
    ]
    several = any(each.panel for each in drawn.series)
    span = None if several else drawn.ends
    return Drawing(rows, _left_out(rows, drawn.notes), span, labels=drawn.labels)


def learning_drawing(view: EpisodeView, **options: Any) -> Drawing:
    """Draw the middle of the returns over training, a line per run or group of runs.

    Args:
        view: the episodes.
        options: those of `Plots.learning_curve` that `Plots.numbers` takes too.
    """
    numbers = view.plot.numbers("learning_curve", **options)
    rows: list[dict[str, Any]] = [
        {"series": name, "panel": panel, "episodes": part["episodes"].sum()}
        | {"points": part.drop("series", "panel").to_dicts()}
        for (name, panel), part in numbers.rows.partition_by(
            "series", "panel", maintain_order=True, as_dict=True
        ).items()
    ]
    lines = [_numbers(row["points"]) for row in rows]
    several = any(row["panel"] for row in rows)
    return Drawing(rows, numbers.notes, None if several else span_of(lines))


def _left_out(rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> list[str]:
    """Return notes, also on the episodes that are not drawn."""
    notes = [*notes]
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


def histogram_drawing(drawn: DrawnSeries) -> Drawing:
    """Draw how often each value occurs, by run over the same bins; the outer ones hold the outliers."""
    edges = _edges(drawn.ends)
    rows = [
        {**_counts_of(each), "edges": edges.tolist(), **_counts(each.values[np.isfinite(each.values)], edges)}
        for each in drawn.series
    ]
    return Drawing(rows, _left_out(rows, drawn.notes), labels=drawn.labels)


def _edges(ends: tuple[float, float] | None) -> np.ndarray:
    """Return the edges of equal bins; the same edge twice for a single value, none without values."""
    if ends is None:
        return np.zeros(0)
    return np.array(ends) if ends[0] == ends[1] else np.linspace(*ends, BINS + 1)


def _counts(values: np.ndarray, edges: np.ndarray) -> dict[str, Any]:
    """Return how many values are in each bin, and how many of these are beyond the outer edges."""
    if not len(edges):
        return {"counts": [], "beyond": 0}
    inside = np.clip(values, edges[0], edges[-1])
    counts = [len(values)] if edges[0] == edges[-1] else np.histogram(inside, edges)[0].tolist()
    return {"counts": counts, "beyond": int((inside != values).sum())}


def actions_drawing(view: EpisodeView) -> Drawing:
    """Draw the counts of actions: by value for a few integers, else in bins."""
    numbers = view.plot.numbers("actions")
    counts = numbers.rows.to_dicts()
    return Drawing(counts, numbers.notes, shown=_by_action(counts))


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
