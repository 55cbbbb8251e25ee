"""Conditions and queries compare integers beyond 2^53 exactly, or refuse to, and NaN as above all numbers."""

from __future__ import annotations

import operator
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import episodelake as el

ODD = 2**53 + 1
LARGE_KEYS: dict[str, list[Any]] = {
    "beyond 64 bits": [2**63 + number for number in range(4)],
    "int64, then beyond": [2**60, 2**60 + 1, 2**63, 2**63 + 1],
    "int64, then a fraction": [2**60, 2**60 + 1, 0.5, 1],
}


@pytest.mark.parametrize("values", LARGE_KEYS.values(), ids=LARGE_KEYS)
def test_no_filter_finds_a_rounded_integer(tmp_path: Path, values: list[Any]) -> None:
    """Metadata that are shown rounded are not compared with integers that rounding would make equal."""
    box = spaces.Box(-1, 1, (1,), np.float64)
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    with store.writer() as writer:
        for value in values:
            writer.write_episode(
                observations=np.zeros((2, 1)),
                actions=np.zeros((1, 1)),
                rewards=[1.0],
                terminations=True,
                truncations=False,
                metadata={"hash": value, "deep": {"hash": value}, "fraction": value / 3},
            )
    store.refresh()
    for name in ("metadata.hash", "metadata.deep.hash"):
        for filtering in (
            lambda name=name: store.filter(f'"{name}" = ?', [values[1]]),
            lambda name=name: store.filter(f'"{name}" = $x', {"x": values[1]}),
            lambda name=name: store.filter(f'"{name}" in (1, {values[1]})'),
            lambda name=name: store.filter(pl.col(name) == values[1]),
            lambda name=name: store.query(f'select * from episodes where "{name}" = ?', [values[1]]),
            lambda name=name: store.sql(f'from steps semi join episodes on "{name}" = {values[1]}'),
        ):
            with pytest.raises(el.errors.QueryError, match=f"{name}.*{values[1]}.*as text"):
                filtering()
    # A frame that the caller filters compares what it shows; the exact values are in the episodes.
    shown = store.episodes.filter(pl.col("metadata.hash") == float(values[1])).collect()
    assert shown.height > [episode.metadata["hash"] for episode in store].count(values[1]) == 1
    assert len(store.filter('"metadata.hash" > 0')) == 4
    assert len(store.filter('"metadata.fraction" < 9223372036854775811')) == 4
    assert len(store.query('from episodes where "metadata.fraction" < 9223372036854775811')) == 4


LONG_POOL: list[Any] = [
    2**53 - 1,
    2**53,
    ODD,
    -ODD,
    2**60,
    2**60 + 1,
    2**70 + 1,
    3,
    0,
    0.5,
    1e17,
    "abc",
    "12",
    12,
]
OPERATORS: dict[str, Any] = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, ">=": operator.ge}


def with_metadata(path: Path, values: list[Any], *, runs: bool) -> el.EpisodeStore:
    """Give a store of an episode for each value, which it or its run has as metadata."""
    store = el.create(path, observation_space=spaces.Discrete(2), action_space=spaces.Discrete(2))
    for value in values:
        metadata = {"k": value, "longer": {"k": 7}}
        with store.writer(metadata=metadata if runs else None) as writer:
            episode = writer.begin(0, metadata=None if runs else metadata, seed=2**60)
            episode.append(0, 1.0, 1, terminated=True)
            episode.end()
    return store.refresh()


@pytest.mark.further
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    values=st.lists(st.sampled_from(LONG_POOL), min_size=1, max_size=4),
    limits=st.lists(st.sampled_from([v for v in LONG_POOL if type(v) is int]), min_size=2, max_size=2),
    runs=st.booleans(),
)
def test_comparisons_with_integers_are_exact_or_refused(
    values: list[Any], limits: list[int], runs: bool
) -> None:
    """Python compares the recorded numbers; only a long integer and a column that rounds one are refused."""
    values = [1, *values]
    numbers = [value for value in values if not isinstance(value, str)]
    rounds = any(type(v) is int and abs(v) >= 2**53 for v in numbers) and (
        any(type(v) is float or abs(v) >= 2**63 for v in numbers)
    )
    with tempfile.TemporaryDirectory() as folder:
        store = with_metadata(Path(folder) / "store", values, runs=runs)
        name = "run.k" if runs else '"metadata.k"'
        for sign, compares in OPERATORS.items():
            for limit in limits:
                wanted = [
                    place
                    for place, value in enumerate(values)
                    if not isinstance(value, str) and compares(value, limit)
                ]
                for text, given_values in (
                    (f"{name} {sign} {limit}", None),
                    (f"not (not {name} {sign} ?)", [limit]),
                ):
                    if rounds and abs(limit) >= 2**53:
                        with pytest.raises(el.errors.QueryError, match="as text"):
                            store.filter(text, given_values)
                    elif any(type(v) is float for v in numbers) and abs(limit) >= 2**53:
                        continue  # Floats alone are compared as floats.
                    else:
                        assert store.filter(text, given_values).positions.tolist() == wanted, (text, values)
        other = 'run."longer.k"' if runs else '"metadata.longer.k"'
        harmless = f"{other} < {ODD} and seed = {2**60} and {name} > 2"
        wanted = [p for p, v in enumerate(values) if not isinstance(v, str) and v > 2]
        assert store.filter(harmless).positions.tolist() == wanted
        if not runs:
            column = pl.col("metadata.k")
            found = store.filter((pl.col("seed") == 2**60) & (column > 2) & ~(pl.col("length") > ODD))
            assert found.positions.tolist() == wanted
            if rounds:
                for expression in (column == ODD, column.is_in([3, ODD]), (column - ODD).abs() < 1):
                    with pytest.raises(el.errors.QueryError, match=f"metadata.k.*{ODD}"):
                        store.filter((pl.col("length") > 0) | expression)


