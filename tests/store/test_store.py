"""The store itself: creating, opening, versions, refresh, history, the card, and what stands on disk."""

from __future__ import annotations

import copy
import json
import operator
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from effort import some, with_folders
from episodelake.testing.adapters import case
from real_environments import NUMBERED_SPACES, numbered_return, numbered_store, values_of, write_numbered
from waiting import PATIENCE, line_of

BOX = NUMBERED_SPACES["observation_space"]
DISCRETE = NUMBERED_SPACES["action_space"]


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Creating


_A_PATH_MAY_BE_TEXT_OF_ANY_LETT: Any = [
    "plain",
    "größe 日本 😀",
    "with space",
    "50%",
    "what?",
    "#1",
    "a'b",
    "[ab]*",
    "a=b",
    "c:d",
]


@pytest.mark.parametrize("cases", some(_A_PATH_MAY_BE_TEXT_OF_ANY_LETT, 3))
def test_a_path_may_be_text_of_any_letters(tmp_path: Path, cases: Any) -> None:
    """A path given as text, of any characters and below folders that are not there yet, works like a Path."""
    for here, name in with_folders(cases, tmp_path):
        with case(name):
            path = here / "not" / "yet" / name
            created = el.create(str(path), **NUMBERED_SPACES)
            with created.writer() as writer:
                write_numbered(writer, 0, 2)
            store = el.open(str(path))
            assert store.id == created.id
            assert values_of(store) == [0]
            assert store.sql("select count(*) from steps").fetchall() == [(3,)]
            assert store.steps.collect().height == 3
            assert [folder.name for folder in (here / "not" / "yet").iterdir()] == [name]


def test_a_path_is_shown_without_detours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps to a folder and back are left out of what is shown and of errors."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    store = el.create("./b/../../a/../store/", gymnasium.make("CartPole-v1"))
    assert store.url == str(tmp_path / "store")
    assert el.open("../a/b/.././../store").path == tmp_path / "store"
    with pytest.raises(el.errors.StoreNotFoundError) as error:
        el.open("../a/../none")
    assert str(tmp_path / "none") in str(error.value)


