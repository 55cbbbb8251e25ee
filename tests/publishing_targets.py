"""Places to publish to, for contracts that hold at each: a folder, a bucket and a dataset of a Hub."""

from __future__ import annotations

import errno
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import ObjectBackend
from episodelake.store.files import touching
from episodelake.store.files.local import LocalPlace
from episodelake.store.layout import checked_json
from fake_hub import FakeHub
from object_server import FaultyProxy, Rule, shared_server


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Target(ABC):
    """A place to publish to.

    Attributes:
        address, options: what calls take.
    """

    address: str
    options: dict[str, str] | None = None

    @abstractmethod
    def files(self, tag: str) -> dict[str, bytes]:
        """The files of a version."""

    @abstractmethod
    def change(self, tag: str, name: str, data: bytes | None) -> None:
        """Replace a file of a version, or remove it."""

    @abstractmethod
    def put_beside(self) -> None:
        """Put a file beside the versions, which is none."""

    @abstractmethod
    def fail(self, kind: str) -> None:
        """Let calls fail: to "read" files with steps, or to "write" the list of files; "no" to work again."""

    def relist(self, tag: str, changed: dict[str, Any]) -> None:
        """Change what the list of a version says about it."""
        content = json.loads(self.files(tag)["checksums.json"])
        del content["crc32"]
        self.change(tag, "checksums.json", checked_json({**content, **changed}))

    def steps(self, tag: str) -> list[str]:
        """The names of a version's files of steps."""
        return [name for name in self.files(tag) if name.startswith("steps/") and name.endswith("parquet")]


class Folder(Target):
    """A folder of this machine."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path, self.address, self._patch = path, str(path), monkeypatch
        self._real = LocalPlace.write, LocalPlace.chunks

    def files(self, tag: str) -> dict[str, bytes]:
        """See `Target`."""
        return files_of(self._path / tag)

    def change(self, tag: str, name: str, data: bytes | None) -> None:
        """See `Target`."""
        path = self._path / tag / name
        path.unlink()
        if data is not None:
            path.write_bytes(data)

    def put_beside(self) -> None:
        """See `Target`."""
        (self._path / "LICENSE").write_text("MIT", "utf-8")

    def fail(self, kind: str) -> None:
        """See `Target`."""
        write, chunks = self._real

        @touching("write")
        def failing(place: LocalPlace, data: Any, **options: Any) -> None:
            if kind == "write" and str(place).startswith(self.address) and place.name == "checksums.json":
                raise OSError(errno.EIO, "Input/output error")
            write(place, data, **options)

        @touching("read")
        def reading(place: LocalPlace) -> Iterator[bytes]:
            if kind == "read" and str(place).startswith(self.address) and place.parent.name == "steps":
                raise OSError(errno.EIO, "Input/output error")
            return chunks(place)

        self._patch.setattr(LocalPlace, "write", failing)
        self._patch.setattr(LocalPlace, "chunks", reading)


class Bucket(Target):
    """A prefix of an object store, behind a proxy."""

    def __init__(self, proxy: FaultyProxy) -> None:
        self.backend, self.proxy = ObjectBackend(shared_server()), proxy
        self.address = self.backend.at("out")
        self.options = {**proxy.storage_options(), "max_retries": "0"}

    def files(self, tag: str) -> dict[str, bytes]:
        """See `Target`."""
        return {name: self.backend.read(name, f"out/{tag}") for name in self.backend.files(f"out/{tag}")}

    def change(self, tag: str, name: str, data: bytes | None) -> None:
        """See `Target`."""
        self.backend.remove(name, f"out/{tag}")
        if data is not None:
            self.backend.write(name, data, f"out/{tag}")

    def put_beside(self) -> None:
        """See `Target`."""
        self.backend.write("LICENSE", b"MIT", "out")

    def fail(self, kind: str) -> None:
        """See `Target`."""
        rules = {
            "read": [Rule("answer", "GET", "steps/[^_]*parquet", times=None, status=503)],
            "write": [Rule("answer", "PUT", "checksums.json", times=None, status=503)],
        }
        self.proxy.rules(*rules.get(kind, []))


class Hub(Target):
    """A dataset of a Hub on loopback."""

    def __init__(self, hub: FakeHub) -> None:
        self.hub, self.address = hub, "hf://lab/numbers"

    def files(self, tag: str) -> dict[str, bytes]:
        """See `Target`."""
        dataset = self.hub.datasets["lab/numbers"]
        files = dataset.commits[dataset.tags[tag]]
        return {name: data for name, data in files.items() if not name.startswith(".")}

    def change(self, tag: str, name: str, data: bytes | None) -> None:
        """See `Target`."""
        dataset = self.hub.datasets["lab/numbers"]
        del dataset.commits[dataset.tags[tag]][name]
        if data is not None:
            dataset.commits[dataset.tags[tag]][name] = data

    def put_beside(self) -> None:
        """See `Target`."""
        dataset = self.hub.datasets["lab/numbers"]
        dataset.add({**dataset.commits[dataset.head], "LICENSE": b"MIT"})

    def fail(self, kind: str) -> None:
        """See `Target`."""
        part = {"read": "/steps/", "write": "/commit/"}.get(kind)
        self.hub.before = lambda method, path: 503 if part and part in path and "_delta" not in path else None


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """An empty Hub, which the client of this process takes for the real one."""
    pytest.importorskip("huggingface_hub.constants")
    constants: Any = importlib.import_module("huggingface_hub.constants")
    server = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_lab")
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield server
    server.close()


@pytest.fixture(params=["folder", "bucket", "hub"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Each kind of place in turn, empty."""
    if request.param == "folder":
        return Folder(tmp_path / "out", monkeypatch)
    if request.param == "bucket":
        return Bucket(request.getfixturevalue("proxy"))
    return Hub(request.getfixturevalue("hub"))
