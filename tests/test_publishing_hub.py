"""Published versions on the Hugging Face Hub: the real `huggingface_hub` against a Hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import episodelake as el
from episodelake.store.layout import checked_json
from fake_hub import FakeHub
from real_environments import numbered_store, values_of
from test_publishing import files_of
from waiting import PATIENCE

constants = pytest.importorskip("huggingface_hub.constants")
ADDRESS = "hf://lab/numbers"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """An empty Hub, which the client of this process takes for the real one."""
    server = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_lab")
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield server
    server.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("EPISODELAKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """A store of three numbered episodes."""
    return numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)


def test_versions_of_a_dataset(tmp_path: Path, hub: FakeHub, store: el.EpisodeStore) -> None:
    """Each version is one commit with a tag, of the files of a folder; preview and pull read any of them."""
    report = store.publish(ADDRESS, tag="v1", card={"title": "Numbers"})
    second = store.publish(ADDRESS, tag="v2", where="length > 2")
    dataset = hub.datasets["lab/numbers"]
    assert len(dataset.commits) == 3 and list(dataset.tags) == ["v1", "v2"]
    assert report.address == "hf://lab/numbers@v1" and report.sent_files == report.files - 1
    assert values_of(el.pull(f"{ADDRESS}@v1", tmp_path / "v1")) == [0, 1, 2]
    assert values_of(el.pull(ADDRESS, tmp_path / "newest")) == [1, 2]
    assert values_of(el.pull(ADDRESS, tmp_path / "part", version="v1", where="length = 3")) == [1]
    assert el.preview(ADDRESS, version="v1")["length"].to_list() == [2, 3, 4]
    for tag, oid in dataset.tags.items():
        files = {name: data for name, data in dataset.commits[oid].items() if not name.startswith(".")}
        folder = el.pull(ADDRESS, tmp_path / f"again-{tag}", version=tag).path
        assert files_of(folder) == files
    readme = dataset.commits[dataset.tags["v1"]]["README.md"].decode()
    assert 'load_dataset("lab/numbers", "episodes", revision="v1")' in readme
    assert "hf://datasets/lab/numbers@v1/episodes/*.parquet" in readme
    assert second.sent_files < second.files


def test_open_reads_through_the_cache(hub: FakeHub, store: el.EpisodeStore, cache: Path) -> None:
    """A version of the Hub opens by its address, and is fetched once."""
    store.publish(ADDRESS, tag="v1")
    store.publish(ADDRESS, tag="v2", where="length > 2")
    opened = el.open(f"{ADDRESS}@v1")
    assert values_of(opened) == [0, 1, 2] and opened.path.is_relative_to(cache)
    assert values_of(el.open(ADDRESS)) == [1, 2]
    hub.requests.clear()
    assert values_of(el.open(ADDRESS, "v1")) == [0, 1, 2]
    assert not [path for _, path in hub.requests if "/resolve/" in path]
    with pytest.raises(el.errors.StoreAccessError, match="never changes"):
        opened.compact()


def test_only_changed_files_are_sent(hub: FakeHub, store: el.EpisodeStore) -> None:
    """A version with the same segments sends none of them, and a rehearsal sends nothing."""
    rehearsed = store.publish(ADDRESS, tag="v1", dry_run=True)
    assert not hub.datasets and rehearsed.sent_files == rehearsed.files - 1
    store.publish(ADDRESS, tag="v1")
    commits = len(hub.datasets["lab/numbers"].commits)
    hub.requests.clear()
    rehearsed = store.publish(ADDRESS, tag="v2", card={"title": "Named"}, dry_run=True)
    assert len(hub.datasets["lab/numbers"].commits) == commits
    report = store.publish(ADDRESS, tag="v2", card={"title": "Named"})
    assert report == rehearsed and 0 < report.sent_files < report.files - 3
    assert not [path for method, path in hub.requests if method == "PUT"]


def test_what_is_there_stays(hub: FakeHub, store: el.EpisodeStore) -> None:
    """A tag that exists and a dataset with other content are refused; nothing is committed."""
    store.publish(ADDRESS, tag="v1")
    dataset = hub.datasets["lab/numbers"]
    before = dict(dataset.commits)
    with pytest.raises(el.errors.StoreExistsError, match="has a version 'v1' already"):
        store.publish(ADDRESS, tag="v1", where="length > 2")
    other = dict(dataset.commits[dataset.head])
    other["model.bin"] = b"mine"
    dataset.add(other)
    with pytest.raises(
        el.errors.StoreExistsError, match=r"other things than a published version: model\.bin"
    ):
        store.publish(ADDRESS, tag="v2")
    assert len(dataset.commits) == len(before) + 1 and dataset.tags.keys() == {"v1"}


@pytest.mark.further
def test_a_lost_race_is_repeated(tmp_path: Path, hub: FakeHub, store: el.EpisodeStore) -> None:
    """A commit of another publisher in between is the new parent; both versions are whole."""
    store.publish(ADDRESS, tag="v0")
    rival = [False]

    def before(method: str, path: str) -> None:
        if "/commit/" in path and not rival[0]:
            rival[0] = True
            store.filter("length = 2").publish(ADDRESS, tag="rival")

    hub.before = before
    store.publish(ADDRESS, tag="v1")
    assert list(hub.datasets["lab/numbers"].tags) == ["v0", "rival", "v1"]
    assert values_of(el.pull(ADDRESS, tmp_path / "rival", version="rival")) == [0]
    assert values_of(el.pull(ADDRESS, tmp_path / "mine", version="v1")) == [0, 1, 2]


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", ["/blobs/", "/commit/", "/tag/", "/preupload/"])
@pytest.mark.parametrize("status", [403, -403])
def test_a_publication_that_fails_is_continued(
    tmp_path: Path, hub: FakeHub, store: el.EpisodeStore, what: str, status: int
) -> None:
    """Whatever request fails, done or not, no half version has the tag, and the next call finishes it."""
    failing = [what]
    hub.before = lambda method, path: status if failing and failing[0] in path else None
    try:
        store.publish(ADDRESS, tag="v1")
    except el.errors.StoreAccessError:
        assert hub.datasets["lab/numbers"].tags.keys() <= {"v1"}
    failing.clear()
    if not hub.datasets["lab/numbers"].tags:
        store.publish(ADDRESS, tag="v1")
    assert len(hub.datasets["lab/numbers"].commits) == 2
    assert values_of(el.pull(ADDRESS, tmp_path / "got", version="v1")) == [0, 1, 2]


def test_errors_name_the_dataset(
    tmp_path: Path, hub: FakeHub, store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such dataset, version or address, and missing access, are errors of our tree."""
    with pytest.raises(el.errors.StoreNotFoundError, match="hf://lab/none: there is no such dataset"):
        el.pull("hf://lab/none", tmp_path / "got")
    store.publish(ADDRESS, tag="v1", private=True)
    with pytest.raises(el.errors.VersionNotFoundError, match="v9"):
        el.preview(f"{ADDRESS}@v9")
    with pytest.raises(el.errors.InvalidArgumentError, match="expected hf://organisation/name"):
        el.pull("hf://numbers", tmp_path / "got")
    with pytest.raises(el.errors.InvalidArgumentError, match="give the tag as tag='v2'"):
        store.publish(f"{ADDRESS}@v2", tag="v2")
    assert hub.datasets["lab/numbers"].private
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_TOKEN")
        with pytest.raises(el.errors.StoreNotFoundError, match="not logged in"):
            el.preview(ADDRESS)
    hub.before = lambda method, path: 403
    with pytest.raises(el.errors.StoreAccessError, match="hf://lab/numbers"):
        el.preview(ADDRESS)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(el.errors.StoreUnavailableError, match="Call again"):
        el.preview(ADDRESS)
    assert not (tmp_path / "got").exists()


