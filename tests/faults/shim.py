"""The shim, from Python: compile it, start a process with it, arm it from within that process."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waiting import PATIENCE

from .faults import CHANGE, EVERY_KIND, FAILURES, LOOKING, MAKE, MODES, SYNC, WRITE, Fault

SOURCE = Path(__file__).with_name("shim.c")
EXIT_CODE = 86


def compiler() -> str | None:
    """The C compiler, or None where there is none."""
    return shutil.which(os.environ.get("CC", "cc"))


def build(folder: Path) -> Path:
    """Compile the shim into a folder and return the library."""
    library = folder / "faults.so"
    program = compiler()
    if program is None:
        raise FileNotFoundError("no C compiler: install one, or name it in the environment variable CC")
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run(
        [program, *flags, "-o", str(library), str(SOURCE), "-ldl", "-lpthread"], check=True, timeout=PATIENCE
    )
    return library


@dataclass(frozen=True)
class Call:
    """A call that changes a file or looks at it, as the shim saw it; the points before and after it are its
    spots.

    Attributes:
        point: the point before it; the one after it is the next number.
        name: of the function.
        kind: WRITE, MAKE, CHANGE, SYNC, TRUNCATE, OPEN, READ, STAT or LIST of `faults`.
        path, other: below the root, beginning with a slash.
        size: bytes to be written or read.
    """

    point: int
    name: str
    kind: int
    path: str
    other: str
    size: int

    @property
    def turning(self) -> bool:
        """Whether it changes names or makes something durable: what others can see changes here."""
        return self.name != "open" and self.kind in (MAKE, CHANGE, SYNC)

    @property
    def routine(self) -> bool:
        """Whether it is one of the many small writes of a Parquet file, unseen before its commit."""
        return self.kind == WRITE and self.path.endswith(".parquet")


@dataclass(frozen=True)
class Spot:
    """A point together with its call."""

    call: Call
    after: bool

    @property
    def point(self) -> int:
        """Its number."""
        return self.call.point + self.after

    def suffers(self, mode: str) -> bool:
        """Whether a fault of that mode acts right here.

        A call that was carried out and reports an error all the same is one that changes names or makes
        something durable; other failures begin before a call.
        """
        if self.after and mode in LOOKING:
            return False
        if self.after and mode in FAILURES and not (mode == "error" and self.call.turning):
            return False
        faults = MODES[mode](self.point)
        return any(fault.strikes(self.point, self.call.kind, self.call.size) for fault in faults)


def spots(calls: Sequence[Call]) -> list[Spot]:
    """Both points of every call."""
    return [Spot(call, after) for call in calls for after in (False, True)]


def read_log(path: Path, mark: str) -> list[Call]:
    """The calls (mark "call") or the acts of faults (mark "fault") that the shim logged."""
    found = []
    for line in path.read_text().splitlines():
        first, point, name, kind, where, other, size = line.split("\t")
        if first == mark:
            found.append(Call(int(point), name, int(kind), where, other, int(size)))
    return found


def run_with(library: Path, script: Path, *arguments: object) -> Any:
    """Run a script of the tests in a process with the shim; return the JSON that it prints."""
    path = os.pathsep.join([str(SOURCE.parents[1]), os.environ.get("PYTHONPATH", "")])
    one = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    result = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env={**os.environ, **one, "LD_PRELOAD": str(library), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=PATIENCE,
    )
    return json.loads(result.stdout)


class Shim:
    """The shim that this process was started with.

    Raises:
        AttributeError: the process was started without it.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.faults_points.restype = ctypes.c_long
        self._library.faults_acted.restype = ctypes.c_long

    def arm(
        self,
        root: Path,
        log: Path,
        faults: Sequence[Fault],
        *,
        kinds: int = EVERY_KIND,
        everything: bool = False,
    ) -> None:
        """Begin to count calls below `root`, and let the faults act.

        Args:
            root: an absolute path without links.
            log: outside of the root; lines are appended.
            kinds: which calls are counted.
            everything: log every call, not only where a fault acts.
        """
        flat = [number for fault in faults for number in fault.numbers()]
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        specification = (ctypes.c_long * len(flat))(*flat)
        status = self._library.faults_arm(
            os.fsencode(root), descriptor, int(everything), ctypes.c_long(kinds), len(faults), specification
        )
        if status:
            raise ValueError(f"too many faults: {faults}")

    def disarm(self) -> None:
        """Let no fault act any more; go on counting."""
        self._library.faults_disarm()

    @property
    def points(self) -> int:
        """How many points have passed since `arm`."""
        return self._library.faults_points()

    @property
    def acted(self) -> int:
        """How often a fault acted since `arm`."""
        return self._library.faults_acted()
