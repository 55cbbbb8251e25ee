"""Lakes: many stores below one folder, compared with plain DuckDB and Polars over the raw files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box, Discrete

import episodelake as el
from episodelake.lakes import lake as lake_module
from episodelake.lakes import listing, moving
from log_edits import read_actions, write_actions
from real_environments import NUMBERED_SPACES, delta_files, write_numbered
from test_cli import call, no_terminal, printed, refused, table
from waiting import PATIENCE

__all__ = ["no_terminal"]

SPACES: dict[str, Any] = {"observation_space": Box(-1, 1, (2,), np.float32), "action_space": Discrete(2)}


def add(store: el.EpisodeStore, lengths: list[int], run: str = "run", **metadata: Any) -> el.EpisodeStore:
    """Write numbered episodes of these lengths in a run with metadata."""
    with store.writer(run=run, metadata=metadata or None) as writer:
        for value, length in enumerate(lengths):
            write_numbered(writer, value, length)
    return store.refresh()


def made(root: Path, name: str, lengths: list[int], **metadata: Any) -> el.EpisodeStore:
    """A new store of numbered episodes in a lake."""
    return add(el.create(root / name, **NUMBERED_SPACES), lengths, **metadata)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with three stores, one of them without episodes."""
    made(tmp_path, "pole/ppo", [3, 1, 4], lr=0.5)
    made(tmp_path, "pole/dqn", [2, 2], lr=0.25)
    el.create(tmp_path / "empty", **NUMBERED_SPACES)
    return tmp_path


def raw(root: Path, table: str) -> duckdb.DuckDBPyRelation:
    """The rows of a table of all stores by plain DuckDB, each with the name of its store."""
    folders = [path.parent for path in root.rglob("store.json")]
    parts = [
        f"SELECT '{folder.relative_to(root).as_posix()}' AS store, * "
        f"FROM read_parquet('{folder / table / name}')"
        for folder in folders
        for name in delta_files(folder / table)
    ]
    return duckdb.connect().sql(" UNION ALL BY NAME ".join(parts))


# Listing


def test_a_lake_opens_a_store_that_exists(root: Path) -> None:
    """`create(exist_ok=True)` opens it, and refuses other spaces."""
    lake = el.lake(root)
    assert len(lake.create("pole/ppo", **NUMBERED_SPACES, exist_ok=True)) == 3
    with pytest.raises(el.errors.SpaceMismatchError, match="space"):
        lake.create("pole/ppo", **SPACES, exist_ok=True)
    with pytest.raises(el.errors.StoreExistsError):
        lake.create("pole/ppo", **NUMBERED_SPACES)


