"""Replaying episodes: what counts as the same, which step differs first, and what is said of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import episodelake as el
from effort import examples, looped
from episodelake.terminal.app import app
from kept_environments import EVERYTHING, Scripted, claiming_store, record

NUMBERS = spaces.Box(-np.inf, np.inf, (2, 3), np.float64)
NO_TERMINAL = dict.fromkeys(["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"])


def one_episode(path: Path, env: gymnasium.Env, **reset: Any) -> el.Episode:
    """Record one episode to its end."""
    store = el.create(path, env)
    with store.record(env) as recorder:
        recorder.action_space.seed(0)
        recorder.reset(**{"seed": 7, **reset})
        while not any(recorder.step(recorder.action_space.sample())[2:4]):
            pass
    return store.refresh()[0]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> el.Episode:
    """An episode of all kinds of spaces."""
    return one_episode(tmp_path_factory.mktemp("scripted") / "store", Scripted())


def cell(row: int, column: int, value: float) -> Any:
    """A change of one number of an array."""

    def change(array: np.ndarray) -> np.ndarray:
        array[row, column] = value
        return array

    return change


def part(key: str, change: Any) -> Any:
    """A change of one part of a mapping."""
    return lambda values: {**values, key: change(values[key])}


# What is the same


def test_every_space_replays(scripted: el.Episode) -> None:
    """Observations of nested and ragged spaces are played and found the same; the report says so."""
    env = Scripted()
    report = scripted.replay(env)
    assert report == el.types.ReplayReport(scripted.id, 7, 5, 5)
    assert report.same and report.first_difference is None
    assert "5 transitions replayed, all the same" in str(report)
    assert env.actions == scripted.actions.tolist()


def test_seed_and_options_are_those_of_the_episode(tmp_path: Path) -> None:
    """The reset is given the recorded options and a seed of any width."""
    episode = one_episode(tmp_path / "store", Scripted(), seed=2**80 + 1, options={"level": [1, (2, 3)]})
    env = Scripted()
    assert episode.replay(env).same
    assert (env.options, env.np_random_seed) == ({"level": [1, (2, 3)]}, 2**80 + 1)


def test_not_a_number_is_itself_and_zeros_have_signs(tmp_path: Path) -> None:
    """NaN equals NaN of any bits; exactly, 0.0 is not -0.0, with a tolerance it is."""
    nan, zero = {(2, "observation"): cell(0, 1, np.nan)}, {(2, "observation"): cell(0, 1, 0.0)}
    other_nan = {(2, "observation"): cell(0, 1, -np.nan)}
    minus = {(2, "observation"): cell(0, 1, -0.0)}
    episode = one_episode(tmp_path / "a", Scripted(NUMBERS, changes=nan))
    assert episode.replay(Scripted(NUMBERS, changes=nan)).same
    assert episode.replay(Scripted(NUMBERS, changes=other_nan)).same
    assert not episode.replay(Scripted(NUMBERS)).same
    episode = one_episode(tmp_path / "b", Scripted(NUMBERS, changes=zero))
    (difference,) = episode.replay(Scripted(NUMBERS, changes=minus)).differences
    assert (difference.step, difference.index) == (2, (0, 1))
    assert np.signbit([difference.expected, difference.got]).tolist() == [False, True]
    assert episode.replay(Scripted(NUMBERS, changes=minus), atol=1e-300).same


@pytest.mark.parametrize(("rtol", "atol", "same"), [(0, 0.1, True), (0, 0.01, False), (0.1, 0, True)])
def test_tolerances(tmp_path: Path, rtol: float, atol: float, same: bool) -> None:
    """Numbers may be apart as for numpy.isclose, in observations and in rewards."""
    changes = {(3, "observation"): cell(1, 2, 1.0), (3, "reward"): lambda reward: 1.0}
    nearly = {(3, "observation"): cell(1, 2, 1.05), (3, "reward"): lambda reward: 0.95}
    episode = one_episode(tmp_path / "store", Scripted(NUMBERS, changes=changes))
    report = episode.replay(Scripted(NUMBERS, changes=nearly), rtol=rtol, atol=atol)
    assert report.same is same
    assert [each.leaf for each in report.differences] == ([] if same else ["observation", "reward"])


def test_an_environment_may_use_its_buffers_again(tmp_path: Path) -> None:
    """What it gives is copied before it goes on, and it may write into the action."""

    class Reusing(gymnasium.Env):
        """Counts in one buffer, and in the action."""

        observation_space = action_space = spaces.Box(-100, 100, (1,), np.float64)

        def __init__(self) -> None:
            self.buffer = np.zeros(1)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
            """Start over."""
            super().reset(seed=seed)
            self.buffer[:] = 0
            return self.buffer, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            """Add the action, and spoil it."""
            self.buffer += action
            action[:] = np.nan
            return self.buffer, 0.0, False, bool(abs(self.buffer[0]) > 90), {}

    class Careful(gymnasium.ActionWrapper):
        """Hands on a copy of the action, which the recorder has seen already."""

        def action(self, action: Any) -> Any:
            """The copy."""
            return action.copy()

    episode = one_episode(tmp_path / "store", Careful(Reusing()))
    env = Reusing()
    assert episode.replay(env).same and episode.replay(env).same


def test_cut_episodes_are_played_to_the_cut(tmp_path: Path) -> None:
    """An episode that the recorder ended has no flag, and neither has the replay there."""
    store = el.create(tmp_path / "store", Scripted())
    with store.record(Scripted()) as recorder:
        recorder.reset(seed=1)
        recorder.step(0)
        recorder.step(1)
    (episode,) = store.refresh()
    assert episode.end_reason == "cut"
    env = Scripted()
    assert episode.replay(env).compared == len(env.actions) == 2


def test_an_environment_that_resets_within_the_step(tmp_path: Path) -> None:
    """Where the last step already gives the next episode, its true last observation is compared."""

    class SameStep(gymnasium.Wrapper):
        """Resets within the step that ends an episode."""

        def __init__(self, env: gymnasium.Env) -> None:
            super().__init__(env)
            self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
            """Step, and reset after the end."""
            observation, reward, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                observation, info = self.env.reset()[0], {"final_obs": observation, "final_info": info}
            return observation, reward, terminated, truncated, info

    store = el.create(tmp_path / "store", Scripted())
    with store.record(SameStep(Scripted())) as recorder:
        recorder.reset(seed=1)
        for _ in range(5):
            recorder.step(0)
    assert store.refresh()[0].replay(SameStep(Scripted())).same
    assert store[0].replay(Scripted()).same


# What differs

CHANGES = {
    "number": ("observation", part("body.arm", cell(1, 2, 7.5)), "observation.body%2Earm", (1, 2), 1),
    "pixels": (
        "observation",
        part("camera", lambda frame: frame ^ np.uint8(1)),
        "observation.camera",
        (0, 0, 0),
        48,
    ),
    "integer": ("observation", part("count", lambda count: (count + 1) % 10), "observation.count", (), 1),
    "bits": ("observation", part("pair", lambda pair: (1 - pair[0], pair[1])), "observation.pair.0", (0,), 3),
    "scalar": (
        "observation",
        part("pair", lambda pair: (pair[0], np.array(0.125))),
        "observation.pair.1",
        (),
        1,
    ),
    "sequence": (
        "observation",
        part("trail", lambda trail: (*trail, np.zeros(2))),
        "observation.trail",
        (),
        1,
    ),
    "text": ("observation", part("word", lambda word: "other"), "observation.word", (), 1),
    "reward": ("reward", lambda reward: reward + 1, "reward", (), 1),
    "terminated": ("terminated", lambda flag: not flag, "terminated", (), 1),
    "truncated": ("truncated", lambda flag: not flag, "truncated", (), 1),
}


@looped("step", [0, 1, 3, 5])
@looped("name", CHANGES)
def test_the_first_difference_is_found(scripted: el.Episode, name: str, step: int) -> None:
    """Each kind of change is found at its step, with its column, its index, what was and what came."""
    leaf, change, column, index, elements = CHANGES[name]
    if step == 0 and leaf != "observation":
        return
    report = scripted.replay(
        Scripted(changes={(step, leaf): change, (step + 1, "reward"): lambda reward: 99.0})
    )
    (difference,) = report.differences
    assert report.first_difference is difference and not report.same
    assert (difference.step, difference.leaf, difference.index) == (step, column, index)
    assert difference.elements == elements
    assert report.compared == max(0, step - 1)
    assert repr(difference.expected) != repr(difference.got)
    if leaf == "reward":
        assert (difference.expected, difference.got) == (
            scripted.rewards[step - 1],
            scripted.rewards[step - 1] + 1,
        )
    assert f"step {step}: {column}" in str(report)


def test_all_that_differs_at_the_first_step_is_told(tmp_path: Path) -> None:
    """Several columns that differ at one step are all told; later steps are not."""
    episode = one_episode(tmp_path / "store", Scripted(NUMBERS))
    changes = {
        (2, "observation"): lambda array: array + 1,
        (2, "reward"): lambda reward: -reward,
        (2, "truncated"): lambda flag: True,
        (3, "observation"): lambda array: array + 2,
    }
    report = episode.replay(Scripted(NUMBERS, changes=changes))
    assert [(each.leaf, each.step, each.elements) for each in report.differences] == [
        ("observation", 2, 6),
        ("reward", 2, 1),
        ("truncated", 2, 1),
    ]


def test_an_environment_that_ends_at_another_step(tmp_path: Path) -> None:
    """One that ends too early is not stepped further; one that goes on is not stepped behind the record."""
    episode = one_episode(tmp_path / "store", Scripted(length=5))
    for length, step, steps in ((3, 3, 3), (9, 5, 5)):
        env = Scripted(length=length)
        (difference,) = episode.replay(env).differences
        assert (difference.leaf, difference.step, len(env.actions)) == ("terminated", step, steps)
        assert (difference.expected, difference.got) == (length > 5, length < 5)


def test_a_value_that_fits_no_column_is_a_difference(tmp_path: Path) -> None:
    """What the store could not hold is told as such; what differed before it comes first."""
    episode = one_episode(tmp_path / "store", Scripted(NUMBERS))
    wrong = {(3, "observation"): lambda array: array[:1]}
    (difference,) = episode.replay(Scripted(NUMBERS, changes=wrong)).differences
    assert (difference.step, difference.leaf) == (3, "observation")
    assert "(1, 3)" in difference.got
    assert np.array_equal(difference.expected, episode.observations[3])
    earlier = {**wrong, (1, "observation"): cell(0, 0, 4.5)}
    (difference,) = episode.replay(Scripted(NUMBERS, changes=earlier)).differences
    assert (difference.step, difference.got) == (1, 4.5)


@settings(max_examples=examples(8), deadline=None)
@given(length=st.integers(1, 600), data=st.data())
def test_any_step_of_a_long_episode(
    length: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The first of some changed steps is found wherever it is, as a plain loop over the values finds it."""
    changed = data.draw(st.sets(st.integers(0, length), max_size=3))
    changes = {(step, "observation"): cell(0, 0, 3.5) for step in changed}
    episode = one_episode(tmp_path_factory.mktemp("long") / "store", Scripted(NUMBERS, length))
    report = episode.replay(Scripted(NUMBERS, length, changes))
    env = Scripted(NUMBERS, length, changes)
    seen = [env.reset(seed=7)[0], *(env.step(action)[0] for action in episode.actions)]
    wrong = [step for step, value in enumerate(seen) if not np.array_equal(value, episode.observations[step])]
    assert [each.step for each in report.differences] == wrong[:1]
    assert report.compared == (max(0, wrong[0] - 1) if wrong else length)


