"""Publications and pulls that are killed at any of their steps, and what others see then.

Run as a script: `publishing_trials.py KIND FOLDER FIRST STEP COUNT`. A trial is a forked child that kills
itself with SIGKILL at one of the events that Python reports of it (a file opened, renamed, removed, ...).
Prints a line for each trial.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import episodelake as el
import episodelake._pulling
import episodelake.publishing.publishing
from waiting import await_end

_EVENTS = ("open", "os.", "shutil.", "tempfile.", "fcntl.")


def version_is_whole(version: Path) -> bool:
    """Whether the files of a version are those of its list, by nothing but JSON and SHA-256."""
    files = json.loads((version / "checksums.json").read_bytes())["files"]
    there = {path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file()}
    return there == {*files, "checksums.json"} and all(
        (hashlib.sha256(data).hexdigest(), len(data)) == (digest, size)
        for name, (digest, size) in files.items()
        for data in [(version / name).read_bytes()]
    )


def in_child(work: Callable[[], object]) -> int:
    """Do something in a forked child; its exit code, negative for a signal."""
    child = os.fork()
    if not child:
        code = 3
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return await_end(child)


def killed_at(event: int, work: Callable[[], object]) -> int:
    """Do something in a forked child that is killed at an event; 0 if it ended before."""

    def work_until() -> None:
        left = event

        def count(name: str, _: object) -> None:
            nonlocal left
            left -= name.startswith(_EVENTS) and name != "os.kill"
            if left <= 0 and name != "os.kill":
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()

    return in_child(work_until)


def publish_trial(folder: Path, event: int) -> str:
    """Kill the publication of a second version; return which versions show."""
    target = folder / "out"

    def publish() -> None:
        el.open(folder / "store").publish(target, tag="v2")

    code = killed_at(event, publish)
    shown = sorted(path.name for path in target.iterdir() if not path.name.startswith("."))
    assert shown in (["v1"], ["v1", "v2"]) and all(version_is_whole(target / name) for name in shown)
    assert shown == ["v1", "v2"] or code == -signal.SIGKILL
    if shown == ["v1"]:
        assert in_child(publish) == 0 and version_is_whole(target / "v2")
        assert version_is_whole(target / "v1")
    assert not [path for path in target.iterdir() if path.name.endswith(".unfinished")]
    shutil.rmtree(target / "v2")
    return f"{'killed' if code else 'ended'} {len(shown)}"


def pull_trial(folder: Path, event: int, where: str | None = None) -> str:
    """Kill a pull; return whether the store is there."""
    target = folder / "got" / "store"

    def pull() -> None:
        el.pull(folder / "out", target, version="v1", where=where)

    def whole() -> None:
        expected = el.open(folder / "out" / "v1")
        if where is not None:
            expected = expected.filter(where)
        store = el.open(target)
        assert store.verify().ok and [each.id for each in store] == [each.id for each in expected]

    code = killed_at(event, pull)
    there = (target / "store.json").exists()
    assert there or code == -signal.SIGKILL
    if not there:
        assert not target.exists() and in_child(pull) == 0
    assert where is not None or version_is_whole(target)
    assert in_child(whole) == 0
    assert [path.name for path in target.parent.iterdir() if not path.name.endswith(".lock")] == ["store"]
    shutil.rmtree(folder / "got")
    return f"{'killed' if code else 'ended'} {int(there)}"


if __name__ == "__main__":
    kind, folder, first, step, count = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    for number in range(count):
        event = first + step * number
        if kind == "publish":
            print(publish_trial(folder, event), flush=True)
        else:
            print(pull_trial(folder, event, "length > 3" if kind == "part" else None), flush=True)
