"""Figures of a store for `episodelake info` and `diff`.

They come from the log of episodes, and from a few columns of files that it has no figures of; those of
rollouts alone read steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from ... import EpisodeStore, EpisodeView
from ...errors import CorruptStoreError
from ...plugin import collected, quote

_REWARDS = "rewards."
_TOKENS = """
SELECT count(*) AS messages, coalesce(sum(len(tokens)), 0)::BIGINT AS tokens, coalesce(sum(CASE
    WHEN token_mask IS NOT NULL THEN len(list_filter(token_mask, lambda each: each))
    WHEN sampled THEN len(tokens) END), 0)::BIGINT AS sampled_tokens
FROM messages"""


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
    """Return the figures; reads the files of episodes that the log has none of.

    Raises:
        CorruptStoreError: a file of episodes or runs is damaged; the message names it.
    """
    snapshot = store.selection().snapshot
    figures, others = snapshot.listed_figures()
    if len(others):
        names = figures.columns(snapshot.schema)
        rows = collected(store[others].episodes.select(names)).to_arrow()
        kinds = pa.schema([snapshot.episodes_schema.field(name) for name in names])
        figures.add(figures.of(rows.cast(kinds), snapshot.schema))
    spreads = [
        {"lowest": each.lowest, "mean": each.mean, "highest": each.highest}
        for each in (figures.lengths, *figures.returns)
    ]
    returns = [
        {"objective": index if store.reward_shape else None, **spreads[1 + index], "nan": each.nan}
        for index, each in enumerate(figures.returns)
    ]
    reasons = sorted(figures.end_reasons.items(), key=lambda item: (-item[1], item[0] or ""))
    return StoreFigures(
        runs=_runs(store, figures.runs),
        returns=returns,
        lengths=spreads[0] if len(store) else None,
        end_reasons=dict(reasons),
        agents=_agents(store, figures.agents, figures.agent_groups),
    )


def is_hidden(run_id: str, name: str | None) -> bool:
    """Return whether the id of a run lacks its name: ids have ASCII letters and digits only."""
    return name is not None and not name.isascii() and not run_id.startswith(name)


def has_hidden_names(store: EpisodeStore) -> bool:
    """Return whether the id of any run lacks its name."""
    return any(is_hidden(*row) for row in collected(store.runs.select("run_id", "name")).iter_rows())


def run_labels(store: EpisodeView) -> dict[str, str]:
    """Return the names of runs by id, for people: of those that share a name, and those without, the id."""
    runs = collected(store.runs.select("run_id", "name"))
    unique = runs.filter(pl.col("name").is_not_null() & pl.col("name").is_unique())
    return {**dict(zip(runs["run_id"], runs["run_id"], strict=True)), **dict(unique.iter_rows())}


def _runs(store: EpisodeStore, figures: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    runs = collected(store.runs.select("run_id", "name", "started_at", "ended_at"))
    rows = runs.sort("started_at", "run_id", descending=True, nulls_last=True).to_dicts()
    for row in rows:
        episodes, transitions, length, *returns = figures.get(row["run_id"], [0] * 5)
        row |= {"episodes": episodes, "transitions": transitions, "mean_length": _mean(episodes, length)}
        row |= _mean_return(store, *returns)
    return rows


def _agents(
    store: EpisodeStore, figures: Mapping[str, Sequence[Any]], groups: Mapping[str, str]
) -> list[dict[str, Any]]:
    rows = [
        {"agent": agent, "group": groups[agent], "episodes": episodes, "transitions": transitions}
        | _mean_return(store, *returns)
        for agent, (episodes, transitions, *returns) in figures.items()
    ]
    return sorted(rows, key=lambda row: (-row["episodes"], row["agent"]))


def _mean_return(store: EpisodeStore, count: int, total: float) -> dict[str, float | None]:
    """Return the entry with the mean; of several objectives there is no single one."""
    return {} if store.reward_shape else {"mean_return": _mean(count, total)}


def _mean(count: int, total: float) -> float | None:
    return total / count if count else None


def rollout_figures(store: EpisodeStore) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the figures of a store of rollouts for `info`, and the errors of damaged files.

    Returns:
        The declaration; groups, messages, tokens and sampled_tokens (counts, the last three None where a file
        of steps is damaged); policy_versions, rows of policy_version, rollouts, groups, mean_reward and the
        mean of each part of the reward, oldest first. None for a store of other episodes.
    """
    declared = store.handle.manifest.rollouts
    if declared is None:
        return None, []
    columns = store.query("SELECT * FROM rollouts LIMIT 0").schema
    parts = [name for name, kind in columns.items() if name.startswith(_REWARDS) and kind.is_numeric()]
    policies = store.query(
        'SELECT policy_version, count(*) AS rollouts, count(DISTINCT "group") AS "groups", '
        f"{', '.join(f'avg({quote(name)}) AS {quote(name)}' for name in ('reward', *parts))} "
        "FROM rollouts GROUP BY 1 HAVING policy_version IS NOT NULL ORDER BY 1"
    ).rename({"reward": "mean_reward"})
    groups = store.query('SELECT count(DISTINCT "group") FROM rollouts').item()
    figures = {**declared, "groups": groups, "policy_versions": policies.to_dicts()}
    try:
        return figures | store.query(_TOKENS).to_dicts()[0], []
    except CorruptStoreError as error:
        return figures | dict.fromkeys(("messages", "tokens", "sampled_tokens")), [str(error)]
