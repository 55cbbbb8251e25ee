"""Every long call of the library, one after the other and each without end: only Ctrl-C stops it.

Run as a program with a folder, it prints the name of a call before it runs it again and again until it raises
KeyboardInterrupt, and the name once more. A call that swallows Ctrl-C never ends.

CPython itself drops an exception that comes in a callback of a weak reference or in `__del__`.
Where a signal hits one that is not the library's (those of `threading`, for instance), Ctrl-C comes
again, as from a user who sees no end.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
from gymnasium.vector import SyncVectorEnv

import episodelake as el
from nasty_environments import SmallEnv

# A signal in the first import of one of these may end the process: their own code is not made for it.
for each in ("deltalake", "duckdb", "pandas", "pyarrow.dataset", "pyarrow.parquet"):
    importlib.import_module(each)

WHOLE = {
    "observations": np.zeros((51, 3), np.float32),
    "actions": np.zeros((50, 2), np.float32),
    "rewards": np.ones(50),
    "terminations": True,
    "truncations": False,
}

OURS = ("episodelake", "readers", "store", "writers")


def calls(folder: Path) -> dict[str, Callable[[], Any]]:
    """Name the calls; each may be repeated."""
    store = el.create(folder / "store", SmallEnv())
    with store.writer() as writer:
        for _ in range(40):
            writer.write_episode(**WHOLE)
    store.refresh()
    store.export(folder / "source.parquet", format="parquet")
    rows = store.steps.collect().to_arrow()
    ids = store.episodes.select("episode_id").collect()

    def new() -> str:
        return tempfile.mktemp(dir=folder)

    def writing(write: Callable[[el.EpisodeWriter], Any]) -> None:
        with store.writer() as own:
            write(own)

    def record(env: Any) -> None:
        with store.record(env) as recorder:
            recorder.reset()
            for _ in range(200):
                recorder.step(recorder.action_space.sample())

    return {
        "collect": lambda: el.collect(SmallEnv(), None, store, steps=200),
        "collect a batch": lambda: el.collect(SyncVectorEnv([SmallEnv] * 2), None, store, steps=200),
        "record": lambda: record(gym.wrappers.Autoreset(SmallEnv())),
        "record a batch": lambda: record(SyncVectorEnv([SmallEnv] * 2)),
        "write_episode": lambda: writing(lambda writer: writer.write_episode(**WHOLE)),
        "write_episodes": lambda: writing(lambda writer: writer.write_episodes(rows)),
        "import_dataset": lambda: el.import_dataset(folder / "source.parquet", new()),
        "import_dataset, skipping": lambda: el.import_dataset(
            folder / "source.parquet", new(), on_error="skip"
        ),
        "export": lambda: store.export(new(), format="parquet"),
        "export to files": lambda: store.export(new(), format="webdataset"),
        "to.pandas": store.to.pandas,
        "loader": lambda: sum(len(batch["reward"]) for batch in store.loader(16, shuffle=True)),
        "streaming loader": lambda: sum(len(batch["reward"]) for batch in store.loader(16, cache="stream")),
        "stats": store.stats,
        "quality": store.quality,
        "query": lambda: store.query("select sum(sin(x)) from range(1000000000) r(x)"),
        "filter": lambda: len(store.filter("length > 3 and episode_return < 1e9")),
        "frames": lambda: store.steps.collect(),
        "episodes": lambda: [episode.observations for episode in store],
        "verify": store.verify,
        "annotate": lambda: store.annotate(ids.with_columns(mark=pl.lit(1))),
        "split": lambda: store.split({"train": 0.5, "test": 0.5}),
        "copy": lambda: store.copy(new()),
        "merge": lambda: el.merge([store], new()),
        "compact": store.compact,
        "vacuum": store.vacuum,
        "recover": lambda: el.recover(folder / "store"),
    }


def strike_again(dropped: Any) -> None:
    """Send the signal once more, if CPython dropped it in code that is not the library's."""
    sys.__unraisablehook__(dropped)
    module = str(getattr(dropped.object, "__module__", ""))
    if dropped.exc_type is KeyboardInterrupt and module.partition(".")[0] not in OURS:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()


def main(folder: Path) -> None:
    """Run them."""
    sys.unraisablehook = strike_again
    for name, call in calls(folder).items():
        try:
            try:
                print(name, flush=True)
                while True:
                    call()
            finally:
                # Polars has a handler of its own, so one signal may raise twice.
                time.sleep(0.01)
        except BaseException as interrupt:
            # Polars makes a panic or a TypeError of a signal that comes while it converts types: not ours.
            if "KeyboardInterrupt" not in "".join(traceback.format_exception(interrupt)):
                raise
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
