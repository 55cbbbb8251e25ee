"""Whole episodes as a list, each as long as it is: for learners that go through them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....store.errors import InvalidArgumentError
from ....store.reserved import AGENT_ID, EPISODE, LENGTH, MASK, is_observation
from .tree import Tree, map_leaves


def unpadded(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the episodes of a batch of whole episodes, one by one, without what they were padded with.

    Args:
        batch: of a loader of `WholeEpisodes()`, with the key `length`; numpy arrays, torch tensors or
            JAX arrays, with an axis of b episodes first.

    Returns:
        b dicts with the keys of the batch but `mask`; of an episode of T transitions, observations have
        T + 1 rows and everything else T; `length` and `episode` are single numbers. Of numpy arrays and
        tensors they are views, which share the batch's memory.

    Raises:
        InvalidArgumentError: the batch has no lengths.
    """
    if not isinstance(batch, Mapping) or LENGTH not in batch:
        raise InvalidArgumentError(
            f"unpadded() got {type(batch).__name__} without the key {LENGTH!r}; expected a batch of a loader "
            "made with units=el.WholeEpisodes(). Where columns are named, name 'length' too."
        )
    return [_episode(batch, number, int(length)) for number, length in enumerate(batch[LENGTH])]


def _episode(batch: Mapping[str, Any], number: int, length: int) -> dict[str, Any]:
    return {key: _rows(key, tree, number, length) for key, tree in batch.items() if key != MASK}


def _rows(key: str, tree: Tree, number: int, length: int) -> Tree:
    if key in (LENGTH, EPISODE, AGENT_ID):
        return tree[number]
    rows = length + is_observation(key)
    return map_leaves(lambda leaf: leaf[number][:rows], tree)
