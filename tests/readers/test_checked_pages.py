"""Damaged pages: `open(path, check_pages=True)` keeps engines from them, and our own reads notice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el
from effort import looped, with_folders
from episodelake.store.schema import check_stored_type
from episodelake.testing.adapters import case
from real_environments import numbered_store

READERS: dict[str, Callable[[el.EpisodeStore], Any]] = {
    "polars": lambda store: store.steps.select(pl.col("reward").sum()).collect().item(),
    "polars streaming": lambda store: (
        store.steps.select(pl.col("reward").sum()).collect(engine="streaming").item()
    ),
    "polars filtered": lambda store: store.steps.filter(pl.col("t") > 3).collect().get_column("reward").sum(),
    "polars first rows": lambda store: store.steps.head(50).collect().get_column("reward").sum(),
    "view": lambda store: store.filter("length > 25").steps.collect().get_column("reward").sum(),
    "condition": lambda store: len(
        store.filter("episode_id in (from steps select episode_id where reward > 3)")
    ),
    "sql": lambda store: store.sql("select sum(reward) from steps where t > 3").fetchall(),
    "sql of everything": lambda store: store.sql("from transitions").pl().get_column("reward").sum(),
    "sql of first rows": lambda store: store.query("select reward from steps limit 50")["reward"].sum(),
    "query": lambda store: store.query("select sum(reward) from steps").item(),
    "pivot": lambda store: store.query("pivot steps on terminated using sum(reward)").height,
    "macro": lambda store: store.query("select * from first_hit(reward > 3)").height,
    "read only": lambda store: store.query("select sum(reward) from steps", read_only=True).item(),
    "connection": lambda store: store.connect().execute("select sum(reward) from steps").fetchall(),
}
#: These read through Arrow, or by our own code, and compare checksums in every store.
CHECKED: dict[str, Callable[[el.EpisodeStore], Any]] = {
    "read only": lambda store: store.query("select sum(reward) from steps", read_only=True),
    "episode": lambda store: store[0].rewards,
    "loader": lambda store: list(store.loader(8, columns=["reward"])),
}


def damage(path: Path, table: str, column: str, name: str = "*.parquet") -> Path:
    """Flip a bit in the last page of a column of a table's one file of that name."""
    (file,) = (path / table).glob(name)
    group = pq.read_metadata(file).row_group(0)
    chunks = [group.column(index) for index in range(group.num_columns)]
    (chunk,) = (chunk for chunk in chunks if chunk.path_in_schema == column)
    first = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
    data = bytearray(file.read_bytes())
    data[first + chunk.total_compressed_size - 3] ^= 0x10
    file.write_bytes(data)
    return file


@pytest.mark.further
def test_a_damaged_page_is_named_before_an_engine_reads_it(tmp_path: Path) -> None:
    """Frames and queries over steps raise an error that names the file, also after a refresh."""
    for folder, reader in with_folders(READERS, tmp_path):
        with case(reader):
            whole = numbered_store(folder / "store", [20, 30])
            READERS[reader](el.open(whole.path, check_pages=True))
            damage(whole.path, "steps", "reward")
            store = el.open(whole.path, check_pages=True)
            for opened in (store, store.refresh()):
                with pytest.raises(el.errors.CorruptStoreError, match=re.escape(str(whole.path / "steps"))):
                    READERS[reader](opened)


def test_own_reads_notice_a_damaged_page(tmp_path: Path) -> None:
    """Episodes, loaders and read-only queries fail in every store, and name the file."""
    file = damage(numbered_store(tmp_path / "store", [20, 30]).path, "steps", "reward")
    for name, read in CHECKED.items():
        with pytest.raises(el.errors.CorruptStoreError, match=re.escape(str(file))):
            print(name, read(el.open(tmp_path / "store")))
    assert el.open(tmp_path / "store").query("select sum(t) from steps").item() == sum(range(21)) + sum(
        range(31)
    )


