"""The findings of `health`: their kinds, which numbers are outliers, and one pass over the steps.

The numbers of steps are read once, some episodes at a time. Memory holds a hash and a bit per element of an
observation for each episode. Images are not read, except those of episodes whose numbers are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box

from ...store.common.progress import Progress
from ...store.manifest import dimension_names
from ...store.names import ACTION, OBSERVATION, REWARD
from ...store.spaces.fixed import FixedNode
from ..columns.selection import EpisodeIndex, Selection, select
from ..columns.specs import choose_columns
from ..columns.step_arrays import ColumnSource, read_arrays
from ..columns.tree import leaves
from ..context import ReadContext
from ..formatting import counted
from ..frames import collect_episodes, episodes_frame
from .measuring import parts
from .quality import row_digests

#: Of every kind of finding, what it means.
KINDS = {
    "nan": "NaN in a column",
    "infinite": "an infinity in a column",
    "constant": "an element of the observation that never changes, but does in other episodes; or in none",
    "saturated": "an element of the action that stands at a bound of its space for half of the steps",
    "outlier": "a return, length, or largest or smallest reward, far from those of other episodes",
    "duplicate": "the same steps as an earlier episode",
    "duplicate_seed": "the same seed and options as an earlier episode of the run",
    "missing_observation": "no last observation",
    "cut": "ended by the recorder, not by the environment",
    "interrupted": "recovered from a writer that died",
    "gap": "numbers of its run are missing before it: deleted, discarded or not ended yet",
    "lengths": "a mask or numbers of tokens that are not as many as the tokens",
    "vocabulary": "token ids beyond the vocabulary of the store",
    "context": "a branch with more tokens than the context that the store declares",
    "empty_message": "a sampled message without text, tool calls and tokens",
    "equal_rewards": "a group of rollouts whose rewards are all equal, which gives no gradient",
    "duplicate_prompt": "the prompt of a rollout of another group",
    "unsealed": "a run whose writer died and whose journal waits for recovery",
}
#: An outlier is so many times the span from the 5 % to the 95 % quantile beyond that span.
_FAR = 5.0
#: Where that span is 0, so many times the median, or 1 if that is larger.
_FAR_OF_MEDIAN = 10.0
#: A finding names so many elements of a column.
_MOST_NAMES = 4
#: Shorter episodes are neither constant nor saturated.
_LONG = 10
#: The share of steps at a bound from which on an action is saturated.
_SATURATED = 0.5


@dataclass(frozen=True, eq=False)
class Finding:
    """Something that is wrong, or looks wrong, with some episodes.

    Attributes:
        kind: one of the keys of `KINDS`.
        column: the column, with the element where there are several; empty where no column is concerned.
        positions: int64, shape (n,), ascending: its episodes in the view; `view[finding.positions]` has them.
        values: how many values, seeds or episodes are concerned.
        message: a sentence.
        amounts: float64, shape (n,): of each episode the number of NaN or infinities, or the outlier; None of
            other findings.
        steps: int64, shape (n,): the t at which it shows first in each episode; None where there is none.
        extreme: "smallest" or "largest" of an outlier among the rewards of an episode, else "".
        label: the column with the names that the card gives to its elements, as the message has it.
    """

    kind: str
    column: str
    positions: np.ndarray
    values: int
    message: str
    amounts: np.ndarray | None = None
    steps: np.ndarray | None = None
    extreme: str = ""
    label: str = ""

    @property
    def meaning(self) -> str:
        """The meaning of its kind, such as "NaN in a column"."""
        return KINDS[self.kind]


def finding(
    kind: str,
    column: str,
    mask: np.ndarray,
    values: int | None,
    message: str,
    *,
    amounts: np.ndarray | None = None,
    steps: np.ndarray | None = None,
    extreme: str = "",
    label: str = "",
) -> Iterator[Finding]:
    """Yield a finding about the episodes of a mask, if any; amounts and steps are of all episodes."""
    positions = np.flatnonzero(mask)
    if len(positions):
        number = len(positions) if values is None else values
        text = message.format(episodes=counted(len(positions), "episode"), values=f"{number:,}")
        chosen = [None if each is None else each[positions] for each in (amounts, steps)]
        named = label or column
        yield Finding(kind, column, positions, number, text, *chosen, extreme=extreme, label=named)


def limits(values: np.ndarray) -> tuple[float, float]:
    """Return below and above which a number is far from the others; without numbers, none is."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return -np.inf, np.inf
    low, median, high = np.quantile(finite, [0.05, 0.5, 0.95], method="nearest")
    with np.errstate(over="ignore"):
        far = _FAR * (high - low) if high > low else _FAR_OF_MEDIAN * max(1.0, abs(median))
        return float(low - far), float(high + far)


