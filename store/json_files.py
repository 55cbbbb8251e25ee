"""JSON files with a checksum: `store.json`, `card.json`, tags and the markers of annotations.

The last member of each object is `crc32`, the CRC-32 of all bytes before its value. Files of earlier versions
lack it and stay readable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .checksums import checksum
from .errors import CorruptStoreError
from .files import Place, guard_access

#: The member that holds the checksum.
CHECKSUM = "crc32"
_LARGEST = 64 << 20
_KEY = b'"crc32": '
_END = re.compile(_KEY + rb'"([0-9a-f]{8})"\n\}')
_VALUE_BYTES = len('"01234567"\n}')


def checked_json(content: Mapping[str, Any]) -> bytes:
    """Return an object as JSON that ends with its checksum.

    Raises:
        TypeError, ValueError: the content is not plain JSON.
    """
    text = json.dumps({**content, CHECKSUM: "0" * 8}, indent=1, allow_nan=False).encode()
    before = text[:-_VALUE_BYTES]
    return before + b'"%08x"\n}' % checksum(before)


def read_json(place: Place, most: int = _LARGEST) -> dict[str, Any]:
    """Read an object, without its checksum; a file of more than `most` bytes is refused unread.

    Raises:
        CorruptStoreError: the file is no JSON object, or its checksum does not match; the message names it.
        StoreAccessError: it is missing or cannot be read.
    """
    with guard_access("read", place):
        data = place.read(most)
    try:
        content = json.loads(data, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(
            f"{place} is no valid JSON ({error}). Restore the file from a copy."
        ) from error
    if not isinstance(content, dict):
        raise CorruptStoreError(f"{place} holds {type(content).__name__}; expected a JSON object.")
    found = _END.fullmatch(data[-len(_KEY) - _VALUE_BYTES :])
    if found is None:
        return content
    if int(found[1], 16) != checksum(data[:-_VALUE_BYTES]):
        raise CorruptStoreError(
            f"{place} is damaged: its checksum does not match. Restore the file from a copy; if it was "
            f"edited by hand, remove its member {CHECKSUM!r}."
        )
    del content[CHECKSUM]
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found