def test_a_link_in_a_path_means_what_it_means(tmp_path: Path) -> None:
    """Behind a link `..` is the folder above what it points to."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    store = el.create(tmp_path / "link" / ".." / "store", gymnasium.make("CartPole-v1"))
    assert (tmp_path / "far" / "store" / "store.json").exists()
    assert el.open(store.url).id == store.id
    with pytest.raises(el.errors.StoreNotFoundError):
        el.open(tmp_path / "store")


def test_a_path_with_a_percent_escape_is_refused(tmp_path: Path) -> None:
    """A path that the table library would read as another one is refused, and nothing is left there."""
    with pytest.raises(el.errors.InvalidArgumentError, match="percent"):
        el.create(tmp_path / "a%20b", **NUMBERED_SPACES)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_create_nothing(tmp_path: Path) -> None:
    """Missing spaces, an impossible reward shape and a card that is no JSON are refused, and make nothing."""
    cases: list[Any] = [
        {},
        {"observation_space": BOX},
        {"action_space": DISCRETE},
        {"env": "NoSuchEnvironment-v1"},
        {"env": 5},
        {**NUMBERED_SPACES, "reward_shape": 3},
        {**NUMBERED_SPACES, "reward_shape": (-1,)},
        {**NUMBERED_SPACES, "reward_shape": (2, 2)},
        {**NUMBERED_SPACES, "reward_shape": ("two",)},
        {**NUMBERED_SPACES, "reward_shape": "two"},
        {**NUMBERED_SPACES, "reward_shape": (2.5,)},
        {**NUMBERED_SPACES, "card": 5},
        {**NUMBERED_SPACES, "card": []},
        {**NUMBERED_SPACES, "card": {"object": object()}},
        {**NUMBERED_SPACES, "card": {"number": {1, 2}}},
    ]
    for folder, arguments in with_folders(cases, tmp_path):
        with case(arguments):
            with pytest.raises(el.errors.InvalidArgumentError) as caught:
                el.create(folder / "store", **arguments)
            assert isinstance(caught.value, ValueError)
            assert not (folder / "store").exists()


class Odd(spaces.Space[Any]):
    """A space that nobody registered a codec for."""


@pytest.mark.parametrize("role", ["observation_space", "action_space"])
def test_an_unsupported_space_creates_nothing(tmp_path: Path, role: str) -> None:
    """A space without columns, however deep, is refused by name when the store is created."""
    space = spaces.Dict({"deep": spaces.Tuple([BOX, Odd()])})
    with pytest.raises(el.errors.UnsupportedSpaceError) as caught:
        el.create(tmp_path / "store", **{**NUMBERED_SPACES, role: space})
    assert isinstance(caught.value, TypeError)
    assert "Odd" in str(caught.value)
    assert "register_codec" in str(caught.value)
    with pytest.raises(el.errors.UnsupportedSpaceError):
        el.create(tmp_path / "store", **{**NUMBERED_SPACES, role: 5})
    assert not (tmp_path / "store").exists()


def test_a_store_that_exists_is_opened_on_request(tmp_path: Path) -> None:
    """`exist_ok` opens a store of the same spaces with what it holds, and refuses others by name."""
    box, two = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    store = el.create(
        tmp_path / "s", observation_space=box, action_space=two, card={"title": "x"}, exist_ok=True
    )
    again = el.create(
        tmp_path / "s", observation_space=box, action_space=two, card={"title": "y"}, exist_ok=True
    )
    assert again.path == store.path and again.card["title"] == "x"
    others: list[tuple[str, dict[str, Any]]] = [
        ("observation", {"observation_space": spaces.Box(-1, 2, (2,), np.float32), "action_space": two}),
        ("action", {"observation_space": box, "action_space": spaces.Discrete(3)}),
        ("reward", {"observation_space": box, "action_space": two, "reward_shape": (2,)}),
        ("agents", {"agents": {"red": (box, two)}}),
    ]
    for word, given in others:
        with pytest.raises(el.errors.SpaceMismatchError, match=word):
            el.create(tmp_path / "s", **given, exist_ok=True)
    with pytest.raises(el.errors.StoreExistsError):
        el.create(tmp_path / "s", observation_space=box, action_space=two)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "note").touch()
    with pytest.raises(el.errors.StoreExistsError):
        el.create(tmp_path / "files", observation_space=box, action_space=two, exist_ok=True)


RACE = """
import sys
import gymnasium
import episodelake as el

env = gymnasium.make("CartPole-v1")
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(el.create(line.strip(), env).id, flush=True)
    except el.errors.StoreExistsError:
        print("exists", flush=True)
"""


@pytest.mark.further
def test_only_one_of_two_processes_creates_a_store(tmp_path: Path) -> None:
    """Of two processes that create one store at once, one wins, the other is told, the store is whole."""
    command = [sys.executable, "-c", RACE]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        answers = [line_of(racer) for racer in racers]
        assert answers == ["ready", "ready"]
        for turn in range(8):
            path = tmp_path / f"store-{turn}"
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"{path}\n")
                racer.stdin.flush()
            answers = sorted(line_of(racer) for racer in racers)
            store = el.open(path)
            assert answers == sorted(["exists", store.id])
            assert store.observation_space == gymnasium.make("CartPole-v1").observation_space
            with store.writer() as writer:
                episode = writer.begin(np.zeros(4, np.float32))
                episode.append(0, 1.0, np.zeros(4, np.float32))
            assert len(store.refresh()) == 1
    finally:
        for racer in racers:
            racer.communicate(timeout=PATIENCE)


# Opening


@pytest.mark.parametrize("part", ["spaces", "store_id", "reward_shape"])
def test_an_identity_with_a_part_missing_is_damaged(tmp_path: Path, part: str) -> None:
    """Without a part of store.json that says how to read, the store is damaged, not half open."""
    store = numbered_store(tmp_path / "store", [1])
    identity = store.path / "store.json"
    content = json.loads(identity.read_text("utf-8"))
    del content[part]
    identity.write_text(json.dumps(content), "utf-8")
    with pytest.raises(el.errors.CorruptStoreError) as caught:
        el.open(store.path)
    assert "store.json" in str(caught.value)


@pytest.mark.parametrize("table", ["runs", "episodes", "steps"])
def test_a_missing_table_is_damage(tmp_path: Path, table: str) -> None:
    """A store without one of its three tables is damaged, and is not taken for an empty one."""
    store = numbered_store(tmp_path / "store", [1])
    shutil.rmtree(store.path / table)
    with pytest.raises(el.errors.CorruptStoreError) as caught:
        opened = el.open(store.path)
        opened.sql("select * from runs, steps").fetchall()
    assert table in str(caught.value)


def test_opening_and_reading_changes_nothing(tmp_path: Path) -> None:
    """Opening a store and reading all of it leaves every file as it was and adds none."""
    numbered_store(tmp_path / "store", [1, 2, 3], seal_every=2)
    before = contents(tmp_path)
    store = el.open(tmp_path / "store")
    assert values_of(store) == [0, 1, 2]
    assert store.sql("select count(*) from steps").fetchall() == [(9,)]
    assert store.history().height > 1
    assert store.card == {}
    assert contents(tmp_path) == before


def test_the_identity_is_written_once(tmp_path: Path) -> None:
    """store.json never changes, whatever is written to the store or its card."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    identity = (store.path / "store.json").read_bytes()
    with store.writer() as writer:
        write_numbered(writer, 0, 2)
    store.card = {"description": "changed"}
    assert (store.path / "store.json").read_bytes() == identity


