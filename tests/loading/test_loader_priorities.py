"""Drawing by priority: the tree of sums, the distribution, the weights, updates and exact resumption."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from episodelake.readers.loading.priorities import SumTree
from episodelake.testing.adapters import case
from loader_batches import BOX, random_store

LENGTHS = [5, 1, 17, 9, 30, 2, 11]
KEYS = ["episode", "t"]
UNITS = sum(LENGTHS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Seven episodes of different lengths."""
    path = tmp_path_factory.mktemp("priorities") / "store"
    return random_store(path, LENGTHS, ["terminated", "truncated", "cut"] * 2 + ["terminated"], BOX)


def drawn(loader: el.Loader, count: int) -> np.ndarray:
    """How often each unit came in about `count` draws."""
    found = np.zeros(loader.units, np.int64)
    while found.sum() < count:
        for batch in loader:
            found += np.bincount(batch["unit"], minlength=loader.units)
    return found


def chi_squared_fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Whether counts are those of draws with some probabilities and zero where those are."""
    sure = expected > 0
    mean = expected[sure] / expected.sum() * counts.sum()
    freedom = np.count_nonzero(sure) - 1
    statistic = ((counts[sure] - mean) ** 2 / mean).sum()
    return not counts[~sure].any() and statistic < freedom + 5 * (2 * freedom) ** 0.5 + 12


@given(st.integers(1, 9000), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e-300, 1e250]))
def test_a_tree_finds_what_the_running_sum_finds(size: int, seed: int, scale: float) -> None:
    """After any changes the tree is that of its values, and finds what searchsorted does."""
    rng = np.random.default_rng(seed)
    values = rng.random(size) * scale
    values[rng.random(size) < 0.3] = 0.0
    tree = SumTree(values)
    for _ in range(3):
        places = rng.integers(0, size, rng.integers(1, 40))
        changed = rng.choice([0.0, 1.0, 3.0], len(places)) * scale
        tree.change(places, changed)
        for place, value in zip(places, changed, strict=True):
            values[place] = value
    values[rng.integers(size)] = scale
    tree.change(np.flatnonzero(values != tree.values), values[values != tree.values])
    np.testing.assert_array_equal(tree.values, values)
    assert tree.least == values[values > 0].min()
    np.testing.assert_allclose(tree.total, values.sum(), rtol=1e-12)
    fresh = SumTree(values)
    fractions = np.concatenate([rng.random(200), [0.0, np.nextafter(1.0, 0.0)]])
    found = tree.find(fractions)
    np.testing.assert_array_equal(found, fresh.find(fractions))
    assert (values[found] > 0).all() and tree.total == fresh.total
    reached = np.cumsum(values)
    plain = np.searchsorted(reached, fractions * reached[-1], side="right").clip(0, size - 1)
    near = np.abs(reached[found] - reached[plain]) <= 1e-9 * reached[-1] + values[found] + values[plain]
    assert near.all() and np.count_nonzero(found != plain) <= 3


@pytest.mark.parametrize("size", [1, 16, 17, 70_000, 1_100_000])
def test_one_value_is_always_found(size: int) -> None:
    """With all values but one at zero every fraction finds that one, wherever it stands."""
    fractions = np.concatenate([np.linspace(0, 1, 50, endpoint=False), [np.nextafter(1.0, 0.0)]])
    tree = SumTree(np.zeros(size))
    for place in {0, size // 3, size - 1}:
        for value in (5e-324, 0.1, 1e308):
            tree.change(np.array([place]), np.array([value]))
            assert (tree.find(fractions) == place).all()
        tree.change(np.array([place]), np.array([0.0]))
        assert tree.total == 0.0 and tree.least == np.inf


def test_units_come_as_their_priorities_say(store: el.EpisodeStore) -> None:
    """All alike at first; after an update in proportion to the power alpha of the priorities."""
    loader = store.loader(256, columns=KEYS, weights=el.Prioritized(alpha=0.7, epsilon=0.0), seed=3)
    assert isinstance(loader, el.types.PrioritizedLoader)
    assert chi_squared_fits(drawn(loader, 40_000), np.ones(UNITS))
    priorities = np.random.default_rng(1).random(UNITS) * 4
    priorities[[3, 40, 74]] = 0.0
    loader.update_priorities(np.arange(UNITS), priorities)
    assert chi_squared_fits(drawn(loader, 60_000), priorities**0.7)


def test_the_units_of_a_batch_are_what_it_holds(store: el.EpisodeStore) -> None:
    """`unit` numbers the units in the order of the sequential loader, for windows too."""
    keys = [*KEYS, "reward"]
    for options in ({}, {"window": 4}, {"n_step": 3}):
        batches = list(store.loader(9, columns=keys, **options))
        plain = {key: np.concatenate([batch[key] for batch in batches]) for key in keys}
        loader = store.loader(50, columns=keys, weights=el.Prioritized(), **options)
        for batch in loader:
            for key, values in plain.items():
                np.testing.assert_array_equal(batch[key], values[batch["unit"]])
            assert batch["unit"].dtype == np.int64 and batch["weight"].dtype == np.float64


@pytest.mark.parametrize("scale", ["all", "batch"])
def test_weights_are_those_of_the_paper(store: el.EpisodeStore, scale: Any) -> None:
    """(N P(i)) ** -beta, over the largest of all units or of the batch."""
    rule = el.Prioritized(alpha=0.6, beta=0.5, epsilon=0.01, weights=scale)
    loader = store.loader(16, columns=KEYS, weights=rule)
    assert isinstance(loader, el.types.PrioritizedLoader)
    priorities = np.random.default_rng(2).random(UNITS)
    loader.update_priorities(np.arange(UNITS), priorities)
    for beta in (0.5, 1.0, 0.0):
        loader.beta = beta
        powers = (priorities + 0.01) ** 0.6
        expected = (UNITS * powers / powers.sum()) ** -beta
        for batch in loader:
            largest = expected.max() if scale == "all" else expected[batch["unit"]].max()
            np.testing.assert_allclose(batch["weight"], expected[batch["unit"]] / largest, rtol=1e-12)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"beta=1\.5"):
        loader.beta = 1.5


def test_the_last_of_duplicates_counts(store: el.EpisodeStore) -> None:
    """A unit that is named twice gets the later priority."""
    loader = store.loader(64, columns=KEYS, weights=el.Prioritized(epsilon=0.0))
    assert isinstance(loader, el.types.PrioritizedLoader)
    loader.update_priorities(np.arange(UNITS), np.zeros(UNITS))
    loader.update_priorities([4, 9, 4, 9], [1.0, 0.0, 0.0, 2.0])
    assert {unit for batch in loader for unit in batch["unit"].tolist()} == {9}
    loader.update_priorities([], [])
    loader.update_priorities([9], [0])
    with pytest.raises(el.errors.InvalidArgumentError, match=r"add up to 0\.0"):
        next(iter(loader))


def test_an_update_that_makes_no_sense_changes_nothing(store: el.EpisodeStore) -> None:
    """The error says which unit, and every priority is what it was."""
    cases: list[Any] = [
        ([0, 1], [1.0, np.nan], r"priority of unit 1 \(number 1 of 2\) is nan"),
        ([0, 1], [1.0, np.inf], "is inf"),
        ([0, 5], [0.5, -0.1], "priority of unit 5.* is -0.1"),
        ([0, 1], [1.0], "expected one number for each"),
        ([0, 1], [[1.0], [2.0]], "expected one number for each"),
        ([0, 75], [1.0, 1.0], "There is no unit 75 .*from 0 to 74"),
        ([-1], [1.0], "There is no unit -1"),
        ([0.5], [1.0], "expected whole numbers"),
        ([True], [1.0], "expected whole numbers"),
        ([1], ["high"], "expected one number"),
        ([1, [2]], [1.0, 1.0], "units cannot be read as a numpy array"),
    ]
    for units, priorities, text in cases:
        with case((units, priorities, text)):
            loader = store.loader(8, columns=KEYS, weights=el.Prioritized())
            assert isinstance(loader, el.types.PrioritizedLoader)
            before = loader.state_dict()
            with pytest.raises(el.errors.InvalidArgumentError, match=text):
                loader.update_priorities(units, priorities)
            assert loader.state_dict() == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": True}, "weights has the shape"),
        ({"weights": el.Prioritized(), "shuffle": True}, "Leave out one of them"),
    ],
)
def test_what_makes_no_sense_is_refused(store: el.EpisodeStore, options: dict[str, Any], text: str) -> None:
    """So are other orders beside the priorities."""
    with pytest.raises(el.errors.InvalidArgumentError, match=text):
        store.loader(**options)


@pytest.mark.parametrize(
    "options", [{"alpha": -1}, {"alpha": np.nan}, {"beta": 2}, {"epsilon": np.inf}, {"weights": "none"}]
)
def test_rules_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """The error names the value."""
    with pytest.raises(el.errors.InvalidArgumentError, match=f"{next(iter(options))}="):
        el.Prioritized(**options)


def train(loader: el.types.PrioritizedLoader, batches: int) -> list[list[int]]:
    """Take batches as a learner does: after each the priorities of its units change."""
    seen: list[list[int]] = []
    while len(seen) < batches:
        for batch in loader:
            seen.append([*batch["unit"].tolist(), *batch["weight"].tolist()])
            loader.update_priorities(batch["unit"], (batch["unit"] * 7 + len(seen)) % 11 / 3)
            if len(seen) == batches:
                break
    return seen


@given(st.integers(0, 25))
def test_a_resumed_loader_draws_the_same(stop: int) -> None:
    """With the priorities in its state, whenever it stopped."""
    rule = el.Prioritized(alpha=0.9)
    made = [_KEPT[0].loader(7, columns=KEYS, weights=rule, seed=8) for _ in range(3)]
    whole, interrupted, resumed = made
    assert all(isinstance(loader, el.types.PrioritizedLoader) for loader in made)
    expected = train(whole, 30) if stop == 0 else train(whole, stop)  # pyright: ignore[reportArgumentType]
    if stop:
        assert train(interrupted, stop) == expected  # pyright: ignore[reportArgumentType]
        expected = train(whole, 20)  # pyright: ignore[reportArgumentType]
    resumed.load_state_dict(pickle.loads(pickle.dumps(interrupted.state_dict())))
    assert train(resumed, len(expected)) == expected  # pyright: ignore[reportArgumentType]


_KEPT: list[el.EpisodeStore] = []


@pytest.fixture(autouse=True)
def _keep(store: el.EpisodeStore) -> None:
    _KEPT[:] = [store]


def test_a_state_without_these_priorities_is_refused(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Of a loader of another kind, rule or store, or a damaged one; and nothing changes."""
    loader = store.loader(8, columns=KEYS, weights=el.Prioritized())
    next(iter(loader))
    before = loader.state_dict()
    others = [
        store.loader(8, columns=KEYS).state_dict(),
        store.loader(8, columns=KEYS, weights=el.Prioritized(alpha=0.5)).state_dict(),
        store[1:].loader(8, columns=KEYS, weights=el.Prioritized()).state_dict(),
        {**before, "priorities": before["priorities"][:-3]},
        {**before, "priorities": np.full(UNITS, np.nan).tobytes()},
        {**before, "beta": 7},
        {**before, "position": UNITS + 1},
    ]
    for state in others:
        with pytest.raises(el.errors.LoaderStateError):
            loader.load_state_dict(state)
    assert loader.state_dict() == before
    with pytest.raises(el.errors.LoaderStateError, match="order"):
        store.loader(8, columns=KEYS).load_state_dict(before)


def test_priorities_may_be_tensors(store: el.EpisodeStore) -> None:
    """Those that still belong to a graph, or have a dtype that numpy lacks, are refused with a hint."""
    torch = pytest.importorskip("torch")
    loader = store.loader(4, weights=el.Prioritized(), output="torch")
    batch = next(iter(loader))
    loader.update_priorities(batch["unit"], batch["weight"])
    before = loader.state_dict()
    graph = torch.ones(4, requires_grad=True) * 2
    for wrong in (graph, torch.ones(4, dtype=torch.bfloat16)):
        with pytest.raises(el.errors.InvalidArgumentError, match=r"detach\(\).cpu\(\)"):
            loader.update_priorities(batch["unit"], wrong)
    assert loader.state_dict() == before
    loader.update_priorities(batch["unit"], graph.detach())
