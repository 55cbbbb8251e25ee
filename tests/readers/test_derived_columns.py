"""Returns to go, advantages and relabelled rewards: each equals what a plain loop over an episode gives."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from effort import looped
from episodelake.readers.columns.step_arrays import StepArrays

SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ENDINGS = ("terminated", "truncated", "cut", "both")


def write(path: Path, lengths: list[int], endings: list[str], last_value: Any = True) -> el.EpisodeStore:
    """A store of random episodes whose policy logged values, for the last observation too where asked."""
    rng = np.random.default_rng(len(lengths))
    store = el.create(path, observation_space=SPACE, action_space=gym.spaces.Discrete(3))
    with store.writer(run="values") as writer:
        for number, (length, ending) in enumerate(zip(lengths, endings, strict=True)):
            logged = length + (last_value(number) if callable(last_value) else last_value)
            writer.write_episode(
                observations=rng.normal(size=(length + 1, 2)).astype(np.float32),
                actions=rng.integers(3, size=length),
                rewards=rng.normal(size=length),
                terminations=ending in ("terminated", "both"),
                truncations=ending in ("truncated", "both"),
                policy={"value": rng.normal(size=logged)},
            )
            if number % 3 == 2:
                writer.seal()
    return store.refresh()


@pytest.fixture(scope="module", autouse=True)
def _stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores of random shapes, made once: Hypothesis draws one of them."""
    rng = np.random.default_rng(5)
    for number in range(6):
        lengths = rng.integers(1, [3, 20, 70][number % 3], rng.integers(1, 9)).tolist()
        path = tmp_path_factory.mktemp("derived") / "store"
        _made.append(write(path, lengths, rng.choice(ENDINGS, len(lengths)).tolist()))
    yield
    _made.clear()


_made: list[el.EpisodeStore] = []
# Every other one backwards.
drawn_stores = st.integers(0, 5).map(lambda number: _made[number][:: 1 - 2 * (number % 2)])


def plain_returns(rewards: np.ndarray, gamma: float) -> list[float]:
    """The return to go of each step, from the definition."""
    found, following = [], 0.0
    for reward in rewards[::-1].tolist():
        following = reward + gamma * following
        found.append(following)
    return found[::-1]


def plain_advantages(
    rewards: np.ndarray, values: np.ndarray, terminated: bool, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Advantages and value targets of one episode with T + 1 values, from the paper's equations."""
    length = len(rewards)
    after = [*values[1:length], 0.0 if terminated else values[length]]
    deltas = [rewards[t] + gamma * after[t] - values[t] for t in range(length)]
    advantages = [
        sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, length)) for t in range(length)
    ]
    return advantages, [advantage + values[t] for t, advantage in enumerate(advantages)]


def whole(loader: el.Loader, key: str) -> list[np.ndarray]:
    """A key of every episode, without padding."""
    return [values[mask] for batch in loader for values, mask in zip(batch[key], batch["mask"], strict=True)]


def test_what_is_no_number_stays_in_its_episode(tmp_path: Path) -> None:
    """NaN and infinite rewards reach the steps before them, and no other episode."""
    store = el.create(tmp_path / "store", observation_space=SPACE, action_space=gym.spaces.Discrete(3))
    rewards = [np.ones(5), np.array([1.0, 2.0, np.nan, 4.0]), np.ones(9), np.array([np.inf, -np.inf, 1.0])]
    with store.writer(run="odd") as writer:
        for values in rewards:
            writer.write_episode(
                observations=np.zeros((len(values) + 1, 2), np.float32),
                actions=np.zeros(len(values), np.int64),
                rewards=values,
                terminations=True,
                truncations=False,
            )
    loader = store.refresh().loader(4, el.Episodes(), transforms=[el.ReturnToGo(0.5)])
    for found, values in zip(whole(loader, "return_to_go"), rewards, strict=True):
        np.testing.assert_array_equal(found, plain_returns(values, 0.5))


def test_long_episodes_keep_their_precision(tmp_path: Path) -> None:
    """Sixty thousand steps: the sums are those of exact arithmetic, to the last few bits."""
    store = write(tmp_path / "store", [60_000, 3], ["terminated", "cut"])
    (batch,) = store.loader(2, el.Episodes(), transforms=[el.ReturnToGo()])
    rewards = store[0].rewards
    for t in (0, 1, 33_333, 59_999):
        exact = math.fsum(rewards[t:])
        assert abs(batch["return_to_go"][0, t] - exact) < 1e-11


