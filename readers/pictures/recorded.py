"""Frames that were recorded: images of the observation, read a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...store.errors import CorruptStoreError
from ..episode_data import EpisodeData
from .images import ImageColumn

#: Rows that are decoded at once.
_ROWS = 64


def recorded_frames(
    episode: EpisodeData, column: ImageColumn, steps: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each step with its frame, uint8 (H, W, 3), in the order of `steps`.

    Only the row groups that hold the wanted rows are read, one at a time, so memory is bounded by one of them
    however long the episode is.

    Args:
        episode: of one agent.
        column: the image.
        steps: in any order.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
    """
    file = episode._block.file
    rows = np.asarray(steps, np.int64) + episode._block.first + episode._start
    groups = np.searchsorted(file.starts, rows, side="right") - 1
    position = 0
    while position < len(rows):
        group = int(groups[position])
        stop = position + int(np.argmax(np.append(groups[position:] != group, True)))
        table = file.read([group], [column.name])
        if column.name not in table.column_names:
            raise CorruptStoreError(f"The file {file.path} has no column {column.name!r}.")
        cells = table.column(0)
        for begin in range(position, stop, _ROWS):
            chosen = rows[begin : min(stop, begin + _ROWS)] - int(file.starts[group])
            decoded = column.leaf.decode([cells.take(chosen)])
            for offset, frame in enumerate(column.rgb(decoded)):
                yield int(steps[begin + offset]), frame
        position = stop
