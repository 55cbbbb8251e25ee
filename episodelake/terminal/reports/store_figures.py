"""Figures of a store for `episodelake info` and `diff`.

They come from a few columns of the table of episodes; those of rollouts alone read steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from ... import EpisodeStore, EpisodeView
from ...errors import CorruptStoreError
from ...plugin import collected, quote

#: The most objectives of a reward that are reported.
OBJECTIVES = 8
_ASKED = ("run_id", "length", "episode_return", "end_reason")
_OF_AGENTS = ("row_count", "agents", "agent_groups", "agent_lengths", "agent_returns")
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
    """Read the columns and compute the figures.

    Raises:
        CorruptStoreError: a file of episodes or runs is damaged; the message names it.
    """
    snapshot = store.selection().snapshot
    asked = (*_ASKED, *_OF_AGENTS) if store.agent_groups else _ASKED
    names = [name for name in asked if name in snapshot.episodes_schema.names]
    episodes = collected(store.episodes.select(names))
    reasons = episodes["end_reason"].value_counts().sort("count", "end_reason", descending=[True, False])
    return StoreFigures(
        runs=_runs(store, episodes),
        returns=_returns(store, episodes) if episodes.height else [],
        lengths=_extremes(episodes["length"]) if episodes.height else None,
        end_reasons=dict(reasons.rows()),
        agents=_agents(store, episodes) if store.agent_groups else [],
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
