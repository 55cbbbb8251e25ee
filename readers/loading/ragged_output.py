"""Rows of different lengths in a batch, padded to one length where so chosen."""

from __future__ import annotations

from typing import Any, Literal

from ...store.errors import InvalidArgumentError
from ..columns.ragged import Ragged
from ..columns.tree import map_leaves
from .units import Batch

#: How rows of different lengths come: see `Output`.
RaggedForm = Literal["nested", "padded"] | int | None


def padded(batch: Batch, ragged: RaggedForm) -> Batch:
    """Pad rows of different lengths, if so chosen: they become a dict of `values` and `mask`.

    Raises:
        InvalidArgumentError: a row is longer than the chosen length.
    """
    if ragged is None or ragged == "nested":
        return batch
    length = None if ragged == "padded" else ragged

    def pad(leaf: Any) -> Any:
        return (
            dict(zip(("values", "mask"), leaf.to_padded(0, length), strict=True))
            if isinstance(leaf, Ragged)
            else leaf
        )

    made: Batch = {}
    for key, value in batch.items():
        try:
            made[key] = map_leaves(pad, value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{key!r} cannot be padded: {error}") from error
    return made
