"""Episodes of sources that lack the observation after the last action: `last_observation` of an import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...store.batches import slice_batch
from ...store.errors import DatasetError
from ...store.losses import Losses
from .dataset import ForeignEpisode, ImportOptions

DROPPED = "a last transition, whose next observation is missing"
REPEATED = "a last observation, which repeats the one before"
DIFFERING = "a next observation that differs from the observation of the next row"
UNUSED = "an action and reward beside a last observation, which lead to none"
NO_TRANSITION = "an episode with an observation and no transition"
NOTHING_LEFT = "an episode of one transition, whose next observation is missing"
#: By `last_observation`; "missing" counts where the source's own form has last observations.
LOST = {"drop": DROPPED, "repeat": REPEATED, "missing": "a last observation, which the source lacks"}


def is_left(transitions: int, options: ImportOptions, losses: Losses) -> bool:
    """Return whether `completed` leaves something of an episode; counts it as lost otherwise."""
    if options.last_observation != "drop" or transitions > 1:
        return True
    losses.add(NOTHING_LEFT)
    return False


def completed(episode: ForeignEpisode, options: ImportOptions, losses: Losses) -> ForeignEpisode:
    """Return an episode with T observations for T transitions as the caller chose; counts what is lost.

    After "drop" the episode is cut: its remaining last transition has neither flag.

    Args:
        episode: its infos and extras, if any, have T rows.

    Raises:
        DatasetError: nothing is left of it; `is_left` tells sooner.
    """
    total = len(episode.rewards)
    if options.last_observation == "drop":
        if total == 1:
            raise DatasetError(
                "The episode has one transition, whose next observation is missing, so nothing is left of "
                'it. Pass last_observation="missing".'
            )
        losses.add(DROPPED)
        return replace(
            episode,
            actions=slice_batch(episode.actions, 0, total - 1),
            rewards=episode.rewards[: total - 1],
            terminations=False,
            truncations=False,
        )
    if options.last_observation == "repeat":
        losses.add(REPEATED)
        return with_last(episode, slice_batch(episode.observations, total - 1, total))
    return replace(episode, last_observation="missing")


def with_last(episode: ForeignEpisode, last: Any) -> ForeignEpisode:
    """Return an episode with T observations with one more, a batch of one; it has no infos and extras."""
    return replace(
        episode,
        observations=joined(episode.observations, last),
        infos=[*rows_of(episode.infos), {}] if episode.infos else None,
        extra=padded(episode.extra),
    )


def count_differing(following: Any, observations: Any, losses: Losses) -> None:
    """Count the rows whose next observation is not the observation of the next row, which is the one kept."""
    if isinstance(following, dict):
        for name, part in following.items():
            count_differing(part, observations[name], losses)
        return
    losses.add(DIFFERING, int(differing_rows(following[:-1], observations[1:]).sum()))


def differing_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return which rows of two arrays of one shape differ; NaN equals NaN."""
    inner = tuple(range(1, first.ndim))
    differ = (first != second).any(axis=inner)
    rows = np.flatnonzero(differ)
    theirs, ours = first[rows], second[rows]
    differ[rows] = ((theirs != ours) & ~((theirs != theirs) & (ours != ours))).any(axis=inner)
    return differ


def joined(first: Any, second: Any) -> Any:
    """Return two batches as one: arrays, or nested dicts and tuples of them."""
    if isinstance(first, dict):
        return {key: joined(part, second[key]) for key, part in first.items()}
    if isinstance(first, tuple):
        return tuple(map(joined, first, second))
    return np.concatenate([first, second])


def padded(columns: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return columns with one more row without a value."""
    if not columns:
        return None
    return {
        name: padded(part) if isinstance(part, Mapping) else [*part, None] for name, part in columns.items()
    }


def rows_of(columns: Any) -> list[dict[str, Any]]:
    """Return the rows of nested columns as mappings."""
    names = list(columns)
    parts = [rows_of(part) if isinstance(part, dict) else list(part) for part in columns.values()]
    return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
