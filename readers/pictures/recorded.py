"""Frames that were recorded: images of the observation, read a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...store.errors import CorruptStoreError
from .images import ImageColumn

if TYPE_CHECKING:
    from ..episode import Episode

#: Rows that are decoded at once.
_ROWS = 64


class RecordedFrames:
    """The images of an episode, in any order of steps.

    Only the row groups that hold the wanted rows are read, one at a time, so that memory is bounded by one of
    them however long the episode is.

    Args:
        episode: of one agent.
        column: the image.
    """

    def __init__(self, episode: Episode, column: ImageColumn) -> None:
        self._block = episode._block
        self._start = episode._start
        self._column = column
        self.size = column.size

    def frames(self, steps: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Each step with its frame, uint8 (H, W, 3), in the order of `steps`.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
        """
        file = self._block.file
        name = self._column.name
        first = self._block.first + self._start
        rows = np.asarray(steps, np.int64) + first
        groups = np.searchsorted(file.starts, rows, side="right") - 1
        position = 0
        while position < len(rows):
            group = int(groups[position])
            stop = position + int(np.argmax(np.append(groups[position:] != group, True)))
            table = file.read([group], [name])
            if name not in table.column_names:
                raise CorruptStoreError(f"The file {file.path} has no column {name!r}.")
            cells = table.column(0)
            for begin in range(position, stop, _ROWS):
                chosen = rows[begin : min(stop, begin + _ROWS)] - int(file.starts[group])
                decoded = self._column.leaf.decode([cells.take(chosen)])
                for offset, frame in enumerate(self._column.rgb(decoded)):
                    yield int(steps[begin + offset]), frame
            position = stop
