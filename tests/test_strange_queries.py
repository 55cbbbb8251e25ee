"""Queries that would change what others see, that threads ask at once, and that name transitions in odd places."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from polars.testing import assert_frame_equal

import episodelake as el
from real_environments import numbered_store

LENGTHS = [4, 1, 6, 3]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Four numbered episodes."""
    return numbered_store(tmp_path_factory.mktemp("strange") / "store", LENGTHS)


@pytest.mark.parametrize(
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
    """EXPLAIN ANALYZE carries out what follows it, and a PIVOT can fill a table: neither may change anything."""
    for read_only in (True, False):
        with pytest.raises(el.QueryError, match="is not a query"):
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
            with pytest.raises(el.QueryError):
                view.query(f"with changed as ({change} returning *) from changed", read_only=True)
    assert view.query("select length from episodes", read_only=True)["length"].to_list() == expected


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_all_that_only_asks_is_answered(store: el.EpisodeStore, text: str) -> None:
    """Plans, summaries and pivots are queries."""
    for read_only in (True, False):
        assert len(store.query(text, read_only=read_only)) > 0


def test_next_observations_of_transitions_leave_the_text_alone(store: el.EpisodeStore) -> None:
    """Texts, remarks and names of columns that say transitions stay as they are written."""
    found = store.query(
        "select 'née transitions' as told, count(*) as transitions, count(next_observation) as following "
        "/* transitions */ from transitions -- transitions"
    )
    count = sum(LENGTHS)
    assert found.rows(named=True) == [{"told": "née transitions", "transitions": count, "following": count}]


@pytest.mark.parametrize(
    "text",
    [
        "with long as (from transitions where t > 2) select count(next_observation) as n from long",
        "with recursive long as (from transitions where t > 2) select count(next_observation) as n from long",
        "from transitions select count(next_observation) as n where t > 2",
        "(select count(next_observation) as n from transitions where t > 2)",
    ],
)
def test_next_observations_are_found_wherever_transitions_stand(store: el.EpisodeStore, text: str) -> None:
    """In a WITH, behind a FROM that comes first, in brackets."""
    assert store.query(text)["n"].item() == sum(max(0, length - 3) for length in LENGTHS)


def test_transitions_of_ones_own_have_no_next_observation(store: el.EpisodeStore) -> None:
    """A query that calls something of its own transitions is told where next observations are."""
    with pytest.raises(el.QueryError, match="transitions_with_next"):
        store.query("with transitions as (from steps) select next_observation from transitions")


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
