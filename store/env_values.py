"""Arguments of environments and wrappers as JSON, and back: what stands in the spec of a run.

Plain values and arrays are tagged JSON, as infos are (see `values`). Three more objects may stand for a whole
argument: a kept file, a numpy dtype and a space. What none of this can say is an `OpaqueValue`.
Decoding builds values only; it never imports or runs anything that the text names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np

from .errors import CorruptStoreError, EpisodelakeError
from .spaces import space_from_json, space_to_json
from .values import OpaqueValue, dump_json, freeze_value, load_json

_FILE, _DTYPE, _SPACE = "$file", "$dtype", "$space"
_LONGEST = 1 << 20
_SHOWN = 1000


def encode_argument(value: Any) -> Any:
    """An argument as plain JSON; what is too long or cannot be kept becomes its type and printed form."""
    if isinstance(value, type) and issubclass(value, np.generic):
        value = np.dtype(value)
    if isinstance(value, np.dtype) and value.names is None and not value.hasobject:
        return {_DTYPE: value.str}
    if isinstance(value, gymnasium.Space):
        try:
            return {_SPACE: space_to_json(value)}
        except EpisodelakeError:
            return _opaque(value)
    text = dump_json(freeze_value(value))
    return json.loads(text) if len(text) <= _LONGEST else _opaque(value)


def encode_file(name: str, given: Literal["str", "path"]) -> dict[str, Any]:
    """An argument that is the path of a kept file, given as text or as a `pathlib.Path`."""
    return {_FILE: [name, given]}


def encode_name(value: Any) -> Any:
    """Something that would have to be imported, and has no name to import it by."""
    return _opaque(value)


def _opaque(value: Any) -> Any:
    frozen = freeze_value(value)
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
    """What in a decoded argument could not be kept."""
    if isinstance(value, OpaqueValue):
        return [value]
    if isinstance(value, dict):
        return [part for item in value.items() for each in item for part in opaque_parts(each)]
    if isinstance(value, list | tuple | set | frozenset):
        return [part for each in value for part in opaque_parts(each)]
    return []


def texts(value: Any) -> list[str]:
    """All texts in a decoded argument, bytes among them."""
    if isinstance(value, str | bytes):
        return [value if isinstance(value, str) else value.decode("latin-1")]
    if isinstance(value, np.ndarray):
        return [text for each in value.ravel().tolist() for text in texts(each)]
    if isinstance(value, dict):
        return [text for item in value.items() for each in item for text in texts(each)]
    if isinstance(value, list | tuple | set | frozenset):
        return [text for each in value for text in texts(each)]
    return []
