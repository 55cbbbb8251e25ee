"""Tasks of Ray Data that read episodes of one version of a store.

The driver pins the version and deals out episodes, neighbours together. Each task opens the store at that
version and reads its episodes with the public API, so its values are those of a view and of a loader.
"""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any

import numpy as np
import pyarrow as pa
import ray.data
from ray.data import Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata

from ... import EpisodeView
from ...errors import InvalidArgumentError
from ...plugin import Address, expect, suggest, whole_number

#: A block of whole episodes has about so many bytes at most.
BLOCK_BYTES = 64 << 20
#: Of how many bytes a task makes sense at least, and how many tasks keep a cluster busy.
_TASK_BYTES, _TASKS = 8 << 20, 200


@dataclass(frozen=True)
class Reading:
    """How a task reads its episodes.

    Attributes:
        read: yields the blocks of a view. It gets the place of the view's first
            episode among all that are read, and the names to read.
        rows: int64, shape (E,): how many rows each episode gives.
        column_bytes: about how many bytes a row of each column takes in memory.
    """

    read: Callable[[EpisodeView, int, Sequence[str]], Iterator[pa.Table]]
    rows: np.ndarray
    column_bytes: Mapping[str, int]

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row of all columns takes in memory."""
        return max(sum(self.column_bytes.values()), 1)


class StoreDatasource(Datasource):
    """Episodes of one version of a store, in tasks of neighbouring episodes.

    Args:
        view: the episodes.
        address: the version that they are of.
        reading: what tasks make of them.
        tasks: how many tasks to make at most; None for a number that fits the size.
    """

    def __init__(self, view: EpisodeView, address: Address, reading: Reading, tasks: int | None) -> None:
        super().__init__()
        self._projection_map: dict[str, str] | None = None
        self._positions, self._address, self._reading = view.positions, address, reading
        total, row_bytes = int(reading.rows.sum()), reading.row_bytes
        if tasks is None:
            capacity = min(max(-(-total // _TASKS), _TASK_BYTES // row_bytes), BLOCK_BYTES // row_bytes)
            edges = _row_group_edges(view, reading.rows, capacity)
        else:
            capacity = -(-total // tasks)
            edges = np.arange(len(view))
        #: The episodes of each task. They do not depend on the cluster, so neither do rows and blocks.
        self.parts = _joined(edges, reading.rows, max(capacity, 1))

    def get_name(self) -> str:
        """Return the name of the tasks."""
        return "Episodelake"

    def supports_projection_pushdown(self) -> bool:
        """Return True: tasks read the columns that are asked for."""
        return True

    def apply_projection(self, projection_map: dict[str, str] | None) -> Datasource:
        """Return this source with fewer columns.

        Raises:
            InvalidArgumentError: there is no such column.
        """
        check_columns(tuple(projection_map or ()), list(self._reading.column_bytes), "the dataset")
        return super().apply_projection(projection_map)

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of the chosen columns of all rows."""
        return int(self._reading.rows.sum()) * self._row_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return the tasks, whatever `parallelism` is: blocks that Ray would split cut episodes."""
        return [self._task(part, per_task_row_limit) for part in self.parts]

    @property
    def _columns(self) -> tuple[str, ...]:
        known, chosen = self._reading.column_bytes, self._projection_map
        return tuple(name for name in known if chosen is None or name in chosen)

    @property
    def _row_bytes(self) -> int:
        return sum(self._reading.column_bytes[name] for name in self._columns)

    def _task(self, part: slice, limit: int | None) -> ReadTask:
        rows = self._reading.rows[part]
        count = int(rows.sum())
        blocks = Address.groups(rows, max(BLOCK_BYTES // self._reading.row_bytes, 1))
        read = partial(
            _blocks,
            self._address,
            [self._positions[part][block] for block in blocks],
            part.start,
            self._reading.read,
            self._columns,
        )
        metadata = BlockMetadata(count, count * self._row_bytes, None, None)
        return ReadTask(read, metadata, per_task_row_limit=limit)


def _row_group_edges(view: EpisodeView, rows: np.ndarray, capacity: int) -> np.ndarray:
    """Return the places of episodes at which tasks may begin, so that no two decode the same row group.

    Segments with more rows than the capacity are cut at their row groups, others are not.
    """
    blocks = view.context.blocks
    chosen = blocks.snapshot.pointers.chosen(view.positions)
    begins = np.flatnonzero(np.diff(chosen.segment, prepend=-1))
    edges = []
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(rows)], strict=True):
        edges.append(np.array([begin]))
        if int(rows[begin:end].sum()) > capacity:
            starts = blocks.file(chosen.segments[chosen.segment[begin]]).starts
            group = np.searchsorted(starts, chosen.row_start[begin:end], side="right")
            edges.append(begin + 1 + np.flatnonzero(np.diff(group)))
    return np.concatenate(edges)


def _joined(edges: np.ndarray, rows: np.ndarray, capacity: int) -> list[slice]:
    """Return groups of about `capacity` rows that begin at some of the edges."""
    bounds = [*edges.tolist(), len(rows)]
    groups = Address.groups(np.add.reduceat(rows, edges), capacity) if len(edges) else []
    return [slice(bounds[group.start], bounds[group.stop]) for group in groups]


def _blocks(
    address: Address,
    blocks: Sequence[np.ndarray],
    first: int,
    read: Callable[[EpisodeView, int, Sequence[str]], Iterator[pa.Table]],
    columns: Sequence[str],
) -> Iterator[pa.Table]:
    view = address.open()
    for positions in blocks:
        yield from read(EpisodeView(view.context.choose(positions)), first, columns)
        first += len(positions)


def check_path(path: str | PathLike[str]) -> None:
    """Refuse a store that tasks cannot open.

    Raises:
        InvalidArgumentError: it is in the memory of this process, or neither a path nor a URL.
    """
    expected = "the store's folder or URL, as `store.url`, since every task opens it; where= chooses episodes"
    expect(isinstance(path, str | PathLike), "path", path, expected)
    if fspath(path).startswith("memory://"):
        raise InvalidArgumentError(f"{path!r} is in the memory of this process, which no task of Ray sees.")


def check_names(argument: str, names: Any) -> None:
    """Refuse what is no list of names.

    Raises:
        InvalidArgumentError: it is something else, such as a single name outside a list.
    """
    listed = isinstance(names, Collection) and not isinstance(names, str)
    expect(listed and all(isinstance(name, str) for name in names), argument, names, "a list of names")


def check_columns(columns: Sequence[str], known: Sequence[str], of: str) -> None:
    """Refuse names that are unknown.

    Raises:
        InvalidArgumentError: there is no such column.
    """
    for name in columns:
        if name not in known:
            raise InvalidArgumentError(
                f"There is no column {name!r} of {of}.{suggest(name, known)} There are: {', '.join(known)}."
            )


def dataset_of(view: EpisodeView, address: Address, reading: Reading, options: Mapping[str, Any]) -> Dataset:
    """Return the dataset that reads a view.

    Args:
        view, address, reading: as for `StoreDatasource`.
        options: those of `ray.data.read_datasource`.

    Raises:
        InvalidArgumentError: an option is unknown, or there is nothing to read.
    """
    options = dict(options)
    known = inspect.signature(ray.data.read_datasource).parameters.keys() - {"datasource", "read_args"}
    for name in options.keys() - known:
        raise InvalidArgumentError(
            f"ray.data.read_datasource has no option {name!r}.{suggest(name, sorted(known))} "
            f"There are: {', '.join(sorted(known))}."
        )
    tasks = options.pop("override_num_blocks", None)
    if tasks is not None:
        whole_number("override_num_blocks", tasks, 1)
    source = StoreDatasource(view, address, reading, tasks)
    if not source.parts:
        raise InvalidArgumentError(f"There is nothing to read: no unit fits into the {len(view)} episodes.")
    dataset = ray.data.read_datasource(source, override_num_blocks=len(source.parts), **options)
    # Its context is a copy of its own; otherwise blocks come as tasks end.
    dataset.context.execution_options.preserve_order = True
    return dataset
