"""Recovery: sealing the journal that a killed writer left, against pyarrow writing the same columns.

A process records episodes that it never ends, and dies; all of them are in its journal. Each repeat recovers
a copy of what it left: reading and checking the journal, writing both files and all commits are part of the
time. pyarrow has the recovered rows in memory already and writes them as they stand in the recovered file.
The unit counts bytes of the journal.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

import episodelake as el
from bulk_writing import table_and_options
from measure import Row, interleave, scaled
from setting import Setting, create, folder_bytes

SCRIPT = Path(__file__).resolve().parent / "dying_writer.py"
LENGTH = 1000


def run(setting: Setting) -> list[Row]:
    """Leave a journal once, then recover copies of the store."""
    episodes = setting.choose(1000, 50)
    dead = setting.fresh("dead")
    create(dead, "control")
    done = subprocess.run([sys.executable, str(SCRIPT), str(dead), str(episodes), str(LENGTH)], check=False)
    if done.returncode >= 0:
        raise AssertionError("the writer was to be killed")
    size = folder_bytes(dead / "journal")
    copy, written = setting.folder / "recovered", setting.folder / "recovered.parquet"
    _seconds_ours(dead, copy, episodes)
    table, options = table_and_options(copy)

    def seconds_pyarrow() -> float:
        written.unlink(missing_ok=True)
        start = time.perf_counter()
        pq.write_table(table, written, **options)
        return time.perf_counter() - start

    sides: dict[str, Callable[[], float]] = {
        "ours": lambda: _seconds_ours(dead, copy, episodes),
        "pyarrow": seconds_pyarrow,
    }
    costs = {name: scaled(values, 1e9 / size) for name, values in interleave(sides, setting.repeats).items()}
    speed = 1e3 / costs["ours"].median
    work = f"recover a journal of {size / 1e6:.0f} MB ({speed:.0f} MB/s)"
    return [Row(work, "ms/MB", costs["ours"], "pyarrow write_table", costs["pyarrow"])]


def _seconds_ours(dead: Path, copy: Path, episodes: int) -> float:
    """Recover a copy of the store; its journal is copied, not linked, since recovery deletes it."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(dead, copy)
    os.sync()
    start = time.perf_counter()
    (run,) = el.recover(copy)
    seconds = time.perf_counter() - start
    if (len(el.open(copy)), run.interrupted, run.steps) != (episodes, episodes, episodes * LENGTH):
        raise AssertionError(f"recovered {run}; expected {episodes} episodes of {LENGTH} steps")
    return seconds
