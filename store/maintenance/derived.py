"""Columns of episodes that follow from their steps: what they should be, compared with what they are.

`verification` tells the differences, and its repair writes these columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..lanes import RETURNS, Lanes
from ..schema import FLAGS
from .checks import Findings
from .episode_checks import Episodes


@dataclass(frozen=True)
class Derived:
    """What the columns of episodes that follow from their steps should be; one entry per episode.

    `of_lanes` are the flags of each agent, one entry per lane; None where there is one agent.
    """

    length: np.ndarray
    returns: np.ndarray
    flags: np.ndarray
    reasons: pa.Array
    of_lanes: np.ndarray | None

    @staticmethod
    def of(episodes: Episodes) -> Derived:
        """What follows from the steps that were read."""
        told = np.stack([episodes.rows.column(name).fill_null(False).to_numpy() for name in FLAGS], axis=1)
        lanes = episodes.lanes
        if lanes is None:
            length, returns, found, of_lanes = (
                episodes.numbers("row_count") - 1,
                episodes.returns,
                episodes.flags,
                None,
            )
        else:
            of_lanes = _flags_of_lanes(episodes, lanes)
            length, returns, found = _joined(episodes, lanes, of_lanes)
        flags = np.where(episodes.whole[:, None], found, told)
        where = pa.array(np.where(flags[:, 0], 0, 1), mask=~flags.any(axis=1))
        return Derived(length, returns, flags, pa.array(FLAGS).take(where), of_lanes)

    def columns(self, episodes: Episodes) -> dict[str, pa.Array]:
        """The columns; an end reason that no flag tells is NULL."""
        kind = episodes.rows.schema.field("episode_return").type
        flat = pa.array(self.returns.ravel())
        edges = np.arange(len(self.returns) + 1, dtype=np.int32) * self.returns.shape[1]
        listed = pa.types.is_list(kind)
        return {
            **self._of_agents(episodes),
            "length": pa.array(self.length),
            "episode_return": pa.ListArray.from_arrays(pa.array(edges), flat).cast(kind) if listed else flat,
            FLAGS[0]: pa.array(self.flags[:, 0]),
            FLAGS[1]: pa.array(self.flags[:, 1]),
            "end_reason": self.reasons,
        }

    def _of_agents(self, episodes: Episodes) -> dict[str, pa.Array]:
        """The columns with one entry per agent; NULL for episodes whose agents are not known."""
        lanes = episodes.lanes
        if lanes is None or self.of_lanes is None:
            return {}
        kind = episodes.rows.schema.field(RETURNS).type.value_type
        width = episodes.returns.shape[1]
        returns: pa.Array = pa.array(episodes.returns.ravel())
        if pa.types.is_list(kind):
            cuts = pa.array(np.arange(len(episodes.returns) + 1, dtype=np.int32) * width)
            returns = pa.ListArray.from_arrays(cuts, returns)
        edges = np.concatenate([[0], np.cumsum(episodes.lane_counts)]).astype(np.int32)
        found = {
            RETURNS: returns.cast(kind),
            "agent_terminations": pa.array(self.of_lanes[:, 0]),
            "agent_truncations": pa.array(self.of_lanes[:, 1]),
        }
        unknown = pa.array(lanes.bad)
        return {
            name: pa.ListArray.from_arrays(pa.array(edges), values, mask=unknown)
            for name, values in found.items()
        }


def _flags_of_lanes(episodes: Episodes, lanes: Lanes) -> np.ndarray:
    """The flags of each agent: of its last transition, or, if it made none, what the table says."""
    return np.where((lanes.length > 0)[:, None], episodes.flags, lanes.flags)


def _joined(episodes: Episodes, lanes: Lanes, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Length, return and flags of multi-agent episodes, from those of their agents."""
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
    """The columns of episodes that follow from their steps are what the steps say."""
    derived, rows = Derived.of(episodes), episodes.rows
    differs = episodes.numbers("length") != derived.length
    said, rows_of = episodes.numbers("length"), episodes.numbers("row_count")
    for mend, chosen in (("derived", episodes.whole), (None, ~episodes.whole & episodes.sound)):
        episodes.tell(
            findings,
            "pointer",
            differs & chosen,
            "Its length is not row_count - 1"
            if episodes.lanes is None
            else "Its length is not the last env_step of its rows",
            lambda i: f" has the length {said[i]} and {rows_of[i]} rows",
            mend,
        )
    returns = rows.column("episode_return")
    episodes.tell(
        findings,
        "return",
        episodes.whole & ~_equal_returns(returns, derived.returns),
        "Its return is not the sum of its rewards",
        lambda i: f" has {returns[i].as_py()}, its rewards add up to {derived.returns[i].tolist()}",
        "derived",
    )
    if episodes.lanes is not None:
        _compare_agents(episodes, derived, episodes.lanes, findings)
    flags = np.zeros(len(differs), bool)
    for index, name in enumerate(FLAGS):
        equal = pc.call_function("equal", [rows.column(name), pa.array(derived.flags[:, index])])
        flags |= ~equal.fill_null(False).to_numpy()
    reasons = rows.column("end_reason")
    episodes.tell(
        findings,
        "flags",
        episodes.whole & flags,
        "Its flags are not those of its last transition",
        mend="derived",
    )
    told = derived.reasons.is_valid().to_numpy(zero_copy_only=False)
    named = pc.call_function("equal", [reasons, derived.reasons]).fill_null(False).to_numpy()
    options = pc.SetLookupOptions(pa.array(["cut", "interrupted"]))
    wrong = np.where(told, ~named, ~pc.call_function("is_in", [reasons], options).to_numpy())
    for mend, chosen in (("derived", episodes.whole & told), (None, ~(episodes.whole & told))):
        episodes.tell(
            findings,
            "flags",
            wrong & chosen,
            "Its end reason does not go with its flags",
            lambda i: f" has {reasons[i].as_py()!r} with {derived.flags[i].tolist()}",
            mend,
        )


def _compare_agents(episodes: Episodes, derived: Derived, lanes: Lanes, findings: Findings) -> None:
    """The returns and flags of each agent are what its steps say."""
    stored = episodes.rows.column(RETURNS).combine_chunks().filter(pa.array(~lanes.bad)).flatten()
    equal = _equal_returns(pa.chunked_array([stored]), episodes.returns)
    wrong = np.zeros(episodes.rows.num_rows, bool)
    wrong[lanes.episode[~equal]] = True
    message = "The return of an agent is not the sum of its rewards"
    episodes.tell(findings, "return", episodes.whole & wrong, message, mend="derived")
    wrong = np.zeros(episodes.rows.num_rows, bool)
    wrong[lanes.episode[(derived.of_lanes != lanes.flags).any(axis=1)]] = True
    message = "The flags of an agent are not those of its last transition"
    episodes.tell(findings, "flags", episodes.whole & wrong, message, mend="derived")


def _equal_returns(stored: pa.ChunkedArray, computed: np.ndarray) -> np.ndarray:
    """Where both are the same to the last bit, or both NaN."""
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
