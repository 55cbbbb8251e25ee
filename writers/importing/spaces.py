"""The spaces that the values of a source suggest, where it states none.

Floats make a Box without bounds, whole numbers a Discrete that has them and 0, arrays of whole numbers a Box
over their dtype, booleans a Discrete(2), and arrays of them a MultiBinary.
"""

from __future__ import annotations

import numpy as np
from gymnasium import Space, spaces


def array_space(dtype: np.dtype, shape: tuple[int, ...]) -> Space:
    """Return the space of arrays of numbers or booleans."""
    if dtype.kind == "b":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape) if shape else spaces.Discrete(2)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    limits = np.iinfo(dtype)
    return spaces.Box(dtype.type(limits.min), dtype.type(limits.max), shape, dtype.type)


def discrete_space(least: int, greatest: int) -> spaces.Discrete:
    """Return the space of all whole numbers between these; it has 0."""
    start = min(least, 0)
    return spaces.Discrete(max(greatest, 0) - start + 1, start=start)
