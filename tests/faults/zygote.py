"""A process with everything imported, which forks one child for every part of a trial.

Started with the shim, it reads one JSON request per line and answers each with one line. It never touches the
table library or starts a thread itself, so that every child is the first to do so in its process:

    {"prepare": template, "folder": ...}                     make a template
    {"survey": trial, "kinds": ..., "templates": ..., "folder": ...}  run it, log such calls of its last stage
    {"run": trial, "templates": ..., "folder": ...}          run it, then check
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from episodelake.writers.session import run as env_packages
from faults.checking import check
from faults.faults import DENIED, KILLS, LOOKING, Stage, Trial
from faults.promises import PromiseLog, Promises
from faults.recording import DIED, Context, describe, guarded
from faults.shim import EXIT_CODE, Call, Shim, read_log
from faults.truth import ScriptedEnv
from faults.workloads import BYSTANDER, TEMPLATES, WORKLOADS, Workload
from preloading import preload
from waiting import await_end


@dataclass(frozen=True)
class Place:
    """Where a trial happens: the store, and beside it what must survive the faults."""

    folder: Path

    @property
    def store(self) -> Path:
        """The store; only calls below it suffer faults."""
        return self.folder / "store"

    @property
    def promises(self) -> Path:
        """The promise log."""
        return self.folder / "promises"

    def calls(self, stage: int) -> Path:
        """What the shim logged in a stage."""
        return self.folder / f"calls-{stage}"


def spawn(work: Callable[[], None]) -> int:
    """Run a function in a forked child, which ends with it."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def perform(place: Place, workload: Workload, answer: str, arm: Callable[[Shim], None]) -> None:
    """Run a workload, in a child."""
    log, shim = PromiseLog(place.promises), Shim()
    arm(shim)
    guarded(lambda: workload(Context(place.store, place.folder, log, shim, answer)), log)


def run_stage(place: Place, number: int, stage: Stage, surveyed: int) -> list[str]:
    """Run the processes of one stage; what is wrong with how they ended.

    Args:
        surveyed: the kinds of calls to log; 0 to log only where faults act.
    """
    workload = WORKLOADS[stage.workload]
    log = place.calls(number)
    children = [
        spawn(
            lambda: perform(
                place,
                workload,
                stage.answer,
                lambda shim: shim.arm(
                    place.store,
                    log,
                    stage.faults(),
                    kinds=surveyed or stage.kinds,
                    everything=bool(surveyed),
                ),
            )
        )
    ]
    if stage.twin:
        children.append(spawn(lambda: perform(place, workload, "repeat", lambda shim: None)))
    codes = [await_end(child) for child in children]
    expected = {0}
    if stage.mode in KILLS or stage.then:
        expected |= {EXIT_CODE, -signal.SIGKILL}
    if stage.answer == "die":
        expected.add(DIED)
    wrong = [f"stage {number}: a process ended with {code}" for code in codes[:1] if code not in expected]
    return wrong + [f"stage {number}: the twin ended with {code}" for code in codes[1:] if code]


def run_stages(place: Place, trial: Trial, surveyed: int = 0) -> list[str]:
    """All stages, beside the bystander if there is one; the calls of the last one are surveyed."""
    beside = Bystander(place) if trial.bystander else None
    wrong: list[str] = []
    for number, stage in enumerate(trial.stages):
        wrong += run_stage(place, number, stage, surveyed if number == len(trial.stages) - 1 else 0)
    return wrong + (beside.finish() if beside else [])


class Bystander:
    """A live writer that records beside the stages, and goes on and closes after them."""

    def __init__(self, place: Place) -> None:
        ready, self._go = os.pipe(), os.pipe()
        self._child = spawn(lambda: self._record(place, ready[1]))
        os.close(ready[1])
        os.read(ready[0], 1)
        os.close(ready[0])

    def _record(self, place: Place, ready: int) -> None:
        def workload(context: Context) -> None:
            BYSTANDER(context, lambda: (os.write(ready, b"1"), os.read(self._go[0], 1)))

        os.close(self._go[1])
        perform(place, workload, "repeat", lambda shim: None)

    def finish(self) -> list[str]:
        """Let it go on to its end; what is wrong with it."""
        os.write(self._go[1], b"1")
        code = await_end(self._child)
        for descriptor in self._go:
            os.close(descriptor)
        return [f"the live writer ended with {code}"] if code else []


