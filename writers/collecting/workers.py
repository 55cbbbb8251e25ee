"""Parallel collection: workers that each record a run of their own into one store.

    collect_in_workers -> WorkerPool: start, poll, stop -> worker.work_share in each worker
                       -> what dead workers left is recovered -> CollectStats

Workers are processes (`processes.py`), or what another `WorkerPool` starts.
"""

from __future__ import annotations

import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import polars as pl

from ...store.errors import EpisodelakeError, InvalidArgumentError
from ...store.files import stat_or_none
from ...store.recovery.recovery import recover
from ...store.schema import OpenStore, StoreHandle
from ..recorders.choice import is_source
from .actor import PolicyConfig, derived_seed
from .display import CollectProgress, Display, StopSignal
from .goal import Goal, Resets
from .stats import CollectStats, WorkerReport
from .worker import Share, WorkerConfig, open_handle, recorded_episodes

_ENV_SEED, _POLICY_SEED = 2, 3


@dataclass
class Worker(ABC):
    """A worker, seen from the caller of `collect`.

    Attributes:
        share: its task.
        run_id: of its run.
        progress: its last report, with `steps`, `episodes` and `return_sum`.
        stats: its result, if it finished.
        failure: the traceback of its exception.
        recovered: whether its journal was recovered.
        exit_code: of its process, if that died.
    """

    share: Share
    run_id: str | None = None
    progress: Any = None
    stats: CollectStats | None = None
    failure: str | None = None
    recovered: bool = False
    exit_code: int | None = None

    @property
    @abstractmethod
    def running(self) -> bool:
        """True until its result is there, or it is known to be dead."""

    @abstractmethod
    def end(self) -> str:
        """Return how it ended without a message of its own, in words."""

    def take(self, kind: str, content: Any) -> None:
        """Take a report of `worker.work_share`, or ("done", its result)."""
        if kind == "run":
            self.run_id = content
        elif kind == "progress":
            self.progress = content
        elif isinstance(content, str):
            self.failure = content
        else:
            self.stats = content

    def death(self) -> str | None:
        """Return how it died, in words; None if it did its work."""
        return None if self.stats is not None else self.failure or self.end()


class WorkerPool(ABC):
    """The workers of one collection; after its `with` block none of them lives.

    Args:
        count: how many to start at most.

    Attributes:
        workers: those that were started.
        dumps: pickles what goes to workers.
        limits: what it can pickle, in words.
        depth: how many functions of this package lie between the user's call and `collect`.
    """

    dumps: Callable[[Any], bytes]
    limits: str
    depth: int = 0

    def __init__(self, count: int) -> None:
        self.count = count
        self.workers: list[Any] = []

    @abstractmethod
    def start(self, config: bytes, shares: Sequence[Share]) -> None:
        """Start a worker for each share.

        Args:
            config: the settings that they share, pickled.
            shares: one for each.
        """

    @abstractmethod
    def poll(self) -> None:
        """Wait a moment for a result or a report."""

    @abstractmethod
    def request_stop(self) -> None:
        """Ask all workers to seal and end."""

    @abstractmethod
    def kill(self) -> None:
        """Kill all workers; their journals keep what they recorded."""

    def __enter__(self) -> WorkerPool:
        """Return itself."""
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Ask living workers to stop, and kill those that do not."""

    def watch(self, stop: StopSignal, display: Display, goal: Goal) -> None:
        """Poll the workers until all have ended; pass on a request to stop."""
        start = time.perf_counter()
        reported = False
        while any(worker.running for worker in self.workers):
            if stop.asked and not reported:
                reported = True
                self.request_stop()
            self.poll()
            if display.due:
                display.show(self._progress(goal, time.perf_counter() - start))
        if display.wanted:
            display.show(self._progress(goal, time.perf_counter() - start))

    def _progress(self, goal: Goal, seconds: float) -> CollectProgress:
        reports = [worker.progress for worker in self.workers if worker.progress is not None]
        steps, episodes = (sum(getattr(state, name) for state in reports) for name in ("steps", "episodes"))
        return CollectProgress(
            done=episodes if goal.steps is None else steps,
            total=goal.total,
            steps=steps,
            episodes=episodes,
            return_sum=sum(state.return_sum for state in reports),
            seconds=seconds,
        )

    def recover(self, store: StoreHandle) -> None:
        """Recover the journals of dead workers; another worker that began later may have done it already."""
        dead = [worker for worker in self.workers if worker.stats is None]
        self._mark(*self.recover_runs(store, self.runs_of(dead)))

    @staticmethod
    def runs_of(workers: Sequence[Worker]) -> dict[str, bool]:
        """Return the runs of dead workers, and whether each could not even raise."""
        return {worker.run_id: worker.failure is None for worker in workers if worker.run_id is not None}

    @staticmethod
    def recover_runs(store: StoreHandle, runs: Mapping[str, bool]) -> tuple[dict[str, bool], str]:
        """Recover the journals of dead workers of this machine.

        Args:
            store: the store.
            runs: as `runs_of` returns them. A worker that raised has sealed what it had, unless its journal
                is still there.

        Returns:
            Whether the journal was recovered, for each run that left one; and what prevented it, in words.
        """
        trouble = ""
        left = [run for run, died in runs.items() if died or _has_journal(run, store)]
        try:
            recover(store)
        except EpisodelakeError as error:
            trouble = f"\nIts journal could not be recovered: {error}"
        return {run: not _has_journal(run, store) for run in left}, trouble

    @classmethod
    def recover_at(
        cls, url: str, options: Mapping[str, str] | None, runs: Mapping[str, bool]
    ) -> tuple[dict[str, bool], str]:
        """Do the same on another machine, as `recover_runs`.

        Args:
            url, options: of the store.
            runs: as for `recover_runs`.
        """
        return cls.recover_runs(open_handle(url, options), runs)

    def _mark(self, recovered: Mapping[str, bool], trouble: str) -> None:
        for worker in self.workers:
            if worker.run_id in recovered:
                worker.recovered = recovered[worker.run_id]
                if not worker.recovered:
                    worker.failure = f"{worker.death()}{trouble}"


def _has_journal(run: str, store: StoreHandle) -> bool:
    """Return whether a run's journal may be there."""
    try:
        return stat_or_none(store.layout.journals / run) is not None
    except OSError:
        return True


