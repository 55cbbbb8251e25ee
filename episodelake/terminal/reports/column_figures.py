"""Statistics of columns for `episodelake stats`: of a single agent's store those of `EpisodeView.stats`.

The rows of several agents lie mixed in a store's columns, which the loaders' statistics do not take; there
DuckDB measures every column of numbers, element by element.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ...readers.loading.columns.specs import DEFAULT_COLUMNS, dynamic_fields
from ...readers.sql.sources import type_name
from ...readers.sql.text import quote
from ...readers.view import EpisodeView
from ...store.errors import QueryError
from ...store.layout import EPISODES, STEPS
from ...store.names import unescape
from ...store.schema import ACTION, ENV_STEP, OBSERVATION, REWARD
from ...store.snapshot import Snapshot
from .exploring import meant

SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)
_ELEMENT = re.compile(r"(.+)\[([^\[\]]+)\]")
_ROOTS = (OBSERVATION, ACTION, REWARD)
_KEYS = ("episode_id", "agent_id", "t", ENV_STEP)


def column_figures(view: EpisodeView, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return a row per element of each column: rows, absent, count, nan, mean, std, extremes, quantiles.

    Args:
        view: whose steps are measured.
        columns: names of columns, or of one of their elements, `observation[2]`; None for all columns.

    Raises:
        QueryError: there is no such column or element, or none of numbers; the message names those that are.
    """
    if columns is None:
        return _columns_figures(view, None)
    known = measurable_columns(view.selection().snapshot)
    asked = [(name, *_element_of(name, known)) for name in columns]
    rows = _columns_figures(view, list(dict.fromkeys(column for _, column, _ in asked)))
    elements: dict[str, list[str]] = {}
    for row in rows:
        elements.setdefault(row["column"], []).append(row["element"])
    for name, column, element in asked:
        if element is not None and element not in elements.get(column, ()):
            raise QueryError(
                f"There is no element {name!r}. {column} has {', '.join(elements.get(column, ())) or 'none'}."
            )
    whole = {column for _, column, element in asked if element is None}
    chosen = {(column, element) for _, column, element in asked if element is not None}
    parts = {column for column, _ in chosen} - whole
    return [row for row in rows if row["column"] not in parts or (row["column"], row["element"]) in chosen]


def _element_of(name: str, known: Sequence[str]) -> tuple[str, str | None]:
    """Return a column and an element of it, as `observation[2]` names them; None for the whole column."""
    found = None if name in known else _ELEMENT.fullmatch(name)
    return (name, None) if found is None else (found[1], found[2])


def _columns_figures(view: EpisodeView, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return a row per element of whole columns."""
    snapshot = view.selection().snapshot
    schema = snapshot.shown_schema(STEPS)
    for name in columns or ():
        _check(snapshot, name)
    if not snapshot.schema.groups:
        return _measured(view, columns, schema.names)
    wanted = columns if columns is not None else [name for name in schema.names if name not in _KEYS]
    return [row for name in wanted for row in _agents_figures(view, name, schema.field(name).type)]


def measurable_columns(snapshot: Snapshot) -> list[str]:
    """Return the columns of steps that can be measured, by the names that `--columns` takes."""
    schema = snapshot.shown_schema(STEPS)
    if snapshot.schema.groups:
        return [each.name for each in schema if each.name not in _KEYS and _is_number(each.type)]
    dynamic = dynamic_fields(snapshot)
    parts = [name for name in schema.names if _root(name) in DEFAULT_COLUMNS or name in dynamic]
    return list(dict.fromkeys([*DEFAULT_COLUMNS, *parts]))


def _check(snapshot: Snapshot, name: str) -> None:
    """Raise an error for a column that cannot be measured."""
    known = measurable_columns(snapshot)
    if name in known:
        return
    schema = snapshot.shown_schema(STEPS)
    if name in schema.names:
        kind = type_name(schema.field(name).type)
        raise QueryError(
            f"The column {name} holds keys or no numbers ({kind}), so there is nothing to measure. "
            f"Columns that can be measured: {', '.join(known)}."
        )
    if name in snapshot.shown_schema(EPISODES).names:
        raise QueryError(
            f"{name} is a column of episodes, and --columns chooses columns of steps. Lengths and returns "
            f"are measured in any case; for others ask in SQL. There are: {', '.join(known)}."
        )
    raise QueryError(f"There is no column {name!r} in steps.{meant(name, known)}")


def _measured(view: EpisodeView, columns: Sequence[str] | None, known: Sequence[str]) -> list[dict[str, Any]]:
    """Return the statistics of `EpisodeView.stats`, under the names of columns in files and SQL."""
    leaves = {_unescaped(name): name for name in known if name.partition(".")[0] in _ROOTS}
    # A space is decoded and measured as a whole.
    asked = None if columns is None else [_root(name) for name in columns]
    rows = view.stats(asked, quantiles=SHOWN).frame().to_dicts()
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
    quantiles = ", ".join(f"quantile_cont(v, {share}) AS {quote(f'q{share:g}')}" for share in SHOWN)
    text = f"""
        SELECT element::VARCHAR AS element, count(v) AS count, avg(v) AS mean, stddev_pop(v) AS std,
            min(v) AS minimum, max(v) AS maximum, {quantiles}
        FROM (SELECT v::DOUBLE AS v, element FROM ({values})) WHERE NOT isnan(v) GROUP BY element
        ORDER BY try_cast(element AS BIGINT)"""
    there, all_rows = view.query(f"SELECT count({column}), count(*) FROM steps").row(0)
    missing = f"SELECT element::VARCHAR, count(*) FROM ({values}) WHERE isnan(v::DOUBLE) GROUP BY 1"
    nan = dict(view.query(missing).rows())
    rows = view.query(text).to_dicts()
    told = {"column": name, "rows": there, "absent": all_rows - there}
    return [_ordered({**told, **row, "nan": nan.get(row["element"], 0)}) for row in rows]


def _is_number(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_list(kind) else kind
    return pa.types.is_integer(inner) or pa.types.is_floating(inner)


def _ordered(row: dict[str, Any]) -> dict[str, Any]:
    first = ("column", "element", "rows", "absent", "count", "nan")
    return {name: row[name] for name in (*first, *(name for name in row if name not in first))}
