"""Priorities of units: the probability of drawing each, and its importance weight.

Prioritized experience replay (Schaul, Quan, Antonoglou and Silver 2016, https://arxiv.org/abs/1511.05952,
section 3.3 and 3.4): unit i is drawn with probability P(i) = p_i / sum of all p, where
p_i = (priority_i + epsilon) ** alpha, and counts with the weight (N * P(i)) ** -beta, scaled so that the
largest is 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...store.common.arguments import one_of, real_number
from ...store.errors import InvalidArgumentError, LoaderStateError
from .orders import hash_words, uniforms

_CHILDREN = 16
#: So many nodes are searched in one go.
_UPPERMOST = 8192


class SumTree:
    """Values that are not negative, and their sums.

    Args:
        values: float64, shape (n,); copied.
    """

    def __init__(self, values: np.ndarray) -> None:
        self._count = len(values)
        self._levels = [_in_nodes(np.asarray(values, np.float64))]
        self._least: list[np.ndarray] = []
        children = _columns(self._levels[0])
        totals, least = _sums(children), _least_above_zero(children)
        while len(totals) > _UPPERMOST:
            self._levels.append(_in_nodes(totals))
            self._least.append(_in_nodes(least, np.inf))
            totals, least = _sums(_columns(self._levels[-1])), self._least[-1].min(axis=1)
        self._top, self._top_least = totals, least
        #: Zero and the running sum of the uppermost nodes, until a value changes.
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
        return float(self._running()[-1])

    def _running(self) -> np.ndarray:
        if self._reached is None:
            self._reached = np.concatenate([[0.0], self._top]).cumsum()
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
        children = _columns(self._levels[0].take(nodes, axis=0))
        totals, least = _sums(children), _least_above_zero(children)
        for sums, leasts in zip(self._levels[1:], self._least, strict=True):
            sums.reshape(-1)[nodes] = totals
            leasts.reshape(-1)[nodes] = least
            nodes = nodes // _CHILDREN
            totals = _sums(_columns(sums.take(nodes, axis=0)))
            least = _columns(leasts.take(nodes, axis=0)).min(axis=0)
        self._top[nodes] = totals
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
        places = reached[1:].searchsorted(wanted, side="right")
        wanted -= reached.take(places)
        # A column for each place: the sums before each child, and after the last.
        sums = np.zeros((_CHILDREN + 1, len(fractions)))
        neighbours = list(itertools.pairwise(sums))
        columns = np.arange(len(fractions))
        for level in reversed(self._levels):
            sums[1:] = level.take(places, axis=0).T
            # Faster than numpy's `cumsum`, which waits for each sum before it adds to it.
            for before, until in neighbours:
                np.add(before, until, until)
            # What the level above left over may be rounded up to the whole sum of the node.
            wanted = _below(wanted, sums[-1])
            child = (sums[1:-1] <= wanted).sum(axis=0)
            wanted -= sums[child, columns]
            places = places * _CHILDREN + child
        return places


def _in_nodes(values: np.ndarray, rest: float = 0.0) -> np.ndarray:
    """Values as the children of nodes, shape (nodes, children); the last node is filled up."""
    nodes = np.full((-(-len(values) // _CHILDREN), _CHILDREN), rest)
    nodes.reshape(-1)[: len(values)] = values
    return nodes


def _columns(nodes: np.ndarray) -> np.ndarray:
    """Return nodes as columns: numpy adds and compares rows of many faster than many rows of 16."""
    return np.ascontiguousarray(nodes.T)


def _sums(children: np.ndarray) -> np.ndarray:
    """Add the children of each node in their order, so that the sum of a node depends on them alone."""
    # Of a single column numpy would add pairs.
    return children.sum(axis=0) if children.shape[1] > 1 else children.cumsum(axis=0)[-1]


def _least_above_zero(children: np.ndarray) -> np.ndarray:
    least = children.min(axis=0)
    return least if least.all() else np.where(children > 0.0, children, np.inf).min(axis=0)


def _below(wanted: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
    """Return values below the limit, so that the running sum passes them within the node."""
    return np.minimum(wanted, np.nextafter(limit, 0.0))


#: Sets the draws of a seed apart from those of other orders.
_PRIORITY = 4


@dataclass(frozen=True)
class Prioritized:
    """Settings of a loader that draws by priority; `store.loader(weights=el.Prioritized())`.

    Attributes:
        alpha: from 0 on: how much the priorities matter; 0 draws all units alike.
        beta: 0 to 1: how much the weights make up for it; 1 wholly. A loader's `beta` can be raised as the
            training goes on.
        epsilon: above 0, added to each priority, so that none is never drawn again; 0 if zero means that.
        weights: what the largest weight belongs to: "all" (the unit least likely to be drawn of all, so that
            a unit's weight depends on the priorities alone, as in the OpenAI Baselines and TorchRL) or
            "batch" (the least likely of the batch, so that each batch has a weight of 1, as in Dopamine).
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6
    weights: Literal["all", "batch"] = "all"

    def __post_init__(self) -> None:
        real_number("alpha", self.alpha)
        real_number("epsilon", self.epsilon)
        real_number("beta", self.beta, 1.0)
        one_of("weights", self.weights, ("all", "batch"))


class Priorities:
    """The priorities of numbered units, and the draws by them.

    A draw is a pure function of the seed, its number (epoch and place) and the priorities at that moment. So
    a batch is drawn when it is asked for, never ahead of time.

    Args:
        rule: how priorities are used.
        seed: of the draws.
        units: the number of units; each begins with the priority 1.
    """

    def __init__(self, rule: Prioritized, seed: int, units: int = 0) -> None:
        self._rule = rule
        self._seed = seed
        self._tree = SumTree(np.full(units, self.first))
        self._beta = rule.beta

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self._tree)

    @property
    def first(self) -> float:
        """(priority + epsilon) ** alpha of the priority 1."""
        return float(self._powers(1.0))

    @property
    def beta(self) -> float:
        """The exponent of the importance weights: 0 to 1."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = real_number("beta", beta, 1.0)

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that draws depend on beside the seed and the priorities."""
        return {
            # The word of states that earlier versions saved.
            "order": "Prioritised",
            "alpha": self._rule.alpha,
            "epsilon": self._rule.epsilon,
            "scale": self._rule.weights,
        }

    @property
    def powers(self) -> np.ndarray:
        """(priority + epsilon) ** alpha of each unit: float64, shape (n,); not to be written to."""
        return self._tree.values

    def draw(self, epoch: int, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw units, each independently.

        Args:
            epoch: which epoch.
            draws: int64, shape (b,): the numbers of the draws in it.

        Returns:
            The units, int64, and their weights, float64, both of shape (b,).

        Raises:
            InvalidArgumentError: all priorities are zero, or their sum is not finite.
        """
        total = self._tree.total
        if not 0.0 < total < math.inf:
            raise InvalidArgumentError(
                f"The priorities (with alpha={self._rule.alpha}) add up to {total}, so no unit can be drawn. "
                "Give one unit a priority above zero, or Prioritized(epsilon=...) one, and none so large."
            )
        units = self._tree.find(uniforms(hash_words(self._seed, epoch, _PRIORITY), draws))
        powers = self._tree.values[units]
        # Both N and the sum cancel out against the largest weight.
        least = self._tree.least if self._rule.weights == "all" else powers.min(initial=np.inf)
        return units, (least / powers) ** self.beta

    def change(self, units: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of some units, as `checked_update` gives them."""
        self._tree.change(units, self._powers(priorities))

    def remove(self, units: np.ndarray) -> None:
        """Let some units not be drawn until `change` sets their priorities."""
        self._tree.change(units, np.zeros(len(units)))

    def restore(self, powers: np.ndarray, beta: float | None = None) -> None:
        """Set the priorities of all units, as `powers` returned them, and beta unless it is None."""
        self._tree = SumTree(powers)
        self._beta = self._beta if beta is None else beta

    def state(self) -> dict[str, Any]:
        """Return all priorities, 8 bytes for each unit, and beta."""
        return {"priorities": self.powers.astype("<f8").tobytes(), "beta": self.beta}

    def _powers(self, priorities: np.ndarray | float) -> np.ndarray:
        shifted = np.asarray(priorities, np.float64) + self._rule.epsilon
        # Numpy's 0 ** 0 is 1: with alpha 0 all are drawn alike.
        return shifted**self._rule.alpha


def read_priorities(state: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """Return the powers and beta of a state.

    Raises:
        LoaderStateError: it has none.
    """
    try:
        powers = np.frombuffer(state["priorities"], "<f8").astype(np.float64)
        beta = real_number("beta", state["beta"], 1.0)
        if not np.isfinite(powers).all() or (powers < 0).any():
            raise ValueError("a priority is negative or not finite")
    except (TypeError, KeyError, ValueError, InvalidArgumentError) as error:
        raise LoaderStateError(
            f"This is no state of a loader that draws by priority: {error!r:.200}. Expected what its "
            "state_dict() gave."
        ) from error
    return powers, beta


def checked_update(units: Any, priorities: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the arguments of `update_priorities` as arrays.

    Args:
        units: whole numbers, each in [0, count).
        priorities: as many numbers.
        count: how many units there are.

    Returns:
        int64 and float64, both of shape (b,).

    Raises:
        InvalidArgumentError: a unit is none, a priority is negative or not finite, or their numbers differ.
    """
    places, values = _array("units", units), _array("priorities", priorities)
    if not places.size and not values.size:
        return np.zeros(0, np.int64), np.zeros(0)
    if places.ndim != 1 or places.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"units has the shape {places.shape} and the dtype {places.dtype}; expected whole numbers of the "
            "shape (b,): the 'unit' of a batch."
        )
    if values.shape != places.shape or values.dtype.kind not in "fiu":
        raise InvalidArgumentError(
            f"There are {len(places)} units, and priorities of the shape {values.shape} and the dtype "
            f"{values.dtype}; expected one number for each unit: the shape {places.shape}."
        )
    numbers = places.astype(np.int64)
    # Without their signs negative numbers are beyond any count.
    if numbers.view(np.uint64).max() >= count:
        number = int(np.flatnonzero((places < 0) | (places >= count))[0])
        raise InvalidArgumentError(
            f"There is no unit {places[number]} (number {number} of {len(places)}): units go from 0 to "
            f"{count - 1}. No priority was changed."
        )
    # NaN makes both comparisons false.
    if not (values.min() >= 0 and values.max() < math.inf):
        wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
        raise InvalidArgumentError(
            f"The priority of unit {places[wrong[0]]} (number {wrong[0]} of {len(places)}) is "
            f"{values[wrong[0]]}; {len(wrong)} are like that. Expected finite numbers from 0 on, such as the "
            "absolute TD errors. No priority was changed."
        )
    return numbers, values.astype(np.float64)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"{name} cannot be read as a numpy array: {error} Of a torch tensor give "
            "tensor.detach().cpu().float(). No priority was changed."
        ) from error
