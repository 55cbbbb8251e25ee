"""What a store shows, read once through every door: episodes, Polars, DuckDB, and Delta Lake alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from deltalake import DeltaTable

import episodelake as el

Row = tuple[str, int]

_SUMS = """
    select episode_id, count(*) - 1 as length, sum(reward) as episode_return, max(t) as last,
           bool_or(terminated) as terminated, bool_or(truncated) as truncated
    from steps group by 1 order by 1
"""
_EPISODES = """
    select episode_id, length, episode_return, length::bigint as last, terminated, truncated
    from episodes order by 1
"""


@dataclass(frozen=True)
class Seen:
    """One version of a store as its readers show it.

    Attributes:
        path: of the store.
        version: which one.
        store: pinned at that version.
        episodes: in their order.
        rows: episode id and t of every row of `steps`.
        runs: ids in the runs table.
        ended_runs: those of them that have an end.
        journal: names in the journal folder.
    """

    path: Path
    version: int
    store: el.EpisodeStore
    episodes: list[el.Episode]
    rows: list[Row]
    runs: list[str]
    ended_runs: set[str]
    journal: list[str]

    @staticmethod
    def at(path: Path, version: Any = None) -> Seen:
        """Read the newest version, or another."""
        store = el.open(path, version)
        runs = store.runs.select("run_id", "ended_at").collect()
        folder = path / "journal"
        return Seen(
            path=path,
            version=store.version,
            store=store,
            episodes=list(store),
            rows=store.steps.select("episode_id", "t").collect().rows(),
            runs=runs["run_id"].to_list(),
            ended_runs=set(runs.filter(pl.col("ended_at").is_not_null())["run_id"].to_list()),
            journal=sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else [],
        )

    @property
    def ids(self) -> list[str]:
        """Ids of the episodes."""
        return [episode.id for episode in self.episodes]

    def duckdb_disagrees(self) -> Iterator[str]:
        """Where the episodes table and the steps do not add up in SQL."""
        connection = self.store.connect()
        try:
            steps, episodes = (connection.execute(query).fetchall() for query in (_SUMS, _EPISODES))
        finally:
            connection.close()
        if steps != episodes:
            yield f"steps say {_first(steps, episodes)}, episodes {_first(episodes, steps)}"

    def polars_disagrees(self) -> Iterator[str]:
        """Where the episodes table and the steps do not add up in Polars."""
        transitions = self.store.transitions.select("episode_id", "reward").collect()
        sums = transitions.group_by("episode_id").agg(pl.len().alias("length"), pl.col("reward").sum())
        said = self.store.episodes.select("episode_id", "length", "episode_return").collect()
        counted, told = sorted(sums.rows()), sorted(said.rows())
        if counted != told:
            yield f"transitions say {_first(counted, told)}, episodes {_first(told, counted)}"


def _first(rows: list[Any], others: list[Any]) -> list[Any]:
    return [row for row in rows if row not in others][:2]


def raw_rows(path: Path) -> list[Row]:
    """Episode id and t of all rows of the newest steps table, as a plain reader of Delta Lake finds them."""
    table = DeltaTable(str(path / "steps"))
    rows: list[Row] = []
    for file in table.file_uris():
        found = pq.read_table(file, columns=["episode_id", "t"])
        rows += zip(found.column("episode_id").to_pylist(), found.column("t").to_pylist(), strict=True)
    return rows
