"""Interrupts maintenance at lines of the library, and looks at the store afterwards; run as a program.

`python interrupted_maintenance.py FOLDER STRIDE OFFSET [OPERATION ...]` prints a JSON object: how many lines
there are, at how many of them an exception was raised, and what went wrong. Each strike has a process of its
own, forked from one that never used a store, and a copy of the store of its own.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import duckdb
import polars as pl
from deltalake import DeltaTable

import episodelake as el
from maintenance_stores import make_awkward_store, write_awkward
from preloading import preload
from waiting import wait_for_journal

LIBRARY = str(Path(el.__file__).resolve().parents[1])
STORE = f"{LIBRARY}/episodelake/store"
_FILES = [
    f"{STORE}/{name}.py"
    for name in (
        "layout",
        "delta/log",
        "delta/table",
        "files/access",
        "files/local",
        "segments/seal",
        "tables/annotation_files",
        "tables/table_files",
    )
]
assert [name for name in _FILES if not Path(name).exists()] == []
PARTS = (f"{STORE}/maintenance/", f"{LIBRARY}/episodelake/_", *_FILES)
#: Where it matters which time a line is reached: the first and the last are struck.
TWICE = ("operation.py", "table.py", "local.py", "creation.py", "tags.py", "vacuum.py")
#: Columns, annotations and runs come before the episodes.
SEVERAL_COMMITS = ("merge", "recover")
SECONDS = 120
#: The state of a store that is not there.
NOTHING = repr(None)

Line = tuple[str, int, int]


def annotate_steps(path: Path) -> None:
    """Add a column to steps."""
    store = el.open(path)
    frame = store.steps.select("episode_id", "t", value=pl.col("t") * 2).collect()
    store.annotate(frame, on=("episode_id", "t"))


def annotate_episodes(path: Path) -> None:
    """Add a column to episodes."""
    store = el.open(path)
    store.annotate(store.episodes.select("episode_id", long=pl.col("length") > 3).collect())


def tag(path: Path) -> None:
    """Name the version before the newest."""
    store = el.open(path)
    if "before" not in store.tags:
        store.tag("before", store.version - 1)


OPERATIONS: dict[str, Callable[[Path], Any]] = {
    "compact": lambda path: el.open(path).compact(),
    "delete": lambda path: el.open(path).delete("length > 3"),
    "annotate_steps": annotate_steps,
    "annotate_episodes": annotate_episodes,
    "tag": tag,
    "vacuum": lambda path: el.open(path).vacuum(timedelta(0)),
    "merge": lambda path: el.merge([path.with_name("template")], into=path),
    "merge_new": lambda path: el.merge([path], into=path.with_name(f"{path.name}-new")),
    "copy": lambda path: el.open(path).copy(path.with_name(f"{path.name}-copy"), "length > 1"),
    "split": lambda path: el.open(path).split({"train": 0.5, "test": 0.5}),
    "recover": el.recover,
}


def make(folder: Path) -> None:
    """Make the store that the operations work on, with something for each of them to do."""
    store = make_awkward_store(folder / "template")
    annotate_steps(store.path)
    store.refresh().delete("number = 1")
    shutil.copytree(store.path, folder / "start")
    store = el.open(folder / "start")
    store.delete("number = 2")
    writer = store.writer(run="dying", durability="fsync", flush_seconds=0.01)
    for number in range(2):
        write_awkward(writer, number, 3, [{"x": 1}])
    wait_for_journal(store.path / "journal" / writer.run_id, 6, ended=2)
    os._exit(0)


def state(path: Path) -> Any:
    """What a store shows: episodes with their values, annotations, tags; None where there is no store."""
    try:
        store = el.open(path)
    except el.errors.StoreNotFoundError:
        return None
    episodes = store.episodes.drop("segment", "row_start").sort("episode_id").collect()
    steps = store.steps.sort("episode_id", "t").collect()
    return (
        episodes.columns,
        episodes.hash_rows().to_list(),
        steps.columns,
        steps.hash_rows().sum(),
        store.tags,
    )


def wrong(path: Path, *, between: bool = False) -> str:
    """What is wrong with a store, by its own verification and by other engines on its Delta tables.

    Args:
        between: whether steps may be there without their episode, as between the two commits of a segment.
    """
    report = el.open(path).verify()
    faults = [fault for fault in report.faults if fault.kind != "journal"]
    if faults:
        return f"verify: {faults}"
    files = {name: DeltaTable(str(path / name)).file_uris() for name in ("episodes", "steps")}
    if not files["episodes"]:
        return ""
    episodes, steps = (f"read_parquet({files[name]!r}, union_by_name=true)" for name in ("episodes", "steps"))
    query = f"""select episode_id, sum(row_count), sum(found) from (
        select episode_id, row_count, 0 as found from {episodes} union all
        select episode_id, 0, 1 from {steps}) group by 1
        having sum(row_count) != sum(found) {"and sum(row_count) > 0" if between else ""}"""
    rows = duckdb.connect().execute(query).fetchall()
    return f"other engines disagree on {rows[:3]}" if rows else ""


def lines_of(operation: str, path: Path) -> list[Line]:
    """The lines of the library that an operation reaches, with the occurrences that are struck."""
    counts: dict[tuple[str, int], int] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(PARTS):
            return None
        if event == "line":
            counts[name, frame.f_lineno] = counts.get((name, frame.f_lineno), 0) + 1
        return trace

    sys.settrace(trace)
    OPERATIONS[operation](path)
    sys.settrace(None)
    found: list[Line]
    found = [(name, line, 1) for name, line in counts]
    found += [(*at, count) for at, count in counts.items() if count > 1 and at[0].endswith(TWICE)]
    return sorted(found)


def strike(operation: str, path: Path, line: Line) -> str:
    """Interrupt an operation when it reaches a line for the given time; what damage it told instead."""
    told = ""
    left = line[2]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PARTS):
            return None
        if event == "line" and (frame.f_code.co_filename, frame.f_lineno) == line[:2]:
            left -= 1
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        OPERATIONS[operation](path)
    except el.errors.CorruptStoreError as other:
        told = f"damage in place of it: {other}"
    except (KeyboardInterrupt, el.EpisodelakeError):
        pass
    finally:
        sys.settrace(None)
    gc.collect()
    return told


def made_by(operation: str, path: Path) -> Path:
    """The store that an operation on the one at `path` changes or makes."""
    return {"copy": path.with_name(f"{path.name}-copy"), "merge_new": path.with_name(f"{path.name}-new")}.get(
        operation, path
    )


def done(operation: str, path: Path) -> Any:
    """What there is after an operation that nobody interrupts."""
    OPERATIONS[operation](path)
    return state(made_by(operation, path))


def states_of(operation: str, path: Path) -> tuple[str, str]:
    """The states before and after an operation that nobody interrupts."""
    return repr(state(made_by(operation, path))), repr(done(operation, path))


def trial(operation: str, line: Line, states: Sequence[str], path: Path) -> str:
    """Strike once; what was wrong with the store then, or once the operation was repeated."""
    target = made_by(operation, path)
    after = states[1]
    told = strike(operation, path, line)
    if told:
        return told
    found = repr(state(target))
    if operation not in SEVERAL_COMMITS and found not in states:
        return f"neither the state before nor the one after: {found}"
    between = operation in SEVERAL_COMMITS
    problem = wrong(path, between=between) or (
        wrong(target, between=between) if target != path and found != NOTHING else ""
    )
    if problem or (operation == "copy" and found == after):
        return problem
    repeated = repr(done(operation, path))
    return wrong(target) or ("" if repeated == after else f"repeated: {repeated}, not {after}")


def in_child(work: Callable[[], Any]) -> Any:
    """Run something in a forked process, and return what it returned; an error as its text."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        signal.alarm(SECONDS)
        try:
            result = work()
        except BaseException:
            result = traceback.format_exc()[-1500:]
        with os.fdopen(writing, "w") as file:
            json.dump(result, file, default=str)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status = os.waitpid(process, 0)
    return json.loads(text) if text else f"the process ended with {status}, such as a lock that was held"


