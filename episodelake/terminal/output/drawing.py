"""Charts of a store made of characters, and the numbers in them for `--json`.

They draw small aggregates: a line per run for returns and lengths, a count per value for actions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from ...readers.amounts import counted
from ...readers.plots.series import RUN, VALUED, episode_bench, value_episodes
from ...readers.plots.steps import elements_of
from ...readers.view import EpisodeView
from ...store.layout import EPISODES
from ...store.schema import ACTION
from .charts import histogram, sparkline, stretches
from .grid import NARROWEST, Grid, number_text, spare
from .page import Page

#: The newest runs, which are drawn.
RUNS = 20
POINTS = 60
BINS = 40
#: A narrower terminal gets shorter headers.
WIDE = 100
#: A column of whole numbers with at most this many values gets a bar for each.
VALUES = 24
#: The elements of a column that are drawn.
ELEMENTS = 8
HEIGHT = 4


@dataclass(frozen=True)
class RunSeries:
    """Values of the episodes of one run, in the order in which they began.

    Attributes:
        name: the run; of several objectives, which one too.
        values: float64.
    """

    name: str
    values: np.ndarray


def drawn_series(view: EpisodeView, what: str) -> list[RunSeries]:
    """Return the returns or lengths by run, the oldest run first.

    Args:
        view: the episodes; without any there are no series.
        what: `RETURN` or `LENGTH`.
    """
    if not len(view):
        return []
    with episode_bench(view.context) as bench:
        value_episodes(bench, what, RUN)
        runs = f"SELECT run_id, min(started_at) AS began FROM {EPISODES} GROUP BY run_id"
        found = bench.table(
            f"SELECT run_id, panel, value FROM {VALUED} "
            f"JOIN ({runs} ORDER BY began DESC LIMIT {RUNS}) USING (run_id) "
            "ORDER BY began, run_id, len(panel), panel, number"
        )
    parts = pl.DataFrame(found).partition_by("run_id", "panel", maintain_order=True, as_dict=True)
    return [
        RunSeries(f"{run} [{panel.rpartition(' ')[2]}]" if panel else run, part["value"].to_numpy())
        for (run, panel), part in parts.items()
    ]


def draw_over_time(page: Page, series: Sequence[RunSeries], *, write: bool) -> list[dict[str, Any]]:
    """Draw a line per run, and return its numbers."""
    told = []
    for each in series:
        told.append({**_counts_of(each), **_spread(each.values), "points": _means(each.values)})
    if write and series:
        _write_over_time(page, series, told)
        if len(series) > 1:
            page.note("Each line has a scale of its own, from the lowest to the highest of its row.")
        _note_unbounded(page, told)
    return told


def _write_over_time(page: Page, series: Sequence[RunSeries], told: Sequence[Mapping[str, Any]]) -> None:
    others = [
        (row["run"], row["episodes"], *(page.number(row[name]) for name in ("lowest", "mean", "highest")))
        for row in told
    ]
    narrow = page.is_terminal and page.width < WIDE
    drawn = "over time" if narrow else "from first to last episode"

    def grid(width: int) -> Grid:
        lines = [sparkline(each.values, width, page.glyphs) for each in series]
        rows = [(row[0], line, *row[1:]) for row, line in zip(others, lines, strict=True)]
        headers = ("run", drawn, "episodes", "lowest", "mean", "highest")
        made = Grid.of(headers, rows, (False, False, True, True, True, True))
        return replace(made, first=(drawn, *(name for name in headers if name != drawn)), chart=drawn)

    _write_chart(page, grid, POINTS)


def _write_chart(page: Page, grid: Callable[[int], Grid], most: int) -> None:
    """Write a table with a chart in it, which takes the room that the other columns leave.

    Args:
        page: the output.
        grid: returns the table with a chart of the given width.
        most: the largest width of the chart.
    """
    narrow = grid(NARROWEST)
    width = min(_width(page), most)
    if page.is_terminal:
        column = max(NARROWEST, len(narrow.chart or ""))
        width = min(width, column + spare(narrow, page.width))
    page.table(grid(max(width, NARROWEST)))


def _counts_of(series: RunSeries) -> dict[str, Any]:
    finite = int(np.isfinite(series.values).sum())
    return {"run": series.name, "episodes": len(series.values), "finite": finite}


def _spread(values: np.ndarray) -> dict[str, float | None]:
    """Lowest, mean and highest without NaN, as `stats` has them; the mean of both infinities is NaN."""
    numbers = values[~np.isnan(values)]
    if not len(numbers):
        return dict.fromkeys(("lowest", "mean", "highest"))
    with np.errstate(invalid="ignore"):
        mean = numbers.mean()
    return {"lowest": float(numbers.min()), "mean": float(mean), "highest": float(numbers.max())}


def _note_unbounded(page: Page, told: Sequence[Mapping[str, Any]]) -> None:
    """Note how many episodes are not drawn."""
    lost = sum(each["episodes"] - each["finite"] for each in told)
    if lost:
        episodes = counted(sum(each["episodes"] for each in told), "episode")
        page.note(f"{lost:,} of {episodes} not drawn: their numbers are NaN or infinite.")


def _width(page: Page) -> int:
    return max(min(page.width - 60, POINTS), NARROWEST)


def _means(values: np.ndarray) -> list[float]:
    """At most `POINTS` means of equal stretches."""
    return [float(part.mean()) for part in stretches(values, min(len(values), POINTS))]


def draw_histogram(page: Page, series: Sequence[RunSeries], *, write: bool) -> list[dict[str, Any]]:
    """Draw how often each value occurs, by run over the same axis, and return the counts."""
    finite = {each.name: each.values[np.isfinite(each.values)] for each in series}
    edges = _edges(np.concatenate(list(finite.values()))) if finite else np.zeros(0)
    told = [
        {**_counts_of(each), "edges": edges.tolist(), "counts": _counts(finite[each.name], edges)}
        for each in series
    ]
    if write:
        _write_histogram(page, {name: values for name, values in finite.items() if len(values)})
        _note_unbounded(page, told)
    return told


def _edges(values: np.ndarray) -> np.ndarray:
    """Return the edges of equal bins; the same edge twice for a single value, none without values."""
    if not len(values):
        return np.zeros(0)
    low, high = values.min(), values.max()
    return np.array([low, low]) if low == high else np.linspace(low, high, BINS + 1)


def _write_histogram(page: Page, finite: Mapping[str, np.ndarray]) -> None:
    if finite:
        drawn = histogram(finite, min(page.width, 76), HEIGHT, page.glyphs)
        for name, lines in drawn.bars.items():
            episodes, counts = counted(len(finite[name]), "episode"), drawn.counts[name]
            scale = "" if counts else f"; the highest bar: {drawn.highest[name]:,}"
            page.line(f"{name}  ({episodes}{scale})", "cyan")
            for line in (counts, *lines) if counts else lines:
                page.line(line.rstrip(), "green")
            page.line(page.glyphs.rule * max(map(len, lines)), "bright_black")
        page.line(drawn.axis)


def _counts(values: np.ndarray, edges: np.ndarray) -> list[int]:
    if not len(edges):
        return []
    return [len(values)] if edges[0] == edges[-1] else np.histogram(values, edges)[0].tolist()


# Actions


def draw_actions(page: Page, view: EpisodeView, *, write: bool) -> list[dict[str, Any]]:
    """Draw and return the counts of actions: by value for few whole numbers, else in bins."""
    # Groups of agents may share columns.
    elements = {each.name: each for each in elements_of(view.context.snapshot.schema, ACTION)}
    drawn: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    for each in elements.values():
        if drawn[each.column] < ELEMENTS:
            drawn[each.column] += 1
            found += _action_counts(view, each.name, each.sql)
    if write and found:
        _write_actions(page, found)
    return found


def _action_counts(view: EpisodeView, name: str, values: str) -> list[dict[str, Any]]:
    source = f"(SELECT {values} AS v FROM transitions WHERE {values} IS NOT NULL AND isfinite({values}))"
    low, high, distinct, whole, count = view.query(
        f"SELECT min(v), max(v), approx_count_distinct(v), bool_and(v = round(v)), count(*) FROM {source}"
    ).row(0)
    if not count:
        return []
    if whole and distinct <= VALUES:
        rows = view.query(f"SELECT v, count(*) FROM {source} GROUP BY v ORDER BY v").rows()
        return [_counted(name, value, value, number, count) for value, number in rows]
    span = high - low or 1.0
    place = f"least(floor((v - {low!r}) / {span!r} * {BINS}), {BINS - 1})::BIGINT"
    bins = dict(view.query(f"SELECT {place}, count(*) FROM {source} GROUP BY 1").rows())
    width = span / BINS
    return [
        _counted(name, low + index * width, low + (index + 1) * width, bins.get(index, 0), count)
        for index in range(BINS)
    ]


def _counted(name: str, low: float, high: float, number: int, count: int) -> dict[str, Any]:
    return {"action": name, "from": low, "to": high, "count": number, "share": number / count}


def _write_actions(page: Page, found: Sequence[dict[str, Any]]) -> None:
    binned = [row for row in found if row["from"] != row["to"]]
    valued = [row for row in found if row["from"] == row["to"]]
    if valued:
        most = max(row["share"] for row in valued)
        full = page.glyphs.levels[-1]

        def shares(width: int) -> Grid:
            rows = [
                (
                    row["action"],
                    f"{row['from']:g}",
                    row["count"],
                    f"{row['share']:.1%}",
                    full * round(row["share"] / most * width),
                )
                for row in valued
            ]
            headers = ("action", "value", "count", "share", "")
            return replace(Grid.of(headers, rows, (False, True, True, True, False)), chart="")

        _write_chart(page, shares, POINTS)
    if binned:
        _write_chart(page, lambda width: _spread_actions(page, binned, width), BINS)


def _spread_actions(page: Page, binned: Sequence[dict[str, Any]], width: int) -> Grid:
    rows = []
    for name in dict.fromkeys(row["action"] for row in binned):
        bins = [row for row in binned if row["action"] == name]
        line = sparkline(np.array([row["count"] for row in bins], np.float64), width, page.glyphs)
        rows.append((name, number_text(bins[0]["from"]), line, number_text(bins[-1]["to"])))
    headers = ("action", "lowest", "how often", "highest")
    made = Grid.of(headers, rows, (False, True, False, False))
    return replace(made, first=("how often", "action", "lowest", "highest"), chart="how often")
