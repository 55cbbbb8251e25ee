"""Arrays in dicts, and rows of whole trajectories, as tables with a row for each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import DatasetError
from ...plugin import LISTS, plain_array, refuse_mask
from ...plugin.columns import TERMINATED, TRUNCATED
from ...writers.importing.columns import array_column
from .mapping import OBVIOUS

_ENDS = [name for role in (TERMINATED, TRUNCATED, "done") for name in OBVIOUS[role]]
#: Of these, a trajectory has a value for each step, and a row one value.
_OF_STEPS = [*OBVIOUS["reward"], *_ENDS]
#: The column that is added: a number for each file or dict, and after each row with a flag another one.
EPISODE = OBVIOUS["episode"][0]
_HEAD_ROWS = 16


def has_episode(names: Iterable[str]) -> bool:
    """Return whether a column of this name is that of the episodes."""
    return not {*OBVIOUS["episode"]}.isdisjoint(names)


def is_dicts(source: Any) -> bool:
    """Return whether a source is a list of dicts, not empty."""
    return (
        isinstance(source, list | tuple)
        and bool(source)
        and all(isinstance(each, Mapping) for each in source)
    )


def dict_tables(source: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Iterator[pa.Table]:
    """Yield a dict of arrays as one table, a list of such dicts as one each, a list of rows as one.

    Raises:
        DatasetError: arrays have other lengths, or values that Arrow has no type for.
        SpaceMismatchError: an array has masked elements.
    """
    if isinstance(source, Mapping):
        yield table_of_arrays(source, 0, "The dict")[0]
    elif is_rollout(source[0]):
        start = 0
        for index, each in enumerate(source):
            table, start = table_of_arrays(each, start, f"Dict {index} of the list")
            yield table
    else:
        names = dict.fromkeys(name for row in source for name in row)
        columns = {str(name): _column([row.get(name) for row in source], str(name)) for name in names}
        yield _cut_at_flags(pa.table(columns))


def _cut_at_flags(rows: pa.Table) -> pa.Table:
    """Return rows with `EPISODE`, a new number after each flag; as they are without flags, or with ids."""
    flags = [name for name in _ENDS if name in rows.column_names]
    if not flags or has_episode(rows.column_names):
        return rows
    ends = np.zeros(len(rows), bool)
    for name in flags:
        ends |= np.array([bool(value) for value in rows.column(name).to_pylist()])
    numbers = np.cumsum(ends) - ends
    return rows.append_column(EPISODE, pa.array(numbers))


def is_rollout(values: Mapping[str, Any]) -> bool:
    """Return whether a dict has arrays with a value for each step, not the values of one step."""
    columns = [values[name] for name in _OF_STEPS if name in values]
    return all(_length(value) is not None for value in columns or values.values())


def table_of_arrays(
    arrays: Mapping[str, Any], start: int, place: str, file: str | None = None
) -> tuple[pa.Table, int]:
    """Return arrays of one length as a table, and the number of the next episode.

    Arrays that lack the last row, as actions beside T+1 observations do, have NULL there. A single value
    stands in every row. Unless there is a column of this name, `EPISODE` numbers the episodes by the flags.

    Args:
        start: the number of the first episode.
        place: names the source in messages.
        file: the name of the first episode in place of its number; others have their number in the file too.

    Raises:
        DatasetError: they have other lengths, or values that Arrow has no type for.
    """
    leaves = {str(name): value for name, value in arrays.items() if value is not None}
    lengths = {name: size for name, value in leaves.items() if (size := _length(value)) is not None}
    rows = max(lengths.values(), default=0)
    for name, size in lengths.items():
        if not rows - 1 <= size <= rows:
            longest = max(lengths, key=lengths.__getitem__)
            raise DatasetError(
                f"{place}: `{name}` has {size:,} rows, and `{longest}` {rows:,}; expected one length, or one "
                "row less where the last row is an observation alone."
            )
    columns = {name: _column_of(value, rows, name, place) for name, value in leaves.items()}
    if has_episode(columns):
        return pa.table(columns), start
    begins = np.zeros(rows + 1, np.int64)
    for name in _ENDS:
        if name in columns and lengths.get(name):
            begins[1 : lengths[name] + 1] |= np.asarray(leaves[name]).reshape(lengths[name], -1).any(axis=1)
            # A row of the last observation alone belongs to the episode before it.
            begins[lengths[name] : rows] = 0
    numbers = start + np.cumsum(begins)
    names: Any = numbers[:rows]
    if file is not None:
        names = [f"{file}:{number}" if number else file for number in (names - start).tolist()]
    return pa.table({EPISODE: names, **columns}), int(numbers[rows - 1] + 1) if rows else start


def _length(value: Any) -> int | None:
    """Return the rows of an array, or of those in a dict; None for a single value."""
    if isinstance(value, Mapping):
        lengths = [size for part in value.values() if (size := _length(part)) is not None]
        return max(lengths, default=None)
    return None if isinstance(value, str | bytes) or np.ndim(value) == 0 else len(value)


def _column_of(value: Any, rows: int, name: str, place: str) -> pa.Array:
    refuse_mask(value, f"`{name}`")
    size = _length(value)
    if size is None:
        single = value.item() if isinstance(value, np.ndarray | np.generic) else value
        return pa.array([single] * rows)
    if isinstance(value, Mapping):
        parts = [_column_of(part, rows, f"{name}.{key}", place) for key, part in value.items()]
        return pa.StructArray.from_arrays(parts, [str(key) for key in value])
    column = _column(value, name)
    return column if size == rows else pa.concat_arrays([column, pa.nulls(rows - size, column.type)])


def _column(values: Any, name: str) -> pa.Array:
    """Return rows of numbers, texts or lists as a column; arrays of several axes as nested lists."""
    refuse_mask(values, f"`{name}`")
    try:
        array = values if isinstance(values, np.ndarray) else _stacked(values)
        if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
            return array_column(array)
        return pa.array(array.tolist() if isinstance(array, np.ndarray) else list(array))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DatasetError(
            f"`{name}` is no column: {error}. Expected numbers, texts, or lists of them."
        ) from error


def _stacked(values: Sequence[Any]) -> Any:
    """Return arrays of one shape as one; other values as they are."""
    if values and all(isinstance(each, np.ndarray) for each in values):
        if len({(each.shape, each.dtype) for each in values}) == 1:
            return np.stack(list(values))
        return [each.tolist() for each in values]
    return values


def trajectory_columns(head: pa.Table) -> list[str] | None:
    """Return the columns with a list for each trajectory where every row is one; None for rows of steps.

    Rewards or flags are lists then, as long as the actions in their row, whatever their length; so are the
    observations, or one longer.
    """

    def column_of(role: str) -> str | None:
        return next((name for name in OBVIOUS[role] if name in head.column_names), None)

    observation, action = column_of("observation"), column_of("action")
    outcomes = [name for name in _OF_STEPS if name in head.column_names]
    if observation is None or action is None or not outcomes or not len(head):
        return None
    sizes = {name: _sizes(head, name) for name in (observation, action, *outcomes)}
    steps = sizes[outcomes[0]]
    flags = [name for name in _ENDS if name in outcomes and sizes[name] is not None]
    if steps is None or sizes[action] != steps or sizes[observation] is None:
        return None
    more = {seen - taken for seen, taken in zip(sizes[observation] or [], steps, strict=True)}
    nested = isinstance(head.schema.field(observation).type.value_type, LISTS)
    if not more <= {0, 1} or len(more) > 1 or not (nested or flags or len(set(steps)) > 1):
        return None
    lists = {name: _sizes(head, name) for name in head.column_names}
    lengths = [steps, [count + 1 for count in steps]]
    return [name for name, own in lists.items() if own in lengths]


def _sizes(head: pa.Table, name: str) -> list[int] | None:
    if not isinstance(head.schema.field(name).type, LISTS):
        return None
    return [0 if value is None else len(value) for value in head.column(name).to_pylist()]


def exploded(batch: pa.RecordBatch, lists: Sequence[str], start: int) -> pa.Table:
    """Return rows of trajectories as rows of steps, `EPISODE` by the number of the row unless there is one.

    Raises:
        DatasetError: the lists of a row have other lengths.
    """
    sizes = {name: np.array([0 if v is None else len(v) for v in batch.column(name)]) for name in lists}
    counts = np.max(list(sizes.values()), axis=0)
    owners = np.repeat(np.arange(batch.num_rows), counts)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in sizes:
            columns[name] = column.take(pa.array(owners))
            continue
        own = sizes[name]
        wrong = np.flatnonzero((own != counts) & (own != counts - 1))
        if len(wrong):
            raise DatasetError(
                f"Row {start + wrong[0]}: `{name}` has {own[wrong[0]]} values, and another column "
                f"{counts[wrong[0]]}; expected one for each step of the trajectory."
            )
        starts = np.cumsum(own) - own
        flat = plain_array(column).flatten()
        columns[name] = flat.take(pa.array(starts[owners] + places, mask=places >= own[owners]))
    if has_episode(columns):
        return pa.table(columns)
    return pa.table({EPISODE: start + owners, **columns})