def test_a_full_account_is_named(hub: FakeHub, store: el.EpisodeStore) -> None:
    """A quota of the Hub is no missing right of the token; nothing shows, and the next call finishes it."""
    message = "Private repository storage limit reached, please upgrade your plan"
    hub.before = lambda method, path: (403, message) if "/preupload/" in path else None
    with pytest.raises(el.errors.StoreAccessError, match=r"no room left.*storage limit reached") as caught:
        store.publish(ADDRESS, tag="v1")
    assert "write access" not in str(caught.value) and not hub.datasets["lab/numbers"].tags
    hub.before = lambda method, path: None
    assert store.publish(ADDRESS, tag="v1").episodes == 3


def test_a_hostile_dataset_writes_nothing(tmp_path: Path, hub: FakeHub, store: el.EpisodeStore) -> None:
    """Names that lead elsewhere and wrong bytes in a dataset are errors, and nothing appears."""
    store.publish(ADDRESS, tag="v1")
    dataset = hub.datasets["lab/numbers"]
    files = dataset.commits[dataset.head]
    content = json.loads(files["checksums.json"])
    del content["crc32"]
    listed = dict(content["files"])
    content["files"] = {**listed, "../../outside": listed["store.json"]}
    dataset.add({**files, "checksums.json": checked_json(content), "../../outside": files["store.json"]})
    with pytest.raises(el.errors.CorruptStoreError, match="no list of a published version"):
        el.pull(ADDRESS, tmp_path / "inner" / "got")
    (steps,) = [name for name in listed if name.startswith("steps/0")]
    dataset.add({**files, steps: files[steps][:-1] + b"x"})
    with pytest.raises(el.errors.CorruptStoreError, match="does not have the checksum"):
        el.pull(ADDRESS, tmp_path / "inner" / "got")
    assert el.preview(ADDRESS).height == 3
    assert not (tmp_path / "outside").exists() and not (tmp_path / "inner" / "got").exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize("sha", ["../../../outside", "main", "", None])