def test_deletion_does_not_depend_on_a_damaged_page(tmp_path: Path) -> None:
    """A condition that reads one is refused; one that names the segment goes on."""
    path = numbered_store(tmp_path / "store", [20, 30]).path
    file = damage(path, "steps", "reward")
    for condition in (
        "episode_id in (from steps select episode_id where reward > 3)",
        "episode_id in (from steps select episode_id where t > 25)",
    ):
        with pytest.raises(el.errors.CorruptStoreError, match=re.escape(str(file))):
            el.open(path).delete(condition)
    assert len(el.open(path)) == 2
    store = el.open(path)
    assert store.delete(f"segment = '{file.name}'").episodes == 2


def test_the_error_of_a_query_names_the_damaged_file(tmp_path: Path) -> None:
    """A query that an engine cannot answer says which file is to blame, and how to go on without it."""
    store = numbered_store(tmp_path / "store", [20, 30])
    (file,) = (store.path / "steps").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[100 : len(data) // 3] = bytes(len(data) // 3 - 100)
    file.write_bytes(data)
    with pytest.raises(el.errors.CorruptStoreError, match=f"{re.escape(str(file))}.*store.filter"):
        el.open(store.path).query("from steps")


@pytest.mark.sample
@pytest.mark.parametrize(
    "chosen", [slice(4, 6), slice(7, None), slice(None, None, -1), slice(0, 8, 3), slice(8, 8)]
)
def test_views_read_the_files_of_their_episodes_alone(tmp_path: Path, chosen: slice) -> None:
    """Frames of a view are right where the files of all other episodes are damaged."""
    lengths = [3, 4, 5, 6, 7, 8, 9, 10]
    store = numbered_store(tmp_path / "store", lengths, seal_every=2)
    wanted = list(range(8))[chosen]
    files = sorted((store.path / "episodes").glob("*.parquet"))
    assert len(files) == 4
    for index, file in enumerate(files):
        if index not in {number // 2 for number in wanted}:
            damage(store.path, "episodes", "episode_id", file.name)
    view = el.open(store.path)[chosen]
    assert view.episodes.select("number").collect().get_column("number").to_list() == wanted
    steps = view.steps.select("episode_id").collect().get_column("episode_id")
    counts = {int(name[-6:]): count for name, count in steps.value_counts().iter_rows()}
    assert counts == {number: lengths[number] + 1 for number in wanted}
    assert view.runs.collect().height == (1 if wanted else 0)


def test_filters_name_damaged_files_of_episodes(tmp_path: Path) -> None:
    """A filter over a damaged column raises an error that names the file, and one over another works."""
    store = numbered_store(tmp_path / "store", [20, 30])
    file = damage(store.path, "episodes", "length")
    with pytest.raises(el.errors.CorruptStoreError, match=re.escape(str(file))):
        el.open(store.path).filter("length > 25")
    assert len(el.open(store.path).filter("number = 1")) == 1


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
    damage(store.path, "steps", "reward")
    with pytest.raises(el.errors.CorruptStoreError, match="steps"):
        el.open(store.path, check_pages=True).steps.select(total).collect()
    (file,) = (store.path / "steps").glob("*.parquet")
    file.unlink()
    with pytest.raises(el.errors.CorruptStoreError, match="missing"):
        el.open(store.path).steps.select(total).collect()


@pytest.mark.parametrize("read_only", [False, True])
def test_raw_connections_name_damaged_footers(tmp_path: Path, *, read_only: bool) -> None:
    """A connection names the file where a footer of steps is damaged; queries over episodes go on."""
    store = numbered_store(tmp_path / "store", [20, 30])
    (file,) = (store.path / "steps").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[-60] ^= 1
    file.write_bytes(data)
    with el.open(store.path).connect(read_only=read_only) as connection:
        for rows in ("steps", "transitions", "steps where reward is not null", "returns_to_go()"):
            with pytest.raises(duckdb.Error, match=re.escape(str(file))):
                connection.execute(f"select sum(reward) from {rows}").fetchall()
        assert connection.execute("select count(*) from episodes").fetchall() == [(2,)]


@looped("kind", [pa.date32(), pa.time64("us"), pa.decimal128(9, 2), pa.list_(pa.date32())])
def test_columns_of_foreign_types_are_refused(kind: pa.DataType) -> None:
    """A table with a column of a type that no store has is refused with the column's name."""
    with pytest.raises(el.errors.CorruptStoreError, match=r"'metadata\.day'"):
        check_stored_type("episodes", pa.field("metadata.day", kind))