# What it says besides


def test_an_episode_without_a_seed(tmp_path: Path) -> None:
    """The report says that there was no seed, whether the replay differs or not."""
    store = el.create(tmp_path / "store", Scripted(NUMBERS))
    with store.record(Scripted(NUMBERS)) as recorder:
        recorder.reset(seed=1)
        recorder.step(0)
        recorder.reset()
        recorder.step(0)
    report = store.refresh()[1].replay(Scripted(NUMBERS))
    assert report.seed is None and not report.same
    assert "has no seed" in str(report)
    assert "has no seed" not in str(store[0].replay(Scripted(NUMBERS)))


def test_vector_rewards(tmp_path: Path) -> None:
    """Rewards of several objectives are compared element by element."""
    env = Scripted(NUMBERS)
    store = el.create(tmp_path / "store", env, reward_shape=(2,))
    both = {(step, "reward"): lambda reward: np.array([1.0, 2.0], np.float32) for step in range(1, 6)}
    with store.record(Scripted(NUMBERS, changes=both)) as recorder:
        recorder.reset(seed=1)
        for _ in range(5):
            recorder.step(0)
    episode = store.refresh()[0]
    assert episode.replay(Scripted(NUMBERS, changes=both)).same
    other = {**both, (4, "reward"): lambda reward: np.array([1.0, 3.0])}
    (difference,) = episode.replay(Scripted(NUMBERS, changes=other)).differences
    assert (difference.step, difference.index, difference.expected, difference.got) == (4, (1,), 2.0, 3.0)