def test_each_objective_has_its_own_return(tmp_path: Path) -> None:
    """Vector rewards are summed by component."""
    actions = gym.spaces.Discrete(3)
    store = el.create(tmp_path / "store", observation_space=SPACE, action_space=actions, reward_shape=(2,))
    rewards = np.random.default_rng(0).normal(size=(6, 2))
    with store.writer(run="two") as writer:
        writer.write_episode(
            observations=np.zeros((7, 2), np.float32),
            actions=np.zeros(6, np.int64),
            rewards=rewards,
            terminations=True,
            truncations=False,
        )
    (batch,) = store.refresh().loader(2, el.Episodes(), transforms=[el.ReturnToGo(0.9)])
    for part in range(2):
        np.testing.assert_allclose(batch["return_to_go"][0, :, part], plain_returns(rewards[:, part], 0.9))


def test_a_missing_last_value_is_an_error_unless_something_stands_for_it(tmp_path: Path) -> None:
    """Where the policy logged no value for the last observation; terminated episodes do not need one."""
    endings = ["terminated", "truncated", "cut"]
    store = write(tmp_path / "store", [4, 6, 5], endings, lambda number: number == 2)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"1 of 3 episodes.*position 1.*missing='zero'"):
        store.loader(transforms=[el.GAE()])
    assert len(list(store.filter("terminated").loader(transforms=[el.GAE()]))) == 1
    for missing in ("zero", "repeat"):
        (batch,) = store.loader(9, el.Episodes(), transforms=[el.GAE(0.9, 0.8, missing=missing)])
        for number, episode in enumerate(store):
            logged = np.array(episode.policy["value"][: episode.length], float)
            last = {0: 0.0, 1: 0.0 if missing == "zero" else logged[-1], 2: episode.policy["value"][-1]}
            expected = plain_advantages(
                episode.rewards, np.append(logged, last[number]), episode.terminated, 0.9, 0.8
            )
            for key, values in zip(("advantage", "value_target"), expected, strict=True):
                np.testing.assert_allclose(batch[key][number, : episode.length], values, rtol=1e-9)


def test_steps_without_a_value_are_an_error(tmp_path: Path) -> None:
    """The message says how many there are, and where the first is."""
    store = el.create(tmp_path / "store", observation_space=SPACE, action_space=gym.spaces.Discrete(3))
    with store.writer(run="gaps") as writer:
        for skipped in (None, 2):
            episode = writer.begin(np.zeros(2, np.float32))
            for t in range(4):
                policy = {} if t == skipped else {"value": float(t)}
                episode.append(0, 1.0, np.zeros(2, np.float32), terminated=t == 3, policy=policy)
            episode.end()
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"1 of 8 transitions.*t=2 of the episode at position 1"
    ):
        store.refresh().loader(transforms=[el.GAE()])
    with pytest.raises(el.errors.InvalidArgumentError, match=r"no column 'policy.critic'.*policy.value"):
        store.loader(transforms=[el.GAE(value="policy.critic")])


def test_values_may_be_arrays_of_one(tmp_path: Path) -> None:
    """Networks log them so; values of another shape than the rewards are an error."""
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=5), rng.normal(size=6)
    for size in (1, 2):
        path = tmp_path / str(size)
        store = el.create(path, observation_space=SPACE, action_space=gym.spaces.Discrete(3))
        with store.writer(run="arrays") as writer:
            writer.write_episode(
                observations=np.zeros((6, 2), np.float32),
                actions=np.zeros(5, np.int64),
                rewards=rewards,
                terminations=False,
                truncations=True,
                policy={"value": np.repeat(values[:, None], size, axis=1).astype(np.float32)},
            )
        if size == 2:
            with pytest.raises(el.errors.InvalidArgumentError, match=r"have the shape \(2,\), rewards \(\)"):
                store.refresh().loader(transforms=[el.GAE()])
            continue
        (batch,) = store.refresh().loader(9, transforms=[el.GAE(0.9, 0.7)])
        expected, _ = plain_advantages(rewards, values.astype(np.float32).astype(float), False, 0.9, 0.7)
        np.testing.assert_allclose(batch["advantage"], expected, rtol=1e-9)


