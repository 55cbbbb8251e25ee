"""Mixtures: their shares, their order, their epochs, and how they resume."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from effort import examples
from episodelake.readers.loading.mixing import Shares, normalized
from episodelake.testing.adapters import case
from loader_batches import BOX, random_store

KEYS = ["episode", "t", "reward"]
Stores = list[el.EpisodeStore]
_KEPT: Stores = []


@pytest.fixture(scope="module", autouse=True)
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """Three stores of 30, 20 and 7 transitions."""
    folder = tmp_path_factory.mktemp("mixed")
    for number, lengths in enumerate([[5, 1, 17, 7], [12, 8], [7]]):
        _KEPT.append(random_store(folder / str(number), lengths, ["terminated"] * len(lengths), BOX, number))
    yield _KEPT
    _KEPT.clear()


def loaders(stores: Stores, count: int = 2, **options: Any) -> list[el.Loader]:
    """A shuffling loader of each of the first stores."""
    return [store.loader(8, columns=KEYS, shuffle=True, seed=3, **options) for store in stores[:count]]


def mixed(stores: Stores, shares: list[float], **options: Any) -> el.types.MixedLoader:
    """A mixture of the first stores."""
    made = loaders(stores, len(shares))
    return el.mix(list(zip(made, shares, strict=True)), source=True, **options)


def units(batches: Any) -> list[tuple[float, ...]]:
    """What some batches hold, unit by unit."""
    names = [*KEYS, "source"]
    return [pair for batch in batches for pair in zip(*(batch[key].tolist() for key in names), strict=True)]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=7),
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
)
def test_exact_shares_are_those_of_webster(weights: list[int], sizes: list[int]) -> None:
    """Unit by unit each goes to the part with the largest claim, however the units are cut into batches."""
    shares = Shares(normalized(weights))
    seats = [0] * len(weights)
    total = 0
    for size in sizes:
        before = list(seats)
        for _ in range(size):
            claims = [Fraction(weight, 2 * seat + 1) for weight, seat in zip(weights, seats, strict=True)]
            seats[claims.index(max(claims))] += 1
        found = shares.counts(total, total + size)
        total += size
        assert found == [late - early for early, late in zip(before, seats, strict=True)]
    far = sum(weights) * 1000
    assert shares.counts(0, far) == [weight * 1000 for weight in weights]


def test_shares_are_met_in_each_batch_where_they_divide(stores: Stores) -> None:
    """And over all batches where they do not; each loader's units come in its own order."""
    for batch in mixed(stores, [0.75, 0.25], batch_size=8):
        assert np.bincount(batch["source"]).tolist() == [6, 2]
    mixture = mixed(stores, [3, 1, 2], batch_size=5, epoch=60)
    found = units(mixture)
    assert len(found) == 300 and [sum(unit[3] == k for unit in found) for k in range(3)] == [150, 50, 100]
    for number, loader in enumerate(loaders(stores, 3)):
        own = [unit[:3] for unit in found if unit[3] == number]
        alone: list[tuple[float, ...]] = []
        while len(alone) < len(own):
            for batch in loader:
                alone += zip(*(batch[key].tolist() for key in KEYS), strict=True)
        assert own == alone[: len(own)]


@pytest.mark.parametrize("epoch", [400, pytest.param(1500, marks=pytest.mark.further)])
def test_drawn_shares_are_met_in_expectation(stores: Stores, epoch: int) -> None:
    """Counts of batches are multinomial: their mean and their spread; another seed gives others."""
    mixture = mixed(stores, [0.5, 0.3, 0.2], batch_size=20, exact=False, epoch=epoch, seed=4)
    counts = np.array([np.bincount(batch["source"], minlength=3) for batch in mixture])
    mean = np.array([10, 6, 4]) * epoch
    assert ((counts.sum(0) - mean) ** 2 / mean).sum() < 18.4  # chi-squared, 2 degrees of freedom, p = 0.0001
    np.testing.assert_allclose(counts.var(0), [5.0, 4.2, 3.2], rtol=0.2)
    other = mixed(stores, [0.5, 0.3, 0.2], batch_size=20, exact=False, epoch=20, seed=5)
    assert [np.bincount(batch["source"], minlength=3).tolist() for batch in other] != counts[:20].tolist()


def test_epochs(stores: Stores) -> None:
    """As long as the longest or the shortest loader takes, or as many batches as are asked for."""
    for epoch, expected in [("longest", 10), ("shortest", 5), (3, 3)]:
        # 30 units at 6 a batch, and 20 at 2 a batch.
        mixture = mixed(stores, [0.75, 0.25], batch_size=8, epoch=epoch)
        assert len(mixture) == len(list(mixture)) == expected
        assert mixture.epoch == 1 and len(list(mixture)) == expected
    endless = mixed(stores, [0.75, 0.25], batch_size=8, epoch=None)
    assert endless
    with pytest.raises(TypeError, match="never ends"):
        len(endless)
    assert len([batch for batch, _ in zip(endless, range(40), strict=False)]) == 40
    whole = mixed(stores, [0.6, 0.4], batch_size=10)
    assert len({unit[:2] for unit in units(whole) if unit[3] == 0}) == 30


