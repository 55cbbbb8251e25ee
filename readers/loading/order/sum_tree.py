"""A tree of sums over priorities: draws in proportion to them, and changes some of them, a batch at a time.

A binary segment tree takes twenty small steps down and twenty up at a million units. This one is wide: a node
has sixteen children, and the few thousand nodes of the uppermost level are searched by their running sum. So
a batch takes two or three steps of a few numpy calls each. Every sum is worked out anew from its children,
never corrected by a difference, so nothing drifts, and the tree is a pure function of its values.
"""

from __future__ import annotations

import numpy as np

_CHILDREN = 16
#: So many nodes are searched in one go.
_UPPERMOST = 4096


class SumTree:
    """Values that are not negative, and their sums.

    Args:
        values: float64, shape (n,); copied.
    """

    def __init__(self, values: np.ndarray) -> None:
        self._count = len(values)
        self._levels = [_in_nodes(np.asarray(values, np.float64))]
        self._least: list[np.ndarray] = []
        found, least = _sums(self._levels[0]), _least_above_zero(self._levels[0])
        while len(found) > _UPPERMOST:
            self._levels.append(_in_nodes(found))
            self._least.append(_in_nodes(least, np.inf))
            found, least = _sums(self._levels[-1]), self._least[-1].min(axis=1)
        self._top, self._top_least = found, least
        #: The running sum of the uppermost nodes, until a value changes.
        self._reached: np.ndarray | None = None

    def __len__(self) -> int:
        """Return the number of values n."""
        return self._count

    @property
    def values(self) -> np.ndarray:
        """All values: float64, shape (n,); a view that is not to be written to."""
        return self._levels[0].reshape(-1)[: self._count]

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._running()[-1]) if len(self._top) else 0.0

    def _running(self) -> np.ndarray:
        if self._reached is None:
            self._reached = self._top.cumsum()
        return self._reached

    @property
    def least(self) -> float:
        """The smallest value above zero; infinite if there is none."""
        return float(self._top_least.min(initial=np.inf))

    def change(self, places: np.ndarray, values: np.ndarray) -> None:
        """Set some values; where a place is named twice the last one counts.

        Args:
            places: int64, shape (b,), each in [0, n).
            values: float64, shape (b,), not negative.
        """
        self._levels[0].reshape(-1)[places] = values
        nodes = places // _CHILDREN
        children = self._levels[0][nodes]
        found, least = _sums(children), _least_above_zero(children)
        for sums, leasts in zip(self._levels[1:], self._least, strict=True):
            sums.reshape(-1)[nodes] = found
            leasts.reshape(-1)[nodes] = least
            nodes = nodes // _CHILDREN
            found, least = _sums(sums[nodes]), leasts[nodes].min(axis=1)
        self._top[nodes] = found
        self._top_least[nodes] = least
        self._reached = None

    def find(self, fractions: np.ndarray) -> np.ndarray:
        """Return the places at which the running sum passes fractions of the total.

        Args:
            fractions: float64, shape (b,), each in [0, 1). The total must be above zero.

        Returns:
            int64, shape (b,); values of zero are never found.
        """
        reached = self._running()
        wanted = _below(fractions * reached[-1], reached[-1])
        places = np.searchsorted(reached, wanted, side="right")
        wanted -= np.where(places > 0, reached[places - 1], 0.0)
        rows = np.arange(len(fractions))
        for level in reversed(self._levels):
            reached = level[places].cumsum(axis=1)
            # What the level above left over may be rounded up to the whole sum of the node.
            wanted = _below(wanted, reached[:, -1])
            child = (reached > wanted[:, None]).argmax(axis=1)
            wanted -= np.where(child > 0, reached[rows, child - 1], 0.0)
            places = places * _CHILDREN + child
        return places


def _in_nodes(values: np.ndarray, rest: float = 0.0) -> np.ndarray:
    """Values as the children of nodes, shape (nodes, children); the last node is filled up."""
    nodes = np.full((-(-len(values) // _CHILDREN), _CHILDREN), rest)
    nodes.reshape(-1)[: len(values)] = values
    return nodes


def _sums(nodes: np.ndarray) -> np.ndarray:
    return nodes.sum(axis=1)


def _least_above_zero(nodes: np.ndarray) -> np.ndarray:
    return np.where(nodes > 0.0, nodes, np.inf).min(axis=1)


def _below(wanted: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
    """Return values below the limit, so that the running sum passes them within the node."""
    return np.minimum(wanted, np.nextafter(limit, 0.0))
