"""Result of `collect`: counts, returns, lengths and rate."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl

from ...store.errors import InvalidArgumentError
from ...store.journal.episodes import Ends
from ..recorders.callbacks import EpisodeSummary
from ..rows.arrivals import LiveEpisode

_MEASURES = ("mean", "std", "min", "max")


@dataclass(frozen=True)
class WorkerReport:
    """Outcome of one worker of a collection.

    Attributes:
        index: counts the workers from 0.
        run_id: its run; None if it died before it had one.
        steps, episodes: what it recorded, after recovery if it died.
        exit_code: of its process if that died; negative for a signal, such as -9 for SIGKILL. None for an
            actor of Ray.
        failure: the traceback of what it raised, or a sentence on how it died; None if all went well.
        recovered: whether its journal was recovered after its death.
    """

    index: int
    run_id: str | None
    steps: int
    episodes: int
    exit_code: int | None
    failure: str | None = None
    recovered: bool = False


@dataclass(frozen=True, eq=False)
class CollectStats:
    """Result of one call of `collect`.

    Printed, it is a table; `frame()` makes it a row for Polars. `+` and `sum` add up several calls.

    Attributes:
        steps: transitions that this call recorded; of episodes that were given up none.
        ended: the episodes that ended in this call, by the environment or a step callback, and are recorded:
            a frame with one row for each, in the order of their ends, worker by worker, and with the columns
            `length`, `episode_return`, `terminated` and `truncated`; of several agents also with the lists
            `agents`, `agent_lengths` and `agent_returns`.
        unfinished: episodes that were still running at the end of it; they end as `cut` when the recorder
            closes.
        seconds: the whole call, sealing included where the call sealed.
        interrupted: whether Ctrl-C ended it early.
        run_ids: the runs that it wrote to; one, or one per worker; none without a store.
        workers: how each worker fared; empty without workers.
    """

    steps: int
    ended: pl.DataFrame = field(repr=False)
    unfinished: int
    seconds: float
    interrupted: bool = False
    run_ids: tuple[str, ...] = ()
    workers: tuple[WorkerReport, ...] = ()

    @property
    def episodes(self) -> int:
        """How many episodes ended in this call and are recorded."""
        return self.ended.height

    @property
    def terminated(self) -> int:
        """How many of them ended with this flag; one may have both."""
        return int(self.ended["terminated"].sum())

    @property
    def truncated(self) -> int:
        """How many of them ended with this flag; one may have both."""
        return int(self.ended["truncated"].sum())

    @cached_property
    def returns(self) -> np.ndarray:
        """Returns of the episodes: float64, shape (episodes,), or (episodes, k) for k objectives."""
        return _frozen(self.ended["episode_return"].to_numpy())

    @cached_property
    def lengths(self) -> np.ndarray:
        """Transitions: int64, shape (episodes,); of several agents the environment's steps."""
        return _frozen(self.ended["length"].to_numpy())

    @cached_property
    def agent_returns(self) -> Mapping[str, np.ndarray]:
        """`returns` of several agents, by agent; NaN where an agent was not in an episode."""
        return self._by_agent("agent_returns", np.full_like(self.returns, np.nan))

    @cached_property
    def agent_lengths(self) -> Mapping[str, np.ndarray]:
        """`lengths` of several agents, by agent; 0 where an agent was not in an episode."""
        return self._by_agent("agent_lengths", np.zeros_like(self.lengths))

    def _by_agent(self, name: str, absent: np.ndarray) -> dict[str, np.ndarray]:
        if "agents" not in self.ended.columns:
            return {}
        places = self.ended.select("agents", name).with_row_index("place")
        arrays: dict[str, np.ndarray] = {}
        for (agent,), rows in (
            places.explode("agents", name).drop_nulls("agents").group_by("agents", maintain_order=True)
        ):
            arrays[str(agent)] = array = absent.copy()
            array[rows["place"].to_numpy()] = rows[name].to_numpy()
            _frozen(array)
        return arrays

    @property
    def steps_per_second(self) -> float:
        """Transitions per second of the whole call."""
        return self.steps / self.seconds if self.seconds > 0 else math.nan

    @property
    def failures(self) -> tuple[WorkerReport, ...]:
        """The workers that died or raised."""
        return tuple(report for report in self.workers if report.failure is not None)

    @property
    def return_mean(self) -> Any:
        """Mean of the returns: float, or float64 of shape (k,) for k objectives; None without an episode."""
        return _measure("mean", self.returns)

    @property
    def return_std(self) -> Any:
        """Standard deviation of the returns over these episodes (divided by their number), as
        `return_mean`.
        """
        return _measure("std", self.returns)

    @property
    def return_min(self) -> Any:
        """Smallest return, of each objective by itself, as `return_mean`."""
        return _measure("min", self.returns)

    @property
    def return_max(self) -> Any:
        """Largest return, of each objective by itself, as `return_mean`."""
        return _measure("max", self.returns)

    @property
    def length_mean(self) -> float | None:
        """Mean of the lengths; None without an episode."""
        return _measure("mean", self.lengths)

    @property
    def length_std(self) -> float | None:
        """Standard deviation of the lengths over these episodes (divided by their number)."""
        return _measure("std", self.lengths)

    @property
    def length_min(self) -> int | None:
        """Shortest length; None without an episode."""
        return _measure("min", self.lengths)

    @property
    def length_max(self) -> int | None:
        """Longest length; None without an episode."""
        return _measure("max", self.lengths)

    def unrecorded(self) -> CollectStats:
        """Return the same of episodes that no store has: without runs."""
        workers = tuple(replace(report, run_id=None) for report in self.workers)
        return replace(self, run_ids=(), workers=workers)

    def frame(self) -> pl.DataFrame:
        """Return one row: counts, time, rate, and mean, std, min and max of returns and lengths.

        Columns: steps, episodes, unfinished, terminated, truncated (Int64), seconds, steps_per_second
        (Float64), return_mean, return_std, return_min, return_max (Float64, or List(Float64) for several
        objectives), length_mean, length_std (Float64), length_min, length_max (Int64), interrupted (Boolean),
        failures (Int64: workers that died), run_ids (List(String)). Measures are null without an episode.
        With several agents also agents (List(String)) and agent_return_means, a list with an entry for each.
        """
        returned = pl.List(pl.Float64) if self.returns.ndim > 1 else pl.Float64
        row: dict[str, tuple[Any, Any]] = {
            name: (getattr(self, name), pl.Int64)
            for name in ("steps", "episodes", "unfinished", "terminated", "truncated")
        }
        row |= {name: (getattr(self, name), pl.Float64) for name in ("seconds", "steps_per_second")}
        for measure in _MEASURES:
            value = getattr(self, f"return_{measure}")
            row[f"return_{measure}"] = value.tolist() if isinstance(value, np.ndarray) else value, returned
        for measure in _MEASURES:
            kind = pl.Int64 if measure in ("min", "max") else pl.Float64
            row[f"length_{measure}"] = getattr(self, f"length_{measure}"), kind
        row["interrupted"] = self.interrupted, pl.Boolean
        row["failures"] = len(self.failures), pl.Int64
        row["run_ids"] = list(self.run_ids), pl.List(pl.String)
        if self.agent_returns:
            means = [np.nanmean(returns, axis=0).tolist() for returns in self.agent_returns.values()]
            row["agents"] = list(self.agent_returns), pl.List(pl.String)
            row["agent_return_means"] = means, pl.List(returned)
        return pl.DataFrame(
            {name: [value] for name, (value, _) in row.items()},
            schema={name: kind for name, (_, kind) in row.items()},
        )

    def __add__(self, later: CollectStats) -> CollectStats:
        """Return the stats of both calls together; `later` is the second.

        Counts, seconds, returns, lengths, runs and workers are those of both; `unfinished` is that of the
        second call, since episodes of the first have gone on in it or were cut. `sum` adds a list.

        Raises:
            InvalidArgumentError: the returns have different numbers of objectives.
        """
        if not isinstance(later, CollectStats):
            return NotImplemented
        if self.returns.shape[1:] != later.returns.shape[1:]:
            raise InvalidArgumentError(
                f"Returns of the shapes {self.returns.shape} and {later.returns.shape} cannot be added up: "
                "expected the same number of objectives."
            )
        return CollectStats(
            steps=self.steps + later.steps,
            ended=pl.concat([self.ended, later.ended], how="diagonal"),
            unfinished=later.unfinished,
            seconds=self.seconds + later.seconds,
            interrupted=self.interrupted or later.interrupted,
            run_ids=tuple(dict.fromkeys(self.run_ids + later.run_ids)),
            workers=self.workers + later.workers,
        )

    def __radd__(self, zero: Literal[0]) -> CollectStats:
        """Return itself: `sum` begins with 0."""
        return self if isinstance(zero, int) and zero == 0 else NotImplemented

    def __str__(self) -> str:
        state = ", interrupted" if self.interrupted else ""
        failed = f", {len(self.failures)} of {len(self.workers)} workers failed" if self.failures else ""
        lines = [
            f"{self.steps:,} steps, {self.episodes:,} episodes ({self.unfinished:,} unfinished) in "
            f"{self.seconds:.2f} s, {self.steps_per_second:,.0f} steps/s{state}{failed}",
            f"{'':8}{''.join(f'{measure:>14}' for measure in _MEASURES)}",
        ]
        if self.returns.ndim == 1:
            lines.append(_line("return", self.returns))
        else:
            lines += [_line(f"return {k}", self.returns[:, k]) for k in range(self.returns.shape[1])]
        for agent, returns in self.agent_returns.items():
            there = returns[self.agent_lengths[agent] > 0]
            if returns.ndim == 1:
                lines.append(_line(agent, there))
            else:
                lines += [_line(f"{agent} {k}", there[:, k]) for k in range(there.shape[1])]
        lines.append(_line("length", self.lengths))
        lines += [f"worker {report.index}: {_last_line(report.failure)}" for report in self.failures]
        return "\n".join(lines)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _line(name: str, values: np.ndarray) -> str:
    cells = (_measure(measure, values) for measure in _MEASURES)
    return f"{name:8}{''.join(f'{_shown(cell):>14}' for cell in cells)}"