def check_source(make_env: Any) -> None:
    """Refuse sources that workers cannot make environments from.

    Raises:
        InvalidArgumentError: it is an environment, or something else.
    """
    if not is_source(make_env):
        raise InvalidArgumentError(
            f"With workers, each makes an environment of its own: got {type(make_env).__name__}, "
            "expected an environment's id or spec, or a function without arguments that makes one."
        )


def collect_in_workers(
    pool: WorkerPool, resets: Resets, goal: Goal, config: WorkerConfig, display: Display, store: OpenStore
) -> CollectStats:
    """Collect with workers; see `collect`.

    Raises:
        InvalidArgumentError: something cannot be sent to another process; a list of seeds or options is too
            short.
    """
    check_source(config.make_env)
    parts = goal.split(pool.count)
    resets.check_lengths(goal.episodes or len(parts))
    payload = _pickled(config, resets, pool)
    shares = [
        Share(
            index, part, _share_of(resets, index, len(parts)), _policy_seed(config.policy, resets.seed, index)
        )
        for index, part in enumerate(parts)
    ]
    start = time.perf_counter()
    stop = StopSignal()
    with stop, display, pool:
        pool.start(payload, shares)
        try:
            pool.watch(stop, display, goal)
        except KeyboardInterrupt:
            pool.kill()
            stop.ask()
            pool.watch(stop, Display(False), goal)
    return _stats(pool, store.handle, stop, start)


def _share_of(resets: Resets, index: int, workers: int) -> Resets:
    """Return the resets of one worker: every so-manyth episode, or a seed of its own."""
    seed = derived_seed(resets.seed, _ENV_SEED, index) if isinstance(resets.seed, int) else resets.seed
    return replace(resets, seed=seed, first=index, stride=workers)


def _policy_seed(policy: PolicyConfig, seed: Any, index: int) -> int | None:
    return derived_seed(seed if policy.seed is None else policy.seed, _POLICY_SEED, index)


def _pickled(config: WorkerConfig, resets: Resets, pool: WorkerPool) -> bytes:
    """Return the pickled config of the workers; the resets must be picklable too.

    Raises:
        InvalidArgumentError: a part cannot be pickled; the message names it.
    """
    try:
        pool.dumps(resets)
        return pool.dumps(config)
    except Exception as error:  # pickling runs code of the caller's objects, which may raise anything
        parts = {
            "make_env": config.make_env,
            **{name: getattr(config.policy, name) for name in ("policy", "initial_state")},
            **{
                name: getattr(config.policy, name) for name in ("explore", "map_action", "map_action_inverse")
            },
            "on_step": config.on_step,
            "on_episode": config.on_episode,
            "seed": resets.seed,
            "options": resets.options,
            **config.recording,
        }
        name, reason = next(_unpicklable(parts, pool.dumps), ("an argument", error))
        raise InvalidArgumentError(
            f"{name} cannot be sent to worker processes: {reason}. {pool.limits} Let functions open "
            "files and connections in the worker."
        ) from error


def _unpicklable(parts: dict[str, Any], dumps: Callable[[Any], bytes]) -> Iterator[tuple[str, Exception]]:
    for name, part in parts.items():
        try:
            dumps(part)
        except Exception as error:  # as above
            yield name, error


def _stats(pool: WorkerPool, store: StoreHandle, stop: StopSignal, start: float) -> CollectStats:
    """Return the sum of the workers' results; journals of dead ones are recovered first."""
    workers = pool.workers
    if any(worker.stats is None for worker in workers):
        pool.recover(store)
    if not stop.asked and all(worker.stats is None and worker.run_id is None for worker in workers):
        raise InvalidArgumentError(
            f"None of {len(workers)} workers could begin. The first one said: {workers[0].death()}"
        )
    parts = [worker.stats or _of_dead(worker, store) for worker in workers]
    reports = tuple(
        WorkerReport(
            index=worker.share.index,
            run_id=worker.run_id,
            steps=part.steps,
            episodes=part.episodes,
            exit_code=worker.exit_code,
            failure=worker.death(),
            recovered=worker.recovered,
        )
        for worker, part in zip(workers, parts, strict=True)
    )
    return replace(
        reduce(operator.add, parts),
        unfinished=sum(part.unfinished for part in parts),
        seconds=time.perf_counter() - start,
        interrupted=stop.asked,
        run_ids=tuple(worker.run_id for worker in workers if worker.run_id is not None),
        workers=reports,
    )


def _of_dead(worker: Worker, store: StoreHandle) -> CollectStats:
    """Return the recorded steps and episodes of a dead worker; unended episodes count as unfinished."""
    episodes = recorded_episodes(store.layout, worker.run_id or "", store.manifest.reward_shape)
    ended = episodes.filter(pl.col("terminated") | pl.col("truncated"))
    return CollectStats(int(episodes["length"].sum()), ended, episodes.height - ended.height, 0.0)
