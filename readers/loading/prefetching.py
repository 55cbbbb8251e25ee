"""Making batches ahead, in a background thread, while the learner is busy with the one before.

The thread fills a lane of bounded length, in order; the consumer takes from it. The thread ends with the
batches, with the first error (raised in the consumer, in its turn), when the consumer's iterator is closed or
dropped, and when the interpreter ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Generator
from typing import Any

from ...store.errors import LoaderStateError

Batches = Generator[Any, None, None]


def prefetched(batches: Batches, depth: int) -> Batches:
    """Yield what `batches` yields, made by a thread that is up to `depth` batches ahead.

    Raises:
        LoaderStateError: the iteration was begun in another process, which a fork left behind.
    """
    lane = _Lane(batches, depth)
    _LANES.add(lane)
    lane.thread.start()
    try:
        while (batch := lane.take()) is not _END:
            yield batch
    finally:
        lane.close()


class _Lane:
    """Batches on their way from one thread to another."""

    def __init__(self, batches: Batches, depth: int) -> None:
        self._ready: deque[Any] = deque()
        self._depth = depth
        self._changed = threading.Condition()
        self._over = False
        self._closed = False
        self._error: BaseException | None = None
        self._process = os.getpid()
        # A daemon, because the interpreter waits for other threads before it lets anybody close them.
        self.thread = threading.Thread(target=self._fill, args=(batches,), name="episodelake prefetching")
        self.thread.daemon = True

    def take(self) -> Any:
        """Wait for the next batch and make room for another; `_END` if there is none left."""
        if os.getpid() != self._process:
            raise LoaderStateError(
                "This iteration was begun in another process, whose thread a fork does not take along. Begin "
                "a new one: it goes on from where the loader stands."
            )
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._over)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
        if self._error is not None:
            raise self._error
        return _END

    def close(self) -> None:
        """End the thread, after the batch that it is working at."""
        # In a forked child there is no thread, and the lock may be held for ever.
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.thread is not threading.current_thread():
            self.thread.join()
        self._ready.clear()

    def _fill(self, batches: Batches) -> None:
        try:
            with contextlib.closing(batches):
                while self._has_room():
                    batch = next(batches, _END)
                    if batch is _END:
                        break
                    with self._changed:
                        self._ready.append(batch)
                        self._changed.notify_all()
        except BaseException as error:
            self._error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            return not self._closed


_END = object()
_LANES: weakref.WeakSet[_Lane] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for lane in list(_LANES):
        lane.close()
