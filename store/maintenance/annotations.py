"""Annotations: columns that episodes and steps get later, without rewriting any step.

An annotation of episodes is a plain column of the episodes table, whose small files are written anew. One of
steps lies in files beside the segments (see `annotation_files`). Both come and go with versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..annotation_files import (
    ANNOTATION_KEY,
    StepAnnotation,
    annotations_text,
    episode_annotations,
    parse_annotations,
    type_text,
    write_marker,
)
from ..errors import InvalidArgumentError
from ..handle import StoreHandle
from ..layout import EPISODES, STEPS
from ..listed_files import NewFile, TableFile
from ..parquet import open_parquet, parquet_writer
from ..schema import AGENT_ID
from .operation import Operation
from .rewriting import annotation_files
from .step_targets import step_targets, unknown_episodes

_ID = "episode_id"
_T = "t"
_FORBIDDEN = frozenset(" ,;{}()=\n\t\"'%.")
_ROW_GROUP = 131_072
_ROW_BYTES = 32


def annotate_episodes(store: StoreHandle, table: pa.Table) -> None:
    """Add or overwrite columns of episodes.

    Args:
        table: `episode_id`, each once, and the columns; episodes that it leaves out keep what they have.

    Raises:
        InvalidArgumentError: a key is missing, unknown or there twice; a column cannot be an annotation.
        StoreAccessError, ConcurrentCommitError: nothing was changed.
    """
    table = plain_table(table, [_ID])
    ids = table.column(_ID).combine_chunks()
    shared = [name for name in table.column_names if name != _ID and name in store.schema.steps.names]
    if shared:
        raise InvalidArgumentError(
            f"Steps have a column {shared[0]!r}, so episodes cannot have one of that name: queries that join "
            'both could not tell them apart. To annotate steps, give on=("episode_id", "t").'
        )
    if len(ids.unique()) != len(ids):
        raise InvalidArgumentError(
            "The frame has an episode_id more than once. Give one row for each episode."
        )
    with Operation.begin(store, "annotate") as operation:
        columns = [_fitting(operation, EPISODES, table, name) for name in table.column_names if name != _ID]
        old: list[TableFile] = []
        rows: list[tuple[pa.Table, pa.Array]] = []
        found = 0
        for file in operation.tables.episodes.files():
            where = pc.call_function(
                "index_in",
                [operation.read_episodes([file], [_ID]).column(_ID).combine_chunks()],
                pc.SetLookupOptions(ids),
            )
            if where.null_count < len(where):
                found += len(where) - where.null_count
                old.append(file)
                rows.append((operation.read_episodes([file]), where))
        if found < len(ids):
            raise InvalidArgumentError(unknown_episodes(operation, ids))
        fields = [
            pa.field(name, values.type, metadata={ANNOTATION_KEY: b"episodes"}) for name, values in columns
        ]
        new = [_overlaid(operation, file, *found, columns) for file, found in zip(old, rows, strict=True)]
        if old or not {name for name, _ in columns} <= set(operation.tables.episodes.schema.names):
            names = ", ".join(name for name, _ in columns)
            operation.commit(((), ()), (new, old), {"columns": names}, partial(_with_columns, fields))


def _with_columns(fields: Sequence[pa.Field], schema: pa.Schema) -> pa.Schema:
    """The schema with the fields that it lacks."""
    return pa.schema([*schema, *(field for field in fields if field.name not in schema.names)])


def _overlaid(
    operation: Operation,
    file: TableFile,
    rows: pa.Table,
    where: pa.Array,
    columns: Sequence[tuple[str, pa.ChunkedArray]],
) -> NewFile:
    """The rows of a file with the given values put over those that it has."""
    for name, values in columns:
        given = values.take(where)
        if name in rows.column_names:
            index = rows.schema.get_field_index(name)
            merged = pc.call_function("if_else", [where.is_valid(), given, rows.column(name)])
            rows = rows.set_column(index, name, merged)
        else:
            rows = rows.append_column(name, given)
    return operation.write_episodes(operation.next_name(), rows, file.moment)


def annotate_steps(store: StoreHandle, table: pa.Table) -> None:
    """Add or overwrite columns of steps.

    Args:
        table: `episode_id`, in a multi-agent store `agent_id`, and `t` (0 to T), each of these once, and the
            columns.

    Raises:
        InvalidArgumentError: a key is missing, unknown or there twice; a column cannot be an annotation.
        StoreAccessError, ConcurrentCommitError: nothing was changed.
    """
    keys = [name for name, _ in store.schema.step_keys]
    table = plain_table(table, keys)
    with Operation.begin(store, "annotate") as operation:
        names = [name for name in table.column_names if name not in keys]
        columns = [_fitting(operation, STEPS, table, name) for name in names]
        target = step_targets(operation, table)
        files = annotation_files(operation)
        added = {
            name: StepAnnotation(name, values.type, (f"{operation.id}-{number}",))
            for number, (name, values) in enumerate(columns)
        }
        for annotation in added.values():
            write_marker(store.layout, annotation)
        for segment, frame_rows, segment_rows in target.by_segment():
            for name, values in columns:
                before = files.find(name, segment) if name in files.annotations else None
                old = None if before is None else open_parquet(before).read(columns=[name]).column(name)
                place = store.layout.annotations / added[name].ids[0]
                whole = _scattered(values, frame_rows, segment_rows, target.rows_of(segment), old)
                key = target.keys(segment)
                _write(place / segment, added[name].schema(store.schema.step_keys), [*key, whole])

        def change(text: str | None) -> str:
            there = parse_annotations(text, store.layout.root)
            for name, annotation in added.items():
                earlier = there[name].ids if name in there else ()
                there[name] = StepAnnotation(name, annotation.type, (*annotation.ids, *earlier))
            return annotations_text(there)

        details = {"episodelake.operation": "annotate", "episodelake.columns": ", ".join(names)}
        operation.set_property(change, details)


def _scattered(
    values: pa.ChunkedArray,
    frame_rows: np.ndarray,
    segment_rows: np.ndarray,
    count: int,
    old: pa.ChunkedArray | None,
) -> pa.ChunkedArray:
    """The given values at their rows of a segment, over the old ones."""
    index = np.full(count, -1, np.int64)
    index[segment_rows] = frame_rows
    given = values.take(pa.array(index, mask=index < 0))
    if old is None:
        return given
    return pc.call_function("if_else", [pa.array(index >= 0), given, old])


def _write(place: Any, schema: pa.Schema, columns: Sequence[Any]) -> None:
    with parquet_writer(place, schema, _ROW_BYTES) as writer:
        writer.write_table(pa.table(list(columns), schema=schema), row_group_size=_ROW_GROUP)


def plain_table(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The frame with the types that annotations have.

    Raises:
        InvalidArgumentError: a key is missing or NULL, a name or a type cannot be stored, there is no column.
    """
    folded = [name.casefold() for name in table.column_names]
    twice = [name for name in table.column_names if folded.count(name.casefold()) > 1]
    if twice:
        raise InvalidArgumentError(
            f"The frame has columns that differ in case at most: {', '.join(twice)}. Rename one of them."
        )
    missing = [key for key in keys if key not in table.column_names]
    if missing:
        raise InvalidArgumentError(
            f"The frame has no column {missing[0]!r}; it has {', '.join(table.column_names) or 'none'}."
        )
    if len(table.column_names) == len(keys):
        raise InvalidArgumentError(f"The frame has no columns besides {', '.join(keys)}.")
    columns: dict[str, Any] = {}
    for name in table.column_names:
        if name in keys and name == _T and not pa.types.is_integer(table.schema.field(name).type):
            raise InvalidArgumentError(
                f"The key column 't' has the type {table.schema.field(name).type}; expected integers."
            )
        expected = (
            {_ID: pa.string(), AGENT_ID: pa.string(), _T: pa.int64()}.get(name) if name in keys else None
        )
        wanted = expected or storable_type(name, table.schema.field(name).type)
        values = table.column(name)
        try:
            if pa.types.is_dictionary(values.type):
                # The dictionary's own type may be one that cannot be taken from, such as string_view.
                values = values.cast(pa.dictionary(values.type.index_type, wanted))
            columns[name] = values.cast(wanted)
        except pa.ArrowException as error:
            raise InvalidArgumentError(f"The column {name!r} cannot be {wanted}: {error}.") from error
        if name in keys and columns[name].null_count:
            raise InvalidArgumentError(f"The key column {name!r} has NULLs. Every row needs its key.")
    return pa.table(columns)


