"""Steps of the usual types get into their rows on a shorter way; others mix with them, and none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el

SEEN = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
DONE = gym.spaces.Box(-1, 1, (2,), np.float32)


class Kept(np.ndarray):
    """An array of a class of its own."""


def _strided(values: np.ndarray) -> np.ndarray:
    wide = np.full(2 * len(values), np.nan, values.dtype)
    wide[::2] = values
    return wide[::2]


FORMS = {
    "plain": lambda values: values,
    "strided": _strided,
    "backwards": lambda values: values[::-1].copy()[::-1],
    "swapped": lambda values: values.astype(values.dtype.newbyteorder()),
    "subclass": lambda values: values.view(Kept),
    "list": lambda values: values.tolist(),
    "column": lambda values: np.asfortranarray(np.stack([values, values], 1))[:, 0],
    "read-only": lambda values: np.frombuffer(values.tobytes(), values.dtype),
}
REWARDS = [float, np.float64, np.float32, int, np.int16, np.bool_, lambda value: np.array([value])]
FLAGS = [False, np.False_]


class Told(gym.Env):
    """Hands out what a test has told it, in one array that it uses again where it can."""

    observation_space, action_space = SEEN, DONE

    def __init__(self) -> None:
        self.coming: Any = None
        self._memory = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin with zeros."""
        self._memory[:] = 0
        return self._memory, {}

    def step(self, action: Any) -> Any:
        """Hand out what was told; raise it if it is an exception."""
        if isinstance(self.coming, BaseException):
            raise self.coming
        observation, *rest = self.coming
        if type(observation) is np.ndarray and observation.dtype == np.float64:
            self._memory[:] = observation
            observation = self._memory
        return observation, *rest


STEPS = st.lists(
    st.tuples(
        st.sampled_from(sorted(FORMS)),
        st.sampled_from(sorted(FORMS)),
        st.sampled_from(REWARDS),
        st.sampled_from(FLAGS),
        st.sampled_from([{}, {"a": 1}, {"a": 1.5}, {"b": "x", "a": 2}]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(steps=STEPS)
def test_any_mix_of_steps_is_recorded_as_it_came(steps: list[Any], tmp_path_factory: Any) -> None:
    """Arrays in any layout, class or byte order, rewards of any type, infos and logs all come back."""
    env = Told()
    store = el.create(tmp_path_factory.mktemp("mix") / "store", env)
    with store.record(env) as recorder:
        recorder.reset()
        for t, (seen, done, reward, flag, info, logs) in enumerate(steps):
            if logs:
                recorder.log(value=t)
            env.coming = FORMS[seen](np.arange(3) + t + 0.5), reward(t % 2), flag, False, dict(info)
            recorder.step(FORMS[done](np.array([0.25, t / 16], np.float32)))
    store.refresh()
    episode = store[0]
    expected = np.concatenate([np.zeros((1, 3)), [np.arange(3) + t + 0.5 for t in range(len(steps))]])
    np.testing.assert_array_equal(episode.observations, expected)
    np.testing.assert_array_equal(episode.actions, [[0.25, t / 16] for t in range(len(steps))])
    np.testing.assert_array_equal(episode.rewards, [t % 2 for t in range(len(steps))])
    assert list(episode.infos) == [{}, *(info for *_, info, _ in steps)]
    assert store.episodes.collect()["episode_return"].item() == sum(t % 2 for t in range(len(steps)))


WRONG = {
    "shape": np.zeros((3, 1)),
    "more": np.zeros(4),
    "integers": np.full(3, 2**60 + 1),
    "complex": np.zeros(3, complex),
    "masked": np.ma.MaskedArray(np.zeros(3), [0, 1, 0]),
    "text": "abc",
    "none": None,
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_leaves_the_steps_before_it(name: str, tmp_path: Path) -> None:
    """An observation that does not fit raises after usual steps; the episode ends with the step before it."""
    env = Told()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset()
        for t in range(3):
            env.coming = np.full(3, t), float(t), False, False, {}
            recorder.step(np.zeros(2, np.float32))
        with pytest.raises(el.errors.SpaceMismatchError):
            recorder.step(np.zeros((2, 1), np.float32))
        env.coming = WRONG[name], 1.0, False, False, {}
        with pytest.raises(el.errors.SpaceMismatchError):
            recorder.step(np.zeros(2, np.float32))
        recorder.reset()
        env.coming = np.ones(3), 5.0, True, False, {}
        recorder.step(np.ones(2, np.float32))
    store.refresh()
    first, second = store[0], store[1]
    np.testing.assert_array_equal(first.observations[1:], [[t] * 3 for t in range(3)])
    assert first.rewards.tolist() == [0.0, 1.0, 2.0]
    assert first.end_reason == "cut"
    assert (second.rewards.tolist(), second.end_reason) == ([5.0], "terminated")
    np.testing.assert_array_equal(second.observations, [[0] * 3, [1] * 3])
    np.testing.assert_array_equal(second.actions, [[1, 1]])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no"), MemoryError()])
def test_an_exception_between_usual_steps_ends_the_episode(error: BaseException, tmp_path: Path) -> None:
    """What the environment raises passes; the steps before it are kept, and a reset must follow."""
    env = Told()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset()
        env.coming = np.ones(3), 1.0, False, False, {}
        recorder.step(np.zeros(2, np.float32))
        env.coming = error
        with pytest.raises(type(error)):
            recorder.step(np.ones(2, np.float32))
        with pytest.raises(el.errors.RecorderStateError):
            recorder.step(np.ones(2, np.float32))
    store.refresh()
    episode = store[0]
    assert (len(episode.rewards), episode.end_reason, len(store)) == (1, "cut", 1)
    np.testing.assert_array_equal(episode.actions, [[0, 0]])


def test_an_environment_that_resets_its_recorder_loses_no_row(tmp_path: Path) -> None:
    """A row that came while the environment stepped is not written over."""

    class Resets(Told):
        recorder: Any = None

        def step(self, action: Any) -> Any:
            if self.recorder is not None:
                recorder, self.recorder = self.recorder, None
                recorder.reset()
                self.coming = np.full(3, 7.0), 2.0, False, False, {}
                recorder.step(np.ones(2, np.float32))
                self.coming = np.full(3, 9.0), 3.0, False, False, {}
            return super().step(action)

    env = Resets()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset()
        env.coming = np.ones(3), 1.0, False, False, {}
        recorder.step(np.zeros(2, np.float32))
        env.recorder = recorder
        recorder.step(np.zeros(2, np.float32))
    store.refresh()
    rewards = sorted(float(each) for episode in store for each in episode.rewards)
    assert rewards == [1.0, 2.0, 3.0]
