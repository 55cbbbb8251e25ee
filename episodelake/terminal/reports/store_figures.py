"""Figures of a store for `episodelake info` and `diff`, without reading a step.

They come from a few columns of the table of episodes, and sizes from the footers of the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import polars as pl

from ... import EpisodeStore
from ...errors import CorruptStoreError
from ...plugin import Snapshot, collected
from ...plugin.files import Place
from ...readers.sql.sources import type_name
from ...store.delta.log import TableFile
from ...store.parquet.files import read_footer

#: The most objectives of a reward that are reported.
OBJECTIVES = 8
_ASKED = ("run_id", "length", "episode_return", "end_reason", "row_count")
_ASKED += ("agents", "agent_groups", "agent_lengths", "agent_returns")


@dataclass(frozen=True)
class StoreFigures:
    """Figures of the episodes of a store.

    Attributes:
        runs: a row per run, the newest first.
        returns: lowest, mean and highest of each objective; empty without episodes.
        lengths: the same of lengths; None without episodes.
        end_reasons: how many episodes ended so, the most frequent first.
        agents: a row per agent; empty where there is a single one.
    """

    runs: list[dict[str, Any]]
    returns: list[dict[str, Any]]
    lengths: dict[str, Any] | None
    end_reasons: dict[str, int]
    agents: list[dict[str, Any]]


def store_figures(store: EpisodeStore) -> StoreFigures:
    """Read the columns and compute the figures.

    Raises:
        CorruptStoreError: a file of episodes or runs is damaged; the message names it.
    """
    snapshot = store.selection().snapshot
    names = [name for name in _ASKED if name in snapshot.episodes_schema.names]
    episodes = collected(store.episodes.select(names))
    reasons = episodes["end_reason"].value_counts().sort("count", "end_reason", descending=[True, False])
    return StoreFigures(
        runs=_runs(store, episodes),
        returns=_returns(store, episodes) if episodes.height else [],
        lengths=_extremes(episodes["length"]) if episodes.height else None,
        end_reasons=dict(reasons.rows()),
        agents=_agents(store, episodes) if store.agent_groups else [],
    )


def _runs(store: EpisodeStore, episodes: pl.DataFrame) -> list[dict[str, Any]]:
    agents = bool(store.agent_groups)
    transitions = pl.col("row_count") - pl.col("agents").list.len() if agents else pl.col("length")
    asked = [
        pl.len().cast(pl.Int64).alias("episodes"),
        transitions.sum().cast(pl.Int64).alias("transitions"),
        pl.col("length").mean().alias("mean_length"),
    ]
    if not store.reward_shape:
        # Of several objectives there is no single mean.
        asked.append(pl.col("episode_return").fill_nan(None).mean().alias("mean_return"))
    by_run = episodes.group_by("run_id").agg(asked)
    runs = collected(store.runs.select("run_id", "name", "started_at", "ended_at"))
    figures = runs.join(by_run, on="run_id", how="left")
    figures = figures.with_columns(pl.col("episodes", "transitions").fill_null(0))
    return figures.sort("started_at", "run_id", descending=True, nulls_last=True).to_dicts()


def _returns(store: EpisodeStore, episodes: pl.DataFrame) -> list[dict[str, Any]]:
    """Lowest, mean and highest return, of each objective by itself where there are several."""
    returns = episodes["episode_return"]
    if not store.reward_shape:
        return [{"objective": None, **_spread(returns)}]
    count = min(store.reward_shape[0], OBJECTIVES)
    return [{"objective": index, **_spread(returns.list.get(index))} for index in range(count)]


def _extremes(values: pl.Series) -> dict[str, Any]:
    return {"lowest": values.min(), "mean": values.mean(), "highest": values.max()}


def _spread(values: pl.Series) -> dict[str, Any]:
    """Return lowest, mean and highest without NaN, which is counted, as in `stats` and `plot`."""
    numbers = values.drop_nans()
    return {**_extremes(numbers), "nan": len(values) - len(numbers)}


def _agents(store: EpisodeStore, episodes: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the figures of each agent, from the table of episodes."""
    columns = {"agents": "agent", "agent_groups": "group", "agent_lengths": "transitions"}
    asked = [pl.len().cast(pl.Int64).alias("episodes"), pl.col("transitions").sum().cast(pl.Int64)]
    if not store.reward_shape:
        columns["agent_returns"] = "total"
        asked.append(pl.col("total").fill_nan(None).mean().alias("mean_return"))
    rows = episodes.select(pl.col(old).alias(new) for old, new in columns.items()).explode(*columns.values())
    agents = rows.drop_nulls("agent").group_by("agent").agg(pl.col("group").first(), *asked)
    return agents.sort("episodes", "agent", descending=[True, False]).to_dicts()


