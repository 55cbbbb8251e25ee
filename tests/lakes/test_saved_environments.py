"""Environments and artifacts that a store keeps by themselves: names, versions, contents, maintenance."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import episodelake as el
from episodelake.store.layout import CHECKSUM, checked_json
from episodelake.testing.adapters import case
from kept_environments import Reader, all_files, record
from object_server import new_url, shared_server
from waiting import PATIENCE

NOW = timedelta(0)
TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """An empty store for CartPole."""
    return el.create(tmp_path / "store", CartPoleEnv())


@pytest.fixture
def registered() -> Any:
    """Register environments for one test."""
    before = dict(gymnasium.registry)
    gymnasium.register("Reader-v0", "kept_environments:Reader")
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def pole(**arguments: Any) -> gymnasium.Env:
    """CartPole with some arguments."""
    return gymnasium.make("CartPole-v1", **arguments)


def age(path: Path, days: float = 2) -> None:
    """Make the files of a folder older."""
    for file in path.iterdir():
        moment = file.stat().st_mtime - days * 86400
        os.utime(file, (moment, moment))


def artifacts(store: el.EpisodeStore) -> dict[str, bytes]:
    """The contents of a store by their names in its folder."""
    folder = store.path / "artifacts"
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.exists() else {}


# Saved environments


def test_a_saved_environment_is_made_again(store: el.EpisodeStore) -> None:
    """Without any run, `make_env` finds a saved environment by its name, with its arguments and wrappers."""
    env = gymnasium.wrappers.TimeAwareObservation(pole(sutton_barto_reward=True, max_episode_steps=7))
    saved = store.save_environment(env, name="pole", description="short", difficulty="easy")
    again = el.open(store.path).make_env("pole")
    assert str(again) == str(env) and again.spec.kwargs == env.spec.kwargs
    assert again.spec.max_episode_steps == 7
    row = store.environments().to_dicts()[0]
    assert row.pop("created") == datetime.fromisoformat(saved.created_at)
    assert row == {
        "name": "pole",
        "version": 1,
        "description": "short",
        "difficulty": "easy",
        "release": None,
        "metadata": "{}",
        "env_id": "CartPole-v1",
        "content_hash": saved.content_hash,
        "files": 0,
        "bytes": 0,
    }


def test_the_hash_is_the_documented_one(store: el.EpisodeStore, tmp_path: Path, registered: None) -> None:
    """The content hash follows from docs/format.md alone: it is that of canonical JSON."""
    path = tmp_path / "level.dat"
    path.write_bytes(b"12345")
    env = gymnasium.make("Reader-v0", level=str(path))
    saved = store.save_environment(env, name="a", files={"levels/1": path})
    (file,) = (store.path / "environments").iterdir()
    assert file.name == hashlib.sha256(b"a").hexdigest() + "-1.json"
    content = json.loads(file.read_text())
    files = {"levels/1": hashlib.sha256(b"12345").hexdigest()}
    text = json.dumps(
        {"spec": json.loads(content["env_spec"]), "files": files}, sort_keys=True, separators=(",", ":")
    )
    assert saved.content_hash == hashlib.sha256(text.encode()).hexdigest()
    path.unlink()
    again = store.make_env("a", trust=True)
    assert isinstance(again.unwrapped, Reader) and again.unwrapped.size == 5
    assert store.environments()["bytes"].to_list() == [5]


def test_versions_and_contents(store: el.EpisodeStore) -> None:
    """The same content is saved once; other content needs another version, and the newest is made."""
    first = store.save_environment(pole(), name="pole")
    before = all_files(store.path)
    assert store.save_environment(pole(), name="pole") == first
    assert all_files(store.path) == before
    other = pole(sutton_barto_reward=True)
    for version in (None, 1):
        with pytest.raises(el.errors.StoreExistsError, match="version=2"):
            store.save_environment(other, name="pole", version=version)
    second = store.save_environment(other, name="pole", version=2)
    assert second.content_hash != first.content_hash
    assert store.save_environment(pole(), name="pole") == first
    assert store.make_env("pole").spec.kwargs == other.spec.kwargs
    assert store.make_env("pole@1").spec.kwargs == {}
    assert store.save_environment(pole(), name="other").content_hash == first.content_hash
    assert store.environments()["version"].to_list() == [1, 1, 2]
    with pytest.raises(el.errors.InvalidArgumentError, match="pole@3"):
        store.make_env("pole@3")
    store.delete_environment("pole@2")
    assert store.make_env("pole").spec.kwargs == {}
    store.delete_environment("pole")
    assert store.environments()["name"].to_list() == ["other"]
    with pytest.raises(el.errors.InvalidArgumentError, match="no saved environment"):
        store.delete_environment("pole")


def test_texts_for_people_are_replaced(store: el.EpisodeStore) -> None:
    """A description given with the same content replaces the old one; the rest stays."""
    first = store.save_environment(pole(), name="pole", description="a", difficulty="easy")
    store.save_environment(pole(), name="pole", description="b")
    row = store.environments().to_dicts()[0]
    assert (row["description"], row["difficulty"]) == ("b", "easy")
    assert row["created"] == datetime.fromisoformat(first.created_at)


def test_names_and_runs(store: el.EpisodeStore) -> None:
    """A name of a run and of a saved environment is an error that says how to choose."""
    record(store.path, pole(max_episode_steps=9), run="pole")
    store.refresh().save_environment(pole(max_episode_steps=5), name="pole")
    with pytest.raises(el.errors.InvalidArgumentError, match=r"ambiguous.*'pole@1'.*'pole-"):
        store.make_env("pole")
    assert store.make_env("pole@1").spec.max_episode_steps == 5
    assert store.make_env(store[0].run_id).spec.max_episode_steps == 9
    assert store.make_env().spec.max_episode_steps == 9
    assert store[0].replay().same


ODD = ["ALE/Pong-v5", "../up", "a.b.", "CON", "pole", "Pole", "ß", "x" * 200, "%2e", "a b", "日本"]


def test_odd_names(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Names with slashes, dots and letters that differ by case are kept apart, and none leaves the store."""
    outside = {path for path in all_files(tmp_path) if "store" not in str(path)}
    for number, name in enumerate(ODD, 1):
        store.save_environment(pole(max_episode_steps=number), name=name)
        store.artifacts.add(str(number).encode(), name=name)
    for number, name in enumerate(ODD, 1):
        assert store.make_env(name).spec.max_episode_steps == number
        assert store.artifacts.get(name) == str(number).encode()
    folded = [file.name.casefold() for file in (store.path / "environments").iterdir()]
    assert len(set(folded)) == len(ODD)
    assert {path for path in all_files(tmp_path) if "store" not in str(path)} == outside
    assert sorted(store.environments()["name"]) == sorted(ODD) == sorted(store.artifacts.list()["name"])
    store.save_environment(pole(), name="e\u0301")
    assert store.make_env("\u00e9") is not None


