"""Rows of RLlib joined to episodes: an index of the whole source first, then some thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gymnasium import Space, spaces

from ...store.errors import DatasetError, UnsupportedSpaceError
from ...store.names import (
    ACTION,
    EPISODE,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    escape,
    escape_distinct,
)
from ...store.schema import LAST_OBSERVATION, MISSING
from ...store.spaces.arrow import elements_of
from ...writers.importing.columns import array_space, column_of, discrete_space
from ...writers.importing.formats import ForeignDataset, ForeignTable, ImportOptions, Part
from ...writers.importing.last_observation import LOST, NOTHING_LEFT
from .blocks import Block
from .spans import ENDS, KEYS, Span, find_spans, flags_of, kept_rows

_PART_ROWS = 1 << 15
_IDS = ("agent_id", "module_id")
_TAKEN = (
    "obs",
    "new_obs",
    "actions",
    "rewards",
    "infos",
    "module_id",
    "unroll_id",
    "batch_id",
    "type",
    *KEYS,
)


class RowsDataset(ForeignDataset):
    """Episodes from blocks of rows.

    Raises:
        DatasetError: a row has no episode or step.
        UnsupportedSpaceError: values suggest no space.
    """

    def __init__(self, path: Path, blocks: Sequence[Block], options: ImportOptions) -> None:
        super().__init__()
        path = path.absolute()
        self.settings = options.last_observation
        self._path = path
        self._options = options
        self._blocks = [block for block in blocks if block.rows]
        if not self._blocks:
            raise DatasetError(f"{path} has no rows.")
        self._starts = np.cumsum([0, *(block.rows for block in self._blocks)])
        self._cached: tuple[int, pa.Table] | None = None
        first = self._block(0)
        self._names = first.column_names
        self._spans = find_spans(self._blocks, path)
        self._has_steps = self._spans[0].steps is not None
        if options.last_observation == "drop" and not self._has_next:
            short = sum(len(span.rows) == 1 for span in self._spans)
            self.losses.add(NOTHING_LEFT, short)
            self._spans = [span for span in self._spans if len(span.rows) > 1]
        self.count = len(self._spans)
        self.observation_space = options.observation_space or self._space(column_of(first, "obs"), "obs")
        self.action_space = options.action_space or self._space(column_of(first, "actions"), "actions")
        self.mapping = self._mapping()

    @property
    def _has_next(self) -> bool:
        return "new_obs" in self._names

    @property
    def _lacks_last(self) -> bool:
        return not self._has_next and self._options.last_observation == MISSING

    def parts(self) -> Iterator[Part]:
        """Yield some thousand rows at a time; episodes that may be damaged come alone."""
        some: list[Span] = []
        count = 0
        for span in self._spans:
            if some and (not span.plain or count + len(span.rows) > _PART_ROWS):
                yield self._part(some)
                some, count = [], 0
            if span.plain:
                some.append(span)
                count += len(span.rows)
            else:
                yield self._part([span])
        if some:
            yield self._part(some)

    def _part(self, chosen: list[Span]) -> Part:
        return Part(
            tuple(span.key for span in chosen),
            partial(self._load, chosen),
            lambda: (self._part([span]) for span in chosen),
        )

    def _load(self, chosen: list[Span]) -> ForeignTable:
        try:
            return self._table(chosen)
        except (pa.ArrowException, KeyError, TypeError) as error:
            raise DatasetError(
                f"{self._path} has columns of other types in some rows, in episode {chosen[0].key} or one "
                f"of the {len(chosen) - 1} after it: {error}"
            ) from error

    def _table(self, chosen: list[Span]) -> ForeignTable:
        rows = self._take(np.concatenate([span.rows for span in chosen]))
        lengths = np.array([len(span.rows) for span in chosen])
        if not chosen[0].plain:
            kept = kept_rows(chosen[0], rows, self._path)
            self.losses.add("rows that the source repeats", len(rows) - len(kept))
            rows, lengths = rows.take(pa.array(kept)), np.array([len(kept)])
        stops = np.cumsum(lengths)
        self._check(chosen, rows, stops)
        episodes = _episodes(chosen, rows, stops - lengths)
        if self._lacks_last:
            episodes = episodes.append_column(LAST_OBSERVATION.name, pa.repeat(MISSING, len(chosen)))
        return ForeignTable(self._steps(chosen, rows, stops), episodes)

    def _check(self, chosen: list[Span], rows: pa.Table, stops: np.ndarray) -> None:
        """Check that flags stand at ends, and that observations go on from row to row."""
        inner = np.ones(len(rows), bool)
        inner[stops - 1] = False
        for name in ("terminateds", "truncateds"):
            early = flags_of(rows, name) & inner
            if early.any():
                key, row = _place(chosen, stops, int(early.argmax()))
                raise DatasetError(
                    f"Episode {key} of {self._path} goes on after row {row}, where {name} is set."
                )
        if not self._has_next:
            return
        broken = _changes(rows.column("new_obs"), rows.column("obs")) & inner[:-1]
        if not broken.any():
            return
        key, row = _place(chosen, stops, int(broken.argmax()))
        if not self._has_steps:
            raise DatasetError(
                f"Episode {key} of {self._path}: `obs` of row {row + 1} is not `new_obs` of row {row}, and "
                "no column `t` orders the rows. If they have another order, add `t`."
            )
        self.losses.add("new_obs that differ from the obs of the next row", int(broken.sum()))

    def _steps(self, chosen: list[Span], rows: pa.Table, stops: np.ndarray) -> pa.Table:
        """Return T+1 rows for each episode, or T where its last transition is dropped."""
        count = len(rows)
        own, last = np.arange(count), np.zeros(count, bool)
        if self._has_next or self._options.last_observation != "drop":
            own, last = np.insert(own, stops, stops - 1), np.insert(last, stops, True)
        else:
            last[stops - 1] = True
        observed = column_of(rows, "obs")
        if self._has_next:
            observed = pa.concat_arrays([observed, column_of(rows, "new_obs").cast(observed.type)])
        else:
            self.losses.add(LOST[self._options.last_observation], len(stops))
        acted = pa.array(own, mask=last)
        first = np.concatenate([[True], last[:-1]])
        came = pa.array(np.concatenate([[0], own[:-1]]), mask=first)
        keys = np.repeat(np.arange(len(stops)), np.diff(np.flatnonzero(np.append(first, True))))
        columns = {EPISODE: pa.array([span.key for span in chosen]).take(pa.array(keys))}
        index = pa.array(np.where(last & self._has_next, own + count, own), mask=last & self._lacks_last)
        columns |= dict(_leaves(OBSERVATION, observed.take(index)))
        columns |= dict(_leaves(ACTION, column_of(rows, "actions").take(acted)))
        columns[REWARD] = column_of(rows, "rewards").take(acted).cast(pa.float64())
        for name, theirs in ((TERMINATED, "terminateds"), (TRUNCATED, "truncateds")):
            columns[name] = pa.array(flags_of(rows, theirs)).take(acted)
        if not any(name in rows.column_names for name in ENDS):
            self.losses.add("ends of episodes, for which the source has no flags", len(stops))
        if "infos" in rows.column_names:
            columns |= self._infos(column_of(rows, "infos").take(came))
        for name in rows.column_names:
            if name not in _TAKEN:
                columns |= dict(_leaves(f"policy.{escape(name)}", column_of(rows, name).take(acted)))
        return pa.table({name: column for name, column in columns.items() if column.type != pa.null()})

    def _infos(self, infos: pa.Array) -> dict[str, pa.Array]:
        if pa.types.is_struct(infos.type):
            return {name: column for name, column in _leaves("info", infos) if name != "info"}
        self.losses.add(f"infos of type {infos.type}", len(infos) - infos.null_count)
        return {}

    def _take(self, places: np.ndarray) -> pa.Table:
        """Return rows by their numbers."""
        blocks = np.searchsorted(self._starts, places, side="right") - 1
        order = np.argsort(blocks, kind="stable")
        tables = []
        for block in np.unique(blocks):
            own = places[order[blocks[order] == block]] - self._starts[block]
            table = self._block(int(block))
            whole = own[-1] - own[0] + 1 == len(own) and (np.diff(own) == 1).all()
            tables.append(table.slice(int(own[0]), len(own)) if whole else table.take(pa.array(own)))
        joined = pa.concat_tables(tables, promote_options="permissive")
        if (np.diff(order) == 1).all():
            return joined
        return joined.take(pa.array(np.argsort(order)))

    def _block(self, number: int) -> pa.Table:
        if self._cached is None or self._cached[0] != number:
            self._cached = number, self._blocks[number].read(None)
        return self._cached[1]

    def _space(self, column: pa.Array, *path: str) -> Space:
        """Return the space of a column or a field in it, from the types and shapes of its first values."""
        if pa.types.is_struct(column.type):
            parts = zip(column.type, column.flatten(), strict=True)
            return spaces.Dict({field.name: self._space(part, *path, field.name) for field, part in parts})
        flat, shape = elements_of(column)
        kind = flat.type
        if shape is None or not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            raise UnsupportedSpaceError(
                f"{self._path}, column {'.'.join(path)!r} has values of type {column.type}"
                f"{'' if shape else ', or of several shapes'}, which suggest no space. Pass "
                "observation_space= and action_space=."
            )
        if pa.types.is_integer(kind) and not shape:
            return discrete_space(*self._limits(*path))
        return array_space(np.dtype(kind.to_pandas_dtype()), shape)

    def _limits(self, name: str, *path: str) -> tuple[int, int]:
        """Return the least and greatest value of a column of whole numbers, or of a field in it."""
        limits = [0]
        for block in self._blocks:
            found = column_of(block.read([name]), name)
            for key in path:
                found = found.flatten()[found.type.get_field_index(key)]
            least, greatest = pc.call_function("min_max", [found]).as_py().values()
            limits += [least or 0, greatest or 0]
        return min(limits), max(limits)

    def _mapping(self) -> dict[str, str]:
        flags = {TERMINATED: "terminateds", TRUNCATED: "truncateds"}
        told = {OBSERVATION: "obs", ACTION: "actions", REWARD: "rewards", **flags, "info": "infos"}
        told |= {f"policy.{name}": name for name in self._names if name not in _TAKEN}
        if "terminateds" not in self._names and "dones" in self._names:
            told[TERMINATED] = "dones"
        found = {ours: theirs for ours, theirs in told.items() if theirs in self._names}
        return found | ({f"{OBSERVATION} of the last row": "new_obs"} if self._has_next else {})


def _place(chosen: Sequence[Span], stops: np.ndarray, row: int) -> tuple[str, int]:
    index = int(np.searchsorted(stops, row, side="right"))
    return chosen[index].key, row - (int(stops[index - 1]) if index else 0)


def _episodes(chosen: Sequence[Span], rows: pa.Table, starts: np.ndarray) -> pa.Table:
    columns = {EPISODE: pa.array([span.key for span in chosen])}
    for name in _IDS:
        if name in rows.column_names:
            found = column_of(rows, name).take(pa.array(starts))
            if found.null_count < len(found):
                columns[f"metadata.{name}"] = found
    return pa.table(columns)


def _changes(before: pa.ChunkedArray, after: pa.ChunkedArray) -> np.ndarray:
    """Return whether value t of one column differs from value t+1 of another, for all but the last t."""
    count = max(0, len(before) - 1)
    wrong = np.zeros(count, bool)
    pairs = zip(
        _leaves("", pa.concat_arrays(before.chunks)), _leaves("", pa.concat_arrays(after.chunks)), strict=True
    )
    for (_, left), (_, right) in pairs:
        left, right = left.slice(0, count), right.slice(1, count)
        flat = [elements_of(each)[0] for each in (left, right)]
        if len(flat[0]) != len(flat[1]) or not count or pa.types.is_nested(flat[0].type):
            continue
        values = [each.to_numpy(zero_copy_only=False) for each in flat]
        differ = values[0] != values[1]
        if values[0].dtype.kind == "f":
            differ &= ~(np.isnan(values[0]) & np.isnan(values[1]))
        if len(differ) % count == 0:
            wrong |= differ.reshape(count, -1).any(axis=1)
    return wrong


def _leaves(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns of ours for a column of theirs: one for each field of a struct."""
    if not pa.types.is_struct(column.type):
        yield name, column
        return
    segments = escape_distinct([field.name for field in column.type])
    for field, part in zip(column.type, column.flatten(), strict=True):
        yield from _leaves(f"{name}.{segments[field.name]}", part)
