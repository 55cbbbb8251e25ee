"""Iterating over many episodes, each row group read once and the next ones ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from .agents import make_episode
from .blocks import Block, BlockReader
from .context import ReadContext
from .episode import Episode

_READ_AHEAD = 2


#: A block, and the position, first row and number of rows of each consecutive episode in it.
_Stretch = tuple[Block, list[tuple[int, int, int]]]


def iterate(context: ReadContext) -> Iterator[Episode]:
    """Yield the episodes in their order.

    While one row group is looked at, the columns that were used of the ones before are read of the next ones,
    in background threads.
    """
    stretches = _stretches(context.blocks, context.all_positions)
    ahead: deque[tuple[_Stretch, Future[None] | None]] = deque()
    used: frozenset[str] = frozenset()
    with ThreadPoolExecutor(_READ_AHEAD, "episodelake read ahead") as pool:
        while True:
            depth = _READ_AHEAD if used else 0
            while len(ahead) <= depth and (following := next(stretches, None)) is not None:
                reading = pool.submit(following[0].load, used, threads=False) if used else None
                ahead.append((following, reading))
            if not ahead:
                return
            (block, members), reading = ahead.popleft()
            if reading is not None:
                reading.result()
            for position, start, count in members:
                yield make_episode(context.rows, position, block, start, count)
            used |= block.touched


def iterate_blocks(context: ReadContext) -> Iterator[_Stretch]:
    """Yield blocks of rows in the order of the episodes, none of them read yet.

    Each comes with the position, first row in the block and number of rows of its episodes.
    """
    return _stretches(context.blocks, context.all_positions)


def _stretches(blocks: BlockReader, positions: np.ndarray) -> Iterator[_Stretch]:
    pointers = blocks.snapshot.pointers
    current: _Stretch | None = None
    for position in positions.tolist():
        name = pointers.segments[pointers.segment[position]]
        start, count = int(pointers.row_start[position]), int(pointers.row_count[position])
        if current is None or not _holds(current[0], blocks.file(name).path, start, count):
            if current is not None:
                yield current
            file = blocks.file(name)
            groups = file.groups_of(start, count)
            first, stop = int(file.starts[groups[0]]), int(file.starts[groups[-1] + 1])
            if len(groups) > 1:
                first, stop = start, start + count
            current = blocks.block(file, groups, first, stop - first), []
        current[1].append((position, start - current[0].first, count))
    if current is not None:
        yield current


def _holds(block: Block, path: object, start: int, count: int) -> bool:
    return block.file.path == path and block.first <= start and start + count <= block.first + block.count