def test_names_that_are_none(store: el.EpisodeStore) -> None:
    """A name that could be mistaken for another is refused, and nothing is written."""
    for name in ["", " a", "a\n", "a\0", "x" * 201, "a@2", "0" * 64, 5, None]:
        with case(name):
            before = all_files(store.path)
            with pytest.raises(el.errors.InvalidArgumentError, match="name="):
                store.save_environment(pole(), name=name)
            with pytest.raises(el.errors.InvalidArgumentError, match="name="):
                store.artifacts.add(b"a", name=name)
            assert all_files(store.path) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 0}, "version=0"),
        ({"version": "2"}, "version='2'"),
        ({"version": True}, "version=True"),
        ({"difficulty": 3}, "difficulty=3"),
        ({"description": ["a"]}, "description"),
    ],
)
def test_options_of_other_types(store: el.EpisodeStore, options: Any, message: str) -> None:
    """Versions are whole numbers, and the texts are texts."""
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        store.save_environment(pole(), name="a", **options)
    assert store.environments().is_empty()


def test_what_cannot_be_made_again_is_not_saved(store: el.EpisodeStore) -> None:
    """An environment without a spec, or with a function among its arguments, is refused at once."""
    with pytest.raises(el.errors.EnvUnavailableError, match=r"gymnasium\.register"):
        store.save_environment(CartPoleEnv(), name="a")
    halved = gymnasium.wrappers.TransformReward(pole(), lambda reward: reward / 2)
    with pytest.raises(el.errors.EnvUnavailableError, match="TransformReward"):
        store.save_environment(halved, name="a")
    assert store.environments().is_empty()


