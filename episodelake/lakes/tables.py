"""The episodes and the runs of many stores as one table each, for DuckDB and Polars.

`LakeSnapshot` has the files of all stores, grouped by their columns, and the columns of all of them.
`LakeSources` writes the query over them with a column `store`, and `LakeSession` asks as a session of one
store does. Files with the same columns are read by one scan, whichever stores they belong to, and the name of
a store follows from the path, so that DuckDB skips the files of stores that a condition leaves out.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import duckdb
import polars as pl
import pyarrow as pa
from gymnasium.spaces import Discrete
from polars.io.plugins import register_io_source

from ..plugin import (
    Layout,
    QuerySession,
    ReadContext,
    Snapshot,
    SqlSources,
    StepSchema,
    literal,
    quote,
    sql_type,
)
from ..plugin.files import Place

STORE, STORES = "store", "stores"
#: Names of annotations that a lake shows with `own_` in front: `store`, and what would then have two columns.
_OWN = re.compile(f"(own_)*{STORE}", re.IGNORECASE)
_PATH = "_path"
_NUMBERS = (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_EXACT_IN_DOUBLE = 2**53
_SHOWN = 3


@dataclass(frozen=True)
class Part:
    """Files of a table with the same columns.

    Attributes:
        schema: the columns as queries over one store see them.
        own: the one store whose columns have numbers in a JSON column; None where the files are read as they
            are.
        places: the files.
        owners: the store of each file.
    """

    schema: pa.Schema
    own: Snapshot | None
    places: list[Place] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Conflict:
    """A column that has types without a common one.

    Attributes:
        table, column: which one.
        stores: the stores by DuckDB's name of the type.
    """

    table: str
    column: str
    stores: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        """Return what there is, what queries show, and how to choose."""
        kind = next((each for each in ("DOUBLE", "FLOAT") if each in self.stores), next(iter(self.stores)))
        kinds = "; ".join(f"{each} in {_listed(stores)}" for each, stores in self.stores.items())
        return (
            f"The column {self.column!r} of {self.table} has different types: {kinds}. It is shown as text, "
            f"without loss. Convert it, as in TRY_CAST({quote(self.column)} AS {kind}), "
            "or choose stores: WHERE store IN (...)."
        )


def _listed(stores: Sequence[str]) -> str:
    more = f" and {len(stores) - _SHOWN:,} more" if len(stores) > _SHOWN else ""
    return ", ".join(map(repr, stores[:_SHOWN])) + more


class LakeSnapshot(Snapshot):
    """The versions of many stores that a lake shows, with the tables of episodes and runs only.

    Args:
        layout: of the lake's root.
        stores: the snapshots of the stores by their names.
    """

    def __init__(self, layout: Layout, stores: Mapping[str, Snapshot]) -> None:
        self.layout = layout
        self.stores = stores
        self.version, self.newest = 0, True
        #: The rows of `stores`, for queries.
        self.stores_table: pa.Table | None = None
        self.conflicts: dict[tuple[str, str], Conflict] = {}
        self._unified: dict[str, pa.Schema] = {}
        self._parts: dict[str, list[Part]] = {}

    def newer_version(self) -> int | None:
        """Return None: a lake has no version."""
        return None

    @property
    def of_rollouts(self) -> bool:
        """False: the tables of a lake have no views."""
        return False

    def parts(self, table: str) -> list[Part]:
        """Return the files of a table by their columns."""
        if table not in self._parts:
            parts: dict[object, Part] = {}
            for name, snapshot in self.stores.items():
                schema = [pa.field(each.name, each.type) for each in snapshot.filled_schema(table)]
                own = snapshot if snapshot.overflow(table) else None
                for group in snapshot.groups(table):
                    columns = [each for each in schema if own or each.name in group.columns]
                    key = name if own else tuple((each.name, each.type) for each in columns)
                    part = parts.setdefault(key, Part(pa.schema(columns), own))
                    part.places.extend(group.places)
                    part.owners.extend([name] * len(group.places))
            self._parts[table] = list(parts.values())
        return self._parts[table]

    def listed_places(self, table: str) -> list[Place]:
        """Return the files of a table; a lake has no steps."""
        parts = self.parts(table) if table in ("episodes", "runs") else []
        return [place for part in parts for place in part.places]

    def table_schema(self, table: str) -> pa.Schema:
        """Return all columns that the files of a table have in a plan, for checks of their pages."""
        fields = {each.name: each for part in self.parts(table) for each in part.schema}
        return pa.schema([*fields.values(), pa.field(_PATH, pa.string())])

    def shown_schema(self, table: str) -> pa.Schema:
        """Return the columns that queries show, `store` first; text where types have nothing in common."""
        if table in (STORES, "steps"):
            return pa.schema([(STORE, pa.string())] if table == STORES else [])
        if table not in self._unified:
            self._unified[table] = self._unify(table)
        return self._unified[table]

    def _unify(self, table: str) -> pa.Schema:
        schema = StepSchema(Discrete(1), Discrete(1))
        standard = schema.episodes if table == "episodes" else schema.runs
        names: dict[str, str] = {}
        stores: dict[str, dict[pa.DataType, dict[str, None]]] = {}
        for part in self.parts(table) or [Part(standard, None)]:
            for column in part.schema:
                name = names.setdefault(column.name.casefold(), column.name)
                stores.setdefault(name, {}).setdefault(column.type, {}).update(dict.fromkeys(part.owners))
        columns = [pa.field(STORE, pa.string())]
        for name, types in stores.items():
            kind = _common_type(types)
            if kind is None:
                by_type = {sql_type(each): sorted(owners) for each, owners in types.items()}
                self.conflicts[table, name] = Conflict(table, name, by_type)
            columns.append(pa.field(_shown(name), kind or pa.string()))
        return pa.schema(columns)


def _shown(name: str) -> str:
    return f"own_{name}" if _OWN.fullmatch(name) else name


def _common_type(types: Collection[pa.DataType]) -> pa.DataType | None:
    """Return a type that holds the values of all types; None if there is none."""
    if len(types) == 1:
        return next(iter(types))
    if not all(each in _NUMBERS for each in types):
        return None
    whole = all(pa.types.is_integer(each) for each in types)
    return max(types, key=_NUMBERS.index) if whole else pa.float64()


class LakeSources(SqlSources):
    """A connection, and the SQL text that names the tables of a lake in it."""

    snapshot: LakeSnapshot

    def _table(self, table: str, name: str) -> str:
        shown = self.snapshot.shown_schema(table)
        texts = []
        for number, part in enumerate(self.snapshot.parts(table)):
            store, source = self._read(part, table, f"{name}_{number}")
            known = {_shown(each.name).casefold(): each for each in part.schema}
            columns = [_column(each, known.get(each.name.casefold()), store) for each in list(shown)[1:]]
            texts.append(f"SELECT {', '.join([f'{store} AS {STORE}', *columns])} FROM {source} AS _files")
        return " UNION ALL ".join(texts) or f"SELECT {', '.join(map(self.null_column, shown))} WHERE false"

    def _read(self, part: Part, table: str, name: str) -> tuple[str, str]:
        """Return the name of a row's store, and what its files are in a query."""
        if part.own is not None:
            own = SqlSources(part.own, confined=self.through_arrow, connection=self.connection)
            return literal(part.owners[0]), f"({own._table(table, name)})"
        for place in part.places:
            place.check_plain()
        if self.through_arrow:
            from pyarrow.dataset import field as column

            owners = [column(f"_{STORE}") == pa.scalar(owner) for owner in part.owners]
            schema = part.schema.append(pa.field(f"_{STORE}", pa.string()))
            return f"_{STORE}", f"({self._registered(name, schema, lambda: part.places, owners)})"
        # Below the root, without the table's folder and the file.
        below = f"substr({_PATH}, {len(str(self.snapshot.layout.root).rstrip('/')) + 2})"
        store = f"regexp_replace({below}, '/{table}/[^/]*$', '')"
        return store, self.scan(part.places, f"filename = '{_PATH}'")