# Versions, refresh, history


def versioned(path: Path) -> tuple[el.EpisodeStore, dict[int, list[int]]]:
    """Make a store by several writers; return it with the values that each of its versions must show.

    A commit without episodes, such as one that only adds columns, shows what the version before it showed.
    """
    store = el.create(path, **NUMBERED_SPACES)
    shown: dict[int, list[int]] = {store.version: []}
    for first, sizes in ((0, [1, 2, 1]), (4, [3]), (7, [1, 1])):
        with store.writer(run=f"from-{first}") as writer:
            value = first
            for size in sizes:
                for _ in range(size):
                    write_numbered(writer, value, 1 + value % 3, infos=value > 2)
                    value += 1
                writer.seal()
                before = store.version
                store.refresh()
                shown |= {version: shown[before] for version in range(before + 1, store.version)}
                shown[store.version] = list(range(value))
    return store, shown


@pytest.mark.further
def test_a_version_shows_no_later_runs(tmp_path: Path) -> None:
    """Opened at an older version, the store shows the runs that it had then, and none that came later."""
    newest, shown = versioned(tmp_path / "store")
    for version, values in shown.items():
        store = el.open(newest.path, version=version)
        runs = {f"from-{first}" for first in (0, 4, 7) if first in values}
        assert set(store.runs.collect()["name"]) == runs
        assert {row[0] for row in store.sql("select name from runs").fetchall()} == runs


def test_without_refresh_nothing_moves(tmp_path: Path) -> None:
    """A store object shows its version until refreshed, its own writer notwithstanding."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer() as writer:
        write_numbered(writer, 0, 2)
        writer.seal()
        assert (len(store), store.version) == (0, 0)
        assert store.sql("select count(*) from steps").fetchall() == [(0,)]
    assert (len(store), store.version) == (0, 0)
    assert len(store.refresh()) == 1


def test_writing_from_an_old_version_adds_to_the_newest(tmp_path: Path) -> None:
    """A writer of a store opened at an old version loses nothing that was written since."""
    newest, shown = versioned(tmp_path / "store")
    store = el.open(newest.path, version=2)
    with store.writer() as writer:
        write_numbered(writer, 100, 2)
    assert len(store) == len(shown[2])
    assert values_of(el.open(newest.path)) == [*shown[newest.version], 100]


# The card


def test_a_card_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """A card that JSON cannot hold is refused, and the old card stays."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES, card={"old": 1})
    for card in (
        {"object": object()},
        {"set": {1}},
        ["no", "mapping"],
        [["a", 1]],
        5,
        "x",
        {"crc32": "mine"},
    ):
        with pytest.raises(el.errors.InvalidArgumentError):
            store.card = card  # type: ignore[assignment]
        assert store.card == {"old": 1}
        assert el.open(store.path).card == {"old": 1}


def test_the_card_and_the_dict_that_was_given_are_apart(tmp_path: Path) -> None:
    """Changing the caller's dict later does not change the card."""
    given: dict[str, Any] = {"list": [1]}
    store = el.create(tmp_path / "store", **NUMBERED_SPACES, card=given)
    given["list"].append(2)
    assert store.card == el.open(store.path).card == {"list": [1]}


