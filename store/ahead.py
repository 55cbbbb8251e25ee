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
    coming = _Coming(items)
    coming.make()
    try:
        while (found := coming.wait()) is not None:
            coming = _Coming(items)
            coming.start()
            yield found[0]
    finally:
        coming.join()


class _Coming(Generic[Item]):
    """The next item."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._found: tuple[Item] | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to make it."""
        thread = threading.Thread(target=self.make, name="episodelake ahead", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread can be had, as when the interpreter shuts down.
            self.make()
        else:
            self._thread = thread

    def make(self) -> None:
        """Make it now."""
        try:
            for item in self._items:
                self._found = (item,)
                return
        except BaseException as error:  # whatever it is, it must reach whoever waits
            self._error = error

    def wait(self) -> tuple[Item] | None:
        """The item, or None if there is no more."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._found

    def join(self) -> None:
        """Wait until it is made."""
        if self._thread is not None:
            self._thread.join()
