"""Facets of the explorer's list: each bar has the episodes that DuckDB counts in the files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import example, given
from hypothesis import strategies as st

import episodelake as el
from episodelake.explorer.facets import Facet, facet_of
from episodelake.explorer.listing import Choice, EpisodeList

ODD = 'it"s a ключ'
VALUES = {
    ODD: ["naïve", "it's", 'say "no"', "", "\N{SNOWMAN}", None, "%", "x" * 500, "a", "b", "c", "d"],
    "order": [1, 2, 2**62, -(2**62), None, 2**62 + 1, *range(30)],
    "score": [
        0.1,
        0.2,
        0.1 + 0.2,
        math.nan,
        math.inf,
        -math.inf,
        None,
        1e30,
        *np.linspace(0, 1, 40).tolist(),
    ],
    "rate": [0.1 + 0.2, 1e-4, 3e-4, math.nan, None],
    "good": [True, False, None],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Two hundred episodes of two runs, whose metadata have all kinds of values and names."""
    path = tmp_path_factory.mktemp("facets") / "store"
    made = el.create(path, observation_space=Box(-9, 9, (1,), np.float32), action_space=Discrete(3))
    rng = np.random.default_rng(5)
    for run in range(2):
        with made.writer(run=f"run'{run}", metadata={"the key": f"run \"{run}'s", "seed": run}) as writer:
            for number in range(100):
                length = int(rng.integers(1, 40))
                rewards = rng.normal(size=length)
                rewards[0] = {7: math.nan, 8: 1e30, 9: math.inf}.get(number, rewards[0])
                drawn = {name: values[rng.integers(len(values))] for name, values in VALUES.items()}
                writer.write_episode(
                    observations=np.zeros((length + 1, 1), np.float32),
                    actions=rng.integers(0, 3, length),
                    rewards=rewards,
                    terminations=bool(number % 3),
                    truncations=not number % 3,
                    metadata={name: value for name, value in drawn.items() if value is not None},
                )
    return made.refresh()


@pytest.fixture(scope="module")
def episodes(store: el.EpisodeStore) -> EpisodeList:
    """Its list."""
    return EpisodeList(store)


