"""Annotations: columns that episodes and steps get later, without rewriting any step.

An annotation of episodes is a plain column of the episodes table, whose small files are written anew. One of
steps lies in files beside the segments (see `annotation_files`). Both come and go with versions. Splits are
such columns too: an episode's part depends on its key and the seed alone.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..common.arguments import expect, is_integer, is_real, whole_number
from ..delta.log import TableFile
from ..dynamic.columns import with_columns
from ..errors import InvalidArgumentError
from ..layout import EPISODES, STEPS
from ..names import AGENT_ID, check_name
from ..parquet.files import read_parquet
from ..parquet.writing import parquet_writer
from ..rewrite.operation import Operation
from ..rewrite.rewriting import annotation_files
from ..schema import LAST_OBSERVATION, StoreHandle
from ..spaces import arrow
from ..tables.annotation_files import (
    ANNOTATION_KEY,
    StepAnnotation,
    episode_annotations,
    joined,
    type_text,
    write_marker,
)
from .step_targets import step_targets, unknown_episodes

_ID = "episode_id"
_T = "t"
_FORBIDDEN = frozenset(" ,;{}()=\n\t\"'%.")
#: What an annotation of the second type takes of the first.
_WIDENED = {
    (pa.int64(), pa.float64()),
    (pa.list_(pa.int64()), pa.list_(pa.float64())),
}
_ROW_GROUP = 131_072
_ROW_BYTES = 32
_DIGEST_BYTES = 8


def annotate_episodes(store: StoreHandle, table: pa.Table, transaction: str | None = None) -> None:
    """Add or overwrite columns of episodes.

    Args:
        table: `episode_id`, each once, and the columns; episodes that it leaves out keep what they have.
        transaction: as for `Operation.commit`.

    Raises:
        InvalidArgumentError: a key is missing, unknown or there twice; a column cannot be an annotation.
        StoreAccessError, ConcurrentCommitError: nothing was changed.
    """
    table = plain_table(table, [_ID])
    ids = table.column(_ID).combine_chunks()
    if len(ids.unique()) != len(ids):
        raise InvalidArgumentError(
            "The frame has an episode_id more than once. Give one row for each episode."
        )
    with Operation.begin(store, "annotate") as operation:
        columns = [_fitting(operation, EPISODES, table, name) for name in table.column_names if name != _ID]
        where: dict[str, pa.Array] = {}
        old: list[TableFile] = []
        for file in operation.tables.episodes.files():
            known = operation.read_episodes([file], [_ID]).column(_ID).combine_chunks()
            where[file.name] = pc.call_function("index_in", [known], pc.SetLookupOptions(ids))
            if where[file.name].null_count < len(known):
                old.append(file)
        if sum(len(places) - places.null_count for places in where.values()) < len(ids):
            raise InvalidArgumentError(unknown_episodes(operation, ids))

        def overlaid(file: TableFile, rows: pa.Table) -> pa.Table:
            places = where[file.name]
            return with_columns(
                rows,
                {name: _over(rows, name, values.take(places), places.is_valid()) for name, values in columns},
            )

        def grown(schema: pa.Schema) -> pa.Schema:
            fields = [
                pa.field(name, values.type, metadata={ANNOTATION_KEY: b"episodes"})
                for name, values in columns
                if name not in schema.names
            ]
            return pa.schema([*schema, *fields])

        new = operation.rewritten(old, overlaid)
        if old or len(grown(operation.tables.episodes.schema)) > len(operation.tables.episodes.schema):
            names = ", ".join(name for name, _ in columns)
            details = {"columns": names}
            operation.commit(((), ()), (new, old), details, grown, transaction=transaction)


def _over(rows: pa.Table, name: str, given: pa.ChunkedArray, valid: pa.Array) -> pa.ChunkedArray:
    """Return the given values where they are valid, over those of a column if the rows have it."""
    if name not in rows.column_names:
        return given
    return pc.call_function("if_else", [valid, given, rows.column(name)])


def annotate_steps(store: StoreHandle, table: pa.Table, transaction: str | None = None) -> None:
    """Add or overwrite columns of steps.

    Args:
        table: `episode_id`, in a multi-agent store `agent_id`, and `t` (0 to T), each of these once, and the
            columns.
        transaction: as for `Operation.commit`.

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
                old = None if before is None else read_parquet(before, [name]).column(name)
                place = store.layout.annotations / added[name].ids[0] / segment
                whole = _scattered(values, frame_rows, segment_rows, target.rows_of(segment), old)
                schema = added[name].schema(store.schema.step_keys)
                with parquet_writer(place, schema, _ROW_BYTES) as writer:
                    rows = pa.table([*target.keys(segment), whole], schema=schema)
                    writer.write_table(rows, row_group_size=_ROW_GROUP)
        operation.change_annotations(
            lambda there: joined(added, there), "annotate", ", ".join(names), transaction
        )


