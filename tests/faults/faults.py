"""What can go wrong at a point, and trials: which workload suffers what, one stage after the other."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# The kinds of calls and the actions, numbered as in shim.c.
WRITE, MAKE, CHANGE, SYNC, TRUNCATE = 1, 2, 4, 8, 16
OPEN, READ, STAT, LIST = 32, 64, 128, 256
EVERY_KIND = WRITE | MAKE | CHANGE | SYNC | TRUNCATE
#: Calls that look at files; they are counted instead of those that change files, never beside them.
LOOKS = OPEN | READ | STAT | LIST
EXIT, KILL, TORN, FAIL, HALVE = 1, 2, 3, 4, 5
FOR_EVER = 1 << 40
_BESIDE = " (a live writer beside)"


@dataclass(frozen=True)
class Fault:
    """One fault: it acts at the points `first` to `last`, on calls of some kinds.

    Attributes:
        action: EXIT, KILL, TORN, FAIL or HALVE.
        error: what a failing call says (an errno).
        kinds: which calls it concerns.
    """

    first: int
    last: int
    action: int
    error: int = 0
    kinds: int = EVERY_KIND

    def numbers(self) -> tuple[int, int, int, int, int]:
        """The numbers that the shim takes."""
        return self.first, self.last, self.action, self.error, self.kinds

    def strikes(self, point: int, kind: int, size: int) -> bool:
        """Whether it acts at a point of a call of that kind, which writes so many bytes; as in shim.c."""
        if not (self.first <= point <= self.last and self.kinds & kind):
            return False
        if self.action in (HALVE, TORN):
            return point % 2 == 0 and kind in (WRITE, READ) and size > 1
        return True


def _once(action: int, error: int = 0, kinds: int = EVERY_KIND) -> Callable[[int], tuple[Fault, ...]]:
    return lambda point: (Fault(point, point, action, error, kinds),)


def _lasting(action: int, error: int, kinds: int) -> Callable[[int], tuple[Fault, ...]]:
    return lambda point: (Fault(point, FOR_EVER, action, error, kinds),)


def _full_disk(point: int) -> tuple[Fault, ...]:
    """The last write takes half of its bytes, then nothing fits any more; names can still be removed."""
    return (
        Fault(point, point, HALVE, 0, WRITE),
        Fault(point + 2, FOR_EVER, FAIL, errno.ENOSPC, WRITE),
        Fault(point, FOR_EVER, FAIL, errno.ENOSPC, MAKE),
    )


#: Modes that end the process.
KILLS: dict[str, Callable[[int], tuple[Fault, ...]]] = {
    "exit": _once(EXIT),
    "kill": _once(KILL),
    "torn": _once(TORN),
}

#: Modes that the process survives; those that last end when the workload disarms them.
FAILURES: dict[str, Callable[[int], tuple[Fault, ...]]] = {
    "no space once": lambda point: (Fault(point, point, FAIL, errno.ENOSPC, WRITE | MAKE),),
    "no space": _full_disk,
    "error": _once(FAIL, errno.EIO),
    "dead disk": _lasting(FAIL, errno.EIO, EVERY_KIND),
    "short": _lasting(HALVE, 0, WRITE),
    "read only": _lasting(FAIL, errno.EROFS, WRITE | MAKE | CHANGE | TRUNCATE),
    "denied": _lasting(FAIL, errno.EACCES, MAKE | CHANGE),
}

DENIED = "not readable"

#: Modes in which looking at files fails: a disk or a file server in trouble, a process without descriptors.
LOOKING: dict[str, Callable[[int], tuple[Fault, ...]]] = {
    "unreadable once": _once(FAIL, errno.EIO, LOOKS),
    "unreadable": _lasting(FAIL, errno.EIO, LOOKS),
    "stale once": _once(FAIL, errno.ESTALE, LOOKS),
    "no descriptors": _lasting(FAIL, errno.EMFILE, OPEN),
    "no memory once": _once(FAIL, errno.ENOMEM, OPEN | READ | LIST),
    DENIED: _lasting(FAIL, errno.EACCES, OPEN | STAT),
    "short reads": _lasting(HALVE, 0, READ),
}

MODES = {**KILLS, **FAILURES, **LOOKING}

#: What a workload does after an error: the same again, close and nothing more, or end without closing.
ANSWERS = ("repeat", "close", "die")


@dataclass(frozen=True)
class Stage:
    """One process of a trial.

    Attributes:
        workload: a name in `workloads.WORKLOADS`.
        mode, point: the fault it suffers; "" for none.
        answer: what it does after an error; see `ANSWERS`.
        twin: run a second, unharmed process of the same workload at the same time.
        then: a kill (mode and point) that follows the first fault.
    """

    workload: str
    mode: str = ""
    point: int = 0
    answer: str = "repeat"
    twin: bool = False
    then: tuple[str, int] | None = None

    def faults(self) -> tuple[Fault, ...]:
        """The faults to arm."""
        first = MODES[self.mode](self.point) if self.mode else ()
        # The kill comes first, since the shim takes the first fault that fits a point.
        return (MODES[self.then[0]](self.then[1]) if self.then else ()) + first

    @property
    def kinds(self) -> int:
        """The kinds of calls that are counted."""
        return LOOKS if self.mode in LOOKING else EVERY_KIND

    @staticmethod
    def parse(text: str) -> Stage:
        """The inverse of `str`."""
        text, twin = text.removesuffix("*2"), text.endswith("*2")
        text, _, kill = text.partition("+")
        mode, _, point = kill.partition(":")
        workload, *rest = text.split(":")
        suffered, at, answer = rest or ("", "0", "repeat")
        later = (mode, int(point)) if kill else None
        return Stage(workload, suffered, int(at), answer, twin=twin, then=later)

    def __str__(self) -> str:
        """As the command line takes it: workload[:mode:point:answer][+mode:point][*2]."""
        text = f"{self.workload}:{self.mode}:{self.point}:{self.answer}" if self.mode else self.workload
        return text + (f"+{self.then[0]}:{self.then[1]}" if self.then else "") + ("*2" if self.twin else "")


@dataclass(frozen=True)
class Trial:
    """Stages on a copy of one template store, then the invariants.

    Attributes:
        template: a name in `workloads.TEMPLATES`.
        stages: one after the other.
        bystander: a live writer records beside all stages, and closes at the end.
    """

    template: str
    stages: tuple[Stage, ...]
    bystander: bool = False

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Trial:
        """The inverse of `to_json`."""
        stages = []
        for stage in data["stages"]:
            then = stage["then"]
            stages.append(Stage(**{**stage, "then": None if then is None else tuple(then)}))
        return Trial(data["template"], tuple(stages), data["bystander"])

    @staticmethod
    def parse(text: str) -> Trial:
        """The inverse of `str`."""
        text, beside = text.removesuffix(_BESIDE), text.endswith(_BESIDE)
        template, *stages = text.split(" > ")
        return Trial(template, tuple(map(Stage.parse, stages)), beside)

    def __str__(self) -> str:
        """The trial in one line."""
        return f"{self.template} > {' > '.join(map(str, self.stages))}{_BESIDE if self.bystander else ''}"


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        wrong: what was found wrong, a sentence each; empty if all invariants hold.
        acted: where faults acted, as "name path"; empty if no point was reached.
        errors: the errors that workloads met, by class name.
    """

    trial: Trial
    wrong: tuple[str, ...]
    acted: tuple[str, ...]
    errors: tuple[str, ...]
