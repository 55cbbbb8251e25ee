"""`Cast`: other dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from ..units.unit import Batch
from .keys import change, key_tuple, numeric_dtype


@dataclass(frozen=True)
class Cast:
    """Gives arrays another dtype, as `ndarray.astype` does.

    Args:
        keys: a key of the batch or several, or parts of nested values by dotted names. `observation` stands
            for `next_observation` too.
        dtype: of numbers; what numpy takes for one.
    """

    keys: str | Sequence[str]
    dtype: DTypeLike

    def __post_init__(self) -> None:
        """Check what is asked for."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        object.__setattr__(self, "dtype", numeric_dtype(self.dtype))

    def __call__(self, batch: Batch) -> Batch:
        """A batch with other arrays under these keys.

        Raises:
            InvalidArgumentError: there is no such key.
        """
        return change(batch, key_tuple(self.keys), lambda leaf: leaf.astype(self.dtype, copy=False))
