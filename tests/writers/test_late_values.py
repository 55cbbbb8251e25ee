"""Values for last observations, which recorders of several environments take until `flush` or `seal`."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import episodelake as el
from agent_environments import Comings
from episodelake.store.segments import steps_file
from episodelake.testing.adapters import case
from nasty_environments import SmallEnv
from pools import small
from waiting import PATIENCE

PUSHES = np.zeros((2, 2), np.float32)
WAITING = (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)


def recorded(
    folder: Path, lengths: tuple[int, int], mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any
) -> tuple[el.EpisodeStore, el.types.VectorRecorder]:
    """Return a store and the recorder of two environments that has been reset."""
    envs = SyncVectorEnv([lambda n=n: SmallEnv(n) for n in lengths], autoreset_mode=mode)
    store = el.create(folder / "store", envs)
    recorder = store.record(envs, **options)
    recorder.reset(seed=0)
    return store, recorder


def step(recorder: el.types.VectorRecorder, t: int) -> None:
    """Log the number of a step and of the environment, and take it."""
    recorder.log(value=np.array([t, 10 + t]))
    recorder.step(PUSHES)


def values(store: el.EpisodeStore, env: int) -> list[list[int | None]]:
    """Return the values of the steps of an environment's episodes, the environment left out of them."""
    episodes = store.refresh().filter(f"env_index = {env}").episodes.collect().sort("number")["episode_id"]
    steps = store.steps.collect()
    columns = [steps.filter(pl.col("episode_id") == each)["policy.value"].to_list() for each in episodes]
    return [[None if value is None else value - 10 * env for value in column] for column in columns]


def test_a_value_without_a_row_among_others_is_warned_of_once(tmp_path: Path) -> None:
    """The warning names the environment and comes from the caller's line; what goes on keeps its values."""
    store, recorder = recorded(tmp_path, (2, 9))
    with recorder:
        for t in range(5):
            step(recorder, t)
            if t in (1, 4):
                recorder.seal()
            if t == 1:
                with pytest.warns(RuntimeWarning, match=r"environments \[0\].*before flush") as caught:
                    recorder.log(value=np.array([2, 12]))
                assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            recorder.log(value=np.array([5, 15]))
    assert values(store, 0) == [[0, 1, None], [3, 4, None]]
    assert values(store, 1) == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.filterwarnings("error")
def test_values_of_environments_that_go_on_outlast_the_reset_of_others(tmp_path: Path) -> None:
    """With autoreset disabled, a value may be logged for all before those that ended are reset."""
    store, recorder = recorded(tmp_path, (2, 4), AutoresetMode.DISABLED)
    with recorder:
        for t in range(4):
            recorder.log(value=np.array([t, 10 + t]))
            if t == 2:
                recorder.reset(options={"reset_mask": np.array([True, False])})
            recorder.step(PUSHES)
    assert values(store, 0) == [[0, 1, 2], [None, 3, None]]
    assert values(store, 1) == [[0, 1, 2, 3, None]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options", [{"flush_steps": 1}, {"seal_episodes": 1}, {"seal_seconds": 0.02, "flush_seconds": 0.01}]
)
def test_background_flushes_and_seals_leave_room(tmp_path: Path, options: dict[str, Any]) -> None:
    """An episode is sealed by the background thread only when the next step begins."""
    store, recorder = recorded(tmp_path, (2, 2), **options)
    with recorder:
        for episode in range(3):
            for t in range(2):
                step(recorder, t)
            # Time for the background thread to seal the episodes before, and these if it were wrong.
            latest = time.monotonic() + PATIENCE
            while "flush_steps" not in options and len(store.refresh()) < 2 * episode:
                assert time.monotonic() < latest
                time.sleep(0.01)
            time.sleep(0.06)
            step(recorder, 2)
    assert values(store, 0)[:3] == values(store, 1)[:3] == [[0, 1, 2]] * 3