#: The most files of a table that are measured; a sample of this many stands for the others.
MEASURED_FILES = 128
_READERS = 8


@dataclass(frozen=True)
class TableSize:
    """The columns of a table.

    Attributes:
        columns: in their order: the table, the column, its type as DuckDB names it, and its compressed bytes
            in all files that this version shows.
        exact: whether every file was measured.
        damaged: the errors of files whose footer cannot be read.
    """

    columns: list[dict[str, Any]]
    exact: bool
    damaged: tuple[str, ...]


def table_size(snapshot: Snapshot, table: str) -> TableSize:
    """Measure the columns of `steps` (annotations included) or of `episodes`."""
    files = _step_files(snapshot) if table == "steps" else snapshot.episode_files
    folder = snapshot.layout.table(table)
    measured = _sampled(files)
    sizes, damaged = _sizes([folder / file.name for file in measured])
    share = sum(file.size for file in measured)
    scale = sum(file.size for file in files) / share if len(measured) < len(files) and share else 1.0
    if table == "steps":
        sizes |= _annotation_sizes(snapshot)
    columns = [
        {
            "table": table,
            "column": field.name,
            "type": type_name(field.type),
            "bytes": round(sizes.get(field.name, 0) * scale),
        }
        for field in snapshot.shown_schema(table)
    ]
    return TableSize(columns, len(measured) == len(files), damaged)


def _step_files(snapshot: Snapshot) -> Sequence[TableFile]:
    """Return the files of steps; of the newest version as its log lists them, which asks no file of
    episodes.
    """
    return snapshot.listed_steps if snapshot.newest else snapshot.step_files


def _sampled(files: Sequence[TableFile]) -> list[TableFile]:
    if len(files) <= MEASURED_FILES:
        return list(files)
    return [files[index * len(files) // MEASURED_FILES] for index in range(MEASURED_FILES)]


def _sizes(places: Sequence[Place]) -> tuple[Counter[str], tuple[str, ...]]:
    total: Counter[str] = Counter()
    damaged = []
    with ThreadPoolExecutor(_READERS) as readers:
        for sizes in readers.map(_file_sizes, places):
            if isinstance(sizes, str):
                damaged.append(sizes)
            else:
                total.update(sizes)
    return total, tuple(damaged)


def _file_sizes(place: Place) -> Counter[str] | str:
    """Return the bytes of each top-level column of one file, or its error."""
    try:
        footer = read_footer(place)
    except CorruptStoreError as error:
        return str(error)
    # A list's values stand under `name.list.element`; names themselves may have dots.
    names = footer.schema.to_arrow_schema().names
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    owners = [_owner(path, names) for path in paths]
    sizes: Counter[str] = Counter()
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for index, owner in enumerate(owners):
            sizes[owner] += row_group.column(index).total_compressed_size
    return sizes


def _owner(path: str, names: Sequence[str]) -> str:
    """Return the column that a leaf of the file belongs to: the longest name that its path begins with."""
    fitting = [name for name in names if path == name or path.startswith(f"{name}.")]
    return max(fitting, key=len, default=path)


def _annotation_sizes(snapshot: Snapshot) -> Counter[str]:
    sizes: Counter[str] = Counter()
    if not snapshot.annotation_files.annotations:
        return sizes
    segments = snapshot.pointers.segments
    for name in snapshot.annotation_files.annotations:
        places = [snapshot.annotation_files.find(name, segment) for segment in segments]
        sizes[name] = sum(place.size() for place in places if place is not None)
    return sizes