@settings(max_examples=examples(40))
@given(
    st.integers(0, 25),
    st.booleans(),
    st.lists(st.sampled_from([0.1, 0.25, 1, 3.5]), min_size=1, max_size=3),
    st.integers(1, 12),
)
def test_a_resumed_mixture_goes_on_exactly(stop: int, exact: bool, shares: list[float], size: int) -> None:
    """At any batch, through JSON."""
    options: dict[str, Any] = {"batch_size": size, "exact": exact, "seed": 2, "epoch": 7}
    whole, interrupted, resumed = (mixed(_KEPT, shares, **options) for _ in range(3))
    order = [units([batch]) for _ in range(5) for batch in whole]
    seen: list[Any] = []
    while len(seen) < stop:
        for batch in interrupted:
            seen.append(units([batch]))
            if len(seen) == stop:
                break
    resumed.load_state_dict(json.loads(json.dumps(interrupted.state_dict())))
    assert resumed.epoch == stop // 7
    while len(seen) < 35:
        seen += [units([batch]) for batch in resumed]
    assert seen == order


def test_mixtures_are_not_mixed(stores: Stores) -> None:
    """A mixture as a part is refused; an impossible state of a loader names that loader."""
    inner = el.mix(list(zip(loaders(stores), [1, 1], strict=True)))
    with pytest.raises(el.errors.InvalidArgumentError, match="Part 0 of the mixture is a mixture itself"):
        el.mix([(cast(Any, inner), 0.5), (stores[2].loader(columns=KEYS), 0.5)], 8)
    state = inner.state_dict()
    first, second = state["loaders"]
    with pytest.raises(el.errors.LoaderStateError, match=r"Loader 1 of the mixture.*position -1"):
        inner.load_state_dict({**state, "loaders": [first, {**second, "position": -1}]})
    with pytest.raises(el.errors.LoaderStateError, match="this cannot be"):
        inner.load_state_dict({**state, "units": -1})
    assert inner.state_dict() == state


def test_whole_episodes_are_padded_together(stores: Stores) -> None:
    """A batch of episodes is as long as its longest one, from whichever loader."""
    options: dict[str, Any] = {
        "columns": ["observation", "reward", "mask", "length"],
        "units": el.Episodes(),
    }
    parts = [stores[0].loader(**options), stores[2].loader(**options)]
    (batch,) = el.mix([(part, 1) for part in parts], 8, epoch=1)
    assert batch["length"].tolist() == [5, 1, 17, 7, 7, 7, 7, 7]
    assert batch["observation"].shape == (8, 18, 3) and batch["reward"].shape == (8, 17)
    assert (batch["mask"].sum(1) == batch["length"]).all()
    np.testing.assert_array_equal(batch["reward"][5, :7], stores[2][0].rewards)
    assert not batch["reward"][5, 7:].any()


def test_the_mixture_of_prioritized_loaders(stores: Stores) -> None:
    """Each takes the priorities of its own units."""
    rule = el.Prioritized(epsilon=0.0)
    parts = [store.loader(columns=KEYS, weights=rule) for store in stores[:2]]
    mixture = el.mix([(part, 1) for part in parts], 10, source=True, epoch=5)
    for number, part in enumerate(parts):
        assert isinstance(part, el.types.PrioritizedLoader) and part.epoch_units
        part.update_priorities(np.arange(part.epoch_units), 1.0 * (np.arange(part.epoch_units) == 5 + number))
    for batch in mixture:
        assert (batch["unit"] == 5 + batch["source"]).all() and (batch["weight"] == 1).all()


def test_batches_must_be_alike(stores: Stores, tmp_path: Path) -> None:
    """The error names the keys that one of them lacks, and dtypes and shapes that differ; nothing moves."""
    wide = gym.spaces.Box(-1, 1, (2, 3), np.float64)
    other = random_store(tmp_path / "other", [4, 4], ["cut"] * 2, wide)
    cases = [
        (
            stores[0].loader(),
            other.loader(),
            r"'observation' is float32 of shape \(3,\) in loader 0 and float64 of",
        ),
        (stores[0].loader(), stores[1].loader(n_step=2), "only loader 1 has 'discount', 'span'"),
        (
            stores[0].loader(columns=["t"]),
            stores[1].loader(columns=["episode"]),
            "only loader 0 has 't'; only",
        ),
        (stores[0].loader(window=2), stores[1].loader(window=3), r"of shape \(2, 3\) in loader 0"),
    ]
    for one, two, text in cases:
        mixture = el.mix([(one, 0.5), (two, 0.5)], 4)
        before = mixture.state_dict()
        for _ in range(2):
            with pytest.raises(el.errors.InvalidArgumentError, match=text):
                next(iter(mixture))
            assert mixture.state_dict() == before
    named = stores[0].loader(columns=["t"], transforms=[lambda batch: {"source": batch["t"]}])
    with pytest.raises(el.errors.InvalidArgumentError, match="have a key 'source' already"):
        next(iter(el.mix([(named, 1)], source=True)))


