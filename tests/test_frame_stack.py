"""Frames stacked on reading: each stack is that of a plain loop over its episode, in every kind of unit."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
import plain_units
from episodelake.readers.columns.selection import EpisodeIndex
from episodelake.readers.columns.step_arrays import StepArrays
from episodelake.readers.loading.transforms.on_read import TransformPipeline
from test_loader_units import BOX, ENDINGS, NESTED, assert_same, random_store, row, units_of

Pad = Literal["first", "zero"]


@pytest.fixture(scope="module", autouse=True)
def _stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores of random shapes, made once: Hypothesis draws one of them."""
    rng = np.random.default_rng(8)
    for number in range(6):
        lengths = rng.integers(1, [3, 9][number % 2], rng.integers(1, 5)).tolist()
        path = tmp_path_factory.mktemp("stacks") / "store"
        endings = rng.choice(ENDINGS, len(lengths)).tolist()
        _made.append(random_store(path, lengths, endings, [BOX, NESTED][number % 2], number))
    yield
    _made.clear()


_made: list[el.EpisodeStore] = []
stores = st.integers(0, 5).map(lambda number: _made[number])
sizes = st.integers(1, 6)
pads = st.sampled_from(["first", "zero"])


def stack(values: Any, t: int, k: int, pad: Pad) -> Any:
    """The last k values of an episode up to t, oldest first."""
    frames = []
    for place in range(t - k + 1, t + 1):
        first = plain_units.at(values, max(place, 0))
        frames.append(plain_units.zeros(first) if place < 0 and pad == "zero" else first)
    return plain_units.stacked(frames)


@pytest.mark.further
@given(stores, sizes, pads, st.integers(1, 4))
def test_transitions_and_spans(store: el.EpisodeStore, k: int, pad: Pad, n: int) -> None:
    """Both observations of a transition are stacks that end at their own steps, within the episode."""
    places = [(episode, t) for episode in store for t in range(episode.length)]
    for options, reach in (({}, 1), ({"n_step": n}, n)):
        found = units_of(store.loader(7, transforms=[el.FrameStack(k, pad=pad)], **options))
        for one, (episode, t) in zip(found, places, strict=True):
            following = min(t + reach, episode.length)
            assert_same(one["observation"], stack(episode.observations, t, k, pad))
            assert_same(one["next_observation"], stack(episode.observations, following, k, pad))
            assert_same(one["action"], plain_units.at(episode.actions, t))


@given(stores, sizes, pads, st.integers(1, 5), st.sampled_from(["left", "right"]), st.integers(0, 2))
def test_windows(store: el.EpisodeStore, k: int, pad: Pad, size: int, side: Any, burn_in: int) -> None:
    """Stacks reach before a window's beginning, not before the episode's; the padding of windows is zero."""
    loader = store.loader(
        4,
        el.Windows(size, pad=side, burn_in=burn_in),
        columns=["observation", "next_observation", "mask"],
        transforms=[el.FrameStack(k, pad=pad)],
    )
    starts = [
        (episode, start - burn_in)
        for episode in store
        for start in plain_units.window_starts(episode.length, size, 1, side)
    ]
    for one, (episode, start) in zip(units_of(loader), starts, strict=True):
        for step in range(size + burn_in):
            t = start + step
            real = 0 <= t < episode.length
            assert one["mask"][step] == real
            for key, shift in (("observation", 0), ("next_observation", 1)):
                expected = stack(episode.observations, t + shift if real else 0, k, pad)
                assert_same(row(one[key], step), expected if real else plain_units.zeros(expected))


@given(stores, sizes, pads)
def test_whole_episodes_and_deltas(store: el.EpisodeStore, k: int, pad: Pad) -> None:
    """Every observation of an episode is a stack, the last one too."""
    found = units_of(store.loader(2, el.Episodes(), transforms=[el.FrameStack(k, pad=pad)]))
    for one, episode in zip(found, store, strict=True):
        for t in range(episode.length + 1):
            assert_same(row(one["observation"], t), stack(episode.observations, t, k, pad))
    steps = [-2, 0, 3]
    found = units_of(
        store.loader(5, el.Deltas({"observation": steps}), transforms=[el.FrameStack(k, pad=pad)])
    )
    for one, (episode, t) in zip(found, [(e, t) for e in store for t in range(e.length)], strict=True):
        for number, step in enumerate(steps):
            near = min(max(t + step, 0), episode.length)
            assert_same(row(one["observation"], number), stack(episode.observations, near, k, pad))


