"""Figures of `info` from the log are those of a query over the raw files, after any operation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from deltalake import DeltaTable

import episodelake as el
from agent_environments import Comings
from conformance import abandon
from episodelake.store.delta.checkpoints import write_checkpoint
from episodelake.terminal.reports.store_figures import store_figures
from log_edits import read_actions, write_actions
from plain_agents import play_parallel, random_policy
from real_environments import NUMBERED_SPACES, write_numbered

TAG = "episodelake.figures"
_OF_RUN = "count(*) AS episodes, {transitions} AS transitions, avg(length) AS mean_length"
_MEAN = ", avg({}) FILTER (NOT isnan({})) AS mean_return"


def query(store: el.EpisodeStore, text: str) -> list[tuple[Any, ...]]:
    """Rows of a query over the files of episodes, `{files}`, that a Delta reader finds."""
    files = DeltaTable(str(store.path / "episodes")).file_uris()
    if not files:
        return []
    # Not by `read_parquet`: DuckDB takes a column for one without NaN whose statistics are finite.
    rows = pl.concat([pl.read_parquet(file) for file in files], how="diagonal").to_arrow()
    with duckdb.connect() as connection:
        return connection.register("rows", rows).sql(text.format(files="rows")).fetchall()


def check(store: el.EpisodeStore, *, listed: bool = True) -> None:
    """Compare the figures with queries; `listed` says whether the log has them."""
    store.refresh()
    _, others = store.selection().snapshot.listed_figures()
    assert (len(others) == 0) == listed
    figures = store_figures(store)
    agents, several = bool(store.agent_groups), bool(store.reward_shape)
    if len(store):
        lengths = query(store, "SELECT min(length), avg(length), max(length) FROM {files}")
        same([tuple(figures.lengths.values())], lengths)
        objectives = range(store.reward_shape[0]) if several else [0]
        each = [f"episode_return[{index + 1}]" if several else "episode_return" for index in objectives]
        spread = "SELECT {0} FROM (SELECT {1} AS r FROM {{files}})"
        wanted = "min(r) FILTER (NOT isnan(r)), avg(r) FILTER (NOT isnan(r)), max(r) FILTER (NOT isnan(r)), "
        for shown, column in zip(figures.returns, each, strict=True):
            shown = [shown[name] for name in ("lowest", "mean", "highest", "nan")]
            same([tuple(shown)], query(store, spread.format(f"{wanted} count(*) FILTER (isnan(r))", column)))
    reasons = query(store, "SELECT end_reason, count(*) FROM {files} GROUP BY 1 ORDER BY 2 DESC, 1")
    assert list(figures.end_reasons.items()) == reasons
    transitions = "sum(row_count - len(agents))" if agents else "sum(length)"
    text = _OF_RUN.format(transitions=transitions) + (
        "" if several else _MEAN.format(*["episode_return"] * 2)
    )
    runs = {run: row for run, *row in query(store, f"SELECT run_id, {text} FROM {{files}} GROUP BY 1")}
    for shown in figures.runs:
        row = [
            value for name, value in shown.items() if name not in ("run_id", "name", "started_at", "ended_at")
        ]
        same([row], [runs.pop(shown["run_id"], [0, 0, *[None] * (len(row) - 2)])])
    assert not runs
    if agents:
        text = (
            'SELECT agent, "group", count(*), sum(length), avg(r) FILTER (NOT isnan(r)) FROM (SELECT '
            'unnest(agents) AS agent, unnest(agent_groups) AS "group", unnest(agent_lengths) AS length, '
            "unnest(agent_returns) AS r FROM {files}) GROUP BY 1, 2 ORDER BY 3 DESC, 1"
        )
        same([tuple(agent.values()) for agent in figures.agents], query(store, text))


def same(ours: list[Any], theirs: list[Any]) -> None:
    """Rows are equal; numbers up to the order in which they were added."""
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        for one, other in zip(left, right, strict=True):
            is_float = isinstance(one, float) and isinstance(other, float)
            assert math.isclose(one, other, rel_tol=1e-12) if is_float else one == other


def write(store: el.EpisodeStore, random: np.random.Generator, run: str) -> el.EpisodeWriter:
    """A writer of a run, still open, that sealed some episodes, not all of which ended."""
    writer = store.writer(run=run, metadata={"a.b": 1})
    shape = store.reward_shape or ()
    for _ in range(int(random.integers(1, 9))):
        episode = writer.begin(store.observation_space.sample())
        for t in range(length := int(random.integers(1, 6))):
            # Sums of these are exact in any order.
            reward = random.integers(-999, 999, shape) / 8
            reward = np.where(random.random(shape) < 0.1, np.nan, reward)
            ends = t == length - 1 and random.random() < 0.5
            episode.append(
                store.action_space.sample(), reward, store.observation_space.sample(), terminated=bool(ends)
            )
        episode.end()
        if random.random() < 0.4:
            writer.seal()
    return writer


def operations(random: np.random.Generator) -> dict[str, Callable[[el.EpisodeStore], Any]]:
    """The operations that change a store, by name."""

    def killed(store: el.EpisodeStore) -> None:
        writer = write(store, random, "killed")
        writer.begin(store.observation_space.sample()).append(
            store.action_space.sample(), np.zeros(store.reward_shape or ()), store.observation_space.sample()
        )
        abandon(writer)
        el.recover(store.path)

    def annotate(store: el.EpisodeStore) -> None:
        names = {name: pl.lit(value) for name, value in (("group", "x"), ("runs", 2.0))}
        store.annotate(store.episodes.select("episode_id", **names).collect())

    return {
        "record": lambda store: write(store, random, "größe x").close(),
        "kill": killed,
        "annotate": annotate,
        "delete": lambda store: store.delete("number % 3 = 1"),
        "compact": lambda store: store.compact(order_by="length"),
    }


@pytest.mark.further
@pytest.mark.parametrize("reward_shape", [(), (2,)])
@pytest.mark.parametrize("seed", range(6))
def test_any_store(seed: int, reward_shape: tuple[int, ...], tmp_path: Path) -> None:
    """After each of many operations the log has the figures of all files, and `verify` agrees."""
    random = np.random.default_rng(seed)
    store = el.create(tmp_path / "store", **NUMBERED_SPACES, reward_shape=reward_shape)
    check(store)
    known = operations(random)
    for name in ["record", "kill", *random.choice(["record", *known], 5), "annotate"]:
        known[str(name)](store)
        check(store)
    assert store.verify().ok
    check(store[::2].copy(tmp_path / "copy"))


def test_several_agents(tmp_path: Path) -> None:
    """Figures of each agent are in the log too."""
    store = el.create(tmp_path / "store", Comings())
    for seeds in (range(3), range(3, 5)):
        with store.record(Comings()) as recorder:
            for seed in seeds:
                play_parallel(recorder, random_policy(recorder, seed), seed)
    check(store)
    store.delete("number = 0")
    check(store)
    assert store.verify().ok


def edit_tags(store: el.EpisodeStore, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the figures of each file in the log; None removes them."""
    for path in (store.path / "episodes" / "_delta_log").glob("*.json"):
        actions = read_actions(path)
        for add in (action["add"] for action in actions if "tags" in action.get("add", {})):
            figures = edit(json.loads(add["tags"][TAG]))
            add["tags"] = None if figures is None else {TAG: json.dumps(figures)}
        write_actions(path, actions)


