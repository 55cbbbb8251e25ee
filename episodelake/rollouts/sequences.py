"""Token sequences of rollouts: the tokens of all messages in flat arrays, and the branches as spans of them.

A sequence is a branch of a rollout, or a piece of one. Everything here is computed for all rollouts at once;
tokens that branches share are held once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..errors import InvalidArgumentError
from ..plugin import ReadContext, ReadView, collected, values_of
from ..plugin.columns import ACTION, OBSERVATION
from ..readers.columns.step_arrays import SharedColumns, share
from .messages import ROLE, SAMPLED
from .tokens import PER_SAMPLED, TOKEN_MASK, TOKENS

#: Keys of batches, and names of flat arrays: no column of messages is loaded by them.
INPUT_IDS, LOSS_MASK = "input_ids", "loss_mask"
ADVANTAGES = "advantages"
#: The fact of a rollout that stands in where its tokens have no advantages.
_ADVANTAGE = "metadata.advantage"


@dataclass(frozen=True)
class TokenArrays:
    """Tokens of many messages, one after the other.

    Attributes:
        columns: `input_ids` (int32), `loss_mask` (bool: the sampled ones) and numbers by column of messages
            (0 for tokens without one), all of shape (N,).
    """

    columns: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(values.nbytes for values in self.columns.values())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arrays; for a process that is being spawned, a file that it shares."""
        if get_spawning_popen() is not None:
            return _from_shared, (self._shared,)
        return TokenArrays, (dict(self.columns),)

    @cached_property
    def _shared(self) -> SharedColumns:
        return share(self.columns)


def _from_shared(shared: SharedColumns) -> TokenArrays:
    return TokenArrays(shared.columns())


def numbers_in(context: ReadContext) -> list[str]:
    """Return the columns of `PER_SAMPLED` that a store of rollouts has."""
    view = ReadView(context)
    steps = view.steps.collect_schema().names()
    return [name for name in PER_SAMPLED if name in steps or (name == ADVANTAGES and _has_advantage(view))]


def _has_advantage(view: ReadView[Any]) -> bool:
    return _ADVANTAGE in view.episodes.collect_schema().names()


@dataclass(frozen=True)
class Messages:
    """The messages of some rollouts, one after the other; one without tokens may follow the last of each.

    Attributes:
        rollouts: int64, shape (M,): the position of the rollout of each.
        parents: int64, shape (M,): the number of the message that each continues, among all; -1 for none.
        edges: int64, shape (M + 1,): the first token of each, and the number of all tokens.
        tokens: of all messages.
    """

    rollouts: np.ndarray
    parents: np.ndarray
    edges: np.ndarray
    tokens: TokenArrays

    @staticmethod
    def read(context: ReadContext, numbers: Collection[str]) -> Messages:
        """Read the messages of all rollouts of a context.

        Args:
            context: the rollouts.
            numbers: columns with a number for each message or for each of its sampled tokens, float32 like
                those of `PER_SAMPLED`; others may have one for each token instead.

        Raises:
            InvalidArgumentError: a message continues none before it, or has another number of values than
                tokens.
        """
        view = ReadView(context)
        facts = ["length", *([_ADVANTAGE] if ADVANTAGES in numbers and _has_advantage(view) else [])]
        episodes = collected(view.episodes.select(facts), context.snapshot)
        counts = episodes["length"].to_numpy().astype(np.int64) + 1
        rollouts = np.repeat(np.arange(len(counts)), counts)
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        present = view.steps.collect_schema()
        lists = {
            name: _LISTS.get(name, pl.List(pl.Float32))
            for name in (*numbers, TOKENS, TOKEN_MASK)
            if name in _LISTS or present[name].is_nested()
        }
        kinds = {ROLE: pl.String(), SAMPLED: pl.Boolean(), **lists}
        missing = [pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in present]
        # The last message of a rollout that was cut has no action.
        own = pl.coalesce(pl.col(ACTION) == 1, pl.col(SAMPLED), pl.col(ROLE) == "assistant", False)
        rows = collected(
            view.steps.with_columns(missing).select(
                pl.col(OBSERVATION).fill_null(-1),
                own.alias(SAMPLED),
                *(pl.col(name).cast(kind) for name, kind in lists.items()),
                *(name for name in numbers if name not in lists),
            )
        )
        above = rows[OBSERVATION].to_numpy()
        parents = np.where(above < 0, -1, above + firsts)
        wrong = np.flatnonzero(parents >= np.arange(len(parents)))
        if len(wrong):
            at = wrong[0]
            raise InvalidArgumentError(
                f"Message {at - firsts[at]} of the rollout at position {rollouts[at]} continues message "
                f"{above[at]}; expected one before it."
            )
        reading = _Reading(rows, rollouts, firsts)
        columns = {name: reading.numbers(name) for name in numbers}
        if _ADVANTAGE in facts:
            whole = episodes[_ADVANTAGE].cast(pl.Float32).fill_null(0).to_numpy()
            reading.fill_advantages(columns[ADVANTAGES], whole)
        columns |= {INPUT_IDS: reading.ids, LOSS_MASK: reading.sampled}
        return Messages(rollouts, parents, reading.edges, TokenArrays(columns))

    @property
    def without_tokens(self) -> int:
        """Rollouts none of whose messages has tokens."""
        counts = np.bincount(self.rollouts, np.diff(self.edges))
        return int(np.count_nonzero(counts == 0))

    def branches(self) -> Sequences:
        """Return the branches that have tokens: by rollout, in the order of their last messages."""
        leaf = np.ones(len(self.parents), bool)
        leaf[self.parents[self.parents >= 0]] = False
        at, branch = np.flatnonzero(leaf), np.arange(np.count_nonzero(leaf))
        leaves, levels = at, []
        while len(at):
            levels.append((at, branch))
            at = self.parents[at]
            at, branch = at[at >= 0], branch[at >= 0]
        path = np.concatenate([level for level, _ in reversed(levels)])
        branch = np.concatenate([level for _, level in reversed(levels)])
        order = np.argsort(branch, kind="stable")
        path, branch = path[order], branch[order]
        first = np.zeros(len(path), bool)
        first[np.unique(path, return_index=True)[1]] = True
        full = self.edges[path + 1] > self.edges[path]
        path, branch, first = path[full], branch[full], first[full]
        return Sequences.joined(
            self.edges[path], self.edges[path + 1], first, branch, self.rollouts[leaves[branch]]
        )


