"""`episodelake stats`: exact statistics of columns, and of lengths and returns by run.

Columns of a single agent's store are measured by `EpisodeView.stats`. The rows of several agents are mixed in
a store's columns, which the loaders' statistics do not take; there DuckDB measures every column of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from ... import EpisodeView
from ...errors import QueryError
from ...plugin import Snapshot, collected, quote, sql_type
from ...plugin.columns import ACTION, OBSERVATION, REWARD, TERMINATED, TRUNCATED, unescape
from ..output.page import Page
from .open_store import Explored, meant

#: As those of `EpisodeView.stats`: interpolated between two values.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: The columns that a narrow terminal keeps.
FIRST = ("column", "run", "element", "mean", "std", "minimum", "q0.5", "maximum", "count", "nan", "absent")


def measured(
    opened: Explored, condition: str | None, columns: Sequence[str] | None
) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of episodes and of columns of steps, as `--json` prints them.

    Args:
        opened: the store.
        condition: an SQL condition over the episodes.
        columns: the columns of steps to measure; None for all.
    """
    view = opened.chosen(condition)
    if not len(view):
        return {"episodes": [], "columns": []}
    return {
        "episodes": episode_figures(view, opened.store.reward_shape),
        "columns": [] if columns == [] else column_figures(_with_steps(view), columns),
    }


def write_statistics(page: Page, report: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Write the figures as tables, on a terminal with the labels of runs in place of ids."""
    if not report["episodes"]:
        page.note("There is no episode to measure.")
        return
    page.heading("Episodes")
    page.frame(_frame(report["episodes"], labels if page.is_terminal else {}), first=FIRST)
    if report["columns"]:
        page.heading("Columns of steps")
        page.frame(_frame(report["columns"]), first=FIRST)


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
    frame = collected(view.episodes.select("run_id", **measured))
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
    shown: dict[str, Any] = {
        "count": len(numbers),
        "nan": len(values) - len(numbers),
        "mean": numbers.mean(),
        "std": numbers.std(ddof=0),
        "minimum": numbers.min(),
    }
    shown |= {f"q{share:g}": numbers.quantile(share, interpolation="linear") for share in QUANTILES}
    return {**shown, "maximum": numbers.max()}


def _frame(rows: list[dict[str, Any]], labels: Mapping[str, str] | None = None) -> pl.DataFrame:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    if "run_id" not in frame.columns:
        return frame
    named = frame.with_columns(pl.col("run_id").replace(labels or {}).fill_null("(all)"))
    return named.rename({"run_id": "run"}) if labels else named


_ROOTS = (OBSERVATION, ACTION, REWARD)
_KEYS = ("episode_id", "agent_id", "t", "env_step")


def column_figures(view: EpisodeView, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return a row per element of each column: rows, absent, count, nan, mean, std, extremes, quantiles.

    Args:
        view: whose steps are measured.
        columns: their names; None for all columns.

    Raises:
        QueryError: there is no such column, or none of numbers; the message names those that are.
    """
    snapshot = view.selection().snapshot
    schema = snapshot.shown_schema("steps")
    for name in columns or ():
        _check(snapshot, name)
    if not snapshot.schema.groups:
        return _view_figures(view, columns, schema.names)
    wanted = columns if columns is not None else [name for name in schema.names if name not in _KEYS]
    return [row for name in wanted for row in _agents_figures(view, name, schema.field(name).type)]


def measurable_columns(snapshot: Snapshot) -> list[str]:
    """Return the columns of steps that can be measured, by the names that `--columns` takes."""
    schema = snapshot.shown_schema("steps")
    if snapshot.schema.groups:
        return [each.name for each in schema if each.name not in _KEYS and _is_number(each.type)]
    parts = [
        each.name
        for each in schema
        if _root(each.name) in _ROOTS
        or (each.name not in _KEYS and (_is_number(each.type) or _inner(each.type) == pa.bool_()))
    ]
    return list(dict.fromkeys([*_ROOTS, TERMINATED, TRUNCATED, *parts]))


def _check(snapshot: Snapshot, name: str) -> None:
    """Raise an error for a column that cannot be measured."""
    known = measurable_columns(snapshot)
    if name in known:
        return
    schema = snapshot.shown_schema("steps")
    if name in schema.names:
        kind = sql_type(schema.field(name).type)
        raise QueryError(
            f"The column {name} holds keys or no numbers ({kind}), so there is nothing to measure. "
            f"Columns that can be measured: {', '.join(known)}."
        )
    if name in snapshot.shown_schema("episodes").names:
        raise QueryError(
            f"{name} is a column of episodes, and --columns chooses columns of steps. Lengths and returns "
            f"are measured in any case; for others ask in SQL. There are: {', '.join(known)}."
        )
    raise QueryError(f"There is no column {name!r} in steps.{meant(name, known)}")


def _view_figures(
    view: EpisodeView, columns: Sequence[str] | None, known: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the statistics of `EpisodeView.stats`, under the names of columns in files and SQL."""
    leaves = {_unescaped(name): name for name in known if name.partition(".")[0] in _ROOTS}
    # A space is decoded and measured as a whole.
    asked = None if columns is None else [_root(name) for name in columns]
    rows = view.stats(asked, quantiles=QUANTILES, progress=True).frame().to_dicts()
    named = [{**row, "column": leaves.get(row["column"], row["column"])} for row in rows]
    return [
        row
        for row in named
        if columns is None or not {row["column"], _root(row["column"])}.isdisjoint(columns)
    ]


def _root(name: str) -> str:
    root = name.partition(".")[0]
    return root if root in _ROOTS else name


def _unescaped(name: str) -> str:
    """Return a column's name as the library's statistics have it: the keys themselves, joined by dots."""
    return ".".join(map(unescape, name.split(".")))


def _agents_figures(view: EpisodeView, name: str, kind: pa.DataType) -> list[dict[str, Any]]:
    column = quote(name)
    if not _is_number(kind):
        return []
    if pa.types.is_list(kind):
        values = f"SELECT unnest({column}) AS v, generate_subscripts({column}, 1) - 1 AS element FROM steps"
    else:
        values = f"SELECT {column} AS v, '' AS element FROM steps"
    quantiles = ", ".join(f"quantile_cont(v, {share}) AS {quote(f'q{share:g}')}" for share in QUANTILES)
    # Of NaN an aggregate makes NaN, of NULL nothing.
    text = f"""
        SELECT element::VARCHAR AS element, count(v) AS count, count(*) FILTER (nan) AS nan, avg(v) AS mean,
            stddev_pop(v) AS std, min(v) AS minimum, max(v) AS maximum, {quantiles}
        FROM (SELECT nullif(v::DOUBLE, 'nan'::DOUBLE) AS v, isnan(v::DOUBLE) AS nan, element FROM ({values}))
        GROUP BY element HAVING count(v) > 0 ORDER BY try_cast(element AS BIGINT)"""
    there, all_rows = view.query(f"SELECT count({column}), count(*) FROM steps").row(0)
    counts = {"rows": there, "absent": all_rows - there}
    rows = view.query(text).to_dicts()
    return [{"column": name, "element": row["element"], **counts, **row} for row in rows]


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(_inner(kind)) or pa.types.is_floating(_inner(kind))


def _inner(kind: pa.DataType) -> pa.DataType:
    """Return the type of the elements of lists, or the type itself."""
    return kind.value_type if pa.types.is_list(kind) else kind
