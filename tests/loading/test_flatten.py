"""Flat vectors in loaders and episodes, against `gymnasium.spaces.utils.flatten`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.spaces.utils import flatten
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from agent_environments import Comings
from effort import looped
from loader_batches import random_store
from strategies import fixed_leaves, same, stack

SPACE = gym_spaces.Dict(
    {
        "z": gym_spaces.Box(-1, 1, (2, 2), np.float32),
        "a": gym_spaces.Tuple([gym_spaces.Discrete(3, start=-1), gym_spaces.MultiBinary((2, 1))]),
        "m": gym_spaces.Dict({"b.c": gym_spaces.MultiDiscrete(np.array([[2, 4]]), start=np.array([[1, 5]]))}),
        "image": gym_spaces.Box(0, 255, (2, 3, 1), np.uint8),
    }
)


def _nests(children: st.SearchStrategy) -> st.SearchStrategy:
    keys = st.text("zyxab.", min_size=1, max_size=2)
    return st.one_of(
        st.lists(st.tuples(keys, children), min_size=1, max_size=3, unique_by=lambda pair: pair[0]).map(
            gym_spaces.Dict
        ),
        st.lists(children, min_size=1, max_size=3).map(gym_spaces.Tuple),
    )


def _is_flattened(space: gym.Space) -> bool:
    """Whether Gymnasium flattens a leaf; for a MultiDiscrete of uint64 it raises."""
    return not (isinstance(space, gym_spaces.MultiDiscrete) and space.dtype == np.uint64)


fixed_spaces = st.recursive(fixed_leaves.filter(_is_flattened), _nests, max_leaves=6)


@given(fixed_spaces, st.integers(0, 2**31 - 1))
def test_values_are_flattened_as_gymnasium_does(space: gym.Space, seed: int) -> None:
    """In order, dtype and every number, over random spaces; of batches and of windows."""
    space.seed(seed)
    values = [space.sample() for _ in range(6)]
    expected = np.stack([flatten(space, value) for value in values])  # type: ignore[arg-type]
    transform = el.Flatten("action", space)
    found = transform({"action": stack(space, values)})["action"]
    assert same(found, expected)
    windows = el.Flatten("observation", space)({"observation": windowed(stack(space, values))})
    assert same(windows["observation"], expected.reshape(2, 3, -1))


def test_multi_discrete_values_of_64_unsigned_bits_are_flattened() -> None:
    """As those of 64 signed bits, which Gymnasium flattens."""
    signed, unsigned = (gym_spaces.MultiDiscrete([3, 2], dtype, seed=5) for dtype in (np.int64, np.uint64))
    values = np.stack([signed.sample() for _ in range(6)])
    expected = np.stack([flatten(signed, value) for value in values])
    found = el.Flatten("action", unsigned)({"action": values.astype(np.uint64)})["action"]
    assert found.dtype == np.uint64
    assert (found == expected).all()


def windowed(value: Any) -> Any:
    """Return six stacked values as two windows of three."""
    if isinstance(value, dict):
        return {key: windowed(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(windowed, value))
    return value.reshape(2, 3, *value.shape[1:])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Three episodes with nested observations."""
    path = tmp_path_factory.mktemp("flat") / "store"
    return random_store(path, [5, 3, 8], ["terminated", "cut", "truncated"], SPACE, 3)


def rows(count: int, space: gym.Space, values: Any) -> np.ndarray:
    """Return the values of an episode, flattened one by one."""
    return np.stack([flatten(space, at(values, t)) for t in range(count)])  # type: ignore[arg-type]


def at(values: Any, t: int) -> Any:
    """Return one of several stacked values."""
    if isinstance(values, dict):
        return {key: at(part, t) for key, part in values.items()}
    return tuple(at(part, t) for part in values) if isinstance(values, tuple) else values[t]


def test_episodes_are_flattened(store: el.EpisodeStore) -> None:
    """Observations, actions, and parts of them, by the store's space and by the environment's."""
    for episode in store:
        for space in (SPACE, store.observation_space):
            assert same(episode.flattened(), rows(episode.length + 1, space, episode.observations))
        assert same(episode.flattened("action"), rows(episode.length, store.action_space, episode.actions))
        part = episode.flattened("observation.a")
        assert same(part, rows(episode.length + 1, SPACE["a"], episode.observations["a"]))
        assert part.flags.writeable and part.shape == (episode.length + 1, 5)
        assert episode.flattened("observation.m.b%2Ec").shape == (episode.length + 1, 6)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("observation.q", "There is no 'observation.q' to flatten"),
        ("reward", "There is no 'reward' to flatten; expected 'observation', 'action'"),
        ("action.0", "There is no 'action.0'"),
    ],
)
def test_other_columns_are_refused(store: el.EpisodeStore, column: str, message: str) -> None:
    """The message names what could be flattened."""
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        store[0].flattened(column)


