"""Selection of the steps that a video shows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...store.errors import InvalidArgumentError
from ..episode_data import EpisodeData

#: How `steps` can be given.
Steps = int | slice | Sequence[int] | np.ndarray | None


def chosen_steps(episode: EpisodeData, steps: Steps, count: int) -> range | list[int]:
    """Return the steps that are asked for, each below `count`.

    Args:
        episode: names it in errors.
        steps: counted from 0, or from the end if negative.
        count: how many steps there are to show.

    Raises:
        InvalidArgumentError: one is outside, or is no whole number; or there is none.
    """
    if steps is None:
        return range(count)
    if isinstance(steps, slice):
        try:
            found: range | list[int] = range(count)[steps]
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"steps={steps!r} is no slice of steps: {error}.") from error
    else:
        found = [_step(step, count) for step in ([steps] if np.ndim(steps) == 0 else list(steps))]  # type: ignore[arg-type]
    if not len(found):
        raise InvalidArgumentError(f"steps={steps!r} chooses none of the {count} steps of {episode.id}.")
    return found


def _step(step: Any, count: int) -> int:
    try:
        number = operator.index(step)
    except TypeError as error:
        raise InvalidArgumentError(f"{step!r} is no step; expected whole numbers.") from error
    if isinstance(step, bool) or not -count <= number < count:
        raise InvalidArgumentError(f"There is no step {step!r}: the episode has the steps 0 to {count - 1}.")
    return number % count
