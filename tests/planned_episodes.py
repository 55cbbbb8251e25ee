"""Episodes that follow from their seed, and the checks of what a store shows of them.

Whoever meets an episode with a seed knows what must be in it (`plan`), so that processes that share nothing
but the store can check each other. The rewards are whole numbers: their sum is the same in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
from gymnasium.spaces import Box

import episodelake as el

OBSERVATIONS = Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = Box(-np.inf, np.inf, (2,), np.float32)
#: Each writer has this many seeds, from its index times this number on.
SEEDS = 100_000
#: How the names of runs begin that recorders make.
RECORDER = "recorder-"
#: The episodes that the maintenance deletes, as a condition over the episodes table.
DOOMED = "seed % 7 = 3"


@dataclass(frozen=True)
class Plan:
    """What an episode holds.

    Attributes:
        observations, actions, rewards: shapes (T+1, 3), (T, 2) and (T,).
        infos: one per observation.
        terminated: how it ends; otherwise it is truncated.
        metadata: of the episode.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    infos: tuple[dict[str, Any], ...]
    terminated: bool
    metadata: dict[str, Any]

    @property
    def length(self) -> int:
        """Transitions."""
        return len(self.rewards)

    def flags(self, t: int) -> tuple[bool, bool]:
        """Terminated and truncated after transition `t`."""
        last = t + 1 == self.length
        return last and self.terminated, last and not self.terminated


@cache
def plan(seed: int) -> Plan:
    """The episode of a seed. Those of every third writer are long enough to bypass the row buffer."""
    index, number = divmod(seed, SEEDS)
    random = np.random.default_rng(seed)
    length = int(random.integers(64, 90) if index % 3 == 2 else random.integers(1, 25))
    # New columns turn up all the time, and several writers bring the same ones.
    key = f"{index % 4}_{number // 50}"
    return Plan(
        observations=random.standard_normal((length + 1, 3)).astype(np.float32),
        actions=random.standard_normal((length, 2)).astype(np.float32),
        rewards=random.integers(-5, 6, length).astype(np.float64),
        infos=tuple({"t": t, f"late_{key}": float(seed)} for t in range(length + 1)),
        terminated=bool(random.integers(2)),
        metadata={"writer": index, f"note_{key}": str(seed)},
    )


def doomed(seed: int) -> bool:
    """Whether the maintenance deletes the episode."""
    return seed % 7 == 3


def planned_metadata(episode: el.types.EpisodeSummary) -> dict[str, Any]:
    """The metadata of an episode, for a recorder's callback."""
    return plan(episode.seed or 0).metadata


class PlannedEnv(gym.Env):
    """Plays the planned episode of the seed that it is reset with, whatever it is told to do."""

    def __init__(self) -> None:
        self.observation_space = OBSERVATIONS
        self.action_space = ACTIONS

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start the episode of the seed."""
        assert seed is not None
        super().reset(seed=seed)
        self.plan, self.t = plan(seed), 0
        return self.plan.observations[0], self.plan.infos[0]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Go on as planned."""
        reward, flags = self.plan.rewards[self.t], self.plan.flags(self.t)
        self.t += 1
        return self.plan.observations[self.t], reward, *flags, self.plan.infos[self.t]


def episode_is_as_planned(episode: el.Episode) -> None:
    """An episode has the planned data: all of it, or, if it was cut short, its true beginning.

    A recorder says the metadata at the end of an episode, so a kill may come before that.
    """
    assert episode.seed is not None
    planned, length = plan(episode.seed), episode.length
    whole = length == planned.length
    reason = "terminated" if planned.terminated else "truncated"
    assert episode.end_reason in ([reason] if whole else ["interrupted", "cut"]), episode.id
    assert (episode.terminated, episode.truncated) == planned.flags(length - 1), episode.id
    assert np.array_equal(episode.observations, planned.observations[: length + 1]), episode.id
    assert np.array_equal(episode.actions, planned.actions[:length]), episode.id
    assert np.array_equal(episode.rewards, planned.rewards[:length]), episode.id
    assert episode.episode_return == planned.rewards[:length].sum(), episode.id
    assert episode.infos == list(planned.infos[: length + 1]), episode.id
    without = [{}] if episode.run_id.startswith(RECORDER) else []
    assert episode.metadata in [planned.metadata, *without], episode.id


def no_episode_is_there_twice(view: el.EpisodeView) -> None:
    """Neither an id nor a seed, which no two episodes share, occurs twice."""
    episodes = view.episodes.select("episode_id", "seed").collect()
    assert episodes.height == len(view)
    for column in ("episode_id", "seed"):
        assert episodes[column].null_count() == 0
        assert episodes[column].n_unique() == episodes.height, column


WRONG = """
WITH found AS (
    SELECT episode_id, count(*) AS height, count(reward) AS length, sum(reward) AS total,
        min(t) AS first, max(t) AS last, count(DISTINCT t) AS moments,
        coalesce(bool_or(terminated), false) AS terminated, coalesce(bool_or(truncated), false) AS truncated
    FROM steps GROUP BY ALL
)
SELECT coalesce(episodes.episode_id, found.episode_id)
FROM episodes FULL JOIN found USING (episode_id)
WHERE (episodes.length + 1, episodes.length, episodes.episode_return, 0, episodes.length, episodes.length + 1,
        episodes.terminated, episodes.truncated)
    IS DISTINCT FROM (height, found.length, total, first, last, moments, found.terminated, found.truncated)
"""


def duckdb_sees_exactly_the_rows(view: el.EpisodeView) -> None:
    """In SQL each episode has T+1 rows, t = 0..T, and its return, length and flags follow from them."""
    assert view.sql(WRONG).fetchall() == []
    sums = "SELECT (SELECT coalesce(sum(length), 0) FROM episodes), (SELECT count(*) FROM transitions)"
    ((promised, there),) = view.sql(sums).fetchall()
    assert promised == there


def polars_sees_exactly_the_rows(view: el.EpisodeView) -> None:
    """In Polars each episode has T+1 rows, t = 0..T, and its return and length follow from them."""
    t, reward = pl.col("t"), pl.col("reward")
    found = view.steps.group_by("episode_id").agg(
        pl.len().alias("row_count"), reward.count().alias("steps"), reward.sum().alias("total"),
        t.sort().alias("moments"),
    )  # fmt: skip
    joined = view.episodes.join(found, on="episode_id", how="full", coalesce=True)
    joined = joined.select("episode_id", "length", "episode_return", "row_count", "steps", "total", "moments")
    for name, length, episode_return, rows, steps, total, moments in joined.collect().iter_rows():
        assert (length, length, episode_return) == (rows - 1, steps, total), name
        assert moments == list(range(length + 1)), name
    assert view.transitions.select(pl.len()).collect().item() == (
        view.episodes.select(pl.col("length").sum()).collect().item()
    )


def snapshot_is_consistent(view: el.EpisodeView, episodes: int | None = None) -> None:
    """Every episode that a snapshot shows is there once, with exactly its rows, however one reads it.

    Args:
        view: the snapshot.
        episodes: compare the data of so many episodes only, which are drawn at random; None for all.
    """
    no_episode_is_there_twice(view)
    duckdb_sees_exactly_the_rows(view)
    polars_sees_exactly_the_rows(view)
    for episode in view if episodes is None else view.sample_episodes(min(episodes, len(view))):
        episode_is_as_planned(episode)
