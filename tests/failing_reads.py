"""Reads of the public API, each with one look at a file failing: the child of `test_failing_reads.py`.

Run with the shim of `faults/` loaded. A read either gives what it gives unharmed, or raises that the system
could not or would not; it never gives less without a warning, calls a file damaged or missing, or lets the
system's error out.
"""

from __future__ import annotations

import errno
import json
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

import episodelake as el
from episodelake.store.files import access_error
from episodelake.terminal.reports.open_store import explored
from episodelake.terminal.reports.store_figures import store_figures
from faults.faults import FAIL, LOOKS, OPEN, STAT, Fault
from faults.shim import Call, Shim, read_log
from visible_steps import Operation, Trials, a

#: The errors, the calls that meet them, and the class of what the caller gets.
ERRORS = {
    "EIO": (errno.EIO, LOOKS, el.errors.StoreUnavailableError),
    "EMFILE": (errno.EMFILE, OPEN, el.errors.StoreUnavailableError),
    "EACCES": (errno.EACCES, OPEN | STAT, el.errors.StoreAccessError),
}
#: Reads that leave stores out, with a warning that names them.
PARTIAL = ("lake.find", "lake.sql")
SQL = "SELECT episode_id, sum(reward) FROM transitions GROUP BY ALL ORDER BY ALL"


def _rows(frame: pl.DataFrame) -> list[Any]:
    return sorted(map(repr, frame.rows()))


def _fetched(fetch: Callable[[], Any], *errors: type[Exception]) -> Any:
    """Return what another library computes only now; its own error has to say what the system said."""
    try:
        return fetch()
    except errors as error:
        raise access_error("Could not fetch", error, "the store") from error


def _stores(folder: Path) -> list[Any]:
    """Return the rows of a lake; raise the error in the row of a store that this user may not read."""
    stores = el.lake(folder / "lake").stores()
    for problem in stores["error"].drop_nulls():
        if "Permission denied" in problem:
            raise el.errors.StoreAccessError(problem)
    return _rows(stores)


def _batches(folder: Path, cache: Any) -> list[Any]:
    loader = a(folder).loader(4, cache=cache)
    return [{name: np.asarray(column).tolist() for name, column in batch.items()} for batch in loader]


#: The formats whose exports are read as sources of imports, with the endings that they are recognised by.
SOURCES = {
    "csv": ".csv",
    "parquet": ".parquet",
    "huggingface": "",
    "rlds": "",
    "rllib": "",
    "d3rlpy": ".h5",
    "minari": "",
    "lerobot": "",
}
#: Those that no export writes.
PATTERN = {"pattern": "/*/*.csv"}
WRITTEN = {"ogbench": ".npz", "diffusion_policy": ".zarr"}


def _write_arrays(folder: Path) -> None:
    rows = {"observations": np.ones((6, 2), np.float32), "actions": np.ones((6, 1), np.float32)}
    np.savez(_source(folder, "ogbench"), **rows, terminals=np.array([0, 0, 1, 0, 0, 1.0]))
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(_source(folder, "diffusion_policy")), mode="w")
    for name, values in {
        "data/state": rows["observations"],
        "data/action": rows["actions"],
        "meta/episode_ends": np.array([3, 6]),
    }.items():
        array = group.create_array(name, shape=values.shape, dtype=values.dtype)
        array[...] = values


def _source(folder: Path, format: str) -> Path:
    return folder / f"{format}{(SOURCES | WRITTEN | PATTERN)[format]}"


def _rehearsed(folder: Path, format: str) -> Any:
    report = el.import_dataset(str(_source(folder, format)), folder / "imported", dry_run=True)
    return report.format, report.reason, report.episodes, repr(report.preview)


READS: dict[str, Callable[[Path], Any]] = {
    "episodes": lambda f: [(each.seed, each.rewards.tolist()) for each in a(f)],
    "frames": lambda f: [_rows(_fetched(each.collect, OSError)) for each in (a(f).episodes, a(f).steps)],
    "filter": lambda f: [each.seed for each in a(f).filter("seed > 1")],
    "sql": lambda f: _fetched(a(f).sql(SQL).fetchall, duckdb.IOException),
    "query": lambda f: _rows(a(f).query(SQL)),
    "card": lambda f: a(f).card,
    "versions": lambda f: _rows(a(f).history()),
    "tags": lambda f: a(f).tags,
    "tag": lambda f: len(el.open(f / "lake/a", "old")),
    "annotations": lambda f: _rows(a(f).annotations),
    "artifacts": lambda f: (_rows(a(f).artifacts.list()), a(f).artifacts.get("table")),
    "environments": lambda f: _rows(a(f).environments()),
    "environment": lambda f: str(a(f).make_env("pole").spec),
    "stats": lambda f: repr(a(f).stats(["reward"])),
    "quality": lambda f: repr(a(f).quality()),
    "verify": lambda f: repr(a(f).verify().faults),
    "loader": lambda f: _batches(f, "memory"),
    "mapped loader": lambda f: _batches(f, el.Cache("mmap", folder=f / "cache")),
    "stream": lambda f: _batches(f, "stream"),
    "lake": _stores,
    "lake.find": lambda f: _rows(el.lake(f / "lake").find("seed > 1")),
    "lake.sql": lambda f: _fetched(
        el.lake(f / "lake").sql("SELECT count(*) FROM episodes").fetchall, duckdb.IOException
    ),
    "published": lambda f: _rows(el.published(f / "published").select("tag", "episodes")),
    "preview": lambda f: _rows(el.preview(f / "published", version="v1")),
    "terminal": lambda f: repr(explored(str(f / "lake/a"), None, lambda opened: store_figures(opened.store))),
}


