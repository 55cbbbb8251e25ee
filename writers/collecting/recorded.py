"""Results of a run, read from the episodes table, for a worker that died."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...store.layout import EPISODES, Layout
from ...store.segments.parquet import open_parquet
from ...store.tables.version import TableVersion

_COLUMNS = ["run_id", "length", "episode_return", "terminated", "truncated", "end_reason", "ended_at"]


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode of the table.

    Attributes:
        length, episode_return, terminated, truncated, end_reason: its columns.
    """

    length: int
    episode_return: Any
    terminated: bool
    truncated: bool
    end_reason: str

    @property
    def finished(self) -> bool:
        """True if the environment ended it."""
        return self.terminated or self.truncated


def recorded_episodes(layout: Layout, run_id: str) -> list[RecordedEpisode]:
    """Return the episodes of a run that readers can see now, in the order of their ends.

    Raises:
        CorruptStoreError: a file of the table is damaged.
    """
    rows: list[dict[str, Any]] = []
    for file in TableVersion(layout.table(EPISODES)).files():
        if file.may_hold_run(run_id):
            found = open_parquet(layout.table(EPISODES) / file.name).read(columns=_COLUMNS).to_pylist()
            rows += [row for row in found if row["run_id"] == run_id]
    rows.sort(key=lambda row: row["ended_at"])
    names = RecordedEpisode.__dataclass_fields__
    return [RecordedEpisode(**{name: row[name] for name in names}) for row in rows]
