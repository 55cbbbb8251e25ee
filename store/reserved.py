"""The names of columns: those that steps, batches and views have already, and what a new one may be called.

One namespace holds what is recorded, annotated, mapped by an import, computed of the next row and put into
batches by loaders. The reserved names are generated: from the columns of `steps`, from the prefixes of the
column groups, from the keys that loaders put into batches, and from what `transitions_with_next` and
`store.transitions` add. The modules that make these keys take their names from here.
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import InvalidArgumentError

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
    found = base
    while _why_not(found, taken) is not None:
        number += 1
        found = f"{base}_{number}"
    return found


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
    """Return the column whose next row a name stands for: the inverse of `next_name`; None for other names.

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
