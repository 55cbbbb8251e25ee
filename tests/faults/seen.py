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

Row = tuple[Any, ...]
_KEYS = ("episode_id", "agent_id", "t")

_SUMS = """
    select episode_id, count(*) - 1 as length, sum(reward) as episode_return, max(t) as last,
           bool_or(terminated) as terminated, bool_or(truncated) as truncated
    from steps group by 1 order by 1
"""
_EPISODES = """
    select episode_id, length, episode_return, length::bigint as last, terminated, truncated
    from episodes order by 1
"""

_TEAM_SUMS = """
    select episode_id, agent_id, count(*) - 1 as length, coalesce(sum(reward), 0) as agent_return,
           coalesce(bool_or(terminated), false), coalesce(bool_or(truncated), false)
    from steps group by 1, 2 order by 1, 2
"""
_TEAM_EPISODES = """
    select * from (
        select episode_id, unnest(agents) as agent, unnest(agent_lengths), unnest(agent_returns),
               unnest(agent_terminations), unnest(agent_truncations)
        from episodes
    ) order by 1, 2
"""


@dataclass(frozen=True)
class Seen:
    """One version of a store as its readers show it.

    Attributes:
        path: of the store.
        version: which one.
        store: pinned at that version.
        episodes: in their order.
        rows: episode id, in a multi-agent store the agent, and t of every row of `steps`.
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
            rows=store.steps.select(_keys(store)).collect().rows(),
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
            queries = (_TEAM_SUMS, _TEAM_EPISODES) if self.store.agent_groups else (_SUMS, _EPISODES)
            steps, episodes = (connection.execute(query).fetchall() for query in queries)
        finally:
            connection.close()
        if steps != episodes:
            yield f"steps say {_first(steps, episodes)}, episodes {_first(episodes, steps)}"

    def polars_disagrees(self) -> Iterator[str]:
        """Where the episodes table and the steps do not add up in Polars."""
        keys = _keys(self.store)[:-1]
        transitions = self.store.transitions.select(*keys, "reward").collect()
        sums = transitions.group_by(keys).agg(pl.len().alias("length"), pl.col("reward").sum())
        said = self.store.episodes.select("episode_id", "length", "episode_return").collect()
        if self.store.agent_groups:
            lists = ("agents", "agent_lengths", "agent_returns")
            said = self.store.episodes.select("episode_id", *lists).explode(*lists).collect()
            said = said.filter(pl.col("agent_lengths") > 0)
        counted, told = sorted(sums.rows()), sorted(said.rows())
        if counted != told:
            yield f"transitions say {_first(counted, told)}, episodes {_first(told, counted)}"


def _keys(store: el.EpisodeStore) -> list[str]:
    return [name for name in _KEYS if name != "agent_id" or store.agent_groups]


def rows_of(episode: el.Episode) -> set[Row]:
    """The rows that an episode must have."""
    if isinstance(episode, el.MultiAgentEpisode):
        lengths = episode.agent_lengths
        return {(episode.id, agent, t) for agent, length in lengths.items() for t in range(length + 1)}
    return {(episode.id, t) for t in range(episode.length + 1)}


def _first(rows: list[Any], others: list[Any]) -> list[Any]:
    return [row for row in rows if row not in others][:2]


def raw_rows(path: Path) -> list[Row]:
    """The keys of all rows of the newest steps table, as a plain reader of Delta Lake finds them."""
    table = DeltaTable(str(path / "steps"))
    rows: list[Row] = []
    for file in table.file_uris():
        there = pq.read_schema(file).names
        found = pq.read_table(file, columns=[name for name in _KEYS if name in there])
        rows += zip(*(column.to_pylist() for column in found.columns), strict=True)
    return rows
