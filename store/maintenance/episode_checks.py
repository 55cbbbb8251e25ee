"""Checks of the episodes table: ids, runs and row pointers, read as columns.

`step_checks` goes on from here with the steps that these episodes point at; `Derived` and `compare` hold the
columns that follow from the steps against the stored ones, and a repair writes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..agents import LANE_COLUMNS, RETURNS, Lanes, lanes_of
from ..schema import FLAGS, LAST_OBSERVATION, MISSING, StepSchema
from ..tables.table_files import is_file_name
from .checks import Findings, Listing, check_as_readers, check_columns, check_file, read_groups

_COLUMNS = (
    *("episode_id", "run_id", "number", "length", "episode_return", *FLAGS, "end_reason"),
    *("segment", "row_start", "row_count"),
)
_MOST_ROWS = 1 << 40


@dataclass
class Episodes:
    """Episodes as columns, and what is known about them.

    Attributes:
        rows: the columns that are checked; only rows of files that can be read.
        files, file: names relative to the store, and for each row the index of its file there.
        objectives: the number of rewards of a step.
        last_missing: whose last observation is missing.
        sound: which have a segment and rows that belong to no other episode.
        quiet: of which a fault is known already that would show again in their steps.
        whole: whose steps were read and are what they should be.
        lanes: in a multi-agent store, where each agent's rows are; else None.
        returns: shape (n, k), the sums of the rewards of each lane; k = 1 for scalar ones. Where there is one
            agent, an episode is a lane.
        flags: shape (n, 2), terminated and truncated of the last transition of each lane.
        env_steps: in a multi-agent store, how many steps the environment had made at an episode's last row.
    """

    rows: pa.Table
    files: tuple[str, ...]
    file: np.ndarray
    objectives: int
    last_missing: np.ndarray
    lanes: Lanes | None = None
    sound: np.ndarray = field(init=False)
    quiet: np.ndarray = field(init=False)
    whole: np.ndarray = field(init=False)
    returns: np.ndarray = field(init=False)
    flags: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        count = self.rows.num_rows
        self.sound = np.ones(count, bool)
        self.quiet = np.zeros(count, bool)
        self.whole = np.zeros(count, bool)
        lanes = count if self.lanes is None else len(self.lanes.episode)
        self.returns = np.zeros((lanes, self.objectives))
        self.flags = np.zeros((lanes, 2), bool)
        self.env_steps = np.zeros(count, np.int64)

    @staticmethod
    def of(parts: Sequence[EpisodesFile], schema: StepSchema) -> Episodes:
        """Return the episodes of some files."""
        standard = _checked_columns(schema)
        rows = pa.concat_tables([standard.empty_table(), *(part.rows for part in parts)]).combine_chunks()
        return Episodes(
            rows,
            tuple(part.name for part in parts),
            np.repeat(np.arange(len(parts)), np.array([part.rows.num_rows for part in parts], np.int64)),
            schema.reward_shape[0] if schema.reward_shape else 1,
            np.concatenate([np.zeros(0, bool), *(part.last_missing for part in parts)]),
            lanes_of(rows, schema.groups) if schema.groups else None,
        )

    @property
    def ids(self) -> pa.Array:
        """The id of each."""
        chunks = self.rows.column("episode_id").chunks
        return chunks[0] if chunks else pa.array([], pa.string())

    @property
    def lane_counts(self) -> np.ndarray:
        """The number of agents of each episode."""
        if self.lanes is None:
            return np.ones(self.rows.num_rows, np.int64)
        return np.bincount(self.lanes.episode, minlength=self.rows.num_rows)

    def numbers(self, column: str) -> np.ndarray:
        """Return an integer column; -1 for NULL."""
        return self.rows.column(column).fill_null(-1).to_numpy()

    def tell(
        self,
        findings: Findings,
        kind: str,
        wrong: np.ndarray,
        message: str,
        say: Callable[[int], str] | None = None,
        mend: str | None = None,
    ) -> None:
        """Report the episodes of a mask, one fault for each file."""
        for index in np.unique(self.file[wrong]):
            where = np.flatnonzero(wrong & (self.file == index))
            examples = [f"{self.ids[i].as_py()!r}{say(i) if say else ''}" for i in where[:3].tolist()]
            findings.add(kind, self.files[index], message, examples, len(where), mend)


def _checked_columns(schema: StepSchema) -> pa.Schema:
    names = (*_COLUMNS, *((*LANE_COLUMNS, RETURNS) if schema.groups else ()))
    return pa.schema([schema.episodes.field(name) for name in names])


@dataclass(frozen=True)
class EpisodesFile:
    """A file of the episodes table.

    Attributes:
        name: relative to the store.
        rows: the columns that are checked.
        last_missing: as in `Episodes`.
    """

    name: str
    rows: pa.Table
    last_missing: np.ndarray


def read_file(listing: Listing, name: str, schema: StepSchema, findings: Findings) -> EpisodesFile | None:
    """Read a file of the episodes table, every page of it; None if it is damaged, which is a fault."""
    standard = _checked_columns(schema)
    place, file = listing.place / name, listing.file(name)
    parquet = check_file(place, file, listing.files[name], findings)
    usable = parquet is not None and check_columns(parquet, file, listing, schema.episodes, findings)
    read = list(read_groups(parquet, place, file, findings)) if parquet is not None else []
    groups = [group for group in read if group is not None]
    if not usable or len(groups) < len(read):
        return None
    check_as_readers(listing, name, findings)
    tables = [standard.empty_table(), *(group.select(standard.names).cast(standard) for group in groups)]
    missing = [np.zeros(0, bool), *map(_last_missing, groups)]
    return EpisodesFile(file, pa.concat_tables(tables), np.concatenate(missing))


def _last_missing(rows: pa.Table) -> np.ndarray:
    """Return which episodes lack their last observation: bool, one for each."""
    name = LAST_OBSERVATION.name
    if name not in rows.column_names or rows.schema.field(name).type != LAST_OBSERVATION.type:
        return np.zeros(rows.num_rows, bool)
    return pc.call_function("equal", [rows.column(name), pa.scalar(MISSING)]).fill_null(False).to_numpy()


def check_ids(
    episodes: Episodes,
    again: np.ndarray,
    runs: set[str] | None,
    excused: Collection[str],
    findings: Findings,
) -> None:
    """Each id is there once and follows from run and number; the run is known.

    Args:
        again: which have the id of an earlier one: bool, one for each.
        runs: the runs that there are; None if that is not known.
        excused: runs that may be missing, since their recovery has not come to an end.
    """
    run = episodes.rows.column("run_id")
    number = episodes.rows.column("number").cast(pa.string())
    number = pc.call_function("utf8_lpad", [number], pc.PadOptions(6, "0"))
    expected = pc.call_function("binary_join_element_wise", [run, number, pa.scalar("/")])
    equal = pc.call_function("equal", [episodes.ids, expected]).fill_null(False).to_numpy()
    episodes.tell(findings, "episode", ~equal, "The id is not made of run_id and number")
    episodes.tell(findings, "episode", again, "The episode is there more than once")
    if runs is not None:
        known = pa.array([*runs, *excused], pa.string())
        there = pc.call_function("is_in", [run], pc.SetLookupOptions(known)).to_numpy()
        episodes.tell(findings, "episode", equal & ~there, "The table runs lacks the run of the episode")
    episodes.quiet |= ~equal | again
    episodes.sound &= ~again


def check_pointers(episodes: Episodes, findings: Findings) -> None:
    """Each episode points at rows of a file in `steps`, and at no row of another episode."""
    start, count = episodes.numbers("row_start"), episodes.numbers("row_count")
    encoded = episodes.rows.column("segment").combine_chunks().dictionary_encode()
    code = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    plain = np.array([is_file_name(name) for name in encoded.dictionary.to_pylist()] + [False], bool)
    # The smaller bounds keep the sums below within 64 bits.
    possible = plain[code] & (start >= 0) & (count >= 2) & (start < _MOST_ROWS) & (count < _MOST_ROWS)
    episodes.tell(
        findings,
        "pointer",
        ~possible,
        "It points at rows that no segment can have",
        lambda i: f" at {count[i]} rows from row {start[i]} of {encoded[i].as_py()!r}",
    )
    episodes.sound &= possible
    if episodes.lanes is None:
        episodes.quiet |= episodes.numbers("length") != count - 1
    else:
        message = "Its agents cannot be what the table says, or do not have so many rows"
        episodes.tell(findings, "episode", episodes.lanes.bad & episodes.sound, message)
        episodes.sound &= ~episodes.lanes.bad
    among = np.flatnonzero(episodes.sound)
    among = among[np.lexsort((start[among], code[among]))]
    for first, last in stretches(code[among]):
        _check_overlaps(episodes, among[first:last], start, start + count, findings)


def stretches(codes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield runs of equal codes as index ranges."""
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    yield from itertools.pairwise(edges)


