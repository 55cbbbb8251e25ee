"""`SelectKeys`: some of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..units.unit import Batch
from .keys import key_tuple, part_of


@dataclass(frozen=True)
class SelectKeys:
    """Keeps some keys, in the order given, and drops all others.

    Args:
        keys: keys of the batch, each by itself (`next_observation` is not meant by `observation`). A part of
            a nested value is taken out under its dotted name: "observation.image".
    """

    keys: str | Sequence[str]

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch of these keys.

        Raises:
            InvalidArgumentError: there is no such key.
        """
        return {key: part_of(batch, key) for key in key_tuple(self.keys)}
