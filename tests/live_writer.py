"""A writer in a process of its own that records what a test asks for, a line at a time."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Dict

from waiting import PATIENCE

SPACES = Dict({"camera": Box(0, 255, (16, 12, 3), np.uint8), "place": Box(-9, 9, (2,), np.float32)})
# Obeys a line at a time: "step N" records N steps, "end" ends the episode, "seal" seals, "close" closes.
WRITER = """
import sys, numpy as np, episodelake as el
store = el.open(sys.argv[1])
writer = store.writer(run="live", metadata={"algo": "ppo"}, flush_seconds=3600, seal_seconds=3600)
rng = np.random.default_rng(0)
def seen(t):
    return {"camera": np.full((16, 12, 3), t % 250, np.uint8), "place": np.float32([t, -1])}
t = episode = None
print("open", flush=True)
for line in sys.stdin:
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
    print("done", flush=True)
"""


class LiveWriter:
    """A writer in another process that does what it is asked to."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._answer()

    def ask(self, line: str) -> None:
        """Let it do something, and wait until it is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the writer ended"

    def kill(self) -> None:
        """Kill it as the system does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)
