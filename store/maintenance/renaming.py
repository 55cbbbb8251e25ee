"""Other names for columns of users' own: annotations, and what was recorded of steps beside the spaces.

The cure for stores whose columns share a name: one that was recorded before a rule forbade it, or one that an
annotation hides. Older versions keep the old names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from ..common.arguments import suggest
from ..dynamic.column_groups import EXTRA, STEP_FAMILIES, ColumnGroup
from ..dynamic.logical_types import nest
from ..dynamic.values import dump_json, load_object
from ..errors import InvalidArgumentError
from ..layout import EPISODES, STEPS
from ..names import check_name
from ..parquet.files import parquet_writer, read_parquet
from ..schema import StoreHandle
from ..tables.annotation_files import StepAnnotation, episode_annotations, write_marker
from .annotations import check_free, check_plain
from .operation import Operation, Progress, reconcile
from .rewriting import NewSegment, annotation_files, freed_segments, write_segments

_ROW_BYTES = 32


def rename(store: StoreHandle, names: Mapping[str, str], *, progress: Progress | None = None) -> None:
    """Give columns other names: an annotation of steps, one of episodes, or recorded columns of steps.

    Of an annotation and a recorded column of one name, it is the annotation. Each kind is renamed in one
    commit. Segments with recorded columns are written anew.

    Args:
        store: the store.
        names: new names by old ones; `"info.cost"` as in `steps`, a nested column by its root.
        progress: called with the rows written so far and all rows.

    Raises:
        InvalidArgumentError: there is no such column, or a new name is taken; nothing was changed.
        CorruptStoreError: a file is damaged; nothing was changed.
        StoreAccessError, ConcurrentCommitError: call again; columns of one kind may have their new names.
    """
    with Operation.begin(store, "rename") as operation:
        of_steps, of_episodes, recorded = _sorted(operation, names)
        _rename_step_annotations(operation, of_steps)
    # A commit applies once for each operation.
    with Operation.begin(store, "rename") as operation:
        _rename_episode_annotations(operation, of_episodes)
    with Operation.begin(store, "rename") as operation:
        reconcile(operation)
        _rename_recorded(operation, recorded, progress)


def _sorted(
    operation: Operation, names: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the names by kind of column: annotations of steps, of episodes, recorded columns."""
    tables = operation.tables
    episodes = {column.name for column in episode_annotations(tables.episodes.schema)}
    own = {root for column in tables.steps.schema if (root := _root(column)) is not None}
    kinds: tuple[Collection[str], ...] = (operation.annotations, episodes, own)
    of_kind: tuple[dict[str, str], dict[str, str], dict[str, str]] = ({}, {}, {})
    for old, new in names.items():
        kind = next((number for number, known in enumerate(kinds) if old in known), None)
        if kind is None:
            known = sorted({*operation.annotations, *episodes, *own})
            raise InvalidArgumentError(
                f"There is no column {old!r} to rename.{suggest(str(old), known)} "
                f"There are: {', '.join(known) or 'none'}."
            )
        of_kind[kind][old] = new
    # Names may be exchanged: those that are given up at the same time are free.
    for table, renamed in zip((STEPS, EPISODES), of_kind[:2], strict=True):
        for new in renamed.values():
            check_plain(new)
            check_free(operation, table, new, renamed)
    for old, new in of_kind[2].items():
        # The table keeps its columns, so that recorded ones are exchanged only with those of their types.
        given_up = new in of_kind[2] and _parts(operation, new) == _parts(operation, old)
        _check_recorded(operation, own - {new} if given_up else own, old, new)
    if len(set(names.values())) < len(names):
        raise InvalidArgumentError(f"{dict(names)}: two columns would get the same name.")
    return of_kind


def _family(column: str) -> ColumnGroup:
    return next(family for family in STEP_FAMILIES if column.startswith(family.prefix))


def _root(column: pa.Field) -> str | None:
    """Return the name that a dynamic column is renamed by, without what is nested; None for other columns."""
    family = next((family for family in STEP_FAMILIES if family.owns(column)), None)
    if family is None or column.name == family.json_column:
        return None
    return family.prefix + column.name.removeprefix(family.prefix).partition(".")[0]


def _parts(operation: Operation, root: str) -> dict[str, pa.DataType]:
    """Return the types of the columns of a root, by what follows its name."""
    columns = [column for column in operation.tables.steps.schema if _root(column) == root]
    return {column.name.removeprefix(root): column.type for column in columns}


