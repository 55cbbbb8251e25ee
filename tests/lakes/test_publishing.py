"""Published versions: contracts that hold in a folder, a bucket and a dataset of the Hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import episodelake as el
from object_fixtures import one_proxy, proxy, spool
from publishing_targets import Target, files_of, hub, target
from real_environments import numbered_store, values_of, write_numbered
from waiting import PATIENCE

__all__ = ["hub", "one_proxy", "proxy", "spool", "target"]


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """A store of three numbered episodes."""
    return numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)


def publish(store: el.EpisodeStore, target: Target, tag: str, **options: Any) -> el.types.PublishReport:
    """Publish to a target."""
    return store.publish(target.address, tag=tag, storage_options=target.options, **options)


def pull(target: Target, into: Path, tag: str | None = None, **options: Any) -> el.EpisodeStore:
    """Pull from a target."""
    return el.pull(target.address, into, version=tag, storage_options=target.options, **options)


def listed(target: Target) -> list[str]:
    """The tags at a target."""
    return el.published(target.address, storage_options=target.options)["tag"].to_list()


def test_versions_are_published_and_pulled(tmp_path: Path, target: Target, store: el.EpisodeStore) -> None:
    """A pull gives a version bit by bit, of a tag or the newest; lists and previews name what there is."""
    before = datetime.now(UTC)
    report = publish(store, target, "v1", card={"title": "Numbers"})
    publish(store, target, "v2", where="length > 2")
    assert report.address == f"{target.address}@v1"
    assert (report.episodes, report.steps, report.files) == (3, 9, len(target.files("v1")))
    assert values_of(pull(target, tmp_path / "newest")) == [1, 2]
    first = el.pull(report.address, tmp_path / "first", storage_options=target.options)
    assert values_of(first) == [0, 1, 2] and first.verify().ok
    assert files_of(tmp_path / "first") == target.files("v1")
    with pytest.raises(el.errors.StoreAccessError, match="never changes"):
        first.compact()
    preview = el.preview(target.address, version="v1", storage_options=target.options)
    assert preview["length"].to_list() == [2, 3, 4]
    frame = el.published(target.address, storage_options=target.options)
    assert frame["address"].to_list() == [report.address, f"{target.address}@v2"]
    assert frame["episodes"].to_list() == [3, 2] and frame["steps"].to_list() == [9, 7]
    assert frame["published"].is_sorted() and (frame["published"][0] - before).total_seconds() > -1
    assert frame["store_id"].unique().to_list() == [store.handle.manifest.store_id]
    assert (
        frame["bytes"][0]
        == report.size
        == sum(len(data) for name, data in target.files("v1").items() if name != "checksums.json")
    )
    assert frame["error"].null_count() == 2
    readme = target.files("v1")["README.md"].decode()
    assert "# Numbers" in readme and "/episodes/*.parquet" in readme


def test_a_part_fetches_only_what_it_needs(tmp_path: Path, target: Target, store: el.EpisodeStore) -> None:
    """A preview reads no steps, a pull with a condition those of its episodes; it can be recorded into."""
    publish(store, target, "v1")
    pulled = pull(target, tmp_path / "all")
    wanted = pulled.context.snapshot.segments_of(pulled.filter("length = 3").positions)
    for name in target.steps("v1"):
        if name.removeprefix("steps/") not in wanted:
            target.change("v1", name, None)
    assert el.preview(target.address, storage_options=target.options).height == 3
    part = pull(target, tmp_path / "part", where="length = 3")
    assert values_of(part) == [1] and part.verify().ok
    with part.writer() as writer:
        write_numbered(writer, 7, 2)
    assert values_of(part.refresh()) == [1, 7]
    with pytest.raises(el.errors.EpisodelakeError, match=r"(open|read) (\S*/)?steps/") as caught:
        pull(target, tmp_path / "again")
    assert isinstance(caught.value, el.errors.StoreAccessError | el.errors.StoreNotFoundError)
    assert not (tmp_path / "again").exists()
    assert {path.name for path in tmp_path.iterdir()} >= {"all", "part", ".again.unfinished"}


def test_what_is_there_stays(tmp_path: Path, target: Target, store: el.EpisodeStore) -> None:
    """A tag that exists and other content are refused, and nothing changes."""
    publish(store, target, "v1")
    before = target.files("v1")
    with pytest.raises(el.errors.StoreExistsError, match="has a version 'v1' already"):
        publish(store, target, "v1", where="length > 2")
    target.put_beside()
    with pytest.raises(el.errors.StoreExistsError, match=r"other things than .*: LICENSE"):
        publish(store, target, "v2")
    assert listed(target) == ["v1"] and target.files("v1") == before
    assert values_of(pull(target, tmp_path / "got")) == [0, 1, 2]
    for version, error in (("v9", "v9"), ("latest", "latest")):
        with pytest.raises(el.errors.VersionNotFoundError, match=error):
            pull(target, tmp_path / "none", version)
    assert not (tmp_path / "none").exists()


@pytest.mark.further
def test_a_publication_that_fails_shows_nothing(
    tmp_path: Path, target: Target, store: el.EpisodeStore
) -> None:
    """A service or disk in trouble shows no version and is no damage; the next call finishes it."""
    publish(store, target, "v0", where="length = 2")
    target.fail("write")
    with pytest.raises(el.errors.StoreUnavailableError):
        publish(store, target, "v1")
    assert listed(target) == ["v0"] and values_of(pull(target, tmp_path / "old")) == [0]
    target.fail("no")
    publish(store, target, "v1")
    assert listed(target) == ["v0", "v1"]
    assert values_of(pull(target, tmp_path / "new")) == [0, 1, 2]
    assert "store.unfinished" not in target.files("v1")


@pytest.mark.parametrize("where", [None, "length > 2"])
def test_a_pull_that_fails_goes_on(
    tmp_path: Path, target: Target, store: el.EpisodeStore, where: str | None
) -> None:
    """A service or disk in trouble leaves nothing at the target, and the next call finishes it."""
    publish(store, target, "v1")
    target.fail("read")
    with pytest.raises(el.errors.StoreUnavailableError, match=r"read (\S*/)?steps/"):
        pull(target, tmp_path / "got", where=where)
    assert not (tmp_path / "got").exists()
    target.fail("no")
    store = pull(target, tmp_path / "got", where=where)
    assert values_of(store) == ([0, 1, 2] if where is None else [1, 2])
    assert not (tmp_path / ".got.unfinished").exists()


@pytest.mark.further
def test_damage_is_not_taken(tmp_path: Path, target: Target, store: el.EpisodeStore) -> None:
    """A file that differs from its checksum is an error that leaves no folder, in a part too."""
    publish(store, target, "v1")
    name = target.steps("v1")[0]
    data = target.files("v1")[name]
    for damaged in (data[:-1] + b"x", data[:9], data + b"x"):
        target.change("v1", name, damaged)
        for where in (None, "length > 0"):
            with pytest.raises(el.errors.CorruptStoreError, match=f"{name}.* does not have the checksum"):
                pull(target, tmp_path / "got", where=where)
    assert not (tmp_path / "got").exists()
    assert el.preview(target.address, storage_options=target.options).height == 3
    publish(store, target, "v2")
    assert values_of(pull(target, tmp_path / "got")) == [0, 1, 2]


HOSTILE = (
    *("../outside", "steps/../../outside", "/etc/outside", "steps//x", "steps\\..\\x", "steps/.hidden"),
    *("journal/x", "other.txt", "steps/a/b/c", "STEPS/x", "steps/x\n", "Store.json"),
)
IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    *({"files": files} for files in ({}, [], {"store.json": ["0" * 64]}, {"store.json": ["x", 3]})),
    *({"files": {"store.json": ["0" * 64, size]}} for size in (-1, True)),
    *({"files": {"store.json": {"sha256": 1}}}, {"moment": -1}, {"moment": 2**60}),
    *({"origin": [7, 7]}, {"origin": 3}, {"tag": "../v1"}, {"published": 2}),
)


@pytest.mark.further
def test_hostile_lists_write_nothing(tmp_path: Path, target: Target, store: el.EpisodeStore) -> None:
    """A list with a name that leads elsewhere, or that says nothing sensible, is refused as a whole."""
    publish(store, target, "v1")
    good = target.files("v1")["checksums.json"]
    files = json.loads(good)["files"]
    (tmp_path / "inner").mkdir()
    before = files_of(tmp_path / "inner"), {path.name for path in tmp_path.iterdir()}
    for changed in (*({"files": {**files, name: files["store.json"]}} for name in HOSTILE), *IMPOSSIBLE):
        target.relist("v1", changed)
        with pytest.raises(el.errors.CorruptStoreError, match="no list of a published version"):
            pull(target, tmp_path / "inner" / "got", "v1")
        target.change("v1", "checksums.json", good)
    assert (files_of(tmp_path / "inner"), {path.name for path in tmp_path.iterdir()}) == before
    target.relist("v1", {"files": {}})
    frame = el.published(target.address, storage_options=target.options)
    assert frame["tag"].to_list() == ["v1"] and "is damaged" in frame["error"][0]


def test_addresses_and_tags_are_checked(tmp_path: Path, target: Target, store: el.EpisodeStore) -> None:
    """A tag that is none, two tags, a target without versions and another store's options are errors."""
    for tag in ("", "7", "../v1", "a/b", ".hidden", "v 1", "v1..2", "v1.", "v1.lock", None, "x" * 101):
        with pytest.raises(el.errors.InvalidArgumentError, match="cannot be a tag"):
            publish(store, target, tag)  # type: ignore[arg-type]
    with pytest.raises(el.errors.StoreNotFoundError):
        pull(target, tmp_path / "got")
    publish(store, target, "v1")
    with pytest.raises(el.errors.InvalidArgumentError, match="expected one tag"):
        el.pull(f"{target.address}@v1", tmp_path / "got", version="v2", storage_options=target.options)
    if target.options is None:
        for call in (
            lambda: store.publish(target.address, tag="v2", storage_options={"aws_region": "x"}),
            lambda: el.pull(target.address, tmp_path / "got", storage_options={"aws_region": "x"}),
            lambda: el.published(target.address, storage_options={"aws_region": "x"}),
        ):
            with pytest.raises(el.errors.InvalidArgumentError, match="Storage options are for object stores"):
                call()
    assert not (tmp_path / "got").exists() and listed(target) == ["v1"]


