"""SQL: the four views, what a query reads, what it may see, and what is said when it is wrong."""

from __future__ import annotations

import gc
import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el
from effort import looped
from episodelake.testing.adapters import case
from log_edits import add_action, append_actions
from object_server import new_url, shared_server
from real_environments import (
    NUMBERED_SPACES,
    delta_files,
    numbered_return,
    numbered_store,
    values_of,
    write_numbered,
)

LENGTHS = [4, 1, 6, 3, 2, 9, 5, 1]
RETURNS = [numbered_return(value, length) for value, length in enumerate(LENGTHS)]
TABLES = ("runs", "episodes", "steps", "transitions")


# DuckDB 1 shows no counts of row groups, and has no plans in JSON that tell which columns a query reads.
DUCKDB_2 = pytest.mark.skipif(duckdb.__version__.startswith("1."), reason="needs plans of DuckDB 2")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Eight numbered episodes in four segments."""
    return numbered_store(tmp_path_factory.mktemp("sql") / "store", LENGTHS, seal_every=2)


@pytest.fixture
def own(store: el.EpisodeStore, tmp_path: Path) -> el.EpisodeStore:
    """A copy of the store that a test may change or spoil."""
    return el.open(shutil.copytree(store.path, tmp_path / "own"))


# What a query answers


def test_sql_and_polars_see_the_same_tables(store: el.EpisodeStore) -> None:
    """Each view equals the LazyFrame of the same name, in columns and in values."""
    for name in TABLES:
        frame = getattr(store, name).collect()
        table = store.sql(f"select * from {name}").pl()
        assert table.columns == frame.columns
        keys = [key for key in ("run_id", "episode_id", "t") if key in frame.columns]
        for column in frame.columns:
            left, right = (one.sort(keys)[column].to_list() for one in (table, frame))
            assert left == right, f"{name}.{column}"


def test_columns_with_dots_are_quoted_names(store: el.EpisodeStore) -> None:
    """An info or metadata column is reached by its name in double quotes, through an alias too."""
    query = 'select max("info.clock"), max(s."info.clock") from steps s'
    assert store.sql(query).fetchall()[0] == (max(LENGTHS), max(LENGTHS))
    query = 'select sum("metadata.value") from episodes where "metadata.group" = \'odd\''
    assert store.sql(query).fetchall()[0] == (1 + 3 + 5 + 7,)


def test_keys_with_forbidden_characters_are_percent_encoded(tmp_path: Path) -> None:
    """A dot, a space and the other characters that Delta forbids stand percent-encoded in column names."""
    keys = {"a.b": 1, "x y": 2, "semi;colon": 3, "{brace}": 4, "(round)": 5, "k=v": 6, "tab\t": 7, "l\n": 8}
    keys |= {'quo"te': 9, "größe": 10, "comma,": 11}
    columns = ["a%2Eb", "x%20y", "semi%3Bcolon", "%7Bbrace%7D", "%28round%29", "k%3Dv", "tab%09", "l%0A"]
    columns += ['quo"te', "größe", "comma%2C"]
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer() as writer:
        episode = writer.begin([0, 0], keys)
        episode.append(0, 0.0, [0, 0])
        episode.end()
    store.refresh()
    quoted = ", ".join('"' + f"info.{column}".replace('"', '""') + '"' for column in columns)
    assert store.sql(f"select {quoted} from steps where t = 0").fetchall()[0] == tuple(range(1, 12))
    assert store[0].infos == [keys, {}]


def test_times_are_utc_in_sql(store: el.EpisodeStore) -> None:
    """A time fetched by SQL is the same moment as the episode's own."""
    rows = store.sql("select started_at, ended_at from episodes order by number").fetchall()
    assert rows == [(episode.started_at, episode.ended_at) for episode in store]


def test_relations_live_beside_each_other(store: el.EpisodeStore) -> None:
    """Several relations can be held, and fetched in any order, without disturbing each other."""
    relations = [store.sql(f"select {number}, count(*) from steps where t = {number}") for number in range(5)]
    results = [relation.fetchall()[0] for relation in reversed(relations)]
    wanted = [(number, sum(length >= number for length in LENGTHS)) for number in range(5)]
    assert results == wanted[::-1]


def test_sql_on_a_view_sees_the_view(store: el.EpisodeStore) -> None:
    """The SQL of a filtered or sliced view shows its episodes and their rows alone, with their runs."""
    for view, values in ((store.filter(pl.col("length") > 3), [0, 2, 5, 6]), (store[1:7:3], [1, 4])):
        lengths = [LENGTHS[value] for value in values]
        query = 'select "metadata.value" from episodes order by 1'
        assert view.sql(query).fetchall() == [(value,) for value in values]
        assert view.sql("select count(*) from steps").fetchall()[0] == (sum(lengths) + len(lengths),)
        query = "select sum(reward), count(*) from transitions"
        assert view.sql(query).fetchall()[0] == (sum(RETURNS[value] for value in values), sum(lengths))
        assert view.sql("select count(*) from runs").fetchall()[0] == (1,)
        query = "select count(*) from steps anti join episodes using (episode_id)"
        assert view.sql(query).fetchall()[0] == (0,)