def _column(shown: pa.Field, stored: pa.Field | None, store: str) -> str:
    """Return a column of some files as the lake shows it; `store` is the SQL text for a row's store."""
    if stored is None:
        return SqlSources.null_column(shown)
    value, name = f"_files.{quote(stored.name)}", quote(shown.name)
    if stored.type == shown.type:
        return f"{value} AS {name}"
    if stored.type == pa.int64() and shown.type == pa.float64():
        problem = literal(
            f"the column {shown.name} is shown as DOUBLE, since it is one in another store, but an integer "
            "with more digits is in the store "
        )
        remedy = literal(". Ask that store alone, lake['name'].sql(...), or others: WHERE store = 'name'.")
        failure = f"error({problem} || {store} || {remedy})::DOUBLE"
        exact = f"coalesce({value} BETWEEN -{_EXACT_IN_DOUBLE} AND {_EXACT_IN_DOUBLE}, true)"
        return f"CASE WHEN {exact} THEN {value}::DOUBLE ELSE {failure} END AS {name}"
    return f"{value}::{sql_type(shown.type)} AS {name}"


class LakeSession(QuerySession):
    """Queries over `episodes`, `runs` and `stores` of a lake."""

    _tables = ("episodes", "runs", STORES)

    @property
    def _lake(self) -> LakeSnapshot:
        return cast(LakeSnapshot, self._context.snapshot)

    def _connect(
        self,
        words: Collection[str] | None,
        *,
        run_keys: bool = False,
    ) -> duckdb.DuckDBPyConnection:
        if run_keys not in self._connections:
            self._connections[run_keys] = connect(self._lake, self._read_only, run_keys)
        return self._connections[run_keys]

    def _stores(self) -> Sequence[Snapshot]:
        return list(self._lake.stores.values())

    def _tables_read(self, text: str) -> tuple[str, ...]:
        return "runs", "episodes"


