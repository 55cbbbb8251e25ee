"""Steps of the usual types get into their rows on a shorter way; others mix with them, and none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import episodelake as el
from episodelake.writers.recorders.recorder import Recorder
from waiting import PATIENCE

SEEN = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
DONE = gym.spaces.Box(-1, 1, (2,), np.float32)


class Reward(float):
    """A reward that is a float, and not of that class."""


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
        if type(observation) is np.ndarray and observation.dtype == np.float64 and observation.shape == (3,):
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
    "masked": np.ma.MaskedArray(np.zeros(3), np.array([False, True, False])),
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
            env.coming = np.full(3, t, float), float(t), False, False, {}
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


class Nested(Told):
    """Uses its own recorder within a step: steps it so often, or resets it."""

    recorder: Any = None
    steps, resets = 0, False

    def step(self, action: Any) -> Any:
        """Use the recorder first, once."""
        if self.recorder is not None:
            recorder, self.recorder = self.recorder, None
            if self.resets:
                recorder.reset()
            outer = self.coming
            for t in range(self.steps):
                self.coming = np.full(3, t, float), float(t), False, False, {}
                recorder.step(np.full(2, t % 7, np.float32))
            self.coming = outer
        return super().step(action)


@pytest.mark.parametrize(("steps", "reward"), [(1, 1000.0), (255, 1000.0), (600, Reward(1000.0))])
def test_steps_within_a_step_come_before_it(steps: int, reward: float, tmp_path: Path) -> None:
    """No row is written over or left behind in a full buffer, and each has its own action."""
    env = Nested()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset()
        env.recorder, env.steps = recorder, steps
        env.coming = np.full(3, 9.0), reward, False, False, {}
        recorder.step(np.full(2, 9, np.float32))
    store.refresh()
    episode = store[0]
    assert episode.actions[:, 1].tolist() == [*(t % 7 for t in range(steps)), 9]
    assert episode.rewards.tolist() == [*range(steps), 1000]
    assert episode.observations[1:, 2].tolist() == [*range(steps), 9]
    assert store.episodes.collect()["episode_return"].item() == sum(range(steps)) + 1000


def test_a_reset_within_a_step_raises(tmp_path: Path) -> None:
    """The step belongs to no running episode; what was recorded before it, and within it, is kept."""
    env = Nested()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset()
        env.coming = np.ones(3), 1.0, False, False, {}
        recorder.step(np.zeros(2, np.float32))
        env.recorder, env.steps, env.resets = recorder, 2, True
        with pytest.raises(el.errors.RecorderStateError, match="reset its own recorder"):
            recorder.step(np.zeros(2, np.float32))
        with pytest.raises(el.errors.RecorderStateError, match="reset"):
            recorder.step(np.zeros(2, np.float32))
    store.refresh()
    assert [episode.rewards.tolist() for episode in store] == [[1.0], [0.0, 1.0]]


# The same steps in the usual types and in others


class Walk(gym.Env):
    """Random values of its spaces; rewards of the given class."""

    def __init__(self, seen: str, done: str, reward: type[float]) -> None:
        self.observation_space, self.action_space = SPACES[seen], SPACES[done]
        self._reward = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin; the seed decides all."""
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        """One step in fifty ends the episode."""
        reward, done = self._reward(self.np_random.normal()), self.np_random.random() < 0.02
        return self.observation_space.sample(), reward, done, False, {}


SPACES = {
    "numbers": gym.spaces.Box(-np.inf, np.inf, (17,), np.float64),
    "push": gym.spaces.Box(-1, 1, (2, 3), np.float32),
    "half": gym.spaces.Box(-1, 1, (5,), np.float16),
    "bytes": gym.spaces.Box(0, 255, (2, 4), np.uint8),
    "large": gym.spaces.Box(-1, 1, (100,), np.float64),
    "none": gym.spaces.Box(-1, 1, (0,), np.float32),
    "scalar": gym.spaces.Box(-1, 1, (), np.float32),
    "choice": gym.spaces.Discrete(5, start=-2),
    "choices": gym.spaces.MultiDiscrete([3, 4]),
    "bits": gym.spaces.MultiBinary(3),
    "dict": gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (3,), np.float32), b=gym.spaces.Discrete(3)),
}
ORDINARY = [("numbers", "push", None), ("bytes", "choice", None), ("push", "half", 40)]
FURTHER = [
    pytest.param(*spaces, flush_steps, marks=pytest.mark.further)
    for flush_steps in (None, 40)
    for name in SPACES
    for spaces in ((name, "choice"), ("push", name))
]