def test_changing_the_card_writes_it(tmp_path: Path) -> None:
    """Whatever a dict offers for that: the card in the store is what the dict then is."""
    cases: list[Any] = [
        lambda card: card.__setitem__("title", "Pong"),
        lambda card: card.update({"title": "Pong"}, list=2),
        lambda card: card.pop("list"),
        lambda card: card.popitem(),
        lambda card: card.clear(),
        lambda card: card.setdefault("title", "Pong"),
        lambda card: card.setdefault("list", "other"),
        lambda card: card.__delitem__("list"),
        lambda card: operator.ior(card, {"title": "Pong"}),
    ]
    for folder, change in with_folders(cases, tmp_path):
        with case(change):
            store = el.create(folder / "store", **NUMBERED_SPACES, card={"list": [1]})
            plain = {"list": [1]}
            card = store.card
            found, expected = change(card), change(plain)
            assert found == expected and card == plain == store.card == el.open(store.path).card
            assert type(pickle.loads(pickle.dumps(card))) is type(card.copy()) is dict
            with pytest.raises(el.errors.InvalidArgumentError):
                card["bad"] = object()
            assert card == plain == store.card
            store.card |= {"title": "Breakout"}
            assert store.card["title"] == "Breakout"


def test_changing_what_is_nested_in_the_card_writes_it(tmp_path: Path) -> None:
    """Lists and mappings in a card are written when they change in place; a failed write changes nothing."""
    cases: list[Any] = [
        lambda card: card["list"].append({"new": []}),
        lambda card: card["list"][1]["deep"].extend([1, 2]),
        lambda card: card["list"].__setitem__(0, ["other"]),
        lambda card: card["list"].sort(key=str),
        lambda card: card["dict"].update(key=[1], other={}),
        lambda card: card["dict"]["key"].clear(),
        lambda card: card["dict"].setdefault("fresh", []).append(1),
        lambda card: card["dict"].pop("key"),
        lambda card: (card.update(late={"a": [1]}), card["late"]["a"].append(2))[1],
        lambda card: operator.iadd(card["list"], [3]) and None,
    ]
    for folder, change in with_folders(cases, tmp_path):
        with case(change):
            given = {"list": [1, {"deep": []}], "dict": {"key": ["a"]}}
            store = el.create(folder / "store", **NUMBERED_SPACES, card=given)
            plain = json.loads(json.dumps(given))
            card = store.card
            assert change(card) == change(plain)
            assert card == plain == store.card == el.open(store.path).card
            copies = [pickle.loads(pickle.dumps(card)), copy.deepcopy(card), card.copy()]
            for each in copies:
                assert type(each) is dict and type(each["list"]) is list
                each["list"].append("apart")
            with pytest.raises(el.errors.InvalidArgumentError, match="plain JSON"):
                card["list"].append(object())
            assert card == plain == store.card
            with pytest.raises(el.errors.InvalidArgumentError, match="A view changes no card"):
                store[:0].card["list"].append(1)


def test_a_card_without_a_checksum_opens(tmp_path: Path) -> None:
    """A card written by hand or by an earlier version, without a checksum, is read as it is."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    (store.path / "card.json").write_text('{"description": "by hand"}', "utf-8")
    assert el.open(store.path).card == {"description": "by hand"}
    assert store.verify().ok


def test_no_flipped_byte_of_a_card_passes(tmp_path: Path) -> None:
    """A changed byte in card.json raises an error that names it, or leaves the card's own values alone."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES, card={"about": "pens", "version": 2})
    path = store.path / "card.json"
    data = path.read_bytes()
    refused = 0
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 2]) + data[index + 1 :])
        try:
            found = store.card
        except el.errors.CorruptStoreError as error:
            assert "card.json" in str(error)
            refused += 1
        else:
            assert {key: found.get(key) for key in ("about", "version")} == {"about": "pens", "version": 2}
    assert refused >= len(data) - len(b',\n "crc32": "01234567"\n}')


# Where a store stands