def numbered(path: Path) -> el.EpisodeStore:
    """A store of two runs and three files."""
    store = el.create(path, **NUMBERED_SPACES)
    for run, values in (("a", range(4)), ("b", range(4, 6))):
        with store.writer(run=run) as writer:
            for value in values:
                write_numbered(writer, value, 1 + value % 3)
                if value == 1:
                    writer.seal()
    return store.refresh()


def test_checkpoints_keep_them_and_others_read_the_table(tmp_path: Path) -> None:
    """A checkpoint has them; the Delta library reads the table with and without it."""
    store = numbered(tmp_path / "store")
    table = DeltaTable(str(store.path / "episodes"))
    rows = table.to_pyarrow_table().num_rows
    write_checkpoint(store.selection().snapshot.layout.table("episodes"), table.version(), checksummed=True)
    for path in (store.path / "episodes" / "_delta_log").glob("*.json"):
        if int(path.stem) < table.version():
            path.unlink()
    assert DeltaTable(str(store.path / "episodes")).to_pyarrow_table().num_rows == rows == 6
    check(el.open(store.path))


def test_a_log_without_figures(tmp_path: Path) -> None:
    """Files of earlier releases are read, beside others whose figures the log has."""
    store = numbered(tmp_path / "store")
    before = store_figures(store)
    edit_tags(store, lambda figures: None)
    check(store := el.open(store.path), listed=False)
    assert store_figures(store) == before and store.verify().ok
    with store.writer() as writer:
        write_numbered(writer, 6, 2)
    check(store, listed=False)


IMPOSSIBLE: dict[str, Any] = {
    "text": lambda figures: "x",
    "rows": lambda figures: {**figures, "end_reasons": {"cut": 9}},
    "huge": lambda figures: {**figures, "runs": {run: [10**30] * 5 for run in figures["runs"]}},
    "names": lambda figures: {**figures, "agent_groups": {"x": 1}, "agents": {"x": [1, 1, 1, 1]}},
    "short": lambda figures: {**figures, "runs": {run: row[:2] for run, row in figures["runs"].items()}},
    "unknown": lambda figures: {**figures, "lengths": {"smallest": 1}},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_figures_are_not_used(name: str, tmp_path: Path) -> None:
    """Where the log has figures that no file can have, the files are read; `verify` reports them."""
    store = numbered(tmp_path / "store")
    edit_tags(store, IMPOSSIBLE[name])
    check(store := el.open(store.path), listed=False)
    assert {fault.kind for fault in store.verify().faults} == {"listing"}


def test_wrong_figures_are_found(tmp_path: Path) -> None:
    """A return in the log that is not that of the file is a fault of each file, and nothing else is."""
    store = numbered(tmp_path / "store")
    edit_tags(
        store,
        lambda figures: {**figures, "runs": {run: [*row[:4], 0.5] for run, row in figures["runs"].items()}},
    )
    faults = el.open(store.path).verify().faults
    assert {(fault.kind, fault.file) for fault in faults} == {
        ("listing", f"episodes/{file.name}") for file in store.selection().snapshot.episode_files
    }
