"""Loose values: what an info, policy, metadata or options mapping may hold.

`freeze` copies such a mapping at the moment it is handed over, so that later changes of the caller's
objects cannot reach what is recorded. `dump_json` and `load_json` carry any frozen value through a JSON
column without loss: what JSON cannot say is wrapped in an object with one key that starts with `$`.
Decoding builds plain Python and numpy values only; it never imports or runs anything that the text names.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import CorruptStoreError

_MAX_DEPTH = 64
_LARGEST_DECIMAL = 10**4000
_ARRAY_CODE = re.compile(r"[<>=|][?bcfiumMSUV][0-9]{0,9}(?:\[[0-9]{0,9}[A-Za-zμ]{1,2}\])?")

#: Types whose values nobody can change after they were handed over.
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


@dataclass(frozen=True)
class OpaqueValue:
    """An object that no column and no JSON text can hold; what is kept is its type and printed form.

    Attributes:
        type_name: module and qualified name of the object's type.
        text: `repr` of the object at the moment it was recorded.
    """

    type_name: str
    text: str


def freeze(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a copy of `mapping` that shares no mutable memory with it.

    Arrays and containers are copied; an object that is neither becomes an `OpaqueValue`.
    """
    if IMMUTABLE.issuperset(map(type, mapping.values())):
        return dict(mapping)
    return {key: freeze_value(value) for key, value in mapping.items()}


def freeze_value(value: Any, depth: int = 0) -> Any:
    """Return `value` itself if it cannot change, else a deep copy or an `OpaqueValue`."""
    kind = type(value)
    if kind in IMMUTABLE or kind is OpaqueValue:
        return value
    if depth > _MAX_DEPTH:
        return _opaque(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and value.dtype.names is None:
        return np.array(value, order="C", copy=True, subok=False)
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "US" else _opaque(value)
    if isinstance(value, dict):
        return {freeze_value(k, depth + 1): freeze_value(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [freeze_value(item, depth + 1) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, set | frozenset):
        return frozenset(freeze_value(item, depth + 1) for item in value)
    if isinstance(value, bool | int | float | str):
        return _plain(value)
    return _opaque(value)


def _plain(value: Any) -> Any:
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value)
    return bool(value)


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
    except (ValueError, TypeError, LookupError, OverflowError, MemoryError, RecursionError) as error:
        raise CorruptStoreError(
            f"{where} holds a JSON value that cannot be read back ({error}). The file was damaged or was "
            "written by something else."
        ) from error


def load_object(text: str, where: str) -> dict[Any, Any]:
    """Read a mapping that `dump_json` wrote.

    Raises:
        CorruptStoreError: the text is no such mapping; `where` names its place in the message.
    """
    found = load_json(text, where)
    if not isinstance(found, dict):
        raise CorruptStoreError(
            f"{where} holds a JSON value of type {type(found).__name__}; expected an object. The file was "
            "damaged or was written by something else."
        )
    return found


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
    "$object": lambda content, _: OpaqueValue(str(content[0]), str(content[1])),
    "$dict": lambda content, depth: {_from_json(k, depth): _from_json(v, depth) for k, v in content},
}
