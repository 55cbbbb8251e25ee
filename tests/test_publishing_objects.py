"""Published versions on object stores: as in a folder, by an upload that commits with its last object."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import episodelake as el
from conformance import ObjectBackend
from episodelake.publishing import building, publishing
from object_fixtures import backend, one_proxy, proxy, spool
from object_server import FaultyProxy, Rule
from real_environments import numbered_store, values_of, write_numbered
from test_publishing import files_of
from waiting import PATIENCE

__all__ = ["backend", "one_proxy", "proxy", "spool"]


def published(backend: ObjectBackend, tag: str) -> dict[str, bytes]:
    """The files of a version in the bucket."""
    return {name: backend.read(name, f"out/{tag}") for name in backend.files(f"out/{tag}")}


def test_a_version_in_a_bucket_is_that_of_a_folder(tmp_path: Path, backend: ObjectBackend) -> None:
    """A bucket has the same files as a folder but for the README, and open, preview and pull read them."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    url, options = backend.at("out"), backend.storage_options
    report = store.publish(url, tag="v1", storage_options=options)
    store.publish(tmp_path / "out", tag="v1")
    mine, theirs = published(backend, "v1"), files_of(tmp_path / "out" / "v1")
    assert {name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)} == {
        "README.md",
        "checksums.json",
    }
    assert report.address == f"{url}@v1" and report.sent_files == report.files - 1
    assert values_of(el.open(f"{url}/v1", storage_options=options)) == [0, 1, 2]
    assert el.preview(report.address, storage_options=options).height == 3
    assert values_of(el.pull(url, tmp_path / "all", storage_options=options)) == [0, 1, 2]
    part = el.pull(report.address, tmp_path / "part", where="length = 3", storage_options=options)
    assert values_of(part) == [1]
    with pytest.raises(el.errors.StoreExistsError, match="has a version 'v1' already"):
        store.publish(url, tag="v1", storage_options=options)
    with pytest.raises(el.errors.StoreExistsError, match="other things"):
        store.publish(url.rpartition("/")[0], tag="v1", storage_options=options)
    assert published(backend, "v1") == mine


def test_a_preview_asks_for_no_steps(tmp_path: Path, backend: ObjectBackend, proxy: FaultyProxy) -> None:
    """A preview and a pull with a condition that no episode fulfils fetch no file with steps."""
    store = numbered_store(tmp_path / "store", [2, 3])
    store.publish(backend.at("out"), tag="v1", storage_options=backend.storage_options)
    proxy.rules()
    assert el.preview(backend.at("out"), storage_options=proxy.storage_options()).height == 2
    el.pull(backend.at("out"), tmp_path / "none", where="length = 9", storage_options=proxy.storage_options())
    asked = [request.path for request in proxy.requests() if request.method == "GET"]
    assert asked and not [path for path in asked if "/steps/0" in path.partition("?")[0]]


def test_a_repeated_upload_sends_what_is_missing(
    tmp_path: Path, backend: ObjectBackend, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload that was cut short goes on, and until then nothing opens; a later version shares segments."""
    monkeypatch.setattr(building, "_SEGMENT_BYTES", 3000)
    monkeypatch.setattr(publishing, "_SHARED_BYTES", 1)
    store = numbered_store(tmp_path / "store", [30, 40, 50, 60], seal_every=1)
    url, options = backend.at("out"), {**proxy.storage_options(), "max_retries": "0"}
    proxy.rules(Rule("answer", "PUT", "checksums.json", status=403))
    with pytest.raises(el.errors.StoreAccessError):
        store.publish(url, tag="v1", storage_options=options)
    with pytest.raises(el.errors.StoreNotFoundError):
        el.open(f"{url}/v1", storage_options=options)
    with pytest.raises(el.errors.StoreNotFoundError, match="Nothing is published"):
        el.pull(url, tmp_path / "got", storage_options=options)
    with pytest.raises(el.errors.StoreExistsError, match="unfinished publication of other contents"):
        store.publish(url, tag="v1", where="length > 30", storage_options=options)
    proxy.rules()
    report = store.publish(url, tag="v1", storage_options=options)
    put = [request.path for request in proxy.requests() if request.method == "PUT"]
    assert not [path for path in put if "/steps/0" in path] and report.sent_files < report.files - 1
    with store.writer() as writer:
        write_numbered(writer, 4, 70)
    proxy.rules()
    report = store.refresh().publish(url, tag="v2", storage_options=options)
    first, second = ({name for name in backend.files(f"out/{tag}")} for tag in ("v1", "v2"))
    shared = {name for name in first & second if name.startswith("steps/0")}
    assert shared and report.sent_files < report.files - len(shared)
    assert values_of(el.pull(url, tmp_path / "got", storage_options=options)) == list(range(5))


@pytest.mark.further
def test_one_of_two_publishers_succeeds(tmp_path: Path, backend: ObjectBackend) -> None:
    """Of two with different episodes one is refused, and the version is that of the other, whole."""
    store = numbered_store(tmp_path / "store", [2, 3, 4])

    def publish(tag: str, where: str) -> str:
        try:
            view = el.open(store.path).filter(where)
            return view.publish(backend.at("out"), tag=tag, storage_options=backend.storage_options).tag
        except el.errors.StoreExistsError:
            return "refused"

    with ThreadPoolExecutor(2) as pool:
        same = list(pool.map(publish, ["v1", "v1"], ["length > 2", "length > 2"]))
        other = list(pool.map(publish, ["v2", "v2"], ["length > 2", "length > 3"]))
    assert set(same) <= {"v1", "refused"} and "v1" in same and sorted(other) == ["refused", "v2"]
    for tag, counts in (("v1", {2}), ("v2", {1, 2})):
        options = backend.storage_options
        pulled = el.pull(backend.at("out"), tmp_path / tag, version=tag, storage_options=options)
        assert len(pulled) in counts and pulled.verify().ok
        assert "store.unfinished" not in backend.files(f"out/{tag}")


KILLED = """
import os, signal, sys
import episodelake as el
from episodelake.store.files.remote import RemotePlace

left = int(sys.argv[3])

def counted(name):
    real = getattr(RemotePlace, name)
    def call(self, *words, **named):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *words, **named)
    setattr(RemotePlace, name, call)

