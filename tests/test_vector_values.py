"""What a vector recorder keeps beside the steps: infos, logged values, callbacks, foreign arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList

import episodelake as el
from nasty_environments import Rollout, SmallEnv, assert_recorded
from strategies import same
from vector_rollouts import MODES, Maker, alone, assert_all, batches, together

MODE_NAMES = [mode.value for mode in MODES]
STILL = np.zeros((3, 2), np.float32)


class Telling(SmallEnv):
    """Tells each key only now and then, and values of its own types."""

    def tell(self) -> Any:
        """Return what belongs to this time step."""
        told: dict[str, Any] = {"t": self.t}
        if self.t % 2:
            told["odd"] = np.float32(self.t) / 2
        if self.t == 2:
            told["picture"] = np.full((2, 3), self.t, np.uint8)
            told["word"] = "two"
        if self.t > 1:
            told["deep"] = {"er": {"x": float(self.t)}, "list": [self.t]}
        return told


class Scripted(VectorEnv):
    """A vector environment that hands out what a script says: observations, flags and infos of each call."""

    def __init__(self, count: int, script: list[tuple[Any, Any, Any]], mode: AutoresetMode) -> None:
        self.num_envs = count
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (), np.float64)
        self.single_action_space = spaces.Discrete(3)
        self.script, self.calls = script, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin with the first line."""
        self.calls = 0
        return self.script[0][0], self.script[0][2]

    def step(self, actions: Any) -> Any:
        """Hand out the next line."""
        self.calls += 1
        observations, done, infos = self.script[self.calls]
        return observations, np.ones(self.num_envs), done, np.zeros(self.num_envs, bool), infos


def recorded(folder: Path, envs: VectorEnv, steps: int, **arguments: Any) -> list[el.Episode]:
    """Record so many steps of a vector environment and return the episodes in the order of their numbers."""
    store = el.create(folder / "store", envs)
    with store.record(envs, **arguments) as recorder:
        recorder.reset(seed=10)
        for _ in range(steps):
            recorder.step(np.zeros(envs.num_envs, np.int64))
    assert store.refresh().verify().faults == ()
    return sorted(store, key=lambda episode: episode.number)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_infos_are_absent_where_they_were_absent(tmp_path: Path, mode: AutoresetMode) -> None:
    """A key that some environments told at some steps is there at these, with its type, and nowhere else."""
    makers: list[Maker] = [lambda n=n: Telling(n) for n in (2, 5, 3)]
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    taken = batches(envs, 12)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        together(recorder, taken, mode)
    assert_all(store, alone(makers, taken, mode, envs.action_space), Telling())
    names = set(store.steps.collect_schema().names())
    assert {"info.t", "info.odd", "info.picture", "info.word", "info.deep.er.x", "info.deep.list"} <= names
    assert not any(name.startswith(("info._", "info.final")) for name in names if name != "info._json")


def test_infos_without_masks_are_everybodys(tmp_path: Path) -> None:
    """An array of one entry for each environment is taken apart; any other value is told of each of them."""
    infos = {
        "own": np.array([1.5, 2.5]),
        "all": "x",
        "number": 7,
        "deep": {"own": np.array([1, 2])},
        "_odd": 3,
    }
    script = [(np.zeros(2), None, infos), (np.ones(2), np.zeros(2, bool), infos)]
    episodes = recorded(tmp_path, Scripted(2, script, AutoresetMode.NEXT_STEP), 1)
    for index, episode in enumerate(episodes):
        expected = {"own": 1.5 + index, "all": "x", "number": 7, "deep": {"own": 1 + index}, "_odd": 3}
        assert episode.infos == [expected, expected]


def test_a_mask_of_the_outer_key_covers_what_is_inside(tmp_path: Path) -> None:
    """Nested infos under a mask are absent outside it, also where the inner keys have no masks."""
    infos = {"deep": {"x": np.array([1, 2])}, "_deep": np.array([False, True])}
    script = [(np.zeros(2), None, infos), (np.ones(2), np.zeros(2, bool), {})]
    episodes = recorded(tmp_path, Scripted(2, script, AutoresetMode.NEXT_STEP), 1)
    assert [episode.infos[0] for episode in episodes] == [{}, {"deep": {"x": 2}}]


