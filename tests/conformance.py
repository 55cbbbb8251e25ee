"""Numbered stores in a folder or on an object store: what is written, and the comparison with it.

Most stores hold the numbered episodes of `real_environments.py`, whose every value follows from a number.
`test_store_contract.py` has the rules that hold in every kind of place.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import episodelake as el
from episodelake import testing
from object_server import ObjectServer, new_url
from real_environments import NUMBERED_SPACES, numbered_return, values_of, write_numbered
from waiting import PATIENCE


class Backend(testing.Backend):
    """A place whose stores are for numbered episodes unless a test says otherwise."""

    def create(self, name: str = "store", **arguments: Any) -> el.EpisodeStore:
        """Create a store."""
        return super().create(name, **(arguments or NUMBERED_SPACES))


class FolderBackend(Backend):
    """Stores whose files lie in a folder of this machine.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))


class ObjectBackend(Backend):
    """Stores whose files are objects of an S3 server, below a prefix that no other test uses."""

    def __init__(self, server: ObjectServer) -> None:
        super().__init__(new_url(), server.storage_options())


def abandon(writer: el.EpisodeWriter) -> None:
    """Have a writer that cannot be closed do now what it does when it is garbage collected."""
    session = writer._session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session._abandon()
        session._keeper.join(PATIENCE)
    assert session.closed


def fill(
    store: el.EpisodeStore, values: Iterable[int], *, run: str = "numbered", seal_every: int = 10**9
) -> Any:
    """Write numbered episodes, episode `value` of `value % 4 + 1` steps; return the refreshed store."""
    with store.writer(run=run) as writer:
        for count, value in enumerate(values, 1):
            write_numbered(writer, value, value % 4 + 1)
            if count % seal_every == 0:
                writer.seal()
    return store.refresh()


def all_of(episodes: Iterable[el.Episode]) -> dict[str, tuple[Any, ...]]:
    """Everything that episodes hold, by id, in plain values that compare."""
    return {
        episode.id: (
            np.asarray(episode.observations).tolist(),
            np.asarray(episode.actions).tolist(),
            episode.rewards.tolist(),
            episode.terminations.tolist(),
            episode.truncations.tolist(),
            episode.infos,
            episode.metadata,
            episode.seed,
            episode.end_reason,
            episode.episode_return,
        )
        for episode in episodes
    }


def assert_numbered(view: Any, values: Iterable[int], *, ordered: bool = True, engines: bool = False) -> None:
    """Fail unless a view holds exactly these numbered episodes.

    Args:
        view: a store or a view.
        values: the numbers of the episodes.
        ordered: whether they stand in this order.
        engines: ask all engines too, and not the episodes alone.
    """
    wanted = list(values)
    episodes = list(view)
    found = values_of(episodes)
    assert (found if ordered else sorted(found)) == (wanted if ordered else sorted(wanted))
    assert len(view) == len(wanted)
    for value, episode in zip(found, episodes, strict=True):
        length = value % 4 + 1
        assert episode.observations.tolist() == [[value, t] for t in range(length + 1)]
        assert episode.actions.tolist() == [(value + t) % 10 for t in range(length)]
        assert episode.rewards.tolist() == [value + t / 8 for t in range(length)]
        assert episode.infos == [{"clock": t} for t in range(length + 1)]
        assert episode.metadata == {"value": value, "group": "odd" if value % 2 else "even"}
        assert episode.seed == 1000 + value
        assert episode.end_reason == ("truncated" if value % 2 else "terminated")
        assert episode.episode_return == numbered_return(value, length)
    if engines:
        assert_engines_count(view, wanted)


def assert_engines_count(view: Any, values: list[int]) -> None:
    """Fail unless Polars and DuckDB count and add up what follows from these numbered episodes."""
    steps = sum(value % 4 + 1 for value in values)
    total = sum(numbered_return(value, value % 4 + 1) for value in values)
    assert view.episodes.select(pl.len(), pl.sum("length")).collect().row(0) == (len(values), steps)
    assert view.steps.select(pl.len(), pl.sum("reward")).collect().row(0) == (steps + len(values), total)
    assert view.transitions.select(pl.len(), pl.sum("reward")).collect().row(0) == (steps, total)
    counted = view.sql(
        "select (select count(*) from episodes), (select coalesce(sum(length), 0) from episodes), "
        "(select count(*) from steps), (select count(*) from transitions), "
        "(select coalesce(sum(reward), 0) from transitions), "
        "(select coalesce(sum(episode_return), 0) from episodes)"
    ).fetchall()
    assert counted == [(len(values), steps, steps + len(values), steps, total, total)]
