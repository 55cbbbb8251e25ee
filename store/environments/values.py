"""Arguments of environments and wrappers as JSON, and back, for the spec of a run.

Plain values and arrays are tagged JSON, as infos are (see `values`). Four more objects may stand for a whole
argument: a kept file, a value that is in one, a numpy dtype and a space. Anything else is an `OpaqueValue`.
Decoding builds values only; it never imports or runs anything that the text names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np

from ..dynamic.values import OpaqueValue, dump_json, freeze_value, load_json
from ..errors import CorruptStoreError, EpisodelakeError
from ..spaces import space_from_json, space_to_json

_FILE, _DTYPE, _SPACE, _CODED = "$file", "$dtype", "$space", "$coded"
_LONGEST = 1 << 20
_SHOWN = 1000


@dataclass(frozen=True)
class CodedValue:
    """An argument whose value is the content of a kept file.

    Attributes:
        codec: the codec's name; see `codecs`.
        path: the file, once it is unpacked.
    """

    codec: str
    path: Path


def encode_argument(value: Any) -> Any:
    """Return an argument as plain JSON; what is too long or cannot be kept becomes its type and printed
    form.
    """
    if isinstance(value, type) and issubclass(value, np.generic):
        value = np.dtype(value)
    if isinstance(value, np.dtype) and value.names is None and not value.hasobject:
        return {_DTYPE: value.str}
    if isinstance(value, gymnasium.Space):
        try:
            return {_SPACE: space_to_json(value)}
        except EpisodelakeError:
            return encode_opaque(value)
    if isinstance(value, np.ndarray) and value.nbytes > _LONGEST:
        return encode_opaque(value)
    text = dump_json(freeze_value(value))
    return json.loads(text) if len(text) <= _LONGEST else encode_opaque(value)


def encode_file(name: str, given: Literal["str", "path"]) -> dict[str, Any]:
    """Return an argument that is the path of a kept file, given as text or as a `pathlib.Path`."""
    return {_FILE: [name, given]}


def encode_coded(codec: str, name: str) -> dict[str, Any]:
    """Return an argument whose value is the content of a kept file."""
    return {_CODED: [codec, name]}


def is_opaque(encoded: Any) -> bool:
    """Return whether an encoded argument cannot be read back as a whole."""
    return isinstance(encoded, dict) and list(encoded) == ["$object"]


def encode_opaque(value: Any) -> Any:
    """Return an argument that cannot be kept, as its type and printed form."""
    large = isinstance(value, np.ndarray) and value.nbytes > _LONGEST
    frozen = None if large else freeze_value(value)
    if not isinstance(frozen, OpaqueValue):
        kind = type(value)
        text = f"{str(value)[:_SHOWN]}..."
        frozen = OpaqueValue(f"{kind.__module__}.{kind.__qualname__}", text)
    return json.loads(dump_json(OpaqueValue(frozen.type_name, frozen.text[:_SHOWN])))


def decode_argument(value: Any, where: str, file: Callable[[str], Path]) -> Any:
    """Read an argument back.

    Args:
        value: JSON, from anywhere.
        where: named in errors.
        file: gives the path of a kept file, and raises a KeyError for others.

    Raises:
        CorruptStoreError: it is no argument that was encoded so.
    """
    try:
        match value:
            case {"$file": [str(name), "str" | "path" as given]} if len(value) == 1:
                return str(file(name)) if given == "str" else file(name)
            case {"$coded": [str(codec), str(name)]} if len(value) == 1:
                return CodedValue(codec, file(name))
            case {"$dtype": str(code)} if len(value) == 1:
                return _dtype(code, where)
            case {"$space": dict(space)} if len(value) == 1:
                return space_from_json(space, where)
        return load_json(json.dumps(value), where)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, EpisodelakeError):
            raise
        raise CorruptStoreError(f"{where} has an argument that cannot be read back: {error!r}.") from error


def _dtype(code: str, where: str) -> np.dtype:
    # Numpy takes whole expressions for a dtype, so it is found by what numpy itself writes.
    return load_json(json.dumps({"$array": [code, [0], ""]}), where).dtype


def opaque_parts(value: Any) -> list[OpaqueValue]:
    """Return the parts of a decoded argument that could not be kept."""
    return [leaf for leaf in _leaves(value) if isinstance(leaf, OpaqueValue)]


def texts(value: Any) -> list[str]:
    """Return all texts in a decoded argument, bytes among them."""
    found = (leaf.tolist() if isinstance(leaf, np.ndarray) else leaf for leaf in _leaves(value))
    leaves = [leaf for each in found for leaf in _leaves(each) if isinstance(leaf, str | bytes)]
    return [leaf if isinstance(leaf, str) else leaf.decode("latin-1") for leaf in leaves]


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the keys and values of nested containers that are no containers themselves."""
    if isinstance(value, dict):
        value = [each for item in value.items() for each in item]
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _leaves(each)
    else:
        yield value
