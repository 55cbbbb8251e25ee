"""Columns of episodes that follow from their steps: what they should be, compared with what they are.

`verification` tells the differences, and its repair writes these columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..schema import FLAGS
from .checks import Findings
from .episode_checks import Episodes


@dataclass(frozen=True)
class Derived:
    """What the columns of episodes that follow from their steps should be; one entry per episode."""

    length: np.ndarray
    returns: np.ndarray
    flags: np.ndarray
    reasons: pa.Array

    @staticmethod
    def of(episodes: Episodes) -> Derived:
        """What follows from the steps that were read."""
        told = [episodes.rows.column(name).fill_null(False).to_numpy() for name in FLAGS]
        flags = np.where(episodes.whole[:, None], episodes.flags, np.stack(told, axis=1))
        where = pa.array(np.where(flags[:, 0], 0, 1), mask=~flags.any(axis=1))
        reasons = pa.array(FLAGS).take(where)
        return Derived(episodes.numbers("row_count") - 1, episodes.returns, flags, reasons)

    def columns(self, episodes: Episodes) -> dict[str, pa.Array]:
        """The columns; an end reason that no flag tells is NULL."""
        kind = episodes.rows.schema.field("episode_return").type
        flat = pa.array(self.returns.ravel())
        edges = np.arange(len(self.returns) + 1, dtype=np.int32) * self.returns.shape[1]
        listed = pa.types.is_list(kind)
        return {
            "length": pa.array(self.length),
            "episode_return": pa.ListArray.from_arrays(pa.array(edges), flat).cast(kind) if listed else flat,
            FLAGS[0]: pa.array(self.flags[:, 0]),
            FLAGS[1]: pa.array(self.flags[:, 1]),
            "end_reason": self.reasons,
        }


def compare(episodes: Episodes, findings: Findings) -> None:
    """The columns of episodes that follow from their steps are what the steps say."""
    derived, rows = Derived.of(episodes), episodes.rows
    differs = episodes.numbers("length") != derived.length
    said, found = episodes.numbers("length"), derived.length
    for mend, chosen in (("derived", episodes.whole), (None, ~episodes.whole & episodes.sound)):
        episodes.tell(
            findings,
            "pointer",
            differs & chosen,
            "Its length is not row_count - 1",
            lambda i: f" has the length {said[i]} and {found[i] + 1} rows",
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
