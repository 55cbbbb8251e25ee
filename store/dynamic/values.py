"""Dynamic values: the contents of info, policy, metadata and options mappings.

`freeze` copies such a mapping at the moment it is handed over, so that later changes of the caller's
objects cannot reach what is recorded. `dump_json` and `load_json` carry any frozen value through a JSON
column without loss: what JSON cannot say is wrapped in an object with one key that starts with `$`.
Decoding builds plain Python and numpy values only; it never imports or runs anything that the text names.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from pathlib import PurePath
from typing import Any

import numpy as np

from ..common.arguments import refuse_mask
from ..common.foreign_arrays import from_foreign, is_foreign, standard
from ..errors import CorruptStoreError

_MAX_DEPTH = 64
_LARGEST_DECIMAL = 10**4000
#: Time zones that are an offset, as which a datetime comes back.
_ZONES = {type(None), timezone}
_ARRAY_CODE = re.compile(r"[<>=|][?bcfiumMSUV][0-9]{0,9}(?:\[[0-9]{0,9}[A-Za-zμ]{1,2}\])?")

#: Types whose values cannot change after they were handed over.
IMMUTABLE = frozenset(
    {
        bool,
        int,
        float,
        str,
        bytes,
        complex,
        type(None),
        *(np.dtype(code).type for code in "?bhilqBHILQefd"),
    }
)

_PLAIN = (int, float, str, bytes, complex)


@dataclass(frozen=True)
class OpaqueValue:
    """The type and the printed form of an object that no column and no JSON text can hold.

    Attributes:
        type_name: module and qualified name of the object's type.
        text: `repr` of the object at the moment it was recorded.
    """

    type_name: str
    text: str


def freeze(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a copy of `mapping` that shares no mutable memory with it.

    Arrays and containers are copied, those of other libraries as numpy arrays and dicts; an object that is
    neither becomes an `OpaqueValue`.
    """
    if IMMUTABLE.issuperset(map(type, mapping.values())):
        return dict(mapping)
    return {key: freeze_value(value) for key, value in mapping.items()}


