"""Published versions that are hostile or damaged, and what is in the way of a publication or a pull."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

import episodelake as el
from episodelake.publishing import building, publishing
from episodelake.store.layout import checked_json
from real_environments import numbered_store, values_of
from test_publishing import files_of


@pytest.mark.sample(2)
@pytest.mark.parametrize("damage", ["changed", "short", "missing", "link"])
def test_a_damaged_file_is_not_taken(tmp_path: Path, damage: str) -> None:
    """A file that differs from its checksum, or is a link, is an error that leaves no folder."""
    numbered_store(tmp_path / "store", [2, 3]).publish(tmp_path / "out", tag="v1")
    (steps,) = (tmp_path / "out" / "v1" / "steps").glob("*.parquet")
    data = bytearray(steps.read_bytes())
    data[len(data) // 2] ^= 1
    steps.unlink()
    if damage == "link":
        (tmp_path / "secret").write_bytes(bytes(data))
        steps.symlink_to(tmp_path / "secret")
    elif damage != "missing":
        steps.write_bytes(bytes(data if damage == "changed" else data[:9]))
    with pytest.raises(el.errors.EpisodelakeError) as caught:
        el.pull(tmp_path / "out", tmp_path / "got")
    assert isinstance(caught.value, el.errors.CorruptStoreError | el.errors.StoreAccessError)
    assert not (tmp_path / "got").exists()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "steps/../../outside",
        "/etc/outside",
        "steps//x",
        "steps\\..\\x",
        "steps/.hidden",
        "journal/x",
        "other.txt",
        "steps/a/b/c",
        "STEPS/x",
        "steps/x\n",
        "Store.json",
    ],
)
def test_hostile_names_write_nothing(tmp_path: Path, name: str) -> None:
    """A list of files with a name that leads elsewhere, or that no version has, is refused as a whole."""
    numbered_store(tmp_path / "store", [2, 3]).publish(tmp_path / "out", tag="v1")
    checksums = tmp_path / "out" / "v1" / "checksums.json"
    content = json.loads(checksums.read_bytes())
    del content["crc32"]
    content["files"][name] = content["files"]["store.json"]
    checksums.write_bytes(checked_json(content))
    (tmp_path / "inner").mkdir()
    before = set(files_of(tmp_path))
    with pytest.raises(el.errors.CorruptStoreError, match="no list of a published version"):
        el.pull(tmp_path / "out", tmp_path / "inner" / "got")
    assert set(files_of(tmp_path)) == before


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "files",
    [
        {},
        [],
        {"store.json": ["0" * 64]},
        {"store.json": ["x", 3]},
        {"store.json": ["0" * 64, -1]},
        {"store.json": ["0" * 64, True]},
        {"store.json": {"sha256": 1}},
    ],
)
def test_impossible_lists_are_refused(tmp_path: Path, files: Any) -> None:
    """A list of files that says nothing sensible is a damaged version."""
    numbered_store(tmp_path / "store", [2]).publish(tmp_path / "out", tag="v1")
    checksums = tmp_path / "out" / "v1" / "checksums.json"
    checksums.write_bytes(
        checked_json({"published": 1, "tag": "v1", "episodes": 1, "steps": 2, "files": files})
    )
    with pytest.raises(el.errors.CorruptStoreError):
        el.pull(tmp_path / "out", tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """Links where publish and pull work are refused, and what is behind them stays."""
    store = numbered_store(tmp_path / "store", [2])
    store.publish(tmp_path / "out", tag="v1")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("mine", "utf-8")
    (tmp_path / "out" / ".v2.unfinished").symlink_to(tmp_path / "mine")
    with pytest.raises(el.errors.StoreExistsError, match="is a link"):
        store.publish(tmp_path / "out", tag="v2")
    (tmp_path / ".got.unfinished").symlink_to(tmp_path / "mine")
    with pytest.raises(el.errors.StoreExistsError, match="unfinished"):
        el.pull(tmp_path / "out", tmp_path / "got", version="v1")
    assert files_of(tmp_path / "mine") == {"kept": b"mine"}


@pytest.mark.parametrize("work", ["publish", "part"])
def test_folders_of_others_are_not_deleted(tmp_path: Path, work: str) -> None:
    """A folder with the name of a working folder is replaced only if its files are those of a version."""
    store = numbered_store(tmp_path / "store", [2, 3])
    store.publish(tmp_path / "out", tag="v1")
    folder = tmp_path / (".got.chosen" if work == "part" else "out/.v2.unfinished")
    folder.mkdir()
    (folder / "steps").mkdir()

    def call() -> None:
        if work == "part":
            el.pull(tmp_path / "out", tmp_path / "got", version="v1", where="length > 2")
        else:
            store.publish(tmp_path / "out", tag="v2")

    (folder / "thesis.tex").write_text("mine", "utf-8")
    with pytest.raises(el.errors.StoreExistsError, match=r"holds other things: thesis\.tex"):
        call()
    assert files_of(folder) == {"thesis.tex": b"mine"}
    (folder / "thesis.tex").unlink()
    call()
    assert not folder.exists()


def test_an_empty_folder_stays_when_a_publication_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that was there before, with permissions of its own, is not removed; a new one is."""

    def fail(*words: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(building, "merge", fail)
    store = numbered_store(tmp_path / "store", [2])
    (tmp_path / "group").mkdir()
    for target in ("group", "new"):
        with pytest.raises(OSError, match="No space"):
            store.publish(tmp_path / target, tag="v1")
    assert list((tmp_path / "group").iterdir()) == [] and not (tmp_path / "new").exists()


def test_a_damaged_version_does_not_stop_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that an earlier version has lost are not shared; errors of the disk are not taken for a loss."""
    monkeypatch.setattr(publishing, "_SHARED_BYTES", 1)
    store = numbered_store(tmp_path / "store", [2, 3])
    out = tmp_path / "out"
    store.publish(out, tag="v1")
    for path in (out / "v1" / "steps").glob("*.parquet"):
        path.unlink()
    store.publish(out, tag="v2")
    assert values_of(el.pull(out, tmp_path / "got", version="v2")) == [0, 1]
    assert not os.path.samefile(out / "v1" / "store.json", out / "v2" / "store.json")

    def fail(*words: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(publishing, "digest_of", fail)
    with pytest.raises(el.errors.StoreUnavailableError, match="share a file with an earlier version"):
        store.publish(out, tag="v3")
    assert not (out / "v3").exists()


def test_pull_ignores_what_lies_beside_versions(tmp_path: Path) -> None:
    """A licence or a link beside the versions does not stop a pull; publish refuses them by name."""
    store = numbered_store(tmp_path / "store", [2, 3])
    out = tmp_path / "out"
    store.publish(out, tag="v1")
    (out / "LICENSE").write_text("MIT", "utf-8")
    (out / "latest").symlink_to("v1")
    assert values_of(el.pull(out, tmp_path / "newest")) == [0, 1]
    assert values_of(el.pull(f"{out}@v1", tmp_path / "tagged")) == [0, 1]
    with pytest.raises(el.errors.StoreExistsError, match="versions: LICENSE, latest"):
        store.publish(out, tag="v2")
    with pytest.raises(el.errors.VersionNotFoundError, match=r"there are v1\."):
        el.preview(out, version="latest")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("card", "message"),
    [
        (7, "must be a mapping"),
        ("title", "must be a mapping"),
        ({"x": {1, 2}}, "not plain JSON"),
        ({"x": b"a"}, "not plain JSON"),
        ({"x": float("nan")}, "not plain JSON"),
    ],
)
def test_cards_are_checked(tmp_path: Path, card: Any, message: str) -> None:
    """A card that is no mapping of plain JSON is an error of our tree, and nothing is written."""
    store = numbered_store(tmp_path / "store", [2])
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        store.publish(tmp_path / "out", tag="v1", card=card)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error for a file that a version lacks names the version and the file."""
    numbered_store(tmp_path / "store", [2]).publish(tmp_path / "out", tag="v1")
    (steps,) = (tmp_path / "out" / "v1" / "steps").glob("*.parquet")
    steps.unlink()
    with pytest.raises(el.errors.StoreAccessError, match=rf"fetch steps/{steps.name} of {tmp_path}/out/v1"):
        el.pull(tmp_path / "out", tmp_path / "got")


def test_two_tags_are_refused(tmp_path: Path) -> None:
    """A tag in the address and another one as `version` contradict each other."""
    numbered_store(tmp_path / "store", [2]).publish(tmp_path / "out", tag="v1")
    assert el.preview(f"{tmp_path}/out@v1", version="v1").height == 1
    with pytest.raises(el.errors.InvalidArgumentError, match="expected one tag"):
        el.pull(f"{tmp_path}/out@v1", tmp_path / "got", version="v2")


def test_temporary_folders_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for temporary files is an error of our tree, and one that cannot be deleted is no error."""
    store = numbered_store(tmp_path / "store", [2])
    store.publish(tmp_path / "out", tag="v1")

    def fail(*words: object, **named: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        patch.setattr(os, "rmdir", fail)
        assert el.preview(tmp_path / "out").height == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    for call in (
        lambda: el.preview(tmp_path / "out"),
        lambda: store.publish(tmp_path / "out", tag="v2", dry_run=True),
    ):
        with pytest.raises(el.errors.StoreAccessError, match="make a temporary folder"):
            call()
