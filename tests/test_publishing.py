"""Published versions: what they hold, how they appear, and what cannot happen to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import episodelake as el
from episodelake.publishing import building, publishing
from episodelake.terminal.app import app
from maintenance_stores import assert_contents, awkward_store, contents
from publishing_trials import version_is_whole
from real_environments import NUMBERED_SPACES, numbered_store, values_of, write_numbered
from waiting import PATIENCE


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few episodes, and files of any size shared between versions."""
    monkeypatch.setattr(building, "_SEGMENT_BYTES", 3000)
    monkeypatch.setattr(publishing, "_SHARED_BYTES", 1)


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.usefixtures("small_segments")
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
    assert opened.verify().ok and version_is_whole(version)
    assert opened.card == {"title": "Odd ones", "license": "MIT", "author": "me"}
    assert opened.runs.collect()["run_id"].to_list() == store.runs.collect()["run_id"].to_list()
    assert opened.steps.select("v").collect().height == opened.steps.collect().height
    assert (report.episodes, report.steps) == (len(view), view.episodes.collect()["length"].sum())
    assert report.files == report.sent_files + 1 == len(files_of(version))
    segments = sorted((version / "steps").glob("*.parquet"))
    assert len(segments) > 1 and len({str(pq.read_schema(path)) for path in segments}) == 1


