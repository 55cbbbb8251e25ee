"""The same work on ever larger stores: time per step and memory, each work in a process of its own.

1,024 CartPoles of Gymnasium's vector code, played by a policy that balances for a while, are recorded until
a store has a million, ten million and a hundred million transitions (`billion`: ten million, a hundred
million and a billion). Then the stores are opened, filtered, queried, loaded from, compacted and verified.
The peer of each row is the same work on the smallest store.

`python scale.py WORK STORE STEPS TINY` does one piece of work, on a tiny store first so that code and thread
pools are loaded, and prints JSON: its seconds, its steps or batches, and the bytes of memory at its peak
above what the process had before, without mapped files. Linux only.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import polars as pl

import episodelake as el
from cartpoles import balance, make_native
from measure import Row, Samples
from memory import memory_of
from setting import Setting, folder_bytes

ENVIRONMENTS = 1_024
BATCH = 256
BATCHES = 10_000
#: Of a streaming loader.
BUFFER = 64 << 20
SIZES = (1_000_000, 10_000_000, 100_000_000)
#: Of a quick run.
QUICK = (40_960, 81_920)
#: Of the store that each process works on first.
TINY = 20_480
#: What a size may add, over the smallest one: noise, and the partly filled last segment of small stores.
FLAT = 1.5
QUESTIONS = {
    "by step": "select t, count(*), avg(reward) from transitions group by 1 order by 1",
    "returns from steps": "select episode_id, sum(reward) as total from transitions "
    "group by 1 order by 2 desc, 1 limit 9",
    "visited states": "select floor(obs(0) * 2), floor(obs(2) * 20), count(*) from steps "
    "group by 1, 2 order by 1, 2",
}


#: For each work its time in the unit of the work, and megabytes.
Measured = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Work:
    """A piece of work: its name in the table, the function that does it, and the unit that its time has.

    The function takes the path and the number of steps, and returns how many units it did.
    """

    name: str
    do: Callable[[Path, int], int]
    unit: str = "us/step"


def record(path: Path, steps: int) -> int:
    """Record transitions of all environments until there are `steps`; the store is new."""
    envs = make_native(ENVIRONMENTS)
    store = el.create(
        path, observation_space=envs.single_observation_space, action_space=envs.single_action_space
    )
    with store.record(envs) as recorder:
        observations, _ = recorder.reset(seed=0)
        for _ in range(steps // ENVIRONMENTS):
            observations = recorder.step(balance(observations))[0]
    return steps


def open_store(path: Path, _: int) -> int:
    """Open and count."""
    len(el.open(path))
    return 1


def filter_by_return(path: Path, _: int) -> int:
    """Open, and keep the episodes above a return."""
    len(el.open(path).filter(pl.col("episode_return") > 250))
    return 1


def question(sql: str) -> Callable[[Path, int], int]:
    """Return the work that asks `sql`, of all steps."""

    def ask(path: Path, steps: int) -> int:
        el.open(path).sql(sql)
        return steps

    return ask


def _mapped(path: Path) -> el.Cache:
    return el.Cache("mmap", folder=path.with_name(path.name + "-columns"))


def draw(*, mapped: bool) -> Callable[[Path, int], int]:
    """Return the work that draws shuffled batches: from mapped files, or streamed through a small buffer."""

    def batches(path: Path, _: int) -> int:
        kept = _mapped(path) if mapped else el.Cache("stream", buffer_bytes=BUFFER)
        loader = el.open(path).loader(BATCH, shuffle=True, seed=0, cache=kept)
        return sum(1 for _ in itertools.islice(iter(loader), BATCHES))

    return batches


def decode(path: Path, steps: int) -> int:
    """Decode all columns of a loader into mapped files, and draw one batch."""
    next(iter(el.open(path).loader(BATCH, shuffle=True, seed=0, cache=_mapped(path))))
    return steps


def compact(path: Path, steps: int) -> int:
    """Join small segments, and delete the replaced files."""
    store = el.open(path)
    store.compact()
    store.vacuum(older_than=timedelta(0))
    return steps


def verify(path: Path, steps: int) -> int:
    """Read and check everything."""
    assert el.open(path).verify().ok
    return steps


WORKS = {
    "record": Work("record 1,024 CartPoles, closed", record),
    "open": Work("open", open_store, "ms"),
    "filter": Work("open and filter by return", filter_by_return, "ms"),
    **{
        f"sql-{place}": Work(f"SQL, {name}", question(sql))
        for place, (name, sql) in enumerate(QUESTIONS.items())
    },
    "stream": Work("10,000 shuffled batches, streamed", draw(mapped=False), "us/batch"),
    "decode": Work("decode columns into mapped files", decode),
    "mapped": Work("10,000 shuffled batches, mapped", draw(mapped=True), "us/batch"),
    "compact": Work("compact and vacuum", compact),
    "verify": Work("verify", verify),
}


def run(setting: Setting, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Measure all works at each size, the small ones first."""
    if setting.quick:
        sizes = QUICK
    measured = {steps: _at(setting, steps) for steps in sizes}
    first, *others = sizes
    return [row for steps in others for row in _rows(measured[first], measured[steps], first, steps)]