@pytest.mark.parametrize(
    ("env", "error"),
    [
        (Scripted(), el.errors.SpaceMismatchError),
        (gymnasium.make_vec("CartPole-v1", 2), el.errors.InvalidArgumentError),
        ("CartPole-v1", el.errors.InvalidArgumentError),
    ],
    ids=["other spaces", "vector", "id"],
)
def test_what_cannot_be_replayed_in(tmp_path: Path, env: Any, error: type[Exception]) -> None:
    """Environments of other spaces, vectors and other objects are refused before anything is played."""
    episode = one_episode(tmp_path / "store", Scripted(NUMBERS))
    with pytest.raises(error):
        episode.replay(env)
    with pytest.raises(el.errors.InvalidArgumentError, match="rtol=-1: expected a finite number"):
        episode.replay(Scripted(NUMBERS), rtol=-1)


def test_many_episodes(tmp_path: Path) -> None:
    """A view replays each of its episodes, in one environment or in that of each run."""
    record(tmp_path / "store", gymnasium.make("CartPole-v1"), 60)
    store = record(tmp_path / "store", gymnasium.make("CartPole-v1", sutton_barto_reward=True), 60)
    reports = store.replay()
    assert [report.episode_id for report in reports] == [episode.id for episode in store]
    assert all(report.same for report in reports) and len(reports) > 2
    first_run = [report.same for report in store.replay(gymnasium.make("CartPole-v1"))]
    assert first_run == [episode.run_id == store[0].run_id for episode in store]
    assert [report.episode_id for report in store[1:2].replay()] == [store[1].id]


