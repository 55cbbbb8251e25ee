"""The command line inside this process: its status, and every byte that it printed."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any

from episodelake.terminal.start import main


@dataclass(frozen=True)
class Said:
    """What a command left behind.

    Attributes:
        status: its exit status.
        out, err: what it printed.
    """

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as strict JSON: NaN and Infinity as bare words are refused."""
        return json.loads(self.out, parse_constant=_refuse)

    @property
    def rows(self) -> list[list[str]]:
        """Standard output as cells between tabs."""
        return [line.split("\t") for line in self.out.splitlines()]


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def command(*words: object, given: bytes = b"") -> Said:
    """Run `episodelake` with these words; an exception that leaves it is a fault, as a traceback would be."""
    out, err, given_in = (io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (b"", b"", given))
    words_before, input_before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["episodelake", *map(str, words)], given_in
    status = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    finally:
        sys.argv, sys.stdin = words_before, input_before
    return Said(status, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.detach()
    return buffer.getvalue().decode() if isinstance(buffer, io.BytesIO) else ""
