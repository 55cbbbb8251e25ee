"""Verification: a store that is damaged in one way is told so, by kind and file, and nothing else is.

Damage is done with pyarrow and by hand, as a careless program or a failing disk would do it; where a size or
a number of rows in a table's log would give it away at once, the log is made to agree.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.readers.verification import relations
from episodelake.readers.verification.inspection import _Inspection
from episodelake.store.delta.table import Table
from log_edits import append_actions, read_actions, write_actions
from maintenance_stores import assert_contents, awkward_store, contents, crashed_copy, files_under, ids_of
from waiting import PATIENCE, wait_for_journal

SPACES: dict[str, spaces.Space] = {
    "observation_space": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "action_space": spaces.Discrete(4),
}
LENGTHS = (3, 5, 4)
Edit = Callable[[pa.Table], pa.Table]


def write_run(store: el.EpisodeStore, run: str) -> None:
    """Write one segment of three episodes: one terminated, one truncated, one cut."""
    with store.writer(run=run) as writer:
        for number, length in enumerate(LENGTHS):
            writer.write_episode(
                observations=np.arange(2 * length + 2, dtype=np.float32).reshape(-1, 2),
                actions=np.arange(length) % 4,
                rewards=np.arange(length) / 7 + 0.1,
                terminations=number == 0,
                truncations=number == 1,
                infos=[{"speed": float(t)} for t in range(length + 1)],
                metadata={"label": number},
            )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments, of two runs."""
    store = el.create(tmp_path_factory.mktemp("template") / "store", **SPACES)
    write_run(store, "a")
    write_run(store, "b")
    return store.path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> el.EpisodeStore:
    """A copy of the template, to be damaged."""
    shutil.copytree(template, tmp_path / "store")
    return el.open(tmp_path / "store")


def found(store: el.EpisodeStore) -> list[tuple[str, str]]:
    """Return kind and file of every fault."""
    return [(fault.kind, fault.file) for fault in store.verify().faults]


def first_file(store: el.EpisodeStore, table: str) -> str:
    """Return the file of the first run in a table, relative to the store."""
    (name,) = [path.name for path in (store.path / table).glob("a-*.parquet") if "live" not in path.name]
    return f"{table}/{name}"


def edit_log(store: el.EpisodeStore, table: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change every action in the log of a table."""
    for path in (store.path / table / "_delta_log").glob("*.json"):
        actions = read_actions(path)
        for action in actions:
            edit(action)
        write_actions(path, actions)


def relist(store: el.EpisodeStore, file: str, rows: int | None = None, size: int | None = None) -> None:
    """Let the log list a file as it is now, or with other numbers."""
    table, _, name = file.partition("/")

    def edit(action: dict[str, Any]) -> None:
        if action.get("add", {}).get("path") == name:
            there = pq.read_metadata(store.path / file).num_rows
            statistics = json.loads(action["add"]["stats"])
            statistics["numRecords"] = there if rows is None else rows
            action["add"]["size"] = (store.path / file).stat().st_size if size is None else size
            action["add"]["stats"] = json.dumps(statistics)

    edit_log(store, table, edit)


def rewrite(store: el.EpisodeStore, file: str, edit: Edit) -> None:
    """Change the content of a file; the log is made to agree."""
    path = store.path / file
    pq.write_table(edit(pq.read_table(path)), path, store_schema=False)
    if not file.startswith("annotations"):
        relist(store, file)


def put(column: str, row: int, value: Any) -> Edit:
    """Return an edit of one cell; a function is given the old value."""

    def edit(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        values[row] = value(values[row]) if callable(value) else value
        index = table.schema.get_field_index(column)
        kind = table.schema.field(column).type
        return table.set_column(index, table.schema.field(index), pa.array(values, kind))

    return edit


def both(*edits: Edit) -> Edit:
    """Return several edits as one."""

    def edit(table: pa.Table) -> pa.Table:
        for each in edits:
            table = each(table)
        return table

    return edit


def flip(path: Path, position: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def flip_page(store: el.EpisodeStore, file: str) -> None:
    """Change one byte of the first column's last page."""
    chunk = pq.read_metadata(store.path / file).row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    flip(store.path / file, start + chunk.total_compressed_size - 1)


# Healthy stores


@pytest.mark.further
def test_a_rich_store_has_no_faults(tmp_path: Path) -> None:
    """Ragged spaces, dynamic columns, NaN returns, annotations, tags and every maintenance leave no fault."""
    store = awkward_store(tmp_path / "store")
    assert store.verify() == el.types.VerifyReport(8, 29, 11, ())
    ids = ids_of(store)
    store.annotate(pl.DataFrame({"episode_id": ids[:3], "quality": [1.0, None, 0.5]}))
    steps = store.steps.select("episode_id", "t").collect().tail(9)
    store.annotate(steps.with_columns(advantage=pl.col("t") / 2), on=("episode_id", "t"))
    store.tag("before")
    assert store.verify().faults == ()
    store.delete("number = 1")
    assert store.verify().faults == ()
    store.compact()
    assert store.verify().faults == ()
    again = store.steps.select("episode_id", "t").collect().head(2)
    store.annotate(again.with_columns(advantage=pl.lit(9.0)), on=("episode_id", "t"))
    store.compact(order_by="episode_return", descending=True)
    assert store.verify().faults == ()
    el.merge([store, awkward_store(tmp_path / "other")], tmp_path / "merged")
    assert el.open(tmp_path / "merged").verify().faults == ()
    assert store.verify(repair=True).faults == ()


def test_vector_rewards_and_odd_spaces_have_no_faults(tmp_path: Path) -> None:
    """Vector rewards with NaN and infinities add up; branches and graphs may be NULL."""
    action = spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])
    graph = spaces.Graph(spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3))
    store = el.create(
        tmp_path / "store",
        observation_space=spaces.Dict({"graph": graph, "none": spaces.Dict({})}),
        action_space=action,
        reward_shape=(2,),
    )
    random = np.random.default_rng(0)
    with store.writer() as writer:
        for number in range(4):
            graph.seed(number)
            episode = writer.begin({"graph": graph.sample(num_nodes=1 + number), "none": {}})
            for t in range(20):
                reward = random.standard_normal(2) * 10.0 ** random.integers(-9, 9)
                reward[0] = [reward[0], np.nan, np.inf, -np.inf][number if t == 7 else 0]
                chosen = (0, np.int64(1)) if t % 2 else (1, np.zeros(2, np.float32))
                episode.append(chosen, reward, {"graph": graph.sample(num_nodes=2), "none": {}})
            episode.end()
    assert store.refresh().verify() == el.types.VerifyReport(4, 80, 4, ())


