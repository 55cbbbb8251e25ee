"""`CollectStats`: what a collection brought, and the tally that it is made from."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import polars as pl

from ...store.errors import InvalidArgumentError
from ...store.journal.episodes import Ends

_MEASURES = ("mean", "std", "min", "max")


class EndedEpisode(Protocol):
    """Length, return and end of an episode, for the statistics."""

    @property
    def length(self) -> int:
        """Transitions."""
        ...

    @property
    def episode_return(self) -> Any:
        """A number, or a list of one for each objective."""
        ...

    @property
    def terminated(self) -> bool:
        """The flag of its last transition."""
        ...

    @property
    def truncated(self) -> bool:
        """The flag of its last transition."""
        ...


@dataclass(frozen=True)
class WorkerReport:
    """Outcome of one worker process of a collection.

    Attributes:
        index: counts the workers from 0.
        run_id: its run; None if it died before it had one.
        steps, episodes: what it recorded, after recovery if it died.
        exit_code: of its process; negative for a signal, such as -9 for SIGKILL.
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
        episodes: episodes that ended in this call, by the environment or a step callback, and are recorded.
        unfinished: episodes that were still running at the end of it; they end as `cut` when the recorder
            closes.
        terminated, truncated: how many of `episodes` ended with that flag; one may have both.
        returns: float64, shape (episodes,), or (episodes, k) for k objectives: in the order of their ends,
            worker by worker.
        lengths: int64, shape (episodes,): transitions; of several agents the environment's steps.
        agent_returns, agent_lengths: of several agents, as `returns` and `lengths`, by agent. An agent that
            was not in an episode has NaN and 0 there.
        seconds: the whole call, sealing included where the call sealed.
        interrupted: whether Ctrl-C ended it early.
        run_ids: the runs that it wrote to; one, or one per worker.
        workers: how each worker process fared; empty without workers.
    """

    steps: int
    episodes: int
    unfinished: int
    terminated: int
    truncated: int
    returns: np.ndarray = field(repr=False)
    lengths: np.ndarray = field(repr=False)
    seconds: float
    interrupted: bool = False
    run_ids: tuple[str, ...] = ()
    workers: tuple[WorkerReport, ...] = ()
    agent_returns: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    agent_lengths: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

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
        """Return the stats of both calls together, of which `later` is the second.

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
        returns = np.concatenate([self.returns, later.returns])
        lengths = np.concatenate([self.lengths, later.lengths])
        agents = dict.fromkeys([*self.agent_returns, *later.agent_returns])
        parts = {agent: (self._of_agent(agent), later._of_agent(agent)) for agent in agents}
        agent_returns = {agent: np.concatenate([old[0], new[0]]) for agent, (old, new) in parts.items()}
        agent_lengths = {agent: np.concatenate([old[1], new[1]]) for agent, (old, new) in parts.items()}
        _freeze(returns, lengths, *agent_returns.values(), *agent_lengths.values())
        return CollectStats(
            steps=self.steps + later.steps,
            episodes=self.episodes + later.episodes,
            unfinished=later.unfinished,
            terminated=self.terminated + later.terminated,
            truncated=self.truncated + later.truncated,
            returns=returns,
            lengths=lengths,
            seconds=self.seconds + later.seconds,
            interrupted=self.interrupted or later.interrupted,
            run_ids=tuple(dict.fromkeys(self.run_ids + later.run_ids)),
            workers=self.workers + later.workers,
            agent_returns=agent_returns,
            agent_lengths=agent_lengths,
        )

    def _of_agent(self, agent: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the returns and lengths of an agent, which may have been in no episode."""
        if agent in self.agent_returns:
            return self.agent_returns[agent], self.agent_lengths[agent]
        return np.full_like(self.returns, np.nan), np.zeros_like(self.lengths)

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


def _freeze(*arrays: np.ndarray) -> None:
    for array in arrays:
        array.flags.writeable = False


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
    found = getattr(values, measure)(axis=0)
    return found if isinstance(found, np.ndarray) else found.item()


class Tally:
    """Counts while a collection goes on."""

    def __init__(self) -> None:
        self.steps = 0
        self.returns: list[Any] = []
        self.lengths: list[int] = []
        self.terminated = 0
        self.truncated = 0
        self.return_sum = 0.0
        # By agent: returns and lengths, each by the place of its episode.
        self.agents: dict[str, dict[int, tuple[Any, int]]] = {}
        self._start = time.perf_counter()

    @property
    def episodes(self) -> int:
        """Episodes that have ended."""
        return len(self.lengths)

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._start

    def add(self, ended: Sequence[EndedEpisode] | Ends) -> None:
        """Count episodes that have ended."""
        if isinstance(ended, Ends):
            self._add_columns(ended)
            return
        for episode in ended:
            for agent, total in getattr(episode, "agent_returns", {}).items():
                known = self.agents.setdefault(agent, {})
                known[len(self.lengths)] = total, episode.agent_lengths[agent]  # type: ignore[attr-defined]
            self.returns.append(episode.episode_return)
            self.return_sum += float(np.sum(episode.episode_return))
            self.lengths.append(episode.length)
            self.terminated += bool(episode.terminated)
            self.truncated += bool(episode.truncated)

    def _add_columns(self, ended: Ends) -> None:
        here = ended.lengths > 0
        self.returns += ended.returns[here].tolist()
        self.return_sum += float(ended.returns[here].sum())
        self.lengths += ended.lengths[here].tolist()
        self.terminated += int(ended.terminated[here].sum())
        self.truncated += int(ended.truncated[here].sum())

    def add_stats(self, stats: CollectStats) -> None:
        """Count what somebody else has counted."""
        for agent, returns in stats.agent_returns.items():
            known = self.agents.setdefault(agent, {})
            lengths = stats.agent_lengths[agent]
            there = (lengths > 0) | ~np.isnan(returns).reshape(len(returns), -1).all(1)
            for place in np.flatnonzero(there).tolist():
                known[len(self.lengths) + place] = returns[place], int(lengths[place])
        self.steps += stats.steps
        self.terminated += stats.terminated
        self.truncated += stats.truncated
        self.returns += stats.returns.tolist()
        self.lengths += stats.lengths.tolist()

    def stats(
        self,
        reward_shape: tuple[int, ...],
        *,
        unfinished: int,
        interrupted: bool,
        run_ids: tuple[str, ...],
    ) -> CollectStats:
        """Return what was counted, up to now."""
        returns = np.array(self.returns, np.float64).reshape(len(self.returns), *reward_shape)
        lengths = np.array(self.lengths, np.int64)
        agent_returns = {agent: np.full_like(returns, np.nan) for agent in self.agents}
        agent_lengths = {agent: np.zeros_like(lengths) for agent in self.agents}
        for agent, known in self.agents.items():
            for place, (total, length) in known.items():
                agent_returns[agent][place], agent_lengths[agent][place] = total, length
        _freeze(returns, lengths, *agent_returns.values(), *agent_lengths.values())
        return CollectStats(
            steps=self.steps,
            episodes=self.episodes,
            unfinished=unfinished,
            terminated=self.terminated,
            truncated=self.truncated,
            returns=returns,
            lengths=lengths,
            seconds=self.seconds,
            interrupted=interrupted,
            run_ids=run_ids,
            agent_returns=agent_returns,
            agent_lengths=agent_lengths,
        )
