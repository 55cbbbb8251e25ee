"""Contents of published versions, and rules of folders, buckets and the command line."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import episodelake as el
from conformance import ObjectBackend
from episodelake.store.rewrite import fixed_copy
from episodelake.terminal.app import app
from maintenance_stores import assert_contents, awkward_store, contents
from object_fixtures import backend, one_proxy, proxy, spool
from object_server import FaultyProxy, Rule
from publishing_targets import files_of
from publishing_trials import version_is_whole
from real_environments import numbered_store, values_of, write_numbered

__all__ = ["backend", "one_proxy", "proxy", "spool"]


def test_a_version_shows_what_the_view_shows(tmp_path: Path) -> None:
    """A published view opens as a store with the same episodes, runs, annotations and card, in its order."""
    store = awkward_store(tmp_path / "store")
    store.annotate(store.steps.select("episode_id", "t", v=pl.col("t") * 2), on=("episode_id", "t"))
    store.card = {"title": "Odd ones", "license": "MIT"}
    view = store.filter("length > 1").sort("length", descending=True)
    report = view.publish(tmp_path / "out", tag="v1", card={"author": "me"})
    version = tmp_path / "out" / "v1"
    opened = el.open(version)
    assert_contents(opened, contents(view))
    assert [episode.id for episode in opened] == [episode.id for episode in view]
    assert opened.verify().ok and version_is_whole(version)
    assert opened.card == {"title": "Odd ones", "license": "MIT", "author": "me"}
    assert opened.runs.collect()["run_id"].to_list() == store.runs.collect()["run_id"].to_list()
    assert opened.steps.select("v").collect().height == opened.steps.collect().height
    assert (report.episodes, report.steps) == (len(view), view.episodes.collect()["length"].sum())
    segments = sorted((version / "steps").glob("*.parquet"))
    assert len(segments) > 1 and len({str(pq.read_schema(path)) for path in segments}) == 1
    for table in ("episodes", "steps", "runs"):
        rows = pl.read_parquet(version / table / "*.parquet")
        assert rows.height == getattr(opened, table).collect().height


def test_a_version_shares_no_file_with_its_store(tmp_path: Path) -> None:
    """A change to a file of the store does not reach a version, which keeps its bytes."""
    store = numbered_store(tmp_path / "store", [2, 3], seal_every=1)
    store.publish(tmp_path / "out", tag="v1")
    ours = {path.read_bytes(): path for path in (tmp_path / "store" / "steps").glob("*.parquet")}
    theirs = {path.read_bytes(): path for path in (tmp_path / "out" / "v1" / "steps").glob("*.parquet")}
    assert ours.keys() == theirs.keys()
    assert not any(os.path.samefile(ours[data], theirs[data]) for data in ours)


def test_other_readers_see_a_version(tmp_path: Path) -> None:
    """Plain patterns of Parquet files give all rows, and the card names them for the Hub's viewer."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    store.publish(tmp_path / "out", tag="v1", card={"license": "Apache 2.0"})
    version = tmp_path / "out" / "v1"
    assert pl.read_parquet(version / "episodes" / "*.parquet").height == 3
    counted: Any = duckdb.sql(f"select count(*) from '{version}/steps/*.parquet'")
    assert counted.fetchall() == [(2 + 3 + 4 + 3,)]
    head = (version / "README.md").read_text("utf-8").split("---\n")[1]
    front = {line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in head.splitlines()}
    assert front["license"] == "apache-2.0" and front["size_categories"] == ["n<1K"]
    for config in front["configs"]:
        (files,) = config["data_files"]
        assert list(version.glob(files["path"])), config