def move(observation: np.ndarray, following: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """A reward that depends on where the transition leads."""
    return reward + following[:, 0] - observation[:, 1]


@given(drawn_stores)
def test_a_relabelled_reward_is_the_reward_of_everything(store: el.EpisodeStore) -> None:
    """n-step sums and returns to go are those of the new reward."""
    relabel = el.Relabel("reward", move, of=["observation", "next_observation", "reward"])
    (batch,) = store.loader(10_000, n_step=3, gamma=0.5, transforms=[relabel, el.ReturnToGo(0.9)])
    place = 0
    for episode in store:
        rewards = move(episode.observations[:-1], episode.observations[1:], episode.rewards)
        returns = plain_returns(rewards, 0.9)
        for t in range(episode.length):
            summed = sum(0.5**step * reward for step, reward in enumerate(rewards[t : t + 3]))
            np.testing.assert_allclose(batch["reward"][place], summed, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(batch["return_to_go"][place], returns[t], rtol=1e-12, atol=1e-12)
            place += 1
    assert place == len(batch["reward"])


class Distance(el.DerivedColumns):
    """A derived column of a user: how many transitions are left."""

    def __repr__(self) -> str:
        """The same for all."""
        return "Distance()"

    @property
    def writes(self) -> tuple[str, ...]:
        """Its name."""
        return ("left",)

    def compute(self, arrays: Any) -> dict[str, np.ndarray]:
        """From the index alone."""
        return {"left": np.concatenate([np.arange(length, -1, -1) for length in arrays.index.lengths])}


def test_users_derive_columns_of_their_own() -> None:
    """A subclass of `DerivedColumns` is used as ours are; one that gives other rows is refused."""
    store = _made[1]
    (batch,) = store.loader(10_000, transforms=[Distance()], columns=["t"])
    assert batch["left"].tolist() == [e.length - t for e in store for t in range(e.length)]
    short = type("Short", (Distance,), {"compute": lambda self, arrays: {"left": np.zeros(3)}})
    with pytest.raises(el.errors.InvalidArgumentError, match="gave 3 rows of 'left'"):
        store.loader(transforms=[short()])
    other = type("Other", (Distance,), {"compute": lambda self, arrays: {"right": np.zeros(3)}})
    with pytest.raises(el.errors.InvalidArgumentError, match="right"):
        store.loader(transforms=[other()])


@looped(
    ("transforms", "text"),
    [
        ([el.Cast("reward", "float32"), el.ReturnToGo()], "Put it first"),
        ([el.ReturnToGo], "is no transform"),
        ([3], "is no transform"),
        (el.ReturnToGo(), "expected a list"),
        ([el.ReturnToGo(key="t")], "writes 't'"),
        ([el.Relabel("reward", lambda reward: reward[:2])], "gave an array of shape"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(transforms: Any, text: str) -> None:
    """When the loader is made, with a hint."""
    with pytest.raises(el.errors.InvalidArgumentError, match=text):
        _made[1].loader(transforms=transforms)


@looped(
    "make",
    [
        lambda: el.ReturnToGo(1.5),
        lambda: el.GAE(lam=-0.1),
        lambda: el.GAE(gamma=True),
        lambda: el.GAE(missing="last"),  # pyright: ignore[reportArgumentType]
        lambda: el.Relabel("observation", move),
        lambda: el.Relabel("reward", "no"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_arguments_that_make_no_sense_are_refused(make: Any) -> None:
    """When the transform is made."""
    with pytest.raises(el.errors.InvalidArgumentError):
        make()


def test_reprs_tell_them_apart() -> None:
    """Each says what it was made with, and two that were made alike are equal."""
    returns = el.ReturnToGo(0.99)
    assert repr(returns) == "ReturnToGo(gamma=0.99, key='return_to_go')"
    assert repr(el.GAE()) == "GAE(gamma=0.99, lam=0.95, value='policy.value', missing='error')"
    assert el.ReturnToGo(np.float32(0.5)) == el.ReturnToGo(0.5)


def test_they_can_be_pickled() -> None:
    """And are the same afterwards; `test_batch_transforms` sends some to a new process."""
    transforms = [
        el.ReturnToGo(0.9),
        el.GAE(0.9, 0.8, missing="zero"),
        el.Relabel("reward", move, ["reward"]),
    ]
    assert pickle.loads(pickle.dumps(transforms)) == transforms


class Numbered(el.DerivedColumns):
    """Rows with their numbers, in arrays that lie in memory column after column, and in a list."""

    writes = ("numbered",)

    def compute(self, arrays: StepArrays) -> Any:
        """A nested value."""
        rows = np.arange(arrays.index.rows)
        return {"numbered": {"array": np.asfortranarray(np.stack([rows, rows], 1)), "list": rows.tolist()}}


class Nothing(Numbered):
    """Forgets to give what it writes."""

    def compute(self, arrays: StepArrays) -> Any:
        """None."""
        return None


def test_derived_values_may_be_nested_and_lie_anyhow() -> None:
    """Windows show the rows in order; no columns at all are refused."""
    view = _made[1]
    batch = next(
        iter(view.loader(1, el.Windows(2, pad="right"), columns=["reward"], transforms=[Numbered()]))
    )
    assert batch["numbered"]["array"][0, 0].tolist() == [0, 0]
    assert batch["numbered"]["list"][0, 0] == 0
    windows = view.filter("length >= 3").loader(1, window=3, columns=["reward"], transforms=[Numbered()])
    first = next(iter(windows))["numbered"]
    assert first["array"].tolist() == [[[0, 0], [1, 1], [2, 2]]]
    assert first["list"].tolist() == [[0, 1, 2]]
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"gave the columns None; it writes \('numbered',\)"
    ):
        view.loader(transforms=[Nothing()])