@pytest.mark.further
def test_long_episodes_add_up_across_row_groups(tmp_path: Path) -> None:
    """The return of an episode that takes several row groups is its rewards added in order, bit by bit."""
    store = el.create(
        tmp_path / "store",
        observation_space=spaces.Box(0, 255, (64, 64), np.uint8),
        action_space=spaces.Discrete(2),
    )
    length = 20_000
    rewards = np.random.default_rng(0).standard_normal(length) * 1e9
    with store.writer() as writer:
        for _ in range(2):
            writer.write_episode(
                observations=np.zeros((length + 1, 64, 64), np.uint8),
                actions=np.zeros(length, np.int64),
                rewards=rewards,
                terminations=False,
                truncations=True,
            )
    files = (store.path / "steps").glob("*.parquet")
    assert all(pq.read_metadata(path).num_row_groups > 2 for path in files)
    report = store.refresh().verify()
    assert (report.episodes, report.steps, report.faults) == (2, 2 * length, ())


def test_an_empty_store_has_no_faults(tmp_path: Path) -> None:
    """A store without episodes is whole."""
    store = el.create(tmp_path / "store", **SPACES)
    assert store.verify() == el.types.VerifyReport(0, 0, 1, ())
    assert store.verify(repair=True).ok


@pytest.mark.further
def test_after_many_commits_the_checkpoint_tells_the_same(tmp_path: Path) -> None:
    """Verification reads a log that was summed up as it reads a plain one."""
    store = el.create(tmp_path / "store", **SPACES)
    with store.writer(run="a") as writer:
        for _ in range(105):
            writer.write_episode(
                observations=np.zeros((2, 2), np.float32),
                actions=np.zeros(1, np.int64),
                rewards=np.ones(1),
                terminations=True,
                truncations=False,
                infos=[{"speed": 1.0}, {}],
            )
            writer.seal()
    assert list((store.path / "steps" / "_delta_log").glob("*.checkpoint*"))
    assert store.refresh().verify().faults == ()


# Damage to episodes, and to steps

EPISODES: dict[str, tuple[str, Edit]] = {
    "number": ("episode", put("number", 0, 99)),
    "run_id": ("episode", put("run_id", 1, None)),
    "twice": (
        "episode",
        lambda table: pa.concat_tables([table.slice(0, 1), table.slice(0, 1), table.slice(2)]),
    ),
    "row_start below zero": ("pointer", put("row_start", 0, -1)),
    "row_count of one": ("pointer", put("row_count", 2, 1)),
    "one row, no transition": ("pointer", both(put("row_count", 2, 1), put("length", 2, 0))),
    "huge row_start": ("pointer", put("row_start", 0, 2**63 - 2)),
    "segment elsewhere": ("pointer", put("segment", 0, "../episodes/x.parquet")),
    "no segment": ("pointer", put("segment", 0, None)),
    "overlap": ("pointer", put("row_start", 1, 1)),
    "overlap of the next": ("pointer", both(put("row_count", 0, 6), put("length", 0, 5))),
    "behind the end": ("pointer", put("row_start", 2, 11)),
    "length": ("pointer", put("length", 1, 50)),
    "length and count": ("pointer", put("row_count", 1, 5)),
    "return": ("return", put("episode_return", 0, lambda value: np.nextafter(value, 9))),
    "no return": ("return", put("episode_return", 1, None)),
    "nan return": ("return", put("episode_return", 2, float("nan"))),
    "flag": ("flags", put("truncated", 0, True)),
    "no flag": ("flags", put("terminated", 2, None)),
    "reason of a terminated one": ("flags", put("end_reason", 0, "cut")),
    "reason of a cut one": ("flags", put("end_reason", 2, "truncated")),
    "unknown reason": ("flags", put("end_reason", 2, "bored")),
}
STEPS: dict[str, tuple[str, Edit]] = {
    "t": ("rows", put("t", 5, 7)),
    "no t": ("rows", put("t", 0, None)),
    "id": ("rows", put("episode_id", 2, "a/000009")),
    "id of a neighbour": ("rows", put("episode_id", 3, lambda value: value[:-1] + "1")),
    "no id": ("rows", put("episode_id", 14, None)),
    "two rows exchanged": ("rows", lambda table: table.take([0, 2, 1, *range(3, 15)])),
    "no observation": ("rows", put("observation", 4, None)),
    "short observation": ("rows", put("observation", 4, [1.0])),
    "torn observation": ("rows", put("observation", 4, [1.0, None])),
    "no action": ("flags", put("action", 6, None)),
    "no reward": ("flags", put("reward", 0, None)),
    "no flag": ("flags", put("terminated", 1, None)),
    "action on the last row": ("flags", put("action", 3, 1)),
    "reward on the last row": ("flags", put("reward", 9, 0.0)),
    "flag on the last row": ("flags", put("truncated", 14, False)),
    "early flag": ("flags", put("terminated", 5, True)),
    "flag a step early": ("flags", put("truncated", 7, True)),
}