def _check_recorded(operation: Operation, own: set[str], old: str, new: str) -> None:
    family = _family(old)
    plain = isinstance(new, str) and _family(new) is family
    if not plain or family.column([new.removeprefix(family.prefix)]) != new:
        raise InvalidArgumentError(
            f"{old!r} cannot be renamed to {new!r}: expected a name without dots, spaces and the characters "
            f"%,;{{}}()= behind {family.prefix!r}."
        )
    taken = dict.fromkeys(map(str.casefold, own), "a column that was recorded with steps")
    taken |= dict.fromkeys(map(str.casefold, operation.annotations), "an annotation")
    check_name(new, taken | operation.store.schema.taken, reserved=family is EXTRA)


def _rename_step_annotations(operation: Operation, names: Mapping[str, str]) -> None:
    layout, files = operation.store.layout, annotation_files(operation)
    made = {
        old: replace(operation.annotations[old], name=new, ids=(f"{operation.id}-{number}",))
        for number, (old, new) in enumerate(names.items())
    }
    for old, annotation in made.items():
        write_marker(layout, annotation)
        schema = annotation.schema(operation.store.schema.step_keys)
        for segment in operation.tables.steps.files():
            place = files.find(old, segment.name)
            if place is not None:
                rows = read_parquet(place, rows=segment.rows).rename_columns(schema.names)
                target = layout.annotations / annotation.ids[0] / segment.name
                with parquet_writer(target, schema, _ROW_BYTES) as writer:
                    writer.write_table(rows)
    if made:

        def changed(there: Mapping[str, StepAnnotation]) -> dict[str, StepAnnotation]:
            kept = [made.get(name, annotation) for name, annotation in there.items()]
            return {annotation.name: annotation for annotation in kept}

        operation.change_annotations(changed, "rename", ", ".join(names))


def _rename_episode_annotations(operation: Operation, names: Mapping[str, str]) -> None:
    def renamed(schema: pa.Schema) -> pa.Schema:
        return pa.schema([column.with_name(names.get(column.name, column.name)) for column in schema])

    if names:
        files = operation.tables.episodes.files()
        old = [file for file in files if not names.keys().isdisjoint(file.columns)]
        new = operation.rewritten(old, lambda _, rows: rows.rename_columns(renamed(rows.schema).names))
        operation.commit(((), ()), (new, old), {"columns": ", ".join(names)}, renamed)


def _rename_recorded(operation: Operation, names: Mapping[str, str], progress: Progress | None) -> None:
    """Write the segments that have the columns anew; the table keeps empty columns of the old names."""
    tables = operation.tables
    columns = [column for column in tables.steps.schema if _root(column) in names]
    concerned = {column.name for column in columns} | {_family(old).json_column for old in names}
    touched = {file.name for file in tables.steps.files() if not concerned.isdisjoint(file.columns)}
    if not names:
        return
    tables.steps.ensure_columns([column.with_name(_renamed(column.name, names)) for column in columns])
    old = [file for file in tables.episodes.files() if touched & operation.segments_of([file])]
    segments = [NewSegment.joining(operation, [file]) for file in old]
    freed = freed_segments(operation, old)
    written = write_segments(
        operation, segments, shuffled=False, progress=progress, change=lambda rows: _changed(rows, names)
    )
    if old:
        details = {"columns": ", ".join(names)}
        operation.commit((written.steps, freed), (written.episodes, old), details)


def _renamed(column: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if column == old or column.startswith(f"{old}."):
            return new + column[len(old) :]
    return column


def _changed(rows: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """Return rows of steps whose columns, and keys in JSON columns, have the new names."""
    for index, column in enumerate(rows.column_names):
        paths = {
            family.path(old)[0]: family.path(new)[0]
            for old, new in names.items()
            if (family := _family(old)).json_column == column
        }
        if paths and rows.column(index).null_count < rows.num_rows:
            cells = [
                cell if cell is None else _rekeyed(cell, paths, column)
                for cell in rows.column(index).to_pylist()
            ]
            rows = rows.set_column(index, column, pa.array(cells, pa.string()))
    return rows.rename_columns([_renamed(name, names) for name in rows.column_names])


def _rekeyed(cell: str, paths: Mapping[str, str], column: str) -> str:
    renamed = {}
    for key, value in load_object(cell, f"the column {column!r}").items():
        nest(renamed, (paths.get(key, key),), value)
    return dump_json(renamed)
