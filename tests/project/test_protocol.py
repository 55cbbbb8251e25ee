"""Stores that others changed: upgraded tables, read-only file systems, files too large to be read."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableFeatures

import episodelake as el
from conformance import abandon, assert_numbered, fill
from episodelake.store.files.local import LocalPlace
from log_edits import append_actions, read_actions
from real_environments import NUMBERED_SPACES, write_numbered

#: Protocols that a table may have, and whether Episodelake reads and writes it.
PROTOCOLS: list[tuple[dict[str, Any], bool, bool]] = [
    ({"minReaderVersion": 1, "minWriterVersion": 1}, True, True),
    ({"minReaderVersion": 1, "minWriterVersion": 2}, True, True),
    *(({"minReaderVersion": 1, "minWriterVersion": version}, True, False) for version in (3, 4)),
    *(({"minReaderVersion": 2, "minWriterVersion": version}, False, False) for version in (5, 6)),
    ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["changeDataFeed"]}, True, False),
    ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["fromTheFuture"]}, True, False),
    (
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        },
        False,
        False,
    ),
    ({"minReaderVersion": 9, "minWriterVersion": 9}, False, False),
]
#: Edits of metadata whose rules a writer of version 2 must heed.
RULES: dict[str, Any] = {
    "append only": {"delta.appendOnly": "true"},
    "check constraint": {"delta.constraints.short": "length < 9"},
    "invariant": {},
}


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """A store of two segments."""
    return fill(el.create(tmp_path / "store", **NUMBERED_SPACES), range(4), seal_every=2)


@pytest.mark.sample
@pytest.mark.parametrize("table", ["episodes", "steps", "runs"])
@pytest.mark.parametrize(("protocol", "reads", "writes"), PROTOCOLS)
def test_protocols(
    store: el.EpisodeStore, table: str, protocol: dict[str, Any], reads: bool, writes: bool
) -> None:
    """A later reader version is refused, one of writers is read only, and the old ones are written."""
    append_actions(store.path / table, [{"protocol": protocol}])
    if not reads:
        with pytest.raises(el.errors.FormatVersionError):
            el.open(store.path)
    elif writes:
        assert_numbered(fill(el.open(store.path), [4, 5]), range(6))
    else:
        check_refused(el.open(store.path))


def logs(store: el.EpisodeStore) -> dict[str, bytes]:
    """All commits of a store."""
    return {str(path): path.read_bytes() for path in sorted(store.path.glob("*/_delta_log/*.json"))}


def check_refused(store: el.EpisodeStore) -> None:
    """A store is read as ever, and no operation commits anything to any of its tables."""
    before = logs(store)
    assert_numbered(store, range(4))
    assert store.verify().episodes == 4
    labels = pl.DataFrame({"episode_id": [store[0].id], "label": ["x"]})
    operations = (
        store.writer,
        lambda: store.delete("length > 1"),
        lambda: store.compact(order_by="length"),
        lambda: store.annotate(labels),
    )
    for operation in operations:
        with pytest.raises(el.errors.FormatVersionError, match="another program changed it"):
            operation()
    assert logs(store) == before
    assert_numbered(store.refresh(), range(4))


@pytest.mark.parametrize("name", RULES)
def test_rules_of_version_2(store: el.EpisodeStore, name: str) -> None:
    """Rules that even writers of version 2 must heed keep us from writing, and not from reading."""
    commits = sorted((store.path / "episodes" / "_delta_log").glob("*.json"))
    actions = [action for commit in commits for action in read_actions(commit)]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    if name == "invariant":
        schema = json.loads(metadata["schemaString"])
        schema["fields"][0]["metadata"] = {"delta.invariants": '{"expression": {"expression": "1 > 0"}}'}
        metadata["schemaString"] = json.dumps(schema)
    else:
        metadata["configuration"] |= RULES[name]
    append_actions(store.path / "episodes", [{"metaData": metadata}])
    check_refused(el.open(store.path))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("table", ["episodes", "steps", "runs"])
def test_a_commit_of_another_program(store: el.EpisodeStore, table: str, mode: Any) -> None:
    """It is named, with what undoes it; then the store is as before."""
    path = store.path / table
    write_deltalake(path, DeltaTable(path).to_pyarrow_table(), mode=mode)
    message = rf"The commit \S*{table}\S* is not one of .* delta-rs\S* made it \(operation 'WRITE'\).* undo"
    for use in (lambda: el.open(store.path), store.refresh, store.compact):
        with pytest.raises(el.errors.CorruptStoreError, match=message):
            use()
    assert "is not one of Episodelake" in store.verify().faults[0].message
    max((path / "_delta_log").glob("*.json")).unlink()
    assert_numbered(fill(el.open(store.path), [4]), range(5))
    assert el.open(store.path).verify().ok


def test_an_upgrade_beside_a_writer(store: el.EpisodeStore) -> None:
    """A table that is upgraded while a writer lives gets no commit, and the journal keeps the rows."""
    writer = store.writer(run="late")
    write_numbered(writer, 4, 1)
    writer.seal()
    upgraded = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["changeDataFeed"]}
    append_actions(store.path / "episodes", [{"protocol": upgraded}])
    before = [path for path in logs(store) if "/episodes/" in path]
    write_numbered(writer, 5, 2)
    for attempt in (writer.seal, writer.close):
        with pytest.raises(el.errors.FormatVersionError, match="needs a writer of version 7"):
            attempt()
    abandon(writer)
    assert [path for path in logs(store) if "/episodes/" in path] == before
    assert_numbered(el.open(store.path), range(5))
    assert list((store.path / "journal").glob("late*/*.frames"))


def test_dry_runs_write_nothing(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that is mounted read-only a dry run says the same as on any other."""
    expected = (store.delete("length > 2", dry_run=True), store.vacuum(timedelta(0), dry_run=True))
    monkeypatch.setattr(os, "open", read_only(os.open))
    for name in ("mkdir", "unlink", "rename", "replace", "link"):
        monkeypatch.setattr(os, name, read_only(getattr(os, name), os.O_RDWR))
    opened = el.open(store.path)
    assert (opened.delete("length > 2", dry_run=True), opened.vacuum(timedelta(0), dry_run=True)) == expected
    with pytest.raises(el.errors.StoreAccessError, match="Read-only file system"):
        opened.delete("length > 2")