class Ender:
    """A step callback that ends the episodes of environment 1 at a step, and nothing else."""

    def __init__(self, t: int | None = None, **changes: Any) -> None:
        self.t, self.changes = t, changes

    def __call__(self, data: el.types.StepData) -> el.types.StepData:
        """Change the step."""
        return replace(data, **self.changes) if (data.env_index, data.t) == (1, self.t) else data


def recorded_pool(
    folder: Path, lengths: tuple[int, ...], batch: int, **options: Any
) -> tuple[el.EpisodeStore, Any]:
    """Return a store and the recorder of a pool whose environments have all been reset."""
    pool: Any = small(lengths, batch)
    store = el.create(folder / "store", pool)
    recorder = store.record(pool, **options)
    recorder.async_reset()
    for _ in range(0, len(lengths), batch):
        recorder.recv()
    return store, recorder


def drive(recorder: Any, *envs: int) -> None:
    """Step some environments of a pool, with a value for each."""
    ids = np.array(envs)
    recorder.log(ids, value=10 * ids + recorder.pool.elapsed[envs[0]])
    recorder.step(np.zeros((len(envs), 2), np.float32), ids)


CALLBACKS = (None, Ender())


def test_a_pool_refuses_values_of_an_earlier_batch(tmp_path: Path) -> None:
    """Another batch stored the episode, whether or not the environment was sent its reset since."""
    for number, callback in enumerate(CALLBACKS):
        with case(callback):
            _check_a_pool_refuses_values_of_an_earlier_batch(tmp_path / str(number), callback)


def _check_a_pool_refuses_values_of_an_earlier_batch(tmp_path: Path, callback: Any) -> None:
    store, recorder = recorded_pool(tmp_path, (2, 9), 1, step_callback=callback)
    with recorder:
        drive(recorder, 0)
        drive(recorder, 0)
        recorder.log([0], value=[2])
        drive(recorder, 1)
        recorder.log([0], value=[2])  # again: the row has it
        with pytest.raises(el.errors.RecorderStateError, match=r"environments \[0\].*next recv"):
            recorder.log([0], other=[1])
        with pytest.warns(RuntimeWarning, match=r"environments \[0\]") as caught:
            recorder.log([0, 1], other=[1, 2])
        assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
        recorder.send(PUSHES[:1], np.array([0]))
        with pytest.raises(el.errors.RecorderStateError, match=r"environments \[0\]"):
            recorder.log([0], other=[3])
        recorder.recv()
        drive(recorder, 0)
        drive(recorder, 1)
    assert values(store, 0) == [[0, 1, 2], [0, None]]
    assert values(store, 1) == [[0, 1, None]]
    assert store.steps.collect()["policy.other"].drop_nulls().to_list() == [2]


@pytest.mark.parametrize("kind", ["vector", "pool"])
@pytest.mark.filterwarnings("error")
def test_values_of_environments_that_a_callback_ended(tmp_path: Path, kind: str) -> None:
    """Those that go on unrecorded take values for nothing; those that wait for a reset refuse them."""
    for name, changes in (("goes on", {"end": True}), ("waits", {"terminated": True})):
        options = {"step_callback": Ender(1, **changes)}
        if kind == "pool":
            store, recorder = recorded_pool(tmp_path / name, (4, 4), 2, **options)
        else:
            store, recorder = recorded(tmp_path / name, (4, 4), **options)
        with recorder:
            recorder.step(PUSHES, *([np.arange(2)] if kind == "pool" else []))
            recorder.log(value=np.array([1, 11]))
            recorder.seal()
            late = {"env_ids": [1], "value": [11]} if kind == "pool" else {"value": [1, 11]}
            recorder.log(**late)
            late = (
                {"env_ids": [1], "other": [0]} if kind == "pool" else {"mask": [False, True], "other": [0, 0]}
            )
            if name == "waits":
                with pytest.raises(el.errors.RecorderStateError, match=r"environments \[1\].*stored"):
                    recorder.log(**late)
            else:
                recorder.log(**late)
                recorder.step(PUSHES, *([np.arange(2)] if kind == "pool" else []))
        assert values(store, 1) == [[None, 1]]
        assert values(store, 0)[0][:2] == [None, 1]