def test_other_readers_see_a_version(tmp_path: Path) -> None:
    """Plain patterns of Parquet files give all rows, and the card names them for the Hub's viewer."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    store.publish(tmp_path / "out", tag="v1", card={"license": "Apache 2.0"})
    version = tmp_path / "out" / "v1"
    assert pl.read_parquet(version / "episodes" / "*.parquet").height == 3
    assert duckdb.sql(f"select count(*) from '{version}/steps/*.parquet'").fetchall() == [(2 + 3 + 4 + 3,)]
    head = (version / "README.md").read_text("utf-8").split("---\n")[1]
    front = {line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in head.splitlines()}
    assert front["license"] == "apache-2.0" and front["size_categories"] == ["n<1K"]
    for config in front["configs"]:
        (files,) = config["data_files"]
        assert list(version.glob(files["path"])), config
    assert "<svg" in (version / "returns.svg").read_text("utf-8")


@pytest.mark.usefixtures("small_segments")
def test_the_same_episodes_make_the_same_files(tmp_path: Path) -> None:
    """Publishing again gives the same bytes; a store that has grown shares its first segments."""
    store = numbered_store(tmp_path / "store", [30, 40, 50, 60], seal_every=1)
    store.publish(tmp_path / "out", tag="v1")
    store.publish(tmp_path / "again", tag="v1")
    once, again = files_of(tmp_path / "out"), files_of(tmp_path / "again")
    lists = [json.loads(files.pop("v1/checksums.json")) for files in (once, again)]
    for each in lists:  # when it was published, and the checksum of that
        del each["moment"], each["crc32"]
    assert once == again and lists[0] == lists[1]
    with store.writer() as writer:
        for value in range(4, 9):
            write_numbered(writer, value, 70)
    report = store.refresh().publish(tmp_path / "out", tag="v2")
    first, second = tmp_path / "out" / "v1" / "steps", tmp_path / "out" / "v2" / "steps"
    both = {path.name for path in first.glob("*.parquet")} & {path.name for path in second.glob("*.parquet")}
    assert both and report.sent_files < report.files
    assert all(os.path.samefile(first / name, second / name) for name in both)
    assert values_of(el.open(tmp_path / "out" / "v2")) == list(range(9))
    assert values_of(el.open(tmp_path / "out" / "v1")) == list(range(4))


def test_what_is_there_stays(tmp_path: Path) -> None:
    """A tag that exists, other content, a store and a file are refused, and nothing changes."""
    store = numbered_store(tmp_path / "store", [2, 3])
    store.publish(tmp_path / "out", tag="v1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine", "utf-8")
    (tmp_path / "file").write_text("mine", "utf-8")
    before = files_of(tmp_path)
    for target, tag, message in (
        ("out", "v1", "has a version 'v1' already"),
        ("out", "V1", "has a version 'V1' already"),
        ("other", "v1", "holds other things than published versions: notes.txt"),
        ("store", "v1", "is a store, not a folder"),
        ("file", "v1", "is a file"),
        ("", "v1", "other things"),
    ):
        with pytest.raises(el.errors.StoreExistsError, match=message):
            store.publish(tmp_path / target, tag=tag)
    with pytest.raises(el.errors.InvalidArgumentError, match="lies in the store"):
        store.publish(tmp_path / "store" / "new", tag="v1")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    "tag", ["", "7", "../v1", "a/b", ".hidden", "v 1", "v1..2", "v1.", "v1.lock", None, "x" * 101]
)
def test_tags_are_checked(tmp_path: Path, tag: Any) -> None:
    """A tag that is none is an error, and nothing is written."""
    store = numbered_store(tmp_path / "store", [2])
    with pytest.raises(el.errors.InvalidArgumentError, match="cannot be a tag"):
        store.publish(tmp_path / "out", tag=tag)
    assert not (tmp_path / "out").exists()


def test_bad_calls_publish_nothing(tmp_path: Path) -> None:
    """An empty view, a bad condition, a bad card and a rehearsal leave no folder."""
    store = numbered_store(tmp_path / "store", [2, 3])
    out = tmp_path / "out"
    with pytest.raises(el.errors.InvalidArgumentError, match="no episode to publish"):
        store.publish(out, tag="v1", where="length > 9")
    with pytest.raises(el.errors.QueryError):
        store.publish(out, tag="v1", where="nothing > 9")
    with pytest.raises(el.errors.InvalidArgumentError, match="license"):
        store.publish(out, tag="v1", card={"license": 7})
    with pytest.raises(el.errors.InvalidArgumentError, match="Hugging Face Hub"):
        store.publish(out, tag="v1", private=True)
    rehearsed = store.publish(out, tag="v1", dry_run=True)
    assert not out.exists()
    report = store.publish(out, tag="v1")
    assert (rehearsed.files, rehearsed.episodes) == (report.files, 2)


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


def test_pull_fetches_and_verifies(tmp_path: Path) -> None:
    """A pull gives the version bit by bit: the newest, that of a tag, and that of a path of its own."""
    store = numbered_store(tmp_path / "store", [2, 3])
    store.publish(tmp_path / "out", tag="v1")
    os.utime(tmp_path / "out" / "v1" / "store.json", (0, 0))
    store.publish(tmp_path / "out", tag="v2", where="length > 2")
    assert values_of(el.pull(tmp_path / "out", tmp_path / "newest")) == [1]
    assert values_of(el.pull(f"{tmp_path}/out@v1", tmp_path / "first")) == [0, 1]
    assert values_of(el.pull(tmp_path / "out", tmp_path / "named", version="v1")) == [0, 1]
    assert values_of(el.pull(tmp_path / "out" / "v2", tmp_path / "below" / "own")) == [1]
    assert files_of(tmp_path / "first") == files_of(tmp_path / "out" / "v1")
    assert el.preview(tmp_path / "out", version="v1")["length"].to_list() == [2, 3]
    with pytest.raises(el.errors.StoreExistsError, match="something at"):
        el.pull(tmp_path / "out", tmp_path / "first")
    with pytest.raises(el.errors.VersionNotFoundError, match="there are v1, v2"):
        el.pull(tmp_path / "out", tmp_path / "third", version="v3")
    with pytest.raises(el.errors.StoreNotFoundError, match="Nothing is published"):
        el.pull(tmp_path / "nowhere", tmp_path / "third")
    with pytest.raises(el.errors.StoreNotFoundError, match="was not published"):
        el.preview(tmp_path / "store")


@pytest.mark.usefixtures("small_segments")
def test_a_condition_fetches_only_what_it_needs(tmp_path: Path) -> None:
    """A preview reads no steps, and a pull with a condition only those of its episodes."""
    store = numbered_store(tmp_path / "store", [30, 40, 50, 60], seal_every=1)
    store.annotate(store.steps.select("episode_id", "t", v=pl.col("t") * 2), on=("episode_id", "t"))
    store.publish(tmp_path / "out", tag="v1")
    published = el.open(tmp_path / "out" / "v1")
    wanted = published.context.snapshot.segments_of(published.filter("length = 50").positions)
    for path in (tmp_path / "out" / "v1").rglob("*.parquet"):
        if path.parent.name == "steps" and path.name not in wanted:
            path.unlink()
    assert el.preview(tmp_path / "out").height == 4
    part = el.pull(tmp_path / "out", tmp_path / "part", where="length = 50")
    assert values_of(part) == [2] and part.verify().ok
    assert part[0].step_annotations["v"].tolist() == [2 * t for t in range(51)]
    with part.writer() as writer:
        write_numbered(writer, 7, 2)
    with pytest.raises(el.errors.StoreAccessError):
        el.pull(tmp_path / "out", tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_an_interrupted_pull_goes_on(tmp_path: Path) -> None:
    """Files that were fetched are not fetched again, and what was damaged meanwhile is."""
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


def test_a_pull_takes_over_what_is_its_own_alone(tmp_path: Path) -> None:
    """A pull that was killed before it listed its files is continued; files of somebody else stay."""
    numbered_store(tmp_path / "store", [2]).publish(tmp_path / "out", tag="v1")
    for name, left in (("got", ".checksums.json.7.tmp"), ("other", "mine.txt")):
        stage = tmp_path / f".{name}.unfinished"
        stage.mkdir()
        (stage / left).write_text("left", "utf-8")
    assert values_of(el.pull(tmp_path / "out", tmp_path / "got")) == [0]
    assert files_of(tmp_path / "got") == files_of(tmp_path / "out" / "v1")
    with pytest.raises(el.errors.StoreExistsError, match=r"something at .*\.other\.unfinished"):
        el.pull(tmp_path / "out", tmp_path / "other")
    assert files_of(tmp_path / ".other.unfinished") == {"mine.txt": b"left"}


REMOTE, WORKS = ("s3", "proxy", "hub"), ("publish", "pull", "unpublish")


def trials(tmp_path: Path, kind: str, first: int, step: int, count: int) -> list[str]:
    """Run trials in a process of their own; a line for each."""
    if kind.startswith("hub-"):
        pytest.importorskip("huggingface_hub")
    numbered_store(tmp_path / "store", [2, 3, 4, 5, 6], seal_every=2).publish(tmp_path / "out", tag="v1")
    script = Path(__file__).with_name("publishing_trials.py")
    words = [sys.executable, str(script), kind, str(tmp_path), *map(str, (first, step, count))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE * count, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.further
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("publish", 110),
        ("pull", 40),
        ("part", 110),
        ("unpublish", 10),
        ("proxy-publish", 300),
    ],
)
def test_whoever_is_killed_leaves_the_old_or_the_new(tmp_path: Path, kind: str, step: int) -> None:
    """A publication, pull or removal that is killed shows the old or the new; the next call finishes it."""
    lines = trials(tmp_path, kind, 20, step, 3)
    assert len(lines) == 3 and lines[0].startswith("killed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "step", "count"),
    [
        *((kind, first, 2, 170) for kind in ("publish", "part") for first in (1, 2)),
        ("pull", 1, 1, 110),
        ("unpublish", 1, 1, 60),
        *((f"{where}-{work}", 1, 28, 40) for where in REMOTE for work in WORKS),
    ],
)
def test_kills_at_every_step(tmp_path: Path, kind: str, first: int, step: int, count: int) -> None:
    """The same at a thousand points."""
    lines = trials(tmp_path, kind, first, step, count)
    assert len(lines) == count and lines[0].startswith("killed")


@pytest.mark.further
def test_two_publish_at_the_same_time(tmp_path: Path) -> None:
    """Of two publications of one tag one succeeds, and the other says that the tag is taken."""
    numbered_store(tmp_path / "store", [2, 3])
    script = (
        "import sys, episodelake as el\n"
        "try:\n    el.open(sys.argv[1]).publish(sys.argv[2], tag='v1')\n    print('published')\n"
        "except el.errors.StoreExistsError:\n    print('taken')\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "store"), str(tmp_path / "out")]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(child.communicate(timeout=PATIENCE)[0].strip() for child in both)
    assert said == ["published", "taken"] and version_is_whole(tmp_path / "out" / "v1")


def test_an_unfinished_publication_is_made_again(tmp_path: Path) -> None:
    """What a publication that was cut short left behind is replaced."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer() as writer:
        write_numbered(writer, 0, 3)
    left = tmp_path / "out" / ".v1.unfinished"
    left.mkdir(parents=True)
    (left / "store.unfinished").write_text("half", "utf-8")
    store.refresh().publish(tmp_path / "out", tag="v1")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["v1"]
    shutil.rmtree(tmp_path / "out")


def test_the_command_line_publishes(tmp_path: Path) -> None:
    """`publish`, `preview` and `pull` do what the functions do, and say why they do not."""
    numbered_store(tmp_path / "store", [2, 3, 4])
    store, out, got = (str(tmp_path / name) for name in ("store", "out", "got"))

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    published = run("publish", store, out, "--tag", "v1", "--filter", "length > 2", "--json")
    assert published.exit_code == 0 and json.loads(published.stdout)["episodes"] == 2
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
