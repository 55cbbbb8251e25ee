"""Fixtures of tests on object stores: an own prefix and spool folder, and a proxy that fails as told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import ObjectBackend
from object_server import FaultyProxy, shared_server


@pytest.fixture(autouse=True)
def spool(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spool folder of the test's own."""
    folder = tmp_path_factory.mktemp("spool")
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(folder))
    return folder


@pytest.fixture
def backend() -> ObjectBackend:
    """A prefix that no other test uses, reached directly."""
    return ObjectBackend(shared_server())


@pytest.fixture(scope="module")
def one_proxy() -> Iterator[FaultyProxy]:
    """A proxy in front of the server."""
    proxy = FaultyProxy(shared_server())
    yield proxy
    proxy.close()


@pytest.fixture
def proxy(one_proxy: FaultyProxy) -> FaultyProxy:
    """A proxy without rules."""
    one_proxy.rules()
    return one_proxy