def main(folder: Path, stride: int, offset: int, operations: Sequence[str]) -> None:
    """Strike every `stride`th line of these operations, beginning with the one at `offset`."""
    # Children need not look at what was imported.
    preload()
    gc.freeze()
    in_child(lambda: make(folder))

    def fresh(run: Callable[[Path], Any]) -> Any:
        for path in (folder / "work", folder / "work-copy", folder / "work-new"):
            shutil.rmtree(path, ignore_errors=True)

        def work() -> Any:
            shutil.copytree(folder / "start", folder / "work")
            return run(folder / "work")

        return in_child(work)

    problems: list[str] = []
    points: list[tuple[str, Line]] = []
    seen: set[tuple[str, int]] = set()
    for operation in operations:
        lines = fresh(partial(lines_of, operation))
        # Lines that every operation shares are struck in each only where commits and files are made.
        new = [line for line in lines if (line[0], line[1]) not in seen or line[0].endswith(TWICE)]
        points += [(operation, tuple(line)) for line in new]
        seen |= {(line[0], line[1]) for line in lines}
    chosen = points[offset::stride]
    states = {
        operation: fresh(partial(states_of, operation))
        for operation in {operation for operation, _ in chosen}
    }
    for operation, line in chosen:
        problem = fresh(partial(trial, operation, line, states[operation]))
        if problem:
            where = f"{line[0].removeprefix(LIBRARY)}:{line[1]} ({line[2]})"
            problems.append(f"{operation} at {where}: {problem}")
            print(problems[-1], file=sys.stderr, flush=True)
    print(json.dumps({"lines": len(points), "struck": len(chosen), "problems": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or list(OPERATIONS))
