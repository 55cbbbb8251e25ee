"""One piece of work on a large store, in a process of its own, with its result checked.

`python scale_work.py '{"work": "open", "store": PATH, "steps": N, "expected": {...}, "tiny": PATH}'` does it:
on a tiny store first where code and thread pools should be loaded already, then on the store. It prints JSON
lines: how far it is, and at the end what it took. `scale.py` starts it and watches its memory. Linux only.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import episodelake as el
from cartpoles import balance, make_native
from memory import memory_of

ENVIRONMENTS = 1_024
BATCH = 256
BATCHES = 10_000
#: Fewer batches are drawn where they take longer than this in all.
DRAW_SECONDS = 300.0
#: Of a streaming loader.
BUFFER = 64 << 20
#: Of the mapped files: more than the half of what is free that a loader takes by itself.
COLUMN_BYTES = 40 << 30
#: Of DuckDB; what a query needs beyond it goes to the disk, up to so much, where DuckDB can do that.
QUERY_MEMORY, QUERY_DISK = "8GB", "16GB"
#: What a process may have of its own, so that a query that needs more fails alone.
MOST_MEMORY = 14 << 30
#: Of the loop without a recorder, and of the store that each process works on first.
BARE, TINY = 2_000_000, 20_480
GOOD_RETURN = 250
COOKBOOK = Path(__file__).resolve().parent.parent / "docs" / "cookbook.md"
#: Questions of the cookbook for these steps: all that need no logged policy, info or vector of actions.
ASKED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 17, 18, 19, 22, 23, 24, 25)
GROUPS = {
    "by-step": "select t, count(*), sum(reward) from transitions group by 1 order by 1",
    "returns": "select episode_id, sum(reward) as total from transitions "
    "group by 1 order by 2 desc, 1 limit 9",
    "states": "select floor(obs(0) * 2), floor(obs(2) * 20), count(*) from steps group by 1, 2 order by 1, 2",
}


@dataclass
class Totals:
    """Counts of a recording, kept beside the recorder by the loop that steps the environments.

    Attributes:
        observations: the sum of the third element, in the rows of all episodes.
        good: episodes with a return above `GOOD_RETURN`.
    """

    transitions: int = 0
    rows: int = 0
    episodes: int = 0
    rewards: float = 0.0
    actions: int = 0
    observations: float = 0.0
    good: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(one + more for one, more in zip(_values(self), _values(other), strict=True)))


@dataclass(frozen=True)
class Task:
    """Work on a store; `expected` is what was recorded, or None on the tiny store."""

    store: Path
    steps: int
    expected: Totals | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> Path:
        """The folder of the columns that a loader maps."""
        return self.store.with_name(self.store.name + "-columns")

    @property
    def spilled(self) -> Path:
        """The folder for what DuckDB cannot keep in memory."""
        return self.store.with_name(self.store.name + "-spilled")

    def check(self, what: str, value: Any, expected: float | None = None, within: float = 0.0) -> None:
        """Raise unless a value is that of the recording: the `Totals` of that name, or the given one."""
        if self.expected is None:
            return
        if expected is None:
            expected = getattr(self.expected, what)
        if abs(value - expected) > within:
            raise AssertionError(f"{what}: {value}, but {expected} were recorded")


class Played:
    """The environments and the policy, with `Totals` of the transitions; autoreset steps are none."""

    def __init__(self, envs: Any, seed: int = 0) -> None:
        self._envs = envs
        self.observations, _ = envs.reset(seed=seed)
        self.totals = Totals(rows=ENVIRONMENTS, observations=self._sum(self.observations))
        self._lengths = np.zeros(ENVIRONMENTS, np.int64)
        self._done = np.zeros(ENVIRONMENTS, bool)

    def step(self) -> None:
        """Step all environments once."""
        totals, actions, going = self.totals, balance(self.observations), ~self._done
        self.observations, rewards, terminations, truncations, _ = self._envs.step(actions)
        self._lengths += going
        self._done = terminations | truncations
        totals.transitions += int(np.count_nonzero(going))
        totals.rows += ENVIRONMENTS
        totals.rewards += float(rewards[going].sum())
        totals.actions += int(actions[going].sum())
        totals.observations += self._sum(self.observations)
        if self._done.any():
            self._count(self._done)

    def end(self) -> Totals:
        """Return the totals; episodes that still run are cut, those without a step are none."""
        fresh = (self._lengths == 0) & ~self._done
        self._count((self._lengths > 0) & ~self._done)
        self.totals.rows -= int(fresh.sum())
        self.totals.observations -= self._sum(self.observations[fresh])
        return self.totals

    def _count(self, ended: np.ndarray) -> None:
        self.totals.episodes += int(np.count_nonzero(ended))
        self.totals.good += int(np.count_nonzero(self._lengths[ended] > GOOD_RETURN))
        self._lengths[ended] = 0

    @staticmethod
    def _sum(observations: np.ndarray) -> float:
        return float(observations[:, 2].sum(dtype=np.float64))


class Stopped:
    """Becomes true when the process is asked to end, so that a recording ends whole."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def bare(task: Task) -> int:
    """Play without a recorder."""
    played = Played(make_native(ENVIRONMENTS))
    while played.totals.transitions < min(task.steps, BARE):
        played.step()
    return played.totals.transitions


