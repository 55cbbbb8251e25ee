"""Spaces of every kind and dtype, for contracts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from gymnasium import spaces

from .. import errors
from ..store.common.compatibility import discrete_space
from .values import FLOATS, INTEGERS

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
PUSH = spaces.Box(-1, 1, (2,), np.float32)
_PAIR = spaces.Box(-1, 1, (2,), np.float32)


def _discretes() -> Iterator[tuple[str, spaces.Space]]:
    """Yield a Discrete space of each dtype that this release of Gymnasium has."""
    for kind in INTEGERS:
        with contextlib.suppress(errors.UnsupportedSpaceError):
            yield f"discrete {kind}", discrete_space(5, 2, np.dtype(kind))


#: Spaces of every kind and dtype.
KINDS: dict[str, spaces.Space] = {
    **{f"box {kind}": spaces.Box(0, 100, (2, 1), np.dtype(kind).type) for kind in (*FLOATS, *INTEGERS)},
    **dict(_discretes()),
    "signs": spaces.Box(np.array([-1, -np.inf]), np.array([1, 0]), dtype=np.float64),
    "flags": spaces.Box(0, 1, (3,), np.bool_),  # type: ignore[arg-type]
    "number": spaces.Box(-1, 1, (), np.float64),
    "no element": spaces.Box(0, 1, (0, 3), np.float32),
    "image": spaces.Box(0, 255, (4, 3, 3), np.uint8),
    "multi": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "bits": spaces.MultiBinary([2, 2]),
    "text": spaces.Text(300),
    "many": spaces.Sequence(_PAIR),
    "stacked": spaces.Sequence(spaces.Discrete(9), stack=True),
    "one of": spaces.OneOf((spaces.Discrete(3), spaces.Text(300))),
    "graph": spaces.Graph(_PAIR, spaces.Discrete(4)),
    "pair": spaces.Tuple((spaces.Discrete(3), spaces.Tuple((spaces.Text(300), _PAIR)))),
    "a.b %.": spaces.Dict({"b.c": spaces.Discrete(3), "größe x": spaces.Dict({"A": _PAIR, "a": _PAIR})}),
}