def record(store: el.EpisodeStore, seen: str, done: str, reward: type[float], **options: Any) -> Any:
    """Record 700 steps and return the recorder, which is not closed: episodes, and one that goes on."""
    env = Walk(seen, done, reward)
    recorder = store.record(env, run="same", **options)
    recorder.reset(seed=5)
    env.action_space.seed(6)
    for t in range(700):
        if recorder.step(env.action_space.sample())[2]:
            recorder.reset(seed=t)
    return recorder


def contents(store: el.EpisodeStore) -> list[Any]:
    """All steps and episodes, without the times, the ids of runs and the names of files."""
    store.refresh()
    number = pl.col("episode_id").str.tail(6)
    episodes = store.episodes.select(number, "length", "episode_return", "end_reason", "seed")
    return [episodes.collect(), store.steps.with_columns(number).collect()]


@pytest.mark.parametrize(("seen", "done", "flush_steps"), ORDINARY + FURTHER)
def test_both_ways_store_the_same(seen: str, done: str, flush_steps: int | None, tmp_path: Path) -> None:
    """A reward of a class of its own forces the longer way for each step."""
    stored = []
    for reward in (float, Reward):
        store = el.create(tmp_path / reward.__name__, Walk(seen, done, reward))
        record(store, seen, done, reward, flush_steps=flush_steps).close()
        stored.append(contents(store))
    usual, other = stored
    assert usual[0].height > 3 and usual[1].height == 700 + usual[0].height
    for one, two in zip(usual, other, strict=True):
        assert_frame_equal(one, two)


@pytest.mark.further
def test_a_process_that_dies_leaves_the_same_journal(tmp_path: Path) -> None:
    """After `os._exit` recovery makes of the journal what a recorder that was closed has stored."""
    closed = el.create(tmp_path / "closed", Walk("numbers", "push", Reward))
    record(closed, "numbers", "push", Reward).close()
    died = el.create(tmp_path / "died", Walk("numbers", "push", float))
    script = (
        "import os, sys, test_usual_steps as t, episodelake as el\n"
        "recorder = t.record(el.open(sys.argv[1]), 'numbers', 'push', float)\n"
        "recorder.flush()\n"
        "os._exit(9)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "died")]
    paths = os.pathsep.join(str(each) for each in Path(__file__).parents[:2])
    environment = {**os.environ, "PYTHONPATH": paths}
    assert subprocess.run(command, env=environment, timeout=PATIENCE).returncode == 9
    el.recover(tmp_path / "died")
    (episodes, steps), (closed_episodes, closed_steps) = contents(died), contents(closed)
    assert_frame_equal(steps, closed_steps)
    # Only the episode that was going on differs: its process died.
    assert episodes["end_reason"].to_list() == [*closed_episodes["end_reason"].to_list()[:-1], "interrupted"]
    assert_frame_equal(episodes.drop("end_reason"), closed_episodes.drop("end_reason"))


def test_an_interrupt_at_any_line_of_a_step_keeps_whole_rows(tmp_path: Path) -> None:
    """The struck step counts with its tally or not at all; the steps before it are as they were."""
    step = Recorder.step.__code__
    lines = sorted({line for *_, line in step.co_lines() if line is not None} - {step.co_firstlineno})
    struck: list[int] = []
    run: set[int] = set()
    env = Told()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        for reward in (float, Reward):
            recorder.reset()
            env.coming = np.full(3, 0.0), reward(1), False, False, {}
            sys.settrace(_noted(run))
            recorder.step(np.full(2, 0, np.float32))
            sys.settrace(None)
            recorder.discard_episode()
            for line in lines:
                recorder.reset()
                for t in range(4):
                    env.coming = np.full(3, t, float), reward(2**t), False, False, {}
                    if t == 3:
                        sys.settrace(_interrupt(line))
                    try:
                        recorder.step(np.full(2, t, np.float32))
                    except KeyboardInterrupt:
                        struck.append(line)
                    finally:
                        sys.settrace(None)
    # Those of handlers of errors are not struck.
    assert set(struck) == run and len(run) > 15
    store.refresh()
    lengths = [len(episode.rewards) for episode in store]
    assert set(lengths) == {3, 4} and len(lengths) == 2 * len(lines)
    for episode, length in zip(store, lengths, strict=True):
        assert episode.rewards.tolist() == [2**t for t in range(length)]
        assert episode.observations[:, 1].tolist() == [0, *range(length)]
        assert episode.actions[:, 1].tolist() == list(range(length))
    episodes = store.episodes.collect()
    assert episodes["length"].to_list() == lengths
    assert episodes["episode_return"].to_list() == [2**length - 1 for length in lengths]


def _noted(lines: set[int]) -> Any:
    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not Recorder.step.__code__:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    return trace


def _interrupt(line: int) -> Any:
    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not Recorder.step.__code__:
            return None
        if event == "line" and frame.f_lineno == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return trace
