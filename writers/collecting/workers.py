"""Parallel collection: worker processes that each record a run of their own into one store.

    collect_in_workers -> Crew: start, listen, stop -> worker.work in each process
                       -> what dead workers left is recovered -> CollectStats

Processes are spawned, never forked: a fork would copy locks and threads of whatever the parent has loaded.
Ctrl-C reaches the parent only (SIGINT is blocked in workers), which then asks them to stop.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import pickle
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import polars as pl

from ...store.errors import EpisodelakeError, InvalidArgumentError
from ...store.files.access import state_of
from ...store.maintenance.recovery import recover
from ...store.schema import OpenStore, StoreHandle
from ..recorders.choice import is_source
from .actor import PolicyConfig, derived_seed
from .display import CollectProgress, Display, StopSignal
from .goal import Goal, Resets
from .stats import CollectStats, WorkerReport
from .worker import Share, WorkerConfig, recorded_episodes, work

_PAUSE = 0.1
_GRACE_SECONDS = 10.0
_ENV_SEED, _POLICY_SEED = 2, 3


@dataclass
class _Worker:
    """A worker process, seen from its parent.

    Attributes:
        share: what it is to do.
        process: its process.
        channel: to it and from it; None once it is closed at the other end.
        run_id: of its run.
        progress: its last report.
        stats: what it recorded, if it came to its end.
        failure: the traceback of what it raised.
        recovered: whether its journal was recovered.
    """

    share: Share
    process: Any
    channel: Connection | None
    run_id: str | None = None
    progress: CollectProgress | None = None
    stats: CollectStats | None = None
    failure: str | None = None
    recovered: bool = False

    def hear(self) -> None:
        """Take one message; a channel that has ended is dropped."""
        assert self.channel is not None
        try:
            kind, content = self.channel.recv()
        except (EOFError, OSError):
            self.channel.close()
            self.channel = None
            return
        if kind == "run":
            self.run_id = content
        elif kind == "progress":
            self.progress = content
        elif kind == "done":
            self.stats = content
        else:
            self.failure = content

    def hang_up(self) -> None:
        """Take what a dead one has said last."""
        with contextlib.suppress(OSError):
            while self.channel is not None and self.channel.poll():
                self.hear()
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def tell_to_stop(self) -> None:
        """Ask it to seal and end."""
        if self.channel is not None:
            with contextlib.suppress(OSError):
                self.channel.send("stop")

    def death(self) -> str | None:
        """Return how it died, in words; None if it did its work."""
        if self.stats is not None:
            return None
        if self.failure is not None:
            return self.failure
        code = self.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how += f" ({signal.Signals(-code).name})"
        words = f"The process ended with {how}."
        if self.run_id is None and code == 1:
            words += (
                " It had not begun. A script that starts workers needs `if __name__ == '__main__':` around "
                "the call."
            )
        return words


class WorkerPool:
    """The worker processes of one collection; after its `with` block none of them lives.

    Args:
        orders: what they have in common, pickled.
        shares: one for each worker.
    """

    def __init__(self, orders: bytes, shares: Sequence[Share]) -> None:
        self._orders = orders
        self._shares = shares
        self.hands: list[_Worker] = []

    def __enter__(self) -> WorkerPool:
        """Start them."""
        context = multiprocessing.get_context("spawn")
        try:
            for share in self._shares:
                ours, theirs = context.Pipe()
                name = f"episodelake-worker-{share.index}"
                process = context.Process(target=work, args=(theirs, self._orders, share), name=name)
                with _interrupts_blocked():
                    process.start()
                theirs.close()
                self.hands.append(_Worker(share, process, ours))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ask living workers to stop, and kill those that do not."""
        for hand in self.hands:
            hand.tell_to_stop()
        latest = time.monotonic() + _GRACE_SECONDS
        for hand in self.hands:
            hand.process.join(max(0.0, latest - time.monotonic()))
            if hand.process.is_alive():
                hand.process.kill()
                hand.process.join()
            hand.hang_up()

    def watch(self, stop: StopSignal, display: Display, goal: Goal) -> None:
        """Listen to them until all have ended; pass on the wish to stop."""
        start = time.perf_counter()
        reported = False
        while any(hand.channel is not None for hand in self.hands):
            if stop.asked and not reported:
                reported = True
                for hand in self.hands:
                    hand.tell_to_stop()
            self._listen()
            if display.due:
                display.tell(self._progress(goal, time.perf_counter() - start))
        for hand in self.hands:
            hand.process.join()
        if display.wanted:
            display.tell(self._progress(goal, time.perf_counter() - start))

    def _listen(self) -> None:
        """Take what has been said; wait a moment if nothing has."""
        speaking = [hand for hand in self.hands if hand.channel is not None]
        sources: list[Any] = [part for hand in speaking for part in (hand.channel, hand.process.sentinel)]
        ready = wait(sources, _PAUSE)
        for hand in speaking:
            if hand.channel in ready:
                hand.hear()
            elif hand.process.sentinel in ready:
                # Processes that it has left behind may hold the channel open.
                hand.hang_up()

    def kill(self) -> None:
        """End all at once; what they recorded is in their journals."""
        for hand in self.hands:
            hand.process.kill()

    def _progress(self, goal: Goal, seconds: float) -> CollectProgress:
        reports = [hand.progress for hand in self.hands if hand.progress is not None]
        return CollectProgress(
            done=sum(state.done for state in reports),
            total=goal.total,
            steps=sum(state.steps for state in reports),
            episodes=sum(state.episodes for state in reports),
            return_sum=sum(state.return_sum for state in reports),
            seconds=seconds,
        )


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Hide Ctrl-C from processes that are started here; this one sees it afterwards."""
    # Starting the tracker unblocks the signal, and the first process to be started would start it.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def collect_in_workers(
    workers: int, resets: Resets, goal: Goal, orders: WorkerConfig, display: Display, store: OpenStore
) -> CollectStats:
    """Collect with worker processes; see `collect`.

    Raises:
        InvalidArgumentError: something cannot be sent to another process; a list of seeds or options is too
            short.
    """
    if not is_source(orders.make_env):
        raise InvalidArgumentError(
            f"With workers, each makes an environment of its own: got {type(orders.make_env).__name__}, "
            "expected an environment's id or spec, or a function without arguments that makes one."
        )
    parts = goal.split(workers)
    resets.check_lengths(goal.episodes or len(parts))
    payload = _pickled(orders, resets)
    shares = [
        Share(
            index, part, _share_of(resets, index, len(parts)), _policy_seed(orders.acting, resets.seed, index)
        )
        for index, part in enumerate(parts)
    ]
    start = time.perf_counter()
    stop = StopSignal()
    with stop, display, WorkerPool(payload, shares) as crew:
        try:
            crew.watch(stop, display, goal)
        except KeyboardInterrupt:
            crew.kill()
            stop.ask()
            crew.watch(stop, Display(False), goal)
    return _stats(crew.hands, store.handle, stop, start)


def _share_of(resets: Resets, index: int, workers: int) -> Resets:
    """Return the resets of one worker: every so-manyth episode, or a seed of its own."""
    seed = derived_seed(resets.seed, _ENV_SEED, index) if isinstance(resets.seed, int) else resets.seed
    return replace(resets, seed=seed, first=index, stride=workers)


def _policy_seed(acting: PolicyConfig, seed: Any, index: int) -> int | None:
    return derived_seed(seed if acting.seed is None else acting.seed, _POLICY_SEED, index)


def _pickled(orders: WorkerConfig, resets: Resets) -> bytes:
    """Return the orders for another process, which the resets go to as well.

    Raises:
        InvalidArgumentError: a part cannot be pickled; the message names it.
    """
    try:
        pickle.dumps(resets)
        return pickle.dumps(orders)
    except Exception as error:  # pickling runs code of the caller's objects, which may raise anything
        parts = {
            "make_env": orders.make_env,
            **{name: getattr(orders.acting, name) for name in ("policy", "initial_state")},
            **{
                name: getattr(orders.acting, name) for name in ("explore", "map_action", "map_action_inverse")
            },
            "on_step": orders.on_step,
            "on_episode": orders.on_episode,
            "seed": resets.seed,
            "options": resets.options,
            **orders.recording,
        }
        name, reason = next(_unpicklable(parts), ("an argument", error))
        raise InvalidArgumentError(
            f"{name} cannot be sent to worker processes: {reason}. Workers are new interpreters, which "
            "import what they are given: use functions and classes that a module defines at its top level, "
            "no lambdas and no local ones, and let them open files and connections in the worker."
        ) from error


def _unpicklable(parts: dict[str, Any]) -> Iterator[tuple[str, Exception]]:
    for name, part in parts.items():
        try:
            pickle.dumps(part)
        except Exception as error:  # as above
            yield name, error


def _stats(hands: Sequence[_Worker], store: StoreHandle, stop: StopSignal, start: float) -> CollectStats:
    """Return the sum of what the workers recorded; the dead ones' journals are recovered first."""
    if any(hand.stats is None for hand in hands):
        _recover(hands, store)
    if not stop.asked and all(hand.stats is None and hand.run_id is None for hand in hands):
        raise InvalidArgumentError(
            f"None of {len(hands)} workers could begin. The first one said: {hands[0].death()}"
        )
    parts = [hand.stats or _of_dead(hand, store) for hand in hands]
    reports = tuple(
        WorkerReport(
            index=hand.share.index,
            run_id=hand.run_id,
            steps=part.steps,
            episodes=part.episodes,
            exit_code=hand.process.exitcode,
            failure=hand.death(),
            recovered=hand.recovered,
        )
        for hand, part in zip(hands, parts, strict=True)
    )
    return replace(
        reduce(operator.add, parts),
        unfinished=sum(part.unfinished for part in parts),
        seconds=time.perf_counter() - start,
        interrupted=stop.asked,
        run_ids=tuple(hand.run_id for hand in hands if hand.run_id is not None),
        workers=reports,
    )


