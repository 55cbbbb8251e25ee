"""Ctrl-C at lines of every maintenance operation: the store is as before or as after it.

`interrupted_maintenance.py` does the work in processes of its own. `make test-crashes` strikes many lines of
all operations, and all lines with EPISODELAKE_INTERRUPTS=all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from waiting import line_of

PROGRAM = Path(__file__).parents[1].joinpath("interrupted_maintenance.py")
CALLS = Path(__file__).parents[1].joinpath("interrupted_calls.py")
#: A prime, so that the lines are spread over all files and operations.
MANY = 31
HALVES = 2


def assert_survives(folder: Path, stride: int, offset: int) -> None:
    """Strike lines in another process, and fail with a report of what went wrong."""
    single = dict.fromkeys(("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS"), "1")
    words = [sys.executable, str(PROGRAM), str(folder), str(stride), str(offset)]
    ended = subprocess.run(words, env={**os.environ, **single}, stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["struck"]
    problems = report["problems"]
    assert not problems, f"{len(problems)} of {report['struck']} lines:\n" + "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("half", range(HALVES))
def test_interrupts_at_any_line(tmp_path: Path, half: int) -> None:
    """After Ctrl-C at any line the store is whole, and the operation may be repeated."""
    stride = 1 if os.environ.get("EPISODELAKE_INTERRUPTS") == "all" else MANY
    assert_survives(tmp_path, HALVES * stride, half * stride)


@pytest.mark.further
def test_ctrl_c_ends_every_long_call(tmp_path: Path) -> None:
    """A real SIGINT makes each long call raise KeyboardInterrupt; none swallows it and goes on."""
    folders = dict.fromkeys(("TMPDIR",), str(tmp_path))
    words = [sys.executable, str(CALLS), str(tmp_path)]
    process = subprocess.Popen(words, env={**os.environ, **folders}, stdout=subprocess.PIPE, text=True)
    ended = []
    try:
        while name := line_of(process):
            time.sleep(len(ended) % 4 / 50)
            process.send_signal(signal.SIGINT)
            assert line_of(process) == name
            ended.append(name)
    finally:
        process.kill()
        process.wait()
    assert len(ended) == 27
