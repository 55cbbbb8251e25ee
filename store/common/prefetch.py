"""Make the next items of an iterator in a background thread while the caller uses the current one.

The items come in order. The thread ends with the items, with the first error (raised in the caller, in its
turn), when the caller's iterator is closed or dropped, and when the interpreter exits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import Any, TypeVar

from ..errors import LoaderStateError

Item = TypeVar("Item")
_THREADS = "episodelake prefetching"
_END: Any = object()
_here = threading.local()
_MOST_SECONDS = 10.0


def prefetch(items: Generator[Item, None, None], depth: int = 1) -> Generator[Item, None, None]:
    """Yield all items of a generator, made by a thread that is up to `depth` items ahead.

    One thread makes them all: memory that a thread has freed is not soon reused by others.

    Raises:
        LoaderStateError: the iteration was begun in another process, before a fork.
    """
    process = os.getpid()
    pool = ThreadPoolExecutor(1, _THREADS, _begin)
    try:
        ahead: deque[Future[Any]] = deque([pool.submit(next, items, _END)])
    except RuntimeError:
        # No thread can be started, for example while the interpreter exits.
        yield from items
        return
    try:
        ahead.extend(pool.submit(next, items, _END) for _ in range(depth - 1))
        while True:
            if os.getpid() != process:
                raise LoaderStateError(
                    "This iteration was begun in another process, and a fork does not copy its thread. Begin "
                    "a new one: it continues from the loader's position."
                )
            item = ahead.popleft().result()
            if item is _END:
                return
            try:
                ahead.append(pool.submit(next, items, _END))
            except RuntimeError:
                # The main thread has ended, and with it all pools: go on without a thread.
                yield item
                yield from _rest(ahead, items)
                return
            yield item
            # The caller alone keeps an item.
            del item
    finally:
        # A forked child has no such thread.
        if os.getpid() == process:
            _leave(pool, ahead)


def peeked(items: Iterator[Item]) -> tuple[Item | None, Iterator[Item]]:
    """Return the first item, None where there is none, and an iterator over all of them; it keeps no item."""
    first = next(items, _END)
    return (None, items) if first is _END else (first, chain(iter([first]), items))


def _rest(ahead: Iterable[Future[Any]], items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items that a thread has made, and make the others here."""
    for future in ahead:
        item = future.result()
        if item is _END:
            return
        yield item
    yield from items


def _leave(pool: ThreadPoolExecutor, ahead: Iterable[Future[Any]]) -> None:
    """End the thread after the item that it is making, and wait for that item.

    The collector may close a generator inside a lock of `threading`, which the end of a thread and the
    beginning of others need. So no thread is joined, and the wait is bounded.
    """
    pool.shutdown(wait=False, cancel_futures=True)
    if not getattr(_here, "makes_items", False):
        wait([future for future in ahead if not future.cancelled()], _MOST_SECONDS)


def _begin() -> None:
    _here.makes_items = True
