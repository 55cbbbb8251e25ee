"""Iterating over many episodes, each row group read once and the next ones ahead; and slices of positions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ..store.errors import InvalidArgumentError
from .agents import make_episode
from .blocks import Block, BlockReader
from .episode import Episode
from .episode_rows import EpisodeRowReader

_READ_AHEAD = 2


@dataclass
class _Stretch:
    """Consecutive episodes that lie in the same row groups."""

    block: Block
    members: list[tuple[int, int, int]] = field(default_factory=list)


def iterate(blocks: BlockReader, rows: EpisodeRowReader, positions: np.ndarray) -> Iterator[Episode]:
    """Yield the episodes at `positions` in this order.

    While one row group is looked at, the columns that were used of the ones before are read of the next ones,
    in background threads.
    """
    stretches = _stretches(blocks, positions)
    ahead: deque[tuple[_Stretch, Future[None] | None]] = deque()
    used: frozenset[str] = frozenset()
    with ThreadPoolExecutor(_READ_AHEAD, "episodelake read ahead") as pool:
        while True:
            depth = _READ_AHEAD if used else 0
            while len(ahead) <= depth and (following := next(stretches, None)) is not None:
                reading = pool.submit(following.block.load, used, threads=False) if used else None
                ahead.append((following, reading))
            if not ahead:
                return
            stretch, reading = ahead.popleft()
            if reading is not None:
                reading.result()
            for position, start, count in stretch.members:
                yield make_episode(rows, position, stretch.block, start, count)
            used |= stretch.block.touched


def _stretches(blocks: BlockReader, positions: np.ndarray) -> Iterator[_Stretch]:
    pointers = blocks.snapshot.pointers
    current: _Stretch | None = None
    for position in positions.tolist():
        name = pointers.segments[pointers.segment[position]]
        start, count = int(pointers.row_start[position]), int(pointers.row_count[position])
        if current is None or not _holds(current.block, blocks.file(name).path, start, count):
            if current is not None:
                yield current
            file = blocks.file(name)
            groups = file.groups_of(start, count)
            first, stop = int(file.starts[groups[0]]), int(file.starts[groups[-1] + 1])
            if len(groups) > 1:
                first, stop = start, start + count
            current = _Stretch(blocks.block(file, groups, first, stop - first))
        current.members.append((position, start - current.block.first, count))
    if current is not None:
        yield current


def _holds(block: Block, path: object, start: int, count: int) -> bool:
    return block.file.path == path and block.first <= start and start + count <= block.first + block.count


def checked_slice(key: slice) -> slice:
    """A slice of positions, as it is.

    Raises:
        InvalidArgumentError: it has other parts than whole numbers, or a step of 0.
    """
    parts = (key.start, key.stop, key.step)
    if not all(part is None or isinstance(part, int | np.integer) for part in parts):
        raise InvalidArgumentError(f"{key!r} is no slice of positions; expected whole numbers, as [10:20].")
    if key.step is not None and not key.step:
        raise InvalidArgumentError(f"{key!r} has the step 0; expected another number, as in [::2].")
    return key