def storable_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The annotation type for a column type.

    Raises:
        InvalidArgumentError: there is none.
    """
    if pa.types.is_dictionary(kind):
        return storable_type(name, kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = storable_type(name, kind.value_type)
        if not pa.types.is_list(inner):
            return pa.list_(inner)
    if pa.types.is_boolean(kind):
        return pa.bool_()
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view":
        return pa.string()
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.timestamp("us", "UTC")
    raise InvalidArgumentError(
        f"The column {name!r} has the type {kind}; an annotation is boolean, integer, floating, string, "
        "timestamp, or a list of those. Convert it first."
    )


def _fitting(
    operation: Operation, table_name: str, frame: pa.Table, name: str
) -> tuple[str, pa.ChunkedArray]:
    """One column, cast to the type that the annotation has already.

    Raises:
        InvalidArgumentError: the name is taken by something else, cannot be one, or has another type.
    """
    if not name or _FORBIDDEN & set(name) or name.startswith("_"):
        raise InvalidArgumentError(
            f"{name!r} cannot be the name of an annotation: expected text without spaces, dots, quotes and "
            "the characters ,;{}()=%, that does not begin with an underscore. Rename the column."
        )
    there = operation.tables.episodes if table_name == EPISODES else operation.tables.steps
    known: dict[str, pa.DataType] = {}
    taken: set[str] = set()
    for column in there.schema:
        if (column.metadata or {}).get(ANNOTATION_KEY):
            known[column.name] = column.type
        else:
            taken.add(column.name.casefold())
    if table_name == STEPS:
        known = {each.name: each.type for each in annotation_files(operation).annotations.values()}
    clash = name.casefold() in taken or (name not in known and name.casefold() in map(str.casefold, known))
    if clash:
        raise InvalidArgumentError(f"{table_name} has a column {name!r} already. Choose another name.")
    values = frame.column(name)
    if name in known and known[name] != values.type:
        try:
            values = values.cast(known[name])
        except pa.ArrowException as error:
            raise InvalidArgumentError(
                f"The annotation {name!r} has the type {known[name]}; the frame gives {values.type}. Drop "
                "the annotation first, or choose another name."
            ) from error
    return name, values


def drop_annotation(store: StoreHandle, name: str) -> None:
    """Take an annotation away, of episodes or of steps; older versions still show it.

    Raises:
        InvalidArgumentError: there is no such annotation; the message lists those that are.
        StoreAccessError, ConcurrentCommitError: nothing was changed.
    """
    with Operation.begin(store, "drop") as operation:
        steps = annotation_files(operation).annotations
        episodes = {column.name for column in episode_annotations(operation.tables.episodes.schema)}
        if name not in steps and name not in episodes:
            known = ", ".join(sorted({*steps, *episodes})) or "none"
            raise InvalidArgumentError(f"There is no annotation {name!r}. Annotations: {known}.")
        if name in steps:
            details = {"episodelake.operation": "drop", "episodelake.columns": name}
            operation.set_property(lambda text: _without(text, name, store), details)
        if name in episodes:
            _drop_column(operation, name)


def _without(text: str | None, name: str, store: StoreHandle) -> str:
    there = parse_annotations(text, store.layout.root)
    there.pop(name, None)
    return annotations_text(there)


def _drop_column(operation: Operation, name: str) -> None:
    """Write the episodes files that have a column without it, and the table's schema with them."""
    old = [file for file in operation.tables.episodes.files() if name in file.columns]
    new = []
    for file in old:
        rows = operation.read_episodes([file]).drop_columns([name])
        new.append(operation.write_episodes(operation.next_name(), rows, file.moment))
    operation.commit(((), ()), (new, old), {"columns": name}, partial(_without_column, name))


def _without_column(name: str, schema: pa.Schema) -> pa.Schema:
    return pa.schema([column for column in schema if column.name != name])


def annotation_list(schema: pa.Schema, steps: Mapping[str, StepAnnotation]) -> list[dict[str, Any]]:
    """What annotations there are: name, table and type."""
    found = [
        {"name": column.name, "table": EPISODES, "type": type_text(column.type) or str(column.type)}
        for column in episode_annotations(schema)
    ]
    found += [{"name": each.name, "table": STEPS, "type": type_text(each.type)} for each in steps.values()]
    return found
