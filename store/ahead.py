"""Making the next of some items while the last one is in use.

Sealing gathers a row group while the one before it is encoded and written. Both are work of Arrow's and
numpy's that other threads can run beside.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield all items; while the caller has one, a thread of its own makes the next.

    What making an item raises is raised where it would have been yielded. Nothing is made any more once
    this iterator is closed.
    """
    maker = _Maker(items)
    try:
        maker.start()
    except RuntimeError:
        # No thread can be had, as when the interpreter shuts down.
        yield from items
        return
    try:
        maker.wanted.release()
        while (found := maker.take()) is not None:
            maker.wanted.release()
            yield found[0]
    finally:
        maker.stop()


class _Maker(threading.Thread, Generic[Item]):
    """Makes an item for each time that one is wanted.

    One thread makes them all: memory that a thread took is not soon used again by others, and row groups
    would pile up.
    """

    def __init__(self, items: Iterator[Item]) -> None:
        super().__init__(name="episodelake ahead", daemon=True)
        self.wanted = threading.Semaphore(0)
        self._made = threading.Semaphore(0)
        self._items = items
        self._found: tuple[Item] | None = None
        self._error: BaseException | None = None
        self._stopping = False

    def run(self) -> None:
        """Make items until there are no more."""
        try:
            while self._next_wanted():
                self._found = None
                for item in self._items:
                    self._found = (item,)
                    del item
                    break
                if self._found is None:
                    return
                self._made.release()
        except BaseException as error:  # whatever it is, it must reach whoever waits
            self._error = error
        finally:
            self._made.release()

    def _next_wanted(self) -> bool:
        self.wanted.acquire()
        return not self._stopping

    def take(self) -> tuple[Item] | None:
        """The next item, or None if there is no more."""
        self._made.acquire()
        if self._error is not None:
            raise self._error
        found, self._found = self._found, None
        return found

    def stop(self) -> None:
        """Make nothing more, and wait for what is being made."""
        self._stopping = True
        self.wanted.release()
        self.join()
