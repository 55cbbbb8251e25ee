"""What is special to versions on the Hugging Face Hub: the real `huggingface_hub` and a Hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import episodelake as el
from fake_hub import FakeHub
from publishing_targets import files_of, hub
from real_environments import numbered_store, values_of
from waiting import PATIENCE

pytest.importorskip("huggingface_hub")
__all__ = ["hub"]
ADDRESS = "hf://lab/numbers"


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
    """Each version is one commit with a tag, of its files alone; what the Hub has is not sent again."""
    store.publish(ADDRESS, tag="v1", card={"title": "Numbers"})
    hub.requests.clear()
    store.publish(ADDRESS, tag="v2", card={"title": "Named"})
    assert not [path for method, path in hub.requests if method == "PUT"]
    store.publish(ADDRESS, tag="v3", where="length > 2")
    dataset = hub.datasets["lab/numbers"]
    assert len(dataset.commits) == 4 and list(dataset.tags) == ["v1", "v2", "v3"]
    for tag, oid in dataset.tags.items():
        files = {name: data for name, data in dataset.commits[oid].items() if not name.startswith(".")}
        assert files_of(el.pull(ADDRESS, tmp_path / f"again-{tag}", version=tag).path) == files
    readme = dataset.commits[dataset.tags["v1"]]["README.md"].decode()
    assert 'load_dataset("lab/numbers", "episodes", revision="v1")' in readme
    assert "hf://datasets/lab/numbers@v1/episodes/*.parquet" in readme


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


@pytest.mark.further
def test_a_lost_race_is_refused(tmp_path: Path, hub: FakeHub, store: el.EpisodeStore) -> None:
    """A commit of another publisher in between is an error, and the next call publishes on top of it."""
    store.publish(ADDRESS, tag="v0")
    rival = [False]

    def before(method: str, path: str) -> None:
        if "/commit/" in path and not rival[0]:
            rival[0] = True
            store.filter("length = 2").publish(ADDRESS, tag="rival")

    hub.before = before
    with pytest.raises(el.errors.ConcurrentCommitError, match="somebody else committed"):
        store.publish(ADDRESS, tag="v1")
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
    """Whatever request fails, done or not, a call that raised shows no version, and the next finishes it."""
    failing = [what]
    hub.before = lambda method, path: status if failing and failing[0] in path else None
    try:
        store.publish(ADDRESS, tag="v1")
    except el.errors.StoreAccessError:
        assert not hub.datasets["lab/numbers"].tags
        failing.clear()
        store.publish(ADDRESS, tag="v1")
    failing.clear()
    assert list(hub.datasets["lab/numbers"].tags) == ["v1"]
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
