"""An operation that is done reports success, with a warning of what went wrong afterwards."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import episodelake as el
import visible_steps
from faults.shim import build, compiler, run_with

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The library that makes calls of the system fail."""
    if compiler() is None:
        pytest.skip("no C compiler")
    yield build(tmp_path_factory.mktemp("shim"))


@pytest.mark.slow
@pytest.mark.parametrize("name", visible_steps.OPERATIONS)
def test_an_operation_raises_and_shows_nothing_or_is_done(library: Path, tmp_path: Path, name: str) -> None:
    """Whichever call fails: what raised shows nothing and may be called again; what returned is done."""
    assert run_with(library, TESTS / "visible_steps.py", tmp_path, 24, name) == []


@pytest.mark.parametrize("name", ["create", "card", "tag", "publish", "lake.rename", "label"])
def test_what_is_visible_and_not_durable_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Where the last sync fails the change is there, and a warning at the caller's line names the danger."""
    visible_steps.make_template(tmp_path / "template")
    operation, sync, calls = visible_steps.OPERATIONS[name], os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(os.fstat(descriptor)))
    operation.call(shutil.copytree(tmp_path / "template", tmp_path / "counted"))
    last = len(calls)

    def failing(descriptor: int) -> None:
        calls.append(None)
        if len(calls) == last:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    calls.clear()
    monkeypatch.setattr(os, "fsync", failing)
    copy = shutil.copytree(tmp_path / "template", tmp_path / "struck")
    with pytest.warns(RuntimeWarning, match="may be lost if this machine crashes") as warned:
        operation.call(copy)
    assert operation.done(copy)
    assert [each.filename for each in warned] == [visible_steps.__file__]


def test_a_segment_is_acknowledged_when_its_commit_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer repeats a commit whose name could not be synced, and keeps the journal until then."""
    store = visible_steps.record(tmp_path / "store", range(1))
    sync, failing = os.fsync, [True]

    def fsync(descriptor: int) -> None:
        if failing[0] and os.readlink(f"/proc/self/fd/{descriptor}").endswith("episodes/_delta_log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    writer = store.writer(seal_seconds=1e6)
    visible_steps.write(writer, range(1, 2))
    writer.flush()
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(el.errors.StoreUnavailableError):
        writer.seal()
    assert len(store.refresh()) == 2 and list((tmp_path / "store/journal").glob("*/*.frames"))
    failing[0] = False
    writer.close()
    assert len(store.refresh()) == 2 and not list((tmp_path / "store/journal").glob("*/"))


def test_vacuum_waits_until_the_newest_version_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the logs cannot be synced, a crash may bring back a version that needs the files: all stay."""
    store = visible_steps.record(tmp_path / "store", range(2))
    store.delete("seed = 0")
    files = {path for path in (tmp_path / "store").rglob("*.parquet")}

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("_delta_log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(el.errors.StoreUnavailableError):
            store.vacuum(timedelta(0))
    assert files == {path for path in (tmp_path / "store").rglob("*.parquet")}
    assert store.vacuum(timedelta(0)).files
