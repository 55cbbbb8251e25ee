"""`Cast`: other dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ....store.errors import InvalidArgumentError
from ..units.unit import Batch
from .keys import change, key_tuple


@dataclass(frozen=True)
class Cast:
    """Gives arrays another dtype, as `ndarray.astype` does.

    Args:
        keys: a key of the batch or several, or parts of nested values by dotted names. `observation` stands
            for `next_observation` too.
        dtype: what numpy takes for a dtype.
    """

    keys: str | Sequence[str]
    dtype: DTypeLike

    def __post_init__(self) -> None:
        """Check what is asked for."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        try:
            object.__setattr__(self, "dtype", np.dtype(self.dtype).name)
        except TypeError as error:
            raise InvalidArgumentError(f"dtype={self.dtype!r}: {error}.") from error

    def __call__(self, batch: Batch) -> Batch:
        """A batch with other arrays under these keys.

        Raises:
            InvalidArgumentError: there is no such key.
        """
        return change(batch, key_tuple(self.keys), lambda leaf: leaf.astype(self.dtype, copy=False))
