"""Engines: run a function over pieces of work in this process, in other local processes, or in tasks of Ray.

Pieces are independent. Ray tries those of a dead worker again; it is imported when it is used.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

from ..errors import ComputationError, InvalidArgumentError
from .arguments import one_of, whole_number
from .optional_packages import require

#: Names of engines.
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Engine:
    """Where pieces of work run.

    Attributes:
        name: "local" or "ray".
        workers: how many processes or tasks at a time; None for this process, or for as many tasks as the
            cluster has CPUs.
    """

    name: str = "local"
    workers: int | None = None

    @classmethod
    def of(cls, engine: str, workers: int | None) -> Engine:
        """Return the engine that a caller asked for.

        Raises:
            InvalidArgumentError: there is no such engine, or `workers` is no positive number.
            MissingPackageError: Ray is not installed.
        """
        one_of("engine", engine, ENGINES)
        if workers is not None:
            workers = whole_number("workers", workers, 1)
        if engine == "ray":
            require("ray", "engine='ray'", "'episodelake[ray]'")
        return cls(engine, workers)

    @property
    def is_elsewhere(self) -> bool:
        """Whether pieces run in other processes."""
        return self.name == "ray" or self.workers is not None

    def run(self, function: Callable[[Any], Any], pieces: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the place of each piece and its result, as they end.

        Args:
            function: called with a piece, which is pickled as the function and the result are.
            pieces: in the order in which they begin.

        Raises:
            InvalidArgumentError: the function cannot be pickled.
            ComputationError: a process died. An error that the function raises comes as it is.
        """
        if not self.is_elsewhere:
            return ((place, function(piece)) for place, piece in enumerate(pieces))
        return (_in_tasks if self.name == "ray" else _in_processes)(function, pieces, self.workers)


def _in_processes(
    function: Callable[[Any], Any], pieces: Sequence[Any], workers: int | None
) -> Iterator[tuple[int, Any]]:
    try:
        payload = pickle.dumps(function)
    except Exception as error:  # Objects may raise anything when they are pickled.
        raise _not_picklable(error, "Define it in a module, or compute without workers.") from error
    count = min(workers or 1, max(len(pieces), 1))
    # Processes that are forked would copy locks and threads of whatever this one has loaded.
    spawn = multiprocessing.get_context("spawn")
    theirs, ours = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, spawn, _begin, (payload, theirs))
    waiting: dict[Future[Any], int] = {}
    closed = False
    with theirs, ours:
        try:
            for place, piece in enumerate(pieces):
                waiting[pool.submit(_applied_here, piece)] = place
                if len(waiting) > count:
                    yield from _ended(waiting)
            while waiting:
                yield from _ended(waiting)
        except BrokenProcessPool as error:
            raise ComputationError(
                "A process that computes died: it was killed, perhaps for want of memory, or could not "
                "begin. A script that starts processes needs `if __name__ == '__main__':` around the call."
            ) from error
        except GeneratorExit:
            # The collector may close this generator inside a lock of `threading`: no thread is joined then.
            closed = True
            raise
        finally:
            if waiting:
                # After an error or an interrupt, processes end without their pieces.
                ours.close()
            pool.shutdown(wait=not closed, cancel_futures=True)


def _ended(waiting: dict[Future[Any], int]) -> Iterator[tuple[int, Any]]:
    """Wait until at least one piece has ended."""
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        yield waiting.pop(future), future.result()


#: The pickled function that this process applies.
_payload: bytes = b""


def _begin(payload: bytes, parent: Connection) -> None:
    """Prepare a process: Ctrl-C is for its parent, and it ends when that closes the pipe, or dies."""
    global _payload
    _payload = payload
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        with contextlib.suppress(EOFError, OSError):
            parent.recv()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _applied_here(piece: Any) -> Any:
    return _applied(_payload, piece)


def _in_tasks(
    function: Callable[[Any], Any], pieces: Sequence[Any], workers: int | None
) -> Iterator[tuple[int, Any]]:
    ray = require("ray", "engine='ray'", "'episodelake[ray]'")
    if not ray.is_initialized():
        ray.init()
    try:
        payload = ray.put(ray.cloudpickle.dumps(function))
    except Exception as error:  # Objects may raise anything when they are pickled.
        raise _not_picklable(error, "Make what it holds inside it.") from error
    most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    task = ray.remote(_applied)
    waiting: dict[Any, int] = {}

    def ended() -> Iterator[tuple[int, Any]]:
        for reference in ray.wait(list(waiting))[0]:
            yield waiting.pop(reference), ray.get(reference)

    try:
        for place, piece in enumerate(pieces):
            waiting[task.remote(payload, piece)] = place
            # One more than can run, so that no CPU waits for the driver.
            if len(waiting) > most + (workers is None):
                yield from ended()
        while waiting:
            yield from ended()
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise ComputationError(f"Ray could not compute a piece: {error}") from error
    finally:
        for reference in waiting:
            with contextlib.suppress(Exception):
                # An interrupt in an import would leave half a module to the next task of that worker.
                ray.cancel(reference, force=True)


def _applied(payload: bytes, piece: Any) -> Any:
    return _unpickled(payload)(piece)


@lru_cache(1)
def _unpickled(payload: bytes) -> Callable[[Any], Any]:
    """Return the function; a process unpickles it once."""
    try:
        return pickle.loads(payload)
    except Exception as error:  # Modules may raise anything when they are imported.
        raise ComputationError(
            f"The function cannot be loaded in another process: {type(error).__name__}: {error}. The modules "
            "that it names have to be there."
        ) from error


def _not_picklable(error: Exception, hint: str) -> InvalidArgumentError:
    reason = str(error).strip().partition("\n")[0]
    return InvalidArgumentError(f"The function cannot be sent to another process: {reason}. {hint}")
