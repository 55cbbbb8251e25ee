"""Publications and pulls that are killed at any of their steps, and what others see then.

Run as a script: `publishing_trials.py KIND FOLDER FIRST STEP COUNT`. A trial is a forked child that kills
itself with SIGKILL at one of the events that Python reports of it (a file opened, renamed, removed, ...).
On an object store and the Hub (KIND begins with `s3-`, `proxy-` or `hub-`) a timer kills it after FIRST,
FIRST + STEP, ... thousandths of the time that the work takes. With `proxy-` the object store is behind a
proxy that loses, cuts, spoils and stalls some requests. Prints a line for each trial.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import episodelake as el
import episodelake.lakes.pulling
import episodelake.publishing.publishing
from conformance import new_url
from fake_hub import Dataset, FakeHub
from object_server import BUCKET, FaultyProxy, ObjectServer, Rule, shared_server
from waiting import await_end

_EVENTS = ("open", "os.", "shutil.", "tempfile.", "fcntl.")
#: Exit codes of a child: an error of the library, and any other.
_REFUSED, _FAILED = 4, 3
#: As many bytes as a pipe takes before anybody reads.
_PIPE_BYTES = 60_000
_OUTCOMES = {0: "ended", _REFUSED: "refused"}
_ACTIONS = ("lose request", "cut request", "lose answer", "cut answer", "spoil answer", "stall")


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def is_whole(there: Mapping[str, bytes]) -> bool:
    """Whether the files of a version are those of its list, by nothing but JSON and SHA-256."""
    files = json.loads(there["checksums.json"])["files"]
    shown = {name for name in there if name[0] != "." and "/." not in name} - {"store.unfinished"}
    return shown == {*files, "checksums.json"} and all(
        [hashlib.sha256(there[name]).hexdigest(), len(there[name])] == file for name, file in files.items()
    )


def version_is_whole(version: Path) -> bool:
    """Whether the files of a version in a folder are those of its list."""
    return is_whole(files_of(version))


def in_child(work: Callable[[], object]) -> int:
    """Do something in a forked child; its exit code, negative for a signal.

    This process imports what the child imported, so that the next one starts with it.
    """
    known = set(sys.modules)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = _FAILED
        try:
            work()
            os.write(writing, " ".join(sys.modules.keys() - known).encode()[:_PIPE_BYTES])
            code = 0
        except el.errors.EpisodelakeError as error:
            print(error, file=sys.stderr)
            code = _REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    code = await_end(child)
    with open(reading, encoding="utf-8") as names:
        for name in names.read().split():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    return code


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
    # No library that starts threads may run in this process, which forks.
    shown = sorted(path.name for path in target.iterdir() if (path / "store.json").exists())
    assert shown in (["v1"], ["v1", "v2"]) and all(version_is_whole(target / name) for name in shown)
    assert shown == ["v1", "v2"] or code == -signal.SIGKILL
    if shown == ["v1"]:
        assert in_child(publish) == 0 and version_is_whole(target / "v2")
        assert version_is_whole(target / "v1") and not (target / "v2" / "store.unfinished").exists()
    shutil.rmtree(target / "v2")
    return f"{_OUTCOMES.get(code, 'killed')} {len(shown)}"


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
    assert there or code < 0 or code == _REFUSED
    if not there:
        assert where is not None or not target.exists()
        assert in_child(pull) == 0
    assert where is not None or version_is_whole(target)
    assert in_child(whole) == 0
    left = {path.name for path in target.parent.iterdir() if not path.name.endswith(".lock")} - {"store"}
    # Of a part that appeared before it was killed.
    assert not left or (left == {".store.unfinished"} and there and where is not None)
    shutil.rmtree(folder / "got")
    return f"{_OUTCOMES.get(code, 'killed')} {int(there)}"


class Bucket:
    """A target on an object store, which `options` reach; behind a proxy if there is one."""

    def __init__(self, server: ObjectServer, proxy: FaultyProxy | None = None) -> None:
        self.server, self.proxy, self.url = server, proxy, f"{new_url()}/out"
        self._prefix = self.url.removeprefix(f"s3://{BUCKET}/")

    @property
    def options(self) -> dict[str, str] | None:
        """The options with which clients reach it."""
        if self.proxy is None:
            return self.server.storage_options()
        return self.proxy.storage_options(timeout="1s", max_retries="3", retry_timeout="4s")

    def disturb(self, number: int) -> None:
        """Let the proxy spoil some requests of a trial; none with a negative number."""
        if self.proxy is not None:
            source = random.Random(number)
            rules = [
                Rule(source.choice(_ACTIONS), source.choice(("GET", "PUT", ".*")), skip=skip)  # type: ignore[arg-type]
                for skip in source.sample(range(30), 4 if number >= 0 else 0)
            ]
            self.proxy.rules(*rules)

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
        self.hub, self.url, self.options = hub, "hf://lab/numbers", None

    def disturb(self, number: int) -> None:
        """See `Bucket`; the Hub has no proxy."""

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


def remote_trials(
    target: Bucket | HubTarget, kind: str, folder: Path, first: int, step: int, count: int
) -> None:
    """Kill publications or pulls on an object store or the Hub."""

    def publish(tag: str) -> None:
        el.open(folder / "store").publish(target.url, tag=tag, storage_options=target.options)

    def publish_second() -> None:
        publish("v2")

    def pull() -> None:
        el.pull(target.url, folder / "all", storage_options=target.options)

    def seconds_of(work: Callable[[], object]) -> float:
        began = time.monotonic()
        assert in_child(work) == 0
        return time.monotonic() - began

    assert in_child(lambda: publish("v1")) == 0 and in_child(pull) == 0
    shutil.rmtree(folder / "all")
    one: Any = target.files()
    needed = {"publish": seconds_of(publish_second)}
    target.restore(one)
    needed["pull"] = seconds_of(pull)
    for number in range(count):
        kill = functools.partial(killed_after, needed[kind] * (first + step * number) / 1000)

        def disturbed(work: Callable[[], object], number: int = number, kill: Any = kill) -> int:
            target.disturb(number)
            code = kill(work)
            target.disturb(-1)
            return code

        if kind == "pull":
            print(pull_trial(folder, disturbed, None, target.url, target.options), flush=True)
            continue
        target.restore(one)
        code = disturbed(publish_second)
        shown = target.versions()
        assert sorted(shown) in (["v1"], ["v1", "v2"]) and all(map(is_whole, shown.values()))
        done = len(shown) == 2
        assert done or (code in (-signal.SIGALRM, _REFUSED) and in_child(publish_second) == 0)
        after = target.versions()
        assert len(after) == 2 and all(map(is_whole, after.values()))
        print(f"{_OUTCOMES.get(code, 'killed')} {len(shown)}", flush=True)


if __name__ == "__main__":
    kind, folder, first, step, count = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    where, _, work = kind.rpartition("-")
    if where in ("s3", "proxy"):
        server = shared_server()
        proxy = FaultyProxy(server) if where == "proxy" else None
        remote_trials(Bucket(server, proxy), work, folder, first, step, count)
    elif where == "hub":
        hub = FakeHub()
        os.environ.update(HF_ENDPOINT=hub.url, HF_TOKEN="hf_lab", HF_HUB_DISABLE_XET="1")
        # Reads these variables as it is imported; the children have it from here.
        importlib.import_module("huggingface_hub")
        remote_trials(HubTarget(hub), work, folder, first, step, count)
    for number in range(0 if where else count):
        event = first + step * number
        if kind == "publish":
            print(publish_trial(folder, event), flush=True)
        else:
            kill = functools.partial(killed_at, event)
            print(pull_trial(folder, kill, "length > 3" if kind == "part" else None), flush=True)
