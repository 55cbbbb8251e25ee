"""Where the episodes of a table are: runs of rows with the same episode, checked for gaps and duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DatasetError
from ...writers.importing.columns import check_present, flags_of
from .mapping import Leaf, ResolvedMapping, leaves
from .rows import TableRows
from .spaces import LeafRanges


@dataclass(slots=True)
class Span:
    """The rows of one episode.

    Attributes:
        key: the values that name it.
        start, rows: where they are.
        step: the step of its last row so far; None without steps.
        fault: what is wrong with its steps; None if nothing is.
        terminated, truncated, done: whether a row has the flag set.
        acted: whether the last row has an action and a reward that follow its observation.
        followed: whether the last row has a next observation.
        source_key: what its first row gives as the metadata `source_key`.
        name: the key as text.
    """

    key: tuple[Any, ...]
    start: int
    rows: int = 0
    step: Any = None
    fault: str | None = None
    terminated: bool = False
    truncated: bool = False
    done: bool = False
    acted: bool = True
    followed: bool = False
    source_key: Any = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        parts = [str(part) for part in self.key]
        # Keys of several columns stay distinct.
        self.name = parts[0] if len(parts) == 1 else "/".join(quote(part, " :") for part in parts)

    @property
    def length(self) -> int:
        """How many rows there are."""
        return self.rows

    def is_adjacent_to(self, before: Span) -> bool:
        """Return whether it begins where another ends; a damaged one has no neighbour."""
        return not (self.fault or before.fault) and self.start == before.start + before.rows


class NotNeighboursError(Exception):
    """The rows of an episode are not neighbours, or not in order."""


def find_spans(
    rows: TableRows, mapping: ResolvedMapping, ranges: LeafRanges, kept: Sequence[str], *, sort: bool
) -> list[Span]:
    """Return the episodes of a table, in order; sort it first where that is needed.

    Args:
        ranges: looks at the columns whose values decide the spaces.
        kept: the columns of a sorted table.
        sort: whether the table may be sorted: else it has been.

    Raises:
        DatasetError: a row has no episode or no step, or the table cannot be sorted.
    """
    try:
        finder = _SpanFinder(rows, mapping)
        for batch in rows.batches(list(dict.fromkeys([*finder.columns, *ranges.columns]))):
            finder.add(batch)
            ranges.add(batch)
    except NotNeighboursError:
        if not sort:
            raise
        keys = [*mapping.episode, *([mapping.step] if mapping.step else [])]
        rows.sort(kept, keys)
        ranges.clear()
        return find_spans(rows, mapping, ranges, kept, sort=False)
    return finder.spans


class _SpanFinder:
    def __init__(self, rows: TableRows, mapping: ResolvedMapping) -> None:
        self._mapping = mapping
        self._place = rows.name
        self._next = _nullable_leaf(rows, mapping.following)
        self._has_next = mapping.following is not None
        # The last row of an episode may be that of the last observation alone: it has no action.
        self._acted = _nullable_leaf(rows, mapping.reward) or _nullable_leaf(rows, mapping.action)
        flags = (mapping.terminated, mapping.truncated, mapping.done)
        self._source_key = mapping.metadata.get("source_key")
        single = [name for name in (mapping.step, *flags, self._source_key) if name is not None]
        columns = [leaf.columns[0] for leaf in (self._next, self._acted) if leaf is not None]
        self.columns = list(dict.fromkeys([*mapping.episode, *single, *columns]))
        self.spans: list[Span] = []
        self._seen: set[tuple[Any, ...]] = set()
        self._count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        mapping = self._mapping
        check_present(batch, mapping.episode, "names the episode of each row", self._place, self._count)
        ids = [batch.column(name) for name in mapping.episode]
        starts = _starts(ids)
        first = tuple(each[0].as_py() for each in ids)
        goes_on = bool(self.spans) and self.spans[-1].key == first
        edges = [0, *starts.tolist(), batch.num_rows]
        flags = [_any(batch, name, edges) for name in (mapping.terminated, mapping.truncated, mapping.done)]
        acted, followed = (_valid(batch, leaf) for leaf in (self._acted, self._next))
        steps = None if mapping.step is None else self._steps(batch, mapping.step)
        faults = None if steps is None else _faults(steps, starts)
        for index, (start, stop) in enumerate(pairwise(edges)):
            if index or not goes_on:
                self._begin(tuple(each[start].as_py() for each in ids), self._count + start)
                if self._source_key is not None:
                    self.spans[-1].source_key = batch.column(self._source_key)[start].as_py()
            span = self.spans[-1]
            if steps is not None and faults is not None:
                self._check_steps(span, steps, faults, start, stop)
            span.rows += stop - start
            span.terminated |= bool(flags[0][index])
            span.truncated |= bool(flags[1][index])
            span.done |= bool(flags[2][index])
            span.acted = not mapping.action_leads_to and (acted is None or bool(acted[stop - 1]))
            span.followed = self._has_next and (followed is None or bool(followed[stop - 1]))
        self._count += batch.num_rows

    def _begin(self, key: tuple[Any, ...], start: int) -> None:
        if key in self._seen:
            raise NotNeighboursError
        self._seen.add(key)
        self.spans.append(Span(key, start))

    def _steps(self, batch: pa.RecordBatch, name: str) -> np.ndarray:
        check_present(batch, [name], "orders the rows of an episode", self._place, self._count)
        steps = batch.column(name).to_numpy(zero_copy_only=False)
        if steps.dtype.kind not in "iufmM":
            raise DatasetError(
                f"{self._place}: `{name}` has type {batch.column(name).type}; expected numbers or times."
            )
        return steps

    def _check_steps(self, span: Span, steps: np.ndarray, faults: np.ndarray, start: int, stop: int) -> None:
        places = (np.flatnonzero(faults[start + 1 : stop]) + start + 1).tolist()
        before = steps[start]
        if span.rows and _is_fault(span.step, before):
            self._fault(span, span.step, before)
        for row in places:
            self._fault(span, steps[row - 1], steps[row])
        span.step = steps[stop - 1]

    def _fault(self, span: Span, before: Any, step: Any) -> None:
        if step < before:
            raise NotNeighboursError
        if span.fault is None:
            what = f"step {step} twice" if step == before else f"a gap: step {step} follows {before}"
            span.fault = f"Episode {span.name} of {self._place} has {what} (column `{self._mapping.step}`)."


def _is_fault(before: Any, step: Any) -> bool:
    if step <= before:
        return True
    return np.asarray(step).dtype.kind in "iu" and int(step) - int(before) != 1


def _faults(steps: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return which rows do not follow the row before them; those of another episode do."""
    wrong = np.zeros(len(steps), bool)
    wrong[1:] = steps[1:] <= steps[:-1]
    if steps.dtype.kind in "iu":
        wrong[1:] |= steps[1:] != steps[:-1] + steps.dtype.type(1)
    wrong[starts] = False
    return wrong


def _starts(ids: Sequence[pa.Array]) -> np.ndarray:
    changes = np.zeros(max(0, len(ids[0]) - 1), bool)
    for each in ids:
        differ = pc.call_function("not_equal", [each.slice(1), each.slice(0, len(each) - 1)])
        changes |= differ.to_numpy(zero_copy_only=False)
    return np.flatnonzero(changes) + 1


def _any(batch: pa.RecordBatch, name: str | None, edges: Sequence[int]) -> np.ndarray:
    if name is None:
        return np.zeros(len(edges) - 1, bool)
    values = flags_of(batch.column(name), name).fill_null(False).to_numpy(zero_copy_only=False)
    return np.logical_or.reduceat(values, edges[:-1])


def _valid(batch: pa.RecordBatch, leaf: Leaf | None) -> np.ndarray | None:
    if leaf is None:
        return None
    return batch.column(leaf.columns[0]).is_valid().to_numpy(zero_copy_only=False)


def _nullable_leaf(rows: TableRows, tree: Any) -> Leaf | None:
    """Return the first leaf of a tree whose column may hold NULL."""
    first = next(leaves(tree), None) if tree is not None else None
    return first if first is not None and rows.may_have_nulls(first.columns[0]) else None
