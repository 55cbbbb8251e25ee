"""`Flatten`: nested observations and actions as one vector."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium

from ....store.errors import InvalidArgumentError
from ....store.reserved import MASK
from ....store.spaces.flattening import check_flattened, flatten_values
from ..units.unit import Batch
from .keys import real_values, replace_part, with_following


@dataclass(frozen=True)
class Flatten:
    """Gives Dict and Tuple values as one vector, as `gymnasium.spaces.utils.flatten` orders and types it.

    Parts follow in the order of the space, arrays in C order; numbers of Discrete and MultiDiscrete spaces
    become one-hot vectors. What the batch's mask leaves out of these is all zeros.

    Args:
        key: a key of the batch, or a part of nested values by its dotted name. `observation` stands for
            `next_observation` too.
        space: the space of its values, such as `store.observation_space`.

    Raises:
        InvalidArgumentError: `space` is no space, or has a part without a fixed shape (Text, Sequence, Graph,
            OneOf).
    """

    key: str
    space: gymnasium.Space

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not isinstance(self.key, str):
            raise InvalidArgumentError(f"key={self.key!r}: expected the name of a key.")
        if not isinstance(self.space, gymnasium.Space):
            raise InvalidArgumentError(
                f"space={self.space!r}: expected a space, such as store.observation_space."
            )
        check_flattened(self.space, self.key)

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with vectors under the key: shape (b, n), (b, length, n) in windows.

        Raises:
            InvalidArgumentError: there is no such key, or its values are not those of the space.
        """
        mask = batch.get(MASK)
        changed = dict(batch)
        for name, _ in with_following(batch, [self.key]):
            changed = replace_part(
                changed,
                name,
                lambda part, name=name: flatten_values(
                    self.space, part, name, lambda values: real_values(values, mask)
                ),
            )
        return changed
