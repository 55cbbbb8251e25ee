"""The program `episodelake` before it has loaded anything: where the shell begins.

It stands beside the package `episodelake`, since whatever lies inside is reached only once Polars, DuckDB
and pyarrow are there, which takes most of the time of a short command. So Ctrl-C ends the program quietly
from the start, and the shell completes names of commands, options and stores at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_COMPLETE = "_EPISODELAKE_COMPLETE"
_INTERRUPTED = 130
_started = False


def main() -> None:
    """The entry point: complete a line for the shell, or run the command line."""
    global _started
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    if os.environ.get(_COMPLETE):
        from .completing import completed

        text = completed(os.environ[_COMPLETE], _COMPLETE)
        if text is not None:
            print(text)
            return
    from episodelake.terminal.app import main as run

    _started = True
    run()


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End the process while it loads; afterwards do what Python does.

    Modules that are being loaded may swallow a KeyboardInterrupt, or tell it at length. The handler stays: to
    put back Python's own would put away the one of Polars, which took its place below it.
    """
    if not _started:
        os._exit(_INTERRUPTED)
    signal.default_int_handler(number, frame)