@pytest.mark.parametrize("name", EPISODES)
def test_damage_in_episodes(store: el.EpisodeStore, name: str) -> None:
    """Each wrong cell of the episodes table is told by its kind and file, and no fault follows from it."""
    kind, edit = EPISODES[name]
    file = first_file(store, "episodes")
    rewrite(store, file, edit)
    assert found(store) == [(kind, file)]


@pytest.mark.parametrize("name", STEPS)
def test_damage_in_steps(store: el.EpisodeStore, name: str) -> None:
    """Each wrong cell of a steps file is told by its kind, with the file, and no fault follows from it."""
    kind, edit = STEPS[name]
    file = first_file(store, "steps")
    rewrite(store, file, edit)
    assert found(store) == [(kind, file)]


CHECKED = ("t", "no t", "two rows exchanged")


@pytest.mark.parametrize("name", CHECKED)
def test_a_check_finds_gaps(name: str, store: el.EpisodeStore) -> None:
    """`check` raises for episodes whose steps are not numbered without a gap, and for those alone."""
    rewrite(store, first_file(store, "steps"), STEPS[name][1])
    store = el.open(store.path)
    raw = pl.read_parquet(store.path / first_file(store, "steps"))
    t = pl.col("t").fill_null(-1)
    good = raw.group_by("episode_id").agg((t == pl.int_range(pl.len())).all()).filter(pl.col("t"))
    sound = store.filter(pl.col("episode_id").is_in(good["episode_id"].implode()))
    assert len(sound) == 2 and sound.check(finished=False) is sound
    with pytest.raises(el.errors.CorruptStoreError, match=r"The steps of 1 episode \('.*'\) are not"):
        store.check(finished=False)


def test_a_check_finds_unfinished_and_repeated_episodes(store: el.EpisodeStore) -> None:
    """`check` names episodes without an end and those of one source; its advice leaves them out."""
    with pytest.raises(el.errors.InvalidArgumentError, match=r"^2 episodes .* did not finish"):
        store.check()
    ended = store.filter("terminated or truncated")
    assert ended.check() is ended and len(ended) == 4
    source = el.create(store.path.parent / "other", **SPACES)
    with el.open(source.path).writer() as one, el.open(source.path).writer() as other:
        # Two imports at the same time do not see each other's keys.
        assert not one.has_source_key("x") and not other.has_source_key("x")
        keyed(one, "x")
        keyed(other, "y")
        keyed(other, "x")
    with source.writer() as writer:
        keyed(writer, None)
        keyed(writer, None)
    source.refresh()
    counted = source.query('select count(*) - count(distinct "metadata.source_key") from episodes').item()
    assert counted == 3
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"^Duplicate source key: 1 episode .* such as 'x'"
    ):
        source.check()
    key = pl.col("metadata.source_key")
    once = source.filter(key.is_null() | key.is_first_distinct())
    assert len(once.check()) == 4 and len(source.check(unique=False)) == 5


def keyed(writer: Any, key: str | None, rewards: Any = (1.0, 1.0)) -> None:
    """Write an episode of two steps that terminated."""
    writer.write_episode(
        source_key=key,
        observations=np.zeros((3, 2), np.float32),
        actions=np.zeros(2, np.int64),
        rewards=np.asarray(rewards),
        terminations=True,
        truncations=False,
    )


def test_wrong_vector_returns(tmp_path: Path) -> None:
    """A vector return with a wrong, a missing or a surplus objective is wrong."""
    store = el.create(tmp_path / "store", **SPACES, reward_shape=(2,))
    with store.writer(run="a") as writer:
        for _ in range(4):
            writer.write_episode(
                observations=np.zeros((3, 2), np.float32),
                actions=np.zeros(2, np.int64),
                rewards=np.ones((2, 2)),
                terminations=True,
                truncations=False,
            )
    file = first_file(store.refresh(), "episodes")
    edits = [put("episode_return", row, value) for row, value in enumerate([[2.0, 3.0], [2.0], [2.0] * 3])]
    rewrite(store, file, both(*edits))
    (fault,) = store.verify().faults
    assert (fault.kind, fault.file) == ("return", file)
    assert "has [2.0, 3.0], its rewards add up to [2.0, 2.0]" in fault.message
    assert "; and" not in fault.message and fault.message.count(" has ") == 3


def test_equal_faults_are_summed_up(tmp_path: Path) -> None:
    """Many equal faults of one file are one, with examples and a count."""
    store = awkward_store(tmp_path / "store")
    store.compact()
    (path,) = {path.name for path in (store.path / "episodes").glob("compact*.parquet")}
    rewrite(store, f"episodes/{path}", both(*(put("episode_return", row, 5.0) for row in range(8))))
    (fault,) = store.verify().faults
    assert fault.message.count("has 5.0") == 3
    assert fault.message.endswith("and 5 more.")


