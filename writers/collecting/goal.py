"""When it is enough: so many transitions, or so many episodes, and which environment may still give some."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...store.errors import InvalidArgumentError
from .bar import CollectProgress
from .stats import Tally


@dataclass(frozen=True)
class Goal:
    """The goal of a call of `collect`.

    Attributes:
        steps: how many transitions; None if episodes are counted.
        episodes: how many episodes; None if transitions are counted.
        unbiased: whether each environment has a quota of episodes.
    """

    steps: int | None = None
    episodes: int | None = None
    unbiased: bool = False

    @staticmethod
    def of(steps: Any, episodes: Any, unbiased: Any) -> Goal:
        """Check what a caller asks for.

        Raises:
            InvalidArgumentError: both or neither of steps and episodes; no positive whole number; unbiased
                where steps are counted.
        """
        if (steps is None) == (episodes is None):
            got = "neither" if steps is None else f"steps={steps!r} and episodes={episodes!r}"
            raise InvalidArgumentError(
                f"collect was given {got}; expected exactly one of steps (how many transitions) and "
                "episodes (how many of them)."
            )
        if unbiased and episodes is None:
            raise InvalidArgumentError(
                "unbiased=True goes with episodes: it gives each environment a quota of episodes. With "
                "steps, nothing is chosen by its length."
            )
        return Goal(positive("steps", steps), positive("episodes", episodes), bool(unbiased))

    @property
    def total(self) -> int:
        """The number of steps or episodes to record."""
        return self.episodes if self.steps is None else self.steps  # type: ignore[return-value]

    def split(self, parts: int) -> list[Goal]:
        """Return the same in at most so many parts that differ by one at the most; none is empty."""
        shares = [share for share in even_shares(self.total, parts).tolist() if share]
        if self.steps is None:
            return [Goal(episodes=share, unbiased=self.unbiased) for share in shares]
        return [Goal(steps=share) for share in shares]


def positive(name: str, value: Any) -> int | None:
    """Return a whole number of at least 1, or None.

    Raises:
        InvalidArgumentError: it is something else.
    """
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool | np.bool_):
        raise InvalidArgumentError(f"{name}={value!r}: expected a whole number of at least 1.")
    return number


def even_shares(total: int, parts: int) -> np.ndarray:
    """`total` in `parts` whole shares, int64, the larger ones first."""
    shares = np.full(parts, total // parts, np.int64)
    shares[: total % parts] += 1
    return shares


class CollectProgressState:
    """Progress of a call: its counts, and the amount that may still be recorded.

    Args:
        goal: what is asked for.
        size: how many environments take part.
        late: whether ended episodes may be reported later.

    Attributes:
        late: the same; never where episodes are counted.
    """

    def __init__(self, goal: Goal, size: int, *, late: bool = False) -> None:
        self.goal = goal
        self.late = late and goal.steps is not None
        self.tally = Tally()
        self._total = goal.total
        #: Episodes that each environment may still give, int64 of shape (size,); None without quotas.
        self.quotas = None
        if goal.unbiased and goal.episodes is not None:
            self.quotas = even_shares(goal.episodes, size)

    @staticmethod
    def unbounded() -> CollectProgressState:
        """Return one that is never reached."""
        return CollectProgressState(Goal(steps=sys.maxsize), 1)

    @property
    def steps_left(self) -> int | None:
        """Transitions that may still be recorded; None if episodes are counted."""
        return None if self.goal.steps is None else self.goal.steps - self.tally.steps

    @property
    def episodes_left(self) -> int | None:
        """Episodes that may still be recorded; None if transitions are counted."""
        return None if self.goal.episodes is None else self.goal.episodes - self.tally.episodes

    @property
    def reached(self) -> bool:
        """True once the goal is reached."""
        return self.done >= self._total

    @property
    def done(self) -> int:
        """The number of steps or episodes recorded so far."""
        return self.tally.episodes if self.goal.steps is None else self.tally.steps

    def progress(self) -> CollectProgress:
        """Return the values for a display."""
        tally = self.tally
        return CollectProgress(
            self.done, self.goal.total, tally.steps, tally.episodes, tally.return_sum, tally.seconds
        )
