"""`episodelake stats`: exact statistics of columns, and of lengths and returns by run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ...readers.view import EpisodeView
from ..output.json_text import write_object
from ..output.page import Page
from ..output.progress import interruptible, unchanged
from .column_figures import column_figures
from .exploring import Explored, end, explored_steps

#: As those of `EpisodeView.stats`: interpolated between two values.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MEDIAN = 0.5
#: A narrower terminal shows the median alone.
WIDE = 115


def show_statistics(
    path: str,
    storage: Sequence[str] | None,
    condition: str | None,
    columns: Sequence[str] | None,
    *,
    as_json: bool,
) -> None:
    """Show statistics of episodes and columns; see `episodelake stats`.

    Args:
        path, storage: the store.
        condition: an SQL condition over the episodes.
        columns: the columns of steps to measure; None for all.
        as_json: print JSON.
    """
    page = Page()
    with interruptible(unchanged):
        report, complete = explored_steps(path, storage, lambda opened: _measured(opened, condition, columns))
    if as_json:
        write_object(page, report)
    else:
        _write(page, report, with_columns=columns != [])
    end(complete)


def _write(page: Page, report: Mapping[str, Any], *, with_columns: bool) -> None:
    if not report["episodes"]:
        page.note("There is no episode to measure.")
        return
    page.heading("Episodes")
    page.table(_grid(page, report["episodes"]))
    if with_columns:
        page.heading("Columns of steps")
        page.table(_grid(page, report["columns"]))


def _measured(opened: Explored, condition: str | None, columns: Sequence[str] | None) -> dict[str, Any]:
    view = opened.chosen(condition)
    if not len(view):
        return {"episodes": [], "columns": []}
    return {
        "episodes": episode_figures(view, opened.store.reward_shape),
        "columns": [] if columns == [] else column_figures(_with_steps(view), columns),
    }


def _with_steps(view: EpisodeView) -> EpisodeView:
    """Return the episodes whose steps can be read."""
    snapshot = view.selection().snapshot
    if not snapshot.lost_segments:
        return view
    return view.filter(~pl.col("segment").is_in(list(snapshot.lost_segments)))


def episode_figures(view: EpisodeView, reward_shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """Rows of figures of `length` and of `episode_return`: of all episodes, then of each run.

    With several objectives each has rows of its own, `episode_return[0]` and so on.
    """
    measured = {"length": pl.col("length").cast(pl.Float64)}
    if reward_shape:
        for index in range(reward_shape[0]):
            measured[f"episode_return[{index}]"] = pl.col("episode_return").list.get(index)
    else:
        measured["episode_return"] = pl.col("episode_return")
    frame = view.episodes.select("run_id", **measured).collect()
    runs = frame.sort("run_id").partition_by("run_id", as_dict=True, maintain_order=True)
    parts = {None: frame, **{run: part for (run,), part in runs.items()}}
    if len(parts) == 2:
        parts.pop(None)
    return [
        {"run_id": run, "column": column, **figures(part[column])}
        for column in measured
        for run, part in parts.items()
    ]


def figures(values: pl.Series) -> dict[str, Any]:
    """Count, NaN, mean, deviation of the population, extremes and quantiles of numbers."""
    numbers = values.drop_nans()
    told: dict[str, Any] = {
        "count": len(numbers),
        "nan": len(values) - len(numbers),
        "mean": numbers.mean(),
        "std": numbers.std(ddof=0),
        "minimum": numbers.min(),
    }
    told |= {f"q{share:g}": numbers.quantile(share, interpolation="linear") for share in QUANTILES}
    return {**told, "maximum": numbers.max()}


def _grid(page: Page, rows: list[dict[str, Any]]) -> Any:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    if page.is_terminal:
        # Leave out columns without information.
        dull = [
            name
            for name in ("nan", "absent", "element", "run_id")
            if name in frame.columns and frame[name].cast(pl.String).fill_null("").is_in(["", "0"]).all()
        ]
        frame = frame.drop(dull)
        if page.width < WIDE:
            others = [f"q{share:g}" for share in QUANTILES if share != MEDIAN]
            frame = frame.drop("rows", *others, strict=False)
    if "maximum" in frame.columns:
        frame = frame.select(pl.exclude("maximum"), "maximum")
    if "run_id" in frame.columns:
        frame = frame.with_columns(pl.col("run_id").fill_null("(all)"))
    return page.grid(frame)