@pytest.mark.further
def test_batches_of_any_size_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults do not depend on how many rows are compared at a time, within a row group or over many."""
    monkeypatch.setattr("episodelake.store.segments.steps_file.GROUP_ROWS", 4)
    store = el.create(tmp_path / "store", **SPACES)
    write_run(store, "a")
    write_run(store, "b")
    store.refresh()
    keys = store.steps.select("episode_id", "t").collect()
    store.annotate(keys.with_columns(advantage=pl.col("t") / 2), on=("episode_id", "t"))
    assert pq.read_metadata(store.path / first_file(store, "steps")).num_row_groups > 3
    reports = []
    for _ in range(2):
        for rows in (1, 3, 5, 7, 11, 1 << 19):
            monkeypatch.setattr("episodelake.readers.verification.relations._BATCH_ROWS", rows)
            reports.append(store.verify())
        rewrite(store, first_file(store, "steps"), both(put("reward", 4, 9.0), put("t", 13, 7)))
        rewrite(store, first_file(store, "episodes"), put("terminated", 0, False))
        (annotation, *_) = (store.path / "annotations").rglob("a-*.parquet")
        rewrite(store, annotation.relative_to(store.path).as_posix(), put("t", 6, 0))
    assert reports[:6] == [reports[0]] * 6 and reports[0].ok
    assert reports[6:] == [reports[6]] * 6
    assert sorted(fault.kind for fault in reports[6].faults) == ["annotation", "flags", "return", "rows"]


def test_rewards_that_cannot_be_decoded_hide_nothing(tmp_path: Path) -> None:
    """A reward of the wrong size is a fault of its file; other faults of the row group are named too."""
    store = el.create(tmp_path / "store", **SPACES, reward_shape=(2,))
    with store.writer(run="a") as writer:
        for _ in range(2):
            keyed(writer, None, rewards=np.ones((2, 2)))
    store.refresh()
    rewrite(store, first_file(store, "steps"), both(put("reward", 0, [1.0]), put("t", 4, 7)))
    assert found(store) == [("rows", first_file(store, "steps"))] * 2
    rewrite(store, first_file(store, "steps"), both(put("reward", 0, [1.0, 1.0]), put("reward", 2, [1.0])))
    assert set(found(store)) == {("rows", first_file(store, "steps")), ("flags", first_file(store, "steps"))}


def test_a_changed_reward_is_a_wrong_return(store: el.EpisodeStore) -> None:
    """Rewards that do not add up to the return are told with both numbers."""
    rewrite(store, first_file(store, "steps"), put("reward", 0, 100.0))
    (fault,) = store.verify().faults
    assert (fault.kind, fault.file) == ("return", first_file(store, "episodes"))


# Damage to files


def lose_run(store: el.EpisodeStore) -> None:
    """Let the row of a run name another."""
    rewrite(store, first_file(store, "runs"), put("run_id", 0, "somebody else"))


def run_twice(store: el.EpisodeStore) -> None:
    """Let the table of runs have a row twice."""
    rewrite(store, first_file(store, "runs"), lambda table: pa.concat_tables([table, table]))


def rename_kind(action: dict[str, Any]) -> None:
    """Mark the columns of infos with a kind that nobody knows."""
    if "metaData" in action:
        text = action["metaData"]["schemaString"]
        action["metaData"]["schemaString"] = text.replace('"kind":"float"', '"kind":"quaternion"')


def lose_column(action: dict[str, Any]) -> None:
    """Take a standard column out of a table's schema."""
    if "metaData" in action:
        schema = json.loads(action["metaData"]["schemaString"])
        schema["fields"] = [field for field in schema["fields"] if field["name"] != "wide_seed"]
        action["metaData"]["schemaString"] = json.dumps(schema)


def forget_column(store: el.EpisodeStore) -> None:
    """Let the log say that a steps file lacks its infos."""

    def edit(action: dict[str, Any]) -> None:
        if action.get("add", {}).get("path", "").startswith("a-"):
            action["add"]["stats"] = action["add"]["stats"].replace('"info.speed": 0, ', "")
            action["add"]["stats"] = action["add"]["stats"].replace(', "info.speed": 0', "")
            assert "info.speed" not in action["add"]["stats"]

    edit_log(store, "steps", edit)


def edit_manifest(store: el.EpisodeStore) -> None:
    """Let store.json name another column type."""
    path = store.path / "store.json"
    content = json.loads(path.read_text())
    content["columns"]["action"]["action"] = "string"
    path.write_text(json.dumps(content))


def leave_leftover(store: el.EpisodeStore) -> None:
    """Leave an old unfinished file."""
    path = store.path / "steps" / "_delta_log" / ".x.json.12ab.tmp"
    path.write_bytes(b"{")
    os.utime(path, (0, 0))


def leave_artifact(store: el.EpisodeStore) -> None:
    """Keep one right and one wrong artifact."""
    folder = store.path / "artifacts"
    folder.mkdir()
    (folder / hashlib.sha256(b"right").hexdigest()).write_bytes(b"right")
    (folder / hashlib.sha256(b"x").hexdigest()).write_bytes(b"wrong")