@pytest.mark.parametrize(("kind", "length"), [("vector", 13), ("vector", 14), ("pool", 14), ("pool", 20)])
def test_late_values_of_episodes_longer_than_a_row_group(
    tmp_path: Path, kind: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values of the last observations stay beside them where the seal splits an episode."""
    monkeypatch.setattr(steps_file, "GROUP_ROWS", 7)
    lengths = (length, 5 if kind == "vector" else length)
    if kind == "pool":
        store, recorder = recorded_pool(tmp_path, lengths, 2)
    else:
        store, recorder = recorded(tmp_path, lengths)
    everyone = [np.arange(2)] if kind == "pool" else []
    with recorder:
        for t in range(length + 1):
            order = recorder._last_ids if kind == "pool" else np.arange(2)
            recorder.log(value=np.array([t, 10 + t])[order])
            with recorder.session.lock:
                if t % 4 == 3:
                    recorder.session.write_rows(math.inf)
            if t < length:
                recorder.step(PUSHES, *everyone)
    assert values(store, 0) == [list(range(length + 1))]
    assert values(store, 1)[0] == list(range(lengths[1] + 1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_values_of_environments_that_are_not_wanted(tmp_path: Path, mode: AutoresetMode) -> None:
    """An environment that was given up after its episode, and was reset since, takes values for nothing."""
    store, recorder = recorded(tmp_path, (2, 5), mode)
    with recorder:
        for t in range(2):
            step(recorder, t)
        recorder.discard(np.array([0]))
        recorder.flush()
        if mode is AutoresetMode.NEXT_STEP:
            recorder.step(PUSHES)
        else:
            recorder.reset(options={"reset_mask": np.array([True, False])})
            recorder.discard(np.array([0]))
            recorder.step(PUSHES)
        step(recorder, 3)
    assert values(store, 0) == [[0, 1, None]]
    assert values(store, 1) == [[0, 1, None, 3, None]]


def test_values_after_a_masked_reset(tmp_path: Path) -> None:
    """With autoreset disabled: the reset of some stores the episodes of others that have ended as well."""
    store, recorder = recorded(tmp_path, (2, 2), AutoresetMode.DISABLED)
    with recorder:
        for t in range(2):
            step(recorder, t)
        recorder.log(value=np.array([2, 12]), mask=np.array([True, False]))
        recorder.reset(options={"reset_mask": np.array([True, False])})
        with pytest.raises(el.errors.RecorderStateError, match=r"environments \[1\].*stored"):
            recorder.log(value=np.array([0, 12]), mask=np.array([False, True]))
        with pytest.warns(RuntimeWarning, match=r"environments \[1\]"):
            recorder.log(value=np.array([5, 12]))
        recorder.reset(options={"reset_mask": np.array([False, True])})
        step(recorder, 6)
    assert values(store, 0) == [[0, 1, 2], [6, None]]
    assert values(store, 1) == [[0, 1, None], [6, None]]


@pytest.mark.filterwarnings("error")
def test_values_of_agents_stay_theirs(tmp_path: Path) -> None:
    """Also where the journal was written between the last turn and the values of all agents."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        while env.agents:
            recorder.step({agent: env.action_space(agent).sample() for agent in env.agents})
        with recorder.session.lock:
            recorder.session.write_rows(math.inf)
        agents = list(recorder.episode.agents) if recorder.episode else []
        for place, agent in enumerate(agents):
            recorder.log(agent, value=place)
    (episode,) = store.refresh()
    assert len(agents) > 2
    assert [episode.agent(agent).policy["value"][-1] for agent in agents] == list(range(len(agents)))