def test_a_moved_store_still_opens(tmp_path: Path) -> None:
    """A store moved to another path opens there at every version and takes new episodes."""
    store = numbered_store(tmp_path / "here", [1, 2], seal_every=1)
    older = store.version
    with store.writer() as writer:
        write_numbered(writer, 2, 3)
    moved = tmp_path / "elsewhere" / "there"
    moved.parent.mkdir()
    shutil.move(store.path, moved)
    there = el.open(moved)
    assert there.id == store.id
    assert values_of(there) == [0, 1, 2]
    assert there.sql("select count(*) from steps").fetchall() == [(9,)]
    assert there.steps.collect().height == 9
    assert values_of(el.open(moved, version=older)) == [0, 1]
    with there.writer() as writer:
        write_numbered(writer, 3, 1)
    assert values_of(there.refresh()) == [0, 1, 2, 3]
    assert not (tmp_path / "here").exists()


def test_a_relative_path_is_fixed_when_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store opened by a relative path stays itself when the working directory changes."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    created = el.create("store", **NUMBERED_SPACES)
    writer = created.writer()
    write_numbered(writer, 0, 2)
    monkeypatch.chdir(tmp_path / "two")
    write_numbered(writer, 1, 2)
    writer.close()
    assert values_of(created.refresh()) == [0, 1]
    monkeypatch.chdir(tmp_path / "one")
    for path in ("store", "./store/", "../one/store", Path("store")):
        monkeypatch.chdir(tmp_path / "one")
        store = el.open(path)
        frame = store.steps
        monkeypatch.chdir(tmp_path / "two")
        assert values_of(store) == [0, 1]
        assert frame.collect().height == 6
        assert store.sql("select count(*) from steps").fetchall() == [(6,)]
        assert store.refresh().version == created.version
        store.card = {"path": str(path)}
    assert [path.name for path in (tmp_path / "two").iterdir()] == []
    with pytest.raises(el.errors.StoreNotFoundError):
        el.open("store")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    """Creating where nothing may be written is a StoreAccessError, which is an OSError."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(el.errors.StoreAccessError) as caught:
            el.create(tmp_path / "store", **NUMBERED_SPACES)
        assert isinstance(caught.value, OSError)
    finally:
        tmp_path.chmod(0o700)


def test_a_path_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    """Creating below a plain file is a StoreAccessError that names the path."""
    (tmp_path / "file").write_text("a file")
    with pytest.raises(el.errors.StoreAccessError) as caught:
        el.create(tmp_path / "file" / "store", **NUMBERED_SPACES)
    assert isinstance(caught.value, OSError)
    assert "file" in str(caught.value)


# What stands on disk


def test_a_store_has_its_documented_parts(tmp_path: Path) -> None:
    """A store holds store.json, three Delta tables, and no journal once its writers are closed."""
    store = numbered_store(tmp_path / "store", [2, 2], seal_every=1)
    for table in ("runs", "episodes", "steps"):
        assert (store.path / table / "_delta_log" / "00000000000000000000.json").is_file()
        assert list((store.path / table).glob("*.parquet"))
    identity = json.loads((store.path / "store.json").read_text("utf-8"))
    assert identity["format"] == 1
    assert identity["store_id"] == store.id
    journals = store.path / "journal"
    assert not journals.exists() or [path for path in journals.rglob("*") if path.stat().st_size] == []
    allowed = {"store.json", "card.json", "runs", "episodes", "steps", "artifacts", "journal"}
    assert {path.name for path in store.path.iterdir()} <= allowed


def test_the_columns_are_the_documented_ones(tmp_path: Path) -> None:
    """The raw tables have the columns of the format under their names and with plain types."""
    store = numbered_store(tmp_path / "store", [2])
    steps = dict(pl.scan_delta(str(store.path / "steps")).collect_schema())
    assert steps == {
        "episode_id": pl.String,
        "t": pl.Int64,
        "observation": pl.List(pl.Float32),
        "action": pl.Int64,
        "reward": pl.Float64,
        "terminated": pl.Boolean,
        "truncated": pl.Boolean,
        "info.clock": pl.Int64,
    }
    episodes = dict(pl.scan_delta(str(store.path / "episodes")).collect_schema())
    wanted = {
        "episode_id": pl.String,
        "run_id": pl.String,
        "number": pl.Int64,
        "env_index": pl.Int64,
        "started_at": pl.Datetime("us", "UTC"),
        "ended_at": pl.Datetime("us", "UTC"),
        "length": pl.Int64,
        "episode_return": pl.Float64,
        "terminated": pl.Boolean,
        "truncated": pl.Boolean,
        "end_reason": pl.String,
        "seed": pl.Int64,
        "options": pl.String,
        "metadata.value": pl.Int64,
        "metadata.group": pl.String,
        "segment": pl.String,
        "row_start": pl.Int64,
        "row_count": pl.Int64,
    }
    assert {name: episodes.get(name) for name in wanted} == wanted
    runs = dict(pl.scan_delta(str(store.path / "runs")).collect_schema())
    assert {"run_id", "name", "started_at", "ended_at", "env_spec", "versions"} <= set(runs)


def test_commits_carry_statistics(tmp_path: Path) -> None:
    """Every added file tells its row count, and those of episodes the ranges of id, length and return."""
    store = numbered_store(tmp_path / "store", [2, 5, 1])
    for table, rows in (("steps", 11), ("episodes", 3)):
        log = sorted((store.path / table / "_delta_log").glob("*.json"))
        lines = [json.loads(line) for path in log for line in path.read_text("utf-8").splitlines()]
        stats = [json.loads(line["add"]["stats"]) for line in lines if "add" in line]
        assert [one["numRecords"] for one in stats] == [rows]
        ids = store.episodes.collect()["episode_id"]
        assert stats[0]["minValues"]["episode_id"] == ids.min()
        assert stats[0]["maxValues"]["episode_id"] == ids.max()
    returns = [numbered_return(value, length) for value, length in enumerate([2, 5, 1])]
    for name, numbers in (("length", [2, 5, 1]), ("episode_return", returns)):
        assert stats[0]["minValues"][name] == min(numbers)
        assert stats[0]["maxValues"][name] == max(numbers)


def test_a_run_tells_when_and_with_what(tmp_path: Path) -> None:
    """A run's row has its name, times, the environment's spec, the versions used and the given metadata."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", env)
    with store.record(env, run="named", metadata={"algo": "ppo", "level": 3}) as recorder:
        recorder.reset(seed=1)
        recorder.step(0)
    run = store.refresh().runs.collect().to_dicts()[0]
    assert run["run_id"] == store[0].run_id
    assert run["run_id"].startswith("named-")
    assert run["name"] == "named"
    assert run["started_at"] <= store[0].started_at <= store[0].ended_at <= run["ended_at"]
    assert json.loads(run["env_spec"])["id"] == "CartPole-v1"
    versions = json.loads(run["versions"])
    assert versions["gymnasium"] == gymnasium.__version__
    assert "episodelake" in versions
    assert (run["metadata.algo"], run["metadata.level"]) == ("ppo", 3)


