"""Comparisons of metadata with values of the JSON column: long integers and texts.

A column of metadata has one type. Where a key has integers beyond 2^53 and fractions, the column shows
doubles, and rounding makes different integers equal: comparing it with such an integer is an error. Where a
key has numbers first and texts later, the texts are in the JSON column: comparing the column with a text,
which would miss them, is an error too. Both are found in the parse tree of a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import polars as pl
import pyarrow as pa

from ...store.dynamic import logical_types as kinds
from ...store.dynamic.column_groups import METADATA
from ...store.dynamic.values import load_objects
from ...store.errors import QueryError
from ...store.layout import EPISODES, RUNS
from ...store.snapshot import Snapshot
from ..context import Parameters
from ..frames import collect_table, stored_frame
from .comparisons import Columns, QueryTree, is_long, long_in
from .text import MANY_DIGITS, RUN, literal, names_run_keys, quote

_NUMBERS = (pa.bool_(), pa.int64(), pa.float64())
_known: WeakKeyDictionary[Snapshot, dict[str, Beside]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Beside:
    """Columns of metadata of one table with values that they do not show exactly.

    Attributes:
        rounded: those that show integers from 2^53 on as doubles.
        texts: those of numbers whose keys have texts too.
    """

    rounded: frozenset[str]
    texts: frozenset[str]


def beside(snapshot: Snapshot, table: str) -> Beside:
    """Return such columns of episodes or runs; the JSON column is read once for each snapshot.

    Raises:
        CorruptStoreError: a file of the table is damaged.
    """
    known = _known.setdefault(snapshot, {})
    if table not in known:
        known[table] = _find(snapshot, table)
    return known[table]


def _find(snapshot: Snapshot, table: str) -> Beside:
    own = [column for column in snapshot.filled_schema(table) if METADATA.owns(column)]
    paths = {METADATA.path(column.name): column for column in own if column.type in _NUMBERS}
    names = {column.name for column in own}
    if METADATA.json_column not in names or not paths:
        return Beside(frozenset(), frozenset())
    stored = snapshot.table_schema(table)
    whole = [
        column.name
        for column in paths.values()
        if column.type == pa.float64() and stored.field(column.name).type == pa.int64()
    ]
    ends = [end for name in whole for end in (pl.col(name).min(), pl.col(name).max().name.suffix(" "))]
    frame = stored_frame(snapshot, table)
    found = collect_table(snapshot, table, frame.select(ends)).row(0, named=True) if ends else {}
    rounded = {name for name in whole if is_long(found[name]) or is_long(found[f"{name} "])}
    texts: set[str] = set()
    cells = collect_table(snapshot, table, frame.select(METADATA.json_column)).to_series().drop_nulls()
    for value in load_objects(cells.to_list(), f"the column {METADATA.json_column!r}"):
        for path, leaf in kinds.flatten(value):
            column = paths.get(path)
            if column is not None and type(leaf) is str:
                texts.add(column.name)
            elif column is not None and column.type == pa.float64() and is_long(leaf):
                rounded.add(column.name)
    return Beside(frozenset(rounded), frozenset(texts))


def refuse_inexact(
    snapshots: Sequence[Snapshot], kind: str, text: str, parameters: Parameters | None, *, condition: bool
) -> None:
    """Refuse a query or condition whose answer would be wrong for values of the JSON column.

    Args:
        snapshots: what is asked; several of a lake.
        kind: such as "The filter", for errors.
        text: the query; of a condition, the expression.
        parameters: plain values of its parameters.
        condition: whether it is an expression.

    Raises:
        QueryError: it compares metadata that show integers as doubles with an integer from 2^53 on, or
            metadata that have numbers and texts with a text.
    """
    given = parameters or ()
    values = list(given.values() if isinstance(given, Mapping) else given)
    long = MANY_DIGITS.search(text) is not None or long_in(values) is not None
    texts = "'" in text or any(isinstance(value, str) for value in values)
    named = _named_numbers(snapshots, text) if long or texts else {}
    if not any(named.values()):
        return
    tree = QueryTree.of(f"SELECT (\n{text}\n)" if condition else text, given)
    if tree is None:
        # A PIVOT or an invalid text, which fails in DuckDB with a better message.
        column = next((name for names in _rounded(snapshots, named).values() for name in names), None)
        if long and column is not None:
            raise _rounded_error(kind, column, int((MANY_DIGITS.findall(text) or ["0"])[0]))
        return
    # What follows reads the JSON column of the table, so a comparison of any of the columns comes first.
    if long and tree.rounded_comparison(named):
        found = tree.rounded_comparison(_rounded(snapshots, named))
        if found is not None:
            raise _rounded_error(kind, *found)
    if texts and tree.text_comparison(named):
        found = tree.text_comparison(_with_texts(snapshots, named))
        if found is not None:
            raise _text_error(kind, *found, of_run=names_run_keys(text))


def _named_numbers(snapshots: Sequence[Snapshot], text: str) -> Columns:
    """Return the metadata with numbers that a text may name, by table."""
    folded = text.casefold()
    by_pattern = "columns" in folded

    def may_name(column: pa.Field) -> bool:
        key = column.name.removeprefix(METADATA.prefix).casefold().replace('"', '""')
        return by_pattern or key in folded

    return {
        table: frozenset(
            column.name
            for snapshot in snapshots
            for column in snapshot.filled_schema(table)
            if METADATA.owns(column) and column.type in _NUMBERS and may_name(column)
        )
        for table in (EPISODES, RUNS)
    }


def _rounded(snapshots: Sequence[Snapshot], named: Columns) -> Columns:
    return {
        table: frozenset().union(*(beside(each, table).rounded for each in snapshots)) & names
        for table, names in named.items()
    }


def _with_texts(snapshots: Sequence[Snapshot], named: Columns) -> Columns:
    return {
        table: frozenset().union(*(beside(each, table).texts for each in snapshots)) & names
        for table, names in named.items()
    }


def _rounded_error(kind: str, column: str, number: int) -> QueryError:
    return QueryError(
        f"{kind} compares {column!r} with {number}. The column shows integers as doubles, since one is "
        "beyond 64 bits or another value has a fraction, so other integers would be equal too. Record such "
        "numbers as text, or choose the episodes in Python by their metadata."
    )


def _text_error(kind: str, column: str, text: str, *, of_run: bool) -> QueryError:
    path = "".join(f'."{key}"' for key in METADATA.path(column))
    name = METADATA.json_column
    json = f"{RUN}.{name.removeprefix(METADATA.prefix)}" if of_run else quote(name)
    return QueryError(
        f"{kind} compares {column!r} with {text!r}. The column shows numbers, and texts of this key are in "
        f"the JSON column. Compare them there: {json} ->> {literal(f'${path}')} = {literal(text)}."
    )


def refuse_rounded(snapshot: Snapshot, expression: pl.Expr) -> None:
    """Refuse an expression over episodes that compares rounded metadata with an integer from 2^53 on.

    Raises:
        QueryError: it does; the message names the column.
    """
    if not any(name.startswith(METADATA.prefix) for name in expression.meta.root_names()):
        return
    for atom in _atoms_of(expression):
        numbers = (number for part in _parts_of(atom) if (number := long_in(_values_of(part))) is not None)
        number = next(numbers, None)
        if number is None:
            continue
        for name in atom.meta.root_names():
            if name in beside(snapshot, EPISODES).rounded:
                raise _rounded_error("The filter", name, number)


def _atoms_of(expression: pl.Expr) -> Iterator[pl.Expr]:
    """Yield the parts of a condition that AND, OR and NOT combine."""
    inputs = expression.meta.pop()
    two = len(inputs) == 2
    if two and any(expression.meta.eq(each) for each in (inputs[1] & inputs[0], inputs[1] | inputs[0])):
        yield from (atom for part in inputs for atom in _atoms_of(part))
    elif len(inputs) == 1 and expression.meta.eq(inputs[0].not_()):
        yield from _atoms_of(inputs[0])
    else:
        yield expression


def _parts_of(expression: pl.Expr) -> Iterator[pl.Expr]:
    """Yield the largest parts of an expression that name no column."""
    if not expression.meta.root_names():
        yield expression
        return
    for part in expression.meta.pop():
        yield from _parts_of(part)


def _values_of(constant: pl.Expr) -> Any:
    try:
        return pl.select(constant).to_series().to_list()
    except pl.exceptions.PolarsError:
        # The filter itself fails, or the constant has a length of its own.
        return None
