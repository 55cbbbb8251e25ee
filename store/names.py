"""Keys to column names and back, without a table.

A column name is a path of segments joined by dots: `observation.image`, `info.x_position`. A segment is
a key in which the dot, the characters that Delta Lake forbids and every ASCII control character are
percent-encoded (as `urllib.parse.quote` does, with other reserved characters). The percent sign itself is
encoded too, so that every segment has exactly one key. Everything else, unicode included, stays as it is.

The schemas, the space codecs and the info columns take their names from here; this module
imports only the errors.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator

from .errors import InvalidArgumentError

#: The key of the spaces, as JSON, in the metadata of a Parquet file that was exported.
SPACES_KEY = b"episodelake.spaces"
#: The key of the names of the user's own step columns there, as JSON.
EXTRA_KEY = b"episodelake.extra"
#: The key of the card of the store there, as JSON.
CARD_KEY = b"episodelake.card"
#: The name of a run that got none.
DEFAULT_RUN = "run"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_EMPTY = "%"
_RESERVED = frozenset("%. ,;{}()=") | {chr(code) for code in range(32)} | {chr(127)}
_RESERVED_TABLE = {ord(character): f"%{ord(character):02X}" for character in _RESERVED}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def escape(key: str) -> str:
    """Return the column-name segment of one key; the empty key is a lone percent sign.

    >>> escape("a.b"), escape(""), escape("größe")
    ('a%2Eb', '%', 'größe')
    """
    return key.translate(_RESERVED_TABLE) if key else _EMPTY


def unescape(segment: str) -> str:
    """Return the key of one segment: the inverse of `escape` and of each segment of `escape_distinct`.

    Raises:
        InvalidArgumentError: a percent sign is not followed by two hexadecimal digits, or the encoded
            bytes are not UTF-8.

    >>> unescape("a%2Eb"), unescape("%"), unescape("%41")
    ('a.b', '', 'A')
    """
    if segment == _EMPTY:
        return ""
    if "%" not in segment:
        return segment
    try:
        return b"".join(_segment_bytes(segment)).decode("utf-8", "surrogatepass")
    except ValueError as error:
        raise InvalidArgumentError(
            f"column name segment {segment!r} is not percent-encoded UTF-8: {error}. "
            "Expected each '%' to be followed by two hexadecimal digits. Hint: make segments with escape()."
        ) from error


def join(*keys: str) -> str:
    """Return the column name of a path of keys; each key is escaped.

    >>> join("observation", "a.b")
    'observation.a%2Eb'
    """
    return ".".join(map(escape, keys))


def split(column: str) -> tuple[str, ...]:
    """Return the path of keys of a column name: the inverse of `join`.

    Raises:
        InvalidArgumentError: as `unescape`.

    >>> split("observation.a%2Eb")
    ('observation', 'a.b')
    """
    return tuple(map(unescape, column.split(".")))


def escape_distinct(keys: Iterable[str]) -> dict[str, str]:
    """Return a segment for each key, unique even for engines that ignore case.

    The first key of a name keeps its plain segment. Where a later key differs from an earlier one only in
    case, its upper-case letters are percent-encoded as well; where that does not tell them apart, all its
    letters are, and in the end every character. `unescape` gives the key back in each case.

    >>> escape_distinct(["speed", "Speed", "SPEED"])
    {'speed': 'speed', 'Speed': '%53peed', 'SPEED': '%53%50%45%45%44'}
    >>> escape_distinct(["A", "a"])
    {'A': 'A', 'a': '%61'}
    """
    segments: dict[str, str] = {}
    taken: set[str] = set()
    for key in keys:
        if key in segments:
            continue
        segment = next(form for form in _forms(key) if form.casefold() not in taken)
        taken.add(segment.casefold())
        segments[key] = segment
    return segments


def has_utf8(key: str) -> bool:
    """Return whether a text can be stored at all: False if it holds a lone surrogate.

    >>> has_utf8("é"), has_utf8(chr(0xD800))
    (True, False)
    """
    if key.isascii():
        return True
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _forms(key: str) -> Iterator[str]:
    """Yield ever more encoded segments of one key; no two keys share the last form."""
    yield escape(key)
    yield "".join(_percent(each) if each.isupper() else escape(each) for each in key)
    yield "".join(_percent(each) if each.isalpha() else escape(each) for each in key)
    yield "".join(map(_percent, key))


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _segment_bytes(segment: str) -> Iterator[bytes]:
    plain, *encoded = segment.split("%")
    yield plain.encode("utf-8", "surrogatepass")
    for part in encoded:
        digits, rest = part[:2], part[2:]
        if len(digits) != 2 or not _HEXADECIMAL.issuperset(digits):
            raise ValueError(f"'%{digits}' is not a percent-encoded byte")
        yield bytes.fromhex(digits)
        yield rest.encode("utf-8", "surrogatepass")


def time_ordered_suffix() -> str:
    """Return fifteen characters that grow with time and are unique, for names that no other process chooses.

    The time in milliseconds and 25 random bits in Crockford's base 32 (https://www.crockford.com/base32.html).
    """
    moment = time.time_ns() // 1_000_000
    time_digits = "".join(_ALPHABET[moment >> shift & 31] for shift in range(45, -1, -5))
    return time_digits + "".join(secrets.choice(_ALPHABET) for _ in range(5))
