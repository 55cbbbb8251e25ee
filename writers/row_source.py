"""Row sources: where the rows of a run wait until its session brings them to the journal.

A recorder or writer fills a source; the session asks it for what is pending. There are two kinds: single
rows (`step_rows`, with `agent_rows` for several agents and `whole_rows` for whole episodes) and blocks of
rows from many environments (`block_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from ..store.errors import InvalidArgumentError
from ..store.handle import StoreHandle


@dataclass(frozen=True)
class JournalRows:
    """Rows and events on their way to the journal, written again unchanged until they are known to be there.

    Attributes:
        records: batches, each with the events that go beside it; at least one.
        numbers: the episodes of the rows.
        done: called once all records are written; may be called again.
    """

    records: Sequence[tuple[pa.RecordBatch, list[dict[str, Any]]]]
    numbers: set[int]
    done: Callable[[], None]


class RowSource(Protocol):
    """The rows of one run that are not in the journal yet."""

    @property
    def full(self) -> bool:
        """Whether rows must go to the journal soon, whatever `durability` says."""
        ...

    @property
    def ended(self) -> bool:
        """Whether episodes have ended that the session counts as finished once their rows are written."""
        ...

    @property
    def open(self) -> Collection[int]:
        """The numbers of the episodes that have not ended, as far as the source knows them."""
        ...

    def pending(self, before: float) -> Iterator[JournalRows]:
        """Yield what is complete; the session writes each before it asks for the next, and holds its lock.

        Args:
            before: the rows of whole episodes stay in memory unless they came before this moment of
                `time.monotonic`.
        """
        ...

    def end_all(self) -> None:
        """End the episodes that are open, since the session closes."""
        ...


def check_agents(store: StoreHandle, *, many: bool) -> None:
    """Refuse a store for several agents to a source for one, and the other way round.

    Raises:
        InvalidArgumentError: the store is of the other kind.
    """
    if many and not store.schema.groups:
        raise InvalidArgumentError(
            f"{store.layout.root} is a store for one agent; the environment has several. Create a store for "
            "it with episodelake.create(path, env)."
        )
    if store.schema.groups and not many:
        agents = ", ".join(agent for group in store.schema.groups for agent in group.agents)
        raise InvalidArgumentError(
            f"{store.layout.root} is a store for several agents ({agents}). Record a PettingZoo environment "
            "into it with EpisodeStore.record, or write with EpisodeStore.team_writer."
        )
