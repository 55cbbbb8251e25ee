"""Damaged pages: by default no engine answers from one, whichever bytes of a file changed."""

from __future__ import annotations

import contextlib
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
from episodelake.readers import damaged_files
from episodelake.store.files import locate
from episodelake.store.parquet import page_checks
from episodelake.store.schema import check_stored_type
from real_environments import numbered_store

#: Limits of `damaged_files` (bytes of a small table, bytes that a selective query checks), for each path.
LIMITS = {"small": (32 << 20, 1 << 30), "by columns": (0, 1 << 30), "by row groups": (0, 0)}
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
}
ERRORS = (el.errors.CorruptStoreError, el.errors.QueryError, pl.exceptions.ComputeError, duckdb.Error)


@pytest.fixture(params=LIMITS)
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How much the guard checks at once."""
    few, most = LIMITS[request.param]
    monkeypatch.setattr(damaged_files, "_FEW_BYTES", few)
    monkeypatch.setattr(damaged_files, "_MOST_BYTES", most)
    return request.param


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


@pytest.mark.sample
@pytest.mark.parametrize("reader", READERS)
def test_no_engine_answers_from_a_damaged_page(tmp_path: Path, limits: str, reader: str) -> None:
    """Frames and queries that need a damaged column fail, without asking for a check."""
    store = numbered_store(tmp_path / "store", [20, 30])
    READERS[reader](store)
    damage(store.path, "steps", "reward")
    for opened in (el.open(store.path), el.open(store.path)):
        with pytest.raises(ERRORS):
            READERS[reader](opened)


def test_a_damaged_page_is_named_with_its_column(tmp_path: Path, limits: str) -> None:
    """The error of a query names the file and the column, and says how to go on without."""
    store = numbered_store(tmp_path / "store", [20, 30])
    file = damage(store.path, "steps", "reward")
    with pytest.raises(el.errors.CorruptStoreError, match=f"{re.escape(str(file))}.*'reward'.*store.filter"):
        el.open(store.path).query("select sum(reward) from steps")


def test_other_columns_are_answered(tmp_path: Path, limits: str) -> None:
    """A damaged column takes no query with it that does without."""
    store = numbered_store(tmp_path / "store", [20, 30])
    damage(store.path, "steps", "reward")
    store = el.open(store.path)
    assert store.query("select sum(t) from steps").item() == sum(range(21)) + sum(range(31))
    assert store.query("select count(*) from steps where t > 20").item() == 10
    assert store.steps.select(pl.col("t").max()).collect().item() == 30


@pytest.mark.sample
@pytest.mark.parametrize(
    "chosen", [slice(4, 6), slice(7, None), slice(None, None, -1), slice(0, 8, 3), slice(8, 8)]
)
def test_views_read_the_files_of_their_episodes_alone(tmp_path: Path, limits: str, chosen: slice) -> None:
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


@pytest.mark.sample
@pytest.mark.parametrize("condition", [pl.col("length") > 25, "length > 25"])
def test_filters_name_damaged_files_of_episodes(
    tmp_path: Path, limits: str, condition: pl.Expr | str
) -> None:
    """A filter over a damaged column raises an error that names the file, and one over another works."""
    store = numbered_store(tmp_path / "store", [20, 30])
    file = damage(store.path, "episodes", "length")
    with pytest.raises(el.errors.CorruptStoreError, match=re.escape(str(file))):
        el.open(store.path).filter(condition)
    assert len(el.open(store.path).filter("number = 1")) == 1


def test_every_changed_byte_of_pages_is_noticed(tmp_path: Path) -> None:
    """With any one bit of the pages flipped, the check fails, or DuckDB fails or reads the same rows."""
    store = numbered_store(tmp_path / "store", [6, 3])
    (file,) = (store.path / "steps").glob("*.parquet")
    data = file.read_bytes()
    names = pq.read_schema(file).names
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    right = duckdb.sql(f"from read_parquet('{file}')").fetchall()
    unnoticed = 0
    for place in range(4, footer):
        copy = tmp_path / f"{place}.parquet"
        copy.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            page_checks.check(page_checks.unchecked([locate(copy)], names))
        except el.errors.CorruptStoreError:
            pass
        else:
            unnoticed += 1
            with contextlib.suppress(duckdb.Error):
                found = duckdb.sql(f"from read_parquet('{copy}')").fetchall()
                assert repr(found) == repr(right), place
        copy.unlink()
    assert unnoticed < footer / 2


def test_files_of_other_writers_pass(tmp_path: Path) -> None:
    """A file without our checksums is taken as it is; several row groups and pages are walked."""
    table = pa.table({"number": list(range(5000)), "text": [f"{n}" for n in range(5000)]})
    for sums in (False, True):
        file = tmp_path / f"{sums}.parquet"
        pq.write_table(table, file, row_group_size=1700, data_page_size=512, write_page_checksum=sums)
        places = [locate(file)]
        page_checks.check(page_checks.unchecked(places, ["number", "text", "absent"]))
        assert page_checks.all_checked(places, ["number", "text", "absent"])


@pytest.mark.parametrize("read_only", [False, True])
def test_raw_connections_name_damaged_footers(tmp_path: Path, *, read_only: bool) -> None:
    """A connection names the file where a footer of steps is damaged; queries over episodes go on."""
    store = numbered_store(tmp_path / "store", [20, 30])
    (file,) = (store.path / "steps").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[-60] ^= 1
    file.write_bytes(data)
    with el.open(store.path).connect(read_only=read_only) as connection:
        for table in ("steps", "transitions"):
            with pytest.raises(duckdb.Error, match=re.escape(str(file))):
                connection.execute(f"select sum(reward) from {table}").fetchall()
        assert connection.execute("select count(*) from episodes").fetchall() == [(2,)]


@pytest.mark.parametrize("kind", [pa.date32(), pa.time64("us"), pa.decimal128(9, 2), pa.list_(pa.date32())])
def test_columns_of_foreign_types_are_refused(kind: pa.DataType) -> None:
    """A table with a column of a type that no store has is refused with the column's name."""
    with pytest.raises(el.errors.CorruptStoreError, match=r"'metadata\.day'"):
        check_stored_type("episodes", pa.field("metadata.day", kind))
