"""One episode: found by id, a part of an id or position; and as the object of `--json`."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import polars as pl

from ..._store import EpisodeStore
from ...readers.agents import MultiAgentEpisode
from ...readers.amounts import counted
from ...readers.episode import Episode
from ...store.errors import EpisodeNotFoundError
from ..completion import DIGITS
from .exploring import Explored
from .reports import EpisodeLook

#: The most ids that are compared with an unknown one.
COMPARED = 20_000
NEAREST = 3


def found_episode(opened: Explored, key: int | str, agent: str | None = None) -> Episode:
    """Return the episode with an id or at a position of the whole store, or one agent of it.

    An id may be shortened to what no other begins or ends with, its run to its name, as the explorer does.
    Where its steps cannot be read, it is what its row says.

    Raises:
        EpisodeNotFoundError: there is none, or a short id fits several; the message names the nearest, or
            those that it fits.
        InvalidArgumentError: it has no such agent.
    """
    try:
        found = opened.store.described(opened.here(key))
    except EpisodeNotFoundError as error:
        if not isinstance(key, str):
            raise
        found = opened.store.described(_only_one(opened.store, key, error))
    return found if agent is None else found.agent(agent)


def _only_one(store: EpisodeStore, short: str, error: EpisodeNotFoundError) -> str:
    """Return the id of the only episode that a short id fits."""
    ids = _fitting(store, short)
    if len(ids) == 1:
        return ids[0]
    if ids:
        more = " and others" if len(ids) > NEAREST else ""
        listed = ", ".join(map(repr, ids[:NEAREST]))
        raise EpisodeNotFoundError(
            f"{short!r} fits several episodes: {listed}{more}. Give more of the id, or the position that "
            "`episodelake ls` shows."
        ) from error
    within = _numbers_within(store, short)
    if within:
        raise EpisodeNotFoundError(f"There is no episode {short!r}: {within}.") from error
    near = _nearest(store, short)
    if not near:
        raise error
    raise EpisodeNotFoundError(f"{error} Did you mean {' or '.join(map(repr, near))}?") from error


def _fitting(store: EpisodeStore, short: str) -> list[str]:
    """Ids that a short one fits, one more than a message names at most."""
    run, slash, number = short.rpartition("/")
    column = pl.col("episode_id")
    if slash and number.isdigit():
        runs = _fitting_runs(store, run)
        if number == str(int(number)) or len(number) >= DIGITS:
            chosen = column.is_in([f"{each}/{number.zfill(DIGITS)}" for each in runs])
        else:
            # With zeros in front it is the beginning of one of all digits, and not another number.
            begun = (column.str.starts_with(f"{each}/{number}") for each in runs)
            chosen = pl.any_horizontal(pl.lit(False), *begun)
    else:
        chosen = column.str.starts_with(short) | column.str.ends_with(short)
    found = store.episodes.filter(chosen).select("episode_id").head(NEAREST + 1)
    return found.collect()["episode_id"].to_list()


def _fitting_runs(store: EpisodeStore, short: str) -> list[str]:
    """Return the runs of a name; else those whose id begins or ends like this, or fits around a cut."""
    runs = store.runs.select("run_id", "name").collect()
    named = runs.filter(pl.col("name") == short)["run_id"].to_list()
    start, cut, end = short.partition("…")
    if not cut:
        start, end = short, ""
    ids = runs["run_id"].to_list()
    return named or [
        each for each in ids if (each.startswith(start) and each.endswith(end)) or each.endswith(short)
    ]


def _numbers_within(store: EpisodeStore, short: str) -> str | None:
    """Return the sizes and nearest episodes of the runs, if none of their episodes has the number."""
    run, _, number = short.rpartition("/")
    if not (run and number.isdecimal()):
        return None
    told = []
    for each in _fitting_runs(store, run)[:NEAREST]:
        chosen = store.episodes.filter(pl.col("run_id") == each)
        rows = chosen.select("number", "episode_id").collect().rows()
        # In Python, whose numbers have no end: one of 20 digits is typed as well.
        near = min(rows, key=lambda row: abs(row[0] - int(number)), default=None)
        nearest = f", and the nearest is {near[1]!r}" if near else ""
        told.append(f"run {each} has {counted(len(rows), 'episode')}{nearest}")
    return "; ".join(told) or None


def _nearest(store: EpisodeStore, wanted: str) -> list[str]:
    runs = store.runs.select("run_id").collect()["run_id"].to_list()
    run, _, number = wanted.rpartition("/")
    alike = difflib.get_close_matches(run or wanted, runs, n=1)
    found = store.episodes.select("episode_id")
    if alike:
        found = found.filter(pl.col("episode_id").str.starts_with(f"{alike[0]}/"))
    ids = found.head(COMPARED).collect()["episode_id"].to_list()
    # An id ends in a number of six digits; people leave out the zeros.
    padded = f"{alike[0] if alike else run}/{number.zfill(DIGITS)}" if number.isdigit() else wanted
    return difflib.get_close_matches(padded, ids, n=NEAREST)


def episode_report(look: EpisodeLook, agent: str | None) -> dict[str, Any]:
    """Return the report of `show`, as `--json` prints it."""
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