def read_only(function: Callable[..., Any], flags: int = 0) -> Callable[..., Any]:
    """A system call as a read-only file system answers it."""

    def call(*arguments: Any, **named: Any) -> Any:
        wanted = flags or arguments[1]
        if wanted & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(arguments[0]))
        return function(*arguments, **named)

    return call


OVERSIZED = [
    "tags/v1.json",
    "store.json",
    "card.json",
    *(
        f"episodes/_delta_log/{0:019d}{name}"
        for name in ("0.json", "2.json", "9.json", "1.checkpoint.parquet")
    ),
    "steps/_delta_log/_last_checkpoint",
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", OVERSIZED)
def test_oversized_files_are_not_read(store: el.EpisodeStore, name: str) -> None:
    """A file of a terabyte, which would take all memory, is named as damaged by whoever needs it."""
    store.tag("v1")
    path = store.path / name
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(el.errors.CorruptStoreError, match=f"{path.name} has 1,099,511,627,776 bytes"):
        assert el.open(store.path, "v1").card is None
    if name != "store.json":
        assert not store.verify().ok


def test_an_upgraded_table_is_not_called_damaged(store: el.EpisodeStore) -> None:
    """Commits of other programs have no checksums of ours; the features of the table are what matters."""
    table = DeltaTable(str(Path(str(store.path)) / "episodes"))
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(el.errors.FormatVersionError, match="protocol"):
        el.open(store.path)


def test_a_commit_that_is_hidden_for_a_moment_is_no_damage(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where absence is cached a later commit shows first: the version stays until both are there."""
    reader = el.open(store.path)
    before = len(reader)
    for _ in range(2):
        fill(store, [1])
    read = LocalPlace.read
    hidden = f"{reader.version + 1:020d}.json"

    def lacking(place: LocalPlace, *args: Any, **options: Any) -> bytes:
        if place.name == hidden:
            place = place.parent / "absent"
        return read(place, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "read", lacking)
        assert len(reader.refresh()) == before
    assert len(reader.refresh()) == before + 2


def test_a_want_of_memory_is_no_damaged_checkpoint(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pyarrow's error of memory is one of its own tree as well."""
    folder = Path(str(store.path)) / "episodes"
    DeltaTable(str(folder)).create_checkpoint()

    def lacking(*_: Any, **__: Any) -> Any:
        raise pa.ArrowMemoryError("malloc failed")

    monkeypatch.setattr(pq.ParquetFile, "read", lacking)
    with pytest.raises(MemoryError):
        el.open(store.path)
