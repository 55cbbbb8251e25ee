"""A command line on a terminal of its own: what tests of colour, prompts, completion and Ctrl-C share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from waiting import PATIENCE, wait_until

RUN = ["-c", "from episodelake.terminal.start import main; main()"]
ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])")


class TerminalSession:
    """A process whose input, output and errors are one terminal.

    Args:
        words: of the command line.
        width, height: of the terminal.
        environment: what is changed in the environment of the process.

    Attributes:
        said: all that came on the terminal so far.
    """

    def __init__(
        self,
        *words: object,
        width: int = 100,
        height: int = 30,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._side, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        surroundings = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, *RUN, *map(str, words)],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env={**surroundings, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(environment or {})},
        )
        os.close(other)

    @property
    def text(self) -> str:
        """What was said, without escape sequences."""
        return ESCAPE.sub("", self.said).replace("\r", "")

    def wait_for(self, text: str, after: int = 0) -> int:
        """Read until a text stands on the terminal behind a place in it; the place behind that text."""
        end = time.monotonic() + PATIENCE
        while (found := self.text.find(text, after)) < 0:
            assert time.monotonic() < end, f"{text!r} did not come; there is {self.text[after:]!r}"
            assert self._read(), f"the command ended; there is {self.text!r}"
        return found + len(text)

    def wait_until_computing(self) -> None:
        """Wait until a query runs: threads besides the first compute, and not only for a moment."""
        before = self._computed()
        wait_until(lambda: self._computed() > before + 30, "a query that computes")

    def _computed(self) -> int:
        """How long all threads but the first have computed, in hundredths of a second."""
        assert self.process.poll() is None, self.text
        first, ticks = str(self.process.pid), 0
        for task in Path(f"/proc/{first}/task").iterdir():
            if task.name == first:
                continue
            with contextlib.suppress(OSError):  # it has ended
                ticks += int((task / "stat").read_text().rpartition(")")[2].split()[11])
        return ticks

    def wait_until_idle(self) -> None:
        """Wait until the command sleeps, as it does when it waits for a key."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "the command to sleep")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._side, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C where the terminal itself makes a signal of it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait for the command to end; its exit status."""
        while self._read():
            pass
        os.close(self._side)
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._side], [], [], PATIENCE)
        assert ready, f"nothing more came; there is {self.text!r}"
        # On Linux a terminal whose other side is closed gives an error instead of an end.
        try:
            read = os.read(self._side, 65536)
        except OSError:
            return False
        self.said += read.decode(errors="replace")
        if "\x1b[6n" in read.decode(errors="replace"):
            # The prompt asks where the cursor is, as it does of every terminal.
            self.type("\x1b[1;1R")
        return bool(read)


def _take_terminal() -> None:
    """Make the terminal that of the new process group, so that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.contextmanager
def terminal(*words: object, **settings: object) -> Iterator[TerminalSession]:
    """A session that is gone afterwards, however the test ends."""
    session = TerminalSession(*words, **settings)  # type: ignore[arg-type]
    try:
        yield session
    finally:
        if session.process.poll() is None:
            session.process.kill()
            session.process.wait(PATIENCE)