_LISTS = {
    TOKENS: pl.List(pl.Int32),
    TOKEN_MASK: pl.List(pl.Boolean),
    **dict.fromkeys(PER_SAMPLED, pl.List(pl.Float32)),
}


class _Reading:
    """Lists of messages as flat arrays.

    Args:
        rows: the columns of the messages; each is dropped once it was read.
        rollouts, firsts: int64, shape (M,): the rollout of each, and the first message of that.
    """

    def __init__(self, rows: pl.DataFrame, rollouts: np.ndarray, firsts: np.ndarray) -> None:
        self._rows, self._rollouts, self._firsts = rows, rollouts, firsts
        self.ids, self._counts = _flat(rows.drop_in_place(TOKENS))
        self.edges = np.concatenate([[0], np.cumsum(self._counts)])
        self.sampled = np.repeat(rows[SAMPLED].to_numpy(), self._counts)
        mask, sizes = _flat(rows.drop_in_place(TOKEN_MASK))
        self._check(TOKEN_MASK, sizes, self._counts)
        self.sampled[np.repeat(sizes > 0, self._counts)] = mask
        reached = np.concatenate([[0], np.cumsum(mask)])
        masked = np.diff(reached[np.concatenate([[0], np.cumsum(sizes)])])
        self._sampled_counts = np.where(sizes > 0, masked, self._counts * rows[SAMPLED].to_numpy())
        self._without_advantages = rows[ADVANTAGES].is_null() if ADVANTAGES in rows.columns else None

    def numbers(self, name: str) -> np.ndarray:
        """Return the numbers of a column, of shape (N,); one for each message is that of all its tokens."""
        column = self._rows.drop_in_place(name)
        if column.dtype != pl.List:
            empty = False if column.dtype == pl.Boolean else 0
            return np.repeat(column.fill_null(empty).to_numpy(), self._counts)
        own = name in PER_SAMPLED
        values, sizes = _flat(column if own else column.list.eval(pl.element().fill_null(0)))
        whole = np.zeros(len(sizes), bool) if own else sizes == self._counts
        self._check(name, sizes, np.where(whole, self._counts, self._sampled_counts))
        if len(values) == len(self.ids):
            return values
        spread = np.zeros(len(self.ids), np.float32)
        spread[(self.sampled | np.repeat(whole, self._counts)) & np.repeat(sizes > 0, self._counts)] = values
        return spread

    def fill_advantages(self, advantages: np.ndarray, whole: np.ndarray) -> None:
        """Give the sampled tokens of messages without advantages that of their rollout.

        Args:
            advantages: of the tokens; changed.
            whole: float32, shape (E,): that of each rollout.
        """
        assert self._without_advantages is not None
        fill = self.sampled & np.repeat(self._without_advantages.to_numpy(), self._counts)
        if fill.any():
            advantages[fill] = np.repeat(whole[self._rollouts], self._counts)[fill]

    def _check(self, name: str, sizes: np.ndarray, expected: np.ndarray) -> None:
        wrong = np.flatnonzero((sizes > 0) & (sizes != expected))
        if len(wrong):
            at = wrong[0]
            raise InvalidArgumentError(
                f"Message {at - self._firsts[at]} of the rollout at position {self._rollouts[at]} has "
                f"{sizes[at]} values of {name}; its tokens need {expected[at]}."
            )