READS |= {f"import of {name}": partial(_rehearsed, format=name) for name in SOURCES | WRITTEN}
READS["import of a pattern"] = partial(_rehearsed, format="pattern")


class Reading(Trials):
    """Trials of reads: their answers are compared."""

    def __init__(self, folder: Path, shim: Shim) -> None:
        super().__init__(folder, shim)
        for format in SOURCES:
            a(folder / "template").export(_source(folder / "template", format), format=format)
        _write_arrays(folder / "template")
        for number in range(3):
            (folder / f"template/pattern/{number}").mkdir(parents=True)
            rows = "".join(f"{number},{k / 8},{k % 2},1.0\n" for k in range(4))
            (folder / f"template/pattern/{number}/rows.csv").write_text(
                f"episode,observation,action,reward\n{rows}"
            )

    def looks(self, name: str) -> list[Call]:
        """Return the calls of an unharmed read that look at files."""
        folder, log = self._laid_out(Operation(READS[name], lambda folder: True)), self._folder / "calls"
        log.unlink(missing_ok=True)
        self._shim.arm(folder, log, [], kinds=LOOKS, everything=True)
        READS[name](folder)
        self._shim.disarm()
        return read_log(log, "call")

    def wrong_answer(self, name: str, error: str, call: int, expected: Any) -> str | None:
        """Let one look of a read fail; return what is wrong with its answer, None if nothing is."""
        number, kinds, kind = ERRORS[error]
        folder = self._laid_out(Operation(READS[name], lambda folder: True))
        answer, raised = None, None
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            self._shim.arm(
                folder, self._folder / "log", [Fault(2 * call, 2 * call, FAIL, number, kinds)], kinds=LOOKS
            )
            try:
                answer = READS[name](folder)
            except Exception as problem:
                raised = problem
            finally:
                self._shim.disarm()
        if not self._shim.acted:
            return None
        line = (self._folder / "log").read_text().splitlines()[-1].split("\t")
        where = f"{name}: {error} at call {call} ({line[2]} {line[4]})"
        if raised is not None:
            if isinstance(raised, kind):
                return None
            return f"{where}: raised {type(raised).__name__}: {raised!s:.300}"
        if answer == expected or (name in PARTIAL and warned):
            return None
        return (
            f"{where}: {answer!r:.300} instead of {expected!r:.300}; {[str(each.message) for each in warned]}"
        )


def _chosen(calls: list[Call], most: int) -> list[Call]:
    """Return so many calls, in order: half of them evenly, and as many of each kind of call and place."""
    chosen = {calls[index].point for index in np.linspace(0, len(calls) - 1, most // 2 + 1).astype(int)}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for call in calls:
        path = Path(call.path)
        groups.setdefault((call.name, str(path.parent), path.suffix), []).append(call.point)
    turns = zip_longest(
        *(points[len(points) // 2 :] + points[: len(points) // 2] for points in groups.values())
    )
    for point in filter(None, chain.from_iterable(turns)):
        if len(chosen) <= most:
            chosen.add(point)
    return [call for call in calls if call.point in chosen]


def main(folder: Path, names: list[str], most: int) -> list[str]:
    """Let looks of each read fail; return what is wrong."""
    trials, wrong = Reading(folder, Shim()), []
    for name in names:
        operation = Operation(READS[name], lambda folder: True)
        laid_out = trials._laid_out(operation)
        READS[name](laid_out)
        expected = READS[name](trials._laid_out(operation))
        calls = trials.looks(name)
        for error, (_, kinds, _) in ERRORS.items():
            for call in _chosen([each for each in calls if each.kind & kinds], most):
                problem = trials.wrong_answer(name, error, call.point // 2, expected)
                if problem is not None:
                    wrong.append(problem)
                    print(problem, file=sys.stderr, flush=True)
    return wrong


if __name__ == "__main__":
    chosen = sys.argv[3:] or list(READS)
    print(json.dumps(main(Path(sys.argv[1]).resolve(), chosen, int(sys.argv[2])), indent=1))
