"""Real environments, recorded and rebuilt, against a plain loop over the same seeded environment.

The second half reads the raw folders with DuckDB and Polars, without the library, and expects the same
numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import numpy as np
import polars as pl
import pytest

import episodelake as el
from real_environments import (
    REAL_ENVIRONMENTS,
    RealEnvironment,
    Trajectory,
    delta_files,
    equal_values,
    play,
    raw_columns,
)
from strategies import same, stack


@dataclass(frozen=True)
class Recording:
    """A recorded store beside what the plain loop saw."""

    path: Path
    env: gymnasium.Env
    plain: list[Trajectory]


@pytest.fixture(scope="module", params=REAL_ENVIRONMENTS, ids=lambda environment: environment.name)
def recording(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recording]:
    """Play each environment twice, once bare and once recorded."""
    real: RealEnvironment = request.param
    path = tmp_path_factory.mktemp("real") / real.name
    bare = real.make()
    plain = play(bare, real.episodes, real.most_steps)
    env = real.make()
    with el.create(path, env).record(env, run=real.name, metadata={"who": "tester"}) as recorder:
        play(recorder, real.episodes, real.most_steps)
    yield Recording(path, bare, plain)
    bare.close()


def test_rebuilt_episodes_equal_the_plain_loop(recording: Recording) -> None:
    """Every observation, action, reward, flag and info comes back in value, dtype and shape."""
    store = el.open(recording.path)
    assert len(store) == len(recording.plain)
    for episode, plain in zip(store, recording.plain, strict=True):
        length = len(plain.rewards)
        assert len(episode) == episode.length == length
        assert same(episode.observations, stack(recording.env.observation_space, plain.observations))
        assert same(episode.actions, stack(recording.env.action_space, plain.actions))
        assert same(episode.rewards, np.array([float(reward) for reward in plain.rewards]))
        assert same(episode.terminations, np.array(plain.terminations))
        assert same(episode.truncations, np.array(plain.truncations))
        assert len(episode.infos) == length + 1
        for t, (back, seen) in enumerate(zip(episode.infos, plain.infos, strict=True)):
            assert equal_values(back, seen), f"info {t}: {back} is not {seen}"


def raw_duckdb(recording: Recording, table: str, query: str) -> list[tuple[Any, ...]]:
    """Query the Parquet files that the Delta log of a table names; the query calls them `raw`."""
    files = delta_files(recording.path / table)
    with duckdb.connect() as connection:
        connection.execute(f"create view raw as select * from read_parquet({files!r}, union_by_name=true)")
        return connection.execute(query).fetchall()


def raw_polars(recording: Recording, table: str) -> pl.LazyFrame:
    """Scan a raw folder with Polars alone."""
    return pl.scan_delta(str(recording.path / table))


def test_flags_stand_on_the_last_transition(recording: Recording) -> None:
    """On the bare files only row T-1 of an ended episode has a flag; row T has no action, reward or flag."""
    actions = [
        name for name, _ in raw_columns(recording.env.action_space, "action", _first_action(recording))
    ]
    nulls = " and ".join(f'"{name}" is null' for name in [*actions, "reward", "terminated", "truncated"])
    rows = raw_duckdb(
        recording,
        "steps",
        f"""select max(t), max(t) filter (terminated or truncated), list(t order by t) filter ({nulls})
            from raw group by episode_id order by episode_id""",
    )
    for (last, flagged, without), plain in zip(rows, recording.plain, strict=True):
        length = len(plain.rewards)
        assert last == length
        assert flagged == (None if plain.end_reason == "cut" else length - 1)
        assert without == [length]


def _first_action(recording: Recording) -> Any:
    return recording.plain[0].actions[0]


@pytest.mark.sample(3)
def test_duckdb_alone_sees_every_observation_and_action(recording: Recording) -> None:
    """Every leaf of every observation and action stands in its own column with its exact value."""
    env = recording.env
    for part, space in (("observation", env.observation_space), ("action", env.action_space)):
        for number, plain in enumerate(recording.plain):
            values = plain.observations if part == "observation" else plain.actions
            wanted = [dict(raw_columns(space, part, value)) for value in values]
            names = ", ".join(f'"{name}"' for name in wanted[0])
            found = raw_duckdb(
                recording,
                "steps",
                f"""select {names} from raw where episode_id like '%/{number:06}' and t < {len(values)}
                    order by t""",
            )
            assert found == [tuple(row.values()) for row in wanted]


def test_polars_alone_sees_an_observation_row(recording: Recording) -> None:
    """The last observation of every episode, with its info beside it, is in the raw folder's row T."""
    steps = raw_polars(recording, "steps")
    last = steps.filter(pl.col("t") == pl.col("t").max().over("episode_id")).sort("episode_id").collect()
    assert last.height == len(recording.plain)
    for row, plain in zip(last.iter_rows(named=True), recording.plain, strict=True):
        wanted = raw_columns(recording.env.observation_space, "observation", plain.observations[-1])
        for name, value in wanted:
            assert row[name] == value
        for key, value in plain.infos[-1].items():
            if isinstance(value, bool | int | float | np.generic):
                assert row[f"info.{key}"] == value


@pytest.mark.sample(3)
def test_raw_episodes_and_runs_tell_the_same(recording: Recording) -> None:
    """The raw episodes and runs tables hold length, return, flags, seed and the environment's id."""
    query = """select length, terminated, truncated, end_reason, seed, row_count, run_id, episode_return
               from raw order by episode_id"""
    run_id = el.open(recording.path)[0].run_id
    wanted = [
        (
            len(plain.rewards),
            plain.terminations[-1],
            plain.truncations[-1],
            plain.end_reason,
            plain.seed,
            len(plain.observations),
            run_id,
            sum(float(reward) for reward in plain.rewards),
        )
        for plain in recording.plain
    ]
    assert raw_duckdb(recording, "episodes", query) == wanted
    frame = raw_polars(recording, "episodes").sort("episode_id").collect()
    assert frame.select("length", "terminated", "truncated", "end_reason", "seed").rows() == [
        row[:5] for row in wanted
    ]
    runs = raw_polars(recording, "runs").collect().to_dicts()
    assert [run["run_id"] for run in runs] == [run_id]
    assert [run["name"] for run in runs] == [recording.path.name]
    assert json.loads(runs[0]["env_spec"])["id"] == recording.env.spec.id
    assert runs[0]["metadata.who"] == "tester"
