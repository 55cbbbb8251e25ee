"""Which versions there are, where those of a store are, and how one is taken back."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import episodelake as el
from conformance import ObjectBackend
from episodelake.publishing import published as module
from episodelake.publishing import publishing
from episodelake.store.layout import checked_json
from episodelake.terminal.app import app
from fake_hub import FakeHub
from object_fixtures import backend, one_proxy, proxy, spool
from object_server import FaultyProxy, Rule
from real_environments import numbered_store, values_of, write_numbered
from test_publishing import files_of
from test_publishing_hub import ADDRESS, hub

__all__ = ["backend", "hub", "one_proxy", "proxy", "spool"]


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """A store of three numbered episodes."""
    return numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)


def relisted(version: Path, **changed: object) -> None:
    """Change what the list of a version says about it."""
    content = json.loads((version / "checksums.json").read_bytes())
    del content["crc32"]
    (version / "checksums.json").write_bytes(checked_json({**content, **changed}))


def test_a_store_and_a_target_list_versions(tmp_path: Path, store: el.EpisodeStore) -> None:
    """Both show the version and its origin; a store that grew, moved, or was copied shows its own."""
    before = datetime.now(UTC)
    store.publish(tmp_path / "out", tag="v1")
    with store.writer() as writer:
        write_numbered(writer, 3, 5)
    store.refresh().filter("length > 2").publish(tmp_path / "out", tag="v2")
    numbered_store(tmp_path / "other", [9]).publish(tmp_path / "out", tag="theirs")
    store.publish(tmp_path / "more", tag="v1")
    at = el.published(tmp_path / "out")
    assert at["tag"].to_list() == ["v1", "v2", "theirs"] and at["error"].null_count() == 3
    assert at["episodes"].to_list() == [3, 3, 1] and at["steps"].to_list() == [9, 12, 9]
    assert at["published"].is_sorted() and at["published"][0].replace(microsecond=0) >= before.replace(
        microsecond=0
    )
    assert at["bytes"][0] == sum(
        len(data) for name, data in files_of(tmp_path / "out" / "v1").items() if name != "checksums.json"
    )
    assert values_of(el.pull(at["address"][1], tmp_path / "got")) == [1, 2, 3]
    mine = store.published()
    expected = [f"{tmp_path}/out@v1", f"{tmp_path}/out@v2", f"{tmp_path}/more@v1"]
    assert mine["address"].to_list() == expected
    assert mine["store_version"].is_sorted() and mine["store_version"][0] < mine["store_version"][1]
    assert store.verify().ok and store.copy(tmp_path / "copy").published().height == 0
    store.path.rename(tmp_path / "moved")
    assert el.open(tmp_path / "moved").published().equals(mine)
    shutil.move(tmp_path / "out", tmp_path / "away")
    assert el.open(tmp_path / "moved").published()["address"].to_list() == expected[2:]
    assert el.published(tmp_path / "away")["store_id"].to_list() == at["store_id"].to_list()
    assert el.published(tmp_path / "nowhere").schema == at.schema


def test_the_newest_is_the_one_published_last(tmp_path: Path, store: el.EpisodeStore) -> None:
    """Neither the dates of files nor a clock that goes back change which version is the newest."""
    store.publish(tmp_path / "out", tag="z")
    relisted(tmp_path / "out" / "z", moment=4_000_000_000_000)
    store.filter("length = 2").publish(tmp_path / "out", tag="a")
    os.utime(tmp_path / "out" / "a" / "store.json", (0, 0))
    shutil.copytree(tmp_path / "out", tmp_path / "copied", copy_function=shutil.copyfile)
    for place in ("out", "copied"):
        assert el.published(tmp_path / place)["tag"].to_list() == ["z", "a"]
        assert el.preview(tmp_path / place)["length"].to_list() == [2]
    # Versions of an early release have no moment.
    for tag, date in (("a", 7), ("z", 9)):
        relisted(tmp_path / "out" / tag, moment=None, origin=None)
        os.utime(tmp_path / "out" / tag / "store.json", (date, date))
    old = el.published(tmp_path / "out")
    assert old["tag"].to_list() == ["a", "z"] and old["store_id"].null_count() == 2
    assert len(el.pull(tmp_path / "out", tmp_path / "got")) == 3


@pytest.mark.parametrize("changed", [{"moment": -1}, {"moment": 2**60}, {"origin": [7, 7]}, {"origin": 3}])
def test_impossible_lists_are_rows_with_errors(
    tmp_path: Path, store: el.EpisodeStore, changed: dict[str, object]
) -> None:
    """A damaged or hostile list is a row with its error, and pulling that version raises."""
    store.publish(tmp_path / "out", tag="v1")
    relisted(tmp_path / "out" / "v1", **changed)
    frame = el.published(tmp_path / "out")
    assert frame["tag"].to_list() == ["v1"] and "is damaged" in frame["error"][0]
    with pytest.raises(el.errors.CorruptStoreError, match="no list of a published version"):
        el.pull(tmp_path / "out", tmp_path / "got")


def test_a_version_is_taken_back_from_a_folder(
    tmp_path: Path, store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It disappears whole, others stay, its tag is free, and an interrupted call is continued."""
    for tag in ("v1", "v2"):
        store.publish(tmp_path / "out", tag=tag)
    first = files_of(tmp_path / "out" / "v1")
    el.unpublish(tmp_path / "out", "v2")
    assert files_of(tmp_path / "out") == {f"v1/{name}": data for name, data in first.items()}
    with pytest.raises(el.errors.VersionNotFoundError, match="there are v1"):
        el.unpublish(tmp_path / "out", "v2")
    store.filter("length = 2").publish(tmp_path / "out", tag="v2")
    assert values_of(el.pull(tmp_path / "out", tmp_path / "got")) == [0]
    monkeypatch.setattr(module, "LocalPlace", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        el.unpublish(tmp_path / "out", "v2")
    monkeypatch.undo()
    assert el.published(tmp_path / "out")["tag"].to_list() == ["v1"]
    el.unpublish(tmp_path / "out", "v2")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["v1"]
    assert len(el.open(tmp_path / "out" / "v1")) == 3


def test_what_cannot_be_taken_back_stays(tmp_path: Path, store: el.EpisodeStore) -> None:
    """A store, other files, a wrong tag and a place without versions are refused, and nothing changes."""
    store.publish(tmp_path / "out", tag="v1")
    (tmp_path / "out" / "v1" / "notes.txt").write_text("mine", "utf-8")
    before = files_of(tmp_path)
    for target, tag, error, message in (
        ("out", "v1", el.errors.StoreExistsError, "holds other things: notes.txt"),
        ("out", "../v1", el.errors.InvalidArgumentError, "cannot be a tag"),
        ("out/v1", "v1", el.errors.InvalidArgumentError, "give the folder above"),
        ("store", "v1", el.errors.InvalidArgumentError, "is a store"),
        ("out", "v9", el.errors.VersionNotFoundError, "there are v1"),
        ("none", "v1", el.errors.StoreNotFoundError, "Nothing is published"),
    ):
        with pytest.raises(error, match=message):
            el.unpublish(tmp_path / target, tag)
    assert files_of(tmp_path) == before and not (tmp_path / "none").exists()
    with pytest.raises(el.errors.StoreExistsError, match="is a store"):
        el.published(tmp_path / "store")


def test_a_store_that_cannot_be_written_is_published(
    tmp_path: Path, store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without room for the address of the target warns; a damaged address is a row with its error."""
    (tmp_path / "store" / "published").write_text("no folder", "utf-8")
    with pytest.warns(RuntimeWarning, match=r"will not list .*out"):
        store.publish(tmp_path / "out", tag="v1")
    assert el.published(tmp_path / "out").height == 1
    (tmp_path / "store" / "published").unlink()
    store.publish(tmp_path / "out", tag="v2")
    el.open(tmp_path / "out" / "v1").publish(tmp_path / "again", tag="v1")
    assert not (tmp_path / "out" / "v1" / "published").exists()
    (note,) = (tmp_path / "store" / "published").iterdir()
    assert store.published()["tag"].to_list() == ["v1", "v2"]
    note.write_bytes(note.read_bytes().replace(b"out", b"own"))
    damaged = store.published()
    assert damaged.height == 1 and str(note) in damaged["error"][0]


def test_a_version_is_taken_back_from_a_bucket(
    tmp_path: Path, backend: ObjectBackend, proxy: FaultyProxy, store: el.EpisodeStore
) -> None:
    """It disappears with its first deletion, the next call deletes the rest, and its tag stays taken."""
    url, options = backend.at("out"), {**proxy.storage_options(), "max_retries": "0"}
    for tag in ("v1", "v2"):
        store.publish(url, tag=tag, storage_options=options)
    assert store.published(storage_options=options)["address"].to_list() == [f"{url}@v1", f"{url}@v2"]
    unreachable = store.published(storage_options={**options, "aws_endpoint_url": "http://127.0.0.1:9"})
    assert unreachable["address"].to_list() == [url] and unreachable["error"].null_count() == 0
    # All but the deletion of `store.json`.
    proxy.rules(Rule("answer", "DELETE|POST", "parquet|delete", skip=1, times=None, status=403))
    with pytest.raises(el.errors.StoreAccessError):
        el.unpublish(url, "v2", storage_options=options)
    assert len(backend.files("out/v2")) > 3
    assert el.published(url, storage_options=options)["tag"].to_list() == ["v1"]
    assert values_of(el.pull(url, tmp_path / "got", storage_options=options)) == [0, 1, 2]
    proxy.rules()
    el.unpublish(url, "v2", storage_options=options)
    assert list(backend.files("out/v2")) == ["store.unfinished"]
    with pytest.raises(el.errors.StoreExistsError, match="taken back"):
        store.publish(url, tag="v2", storage_options=options)
    el.unpublish(url, "v2", storage_options=options)
    store.publish(url, tag="v3", storage_options=options)
    assert el.published(url, storage_options=options)["tag"].to_list() == ["v1", "v3"]


def test_a_publication_does_not_bring_back_a_version(
    tmp_path: Path, backend: ObjectBackend, proxy: FaultyProxy, store: el.EpisodeStore
) -> None:
    """A publication that goes on while its version is taken back shows nothing."""
    url, options = backend.at("out"), backend.storage_options
    proxy.rules(Rule("answer", "PUT", "checksums.json", status=403))
    slow = {**proxy.storage_options(), "max_retries": "0"}
    with pytest.raises(el.errors.StoreAccessError):
        store.publish(url, tag="v1", storage_options=slow)
    proxy.rules()

    def meanwhile(*words: Any) -> None:
        patch.undo()
        store.publish(url, tag="v1", storage_options=options)
        el.unpublish(url, "v1", storage_options=options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "note_target", meanwhile)
        with pytest.raises(el.errors.StoreExistsError, match="taken back"):
            store.publish(url, tag="v1", storage_options=options)
    assert el.published(url, storage_options=options).height == 0
    with pytest.raises(el.errors.StoreNotFoundError):
        el.open(f"{url}/v1", storage_options=options)


def test_a_version_is_taken_back_from_the_hub(tmp_path: Path, hub: FakeHub, store: el.EpisodeStore) -> None:
    """The tag goes, and the newest commit is the version before it; without one, a commit without files."""
    for tag, least in (("v1", 1), ("v2", 2), ("v3", 3)):
        store.filter(f"length > {least}").publish(ADDRESS, tag=tag)
    dataset = hub.datasets["lab/numbers"]
    dataset.tags["other"] = next(iter(dataset.commits))
    assert store.published()["address"].to_list() == [f"{ADDRESS}@v{number}" for number in (1, 2, 3)]
    old = dataset.tags["v1"]
    el.unpublish(ADDRESS, "v1")
    assert el.published(ADDRESS)["episodes"].to_list() == [2, 1] and len(el.preview(ADDRESS)) == 1
    second = dataset.commits[dataset.tags["v2"]]
    el.unpublish(ADDRESS, "v3")
    assert dataset.commits[dataset.head] == second and list(dataset.tags) == ["v2", "other"]
    assert values_of(el.pull(ADDRESS, tmp_path / "second")) == [1, 2]
    with pytest.raises(el.errors.VersionNotFoundError, match="there are v2"):
        el.unpublish(ADDRESS, "v3")
    el.unpublish(ADDRESS, "v2")
    assert list(dataset.commits[dataset.head]) == [".gitattributes"]
    assert el.published(ADDRESS).height == 0 and old in dataset.commits
    with pytest.raises(el.errors.StoreNotFoundError):
        el.pull(ADDRESS, tmp_path / "none")
    store.publish(ADDRESS, tag="v1")
    assert values_of(el.pull(ADDRESS, tmp_path / "again")) == [0, 1, 2]
    del hub.datasets["lab/numbers"]
    (error,) = store.published()["error"]
    assert "there is no such dataset" in error


def test_a_version_of_somebody_else_stays_the_newest(hub: FakeHub, store: el.EpisodeStore) -> None:
    """A version that is published while another is taken back stays the newest commit."""
    for tag in ("v1", "v2"):
        store.publish(ADDRESS, tag=tag, card={"title": tag})
    rival = [False]

    def before(method: str, path: str) -> None:
        if "/commit/" in path and not rival[0]:
            rival[0] = True
            store.filter("length = 2").publish(ADDRESS, tag="v3")

    hub.before = before
    el.unpublish(ADDRESS, "v2")
    assert el.published(ADDRESS)["tag"].to_list() == ["v1", "v3"] and len(el.preview(ADDRESS)) == 1


@pytest.mark.further
@pytest.mark.parametrize("what", ["/commit/", "/tag/"])
@pytest.mark.parametrize("status", [403, -403])
def test_an_interrupted_removal_is_continued(
    tmp_path: Path, hub: FakeHub, store: el.EpisodeStore, what: str, status: int
) -> None:
    """Whatever request fails, done or not, the tag shows the version or none; the next call finishes."""
    store.filter("length = 2").publish(ADDRESS, tag="v1")
    store.publish(ADDRESS, tag="v2")
    hub.before = lambda method, path: status if what in path else None
    with pytest.raises(el.errors.StoreAccessError):
        el.unpublish(ADDRESS, "v2")
    hub.before = lambda method, path: None
    if "v2" in el.published(ADDRESS)["tag"].to_list():
        assert values_of(el.pull(ADDRESS, tmp_path / "v2", version="v2")) == [0, 1, 2]
        el.unpublish(ADDRESS, "v2")
    assert el.published(ADDRESS)["tag"].to_list() == ["v1"]
    assert values_of(el.pull(ADDRESS, tmp_path / "v1")) == [0]


def test_options_of_object_stores_are_none_of_the_hub(
    tmp_path: Path, hub: FakeHub, store: el.EpisodeStore
) -> None:
    """`storage_options` with an address of the Hub is an error, in every call that takes one."""
    options = {"aws_region": "x"}
    for call in (
        lambda: store.publish(ADDRESS, tag="v1", storage_options=options),
        lambda: el.open(ADDRESS, storage_options=options),
        lambda: el.pull(ADDRESS, tmp_path / "got", storage_options=options),
        lambda: el.preview(ADDRESS, storage_options=options),
        lambda: el.published(ADDRESS, storage_options=options),
        lambda: el.unpublish(ADDRESS, "v1", storage_options=options),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match=r"storage_options= is for object stores"):
            call()
    assert not hub.requests


def test_the_command_line_lists_and_takes_back(tmp_path: Path, store: el.EpisodeStore) -> None:
    """`published` lists a target and a store alike, and `unpublish` takes a version back."""
    out = str(tmp_path / "out")
    for tag in ("v1", "v2"):
        store.publish(out, tag=tag)

    def run(*words: str) -> pl.DataFrame:
        result = CliRunner().invoke(app, [*words, "--json"])
        assert result.exit_code == 0, result.stderr
        rows = json.loads(result.stdout)
        return pl.DataFrame(rows if isinstance(rows, list) else [rows])

    assert run("published", out)["tag"].to_list() == ["v1", "v2"]
    assert run("published", str(store.path))["address"].to_list() == [f"{out}@v1", f"{out}@v2"]
    assert CliRunner().invoke(app, ["unpublish", out, "--tag", "v1"]).exit_code == 0
    assert run("published", out)["tag"].to_list() == ["v2"]
    again = CliRunner().invoke(app, ["unpublish", out, "--tag", "v1"])
    assert again.exit_code == 1 and "there are v2" in " ".join(again.stderr.split())
