"""Sixteen writers in as many processes, recording into one store at once, against one writer alone.

Every writer records the same episodes with a recorder around an environment that does no work, and closes.
The clock runs from a common start until the last one has closed, so everything is committed. The cost is
that of a step of all writers together: with c cores it can fall to 1/c of one writer's.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import episodelake as el
from environments import EPISODE_LENGTH
from measure import Row, interleave, scaled
from setting import Setting, create

SCRIPT = Path(__file__).resolve().parent / "writer_process.py"
WRITERS = 16


class Writers:
    """Processes that record when told to; they start once, so that no import is measured."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        self._processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(count)
        ]
        # Killed first, then waited for.
        for process in self._processes:
            stack.callback(process.kill)

    def seconds(self, path: Path, count: int, steps: int) -> float:
        """Let `count` of the processes record `steps` steps each into the store at `path`."""
        chosen = self._processes[:count]
        start = time.perf_counter()
        for process in chosen:
            assert process.stdin is not None
            print(path, steps, file=process.stdin, flush=True)
        for process in chosen:
            assert process.stdout is not None
            if process.stdout.readline() != "closed\n":
                raise RuntimeError("a writer's process ended")
        return time.perf_counter() - start


def run(setting: Setting) -> list[Row]:
    """Record with sixteen and with one in turn."""
    steps = setting.choose(100_000, 5_000)
    with ExitStack() as stack:
        writers = Writers(stack, WRITERS)

        def seconds(count: int) -> float:
            path = setting.fresh(f"store-of-{count}")
            create(path, "control")
            taken = writers.seconds(path, count, steps)
            _check(path, count, steps)
            return taken

        sides = {"many": lambda: seconds(WRITERS), "one": lambda: seconds(1)}
        measured = interleave(sides, setting.repeats)
    many = scaled(measured["many"], 1e6 / (WRITERS * steps))
    one = scaled(measured["one"], 1e6 / steps)
    throughput = 1e6 / many.median
    work = f"record with {WRITERS} writers at once ({throughput:,.0f} steps/s in all)"
    return [Row(work, "us/step", many, f"1 writer ({1e6 / one.median:,.0f} steps/s)", one)]


def _check(path: Path, count: int, steps: int) -> None:
    """Raise unless all episodes are there."""
    store = el.open(path)
    episodes, length = store.sql("SELECT count(*), sum(length) FROM episodes").fetchall()[0]
    if (episodes, length) != (count * -(-steps // EPISODE_LENGTH), count * steps):
        raise AssertionError(f"expected {count * steps} steps, got {length} in {episodes} episodes")