def _check_overlaps(
    episodes: Episodes, members: np.ndarray, start: np.ndarray, stop: np.ndarray, findings: Findings
) -> None:
    """Of episodes of one segment, ordered by their first row, none begins before the others end."""
    reach = np.maximum.accumulate(stop[members])
    over = np.flatnonzero(start[members[1:]] < reach[:-1]) + 1
    if not len(over):
        return
    farthest = np.maximum.accumulate(np.where(stop[members] == reach, np.arange(len(members)), 0))
    other = dict(zip(members[over].tolist(), members[farthest[over - 1]].tolist(), strict=True))
    wrong = np.zeros(len(start), bool)
    wrong[list(other)] = True
    episodes.tell(
        findings,
        "pointer",
        wrong,
        "It points at rows of another episode",
        lambda i: f" and {episodes.ids[other[i]].as_py()!r}",
    )
    episodes.sound[[*other, *other.values()]] = False


@dataclass(frozen=True)
class Derived:
    """The expected columns of episodes that follow from their steps; one entry per episode.

    `of_lanes` are the flags of each agent, one entry per lane; None where there is one agent.
    """

    length: np.ndarray
    returns: np.ndarray
    flags: np.ndarray
    reasons: pa.Array
    of_lanes: np.ndarray | None

    @staticmethod
    def of(episodes: Episodes) -> Derived:
        """Return the columns that follow from the steps that were read."""
        stored = np.stack([episodes.rows.column(name).fill_null(False).to_numpy() for name in FLAGS], axis=1)
        lanes = episodes.lanes
        of_lanes = None
        length, returns, computed = episodes.numbers("row_count") - 1, episodes.returns, episodes.flags
        if lanes is not None:
            # Of an agent's last transition, or, if it made none, those that the table has.
            of_lanes = np.where((lanes.length > 0)[:, None], episodes.flags, lanes.flags)
            length, returns, computed = _joined(episodes, lanes, of_lanes)
        flags = np.where(episodes.whole[:, None], computed, stored)
        where = pa.array(np.where(flags[:, 0], 0, 1), mask=~flags.any(axis=1))
        return Derived(length, returns, flags, pa.array(FLAGS).take(where), of_lanes)

    def columns(self, episodes: Episodes) -> dict[str, pa.Array]:
        """Return the columns; an end reason that does not follow from the flags is NULL."""
        kind = episodes.rows.schema.field("episode_return").type
        return {
            **self._of_agents(episodes),
            "length": pa.array(self.length),
            "episode_return": _returns_column(self.returns, kind),
            FLAGS[0]: pa.array(self.flags[:, 0]),
            FLAGS[1]: pa.array(self.flags[:, 1]),
            "end_reason": self.reasons,
        }

    def _of_agents(self, episodes: Episodes) -> dict[str, pa.Array]:
        """Return the columns with one entry per agent; NULL for episodes whose agents are not known."""
        if episodes.lanes is None or self.of_lanes is None:
            return {}
        columns = {
            RETURNS: _returns_column(episodes.returns, episodes.rows.schema.field(RETURNS).type.value_type),
            "agent_terminations": pa.array(self.of_lanes[:, 0]),
            "agent_truncations": pa.array(self.of_lanes[:, 1]),
        }
        unknown = pa.array(episodes.lanes.bad)
        return {name: _lists(values, episodes.lane_counts, unknown) for name, values in columns.items()}


