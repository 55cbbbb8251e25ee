"""Loaders that draw units by priority: `PrioritisedFeed` draws, `PrioritisedLoader` takes new priorities.

A draw is a pure function of the seed, its number (epoch and place) and the priorities at that moment. So a
batch is drawn when it is asked for, never ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...store.errors import InvalidArgumentError, LoaderStateError
from .arguments import Asked
from .batch_source import Batching
from .feed import ArrayFeed, Feed, Places
from .loader import Loader
from .outputs import Output
from .permutation import hash_words, uniforms
from .priorities import Priorities, Prioritised, check_beta, checked_update, power
from .step_arrays import StepArrays
from .unit_index import UnitIndex
from .units.unit import Batch, Units

UNIT, WEIGHT = "unit", "weight"
PRIORITISED = 4


@dataclass(frozen=True)
class PrioritisedFeed:
    """Units of columns that are all at hand, drawn by priority; a batch also has `unit` and `weight`.

    Attributes:
        arrays, units, keys, unit_index: as for `ArrayFeed`.
        priorities: of all units.
        seed: of the draws.
    """

    arrays: StepArrays
    units: Units
    keys: Sequence[str]
    unit_index: UnitIndex
    priorities: Priorities
    seed: int

    @property
    def length(self) -> int:
        """Draws of an epoch: as many as there are units."""
        return len(self.priorities)

    @property
    def nbytes(self) -> int:
        """See `Feed`."""
        return self.arrays.nbytes

    def facts(self) -> dict[str, Any]:
        """See `Feed`."""
        return {}

    def batches(self, epoch: int, places: Places, batch_size: int) -> Iterator[Batch]:
        """See `Feed`; each batch is drawn by the priorities at the moment when it is asked for."""
        for first in range(0, places.count, batch_size):
            yield self._drawn(epoch, places.wrapped(first, first + batch_size))

    def pick(self, epoch: int, places: Places) -> Batch:
        """See `Picking`."""
        return self._drawn(epoch, places.wrapped(0, places.count))

    def _drawn(self, epoch: int, draws: np.ndarray) -> Batch:
        numbers, weights = self.priorities.draw(uniforms(hash_words(self.seed, epoch, PRIORITISED), draws))
        batch = self.units.gather(self.arrays, self.keys, self.unit_index.choose(numbers))
        return {**batch, UNIT: numbers, WEIGHT: weights}


class PrioritisedLoader(Loader):
    """A loader that draws units by priority, with replacement (Schaul et al. 2016).

    Batches also have `unit` (int64, shape (b,)), the units' numbers, and `weight` (float64, shape (b,)),
    their importance weights. All units begin with the priority 1.

    Args:
        feed: where units come from.
        batching, identity, transforms, output: as for `Loader`.
    """

    live = True

    def __init__(
        self,
        feed: PrioritisedFeed,
        batching: Batching,
        identity: Mapping[str, Any],
        transforms: Sequence[Callable[[Batch], Batch]] = (),
        output: Output | None = None,
    ) -> None:
        super().__init__(feed, batching, identity, transforms, output)
        self._priorities = feed.priorities

    @property
    def beta(self) -> float:
        """How much the weights make up for the priorities: 0 to 1. May be set at any time."""
        return self._priorities.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._priorities.beta = check_beta(beta)

    def update_priorities(self, units: Any, priorities: Any) -> None:
        """Set the priorities of some units; the next batch is drawn by them.

        Args:
            units: int64, shape (b,): `unit` of a batch. Where one is named twice the last priority counts.
            priorities: shape (b,), finite, from 0 on, such as absolute TD errors.

        Raises:
            InvalidArgumentError: a unit is none, a priority is negative or not finite, or their numbers
                differ; no priority was changed.
        """
        self._priorities.change(*checked_update(units, priorities, len(self._priorities)))

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, and all priorities: 8 bytes for each unit, as `bytes`."""
        powers = self._priorities.powers.astype("<f8").tobytes()
        return {**super().state_dict(), "priorities": powers, "beta": self.beta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where another loader stood, with its priorities: the same batches follow.

        Raises:
            LoaderStateError: as for `Loader`, or it holds no priorities of so many units.
        """
        powers, beta = powers_of_state(state)
        if powers.size != len(self._priorities):
            raise LoaderStateError(
                f"The state has the priorities of {powers.size} units; this loader has "
                f"{len(self._priorities)}. Open the same version of the store with the same arguments."
            )
        super().load_state_dict(state)
        self._priorities.restore(powers)
        self._priorities.beta = beta


def powers_of_state(state: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """The priorities and beta of a state.

    Raises:
        LoaderStateError: it has none.
    """
    try:
        powers = np.frombuffer(state["priorities"], "<f8").astype(np.float64)
        beta = check_beta(state["beta"])
        if not np.isfinite(powers).all() or (powers < 0).any():
            raise ValueError("a priority is negative or not finite")
    except (TypeError, KeyError, ValueError, InvalidArgumentError) as error:
        raise LoaderStateError(
            f"This is no state of a loader that draws by priority: {error!r:.200}. Expected what its "
            "state_dict() gave."
        ) from error
    return powers, beta


def check_prioritised(rule: Any, **others: Any) -> None:
    """Check the argument `prioritised` of a loader, and those that it leaves no room for.

    Raises:
        InvalidArgumentError: it is no `Prioritised`, or another order was asked for too.
    """
    if rule is None:
        return
    if not isinstance(rule, Prioritised):
        raise InvalidArgumentError(
            f"prioritised={rule!r}: expected Prioritised(alpha=0.6, beta=0.4, ...), or None."
        )
    # An expression is neither true nor false.
    given = [name for name, value in others.items() if value is not None and value is not False]
    if given:
        raise InvalidArgumentError(
            f"prioritised and {' and '.join(given)} were given; units are drawn one way. Leave one out."
        )


def prioritised_loader(
    feed: Feed,
    rule: Prioritised,
    asked: Asked,
    identity: Mapping[str, Any],
) -> PrioritisedLoader:
    """A loader of the units of a feed, which all begin with the priority 1.

    Raises:
        InvalidArgumentError: the feed has not all columns at hand.
    """
    if not isinstance(feed, ArrayFeed):
        raise InvalidArgumentError(
            "Units drawn by priority may be any next, so all columns must be at hand; this loader streams."
        )
    priorities = Priorities(rule, np.full(feed.length, power(rule, 1.0)))
    drawing = PrioritisedFeed(feed.arrays, feed.units, feed.keys, feed.unit_index, priorities, asked.seed)
    own = {"order": "Prioritised", "alpha": rule.alpha, "epsilon": rule.epsilon, "scale": rule.weights}
    return PrioritisedLoader(
        drawing, asked.batching, {**identity, **own}, asked.stages.on_batch, asked.output
    )
