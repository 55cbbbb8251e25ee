"""Statistics of columns for `episodelake stats`: of a single agent's store those of `EpisodeView.stats`.

The rows of several agents lie mixed in a store's columns, which the loaders' statistics do not take; there
DuckDB measures every column of numbers, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ..readers.sql_text import quote
from ..readers.view import EpisodeView
from ..store.schema import ENV_STEP
from .listing import checked_columns

SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)
_KEYS = ("episode_id", "agent_id", "t", ENV_STEP)


def column_figures(view: EpisodeView, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    """A row per element of each column: rows, absent, count, nan, mean, std, extremes, quantiles.

    Raises:
        InvalidArgumentError, QueryError: there is no such column; the message names those that are.
    """
    if not view.selection().snapshot.schema.groups:
        return view.stats(columns, quantiles=SHOWN).frame().to_dicts()
    schema = view.selection().snapshot.shown_schema("steps")
    checked_columns(columns, schema.names, "steps")
    wanted = columns if columns is not None else [name for name in schema.names if name not in _KEYS]
    return [row for name in wanted for row in _agents_figures(view, name, schema.field(name).type)]


def _agents_figures(view: EpisodeView, name: str, kind: pa.DataType) -> list[dict[str, Any]]:
    column = quote(name)
    inner = kind.value_type if pa.types.is_list(kind) else kind
    if not (pa.types.is_integer(inner) or pa.types.is_floating(inner)):
        return []
    if pa.types.is_list(kind):
        values = f"SELECT unnest({column}) AS v, generate_subscripts({column}, 1) - 1 AS element FROM steps"
    else:
        values = f"SELECT {column} AS v, '' AS element FROM steps"
    quantiles = ", ".join(f"quantile_cont(v, {share}) AS {quote(f'q{share:g}')}" for share in SHOWN)
    text = f"""
        SELECT element::VARCHAR AS element, count(v) AS count, avg(v) AS mean, stddev_pop(v) AS std,
            min(v) AS minimum, max(v) AS maximum, {quantiles}
        FROM (SELECT v::DOUBLE AS v, element FROM ({values})) WHERE NOT isnan(v) GROUP BY element
        ORDER BY try_cast(element AS BIGINT)"""
    there, all_rows = view.sql(f"SELECT count({column}), count(*) FROM steps").fetchall()[0]
    missing = f"SELECT element::VARCHAR, count(*) FROM ({values}) WHERE isnan(v::DOUBLE) GROUP BY 1"
    nan = dict(view.sql(missing).fetchall())
    rows = view.sql(text).to_arrow_table().to_pylist()
    told = {"column": name, "rows": there, "absent": all_rows - there}
    return [_ordered({**told, **row, "nan": nan.get(row["element"], 0)}) for row in rows]


def _ordered(row: dict[str, Any]) -> dict[str, Any]:
    first = ("column", "element", "rows", "absent", "count", "nan")
    return {name: row[name] for name in (*first, *(name for name in row if name not in first))}