FILES: dict[str, tuple[str, str, Callable[[el.EpisodeStore], None]]] = {
    "store.json": ("manifest", "store.json", lambda s: (s.path / "store.json").write_text("{")),
    "no store.json": ("manifest", "store.json", lambda s: (s.path / "store.json").unlink()),
    "columns": ("manifest", "store.json", edit_manifest),
    "card": ("manifest", "card.json", lambda s: (s.path / "card.json").write_text("[1]")),
    "runs log": ("log", "runs/_delta_log", lambda s: shutil.rmtree(s.path / "runs" / "_delta_log")),
    "steps log": ("log", "steps/_delta_log", lambda s: shutil.rmtree(s.path / "steps" / "_delta_log")),
    "episodes log": (
        "log",
        "episodes/_delta_log",
        lambda s: shutil.rmtree(s.path / "episodes" / "_delta_log"),
    ),
    "kind": ("schema", "steps/_delta_log", lambda s: edit_log(s, "steps", rename_kind)),
    "column": ("schema", "episodes/_delta_log", lambda s: edit_log(s, "episodes", lose_column)),
    "listed columns": ("schema", "steps/", forget_column),
    "type in a file": (
        "schema",
        "steps/",
        lambda s: rewrite(
            s, first_file(s, "steps"), lambda t: t.set_column(1, "t", t.column("t").cast(pa.int32()))
        ),
    ),
    "key in a file": (
        "schema",
        "steps/",
        lambda s: rewrite(s, first_file(s, "steps"), lambda t: t.drop_columns(["episode_id"])),
    ),
    "column in a file": (
        "schema",
        "episodes/",
        lambda s: rewrite(s, first_file(s, "episodes"), lambda t: t.drop_columns(["seed"])),
    ),
    "dynamic type in a file": (
        "schema",
        "steps/",
        lambda s: rewrite(
            s,
            first_file(s, "steps"),
            lambda t: t.set_column(
                t.schema.get_field_index("info.speed"), "info.speed", t.column("t").cast(pa.string())
            ),
        ),
    ),
    "no steps": ("missing", "steps/", lambda s: (s.path / first_file(s, "steps")).unlink()),
    "no episodes": ("missing", "episodes/", lambda s: (s.path / first_file(s, "episodes")).unlink()),
    "no runs": ("missing", "runs/", lambda s: (s.path / first_file(s, "runs")).unlink()),
    "size of steps": ("size", "steps/", lambda s: relist(s, first_file(s, "steps"), size=9)),
    "size of episodes": ("size", "episodes/", lambda s: relist(s, first_file(s, "episodes"), size=9)),
    "truncated steps": ("size", "steps/", lambda s: os.truncate(s.path / first_file(s, "steps"), 500)),
    "listed rows of steps": ("rows", "steps/", lambda s: relist(s, first_file(s, "steps"), rows=16)),
    "listed rows of runs": ("rows", "runs/", lambda s: relist(s, first_file(s, "runs"), rows=2)),
    "a page of steps": ("unreadable", "steps/", lambda s: flip_page(s, first_file(s, "steps"))),
    "a page of episodes": ("unreadable", "episodes/", lambda s: flip_page(s, first_file(s, "episodes"))),
    "a page of runs": ("unreadable", "runs/", lambda s: flip_page(s, first_file(s, "runs"))),
    "a footer": ("unreadable", "steps/", lambda s: flip(s.path / first_file(s, "steps"), -60)),
    "run": ("episode", "episodes/", lose_run),
    "run twice": ("runs", "runs/", run_twice),
    "artifact": ("artifact", "artifacts/" + hashlib.sha256(b"x").hexdigest(), leave_artifact),
    "leftover": ("leftover", "steps/_delta_log/.x.json.12ab.tmp", leave_leftover),
}


@pytest.mark.parametrize("name", FILES)
def test_damage_to_files(store: el.EpisodeStore, name: str) -> None:
    """Each damaged, missing or foreign file is told by its kind, and no fault follows from it."""
    kind, file, damage = FILES[name]
    if file.endswith("/"):
        file = first_file(store, file[:-1])
    damage(store)
    assert found(store) == [(kind, file)]


@pytest.mark.parametrize("apart", [53, pytest.param(11, marks=pytest.mark.further)])
@pytest.mark.further
def test_every_changed_byte_is_found_or_harmless(store: el.EpisodeStore, apart: int) -> None:
    """A changed byte of a steps file is told, unless the file still reads the same."""
    file = first_file(store, "steps")
    path = store.path / file
    whole, data = pq.read_table(path), path.read_bytes()
    for position in range(0, len(data), apart):
        flip(path, position)
        faults = found(store)
        if not faults:
            assert pq.read_table(path, page_checksum_verification=True).equals(whole)
        else:
            assert faults == [("unreadable", file)]
        path.write_bytes(data)


def test_every_row_group_is_decoded(tmp_path: Path) -> None:
    """A damaged page of a column that no check needs is found."""
    store = awkward_store(tmp_path / "store")
    store.compact()
    (path,) = [path for path in (store.path / "steps").glob("compact*.parquet")]
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).names.index("height"))
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - 2)
    (fault,) = store.verify().faults
    assert (fault.kind, fault.file) == ("unreadable", f"steps/{path.name}")


def test_one_fault_does_not_hide_another(store: el.EpisodeStore) -> None:
    """Faults of several files and layers are all told in one report."""
    second = f"episodes/{next((store.path / 'episodes').glob('b-*')).name}"
    flip_page(store, first_file(store, "steps"))
    rewrite(store, second, both(put("episode_return", 0, 9.0), put("number", 1, 9)))
    edit_manifest(store)
    leave_leftover(store)
    report = store.verify()
    assert {(fault.kind, fault.file) for fault in report.faults} == {
        ("manifest", "store.json"),
        ("leftover", "steps/_delta_log/.x.json.12ab.tmp"),
        ("unreadable", first_file(store, "steps")),
        ("return", second),
        ("episode", second),
    }
    assert not report.ok
    assert not any(fault.mended for fault in report.faults)


# Listings, annotations, tags


def lose_listing(store: el.EpisodeStore) -> str:
    """Take a segment out of the list of steps."""
    file = first_file(store, "steps")
    gone = {"path": file[6:], "deletionTimestamp": 0, "dataChange": True}
    append_actions(store.path / "steps", [{"remove": gone}])
    return file


def add_orphan(store: el.EpisodeStore) -> str:
    """List a file that a maintenance operation wrote, and no episode points at."""
    name = "compact.0123456789abcde-000000.parquet"
    shutil.copy(store.path / first_file(store, "steps"), store.path / "steps" / name)
    there: list[dict[str, Any]] = []
    edit_log(store, "steps", lambda action: there.append(action) if "add" in action else None)
    append_actions(store.path / "steps", [{"add": {**there[0]["add"], "path": name}}])
    relist(store, f"steps/{name}")
    return f"steps/{name}"