# The command line


def command(*words: object) -> tuple[int, str, str]:
    """Exit status and what was printed."""
    result = CliRunner().invoke(app, [str(word) for word in words], env=NO_TERMINAL)
    return result.exit_code, result.stdout, result.stderr


def test_the_command_replays_an_episode(tmp_path: Path) -> None:
    """It makes the environment of the run, and status 0 says that all is the same."""
    store = record(tmp_path / "store", gymnasium.make("CartPole-v1"), 30)
    status, told, _ = command("replay", store.path, -1)
    assert status == 0
    assert f"episode\t{store[-1].id}" in told and "No difference." in told
    assert command("replay", store.path, store[0].id)[0] == 0


def test_the_command_tells_what_differs(tmp_path: Path) -> None:
    """What differs is a table of columns, and the status is 1; with a tolerance it may be the same."""
    store = claiming_store(tmp_path / "store", gymnasium.make("CartPole-v1").spec.to_json())
    status, told, _ = command("replay", store.path, 0)
    assert status == 1
    assert "== Differences at step 0 ==" in told
    assert re.search(r"^observation\t\[0\]\t0\.0\t", told, re.MULTILINE)
    assert command("replay", store.path, 0, "--atol", 10)[0] == 0


def test_the_command_asks_for_trust(tmp_path: Path) -> None:
    """A store that names another module is refused without --trust."""
    spec = gymnasium.make("CartPole-v1").spec
    spec.entry_point = "kept_environments:Scripted"
    store = claiming_store(tmp_path / "store", spec.to_json())
    status, told, error = command("replay", store.path, 0)
    assert (status, told) == (1, "")
    assert "kept_environments" in error and "trust" in error
    assert "observation space" in command("replay", store.path, 0, "--trust")[2]


def test_info_tells_the_environments(tmp_path: Path) -> None:
    """Each environment of a store's runs is named once, with its wrappers."""
    env = gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1"))
    for _ in range(2):
        store = record(tmp_path / "store", env)
    told = command("info", store.path)[1]
    assert told.count("environment\tCartPole-v1, in TimeAwareObservation\n") == 1
    assert (
        "environment\tkept_environments:Scripted (no spec)"
        in command("info", record(tmp_path / "other", Scripted(EVERYTHING)).path)[1]
    )
