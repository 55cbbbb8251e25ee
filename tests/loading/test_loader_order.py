"""The order of loaders: each unit once, the same again, resumed exactly, and shared among several readers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from episodelake.readers.columns.selection import EpisodeIndex
from episodelake.readers.loading.orders import Permutation
from episodelake.readers.loading.units import UnitIndex
from episodelake.readers.loading.windows import Windows
from episodelake.testing.adapters import case
from loader_batches import BOX, places, random_store

LENGTHS = [5, 1, 17, 9, 30, 2, 11]
KEYS = ["episode", "t"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Seven episodes of different lengths."""
    path = tmp_path_factory.mktemp("orders") / "store"
    return random_store(path, LENGTHS, ["terminated", "truncated", "cut"] * 2 + ["terminated"], BOX)


@given(st.integers(1, 200_000), st.integers(0, 2**64 - 1))
def test_a_permutation_has_each_number_once(size: int, key: int) -> None:
    """Whatever the size and the key."""
    found = Permutation(size, key)(np.arange(size))
    assert found.dtype == np.int64
    assert (np.bincount(found, minlength=size) == 1).all() and len(found) == size


@pytest.mark.parametrize("keys", [1000, pytest.param(4000, marks=pytest.mark.further)])
@pytest.mark.parametrize("size", [50, 5000, 1 << 20])
def test_a_permutation_looks_random(size: int, keys: int) -> None:
    """Over many keys each number stands anywhere, neighbours do not stay together, and keys differ."""
    first = np.array([Permutation(size, key)(np.array([0, size // 2, size - 1])) for key in range(keys)])
    for column in first.T:
        counts, mean = np.bincount(column * 10 // size, minlength=10), keys / 10
        assert ((counts - mean) ** 2 / mean).sum() < 33.7  # chi-squared, 9 degrees of freedom, p = 0.0001
    whole = Permutation(size, 99)(np.arange(size)).astype(float)
    assert abs(np.corrcoef(whole[:-1], whole[1:])[0, 1]) < 5 / size**0.5
    assert abs(np.corrcoef(whole, np.arange(size))[0, 1]) < 5 / size**0.5


MILLION = [447036, 936589, 329107, 708125, 803040, 309894]


def test_the_order_is_the_same_for_ever(store: el.EpisodeStore) -> None:
    """The order of a seed and an epoch never changes, so that a training of last year can be repeated."""
    assert Permutation(10, 7)(np.arange(10)).tolist() == [2, 6, 7, 4, 0, 1, 9, 5, 8, 3]
    assert Permutation(1_000_000, 7)(np.arange(6)).tolist() == MILLION
    assert places(store.loader(4, columns=KEYS, shuffle=True, seed=3))[:4] == [
        (4, 5),
        (4, 6),
        (4, 26),
        (4, 13),
    ]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 9))
def test_the_episode_of_each_unit_is_found(lengths: list[int], window: int) -> None:
    """As a search among the borders finds it, whatever the lengths; episodes without a unit have none."""
    index = EpisodeIndex(np.array(lengths), np.ones(len(lengths), np.int8))
    units = UnitIndex(Windows(window), index)
    counts = [max(length - window + 1, 0) for length in lengths]
    expected = [(number, unit) for number, count in enumerate(counts) for unit in range(count)]
    numbers = np.random.default_rng(0).permutation(len(units))
    chosen = units.choose(numbers)
    found = list(zip(chosen.episodes.tolist(), chosen.numbers.tolist(), strict=True))
    assert found == [expected[number] for number in numbers]


@pytest.mark.parametrize("backwards", [False, True])
def test_weights_are_met(store: el.EpisodeStore, backwards: bool) -> None:
    """Over many draws each unit comes as often as its weight says."""
    draws = 40_000
    view = store[::-1] if backwards else store
    lengths = np.array(LENGTHS[::-1] if backwards else LENGTHS)
    units = [(episode, t) for episode, length in enumerate(lengths) for t in range(length)]
    for weights, expected in [
        ("steps", np.ones(len(units)) / len(units)),
        ("episodes", np.repeat(1 / lengths, lengths) / len(lengths)),
        (pl.col("length") - 1, np.repeat((lengths - 1) / lengths, lengths) / (lengths - 1).sum()),
    ]:
        loader = view.loader(500, columns=KEYS, weights=weights, seed=4)
        found: list[tuple[int, int]] = []
        while len(found) < draws:
            found += places(loader)
        counted = Counter(found)
        counts = np.array([counted[pair] for pair in units])
        drawn = expected > 0
        assert not counts[~drawn].any()
        mean = expected[drawn] * len(found)
        assert ((counts[drawn] - mean) ** 2 / mean).sum() < drawn.sum() + 5 * (2 * drawn.sum()) ** 0.5


def test_what_makes_no_sense_is_refused(store: el.EpisodeStore) -> None:
    """The error says what was wrong and what there is."""
    cases: list[Any] = [
        ({"window": 31}, "the longest of 7 has 30"),
        ({"columns": ["observatoin"]}, "There is no column 'observatoin'.*There are: observation, action"),
        ({"weights": pl.col("length") - 5}, "The weight of the episode at position 1 is -4"),
        ({"weights": pl.col("length") * 0}, "All weights are zero"),
        ({"weights": pl.lit(float("nan"))}, "is nan"),
        ({"weights": "length"}, "expected 'steps'"),
        ({"shard": (2, 2)}, "0 <= rank < world"),
        ({"shard": (-1, 2)}, "0 <= rank < world"),
        (lambda: {"shard": el.Shard(0, 2, uneven="wrap")}, "'pad' or 'drop'"),  # pyright: ignore
        ({"shard": (0.5, 2)}, "two whole numbers"),
        ({"shard": 3}, "expected .rank, world."),
        ({"batch_size": 0}, "batch_size=0"),
        ({"n_step": 0}, "n_step=0"),
        ({"n_step": 2, "window": 3}, "window and n_step"),
        ({"units": el.Windows(2), "window": 3}, "units and window"),
        ({"units": 64}, "units=64: expected el.Windows"),
        (lambda: {"batch_size": el.Batches(0)}, "size=0"),
        ({"gamma": 0.9}, "belongs to n_step"),
        ({"n_step": 2, "gamma": 1.5}, "gamma=1.5"),
        (lambda: {"units": el.Windows(2, pad="both")}, "pad='both'"),  # pyright: ignore
        (lambda: {"units": el.Deltas({"observation": [0.5]})}, "one or more whole numbers"),  # pyright: ignore
        (lambda: {"units": el.Deltas({})}, "relative steps by key"),
        (lambda: {"units": el.Deltas({"observation": 3})}, "one or more whole numbers"),  # pyright: ignore
        (lambda: {"units": el.Deltas({"observation": [2**70]})}, "one or more whole numbers"),
        (lambda: {"units": el.Deltas({"end_reason": [0, 1]})}, "no values at other steps"),
        (lambda: {"units": el.Deltas({3: [0]})}, "expected a list of names"),  # pyright: ignore
        ({"columns": []}, "a batch needs a key"),
        ({"columns": "reward"}, r"expected a list of names: \['reward'\]"),
        ({"columns": [3]}, "expected a list of names"),
        ({"columns": 3}, "expected a list of names"),
        (lambda: {"cache": el.Cache("mmap", folder=5)}, "folder=5: expected the path of a folder"),  # pyright: ignore
        ({"seed": -1}, "seed=-1"),
    ]
    for options, text in cases:
        with case((options, text)), pytest.raises(el.EpisodelakeError, match=text):
            store.loader(**(options() if callable(options) else options))


def test_an_empty_view_is_refused(store: el.EpisodeStore) -> None:
    """And so is an expression that names no column."""
    with pytest.raises(el.errors.InvalidArgumentError, match="the view is empty"):
        store.filter("length > 100").loader()
    with pytest.raises(el.errors.QueryError, match="lengthh"):
        store.loader(weights=pl.col("lengthh"))


def test_a_state_of_another_loader_is_refused(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Of another store, selection, unit, order or seed, or of none; and the loader stays where it stood."""
    loader = store.loader(4, columns=KEYS, shuffle=True, seed=1)
    next(iter(loader))
    before = loader.state_dict()
    other = random_store(tmp_path / "other", LENGTHS, ["cut"] * 7, BOX)
    for foreign, word in [
        (other.loader(4, shuffle=True, seed=1), "store"),
        (store[1:].loader(4, shuffle=True, seed=1), "episodes"),
        (store.loader(4, n_step=2, shuffle=True, seed=1), "units"),
        (store.loader(4, seed=1), "order"),
        (store.loader(4, shuffle=True, seed=2), "seed"),
    ]:
        with pytest.raises(el.errors.LoaderStateError, match=word):
            loader.load_state_dict(foreign.state_dict())
    for broken in (
        {},
        None,
        *({**before, "position": place} for place in (10**6, 1.5, float("inf"), "4")),
        *({**before, "identity": other} for other in (None, "x", 3, {})),
        {**before, "epoch": -1},
        {**before, "format": 2},
    ):
        with pytest.raises(el.errors.LoaderStateError):
            loader.load_state_dict(broken)  # pyright: ignore[reportArgumentType]
    assert loader.state_dict() == before


def test_a_moved_loader_ends_iterations_that_were_begun(store: el.EpisodeStore) -> None:
    """They say so instead of going on elsewhere in silence; a new one begins where it stands."""
    loader = store.loader(4, columns=KEYS, shuffle=True, seed=1)
    begun = iter(loader)
    first = next(begun)
    state = loader.state_dict()
    next(begun)
    loader.load_state_dict(state)
    with pytest.raises(el.errors.LoaderStateError, match="moved"):
        next(begun)
    second = next(iter(loader))
    loader.set_epoch(0)
    assert places([next(iter(loader))]) == places([first]) != places([second])
    assert "19 batches of 4" in repr(loader) and "position 4" in repr(loader)


@pytest.mark.parametrize("scale", [2.0**1020, 2.0**-1070])
def test_the_scale_of_weights_does_not_matter(store: el.EpisodeStore, scale: float) -> None:
    """Weights whose sum overflows, or is next to nothing, draw the units that ones draw."""
    drawn = [
        np.concatenate([batch["episode"] for batch in store.loader(16, weights=weights, columns=["episode"])])
        for weights in (np.ones(len(store)), np.full(len(store), scale))
    ]
    assert len(set(drawn[0])) > 1
    np.testing.assert_array_equal(drawn[0], drawn[1])
