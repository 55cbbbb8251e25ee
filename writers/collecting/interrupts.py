"""Ctrl-C during a collection: the first one ends it after the step in hand, the second at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignal:
    """A request to stop the collection.

    While its `with` block runs in the main thread, and Python's own handler of SIGINT is in place, the first
    Ctrl-C only sets `asked`: nothing is torn, and the environment stands where the recording ends. A second
    one raises KeyboardInterrupt, for an environment or a policy that hangs.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def ask(self) -> None:
        """Ask for the end, as Ctrl-C does."""
        self.asked = True

    def __enter__(self) -> StopSignal:
        """Take the signal over."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
