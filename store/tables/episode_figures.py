"""Figures of episodes that add up: counts, sums and extremes, which the log keeps of each file of episodes.

`info` adds them up and reads no file whose figures are in the log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ..delta.log import TableFile
from ..errors import CorruptStoreError
from ..schema import StepSchema
from ..spaces.arrow import values_of

#: More objectives of a reward have no figures.
_MOST_OBJECTIVES = 8
#: A file of so many runs or agents that its figures take more has none in the log.
_MOST_BYTES = 4096
_LARGEST = 2**53
_OF_RUNS, _OF_AGENTS = 5, 4


@dataclass
class Spread:
    """Extremes, number and sum of values.

    Attributes:
        lowest, highest: None without values.
        count: how many values there are, without NULL and NaN.
        total: their sum, added up in their order.
        nan: how many are NaN.
    """

    lowest: float | None = None
    highest: float | None = None
    count: int = 0
    total: float = 0
    nan: int = 0

    @staticmethod
    def of(column: pa.Array | pa.ChunkedArray) -> Spread:
        """Return that of a column of numbers."""
        values, counted = _numbers(column)
        nan = len(values) - column.null_count - int(counted.sum())
        values = values[counted]
        if not len(values):
            return Spread(nan=nan)
        (total,) = _sums(np.zeros(len(values), np.intp), 1, values)
        return Spread(values.min().item(), values.max().item(), len(values), total, nan)

    def add(self, other: Spread) -> None:
        """Add the values of another one."""
        if other.lowest is not None and other.highest is not None:
            self.lowest = other.lowest if self.lowest is None else min(self.lowest, other.lowest)
            self.highest = other.highest if self.highest is None else max(self.highest, other.highest)
        self.count += other.count
        self.total += other.total
        self.nan += other.nan

    @property
    def mean(self) -> float | None:
        """The mean of the values; None without any."""
        return self.total / self.count if self.count else None


@dataclass
class EpisodeFigures:
    """Figures of some episodes.

    Attributes:
        lengths: of the episodes.
        returns: of each objective of the reward, at most 8.
        end_reasons: how many episodes ended so.
        runs: by id: episodes, transitions, sum of the lengths, and number and sum of the returns that are
            neither NULL nor NaN (0 of several objectives).
        agents: by name: the same without the sum of the lengths; empty where there is a single agent.
        agent_groups: the group of each agent.
    """

    lengths: Spread = field(default_factory=Spread)
    returns: list[Spread] = field(default_factory=list)
    end_reasons: dict[str, int] = field(default_factory=dict)
    runs: dict[str, list[Any]] = field(default_factory=dict)
    agents: dict[str, list[Any]] = field(default_factory=dict)
    agent_groups: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def columns(schema: StepSchema) -> list[str]:
        """Return the columns of the episodes table that figures need."""
        agents = ("row_count", "agents", "agent_groups", "agent_lengths", "agent_returns")
        return ["run_id", "length", "episode_return", "end_reason", *(agents if schema.groups else ())]

    @staticmethod
    def of(rows: pa.Table, schema: StepSchema) -> EpisodeFigures:
        """Return the figures of rows of the episodes table, in the types of its files.

        Raises:
            CorruptStoreError: an episode has not one value for each of its agents, or for each objective.
        """
        if not rows.num_rows:
            return EpisodeFigures()
        runs, length, returns, reasons, *team = (
            rows.column(name).combine_chunks() for name in EpisodeFigures.columns(schema)
        )
        figures = EpisodeFigures(
            Spread.of(length), [Spread.of(each) for each in _objectives(returns, schema)]
        )
        lengths = transitions = _numbers(length)[0]
        if team:
            count, *lanes = team
            sizes = [_sizes(each) for each in lanes]
            if any((each != sizes[0]).any() for each in sizes):
                raise CorruptStoreError("An episode has not one value for each of its agents.")
            transitions = _numbers(count)[0] - sizes[0]
            names, groups, steps, rewards = (each.flatten() for each in lanes)
            figures.agents = _grouped(names, _numbers(steps)[0], *_summands(rewards))
            # Of an agent that changed it, the first one.
            figures.agent_groups = dict(reversed([*zip(names.to_pylist(), groups.to_pylist(), strict=True)]))
        figures.runs = _grouped(runs, transitions, lengths, *_summands(returns))
        figures.end_reasons = {name: episodes for name, (episodes,) in _grouped(reasons).items()}
        return figures

    def add(self, other: EpisodeFigures) -> None:
        """Add other episodes of the same store."""
        self.lengths.add(other.lengths)
        self.returns += [Spread() for _ in other.returns[len(self.returns) :]]
        for own, more in zip(self.returns, other.returns, strict=False):
            own.add(more)
        for name, count in other.end_reasons.items():
            self.end_reasons[name] = self.end_reasons.get(name, 0) + count
        for all_rows, rows in ((self.runs, other.runs), (self.agents, other.agents)):
            for name, row in rows.items():
                known = all_rows.get(name)
                all_rows[name] = row if known is None else [a + b for a, b in zip(known, row, strict=True)]
        self.agent_groups = {**other.agent_groups, **self.agent_groups}

    def text(self) -> str | None:
        """Return the figures as the log has them; None where they are not finite, or too many."""
        if None in {*self.runs, *self.end_reasons, *self.agents}:
            return None
        content = {
            **vars(self),
            "lengths": vars(self.lengths),
            "returns": [vars(each) for each in self.returns],
        }
        try:
            text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        except ValueError:
            return None
        return text if len(text) <= _MOST_BYTES else None

    @staticmethod
    def parsed(text: str | None, rows: int) -> EpisodeFigures | None:
        """Return the figures that the log has of a file; None if it has none, or impossible ones.

        Args:
            text: as `text` returns them.
            rows: how many episodes the file has.
        """
        try:
            content = json.loads(text or "{}")
            figures = EpisodeFigures(**{key: content[key] for key in EpisodeFigures.__dataclass_fields__})
            figures.lengths = Spread(**content["lengths"])
            figures.returns = [Spread(**each) for each in content["returns"]]
            amounts = [*figures.end_reasons.values(), *figures._amounts()]
            names = [*figures.agents, *figures.agent_groups, *figures.agent_groups.values()]
            if not all(map(_is_amount, amounts)) or not all(isinstance(name, str) for name in names):
                return None
            if figures.agents.keys() != figures.agent_groups.keys():
                return None
            counts = {rows, figures.lengths.count, sum(figures.end_reasons.values())}
            return figures if counts == {sum(row[0] for row in figures.runs.values())} else None
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None

    def _amounts(self) -> Iterator[Any]:
        for spread in (self.lengths, *self.returns):
            yield from (each for each in vars(spread).values() if each is not None)
        for rows, size in ((self.runs, _OF_RUNS), (self.agents, _OF_AGENTS)):
            for row in rows.values():
                if len(row) != size:
                    raise ValueError(f"{len(row)} figures of a run or an agent")
                yield from row


def listed_figures(files: Sequence[TableFile]) -> tuple[EpisodeFigures, np.ndarray]:
    """Return the figures that the log has of files of episodes, and the positions of all other episodes."""
    figures, others, first = EpisodeFigures(), [np.zeros(0, np.int64)], 0
    for file in files:
        own = EpisodeFigures.parsed(file.figures, file.rows)
        if own is None:
            others.append(np.arange(first, first + file.rows))
        else:
            figures.add(own)
        first += file.rows
    return figures, np.concatenate(others)


def _is_amount(value: Any) -> bool:
    return (
        type(value) in (int, float)
        and math.isfinite(value)
        and (type(value) is float or abs(value) <= _LARGEST)
    )


def _objectives(returns: pa.Array, schema: StepSchema) -> list[pa.Array]:
    if not schema.reward_shape:
        return [returns]
    objectives = schema.reward_shape[0]
    if (_sizes(returns)[values_of(returns.is_valid())] != objectives).any():
        raise CorruptStoreError(f"An episode has not {objectives} returns, one for each objective.")
    values = returns.flatten()
    return [
        values.take(pa.array(np.arange(index, len(values), objectives)))
        for index in range(min(objectives, _MOST_OBJECTIVES))
    ]


def _sizes(lists: pa.Array) -> np.ndarray:
    """Return how many values each list has; 0 for NULL."""
    return values_of(lists.value_lengths().fill_null(0)) if len(lists) else np.zeros(0, np.int32)


def _summands(returns: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return which returns count, and the numbers to add up: 0 for the others, and where there are several
    objectives.
    """
    if pa.types.is_list(returns.type):
        return np.zeros(len(returns), np.int64), np.zeros(len(returns))
    values, counted = _numbers(returns)
    return counted.astype(np.int64), np.where(counted, values, 0.0)


def _numbers(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a column, 0 for NULL, and which of them are neither NULL nor NaN."""
    if not column.null_count:
        values = values_of(column) if len(column) else np.zeros(0, column.type.to_pandas_dtype())
        return values, ~np.isnan(values)
    values = values_of(column.fill_null(0))
    return values, values_of(column.is_valid()) & ~np.isnan(values)


def _grouped(names: pa.Array, *columns: np.ndarray) -> dict[Any, list[Any]]:
    """Return for each name how many rows it has, and the sum of each column over these, in their order."""
    encoded = names.dictionary_encode("encode")
    codes = values_of(encoded.indices) if len(names) else np.zeros(0, np.int32)
    count = len(encoded.dictionary)
    sums = [_sums(codes, count, column) for column in (np.ones(len(codes), np.int64), *columns)]
    return dict(zip(encoded.dictionary.to_pylist(), map(list, zip(*sums, strict=True)), strict=True))


def _sums(codes: np.ndarray, count: int, values: np.ndarray) -> list[Any]:
    """Return the sum of the values with each code below `count`, added up in their order."""
    sums = np.zeros(count, values.dtype)
    # Infinities of both signs have no sum.
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(sums, codes, values)
    return sums.tolist()
