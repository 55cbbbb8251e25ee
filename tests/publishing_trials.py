"""Publications, pulls and removals that are killed at any of their steps, and what others see then.

Run as a script: `publishing_trials.py KIND FOLDER FIRST STEP COUNT`. A trial is a forked child that kills
itself with SIGKILL at one of the events that Python reports of it (a file opened, renamed, removed, ...).
On an object store and the Hub (KIND begins with `s3-` or `hub-`) a timer kills it, the more often the finer:
after FIRST, FIRST + STEP, ... thousandths of the time that the work takes. Prints a line for each trial.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import episodelake as el
import episodelake._pulling
import episodelake.publishing.publishing
from conformance import new_url
from fake_hub import Dataset, FakeHub
from object_server import BUCKET, ObjectServer, shared_server
from waiting import await_end

_EVENTS = ("open", "os.", "shutil.", "tempfile.", "fcntl.")


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def is_whole(there: Mapping[str, bytes]) -> bool:
    """Whether the files of a version are those of its list, by nothing but JSON and SHA-256."""
    files = json.loads(there["checksums.json"])["files"]
    return there.keys() == {*files, "checksums.json"} and all(
        [hashlib.sha256(there[name]).hexdigest(), len(there[name])] == file for name, file in files.items()
    )


def version_is_whole(version: Path) -> bool:
    """Whether the files of a version in a folder are those of its list."""
    return is_whole(files_of(version))


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


def unpublish_trial(folder: Path, event: int) -> str:
    """Kill the removal of the second of two versions; return which versions show."""
    target = folder / "out"
    if not (folder / "both").exists():
        assert in_child(lambda: el.open(folder / "store").publish(target, tag="v2")) == 0
        shutil.copytree(target, folder / "both")
    shutil.rmtree(target)
    shutil.copytree(folder / "both", target)
    code = killed_at(event, lambda: el.unpublish(target, "v2"))
    shown = sorted(path.name for path in target.iterdir() if not path.name.startswith("."))
    assert shown in (["v1"], ["v1", "v2"]) and all(version_is_whole(target / name) for name in shown)
    # What a removal that was cut short leaves is taken by the next one, too.
    left = [path.name for path in target.iterdir() if path.name.endswith(".unfinished")]
    assert not left or in_child(lambda: el.unpublish(target, "v2")) == 0
    if shown == ["v1", "v2"]:
        assert code == -signal.SIGKILL and in_child(lambda: el.unpublish(target, "v2")) == 0
    assert [path.name for path in target.iterdir() if not path.name.endswith(".lock")] == ["v1"]
    return f"{'killed' if code else 'ended'} {len(shown)}"


def pull_trial(
    folder: Path,
    kill: Callable[[Callable[[], object]], int],
    where: str | None = None,
    source: str | Path | None = None,
    options: Mapping[str, str] | None = None,
) -> str:
    """Kill a pull; return whether the store is there."""
    target = folder / "got" / "store"

    def pull() -> None:
        el.pull(source or folder / "out", target, version="v1", where=where, storage_options=options)

    def whole() -> None:
        expected: Any = el.open(folder / "store")
        if where is not None:
            expected = expected.filter(where)
        store = el.open(target)
        assert store.verify().ok and [each.id for each in store] == [each.id for each in expected]

    code = kill(pull)
    there = (target / "store.json").exists()
    assert there or code < 0
    if not there:
        assert not target.exists() and in_child(pull) == 0
    assert where is not None or version_is_whole(target)
    assert in_child(whole) == 0
    assert [path.name for path in target.parent.iterdir() if not path.name.endswith(".lock")] == ["store"]
    shutil.rmtree(folder / "got")
    return f"{'killed' if code else 'ended'} {int(there)}"


class Bucket:
    """A target on an object store."""

    def __init__(self, server: ObjectServer) -> None:
        self.server, self.url = server, f"{new_url()}/out"
        self.options: dict[str, str] | None = server.storage_options()
        self._prefix = self.url.removeprefix(f"s3://{BUCKET}/")

    def files(self) -> dict[str, bytes]:
        """All objects."""
        return {name: self.server.read(f"{self._prefix}/{name}") for name in self.server.keys(self._prefix)}

    def versions(self) -> dict[str, dict[str, bytes]]:
        """The files of the versions that a reader sees, by tag."""
        shown: dict[str, dict[str, bytes]] = {}
        for name, data in self.files().items():
            tag, _, below = name.partition("/")
            if below != "store.unfinished":
                shown.setdefault(tag, {})[below] = data
        return {tag: files for tag, files in shown.items() if "store.json" in files}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Go back to what `files` returned."""
        for name in self.server.keys(self._prefix):
            self.server.remove(f"{self._prefix}/{name}")
        for name, data in state.items():
            self.server.write(f"{self._prefix}/{name}", data)


