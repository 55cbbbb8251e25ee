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
import pyarrow.parquet as pq
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
    """A recorded store beside what the plain loop saw, and what the loop over the recorder was given."""

    path: Path
    env: gymnasium.Env
    plain: list[Trajectory]
    returned: list[Trajectory]


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
        returned = play(recorder, real.episodes, real.most_steps)
    yield Recording(path, bare, plain, returned)
    bare.close()


@pytest.mark.sample(3)
def test_recording_changes_nothing(recording: Recording) -> None:
    """A recorded environment returns exactly what the bare one does, Python types included."""
    for plain, returned in zip(recording.plain, recording.returned, strict=True):
        assert same_sequence(plain.observations, returned.observations)
        assert same_sequence(plain.actions, returned.actions)
        assert [(type(reward), reward) for reward in plain.rewards] == [
            (type(reward), reward) for reward in returned.rewards
        ]
        assert plain.terminations == returned.terminations
        assert plain.truncations == returned.truncations
        assert all(map(equal_values, plain.infos, returned.infos))


def same_sequence(left: list[Any], right: list[Any]) -> bool:
    """Tell whether two lists of values are equal one by one, in type too."""
    return len(left) == len(right) and all(map(same, left, right))


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


def test_rebuilt_episodes_know_how_they_went(recording: Recording) -> None:
    """Seed, return, end reason, flags, number and run of every episode are those of the loop."""
    store = el.open(recording.path)
    for number, (episode, plain) in enumerate(zip(store, recording.plain, strict=True)):
        assert episode.seed == plain.seed
        assert episode.episode_return == sum(float(reward) for reward in plain.rewards)
        assert episode.end_reason == plain.end_reason
        assert episode.terminated == plain.terminations[-1]
        assert episode.truncated == plain.truncations[-1]
        assert episode.number == episode.position == number
        assert episode.run_id.startswith(recording.path.name)
        assert episode.started_at <= episode.ended_at


def test_info_scalars_come_back_as_python_values(recording: Recording) -> None:
    """A scalar in an info comes back as bool, int, float or str, and an array as an array."""
    for episode, plain in zip(el.open(recording.path), recording.plain, strict=True):
        for back, seen in zip(episode.infos, plain.infos, strict=True):
            for key, value in seen.items():
                if isinstance(value, np.ndarray):
                    assert isinstance(back[key], np.ndarray)
                elif isinstance(value, bool | int | float | str | np.generic):
                    assert type(back[key]) in (bool, int, float, str)


def raw_duckdb(recording: Recording, table: str, query: str) -> list[tuple[Any, ...]]:
    """Query the Parquet files that the Delta log of a table names; the query calls them `raw`."""
    files = delta_files(recording.path / table)
    with duckdb.connect() as connection:
        connection.execute(f"create view raw as select * from read_parquet({files!r}, union_by_name=true)")
        return connection.execute(query).fetchall()


def raw_polars(recording: Recording, table: str) -> pl.LazyFrame:
    """Scan a raw folder with Polars alone."""
    return pl.scan_delta(str(recording.path / table))


def expected_totals(recording: Recording) -> list[tuple[Any, ...]]:
    """Give rows, rewards, return, terminations and truncations of every episode of the plain loop."""
    return [
        (
            len(plain.observations),
            len(plain.rewards),
            sum(float(reward) for reward in plain.rewards),
            sum(plain.terminations),
            sum(plain.truncations),
        )
        for plain in recording.plain
    ]


def test_duckdb_alone_sees_the_same_steps(recording: Recording) -> None:
    """Row counts, sums of rewards and numbers of flags per episode agree in DuckDB on the bare files."""
    rows = raw_duckdb(
        recording,
        "steps",
        """select count(*), count(reward), sum(reward order by t), count(*) filter (terminated),
           count(*) filter (truncated) from raw group by episode_id order by episode_id""",
    )
    wanted = expected_totals(recording)
    assert [row[:2] + row[3:] for row in rows] == [row[:2] + row[3:] for row in wanted]
    assert [row[2] for row in rows] == pytest.approx([row[2] for row in wanted], rel=1e-12, abs=1e-12)


def test_polars_alone_sees_the_same_steps(recording: Recording) -> None:
    """Row counts, sums of rewards and numbers of flags per episode agree in Polars on the raw folder."""
    frame = (
        raw_polars(recording, "steps")
        .group_by("episode_id")
        .agg(
            pl.len(),
            pl.col("reward").count().alias("rewards"),
            pl.col("reward").sum().alias("total"),
            pl.col("terminated").sum(),
            pl.col("truncated").sum(),
        )
        .sort("episode_id")
        .collect()
    )
    wanted = expected_totals(recording)
    rows = [row[1:] for row in frame.rows()]
    assert [row[:2] + row[3:] for row in rows] == [row[:2] + row[3:] for row in wanted]
    assert [row[2] for row in rows] == pytest.approx([row[2] for row in wanted], rel=1e-12, abs=1e-12)


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


def test_pointers_of_the_episodes_table_are_right(recording: Recording) -> None:
    """Segment, row_start and row_count of a raw episode row lead to its own rows, in order of t."""
    for row in raw_polars(recording, "episodes").collect().iter_rows(named=True):
        table = pq.read_table(recording.path / "steps" / row["segment"], columns=["episode_id", "t"])
        rows = table.slice(row["row_start"], row["row_count"])
        assert set(rows["episode_id"].to_pylist()) == {row["episode_id"]}
        assert rows["t"].to_pylist() == list(range(row["length"] + 1))


@pytest.mark.sample(3)
def test_episodes_replay(recording: Recording) -> None:
    """Stored seeds and actions drive the bare environment to the stored observations again."""
    env = recording.env
    for episode in el.open(recording.path):
        observations = [env.reset(seed=episode.seed)[0]]
        for t in range(len(episode)):
            observations.append(env.step(single(episode.actions, t))[0])
        assert same(episode.observations, stack(env.observation_space, observations))


def single(actions: Any, t: int) -> Any:
    """Take action t out of stacked actions."""
    if isinstance(actions, tuple):
        return tuple(single(part, t) for part in actions)
    return (
        {key: single(part, t) for key, part in actions.items()} if isinstance(actions, dict) else actions[t]
    )
