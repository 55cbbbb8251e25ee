"""Tags: names for versions, which last, and cannot be abused."""

from __future__ import annotations

import json
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import episodelake as el
from effort import some
from episodelake.testing.adapters import case
from maintenance_stores import files_under
from real_environments import numbered_store, values_of
from waiting import PATIENCE

HOSTILE = [
    "../x",
    "a/b",
    "",
    ".",
    "..",
    "/etc/passwd",
    "a\\b",
    "a\x00b",
    "a b",
    "-x",
    ".hidden",
    "ü",
    "x\n",
    "x" * 101,
    "CON/",
    "٣",
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes, sealed one by one; tests work on copies."""
    return numbered_store(tmp_path_factory.mktemp("template") / "store", [2, 3, 4], seal_every=1).path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> el.EpisodeStore:
    """A copy of the three episodes."""
    return el.open(shutil.copytree(template, tmp_path / "store"))


@pytest.mark.parametrize("cases", some(HOSTILE, 6))
def test_hostile_names_are_refused(store: el.EpisodeStore, cases: Any) -> None:
    """No name leads out of the store or confuses a file system; nothing is written for it, nothing read."""
    for name in cases:
        with case(name):
            files = files_under(store.path.parent)
            with pytest.raises(el.errors.InvalidArgumentError):
                store.tag(name)
            assert files_under(store.path.parent) == files
            assert store.tags == {}
            with pytest.raises((el.errors.VersionNotFoundError, el.errors.InvalidArgumentError)):
                el.open(store.path, version=name)
            with pytest.raises((el.errors.VersionNotFoundError, el.errors.InvalidArgumentError)):
                store.untag(name)


def test_two_at_once_with_one_name(store: el.EpisodeStore) -> None:
    """Of several who give one name to different versions, one wins and the others are told."""
    outcomes: list[str] = []

    def tag(version: int) -> None:
        try:
            el.open(store.path).tag("race", version)
            outcomes.append("won")
        except el.errors.StoreExistsError:
            outcomes.append("told")

    threads = [threading.Thread(target=tag, args=(store.version - back,)) for back in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(outcomes) == ["told", "told", "won"]
    assert list(store.tags) == ["race"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": "1"}', '{"version": -4}', '{"version": true}', "[" * 9999]
)
def test_a_damaged_tag_is_named(store: el.EpisodeStore, text: str) -> None:
    """A tag file with anything else in it is a fault that names it, and stops a vacuum before it deletes."""
    store.tag("spoilt", version=store.version - 1)
    store.compact()
    (store.path / "tags" / "spoilt.json").write_text(text, "utf-8")
    files = files_under(store.path)
    with pytest.raises(el.errors.CorruptStoreError, match="spoilt"):
        el.open(store.path, version="spoilt")
    with pytest.raises(el.errors.CorruptStoreError, match="spoilt"):
        store.vacuum(timedelta(0))
    assert files_under(store.path) == files
    assert values_of(el.open(store.path)) == [0, 1, 2]


def test_no_flipped_byte_opens_another_version(store: el.EpisodeStore) -> None:
    """With any byte of a tag changed, it opens its own version or is an error that verify and vacuum see."""
    version = store.version - 1
    store.tag("paper", version)
    store.compact()
    path = store.path / "tags" / "paper.json"
    data, files = path.read_bytes(), files_under(store.path)
    refused = []
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 2]) + data[index + 1 :])
        try:
            assert store.tags == {"paper": version}
        except el.errors.CorruptStoreError as error:
            assert "paper.json" in str(error)
            refused.append(index)
    assert data.index(b'"version": ') + len(b'"version": ') in refused
    assert len(refused) >= len(data) - len(b',\n "crc32": "01234567"\n}')
    for index in (refused[0], data.index(b'"version": ') + len(b'"version": ')):
        path.write_bytes(data[:index] + bytes([data[index] ^ 2]) + data[index + 1 :])
        assert [(fault.kind, fault.file) for fault in store.verify().faults] == [("tag", "tags/paper.json")]
        for dry_run in (True, False):
            with pytest.raises(el.errors.CorruptStoreError, match="paper"):
                store.vacuum(timedelta(0), dry_run=dry_run)
    assert files_under(store.path) == files
    path.write_bytes(data)
    assert values_of(el.open(store.path, version="paper")) == [0, 1]


def test_a_tag_of_another_name_is_refused(store: el.EpisodeStore) -> None:
    """The file of one tag in the place of another is an error, though its own checksum matches."""
    store.tag("old", store.version - 2)
    store.tag("new")
    shutil.copy(store.path / "tags" / "old.json", store.path / "tags" / "new.json")
    with pytest.raises(el.errors.CorruptStoreError, match=r"new\.json"):
        el.open(store.path, version="new")
    assert values_of(el.open(store.path, version="old")) == [0]
    assert not store.verify().ok


def test_tags_of_earlier_versions_open(store: el.EpisodeStore) -> None:
    """A tag without a checksum names its version, as earlier versions of the library wrote it."""
    (store.path / "tags").mkdir()
    text = json.dumps({"version": store.version - 1, "created_at": "2025-01-01T00:00:00+00:00"})
    (store.path / "tags" / "first.json").write_text(text, "utf-8")
    assert values_of(el.open(store.path, version="first")) == [0, 1]
    assert store.verify().ok


def test_a_damaged_tag_can_be_removed(store: el.EpisodeStore) -> None:
    """A damaged tag is in the way of no other, and `untag` removes it."""
    store.tag("good")
    store.tag("spoilt", store.version - 1)
    (store.path / "tags" / "spoilt.json").write_text("{", "utf-8")
    assert el.open(store.path, version="good").version == store.version
    store.untag("spoilt")
    assert store.tags == {"good": store.version}
