"""Names of columns: escaping, reserved names, and rules for new ones.

A column name is a path of segments joined by dots: `observation.image`, `info.x_position`. A segment is
a key in which the dot, the characters that Delta Lake forbids and every ASCII control character are
percent-encoded (as `urllib.parse.quote` does, with other reserved characters). The percent sign itself is
encoded too, so that every segment has exactly one key. Everything else, unicode included, stays as it is.

The schemas, the space codecs and the info columns take their names from here; this module
imports only the errors.

One namespace holds what is recorded, annotated, mapped by an import, computed of the next row and put into
batches by loaders. The reserved names are generated: from the columns of `steps`, from the prefixes of the
column groups, from the keys that loaders put into batches, and from what `transitions_with_next` and
`store.transitions` add.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from .errors import InvalidArgumentError

#: The name of a run that got none.
DEFAULT_RUN = "run"
_EMPTY = "%"
_RESERVED = frozenset("%. ,;{}()=") | {chr(code) for code in range(32)} | {chr(127)}
_RESERVED_TABLE = {ord(character): f"%{ord(character):02X}" for character in _RESERVED}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")

OBSERVATION = "observation"
ACTION = "action"
REWARD = "reward"
TERMINATED = "terminated"
TRUNCATED = "truncated"
FLAGS = (TERMINATED, TRUNCATED)
EPISODE_ID = "episode_id"
AGENT_ID = "agent_id"
STEP = "t"
#: The environment's step, in stores of several agents.
ENV_STEP = "env_step"
#: Metadata of imported episodes: text that names one in its source, and the digest of its values.
SOURCE_KEY, SOURCE_DIGEST = "source_key", "source_digest"
#: Keys of batches beside the columns.
AGENT_MASK = "agent_mask"
DISCOUNT = "discount"
END_REASON = "end_reason"
EPISODE = "episode"
LENGTH = "length"
MASK = "mask"
NEXT_OBSERVATION = f"next_{OBSERVATION}"
SPAN = "span"
#: True where an observation was recorded: all but the last one of some episodes.
OBSERVATION_PRESENT = f"{OBSERVATION}_present"
BATCH_KEYS = (
    *(AGENT_MASK, DISCOUNT, END_REASON, EPISODE, LENGTH, MASK, NEXT_OBSERVATION, SPAN),
    *(OBSERVATION_PRESENT, f"next_{OBSERVATION_PRESENT}"),
)
#: Keys of batches that are drawn by priority, and of mixed ones. A store may have columns of these names;
#: where both would stand in a batch, that is an error.
UNIT, WEIGHT, SOURCE = "unit", "weight", "source"
#: Keys of `policy` that `collect` writes. Tuples and lists in them are dicts by position: "0", "1", ...
RAW_ACTION = "raw_action"
STATE = "state"
POSITIONAL = (STATE, RAW_ACTION)
GROUPS = ("info", "metadata", "policy")
#: What a transition also has of the row after it: the value of `next_info.cost` is `info.cost` one row on.
_FOLLOWED = (OBSERVATION, "info", "policy")
_NEXT = "next_"
RESERVED = frozenset(
    {
        *(OBSERVATION, ACTION, REWARD, *FLAGS, EPISODE_ID, AGENT_ID, STEP),
        *BATCH_KEYS,
        *GROUPS,
        *(f"next_{root}" for root in _FOLLOWED),
    }
)
#: Columns of steps that are neither reserved nor a user's own.
_INTERNAL = frozenset({ENV_STEP, *(f"{group}_json" for group in GROUPS)})


def escape(key: str) -> str:
    """Return the column-name segment of one key; the empty key is a lone percent sign.

    >>> escape("a.b"), escape(""), escape("größe")
    ('a%2Eb', '%', 'größe')
    """
    return key.translate(_RESERVED_TABLE) if key else _EMPTY


@lru_cache(4096)
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
            f"column name segment {segment!r} is not percent-encoded UTF-8: {error}. Expected each '%' to "
            "be followed by two hexadecimal digits.",
            hint="Make segments with escape().",
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


def check_name(
    name: object, taken: Mapping[str, str], kind: str = "a step column", *, reserved: bool = True
) -> None:
    """Refuse a name for a new column of steps that means something else already.

    Args:
        name: the name.
        taken: what has a name already, by the name in small letters.
        kind: what is to have the name.
        reserved: whether it is to stand beside the columns of steps and batches, so that their names are
            taken too.

    Raises:
        InvalidArgumentError: it is no text, or is taken; the message has the nearest free name.
    """
    why = _why_not(name, taken, reserved=reserved)
    if why is not None:
        raise InvalidArgumentError(
            f"{name!r:.200} cannot be the name of {kind}: {why}. Choose another one"
            f"{f', such as {free_name(name, taken)!r}' if isinstance(name, str) else ''}."
        )


def _why_not(name: object, taken: Mapping[str, str], *, reserved: bool = True) -> str | None:
    """Return why a column cannot have a name; None if it can."""
    if type(name) is not str or not name:
        return "it is no text"
    folded = name.casefold()
    if folded in taken:
        return f"{taken[folded]} has it"
    if reserved and folded in RESERVED:
        return "steps or batches have it"
    if name.startswith("_"):
        return "names that begin with an underscore are Episodelake's own"
    if reserved and folded.startswith(_NEXT):
        return "transitions have the next row's values under such names"
    return None


def free_name(name: str, taken: Mapping[str, str]) -> str:
    """Return the nearest name that a new column may have.

    >>> free_name("reward", {}), free_name("next_goal", {}), free_name("_goal", {"goal": "an annotation"})
    ('reward_2', 'goal_next', 'goal_2')
    """
    base = name.lstrip("_")
    if base.casefold().startswith(_NEXT):
        base = f"{base[len(_NEXT) :].lstrip('_')}_next".lstrip("_")
    base = base or "column"
    number = 1
    free = base
    while _why_not(free, taken) is not None:
        number += 1
        free = f"{base}_{number}"
    return free


def next_name(column: str) -> str | None:
    """Return the name under which a transition has the value of the next row; None for other columns.

    >>> next_name("observation"), next_name("info.cost"), next_name("speaker.observation.image")
    ('next_observation', 'next_info.cost', 'speaker.next_observation.image')
    >>> next_name("goal.x"), next_name("reward"), next_name("action.observation"), next_name("speaker.action")
    ('next_goal.x', None, None, None)
    """
    root, *rest = column.split(".")
    if root in (OBSERVATION, OBSERVATION_PRESENT) or (root in _FOLLOWED and rest) or _is_own(root, rest):
        return f"{_NEXT}{column}"
    return ".".join([root, NEXT_OBSERVATION, *rest[1:]]) if is_observation(column) else None


def _is_own(root: str, rest: list[str]) -> bool:
    """Return whether a column is a user's own, recorded or annotated; those of groups of agents are not."""
    known = root in RESERVED or root in _INTERNAL or root.startswith(("_", _NEXT))
    return not known and rest[:1] not in ([OBSERVATION], [ACTION], [NEXT_OBSERVATION])


def next_source(name: str) -> str | None:
    """Return the column that a `next_` name refers to: the inverse of `next_name`; None for other names.

    >>> next_source("next_info.cost"), next_source("next_observation"), next_source("info.next_observation")
    ('info.cost', 'observation', None)
    """
    column = name.replace(_NEXT, "", 1)
    return column if next_name(column) == name else None


def source_of(key: str) -> tuple[str, int]:
    """Return the column that a key of a batch reads, and how many rows after the transition's own.

    >>> source_of("reward"), source_of("next_observation"), source_of("next_info.cost")
    (('reward', 0), ('observation', 1), ('info.cost', 1))
    """
    following = next_source(key)
    return (key, 0) if following is None else (following, 1)


def is_observation(key: str) -> bool:
    """Return whether a key has one value more than an episode has transitions: observations, or parts of
    them, also of a group of agents.

    >>> is_observation("observation.image"), is_observation("speaker.observation"), is_observation("reward")
    (True, True, False)
    """
    root, *rest = key.split(".")
    return root in (OBSERVATION, OBSERVATION_PRESENT) or (
        rest[:1] == [OBSERVATION] and root not in (ACTION, *GROUPS)
    )
