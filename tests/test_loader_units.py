"""Units of loaders: each equals what a slow loop over the episodes gives, in stores of any shape."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
import plain_units
from episodelake.readers.columns import step_arrays
from loader_batches import assert_identical
from loader_world import VIEWS, make_views

BOX = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
NESTED = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (4, 3), np.uint8), pair=gym.spaces.Tuple([gym.spaces.Discrete(5), BOX])
)
USUAL = ["observation", "action", "reward", "next_observation", "terminated", "truncated"]
ENDINGS = ("terminated", "truncated", "cut", "both")


def random_store(
    path: Path, lengths: list[int], endings: list[str], space: gym.Space, seed: int = 0
) -> el.EpisodeStore:
    """A store of episodes of given lengths and endings, with random contents, in segments of two episodes."""
    action_space = gym.spaces.Discrete(7)
    store = el.create(path, observation_space=space, action_space=action_space)
    space.seed(seed), action_space.seed(seed)
    rng = np.random.default_rng(seed)
    with store.writer(run="random") as writer:
        for number, (length, ending) in enumerate(zip(lengths, endings, strict=True)):
            episode = writer.begin(space.sample())
            for t in range(length):
                last = t == length - 1
                episode.append(
                    action_space.sample(),
                    float(rng.normal()),
                    space.sample(),
                    terminated=last and ending in ("terminated", "both"),
                    truncated=last and ending in ("truncated", "both"),
                )
            episode.end()
            if number % 2:
                writer.seal()
    return store.refresh()


def units_of(loader: el.Loader) -> Iterator[dict[str, Any]]:
    """One epoch, unit by unit."""
    for batch in loader:
        size = len(leaf(batch))
        for number in range(size):
            yield row(batch, number)


def leaf(tree: Any) -> np.ndarray:
    """The first array of a nested value."""
    while isinstance(tree, dict | tuple):
        tree = tree[0] if isinstance(tree, tuple) else next(iter(tree.values()))
    return tree


def row(tree: Any, number: int) -> Any:
    """One unit of a batch."""
    if isinstance(tree, dict):
        return {key: row(value, number) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row(value, number) for value in tree)
    return tree[number]


def assert_same(found: Any, expected: Any) -> None:
    """Both are the same nested values, in dtype too."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-12, strict=False)
        if isinstance(expected, np.ndarray):
            assert np.asarray(found).dtype == expected.dtype


@pytest.fixture(scope="module", autouse=True)
def _stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores of random shapes and odd views, made once: Hypothesis draws one of them. A few rows are decoded
    at a time.
    """
    rng = np.random.default_rng(11)
    for number in range(10):
        lengths = rng.integers(1, [2, 13, 30][number % 3], rng.integers(1, 8)).tolist()
        endings = rng.choice(ENDINGS, len(lengths)).tolist()
        path = tmp_path_factory.mktemp("units") / "store"
        _made.append(random_store(path, lengths, endings, [BOX, NESTED][number % 2], number))
    _made.extend(make_views(tmp_path_factory.mktemp("world") / "store").values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_arrays, "_PART_BYTES", 200)
        yield
    _made.clear()


_made: list[el.EpisodeView] = []
drawn_stores = st.integers(0, 9 + len(VIEWS)).map(lambda number: _made[number])


def assert_units(found: Iterator[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Both are the same units, one by one."""
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


@given(drawn_stores, st.integers(1, 40))
def test_transitions(store: el.EpisodeStore, batch_size: int) -> None:
    """Every transition once, in order, with the observation it leads to and how the episode ended."""
    keys = [
        "observation",
        "action",
        "reward",
        "next_observation",
        "terminated",
        "truncated",
        "end_reason",
        "t",
    ]
    expected = [plain_units.transition(episode, t) for episode in store for t in range(episode.length)]
    assert_units(units_of(store.loader(batch_size, columns=keys)), expected)