@pytest.mark.parametrize("damage", [lose_listing, add_orphan])
def test_listings(store: el.EpisodeStore, damage: Callable[[el.EpisodeStore], str]) -> None:
    """A segment that is not listed, and an orphan that is, are told and mended."""
    before = contents(store)
    file = damage(store)
    assert found(store) == [("listing", file)]
    report = store.verify(repair=True)
    assert [(fault.kind, fault.file, fault.mended) for fault in report.faults] == [("listing", file, True)]
    assert report.ok
    assert store.verify().faults == ()
    assert_contents(store, before)


@pytest.mark.parametrize("table", ["steps", "episodes"])
def test_what_readers_refuse_is_a_fault(store: el.EpisodeStore, table: str) -> None:
    """Readers refuse a file with a column that neither its table nor the log has, and `verify` reports it."""
    file = first_file(store, table)
    rewrite(store, file, lambda rows: rows.append_column("foreign", pa.array(range(rows.num_rows))))
    with pytest.raises(el.errors.CorruptStoreError, match="foreign"):
        el.open(store.path).steps.collect()
        el.open(store.path).episodes.collect()
    assert found(store) == [("schema", file)]
    assert "foreign" in store.verify().faults[0].message


def test_a_listed_orphan_that_is_gone(store: el.EpisodeStore) -> None:
    """The listing of a missing file that no episode needs is dropped by a repair, beside another orphan's."""
    file = add_orphan(store)
    (store.path / file).unlink()
    assert found(store) == [("missing", file)]
    lost = lose_listing(store)
    assert set(found(store)) == {("missing", file), ("listing", lost)}
    assert store.verify(repair=True).ok
    assert store.verify().faults == ()


ANNOTATIONS: dict[str, Edit] = {
    "t": put("t", 2, 7),
    "id": put("episode_id", 0, "a/000002"),
    "no id beside a value": put("episode_id", 0, None),
    "rows": lambda table: table.slice(1),
    "type": lambda table: table.set_column(2, "advantage", table.column(1).cast(pa.string())),
    "column": lambda table: table.rename_columns(["episode_id", "t", "other"]),
    "key": lambda table: table.drop_columns(["episode_id"]),
}


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_damage_in_annotations(store: el.EpisodeStore, name: str) -> None:
    """An annotation that does not stand beside its steps is told with its file."""
    steps = store.steps.select("episode_id", "t").collect().head(6)
    store.annotate(steps.with_columns(advantage=pl.col("t") / 2), on=("episode_id", "t"))
    (path,) = (store.path / "annotations").rglob("*.parquet")
    file = path.relative_to(store.path).as_posix()
    assert found(store) == []
    rewrite(store, file, ANNOTATIONS[name])
    assert found(store) == [("annotation", file)]
    assert not store.verify(repair=True).ok


def test_a_damaged_list_of_annotations(store: el.EpisodeStore) -> None:
    """A property that names no annotations is told once."""
    steps = store.steps.select("episode_id", "t").collect().head(6)
    store.annotate(steps.with_columns(advantage=pl.col("t") / 2), on=("episode_id", "t"))

    def edit(action: dict[str, Any]) -> None:
        settings = action.get("metaData", {}).get("configuration", {})
        if "episodelake.annotations" in settings:
            settings["episodelake.annotations"] = "{"

    edit_log(store, "episodes", edit)
    assert found(store) == [("annotation", "episodes/_delta_log")]


def test_an_unreadable_annotation(store: el.EpisodeStore) -> None:
    """A damaged page of an annotation is told with its file."""
    steps = store.steps.select("episode_id", "t").collect().head(6)
    store.annotate(steps.with_columns(advantage=pl.col("t") / 2), on=("episode_id", "t"))
    (path,) = (store.path / "annotations").rglob("*.parquet")
    flip(path, 40)
    assert found(store) == [("unreadable", path.relative_to(store.path).as_posix())]


def test_a_changed_marker_of_an_annotation(store: el.EpisodeStore) -> None:
    """A changed marker in an annotation's folder is a fault that names it; one without a checksum is none."""
    steps = store.steps.select("episode_id", "t").collect().head(6)
    store.annotate(steps.with_columns(advantage=pl.col("t") / 2), on=("episode_id", "t"))
    (path,) = (store.path / "annotations").rglob("annotation.json")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"advantage", b"advantagf"))
    assert found(store) == [("annotation", path.relative_to(store.path).as_posix())]
    path.write_text('{"name": "other", "type": "double"}', "utf-8")
    assert found(store) == [("annotation", path.relative_to(store.path).as_posix())]
    path.write_text('{"name": "advantage", "type": "double"}', "utf-8")
    assert found(store) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1"}', '{"version": 999}'])
def test_damaged_tags(store: el.EpisodeStore, text: str) -> None:
    """A tag that is damaged, or names no version, is told; other tags are still looked at."""
    store.tag("good")
    store.tag("paper")
    (store.path / "tags" / "paper.json").write_text(text)
    assert found(store) == [("tag", "tags/paper.json")]


@pytest.mark.parametrize("table", ["episodes", "steps"])
def test_what_a_tag_needs(store: el.EpisodeStore, table: str) -> None:
    """A file that only a tagged version needs is read too, and its fault names the tag."""
    store.tag("paper")
    file = first_file(store, table)
    store.compact()
    assert found(store) == []
    (store.path / file).unlink()
    (fault,) = store.verify().faults
    assert (fault.kind, fault.file) == ("missing", file)
    assert "'paper'" in fault.message


def test_a_damaged_file_that_a_tag_needs(store: el.EpisodeStore) -> None:
    """A damaged page in a file that only a tagged version needs is found."""
    store.tag("paper")
    file = first_file(store, "steps")
    store.compact()
    flip_page(store, file)
    assert found(store) == [("unreadable", file)]
    store.untag("paper")
    assert found(store) == []


