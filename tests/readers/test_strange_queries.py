"""Queries that would change what others see, come from threads, give macros odd arguments, or meet damage."""

from __future__ import annotations

import math
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import episodelake as el
from effort import looped
from episodelake.testing.adapters import case
from real_environments import numbered_store
from test_namespaces import vector_store

LENGTHS = [4, 1, 6, 3]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Four numbered episodes."""
    return numbered_store(tmp_path_factory.mktemp("strange") / "store", LENGTHS)


@looped(
    "text",
    [
        "explain analyze create or replace view episodes as select 1 as length",
        "explain /* a remark */ analyze create or replace macro obs(i) as 99",
        "explain (analyze) create temp table episodes as select 1 as length",
        "explain analyze create temp table episodes as pivot runs on name using count(*)",
        "create temp table episodes as pivot runs on name using count(*)",
        "explain analyze prepare kept as select 1",
    ],
)
def test_a_statement_within_another_is_no_query(store: el.EpisodeStore, text: str) -> None:
    """EXPLAIN ANALYZE carries out what follows it, a PIVOT can fill a table: neither may change anything."""
    for read_only in (True, False):
        with pytest.raises(el.errors.QueryError, match="is not a query"):
            store.sql(text, read_only=read_only)
        assert store.query("select length from episodes", read_only=read_only)["length"].to_list() == LENGTHS


@pytest.mark.parametrize("some", [False, True])
def test_a_stranger_finds_no_table_to_change(store: el.EpisodeStore, some: bool) -> None:
    """What a connection that may only read keeps in memory is no table: a WITH cannot delete or add rows."""
    view = store[1:3] if some else store
    expected = LENGTHS[1:3] if some else LENGTHS
    names = view.query("select view_name from duckdb_views()", read_only=True)["view_name"].to_list()
    assert view.query("select table_name from duckdb_tables()", read_only=True).is_empty()
    for name in [*names, "_kept_episodes", "_chosen_episodes"]:
        for change in (f"delete from {name}", f"insert into {name} from {name}"):
            with pytest.raises(el.errors.QueryError):
                view.query(f"with changed as ({change} returning *) from changed", read_only=True)
    assert view.query("select length from episodes", read_only=True)["length"].to_list() == expected


def test_all_that_only_asks_is_answered(store: el.EpisodeStore) -> None:
    """Plans, summaries and pivots are queries."""
    cases: list[Any] = [
        "explain select length from episodes",
        "explain analyze select length from episodes",
        "explain (format json) select length from episodes",
        "explain (select length from episodes)",
        "explain pivot runs on name using count(*)",
        "pivot runs on name using count(*)",
        "with mine as (from runs) pivot mine on name using count(*)",
        "summarize episodes",
        "describe episodes",
        "values (1)",
        "-- a remark\n(from episodes)",
    ]
    for text in cases:
        with case(text):
            for read_only in (True, False):
                assert len(store.query(text, read_only=read_only)) > 0


def test_transitions_have_no_next_observation(store: el.EpisodeStore) -> None:
    """The error of a query says which view has it."""
    for text in (
        "select next_observation from transitions",
        "with transitions as (from steps) select next_observation from transitions",
    ):
        with pytest.raises(
            el.errors.QueryError, match="next_observation is a column of transitions_with_next"
        ):
            store.query(text)


@pytest.mark.sample(1)
@pytest.mark.parametrize("read_only", [False, True])
def test_threads_may_ask_one_view(store: el.EpisodeStore, read_only: bool) -> None:
    """Each gets its own answer, and none is refused because another query runs."""

    def ask(number: int) -> tuple[int, int]:
        text = f"select {number} as number, count(*) as rows from steps, range(200)"
        return store.query(text, read_only=read_only).row(0)

    rows = 200 * sum(length + 1 for length in LENGTHS)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(24))) == [(number, rows) for number in range(24)]


def test_a_view_with_a_query_behind_it_is_pickled(store: el.EpisodeStore) -> None:
    """What queries need stays here; the other side makes its own."""
    store.query("from episodes")
    again = pickle.loads(pickle.dumps(store[1:]))
    assert_frame_equal(again.query("from episodes"), store[1:].query("from episodes"))


@looped(
    ("text", "told"),
    [
        ("from step_histogram(t, 0)", "bins is 0; expected a whole number of at least 1"),
        ("from step_histogram(t, -2)", "bins is -2; expected"),
        ("from step_histogram(t, null)", "bins is NULL; expected"),
        ("from moving_return(0)", "episodes is 0; expected a whole number of at least 1"),
        ("from transitions_of(0)", "takes the id of an episode; for a position use"),
        ("select obs(0) from episodes", "observation is a column of steps, which is not read here"),
        ("select '\udcff' as told", "no text in UTF-8"),
    ],
)
def test_what_a_macro_cannot_take_is_told(store: el.EpisodeStore, text: str, told: str) -> None:
    """The message says what was given, and what is expected."""
    with pytest.raises(el.errors.QueryError, match=told) as caught:
        store.query(text)
    assert "Nearest: observation" not in str(caught.value)
    with pytest.raises(el.errors.QueryError, match="no text in UTF-8"):
        store.filter("length > '\udcff'")


def test_a_vector_is_no_number(tmp_path: Path) -> None:
    """Percentiles of vector rewards need one of their numbers."""
    vectors = vector_store(tmp_path / "store")
    with pytest.raises(el.errors.QueryError, match=r"name an element, such as reward\[1\]"):
        vectors.query("from step_percentiles(reward)")
    assert len(vectors.query("from step_percentiles(reward[1])"))


@pytest.mark.parametrize("value", ["1", "1e308", "-5e-324"])
def test_a_constant_has_one_bin(store: el.EpisodeStore, value: str) -> None:
    """All values are one, so there is nothing to cut."""
    rows = sum(length + 1 for length in LENGTHS)
    assert store.query(f"from step_histogram({value})").rows() == [(float(value), float(value), rows)]


def test_bins_of_the_largest_numbers(store: el.EpisodeStore) -> None:
    """Their span is more than the largest number, their edges are not."""
    found = store.query("from step_histogram(case when t = 0 then 1e308 else -1e308 end, 4)")
    assert found["low"].to_list() == [-1e308, -5e307, 0, 5e307]
    assert found["high"].to_list() == [-5e307, 0, 5e307, 1e308]
    assert found["count"].to_list() == [sum(LENGTHS), 0, 0, len(LENGTHS)]
    assert all(math.isfinite(edge) for edge in found["high"])


def test_bins_leave_out_what_is_not_finite(store: el.EpisodeStore) -> None:
    """Infinities and NaN do not spoil the bins of the others."""
    odd = "case t when 0 then 'inf'::double when 1 then 'nan'::double else t end"
    found = store.query(f"from step_histogram({odd}, 4)")
    assert all(math.isfinite(edge) for edge in (*found["low"], *found["high"]))
    assert found["count"].sum() == sum(max(0, length - 1) for length in LENGTHS)


def end_of_pages(file: Path) -> int:
    """Where the pages of a Parquet file end."""
    with pq.ParquetFile(file) as opened:
        group = opened.metadata.row_group(opened.metadata.num_row_groups - 1)
        last = group.column(group.num_columns - 1)
        return min(last.dictionary_page_offset or last.data_page_offset, last.data_page_offset)


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[el.EpisodeStore, str]:
    """A store whose first file of steps has other bytes in its pages; and the name of the file."""
    made = numbered_store(tmp_path / "store", LENGTHS, seal_every=2)
    name = str(made.episodes.collect()["segment"][0])
    file = Path(made.path) / "steps" / name
    content = np.frombuffer(file.read_bytes(), np.uint8).copy()
    content[4 : end_of_pages(file)] ^= 0x5A
    file.write_bytes(content.tobytes())
    return el.open(shutil.copytree(made.path, tmp_path / "damaged")), name


@pytest.mark.sample(1)
@pytest.mark.parametrize("read_only", [False, True])
def test_queries_name_the_damaged_file_and_go_on_without(
    damaged: tuple[el.EpisodeStore, str], read_only: bool
) -> None:
    """Whatever the engine says of it; a view without its episodes, as the message has it, is answered."""
    store, name = damaged
    with pytest.raises(el.errors.CorruptStoreError, match=name) as caught:
        store.query("select sum(obs(0)), sum(reward) from steps", read_only=read_only)
    condition = f"segment <> '{name}'"
    assert f'store.filter("{condition}")' in str(caught.value)
    rest = store.filter(condition)
    found = rest.query("select count(*) as rows, sum(reward) as total from steps", read_only=read_only)
    assert found["rows"].item() == sum(length + 1 for length in LENGTHS[2:])
    assert found["total"].item() == sum(rest.episodes.collect()["episode_return"])
    assert len(store.query("from episodes", read_only=read_only)) == len(LENGTHS)


def test_a_damaged_footer_hinders_only_what_reads_its_file(damaged: tuple[el.EpisodeStore, str]) -> None:
    """A file that is cut short is named, with a way on; views without its episodes are asked as ever."""
    store, name = damaged
    file = Path(str(store.path)) / "steps" / name
    file.write_bytes(file.read_bytes()[:-20])
    store = el.open(store.path)
    condition = f"segment <> '{name}'"
    asked = (lambda: store.query("from steps"), lambda: store.steps.collect(), store.plot.actions)
    for ask in asked:
        with pytest.raises(el.errors.CorruptStoreError, match=name) as caught:
            ask()
        assert f'store.filter("{condition}")' in str(caught.value)
    with pytest.raises(el.errors.QueryError, match="Could not convert"):
        store.query("select end_reason::int from episodes")
    rest = store.filter(condition)
    transitions = sum(LENGTHS[2:])
    for read_only in (False, True):
        counted = rest.query("select count(*) from transitions", read_only=read_only)
        assert counted.item() == transitions
    assert rest.sql("from transitions_with_next select next_observation").pl().height == transitions
    assert rest.steps.collect().height == transitions + len(LENGTHS[2:])
    assert len(rest.filter("episode_id in (select episode_id from steps where t = 0)")) == len(LENGTHS[2:])
    assert rest.plot.actions().to_dict()
    with pytest.raises(el.errors.QueryError, match="Could not convert"):
        rest.query("select end_reason::int from steps join episodes using (episode_id)")


def test_filters_and_charts_name_the_damaged_file(damaged: tuple[el.EpisodeStore, str]) -> None:
    """A condition that reads steps, and a chart of them."""
    store, name = damaged
    with pytest.raises(el.errors.CorruptStoreError, match=name):
        store.filter("episode_id in (select episode_id from steps where obs(0) > 0 and reward > 0)")
    with pytest.raises(el.errors.CorruptStoreError, match=name):
        store.plot.visitation()
    assert store.filter(f"segment <> '{name}'").plot.visitation().to_dict()


def test_show_tables_lists_what_there_is_to_ask(tmp_path: Path) -> None:
    """`SHOW TABLES` lists the five tables of a store; what they are made of begins with an underscore."""
    store = el.create(tmp_path / "store", gymnasium.make("CartPole-v1"))
    tables = ["episodes", "runs", "steps", "transitions", "transitions_with_next"]
    for text in ("show tables", " SHOW ALL TABLES; "):
        for read_only in (False, True):
            names = store.query(text, read_only=read_only)["name"].to_list()
            assert [name for name in names if not name.startswith("_")] == tables


@pytest.fixture
def of_a_lot(tmp_path: Path) -> el.EpisodeStore:
    """A store with one episode of a run that has metadata."""
    store = el.create(tmp_path / "store", gymnasium.make("CartPole-v1"))
    with store.record(gymnasium.make("CartPole-v1"), run="lean", metadata={"lot": 3}) as env:
        env.reset(seed=0)
        env.step(0)
    return store.refresh()


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("name = 'lean'", "name"),
        ("runs.name = 'lean'", "name"),
        ("metadata.lot = 3", "metadata.lot"),
        ('"metadata.lot" = 3', "metadata.lot"),
    ],
)
def test_a_filter_by_a_column_of_runs_says_how(of_a_lot: el.EpisodeStore, condition: str, name: str) -> None:
    """A condition that names a column of runs is told where it is; what the message says works."""
    way = f"run.{name.removeprefix('metadata.')}"
    with pytest.raises(el.errors.QueryError) as caught:
        of_a_lot.filter(condition)
    assert "write run.KEY" in str(caught.value) and name in str(caught.value)
    assert "_positioned" not in str(caught.value)
    value = condition.rpartition(" ")[2]
    assert len(of_a_lot.filter(f"{way} = {value}")) == 1


@pytest.mark.parametrize("condition", ["lot = 3", "lott = 3", "metadata.lott = 3", "run.lott = 3"])
def test_a_misspelt_column_of_runs_is_found(of_a_lot: el.EpisodeStore, condition: str) -> None:
    """Nothing of the episodes is like it, but a key of their runs is, as a condition can have it."""
    with pytest.raises(el.errors.QueryError, match=r"Nearest: run\.lot"):
        of_a_lot.filter(condition)


@pytest.mark.parametrize(
    ("text", "told", "mended"),
    [
        (
            "select run_id, avg(obs(0)) from steps group by all",
            "run_id is a column of runs and episodes, which is not read here. Queries JOIN episodes USING",
            "select run_id, avg(obs(0)) from steps JOIN episodes USING (episode_id) group by all",
        ),
        (
            'select "metadata.lot", avg(reward) from transitions group by all',
            "metadata.lot is a column of runs, which is not read here.",
            "select run.lot, avg(reward) from transitions JOIN episodes USING (episode_id) group by all",
        ),
        (
            "select env_spec, avg(reward) from steps group by all",
            "env_spec is a column of runs, which is not read here.",
            "select env_spec, avg(reward) from steps JOIN episodes USING (episode_id) "
            "JOIN runs USING (run_id) group by all",
        ),
        (
            "select length from transitions",
            "length is a column of episodes, which is not read here.",
            "select length from transitions JOIN episodes USING (episode_id) limit 1",
        ),
        (
            "select run.lott from episodes",
            "There is no key 'run.lott'. Nearest: run.lot",
            "select run.lot from episodes",
        ),
    ],
)
def test_an_error_names_the_table_of_a_column(
    of_a_lot: el.EpisodeStore, text: str, told: str, mended: str
) -> None:
    """A column of another table is named with it and the ways to join, which work."""
    with pytest.raises(el.errors.QueryError) as caught:
        of_a_lot.query(text)
    assert told in str(caught.value)
    assert len(of_a_lot.query(mended)) == 1