def connect(lake: LakeSnapshot, read_only: bool, run_keys: bool = False) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB with the views `episodes` and `runs` of a lake, as `readers.sql` does."""
    sources = LakeSources(lake, confined=read_only)

    def connected() -> duckdb.DuckDBPyConnection:
        for name in ("runs", "episodes"):
            body = sources.table(name)
            if run_keys and name == "episodes":
                # Copies of a store have the same runs.
                body = sources.with_run(lake, body, sources.table("runs"), (STORE, "run_id"))
            sources.create_view(name, body)
        if lake.stores_table is not None:
            sources.connection.register(STORES, lake.stores_table)
        if read_only:
            sources.confine()
        return sources.connection

    return sources.carry_out(connected)


class LakeQueries:
    """Sessions over a lake, for each thread its own, and one for its frames."""

    def __init__(self, lake: LakeSnapshot) -> None:
        nothing = cast(Any, None)
        self._context = ReadContext(lake, nothing, nothing)
        self._sessions = LakeSession.for_threads(self._context)
        # A connection that belongs to a thread of Polars ends the process as that thread ends.
        self._of_frames = LakeSession(self._context, read_only=False)
        self._guard = threading.Lock()

    def session(self, *, read_only: bool) -> QuerySession:
        """Return the calling thread's session."""
        return self._sessions.session(read_only=read_only)

    def new_session(self) -> QuerySession:
        """Return a session that sees nothing but the lake, for a caller who closes it."""
        return LakeSession(self._context)

    def read(self, text: str) -> pl.DataFrame:
        """Return the answer to a query, in any thread."""
        with self._guard:
            return self._of_frames.query(text)


def lazy_table(read: Callable[[str], pl.DataFrame], table: str) -> pl.LazyFrame:
    """Return a table of a lake as a frame that reads the columns it needs when it is collected.

    Args:
        read: answers a query.
        table: which one.
    """
    schema = read(f"FROM {table} LIMIT 0").schema

    def rows(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _batch: int | None
    ) -> Iterator[pl.DataFrame]:
        names = ", ".join(map(quote, schema.names() if columns is None else columns))
        frame = read(f"SELECT {names} FROM {table}" + ("" if most is None else f" LIMIT {most}"))
        yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(rows, schema=schema, is_pure=True)