def length_limits(lengths: np.ndarray) -> tuple[float, float]:
    """Return below and above which a length is far from the others, by factors: short ones matter, too."""
    if not len(lengths):
        return -np.inf, np.inf
    low, high = np.log(np.quantile(lengths, [0.05, 0.95], method="nearest") + 1)
    far = _FAR * (high - low) if high > low else np.log(_FAR_OF_MEDIAN)
    return float(np.exp(low - far) - 1), float(np.exp(high + far) - 1)


def far(values: np.ndarray) -> np.ndarray:
    """Return which finite numbers are outliers: bool."""
    low, high = limits(values)
    return np.isfinite(values) & ((values < low) | (values > high))


def outlying(what: str, values: np.ndarray) -> str:
    """Return the message of a finding about numbers that are far from the others."""
    low, high = limits(values)
    return f"{{episodes}} with a {what} below {low:.6g} or above {high:.6g}"


class StepScan:
    """One pass over the numbers of steps."""

    def __init__(self, context: ReadContext, count: int) -> None:
        self._context, self._count = context, count
        self._digests = np.zeros(count, np.uint64)

    def findings(self, report: Progress) -> Iterator[Finding]:
        """Read all numbers, and yield their findings."""
        snapshot = self._context.snapshot
        for place, group in enumerate([each.name for each in snapshot.schema.groups] or [None]):
            selection = select(snapshot, self._context.all_positions, None, group)
            yield from self._selected(selection, place, report)
        again = self._repeated()
        yield from finding("duplicate", "", again, None, "{episodes} with the steps of an earlier one")

    def _selected(self, selection: Selection, group: int, report: Progress) -> Iterator[Finding]:
        """Yield the findings of episodes, or of the agents of a group."""
        schema, index, snapshot = selection.schema, selection.index, self._context.snapshot
        codecs = (schema.observation, schema.action, schema.reward)
        nodes = [leaf for codec in codecs for leaf in codec.leaves if isinstance(leaf, FixedNode)]
        measured = [
            _Leaf(
                *(node.column, node.column.removeprefix(schema.prefix), node, len(index)),
                dimension_names(snapshot.layout, node.column, node.size),
            )
            for node in nodes
            if not node.binary
        ]
        columns = choose_columns(snapshot, selection, [leaf.name for leaf in measured])
        source = ColumnSource(self._context.blocks, selection, columns)
        numbers = np.arange(len(index)) if index.numbers is None else index.numbers
        for some in parts(index, source.row_bytes):
            arrays = read_arrays(source.part(some))
            digest = np.zeros(arrays.index.rows, np.uint64)
            for leaf in measured:
                ((_, values),) = leaves(arrays.columns[leaf.name], leaf.name)
                flat = values.reshape(arrays.index.rows, -1)
                digest = _mixed(digest, flat)
                leaf.measure(flat, arrays.index, some)
            self._add_digests(digest, arrays.index, numbers[some], group)
            report(int(numbers[some.stop - 1]) + 1, self._count)
        for leaf in measured:
            yield from leaf.findings(index.lengths, numbers, self._count)

    def _add_digests(self, rows: np.ndarray, index: EpisodeIndex, numbers: np.ndarray, group: int) -> None:
        """Add the hashes of the episodes' rows, in their order, to those of the view's episodes."""
        starts = index.starts[:-1]
        t = np.arange(len(rows)) - np.repeat(starts, index.lengths + 1)
        agents = np.zeros(len(index), np.int64) if index.agents is None else index.agents + 1
        whole = np.add.reduceat(_mixed(rows, t[:, None]), starts)
        np.add.at(self._digests, numbers, _mixed(whole, np.stack([agents + (group << 32), index.lengths], 1)))

    def _repeated(self) -> np.ndarray:
        """Return which episodes have the steps of an earlier one: bool.

        Those whose numbers have the same hash are compared by all of their columns.
        """
        from ..sql.session import QuerySession

        again = np.zeros(self._count, bool)
        _, inverse, counts = np.unique(self._digests, return_inverse=True, return_counts=True)
        candidates = np.flatnonzero(counts[inverse] > 1)
        if len(candidates):
            chosen = self._context.choose(self._context.all_positions[candidates])
            digests = QuerySession(chosen, read_only=False).query(row_digests(chosen.snapshot.schema))
            ids = collect_episodes(
                chosen.snapshot, episodes_frame(chosen.snapshot, chosen.positions).select("episode_id")
            )
            whole = ids.join(digests, on="episode_id", how="left", maintain_order="left")
            again[candidates] = ~whole.drop("episode_id").to_struct("steps").is_first_distinct()
        return again


