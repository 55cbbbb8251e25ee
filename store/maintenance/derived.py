"""Columns of episodes that follow from their steps, compared with the stored ones.

`verification` reports the differences, and its repair writes these columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..agents.lanes import RETURNS, Lanes
from ..schema import FLAGS
from .checks import Findings
from .episode_checks import Episodes


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
        told = np.stack([episodes.rows.column(name).fill_null(False).to_numpy() for name in FLAGS], axis=1)
        lanes = episodes.lanes
        of_lanes = None
        length, returns, found = episodes.numbers("row_count") - 1, episodes.returns, episodes.flags
        if lanes is not None:
            # Of an agent's last transition, or, if it made none, those that the table has.
            of_lanes = np.where((lanes.length > 0)[:, None], episodes.flags, lanes.flags)
            length, returns, found = _joined(episodes, lanes, of_lanes)
        flags = np.where(episodes.whole[:, None], found, told)
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
        found = {
            RETURNS: _returns_column(episodes.returns, episodes.rows.schema.field(RETURNS).type.value_type),
            "agent_terminations": pa.array(self.of_lanes[:, 0]),
            "agent_truncations": pa.array(self.of_lanes[:, 1]),
        }
        unknown = pa.array(episodes.lanes.bad)
        return {name: _lists(values, episodes.lane_counts, unknown) for name, values in found.items()}


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