def _shown(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def _last_line(text: str | None) -> str:
    return (text or "").strip().rpartition("\n")[2]


def _measure(measure: str, values: np.ndarray) -> Any:
    if not len(values):
        return None
    measured = getattr(values, measure)(axis=0)
    return measured if isinstance(measured, np.ndarray) else measured.item()


def episode_schema(reward_shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the columns of `CollectStats.ended`, those of several agents included."""
    returned = pl.Array(pl.Float64, reward_shape) if reward_shape else pl.Float64()
    return {
        "length": pl.Int64(),
        "episode_return": returned,
        "terminated": pl.Boolean(),
        "truncated": pl.Boolean(),
        "agents": pl.List(pl.String),
        "agent_lengths": pl.List(pl.Int64),
        "agent_returns": pl.List(returned),
    }


class Tally:
    """Running counts of a collection.

    Attributes:
        steps: transitions.
        episodes: episodes that have ended.
        return_sum: of their returns, those of all objectives together.
    """

    def __init__(self) -> None:
        self.steps = self.episodes = 0
        self.return_sum = 0.0
        # The columns of `CollectStats.ended`.
        self._columns: dict[str, list[Any]] = {}
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._start

    def add(self, ended: Sequence[LiveEpisode | EpisodeSummary] | Ends) -> None:
        """Count episodes that have ended."""
        if isinstance(ended, Ends):
            here = ended.lengths > 0
            columns = {
                "length": ended.lengths[here].tolist(),
                "episode_return": ended.returns[here].tolist(),
                "terminated": ended.terminated[here].tolist(),
                "truncated": ended.truncated[here].tolist(),
            }
        else:
            columns = {
                "length": [episode.length for episode in ended],
                "episode_return": [episode.episode_return for episode in ended],
                "terminated": [bool(episode.terminated) for episode in ended],
                "truncated": [bool(episode.truncated) for episode in ended],
            }
            teams = [each for each in ended if isinstance(each, EpisodeSummary) and each.agent_returns]
            if teams:
                columns["agents"] = [list(team.agent_returns) for team in teams]
                for name in ("agent_lengths", "agent_returns"):
                    columns[name] = [list(getattr(team, name).values()) for team in teams]
        self.episodes += len(columns["length"])
        with np.errstate(over="ignore", invalid="ignore"):  # inf and -inf may come together
            self.return_sum += float(np.sum(columns["episode_return"]))
        for name, values in columns.items():
            self._columns.setdefault(name, []).extend(values)

    def stats(
        self, reward_shape: tuple[int, ...], *, unfinished: int, interrupted: bool, run_id: str
    ) -> CollectStats:
        """Return the counts so far."""
        schema = episode_schema(reward_shape)
        if "agents" not in self._columns:
            schema = {name: kind for name, kind in schema.items() if not name.startswith("agent")}
        return CollectStats(
            self.steps,
            pl.DataFrame(self._columns, schema),
            unfinished,
            self.seconds,
            interrupted=interrupted,
            run_ids=(run_id,),
        )