@pytest.mark.parametrize("objects", [True, False])
def test_the_final_observation_may_be_a_batch_or_single_values(tmp_path: Path, objects: bool) -> None:
    """Under SAME_STEP `final_obs` is taken as an array of objects or as a whole batch, and copied at once."""
    final: Any = np.array([None, 9.0], object) if objects else np.array([-1.0, 9.0])
    done = np.array([False, True])
    told = {
        "final_obs": final,
        "_final_obs": done,
        "final_info": {"x": np.array([0, 5]), "_x": done},
        "_final_info": done,
    }
    envs = Scripted(
        2,
        [(np.zeros(2), None, {}), (np.ones(2), done, told), (np.ones(2), ~done & done, {})],
        AutoresetMode.SAME_STEP,
    )
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset()
        recorder.step(np.zeros(2, np.int64))
        final[1] = -77.0
        recorder.step(np.zeros(2, np.int64))
    first, second, third = sorted(store.refresh(), key=lambda episode: episode.number)
    assert first.observations.tolist() == [0, 1, 1] and second.observations.tolist() == [0, 9]
    assert second.infos == [{}, {"x": 5}] and second.end_reason == "terminated"
    assert third.observations.tolist() == [1, 1] and third.env_index == 1 and third.infos == [{}, {}]


def test_a_missing_final_observation_is_told(tmp_path: Path) -> None:
    """An environment that says SAME_STEP and gives no last observation gets an error; the rest is kept."""
    done = np.array([True, False])
    script = [(np.zeros(2), None, {}), (np.ones(2), done & ~done, {}), (np.ones(2), done, {})]
    envs = Scripted(2, script, AutoresetMode.SAME_STEP)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset()
        recorder.step(np.zeros(2, np.int64))
        with pytest.raises(el.errors.SpaceMismatchError, match="final_obs"):
            recorder.step(np.zeros(2, np.int64))
    assert [(episode.length, episode.end_reason) for episode in store.refresh()] == [(1, "cut")] * 2


class Foreign:
    """An array of another library: it can be turned into numpy, and nothing else."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Return the values."""
        return self.values if dtype is None else self.values.astype(dtype)


class Lending:
    """An array that can only be lent by DLPack."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __dlpack__(self, **arguments: Any) -> Any:
        """Lend the values."""
        return self.values.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        """Say where they are."""
        return self.values.__dlpack_device__()


class OnDevice:
    """An array that shows itself only after `detach` and `cpu`, as torch has it."""

    def __init__(self, values: Any, steps: int = 0) -> None:
        self.values, self.steps = values, steps

    def detach(self) -> OnDevice:
        """Take one step."""
        return OnDevice(self.values, self.steps + 1)

    def cpu(self) -> OnDevice:
        """Take another."""
        return OnDevice(self.values, self.steps + 1)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Return the values in the end."""
        if self.steps < 2:
            raise RuntimeError("this memory cannot be read")
        return np.asarray(self.values)


@pytest.mark.parametrize("kind", [Foreign, Lending, OnDevice])
def test_arrays_of_other_libraries_become_numpy(tmp_path: Path, kind: Callable[[Any], Any]) -> None:
    """Observations, rewards, flags, infos, actions and logged values may be arrays of any library."""

    class Elsewhere(Scripted):
        def reset(self, **arguments: Any) -> Any:
            return kind(np.zeros(2)), {"x": kind(np.array([1, 2]))}

        def step(self, actions: Any) -> Any:
            self.calls += 1
            values = (
                np.full(2, float(self.calls)),
                np.array([1.0, 2.0]),
                np.array([0, self.calls == 2], np.uint8),
                np.zeros(2, np.uint8),
            )
            return *map(kind, values), {"x": kind(np.array([3, 4]))}

    envs = Elsewhere(2, [], AutoresetMode.NEXT_STEP)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset()
        for _ in range(2):
            recorder.log(value=kind(np.array([0.5, 1.5])))
            recorder.step(kind(np.array([1, 2])))
    first, second = sorted(store.refresh(), key=lambda episode: episode.number)
    assert first.observations.tolist() == [0, 1, 2] and first.rewards.tolist() == [1, 1]
    assert second.actions.tolist() == [2, 2] and second.end_reason == "terminated"
    assert second.infos == [{"x": 2}, {"x": 4}, {"x": 4}]
    assert second.policy["value"].tolist() == [1.5, 1.5]


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_logged_values_stand_beside_the_actions(tmp_path: Path, mode: AutoresetMode) -> None:
    """What is logged stands on the row of its observation, and on the last row where that was in hand."""
    makers: list[Maker] = [lambda n=n: SmallEnv(n) for n in (2, 3, 50)]
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        observations, _ = recorder.reset(seed=10)
        done = np.zeros(3, bool)
        for step in range(9):
            values = observations[:, 2].astype(np.float64)
            recorder.log(seen=values, both={"a": values, "b": np.stack([values, values], 1)}, step=[step] * 3)
            values[:] = np.nan
            observations, _, terminated, truncated, _ = recorder.step(STILL)
            done = terminated | truncated
            if mode is AutoresetMode.DISABLED and done.any():
                recorder.log(seen=observations[:, 2].astype(np.float64))
                observations, _ = recorder.reset(options={"reset_mask": done})
    last_too = mode is not AutoresetMode.SAME_STEP
    for episode in store.refresh():
        # With autoreset disabled, the values before the last reset are those of all.
        told = mode is AutoresetMode.DISABLED and bool(done.any())
        whole = last_too and (episode.end_reason == "terminated" or told)
        seen = episode.observations[: episode.length + whole, 2].astype(np.float64)
        assert same(episode.policy["seen"], seen)
        if mode is not AutoresetMode.DISABLED:
            assert same(np.array([part["a"] for part in stacked(episode.policy["both"], len(seen))]), seen)
    assert store.verify().faults == ()