# Journals, live writers, and company


@pytest.fixture
def orphaned(store: el.EpisodeStore, tmp_path: Path) -> el.EpisodeStore:
    """The store as it is when a writer dies that has three steps of an episode in its journal."""
    with store.writer(run="dead", flush_seconds=0.01) as writer:
        episode = writer.begin(np.zeros(2, np.float32))
        for _ in range(3):
            episode.append(0, 1.0, np.ones(2, np.float32))
        wait_for_journal(store.path / "journal" / writer.run_id, 3)
        return el.open(crashed_copy(store, tmp_path / "copy"))


def test_a_dead_writers_journal(orphaned: el.EpisodeStore) -> None:
    """A journal that waits for recovery is told, looking changes nothing, and a repair seals it."""
    (folder,) = (path for path in (orphaned.path / "journal").iterdir() if path.is_dir())
    file = f"journal/{folder.name}"
    before = files_under(orphaned.path)
    assert found(orphaned) == [("journal", file)]
    assert found(orphaned) == [("journal", file)]
    assert files_under(orphaned.path) == before
    report = orphaned.verify(repair=True)
    assert [(fault.kind, fault.file, fault.mended) for fault in report.faults] == [("journal", file, True)]
    assert (report.episodes, report.steps) == (7, 27)
    assert orphaned[-1].end_reason == "interrupted"
    assert orphaned.verify().faults == ()


def test_a_dead_writers_journal_that_is_damaged(orphaned: el.EpisodeStore) -> None:
    """A repair seals what can be read of a damaged journal, sets it aside, and says so."""
    (part,) = (orphaned.path / "journal").glob("dead-*/*.frames")
    name = part.parent.name
    part.with_name("000001.frames").write_bytes(part.read_bytes())
    flip(part, 200)
    report = orphaned.verify(repair=True)
    assert [(fault.kind, fault.file, fault.mended) for fault in report.faults] == [
        ("journal", f"journal/{name}", True),
        ("journal", f"journal/{name}.damaged", False),
    ]
    assert found(orphaned) == [("journal", f"journal/{name}.damaged")]


def test_a_damaged_journal(store: el.EpisodeStore) -> None:
    """A journal that was set aside is named until somebody deletes it; a folder without a part is none."""
    folder = store.path / "journal" / "gone-0123456789abcde.damaged"
    folder.mkdir()
    assert found(store) == []
    (folder / "000000.frames").write_bytes(b"damaged")
    assert found(store) == [("journal", "journal/gone-0123456789abcde.damaged")]
    assert not store.verify(repair=True).ok
    assert (folder / "000000.frames").read_bytes() == b"damaged"
    shutil.rmtree(folder)
    assert store.verify().ok


@pytest.mark.parametrize("repair", [False, True])
def test_beside_a_live_writer(store: el.EpisodeStore, repair: bool) -> None:
    """A live writer's journal is no fault and is left alone, whether it holds rows or sealed some."""
    with store.writer(run="live") as writer:
        episode = writer.begin(np.zeros(2, np.float32))
        episode.append(0, 1.0, np.ones(2, np.float32))
        assert store.verify(repair=repair).faults == ()
        episode.end()
        writer.seal()
        episode = writer.begin(np.zeros(2, np.float32))
        episode.append(0, 1.0, np.ones(2, np.float32))
        assert store.verify(repair=repair).faults == ()
        assert store.verify(repair=repair).episodes == 7
    assert len(store.refresh()) == 8
    assert store.verify().faults == ()


@pytest.mark.sample
@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("moment", ["before steps", "before episodes", "after"])
def test_in_the_middle_of_a_seal(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch, moment: str, repair: bool
) -> None:
    """Nothing is wrong with a store while a writer has committed its steps and not yet its episodes."""
    reports = []
    commit = Table.commit

    def watched(self: Table, *arguments: Any, **options: Any) -> None:
        if moment == f"before {self.path.name}":
            reports.append(store.verify(repair=repair))
        commit(self, *arguments, **options)
        if moment == "after" and self.path.name == "episodes":
            reports.append(store.verify(repair=repair))

    monkeypatch.setattr(Table, "commit", watched)
    write_run(store, "c")
    assert [report.faults for report in reports] == [()]
    monkeypatch.undo()
    assert store.refresh().verify().faults == ()
    assert len(store) == 9


