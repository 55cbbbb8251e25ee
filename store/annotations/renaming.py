"""Rename columns of users' own (annotations, and columns recorded with steps), and drop the recorded ones.

The cure for stores whose columns share a name: one that was recorded before a rule forbade it, or one that an
annotation hides. Older versions keep the old names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from ..common.arguments import known_name, suggest
from ..dynamic.column_groups import EXTRA, STEP_GROUPS, ColumnGroup
from ..dynamic.logical_types import nest
from ..dynamic.values import dump_json, load_object
from ..errors import EpisodelakeError, InvalidArgumentError
from ..layout import EPISODES, STEPS
from ..names import check_name
from ..parquet.files import read_parquet
from ..parquet.writing import parquet_writer
from ..rewrite.operation import Operation, Progress, reconcile
from ..rewrite.rewriting import NewSegment, annotation_files, freed_segments, write_segments
from ..schema import StoreHandle
from ..tables.annotation_files import StepAnnotation, episode_annotations, write_marker
from .annotations import check_free, check_plain

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
        StoreAccessError, ConcurrentCommitError: nothing was changed, or a note of the error names the columns
            that have their new names; call again with the others.
    """
    with Operation.begin(store, "rename") as operation:
        of_steps, of_episodes, recorded = _sorted(operation, names)
        _rename_step_annotations(operation, of_steps)
    # A commit applies once for each operation.
    if of_episodes:
        with _noting(of_steps), Operation.begin(store, "rename") as operation:
            _rename_episode_annotations(operation, of_episodes)
    if recorded:
        with _noting({**of_steps, **of_episodes}), Operation.begin(store, "rename") as operation:
            reconcile(operation)
            _rewrite_recorded(operation, recorded, progress)


@contextlib.contextmanager
def _noting(renamed: Mapping[str, str]) -> Iterator[None]:
    """Name in an error the columns that were renamed before it."""
    try:
        yield
    except EpisodelakeError as error:
        if renamed:
            listed = ", ".join(f"{old} is {new}" for old, new in renamed.items())
            error.add_note(f"Renamed already: {listed}. Call again with the other names.")
        raise


