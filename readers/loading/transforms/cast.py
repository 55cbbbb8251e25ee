"""`Cast`: other dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ....store.errors import InvalidArgumentError
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
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        object.__setattr__(self, "dtype", numeric_dtype(self.dtype))

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with other arrays under these keys.

        Raises:
            InvalidArgumentError: there is no such key, or NaN (a missing value) or infinity would become an
                integer.
        """
        return change(batch, key_tuple(self.keys), self._cast)

    def _cast(self, leaf: np.ndarray) -> np.ndarray:
        if np.dtype(self.dtype).kind in "iu" and leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            raise InvalidArgumentError(
                f"{self!r} meets NaN, as which a missing value is loaded, or infinity; integers have neither."
                " Load the key as a float, or choose episodes in which each step has it."
            )
        return leaf.astype(self.dtype, copy=False)
