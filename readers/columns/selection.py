"""Selection of a loader: episodes or, in a store of several agents, those of single agents.

The rows of an agent are contiguous and look like the rows of a single-agent episode, so everything after this
module treats them as an episode of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
import pyarrow as pa

from ...store.agents import LANE_COLUMNS, RETURNS, Lanes, lanes_of
from ...store.common.arguments import expect, known_name
from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.names import TERMINATED, TRUNCATED
from ...store.parquet.page_checks import content_digests
from ...store.schema import StepSchema
from ...store.snapshot import Snapshot
from ...store.tables.table_files import Pointers
from ..frames import collect_episodes, positioned_episodes

#: The end reasons by their code in a batch; 0 means that the episode goes on.
END_REASONS = ("", "terminated", "truncated", "cut", "interrupted")
END_TYPE = pl.Enum(END_REASONS)


@dataclass(frozen=True)
class EpisodeIndex:
    """Episodes one after the other, each with a row for every observation: T + 1 rows for T transitions.

    Attributes:
        lengths: int64, shape (E,): transitions of each.
        end_reasons: int8, shape (E,): index into `END_REASONS`.
        numbers: int64, shape (E,): the number of each in the view; None if they are all of its episodes.
        agents: int64, shape (E,): the number of the agent of each; None for whole episodes.
        missing: bool, shape (E,): whether its last observation is missing; None if none is.
        left_out: whether units leave out a last transition whose next observation is missing.
    """

    lengths: np.ndarray
    end_reasons: np.ndarray
    numbers: np.ndarray | None = None
    agents: np.ndarray | None = None
    missing: np.ndarray | None = None
    left_out: bool = False

    @staticmethod
    def of(frame: pl.DataFrame, missing: np.ndarray | None = None) -> EpisodeIndex:
        """Return the index of rows of the episodes table: their `length` and `end_reason`, an `END_TYPE`."""
        return EpisodeIndex(
            frame["length"].to_numpy().astype(np.int64),
            frame["end_reason"].to_physical().to_numpy().astype(np.int8),
            missing=missing,
        )

    def __len__(self) -> int:
        """Return the number of episodes E."""
        return len(self.lengths)

    def __getitem__(self, some: slice | np.ndarray) -> EpisodeIndex:
        """Return the index of some of the episodes."""
        numbers = np.arange(len(self)) if self.numbers is None else self.numbers
        agents = None if self.agents is None else self.agents[some]
        missing = None if self.missing is None else self.missing[some]
        ends = self.lengths[some], self.end_reasons[some]
        return EpisodeIndex(*ends, numbers[some], agents, missing, self.left_out)

    def placed(self, starts: np.ndarray) -> EpisodeIndex:
        """Return the index for arrays with a part of each episode's rows: row t of episode e is at
        `starts[e] + t`. Only `starts` differs; it may be negative.
        """
        index = replace(self)
        vars(index)["starts"] = starts
        return index

    @property
    def last_seen(self) -> np.ndarray:
        """int64, shape (E,): the step of each episode's last observation."""
        return self.lengths if self.missing is None else self.lengths - self.missing

    @property
    def usable(self) -> np.ndarray:
        """int64, shape (E,): the transitions of each that units are made of, from the first one on."""
        return self.last_seen if self.left_out else self.lengths

    @cached_property
    def starts(self) -> np.ndarray:
        """int64, shape (E + 1,): the first row of each episode, and the number of all rows."""
        return np.concatenate([[0], np.cumsum(self.lengths + 1)])

    @property
    def rows(self) -> int:
        """Number of rows of all episodes."""
        return int(self.starts[-1])

    @property
    def transitions(self) -> int:
        """Number of transitions of all episodes."""
        return self.rows - len(self)

    @property
    def last_transitions(self) -> np.ndarray:
        """int64, shape (E,): the row of each episode's last transition."""
        return self.starts[1:] - 2

    @property
    def stepped(self) -> np.ndarray:
        """bool, shape (rows,): whether a transition leaves from a row."""
        stepped = np.ones(self.rows, bool)
        stepped[self.padding] = False
        return stepped

    @property
    def padding(self) -> np.ndarray:
        """int64, shape (E,): the row of each episode's last observation, at which nothing was done."""
        return self.starts[1:] - 1


