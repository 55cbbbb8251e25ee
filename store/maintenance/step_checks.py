"""Checks of steps row by row, and of annotations beside them, against the episodes that point at them.

Each steps file is read once, row group by row group; all that is kept of it is one return and two flags for
each episode. All checks work on columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import CorruptStoreError
from ..files import Place
from ..schema import AGENT_ID, ENV_STEP, FLAGS, REWARD, StepSchema
from ..spaces import SpaceCodec
from ..tables.annotation_files import StepAnnotation
from .checks import Findings, check_file, column_types, read_groups
from .episode_checks import Episodes, stretches

_BATCH_ROWS = 16_384


@dataclass
class Segment:
    """The lanes whose rows lie in one steps file, ordered by their first row.

    A lane is one agent's rows of an episode; where there is one agent, an episode.

    Attributes:
        name: of the file.
        members: the rows of their episodes in `Episodes`.
        lanes: which lanes of `Episodes` they are.
        ids, starts, stops: their episodes' ids, first rows, and rows behind their last.
        agents, groups: their agents' names, and the indices of their groups; None where there is one agent.
        last_missing: whose last observation is missing.
        bad: whose rows were found to be wrong.
    """

    name: str
    members: np.ndarray
    lanes: np.ndarray
    ids: pa.Array
    starts: np.ndarray
    stops: np.ndarray
    agents: pa.Array | None
    groups: np.ndarray
    last_missing: np.ndarray
    bad: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.bad = np.zeros(len(self.members), bool)

    def group(self, table: pa.Table, first: int) -> _Group | None:
        """Return rows of the file from `first` on, as far as they belong to episodes."""
        rows = np.arange(first, first + table.num_rows)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        owned = owner >= 0
        owned[owned] = rows[owned] < self.stops[owner[owned]]
        if not owned.any():
            return None
        if not owned.all():
            table, rows, owner = table.filter(pa.array(owned)), rows[owned], owner[owned]
        after = self.stops[owner] - 1 - rows
        observed = (after > 0) | ~self.last_missing[owner]
        return _Group(table, owner, rows - self.starts[owner], after, self.groups[owner], observed)

    def spoil(self, first: int, count: int) -> None:
        """Record that some rows of the file cannot be read."""
        self.bad |= (self.starts < first + count) & (self.stops > first)


@dataclass(frozen=True)
class _Group:
    """Rows of lanes: the owner of each, its expected t, how many of its lane follow, its group, and whether
    it has an observation.
    """

    table: pa.Table
    owner: np.ndarray
    t: np.ndarray
    after: np.ndarray
    group: np.ndarray
    observed: np.ndarray

    def valid(self, column: str) -> np.ndarray:
        return self.table.column(column).is_valid().to_numpy()

    def true(self, column: str) -> np.ndarray:
        return self.table.column(column).fill_null(False).to_numpy()

    def strangers(self, segment: Segment) -> np.ndarray:
        """Return which rows name another episode than theirs, another agent, or another t."""
        wrong = self._of_others(segment)
        if segment.agents is not None:
            named = self.table.column(AGENT_ID)
            theirs = segment.agents.take(pa.array(self.owner))
            wrong |= ~pc.call_function("equal", [named, theirs]).fill_null(False).to_numpy()
        return wrong

    def _of_others(self, segment: Segment) -> np.ndarray:
        low, high = int(self.owner[0]), int(self.owner[-1]) + 1
        ids = segment.ids[low:high]
        encoded = self.table.column("episode_id").unify_dictionaries().combine_chunks()
        named = pc.call_function("index_in", [encoded.dictionary], pc.SetLookupOptions(ids))
        positions = np.append(named.fill_null(-low - 1).to_numpy() + low, -1)
        expected = self.owner
        if segment.agents is not None:
            # The lanes of an episode share its id: the first of them stands for all.
            first = pc.call_function("index_in", [ids], pc.SetLookupOptions(ids)).to_numpy()
            expected = low + first[self.owner - low]
        code = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        t = self.table.column("t").fill_null(-1).to_numpy()
        return (positions[code] != expected) | (t != self.t)


def segments_of(episodes: Episodes) -> dict[str, Segment]:
    """Return the lanes of the sound episodes by segment."""
    names = episodes.rows.column("segment").combine_chunks().dictionary_encode()
    code = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    start, count = episodes.numbers("row_start"), episodes.numbers("row_count")
    lanes = episodes.lanes
    owner, group = np.arange(len(start)), np.zeros(len(start), np.int64)
    if lanes is not None:
        owner, group = lanes.episode, lanes.group
        start, count = start[owner] + lanes.offset, lanes.length + 1
    among = np.flatnonzero(episodes.sound[owner])
    among = among[np.lexsort((start[among], code[owner[among]]))]
    segments = {}
    for first, last in stretches(code[owner[among]]) if len(among) else ():
        chosen = among[first:last]
        members = owner[chosen]
        name = names.dictionary[int(code[members[0]])].as_py()
        ids = episodes.ids.take(pa.array(members))
        agents = None if lanes is None else lanes.agent.take(pa.array(chosen))
        stops = (start + count)[chosen]
        missing = episodes.last_missing[members]
        segments[name] = Segment(
            name, members, chosen, ids, start[chosen], stops, agents, group[chosen], missing
        )
    return segments


class StepsCheck:
    """Reads steps files and compares them with the episodes that point at them."""

    def __init__(self, schema: StepSchema, episodes: Episodes, findings: Findings) -> None:
        self._schema = schema
        self._episodes = episodes
        self._findings = findings
        self._parts = schema.parts

    def check(self, parquet: pq.ParquetFile, place: Place, file: str, segment: Segment | None) -> None:
        """Read a whole file.

        Args:
            parquet, place, file: the open file, where it lies, and its name relative to the store.
            segment: its episodes; None if there are none, or if the columns cannot be compared.
        """
        if segment is not None:
            self._check_range(parquet.metadata.num_rows, segment)
        first = 0
        for index, table in enumerate(read_groups(parquet, place, file, self._findings)):
            count = parquet.metadata.row_group(index).num_rows
            if segment is not None and table is None:
                segment.spoil(first, count)
            group = segment.group(table, first) if segment is not None and table is not None else None
            if segment is not None and group is not None:
                tell = partial(self._tell, file, segment, group)
                message = "Rows of an episode have another episode_id, or their t is not 0, 1, 2, ..."
                tell("rows", group.strangers(segment), message)
                self._check_outcomes(segment, group, tell)
                self._check_values(file, segment, group, tell)
                self._add(file, segment, group)
            first += count
        if segment is not None:
            self._episodes.whole[segment.members] = True
            self._episodes.whole[segment.members[segment.bad]] = False

    def _check_range(self, rows: int, segment: Segment) -> None:
        beyond = segment.stops > rows
        if beyond.any():
            wrong = np.zeros(len(self._episodes.sound), bool)
            wrong[segment.members[beyond]] = True
            message = f"It points at rows behind the end of its segment, which has {rows} rows"
            self._episodes.tell(self._findings, "pointer", wrong, message)
            segment.bad |= beyond

    def _tell(
        self, file: str, segment: Segment, group: _Group, kind: str, wrong: np.ndarray, message: str
    ) -> None:
        """Report the episodes of some rows, each for its first fault only."""
        owners = np.unique(group.owner[wrong])
        owners = owners[~segment.bad[owners]]
        segment.bad[owners] = True
        members = np.unique(segment.members[owners[~self._episodes.quiet[segment.members[owners]]]])
        if len(members):
            examples = [repr(self._episodes.ids[member].as_py()) for member in members[:3].tolist()]
            self._findings.add(kind, file, message, examples, len(members))

    def _check_outcomes(self, segment: Segment, group: _Group, tell: Callable[..., None]) -> None:
        last = group.after == 0
        surplus, lacking = np.zeros(len(last), bool), np.zeros(len(last), bool)
        for name in (*(column.name for column in self._schema.action.fields), REWARD, *FLAGS):
            surplus |= group.valid(name) & last
        for name in (REWARD, *FLAGS):
            lacking |= ~group.valid(name) & ~last
        for number, part in enumerate(self._parts):
            own = group.group == number
            for column in part.action.required:
                lacking |= ~group.valid(column.name) & ~last & own
        early = (group.true(FLAGS[0]) | group.true(FLAGS[1])) & (group.after > 1)
        tell("flags", surplus, "The last row has an action, a reward or flags")
        tell("flags", lacking, "A row before the last one lacks its action, reward or flags")
        tell("flags", early, "A flag is set before the last transition")

    def _check_values(self, file: str, segment: Segment, group: _Group, tell: Callable[..., None]) -> None:
        lacking, foreign, surplus = np.zeros((3, len(group.owner)), bool)
        for number, part in enumerate(self._parts):
            own = group.group == number
            for column in part.observation.required:
                lacking |= ~group.valid(column.name) & own & group.observed
            for column in part.observation.fields if not group.observed.all() else ():
                surplus |= group.valid(column.name) & ~group.observed
            for column in (*part.observation.fields, *part.action.fields) if not own.all() else ():
                foreign |= group.valid(column.name) & ~own
        tell("rows", lacking, "A row lacks its observation")
        tell("rows", surplus, "The last row has an observation, which is missing by the table episodes")
        tell("rows", foreign, "A row has values of another group of agents")
        good = ~segment.bad[group.owner]
        for number, part in enumerate(self._parts):
            own = good & (group.group == number)
            self._decode(file, part.observation, group.table, own & group.observed)
            self._decode(file, part.action, group.table, own & (group.after > 0))
        if self._schema.groups:
            self._check_env_steps(segment, group, tell)

    def _check_env_steps(self, segment: Segment, group: _Group, tell: Callable[..., None]) -> None:
        """Check that the environment's steps grow along a lane; keep the last of each episode."""
        steps = group.table.column(ENV_STEP).fill_null(-1).to_numpy()
        falls = np.zeros(len(steps), bool)
        falls[1:] = (steps[1:] <= steps[:-1]) & (group.owner[1:] == group.owner[:-1])
        message = "env_step is NULL, or does not grow from row to row of an agent"
        tell("rows", falls | (steps < 0), message)
        np.maximum.at(self._episodes.env_steps, segment.members[group.owner], steps)

    def _decode(self, file: str, codec: SpaceCodec, table: pa.Table, chosen: np.ndarray) -> None:
        columns = table.select([column.name for column in codec.fields])
        if not chosen.all():
            columns = columns.filter(pa.array(chosen))
        for batch in columns.to_batches(max_chunksize=_BATCH_ROWS):
            try:
                codec.decode(batch.columns)
            except MemoryError:
                raise
            except Exception as error:  # A registered codec may raise anything.
                self._findings.add("rows", file, f"Values cannot be decoded: {error}")
                return

    def _add(self, file: str, segment: Segment, group: _Group) -> None:
        """Add the rewards to the returns, one after the other, and keep the flags of last transitions."""
        chosen = ~segment.bad[group.owner] & (group.after > 0)
        owner = group.owner[chosen]
        if not len(owner):
            return
        try:
            rewards = self._schema.reward.decode([group.table.column(REWARD).filter(pa.array(chosen))])
        except CorruptStoreError as error:
            self._findings.add("rows", file, str(error))
            segment.bad[owner] = True
            return
        low, high = int(owner[0]), int(owner[-1]) + 1
        lanes = segment.lanes[low:high]
        where = np.concatenate([np.arange(high - low), owner - low])
        for objective, values in enumerate(rewards.reshape(len(owner), -1).T):
            # A bin adds its weights in the order in which they come, as a plain loop does.
            weights = np.concatenate([self._episodes.returns[lanes, objective], values])
            self._episodes.returns[lanes, objective] = np.bincount(where, weights, high - low)
        ending = chosen & (group.after == 1)
        ended = segment.lanes[group.owner[ending]]
        for index, name in enumerate(FLAGS):
            self._episodes.flags[ended, index] = group.true(name)[ending]


