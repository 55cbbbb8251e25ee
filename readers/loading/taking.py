"""Handing out so many units at a time, from where a loader stands."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .feed import Feed, Places
from .tree import leaves, map_leaves
from .units.unit import Batch


@runtime_checkable
class Picking(Protocol):
    """A feed to which any few places cost no more than those that come next."""

    def pick(self, epoch: int, places: Places) -> Batch:
        """The units at some places, as one batch."""
        ...


class Taking:
    """Takes units of a feed, batches of any size, one behind the other.

    Args:
        feed: where units come from.
        epoch, places: what is taken, from the first place on.
        size: a feed that cannot pick is read in batches of this size.
    """

    def __init__(self, feed: Feed, epoch: int, places: Places, size: int) -> None:
        self._units = feed.units
        self._batches = feed.batches(epoch, places, size)
        self._rest: Batch = {}

    def next(self, count: int) -> Batch:
        """The next `count` units, which must be there."""
        parts = []
        while count:
            batch = self._rest or next(self._batches)
            size = len(next(leaf for _, leaf in leaves(batch)))
            parts.append(_slice(batch, 0, min(count, size)))
            self._rest = _slice(batch, count, size) if count < size else {}
            count -= min(count, size)
        return parts[0] if len(parts) == 1 else self._units.join(parts)


def _slice(batch: Batch, start: int, stop: int) -> Batch:
    # Copied, so that what is handed out is fresh and keeps no more than itself.
    return map_leaves(lambda leaf: leaf[start:stop].copy(), batch)
