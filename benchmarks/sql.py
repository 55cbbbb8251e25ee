"""SQL over steps: `store.sql` against DuckDB on the bare Parquet files, which are listed by hand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

import episodelake as el
from bare_files import files_of
from measure import Row, interleave, scaled
from setting import Setting, create, write_all
from trajectories import control

TARGET = 1.1
QUERIES = {
    "one column": "select count(reward), sum(reward), stddev(reward) from {steps}",
    "group by episode": """select episode_id, sum(reward) as total from {steps}
        group by episode_id order by total desc limit 20""",
    "by time step": """select t // 100 as hundred, avg(reward), count(*) filter (where truncated) from {steps}
        where reward is not null group by hundred order by hundred""",
    "into observations": "select avg(observation[1]), max(observation[17]) from {steps} where t < 500",
}


def run(setting: Setting) -> list[Row]:
    """Measure each query on both sides."""
    data = control(episodes=setting.choose(1000, 50), length=1000)
    path: Path = setting.fresh("queried")
    write_all(create(path, data.kind), data)
    store = el.open(path)
    bare = duckdb.connect()
    files = ", ".join(f"'{file}'" for file in files_of(path, "steps"))
    rows = []
    for name, text in QUERIES.items():
        ours, theirs = text.format(steps="steps"), text.format(steps=f"read_parquet([{files}])")
        check_agreement(name, store.sql(ours).fetchall(), bare.sql(theirs).fetchall())
        sides = {
            "ours": timed(lambda query=ours: store.sql(query).fetchall()),
            "bare": timed(lambda query=theirs: bare.sql(query).fetchall()),
        }
        costs = {side: scaled(values, 1e3) for side, values in interleave(sides, 2 * setting.repeats).items()}
        rows.append(
            Row(
                f"SQL, {name}", "ms", costs["ours"], "DuckDB on the files", costs["bare"], ratio_target=TARGET
            )
        )
    return rows


def timed(call: Callable[[], object]) -> Callable[[], float]:
    """A call as one that gives its seconds."""

    def seconds() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return seconds


def check_agreement(name: str, ours: list[tuple], theirs: list[tuple]) -> None:
    """Raise unless both results are the same; sums may differ in the last digits, by the order of threads."""
    same = len(ours) == len(theirs) and all(
        _close(left, right)
        for our_row, their_row in zip(ours, theirs, strict=True)
        for left, right in zip(our_row, their_row, strict=True)
    )
    if not same:
        raise AssertionError(f"query {name!r} answers differently: {ours[:3]} and {theirs[:3]}")


def _close(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9)
    return left == right
