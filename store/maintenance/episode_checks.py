"""Checks of the episodes table: ids, runs and row pointers, read as columns.

`step_checks` goes on from here with the steps that these episodes point at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..agents.lanes import LANE_COLUMNS, RETURNS, Lanes, lanes_of
from ..schema import FLAGS, LAST_OBSERVATION, MISSING, StepSchema
from ..tables.pointers import is_file_name
from .checks import Findings, Listing, check_columns, check_file, read_groups

_COLUMNS = (
    *("episode_id", "run_id", "number", "length", "episode_return", *FLAGS, "end_reason"),
    *("segment", "row_start", "row_count"),
)
_MOST_ROWS = 1 << 40


@dataclass
class Episodes:
    """The episodes of a version as columns, and what is found out about them.

    Attributes:
        rows: the columns that are checked; only rows of files that can be read.
        files, file: names relative to the store, and for each row the index of its file there.
        complete: whether all files could be read.
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
    complete: bool
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
        self.ids: pa.Array = self.rows.column("episode_id").combine_chunks()

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


def read_episodes(listing: Listing, schema: StepSchema, findings: Findings) -> Episodes:
    """Read all files of the episodes table, every page of them; damaged ones are reported and left out."""
    names = (*_COLUMNS, *((*LANE_COLUMNS, RETURNS) if schema.groups else ()))
    standard = pa.schema([schema.episodes.field(name) for name in names])
    tables, files, counts = [standard.empty_table()], [], []
    missing = [np.zeros(0, bool)]
    complete = True
    for name, listed in listing.files.items():
        place, file = listing.place / name, listing.file(name)
        parquet = check_file(place, file, listed, findings)
        usable = parquet is not None and check_columns(parquet, file, listing, schema.episodes, findings)
        found = list(read_groups(parquet, place, file, findings)) if parquet is not None else []
        groups = [group for group in found if group is not None]
        if not usable or len(groups) < len(found):
            complete = False
            continue
        tables += [group.select(names).cast(standard) for group in groups]
        missing += [_last_missing(group) for group in groups]
        files.append(file)
        counts.append(sum(group.num_rows for group in groups))
    owner = np.repeat(np.arange(len(files)), counts)
    objectives = schema.reward_shape[0] if schema.reward_shape else 1
    rows = pa.concat_tables(tables)
    lanes = lanes_of(rows, schema) if schema.groups else None
    return Episodes(rows, tuple(files), owner, complete, objectives, np.concatenate(missing), lanes)


def _last_missing(rows: pa.Table) -> np.ndarray:
    """Return which episodes lack their last observation: bool, one for each."""
    name = LAST_OBSERVATION.name
    if name not in rows.column_names or rows.schema.field(name).type != LAST_OBSERVATION.type:
        return np.zeros(rows.num_rows, bool)
    return pc.call_function("equal", [rows.column(name), pa.scalar(MISSING)]).fill_null(False).to_numpy()


def check_ids(
    episodes: Episodes, runs: set[str] | None, excused: Collection[str], findings: Findings
) -> None:
    """Each id is there once and follows from run and number; the run is known.

    Args:
        runs: the runs that there are; None if that is not known.
        excused: runs that may be missing, since their recovery has not come to an end.
    """
    run = episodes.rows.column("run_id")
    number = episodes.rows.column("number").cast(pa.string())
    number = pc.call_function("utf8_lpad", [number], pc.PadOptions(6, "0"))
    expected = pc.call_function("binary_join_element_wise", [run, number, pa.scalar("/")])
    equal = pc.call_function("equal", [episodes.ids, expected]).fill_null(False).to_numpy()
    episodes.tell(findings, "episode", ~equal, "The id is not made of run_id and number")
    codes = episodes.ids.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    again = np.ones(len(codes), bool)
    again[np.unique(codes, return_index=True)[1]] = False
    again &= codes >= 0
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
