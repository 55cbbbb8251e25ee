"""Record into a store and kill the process: `python dying_writer.py STORE EPISODES LENGTH`.

Writes episodes that stay open, so that none is sealed, and kills itself when all of it is in the journal.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import episodelake as el
from trajectories import control

FLUSH_SECONDS = 0.05


def main() -> None:
    """Record all episodes step by step, then die."""
    path, episodes, length = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    writer = el.open(path).writer(flush_seconds=FLUSH_SECONDS)
    for episode in control(episodes, length):
        live = writer.begin(episode.observations[0])
        for t in range(length):
            live.append(episode.actions[t], episode.rewards[t], episode.observations[t + 1])
    # The rows reach the journal by themselves; a file that no longer grows has them all.
    before, now = -1, _size(path)
    while now != before:
        time.sleep(20 * FLUSH_SECONDS)
        before, now = now, _size(path)
    os.kill(os.getpid(), signal.SIGKILL)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "journal").rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
