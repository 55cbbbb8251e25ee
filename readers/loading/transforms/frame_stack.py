"""`FrameStack`: stacks each observation with those before it, on reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ....store.errors import InvalidArgumentError
from ....store.reserved import NEXT_OBSERVATION
from ....store.schema import FLAGS, REWARD
from ..arguments import whole_number
from ..columns.episode_index import EpisodeIndex
from ..columns.gather import StackedRows
from ..columns.step_arrays import StepArrays
from ..output.tree import map_leaves
from .keys import replace_part
from .on_read import EpisodeTransform


@dataclass(frozen=True)
class FrameStack(EpisodeTransform):
    """Gives observations an axis of the last k frames, oldest first; memory keeps each frame once.

    `observation` and `next_observation` then have the shape (b, k, ...), those of windows (b, n, k, ...),
    each stack ending at its own step, as `gymnasium.wrappers.FrameStackObservation` gives them to a policy.
    A stack never reaches before its episode; it does reach before the beginning of a window.

    Args:
        k: frames of a stack.
        key: what is stacked: a column, or a part of one by its dotted name ("observation.image").
        pad: the padding before an episode's first frame: "first", that frame again (Gymnasium's padding
            "reset", and that of Atari's), or "zero".
    """

    k: int
    key: str = "observation"
    pad: Literal["first", "zero"] = "first"

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "k", whole_number("k", self.k, 1))
        if self.pad not in ("first", "zero"):
            raise InvalidArgumentError(f"pad={self.pad!r}: expected 'first' or 'zero'.")
        if self.key.partition(".")[0] == NEXT_OBSERVATION:
            raise InvalidArgumentError("key='observation' stacks next observations too; name that.")
        if self.key in (REWARD, *FLAGS):
            raise InvalidArgumentError(f"{self.key!r} cannot be stacked; expected observations or actions.")

    def prepare(self, arrays: StepArrays) -> StepArrays:
        """See `EpisodeTransform`.

        Raises:
            InvalidArgumentError: there is nothing of that name, or it is stacked already.
        """
        before = _rows_before(arrays.index, self.k)

        def stacked(leaf: np.ndarray | StackedRows) -> StackedRows:
            if isinstance(leaf, StackedRows):
                raise InvalidArgumentError(f"{self!r}: {self.key!r} is stacked already.")
            return StackedRows(leaf, before, self.k, self.pad == "zero")

        columns = replace_part(arrays.columns, self.key, lambda part: map_leaves(stacked, part))
        return StepArrays(arrays.index, columns)


def _rows_before(index: EpisodeIndex, k: int) -> np.ndarray:
    """Return the number of frames before each row in its episode, k - 1 at most."""
    rows = np.arange(index.rows) - np.repeat(index.starts[:-1], index.lengths + 1)
    return np.minimum(rows, k - 1).astype(np.min_scalar_type(k - 1))
