"""`connect(read_only=True)` holds episodes in memory: the rows and row pointers that the files have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

import episodelake as el
from episodelake.store.snapshot import Snapshot
from real_environments import NUMBERED_SPACES, numbered_store


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """Three segments; the last has a column of metadata that the others lack."""
    store = numbered_store(tmp_path / "store", [3, 5])
    for length, metadata in ((4, None), (2, {"level": 7})):
        with store.writer() as writer:
            writer.write_episode(
                observations=np.zeros((length + 1, 2), np.float32),
                actions=np.zeros(length, np.int64),
                rewards=np.ones(length),
                terminations=True,
                truncations=False,
                metadata=metadata,
            )
    return el.open(store.path)


def rows_of_files(path: Path) -> pl.DataFrame:
    """The rows of all files of episodes."""
    files = sorted((path / "episodes").glob("*.parquet"))
    return pl.concat([pl.read_parquet(file) for file in files], how="diagonal").sort("episode_id")


@pytest.mark.parametrize("hidden", [False, True])
def test_rows_and_pointers_are_those_of_the_files(
    store: el.EpisodeStore, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where files of steps have rows that no episode points at."""
    expected = store.context.snapshot.pointers
    if hidden:
        monkeypatch.setattr(Snapshot, "hidden_rows", True)
    opened = el.open(store.path)
    with opened.connect(read_only=True) as connection:
        assert "pointers" not in vars(opened.context.snapshot), "files are read by the first query"
        episodes = connection.sql("from episodes order by episode_id").pl()
        assert connection.sql("select count(*) from steps").fetchall() == [(18,)]
        assert connection.sql("select length from episode_at(-1)").fetchall() == [(2,)]
        assert connection.sql("select count(*) from runs").fetchall() == [(3,)]
    files = rows_of_files(store.path).select(episodes.columns)
    assert episodes.equals(files)
    found = opened.context.snapshot.pointers
    assert found.segments == expected.segments
    for name in ("segment", "row_start", "row_count"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert [len(episode) for episode in opened] == [3, 5, 4, 2]


def test_a_store_without_episodes(tmp_path: Path) -> None:
    """It has no rows, and no file to read them from."""
    store = el.create(tmp_path / "empty", **NUMBERED_SPACES)
    with store.connect(read_only=True) as connection:
        for table in ("episodes", "runs", "steps"):
            assert connection.sql(f"select count(*) from {table}").fetchall() == [(0,)]


def test_columns_beside_a_damaged_one_are_answered(store: el.EpisodeStore) -> None:
    """The rows are then read by each query, and only those that read the damaged column fail."""
    file = sorted((store.path / "episodes").glob("*.parquet"))[0]
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    (returns,) = (column for column in columns if column.path_in_schema == "episode_return")
    data = bytearray(file.read_bytes())
    data[returns.data_page_offset + returns.total_compressed_size - 3] ^= 0x10
    file.write_bytes(data)
    with el.open(store.path).connect(read_only=True) as connection:
        assert connection.sql("select sum(length) from episodes").fetchall() == [(14,)]
        with pytest.raises(duckdb.Error):
            connection.sql("select sum(episode_return) from episodes").fetchall()


@pytest.mark.parametrize("table", ["episodes", "steps"])
def test_the_first_query_that_reads_another_file_fails(store: el.EpisodeStore, table: str) -> None:
    """Opening the connection reads no file; queries over the other tables are answered."""
    first, second, _ = sorted((store.path / table).glob("*.parquet"))
    first.write_bytes(second.read_bytes())
    with el.open(store.path).connect(read_only=True) as connection:
        for _ in range(2):
            with pytest.raises(duckdb.Error, match=first.name):
                connection.sql(f"select count(*) from {table}").fetchall()
        assert connection.sql("select count(*) from runs").fetchall() == [(3,)]


def test_logs_show_that_no_row_is_hidden(store: el.EpisodeStore) -> None:
    """Only where each file of steps ends as many episodes as its file of episodes has."""
    snapshot = el.open(store.path).context.snapshot
    assert not snapshot.hidden_rows
    assert "pointers" not in vars(snapshot)
    for more in (0, 1):
        other = el.open(store.path).context.snapshot
        file = other.listed_steps[-1]
        # One end more than there are episodes, with as many rows as they have, or with one more.
        statistics = {"numRecords": file.rows + more, "nullCount": dict.fromkeys(file.columns, 2)}
        other.listed_steps[-1] = replace(file, stats=json.dumps(statistics))
        assert other.hidden_rows is bool(more)
        assert "pointers" in vars(other)


def test_one_episode_needs_the_row_pointers_of_its_file_alone(store: el.EpisodeStore) -> None:
    """Whatever was read before, each episode has its own rows."""
    opened = el.open(store.path)
    snapshot = opened.context.snapshot
    lengths = {-1: 2, 0: 3, 2: 4, 1: 5}
    assert {position: len(opened[position]) for position in lengths} == lengths
    assert "pointers" not in vars(snapshot)
    alone = [snapshot.place(position) for position in range(4)]
    assert snapshot.pointers.row_count.tolist() == [4, 6, 5, 3]
    assert [snapshot.place(position) for position in range(4)] == alone
