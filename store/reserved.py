"""Names that steps, batches and views have already, which no column of a user's own may take.

The list is generated: from the columns of `steps`, from the prefixes of the column groups, from the keys that
loaders put into batches, and from what `transitions_with_next` and `store.transitions` add. The modules that
make these keys take their names from here.
"""

from __future__ import annotations

OBSERVATION = "observation"
ACTION = "action"
REWARD = "reward"
TERMINATED = "terminated"
TRUNCATED = "truncated"
FLAGS = (TERMINATED, TRUNCATED)
EPISODE_ID = "episode_id"
AGENT_ID = "agent_id"
STEP = "t"

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

#: Keys of `policy` that `collect` writes. Tuples and lists in them are dicts by position: "0", "1", ...
RAW_ACTION = "raw_action"
STATE = "state"
POSITIONAL = (STATE, RAW_ACTION)

GROUPS = ("info", "metadata", "policy")
#: What a transition also has of the row after it: the value of `next_info.cost` is `info.cost` one row on.
_FOLLOWED = (OBSERVATION, "info", "policy")

RESERVED = frozenset(
    {
        *(OBSERVATION, ACTION, REWARD, *FLAGS, EPISODE_ID, AGENT_ID, STEP),
        *BATCH_KEYS,
        *GROUPS,
        *(f"next_{root}" for root in _FOLLOWED),
    }
)


def next_name(column: str) -> str | None:
    """Return the name under which a transition has the value of the next row; None for other columns.

    >>> next_name("observation"), next_name("info.cost"), next_name("speaker.observation.image")
    ('next_observation', 'next_info.cost', 'speaker.next_observation.image')
    >>> next_name("reward"), next_name("action.observation")
    (None, None)
    """
    root, *rest = column.split(".")
    if root in (OBSERVATION, OBSERVATION_PRESENT) or (root in _FOLLOWED and rest):
        return f"next_{column}"
    return ".".join([root, NEXT_OBSERVATION, *rest[1:]]) if is_observation(column) else None


def next_source(name: str) -> str | None:
    """Return the column whose next row a name stands for: the inverse of `next_name`; None for other names.

    >>> next_source("next_info.cost"), next_source("next_observation"), next_source("info.next_observation")
    ('info.cost', 'observation', None)
    """
    column = name.replace("next_", "", 1)
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