@given(drawn_stores, st.integers(1, 6), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_n_steps(store: el.EpisodeStore, n: int, gamma: float) -> None:
    """The reward is summed over the true span; the discount is 0 only where the span terminates."""
    expected = [plain_units.n_steps(each, t, n, gamma) for each in store for t in range(each.length)]
    assert_units(units_of(store.loader(5, n_step=n, gamma=gamma)), expected)


@given(
    drawn_stores,
    st.integers(1, 8),
    st.integers(1, 5),
    st.sampled_from([None, "left", "right"]),
    st.integers(0, 4),
)
def test_windows(store: el.EpisodeStore, size: int, stride: int, pad: Any, burn_in: int) -> None:
    """Windows stay within their episode; padding is zero and not in the mask."""
    expected = [
        plain_units.window(episode, start - burn_in, size + burn_in)
        for episode in store
        for start in plain_units.window_starts(episode.length, size, stride, pad)
    ]
    options: dict[str, Any] = {"units": el.Windows(size, stride=stride, pad=pad, burn_in=burn_in)}
    if not expected:
        with pytest.raises(el.errors.InvalidArgumentError, match="the longest of"):
            store.loader(4, **options)
        return
    keys = [*USUAL, "mask", "t"]
    assert_units(units_of(store.loader(4, columns=keys, **options)), expected)


@given(
    drawn_stores,
    st.lists(st.integers(-4, 4), min_size=1, max_size=5),
    st.lists(st.integers(-2, 9), min_size=1, max_size=4),
)
def test_deltas(store: el.EpisodeStore, looked_back: list[int], ahead: list[int]) -> None:
    """Each key has its own relative steps; at the borders the nearest value, and a mask."""
    steps = {"observation": looked_back, "action": ahead}
    found = list(units_of(store.loader(3, el.Deltas(steps))))
    places = [(episode, t) for episode in store for t in range(episode.length)]
    for one, (episode, t) in zip(found, places, strict=True):
        for key in steps:
            values, mask = plain_units.delta_values(episode, t, key, steps[key])
            assert_same(one[key], values)
            assert one["mask"][key].tolist() == mask


@given(drawn_stores, st.integers(1, 4))
def test_whole_episodes(store: el.EpisodeStore, batch_size: int) -> None:
    """An episode has all its observations; zeros follow the shorter ones of a batch."""
    found = units_of(store.loader(batch_size, el.Episodes()))
    for one, episode in zip(found, store, strict=True):
        length = episode.length
        assert one["length"] == length and one["mask"].sum() == length and one["mask"][:length].all()
        for key, values, count in [
            ("observation", episode.observations, length + 1),
            ("action", episode.actions, length),
            ("reward", episode.rewards, length),
        ]:
            for t in range(count):
                assert_same(row(one[key], t), plain_units.at(values, t))
            assert not any(leaf(row(one[key], t)).any() for t in range(count, len(leaf(one[key]))))
        ended = tuple(one[key][length - 1] for key in ("terminated", "truncated"))
        assert ended == plain_units.flags(episode, length - 1)


@pytest.mark.parametrize("n", [2, 5])
def test_no_reward_reaches_another_episode(tmp_path: Path, n: int) -> None:
    """Not even an infinite one, or one that is not a number."""
    store = el.create(tmp_path / "store", observation_space=BOX, action_space=gym.spaces.Discrete(2))
    rewards = [1.0, np.inf, 2.0, np.nan]
    with store.writer(run="infinite") as writer:
        for reward in rewards:
            writer.write_episode(
                observations=np.zeros((4, *BOX.shape), BOX.dtype),
                actions=np.zeros(3, np.int64),
                rewards=np.full(3, reward),
                terminations=np.arange(3) == 2,
                truncations=np.zeros(3, bool),
            )
    spans = np.minimum(n, [3, 2, 1])
    found = next(iter(store.refresh().loader(n_step=n, gamma=1.0)))["reward"]
    np.testing.assert_array_equal(found, np.concatenate([spans * reward for reward in rewards]))


@given(drawn_stores, st.integers(1, 4))
def test_unpadded_episodes_are_those_of_the_store(store: el.EpisodeStore, batch_size: int) -> None:
    """Each as long as it is, in values, dtypes and shapes, nested as its space is."""
    loader = store.loader(batch_size, columns=[*WHOLE, "length", "episode", "mask", "t"], units=el.Episodes())
    found = [each for batch in loader for each in el.unpadded(batch)]
    for number, (one, episode) in enumerate(zip(found, store, strict=True)):
        assert one.keys() == {*WHOLE, "length", "episode", "t"}
        assert (one["length"], one["episode"]) == (episode.length, number)
        assert one["t"].tolist() == list(range(episode.length))
        assert_same(one["observation"], episode.observations)
        assert_same(one["action"], episode.actions)
        assert_same(one["reward"], episode.rewards)
        assert_same(one["terminated"], episode.terminations)


def test_batches_of_other_units_are_not_unpadded(tmp_path: Path) -> None:
    """`unpadded` does not take the episode column `length` for the number of rows of a window."""
    store = random_store(tmp_path / "store", [4, 3], ["terminated"] * 2, NESTED)
    for units, shape in ((el.Windows(2), r"\(5, 2\)"), (el.Transitions(), r"\(7,\)")):
        (batch,) = store.loader(9, units, columns=["length", "reward"])
        with pytest.raises(el.errors.InvalidArgumentError, match=f"has the shape {shape}; .*Episodes"):
            el.unpadded(batch)


@pytest.mark.parametrize("cache", ["memory", "stream"])
@pytest.mark.parametrize("lengths", [[90, 70, 1, 99], [200, 1, 1, 2], [1, 2, 1, 1]])
def test_long_and_short_episodes(tmp_path: Path, lengths: list[int], cache: Any) -> None:
    """Columns are copied episode by episode where these are long, and by a mask where they are short."""
    store = random_store(tmp_path / "store", lengths, ["terminated"] * len(lengths), NESTED)
    (batch,) = store.loader(1_000, columns=[*USUAL, "observation.image"], cache=cache)
    episodes = list(store)
    for key, of_episode in {
        "action": lambda episode: episode.actions,
        "reward": lambda episode: episode.rewards,
        "terminated": lambda episode: episode.terminations,
        "observation.image": lambda episode: episode.observations["image"][:-1],
    }.items():
        np.testing.assert_array_equal(batch[key], np.concatenate([of_episode(each) for each in episodes]))


def test_only_whole_episodes_are_unpadded() -> None:
    """A batch of transitions has no lengths, and the error says where they come from."""
    for batch in (next(iter(_made[0].loader(2))), [], None):
        with pytest.raises(el.errors.InvalidArgumentError, match=r"units=el\.Episodes\(\)"):
            el.unpadded(batch)  # pyright: ignore[reportArgumentType]


WHOLE = ["observation", "action", "reward", "terminated"]


def test_a_span_takes_the_memory_of_an_episode(tmp_path: Path) -> None:
    """However many steps are asked for: values and peak memory are those of the longest episode."""
    store = random_store(tmp_path / "store", [5, 3, 8], ["terminated", "cut", "truncated"], BOX, 3)
    longest = max(map(len, store))
    expected = list(store.loader(5, n_step=longest, gamma=0.9))
    loader = store.loader(5, n_step=2**40, gamma=0.9)
    tracemalloc.start()
    try:
        found = list(loader)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert_identical(found, expected)