def ranges(facet: Facet) -> list[tuple[int, int]]:
    """Every bar, and some neighbouring ones of a histogram."""
    single = [(bar, bar) for bar in range(len(facet.labels))]
    ends = sorted({0, facet.bins // 3, facet.bins // 2, facet.bins})
    return (
        single
        + [(first, last - 1) for first, last in pairwise(ends)]
        + [(0, facet.bins - 1)] * (facet.bins > 0)
    )


@pytest.fixture(scope="module")
def plain(store: el.EpisodeStore) -> Iterator[Callable[[str], int]]:
    """Counts the rows of the files of episodes that fulfil a condition, with the keys of runs beside them."""
    with duckdb.connect() as connection:
        for table in ("episodes", "runs"):
            files = [str(path) for path in Path(store.path, table).rglob("*.parquet")]
            query = f"SELECT * FROM read_parquet({files}, union_by_name=true)"
            connection.execute(f"CREATE TABLE {table}_ AS {query}")
        names = [name for (name, *_) in connection.execute("DESCRIBE runs_").fetchall()]
        keys = [name.removeprefix("metadata.") for name in names if name.startswith("metadata.")]
        packed = ", ".join(f'"{key}" := r."metadata.{key}"' for key in keys)
        connection.execute(
            f"CREATE TABLE rows_ AS SELECT e.*, struct_pack({packed}) AS run FROM episodes_ e "
            "JOIN (SELECT DISTINCT ON (run_id) * FROM runs_) r USING (run_id)"
        )

        def count(condition: str) -> int:
            return connection.execute(f"SELECT count(*) FROM rows_ WHERE {condition}").fetchall()[0][0]

        yield count


def test_usual_facets(episodes: EpisodeList) -> None:
    """Ends, returns, lengths, runs, and keys with few values or numbers; texts of all kinds can be added."""
    assert episodes.usual_facets[:4] == ["end_reason", "episode_return", "length", "run_id"]
    assert {"run.seed", "metadata.good", "metadata.score"} <= set(episodes.usual_facets)
    assert 'metadata.it"s%20a%20ключ' in episodes.facetable
    assert "episode_id" not in episodes.facetable


@pytest.mark.further
def test_bars_are_what_duckdb_counts(
    store: el.EpisodeStore, episodes: EpisodeList, plain: Callable[[str], int]
) -> None:
    """The condition of each bar chooses as many episodes as the bar has: in the files, and in the list."""
    for name in episodes.facetable:
        facet = episodes.facet(name)
        assert facet.totals.sum() == len(store), name
        for first, last in ranges(facet):
            condition, count = facet.condition(first, last), facet.totals[first : last + 1].sum()
            assert len(episodes.positions(Choice(chips=(condition,)))) == count, condition
            assert plain(condition) == count, condition


def test_bars_of_a_filter(store: el.EpisodeStore, episodes: EpisodeList, plain: Callable[[str], int]) -> None:
    """With a filter, bars count what fulfils both; conditions of several facets hold together."""
    chips = ("length > 20", "end_reason = 'terminated'")
    kept = episodes.mask(Choice(chips=chips))
    assert kept is not None and 0 < kept.sum() < len(store)
    for name in episodes.usual_facets:
        facet = episodes.facet(name)
        for bar, count in enumerate(facet.counts(kept).tolist()):
            both = " AND ".join(f"({each})" for each in (*chips, facet.condition(bar, bar)))
            assert plain(both) == count, both


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32, pl.Decimal(38, 1)])
@example(values=[k * 1e-5 for k in range(25)])
@given(
    values=st.lists(
        st.one_of(st.none(), st.floats(), st.integers(-9, 9).map(lambda n: n / 10), st.just(1e30)),
        min_size=1,
        max_size=60,
    )
)
def test_histograms_of_any_numbers(dtype: Any, values: list[float | None]) -> None:
    """Each value is in the bar whose condition DuckDB finds it to fulfil, and in no other."""
    column = pl.Series("episode_return", values, dtype=pl.Float64).cast(dtype, strict=False)
    facet = facet_of(column, "x", {})
    with duckdb.connect() as connection:
        connection.register("numbers", pl.DataFrame({"x": column}).to_arrow())
        tests = ", ".join(f"coalesce({facet.condition(bar, bar)}, false)" for bar in range(len(facet.labels)))
        rows = connection.execute(f"SELECT {tests} FROM numbers").fetchall()
    for row, code in zip(rows, facet.codes.tolist(), strict=True):
        assert [bar for bar, fulfilled in enumerate(row) if fulfilled] == [code]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt64, pl.Int8])
def test_histograms_of_whole_numbers(dtype: Any) -> None:
    """Of whole numbers the conditions are exact up to the ends of their type."""
    ends = pl.select(low=dtype.min(), high=dtype.max()).row(0)
    column = pl.Series("k", [*ends, *range(20)], dtype=dtype)
    facet = facet_of(column, "k", {})
    with duckdb.connect() as connection:
        connection.register("numbers", column.to_frame().to_arrow())
        for bar, count in enumerate(facet.totals.tolist()):
            query = f"SELECT count(*) FROM numbers WHERE {facet.condition(bar, bar)}"
            assert connection.execute(query).fetchall() == [(count,)]


def test_wild_values_are_clipped() -> None:
    """Beside 1e30, ordinary values still have bars of their own, and the note says so."""
    for values in ([1e30, *range(200)], [*np.linspace(0, 9, 12).tolist(), 1e30]):
        facet = facet_of(pl.Series("x", values, dtype=pl.Float64), "x", {})
        assert (facet.totals > 0).sum() > 5
        assert "1 value beyond" in facet.note
        assert facet.condition(facet.bins - 1, facet.bins - 1).endswith("AND 1e+30")


@pytest.mark.parametrize("bars", [(-1, 0), (0, 99), (3, 2)])
def test_bars_that_are_not_there(episodes: EpisodeList, bars: tuple[int, int]) -> None:
    """Bars that a facet does not have give no condition."""
    with pytest.raises(IndexError, match="bars"):
        episodes.facet("length").condition(*bars)