def stacked(values: Any, length: int) -> list[dict[str, Any]]:
    """Return nested logged values step by step."""
    if isinstance(values, dict):
        return [{key: part[index] for key, part in values.items()} for index in range(length)]
    return list(values)


def test_logged_values_may_be_of_some_environments(tmp_path: Path) -> None:
    """With a mask only these have the value; later values replace earlier ones; others are absent."""
    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 3)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=10)
        recorder.log(value=np.array([1, 2, 3]), mask=np.array([True, True, False]))
        recorder.log(value=np.array([7, 8, 9]), mask=np.array([False, True, False]))
        recorder.step(STILL)
        recorder.log(value=np.arange(3))
        recorder.log(value=np.arange(3) * 0.5)
        recorder.step(STILL)
        recorder.log(word=["a", "b", "c"])
        recorder.step(STILL)
    frame = store.refresh().steps.collect().sort("episode_id", "t")
    assert frame["policy.value"].to_list() == [1, 0, None, None, 8, 0.5, None, None, None, 1, None, None]
    words = [episode.frame()["policy.word"].to_list() for episode in store]
    assert words == [[None, None, word, None] for word in "abc"]


@pytest.mark.parametrize("value", [5, np.zeros(2), np.zeros(()), [1, 2], "abc", None, {"deep": np.zeros(4)}])
def test_a_logged_value_of_another_size_is_refused(tmp_path: Path, value: Any) -> None:
    """A value without one entry for each environment is an error that says so, and nothing is kept of it."""
    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 3)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=10)
        with pytest.raises(el.errors.SpaceMismatchError, match="one entry for each"):
            recorder.log(value=value)
        with pytest.raises(el.errors.SpaceMismatchError, match="mask"):
            recorder.log(value=np.zeros(3), mask=np.zeros(3))
        recorder.step(STILL)
    assert [episode.policy for episode in store.refresh()] == [{}] * 3


def with_callback(
    folder: Path, mode: AutoresetMode, callback: Callable[[el.types.StepData], Any]
) -> tuple[el.EpisodeStore, list[list[Rollout]]]:
    """Record environments under a step callback; return the store and what each environment sees alone."""
    makers: list[Maker] = [lambda n=n: Telling(n) for n in (3, 4)]
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    taken = batches(envs, 11)
    store = el.create(folder / "store", envs)
    with store.record(envs, step_callback=callback) as recorder:
        together(recorder, taken, mode)
    return store.refresh(), alone(makers, taken, mode, envs.action_space)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_a_step_callback_sees_each_step_of_each_environment(tmp_path: Path, mode: AutoresetMode) -> None:
    """It is shown what each environment alone would show, and what it adds stands on these rows."""
    seen: list[el.types.StepData] = []

    def watch(step: el.types.StepData) -> dict[str, Any]:
        seen.append(step)
        return {"twice": 2 * step.t}

    store, plain = with_callback(tmp_path, mode, watch)
    assert_all(store, plain, Telling())
    assert all(
        episode.extra["twice"].tolist() == [2 * t for t in range(episode.length + 1)] for episode in store
    )
    for index, rollouts in enumerate(plain):
        own = [step for step in seen if step.env_index == index and step.t > 0]
        assert [step.reward for step in own] == [reward for r in rollouts for reward in r.rewards]
        assert [step.terminated for step in own] == [flag for r in rollouts for flag in r.terminations]
        assert same([step.observation for step in own], [o for r in rollouts for o in r.observations[1:]])
        assert same([step.action for step in own], [action for r in rollouts for action in r.actions])


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_a_step_callback_may_change_what_is_recorded(tmp_path: Path, mode: AutoresetMode) -> None:
    """Replaced observations, rewards and infos are recorded, and returns are of what was recorded."""

    def change(step: el.types.StepData) -> Any:
        if step.t == 0:
            return dataclasses.replace(step, observation=step.observation * 0)
        return dataclasses.replace(step, reward=float(step.t), info={"new": step.t}, action=step.action * 0)

    store, plain = with_callback(tmp_path, mode, change)
    assert len(store) == sum(map(len, plain))
    for episode in store:
        times = range(1, episode.length + 1)
        assert episode.rewards.tolist() == list(times) and episode.episode_return == sum(times)
        assert not episode.observations[0].any() and not episode.actions.any()
        assert episode.infos[1:] == [{"new": t} for t in times]


