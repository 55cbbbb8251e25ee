"""Everything that depends on the release of a dependency, with the release from which each part can go.

`pyproject.toml` names the oldest supported releases; `make test-lowest` runs on exactly those.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from gymnasium import vector
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv

from ..errors import UnsupportedSpaceError

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode as AutoresetMode
else:
    try:
        from gymnasium.vector import AutoresetMode as AutoresetMode
    except ImportError:

        class AutoresetMode(Enum):
            """The ways in which sub-environments reset themselves. Goes with gymnasium>=1.1."""

            NEXT_STEP = "NextStep"
            SAME_STEP = "SameStep"
            DISABLED = "Disabled"


#: Whether Gymnasium's vector environments say how they reset themselves.
_NAMES_MODES = hasattr(vector, "AutoresetMode")
#: Whether they reset some of their environments when asked, by `reset_mask`. Goes with gymnasium>=1.1.
masks_resets = _NAMES_MODES


def metadata_of(envs: VectorEnv) -> Mapping[str, Any]:
    """Return the metadata of a vector environment with its autoreset mode. Goes with gymnasium>=1.1."""
    metadata = envs.metadata or {}
    if not _NAMES_MODES:
        # Gymnasium 1.0 has no other mode, and does not name it.
        return {"autoreset_mode": AutoresetMode.NEXT_STEP, **metadata}
    return metadata


@cache
def _parameters(kind: type) -> Collection[str]:
    return inspect.signature(kind).parameters


def discrete_space(n: int, start: int, dtype: np.dtype) -> Discrete:
    """Return a Discrete space. Goes with gymnasium>=1.2.2, whose Discrete always takes a dtype.

    Raises:
        UnsupportedSpaceError: this release of Gymnasium has no such dtype.
    """
    if "dtype" in _parameters(Discrete):
        return Discrete(n, start=start, dtype=dtype.str)
    if dtype != np.int64:
        raise UnsupportedSpaceError(
            f"This release of Gymnasium has Discrete spaces of int64 only, and the store has one of {dtype}. "
            "Install gymnasium>=1.2.2."
        )
    return Discrete(n, start=start)


def numpy_type(type: pa.DataType) -> np.dtype:
    """Return the NumPy type of an Arrow type. Goes with pyarrow>=26: to_pandas_dtype needed pandas before."""
    return pa.nulls(0, type).to_numpy(zero_copy_only=False).dtype
