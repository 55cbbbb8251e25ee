"""Typed columns for values that no space declares.

Each key of an info, policy, metadata or user mapping becomes a column. Its *kind* is a short text in the
table's column metadata; with the physical type it says how to turn a cell back into the recorded value:

    bool  int  float  str                   Python scalars (numpy scalars come back as these)
    list:bool  list:int  list:float  list:str
    array:float32:*                         a one-dimensional array of any length
    array:int8:3,4                          an array of one fixed shape, flattened in C order
    timestamp                               a datetime or date, for queries only

A value of another kind is in the JSON column of its group (`info._json`, ...), which takes precedence.
The column shows it too where it can: an integer or boolean in a `float` column, any number as text in a `str`
column. Where a column is too narrow for a number, its field is marked with `overflow`; see `overflow`.

`joined` is the order behind it: bool < int < float, element by element in lists and arrays of one shape.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import lru_cache, reduce
from math import inf, prod
from typing import Any

import numpy as np
import pyarrow as pa

from ..common.compatibility import numpy_type
from ..errors import CorruptStoreError
from ..names import has_utf8
from ..spaces.arrow import STORED_DTYPES, flat_array

KIND_KEY = b"kind"
#: Of a typed column: the kind in which it shows the numbers that stand in the JSON column only. Of the JSON
#: column: that all such columns are marked. Earlier writers left both out.
OVERFLOW_KEY = b"overflow"
#: The kind of a column that queries see and readers pass over, since the JSON column has its values.
SHOWN_KEY = b"shown"
#: The kinds that a column had in files before `compact` gave it a wider one, the newest first.
FORMER_KEY = b"former"
JSON_KIND = "json"
TIMESTAMP_KIND = "timestamp"
_MARKED = b"marked"
_ARRAY_KIND = re.compile(r"array:(\w+):(\*|(?:[0-9]{1,10}(?:,[0-9]{1,10}){0,63})?)")
_MOST_ELEMENTS = 2**31
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

_SCALARS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
}
_NUMBERS = {"bool": np.dtype(bool), "int": np.dtype(np.int64), "float": np.dtype(float)}
_SCALAR_OF_TYPE: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str", np.bool_: "bool"}
_SCALAR_OF_TYPE |= {np.dtype(code).type: "int" for code in "bhilqBHIL"}
_SCALAR_OF_TYPE |= {np.dtype(code).type: "float" for code in "efd"}
_ARRAY_TYPES: dict[str, pa.DataType] = {
    name: pa.from_numpy_dtype(stored) for name, stored in STORED_DTYPES.items() if name != "uint64"
}


@dataclass(frozen=True)
class LogicalType:
    """The kind of a column of infos, policy values, metadata or own step columns.

    Its `form` is "json", "timestamp", "scalar", "list" or "array"; its `dtype` that of the numbers in its
    values, None for texts and moments; its `shape` that of its values, (-1,) for any length; and `physical`
    the type of its columns on disk.
    """

    form: str
    dtype: np.dtype | None
    shape: tuple[int, ...]
    physical: pa.DataType

    @staticmethod
    def of_column(column: pa.Field) -> LogicalType | None:
        """Return the kind of a column of a group; None for columns of another origin.

        Raises:
            CorruptStoreError: it is no kind of format 1.
        """
        kind = field_kind(column)
        return None if kind is None else LogicalType.of(kind)

    @staticmethod
    @lru_cache(1024)
    def of(kind: str) -> LogicalType:
        """Parse the text of a kind.

        Raises:
            CorruptStoreError: it is no kind of format 1.
        """
        if kind == JSON_KIND:
            return LogicalType("json", None, (), pa.string())
        if kind == TIMESTAMP_KIND:
            return LogicalType("timestamp", None, (), pa.timestamp("us", "UTC"))
        if kind in _SCALARS:
            return LogicalType("scalar", _NUMBERS.get(kind), (), _SCALARS[kind])
        scalar = kind.removeprefix("list:")
        if scalar in _SCALARS:
            return LogicalType("list", _NUMBERS.get(scalar), (-1,), pa.list_(_SCALARS[scalar]))
        match = _ARRAY_KIND.fullmatch(kind)
        if match is not None and match[1] in _ARRAY_TYPES:
            shape = (-1,) if match[2] == "*" else tuple(int(size) for size in match[2].split(",") if size)
            if prod(shape) <= _MOST_ELEMENTS:
                stored = _ARRAY_TYPES[match[1]]
                return LogicalType("array", np.dtype(match[1]), shape, pa.list_(stored) if shape else stored)
        shown = kind if len(kind) < 100 else f"{kind[:97]}..."
        raise CorruptStoreError(
            f"A column is marked with the unknown kind {shown!r}; expected one of format 1."
        )


def physical_type(kind: str) -> pa.DataType:
    """Return the column type on disk of a kind; `json` is a string column.

    Raises:
        CorruptStoreError: it is no kind of format 1.
    """
    return LogicalType.of(kind).physical


def kind_of(value: Any) -> str | None:
    """Return the kind of a frozen value, or None when only JSON can hold it."""
    scalar = _SCALAR_OF_TYPE.get(type(value))
    if scalar is not None:
        return scalar if _fits(scalar, value) else None
    if type(value) is list:
        return _list_kind(value)
    if isinstance(value, np.ndarray) and value.dtype.isnative:
        name = _name_of(value.dtype)
        return _array_kind(name, value.shape) if name in _ARRAY_TYPES else None
    return None


@lru_cache
def _name_of(dtype: np.dtype) -> str:
    """Return the name of a dtype; numpy builds it at each call."""
    return dtype.name


def _array_kind(dtype: str, shape: Sequence[int]) -> str:
    return f"array:{dtype}:{'*' if len(shape) == 1 else ','.join(map(str, shape))}"


def _fits(scalar: str, value: Any) -> bool:
    if scalar == "int":
        return _SMALLEST <= int(value) <= _LARGEST
    if scalar == "str":
        return value.isascii() or has_utf8(value)
    return True


def _list_kind(value: list[Any]) -> str | None:
    kinds = {_SCALAR_OF_TYPE.get(kind) for kind in set(map(type, value))}
    if len(kinds) != 1 or None in kinds or any(isinstance(item, np.generic) for item in value):
        return None
    (scalar,) = kinds
    assert scalar is not None
    return f"list:{scalar}" if all(_fits(scalar, item) for item in value) else None


def column_kind(value: Any) -> str | None:
    """Return the kind of the column that shows a frozen value; None if only the JSON column can hold it.

    It is `kind_of` where that is one. A number without one is shown as near as a double comes.
    """
    kind = kind_of(value)
    if kind is not None:
        return kind
    if isinstance(value, date):
        return TIMESTAMP_KIND
    if _SCALAR_OF_TYPE.get(type(value)) == "int":
        return "float"
    if type(value) is list and value:
        scalars = {_SCALAR_OF_TYPE.get(type(item)) for item in value}
        if scalars <= set(_NUMBERS):
            every = [column_kind(item) for item in value]
            return f"list:{max(every, key=tuple(_NUMBERS).index)}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        native = value.dtype.newbyteorder("=").name
        return _array_kind(native if native in _ARRAY_TYPES else "float64", value.shape)
    return None


@lru_cache
def joined(kind: str, other: str) -> str | None:
    """Return the kind of a column that shows the values of both kinds; None if there is none."""
    if kind == other:
        return kind
    one, two = LogicalType.of(kind), LogicalType.of(other)
    if {one.form, two.form} & {"json", "timestamp"} or one.shape != two.shape or two.dtype is None:
        return None
    if one.dtype is None:
        return kind
    both = np.promote_types(one.dtype, two.dtype)
    if one.form == two.form == "array":
        return f"array:{both.name}:{kind.rpartition(':')[2]}"
    number = {"b": "bool", "i": "int", "u": "int"}.get(both.kind, "float")
    return f"list:{number}" if one.shape else number


def widen(kinds: dict[str, str], name: str, kind: str) -> None:
    """Note the kind in which a column shows values, joined with the kind that is noted already."""
    kinds[name] = joined(kinds.get(name, kind), kind) or kind


def shown_kind(kind: str, value: Any) -> str | None:
    """Return the kind of a column that shows values of `kind` and this one too; None if there is none."""
    if type(value) is list and not value:
        return kind if kind.startswith("list:") else None
    other = column_kind(value)
    return None if other is None else joined(kind, other)


def show(kind: str, value: Any) -> Any:
    """Return a value as a column of this kind shows it; `shown_kind` gave that kind."""
    if isinstance(value, date):
        return _moment(value)
    logical = LogicalType.of(kind)
    if logical.form == "array":
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(logical.dtype).reshape(logical.shape)
    if logical.form == "list":
        items = value.tolist() if isinstance(value, np.ndarray) else value
        return [show(kind.removeprefix("list:"), item) for item in items]
    number = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if kind == "str":
        return str(number).lower() if isinstance(number, bool) else str(number)
    if kind == "int":
        return int(number)
    return _double(number) if kind == "float" else number


def _double(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def _moment(value: date) -> datetime:
    """Return the moment of a datetime or date; without a time zone it counts as UTC."""
    if not isinstance(value, datetime):
        return datetime.combine(value, time(), UTC)
    if value.tzinfo is not None:
        with contextlib.suppress(OverflowError):
            return value.astimezone(UTC)
    return value.replace(tzinfo=UTC)


def is_array(kind: str) -> bool:
    """Return whether this is a kind of arrays; False for what is no kind of format 1."""
    try:
        return LogicalType.of(kind).form == "array"
    except CorruptStoreError:
        return False


def with_kind(column: pa.Field, origin: pa.Field | None) -> pa.Field:
    """Return a column with the kind of the one that its values come from, and no other metadata."""
    kind = None if origin is None else (origin.metadata or {}).get(KIND_KEY)
    return column.with_metadata(None if kind is None else {KIND_KEY: kind})


def field(name: str, kind: str, overflow: str | None = None) -> pa.Field:
    """Return the schema field of a typed or JSON column; its kind travels in the field's metadata.

    Args:
        overflow: the kind in which the column shows numbers that stand in the JSON column only.
    """
    key = SHOWN_KEY if kind == TIMESTAMP_KIND else KIND_KEY
    mark = _MARKED if kind == JSON_KIND else (overflow or "").encode()
    return pa.field(
        name, physical_type(kind), metadata={key: kind.encode()} | ({OVERFLOW_KEY: mark} if mark else {})
    )


def field_kind(column: pa.Field) -> str | None:
    """Return the kind that a schema field carries, or None for a column of another origin."""
    metadata = column.metadata
    if not metadata:  # as most have none
        return None
    kind = metadata.get(KIND_KEY)
    if kind is None and metadata.get(SHOWN_KEY) == TIMESTAMP_KIND.encode():
        return TIMESTAMP_KIND
    return None if kind is None else kind.decode()


def field_overflow(column: pa.Field) -> str | None:
    """Return the kind in which a column shows numbers of the JSON column too; None if that has none for
    it.
    """
    mark = (column.metadata or {}).get(OVERFLOW_KEY)
    return None if mark is None or mark == _MARKED else mark.decode()


def with_overflow(column: pa.Field, other: pa.Field) -> pa.Field:
    """Return the column with the mark of another of its name too; the column itself where that adds
    nothing.
    """
    kind, mark, added = field_kind(column), field_overflow(column), field_overflow(other)
    if kind is None or added is None or column.name != other.name:
        return column
    shown = joined(mark or kind, added)
    if shown is None or shown == mark:
        return column
    return column.with_metadata({**column.metadata, OVERFLOW_KEY: shown.encode()})


def retyped(column: pa.Field, kind: str) -> pa.Field:
    """Return the field of a column all of whose files get another kind; earlier versions keep theirs."""
    former = [each for each in (field_kind(column), *former_kinds(column)) if each not in (None, kind)]
    made = field(column.name, kind)
    return made.with_metadata({**made.metadata, FORMER_KEY: ";".join(former).encode()}) if former else made


def former_kinds(column: pa.Field) -> list[str]:
    """Return the kinds that a column had before, the newest first."""
    text = (column.metadata or {}).get(FORMER_KEY, b"").decode()
    return text.split(";") if text else []


def as_in_file(column: pa.Field, in_file: pa.DataType) -> pa.Field:
    """Return the field of a column for files in which it has this type, which may be that of a former
    kind.
    """
    for kind in former_kinds(column):
        if in_file != column.type and in_file == physical_type(kind):
            return field(column.name, kind, field_kind(column))
    return column


def is_marked(json_column: pa.Field) -> bool:
    """Return whether columns with numbers in this JSON column are marked."""
    return (json_column.metadata or {}).get(OVERFLOW_KEY) == _MARKED


def accepts(kind: str, value: Any) -> bool:
    """Return whether a column of this kind gives exactly this value back."""
    if type(value) is list and not value:
        return kind.startswith("list:")
    return kind_of(value) == kind


def common_kind(values: Iterable[Any], known: str | None = None) -> str | None:
    """Return the kind for a column: the known one, or that of the first value with one, widened by the
    others.
    """

    def wider(kind: str | None, value: Any) -> str | None:
        return column_kind(value) if kind is None else shown_kind(kind, value) or kind

    return reduce(wider, values, known)


def build(kind: str, values: Sequence[Any]) -> pa.Array:
    """Return the physical column of `values`: accepted by the kind, from `show`, or None (absent)."""
    logical = LogicalType.of(kind)
    physical = logical.physical
    if logical.form == "array":
        if not pa.types.is_list(physical):
            values = [None if value is None else value.item() for value in values]
        else:
            flat = numpy_type(physical.value_type)
            values = [None if value is None else value.reshape(-1).astype(flat) for value in values]
    return pa.array(values, physical)


def spread(kind: str, rows: Sequence[int], values: Sequence[Any], types: set[type], length: int) -> pa.Array:
    """Return the column of `length` rows in which row `rows[i]` has `values[i]`, as `build` takes them; the
    others are NULL, and of two values the later counts.

    Args:
        rows: a range only where it is that of all rows.
        types: as for `uniform_kind`.
    """
    logical = LogicalType.of(kind)
    if logical.form != "scalar" or logical.dtype is None:
        entries: list[Any] = [None] * length
        for row, value in zip(rows, values, strict=True):
            entries[row] = value
        return build(kind, entries)
    # Numpy reads scalars of its own three to nine times as fast into an array of their own type.
    own = np.dtype(next(iter(types))) if len(types) == 1 else logical.dtype
    numbers = np.fromiter(values, own, len(values)).astype(logical.dtype, copy=False)
    if isinstance(rows, range):
        return flat_array(numbers, logical.physical)
    cells, valid = np.zeros(length, logical.dtype), np.zeros(length, bool)
    where = np.fromiter(rows, np.int64, len(rows))
    cells[where], valid[where] = numbers, True
    return flat_array(cells, logical.physical, None if valid.all() else valid)


def uniform_kind(values: Sequence[Any], types: set[type]) -> str | None:
    """Return the kind that every value of a batch of scalars, or of arrays of one form, has; None if that is
    not plain at a glance.

    Args:
        types: those of the values; empty where they are not known.
    """
    types = types or set(map(type, values))
    if types == {np.ndarray}:
        # Arrays of one axis have one kind, whatever their lengths.
        forms = {(value.dtype, None if value.ndim == 1 else value.shape) for value in values}
        return kind_of(values[0]) if len(forms) == 1 else None
    scalars = {_SCALAR_OF_TYPE.get(own) for own in types}
    if len(scalars) != 1:
        return None
    (kind,) = scalars
    if kind == "int" and not (min(values) >= _SMALLEST and max(values) <= _LARGEST):
        return None
    if kind == "str" and not (all(map(str.isascii, values)) or all(map(has_utf8, values))):
        return None
    return kind


def batch_kind(values: np.ndarray) -> str | None:
    """Return the kind that each element `values[i]` of an array of numbers has, or None if that is not
    plain.
    """
    if values.dtype.name not in _ARRAY_TYPES or not values.dtype.isnative:
        return None
    if values.ndim == 1:
        return _SCALAR_OF_TYPE[values.dtype.type]
    return _array_kind(values.dtype.name, values.shape[1:])


def reader(kind: str) -> Callable[[Any], Any]:
    """Return a function from a cell's Python value to the recorded value.

    The function raises ValueError, TypeError or OverflowError where the cell cannot have been recorded under
    this kind.

    Raises:
        CorruptStoreError: it is no kind of format 1.
    """
    logical = LogicalType.of(kind)
    if logical.form != "array":
        return lambda cell: cell

    def read(cell: Any) -> np.ndarray:
        if type(cell) is list and None in cell:
            raise ValueError("an element of an array is NULL")
        return np.asarray(cell, logical.dtype).reshape(logical.shape)

    return read


def flatten(mapping: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[Any, ...], Any]]:
    """Yield `(path, value)` for each leaf of nested dictionaries; an empty one is a leaf."""
    for key, value in mapping.items():
        if type(value) is dict and value and type(key) is str and all(type(k) is str for k in value):
            yield from flatten(value, (*path, key))
        else:
            yield (*path, key), value


def nest(target: dict[Any, Any], path: Sequence[Any], value: Any) -> None:
    """Set `value` at `path` in nested dictionaries, creating them on the way."""
    for key in path[:-1]:
        target = target.setdefault(key, {})
    last = path[-1]
    if isinstance(value, dict) and isinstance(target.get(last), dict):
        for key, item in value.items():
            nest(target[last], (key,), item)
    else:
        target[last] = value