def test_the_environment_names_a_default_lake(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lake()` opens the folder of EPISODELAKE_ROOT, and says so where there is none."""
    monkeypatch.setenv("EPISODELAKE_ROOT", str(root))
    assert list(el.lake()) == list(el.lake(root))
    assert list(el.lake(root / "pole")) == ["dqn", "ppo"]
    for unset in ("", None):
        monkeypatch.delenv("EPISODELAKE_ROOT") if unset is None else monkeypatch.setenv(
            "EPISODELAKE_ROOT", unset
        )
        with pytest.raises(el.errors.InvalidArgumentError, match="EPISODELAKE_ROOT"):
            el.lake()


def test_a_lake_lists_its_stores(root: Path) -> None:
    """Every store has a row with its amounts, whatever folders lie in between."""
    lake = el.lake(root)
    frame = lake.stores()
    assert frame["store"].to_list() == list(lake) == ["empty", "pole/dqn", "pole/ppo"]
    assert len(lake) == 3
    for row in frame.iter_rows(named=True):
        store = el.open(row["url"])
        assert Path(row["url"]) == root / row["store"]
        assert row["version"] == store.version
        assert row["episodes"] == len(store)
        assert row["steps"] == store.transitions.collect().height
        files = [
            root / row["store"] / t / f
            for t in ("runs", "episodes", "steps")
            for f in delta_files(root / row["store"] / t)
        ]
        assert row["bytes"] == sum(file.stat().st_size for file in files)
        assert row["created"] <= row["updated"]
        assert row["error"] is None


def test_environments_and_agents_count(tmp_path: Path) -> None:
    """The ids of environments come from the runs; the transitions of several agents are all counted."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "pole", env)
    el.collect(env, None, store, episodes=2, seed=0)
    agents = {name: (Discrete(3), Discrete(2)) for name in ("a", "b")}
    team = el.create(tmp_path / "team", agents=agents)
    with team.team_writer() as writer:
        game = writer.begin({"a": 0, "b": 0})
        game.append({"a": 1, "b": 0}, {"a": 1.0, "b": 0.0}, {"a": 1, "b": 1})
        game.append({"a": 1}, {"a": 1.0}, {"a": 1})
        game.end()
    frame = el.lake(tmp_path).stores()
    assert frame["env_ids"].to_list() == [["CartPole-v1"], []]
    assert frame["steps"].to_list() == [
        el.open(tmp_path / n).transitions.collect().height for n in ("pole", "team")
    ]
    assert el.lake(tmp_path).sql("SELECT store, agents FROM episodes ORDER BY ALL").fetchall()[-1] == (
        "team",
        ["a", "b"],
    )


def test_what_is_no_store_is_passed_over(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hidden folders, links, and folders in a store are not looked into."""
    outside = tmp_path_factory.mktemp("outside")
    made(outside, "secret", [1])
    shutil.copytree(root / "empty", root / ".staging" / "copy")
    shutil.copytree(root / "empty", root / "pole/ppo/inner")
    (root / "link").symlink_to(outside)
    (root / "notes").mkdir()
    (root / "notes" / "store.txt").write_text("none")
    lake = el.lake(root)
    assert list(lake) == ["empty", "pole/dqn", "pole/ppo"]
    with pytest.raises(el.errors.InvalidArgumentError, match="is a link, which may lead out"):
        lake["link/secret"]
    assert "link/secret" not in lake


def test_only_changed_stores_are_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh reads the one store that grew, and forgets the one that is gone."""
    lake = el.lake(root)
    lake.stores()
    counted: list[set[str]] = []
    real = listing._figures

    def figures(tables: Any) -> Any:
        counted.append(set(tables.stores))
        return real(tables)

    monkeypatch.setattr(listing, "_figures", figures)
    assert lake.refresh() is lake
    assert counted == []
    add(el.open(root / "pole/dqn"), [5], "more")
    shutil.rmtree(root / "empty")
    # What it shows does not change before.
    assert lake.stores()["episodes"].to_list() == [0, 2, 3]
    assert lake.refresh().stores()["episodes"].to_list() == [3, 3]
    assert counted == [{"pole/dqn"}]
    assert lake.sql("SELECT count(*) FROM episodes").fetchall() == [(6,)]
    shutil.rmtree(root / "pole/ppo")
    made(root, "pole/ppo", [1, 1, 1, 1])
    assert lake.refresh().stores()["episodes"].to_list() == [3, 4]


def test_a_copy_that_went_on_apart_is_read_again(tmp_path: Path) -> None:
    """It has the identity and the version of the store that it replaces, and other episodes."""
    made(tmp_path, "a", [1])
    shutil.copytree(tmp_path / "a", tmp_path / ".copy")
    add(el.open(tmp_path / "a"), [3], "second")
    add(el.open(tmp_path / ".copy"), [4], "second")
    lake = el.lake(tmp_path)
    text = "SELECT length FROM episodes ORDER BY 1"
    assert lake.sql(text).fetchall() == [(1,), (3,)]
    shutil.rmtree(tmp_path / "a")
    (tmp_path / ".copy").rename(tmp_path / "a")
    assert lake.refresh().sql(text).fetchall() == [(1,), (4,)]


def test_a_folder_without_stores(tmp_path: Path) -> None:
    """It has no row, its tables have the standard columns, and the first store can be created in it."""
    lake = el.lake(tmp_path / "new")
    assert lake.stores().is_empty()
    assert lake.sql("SELECT count(*), max(episode_return) FROM episodes").fetchall() == [(0, None)]
    assert lake.runs.collect().height == 0
    store = lake.create("a/b", **NUMBERED_SPACES)
    assert store.path == tmp_path / "new/a/b"
    assert list(lake) == ["a/b"]


def test_a_store_or_a_file_is_no_lake(root: Path) -> None:
    """The error says what it is instead."""
    (root / "file").write_text("")
    for path, words in (
        (root / "empty", "is a store"),
        (root / "empty/steps", "is inside the store"),
        (root / "file", "is a file"),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match=words):
            el.lake(path)


def test_a_lake_has_bounds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that are too deep, or too many, end the look with an error that says where."""
    (root / "/".join("abcdefghijklm")).mkdir(parents=True)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"deep, such as 'a/b/c"):
        el.lake(root).stores()
    shutil.rmtree(root / "a")
    monkeypatch.setattr("episodelake.lakes.walk.MOST_FOLDERS", 4)
    with pytest.raises(el.errors.InvalidArgumentError, match="more than 4 folders"):
        el.lake(root).stores()


# Questions


def test_sql_answers_as_duckdb_over_the_raw_files(root: Path) -> None:
    """Episodes and runs have every row and column of every store."""
    lake = el.lake(root)
    for kind in ("episodes", "runs"):
        theirs = raw(root, kind)
        names = ", ".join(f'"{name}"' for name in theirs.columns)
        ours = lake.sql(f"SELECT {names} FROM {kind}")
        assert sorted(lake.sql(f"FROM {kind}").columns) == sorted(theirs.columns)
        assert sorted(ours.fetchall(), key=repr) == sorted(theirs.fetchall(), key=repr)
    assert lake.sql("SELECT store, max(length) FROM episodes GROUP BY 1 ORDER BY 1").fetchall() == [
        ("pole/dqn", 2),
        ("pole/ppo", 4),
    ]
    joined = (
        "SELECT store, name FROM episodes JOIN runs USING (store, run_id) JOIN stores USING (store) "
        "WHERE stores.episodes > ?"
    )
    assert lake.sql(joined, [2]).fetchall() == [("pole/ppo", "run")] * 3
    assert lake.sql("SHOW TABLES").fetchall() == [("episodes",), ("runs",), ("stores",)]


def test_a_query_for_strangers_sees_the_lake_alone(root: Path) -> None:
    """With `read_only` the answers are the same, and no other file can be read."""
    lake = el.lake(root)
    text = (
        "SELECT store, count(*), sum(episode_return) FROM episodes WHERE store <> 'x' GROUP BY 1 ORDER BY 1"
    )
    assert lake.sql(text, read_only=True).fetchall() == lake.sql(text).fetchall()
    with pytest.raises(el.errors.QueryError):
        lake.sql(f"SELECT * FROM read_parquet('{root}/pole/ppo/steps/*.parquet')", read_only=True)


def test_frames_answer_as_polars_over_the_raw_files(root: Path) -> None:
    """Filters, columns and slices of the lazy frames give what the files hold, whatever their order."""
    lake = el.lake(root)
    parts = [
        pl.read_parquet(root / name / "episodes" / file).select(pl.lit(name).alias("store"), pl.all())
        for name in ("pole/dqn", "pole/ppo")
        for file in delta_files(root / name / "episodes")
    ]
    theirs = pl.concat(parts, how="diagonal").sort("store", "episode_id")
    ours = lake.episodes.sort("store", "episode_id").collect()
    assert ours.select(theirs.columns).equals(theirs)
    long = pl.col("length") > 1
    assert lake.episodes.filter(long).select("episode_id").collect().height == theirs.filter(long).height
    assert lake.episodes.filter(long).head(2).collect()["length"].min() > 1
    assert lake.episodes.head(2).filter(long).collect().height <= 2
    assert pl.collect_all([lake.episodes, lake.runs])[1]["store"].sort().to_list() == ["pole/dqn", "pole/ppo"]


def test_find_names_stores_with_matching_episodes(root: Path) -> None:
    """The rows of the stores come with how many episodes match."""
    lake = el.lake(root)
    found = lake.find("length > ?", [2])
    assert found.select("store", "matches", "episodes").rows() == [("pole/ppo", 2, 3)]
    assert lake.find("length > 99").is_empty()
    with pytest.raises(el.errors.QueryError, match="Nearest: length"):
        lake.find("lenght > 1")


def test_run_keys_name_metadata_of_runs(root: Path) -> None:
    """`run.lr` is the metadata of an episode's own run, also where a copied store has the same runs."""
    shutil.copytree(root / "pole/ppo", root / "copy")
    lake = el.lake(root)
    asked = lake.sql("select store, run.lr, count(*) from episodes group by all order by all").fetchall()
    joined = lake.sql(
        """select store, "metadata.lr", count(*) from episodes join runs using (store, run_id)
        group by all order by all"""
    ).fetchall()
    assert asked == joined == [("copy", 0.5, 3), ("pole/dqn", 0.25, 2), ("pole/ppo", 0.5, 3)]
    assert lake.find("run.lr < 0.5")["store"].to_list() == ["pole/dqn"]
    assert lake.sql("select count(*) from episodes where run.lr = 0.5", read_only=True).fetchall() == [(6,)]


def test_errors_name_what_there_is(root: Path) -> None:
    """Unknown columns, tables and stores come with the nearest names."""
    lake = el.lake(root)
    for text, words in {
        "SELECT episode_retrun FROM episodes": "Nearest: episode_return",
        "SELECT * FROM episode": "Nearest: episodes",
        "SELECT * FROM steps": "Tables: episodes, runs, stores",
        "DELETE FROM episodes": "is not a query",
    }.items():
        with pytest.raises(el.errors.QueryError, match=words):
            lake.sql(text)
    with pytest.raises(el.errors.StoreNotFoundError, match="pole/ppo"):
        lake["pole/pppo"]


def test_types_with_nothing_in_common_are_shown_as_text(tmp_path: Path) -> None:
    """No value is lost, and a warning names the column, the stores, their types and a way to choose."""
    made(tmp_path, "number", [1], lr=0.5)
    made(tmp_path, "text", [1], lr="cosine")
    lake = el.lake(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lake.sql("SELECT count(*) FROM runs").fetchall() == [(2,)]
    with pytest.warns(
        RuntimeWarning,
        match=r"'metadata.lr' of runs has different types: DOUBLE in 'number'; VARCHAR in 'text'.*TRY_CAST",
    ):
        rows = lake.sql('SELECT store, "metadata.lr" FROM runs ORDER BY 1').fetchall()
    assert rows == [("number", "0.5"), ("text", "cosine")]
    cast = 'SELECT sum(TRY_CAST("metadata.lr" AS DOUBLE)) FROM runs'
    assert lake.sql(cast).fetchall() == [(0.5,)]
    with pytest.warns(RuntimeWarning, match="different types"):
        assert set(el.lake(tmp_path).runs.collect()["metadata.lr"]) == {"0.5", "cosine"}


def test_numbers_get_the_wider_type(tmp_path: Path) -> None:
    """Integers beside fractions are doubles; one that no double holds is an error, and never rounded."""
    made(tmp_path, "whole", [1], lr=1)
    made(tmp_path, "fraction", [1], lr=0.5)
    text = 'SELECT "metadata.lr" FROM runs ORDER BY 1'
    assert el.lake(tmp_path).sql(text).fetchall() == [(0.5,), (1.0,)]
    made(tmp_path, "large", [1], lr=2**53 + 1)
    relation = el.lake(tmp_path).sql(text)
    with pytest.raises(duckdb.Error, match="more digits"):
        relation.fetchall()
    # The remedies of the message help, for columns and for keys of runs.
    number, lake = 2**53 + 1, el.lake(tmp_path)
    with pytest.raises(
        el.errors.QueryError, match=r"store large\. Ask that .* lake\['name'\].* store = 'name'"
    ):
        lake.find(f"run.lr = {number}")
    assert lake.find("store = 'fraction' AND run.lr = 0.5")["store"].to_list() == ["fraction"]
    assert lake.sql(f"{text.split('ORDER')[0]} WHERE store = 'fraction'").fetchall() == [(0.5,)]
    assert [len(lake["large"].filter(f"run.lr = {each}")) for each in (number, number - 1)] == [1, 0]


def test_numbers_in_json_are_shown(tmp_path: Path) -> None:
    """A store whose column began as integers shows its fractions in the lake too."""
    store = made(tmp_path, "a", [1], lr=1)
    add(store, [1], "second", lr=2.5)
    made(tmp_path, "b", [1], lr=0.25)
    rows = [("a", 1.0), ("a", 2.5), ("b", 0.25)]
    for read_only in (False, True):
        text = 'SELECT store, "metadata.lr" FROM runs ORDER BY ALL'
        assert el.lake(tmp_path).sql(text, read_only=read_only).fetchall() == rows


def test_single_and_several_objectives_lie_side_by_side(tmp_path: Path) -> None:
    """Returns of both are there, as text, and the stores of one kind can be chosen."""
    made(tmp_path, "one", [2])
    store = el.create(tmp_path / "two", **SPACES, reward_shape=(2,))
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((2, 2), np.float32),
            actions=[0],
            rewards=[[1.0, 2.0]],
            terminations=True,
            truncations=False,
        )
    with pytest.warns(RuntimeWarning, match="'episode_return' of episodes has different types"):
        rows = el.lake(tmp_path).sql("SELECT store, episode_return FROM episodes ORDER BY 1").fetchall()
    own = el.open(tmp_path / "one").episodes.collect()["episode_return"][0]
    assert rows == [("one", str(own)), ("two", "[1.0, 2.0]")]


def test_columns_with_names_of_the_lake_itself(root: Path) -> None:
    """Annotations called `store` and `filename` do not disturb the store's name."""
    store = el.open(root / "pole/ppo")
    ids = store.episodes.select("episode_id").collect()
    store.annotate(ids.with_columns(pl.lit("mine").alias("store"), pl.lit("f").alias("filename")))
    frame = (
        el.lake(root).sql("SELECT DISTINCT store, own_store, filename FROM episodes ORDER BY 1").fetchall()
    )
    assert frame == [("pole/dqn", None, None), ("pole/ppo", "mine", "f")]


def test_annotations_named_store_and_own_store_stay_two(root: Path) -> None:
    """Each has a name of its own in the lake, and its own values."""
    store = el.open(root / "pole/ppo")
    ids = store.episodes.select("episode_id").collect()
    store.annotate(ids.with_columns(pl.lit("one").alias("store"), pl.lit("two").alias("own_store")))
    text = "SELECT DISTINCT own_store, own_own_store FROM episodes WHERE store = 'pole/ppo'"
    assert el.lake(root).sql(text).fetchall() == [("one", "two")]


def test_threads_ask_at_the_same_time(root: Path) -> None:
    """Each thread gets the whole answer."""
    lake = el.lake(root)
    answers: list[Any] = []

    def ask() -> None:
        answers.append((lake.sql("SELECT count(*) FROM episodes").fetchall(), lake.episodes.collect().height))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [([(5,)], 5)] * 4


# Damage


def spoil(path: Path) -> None:
    """Overwrite the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 * 2] = b"\0" * (len(data) // 3)
    path.write_bytes(data)


def broken(root: Path) -> Iterator[str]:
    """Break stores in many ways, and yield their names."""
    for name in ("manifest", "log", "newer", "gone", "rows", "unfinished", "copying", "foreign"):
        made(root, f"bad/{name}", [1, 2])
    spoil(root / "bad/manifest/store.json")
    yield "bad/manifest"
    spoil(root / "bad/log/episodes/_delta_log/00000000000000000001.json")
    yield "bad/log"
    content = json.loads((root / "bad/newer/store.json").read_text())
    del content["crc32"]
    (root / "bad/newer/store.json").write_text(json.dumps({**content, "format": 99}))
    yield "bad/newer"
    for file in (root / "bad/gone/episodes").glob("*.parquet"):
        file.unlink()
    yield "bad/gone"
    for file in (root / "bad/rows/episodes").glob("*.parquet"):
        spoil(file)
    yield "bad/rows"
    (root / "bad/unfinished/store.json").unlink()
    yield "bad/unfinished"
    (root / "bad/copying/store.json").rename(root / "bad/copying/store.unfinished")
    yield "bad/copying"
    (root / "bad/foreign/store.json").write_text('{"name": "of another program"}')
    yield "bad/foreign"


def test_broken_stores_hide_no_other(root: Path) -> None:
    """Each has a row with its error, is left out of queries with a warning, and can be deleted."""
    names = list(broken(root))
    lake = el.lake(root)
    frame = lake.stores()
    errors = dict(frame.filter(pl.col("error").is_not_null()).select("store", "error").iter_rows())
    assert sorted(errors) == sorted(names)
    assert all(name in errors[name] or "upgrade" in errors[name].lower() for name in names)
    assert list(lake) == ["empty", "pole/dqn", "pole/ppo"]
    with pytest.warns(RuntimeWarning, match="8 stores of the lake .* cannot be read"):
        assert lake.sql("SELECT count(*) FROM episodes").fetchall() == [(5,)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lake.sql("SELECT count(*) FROM stores WHERE error IS NULL").fetchall() == [(3,)]
    for name in names:
        lake.delete(name)
    assert lake.stores()["error"].null_count() == len(lake.stores()) == 3


def test_impossible_times_and_sizes_hide_no_other_store(root: Path) -> None:
    """A store whose row cannot be made has an error; a time of creation without a zone is one of UTC."""

    def change(name: str, created: str) -> None:
        file = root / name / "store.json"
        content = json.loads(file.read_text())
        del content["crc32"]
        file.write_text(json.dumps({**content, "created_at": created}))

    change("empty", "yesterday")
    change("pole/dqn", "2024-01-01T00:00:00")
    log = made(root, "far", [1]).path / "episodes/_delta_log"
    for file in log.glob("*.json"):
        actions = read_actions(file)
        for action in actions:
            if "add" in action:
                action["add"]["modificationTime"] = 10**18
        write_actions(file, actions)
    frame = el.lake(root).stores()
    errors = dict(frame.select("store", "error").iter_rows())
    assert "yesterday" in errors["empty"]
    assert "1000000000000000000 ms" in errors["far"]
    assert errors["pole/dqn"] is errors["pole/ppo"] is None
    assert str(frame["created"][2]) == "2024-01-01 00:00:00+00:00"


@pytest.mark.parametrize(("call", "number"), [("listed", errno.EMFILE), ("read", errno.EIO)])
def test_an_error_that_may_pass_hides_no_store(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """It is raised, and what the lake saw before stays, instead of a store that seems to be broken."""
    from episodelake.store.files import touching
    from episodelake.store.files.local import LocalPlace

    lake = el.lake(root)
    before = lake.stores()
    real = getattr(LocalPlace, call)

    @touching(call)
    def fail(self: LocalPlace, *args: Any, **options: Any) -> Any:
        if "ppo" in str(self):
            raise OSError(number, os.strerror(number))
        return real(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, call, fail)
        for attempt in (lake.refresh, el.lake(root).stores):
            with pytest.raises(el.errors.StoreUnavailableError, match="call again"):
                attempt()
    assert lake.stores().equals(before)
    assert lake.refresh().stores().equals(before)


def test_a_page_that_turns_out_damaged_costs_its_store_alone(root: Path) -> None:
    """A frame that fails on the column leaves the store out with a warning, which names the file."""
    (file,) = (root / "pole/dqn/episodes").glob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    (seed,) = (column for column in columns if column.path_in_schema == "seed")
    data = bytearray(file.read_bytes())
    start = seed.dictionary_page_offset or seed.data_page_offset
    data[start + seed.total_compressed_size - 3] ^= 0x10
    file.write_bytes(data)
    lake = el.lake(root)
    assert lake.stores()["error"].null_count() == 3
    with pytest.warns(RuntimeWarning, match=f"1 store of the lake .* cannot be read.*{file.name}"):
        assert lake.episodes.select("seed").collect().height == 3
    assert lake.sql("SELECT store, count(seed) FROM episodes GROUP BY 1").fetchall() == [("pole/ppo", 3)]
    assert list(lake) == ["empty", "pole/ppo"]
    assert file.name in lake.stores()["error"][1]


def test_stores_that_go_while_they_are_listed_are_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store deleted between the look at the folders and its own is no error."""
    real = lake_module.find_stores

    def found(place: Any) -> Any:
        names = real(place)
        shutil.rmtree(root / "empty")
        return names

    monkeypatch.setattr(lake_module, "find_stores", found)
    assert list(el.lake(root)) == ["pole/dqn", "pole/ppo"]


# Names

ODD = [
    "it's",
    'quo"te',
    "a b/c  d",
    "ünï/環境",
    "semi;colon",
    "100%",
    "[x]*?",
    "a/episodes/b",
    "steps",
    "$HOME",
    "-rf",
]


def test_odd_names_are_plain_names(tmp_path: Path) -> None:
    """Stores with quotes, spaces, wildcards or names of tables are listed, asked and opened as any other."""
    lake = el.lake(tmp_path)
    for number, name in enumerate(ODD):
        add(lake.create(name, **NUMBERED_SPACES), [number + 1])
    assert list(lake) == sorted(ODD)
    expected = {name: number + 1 for number, name in enumerate(ODD)}
    for read_only in (False, True):
        rows = lake.sql("SELECT store, length FROM episodes", read_only=read_only).fetchall()
        assert dict(rows) == expected
    for name, length in expected.items():
        assert name in lake
        assert lake[name][0].length == length
        assert lake.sql("SELECT length FROM episodes WHERE store = ?", [name]).fetchall() == [(length,)]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../x",
        "a/../../x",
        "/etc/x",
        "a//b",
        "a/",
        ".hidden",
        "a/.trash",
        "a\\b",
        "nul\0",
        "a\nb",
        "per%41",
        "\udcff",
        3,
        None,
    ],
)
def test_names_that_lead_elsewhere_are_refused(root: Path, name: Any) -> None:
    """No operation touches a path outside of the lake."""
    lake = el.lake(root)
    before = sorted(root.rglob("*"))
    for attempt in (
        lambda: lake[name],
        lambda: lake.create(name, **NUMBERED_SPACES),
        lambda: lake.rename(name, "new"),
        lambda: lake.rename("empty", name),
        lambda: lake.delete(name),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match="is no name of a store"):
            attempt()
    assert name not in lake
    assert sorted(root.rglob("*")) == before


def test_folders_whose_names_are_no_text_have_a_row(root: Path) -> None:
    """A name in another encoding is shown escaped, with its error."""
    odd = os.fsencode(root) + b"/caf\xe9\x01"
    os.rename(root / "empty", odd)
    frame = el.lake(root).stores().filter(pl.col("error").is_not_null())
    assert frame["store"].to_list() == ["caf\\udce9\x01"]


# Creating, renaming, deleting

CREATE = """
import sys, gymnasium, episodelake as el
lake = el.lake(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
space = gymnasium.spaces.Discrete(9)
for number in range(20):
    try:
        lake.create(f"race/{number}", observation_space=space, action_space=space)
        print("made", flush=True)
    except el.errors.StoreExistsError:
        print("there", flush=True)
"""


# test_store.py has the race of two creations without a lake.
@pytest.mark.further
def test_of_two_processes_that_create_a_name_one_wins(tmp_path: Path) -> None:
    """The other gets an error that says so, and every store is whole."""
    command = [sys.executable, "-c", CREATE, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    words = [child.communicate(timeout=PATIENCE)[0].split() for child in children]
    assert all(sorted(pair) == ["made", "there"] for pair in zip(*words, strict=True))
    assert len(words[0]) == len(el.lake(tmp_path)) == 20


def test_stores_do_not_lie_in_each_other(root: Path) -> None:
    """Neither creating nor renaming puts one store into another, or onto one."""
    lake = el.lake(root)
    for attempt in (
        lambda: lake.create("empty/x", **NUMBERED_SPACES),
        lambda: lake.rename("pole/ppo", "empty/x"),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match="inside the store"):
            attempt()
    for attempt in (
        lambda: lake.create("pole", **NUMBERED_SPACES),
        lambda: lake.create("empty", **NUMBERED_SPACES),
        lambda: lake.rename("empty", "pole/ppo"),
        lambda: lake.rename("empty", "pole"),
    ):
        with pytest.raises(el.errors.StoreExistsError):
            attempt()
    with pytest.raises(el.errors.StoreNotFoundError):
        lake.rename("none", "new")
    assert list(lake.refresh()) == ["empty", "pole/dqn", "pole/ppo"]


def test_no_store_lies_in_one_whose_creation_was_cut_short(root: Path) -> None:
    """The lake does not look into such a folder, so a store in it would never be seen."""
    (root / "empty/store.json").unlink()
    lake = el.lake(root)
    for attempt in (
        lambda: lake.create("empty/x", **NUMBERED_SPACES),
        lambda: lake.rename("empty", "empty/x"),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match="inside the store"):
            attempt()


def test_a_name_that_is_too_long_is_an_error_of_ours(root: Path) -> None:
    """The system's words are in it."""
    lake = el.lake(root)
    for attempt in (lambda: lake["x" * 5000], lambda: lake.rename("empty", "x" * 5000)):
        with pytest.raises(el.errors.StoreAccessError, match="too long"):
            attempt()


def test_a_renamed_store_is_the_same_store(root: Path) -> None:
    """Identity, episodes and what can be written to it stay; the old name is free."""
    lake = el.lake(root)
    before = lake["pole/ppo"]
    lake.rename("pole/ppo", "archive/2024/ppo")
    assert list(lake) == ["archive/2024/ppo", "empty", "pole/dqn"]
    after = lake["archive/2024/ppo"]
    assert (after.id, len(after)) == (before.id, 3)
    assert add(after, [7]).verify().ok
    with pytest.raises(el.errors.StoreNotFoundError):
        before.refresh()
    lake.create("pole/ppo", **NUMBERED_SPACES)


def test_a_deleted_store_is_gone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It disappears in one step, with its folder; what an interrupted call left can be deleted, too."""
    lake = el.lake(root)
    lake["pole/ppo"].artifacts.add(b"content", name="file")
    with monkeypatch.context() as patch:
        patch.setattr(moving, "remove_tree", _fail)
        with pytest.warns(RuntimeWarning, match=r"is deleted\. Files of it are left in .*: delete it again"):
            lake.delete("pole/ppo")
    assert "pole/ppo" not in lake and list(lake) == ["empty", "pole/dqn"]
    assert lake.stores().filter(store="pole/ppo")["error"].null_count() == 0
    lake.delete("pole/ppo")
    assert not (root / "pole/ppo").exists() and lake.stores()["store"].to_list() == ["empty", "pole/dqn"]
    with pytest.raises(el.errors.StoreNotFoundError, match="pole/ppo"):
        lake.delete("pole/ppo")


def _fail(*words: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_store_in_use_is_neither_renamed_nor_deleted(root: Path) -> None:
    """A live writer and an operation of maintenance are noticed, and lose nothing."""
    lake = el.lake(root)
    store = lake["empty"]
    with store.writer(run="live") as writer:
        for attempt in (lambda: lake.delete("empty"), lambda: lake.rename("empty", "new")):
            with pytest.raises(el.errors.StoreUnavailableError, match="is being written: the run 'live"):
                attempt()
        write_numbered(writer, 1, 2)
    assert len(store.refresh()) == 1
    from episodelake.store.files.locks import FileLock

    lock = FileLock.acquire(root / "empty/journal/maintenance.lock")
    assert lock is not None
    with pytest.raises(el.errors.StoreUnavailableError, match="maintained"):
        lake.delete("empty")
    lock.release(remove=False)
    lake.delete("empty")


@pytest.mark.parametrize(
    "change", [lambda lake: lake.delete("pole/ppo"), lambda lake: lake.rename("pole/ppo", "new")]
)
def test_a_writer_that_begins_during_a_change_keeps_its_store(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[el.types.Lake], None]
) -> None:
    """The store is put back where it was, so that no journal loses its store."""
    lake = el.lake(root)
    real = moving.FileLock.acquire
    writers: list[el.types.EpisodeWriter] = []

    def acquire(path: Path, *args: Any, **options: Any) -> Any:
        if not writers and path.name == "maintenance.lock":
            writers.append(el.open(root / "pole/ppo").writer(run="late"))
        return real(path, *args, **options)

    monkeypatch.setattr(moving.FileLock, "acquire", acquire)
    with pytest.raises(el.errors.StoreUnavailableError, match="the run 'late"):
        change(lake)
    write_numbered(writers[0], 9, 2)
    writers[0].close()
    assert len(lake["pole/ppo"]) == 4
    assert lake["pole/ppo"].verify().ok


# The command line


def test_the_command_lists_and_asks(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`episodelake lake` prints the stores, or the answer to a query, as a table, CSV, JSON or a file."""
    rows = table(printed("lake", root))
    assert [row[:3] for row in rows] == [
        ["store", "episodes", "steps"],
        ["empty", "0", "0"],
        ["pole/dqn", "2", "4"],
        ["pole/ppo", "3", "8"],
    ]
    listed = json.loads(printed("lake", root, "--json"))
    assert [each["store"] for each in listed] == ["empty", "pole/dqn", "pole/ppo"]
    assert set(listed[0]) == set(el.lake(root).stores().columns)
    query = "SELECT store, max(length) AS longest FROM episodes GROUP BY 1 ORDER BY 1"
    assert printed("lake", root, "--sql", query, "--csv") == "store,longest\npole/dqn,2\npole/ppo,4\n"
    assert table(printed("lake", root, "--sql", query, "--limit", 1))[1:2] == [["pole/dqn", "2"]]
    file = tmp_path_factory.mktemp("out") / "runs.parquet"
    call("lake", root, "--sql", "FROM runs", "--parquet", file)
    assert pl.read_parquet(file).height == 2
    assert "Nearest: length" in refused(1, "lake", root, "--sql", "SELECT lenght FROM episodes")
    assert "is a store" in refused(1, "lake", root / "empty")


def test_the_command_names_broken_stores(root: Path) -> None:
    """The others are listed and asked; a warning on standard error has the reason."""
    spoil(root / "empty/store.json")
    for words in ((), ("--sql", "SELECT DISTINCT store FROM episodes ORDER BY 1")):
        result = call("lake", root, *words)
        assert result.exit_code == 0
        assert "Warning: " in result.stderr
        assert "empty" in result.stderr
        assert [row[0] for row in table(result.stdout)] == ["store", "pole/dqn", "pole/ppo"]