def lay_out(request: dict[str, Any], trial: Trial) -> Place:
    """A fresh copy of the trial's template."""
    place = Place(Path(request["folder"]))
    shutil.copytree(Path(request["templates"]) / trial.template, place.folder)
    return place


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Make a template."""
    place = Place(Path(request["folder"]) / request["prepare"])
    place.folder.mkdir(parents=True)
    workload = TEMPLATES[request["prepare"]]
    code = await_end(spawn(lambda: perform(place, workload, "repeat", lambda shim: None)))
    return {"wrong": Promises.read(place.promises).wrong + ([f"it ended with {code}"] if code else [])}


def survey(request: dict[str, Any]) -> dict[str, Any]:
    """Run a trial without judging it; the log of its last stage stays in the folder."""
    trial = Trial.from_json(request["survey"])
    place = lay_out(request, trial)
    wrong = run_stages(place, trial, request["kinds"])
    return {"wrong": wrong + Promises.read(place.promises).wrong}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run a trial and judge it."""
    trial = Trial.from_json(request["run"])
    place = lay_out(request, trial)
    wrong = run_stages(place, trial)
    logs = [place.calls(number) for number in range(len(trial.stages))]
    acts = [read_log(log, "fault") if log.exists() else [] for log in logs]
    torn = trial.stages[-1].mode == "torn" and bool(acts[-1]) and _tears_a_batch(acts[-1][-1])
    report = place.folder / "report"
    by_writer = trial.stages[-1].point % 2 == 1
    code = await_end(spawn(lambda: _look(place, torn, by_writer, report)))
    wrong += json.loads(report.read_text()) if report.exists() else []
    if code:
        wrong.append(f"looking at the store ended with {code}")
    errors = Promises.read(place.promises).errors
    wrong += _misjudged(trial, errors)
    acted = [f"{call.name} {call.path or call.other}" for found in acts for call in found[:1]]
    if not request.get("keep"):
        shutil.rmtree(place.folder)
    return {"wrong": wrong, "acted": acted, "errors": errors}


def _misjudged(trial: Trial, errors: Iterable[str]) -> list[str]:
    """What a workload was told about files that it could not read for a moment, other than just that."""
    mode = trial.stages[-1].mode
    if mode not in LOOKING:
        return []
    plain = {"StoreAccessError", "ConcurrentCommitError"} if mode == DENIED else {"ConcurrentCommitError"}
    allowed = {"StoreUnavailableError", *plain}
    return [f"it met {error}, though nothing is damaged or gone" for error in errors if error not in allowed]


def _tears_a_batch(call: Call) -> bool:
    return call.name == "write" and call.path.endswith(".frames") and call.size > 1


def _look(place: Place, torn: bool, by_writer: bool, report: Path) -> None:
    try:
        wrong = check(place.store, place.promises, torn=torn, by_writer=by_writer)
    except BaseException as error:
        wrong = [f"looking at the store {describe(error)}"]
    report.write_text(json.dumps(wrong))


def main() -> None:
    """Serve requests until the input ends; answers have a descriptor of their own."""
    preload()
    # What is installed is read once for all children, and they must not copy every page that they look at.
    env_packages.versions_of((ScriptedEnv,), (), ())
    gc.freeze()
    gc.disable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kinds = {"prepare": prepare, "survey": survey, "run": run}
    for line in sys.stdin:
        request = json.loads(line)
        answer = next(kinds[kind] for kind in kinds if kind in request)(request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # Nothing is left to be tidied up, and the interpreter's end would print what the imported libraries leak.
    os._exit(0)


if __name__ == "__main__":
    main()
