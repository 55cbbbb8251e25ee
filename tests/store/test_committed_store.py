"""The committed store of format 1 must open for ever, and say what it said on the day it was made.

What it must say stands beside it in `expected.json`, which was written from the data handed over; see
`make_committed_store.py`. Nothing here reads the rules by which the data was made.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from real_environments import delta_files

FOLDER = Path(__file__).parents[1] / "data" / "format-1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text("utf-8"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the committed store, since a writer or a recovery changes it."""
    return Path(shutil.copytree(FOLDER / "store", tmp_path / "store"))


def plain(value: Any) -> Any:
    """Turn what a reader gave into the JSON of expected.json: dtype, shape and exact numbers are kept."""
    match value:
        case np.ndarray():
            numbers = plain(value.ravel().tolist())
            return {"dtype": str(value.dtype), "shape": list(value.shape), "values": numbers}
        case float():
            return {"float": value.hex()}
        case dict():
            return {"dict": {key: plain(one) for key, one in value.items()}}
        case list() | tuple():
            return [plain(one) for one in value]
    return value


def check(episode: el.Episode, expected: dict[str, Any]) -> None:
    """Check an episode against its part of expected.json."""
    assert episode.seed == expected["seed"]
    assert episode.options == expected["options"]
    assert episode.end_reason == expected["end_reason"]
    assert episode.episode_return == expected["episode_return"]
    assert plain(episode.metadata) == expected["metadata"]
    assert plain(episode.observations) == expected["observations"]
    assert plain(episode.actions) == expected["actions"]
    assert plain(episode.rewards) == expected["rewards"]
    assert plain(episode.infos) == expected["infos"]
    assert set(episode.extra) == {"height"}
    assert plain(episode.extra["height"]) == expected["height"]
    assert set(episode.policy) == {"log_prob", "logits"}
    assert plain(episode.policy["log_prob"]) == expected["log_prob"]
    assert plain(episode.policy["logits"]) == expected["logits"]
    ends = [False] * (len(episode) - 1)
    assert episode.terminations.tolist() == [*ends, expected["end_reason"] == "terminated"]
    assert episode.truncations.tolist() == [*ends, expected["end_reason"] == "truncated"]


def test_the_committed_store_opens_as_it_was(path: Path) -> None:
    """Card, spaces, runs and every sealed episode come back exactly, without anything being written."""
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    store = el.open(path)
    assert store.card == EXPECTED["card"]
    assert isinstance(store.observation_space, spaces.Dict)
    assert store.observation_space["frame"] == spaces.Box(0, 255, (4, 5, 3), np.uint8)
    assert store.observation_space["body"][0] == spaces.Discrete(5, start=-2)
    assert store.action_space[0] == spaces.Discrete(4)
    assert len(store) == len(EXPECTED["first"])
    for episode, expected in zip(store, EXPECTED["first"], strict=True):
        check(episode, expected)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_the_committed_store_answers_queries(path: Path) -> None:
    """SQL and Polars give the returns, end reasons and rows that the committed store was made with."""
    store = el.open(path)
    wanted = [(one["end_reason"], one["episode_return"]) for one in EXPECTED["first"]]
    assert store.sql("select end_reason, episode_return from episodes order by number").fetchall() == wanted
    assert store.episodes.select("end_reason", "episode_return").collect().rows() == wanted
    steps = sum(len(one["infos"]) for one in EXPECTED["first"])
    total = sum(one["episode_return"] for one in EXPECTED["first"])
    assert store.steps.collect().height == steps
    assert store.transitions.select(pl.col("reward").sum()).collect().item() == total
    query = 'select count("observation.frame"), count("info.a%2Eb"), sum(reward) from steps'
    assert store.sql(query).fetchall() == [(steps, steps, total)]
    assert [name for (name,) in store.sql("select name from runs").fetchall() if name == "first"] == ["first"]


def test_every_committed_version_opens(path: Path) -> None:
    """Each version of the committed store shows a beginning of what the newest shows."""
    newest = el.open(path)
    ids = newest.episodes.collect()["episode_id"].to_list()
    counts = []
    for version in range(newest.version + 1):
        store = el.open(path, version=version)
        assert store.episodes.collect()["episode_id"].to_list() == ids[: len(store)]
        counts.append(len(store))
    assert counts == sorted(counts)
    assert set(counts) == {0, 2, 3}


def test_other_tools_read_the_committed_store() -> None:
    """DuckDB and Polars read the raw folders of the committed store without the library."""
    steps = sum(len(one["infos"]) for one in EXPECTED["first"])
    total = sum(one["episode_return"] for one in EXPECTED["first"])
    frame = pl.scan_delta(str(FOLDER / "store" / "steps")).select(pl.len(), pl.col("reward").sum())
    assert frame.collect().rows() == [(steps, total)]
    query = "select count(*), sum(reward) from read_parquet($files, union_by_name=true)"
    with duckdb.connect() as connection:
        found = connection.execute(query, {"files": delta_files(FOLDER / "store" / "steps")}).fetchall()
    assert found == [(steps, total)]


def test_the_journal_of_the_committed_store_is_recovered(path: Path) -> None:
    """What the killed run left in its journal is found: a finished episode and an interrupted one."""
    recovered = el.recover(path)
    assert [(run.episodes, run.interrupted) for run in recovered] in ([(1, 1)], [(2, 1)])
    assert recovered[0].run_id.startswith("killed-")
    store = el.open(path)
    by_run = [episode for episode in store if episode.run_id == recovered[0].run_id]
    assert len(store) == len(EXPECTED["first"]) + 2
    for episode, expected in zip(by_run, EXPECTED["killed"], strict=True):
        check(episode, expected)
    assert el.recover(path) == []


def test_the_committed_store_takes_new_episodes(path: Path) -> None:
    """A writer of today adds to the store of then, and what was there stays."""
    store = el.open(path)
    old = store[0]
    with store.writer(run="today") as writer:
        written = writer.write_episode(
            observations=old.observations,
            actions=old.actions,
            rewards=old.rewards,
            terminations=True,
            truncations=False,
            infos=old.infos,
            metadata={"level": 99},
        )
    store.refresh()
    for episode, expected in zip(store, EXPECTED["first"], strict=False):
        check(episode, expected)
    assert plain(store[written.episode_id].observations) == EXPECTED["first"][0]["observations"]
    assert plain(store[written.episode_id].infos) == EXPECTED["first"][0]["infos"]


def test_the_committed_store_is_small() -> None:
    """The committed store stays small enough to be committed."""
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 300_000
