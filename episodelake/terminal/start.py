"""The entry point of the program `episodelake`: Ctrl-C while it imports its modules ends it quietly.

This module is imported before all others of the program, and imports none of them until its handler of the
signal is there.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from types import FrameType

#: The exit status, as in `command`, which takes long to import.
_INTERRUPTED = 130
#: New objects between two looks for garbage: Python's 700 would make a hundred while libraries are imported.
_NEW_OBJECTS = 50_000
_COMMANDS = ("episodelake.terminal.app", "episodelake.terminal.commands")


def main() -> None:
    """Run the command line on the process's own arguments."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    gc.set_threshold(_NEW_OBJECTS)
    # Python's last look for garbage would go through all of these libraries, for a fifth of a command's time.
    atexit.register(gc.freeze)
    from .app import run

    run()


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End the process while it imports the libraries of a command; afterwards raise KeyboardInterrupt.

    Modules may swallow a KeyboardInterrupt during their import, or print it with a traceback. The handler
    stays installed: restoring Python's own would remove that of Polars, which calls this one.
    """
    if "episodelake.terminal.output.page" not in sys.modules or _is_loading(frame):
        os._exit(_INTERRUPTED)
    signal.default_int_handler(number, frame)


def _is_loading(frame: FrameType | None) -> bool:
    """Return whether the function of a command is at one of its imports, which come before its work."""
    importing = False
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(_COMMANDS):
        importing = frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return importing
