"""The memory that a described space would take, computed before any of it is built.

A few bytes of JSON can ask for a Box of a trillion elements, or for a nest of stacked sequences each of
which doubles what it holds. Descriptions that ask for more than 2 GiB, 64 levels or 16,384 spaces are
refused.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any

import numpy as np

from ..errors import CorruptStoreError
from .node import MAX_DEPTH

MAX_BYTES = 2**31
_SPACE_BYTES = MAX_BYTES // 16_384
_CHARACTER_BYTES = 256
_LARGEST = 2**63 - 1
_NATIVE = [np.dtype(code) for code in "?bBhHiIqQefd"]
_SWAPPED = [dtype.newbyteorder() for dtype in _NATIVE if dtype.itemsize > 1]
DTYPES = {dtype.name: dtype for dtype in _NATIVE} | {dtype.str: dtype for dtype in _SWAPPED}
"""The dtypes that a space can have, by the names they go under in a description."""


def measure(description: Any, depth: int = 0) -> int:
    """Return about how many bytes the space of a description takes.

    Raises:
        CorruptStoreError: more than 64 levels or 2 GiB, or something that is no description.
    """
    if depth > MAX_DEPTH:
        raise CorruptStoreError(f"the spaces are nested deeper than {MAX_DEPTH} levels.")
    if not isinstance(description, dict) or not isinstance(description.get("type"), str):
        raise CorruptStoreError(
            f"a space is described by {_short(description)}, expected an object with a type."
        )
    total = _SPACE_BYTES + _own_bytes(description)
    children = parts_of(description)
    if len(children) > MAX_BYTES // _SPACE_BYTES:
        raise CorruptStoreError(f"a space has {len(children)} parts, expected at most 16,384.")
    total += sum(measure(child, depth + 1) for child in children)
    if description["type"] == "Graph" or description.get("stack") is True:
        total *= 2  # Gymnasium keeps a batched copy of what is stacked
    if total > MAX_BYTES:
        raise CorruptStoreError(f"the space would take {total} bytes, expected at most {MAX_BYTES}.")
    return total


def checked_shape(description: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of a description.

    Raises:
        CorruptStoreError: it is no list of sizes, or has more dimensions than numpy allows.
    """
    shape = description.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(size) is int and 0 <= size <= _LARGEST for size in shape)
    ):
        raise CorruptStoreError(f"a space has the shape {_short(shape)}, expected a list of sizes.")
    return tuple(shape)


def checked_dtype(description: dict[str, Any]) -> np.dtype:
    """Return the dtype of a description.

    Raises:
        CorruptStoreError: it names none of `DTYPES`.
    """
    name = description.get("dtype")
    if not isinstance(name, str) or name not in DTYPES:
        raise CorruptStoreError(f"a space has the dtype {_short(name)}, expected one of {sorted(DTYPES)}.")
    return DTYPES[name]


def _own_bytes(description: dict[str, Any]) -> int:
    match description["type"]:
        case "Box" | "MultiDiscrete":
            return _array_bytes(description)
        case "MultiBinary":
            n = description.get("n")
            return _checked_size({"shape": n if isinstance(n, list) else [n]})
        case "Text":
            return _text_bytes(description)
    return 0


def _text_bytes(description: dict[str, Any]) -> int:
    for name in ("min_length", "max_length"):
        length = description.get(name)
        if type(length) is not int or not 0 <= length <= _LARGEST:
            raise CorruptStoreError(f"a Text space has the {name} {_short(length)}, expected a length.")
    charset = description.get("charset")
    if not isinstance(charset, str | list) or len(charset) > sys.maxunicode + 1:
        raise CorruptStoreError(f"a Text space has the charset {_short(charset)}, expected its characters.")
    return _CHARACTER_BYTES * len(charset)


def _checked_size(description: dict[str, Any]) -> int:
    size = prod(checked_shape(description))
    if size > MAX_BYTES:
        raise CorruptStoreError(f"a space has {_short(size)} elements, expected at most {MAX_BYTES}.")
    return size


def _array_bytes(description: dict[str, Any]) -> int:
    size = _checked_size(description)
    for name in ("low", "high", "nvec", "start", "bounded_below", "bounded_above"):
        values = description.get(name)
        if isinstance(values, list) and len(values) != size:
            raise CorruptStoreError(f"a space of {size} elements has {len(values)} values of {name}.")
    return size * (2 * checked_dtype(description).itemsize + 2)


def parts_of(description: dict[str, Any]) -> list[Any]:
    """Return the descriptions of the spaces that a described space consists of.

    Raises:
        CorruptStoreError: it lacks a part.
    """
    match description:
        case {"type": "Dict", "spaces": list(pairs)}:
            if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                raise CorruptStoreError("a Dict space is not described by pairs of a key and a space.")
            return [child for _, child in pairs]
        case {"type": "Tuple" | "OneOf", "spaces": list(children)}:
            return children
        case {"type": "Sequence", "space": child}:
            return [child]
        case {"type": "Graph", "node_space": nodes, "edge_space": None}:
            return [nodes]
        case {"type": "Graph", "node_space": nodes, "edge_space": edges}:
            return [nodes, edges]
        case {"type": "Dict" | "Tuple" | "OneOf" | "Sequence" | "Graph" as kind}:
            raise CorruptStoreError(
                f"the description of a {kind} space lacks a part, or has one of a wrong type."
            )
    return []


def _short(value: Any) -> str:
    if type(value) is int and abs(value) > _LARGEST:
        return f"an integer of {value.bit_length()} bits"
    text = (
        repr(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)} items"
    )
    return text if len(text) < 100 else text[:97] + "..."
