"""A writer in a process of its own that records what a test asks for, a line at a time."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Dict

from waiting import wait_until

SPACES = Dict({"camera": Box(0, 255, (16, 12, 3), np.uint8), "place": Box(-9, 9, (2,), np.float32)})
# Forks a writer for each line with a store and two pipes. A writer obeys a line at a time: "step N" records N
# steps, "end" ends the episode, "seal" seals, "close" closes.
HOST = """
import json, os, signal, sys, numpy as np, episodelake as el
el.open, el.EpisodeStore, el.EpisodeWriter  # what writers need is imported once
def seen(t):
    return {"camera": np.full((16, 12, 3), t % 250, np.uint8), "place": np.float32([t, -1])}
def record(store, asked, answered):
    store = el.open(store)
    writer = store.writer(run="live", metadata={"algo": "ppo"}, flush_seconds=3600, seal_seconds=3600)
    t = episode = None
    print("open", file=answered, flush=True)
    for line in asked:
        word, _, count = line.strip().partition(" ")
        if word == "step":
            for _ in range(int(count)):
                if t is None:
                    t = 0
                    episode = writer.begin(seen(0), seed=7)
                t += 1
                episode.append(t % 4, float(t), seen(t), info={"t": t})
            writer.flush()
        elif word == "end":
            episode.append(0, 0.5, seen(t + 1), terminated=True)
            episode.end()
            t = None
            writer.flush()
        elif word == "seal":
            writer.seal()
        elif word == "close":
            writer.close()
        print("done", file=answered, flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    child = os.fork()
    if not child:
        sys.stdin.close()
        store, asked, answered = json.loads(line)
        record(store, open(asked), open(answered, "w"))
        os._exit(0)
    print(child, flush=True)
"""


@cache
def _host() -> subprocess.Popen[str]:
    """The process that forks the writers, which ends with this one."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(host.communicate)
    return host


class LiveWriter:
    """A writer in another process that does what it is asked to."""

    def __init__(self, store: Path) -> None:
        self.store = store
        host = _host()
        assert host.stdin is not None and host.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            pipes = [f"{folder}/asked", f"{folder}/answered"]
            for pipe in pipes:
                os.mkfifo(pipe)
            host.stdin.write(json.dumps([str(store), *pipes]) + "\n")
            host.stdin.flush()
            self._pid = int(host.stdout.readline())
            self._asked, self._answered = open(pipes[0], "w"), open(pipes[1])  # noqa: SIM115
        self._answer()

    def ask(self, line: str) -> None:
        """Let it do something, and wait until it is done."""
        self._asked.write(line + "\n")
        self._asked.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._answered.readline(), "the writer ended"

    def kill(self) -> None:
        """Kill the process with SIGKILL, unless it has ended."""
        if self._asked.closed:
            return
        wait_until(self._is_gone, "the end of a killed writer")
        self._asked.close()
        self._answered.close()

    def _is_gone(self) -> bool:
        try:
            os.kill(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        return False