# Environments that are made for the call


class Closing(gymnasium.Wrapper):
    """Counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        """Close, and count."""
        super().close()
        type(self).closed += 1


SOURCES: dict[str, Any] = {
    "id": "CartPole-v1",
    "spec": gymnasium.spec("CartPole-v1"),
    "function": lambda: gymnasium.make("CartPole-v1", max_episode_steps=9),
    "vector": lambda: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_create_and_record_make_the_environment(tmp_path: Path, source: Any) -> None:
    """An id, a spec or a function stands for the environment, in create, record and collect alike."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", source)
    assert store.observation_space == env.observation_space
    assert store.action_space == env.action_space
    with store.record(source, run="made") as recorder:
        recorder.reset(seed=3)
        for _ in range(5):
            recorder.step(recorder.action_space.sample() * 0)
    el.collect(source, None, store, steps=5)
    runs = store.refresh().runs.sort("started_at").collect()
    assert len(runs) == 2 and all(json.loads(spec)["id"] == "CartPole-v1" for spec in runs["env_spec"])
    assert store[0].observations[0].tolist() == env.reset(seed=3)[0].tolist()


def test_environments_that_were_made_are_closed(tmp_path: Path) -> None:
    """What `create` made is closed at once, what `record` made with the recorder, or if that cannot begin."""

    def source() -> Closing:
        return Closing(gymnasium.make("CartPole-v1"))

    Closing.closed = 0
    store = el.create(tmp_path / "store", source)
    assert Closing.closed == 1
    with store.record(source) as recorder:
        recorder.reset()
    assert Closing.closed == 2
    with pytest.raises(el.errors.SpaceMismatchError):
        store.record(lambda: Closing(gymnasium.make("Acrobot-v1")))
    assert Closing.closed == 3


