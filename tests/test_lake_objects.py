"""Lakes on an object store: listed, asked, renamed and deleted as local ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import episodelake as el
from conformance import ObjectBackend, fill
from object_fixtures import backend, spool
from real_environments import NUMBERED_SPACES, write_numbered
from waiting import PATIENCE

__all__ = ["backend", "spool"]


@pytest.fixture
def lake(backend: ObjectBackend) -> el.types.Lake:
    """A prefix with two stores."""
    lake = el.lake(backend.url, storage_options=backend.storage_options)
    fill(lake.create("pole/ppo", **NUMBERED_SPACES), [1, 2, 3])
    fill(lake.create("it's", **NUMBERED_SPACES), [4])
    return lake


def test_a_prefix_lists_and_answers(lake: el.types.Lake, backend: ObjectBackend) -> None:
    """Rows, SQL and frames are those of each store; only stores that grew are read again."""
    fill(
        el.create(f"{backend.url}/.hidden/x", **NUMBERED_SPACES, storage_options=backend.storage_options), [1]
    )
    frame = lake.stores()
    for row in frame.iter_rows(named=True):
        store = el.open(row["url"], storage_options=backend.storage_options)
        assert (row["version"], row["episodes"]) == (store.version, len(store))
        assert row["steps"] == store.transitions.collect().height
    assert list(lake) == ["it's", "pole/ppo"]
    text = "SELECT store, count(*), sum(episode_return) FROM episodes GROUP BY 1 ORDER BY 1"
    expected = [
        (name, len(store), store.episodes.collect()["episode_return"].sum())
        for name, store in ((name, lake[name]) for name in lake)
    ]
    for read_only in (False, True):
        assert lake.sql(text, read_only=read_only).fetchall() == expected
    assert lake.episodes.filter(pl.col("store") == "it's").collect().height == 1
    assert lake.find("length > 1")["store"].to_list() == [
        name for name in lake if (lake[name].episodes.collect()["length"] > 1).any()
    ]
    fill(lake["it's"], [5, 6])
    assert lake.refresh().stores()["episodes"].to_list() == [3, 3]


def test_stores_of_a_prefix_move(lake: el.types.Lake, backend: ObjectBackend) -> None:
    """A rename and a deletion move every object; the identity stays, and vacuum deletes for good."""
    before = lake["pole/ppo"]
    files = backend.files("pole/ppo")
    lake.rename("pole/ppo", "new/name")
    assert backend.files("pole/ppo") == []
    assert backend.files("new/name") == files
    assert lake["new/name"].id == before.id
    assert lake["new/name"].verify().ok
    with pytest.raises(el.errors.StoreExistsError):
        lake.create("new/name", **NUMBERED_SPACES)
    with pytest.raises(el.errors.InvalidArgumentError, match="in the store"):
        lake.create("new/name/inner", **NUMBERED_SPACES)
    lake.delete("new/name")
    assert list(lake) == ["it's"]
    assert len(backend.files(".trash")) == len(files)
    assert lake.vacuum() == ["new/name"]
    assert backend.files(".trash") == []


DYING = """
import json, os, sys, episodelake as el
writer = el.open(sys.argv[1], storage_options=json.loads(sys.argv[2])).writer(run="died")
episode = writer.begin([0.0, 0.0])
episode.append(1, 1.0, [0.0, 1.0], terminated=True)
episode.end()
writer.flush()
os._exit(9)
"""


# test_a_store_in_use_is_neither_renamed_nor_deleted of test_lake.py has the live writer of a folder.
@pytest.mark.further
def test_a_store_with_a_journal_here_does_not_move(lake: el.types.Lake, backend: ObjectBackend) -> None:
    """A live writer, and one that died before its episodes were sealed, keep the store where it is."""
    store = lake["pole/ppo"]
    writer = store.writer(run="live")
    write_numbered(writer, 1, 2)
    with pytest.raises(el.errors.StoreUnavailableError, match="is being written"):
        lake.rename("pole/ppo", "new")
    writer.close()
    options = json.dumps(backend.storage_options)
    done = subprocess.run([sys.executable, "-c", DYING, store.url, options], timeout=PATIENCE)
    assert done.returncode == 9
    with pytest.raises(el.errors.StoreUnavailableError, match=r"Call episodelake\.recover first"):
        lake.delete("pole/ppo")
    assert len(el.recover(store.url, storage_options=backend.storage_options)) == 1
    assert len(store.refresh()) == 5
    lake.delete("pole/ppo")
    assert "pole/ppo" not in lake


def test_a_store_that_changes_while_it_moves_stays(
    lake: el.types.Lake, backend: ObjectBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer on another machine that commits meanwhile keeps its store, whole."""
    from episodelake.store.files.remote import RemotePlace

    real = RemotePlace.remove

    def remove(self: RemotePlace) -> None:
        real(self)
        if str(self).endswith("pole/ppo/store.json"):
            backend.write("episodes/late.parquet", b"late", "pole/ppo")

    monkeypatch.setattr(RemotePlace, "remove", remove)
    with pytest.raises(el.errors.StoreUnavailableError, match="changed while it was moved"):
        lake.rename("pole/ppo", "new")
    assert len(lake["pole/ppo"]) == 3
    assert "new" not in lake


def test_of_two_stores_that_move_to_one_name_one_does(
    lake: el.types.Lake, backend: ObjectBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other stays where it is, and overwrites nothing of the first."""
    from episodelake.store.files.remote import RemotePlace

    real = RemotePlace.copy_from
    errors: list[Exception] = []

    def copy_from(self: RemotePlace, source: Any, **options: Any) -> None:
        if not errors:
            errors.append(ValueError("none"))
            try:
                el.lake(backend.url, storage_options=backend.storage_options).rename("it's", "new")
            except el.errors.EpisodelakeError as error:
                errors[0] = error
        real(self, source, **options)

    monkeypatch.setattr(RemotePlace, "copy_from", copy_from)
    lake.rename("pole/ppo", "new")
    assert isinstance(errors[0], el.errors.StoreExistsError)
    assert [(name, len(lake[name])) for name in lake.refresh()] == [("it's", 1), ("new", 3)]
    assert all(lake[name].verify().ok for name in lake)
    assert not [name for name in backend.files("new") if "unfinished" in name]


# test_lake.py has those of a folder, through the same code.
@pytest.mark.further
def test_environments_of_a_prefix(lake: el.types.Lake) -> None:
    """They are saved, made and deleted as in a folder."""
    import gymnasium

    lake.save_environment(gymnasium.make("CartPole-v1", max_episode_steps=5), name="short")
    assert lake.make_env("short").spec.max_episode_steps == 5
    assert lake.delete_environment("short", episodes=True) == 0
    assert lake.environments().is_empty()


def test_a_bucket_that_is_not_there(lake: el.types.Lake, backend: ObjectBackend, tmp_path: Path) -> None:
    """It is a lake without stores, and creating in it is an error of access."""
    empty = el.lake("s3://no-such-bucket/x", storage_options=backend.storage_options)
    assert empty.stores().is_empty()
    with pytest.raises(el.errors.StoreAccessError):
        empty.create("a", **NUMBERED_SPACES)
