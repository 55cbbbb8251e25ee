"""Names that commands take: tables with their columns, charts, rules of imports, and the numbers in ids.

Completion by the shell loads this module, so it imports nothing of the library.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._store import EpisodeStore


class Table(StrEnum):
    """The tables of a store."""

    STEPS = "steps"
    EPISODES = "episodes"
    RUNS = "runs"
    TRANSITIONS = "transitions"


class Chart(StrEnum):
    """The charts of `plot`."""

    RETURNS = "returns"
    LENGTHS = "lengths"
    HISTOGRAM = "histogram"
    ACTIONS = "actions"
    VISITATION = "visitation"


class LastObservation(StrEnum):
    """Rules of `import` for a source that lacks the observation after the last action."""

    DROP = "drop"
    REPEAT = "repeat"
    MISSING = "missing"


class Cast(StrEnum):
    """The casts that `import` makes."""

    NO = "no"
    SAFE = "safe"
    SAME_KIND = "same_kind"


class OnChanged(StrEnum):
    """Rules of `import` for episodes that the store has with other values."""

    ERROR = "error"
    KEEP = "keep"
    REPLACE = "replace"


#: Length of the number at the end of an id.
DIGITS = 6


def columns_of(store: EpisodeStore, table: str) -> list[str]:
    """Return the columns that a table shows."""
    shown = table if table in ("runs", "episodes") else "steps"
    return store.context.snapshot.shown_schema(shown).names