def test_saving_needs_no_trust_and_making_does(store: el.EpisodeStore, registered: None) -> None:
    """The module of a saved environment is imported with trust only."""
    store.save_environment(gymnasium.make("Reader-v0"), name="a")
    with pytest.raises(el.errors.UntrustedEnvError, match="kept_environments"):
        store.make_env("a")
    assert isinstance(store.make_env("a", trust=True).unwrapped, Reader)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": lambda file: file.write_bytes(file.read_bytes().replace(b"CartPole-v1", b"CartPole-v0")),
    "empty": lambda file: file.write_bytes(b""),
    "other name": lambda file: file.rename(file.with_name("0" * 64 + "-1.json")),
    "other version": lambda file: file.rename(file.with_name(file.name.replace("-1.json", "-7.json"))),
    "types": lambda file: file.write_text('{"name": 1}'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_records(store: el.EpisodeStore, damage: Callable[[Path], object]) -> None:
    """A damaged record is an error that names it, `verify` reports it, and others stay usable."""
    store.save_environment(pole(), name="good")
    store.save_environment(pole(), name="bad")
    file = store.path / "environments" / (hashlib.sha256(b"bad").hexdigest() + "-1.json")
    damage(file)
    with pytest.raises(el.errors.CorruptStoreError, match="environments"):
        store.environments()
    assert store.make_env("good") is not None
    assert [fault.kind for fault in store.verify().faults] == ["record"]


@pytest.mark.further
def test_two_processes_save_one_environment(store: el.EpisodeStore) -> None:
    """Of processes that save other contents under one name at once, one succeeds; equal ones all do."""
    program = """
import sys, gymnasium, episodelake as el
store = el.open(sys.argv[1])
try:
    store.save_environment(gymnasium.make("CartPole-v1", max_episode_steps=int(sys.argv[2])), name="pole")
    print(sys.argv[2])
except el.errors.StoreExistsError:
    pass
"""
    words = [sys.executable, "-c", program, str(store.path)]
    running = [
        subprocess.Popen([*words, steps], stdout=subprocess.PIPE, text=True) for steps in ("5", "6", "5")
    ]
    printed = [process.communicate(timeout=PATIENCE)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    kept = str(store.make_env("pole").spec.max_episode_steps)
    assert sorted(filter(None, printed)) == [kept] * (2 if kept == "5" else 1)
    assert len(store.environments()) == 1


# Named artifacts


def test_artifacts_are_added_and_found(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A file and bytes are kept by name and by hash, once, and come back equal."""
    path = tmp_path / "table.bin"
    path.write_bytes(b"content")
    digest = store.artifacts.add(path, name="tables/a")
    assert digest == hashlib.sha256(b"content").hexdigest()
    assert store.artifacts.add(b"content", name="tables/a") == digest
    assert store.artifacts.add(b"content", name="b") == digest
    assert artifacts(store) == {digest: b"content"}
    with pytest.raises(el.errors.StoreExistsError, match="tables/a"):
        store.artifacts.add(b"other", name="tables/a")
    path.unlink()
    assert store.artifacts.get("tables/a") == store.artifacts.get(digest) == b"content"
    assert store.artifacts.get("b", into=path) == path and path.read_bytes() == b"content"
    assert b"".join(store.artifacts.chunks(digest)) == b"content"
    frame = store.artifacts.list()
    assert frame.drop("created").rows() == [("b", digest, 7), ("tables/a", digest, 7)]
    store.artifacts.delete("b")
    assert store.artifacts.list()["name"].to_list() == ["tables/a"]
    for call in (store.artifacts.get, store.artifacts.delete):
        with pytest.raises(el.errors.InvalidArgumentError, match="no artifact"):
            call("b")
    for wrong in (tmp_path, str(tmp_path / "no such file"), 5, None):
        with pytest.raises(el.errors.InvalidArgumentError, match="Give the path of a file, or its content"):
            store.artifacts.add(wrong, name="c")  # pyright: ignore[reportArgumentType]


def test_a_damaged_artifact_replaces_no_file(store: el.EpisodeStore, tmp_path: Path) -> None:
    """The file that an artifact was to be written to keeps what it has if the content is damaged."""
    digest = store.artifacts.add(b"content", name="a")
    (store.path / "artifacts" / digest).write_bytes(b"CONTENT")
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    for into in (None, target):
        with pytest.raises(el.errors.CorruptStoreError, match=digest):
            store.artifacts.get("a", into=into)
    assert target.read_bytes() == b"mine"
    assert store.artifacts.add(b"content", name="a") == digest
    assert store.artifacts.get("a") == b"content"


@pytest.mark.further
@pytest.mark.parametrize("remote", [False, True], ids=["folder", "objects"])
def test_artifacts_are_streamed(tmp_path: Path, remote: bool, monkeypatch: Any) -> None:
    """A content of many pieces goes in, out and into a copy whole, in less memory than it has bytes."""
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
    options = shared_server().storage_options() if remote else None
    store = el.create(new_url() if remote else tmp_path / "store", CartPoleEnv(), storage_options=options)
    size = 96 << 20
    path, out = tmp_path / "large", tmp_path / "out"
    with open(path, "wb") as file:
        for number in range(size >> 20):
            file.write(np.random.default_rng(number).bytes(1 << 20))
    tracemalloc.start()
    try:
        store.artifacts.add(path, name="large")
        store.artifacts.get("large", into=out)
        copy = store.copy(tmp_path / "copy")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size * 2 / 3
    assert path.read_bytes() == out.read_bytes()
    path.unlink()
    copy.artifacts.get("large", into=path)
    assert path.read_bytes() == out.read_bytes()
    assert copy.verify().ok


# Maintenance


def test_vacuum_deletes_orphans_alone(store: el.EpisodeStore, tmp_path: Path, registered: None) -> None:
    """What runs, saved environments and names refer to stays; the rest goes when it is a day old."""
    files = {}
    for name in ("run", "saved", "named", "orphan"):
        files[name] = tmp_path / name
        files[name].write_text(name)
    env = gymnasium.make("CartPole-v1")
    record(store.path, env, run="a", files={"f": files["run"]})
    store.refresh().delete("run_id like 'a-%'")
    store.save_environment(env, name="saved", files={"f": files["saved"]})
    store.artifacts.add(files["named"], name="named")
    store.artifacts.add(files["orphan"], name="orphan")
    store.artifacts.delete("orphan")
    store.vacuum(NOW)
    assert len(artifacts(store)) == 4
    age(store.path / "artifacts")
    gone = hashlib.sha256(b"orphan").hexdigest()
    assert f"artifacts/{gone}" in store.vacuum(NOW, dry_run=True).files
    assert len(artifacts(store)) == 4
    store.vacuum(NOW)
    assert sorted(artifacts(store).values()) == [b"named", b"run", b"saved"]
    store.delete_environment("saved")
    store.artifacts.delete("named")
    store.vacuum(NOW)
    assert sorted(artifacts(store).values()) == [b"run"]
    assert store.verify().ok


def test_vacuum_waits_for_runs_and_new_references(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A run that has no row yet keeps its files however old they are; so does one that names an old file."""
    path = tmp_path / "f"
    path.write_text("f")
    recorder = store.record(pole(), files={"f": path})
    age(store.path / "artifacts")
    assert el.open(store.path).vacuum(NOW).files == ()
    recorder.reset(seed=0)
    recorder.step(0)
    recorder.close()
    store.refresh().vacuum(NOW)
    assert len(artifacts(store)) == 1 and store.verify().ok
    store.artifacts.add(b"old", name="old")
    store.artifacts.delete("old")
    age(store.path / "artifacts")
    # A new reference makes an old content young before the reference itself is there.
    store.artifacts.add(b"old", name="again")
    for file in (store.path / "artifact_names").iterdir():
        file.unlink()
    assert not any(name.startswith("artifacts/") for name in store.vacuum(NOW).files)


def test_vacuum_keeps_artifacts_where_references_are_damaged(store: el.EpisodeStore) -> None:
    """Where a record cannot be read, no artifact is deleted."""
    store.artifacts.add(b"a", name="a")
    store.artifacts.add(b"b", name="b")
    store.artifacts.delete("b")
    age(store.path / "artifacts")
    (record_file,) = (store.path / "artifact_names").iterdir()
    record_file.write_text("{")
    store.vacuum(NOW)
    assert sorted(artifacts(store).values()) == [b"a", b"b"]


def test_copies_and_merges_carry_them(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A copy has all saved environments and artifacts; a merge adds those that are missing."""
    record(store.path, pole(), run="a")
    path = tmp_path / "f"
    path.write_text("f")
    saved = store.refresh().save_environment(pole(), name="ALE/pole", description="d", files={"f": path})
    store.artifacts.add(b"named", name="n")
    copy = store.copy(tmp_path / "copy", "length < 0")
    assert len(copy) == 0
    assert copy.environments().rows() == store.environments().rows()
    assert artifacts(copy) == artifacts(store)
    other = el.create(tmp_path / "other", CartPoleEnv())
    other.artifacts.add(b"mine", name="mine")
    for _ in range(2):
        el.merge([store], other)
        assert other.make_env("ALE/pole").spec.id == "CartPole-v1"
        assert sorted(artifacts(other).values()) == [b"f", b"mine", b"named"]
        assert other.environments()["content_hash"].to_list() == [saved.content_hash]
    assert other.refresh().verify().ok and copy.verify().ok


def test_a_merge_refuses_rivals(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Other content under one name is an error before anything is changed."""
    record(store.path, pole(), run="a")
    store.refresh().artifacts.add(b"1", name="n")
    other = el.create(tmp_path / "other", CartPoleEnv())
    other.artifacts.add(b"2", name="n")
    before = all_files(other.path)
    with pytest.raises(el.errors.StoreExistsError, match="artifact_names"):
        el.merge([store], other)
    # Names are compared under the lock, whose file stays.
    assert all_files(other.path) == before | {"journal/maintenance.lock"}


def test_verify_misses_contents(store: el.EpisodeStore) -> None:
    """A content that is gone is a fault that names who needs it."""
    store.artifacts.add(b"a", name="a")
    (file,) = (store.path / "artifacts").iterdir()
    file.unlink()
    (fault,) = store.verify().faults
    assert (fault.kind, fault.file) == ("artifact", f"artifacts/{file.name}")
    assert "artifact_names need it" in fault.message


def test_object_stores_keep_them(tmp_path: Path, monkeypatch: Any) -> None:
    """On an object store environments and artifacts are saved, found, refused and deleted as in a folder."""
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
    store = el.create(new_url(), CartPoleEnv(), storage_options=shared_server().storage_options())
    store.save_environment(pole(), name="ALE/pole")
    with pytest.raises(el.errors.StoreExistsError, match="version=2"):
        store.save_environment(pole(max_episode_steps=3), name="ALE/pole")
    store.artifacts.add(b"abc", name="x")
    assert store.make_env("ALE/pole").spec.id == "CartPole-v1"
    assert store.artifacts.get("x") == b"abc"
    assert store.verify().ok
    store.delete_environment("ALE/pole")
    store.artifacts.delete("x")
    assert store.environments().is_empty() and store.artifacts.list().is_empty()


def test_releases_and_metadata(tmp_path: Path) -> None:
    """A release is found by its name, with metadata; records of earlier writers, without both, are read."""
    store = el.create(tmp_path / "store", "CartPole-v1")
    given = {"task": "balance", "levels": [1, 2]}
    store.save_environment(pole(), name="pole", release="1.2-beta", metadata=given)
    store.save_environment(pole(sutton_barto_reward=True), name="pole", version=2)
    made = store.make_env("pole@1.2-beta")
    assert made.spec is not None and made.spec.kwargs == pole().spec.kwargs
    row = store.environments().row(0, named=True)
    assert (row["release"], json.loads(row["metadata"])) == ("1.2-beta", given)
    store.save_environment(pole(), name="pole", release="1.2")
    row = store.environments().row(0, named=True)
    assert (row["version"], row["release"], json.loads(row["metadata"])) == (1, "1.2", given)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"pole@1\.2-beta"):
        store.make_env("pole@1.2-beta")
    for path in (tmp_path / "store" / "environments").iterdir():
        old = json.loads(path.read_bytes())
        path.write_bytes(
            checked_json({key: old[key] for key in old if key not in ("release", "metadata", CHECKSUM)})
        )
    assert el.open(store.path).environments().select("release", "metadata").rows() == [(None, "{}")] * 2
    for wrong in (
        {"release": 3},
        {"metadata": "text"},
        {"release": "2"},
        {"release": ""},
        {"release": "a@b"},
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match=next(iter(wrong))):
            store.save_environment(pole(), name="other", **wrong)


def test_a_release_is_one_version(tmp_path: Path) -> None:
    """Another version cannot have it, and it names the version to delete."""
    store = el.create(tmp_path / "store", "CartPole-v1")
    store.save_environment(pole(), name="pole", release="a")
    other = pole(sutton_barto_reward=True)
    with pytest.raises(el.errors.StoreExistsError, match="version 1 of 'pole' has the release 'a'"):
        store.save_environment(other, name="pole", version=2, release="a")
    store.save_environment(other, name="pole", version=2, release="b")
    with pytest.raises(el.errors.StoreExistsError, match="has the release 'b'"):
        store.save_environment(pole(), name="pole", release="b")
    with pytest.raises(el.errors.InvalidArgumentError, match="no saved environment 'pole@c'"):
        store.delete_environment("pole@c")
    store.delete_environment("pole@a")
    assert store.environments().select("version", "release").rows() == [(2, "b")]


def test_runs_name_the_saved_environment(tmp_path: Path) -> None:
    """A run of a saved environment says which; its episodes go with it on request, and no others."""
    store = el.create(tmp_path / "store", "CartPole-v1")
    el.collect("CartPole-v1", None, store, episodes=1, run="before")
    short = gymnasium.make("CartPole-v1", max_episode_steps=7)
    store.save_environment(short, name="short")
    store.save_environment(gymnasium.make("CartPole-v1"), name="plain")
    el.collect(store.make_env("short"), None, store, episodes=2, run="made")
    el.collect(short, None, store, episodes=3, run="by hand", metadata={"saved_environment": "mine"})
    el.collect("CartPole-v1", None, store, episodes=4, run="other")
    store.refresh()
    sizes = {
        key: len(store.filter(f"run.saved_environment = '{key}'")) for key in ("short@1", "mine", "plain@1")
    }
    assert sizes == {"short@1": 2, "mine": 3, "plain@1": 4}
    assert store.delete_environment("short", episodes=True) == 5
    assert len(store.refresh()) == 5 and store.environments()["name"].to_list() == ["plain"]
    assert store.delete_environment("plain") == 0 and len(store.refresh()) == 5


def test_environments_are_published_alone(tmp_path: Path) -> None:
    """A view without episodes publishes what its store keeps by name; one that keeps nothing is refused."""
    store = el.create(tmp_path / "store", "CartPole-v1")
    el.collect("CartPole-v1", None, store, episodes=1)
    with pytest.raises(el.errors.InvalidArgumentError, match="no saved environment"):
        store.refresh()[:0].publish(tmp_path / "published", tag="v1")
    store.save_environment(pole(), name="pole")
    store[:0].publish(tmp_path / "published", tag="v1")
    assert el.preview(tmp_path / "published").is_empty()
    with pytest.raises(el.errors.InvalidArgumentError, match=r"Did you mean pole@1"):
        store.make_env("pol@1")
    el.pull(tmp_path / "published", tmp_path / "pulled")
    pulled = el.open(tmp_path / "pulled")
    assert len(pulled) == 0 and not pulled.verify().faults
    assert pulled.make_env("pole").spec.kwargs == pole().spec.kwargs
