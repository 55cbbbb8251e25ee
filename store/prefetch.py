"""Make the next items of an iterator in a background thread while the caller uses the current one.

The thread fills a queue of bounded length, in order; the caller takes from it. The thread ends with the
items, with the first error (raised in the caller, in its turn), when the caller's iterator is closed or
dropped, and when the interpreter exits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Generator
from typing import Any, TypeVar

from .errors import LoaderStateError

Item = TypeVar("Item")


def prefetch(items: Generator[Item, None, None], depth: int = 1) -> Generator[Item, None, None]:
    """Yield all items of a generator, made by a thread that is up to `depth` items ahead.

    One thread makes them all: memory that a thread has freed is not soon reused by others. The generator is
    closed in that thread.

    Raises:
        LoaderStateError: the iteration was begun in another process, before a fork.
    """
    queue = _Queue(items, depth)
    try:
        queue.thread.start()
    except RuntimeError:
        # No thread can be started, for example while the interpreter exits.
        yield from items
        return
    _QUEUES.add(queue)
    try:
        while (item := queue.take()) is not _END:
            yield item
    finally:
        queue.close()


class _Queue:
    """Items on their way from one thread to another."""

    def __init__(self, items: Generator[Any, None, None], depth: int) -> None:
        self._ready: deque[Any] = deque()
        self._depth = depth
        self._changed = threading.Condition()
        self._over = False
        self._closed = False
        self._error: BaseException | None = None
        self._process = os.getpid()
        # A daemon, because the interpreter joins other threads before it calls exit handlers.
        self.thread = threading.Thread(target=self._fill, args=(items,), name="episodelake prefetching")
        self.thread.daemon = True

    def take(self) -> Any:
        """Wait for the next item and make room for another; `_END` if there is none left."""
        if os.getpid() != self._process:
            raise LoaderStateError(
                "This iteration was begun in another process, and a fork does not copy its thread. Begin a "
                "new one: it continues from the loader's position."
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
        """End the thread, after the item that it is making."""
        # A forked child has no such thread, and the lock may be held for ever.
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.thread is not threading.current_thread():
            self.thread.join()
        self._ready.clear()

    def _fill(self, items: Generator[Any, None, None]) -> None:
        try:
            with contextlib.closing(items):
                while self._has_room():
                    item = next(items, _END)
                    if item is _END:
                        break
                    with self._changed:
                        self._ready.append(item)
                        self._changed.notify_all()
                    # The queue and the caller alone keep an item.
                    del item
        except BaseException as error:
            self._error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            return not self._closed


_END: Any = object()
_QUEUES: weakref.WeakSet[_Queue] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for queue in list(_QUEUES):
        queue.close()