@pytest.mark.parametrize("runs", [False, True])
def test_a_rounded_column_keeps_no_other_name(tmp_path: Path, runs: bool) -> None:
    """Aliases, subqueries, joins, patterns and PIVOT are refused too, in queries, deletions and lakes."""
    store = with_metadata(tmp_path / "store", [2**53, ODD, 0.5], runs=runs)
    name = "run.k" if runs else '"metadata.k"'
    for text in (
        f"select {name} as q from episodes where q = {ODD}",
        f"with a(q) as (select {name} from episodes) from a where q = {ODD}",
        f"from (values ({ODD})) as t(x) join episodes on x = {name}",
        f"from episodes where {name} in (select {ODD})",
        f"from episodes where {name} = '{ODD}'",
        f"from episodes where {name} = {ODD}.0",
        f"from episodes where COLUMNS('metadata.k') = {ODD}"
        if not runs
        else f'from runs where "METADATA.K" = {ODD}',
        f"from episodes select * where abs({name} - 9_007_199_254_740_993) < 1",
    ):
        with pytest.raises(el.errors.QueryError, match=f"metadata.k.*{ODD}"):
            store.query(text)
    with pytest.raises(el.errors.QueryError, match=r"metadata\.k"):
        store.delete(f"{name} = ?", [ODD])
    lake = el.lake(tmp_path)
    with pytest.raises(el.errors.QueryError, match=r"metadata\.k"):
        lake.find(f"{name} = {ODD}")
    assert store.query(f"select {ODD} as n, count(*) as c from episodes where {name} > 1")["c"].item() == 2
    assert lake.find(f"{name} > 1 and length < {ODD}")["matches"].to_list() == [2]


@pytest.mark.further
@pytest.mark.parametrize("runs", [False, True])
def test_texts_beside_numbers_are_refused(tmp_path: Path, runs: bool) -> None:
    """A column of numbers, whose key has texts too, meets no text; the error says where they are."""
    values = [3, "abc", "12", 12, True, None, 0.5, "it's"]
    store = with_metadata(tmp_path / "store", values, runs=runs)
    name, json = ("run.k", "run._json") if runs else ('"metadata.k"', '"metadata._json"')
    lake = el.lake(tmp_path)
    for text, parameters in (
        (f"{name} = '12'", None),
        (f"{name} = ?", ["it's"]),
        (f"{name} in ('abc', '4')", None),
        (f"not {name} < $x", {"x": "abc"}),
        (f"{name} like 'a%' or {name} = 3", None),
    ):
        counted = f"select count(*) as n from episodes where {text}"
        for ask in (
            lambda text=text, parameters=parameters: store.filter(text, parameters),
            lambda counted=counted, parameters=parameters: store.query(counted, parameters),
            lambda text=text, parameters=parameters: lake.find(text, parameters),
        ):
            with pytest.raises(el.errors.QueryError, match=r"Compare them there: .*_json"):
                ask()
    for text, parameters, wanted in (
        (f"{json} ->> '$.\"k\"' = ?", ["it's"], ["it's"]),
        (f"{json} ->> '$.k' like 'a%' or {name} = 3", None, [3, "abc"]),
        (f"{name} = 12 and end_reason = 'terminated'", None, [12]),
    ):
        assert [values[place] for place in store.filter(text, parameters).positions] == wanted, text
        assert lake.find(text, parameters)["matches"].sum() == len(wanted), text
    numbers = with_metadata(tmp_path / "numbers", [1, 2], runs=runs)
    assert numbers.filter(f"{name} = '2'").positions.tolist() == [1]
    with pytest.raises(el.errors.QueryError, match="abc"):
        numbers.filter(f"{name} = 'abc'")


def test_nan_is_above_all_numbers(tmp_path: Path) -> None:
    """The statistics of a file, which leave out NaN, rule out no row that has it; nor do they add one."""
    box = spaces.Box(-1, 1, (1,), np.float64)
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    for rewards in ([2.0, 2.0], [1.0, np.nan]):
        with store.writer() as writer:
            for reward in rewards:
                zeros = {"observations": np.zeros((2, 1)), "actions": np.zeros((1, 1))}
                writer.write_episode(**zeros, rewards=[reward], terminations=True, truncations=False)
    store.refresh()
    store.annotate(store.steps.select("episode_id", "t", score="reward").collect(), on=("episode_id", "t"))
    store.refresh()
    lake = el.lake(tmp_path)
    for condition, places in {
        "isnan({})": [3],
        "not isnan({})": [0, 1, 2],
        "{} > 2": [3],
        "{} <= 2": [0, 1, 2],
        "{} <> 1": [0, 1, 3],
        "{} = 'nan'::double": [3],
    }.items():
        of_episodes = condition.format("episode_return")
        assert store.filter(of_episodes).positions.tolist() == places, of_episodes
        assert lake.find(of_episodes)["matches"].to_list() == [len(places)], of_episodes
        for name in ("reward", "score"):
            asked = condition.format(name)
            wanted = [store[place].id for place in places]
            found = store.steps_where(asked).collect()["episode_id"]
            assert found.to_list() == wanted, asked
            query = f"select episode_id from transitions where {asked} order by 1"
            assert store.query(query)["episode_id"].to_list() == sorted(wanted), asked
