"""Charts of characters: returns and lengths over time, histograms, learning curves, counts of actions.

They draw small aggregates: a line for each run or other series, a count for each value of an action.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from ...readers.amounts import counted
from ...readers.charts.bins import Bins
from ...readers.charts.learning import learning_curves
from ...readers.charts.series import LARGEST, RETURN, RUN, VALUED, Workbench, value_episodes
from ...readers.charts.steps import Element, elements_of, finite, step_rows
from ...readers.view import EpisodeView
from ...store.errors import NothingToDrawError
from ...store.layout import EPISODES
from ...store.schema import ACTION
from ..output.charts import histogram, means, sparkline, stretches
from ..output.grid import NARROWEST, Grid, number_text
from ..output.page import Page

#: The newest runs, which are drawn.
RUNS = 20
POINTS = 60
#: The width of a sparkline in a table.
LINE = 40
BINS = 40
#: A narrower terminal gets shorter headers.
WIDE = 100
HEIGHT = 4
#: A column of whole numbers with at most this many values gets a bar for each.
VALUES = 24
#: The elements of a column that are drawn.
ELEMENTS = 8


@dataclass(frozen=True)
class Drawing:
    """A chart of characters.

    Attributes:
        rows: its numbers, as `--json` prints them.
        draw: draws it; without any rows there is nothing to draw.
    """

    rows: list[dict[str, Any]]
    draw: Callable[[Page], None] = lambda page: None

    def write(self, page: Page, rows: object = None) -> None:
        """Draw on a page.

        Raises:
            NothingToDrawError: there are no numbers.
        """
        if not self.rows:
            raise NothingToDrawError("There is nothing to draw: these episodes have no such numbers.")
        self.draw(page)


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
    with Workbench(view.context, steps=False) as bench:
        value_episodes(bench, what, by or RUN)
        key = "run_id" if by is None else "series"
        began = f"SELECT episode_id, started_at FROM {EPISODES}"
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

    def draw(page: Page) -> None:
        drawn = "over time" if _is_narrow(page) else "from first to last episode"
        names = ("episodes", "lowest", "mean", "highest")
        _write_lines(page, series, drawn, {name: [row[name] for row in rows] for name in names})
        _note_left_out(page, left_out)
        _note_unbounded(page, rows)

    return Drawing(rows, draw)


def _note_left_out(page: Page, left_out: str) -> None:
    if left_out:
        page.note(left_out)


def learning_drawing(
    view: EpisodeView, over: str = "episodes", by: str | None = None, smooth: int = 0
) -> Drawing:
    """Draw the median return over training, a line per run or group of runs; see `Plots.learning_curve`."""
    if not len(view):
        return Drawing([])
    series, curves = learning_curves(view.context, RETURN, over, by, smooth, "episodes")
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

    def draw(page: Page) -> None:
        medians = [np.array([point["value"] for point in row["points"]]) for row in rows]
        lines = [
            RunSeries(_named(row["series"], row["panel"]), row["panel"], values, series.by)
            for row, values in zip(rows, medians, strict=True)
        ]
        figures = {
            "episodes": [row["episodes"] for row in rows],
            **{
                "first": [float(line[0]) for line in medians],
                "highest": [float(max(line)) for line in medians],
            },
            "last": [float(line[-1]) for line in medians],
        }
        _write_lines(page, lines, "over training", figures)
        page.note("The line: median return of the episodes of a stretch.")
        for note in series.notes:
            page.note(f"{note[:1].upper()}{note[1:]}.")

    return Drawing(rows, draw)


def _write_lines(
    page: Page, series: Sequence[RunSeries], drawn: str, figures: Mapping[str, Sequence[Any]]
) -> None:
    """Write a table with a line for each series; those of an objective have one scale."""
    width = _line_width(page)
    spans = {
        panel: _scale([each.values for each in series if each.panel == panel], width)
        for panel in {each.panel for each in series}
    }
    names = [each.name for each in series]
    lines = [sparkline(each.values, width, page.glyphs, spans[each.panel]) for each in series]
    cells = [
        (*row[:3], *map(page.number, row[3:])) for row in zip(names, lines, *figures.values(), strict=True)
    ]
    kind = "series" if series[0].kind in figures else series[0].kind
    headers = (kind, drawn, *figures)
    grid = Grid.of(headers, cells, (False, False, *(True for _ in figures)))
    page.table(replace(grid, first=(drawn, *(name for name in headers if name != drawn)), chart=drawn))
    if len(series) > 1:
        several = any(each.panel for each in series)
        page.note(f"All lines{' of an objective' * several} have the same scale.")


def _scale(lines: Sequence[np.ndarray], width: int) -> tuple[float, float] | None:
    """Return the lowest and the highest mean that is drawn; None where there is none."""
    drawn = np.concatenate([means(values, width) for values in lines])
    finite = drawn[np.isfinite(drawn)]
    return (float(finite.min()), float(finite.max())) if len(finite) else None


def _is_narrow(page: Page) -> bool:
    return page.is_terminal and page.width < WIDE


def _line_width(page: Page) -> int:
    """Return the width of a sparkline beside other columns: a narrow terminal gets a short one."""
    return NARROWEST if _is_narrow(page) else LINE


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


def _note_unbounded(page: Page, rows: Sequence[Mapping[str, Any]]) -> None:
    """Note how many episodes are not drawn."""
    lost = sum(each["episodes"] - each["finite"] for each in rows)
    if lost:
        episodes = counted(sum(each["episodes"] for each in rows), "episode")
        page.note(f"{lost:,} of {episodes} not drawn: their numbers are NaN or infinite.")


def _means(values: np.ndarray) -> list[float]:
    """At most `POINTS` means of equal stretches."""
    return [float(part.mean()) for part in stretches(values, min(len(values), POINTS))]


def histogram_drawing(series: Sequence[RunSeries], left_out: str = "") -> Drawing:
    """Draw how often each value occurs, by run over the same axis."""
    finite = {each.name: each.values[np.isfinite(each.values)] for each in series}
    edges = _edges(np.concatenate(list(finite.values()))) if finite else np.zeros(0)
    rows = [
        {**_counts_of(each), "edges": edges.tolist(), "counts": _counts(finite[each.name], edges)}
        for each in series
    ]

    def draw(page: Page) -> None:
        _write_histogram(page, {name: values for name, values in finite.items() if len(values)})
        _note_left_out(page, left_out)
        _note_unbounded(page, rows)

    return Drawing(rows, draw)


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


def actions_drawing(view: EpisodeView) -> Drawing:
    """Draw the counts of actions: by value for few whole numbers, else in bins."""
    if not len(view):
        return Drawing([])
    # Groups of agents may share columns.
    elements = {each.name: each for each in elements_of(view.context.snapshot.schema, ACTION)}
    drawn: Counter[str] = Counter()
    counts: list[dict[str, Any]] = []
    wild: dict[str, int] = {}
    with Workbench(view.context, steps=True) as bench:
        notes = step_rows(bench, None, "transitions").notes
        for each in elements.values():
            if drawn[each.column] < ELEMENTS:
                drawn[each.column] += 1
                rows, wild[each.name] = _action_counts(bench, each)
                counts += rows

    def draw(page: Page) -> None:
        _write_actions(page, counts)
        for note in (
            *notes,
            *(
                f"{name}: {counted(n, 'value')} not drawn: NaN, infinite or beyond {LARGEST:g}."
                for name, n in wild.items()
                if n
            ),
        ):
            page.note(note)

    return Drawing(counts, draw)


def _action_counts(bench: Workbench, element: Element) -> tuple[list[dict[str, Any]], int]:
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


def _write_actions(page: Page, counts: Sequence[dict[str, Any]]) -> None:
    """Write a row for each value with its share, and a sparkline for the bins of an element."""
    valued = [
        (row["action"], f"{row['from']:g}", row["count"], f"{row['share']:.1%}")
        for row in counts
        if row["from"] == row["to"]
    ]
    if valued:
        page.table(Grid.of(("action", "value", "count", "share"), valued, (False, True, True, True)))
    rows = []
    for name in dict.fromkeys(row["action"] for row in counts if row["from"] != row["to"]):
        bins = [row for row in counts if row["action"] == name]
        heights = np.array([row["count"] for row in bins], np.float64)
        line = sparkline(heights, _line_width(page), page.glyphs)
        rows.append((name, number_text(bins[0]["from"]), line, number_text(bins[-1]["to"])))
    if rows:
        headers = ("action", "lowest", "how often", "highest")
        grid = Grid.of(headers, rows, (False, True, False, False))
        page.table(replace(grid, first=("how often", "action", "lowest", "highest"), chart="how often"))
