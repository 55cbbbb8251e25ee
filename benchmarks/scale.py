"""The same work on ever larger stores: time per step, memory and disk, each work in a process of its own.

1,024 CartPoles of Gymnasium's vector code, played by a policy that balances for a while, are recorded until
a store has a million, ten million and a hundred million transitions (`billion`: ten million, a hundred
million and a billion). Then the store is opened, filtered, queried, loaded from, compacted and verified;
every result is compared with what the loop counted beside the recorder (see `scale_work`). The peer of each
row is the same work on the smallest store.

Each work is a line of `results.jsonl` as soon as it is done. With `--folder` that file and the stores stay,
and a later call with the same folder does what is missing: it goes on with a recording that was cut short,
and tries again what failed. `python scale.py FOLDER` prints the table of a results file.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Row, Samples
from memory import memory_of
from scale_work import WORKS, Work
from setting import Setting, folder_bytes

SIZES = (1_000_000, 10_000_000, 100_000_000)
BILLION = (10_000_000, 100_000_000, 1_000_000_000)
#: Of a quick run.
QUICK = (40_960, 81_920)
#: What a size may add, over the smallest one: noise, and the partly filled last segment of small stores.
FLAT = 1.5
#: Seconds between two looks at the memory of a process, and at the disk.
LOOK, LOOK_AT_DISK = 0.02, 1.0
RESULTS = "results.jsonl"
Line = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The lines of a results file: the last one of each work at each size.

    Attributes:
        file: where lines are appended.
    """

    file: Path

    def add(self, line: Line) -> None:
        """Append a line and print it."""
        with self.file.open("a") as file:
            print(json.dumps(line), file=file)
        if "seconds" in line:
            done = "" if "done" not in line else f", {line['done']:,} transitions"
            print(f"{line['steps']:,} {line['work']}: {line.get('error') or _words(line)}{done}", flush=True)

    def at(self, steps: int) -> dict[str, Line]:
        """The last line of each work at a size, since its recording began."""
        found: dict[str, Line] = {}
        for line in self._lines():
            if line["steps"] != steps or "done" in line:
                continue
            if line["work"] == "record" and line["begins"]:
                found = {work: old for work, old in found.items() if work == "bare"}
            found[line["work"]] = line
        return found

    def sizes(self) -> list[int]:
        """The sizes with lines, the smallest first."""
        return sorted({line["steps"] for line in self._lines()})

    def _lines(self) -> Iterator[Line]:
        if self.file.exists():
            yield from map(json.loads, self.file.read_text().splitlines())