def test_in_the_middle_of_a_compaction(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two commits of a compaction the list of steps looks wrong; verification waits and sees."""
    looked = threading.Event()
    reports: list[el.types.VerifyReport] = []
    watcher = threading.Thread(target=lambda: reports.append(store.verify()))
    look, replace = _Inspection._look, Table.replace

    def watched_look(self: _Inspection, *arguments: Any) -> bool:
        seen = look(self, *arguments)
        looked.set()
        return seen

    def watched_replace(self: Table, *arguments: Any, **options: Any) -> None:
        replace(self, *arguments, **options)
        if self.path.name == "steps":
            watcher.start()
            assert looked.wait(PATIENCE)

    monkeypatch.setattr(_Inspection, "_look", watched_look)
    monkeypatch.setattr(Table, "replace", watched_replace)
    other = el.open(store.path)
    other.compact()
    watcher.join(PATIENCE)
    assert [report.faults for report in reports] == [()]


def test_files_that_are_vacuumed_meanwhile(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that others replaced and deleted while verification was under way is not missed."""
    take = _Inspection._take

    def then_vacuum(self: _Inspection) -> None:
        take(self)
        other = el.open(store.path)
        other.compact()
        other.vacuum(timedelta(0))

    monkeypatch.setattr(_Inspection, "_take", then_vacuum)
    assert store.verify().faults == ()


def test_episodes_of_two_files_are_compared(store: el.EpisodeStore) -> None:
    """An id that another file has, too, and rows that belong to an episode of another file are faults."""
    mine = pq.read_table(store.path / first_file(store, "episodes")).slice(0, 1).to_pylist()[0]
    (other,) = [path.name for path in (store.path / "episodes").glob("b-*.parquet")]
    rewrite(
        store, f"episodes/{other}", both(*(put(name, 0, mine[name]) for name in ("segment", "row_start")))
    )
    again = {name: put(name, 1, mine[name]) for name in ("episode_id", "run_id", "number")}
    rewrite(store, f"episodes/{other}", both(*again.values()))
    faults = {(fault.kind, fault.file): fault.message for fault in store.verify().faults}
    assert f"{mine['episode_id']!r}" in faults["episode", f"episodes/{other}"]
    assert "more than once" in faults["episode", f"episodes/{other}"]
    assert "rows of another episode" in faults["pointer", f"episodes/{other}"]


# Repair


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", EPISODES)
def test_what_repair_cannot_mend(store: el.EpisodeStore, name: str) -> None:
    """A wrong cell of the episodes table stays as it is, and no version is made."""
    rewrite(store, first_file(store, "episodes"), EPISODES[name][1])
    version = el.open(store.path).version
    before, files = store.verify().faults, files_under(store.path)
    assert store.verify(repair=True).faults == before
    assert files_under(store.path) == files
    assert not store.verify().ok
    assert el.open(store.path).version == version


def test_repair_deletes_leftovers_and_spares_young_ones(store: el.EpisodeStore) -> None:
    """An old unfinished file goes; one that somebody may still write stays and is no fault."""
    leave_leftover(store)
    young = store.path / "tags" / ".y.json.34cd.tmp"
    young.parent.mkdir()
    young.write_bytes(b"{")
    assert store.verify(repair=True).ok
    assert store.verify().faults == ()
    assert not (store.path / "steps" / "_delta_log" / ".x.json.12ab.tmp").exists()
    assert young.exists()


def test_repair_without_faults_changes_nothing(store: el.EpisodeStore) -> None:
    """Repairing a healthy store makes no version."""
    version = store.version
    assert store.verify(repair=True).faults == ()
    assert store.version == version


# The report


@pytest.mark.parametrize("call", ["compact", "delete", "vacuum", "verify", "copy", "merge", "collect"])
def test_progress_is_one_type_everywhere(store: el.EpisodeStore, tmp_path: Path, call: str) -> None:
    """Every `progress` argument takes True, False or a function, and refuses the rest at once."""
    env = gym.make("CartPole-v1")
    calls: dict[str, Any] = {
        "compact": store.compact,
        "delete": lambda progress: store.delete("length > 1000", progress=progress),
        "vacuum": lambda progress: store.vacuum(timedelta(days=1), progress=progress),
        "verify": store.verify,
        "copy": lambda progress: store.copy(tmp_path / f"copy-{progress is True}", progress=progress),
        "merge": lambda progress: el.merge([store], tmp_path / "merged", progress=progress),
        "collect": lambda progress: el.collect(env, None, target, steps=5, progress=progress),
    }
    target = el.create(tmp_path / "target", env)
    for wrong in ("yes", None, 1):
        with pytest.raises(el.errors.InvalidArgumentError, match="progress"):
            calls[call](progress=wrong)
    assert not list(tmp_path.glob("copy-*")) and not (tmp_path / "merged").exists()
    calls[call](progress=True)
    calls[call](progress=False)


def test_progress(store: el.EpisodeStore) -> None:
    """Progress counts segments up to their number."""
    told: list[tuple[int, int]] = []
    store.verify(progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_ok_means_nothing_is_left() -> None:
    """A report is ok when every fault is mended, and faults are values."""
    fault = el.types.Fault("return", "episodes/x.parquet", "wrong", True)
    assert el.types.VerifyReport(1, 1, 1, ()).ok
    assert el.types.VerifyReport(1, 1, 1, (fault,)).ok
    assert not el.types.VerifyReport(1, 1, 1, (fault, dataclasses.replace(fault, mended=False))).ok


def test_a_lost_annotation_folder_is_a_fault_and_stops_nothing(tmp_path: Path) -> None:
    """Without the folder of a step annotation, verify names it and goes on, and readers refuse to guess."""
    store = el.create(
        tmp_path / "store",
        observation_space=spaces.Discrete(3),
        action_space=spaces.Discrete(2),
    )
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros(3, np.int64),
            actions=np.zeros(2, np.int64),
            rewards=np.ones(2),
            terminations=True,
            truncations=False,
        )
    store.refresh()
    steps = store.transitions.select("episode_id", "t", gain="reward").collect()
    store.annotate(steps, on=("episode_id", "t"))
    assert store.verify().ok
    shutil.rmtree(store.path / "annotations")
    report = store.verify()
    assert [fault.kind for fault in report.faults] == ["annotation"]
    assert report.faults[0].file.startswith("annotations/annotate.")
    with pytest.raises(el.errors.CorruptStoreError, match="annotation"):
        el.open(store.path)[0].step_annotations  # noqa: B018


def test_too_little_memory_is_no_damage(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where DuckDB has neither memory nor temporary files, verify says so, and finds no damage."""
    opened = relations.open_connection

    def small() -> Any:
        connection = opened(spill=False)
        connection.execute("SET memory_limit = '1kB'")
        return connection

    monkeypatch.setattr(relations, "open_connection", small)
    with pytest.raises(el.errors.StoreUnavailableError, match=r"(?s)cannot be compared .* call again"):
        store.verify()
