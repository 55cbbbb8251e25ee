"""Queries of the cookbook: 10 million steps against DuckDB on the bare files, and a million episodes.

The bare side runs the same queries in DuckDB alone, on files listed by hand, with the macros written out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import gymnasium as gym
import numpy as np
import polars as pl

import episodelake as el
from bare_files import files_of
from fabricated import Segment, write_segments
from measure import Row, interleave, scaled
from setting import Setting
from sql import check_agreement, timed

TARGET = 1.1
#: What an episode-level query may take, in milliseconds.
LIMIT = 50.0
SEGMENTS = 50
#: By name: the question in our words, and the same on bare files; {S} are the steps, {E} the episodes.
STEP_QUERIES = {
    "where it fails": (
        "select count(*), avg(abs(obs(2))) from steps where action is null",
        "select count(*), avg(abs(observation[3])) from {S} where action is null",
    ),
    "returns from steps": (
        "select episode_id, sum(reward) as total from transitions group by 1 order by total desc, 1 limit 9",
        "select episode_id, sum(reward) as total from {S} where terminated is not null "
        "group by 1 order by total desc, 1 limit 9",
    ),
    "discounted return": (
        "select avg(discounted_return) from discounted_return(0.99)",
        "select avg(total) from (select sum(reward * pow(0.99, t)) as total from {S} group by episode_id)",
    ),
    "returns to go": (
        "select avg(return_to_go) from returns_to_go(0.99)",
        "select avg(sums / weight) from (select pow(0.99, t) as weight, sum(reward * pow(0.99, t)) over "
        "(partition by episode_id order by t desc) as sums from {S} where terminated is not null)",
    ),
    "action by side": (
        "select obs(2) > 0 as side, avg(action), count(*) from transitions group by 1 order by 1",
        "select observation[3] > 0 as side, avg(action), count(*) from {S} "
        "where terminated is not null group by 1 order by 1",
    ),
    "action histogram": (
        "select action, count from action_histogram()",
        "select action, count(*) from {S} where action is not null group by 1 order by 1",
    ),
    "effect of actions": (
        "select action, avg(next_obs(1) - obs(1)) from transitions_with_next group by 1 order by 1",
        "select action, avg(after[2] - observation[2]) from (select *, lead(observation) over "
        "(partition by episode_id order by t) as after from {S}) "
        "where action is not null group by 1 order by 1",
    ),
    "visited states": (
        "select floor(obs(0) * 2) as a, floor(obs(2) * 2) as b, count(*) from steps "
        "group by 1, 2 order by 1, 2",
        "select floor(observation[1] * 2) as a, floor(observation[3] * 2) as b, count(*) from {S} "
        "group by 1, 2 order by 1, 2",
    ),
    "first hit": (
        "select count(t), avg(t) from first_hit(obs(2) > 2)",
        "select count(t), avg(t) from "
        "(select min(t) filter (observation[3] > 2) as t from {S} group by episode_id)",
    ),
    "reward outliers": (
        "select count(*), min(reward) from transitions where abs(reward) > 3.5",
        "select count(*), min(reward) from {S} where terminated is not null and abs(reward) > 3.5",
    ),
}
EPISODE_QUERIES = {
    "end reasons": "select end_reason, count(*), avg(length) from episodes group by 1 order by 1",
    "return by run": "select run_id, avg(episode_return), 1.96 * stddev(episode_return) / sqrt(count(*)) "
    "from episodes group by 1 order by 1",
    "the best twenty": "select episode_id, episode_return from episodes order by 2 desc, 1 limit 20",
    "above a return": "select count(*) from episodes where episode_return > 0.5 and length >= 2",
    "return by length": "select length, median(episode_return) from episodes group by 1 order by 1",
    "one by position": "select episode_id from episode_at(-1)",
    "a page of all columns": "select * from episodes order by episode_return desc, episode_id limit 50",
}


def run(setting: Setting) -> list[Row]:
    """Measure the queries over steps, then those over episodes, on both kinds of connection."""
    rows = _over_steps(setting, setting.choose(400, 8))
    return [*rows, *_over_episodes(setting, setting.choose(20_000, 200)), *_polars(setting)]


def _store(path: Path, lengths: np.ndarray) -> el.EpisodeStore:
    """Segments of episodes of these lengths: four floats in, one of two actions out."""
    rng = np.random.default_rng(0)
    spaces = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2)
    store = el.create(path, observation_space=spaces[0], action_space=spaces[1])
    with store.writer(segment_bytes=1 << 40, seal_seconds=1e6) as writer:
        for length in lengths:
            ended = np.zeros((2, length), bool)
            ended[rng.integers(2), -1] = True
            writer.write_episode(
                observations=rng.standard_normal((length + 1, 4), dtype=np.float32),
                actions=rng.integers(0, 2, length),
                rewards=rng.standard_normal(length),
                terminations=ended[0],
                truncations=ended[1],
            )
    write_segments(Segment.of(path), SEGMENTS)
    return el.open(path)


def _over_steps(setting: Setting, episodes: int) -> list[Row]:
    lengths = np.random.default_rng(1).integers(100, 900, episodes)
    path = setting.fresh("cookbook-steps")
    store = _store(path, lengths)
    total = int(lengths.sum()) * SEGMENTS
    bare = duckdb.connect()
    sources = {name[0].upper(): _listed(path, name) for name in ("steps", "episodes")}
    rows = []
    for name, (ours, theirs) in STEP_QUERIES.items():
        text = theirs.format(**sources)
        check_agreement(name, store.sql(ours).fetchall(), bare.sql(text).fetchall())
        sides = {
            "ours": timed(lambda query=ours: store.sql(query).fetchall()),
            "bare": timed(lambda query=text: bare.sql(query).fetchall()),
        }
        costs = {side: scaled(values, 1e3) for side, values in interleave(sides, setting.repeats).items()}
        words = f"cookbook, {total / 1e6:.1f} M steps: {name}"
        rows.append(
            Row(words, "ms", costs["ours"], "DuckDB on the files", costs["bare"], ratio_target=TARGET)
        )
    return rows


def _over_episodes(setting: Setting, episodes: int) -> list[Row]:
    path = setting.fresh("cookbook-episodes")
    store = _store(path, np.random.default_rng(1).integers(1, 4, episodes))
    opened = timed(lambda: store.connect(read_only=True).close())
    rows = [Row("connect(read_only=True)", "ms", scaled([opened() for _ in range(3)], 1e3))]
    for name, text in EPISODE_QUERIES.items():
        sides: dict[str, Callable[[], float]] = {
            "own": timed(lambda query=text: store.sql(query).fetchall()),
            "read only": timed(lambda query=text: store.sql(query, read_only=True).fetchall()),
        }
        found = interleave(sides, setting.repeats)
        for side, values in found.items():
            words = f"cookbook, {len(store) / 1e6:.2g} M episodes, {side}: {name}"
            rows.append(Row(words, "ms", scaled(values, 1e3), limit=LIMIT))
    return rows


def _polars(setting: Setting) -> list[Row]:
    """The namespace on steps in memory, beside the plainest expression over the same groups."""
    store = el.open(setting.folder / "cookbook-steps")
    frame = store.steps.select("episode_id", "t", "reward", "terminated").collect().lazy()
    sides = {
        "discounted": pl.col("reward").rl.discounted(0.99),
        "n_step": pl.col("reward").rl.n_step(5, 0.99),
        "next": pl.col("reward").rl.next(),
        "ema": pl.col("reward").rl.ema(0.1),
    }
    plain = pl.col("reward").cum_sum(reverse=True)
    rows = []
    for name, expression in sides.items():
        found = interleave(
            {
                "ours": _collecting(frame, expression),
                "plain": _collecting(frame, plain),
            },
            min(3, setting.repeats),
        )
        costs = {side: scaled(values, 1e3) for side, values in found.items()}
        words = f"Polars, rl.{name} over episodes"
        rows.append(Row(words, "ms", costs["ours"], "cum_sum over episodes", costs["plain"]))
    return rows


def _collecting(frame: pl.LazyFrame, expression: pl.Expr) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        frame.select(expression.over("episode_id")).collect()
        return time.perf_counter() - start

    return seconds


def _listed(path: Path, table: str) -> str:
    return f"read_parquet([{', '.join(repr(file) for file in files_of(path, table))}])"