def rows_digest(snapshot: Snapshot, pointers: Pointers) -> str:
    """Return a hash that identifies the rows of some episodes: where the store is, what its files hold, and
    which rows of them these are.

    Names alone do not: a foreign store may bear the id and the names of another.

    Raises:
        CorruptStoreError: a file is damaged or missing.
    """
    used, segment = np.unique(pointers.segment, return_inverse=True)
    places = [snapshot.segment_path(pointers.segments[number]) for number in used]
    identity = [str(snapshot.layout.root), *content_digests(places)]
    digest = hashlib.sha256(json.dumps(identity).encode())
    for part in (segment, pointers.row_start, pointers.row_count):
        digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()


_TERMINATED, _CUT, _INTERRUPTED = map(END_REASONS.index, (TERMINATED, "cut", "interrupted"))


@dataclass(frozen=True)
class Selection:
    """Episodes of a snapshot, or those of agents in them.

    Attributes:
        positions: int64: the episodes of the view in the snapshot, those of agents taken together.
        pointers: the rows of each episode.
        index: of the same episodes.
        schema: the columns of their steps, as those of a single-agent store.
        agents: the names that `index.agents` refers to; empty for whole episodes.
    """

    positions: np.ndarray
    pointers: Pointers
    index: EpisodeIndex
    schema: StepSchema
    agents: tuple[str, ...] = ()

    def part(self, some: slice | np.ndarray) -> Selection:
        """Return some of the episodes."""
        return replace(self, pointers=self.pointers.chosen(some), index=self.index[some])

    def spans(self, some: np.ndarray, first: np.ndarray, stop: np.ndarray) -> Selection:
        """Return some rows of some episodes, as if they were episodes.

        Args:
            some: int64, shape (n,): the episodes; one may be named several times.
            first, stop: int64, shape (n,): rows within the episode, at least two each.
        """
        part = self.part(some)
        pointers = replace(part.pointers, row_start=part.pointers.row_start + first, row_count=stop - first)
        # Readers mark the last transition of episodes that do not terminate.
        ends = np.where(stop > part.index.lengths, part.index.end_reasons, np.int8(_TERMINATED))
        index = replace(part.index, lengths=stop - first - 1, end_reasons=ends, missing=None)
        return replace(part, pointers=pointers, index=index)


def select(
    snapshot: Snapshot, positions: np.ndarray, agent: str | None = None, group: str | None = None
) -> Selection:
    """Return the episodes at some positions of a snapshot, or those of one agent or group in them.

    Raises:
        InvalidArgumentError: the store has several agents and none is chosen, or there is no such agent or
            group.
        CorruptStoreError: the episodes table is damaged.
    """
    schema = snapshot.schema
    if schema.groups:
        wanted = [pl.col("end_reason").cast(END_TYPE), "row_count", *LANE_COLUMNS, RETURNS]
        frame = positioned_episodes(snapshot, positions).select(wanted)
        return _agents_of(snapshot, positions, collect_episodes(snapshot, frame), agent, group)
    if agent is not None or group is not None:
        name = "agent" if group is None else "group"
        raise InvalidArgumentError(
            f"{name}={agent if group is None else group!r}, but the store has a single agent. Leave it out."
        )
    return whole_episodes(snapshot, positions)


def whole_episodes(snapshot: Snapshot, positions: np.ndarray) -> Selection:
    """Return episodes of all agents; with several, lengths are in steps of the environment.

    Raises:
        CorruptStoreError: the episodes table is damaged.
    """
    # First: files of an object store are then checked and read in one pass.
    pointers = snapshot.pointers.chosen(positions)
    frame = positioned_episodes(snapshot, positions).select("length", pl.col("end_reason").cast(END_TYPE))
    index = EpisodeIndex.of(collect_episodes(snapshot, frame), snapshot.missing_at(positions))
    return Selection(positions, pointers, index, snapshot.schema)


