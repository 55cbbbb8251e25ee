"""Names that commands take: tables with their columns, charts, and the numbers of episodes in ids.

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


#: Length of the number at the end of an id.
DIGITS = 6


def columns_of(store: EpisodeStore, table: str) -> list[str]:
    """Return the columns that a table shows."""
    shown = table if table in ("runs", "episodes") else "steps"
    return store.context.snapshot.shown_schema(shown).names
