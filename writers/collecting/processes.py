"""Worker processes on this machine.

Processes are spawned, never forked: a fork would copy locks and threads of whatever the parent has loaded.
Ctrl-C reaches the parent only (SIGINT is blocked in workers), which then asks them to stop.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from .display import Display, StopSignal
from .goal import Goal
from .worker import Share, work
from .workers import Worker, WorkerPool

_PAUSE = 0.1
_GRACE_SECONDS = 10.0


@dataclass
class _Process(Worker):
    """A worker process, seen from its parent.

    Attributes:
        process: its process.
        channel: to it and from it; None once it is closed at the other end.
    """

    process: Any = None
    channel: Connection | None = None

    @property
    def running(self) -> bool:
        """See `Worker`."""
        return self.channel is not None

    def hear(self) -> None:
        """Take one message; a channel that has ended is dropped."""
        assert self.channel is not None
        try:
            self.take(*self.channel.recv())
        except (EOFError, OSError):
            self.channel.close()
            self.channel = None

    def hang_up(self) -> None:
        """Take what a dead one has said last."""
        with contextlib.suppress(OSError):
            while self.channel is not None and self.channel.poll():
                self.hear()
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def join(self, seconds: float | None = None) -> None:
        """Wait for its end."""
        self.process.join(seconds)
        self.exit_code = self.process.exitcode

    def end(self) -> str:
        """See `Worker`."""
        code = self.exit_code
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


class ProcessPool(WorkerPool):
    """Processes of this machine as workers."""

    dumps = staticmethod(pickle.dumps)
    limits = (
        "Workers are new interpreters, which import what they are given: use functions and classes that a "
        "module defines at its top level, no lambdas and no local ones."
    )

    def start(self, orders: bytes, shares: Sequence[Share]) -> None:
        """See `WorkerPool`."""
        context = multiprocessing.get_context("spawn")
        for share in shares:
            ours, theirs = context.Pipe()
            name = f"episodelake-worker-{share.index}"
            process = context.Process(target=work, args=(theirs, orders, share), name=name)
            with _interrupts_blocked():
                process.start()
            theirs.close()
            self.workers.append(_Process(share, process=process, channel=ours))

    def __exit__(self, *_: object) -> None:
        """See `WorkerPool`."""
        self.tell_to_stop()
        latest = time.monotonic() + _GRACE_SECONDS
        for worker in self.workers:
            worker.join(max(0.0, latest - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.join()
            worker.hang_up()

    def watch(self, stop: StopSignal, display: Display, goal: Goal) -> None:
        """See `WorkerPool`; also wait for their ends."""
        super().watch(stop, display, goal)
        for worker in self.workers:
            worker.join()

    def listen(self) -> None:
        """See `WorkerPool`."""
        speaking = [worker for worker in self.workers if worker.running]
        sources: list[Any] = [
            part for worker in speaking for part in (worker.channel, worker.process.sentinel)
        ]
        ready = wait(sources, _PAUSE)
        for worker in speaking:
            if worker.channel in ready:
                worker.hear()
            elif worker.process.sentinel in ready:
                # Processes that it has left behind may hold the channel open.
                worker.hang_up()

    def tell_to_stop(self) -> None:
        """See `WorkerPool`."""
        for worker in self.workers:
            if worker.channel is not None:
                with contextlib.suppress(OSError):
                    worker.channel.send("stop")

    def kill(self) -> None:
        """See `WorkerPool`."""
        for worker in self.workers:
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