def _rows(small: Measured, large: Measured, first: int, steps: int) -> list[Row]:
    """Return the rows of one size beside the first one: times, then memory, then the size of the files."""
    at, peer = f"{steps // 1_000_000:,} M steps", f"{first // 1_000_000:,} M steps"

    def row(name: str, unit: str, key: str, which: int, target: float | None = None) -> Row:
        ours, theirs = (Samples((side[key][which],)) for side in (large, small))
        return Row(f"{name}, {at}", unit, ours, peer, theirs, ratio_target=target)

    times = [
        row(work.name, work.unit, key, 0, None if work.unit == "ms" else FLAT) for key, work in WORKS.items()
    ]
    peaks = [row(f"{work.name}, memory at the peak", "MB", key, 1) for key, work in WORKS.items()]
    return [*times, *peaks, row("files of a store", "B/step", "disk", 0)]


def run_billion(setting: Setting) -> list[Row]:
    """Measure a tenth, a hundredth and the whole of a billion steps."""
    return run(setting, (10_000_000, 100_000_000, 1_000_000_000))


def _at(setting: Setting, steps: int) -> Measured:
    """Return for each work its time in the work's unit, and megabytes; for `disk` bytes per step."""
    path, tiny = setting.fresh(f"scale-{steps}"), setting.fresh("scale-tiny")
    answers = {}
    for key, work in WORKS.items():
        answer = _answer(key, path, steps, tiny)
        factor = 1e3 if work.unit == "ms" else 1e6
        answers[key] = (answer["seconds"] / answer["units"] * factor, answer["peak"] / 1e6)
        if key == "record":
            answers["disk"] = (folder_bytes(path) / steps, 0.0)
    for folder in (path, tiny):
        setting.fresh(folder.name + "-columns")
        setting.fresh(folder.name)
    return answers


def _answer(key: str, path: Path, steps: int, tiny: Path) -> dict[str, float]:
    command = [sys.executable, __file__, key, str(path), str(steps), str(tiny)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{process.stderr}")
    return json.loads(process.stdout)


class Peak:
    """Watches the process's own memory, without mapped files, in a thread; `bytes` is the largest amount."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.bytes = max(self.bytes, memory_of("RssAnon"))


def main() -> None:
    """Do one piece of work and print what it took."""
    key, path, steps, tiny = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    WORKS[key].do(tiny, TINY)
    before = memory_of("RssAnon")
    with Peak() as peak:
        start = time.perf_counter()
        units = WORKS[key].do(path, steps)
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "units": units, "peak": max(peak.bytes - before, 0)}))


if __name__ == "__main__":
    main()
