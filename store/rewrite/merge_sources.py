"""Checks of the sources of a merge, before anything is written; `merging` commits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from ..dynamic import logical_types as kinds
from ..environments.records import KINDS, Records
from ..errors import InvalidArgumentError, StoreExistsError
from ..files import Place
from ..layout import EPISODES, STEPS, Layout
from ..names import check_name
from ..snapshot import Snapshot
from ..tables.annotation_files import StepAnnotation, episode_annotations
from .operation import Operation


def check_names(operation: Operation, sources: Sequence[Snapshot]) -> None:
    """Refuse to bring a recorded column and an annotation of one name together.

    Raises:
        InvalidArgumentError: a store has recorded what another one annotates.
    """
    stores: dict[str, tuple[Mapping[str, StepAnnotation], pa.Schema]] = {}
    for snapshot in sources:
        known = (snapshot.annotation_files.annotations, snapshot.steps_schema)
        stores[str(snapshot.layout.root)] = known
    stores[str(operation.store.layout.root)] = (operation.annotations, operation.tables.steps.schema)
    recorded = Counter(name.casefold() for _, schema in stores.values() for name in schema.names)
    taken = dict.fromkeys(recorded, "a column that was recorded in one of the stores")
    for annotated, schema in stores.values():
        own = {name.casefold() for name in schema.names}
        for name in annotated:
            if recorded[name.casefold()] > (name.casefold() in own):
                check_name(name, taken, "an annotation of steps")


def joined_annotations(operation: Operation, sources: Sequence[Snapshot]) -> dict[str, StepAnnotation]:
    """Return the step annotations of all sources, each under one folder of the target.

    Raises:
        InvalidArgumentError: an annotation of steps or episodes has another type, or a name that differs in
            case only, in another source or in the target.
    """
    known: dict[tuple[str, str], tuple[Place, str, pa.DataType]] = {}
    for root, table, name, kind in _annotations(operation, sources):
        there, other, expected = known.setdefault((table, name.casefold()), (root, name, kind))
        if (name, kind) != (other, expected):
            raise InvalidArgumentError(
                f"The annotation {name!r} ({kind}) of {table} in {root} meets {other!r} ({expected}) in "
                f"{there}. Drop one of them first; nothing was changed."
            )
    types = {
        name: each.type for source in sources for name, each in source.annotation_files.annotations.items()
    }
    return {
        name: StepAnnotation(name, kind, (f"{operation.id}-{number}",))
        for number, (name, kind) in enumerate(types.items())
    }


def _annotations(
    operation: Operation, sources: Sequence[Snapshot]
) -> Iterator[tuple[Place, str, str, pa.DataType]]:
    """Yield store, table, name and type of each annotation of the target and the sources."""
    schemas = [(operation.store.layout.root, operation.tables.episodes.schema)]
    schemas += [(source.layout.root, source.episodes_schema) for source in sources]
    for root, schema in schemas:
        for column in episode_annotations(schema):
            yield root, EPISODES, column.name, column.type
    of_steps = [(operation.store.layout.root, operation.annotations)]
    of_steps += [(source.layout.root, source.annotation_files.annotations) for source in sources]
    for root, listed in of_steps:
        for name, annotation in listed.items():
            yield root, STEPS, name, annotation.type


def check_records(target: Layout, sources: Sequence[Layout]) -> None:
    """Refuse other content under the name of a saved environment or artifact in one of these stores.

    Raises:
        StoreExistsError: which one, and in which two stores.
        CorruptStoreError: a record is damaged.
    """
    for kind in KINDS:
        known: dict[str, tuple[Layout, str]] = {}
        for layout in (target, *sources):
            for record in Records(layout, kind).all():
                first, content = known.setdefault(record.file_name, (layout, record.content_hash))
                if content != record.content_hash:
                    raise StoreExistsError(
                        f"{layout.root} has other content in {kind.folder} under the name {record.name!r} "
                        f"than {first.root}. Delete one of them first; nothing was changed."
                    )


def widest_columns(schemas: Sequence[pa.Schema]) -> Mapping[str, pa.Field]:
    """Return the dynamic columns of all sources, each in the kind that shows the numbers of all."""
    widest: dict[str, pa.Field] = {}
    for column in (column for schema in schemas for column in schema):
        kind = kinds.field_kind(column)
        if kind is not None:
            known = kinds.field_kind(widest.get(column.name, column)) or kind
            widest[column.name] = kinds.field(column.name, kinds.joined(known, kind) or known)
    return widest
