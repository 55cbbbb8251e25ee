"""Frames stacked on reading, beside the rules of `LoaderContract`: as Gymnasium stacks them, and errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

import episodelake as el
from effort import looped
from episodelake.readers.columns.selection import EpisodeIndex
from episodelake.readers.columns.step_arrays import StepArrays
from episodelake.readers.loading.transforms.on_read import TransformPipeline
from loader_batches import NESTED, random_store

Pad = Literal["first", "zero"]


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
def test_what_cannot_be_stacked(transforms: list[Any], text: str, tmp_path: Path) -> None:
    """The names that are there are in the error."""
    store = random_store(tmp_path / "store", [3], ["cut"], NESTED)
    with pytest.raises(el.errors.InvalidArgumentError, match=text):
        store.loader(transforms=transforms)


@looped(
    "arguments", [(0,), (2, "reward"), (2, "next_observation.image"), (2, "observation", "last"), (True,)]
)
def test_arguments_that_make_no_sense_are_refused(arguments: Any) -> None:
    """When the transform is made."""
    with pytest.raises(el.errors.InvalidArgumentError):
        el.FrameStack(*arguments)
