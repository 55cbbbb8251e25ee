"""Single episodes of a context: by position, by id, or drawn at random."""

from __future__ import annotations

from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa

from ..store.errors import CorruptStoreError, EpisodeNotFoundError, InvalidArgumentError
from ..store.snapshot import Selection
from .agents import make_episode
from .blocks import Block, LostBlock
from .context import ReadContext
from .episode import Episode
from .frames import POSITION, collect_episodes, episodes_frame, positioned_episodes


def find_episode(context: ReadContext, key: int | str) -> Episode:
    """Return the episode at a position of the context (negative: from the end), or of an id.

    Raises:
        EpisodeNotFoundError: there is no such position or id.
        InvalidArgumentError: the key is of another kind.
    """
    position = _position_of(context, key)
    block = context.blocks.episode_block(position)
    return make_episode(context.rows, position, block, 0, block.count)


def describe_episode(context: ReadContext, key: int | str) -> Episode:
    """Return the same, also where its steps cannot be read; what needs them raises `CorruptStoreError`.

    Raises:
        as for `find_episode`.
    """
    try:
        return find_episode(context, key)
    except CorruptStoreError as error:
        position = _position_of(context, key)
        count = int(context.snapshot.pointers.row_count[position])
        return make_episode(context.rows, position, cast(Block, LostBlock(error)), 0, count)


def has_episode(context: ReadContext, key: object) -> bool:
    """Return whether an id is that of an episode of the context."""
    try:
        return isinstance(key, str) and _position_of(context, key) >= 0
    except EpisodeNotFoundError:
        return False


def _position_of(context: ReadContext, key: int | str) -> int:
    """Return where an episode stands in the snapshot."""
    if isinstance(key, str):
        return _position_of_id(context, key)
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        raise InvalidArgumentError(f"{key!r} is no position; expected an int, a slice or an episode id.")
    index, count = int(key), len(context)
    if not -count <= index < count:
        raise EpisodeNotFoundError(
            f"There is no episode at position {index}: the view has {count} episodes. "
            f"Positions go from {-count} to {count - 1}."
            if count
            else f"There is no episode at position {index}: the view is empty." + context.refresh_hint()
        )
    index %= count
    return index if context.positions is None else int(context.positions[index])


def _position_of_id(context: ReadContext, episode_id: str) -> int:
    frame = positioned_episodes(context.snapshot, None).filter(pl.col("episode_id") == episode_id)
    found = collect_episodes(context.snapshot, frame.select(POSITION))[POSITION].to_list()
    if context.positions is not None:
        found = [position for position in found if (context.positions == position).any()]
    if not found:
        first = [find_episode(context, index) for index in range(min(3, len(context)))]
        raise EpisodeNotFoundError(
            f"There is no episode {episode_id!r} among these {len(context)}. "
            f"Ids look like: {', '.join(repr(each.id) for each in first) or 'none'}." + context.refresh_hint()
        )
    return int(found[0])


def sample_episodes(context: ReadContext, n: int, seed: int | None, *, replace: bool) -> list[Episode]:
    """Draw episodes; see `EpisodeView.sample_episodes`."""
    count = len(context)
    if not isinstance(n, int | np.integer) or n < 0:
        raise InvalidArgumentError(f"n={n!r}: expected a whole number of at least 0.")
    if n > count and not (replace and count):
        raise InvalidArgumentError(
            f"Cannot draw {n!r} episodes from {count}. Draw fewer, or draw with replace=True."
        )
    if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
        raise InvalidArgumentError(f"seed={seed!r}: expected a number that is not negative, or None.")
    drawn = np.random.default_rng(seed).choice(count, n, replace) if n else []
    return [find_episode(context, int(index)) for index in drawn]


def checked_slice(key: slice) -> slice:
    """Return a slice of positions, as it is.

    Raises:
        InvalidArgumentError: it has other parts than whole numbers, or a step of 0.
    """
    parts = (key.start, key.stop, key.step)
    if not all(part is None or isinstance(part, int | np.integer) for part in parts):
        raise InvalidArgumentError(f"{key!r} is no slice of positions; expected whole numbers, as [10:20].")
    if key.step is not None and not key.step:
        raise InvalidArgumentError(f"{key!r} has the step 0; expected another number, as in [::2].")
    return key


def checked_positions(key: np.ndarray, count: int) -> np.ndarray:
    """Positions among `count` episodes, those from the end as others.

    Raises:
        InvalidArgumentError: it holds other things than positions, or one of them twice.
        EpisodeNotFoundError: there is no such position.
    """
    if key.ndim != 1 or not (np.issubdtype(key.dtype, np.integer) or not key.size):
        raise InvalidArgumentError(
            f"An array of dtype {key.dtype} and shape {key.shape} is no list of positions; expected whole "
            "numbers in one dimension."
        )
    wrong = key[(key < -count) | (key >= count)]
    if len(wrong):
        raise EpisodeNotFoundError(
            f"There is no episode at position {wrong[0]}: the view has {count:,} episodes."
        )
    found = key.astype(np.int64) % max(count, 1)
    # A view holds an episode once; sorted ones, as of a filter, are checked without sorting them again.
    if (np.diff(found) <= 0).any() and len(np.unique(found)) < len(found):
        raise InvalidArgumentError("The positions name an episode twice; expected each at most once.")
    return found


def selection_of(context: ReadContext) -> Selection:
    """Return the episodes as a merge takes them."""
    if context.positions is None:
        return Selection(context.snapshot)
    ids = episodes_frame(context.snapshot, context.positions).select("episode_id").collect()
    return Selection(context.snapshot, pa.array(ids["episode_id"].to_list(), pa.string()))