def _recover(hands: Sequence[_Worker], store: StoreHandle) -> None:
    """Recover what dead workers left; another worker that began later may have done it already."""
    trouble = ""
    left = [hand for hand in hands if hand.stats is None and _left_a_journal(hand, store)]
    try:
        recover(store)
    except EpisodelakeError as error:
        trouble = f"\nIts journal could not be recovered: {error}"
    for hand in left:
        hand.recovered = not _has_journal(hand, store)
        if not hand.recovered:
            hand.failure = f"{hand.death()}{trouble}"


def _left_a_journal(hand: _Worker, store: StoreHandle) -> bool:
    """Return whether a worker that has failed could not seal what it had: it died, or sealing failed."""
    if hand.run_id is None:
        return False
    return hand.failure is None or _has_journal(hand, store)


def _has_journal(hand: _Worker, store: StoreHandle) -> bool:
    """Return whether a worker's journal is there, also where the system cannot tell."""
    try:
        return state_of(store.layout.journals / str(hand.run_id)) is not None
    except OSError:
        return True


def _of_dead(hand: _Worker, store: StoreHandle) -> CollectStats:
    """Return what a dead worker recorded; episodes that the environment did not end count as unfinished."""
    episodes = recorded_episodes(store.layout, hand.run_id or "", store.manifest.reward_shape)
    ended = episodes.filter(pl.col("terminated") | pl.col("truncated"))
    return CollectStats(int(episodes["length"].sum()), ended, episodes.height - ended.height, 0.0)
