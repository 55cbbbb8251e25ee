"""`Relabel`: replaces the reward, or any other column, by the result of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....store.errors import InvalidArgumentError
from ....store.reserved import NEXT_OBSERVATION
from ....store.schema import OBSERVATION, REWARD
from ..columns.gather import take_rows
from ..columns.step_arrays import StepArrays
from .on_read import DerivedColumns

#: A function gets about so many transitions at a time, so that what it makes on its way stays small.
_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class Relabel(DerivedColumns):
    """Replaces or adds a column, as a function of the values at each transition.

    It comes before all that is made of the column: with a relabelled `reward`, n-step rewards, returns to go
    and advantages are those of the new reward. (To change a batch after it was gathered, put a function of
    the batch in the list of transforms instead.)

    Args:
        key: the column; any but observations.
        function: gets an array (or a nested value) of shape (n, ...) for each of `of`, in that order, and
            gives an array of shape (n, ...). It is called for some transitions at a time, so each row may
            depend only on the same row of what it gets. To be used in spawned processes it must be picklable.
        of: the columns that it gets; `next_observation` may be among them.
    """

    key: str
    function: Callable[..., Any]
    of: Sequence[str] = (REWARD,)

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not callable(self.function):
            raise InvalidArgumentError(f"{self.function!r} cannot be called; expected a function.")
        if self.key in (OBSERVATION, NEXT_OBSERVATION):
            raise InvalidArgumentError(
                "Relabel does not change observations. Put a function that gets a batch and gives a batch in "
                "the list of transforms."
            )
        object.__setattr__(self, "of", (self.of,) if isinstance(self.of, str) else tuple(self.of))

    @property
    def reads(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return tuple(dict.fromkeys(OBSERVATION if name == NEXT_OBSERVATION else name for name in self.of))

    @property
    def writes(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (self.key,)

    @property
    def needs_last(self) -> bool:
        """See `EpisodeTransform`."""
        return NEXT_OBSERVATION in self.of

    def compute(self, arrays: StepArrays) -> Mapping[str, np.ndarray]:
        """See `DerivedColumns`.

        Raises:
            InvalidArgumentError: the function gave another number of values than it got.
        """
        index = arrays.index
        stepped = index.stepped
        if self.needs_last and index.missing is not None:
            stepped[index.last_transitions[index.missing]] = False
        parts = [self._called(arrays, rows) for rows in _stretches(stepped)]
        found = np.concatenate(parts) if parts else np.zeros(0)
        dtype = np.float64 if self.key == REWARD else found.dtype
        full = np.zeros((index.rows, *found.shape[1:]), dtype)
        full[stepped] = found
        return {self.key: full}

    def _called(self, arrays: StepArrays, rows: np.ndarray) -> np.ndarray:
        given = [
            take_rows(arrays.columns[OBSERVATION], rows + 1)
            if name == NEXT_OBSERVATION
            else take_rows(arrays.columns[name], rows)
            for name in self.of
        ]
        found = np.asarray(self.function(*given))
        if found.shape[:1] != rows.shape:
            raise InvalidArgumentError(
                f"The function of {self!r} got {len(rows)} transitions and gave an array of shape "
                f"{found.shape}; expected one value for each."
            )
        return found


def _stretches(stepped: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of all transitions, some at a time."""
    for first in range(0, len(stepped), _AT_ONCE):
        rows = np.flatnonzero(stepped[first : first + _AT_ONCE]) + first
        if len(rows):
            yield rows
