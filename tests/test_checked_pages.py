"""`open(path, check_pages=True)`: no engine gets a file with a damaged page."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

import episodelake as el
from real_environments import numbered_store


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store whose one steps file has a flipped byte in its pages of rewards."""
    store = numbered_store(tmp_path / "store", [20, 30])
    flip_a_reward(store.path)
    return store.path


def flip_a_reward(path: Path) -> None:
    """Change a byte in the pages of rewards of the one steps file of a store."""
    (file,) = (path / "steps").glob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    (reward,) = (column for column in columns if column.path_in_schema == "reward")
    data = bytearray(file.read_bytes())
    data[reward.data_page_offset + reward.total_compressed_size - 3] ^= 0x10
    file.write_bytes(data)


READERS = {
    "polars": lambda store: store.transitions.select(pl.col("reward").sum()).collect(),
    "view": lambda store: store.filter("length > 20").steps.collect(),
    "sql": lambda store: store.sql("select sum(reward) from steps").fetchall(),
    "connection": lambda store: store.connect().execute("select sum(reward) from steps").fetchall(),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_page_is_named_before_an_engine_reads_it(damaged: Path, reader: str) -> None:
    """Frames and queries over steps raise an error that names the file, also after a refresh."""
    store = el.open(damaged, check_pages=True)
    for opened in (store, store.refresh()):
        with pytest.raises(el.errors.CorruptStoreError, match=re.escape(str(damaged / "steps"))):
            READERS[reader](opened)


def test_whole_files_are_read_as_ever(tmp_path: Path) -> None:
    """What is not damaged gives the same rows with and without the check."""
    store = numbered_store(tmp_path / "store", [20, 30])
    checked = el.open(store.path, check_pages=True)
    assert checked.steps.collect().equals(store.steps.collect())
    assert (
        checked.sql("from episodes order by number")
        .pl()
        .equals(store.sql("from episodes order by number").pl())
    )


def test_a_file_that_changes_is_checked_again(tmp_path: Path) -> None:
    """A file that was found whole, and was damaged since, is not taken for what it was."""
    store = numbered_store(tmp_path / "store", [20, 30])
    total = pl.col("reward").sum()
    assert el.open(store.path, check_pages=True).steps.select(total).collect().height == 1
    flip_a_reward(store.path)
    with pytest.raises(el.errors.CorruptStoreError, match="steps"):
        el.open(store.path, check_pages=True).steps.select(total).collect()
    (file,) = (store.path / "steps").glob("*.parquet")
    file.unlink()
    with pytest.raises(el.errors.CorruptStoreError, match="missing"):
        el.open(store.path).steps.select(total).collect()