for name in ("write", "copy_from", "remove"):
    counted(name)
options = dict(pair.split("=", 1) for pair in sys.argv[4:])
el.open(sys.argv[1]).publish(sys.argv[2], tag="v1", storage_options=options)
"""


@pytest.mark.further
@pytest.mark.parametrize("event", [3, 9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_upload_shows_nothing(tmp_path: Path, backend: ObjectBackend, event: int) -> None:
    """Wherever an upload is killed there is no version, or the whole one; the next call finishes it."""
    store = numbered_store(tmp_path / "store", [2, 3])
    url, options = backend.at("out"), backend.storage_options
    for number in range(event, 100, 1 if event == 1 else 100):
        words = [sys.executable, "-c", KILLED, str(store.path), url, str(number)]
        words += [f"{key}={value}" for key, value in options.items()]
        killed = subprocess.run(words, timeout=PATIENCE, check=False).returncode != 0
        there = "store.json" in backend.files("out/v1")
        if not there:
            assert killed
            with pytest.raises(el.errors.StoreNotFoundError):
                el.preview(url, storage_options=options)
            store.publish(url, tag="v1", storage_options=options)
        got = tmp_path / f"got-{number}"
        assert values_of(el.pull(f"{url}@v1", got, storage_options=options)) == [0, 1]
        for name in backend.files("out/v1"):
            backend.remove(name, "out/v1")
        if not killed:
            break


@pytest.mark.parametrize("action", ["lose answer", "lose request"])
def test_a_lost_deletion_fails_no_publication(
    tmp_path: Path, backend: ObjectBackend, proxy: FaultyProxy, action: str
) -> None:
    """Deletions are repeated as other requests are: a version that shows was published without an error."""
    store = numbered_store(tmp_path / "store", [2])
    proxy.rules(Rule(action, "POST", "delete", times=2))  # type: ignore[arg-type]
    store.publish(backend.at("out"), tag="v1", storage_options=proxy.storage_options())
    assert len(proxy.touched()) == 2 and "store.unfinished" not in backend.files("out/v1")
    proxy.rules(Rule(action, "POST", "delete", times=2))  # type: ignore[arg-type]
    el.unpublish(backend.at("out"), "v1", storage_options=proxy.storage_options())
    assert len(proxy.touched()) == 2 and backend.files("out/v1") == ["store.unfinished"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("action", ["lose answer", "cut answer", "spoil answer", "lose request"])
def test_a_shaky_connection_gives_the_right_bytes(
    tmp_path: Path, backend: ObjectBackend, proxy: FaultyProxy, action: str
) -> None:
    """A pull over a connection that loses and cuts answers fetches the version, and no wrong byte."""
    store = numbered_store(tmp_path / "store", [2, 3])
    store.publish(backend.at("out"), tag="v1", storage_options=backend.storage_options)
    proxy.rules(Rule(action, "GET", "parquet", times=2))  # type: ignore[arg-type]
    pulled = el.pull(f"{backend.at('out')}@v1", tmp_path / "got", storage_options=proxy.storage_options())
    assert len(proxy.touched()) == 2 and values_of(pulled) == [0, 1]
    for name, data in files_of(tmp_path / "got").items():
        assert backend.read(name, "out/v1") == data