def run(setting: Setting, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Do all works at each size, the small ones first."""
    growth = setting.growth
    sizes = growth.steps or (QUICK if setting.quick else sizes)
    folder = growth.folder or setting.fresh("scale")
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(folder / RESULTS)
    for steps in sizes:
        for work in WORKS:
            old = results.at(steps).get(work)
            chosen = work in growth.only or (not growth.only and work not in growth.skip)
            if chosen and (work in growth.only or old is None or "error" in old or old.get("partial")):
                _do(work, steps, folder, results, growth.seconds)
    first, *others = sizes
    rows = _rows(results, first, None)
    return rows if not others else [row for steps in others for row in _rows(results, steps, first)]


def run_billion(setting: Setting) -> list[Row]:
    """Do them at a tenth, a hundredth and the whole of a billion steps."""
    return run(setting, BILLION)


def _do(work: str, steps: int, folder: Path, results: Results, limit: float) -> None:
    """Do one work in a process, watch it, and append what it took or why it failed."""
    store, before = folder / f"store-{steps}", results.at(steps)
    recorded = before.get("record")
    totals = recorded.get("totals") if recorded else None
    if work == "record" and not (totals and store.exists()):
        totals, recorded = None, None
        shutil.rmtree(store, ignore_errors=True)
    if work not in ("bare", "record") and totals is None:
        raise SystemExit(f"{folder} has no store of {steps:,} transitions; do not skip `record`")
    line: Line = {"steps": steps, "work": work, "at": time.strftime("%H:%M:%S")}
    if work == "record":
        line["begins"] = recorded is None
    if work == "compact":  # Its old and new files are the most there is on the disk.
        shutil.rmtree(folder / f"{store.name}-columns", ignore_errors=True)
    asked = {"work": work, "store": str(store), "steps": steps, "expected": totals}
    asked["tiny"] = str(folder / "tiny")
    start = time.perf_counter()
    with (folder / "stderr.txt").open("w+") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("scale_work.py")), json.dumps(asked)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        watched = _watch(process, folder, store.name, line, results, limit)
        stderr.seek(0)
        message = stderr.read().strip()
    line |= watched
    if "seconds" not in watched:
        line |= {"seconds": time.perf_counter() - start}
        line.setdefault("error", _failure(message))
    elif work == "record" and line["totals"]["transitions"] < steps:
        line["partial"] = True
    if recorded and work == "record" and "error" not in line:
        for key in ("seconds", "processor", "units"):
            line[key] += recorded[key]
    line["bytes"] = folder_bytes(store) if store.exists() else 0
    shutil.rmtree(folder / f"{store.name}-spilled", ignore_errors=True)
    results.add(line)
    if line.get("partial"):
        raise SystemExit("the recording was cut short; the same call goes on")
    if work == "record" and "error" in line:
        raise SystemExit(f"recording failed: {message}")


def _watch(
    process: subprocess.Popen[str], folder: Path, name: str, line: Line, results: Results, limit: float
) -> Line:
    """Follow a process until it ends; return its last words, its peak of memory and that of the disk."""
    assert process.stdout is not None
    said: list[Line] = []

    def read() -> None:
        assert process.stdout is not None
        for text in process.stdout:
            words = json.loads(text)
            if "done" in words:
                results.add(line | words | {"anonymous": _anonymous(process.pid)})
            said.append(words)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    peak = disk = 0
    end, look = time.perf_counter() + limit, 0.0
    found: Line = {}
    while process.poll() is None:
        try:
            time.sleep(LOOK)
            peak = max(peak, _anonymous(process.pid))
            now = time.perf_counter()
            if now > look:
                look = now + LOOK_AT_DISK
                with contextlib.suppress(FileNotFoundError):
                    disk = max(disk, sum(folder_bytes(path) for path in folder.glob(f"{name}*")))
            if now > end:
                process.terminate()
                found["error"] = f"it took longer than {limit:,.0f} s"
                end = float("inf")
        except KeyboardInterrupt:  # A recording ends whole, and is a line; other work just ends.
            found["error"] = "interrupted"
            process.terminate()
    reader.join()
    last = said[-1] if said and "seconds" in said[-1] else {}
    before = next((words["anonymous"] for words in said if "anonymous" in words), 0)
    if last:
        found = {key: value for key, value in found.items() if key != "error"} | last
    return found | {"memory": max(peak - before, 0), "disk": disk}


def _failure(message: str) -> str:
    """The line of a traceback that names the error."""
    lines = message.splitlines() or ["it was killed"]
    return next((text for text in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", text)), lines[-1])


def _anonymous(pid: int) -> int:
    try:
        return memory_of("RssAnon", pid)
    except (LookupError, OSError):
        return 0


def _rows(results: Results, steps: int, first: int | None) -> list[Row]:
    """Return the rows of a size, beside those of the first one where given: times, memory, then files."""
    large, small = results.at(steps), results.at(first) if first else {}
    at, peer = f"{_words_of(steps)} steps", f"{_words_of(first)} steps" if first else ""
    rows = []

    def add(name: str, unit: str, key: str, value: Any, target: float | None = None) -> None:
        sides = [
            value(side[key]) if key in side and "error" not in side[key] else None for side in (large, small)
        ]
        if sides[0] is None:
            return
        theirs = Samples((sides[1],)) if sides[1] is not None else None
        rows.append(Row(f"{name}, {at}", unit, Samples((sides[0],)), peer, theirs, ratio_target=target))

    for key, work in WORKS.items():
        add(work.name, work.unit, key, _time_of(work), None if work.unit == "ms" or not first else FLAT)
    for key, work in WORKS.items():
        add(f"{work.name}, memory at the peak", "MB", key, lambda line: line["memory"] / 1e6)
    add("files of a store", "B/step", "record", lambda line: line["bytes"] / line["steps"])
    return rows


def _time_of(work: Work) -> Any:
    factor = 1e3 if work.unit == "ms" else 1e6
    return lambda line: line["seconds"] / line["units"] * factor


def _words(line: Line) -> str:
    if "done" in line:
        return f"{line['seconds']:.0f} s, {line['anonymous'] / 1e6:,.0f} MB"
    words = f"{_time_of(WORKS[line['work']])(line):.3g} {WORKS[line['work']].unit}, {line['seconds']:.4g} s"
    return f"{words} ({line['processor']:.4g} s of processors), {line['memory'] / 1e6:,.0f} MB"


def _words_of(steps: int) -> str:
    for unit, letter in ((1_000_000_000, "B"), (1_000_000, "M")):
        if steps >= unit:
            return f"{steps / unit:.3g} {letter}"
    return f"{steps:,}"


def table(results: Results) -> str:
    """Return the Markdown table of a results file: time, time of processors and memory, at each size."""
    sizes = results.sizes()
    at = {steps: results.at(steps) for steps in sizes}
    heads = [_words_of(steps) for steps in sizes]
    head = [
        "work",
        "unit",
        *heads,
        f"processors: {heads[0]}",
        *heads[1:],
        f"memory, MB: {heads[0]}",
        *heads[1:],
    ]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]

    def cell(line: Line | None, value: Any) -> str:
        if line is None or "error" in line:
            return "-" if line is None else "failed"
        return f"{value(line):,.3g}" if value(line) < 1000 else f"{value(line):,.0f}"

    for key, work in WORKS.items():
        if any(key in lines_of for lines_of in at.values()):
            found = [at[steps].get(key) for steps in sizes]
            time = _time_of(work)
            values = (
                time,
                lambda line, time=time: time({**line, "seconds": line["processor"]}),
                lambda line: line["memory"] / 1e6,
            )
            cells = [cell(line, value) for value in values for line in found]
            lines.append(f"| {' | '.join([work.name, work.unit, *cells])} |")
    files = [cell(at[steps].get("record"), lambda line: line["bytes"] / line["steps"]) for steps in sizes]
    most = [f"{max((line['disk'] for line in at[steps].values()), default=0) / 1e9:.3g}" for steps in sizes]
    blank = [""] * (len(head) - 2 - len(sizes))
    lines.append(f"| {' | '.join(['files after recording', 'B/step', *files, *blank])} |")
    lines.append(f"| {' | '.join(['disk at the peak', 'GB', *most, *blank])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Results(Path(sys.argv[1]) / RESULTS)))