class HubTarget:
    """A dataset of a Hub on loopback."""

    def __init__(self, hub: FakeHub) -> None:
        self.hub, self.url = hub, "hf://lab/numbers"
        self.options: dict[str, str] | None = None

    def files(self) -> Dataset:
        """The whole dataset."""
        return copy.deepcopy(self.hub.datasets["lab/numbers"])

    def versions(self) -> dict[str, dict[str, bytes]]:
        """The files of the versions that a reader sees, by tag; with that of `main`."""
        dataset = self.hub.datasets["lab/numbers"]
        commits = {**dataset.tags, "main": dataset.head}
        shown = {tag: dataset.commits[commit] for tag, commit in commits.items()}
        plain = {
            tag: {name: data for name, data in files.items() if name[0] != "."}
            for tag, files in shown.items()
        }
        # A commit whose tag is still to come is whole, too, and no version.
        assert is_whole(plain.pop("main"))
        return plain

    def restore(self, state: Dataset) -> None:
        """Go back to what `files` returned."""
        self.hub.datasets["lab/numbers"] = copy.deepcopy(state)


def killed_after(seconds: float, work: Callable[[], object]) -> int:
    """Do something in a forked child that the system's timer kills; its exit code."""

    def work_until() -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)  # ends a process that has no handler for it
        work()

    return in_child(work_until)


def remote_trials(target: Any, kind: str, folder: Path, first: int, step: int, count: int) -> None:
    """Kill publications, pulls or removals on an object store or the Hub."""

    def publish(tag: str) -> None:
        el.open(folder / "store").publish(target.url, tag=tag, storage_options=target.options)

    def unpublish() -> None:
        with contextlib.suppress(el.errors.VersionNotFoundError):
            el.unpublish(target.url, "v2", storage_options=target.options)

    def timed(work: Callable[[], object]) -> float:
        began = time.monotonic()
        assert in_child(work) == 0
        return time.monotonic() - began

    timed(lambda: publish("v1"))
    one = target.files()
    needed = timed(lambda: publish("v2"))
    both = target.files()
    if kind == "pull":
        target.restore(one)
        needed = timed(lambda: el.pull(target.url, folder / "all", storage_options=target.options))
    elif kind == "unpublish":
        needed = timed(unpublish)
    for number in range(count):
        seconds = needed * (first + step * number) / 1000
        if kind == "pull":
            kill = functools.partial(killed_after, seconds)
            print(pull_trial(folder, kill, None, target.url, target.options), flush=True)
            continue
        target.restore(one if kind == "publish" else both)
        work = functools.partial(publish, "v2") if kind == "publish" else unpublish
        code = killed_after(seconds, work)
        shown = target.versions()
        assert sorted(shown) in (["v1"], ["v1", "v2"]) and all(map(is_whole, shown.values()))
        done = len(shown) == (2 if kind == "publish" else 1)
        assert done or code == -signal.SIGALRM
        if not done or kind == "unpublish":
            assert in_child(work) == 0
        after = target.versions()
        assert len(after) == (2 if kind == "publish" else 1) and all(map(is_whole, after.values()))
        if kind == "unpublish" and isinstance(target, Bucket):
            assert {name for name in target.files() if name[:3] == "v2/"} <= {"v2/store.unfinished"}
        print(f"{'killed' if code else 'ended'} {len(shown)}", flush=True)


if __name__ == "__main__":
    kind, folder, first, step, count = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    where, _, work = kind.rpartition("-")
    if where == "s3":
        remote_trials(Bucket(shared_server()), work, folder, first, step, count)
    elif where == "hub":
        hub = FakeHub()
        os.environ.update(HF_ENDPOINT=hub.url, HF_TOKEN="hf_lab", HF_HUB_DISABLE_XET="1")
        # Reads these variables as it is imported; the children have it from here.
        importlib.import_module("huggingface_hub")
        remote_trials(HubTarget(hub), work, folder, first, step, count)
    for number in range(0 if where else count):
        event = first + step * number
        if kind in ("publish", "unpublish"):
            print({"publish": publish_trial, "unpublish": unpublish_trial}[kind](folder, event), flush=True)
        else:
            kill = functools.partial(killed_at, event)
            print(pull_trial(folder, kill, "length > 3" if kind == "part" else None), flush=True)
