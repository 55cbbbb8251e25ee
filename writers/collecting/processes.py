"""Worker processes on this machine, each in its own executor: a dead process breaks its executor.

The result of a worker is that of a future. Its run and progress, and the request to stop, are in memory that
it shares with the parent. Processes are spawned, never forked: a fork would copy locks and threads of
whatever the parent has loaded. Ctrl-C reaches the parent only, which then asks the workers to stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from .display import StopSignal
from .stats import CollectStats
from .worker import Share, work_share
from .workers import Worker, WorkerPool

_PAUSE = 0.1
_GRACE_SECONDS = 10.0
#: How long a worker whose parent is dead may still take to end by itself.
_LAST_SECONDS = 30.0


class _Board(ctypes.Structure):
    """Memory that a worker shares with its parent, which writes `stop` and nothing else."""

    _fields_ = (
        ("run_id", ctypes.c_char * 256),
        ("steps", ctypes.c_int64),
        ("episodes", ctypes.c_int64),
        ("return_sum", ctypes.c_double),
        ("stop", ctypes.c_bool),
    )


@dataclass
class _Process(Worker):
    """A worker process, seen from its parent.

    Attributes:
        executor: of its one process.
        process: for its exit code, and to kill it.
        future: its result.
    """

    executor: Any = None
    process: Any = None
    future: Future[CollectStats | str] = None  # type: ignore[assignment]

    @property
    def running(self) -> bool:
        """See `Worker`."""
        return not self.future.done()

    def join(self) -> None:
        """Wait for its end, and take its run and its result."""
        self.executor.shutdown()
        self.run_id = self.progress.run_id.decode() or None
        try:
            self.take("done", self.future.result())
        except BrokenProcessPool:
            self.exit_code = self.process.exitcode

    def end(self) -> str:
        """See `Worker`."""
        code = self.exit_code or 0
        words = (
            f"The process ended with exit code {code}{f' ({signal.strsignal(-code)})' if code < 0 else ''}."
        )
        if self.run_id is not None or code != 1:
            return words
        return (
            f"{words} It had not begun. A script that starts workers needs `if __name__ == '__main__':` "
            "around the call."
        )


class _OneProcess(SpawnContext):
    """Keeps the process that an executor makes; other threads may start processes meanwhile."""

    made: Any = None

    def Process(self, *words: Any, **given: Any) -> Any:  # type: ignore[override]
        """See `SpawnContext`."""
        self.made = SpawnProcess(*words, **given)
        return self.made


class ProcessPool(WorkerPool):
    """Processes of this machine as workers."""

    dumps = staticmethod(pickle.dumps)
    limits = (
        "Workers are new interpreters, which import what they are given: use functions and classes that a "
        "module defines at its top level, no lambdas and no local ones."
    )

    def start(self, config: bytes, shares: Sequence[Share]) -> None:
        """See `WorkerPool`."""
        with _interrupts_blocked():
            for share in shares:
                context = _OneProcess()
                board = context.RawValue(_Board)
                executor = ProcessPoolExecutor(1, context, _begin, (board,))
                future = executor.submit(_work, config, share)
                self.workers.append(
                    _Process(share, progress=board, executor=executor, process=context.made, future=future)
                )

    def __exit__(self, *_: object) -> None:
        """See `WorkerPool`."""
        self.request_stop()
        wait([worker.future for worker in self.workers], _GRACE_SECONDS)
        self.kill()
        for worker in self.workers:
            worker.join()

    def poll(self) -> None:
        """See `WorkerPool`."""
        wait([worker.future for worker in self.workers if worker.running], _PAUSE, FIRST_COMPLETED)

    def request_stop(self) -> None:
        """See `WorkerPool`."""
        for worker in self.workers:
            worker.progress.stop = True

    def kill(self) -> None:
        """See `WorkerPool`."""
        for worker in self.workers:
            if worker.running:
                worker.process.kill()


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


# In the worker's process

_stop, _idle = StopSignal(), threading.Event()


def _begin(board: Any) -> None:
    global _board
    _board = board
    _idle.set()
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """Wait until the parent wants the end, or is dead; an executor's process would outlive it."""
    parent = multiprocessing.parent_process()
    # Whatever the parent forks may hold the pipes that show its end, so its id is looked at.
    while parent is not None and os.getppid() == parent.pid:
        if _board.stop:
            _stop.ask()
        time.sleep(_PAUSE)
    _stop.ask()
    _idle.wait(_LAST_SECONDS)
    os._exit(1)


def _work(config: bytes, share: Share) -> CollectStats | str:
    _idle.clear()
    try:
        return work_share(_report, config, share, _stop)
    finally:
        _idle.set()


def _report(kind: str, content: Any) -> None:
    """Write the run or the progress on the board."""
    if kind == "run":
        _board.run_id = content.encode()
    else:
        _board.steps, _board.episodes = content.steps, content.episodes
        _board.return_sum = content.return_sum