# Connections


def test_connections_are_independent(store: el.EpisodeStore) -> None:
    """What one connection makes or closes is not seen by another, nor by the store's own queries."""
    first, second = store.connect(), store.connect()
    first.execute("create table mine as select * from episodes where length > 3")
    assert first.execute("select count(*) from mine").fetchone() == (4,)
    for query in (lambda: second.execute("select * from mine"), lambda: store.sql("select * from mine")):
        with pytest.raises((duckdb.CatalogException, el.errors.QueryError)):
            query()
    first.close()
    assert second.execute("select count(*) from episodes").fetchone() == (8,)
    second.close()
    with pytest.raises(duckdb.ConnectionException):
        second.execute("select 1")
    assert store.sql("select count(*) from episodes").fetchall()[0] == (8,)
    with store.connect() as third:
        assert third.execute("select count(*) from steps").fetchone() == (sum(LENGTHS) + 8,)


@pytest.mark.parametrize("query", ["SELECT count(*) FROM steps", "SELECT count(run.name) FROM episodes"])
@pytest.mark.parametrize(("remote", "read_only"), [(False, False), (False, True), (True, False)])
def test_a_dropped_store_leaves_no_connection(
    store: el.EpisodeStore, query: str, remote: bool, read_only: bool
) -> None:
    """Dropping a store frees its DuckDB connections, with their threads and memory."""
    if remote:
        pytest.importorskip("obstore")
    url, options = store.url, shared_server().storage_options() if remote else None
    if remote:
        store.copy(url := new_url(), storage_options=options)
    own = el.open(url, storage_options=options)
    own.query(query, read_only=read_only)
    session = own._queries.session(read_only=read_only)
    connections = [weakref.ref(each) for each in session._connections.values()]
    assert connections and all(each() is not None for each in connections)
    del own, session
    gc.collect()
    assert [each() for each in connections] == [None] * len(connections)