def _flat(lists: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of lists, one after the other, and the length of each; NULL counts as empty."""
    array = lists.rechunk().to_arrow()
    assert isinstance(array, pa.LargeListArray)
    counts = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    return values_of(array.flatten()), counts


@dataclass(frozen=True)
class Sequences:
    """Sequences of tokens, each the tokens of some spans of flat arrays, one after the other.

    Attributes:
        starts, stops: int64, shape (spans,): the tokens of each span; none is empty.
        first: bool, shape (spans,): False where an earlier sequence has the same tokens.
        edges: int64, shape (S + 1,): the first span of each sequence, and the number of all.
        rollouts: int64, shape (S,): the position of the rollout of each.
    """

    starts: np.ndarray
    stops: np.ndarray
    first: np.ndarray
    edges: np.ndarray
    rollouts: np.ndarray

    @staticmethod
    def joined(
        starts: np.ndarray, stops: np.ndarray, first: np.ndarray, owners: np.ndarray, rollouts: np.ndarray
    ) -> Sequences:
        """Make sequences from spans in order, joining those that follow each other.

        Args:
            starts, stops, first: of each span.
            owners, rollouts: the sequence and the rollout of each span; each sequence has its own owner.
        """
        own = np.ones(len(starts), bool)
        own[1:] = owners[1:] != owners[:-1]
        begins = own.copy()
        begins[1:] |= (starts[1:] != stops[:-1]) | (first[1:] != first[:-1])
        at = np.flatnonzero(begins)
        ends = np.concatenate([at[1:], [len(starts)]]) - 1
        edges = np.concatenate([np.flatnonzero(own[at]), [len(at)]])
        return Sequences(starts[at], stops[ends], first[at], edges, rollouts[own])

    def __len__(self) -> int:
        """Return the number of sequences S."""
        return len(self.rollouts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64, shape (S,): the tokens of each."""
        reached = np.concatenate([[0], np.cumsum(self.stops - self.starts)])
        return np.diff(reached[self.edges])

    @cached_property
    def shared(self) -> bool:
        """Whether sequences share tokens."""
        return not self.first.all()

    def pieces(self, length: int, *, all_pieces: bool) -> Sequences:
        """Return the same, those of more tokens cut into pieces of `length`; else only the first piece."""
        if not len(self) or self.lengths.max() <= length:
            return self
        sizes = self.stops - self.starts
        owners = np.repeat(np.arange(len(self)), np.diff(self.edges))
        reached = np.cumsum(sizes) - sizes
        begins = reached - reached[self.edges[:-1]][owners]
        numbers = begins // length
        counts = (begins + sizes - 1) // length - numbers + 1
        span = np.repeat(np.arange(len(sizes)), counts)
        number = numbers[span] + np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts)
        low = np.maximum(begins[span], number * length)
        high = np.minimum(begins[span] + sizes[span], (number + 1) * length)
        shift = self.starts[span] - begins[span]
        kept = np.full(len(span), True) if all_pieces else number == 0
        most = int(number.max()) + 1
        return Sequences.joined(
            (low + shift)[kept],
            (high + shift)[kept],
            self.first[span][kept],
            (owners[span] * most + number)[kept],
            self.rollouts[owners[span]][kept],
        )

    def spans(self, some: np.ndarray) -> np.ndarray:
        """Return the numbers of the spans of some sequences, in order; int64."""
        if len(self) == len(self.starts):
            return some
        begins = self.edges[some]
        counts = self.edges[some + 1] - begins
        return np.arange(counts.sum()) + np.repeat(begins - np.cumsum(counts) + counts, counts)
