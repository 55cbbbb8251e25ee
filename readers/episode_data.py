"""`EpisodeData`: the values of one rollout, rebuilt from its rows.

`Episode` adds charts, pictures and replays, which read an `EpisodeData`. Nothing is read before it is asked
for; each attribute reads its own columns. Episodes that come from one iteration share the decoded row group,
so arrays are read-only views.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from typing import Any, Self

import numpy as np
import polars as pl

from ..store.dynamic.column_groups import EXTRA, INFO, METADATA, POLICY, ColumnGroup, merge_rows
from ..store.dynamic.values import load_json
from ..store.errors import CorruptStoreError, InvalidArgumentError
from ..store.frames import naming_frames
from ..store.layout import STEPS
from ..store.names import ACTION, OBSERVATION, POSITIONAL
from ..store.schema import StepSchema
from ..store.spaces import SpaceCodec
from ..store.spaces.codec import slice_batch
from ..store.spaces.flattening import check_flattened, flatten_values
from .blocks import Block, BlockReader
from .context import EpisodeRowReader


class EpisodeData:
    """Recorded values of an episode: T transitions, T+1 observations (T if the last one is missing).

    It can be pickled while the files of its version are there.

    Args:
        rows: where its row of the episodes table is found.
        position: its position in the snapshot.
        block: a block that holds its rows.
        start: the first of its rows in the block.
        length: number of transitions T.

    Attributes:
        position: its position in the snapshot.
        length: number of transitions T.
    """

    def __init__(self, rows: EpisodeRowReader, position: int, block: Block, start: int, length: int) -> None:
        self._rows = rows
        self._block = block
        self._start = start
        self._columns = rows.snapshot.steps_schema
        self.position = position
        self.length = length

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the episode is, not its arrays: the other process reads them from the store."""
        return self._restored, (self._rows, self.position)

    @classmethod
    def _restored(cls, rows: EpisodeRowReader, position: int) -> Self:
        blocks = BlockReader(rows.snapshot)
        return cls(rows, position, *blocks.single(position), blocks.snapshot.place(position)[2] - 1)

    @property
    def _row_count(self) -> int:
        """Number of its rows of steps."""
        return self.length + 1

    def _value(self, column: str) -> Any:
        table, index = self._rows.find(self.position)
        return table.column(column)[index].as_py()

    def _moment(self, column: str) -> datetime:
        # pyarrow would import pandas for it.
        table, index = self._rows.find(self.position)
        return pl.Series(table.column(column).slice(index, 1)).item()

    @cached_property
    def id(self) -> str:
        """`<run id>/<number>`; it never changes."""
        return self._value("episode_id")

    @property
    def run_id(self) -> str:
        """Id of the run that recorded it."""
        return self._value("run_id")

    @property
    def number(self) -> int:
        """Its number in its run, counted from 0 in the order in which episodes began."""
        return self._value("number")

    def __len__(self) -> int:
        """Return the number of transitions T."""
        return self.length

    @property
    def episode_return(self) -> float | list[float]:
        """Sum of the rewards in order of time; a list for vector rewards."""
        return self._value("episode_return")

    @property
    def terminated(self) -> bool:
        """True if the environment reported `terminated` on the last transition."""
        return self._value("terminated")

    @property
    def truncated(self) -> bool:
        """True if the environment reported `truncated` on the last transition."""
        return self._value("truncated")

    @property
    def end_reason(self) -> str:
        """`terminated`, `truncated`, `cut` (closed by the recorder) or `interrupted` (by a crash)."""
        return self._value("end_reason")

    @property
    def seed(self) -> int | None:
        """The seed of its reset, if known; of any size."""
        wide = self._value("wide_seed")
        if wide is None:
            return self._value("seed")
        try:
            return int(wide)
        except ValueError as error:
            raise CorruptStoreError(f"The seed of {self.id!r} is no number: {wide[:50]!r}.") from error

    @property
    def options(self) -> Any:
        """The options of its reset, or None."""
        text = self._value("options")
        return None if text is None else load_json(text, "the column options")

    @cached_property
    def metadata(self) -> dict[Any, Any]:
        """The episode's metadata."""
        table, index = self._rows.find(self.position)
        return merge_rows(METADATA, table.slice(index, 1))[0]

    @property
    def env_index(self) -> int | None:
        """Index of the sub-environment that it came from."""
        return self._value("env_index")

    @property
    def started_at(self) -> datetime:
        """Time at which its reset returned, UTC."""
        return self._moment("started_at")

    @property
    def ended_at(self) -> datetime:
        """Time at which it ended, UTC."""
        return self._moment("ended_at")

    @cached_property
    def _members(self) -> Mapping[str, EpisodeData]:
        """The agents of a multi-agent episode by name, each as an episode of its own."""
        return {}

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents of a multi-agent episode, in the order in which they appeared; else empty."""
        return tuple(self._members)

    @property
    def has_last_observation(self) -> bool:
        """False if its source lacked the last observation; then there are T observations instead of T+1."""
        missing = self._rows.snapshot.last_missing
        return missing is None or not missing[self.position]

    @property
    def _observation_count(self) -> int:
        return self.length + self.has_last_observation

    @cached_property
    def observations(self) -> Any:
        """T+1 observations, stacked: shape `(T+1, *shape)` in the space's dtype, nested as the space is.

        There are T of them if `has_last_observation` is False: readers never invent the last one.

        Ragged spaces (Text, Sequence, Graph, OneOf) give a list of T+1 values. Arrays are read-only views.

        Raises:
            CorruptStoreError: the segment is damaged; the message names the file.
        """
        return self._seen(self._own_schema.observation)

    @cached_property
    def actions(self) -> Any:
        """T actions, stacked like the observations."""
        return self._outcomes(self._own_schema.action)

    @cached_property
    def rewards(self) -> np.ndarray:
        """T rewards, float64, shape (T,) or (T, k); read-only."""
        return self._outcomes(self._own_schema.reward)

    @cached_property
    def terminations(self) -> np.ndarray:
        """T flags `terminated`, bool; read-only."""
        return self._flags("terminated")

    @cached_property
    def truncations(self) -> np.ndarray:
        """T flags `truncated`, bool; read-only."""
        return self._flags("truncated")

    def flattened(self, column: str = "observation") -> Any:
        """Return observations or actions as one vector each: shape (T+1, n), or (T, n) of actions.

        The vectors have the order and the dtype of `gymnasium.spaces.utils.flatten`: parts of Dict and Tuple
        spaces follow in the order of the space, arrays in C order, and numbers of Discrete and MultiDiscrete
        spaces are one-hot vectors.

        Args:
            column: "observation", "action", or a part of them such as "observation.arm"; only its columns are
                read.

        Returns:
            An array that belongs to the caller; of a multi-agent episode one for each agent, by name.

        Raises:
            InvalidArgumentError: there is no such column, or it has a part without a fixed shape (Text,
                Sequence, Graph, OneOf).
        """
        root, _, rest = column.partition(".")
        schema = self._own_schema
        whole = {OBSERVATION: schema.observation, ACTION: schema.action}.get(root)
        codec = whole and whole.part(f"{whole.root}.{rest}" if rest else whole.root)
        if codec is None:
            raise InvalidArgumentError(
                f"There is no {column!r} to flatten; expected 'observation', 'action' or a part of one."
            )
        check_flattened(codec.space, column)
        values = self._outcomes(codec) if root == ACTION else self._seen(codec)
        return flatten_values(codec.space, values, column)

    def _seen(self, codec: SpaceCodec) -> Any:
        with self._naming_frames(self._start):
            values = self._block.part(codec, of_transitions=False)
        first, after = self._start, self._start + self.length + 1
        if self._block.observed(codec) is None and self._rows.snapshot.last_missing is None:
            return slice_batch(values, first, after)
        first, after = (self._block.observations_before(codec, row) for row in (first, after))
        if after - first != self._observation_count:
            raise CorruptStoreError(
                f"{self._block.file.path} has {after - first} observations of {self.id!r}; expected "
                f"{self._observation_count}. verify() names such episodes."
            )
        return slice_batch(values, first, after)

    def _naming_frames(self, first: int) -> AbstractContextManager[None]:
        """Name this episode and its step in errors of frames; see `naming_frames`."""
        return naming_frames(repr(self.id), first)

    def _outcomes(self, codec: SpaceCodec) -> Any:
        values = self._block.part(codec, of_transitions=True)
        first = self._block.transitions_before(self._start)
        return slice_batch(values, first, first + self.length)

    def _flags(self, name: str) -> np.ndarray:
        first = self._block.transitions_before(self._start)
        flags = self._block.flags(name)[first : first + self.length]
        if len(flags) < self.length:
            raise CorruptStoreError(
                f"{self._block.file.path} has {len(flags)} flags where {self.id!r} has {self.length} "
                "transitions."
            )
        return flags

    @cached_property
    def infos(self) -> list[dict[Any, Any]]:
        """T+1 info mappings as recorded: row t came with observation t; absent keys are absent."""
        return self._dynamic(INFO)

    @cached_property
    def info_arrays(self) -> dict[str, Any]:
        """The infos by key: T+1 values each, like `policy`; None in a list where a row lacks the key.

        There are T if the last observation is missing, and with it the value.
        """
        return self._by_key(INFO)

    @cached_property
    def policy(self) -> dict[str, Any]:
        """Outputs of the policy by key: an array of T values, or T+1 if the last observation has one.

        Scalars of one type that are there at every step come as a numpy array, equally shaped arrays as one
        stacked array, dicts with the same keys at every step as a dict of such arrays, everything else as a
        list with None where absent. Of the keys `state` and `raw_action`, which `collect` writes, parts with
        the keys "0", "1", ... come as the tuple that they were.
        """
        return self._by_key(POLICY)

    @property
    def schema(self) -> StepSchema:
        """The spaces and columns of its steps."""
        return self._rows.snapshot.schema

    @property
    def _own_schema(self) -> StepSchema:
        """The spaces and columns of its rows; of one agent, those of its group."""
        return self.schema

    @property
    def _moments(self) -> np.ndarray:
        """int64, shape (T+1,): the step of the environment of each row."""
        return np.arange(self.length + 1)

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """Columns that its row got later (see `EpisodeStore.annotate`), by name; None where NULL."""
        return {name: self._value(name) for name in self._rows.snapshot.episode_annotations}

    @cached_property
    def step_annotations(self) -> dict[str, Any]:
        """Columns that its steps got later, by name: an array of T values, or of T+1 if the last row has one.

        Where a value is missing in between, a list with None there.
        """
        snapshot = self._rows.snapshot
        columns = {}
        for name, annotation in snapshot.annotation_files.annotations.items():
            values = self._block.added(snapshot, annotation, self._start, self.length + 1).to_pylist()
            columns[name] = stack(values[:-1] if values[-1] is None else values)
        return columns

    @cached_property
    def extra(self) -> dict[str, Any]:
        """The user's own step columns by key: T+1 values each, like `policy`.

        There are T if the last observation is missing, and with it the value.
        """
        return self._by_key(EXTRA)

    def frame(self) -> pl.DataFrame:
        """Return its rows of steps (T+1 for one agent), with columns of annotations, as a Polars frame."""
        snapshot = self._rows.snapshot
        added = snapshot.annotation_files.annotations
        columns = [column for column in self._columns if column.name not in added]
        overflow = snapshot.overflow(STEPS)
        table = self._block.shown(columns, overflow, self._start, self._row_count)
        for name, annotation in added.items():
            values = self._block.added(snapshot, annotation, self._start, self._row_count)
            table = table.append_column(name, values)
        with self._naming_frames(0):
            for video in self.schema.video:
                table = video.decoded(table)
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _dynamic(self, group: ColumnGroup, first: int = 0, count: int | None = None) -> list[dict[Any, Any]]:
        """Return the values of a group of columns by key, for some of its rows; absent keys are absent.

        Args:
            group: infos, policy outputs or own columns.
            first: the first row.
            count: how many; None for T+1.
        """
        count = self.length + 1 if count is None else count
        fields = [field for field in self._columns if group.owns(field)]
        if not fields:
            return [{} for _ in range(count)]
        return merge_rows(group, self._block.table(fields, self._start + first, count))

    def _by_key(self, group: ColumnGroup) -> dict[str, Any]:
        rows = self._dynamic(group)
        keys = dict.fromkeys(key for row in rows for key in row)
        stacked = {key: [row.get(key) for row in rows] for key in keys}
        if group is POLICY or not self.has_last_observation:
            stacked = {key: values if key in rows[-1] else values[:-1] for key, values in stacked.items()}
        by_key = {key: stack(values) for key, values in stacked.items()}
        if group is POLICY:
            by_key |= {key: positional(by_key[key]) for key in POSITIONAL if key in by_key}
        return by_key


def stack(values: list[Any]) -> Any:
    """Values of one kind as an array, dicts with the same keys as a dict of these, others as the list."""
    kinds = {type(value) for value in values}
    if kinds <= {float} or kinds == {int} or kinds == {bool}:
        array = np.array(values)
        # Of integers beyond 64 bits NumPy makes floats or objects.
        return values if kinds == {int} and array.dtype.kind not in "iu" else array
    if kinds == {np.ndarray} and len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    if kinds == {dict} and values[0] and len({frozenset(value) for value in values}) == 1:
        return {key: stack([value[key] for value in values]) for key in values[0]}
    return values


def positional(value: Any) -> Any:
    """Dicts with the keys "0", "1", ... as the tuples that they were recorded from, at every depth."""
    if isinstance(value, list):
        return [positional(item) for item in value]
    if not isinstance(value, dict):
        return value
    parts = {key: positional(part) for key, part in value.items()}
    places = [str(place) for place in range(len(parts))]
    return tuple(parts[place] for place in places) if parts and set(parts) == set(places) else parts