def test_a_connection_takes_the_users_own_tables(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A connection can join the views with a file of the user's own."""
    notes = tmp_path / "notes.parquet"
    pl.DataFrame({"number": [1, 5], "note": ["short", "long"]}).write_parquet(notes)
    with store.connect() as connection:
        query = f"select note, length from episodes join '{notes}' using (number) order by number"
        assert connection.execute(query).fetchall() == [("short", 1), ("long", 9)]


def test_sql_does_not_spoil_the_next_query(own: el.EpisodeStore) -> None:
    """Whatever text was given to sql() before, the four views answer as ever."""
    for text in (
        "drop view steps",
        "create or replace view episodes as select 1",
        "create view mine as select 1",
        "use memory.information_schema",
        "set search_path = 'information_schema'",
        "begin",
        "delete from episodes",
        "not sql",
    ):
        try:
            own.sql(text)
        except el.errors.QueryError:
            continue
        for name in TABLES:
            assert own.sql(f"select count(*) from {name}").fetchall() != [], text
    assert own.sql("select count(*) from steps").fetchall()[0] == (sum(LENGTHS) + 8,)
    assert own.sql("select count(*) from episodes").fetchall()[0] == (8,)


def test_sql_leaves_the_files_alone(own: el.EpisodeStore) -> None:
    """Queries and connections write nothing into the store's folder."""
    before = {path: path.stat().st_mtime_ns for path in own.path.rglob("*")}
    own.sql("select * from steps").fetchall()
    with own.connect() as connection:
        connection.execute("create table copied as from steps")
    own.filter("length > 1").sql("from transitions").fetchall()
    assert {path: path.stat().st_mtime_ns for path in own.path.rglob("*")} == before


# Errors


def test_a_wrong_query_names_what_there_is(store: el.EpisodeStore) -> None:
    """A wrong query is a QueryError, raised at once, that names what was meant, or what there is."""
    cases: list[Any] = [
        ("select * from rewards", ["rewards", "episodes", "runs", "steps", "transitions"]),
        ("select retrun from episodes", ["retrun", "episode_return"]),
        ("select speed from steps", ["speed", "reward", "observation", "info.clock"]),
        ("select info.speed from steps", ["info.clock", '"']),
        ("select s.nothing from transitions s join episodes e using (episode_id)", ["nothing", "terminated"]),
        ("selec 1", ["selec"]),
        ("select count(* from steps", ["steps"]),
        ("select nonsense(reward) from steps", ["nonsense"]),
        ("select reward + observation from steps", ["DOUBLE, FLOAT[]"]),
        ("select * from read_parquet('no-such-file.parquet')", ["no-such-file"]),
        ("", []),
        ("   -- only a remark", []),
        ("select (", []),
        ("\x00", []),
    ]
    for query, named in cases:
        with case((query, named)):
            for view in (store, store[2:4]):
                with pytest.raises(el.errors.QueryError) as caught:
                    view.sql(query)
                assert isinstance(caught.value, ValueError)
                assert isinstance(caught.value, el.EpisodelakeError)
                for name in named:
                    assert name in str(caught.value)


# What a query reads


def scans(store: el.EpisodeStore, query: str) -> list[dict[str, Any]]:
    """Return what DuckDB's plan says of every Parquet scan of a query."""
    with store.connect() as connection:
        row = connection.execute(f"explain (format json) {query}").fetchone()
    assert row is not None
    found: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        if "PARQUET" in str(node["extra_info"].get("Function", "")):
            found.append(node["extra_info"])
        for child in node["children"]:
            walk(child)

    for root in json.loads(row[1]):
        walk(root)
    return found


def projected(scan: dict[str, Any]) -> set[str]:
    """Return the columns that a scan decodes for the rest of the plan."""
    columns = scan.get("Projections", [])
    return {columns} if isinstance(columns, str) else set(columns)


@looped(
    ("query", "columns"),
    [
        ("select sum(reward) from steps", {"reward"}),
        ("select sum(reward) from transitions", {"reward"}),
        ('select max("info.clock") from steps', {"info.clock"}),
        ("select avg(episode_return) from episodes", {"episode_return"}),
        ("select end_reason, count(*) from episodes group by 1", {"end_reason"}),
        ("select t, action from transitions", {"t", "action"}),
    ],
)
def test_only_the_needed_columns_are_read(store: el.EpisodeStore, query: str, columns: set[str]) -> None:
    """The scans of a query decode the columns that it names and no others, above all no observations."""
    found = scans(store, query)
    assert found
    for scan in found:
        assert projected(scan) <= columns | {"terminated"}
    assert set().union(*map(projected, found)) >= columns


@looped(
    ("query", "filters"),
    [
        ("select count(*) from steps where t > 5", ["t"]),
        ("select sum(reward) from transitions where t < 2 and reward > 1", ["t", "reward"]),
        ("select length from episodes where episode_return > 30", ["episode_return"]),
        ("select t from steps where episode_id = 'x'", ["episode_id"]),
        ('select t from steps where "info.clock" = 3', ["info.clock"]),
    ],
)
def test_conditions_reach_the_scan(store: el.EpisodeStore, query: str, filters: list[str]) -> None:
    """Conditions are pushed into the Parquet scan, where they can rule out row groups."""
    found = scans(store, query)
    assert found
    for scan in found:
        for name in filters:
            assert name in str(scan.get("Filters", ""))


@DUCKDB_2
def test_row_groups_that_cannot_match_are_skipped(store: el.EpisodeStore) -> None:
    """Asking for one episode scans the row group that holds it and skips those that cannot."""
    episode_id = store[5].id
    query = f"explain analyze select sum(reward) from steps where episode_id = '{episode_id}'"
    with store.connect() as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    scanned = re.search(r"Row Groups Scanned: (\d+) / (\d+)", row[1])
    assert scanned is not None
    assert int(scanned[1]) == 1
    assert int(scanned[2]) > 1


@DUCKDB_2
def test_damage_in_a_column_harms_only_its_queries(own: el.EpisodeStore) -> None:
    """A query that does not need a column does not touch its bytes, in SQL and in Polars alike."""
    for name in delta_files(own.path / "steps"):
        metadata = pq.ParquetFile(name).metadata
        group = metadata.row_group(0)
        column = next(
            group.column(index)
            for index in range(metadata.num_columns)
            if group.column(index).path_in_schema.startswith("observation")
        )
        start = column.dictionary_page_offset or column.data_page_offset
        with open(name, "r+b") as file:
            file.seek(start)
            file.write(b"\xff" * column.total_compressed_size)
    spoilt = el.open(own.path)
    assert spoilt.sql("select sum(reward) from transitions").fetchall()[0] == (sum(RETURNS),)
    assert spoilt.transitions.select(pl.col("reward").sum()).collect().item() == sum(RETURNS)
    assert np.array_equal(spoilt[3].rewards, [3 + t / 8 for t in range(LENGTHS[3])])
    with pytest.raises(el.errors.CorruptStoreError) as caught:
        np.asarray(spoilt[3].observations)
    assert ".parquet" in str(caught.value)


# What a query may see


def test_a_connection_keeps_its_snapshot(own: el.EpisodeStore) -> None:
    """While a writer adds episodes, an open connection, relation and store object show what they showed."""
    connection, relation = own.connect(), own.sql("select count(*) from steps")
    before = sum(LENGTHS) + 8
    with own.writer(run="more") as writer:
        for value in range(8, 11):
            write_numbered(writer, value, 2)
            writer.seal()
            assert connection.execute("select count(*) from steps").fetchone() == (before,)
            assert connection.execute("select count(*), count(distinct run_id) from episodes").fetchone() == (
                8,
                1,
            )
            assert own.sql("select count(*) from transitions").fetchall()[0] == (before - 8,)
            with el.open(own.path).connect() as fresh:
                assert fresh.execute("select count(*) from episodes").fetchone() == (value + 1,)
    assert relation.fetchall()[0] == (before,)
    connection.close()
    own.refresh()
    assert own.sql("select count(*) from steps").fetchall()[0] == (before + 9,)
    assert own.sql("select sum(reward) from transitions where episode_id like 'more%'").fetchall()[0] == (
        sum(numbered_return(value, 2) for value in range(8, 11)),
    )


def add_steps_file(store: el.EpisodeStore, name: str, rows: pa.Table) -> None:
    """Commit a Parquet file of steps to the raw Delta table."""
    path = store.path / "steps" / name
    pq.write_table(rows, path)
    append_actions(store.path / "steps", [add_action(path, {"numRecords": rows.num_rows})])


@pytest.mark.sample(1)
@pytest.mark.parametrize("ids", ["new ids", "ids that there are"])
def test_steps_that_no_episode_points_at_are_not_shown(own: el.EpisodeStore, ids: str) -> None:
    """A steps file without episodes, as a crash between two commits leaves it, is in no frame or query."""
    rows = pq.read_table(delta_files(own.path / "steps")[0])
    if ids == "new ids":
        index = rows.schema.get_field_index("episode_id")
        rows = rows.set_column(index, "episode_id", pa.array(["ghost/000000"] * rows.num_rows))
    add_steps_file(own, "ghost-000000.parquet", rows)
    assert len(delta_files(own.path / "steps")) == 5
    for store in (own, own.refresh(), el.open(own.path)):
        check_shown(store, range(8))
    with own.writer(run="after") as writer:
        write_numbered(writer, 8, 2)
    assert len(own.refresh()) == 9
    assert own.sql("select count(*) from steps").fetchall()[0] == (sum(LENGTHS) + 8 + 3,)


def test_rows_whose_episode_is_gone_are_not_shown(own: el.EpisodeStore) -> None:
    """When the episodes table no longer points at some rows of a steps file, no frame or query shows them."""
    episodes = own.path / "episodes"
    old = delta_files(episodes)
    rows = pa.concat_tables([pq.read_table(name) for name in sorted(old)])
    numbers = [0, 3, 4, 6]
    pq.write_table(
        rows.take([rows["number"].to_pylist().index(number) for number in numbers]), episodes / "less.parquet"
    )
    statistics = {"numRecords": 4, "nullCount": dict.fromkeys(rows.column_names, 0)}
    gone = [{"remove": {"path": Path(name).name, "deletionTimestamp": 0, "dataChange": True}} for name in old]
    append_actions(episodes, [*gone, add_action(episodes / "less.parquet", statistics)])
    check_shown(own, range(8))
    check_shown(own.refresh(), numbers)
    check_shown(el.open(own.path)[::-1][::-1], numbers)


def check_shown(view: el.EpisodeView, values: Any) -> None:
    """Check that every way of reading shows the rows of these numbered episodes and no others."""
    values = list(values)
    transitions, total = sum(LENGTHS[value] for value in values), sum(RETURNS[value] for value in values)
    steps = transitions + len(values)
    assert values_of(view) == values
    assert view.sql("select count(*), count(distinct episode_id) from steps").fetchall()[0] == (
        steps,
        len(values),
    )
    assert view.sql("select count(*), sum(reward) from transitions").fetchall()[0] == (transitions, total)
    assert view.steps.collect().height == steps
    assert view.steps.select(pl.len()).collect().item() == steps
    assert view.transitions.select(pl.col("reward").sum()).collect().item() == total
    for value, episode in zip(values, view, strict=True):
        assert np.array_equal(episode.observations[:, 1], range(LENGTHS[value] + 1))
        assert episode.frame().height == LENGTHS[value] + 1
    with view.connect() as connection:
        assert connection.execute("select sum(reward) from steps").fetchone() == (total,)
        one = "select count(*) from steps where episode_id = ?"
        assert connection.execute(one, [view[0].id]).fetchone() == (LENGTHS[values[0]] + 1,)