def freeze_value(value: Any, depth: int = 0, convert: bool = True) -> Any:
    """Return `value` itself if it cannot change, else a deep copy or an `OpaqueValue`.

    Args:
        value: any object.
        depth: how deep the value is nested in the one that was given.
        convert: arrays and mappings of other libraries become numpy arrays, numbers and dicts; otherwise they
            are opaque.
    """
    kind = type(value)
    if kind in IMMUTABLE or kind is OpaqueValue:
        return value
    if depth > _MAX_DEPTH:
        return _opaque(value)
    if isinstance(value, np.ma.MaskedArray):
        refuse_mask(value, "a recorded value")
    if isinstance(value, np.ndarray):
        code = value.dtype.kind
        if code not in "OV":
            return np.array(value, order="C", copy=True, subok=False)
        if code == "V" and value.dtype.names is None:
            return np.array(standard(value), order="C", copy=True, subok=False)
    if isinstance(value, np.generic):
        return _from_numpy(value)
    if isinstance(value, dict):
        return {
            freeze_value(k, depth + 1, convert): freeze_value(v, depth + 1, convert) for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        items = [freeze_value(item, depth + 1, convert) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, set | frozenset):
        return frozenset(freeze_value(item, depth + 1, convert) for item in value)
    if isinstance(value, _PLAIN):
        return _plain(value)
    if isinstance(value, datetime):
        return value if type(value) is datetime and type(value.tzinfo) in _ZONES else _moment(value)
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    if isinstance(value, timedelta):
        plain = timedelta(value.days, value.seconds, value.microseconds)
        return plain if plain == value else _opaque(value)
    if type(value) is time:
        return value if type(value.tzinfo) in _ZONES else _opaque(value)
    if isinstance(value, PurePath):
        return str(value)
    if convert and isinstance(value, Mapping):
        return freeze_value(dict(value), depth)
    array = from_foreign(value) if convert and is_foreign(value) else value
    return _opaque(value) if array is value else freeze_value(array, depth + 1)


def _from_numpy(value: np.generic) -> Any:
    """Return a scalar of numpy as one of Python; opaque where Python has none, or none so fine."""
    if value.dtype.kind not in "mM":
        plain = value.item()
        return plain if type(plain) in IMMUTABLE else _opaque(value)
    if value.dtype.kind == "m":
        span = value.item()
        return span if isinstance(span, timedelta) else _opaque(value)
    coarse = value.astype("M8[us]") if value.dtype == np.dtype("M8[ns]") else value
    plain = coarse.item()
    # Numpy gives a bare count, an int, where the unit or the year is beyond those of Python.
    return plain if isinstance(plain, date) and coarse == value else _opaque(value)


def _moment(value: datetime) -> Any:
    """Return a datetime of a zone or class of others as one of the standard library, at the same offset from
    UTC; opaque where it is finer than a microsecond, as those of pandas may be.
    """
    try:
        if getattr(value, "nanosecond", 0):
            return _opaque(value)
        offset = value.utcoffset()
        zone = None if offset is None else timezone(offset)
        parts = value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond
        return datetime(*parts, tzinfo=zone, fold=value.fold)
    except Exception:  # a zone may be the user's own code
        return _opaque(value)


def _plain(value: Any) -> Any:
    """Return the value itself of a subclass such as `class Outcome(str, Enum)`, whatever its methods say."""
    for base in _PLAIN:
        if isinstance(value, base):
            return getattr(base, f"__{base.__name__}__")(value)
    raise TypeError(f"{type(value).__name__} is no subclass of a plain type")


def _opaque(value: Any) -> OpaqueValue:
    kind = type(value)
    try:
        text = repr(value)
    except Exception as error:  # repr is the user's own code: whatever it raises must not stop a recording
        text = f"<repr failed: {type(error).__name__}>"
    return OpaqueValue(f"{kind.__module__}.{kind.__qualname__}", text)


def dump_json(value: Any) -> str:
    """Write a frozen value as strict JSON text (ASCII, no NaN tokens)."""
    return json.dumps(_to_json(value), allow_nan=False, separators=(",", ":"))


def load_json(text: str, where: str) -> Any:
    """Read a value that `dump_json` wrote.

    Raises:
        CorruptStoreError: the text is no such value; `where` names its place in the message.
    """
    try:
        return _from_json(json.loads(text), 0)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise CorruptStoreError(
            f"{where} holds a JSON value that cannot be read back ({error}). The file was damaged or was "
            "written by something else."
        ) from error


def load_object(text: str, where: str) -> dict[Any, Any]:
    """Read a mapping that `dump_json` wrote.

    Raises:
        CorruptStoreError: the text is no such mapping; `where` names its place in the message.
    """
    value = load_json(text, where)
    if not isinstance(value, dict):
        raise CorruptStoreError(
            f"{where} holds a JSON value of type {type(value).__name__}; expected an object. The file was "
            "damaged or was written by something else."
        )
    return value


def load_objects(texts: Sequence[str], where: str) -> list[dict[Any, Any]]:
    """Read many mappings that `dump_json` wrote; several times as fast as `load_object` for each.

    Raises:
        CorruptStoreError: see `load_object`.
    """
    whole = f"[{','.join(texts)}]"
    if "$" not in whole:
        with contextlib.suppress(ValueError, RecursionError):
            objects = json.loads(whole)
            if len(objects) == len(texts) and set(map(type, objects)) <= {dict}:
                return objects
    return [load_object(text, where) for text in texts]


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int):
        # Python refuses to write or read longer decimal numbers.
        return value if abs(value) < _LARGEST_DECIMAL else {"$int": hex(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _to_json(item) for key, item in value.items()}
        return {"$dict": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    return _tagged(value)


def _tagged(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        return {"$array": [value.dtype.str, list(value.shape), data]}
    if isinstance(value, tuple):
        return {"$tuple": [_to_json(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {"$set": sorted((_to_json(item) for item in value), key=repr)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, timedelta):
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, time):
        return {"$time": value.isoformat()}
    if isinstance(value, complex):
        return {"$complex": [_to_json(value.real), _to_json(value.imag)]}
    opaque = value if isinstance(value, OpaqueValue) else _opaque(value)
    return {"$object": [opaque.type_name, opaque.text]}


def _from_json(value: Any, depth: int) -> Any:
    if depth > 4 * _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_from_json(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (tag, content), *_ = value.items()
        if tag in _READERS:
            return _READERS[tag](content, depth + 1)
    return {key: _from_json(item, depth + 1) for key, item in value.items()}


def _read_array(content: Any, _depth: int) -> np.ndarray:
    code, shape, data = content
    # Numpy takes whole expressions for a dtype; only what it writes for plain arrays is handed to it.
    if not isinstance(code, str) or not _ARRAY_CODE.fullmatch(code):
        raise ValueError(f"an array of the dtype {str(code)[:40]!r}")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an array of a shape that is none")
    dtype = np.dtype(code)
    raw = base64.b64decode(data, validate=True)
    return np.frombuffer(raw, dtype).reshape(shape).copy()


_READERS = {
    "$array": _read_array,
    "$float": lambda content, _: float(content),
    "$int": lambda content, _: int(content, 16),
    "$tuple": lambda content, depth: tuple(_from_json(item, depth) for item in content),
    "$set": lambda content, depth: frozenset(_from_json(item, depth) for item in content),
    "$bytes": lambda content, _: base64.b64decode(content, validate=True),
    "$complex": lambda content, depth: complex(*(_from_json(part, depth) for part in content)),
    "$datetime": lambda content, _: datetime.fromisoformat(content),
    "$date": lambda content, _: date.fromisoformat(content),
    "$time": lambda content, _: time.fromisoformat(content),
    "$timedelta": lambda content, _: timedelta(*(int(part) for part in content)),
    "$object": lambda content, _: OpaqueValue(str(content[0]), str(content[1])),
    "$dict": lambda content, depth: {_from_json(k, depth): _from_json(v, depth) for k, v in content},
}
