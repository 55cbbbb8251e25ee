"""Lakes on an object store: listed, asked and deleted from as local ones."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import episodelake as el
from conformance import ObjectBackend, fill
from episodelake.store.files.remote import RemotePlace
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


def test_stores_of_a_prefix_are_deleted(
    lake: el.types.Lake, backend: ObjectBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`store.json` goes first; what an interrupted call left is deleted later. There is no rename."""
    with pytest.raises(el.errors.StoreAccessError, match=r"has no rename. Copy it, .*new/name"):
        lake.rename("pole/ppo", "new/name")
    with pytest.raises(el.errors.InvalidArgumentError, match="inside the store"):
        lake.create("pole/ppo/inner", **NUMBERED_SPACES)
    real = RemotePlace.remove

    def remove(self: RemotePlace) -> None:
        if self.name != "store.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(RemotePlace, "remove", remove)
        with pytest.warns(RuntimeWarning, match="is deleted. Files of it are left"):
            lake.delete("pole/ppo")
    assert list(lake) == ["it's"] and backend.files("pole/ppo")
    lake.delete("pole/ppo")
    assert backend.files("pole/ppo") == []


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
def test_a_store_with_a_journal_here_is_not_deleted(lake: el.types.Lake, backend: ObjectBackend) -> None:
    """A live writer, and one that died before its episodes were sealed, keep the store where it is."""
    store = lake["pole/ppo"]
    writer = store.writer(run="live")
    write_numbered(writer, 1, 2)
    with pytest.raises(el.errors.StoreUnavailableError, match="is being written"):
        lake.delete("pole/ppo")
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


def test_a_bucket_that_is_not_there(lake: el.types.Lake, backend: ObjectBackend, tmp_path: Path) -> None:
    """It is a lake without stores, and creating in it is an error of access."""
    empty = el.lake("s3://no-such-bucket/x", storage_options=backend.storage_options)
    assert empty.stores().is_empty()
    with pytest.raises(el.errors.StoreAccessError):
        empty.create("a", **NUMBERED_SPACES)