def test_what_is_no_target_stays(tmp_path: Path) -> None:
    """Other content, a store, a file and a folder in a store are refused, and nothing changes."""
    store = numbered_store(tmp_path / "store", [2, 3])
    store.publish(tmp_path / "out", tag="v1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine", "utf-8")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "latest").symlink_to(tmp_path / "out" / "v1")
    (tmp_path / "file").write_text("mine", "utf-8")
    before = files_of(tmp_path)
    for target, tag, message in (
        ("out", "V1", "has a version 'V1' already"),
        ("other", "v1", "holds other things than published versions: notes.txt"),
        ("linked", "v1", "holds other things than published versions: latest"),
        ("store", "v1", "is a store, not a folder"),
        ("file", "v1", "is a file"),
        ("", "v1", "other things"),
    ):
        with pytest.raises(el.errors.StoreExistsError, match=message):
            store.publish(tmp_path / target, tag=tag)
    with pytest.raises(el.errors.StoreExistsError, match="is a store"):
        el.published(tmp_path / "store")
    with pytest.raises(el.errors.InvalidArgumentError, match="is inside the store"):
        store.publish(tmp_path / "store" / "new", tag="v1")
    assert files_of(tmp_path) == before


def test_bad_calls_publish_nothing(tmp_path: Path) -> None:
    """An empty view, a bad condition and a bad card leave no folder."""
    store = numbered_store(tmp_path / "store", [2, 3])
    out = tmp_path / "out"
    with pytest.raises(el.errors.InvalidArgumentError, match="no episode to publish"):
        store.publish(out, tag="v1", where="length > 9")
    store.artifacts.add(b"x", name="weights")
    with pytest.raises(el.errors.InvalidArgumentError, match="leaves none of the 2 episodes to publish"):
        store.publish(out, tag="v1", where="length > 9")
    with pytest.raises(el.errors.QueryError):
        store.publish(out, tag="v1", where="nothing > 9")
    cards: list[tuple[Any, str]] = [
        ({"license": 7}, "license"),
        (7, "must be a mapping"),
        ("title", "must be a mapping"),
        ({"x": {1, 2}}, "not plain JSON"),
        ({"x": float("nan")}, "not plain JSON"),
    ]
    for card, message in cards:
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            store.publish(out, tag="v1", card=card)
    with pytest.raises(el.errors.InvalidArgumentError, match="Hugging Face Hub"):
        store.publish(out, tag="v1", private=True)
    assert not out.exists()


def test_a_version_never_changes(tmp_path: Path) -> None:
    """Recording into a published version and maintaining it are refused; a copy can be changed."""
    numbered_store(tmp_path / "store", [2, 3], seal_every=1).publish(tmp_path / "out", tag="v1")
    version = el.open(tmp_path / "out" / "v1")
    before = files_of(tmp_path / "out")
    for change in (
        lambda: version.writer().__enter__(),
        version.compact,
        lambda: version.delete("length > 2"),
        lambda: version.tag("mine"),
        lambda: version.annotate(version.episodes.select("episode_id", good=True)),
    ):
        with pytest.raises(el.errors.StoreAccessError, match=r"published version, which never changes"):
            change()
    after = files_of(tmp_path / "out")
    assert {name: data for name, data in after.items() if "/journal/" not in name} == before
    mine = version.copy(tmp_path / "mine")
    with mine.writer() as writer:
        write_numbered(writer, 2, 4)
    assert values_of(mine.refresh()) == [0, 1, 2]


def test_what_can_be_pulled_from_a_folder(tmp_path: Path) -> None:
    """A version by its own path, or beside a link; a store and a target that is taken are errors."""
    store = numbered_store(tmp_path / "store", [2, 3])
    store.publish(tmp_path / "out", tag="v1")
    os.utime(tmp_path / "out" / "v1" / "store.json", (0, 0))
    store.publish(tmp_path / "out", tag="v2", where="length > 2")
    (tmp_path / "out" / "latest").symlink_to("v1")
    assert values_of(el.pull(tmp_path / "out", tmp_path / "newest")) == [1]
    assert values_of(el.pull(tmp_path / "out" / "v2", tmp_path / "below" / "own")) == [1]
    for taken in ("newest", "link"):
        (tmp_path / "link").symlink_to(tmp_path / "nowhere") if taken == "link" else None
        with pytest.raises(el.errors.StoreExistsError, match="something at"):
            el.pull(tmp_path / "out", tmp_path / taken)
    with pytest.raises(el.errors.VersionNotFoundError, match=r"there are v1, v2\."):
        el.pull(tmp_path / "out", tmp_path / "third", version="latest")
    with pytest.raises(el.errors.StoreNotFoundError, match="Nothing is published"):
        el.pull(tmp_path / "nowhere", tmp_path / "third")
    with pytest.raises(el.errors.StoreNotFoundError, match="was not published"):
        el.preview(tmp_path / "store")


