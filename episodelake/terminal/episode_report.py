"""One episode: found by id or position, or else the nearest ids; and as the object of `--json`."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import polars as pl

from .._store import EpisodeStore
from ..readers.agents import MultiAgentEpisode
from ..readers.episode import Episode
from ..store.errors import EpisodeNotFoundError
from .exploring import Explored
from .reports import EpisodeLook

#: Ids that are compared with one that is not there; in a larger store those of the nearest run.
COMPARED = 20_000
NEAREST = 3


def found_episode(opened: Explored, key: int | str, agent: str | None = None) -> Episode:
    """The episode with an id or at a position of the whole store, or one agent of it.

    Where its steps cannot be read, it is what its row says.

    Raises:
        EpisodeNotFoundError: there is none; of ids, the message names those that are nearest.
        InvalidArgumentError: it has no such agent.
    """
    try:
        found = opened.store.described(opened.here(key))
        return found if agent is None else found.agent(agent)
    except EpisodeNotFoundError as error:
        near = _nearest(opened.store, key) if isinstance(key, str) else []
        if not near:
            raise
        raise EpisodeNotFoundError(f"{error} Did you mean {' or '.join(map(repr, near))}?") from error


def _nearest(store: EpisodeStore, wanted: str) -> list[str]:
    runs = store.runs.select("run_id").collect()["run_id"].to_list()
    run, _, number = wanted.rpartition("/")
    alike = difflib.get_close_matches(run or wanted, runs, n=1)
    found = store.episodes.select("episode_id")
    if alike:
        found = found.filter(pl.col("episode_id").str.starts_with(f"{alike[0]}/"))
    ids = found.head(COMPARED).collect()["episode_id"].to_list()
    # An id ends in a number of six digits; people leave out the zeros.
    padded = f"{alike[0] if alike else run}/{number.zfill(6)}" if number.isdigit() else wanted
    return difflib.get_close_matches(padded, ids, n=NEAREST)


def episode_report(look: EpisodeLook, agent: str | None) -> dict[str, Any]:
    """Everything that `show` says, as the object that `--json` prints."""
    episode = look.episode
    summary = {
        "episode_id": episode.id,
        "position": look.position,
        "run_id": episode.run_id,
        "length": episode.length,
        "episode_return": episode.episode_return,
        "end_reason": episode.end_reason,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "seed": episode.seed,
        "options": episode.options,
        "env_index": episode.env_index,
        "started_at": episode.started_at,
        "ended_at": episode.ended_at,
        "metadata": episode.metadata,
        "run_metadata": look.run_metadata,
        "annotations": episode.annotations,
    }
    signals = [
        {"name": signal.name, "values": len(signal.values), **_figures(signal.values)}
        for signal in look.signals
    ]
    return {
        **summary,
        "agent": agent,
        "agents": [] if look.lost else _agents(episode),
        "signals": signals,
        "damaged": [str(look.lost)] if look.lost else [],
    }


def _agents(episode: Episode) -> list[dict[str, Any]]:
    if not isinstance(episode, MultiAgentEpisode):
        return []
    members = [episode.agent(name) for name in episode.agents]
    return [
        {
            "agent": member.agent_id,
            "group": member.group,
            "length": member.length,
            "episode_return": member.episode_return,
            "end_reason": member.end_reason,
        }
        for member in members
    ]


def _figures(values: np.ndarray) -> dict[str, float | None]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return dict.fromkeys(("first", "last", "lowest", "mean", "highest"))
    return {
        "first": float(values[0]),
        "last": float(values[-1]),
        "lowest": float(finite.min()),
        "mean": float(finite.mean()),
        "highest": float(finite.max()),
    }