def _scattered(
    values: pa.ChunkedArray,
    frame_rows: np.ndarray,
    segment_rows: np.ndarray,
    count: int,
    old: pa.ChunkedArray | None,
) -> pa.ChunkedArray:
    """Return the given values at their rows of a segment, over the old ones."""
    index = np.full(count, -1, np.int64)
    index[segment_rows] = frame_rows
    given = values.take(pa.array(index, mask=index < 0))
    if old is None:
        return given
    return pc.call_function("if_else", [pa.array(index >= 0), given, old])


def plain_table(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the frame with the types that annotations have.

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
    table = arrow.plain_table(table)
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
            columns[name] = values.cast(wanted)
        except pa.ArrowException as error:
            raise InvalidArgumentError(f"The column {name!r} cannot be {wanted}: {error}.") from error
        if name in keys and columns[name].null_count:
            raise InvalidArgumentError(f"The key column {name!r} has NULLs. Every row needs its key.")
    return pa.table(columns)


def storable_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the annotation type for a column type.

    Raises:
        InvalidArgumentError: there is none.
    """
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
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
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
    """Return one column; integers become doubles where the annotation has those and they are exact.

    Raises:
        InvalidArgumentError: the name is taken by something else, cannot be one, or has another type.
    """
    known = _check_name(operation, table_name, name)
    values = frame.column(name)
    if name in known and known[name] != values.type:
        if (values.type, known[name]) not in _WIDENED:
            raise InvalidArgumentError(
                f"The annotation {name!r} has the type {known[name]}; the frame gives {values.type}. Cast "
                f"the column, or drop_annotation({name!r}) first, or choose another name."
            )
        try:
            values = values.cast(known[name])
        except pa.ArrowException as error:
            raise InvalidArgumentError(
                f"The annotation {name!r} has the type {known[name]}, which cannot hold all of the integers "
                f"that the frame gives: {error}. Choose another name."
            ) from error
    return name, values


def check_new(store: StoreHandle, table_name: str, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Refuse names that no annotation of a table can have, before its values are computed.

    Returns:
        The types of those that are annotations already.

    Raises:
        InvalidArgumentError: one cannot be a name, or something else has it.
    """
    with Operation.begin(store, "annotate", dry_run=True) as operation:
        for name in names:
            _check_name(operation, table_name, name)
        return {name: kind for name, kind in _known(operation, table_name).items() if name in names}


def _check_name(operation: Operation, table_name: str, name: str) -> dict[str, pa.DataType]:
    """Refuse a name that no annotation can have; return the types of those that are there."""
    check_plain(name)
    known = _known(operation, table_name)
    if name not in known:
        check_free(operation, table_name, name)
    return known


def widened(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the one type for values of these, at least one; None if there is none."""
    fitting = [one for one in kinds if all(one == other or (other, one) in _WIDENED for other in kinds)]
    return fitting[0] if fitting else None


def _known(operation: Operation, table_name: str) -> dict[str, pa.DataType]:
    """Return the types of the annotations of a table."""
    if table_name == STEPS:
        return {each.name: each.type for each in operation.annotations.values()}
    return {column.name: column.type for column in episode_annotations(operation.tables.episodes.schema)}


def check_plain(name: object) -> None:
    """Refuse a name that no annotation can have.

    Raises:
        InvalidArgumentError: it is one.
    """
    if not isinstance(name, str) or not name or _FORBIDDEN & set(name) or name.startswith("_"):
        raise InvalidArgumentError(
            f"{name!r} cannot be the name of an annotation: expected text without spaces, dots, quotes and "
            "the characters ,;{}()=%, that does not begin with an underscore. Rename the column."
        )


def check_free(operation: Operation, table_name: str, name: str, freed: Collection[str] = ()) -> None:
    """Refuse a name for a new annotation that a column has, or that means something else already.

    Args:
        operation: the operation.
        table_name: of which table.
        name: the name.
        freed: names of annotations that get others at the same time.

    Raises:
        InvalidArgumentError: it is taken; the message has a free one.
    """
    taken = dict(operation.store.schema.taken)
    if table_name == EPISODES:
        taken = dict.fromkeys(taken, 'a column of steps (which on=("episode_id", "t") annotates)')
        names = {*operation.tables.episodes.schema.names, LAST_OBSERVATION.name}
        taken |= dict.fromkeys(map(str.casefold, names), "a column of episodes")
    else:
        recorded = operation.tables.steps.schema.names
        taken |= dict.fromkeys(map(str.casefold, operation.annotations), "another annotation")
        taken |= dict.fromkeys(map(str.casefold, recorded), "a column that was recorded with steps")
    for old in freed:
        taken.pop(old.casefold(), None)
    check_name(name, taken, f"an annotation of {table_name}", reserved=table_name == STEPS)


def drop_annotation(store: StoreHandle, name: str) -> None:
    """Drop an annotation of episodes or of steps; older versions still show it.

    Raises:
        InvalidArgumentError: there is no such annotation; the message lists those that are.
        StoreAccessError, ConcurrentCommitError: nothing was changed.
    """
    with Operation.begin(store, "drop") as operation:
        steps = operation.annotations
        episodes = {column.name for column in episode_annotations(operation.tables.episodes.schema)}
        if name not in steps and name not in episodes:
            known = ", ".join(sorted({*steps, *episodes})) or "none"
            raise InvalidArgumentError(f"There is no annotation {name!r}. Annotations: {known}.")
        if name in steps:
            operation.change_annotations(
                lambda there: {each: there[each] for each in there if each != name}, "drop", name
            )
        if name in episodes:
            old = [file for file in operation.tables.episodes.files() if name in file.columns]
            new = operation.rewritten(old, lambda _, rows: rows.drop_columns([name]))
            operation.commit(
                ((), ()),
                (new, old),
                {"columns": name},
                lambda schema: schema.remove(schema.get_field_index(name)),
            )


def annotation_list(schema: pa.Schema, steps: Mapping[str, StepAnnotation]) -> list[dict[str, Any]]:
    """Return name, table and type of all annotations."""
    listed = [
        {"name": column.name, "table": EPISODES, "type": type_text(column.type) or str(column.type)}
        for column in episode_annotations(schema)
    ]
    listed += [{"name": each.name, "table": STEPS, "type": type_text(each.type)} for each in steps.values()]
    return listed


def parts_of(keys: Iterable[object], shares: Mapping[str, float], seed: int) -> list[str]:
    """Return the part of each key.

    A key's BLAKE2b hash, together with the seed, gives a number in [0, 1), and the shares, in their order,
    cut that interval. A part that would get no key takes the nearest one of the largest part, so that each
    has one where there are as many keys as parts.

    Raises:
        InvalidArgumentError: the shares are no positive numbers that add up to 1, or the seed is no integer.
    """
    _check(shares, seed)
    bounds = list(itertools.accumulate(map(float, shares.values())))
    names = list(shares)
    keys = list(keys)
    places = {key: _fraction(f"{seed}:{key}") for key in keys}
    part_of = {
        key: next((i for i, bound in enumerate(bounds) if place < bound), len(names) - 1)
        for key, place in places.items()
    }
    for part, bound in enumerate(bounds):
        sizes = Counter(part_of.values())
        largest, size = max(sizes.items(), key=lambda item: item[1], default=(0, 0))
        if part not in sizes and size > 1:
            rich = [key for key, index in part_of.items() if index == largest]
            part_of[min(rich, key=lambda key: (abs(places[key] - bound), str(key)))] = part
    return [names[part_of[key]] for key in keys]


def sized_parts(keys: Iterable[object], sizes: Mapping[str, int], seed: int) -> list[str | None]:
    """Return the part of each key: exactly so many keys in each part, None for those that are left.

    The keys are taken in the order of their hashes; see `parts_of`.

    Raises:
        InvalidArgumentError: the sizes are no whole numbers from 1, or more than there are keys; or the seed
            is no integer.
    """
    keys = list(keys)
    expect(is_integer(seed), "seed", seed, "a whole number")
    valid = sizes and all(isinstance(each, str) for each in sizes)
    expect(valid, "sizes", sizes, "a list of sizes, or sizes by name")
    counts = [whole_number(f"sizes[{name!r}]", size, 1) for name, size in sizes.items()]
    ordered = sorted(dict.fromkeys(keys), key=lambda key: (_fraction(f"{seed}:{key}"), str(key)))
    if sum(counts) > len(ordered):
        raise InvalidArgumentError(
            f"The sizes {dict(sizes)} add up to {sum(counts)}, and there are {len(ordered)} to split. Give "
            "smaller sizes, or shares such as {'train': 0.9, 'val': 0.1}."
        )
    names = [name for name, size in zip(sizes, counts, strict=True) for _ in range(size)]
    part_of = dict(zip(ordered, names, strict=False))
    return [part_of.get(key) for key in keys]


def _fraction(text: str) -> float:
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") / 2 ** (8 * _DIGEST_BYTES)


def _check(shares: Mapping[str, float], seed: int) -> None:
    expect(is_integer(seed), "seed", seed, "a whole number")
    good = (
        isinstance(shares, Mapping)
        and shares
        and all(isinstance(name, str) and is_real(share) and share > 0 for name, share in shares.items())
    )
    if not good or not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-9):
        raise InvalidArgumentError(
            f"The shares {shares!r} are not valid: expected names with positive numbers that add up to 1, "
            'as in {"train": 0.9, "val": 0.1}.'
        )
