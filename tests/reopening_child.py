"""Continue an episode in forked children that are killed at given points.

It reads one JSON object from standard input: `record`, where a child records a store and dies, or `store`,
the path of a store, and `children`: for each a `folder` for its copy of the store, the `episode` to continue,
and the `point` at which it kills itself. It never uses a store itself, since the table library cannot be
forked after its first use.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

import episodelake as el
from episodelake.store.delta.table import Table
from episodelake.store.recovery import reopening
from waiting import await_end

SPACES = {"observation_space": Box(-np.inf, np.inf, (2,), np.float64), "action_space": Discrete(100)}
QUIET = {"flush_seconds": 1e6, "seal_seconds": 1e6}
#: The episode has so many steps when it is cut, and so many in the end.
CUT, WHOLE = 4, 9


def observed(seed: int, t: int) -> np.ndarray:
    """Observation t of the episode with a seed."""
    return np.array([seed, t / 3])


def take_steps(episode: Any, seed: int, start: int, stop: int) -> None:
    """Take the steps from `start` to `stop`; the last one of all terminates."""
    for t in range(start, stop):
        episode.append(
            t, t / 7, observed(seed, t + 1), t + 1 == WHOLE, info={"t": t + 1}, policy={"v": t / 2}
        )


def begin(writer: el.EpisodeWriter, seed: int) -> el.types.OpenEpisode:
    """Begin an episode."""
    return writer.begin(observed(seed, 0), {"t": 0}, seed=seed, options={"level": seed}, metadata={"by": "A"})


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(owner: Any, name: str, *, calls: int = 1, after: bool = False) -> None:
    """Have a call of a function kill the process, before it does anything or behind what it does."""
    function = getattr(owner, name)
    left = [calls]

    def counted(*args: Any, **named: Any) -> Any:
        left[0] -= 1
        if not left[0] and not after:
            _die()
        result = function(*args, **named)
        if not left[0]:
            _die()
        return result

    setattr(owner, name, counted)


#: What kills a child at a point; the others are steps of `continue_episode`.
POINTS: dict[str, Callable[[], None]] = {
    "between the commits that set it apart": lambda: _dying(Table, "replace", calls=2),
    "set apart": lambda: _dying(reopening, "_set_apart", after=True),
    "steps committed": lambda: _dying(Table, "commit", calls=3),
    "episodes committed": lambda: _dying(Table, "commit", calls=3, after=True),
    "before the list is mended": lambda: _dying(reopening, "finish_interrupted"),
    "list mended": lambda: _dying(reopening, "finish_interrupted", after=True),
}


def continue_episode(path: Path, episode_id: str, point: str) -> None:
    """Continue an episode to its end, and die at a point."""
    POINTS.get(point, lambda: None)()
    # Kept: a writer that is garbage collected would be closed.
    writer = el.open(path).writer(run="second", **QUIET)
    episode = writer.reopen(episode_id)
    if point == "reopened":
        _die()
    take_steps(episode, 7, CUT, WHOLE - 1)
    if point == "appended":
        _die()
    writer.flush()
    if point == "flushed":
        _die()
    take_steps(episode, 7, WHOLE - 1, WHOLE)
    episode.end({"done": True})
    writer.flush()
    writer.seal()


def record(path: Path) -> None:
    """Record three episodes beside each other, and die in the middle of the second one."""
    writer = el.create(path, **SPACES).writer(run="first", **QUIET)
    opened = [begin(writer, seed) for seed in (6, 7, 8)]
    for episode, seed in zip(opened, (6, 7, 8), strict=True):
        take_steps(episode, seed, 0, CUT)
    opened[0].end()
    opened[2].end()
    writer.flush()
    _die()


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked child, and return how it ended."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return await_end(child)


def main() -> None:
    """Do what standard input asks for, and print how each child ended."""
    order = json.load(sys.stdin)
    ends = []
    if "record" in order:
        ends.append(in_child(lambda: record(Path(order["record"]))))
    for each in order.get("children", ()):
        path = Path(each["folder"]) / "store"
        shutil.copytree(order["store"], path)
        ends.append(
            in_child(lambda path=path, each=each: continue_episode(path, each["episode"], each["point"]))
        )
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