def drop(store: StoreHandle, names: Collection[str], *, progress: Progress | None = None) -> None:
    """Remove recorded columns of steps and their values; older versions keep them until `vacuum`.

    Args:
        store: the store.
        names: as in `steps`; a nested column by its root.
        progress: called with the rows written so far and all rows.

    Raises:
        InvalidArgumentError: a name is no such column; nothing was changed.
        CorruptStoreError: a file is damaged; nothing was changed.
        StoreAccessError, ConcurrentCommitError: call again; nothing was changed.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f'The columns to drop are {names!r}; expected names: drop_columns("info.frame", "info.cost").'
        )
    with Operation.begin(store, "drop") as operation:
        recorded = {root for column in operation.tables.steps.schema if (root := _root(column)) is not None}
        for name in names:
            if name in recorded:
                continue
            hint = " It is an annotation: use drop_annotation." if name in operation.annotations else ""
            raise InvalidArgumentError(
                f"There is no recorded column {name!r} to drop."
                f"{hint or suggest(str(name), sorted(recorded))} There are: "
                f"{', '.join(sorted(recorded)) or 'none'}; those of the spaces always stay."
            )
        reconcile(operation)
        _rewrite_recorded(operation, dict.fromkeys(names), progress)


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
        kind = next((number for number, known in enumerate(kinds) if old in known), 0)
        known_name(old, sorted(set().union(*kinds)), f"There is no column {old!r} to rename.")
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


def _group(column: str) -> ColumnGroup:
    return next(group for group in STEP_GROUPS if column.startswith(group.prefix))


def _root(column: pa.Field) -> str | None:
    """Return the name that a dynamic column is renamed by, without what is nested; None for other columns."""
    group = next((group for group in STEP_GROUPS if group.owns(column)), None)
    if group is None or column.name == group.json_column:
        return None
    return group.prefix + column.name.removeprefix(group.prefix).partition(".")[0]


def _parts(operation: Operation, root: str) -> dict[str, pa.DataType]:
    """Return the types of the columns of a root, by what follows its name."""
    columns = [column for column in operation.tables.steps.schema if _root(column) == root]
    return {column.name.removeprefix(root): column.type for column in columns}


def _check_recorded(operation: Operation, own: set[str], old: str, new: str) -> None:
    group = _group(old)
    plain = isinstance(new, str) and _group(new) is group
    if not plain or group.column([new.removeprefix(group.prefix)]) != new:
        raise InvalidArgumentError(
            f"{old!r} cannot be renamed to {new!r}: expected a name without dots, spaces and the characters "
            f"%,;{{}}()= after {group.prefix!r}."
        )
    taken = dict.fromkeys(map(str.casefold, own), "a column that was recorded with steps")
    taken |= dict.fromkeys(map(str.casefold, operation.annotations), "an annotation")
    check_name(new, taken | operation.store.schema.taken, reserved=group is EXTRA)


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


def _rewrite_recorded(
    operation: Operation, names: Mapping[str, str | None], progress: Progress | None
) -> None:
    """Rewrite the segments that have the columns; the table keeps empty columns of the old names.

    Args:
        names: new names by old ones; None drops the column.
    """
    tables = operation.tables
    columns = [column for column in tables.steps.schema if _root(column) in names]
    concerned = {column.name for column in columns} | {_group(old).json_column for old in names}
    touched = {file.name for file in tables.steps.files() if not concerned.isdisjoint(file.columns)}
    if not names:
        return
    new_names = {column.name: _renamed(column.name, names) for column in columns}
    tables.steps.ensure_columns(
        [column.with_name(new) for column in columns if (new := new_names[column.name])]
    )
    old = [file for file in tables.episodes.files() if touched & operation.segments_of([file])]
    segments = [NewSegment.joining(operation, [file]) for file in old]
    freed = freed_segments(operation, old)
    written = write_segments(
        operation, segments, shuffled=False, progress=progress, change=lambda rows: _changed(rows, names)
    )
    if old:
        details = {"columns": ", ".join(names)}
        operation.commit((written.steps, freed), (written.episodes, old), details)


def _renamed(column: str, names: Mapping[str, str | None]) -> str | None:
    """Return the new name of a column; None if it is dropped."""
    for old, new in names.items():
        if column == old or column.startswith(f"{old}."):
            return None if new is None else new + column[len(old) :]
    return column


def _changed(rows: pa.Table, names: Mapping[str, str | None]) -> pa.Table:
    """Return rows of steps with the new names, in JSON columns too, and without dropped columns and keys."""
    for index, column in enumerate(rows.column_names):
        paths = {
            group.path(old)[0]: None if new is None else group.path(new)[0]
            for old, new in names.items()
            if (group := _group(old)).json_column == column
        }
        if paths and rows.column(index).null_count < rows.num_rows:
            cells = [
                cell if cell is None else _rekeyed(cell, paths, column)
                for cell in rows.column(index).to_pylist()
            ]
            rows = rows.set_column(index, column, pa.array(cells, pa.string()))
    new_names = {name: _renamed(name, names) for name in rows.column_names}
    kept = [name for name, new in new_names.items() if new is not None]
    return rows.select(kept).rename_columns([new for new in new_names.values() if new is not None])


def _rekeyed(cell: str, paths: Mapping[str, str | None], column: str) -> str | None:
    """Return an object of JSON with its keys renamed or dropped; None if none is left."""
    renamed: dict[str, object] = {}
    for key, value in load_object(cell, f"the column {column!r}").items():
        path = paths.get(key, key)
        if path is not None:
            nest(renamed, (path,), value)
    return dump_json(renamed) if renamed else None