@pytest.mark.parametrize("wrong", ["CartPole-v99", "NoSuch-v0", "no/such:Thing-v1", lambda: 5, 5, [1]])
def test_what_makes_no_environment_is_refused(tmp_path: Path, wrong: Any) -> None:
    """An unknown id, or a function of something else, is an error of the library that names it."""
    store = el.create(tmp_path / "store", "CartPole-v1")
    with pytest.raises(el.errors.InvalidArgumentError, match="environment"):
        el.create(tmp_path / "other", wrong)
    assert not (tmp_path / "other").exists()
    for call in (lambda: store.record(wrong), lambda: el.collect(wrong, None, store, steps=1)):
        with pytest.raises(el.errors.InvalidArgumentError, match="environment"):
            call()


# Spaces of classes of one's own


class Mission(spaces.Space):
    """Texts without Gymnasium's Text, as MiniGrid has them."""

    def __init__(self) -> None:
        super().__init__(dtype=str)  # type: ignore[arg-type]

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Give one of two."""
        return str(self.np_random.choice(["go to the door", "öffne die Tür"]))

    def contains(self, x: Any) -> bool:
        """Tell whether it is text."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        """Equal only its own class."""
        return isinstance(other, Mission)


class Angles(spaces.Box):
    """A Box that equals only its own class."""

    def __eq__(self, other: object) -> bool:
        """Compare the class too."""
        return isinstance(other, Angles) and super().__eq__(other)


class Turn(spaces.Discrete):
    """A Discrete of its own name."""


class Named(spaces.Dict):
    """A Dict of its own name."""


class OwnSpaces(gymnasium.Env):
    """An environment whose spaces are all of classes of its own."""

    def __init__(self) -> None:
        angles = Angles(-3, 3, (2,), np.float32)
        self.observation_space = Named({"mission": Mission(), "both": spaces.Tuple((angles, Turn(3)))})
        self.action_space = Turn(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        """Step."""
        return self.observation_space.sample(), 1.0, False, False, {}


def test_own_classes_of_spaces_are_stored_as_those_they_derive_from(tmp_path: Path) -> None:
    """Subclasses of Gymnasium's spaces and spaces of texts are recorded and replayed; the card notes them."""
    store = el.create(tmp_path / "store", OwnSpaces(), card={"title": "Own"})
    seen = []
    for run in range(2):
        with store.record(OwnSpaces()) as recorder:
            seen.append(recorder.reset(seed=run)[0])
            seen.append(recorder.step(1)[0])
        store = el.open(tmp_path / "store")
    assert [type(space) for space in (store.observation_space, store.action_space)] == [
        spaces.Dict,
        spaces.Discrete,
    ]
    assert isinstance(store.observation_space, spaces.Dict)
    assert type(store.observation_space["mission"]) is spaces.Text
    assert store.card == {
        "title": "Own",
        "space_classes": {
            "observation": f"{__name__}.Named as Dict",
            "observation.mission": f"{__name__}.Mission as Text",
            "observation.both.0": f"{__name__}.Angles as Box",
            "observation.both.1": f"{__name__}.Turn as Discrete",
            "action": f"{__name__}.Turn as Discrete",
        },
    }
    agents = {"red": (OwnSpaces().observation_space, spaces.Discrete(2)), "blue": (Mission(), Turn(3))}
    assert el.create(tmp_path / "agents", agents=agents).card["space_classes"] == {
        "red.observation": f"{__name__}.Named as Dict",
        "red.observation.mission": f"{__name__}.Mission as Text",
        "red.observation.both.0": f"{__name__}.Angles as Box",
        "red.observation.both.1": f"{__name__}.Turn as Discrete",
        "blue.observation": f"{__name__}.Mission as Text",
        "blue.action": f"{__name__}.Turn as Discrete",
    }
    found = [episode.observations["mission"][t] for episode in store for t in range(2)]
    assert found == [observation["mission"] for observation in seen]
    assert store[1].replay(OwnSpaces()).same
    assert len(
        el.collect(OwnSpaces(), None, store, episodes=1, on_step=None, step_callback=_ends_at_2).returns
    )


def _ends_at_2(step: el.types.StepData) -> el.types.StepData:
    return replace(step, end=step.t == 2)