def test_a_damaged_segment_is_not_published(tmp_path: Path, store: el.EpisodeStore) -> None:
    """Every page of a file that is taken over is checked: a version never changes."""
    file = max(tmp_path.glob("store/steps/*.parquet"), key=lambda path: path.stat().st_size)
    column = pq.ParquetFile(file).metadata.row_group(0).column(4)
    data = bytearray(file.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 255
    file.write_bytes(data)
    assert not store.verify().ok
    with pytest.raises(el.errors.CorruptStoreError, match=re.escape(file.name)):
        store.publish(tmp_path / "shared", tag="v1")
    assert not (tmp_path / "shared" / "v1").exists()


def test_a_rehearsal_sends_nothing(target: Target, store: el.EpisodeStore) -> None:
    """It reports what a publication does."""
    rehearsed = publish(store, target, "v1", dry_run=True)
    with pytest.raises(el.errors.StoreNotFoundError):
        el.preview(target.address, storage_options=target.options)
    assert publish(store, target, "v1") == rehearsed


# Kills


def trials(tmp_path: Path, kind: str, first: int, step: int, count: int) -> list[str]:
    """Run trials in a process of their own; a line for each."""
    if kind.startswith("hub-"):
        pytest.importorskip("huggingface_hub")
    numbered_store(tmp_path / "store", [2, 3, 4, 5, 6], seal_every=2).publish(tmp_path / "out", tag="v1")
    script = Path(__file__).parents[1].joinpath("publishing_trials.py")
    words = [sys.executable, str(script), kind, str(tmp_path), *map(str, (first, step, count))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE * count, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.further
@pytest.mark.parametrize(
    ("kind", "step"), [("publish", 110), ("pull", 40), ("part", 110), ("proxy-publish", 300)]
)
def test_whoever_is_killed_leaves_the_old_or_the_new(tmp_path: Path, kind: str, step: int) -> None:
    """A publication or pull that is killed shows the old or the new; the next call finishes it."""
    lines = trials(tmp_path, kind, 20, step, 3)
    assert len(lines) == 3 and lines[0].startswith("killed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "step", "count"),
    [
        *((kind, first, 2, 170) for kind in ("publish", "part") for first in (1, 2)),
        ("pull", 1, 1, 110),
        *((f"{where}-{work}", 1, 28, 40) for where in ("s3", "proxy", "hub") for work in ("publish", "pull")),
    ],
)
def test_kills_at_every_step(tmp_path: Path, kind: str, first: int, step: int, count: int) -> None:
    """The same at a thousand points."""
    lines = trials(tmp_path, kind, first, step, count)
    assert len(lines) == count and lines[0].startswith("killed")


TWO = """
import json, sys, episodelake as el
try:
    view = el.open(sys.argv[1]).filter(sys.argv[4])
    view.publish(sys.argv[2], tag=sys.argv[3], storage_options=json.loads(sys.argv[5]))
    print('published')
except (el.errors.StoreExistsError, el.errors.ConcurrentCommitError):
    print('taken')
"""


@pytest.mark.further
@pytest.mark.parametrize("least", [2, 3])
def test_two_publish_at_the_same_time(
    tmp_path: Path, target: Target, store: el.EpisodeStore, least: int
) -> None:
    """Of two publications of a tag one succeeds, or both with the same episodes; the version is whole."""
    words = [sys.executable, "-c", TWO, str(store.path), target.address, "v1"]
    children = [
        subprocess.Popen(
            [*words, f"length >= {each}", json.dumps(target.options)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_DISABLE_XET": "1"},
        )
        for each in (2, least)
    ]
    ended = sorted(child.communicate(timeout=PATIENCE)[0].strip() for child in children)
    assert ended == ["published", "taken"] or (least == 2 and ended == ["published"] * 2)
    assert len(pull(target, tmp_path / "got")) in (3, 5 - least)