def test_a_commit_that_is_none_becomes_no_path(
    tmp_path: Path, hub: FakeHub, store: el.EpisodeStore, cache: Path, sha: str | None
) -> None:
    """The commit that a Hub names becomes a folder of the cache only if it is one."""
    store.publish(ADDRESS, tag="v1")
    dataset = hub.datasets["lab/numbers"]
    files = dataset.commits[dataset.head]
    dataset.find = lambda revision: sha  # type: ignore[method-assign, assignment]
    dataset.commits[sha] = files  # type: ignore[index]
    for read in (el.open, el.preview):
        with pytest.raises(el.errors.EpisodelakeError, match=r"is no commit|no such version"):
            read(ADDRESS)
    assert not cache.exists() and not (tmp_path / "outside").exists()


def test_an_answer_that_is_none_of_the_hub(hub: FakeHub, store: el.EpisodeStore) -> None:
    """A page of a network in front of the Hub, with status 200, is an error of our tree."""
    hub.before = lambda method, path: 200
    for call in (
        lambda: el.preview(ADDRESS),
        lambda: el.open(ADDRESS),
        lambda: store.publish(ADDRESS, tag="v1"),
    ):
        with pytest.raises(el.errors.StoreAccessError, match="hf://lab/numbers"):
            call()


def test_tags_of_the_hub(hub: FakeHub, store: el.EpisodeStore) -> None:
    """Names of branches and commits are no tags there, and a version is a tag, not a number."""
    for tag in ("main", "a" * 40):
        with pytest.raises(el.errors.InvalidArgumentError, match="names a branch or a commit"):
            store.publish(ADDRESS, tag=tag)
    assert not hub.datasets
    store.publish(ADDRESS, tag="v1")
    for address, version in ((ADDRESS, 3), (f"{ADDRESS}@v1", "v2"), (ADDRESS, "")):
        with pytest.raises(el.errors.InvalidArgumentError, match="expected one tag"):
            el.open(address, version)


def test_a_damaged_version_is_not_continued(tmp_path: Path, hub: FakeHub, store: el.EpisodeStore) -> None:
    """A file of the newest commit that is wrong or missing is sent with the next version."""
    store.publish(ADDRESS, tag="v1")
    dataset = hub.datasets["lab/numbers"]
    files = dict(dataset.commits[dataset.head])
    (steps,) = [name for name in files if name.startswith("steps/0")]
    files[steps] = files[steps][:-1] + b"x"
    del files["returns.svg"]
    dataset.add(files)
    store.publish(ADDRESS, tag="v2", card={"title": "Again"})
    assert values_of(el.pull(ADDRESS, tmp_path / "got", version="v2")) == [0, 1, 2]


LOADED = """
import json, sys, datasets
for name in ("episodes", "steps", "runs"):
    rows = datasets.load_dataset(sys.argv[1], name, revision=sys.argv[2], split="train")
    print(json.dumps([name, rows.num_rows, sorted(rows.column_names)]))
"""


@pytest.mark.peers
def test_datasets_loads_a_version_of_the_hub(tmp_path: Path, hub: FakeHub, store: el.EpisodeStore) -> None:
    """The library `datasets` loads episodes, steps and runs of a tag by the configs of its card."""
    pytest.importorskip("datasets")
    store.publish(ADDRESS, tag="v1")
    store.publish(ADDRESS, tag="v2", where="length > 2")
    env = {**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
    for tag, lengths in (("v1", [2, 3, 4]), ("v2", [3, 4])):
        words = [sys.executable, "-c", LOADED, "lab/numbers", tag]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        pulled = el.pull(ADDRESS, tmp_path / tag, version=tag)
        rows = {name: (count, columns) for name, count, columns in map(json.loads, done.stdout.splitlines())}
        assert rows["episodes"][0] == len(lengths) and rows["steps"][0] == sum(n + 1 for n in lengths)
        assert rows["runs"][0] == 1
        for name in ("episodes", "runs"):
            assert set(getattr(pulled, name).collect_schema().names()) <= set(rows[name][1])
