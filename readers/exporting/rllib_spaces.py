"""Gymnasium spaces as the dicts in which RLlib stores them with an episode."""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any

import numpy as np
from gymnasium import Space, spaces


def space_to_dict(space: Space) -> dict[str, Any] | None:
    """Return a space as a dict; None if it, or a part of it, is of another class."""
    match space:
        case spaces.Box():
            told = {"space": "box", "shape": list(space.shape), "dtype": space.dtype.str}
            return told | {"low": _packed(space.low), "high": _packed(space.high)}
        case spaces.Discrete():
            return {"space": "discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiBinary():
            return {"space": "multi-binary", "n": space.n}
        case spaces.MultiDiscrete():
            return {"space": "multi-discrete", "nvec": _packed(space.nvec), "dtype": space.dtype.str}
        case spaces.Tuple():
            parts = [space_to_dict(part) for part in space.spaces]
            return None if None in parts else {"space": "tuple", "spaces": parts}
        case spaces.Dict():
            named = {key: space_to_dict(part) for key, part in space.spaces.items()}
            return None if None in named.values() else {"space": "dict", "spaces": named}
        case spaces.Text():
            told = {"space": "text", "min_length": space.min_length, "max_length": space.max_length}
            return told | {"charset": "".join(sorted(space.character_set))}
    return None


def _packed(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(zlib.compress(file.getvalue())).decode("ascii")
