"""Rows of RLlib joined to episodes: an index of the whole source first, then some thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gymnasium import Space, spaces

from ...errors import DatasetError, UnsupportedSpaceError
from ...plugin import ForeignTable, ImportOptions, elements_of
from ...plugin.columns import (
    ACTION,
    EPISODE,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    escape,
    escape_distinct,
)
from ...writers.importing.columns import array_space, column_of, discrete_space
from ...writers.importing.episode_rows import (
    FOLLOWS,
    NOTHING_LEFT,
    RowLayout,
    SpanDataset,
    count_endings,
    differing,
)
from .blocks import NUMBERING, Block
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
    *NUMBERING,
    *KEYS,
)


class RowsDataset(SpanDataset[Span]):
    """Episodes from blocks of rows.

    Raises:
        DatasetError: a row has no episode or step.
        UnsupportedSpaceError: values suggest no space.
    """

    def __init__(
        self, path: Path, blocks: Sequence[Block], options: ImportOptions, left_out: Mapping[str, str]
    ) -> None:
        super().__init__()
        path = path.absolute()
        self._path = path
        self._options = options
        self._blocks = [block for block in blocks if block.rows]
        if not self._blocks:
            raise DatasetError(f"{path} has no rows.")
        self._starts = np.cumsum([0, *(block.rows for block in self._blocks)])
        self._cached: tuple[int, pa.Table] | None = None
        first = self._block(0)
        self._names = first.column_names
        numbering = {name: "which numbers RLlib's batches" for name in NUMBERING if name in self._names}
        for name, reason in sorted({**left_out, **numbering}.items()):
            self.losses.add(f"the column {name}, {reason}", self._rows)
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
    def _rows(self) -> int:
        return int(self._starts[-1])

    @property
    def _has_next(self) -> bool:
        return "new_obs" in self._names

    def spans(self) -> Sequence[Span]:
        """Return the episodes in the order in which they begin."""
        return self._spans

    def part_rows(self) -> int:
        """Return how many rows to read together."""
        return _PART_ROWS

    def load_spans(self, spans: Sequence[Span]) -> ForeignTable:
        """Read episodes as rows of `steps`.

        Raises:
            DatasetError: they are damaged.
        """
        try:
            return self._table(spans)
        except (pa.ArrowException, KeyError, TypeError) as error:
            raise DatasetError(
                f"{self._path} has columns of other types in some rows, in episode {spans[0].name} or one "
                f"of the {len(spans) - 1} after it: {error}"
            ) from error

    def _table(self, spans: Sequence[Span]) -> ForeignTable:
        rows = self._take(np.concatenate([span.rows for span in spans]))
        lengths = np.array([len(span.rows) for span in spans])
        if not spans[0].plain:
            kept = kept_rows(spans[0], rows, self._path)
            self.losses.add("rows that the source repeats", len(rows) - len(kept))
            rows, lengths = rows.take(pa.array(kept)), np.array([len(kept)])
        self._check(spans, rows, np.cumsum(lengths))
        kind = FOLLOWS if self._has_next else self._options.last_observation
        kinds = [kind] * len(spans)
        layout = RowLayout(kinds, lengths)
        lasts = column_of(rows, "rewards").take(pa.array(np.cumsum(lengths) - 1))
        count_endings(kinds, lasts.to_pylist(), self.losses)
        return ForeignTable(self._steps(spans, rows, layout), _episodes(spans, rows, layout))

    def _check(self, spans: Sequence[Span], rows: pa.Table, stops: np.ndarray) -> None:
        """Check that flags are at ends, and that observations continue from row to row."""
        inner = np.ones(len(rows), bool)
        inner[stops - 1] = False
        for name in ("terminateds", "truncateds"):
            early = flags_of(rows, name) & inner
            if early.any():
                key, row = _place(spans, stops, int(early.argmax()))
                raise DatasetError(
                    f"Episode {key} of {self._path} goes on after row {row}, where {name} is set."
                )
        if not self._has_next:
            return
        following, observed = column_of(rows, "new_obs"), column_of(rows, "obs")
        broken = differing(following.slice(0, len(rows) - 1), observed.slice(1)) & inner[:-1]
        if not broken.any():
            return
        key, row = _place(spans, stops, int(broken.argmax()))
        if not self._has_steps:
            raise DatasetError(
                f"Episode {key} of {self._path}: `obs` of row {row + 1} is not `new_obs` of row {row}, and "
                "no column `t` orders the rows. If they have another order, add `t`."
            )
        self.losses.add("new_obs that differ from the obs of the next row", int(broken.sum()))

    def _steps(self, spans: Sequence[Span], rows: pa.Table, layout: RowLayout) -> pa.Table:
        """Return T+1 rows for each episode, or T where its last transition is dropped."""
        following = column_of(rows, "new_obs") if self._has_next else None
        columns = {EPISODE: pa.array([span.name for span in spans]).take(layout.numbers)}
        columns |= dict(_leaves(OBSERVATION, layout.observed(column_of(rows, "obs"), following)))
        columns |= dict(_leaves(ACTION, layout.acted(column_of(rows, "actions"))))
        columns[REWARD] = layout.acted(column_of(rows, "rewards")).cast(pa.float64())
        for name, theirs in ((TERMINATED, "terminateds"), (TRUNCATED, "truncateds")):
            columns[name] = layout.acted(pa.array(flags_of(rows, theirs)))
        if not any(name in rows.column_names for name in ENDS):
            self.losses.add("ends of episodes, for which the source has no flags", len(spans))
        if "infos" in rows.column_names:
            columns |= self._infos(layout.arrived(column_of(rows, "infos")))
        for name in rows.column_names:
            if name not in _TAKEN:
                columns |= dict(_leaves(f"policy.{escape(name)}", layout.acted(column_of(rows, name))))
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
        """Return the least and greatest value of an integer column, or of a field in it."""
        limits = [0]
        for block in self._blocks:
            numbers = column_of(block.read([name]), name)
            for key in path:
                numbers = numbers.flatten()[numbers.type.get_field_index(key)]
            least, greatest = pc.call_function("min_max", [numbers]).as_py().values()
            limits += [least or 0, greatest or 0]
        return min(limits), max(limits)

    def _mapping(self) -> dict[str, str]:
        flags = {TERMINATED: "terminateds", TRUNCATED: "truncateds"}
        columns = {OBSERVATION: "obs", ACTION: "actions", REWARD: "rewards", **flags, "info": "infos"}
        columns |= {f"policy.{name}": name for name in self._names if name not in _TAKEN}
        if "terminateds" not in self._names and "dones" in self._names:
            columns[TERMINATED] = "dones"
        present = {ours: theirs for ours, theirs in columns.items() if theirs in self._names}
        return present | ({f"{OBSERVATION} of the last row": "new_obs"} if self._has_next else {})


def _place(spans: Sequence[Span], stops: np.ndarray, row: int) -> tuple[str, int]:
    index = int(np.searchsorted(stops, row, side="right"))
    return spans[index].name, row - (int(stops[index - 1]) if index else 0)


def _episodes(spans: Sequence[Span], rows: pa.Table, layout: RowLayout) -> pa.Table:
    columns = {EPISODE: pa.array([span.name for span in spans]), **layout.facts()}
    for name in _IDS:
        if name in rows.column_names:
            first = column_of(rows, name).take(pa.array(layout.first_rows))
            if first.null_count < len(first):
                columns[f"metadata.{name}"] = first
    return pa.table(columns)


def _leaves(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns of ours for a column of theirs: one for each field of a struct."""
    if not pa.types.is_struct(column.type):
        yield name, column
        return
    segments = escape_distinct([field.name for field in column.type])
    for field, part in zip(column.type, column.flatten(), strict=True):
        yield from _leaves(f"{name}.{segments[field.name]}", part)