def test_a_mixture_of_nonsense_is_refused(stores: Stores) -> None:
    """The error says which part, and what was expected."""
    one, two = loaders(stores)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "one or more loaders"),
        ([(one, 1), (one, 1)], {}, "each of them once"),
        ([(one, 0)], {}, "share of loader 0 is 0"),
        ([(one, 1), (two, -0.5)], {}, r"share of loader 1 is -0\.5"),
        ([(one, float("nan"))], {}, "is nan"),
        ([(one, float("inf"))], {}, "is inf"),
        ([(one, True)], {}, "is True"),
        ([(one, 1e-12), (two, 1)], {}, "a billionth"),
        ([one, two], {}, "expected pairs"),
        (one, {}, "expected pairs"),
        ([(stores[0], 1)], {}, "Part 0 of the mixture is EpisodeStore"),
        ([(one, 1)], {"batch_size": 0}, "batch_size=0"),
        ([(one, 1)], {"epoch": 0}, "epoch=0"),
        ([(one, 1)], {"epoch": "never"}, "epoch='never'"),
        ([(one, 1)], {"seed": -1}, "seed=-1"),
    ]
    for parts, options, text in cases:
        with pytest.raises(el.errors.InvalidArgumentError, match=text):
            el.mix(parts, **options)


def test_a_state_of_another_mixture_is_refused(stores: Stores) -> None:
    """Of other shares, loaders or draws; and no loader has moved."""
    mixture = mixed(stores, [0.75, 0.25])
    next(iter(mixture))
    before = mixture.state_dict()
    part = before["loaders"][1]
    for state in [
        mixed(stores, [0.5, 0.5]).state_dict(),
        mixed(stores, [0.75, 0.25], exact=False).state_dict(),
        mixed(stores, [0.75, 0.25, 0.5]).state_dict(),
        loaders(stores)[0].state_dict(),
        {**before, "loaders": [part, part]},
        {**before, "loaders": [{**before["loaders"][0], "position": 0}, {**part, "position": 1000}]},
        {**before, "position": 10**6},
        {},
        None,
    ]:
        with pytest.raises(el.errors.LoaderStateError):
            mixture.load_state_dict(state)  # pyright: ignore[reportArgumentType]
    assert mixture.state_dict() == before


def test_a_moved_mixture_ends_iterations_that_were_begun(stores: Stores) -> None:
    """They say so instead of going on elsewhere."""
    mixture = mixed(stores, [0.75, 0.25])
    begun = iter(mixture)
    next(begun)
    mixture.load_state_dict(mixture.state_dict())
    with pytest.raises(el.errors.LoaderStateError, match="moved"):
        next(begun)
    begun = iter(mixture)
    next(begun)
    assert len(mixture.take(3)["t"]) == 3
    with pytest.raises(el.errors.LoaderStateError, match="moved"):
        next(begun)
    assert "2 loaders" in repr(mixture)


class CountedFeed:
    """A feed that counts how often taking units begins anew."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self.units, self.epoch_length = feed.units, feed.epoch_length
        self.begun = 0

    def take(self, *arguments: Any) -> Any:
        """Those of the feed."""
        self.begun += 1
        return self._feed.take(*arguments)

    def state(self) -> dict[str, Any]:
        """Nothing beside the position."""
        return {}


@pytest.mark.further
def test_taking_units(stores: Stores) -> None:
    """`take` gives the units that iteration would, over the epoch's end too; resumed, the same ones."""
    for shard, kind, streams in itertools.product(
        [(0, 1), (1, 3)], [{}, {"units": el.Episodes(), "columns": ["episode", "t", "reward"]}], [False, True]
    ):
        with case((shard, kind, streams)):
            cache = el.Cache("stream", buffer_bytes=1000) if streams else el.Cache()
            options: Any = {"columns": ["episode"], "shuffle": True, "shard": shard, "cache": cache, **kind}
            plain, taking, resumed = (stores[0].loader(4, **options) for _ in range(3))
            expected = [unit for _ in range(4) for batch in plain for unit in batch["episode"].tolist()]
            feed: Any = CountedFeed(taking._feed)
            taking._feed = feed
            found: list[int] = []
            while len(found) < len(expected):
                count = min(len(found) + 1, len(expected) - len(found))
                resumed.load_state_dict(taking.state_dict())
                batch, other = taking.take(count), resumed.take(count)
                found += batch["episode"].tolist()
                for key in batch:
                    size = min(batch[key].shape[-1], other[key].shape[-1])
                    np.testing.assert_array_equal(batch[key][..., :size], other[key][..., :size])
            assert found == expected
            assert feed.begun <= 5
            taking.set_epoch(1)
            resumed.set_epoch(1)
            assert taking.take(3)["episode"].tolist() == resumed.take(3)["episode"].tolist()


def test_nothing_to_take(stores: Stores) -> None:
    """A shard without a unit says so, and so does a count of none."""
    none = stores[2].loader(units=el.Episodes(), shard=el.Shard(0, 2, uneven="drop"))
    with pytest.raises(el.errors.LoaderStateError, match="Use fewer shards"):
        none.take(1)
    with pytest.raises(el.errors.InvalidArgumentError, match="count=0"):
        none.take(0)