def test_an_interrupted_pull_goes_on(tmp_path: Path) -> None:
    """Fetched files are compared again; half a file is fetched again, and a link is refused."""
    numbered_store(tmp_path / "store", [2, 3]).publish(tmp_path / "out", tag="v1")
    version, stage = tmp_path / "out" / "v1", tmp_path / ".got.unfinished"

    def interrupt(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        el.pull(tmp_path / "out", tmp_path / "got", progress=interrupt)
    (steps,) = (stage / "steps").glob("*.parquet")
    (episodes,) = (stage / "episodes").glob("*.parquet")
    kept = steps.stat().st_ino
    episodes.write_bytes(b"half")
    (stage / "steps" / ".left.tmp").write_bytes(b"half")
    el.pull(tmp_path / "out", tmp_path / "got")
    assert (tmp_path / "got" / "steps" / steps.name).stat().st_ino == kept
    assert files_of(tmp_path / "got") == files_of(version) and not stage.exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.txt").write_text("left", "utf-8")
    (tmp_path / "mine").rename(tmp_path / ".other.unfinished")
    (tmp_path / ".more.unfinished").symlink_to(tmp_path / ".other.unfinished")
    for name in ("other", "more"):
        with pytest.raises(el.errors.StoreExistsError, match=rf"something at .*\.{name}\.unfinished"):
            el.pull(tmp_path / "out", tmp_path / name)
    assert files_of(tmp_path / ".other.unfinished") == {"mine.txt": b"left"}


def test_a_link_in_a_version_is_not_followed(tmp_path: Path) -> None:
    """A file that is a link is an error that leaves no folder."""
    numbered_store(tmp_path / "store", [2, 3]).publish(tmp_path / "out", tag="v1")
    (steps,) = (tmp_path / "out" / "v1" / "steps").glob("*.parquet")
    steps.rename(tmp_path / "secret")
    steps.symlink_to(tmp_path / "secret")
    with pytest.raises(el.errors.CorruptStoreError, match="is a link"):
        el.pull(tmp_path / "out", tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_an_unfinished_publication_goes_on_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same episodes finish it, others are refused; one that built nothing leaves no folder."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)

    def fail(*words: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fixed_copy, "merge_stores", fail)
        with pytest.raises(OSError, match="No space"):
            store.publish(tmp_path / "out", tag="v1")
    assert not (tmp_path / "out").exists()
    store.publish(tmp_path / "out", tag="v1")
    version = tmp_path / "out" / "v1"
    whole = files_of(version)
    for name in ("store.json", "checksums.json", "episodes/_delta_log/00000000000000000000.json"):
        (version / name).unlink()
    (version / "store.unfinished").write_text(json.dumps({"contents": "x"}))
    assert el.published(tmp_path / "out").height == 0
    with pytest.raises(el.errors.StoreExistsError, match="unfinished publication of other contents"):
        store.publish(tmp_path / "out", tag="v1")
    shutil.rmtree(version)
    # Of a publication that was killed before it reserved its tag.
    version.mkdir()
    (version / ".store.unfinished.7.tmp").write_bytes(b"half")
    store.publish(tmp_path / "out", tag="v1")
    assert files_of(version).keys() == {*whole, ".store.unfinished.7.tmp"}


def test_a_repeated_upload_sends_what_is_missing(
    backend: ObjectBackend, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """An upload that was cut short goes on where it ended, unless it is of other contents."""
    store = numbered_store(tmp_path / "store", [30, 40, 50, 60], seal_every=1)
    url, options = backend.at("out"), {**proxy.storage_options(), "max_retries": "0"}
    proxy.rules(Rule("answer", "PUT", "checksums.json", status=403))
    with pytest.raises(el.errors.StoreAccessError):
        store.publish(url, tag="v1", storage_options=options)
    with pytest.raises(el.errors.StoreExistsError, match="unfinished publication of other contents"):
        store.publish(url, tag="v1", where="length > 30", storage_options=options)
    proxy.rules()
    store.publish(url, tag="v1", storage_options=options)
    put = [request.path.partition("?")[0] for request in proxy.requests() if request.method == "PUT"]
    assert put and not [path for path in put if path.endswith(".parquet")]
    assert values_of(el.open(f"{url}/v1", storage_options=options)) == [0, 1, 2, 3]


@pytest.mark.sample(1)
@pytest.mark.parametrize("action", ["lose answer", "cut answer", "spoil answer", "lose request"])
def test_a_shaky_connection_gives_the_right_bytes(
    tmp_path: Path, backend: ObjectBackend, proxy: FaultyProxy, action: str
) -> None:
    """A connection that loses and cuts answers publishes and pulls a version without a wrong byte."""
    store = numbered_store(tmp_path / "store", [2, 3])
    url = backend.at("out")
    proxy.rules(Rule(action, "POST", "delete", times=2))  # type: ignore[arg-type]
    store.publish(url, tag="v1", storage_options=proxy.storage_options())
    assert "store.unfinished" not in backend.files("out/v1")
    proxy.rules(Rule(action, "GET", "parquet", times=2))  # type: ignore[arg-type]
    pulled = el.pull(f"{url}@v1", tmp_path / "got", storage_options=proxy.storage_options())
    assert len(proxy.touched()) == 2 and values_of(pulled) == [0, 1]
    for name, data in files_of(tmp_path / "got").items():
        assert backend.read(name, "out/v1") == data


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


def test_the_command_line_publishes(tmp_path: Path) -> None:
    """`publish`, `published`, `preview` and `pull` do what the functions do, and say why they do not."""
    numbered_store(tmp_path / "store", [2, 3, 4])
    store, out, got = (str(tmp_path / name) for name in ("store", "out", "got"))

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    published = run("publish", store, out, "--tag", "v1", "--filter", "length > 2", "--json")
    assert published.exit_code == 0 and json.loads(published.stdout)["episodes"] == 2
    assert [row["tag"] for row in json.loads(run("published", out, "--json").stdout)] == ["v1"]
    assert [row["length"] for row in json.loads(run("preview", out, "--json").stdout)] == [3, 4]
    assert run("preview", f"{out}@v1").exit_code == 0
    assert run("pull", f"{out}@v1", got, "--filter", "length = 4").exit_code == 0
    assert values_of(el.open(got)) == [2]
    again = run("publish", store, out, "--tag", "v1")
    assert again.exit_code == 1 and "already" in again.stderr
    remote = run("pull", out, "s3://bucket/got")
    assert remote.exit_code == 1 and "expected a folder of this machine" in " ".join(remote.stderr.split())
    assert run("pull", out, got).exit_code == 1 and run("preview", store).exit_code == 1


@pytest.mark.peers
def test_datasets_reads_the_configs_of_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library `datasets` finds episodes, steps and runs by the README of a version, with all rows."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    store = awkward_store(tmp_path / "store")
    store.publish(tmp_path / "out", tag="v1")
    version = str(tmp_path / "out" / "v1")
    assert datasets.get_dataset_config_names(version) == ["episodes", "steps", "runs"]
    for name in ("episodes", "steps", "runs"):
        rows = datasets.load_dataset(version, name, cache_dir=str(tmp_path / "cache"))["train"]
        assert rows.num_rows == getattr(el.open(version), name).collect().height
