"""JSON of sources: the keys that a file begins with, and values of a text with the place of what is wrong."""

from __future__ import annotations

import codecs
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import orjson
except ImportError:  # JSON is read more slowly
    orjson = None

from ...store.errors import DatasetError

#: Keys of a JSON file are looked for in its first bytes.
_HEAD_BYTES = 64 << 10
#: A text that the first bytes cut off goes to their end, so that its quotes are not tried one by one.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]:]', re.DOTALL)
#: Each digit as 0, and whatever may stand before a number as a comma.
_SHAPES = bytes.maketrans(b"123456789[:- \t\r\n", b"0" * 9 + b"," * 7)
_LONG_INTEGER = b"," + b"0" * 19


def first_bytes(path: Path) -> bytes:
    """Return the bytes of a JSON file in which keys are looked for, without a byte-order mark."""
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8)


def first_keys(path: Path) -> set[str]:
    """Return the keys of the object that a JSON file begins with, as far as its first bytes have them."""
    head = first_bytes(path)
    keys: set[str] = set()
    if not head.lstrip().startswith(b"{"):
        return keys
    depth, text = 0, b""
    for match in _TOKEN.finditer(head):
        token = match.group()
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
            if not depth:
                break
        elif token == b":" and depth == 1:
            keys.add(text[1:-1].decode(errors="replace"))
        text = token
    return keys


def parsed(line: bytes, place: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        DatasetError: it is no JSON, is cut or no UTF-8, or is nested too deep.
    """
    if orjson is not None and not _has_long_integer(line):
        # Whatever it refuses, NaN and lone surrogates among it, is for the module that names the place.
        with suppress(ValueError):
            return orjson.loads(line)
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{place} is no UTF-8: byte {error.start} is 0x{line[error.start]:02x}."
        ) from error
    except json.JSONDecodeError as error:
        cut = "" if line.endswith(b"\n") else " The file ends in this line: its writer was interrupted."
        raise DatasetError(f"{place} is no JSON: {error.msg} at character {error.pos}.{cut}") from error
    except (RecursionError, ValueError) as error:  # integers of thousands of digits
        raise DatasetError(f"{place} cannot be read: {type(error).__name__}: {error!s:.200}.") from error


def _has_long_integer(line: bytes) -> bool:
    """Return whether a JSON text may have an integer of more than 64 bits, which orjson reads as a float."""
    shape = line.translate(_SHAPES)
    return _LONG_INTEGER in shape or shape.startswith(_LONG_INTEGER[1:])
