"""`OneHot`: whole numbers as vectors with a single one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ....store.errors import InvalidArgumentError
from ....store.reserved import MASK
from ..arguments import whole_number
from ..units.unit import Batch
from .keys import key_tuple, numeric_dtype, real_values, replace_part, with_following


@dataclass(frozen=True)
class OneHot:
    """Gives whole numbers an axis of n, 1 at the number and 0 elsewhere.

    What the batch's mask leaves out is all zeros.

    Args:
        keys: a key of the batch or several, or parts of nested values by dotted names. `observation` stands
            for `next_observation` too.
        n: how many numbers there are.
        start: the least of them, as a Discrete space has it.
        dtype: of the result.
    """

    keys: str | Sequence[str]
    n: int
    start: int = 0
    dtype: DTypeLike = "float32"

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        object.__setattr__(self, "n", whole_number("n", self.n, 1))
        if isinstance(self.start, bool) or not isinstance(self.start, int | np.integer):
            raise InvalidArgumentError(f"start={self.start!r}: expected a whole number.")
        object.__setattr__(self, "start", int(self.start))
        object.__setattr__(self, "dtype", numeric_dtype(self.dtype))

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with vectors under these keys: (b, ...) becomes (b, ..., n).

        Raises:
            InvalidArgumentError: there is no such key, or a value is no whole number from `start` to
                `start + n - 1`.
        """
        mask = batch.get(MASK)
        changed = dict(batch)
        for name, _ in with_following(batch, key_tuple(self.keys)):
            changed = replace_part(changed, name, lambda part, name=name: self._vectors(name, part, mask))
        return changed

    def _vectors(self, name: str, values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iub":
            raise InvalidArgumentError(
                f"OneHot needs whole numbers; {name!r} is {getattr(values, 'dtype', 'a nested value')}."
            )
        real = real_values(values, mask)
        places = np.where(real, values.astype(np.int64) - self.start, 0)
        wrong = (places < 0) | (places >= self.n)
        if wrong.any():
            raise InvalidArgumentError(
                f"{name!r} has the value {values[wrong][0]}; OneHot expects {self.start} to "
                f"{self.start + self.n - 1}. Check n and start."
            )
        found = np.zeros((*values.shape, self.n), self.dtype)
        np.put_along_axis(found, places[..., None], real[..., None], -1)
        return found