def test_a_part_of_an_observation() -> None:
    """Only the part that is named is stacked; actions can be stacked too."""
    store = _made[1]
    transforms = [el.FrameStack(3, "observation.image"), el.FrameStack(2, "observation.pair.0", pad="zero")]
    found = units_of(store.loader(5, transforms=[*transforms, el.FrameStack(2, "action")]))
    for one, (episode, t) in zip(found, [(e, t) for e in store for t in range(e.length)], strict=True):
        image, pair = episode.observations["image"], episode.observations["pair"]
        assert_same(one["observation"]["image"], stack(image, t, 3, "first"))
        assert_same(one["observation"]["pair"][0], stack(pair[0], t, 2, "zero"))
        assert_same(one["observation"]["pair"][1], pair[1][t])
        assert_same(one["action"], stack(episode.actions, t, 2, "first"))


@pytest.mark.parametrize(("pad", "padding"), [("first", "reset"), ("zero", "zero")])
def test_as_gymnasium_stacks(pad: Pad, padding: Any, tmp_path: Path) -> None:
    """A policy that was trained on loaded stacks sees the same ones from Gymnasium's wrapper."""
    plain = gym.make("CartPole-v1")
    store = el.create(tmp_path / "store", plain)
    with store.record(plain, run="plain") as env:
        for seed in range(3):
            env.reset(seed=seed)
            done = False
            while not done:
                _, _, terminated, truncated, _ = env.step(seed % 2)
                done = terminated or truncated
    batches = list(store.refresh().loader(1000, transforms=[el.FrameStack(4, pad=pad)]))
    place = 0
    wrapped = FrameStackObservation(gym.make("CartPole-v1"), 4, padding_type=padding)
    for seed in range(3):
        observation, _ = wrapped.reset(seed=seed)
        done = False
        while not done:
            np.testing.assert_array_equal(batches[0]["observation"][place], observation)
            observation, _, terminated, truncated, _ = wrapped.step(seed % 2)
            np.testing.assert_array_equal(batches[0]["next_observation"][place], observation)
            done = terminated or truncated
            place += 1
    wrapped.close()
    assert place == len(batches[0]["observation"])


def test_stacked_rows_are_pickled_as_their_source() -> None:
    """Arrays that know how to be pickled (mapped ones) are made again, derived columns worked out anew."""
    columns = {"observation": np.arange(7.0), "reward": np.array([1.0, 2, 3, 0, 4, 5, 0])}
    index = EpisodeIndex(np.array([3, 2]), np.array([1, 3], np.int8))
    for source in (StepArrays(index, columns), Mapped(index, columns)):
        stages = TransformPipeline.of([el.FrameStack(2, pad="zero"), el.ReturnToGo()])
        made = stages.prepare(source, ["observation", "return_to_go"])
        _pickled.clear()
        again = pickle.loads(pickle.dumps(made))
        assert len(_pickled) == isinstance(source, Mapped)
        for arrays in (made, again):
            assert arrays.columns["return_to_go"].tolist() == [6, 5, 3, 0, 9, 5, 0]
            stacks = arrays.columns["observation"].take(np.array([[0, 3], [4, 5]]))
            assert stacks.tolist() == [[[0, 0], [2, 3]], [[0, 4], [4, 5]]]
            assert arrays.nbytes == 7 * (8 + 8 + 1)
    assert TransformPipeline.of([]).prepare(source, ["observation"]) is source


_pickled: list[Any] = []


class Mapped(StepArrays):
    """Arrays that say when they are pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Note it."""
        _pickled.append(self)
        return Mapped, (self.index, self.columns)


@pytest.mark.parametrize(
    ("transforms", "text"),
    [
        (
            [el.FrameStack(2, "observation.imag")],
            r"no 'observation.imag'.*observation.image, observation.pair",
        ),
        ([el.FrameStack(2), el.FrameStack(2)], "is stacked already"),
    ],
)
def test_what_cannot_be_stacked(transforms: list[Any], text: str) -> None:
    """The names that are there are in the error."""
    with pytest.raises(el.errors.InvalidArgumentError, match=text):
        _made[1].loader(transforms=transforms)


@pytest.mark.parametrize(
    "arguments", [(0,), (2, "reward"), (2, "next_observation.image"), (2, "observation", "last"), (True,)]
)
def test_arguments_that_make_no_sense_are_refused(arguments: Any) -> None:
    """When the transform is made."""
    with pytest.raises(el.errors.InvalidArgumentError):
        el.FrameStack(*arguments)
