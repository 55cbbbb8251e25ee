"""`Episode`: one rollout, rebuilt from its rows.

Nothing is read before it is asked for; each attribute reads its own columns. Episodes that come from one
iteration share the decoded row group, so arrays are read-only views.
"""

from __future__ import annotations

import contextlib
import warnings
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..store.annotation_files import episode_annotations
from ..store.batches import slice_batch
from ..store.errors import CorruptStoreError, InvalidArgumentError
from ..store.families import EXTRA, INFO, METADATA, POLICY, Family, merge_rows
from ..store.schema import StepSchema
from ..store.values import load_json
from .blocks import Block
from .cards.accessor import CardedEpisode
from .episode_rows import EpisodeRowReader
from .pictures.accessor import PicturedEpisode
from .plots.accessor import PlottedEpisode
from .replaying.environment import make_run_env
from .replaying.replay import ReplayReport, replay
from .replaying.run_envs import chosen_run, run_envs


class Episode(PlottedEpisode, PicturedEpisode, CardedEpisode):
    """One episode of a snapshot: T transitions, T+1 observations.

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

    @property
    def _row_count(self) -> int:
        """How many rows of steps it has."""
        return self.length + 1

    def _value(self, column: str) -> Any:
        table, index = self._rows.find(self.position)
        return table.column(column)[index].as_py()

    @cached_property
    def id(self) -> str:
        """`<run id>/<number>`; the same for ever."""
        return self._value("episode_id")

    @property
    def run_id(self) -> str:
        """The run that recorded it."""
        return self._value("run_id")

    @property
    def number(self) -> int:
        """Counts the episodes of its run from 0, in the order in which they began."""
        return self._value("number")

    def __len__(self) -> int:
        """Number of transitions T."""
        return self.length

    @property
    def episode_return(self) -> float | list[float]:
        """Sum of the rewards in order of time; a list for vector rewards."""
        return self._value("episode_return")

    @property
    def terminated(self) -> bool:
        """Whether the environment said `terminated` on the last transition."""
        return self._value("terminated")

    @property
    def truncated(self) -> bool:
        """Whether the environment said `truncated` on the last transition."""
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
        """What was kept with the episode."""
        table, index = self._rows.find(self.position)
        return merge_rows(METADATA, table.slice(index, 1))[0]

    @property
    def env_index(self) -> int | None:
        """Which sub-environment it came from."""
        return self._value("env_index")

    @property
    def started_at(self) -> datetime:
        """When its reset returned, UTC."""
        return self._value("started_at")

    @property
    def ended_at(self) -> datetime:
        """When it ended, UTC."""
        return self._value("ended_at")

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents of a multi-agent episode, in the order in which they appeared; else empty."""
        return ()

    def agent(self, agent_id: str) -> Episode:
        """One agent of a multi-agent episode, as an episode of its own.

        Raises:
            InvalidArgumentError: the episode has no such agent.
        """
        raise InvalidArgumentError(f"{self.id!r} has a single agent, and no {agent_id!r}.")

    @cached_property
    def observations(self) -> Any:
        """T+1 observations, stacked: shape `(T+1, *shape)` in the space's dtype, nested as the space is.

        Ragged spaces (Text, Sequence, Graph, OneOf) give a list of T+1 values. Arrays are read-only views.

        Raises:
            CorruptStoreError: the segment is damaged; the message names the file.
        """
        return slice_batch(self._block.observations(), self._start, self._start + self.length + 1)

    @cached_property
    def actions(self) -> Any:
        """T actions, stacked like the observations."""
        return self._outcomes("action")

    @cached_property
    def rewards(self) -> np.ndarray:
        """T rewards, float64, shape (T,) or (T, k); read-only."""
        return self._outcomes("reward")

    @cached_property
    def terminations(self) -> np.ndarray:
        """T flags `terminated`, bool; read-only."""
        return self._flags("terminated")

    @cached_property
    def truncations(self) -> np.ndarray:
        """T flags `truncated`, bool; read-only."""
        return self._flags("truncated")

    def _outcomes(self, root: str) -> Any:
        values = self._block.outcomes(root)
        first = self._block.transitions_before(self._start)
        return slice_batch(values, first, first + self.length)

    def _flags(self, name: str) -> np.ndarray:
        first = self._block.transitions_before(self._start)
        found = self._block.flags(name)[first : first + self.length]
        if len(found) < self.length:
            raise CorruptStoreError(
                f"{self._block.file.path} has {len(found)} flags where {self.id!r} has {self.length} "
                "transitions."
            )
        return found

    @cached_property
    def infos(self) -> list[dict[Any, Any]]:
        """T+1 info mappings as recorded: row t came with observation t; absent keys are absent."""
        return merge_rows(INFO, self._loose(INFO))

    @cached_property
    def policy(self) -> dict[str, Any]:
        """What the policy said, by key: an array of T values, or T+1 if the last observation has one.

        Scalars of one type that are there at every step come as a numpy array, equally shaped arrays as one
        stacked array, everything else as a list with None where absent.
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
        """int64, shape (T+1,): the step of the environment at which each row stands."""
        return np.arange(self.length + 1)

    def replay(self, env: Any = None, *, rtol: float = 0.0, atol: float = 0.0) -> ReplayReport:
        """Reset an environment with the recorded seed and options, take the recorded actions, and compare.

        Args:
            env: an environment of the same kind (a `gymnasium.Env`); None to make that of the run again, as
                `EpisodeStore.make_env` does without trust, and to close it afterwards.
            rtol, atol: how far numbers may be apart, as for `numpy.isclose`; with 0 for both they are
                compared exactly. NaN equals NaN.

        Returns:
            The first step at which an observation, a reward, terminated or truncated differs, if any does.
            Infos are not compared. An episode that was cut is played to where it was cut.

        Raises:
            InvalidArgumentError: `env` is no single environment.
            SpaceMismatchError: its spaces are not those of the store.
            EnvUnavailableError, UntrustedEnvError: without `env`, it cannot be made again.
        """
        if env is not None:
            return replay(self, env, rtol, atol)
        snapshot = self._rows.snapshot
        made, told = make_run_env(snapshot, chosen_run(run_envs(snapshot), self.run_id))
        if told is not None:
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        with contextlib.closing(made):
            return replay(self, made, rtol, atol)

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """Columns that its row got later (see `EpisodeStore.annotate`), by name; None where NULL."""
        columns = episode_annotations(self._rows.snapshot.episodes_schema)
        return {column.name: self._value(column.name) for column in columns}

    @cached_property
    def step_annotations(self) -> dict[str, Any]:
        """Columns that its steps got later, by name: an array of T values, or of T+1 if the last row has one.

        Where a value is missing in between, a list with None there.
        """
        snapshot = self._rows.snapshot
        found = {}
        for name, annotation in snapshot.annotation_files.annotations.items():
            values = self._block.added(snapshot, annotation, self._start, self.length + 1).to_pylist()
            found[name] = stack(values[:-1] if values[-1] is None else values)
        return found

    @cached_property
    def extra(self) -> dict[str, Any]:
        """The user's own step columns by key: T+1 values each, like `policy`."""
        return self._by_key(EXTRA)

    def frame(self) -> pl.DataFrame:
        """Its rows of steps (T+1 for a single agent), with the columns of annotations, as a Polars frame."""
        snapshot = self._rows.snapshot
        added = snapshot.annotation_files.annotations
        columns = [column for column in self._columns if column.name not in added]
        table = self._block.table(columns, self._start, self._row_count)
        for name, annotation in added.items():
            values = self._block.added(snapshot, annotation, self._start, self._row_count)
            table = table.append_column(name, values)
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _loose(self, family: Family) -> pa.Table:
        fields = [field for field in self._columns if family.owns(field)]
        count = self.length + 1
        if not fields:
            return pa.table({"t": pa.nulls(count)})
        return self._block.table(fields, self._start, count)

    def _by_key(self, family: Family) -> dict[str, Any]:
        rows = merge_rows(family, self._loose(family))
        keys = dict.fromkeys(key for row in rows for key in row)
        stacked = {key: [row.get(key) for row in rows] for key in keys}
        if family is POLICY:
            stacked = {key: values if key in rows[-1] else values[:-1] for key, values in stacked.items()}
        return {key: stack(values) for key, values in stacked.items()}

    def __repr__(self) -> str:
        """Id, length, return and end reason in one line."""
        return (
            f"Episode({self.id!r}, length={self.length}, episode_return={self.episode_return}, "
            f"end_reason={self.end_reason!r})"
        )


def stack(values: list[Any]) -> Any:
    """Values of one kind as an array, others as the list that they are."""
    kinds = {type(value) for value in values}
    if kinds <= {float} or kinds == {int} or kinds == {bool}:
        return np.array(values)
    if kinds == {np.ndarray} and len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    return values