@pytest.mark.sample
@pytest.mark.parametrize("when", [0, 2])
@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_a_step_callback_may_end_episodes(tmp_path: Path, mode: AutoresetMode, when: int) -> None:
    """After `end=True` nothing of an environment is recorded until its next reset."""

    def stop(step: el.types.StepData) -> Any:
        return dataclasses.replace(step, end=step.t == when and step.env_index == 1)

    store, plain = with_callback(tmp_path, mode, stop)
    for index, rollouts in enumerate(plain):
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        cut = [rollout.cut(when) if index else rollout for rollout in rollouts]
        cut = [rollout for rollout in cut if rollout.actions]
        assert len(own) == len(cut)
        for episode, rollout in zip(own, cut, strict=True):
            assert_recorded(episode, rollout, Telling())
    assert store.verify().faults == ()


def test_an_exception_in_a_step_callback_passes_on(tmp_path: Path) -> None:
    """The exception reaches the caller unchanged; the steps before it are kept."""
    error = ZeroDivisionError("mine")

    def failing(step: el.types.StepData) -> None:
        if step.t == 2 and step.env_index == 1:
            raise error

    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 3)
    store = el.create(tmp_path / "store", envs)
    with pytest.raises(ZeroDivisionError) as caught, store.record(envs, step_callback=failing) as recorder:
        recorder.reset()
        recorder.step(STILL)
        recorder.step(STILL)
    assert caught.value is error
    assert [(episode.length, episode.end_reason) for episode in store.refresh()] == [(1, "cut")] * 3


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_an_episode_callback_sees_each_episode_once(tmp_path: Path, mode: AutoresetMode) -> None:
    """It is told length, return, reason and environment, and what it returns is the episode's metadata."""
    seen: list[el.types.EpisodeSummary] = []

    def note(episode: el.types.EpisodeSummary) -> dict[str, Any]:
        seen.append(episode)
        return {"label": f"{episode.env_index}: {episode.length} {episode.end_reason}"}

    envs = SyncVectorEnv([lambda n=n: SmallEnv(n) for n in (2, 3)], autoreset_mode=mode)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs, episode_callback=note) as recorder:
        together(recorder, batches(envs, 8), mode)
    by_id = {episode.id: episode for episode in store.refresh()}
    assert {episode.id for episode in seen} == by_id.keys() and len(seen) == len(by_id)
    for summary in seen:
        episode = by_id[summary.id]
        assert episode.metadata == {"label": f"{episode.env_index}: {episode.length} {episode.end_reason}"}
        assert (summary.episode_return, summary.seed) == (episode.episode_return, episode.seed)


