"""Shared parts of the sampling benchmarks' peers: commands, timing and memory.

It is imported by the scripts in `peers/`, in their environments, so it needs the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any


def versions(*packages: str) -> Callable[[], dict]:
    """Return a command that says which versions of these packages are installed."""
    return lambda: {name: version(name) for name in packages}


def timed(draw: Callable[[], Any], batches: int) -> tuple[float, Any]:
    """Draw one uncounted batch and then so many; return the seconds of those and the last one."""
    batch = draw()
    start = time.perf_counter()
    for _ in range(batches):
        batch = draw()
    return time.perf_counter() - start, batch


class Memory:
    """Memory of this process from now on, as the operating system reports it. Linux only."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is held now
        self._before = _status("VmRSS")

    def answer(self) -> dict[str, int]:
        """Return the bytes at the peak and the bytes still held, both above what there was, and that."""
        peak, held = _status("VmHWM"), _status("VmRSS")
        return {"peak": peak - self._before, "held": held - self._before, "before": self._before}


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def serve(commands: Mapping[str, Callable[..., dict]]) -> None:
    """Answer commands until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        command = json.loads(line)
        job = commands[command.pop("do")]
        print(json.dumps(job(**command)), file=answers)
