"""Surveys the points of workloads, runs trials in parallel, and reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from waiting import PATIENCE

from .faults import EVERY_KIND, Outcome, Trial
from .shim import Call, build, read_log

_TESTS = Path(__file__).resolve().parent.parent
_MEMORY = Path("/dev/shm")
_ROOM = 256 << 20
#: How often a race is run until its fault acts.
_RACES = 12


class Zygote:
    """One process that runs trials, one after the other."""

    def __init__(self, library: Path) -> None:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")]),
            # Few threads: the children are many and small.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the zygote ended with {self._process.wait(PATIENCE)}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


@dataclass
class Campaign:
    """Some zygotes, the templates that they copy, and a folder for trials.

    Attributes:
        folder: in memory where there is room, since nothing here must survive the machine.
        zygotes: how many trials run at once.
    """

    folder: Path
    zygotes: list[Zygote]

    def prepare(self, templates: Iterable[str]) -> None:
        """Make the templates.

        Raises:
            AssertionError: one of them could not be made.
        """
        for name in templates:
            if not (self.folder / "templates" / name).exists():
                found = self.zygotes[0].ask({"prepare": name, "folder": str(self.folder / "templates")})
                assert not found["wrong"], (name, found["wrong"])

    def survey(self, trial: Trial, kinds: int = EVERY_KIND) -> list[Call]:
        """The calls of a trial's last stage that are of some kinds; it suffers no fault."""
        return self.observe(trial, kinds)[0]

    def observe(
        self, trial: Trial, kinds: int = EVERY_KIND
    ) -> tuple[list[Call], dict[str, int], dict[str, int]]:
        """The same, with the sizes of all files of the template and of the store at the end.

        Raises:
            AssertionError: something went wrong all the same.
        """
        self.prepare([trial.template])
        # Alone: how many calls are made in a race, chance says.
        last = replace(trial.stages[-1], mode="", then=None, twin=False)
        unharmed = replace(trial, stages=(*trial.stages[:-1], last))
        folder = self.folder / "survey"
        found = self.zygotes[0].ask({"survey": unharmed.to_json(), "kinds": kinds, **self._places(folder)})
        assert not found["wrong"], (str(trial), found["wrong"])
        calls = read_log(folder / f"calls-{len(trial.stages) - 1}", "call")
        before, after = _sizes(self.folder / "templates" / trial.template), _sizes(folder)
        shutil.rmtree(folder)
        return calls, before, after

    def run(self, trials: Sequence[Trial]) -> list[Outcome]:
        """Run trials, as many at once as there are zygotes; outcomes come in the order of the trials."""
        self.prepare({trial.template for trial in trials})
        free: SimpleQueue[Zygote] = SimpleQueue()
        for zygote in self.zygotes:
            free.put(zygote)

        def one(numbered: tuple[int, Trial]) -> Outcome:
            zygote = free.get()
            try:
                return self._run_one(zygote, *numbered)
            finally:
                free.put(zygote)

        with ThreadPoolExecutor(len(self.zygotes)) as pool:
            return list(pool.map(one, enumerate(trials)))

    def _run_one(self, zygote: Zygote, number: int, trial: Trial) -> Outcome:
        """Run a trial; a race again when the twin did all the work before the point was reached."""
        races = any(stage.twin for stage in trial.stages)
        for _ in range(_RACES if races else 1):
            answer = zygote.ask({"run": trial.to_json(), **self._places(self.folder / f"trial-{number}")})
            if answer["wrong"] or answer["acted"]:
                break
        return Outcome(trial, tuple(answer["wrong"]), tuple(answer["acted"]), tuple(answer["errors"]))

    def _places(self, folder: Path) -> dict[str, str]:
        return {"templates": str(self.folder / "templates"), "folder": str(folder)}


def _sizes(folder: Path) -> dict[str, int]:
    """The size of each file of a place's store, by its path below the store."""
    store = folder / "store"
    files = [path for path in store.rglob("*") if path.is_file()]
    return {f"/{path.relative_to(store)}": path.stat().st_size for path in files}


@contextmanager
def campaign(zygotes: int | None = None) -> Iterator[Campaign]:
    """Start a campaign; everything that it made is gone afterwards.

    Args:
        zygotes: how many trials run at once; None for one on each processor.
    """
    roomy = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
    with ExitStack() as stack:
        place = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="faults-", dir=_MEMORY if roomy else None)
        )
        folder = Path(place).resolve()
        library = build(folder)
        started = [Zygote(library) for _ in range(zygotes or os.cpu_count() or 1)]
        for zygote in started:
            stack.callback(zygote.close)
        yield Campaign(folder, started)


def report(outcomes: Sequence[Outcome]) -> str:
    """How many trials were run and where their faults struck, and everything that is wrong."""
    names = Counter(" > ".join(stage.workload for stage in outcome.trial.stages) for outcome in outcomes)
    lines = [f"{count:6} {name}" for name, count in sorted(names.items())]
    missed = sum(not outcome.acted for outcome in outcomes)
    lines.append(f"{len(outcomes):6} trials; in {missed} of them no fault acted")
    lines += [
        f"{outcome.trial}\n    at {', '.join(outcome.acted)}\n    "
        + "\n    ".join((*outcome.wrong[:6], f"errors met: {list(outcome.errors)}"))
        for outcome in outcomes
        if outcome.wrong
    ]
    return "\n".join(lines)
