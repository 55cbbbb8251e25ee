"""The steps of some episodes that fulfil a condition, as a frame or as numbers of steps.

A condition is a Polars expression over `transitions`, or SQL text, which is confined to the store. It may
name what came with the next observation too (`next_info.cost`).
"""

from __future__ import annotations

import duckdb
import polars as pl

from ..store.errors import QueryError
from ..store.layout import STEPS
from ..store.names import source_of
from ..store.snapshot import Snapshot
from .context import Parameters, ReadContext, SqlCondition, refresh_hint
from .frames import collect_table, steps_frame, transitions_only
from .namespaces import EpisodeLazyFrame
from .sql.macros import TRANSITIONS, WITH_NEXT
from .sql.session import QuerySession, check_text

_TIMES = "_times"
Condition = pl.Expr | str | SqlCondition


def steps_where(
    context: ReadContext, condition: Condition, parameters: Parameters | None = None
) -> pl.LazyFrame:
    """Return the transitions that fulfil a condition; see `DescribedView.steps_where`."""
    rows = transitions_only(steps_frame(context.snapshot, context.positions))
    asked = SqlCondition.of(condition, parameters, "a condition on steps")
    if isinstance(asked, pl.Expr):
        return _fulfilling(context, asked).select(rows.collect_schema().names())
    schema = rows.collect_schema()
    keys = _times_by_sql(context, asked).explode(_TIMES).rename({_TIMES: "t"})
    keys = keys.cast({name: schema[name] for name in keys.columns})  # pyright: ignore[reportArgumentType]
    return rows.join(keys.lazy(), on=keys.columns, how="semi", maintain_order="left")


def times_where(context: ReadContext, condition: Condition) -> pl.DataFrame:
    """Return the numbers of the steps that fulfil a condition; of a store with one agent.

    Memory: 8 bytes for each of them, beside what the engine takes.

    Returns:
        `episode_id` of the episodes that have such steps, and the list `t`; in any order.

    Raises:
        QueryError: the condition is not valid.
        CorruptStoreError: a file of the store is damaged.
    """
    asked = SqlCondition.of(condition, None, "a condition on steps")
    if isinstance(asked, SqlCondition):
        return _times_by_sql(context, asked).rename({_TIMES: "t"})
    frame = _fulfilling(context, asked).group_by("episode_id").agg("t")
    try:
        return collect_table(context.snapshot, STEPS, frame)
    except pl.exceptions.PolarsError as error:
        raise _invalid(context.snapshot, str(asked), error) from error


def _fulfilling(context: ReadContext, condition: pl.Expr) -> pl.LazyFrame:
    """Return the transitions that fulfil an expression, with the columns of the next row if it names one."""
    steps = steps_frame(context.snapshot, context.positions)
    known = steps.collect_schema().names()
    frame = transitions_only(steps)
    if any(source_of(name)[1] and name not in known for name in condition.meta.root_names()):
        frame = EpisodeLazyFrame(steps).with_next_observation()
    try:
        kind = frame.select(condition).collect_schema().dtypes()
    except pl.exceptions.PolarsError as error:
        raise _invalid(context.snapshot, str(condition), error) from error
    if kind != [pl.Boolean]:
        kinds = ", ".join(map(str, kind))
        raise QueryError(f"The condition {condition!s} gives {kinds}; expected one Boolean.")
    return frame.filter(condition)


def _times_by_sql(context: ReadContext, asked: SqlCondition) -> pl.DataFrame:
    """Return the keys of the steps that fulfil an SQL condition: those but `t`, and a list of its values."""
    text = asked.text
    check_text(text)
    try:
        # Raises if it is anything but one expression, which is then safe within brackets.
        duckdb.SQLExpression(text)
    except duckdb.Error as error:
        raise QueryError(f"The condition {text!r} is no SQL expression: {error}") from error
    keys = ", ".join(name for name, _ in context.snapshot.schema.step_keys if name != "t")
    # The view with the next rows reads the steps in order, which takes longer.
    view = WITH_NEXT if "next_" in text.casefold() else TRANSITIONS
    session = QuerySession(context, keep_rows=False)
    try:
        kinds = f"SELECT ({text}\n) FROM {view} LIMIT 0"
        kind = str(session.carry_out(lambda: session.sql(kinds, asked.parameters).types[0]))
        if kind != "BOOLEAN":
            raise QueryError(f"The condition {text!r} gives {kind}; expected a comparison or other BOOLEAN.")
        rows = f"SELECT {keys}, list(t) AS {_TIMES} FROM {view} WHERE ({text}\n) GROUP BY {keys}"
        return session.query(rows, asked.parameters)
    finally:
        session.close()


def _invalid(snapshot: Snapshot, condition: str, error: pl.exceptions.PolarsError) -> QueryError:
    # Without the plan of the query.
    reason = str(error).partition("\n")[0].partition("; valid columns")[0]
    columns = ", ".join(snapshot.shown_schema(STEPS).names)
    return QueryError(
        f"The condition {condition} is not valid: {reason}.\nAvailable columns of transitions: {columns}; "
        f"and those of the next row, such as next_observation.{refresh_hint(snapshot)}"
    )