def check_chosen(schema: StepSchema, agent: object, group: object) -> None:
    """Refuse a choice of agents that a store of several agents cannot have.

    Raises:
        InvalidArgumentError: neither an agent nor a group is chosen, or no group has that name.
    """
    names = [group.name for group in schema.groups]
    if agent is None and group is None:
        raise InvalidArgumentError(
            "The episodes of this store have several agents: choose one with agent=..., all of a group with "
            f"group=... (its groups are {', '.join(names)}), or, in a loader, all of each step "
            "with joint=True."
        )
    expect(isinstance(agent, str | None), "agent", agent, "the name of an agent")
    if group is not None:
        known_name(group, names, f"The store has no group {group!r:.200}.", "Its groups are")


def _agents_of(
    snapshot: Snapshot, positions: np.ndarray, rows: pl.DataFrame, agent: str | None, group: str | None
) -> Selection:
    """Return the episodes of the chosen agents, in the order of the episodes and of their agents."""
    import pyarrow.compute as pc

    schema = snapshot.schema
    check_chosen(schema, agent, group)
    lanes = _lanes(snapshot, rows)
    chosen = np.ones(len(lanes.group), bool)
    if group is not None:
        chosen &= lanes.group == [each.name for each in schema.groups].index(group)
    if agent is not None:
        chosen &= pc.call_function("equal", [lanes.agent, pa.scalar(agent)]).to_numpy(zero_copy_only=False)
    groups = np.unique(lanes.group[chosen])
    if agent is not None and not len(groups):
        known = ", ".join(lanes.agent.unique().to_pylist())
        where = "" if group is None else f" in the group {group!r}"
        raise InvalidArgumentError(f"No episode has the agent {agent!r}{where}. The agents are: {known}.")
    if len(groups) > 1:
        names = ", ".join(schema.groups[number].name for number in groups)
        raise InvalidArgumentError(
            f"The agent {agent!r} has different spaces in different episodes: it is in the groups {names}. "
            "Choose one of them with group=... in addition."
        )
    number = int(groups[0]) if len(groups) else [each.name for each in schema.groups].index(str(group))
    names = _ordered(schema.groups[number].agents, lanes.agent.filter(pa.array(chosen)).unique().to_pylist())
    codes = pc.call_function("index_in", [lanes.agent], pc.SetLookupOptions(pa.array(names, pa.string())))
    episode = lanes.episode[chosen]
    index = EpisodeIndex(
        lanes.length[chosen],
        _end_reasons(lanes, rows["end_reason"].to_physical().to_numpy())[chosen],
        episode,
        codes.fill_null(-1).to_numpy()[chosen].astype(np.int64),
    )
    whole = snapshot.pointers.chosen(positions[episode])
    starts = whole.row_start + lanes.offset[chosen]
    pointers = replace(whole, row_start=starts, row_count=index.lengths + 1)
    return Selection(positions, pointers, index, schema.parts[number], names)


def _lanes(snapshot: Snapshot, rows: pl.DataFrame) -> Lanes:
    columns = ["row_count", *LANE_COLUMNS, RETURNS]
    table = rows.select(columns).to_arrow()
    stored = pa.schema([snapshot.schema.episodes.field(name) for name in columns])
    lanes = lanes_of(table.cast(stored), snapshot.schema.groups)
    if lanes.bad.any():
        raise CorruptStoreError(
            f"An episode of {snapshot.layout.root} has agents whose lengths contradict its rows. verify() "
            "names it."
        )
    return lanes


def _ordered(declared: Sequence[str], present: Sequence[str]) -> tuple[str, ...]:
    """Return the agents that are present: the group's in its order, then those that came later by name."""
    later = sorted(set(present).difference(declared))
    return (*(name for name in declared if name in set(present)), *later)


def _end_reasons(lanes: Lanes, whole: np.ndarray) -> np.ndarray:
    """Return how each agent's part ends, as `AgentEpisode.end_reason` does: int8."""
    open_end = np.where(whole[lanes.episode] == _INTERRUPTED, _INTERRUPTED, _CUT)
    flags = [END_REASONS.index(TERMINATED), END_REASONS.index(TRUNCATED)]
    return np.select([lanes.flags[:, 0], lanes.flags[:, 1]], flags, open_end).astype(np.int8)