@pytest.mark.parametrize("cache", ["memory", "stream"])
def test_loaders_flatten_every_unit(store: el.EpisodeStore, cache: Any) -> None:
    """Transitions, windows with padding, and whole episodes: padding is zero."""
    transforms = [
        el.Flatten("observation", store.observation_space),
        el.Flatten("action", store.action_space),
    ]
    width = store[0].flattened().shape[1]
    (batch,) = store.loader(100, transforms=transforms, cache=cache)
    for key, values in (
        ("observation", [e.flattened()[:-1] for e in store]),
        ("next_observation", [e.flattened()[1:] for e in store]),
    ):
        assert same(batch[key], np.concatenate(values))
    assert same(batch["action"], np.concatenate([e.flattened("action") for e in store]))
    (batch,) = store.loader(100, el.Episodes(), transforms=transforms, cache=cache)
    assert batch["observation"].shape == (3, 9, width)
    for row, episode in enumerate(store):
        assert same(batch["observation"][row, : episode.length + 1], episode.flattened())
        assert not batch["observation"][row, episode.length + 1 :].any()
        assert not batch["action"][row, episode.length :].any()
    (batch,) = store.loader(100, el.Windows(4, pad="left"), transforms=transforms, cache=cache)
    assert not batch["observation"][~batch["mask"]].any() and not batch["action"][~batch["mask"]].any()
    assert (batch["action"][batch["mask"]].sum(-1) == 1).all()


def test_it_goes_with_other_transforms_and_outputs(store: el.EpisodeStore) -> None:
    """Stacked frames keep their axis; tensors and pickled transforms give the same."""
    whole = el.Flatten("observation.image", SPACE["image"])
    stacked = [el.FrameStack(3, "observation.image"), pickle.loads(pickle.dumps(whole))]
    (batch,) = store.loader(100, transforms=stacked)
    assert batch["observation"]["image"].shape == (16, 3, 6)
    assert same(
        batch["observation"]["image"][:, -1],
        np.concatenate([e.flattened("observation.image")[:-1] for e in store]),
    )
    with pytest.raises(
        el.errors.InvalidArgumentError, match="The parts of 'observation' are stacked in different shapes"
    ):
        next(iter(store.loader(100, transforms=[stacked[0], el.Flatten("observation", SPACE)])))
    pytest.importorskip("torch")
    (batch,) = store.loader(100, transforms=[el.Flatten("observation", SPACE)], output="torch")
    assert same(batch["observation"].numpy(), np.concatenate([e.flattened()[:-1] for e in store]))


RAGGED = [
    (gym_spaces.Text(5), "'observation' has a Text space"),
    (
        gym_spaces.Dict({"a": gym_spaces.Sequence(gym_spaces.Discrete(2))}),
        "'observation.a' has a Sequence space",
    ),
    (gym_spaces.Tuple([gym_spaces.Graph(gym_spaces.Discrete(2), None)]), "'observation.0' has a Graph space"),
    (gym_spaces.OneOf([gym_spaces.Discrete(2)]), "'observation' has a OneOf space"),
    (gym_spaces.Dict({}), "'observation' has no parts"),
]


@pytest.mark.parametrize(("space", "message"), RAGGED)
def test_ragged_spaces_are_refused(tmp_path: Path, space: gym.Space, message: str) -> None:
    """By both, with the part that has no fixed shape."""
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        el.Flatten("observation", space)
    if isinstance(space, gym_spaces.Dict) and not space.spaces:
        return
    store = random_store(tmp_path / "store", [2], ["cut"], space)
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        store[0].flattened()
    assert store[0].flattened("action").shape == (2, 7)


@looped(
    ("space", "values"),
    [
        (SPACE, {"observation": np.zeros((3, 4))}),
        (SPACE["a"], {"observation": (np.zeros(3, int),)}),
        (SPACE["z"], {"observation": np.zeros((3, 4))}),
        (gym_spaces.Box(0, 1, (2, 2)), {"observation": np.zeros(2)}),
        (gym_spaces.Box(0, 1, (2,)), {"observation": {"a": np.zeros((3, 2))}}),
    ],
)
def test_values_of_another_space_are_refused(space: gym.Space, values: Any) -> None:
    """Nesting and shape must be the space's."""
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"The values of 'observation.*' are not those of"
    ):
        el.Flatten("observation", space)(values)


def test_numbers_outside_the_space_are_refused() -> None:
    """A number that has no place among the ones is never put into a neighbour's."""
    for space, value in (
        (gym_spaces.Discrete(3), 3),
        (gym_spaces.Discrete(3, start=2), 0),
        (gym_spaces.MultiDiscrete([2, 2]), [[0, 2]]),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match="which is not in"):
            el.Flatten("action", space)({"action": np.atleast_1d(np.array(value))})
    for key, space in (("action", "Discrete(2)"), (["action"], gym_spaces.Discrete(2))):
        with pytest.raises(el.errors.InvalidArgumentError, match="expected"):
            el.Flatten(key, space)  # type: ignore[arg-type]


def test_agents_are_flattened_one_by_one(tmp_path: Path) -> None:
    """Each agent by the space of its own group."""
    store, env = el.create(tmp_path / "store", Comings()), Comings()
    with store.record(env) as recorder:
        recorder.reset(seed=2)
        for _ in range(4):
            recorder.step({agent: env.action_space(agent).sample() for agent in env.agents})
    (episode,) = store.refresh()
    assert isinstance(episode, el.MultiAgentEpisode)
    for agent, found in episode.flattened().items():
        values = episode.observations[agent]
        expected = [flatten(env.observation_space(agent), at(values, t)) for t in range(len(found))]
        assert same(found, np.stack(expected)) and len(found) == episode.agent(agent).length + 1  # type: ignore[arg-type]
    assert episode.flattened("action")["scout_0"].shape == (3, 3)