def check_annotation(
    place: Place,
    file: str,
    annotation: StepAnnotation,
    expected: pa.Schema,
    segment: Segment,
    rows: int | None,
    findings: Findings,
) -> None:
    """Check that the file of a step annotation can be read and is aligned with its segment.

    Args:
        expected: the columns that it should have.
        rows: how many rows the segment has; None if that is not known.
    """
    parquet = check_file(place, file, None, findings, ["episode_id"])
    if parquet is None:
        return
    has = column_types(parquet)
    fits = all(has.get(column.name) == column.type for column in expected)
    if not fits:
        findings.add("annotation", file, f"It has the columns {has}; expected {expected}.")
    if rows is not None and parquet.metadata.num_rows != rows:
        message = f"It has {parquet.metadata.num_rows} rows; its segment has {rows}."
        findings.add("annotation", file, message)
        fits = False
    first = 0
    bad = np.zeros(len(segment.members), bool)
    for index, table in enumerate(read_groups(parquet, place, file, findings)):
        group = segment.group(table, first) if table is not None and fits else None
        if group is not None:
            # Rows without a value need not say whose they are.
            empty = ~(group.valid("episode_id") | group.valid("t") | group.valid(annotation.name))
            bad[np.unique(group.owner[group.strangers(segment) & ~empty])] = True
        first += parquet.metadata.row_group(index).num_rows
    if bad.any():
        wrong = list(dict.fromkeys(segment.ids.filter(pa.array(bad)).to_pylist()))
        message = "Its episode_id or t are not those of the steps beside them"
        findings.add("annotation", file, message, [repr(name) for name in wrong[:3]], len(wrong))