_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mixed(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mix the bits of numbers, shape (n, width), into hashes: uint64, shape (n,)."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(rows), -1)
    short = -raw.shape[1] % 8
    words = (np.pad(raw, ((0, 0), (0, short))) if short else raw).view(np.uint64)
    for k in range(words.shape[1]):
        rows = (rows ^ words[:, k]) * _ODD
        rows ^= rows >> np.uint64(29)
    return rows


def _first_t(mask: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the t of the first row of each episode that a mask has: int64; -1 for none."""
    places = np.where(mask, np.arange(len(mask)), len(mask))
    first = np.minimum.reduceat(places, starts)
    return np.where(first < len(mask), first - starts, -1)


class _Leaf:
    """Measures of one part of a space, by episode.

    Args:
        column, name: its column of steps, and its name in the selection.
        node: its space.
        count: number of episodes, or of agents in them.
        names: those that the card gives to its elements.
    """

    def __init__(
        self, column: str, name: str, node: FixedNode, count: int, names: tuple[str, ...] | None
    ) -> None:
        self.column, self.name, self._node, self._names = column, name, node, names
        #: Whether an element is NaN or infinite somewhere.
        self._is_nan, self._is_infinite = np.zeros((2, node.size), bool)
        self._root = name.partition(".")[0]
        self._nan, self._infinite = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._nan_at, self._infinite_at = np.full((2, count), -1)
        #: By episode, a bit for each element that is constant, or saturated.
        self._marks = np.zeros((count, -(-node.size // 8)), np.uint8)
        self._first, self._same = None, np.ones(node.size, bool)
        width = node.size if self._root == REWARD else 0
        self._lowest, self._highest = np.full((2, count, width), np.nan)
        self._lowest_at, self._highest_at = np.full((2, count, width), -1)
        space = node.space
        self._observed = isinstance(space, Box) and self._root == OBSERVATION
        self._acted: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(space, Box) and self._root == ACTION:
            self._acted = space.low.reshape(-1), space.high.reshape(-1)

    def measure(self, values: np.ndarray, index: EpisodeIndex, some: slice) -> None:
        """Measure the numbers of some episodes, shape (rows, size); the last row of an episode may change."""
        starts = index.starts[:-1]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            for mask, amounts, at, elements in (
                (np.isnan(values), self._nan, self._nan_at, self._is_nan),
                (np.isinf(values), self._infinite, self._infinite_at, self._is_infinite),
            ):
                elements |= mask.any(axis=0)
                amounts[some] = np.add.reduceat(mask.sum(axis=1), starts)
                at[some] = _first_t(np.logical_or.reduce(mask, axis=1), starts)
        # Rows without a value are 0: repeat what stands before them.
        blank = index.padding[(index.lengths > 0) & ((self._root != OBSERVATION) | _lacking(index))]
        if self._acted is not None:
            low, high = self._acted
            bound = ((values <= low) | (values >= high)) & (low < high)
            bound[blank] = False
            share = (
                np.add.reduceat(bound, starts, axis=0, dtype=np.int64) / np.maximum(index.lengths, 1)[:, None]
            )
            self._marks[some] = np.packbits(share >= _SATURATED, axis=1)
            return
        values[blank] = values[blank - 1]
        if self._observed:
            if self._first is None:
                self._first = values[0].copy()
            self._same &= (values == self._first).all(axis=0)
            changed = np.zeros(values.shape, bool)
            np.not_equal(values[1:], values[:-1], out=changed[1:])
            changed[starts] = False
            self._marks[some] = np.packbits(~np.logical_or.reduceat(changed, starts, axis=0), axis=1)
        elif self._root == REWARD:
            numbers = np.where(np.isfinite(values), values, np.nan)
            self._lowest[some] = np.fmin.reduceat(numbers, starts, axis=0)
            self._highest[some] = np.fmax.reduceat(numbers, starts, axis=0)
            rows = np.diff(index.starts)
            for extremes, at in ((self._lowest, self._lowest_at), (self._highest, self._highest_at)):
                there = numbers == np.repeat(extremes[some], rows, axis=0)
                for k in range(numbers.shape[1]):
                    at[some, k] = _first_t(there[:, k], starts)

    def findings(self, lengths: np.ndarray, numbers: np.ndarray, count: int) -> Iterator[Finding]:
        """Yield the findings, by the episodes of the view.

        Args:
            lengths: transitions of each episode, or of each agent.
            numbers: the number of its episode in the view.
            count: number of episodes in the view.
        """

        def by_episode(mask: np.ndarray) -> np.ndarray:
            whole = np.zeros(count, bool)
            whole[numbers[mask]] = True
            return whole

        def values_by_episode(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
            whole = np.zeros(count, values.dtype)
            rows = np.flatnonzero(mask)[::-1]  # Of several agents, the first.
            whole[numbers[rows]] = values[rows]
            return whole

        for kind, amounts, at, elements in (
            ("nan", self._nan, self._nan_at, self._is_nan),
            ("infinite", self._infinite, self._infinite_at, self._is_infinite),
        ):
            what = "NaN" if kind == "nan" else "infinite values"
            label = self._named(self.column, np.flatnonzero(elements))
            text = f"{{values}} {what} of {_escaped(label)} in {{episodes}}"
            yield from finding(
                kind,
                self.column,
                by_episode(amounts > 0),
                int(amounts.sum()),
                text,
                amounts=values_by_episode(amounts, amounts > 0),
                steps=values_by_episode(at, amounts > 0),
                label=label,
            )
        for k in range(self._node.size):
            column = f"{self.column}[{k}]" if self._node.shape else self.column
            label = self._named(column, [k])
            shown = _escaped(label)
            marked = np.zeros(len(lengths), bool)
            if self._observed or self._acted is not None:
                marked = ((self._marks[:, k // 8] >> (7 - k % 8)) & 1).astype(bool) & (lengths >= _LONG)
            if self._acted is not None:
                text = f"{shown} is at a bound for {_SATURATED:.0%} of the steps or more in {{episodes}}"
                yield from finding("saturated", column, by_episode(marked), None, text, label=label)
            elif self._observed:
                if self._same[k] and count > 1 and lengths.sum() >= _LONG:
                    text = f"{shown} is the same in all steps of all episodes"
                    yield from finding("constant", column, by_episode(lengths >= 0), None, text, label=label)
                elif marked.sum() * 2 <= (lengths >= _LONG).sum():
                    text = f"{shown} never changes in {{episodes}}, though it does in others"
                    yield from finding("constant", column, by_episode(marked), None, text, label=label)
            elif self._root == REWARD:
                for what, extremes, at in (
                    ("smallest", self._lowest[:, k], self._lowest_at[:, k]),
                    ("largest", self._highest[:, k], self._highest_at[:, k]),
                ):
                    text, odd = outlying(f"{what} {shown}", extremes), far(extremes)
                    yield from finding(
                        "outlier",
                        column,
                        by_episode(odd),
                        None,
                        text,
                        amounts=values_by_episode(extremes, odd),
                        steps=values_by_episode(at, odd),
                        extreme=what,
                        label=label,
                    )

    def _named(self, column: str, elements: Sequence[int] | np.ndarray) -> str:
        """Return a column with the card's names of some of its elements, the first ones if there are many."""
        if self._names is None or not len(elements):
            return column
        more = f" and {len(elements) - _MOST_NAMES} more" if len(elements) > _MOST_NAMES else ""
        return f"{column} ({', '.join(self._names[k] for k in elements[:_MOST_NAMES])}{more})"


def _escaped(text: str) -> str:
    """Return a text for a message, where braces have a meaning."""
    return text.replace("{", "{{").replace("}", "}}")


def _lacking(index: EpisodeIndex) -> np.ndarray:
    """Return which episodes lack their last observation: bool."""
    return np.zeros(len(index), bool) if index.missing is None else index.missing