def record(task: Task) -> int:
    """Record until the store has the steps: from the start, or from where an earlier call ended."""
    envs = make_native(ENVIRONMENTS)
    before = task.expected or Totals()
    if task.store.exists():
        store = el.open(task.store)
    else:
        spaces = envs.single_observation_space, envs.single_action_space
        store = el.create(task.store, observation_space=spaces[0], action_space=spaces[1])
    stopped, wanted, start = Stopped(), task.steps - before.transitions, time.perf_counter()
    tenth = max(wanted // 10, 1)
    with store.record(envs, run="balancing", metadata={"policy": "balance", "seed": 0}) as recorder:
        played = Played(recorder, seed=before.transitions)
        following = tenth
        while played.totals.transitions < wanted and not stopped.asked:
            played.step()
            if played.totals.transitions >= following and wanted > TINY:
                following += tenth
                _say(done=played.totals.transitions, seconds=time.perf_counter() - start)
    totals = played.end()
    # The episodes that were running are committed by closing.
    task.details["totals"] = asdict(before + totals)
    return totals.transitions


def open_cold(task: Task) -> int:
    """Open and count, in a process that has opened nothing, of files that are not in memory."""
    task.check("episodes", len(el.open(task.store)))
    return 1


def open_again(task: Task) -> int:
    """Open and count, in a process that has worked with another store."""
    store = el.open(task.store)
    task.check("episodes", len(store))
    task.details["segments"] = len(list((task.store / "steps").glob("*.parquet")))
    return 1


def filter_by_return(task: Task) -> int:
    """Open, and keep the episodes above a return."""
    task.check("good", len(el.open(task.store).filter(pl.col("episode_return") > GOOD_RETURN)))
    return 1


def count_all(task: Task) -> int:
    """Compare the sums of all columns with what was recorded."""
    rows = _ask(task, "select count(*), sum(reward), sum(action) from transitions").row(0)
    for what, value in zip(("transitions", "rewards", "actions"), rows, strict=True):
        task.check(what, value)
    count, total = _ask(task, "select count(*), sum(obs(2)::double) from steps").row(0)
    task.check("rows", count)
    task.check("observations", total, within=1e-10 * count)
    episodes, length = _ask(task, "select count(*), sum(length) from episodes").row(0)
    task.check("episodes", episodes)
    task.check("transitions", length)
    return task.steps


def group(name: str) -> Callable[[Task], int]:
    """Return the work that groups over steps."""

    def ask(task: Task) -> int:
        answer = _ask(task, GROUPS[name])
        if name == "by-step":
            task.check("transitions", answer[answer.columns[1]].sum())
            task.check("rewards", answer[answer.columns[2]].sum())
        elif name == "states":
            task.check("rows", answer[answer.columns[2]].sum())
        return task.steps

    return ask


def question(number: int) -> Callable[[Task], int]:
    """Return the work that asks a question of the cookbook, in its words."""

    def ask(task: Task) -> int:
        task.details["rows"] = _ask(task, cookbook()[number][1]).height
        return task.steps

    return ask


def cookbook() -> dict[int, tuple[str, str]]:
    """The title and the SQL of each question of the cookbook, by number."""
    parts = re.split(r"^### (\d+)\. ", COOKBOOK.read_text(), flags=re.MULTILINE)[1:]
    return {
        int(number): (text.splitlines()[0], match.group(1) or match.group(2))
        for number, text in zip(parts[::2], parts[1::2], strict=True)
        if (match := re.search(r'\.query\((?:"""(.*?)"""|"(.*?)")\)', text, re.DOTALL))
    }


def _ask(task: Task, sql: str) -> pl.DataFrame:
    """Ask a connection of its own, as `query` does, with a bound for its memory."""
    with el.open(task.store).connect() as connection:
        connection.execute(f"set memory_limit = '{QUERY_MEMORY}'")
        connection.execute(f"set temp_directory = '{task.spilled}'")
        connection.execute(f"set max_temp_directory_size = '{QUERY_DISK}'")
        return connection.sql(sql).pl()


def mapped_files(task: Task) -> el.Cache:
    """Return the cache of mapped files in the folder of the columns."""
    return el.Cache("mmap", folder=task.columns, max_bytes=COLUMN_BYTES)


def draw(*, mapped: bool) -> Callable[[Task], int]:
    """Return the work that draws shuffled batches: from mapped files, or streamed through a small buffer."""

    def batches(task: Task) -> int:
        cache = mapped_files(task) if mapped else el.Cache("stream", buffer_bytes=BUFFER)
        loader = el.open(task.store).loader(BATCH, shuffle=True, seed=0, cache=cache)
        drawn, end = 0, time.perf_counter() + DRAW_SECONDS
        for batch in itertools.islice(iter(loader), BATCHES):
            task.check("rewards of a batch", float(batch["reward"].sum()), len(batch["reward"]))
            drawn += 1
            if time.perf_counter() > end:
                break
        task.details["batches"] = drawn
        return drawn

    return batches


def decode(task: Task) -> int:
    """Decode all columns of a loader into mapped files, and draw one batch."""
    next(iter(el.open(task.store).loader(BATCH, shuffle=True, seed=0, cache=mapped_files(task))))
    return task.steps


def compact(task: Task) -> int:
    """Join small segments, and delete the replaced files."""
    store = el.open(task.store)
    report = store.compact()
    task.details["segments"] = (report.segments_before, report.segments_after)
    return task.steps


def vacuum(task: Task) -> int:
    """Delete the files that compaction replaced."""
    store = el.open(task.store)
    store.vacuum(older_than=timedelta(0))
    task.check("episodes", len(store))
    return task.steps


def verify(task: Task) -> int:
    """Read and check everything."""
    report = el.open(task.store).verify()
    assert report.ok, report
    task.check("episodes", report.episodes)
    task.check("transitions", report.steps)
    return task.steps


@dataclass(frozen=True)
class Work:
    """A piece of work: its name in a table, the function that does it, and the unit of its time.

    The function returns how many units it did. `warm`: it is done on a tiny store first.
    """

    name: str
    do: Callable[[Task], int]
    unit: str = "us/step"
    warm: bool = True


WORKS = {
    "bare": Work("play 1,024 CartPoles, no recorder", bare),
    "record": Work("record 1,024 CartPoles, closed", record),
    "open": Work("open, cold process and files", open_cold, "ms", warm=False),
    "reopen": Work("open", open_again, "ms"),
    "filter": Work("open and filter by return", filter_by_return, "ms"),
    "count": Work("SQL, sums of all columns", count_all),
    **{f"group-{name}": Work(f"SQL, group {name}", group(name)) for name in GROUPS},
    **{
        f"q{number}": Work(f"cookbook {number}: {cookbook()[number][0]}", question(number))
        for number in ASKED
    },
    "stream": Work("10,000 shuffled batches, streamed", draw(mapped=False), "us/batch"),
    "decode": Work("decode columns into mapped files", decode),
    "mapped": Work("10,000 shuffled batches, mapped", draw(mapped=True), "us/batch"),
    "compact": Work("compact", compact),
    "vacuum": Work("vacuum", vacuum),
    "verify": Work("verify", verify),
    "recount": Work("SQL, sums of all columns, compacted", count_all),
}


def main() -> None:
    """Do one piece of work and print what it took."""
    asked = json.loads(sys.argv[1])
    work, tiny = WORKS[asked["work"]], Path(asked["tiny"])
    expected = Totals(**asked["expected"]) if asked["expected"] else None
    task = Task(Path(asked["store"]), asked["steps"], expected)
    if work.warm:
        _warm_up(work, tiny)
    else:
        _forget_files(task.store)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is held now
    _say(anonymous=memory_of("RssAnon"))
    start, processor = time.perf_counter(), time.process_time()
    units = work.do(task)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    _say(seconds=seconds, processor=processor, units=units, rss=memory_of("VmHWM"), **task.details)


def _warm_up(work: Work, tiny: Path) -> None:
    """Do the work on a tiny store, which is recorded where there is none."""
    task = Task(tiny, TINY)
    if work.do is record:
        shutil.rmtree(tiny, ignore_errors=True)
    if work.do is record or not tiny.exists():
        record(task)
    if work.do is not record:
        work.do(task)


def _forget_files(store: Path) -> None:
    """Let the system drop what it keeps of a store's files in memory."""
    for path in store.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _values(totals: Totals) -> tuple[Any, ...]:
    return tuple(asdict(totals).values())


if __name__ == "__main__":
    main()