def _returns_column(returns: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return sums of rewards of shape (n, k) as a column of doubles, or of lists of them."""
    flat: pa.Array = pa.array(returns.ravel())
    counts = np.full(len(returns), returns.shape[1])
    return _lists(flat, counts).cast(kind) if pa.types.is_list(kind) else flat


def _lists(values: pa.Array, counts: np.ndarray, hidden: pa.Array | None = None) -> pa.Array:
    edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(edges), values, mask=hidden)


def _joined(episodes: Episodes, lanes: Lanes, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return length, return and flags of multi-agent episodes, from those of their agents."""
    count = episodes.rows.num_rows
    returns = np.stack([np.bincount(lanes.episode, weights, count) for weights in episodes.returns.T], axis=1)
    done = np.ones(count, bool)
    np.logical_and.at(done, lanes.episode, flags.any(axis=1))
    terminated = done.copy()
    np.logical_and.at(terminated, lanes.episode, flags[:, 0])
    truncated = np.zeros(count, bool)
    np.logical_or.at(truncated, lanes.episode, flags[:, 1])
    return episodes.env_steps, returns, np.stack([terminated, truncated & done], axis=1)


def compare(episodes: Episodes, findings: Findings) -> None:
    """Check the columns of episodes that follow from their steps against the steps."""
    derived, rows, whole = Derived.of(episodes), episodes.rows, episodes.whole
    tell = partial(episodes.tell, findings)
    length, count = episodes.numbers("length"), episodes.numbers("row_count")
    expected = "row_count - 1" if episodes.lanes is None else "the last env_step of its rows"
    for mend, chosen in (("derived", whole), (None, ~whole & episodes.sound)):
        tell(
            "pointer",
            chosen & (length != derived.length),
            f"Its length is not {expected}",
            lambda i: f" has the length {length[i]} and {count[i]} rows",
            mend,
        )
    returns = rows.column("episode_return")
    tell(
        "return",
        whole & ~_equal_returns(returns, derived.returns),
        "Its return is not the sum of its rewards",
        lambda i: f" has {returns[i].as_py()}, its rewards add up to {derived.returns[i].tolist()}",
        "derived",
    )
    if episodes.lanes is not None:
        _compare_agents(episodes, derived, episodes.lanes, tell)
    equal = np.ones(len(length), bool)
    for name, flags in zip(FLAGS, derived.flags.T, strict=True):
        equal &= _equal(rows.column(name), pa.array(flags))
    tell("flags", whole & ~equal, "Its flags are not those of its last transition", mend="derived")
    reasons = rows.column("end_reason")
    follows = derived.reasons.is_valid().to_numpy(zero_copy_only=False)
    options = pc.SetLookupOptions(pa.array(["cut", "interrupted"]))
    others = pc.call_function("is_in", [reasons], options).to_numpy()
    wrong = ~np.where(follows, _equal(reasons, derived.reasons), others)
    for mend, chosen in (("derived", whole & follows), (None, ~(whole & follows))):
        tell(
            "flags",
            wrong & chosen,
            "Its end reason does not go with its flags",
            lambda i: f" has {reasons[i].as_py()!r} with {derived.flags[i].tolist()}",
            mend,
        )


def _compare_agents(episodes: Episodes, derived: Derived, lanes: Lanes, tell: Callable[..., None]) -> None:
    """Check the returns and flags of each agent against its steps."""
    stored = episodes.rows.column(RETURNS).combine_chunks().filter(pa.array(~lanes.bad)).flatten()
    equal = _equal_returns(pa.chunked_array([stored]), episodes.returns)
    same = (derived.of_lanes == lanes.flags).all(axis=1)
    for kind, of_lanes, message in (
        ("return", equal, "The return of an agent is not the sum of its rewards"),
        ("flags", same, "The flags of an agent are not those of its last transition"),
    ):
        wrong = np.zeros(episodes.rows.num_rows, bool)
        wrong[lanes.episode[~of_lanes]] = True
        tell(kind, episodes.whole & wrong, message, mend="derived")


def _equal(stored: pa.ChunkedArray, expected: pa.Array) -> np.ndarray:
    return pc.call_function("equal", [stored, expected]).fill_null(False).to_numpy()


def _equal_returns(stored: pa.ChunkedArray, computed: np.ndarray) -> np.ndarray:
    """Return where both are the same to the last bit, or both NaN."""
    width = computed.shape[1]
    known = stored.is_valid().to_numpy()
    values = np.zeros(computed.shape)
    if pa.types.is_list(stored.type):
        lists = stored.combine_chunks()
        known = pc.call_function("list_value_length", [lists]).fill_null(-1).to_numpy() == width
        flat = lists.filter(pa.array(known)).flatten().to_numpy(zero_copy_only=False)
        values[known] = flat.reshape(-1, width)
    else:
        values[:, 0] = stored.fill_null(0.0).to_numpy()
    same = (values == computed) | (np.isnan(values) & np.isnan(computed))
    return known & same.all(axis=1)