def test_an_exception_in_an_episode_callback_keeps_the_step(tmp_path: Path) -> None:
    """The exception reaches the caller; all episodes are kept, and the others go on."""
    failures = iter([ZeroDivisionError("mine")])

    def failing(summary: el.types.EpisodeSummary) -> None:
        for failure in failures:
            raise failure

    envs = SyncVectorEnv([lambda n=n: SmallEnv(n) for n in (2, 4, 4)])
    store = el.create(tmp_path / "store", envs)
    with store.record(envs, episode_callback=failing) as recorder:
        recorder.reset(seed=10)
        recorder.step(STILL)
        with pytest.raises(ZeroDivisionError, match="mine"):
            recorder.step(STILL)
        for _ in range(2):
            recorder.step(STILL)
    plain = alone(
        [lambda n=n: SmallEnv(n) for n in (2, 4, 4)], [STILL] * 4, AutoresetMode.NEXT_STEP, envs.action_space
    )
    assert_all(store, plain, SmallEnv())


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_discarded_environments_are_silent_until_they_are_reset(tmp_path: Path, mode: AutoresetMode) -> None:
    """Nothing of their running episodes is stored, nor of those that autoreset begins, until a reset."""
    makers: list[Maker] = [lambda n=n: SmallEnv(n) for n in (3, 3)]
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    store = el.create(tmp_path / "store", envs)
    still = STILL[:2]
    with store.record(envs) as recorder:
        recorder.reset(seed=10)
        for _ in range(4):
            recorder.step(still)
        recorder.step(still)
        recorder.discard([1])
        for _ in range(7):
            recorder.step(still)
        assert recorder.episode_ids[1] is None
        recorder.reset(seed=20)
        recorder.step(still)
        assert recorder.transitions == sum(map(len, recorder_lengths(store, recorder)))
    own = sorted((e for e in store.refresh() if e.env_index == 1), key=lambda e: e.number)
    assert [(e.length, e.seed) for e in own] == [(3, 11), (1, 21)]
    assert store.verify().faults == ()


def recorder_lengths(store: el.EpisodeStore, recorder: el.types.VectorRecorder) -> list[range]:
    """Return a range as long as each episode recorded so far, the running ones (one step) included."""
    recorder.seal()
    return [range(episode.length) for episode in store.refresh()] + [range(1)] * 2


class Widening(SmallEnv):
    """Its info has an array that is longer at every step."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One more number each time."""
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"legal": np.arange(self.t)}


@pytest.mark.parametrize("mode", MODES)
def test_arrays_whose_size_changes_from_step_to_step(tmp_path: Path, mode: AutoresetMode) -> None:
    """Infos and logged values of one key, with another length in each step, come back as they were."""
    envs = SyncVectorEnv([lambda: Widening(4)] * 3, autoreset_mode=mode)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs, flush_seconds=1e6) as recorder:
        recorder.reset(seed=0)
        for step in range(4):
            recorder.log(seen=np.full((3, step + 2), step), own=[np.arange(step + env) for env in range(3)])
            recorder.step(np.zeros((3, 2), np.float32))
    for episode in store.refresh():
        assert [info["legal"].tolist() for info in episode.infos[1:]] == [[*range(t)] for t in range(1, 5)]
        assert [each.tolist() for each in episode.policy["seen"][:4]] == [[t] * (t + 2) for t in range(4)]
        own = [list(range(t + episode.env_index)) for t in range(4)]
        assert [each.tolist() for each in episode.policy["own"][:4]] == own
    assert len(store) == 3
    assert not store.verify().faults


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_infos_as_a_list_are_recorded_like_infos_as_a_mapping(tmp_path: Path, mode: AutoresetMode) -> None:
    """Gymnasium's `DictInfoToList` changes the form of infos, and nothing of what is recorded."""
    frames = []
    for name, wrap in (("plain", lambda envs: envs), ("listed", DictInfoToList)):
        envs = SyncVectorEnv([lambda: Telling(3), lambda: Telling(5)], autoreset_mode=mode)
        store = el.create(tmp_path / name, envs)
        el.collect(wrap(envs), None, store, episodes=5, seed=0)
        frames.append(store.refresh().steps.collect().drop("episode_id"))
    assert {"info.odd", "info.picture", "info.word", "info.deep.er.x"} <= set(frames[0].columns)
    assert frames[0].schema == frames[1].schema and frames[0].equals(frames[1])


@pytest.mark.parametrize("infos", ["text", [{}], [{}, {}, {}], [{}, 1], 5])
def test_infos_of_another_form_are_refused(tmp_path: Path, infos: Any) -> None:
    """Infos are a mapping, or a list with one for each environment."""

    class Odd(VectorWrapper):
        def step(self, actions: Any) -> Any:
            return (*self.env.step(actions)[:4], infos)

    envs = SyncVectorEnv([SmallEnv, SmallEnv])
    store = el.create(tmp_path / "store", envs)
    with store.record(Odd(envs)) as recorder:
        recorder.reset()
        with pytest.raises(el.errors.SpaceMismatchError, match="infos is"):
            recorder.step(STILL[:2])
