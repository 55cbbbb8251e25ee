"""`record_infos`: which infos every recorder stores, against those of a full recording."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import episodelake as el
from agent_environments import Comings, Turns
from nasty_environments import SmallEnv
from scripted_environment import MODES, Scripted, assert_same_value, by_place, tables
from test_pool_recorder import Pool, play

CHOICES = [True, False, ("speed", "deep"), {"_private"}, ["no such key"], ()]
pytestmark = pytest.mark.filterwarnings("ignore:record_infos")
SCRIPTED: Any = Scripted.observation_space, Scripted.action_space


class Untouchable:
    """An info that must not be looked at."""

    def __repr__(self) -> str:
        """Tell that somebody does."""
        raise AssertionError("An info that was not chosen was copied.")

    __str__ = __reduce_ex__ = __deepcopy__ = __repr__  # type: ignore[assignment]


class Telling(SmallEnv):
    """Tells an info that must not be looked at beside another."""

    def tell(self) -> dict[str, Any]:
        """Tell both."""
        return {"big": Untouchable(), "cost": self.t}


def chosen(info: dict[Any, Any], choice: Any) -> dict[Any, Any]:
    """Return the entries that a choice leaves."""
    if choice is True:
        return info
    return {key: value for key, value in info.items() if choice and key in choice}


def assert_chosen(store: el.EpisodeStore, everything: el.EpisodeStore, choice: Any) -> None:
    """The infos are the chosen ones of a full recording; no other column is there."""
    some, full = list(store.refresh()), list(everything.refresh())
    assert [each.length for each in some] == [each.length for each in full] != []
    kept: set[str] = set()
    for ours, theirs in zip(some, full, strict=True):
        assert np.array_equal(ours.rewards, theirs.rewards)
        for mine, true in zip(ours.infos, theirs.infos, strict=True):
            assert_same_value(mine, chosen(true, choice))
            kept.update(map(str, mine))
    names = store.steps.collect_schema().names()
    assert {name.split(".")[1] for name in names if name.startswith("info.")} == kept


def pair(folder: Path, *source: Any) -> list[el.EpisodeStore]:
    """Create two stores of the same spaces."""
    arguments = (
        {} if len(source) == 1 else dict(zip(("observation_space", "action_space"), source, strict=True))
    )
    env = source[:1] if len(source) == 1 else ()
    return [el.create(folder / name, *env, **arguments) for name in ("some", "all")]


@pytest.mark.parametrize("choice", CHOICES)
def test_single_environments_store_the_chosen_infos(tmp_path: Path, choice: Any) -> None:
    """The caller gets the environment's own infos, the store the chosen ones."""
    some, everything = pair(tmp_path, *SCRIPTED)
    actions = tables(1, 40, 1)[:, 0]
    for store, keys in ((some, choice), (everything, True)):
        env = Scripted()
        told: list[Any] = []
        private = env._info
        env._info = lambda private=private, told=told: told.append(private()) or told[-1]
        with store.record(env, record_infos=keys) as recorder:
            assert recorder.reset(seed=3)[1] is told[-1]
            for action in actions.tolist():
                *_, terminated, truncated, info = recorder.step(action)
                assert info is told[-1]
                if terminated or truncated:
                    recorder.reset()
    assert_chosen(some, everything, choice)


@pytest.mark.sample(12)
@pytest.mark.parametrize("seen", [False, True], ids=["alone", "with a callback"])
@pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])
@pytest.mark.parametrize("choice", CHOICES)
def test_vector_environments_store_the_chosen_infos(
    tmp_path: Path, choice: Any, mode: AutoresetMode, seen: bool
) -> None:
    """In every autoreset mode, whatever masks stand beside the infos."""
    some, everything = pair(tmp_path, *SCRIPTED)
    shown: list[list[Any]] = []
    for store, keys in ((some, choice), (everything, True)):
        envs = SyncVectorEnv([Scripted] * 3, autoreset_mode=mode)
        shown.append([])
        see = (lambda step, to=shown[-1]: to.append(dict(step.info))) if seen else None
        with store.record(envs, record_infos=keys, step_callback=see) as recorder:
            recorder.reset(seed=3)
            for actions in tables(2, 30, 3):
                _, _, terminated, truncated, _ = recorder.step(actions)
                done = terminated | truncated
                if mode is AutoresetMode.DISABLED and done.any():
                    recorder.reset(options={"reset_mask": done})
    assert_chosen(some, everything, choice)
    # A step callback sees all of them.
    assert len(shown[0]) == len(shown[1])
    for ours, theirs in zip(*shown, strict=True):
        assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("choice", [True, False, ("t", "env_id"), "elapsed_step"[:0]])
def test_pools_store_the_chosen_infos(tmp_path: Path, choice: Any) -> None:
    """What a pool says of its batches is read, whether it is stored or not."""
    envs: list[gym.Env] = [SmallEnv(length) for length in (3, 1, 4)]
    some, everything = pair(tmp_path, envs[0])
    refused: Any = Pool(envs, 2)
    if isinstance(choice, str):
        with pytest.raises(el.errors.InvalidArgumentError, match="record_infos=''"):
            some.record(refused, record_infos=choice)
        return
    for store, keys in ((some, choice), (everything, True)):
        ready: Any = Pool([SmallEnv(length) for length in (3, 1, 4)], 2)
        with store.record(ready, record_infos=keys) as pool:
            pool.async_reset()
            play(pool, 25, {index: [] for index in range(3)})
    assert_chosen(some, everything, choice)


@pytest.mark.parametrize("choice", [True, False, ("mask",), ("height", "turn")])
@pytest.mark.parametrize("make", [Comings, Turns])
def test_agents_store_the_chosen_infos(tmp_path: Path, make: Any, choice: Any) -> None:
    """The choice holds for all agents."""
    env: Any
    some, everything = pair(tmp_path, make())
    for store, keys in ((some, choice), (everything, True)):
        with store.record(make(), record_infos=keys) as env:
            env.reset(seed=5)
            for agent in list(env.possible_agents):
                env.action_space(agent).seed(1)
            while env.agents:
                if make is Comings:
                    env.step({agent: env.action_space(agent).sample() for agent in env.agents})
                else:
                    gone = env.last()[2] or env.last()[3]
                    env.step(None if gone else env.action_space(env.agent_selection).sample())
    (ours,), (theirs,) = some.refresh(), everything.refresh()
    for agent in theirs.agents:
        for mine, true in zip(ours.agent(agent).infos, theirs.agent(agent).infos, strict=True):
            assert_same_value(mine, chosen(true, choice))


def make_scripted() -> gym.Env:
    """An environment of a worker."""
    return Scripted()


def by_place_of(observation: Any, info: Any, state: Any) -> Any:
    """A policy of a worker: what to do follows from what is seen."""
    return int(by_place(observation))


@pytest.mark.further
@pytest.mark.parametrize("workers", [None, 2])
def test_collect_stores_the_chosen_infos(tmp_path: Path, workers: int | None) -> None:
    """`collect` hands the choice on, also to its workers."""
    some, everything = pair(tmp_path, *SCRIPTED)
    for store, keys in ((some, ["speed"]), (everything, True)):
        el.collect(
            make_scripted,
            by_place_of,
            store,
            episodes=6,
            seed=2,
            workers=workers,
            unbiased=True,
            record_infos=keys,
        )
    infos = [{tuple(each.rewards): each.infos for each in store.refresh()} for store in (some, everything)]
    assert len(infos[0]) == 6 and infos[0].keys() == infos[1].keys()
    for rewards, told in infos[0].items():
        for mine, true in zip(told, infos[1][rewards], strict=True):
            assert_same_value(mine, chosen(true, ["speed"]))


@pytest.mark.parametrize("vector", [False, True])
def test_other_infos_are_never_copied(tmp_path: Path, vector: bool) -> None:
    """An info that cannot even be shown does no harm where it is not chosen, and a callback still sees it."""
    seen: list[Any] = []
    env: Any = SyncVectorEnv([Telling, Telling]) if vector else Telling()
    store = el.create(tmp_path / "store", Telling())
    for callback in (None, lambda step: seen.append(type(step.info["big"]))):
        with store.record(env, record_infos=["cost"], step_callback=callback) as recorder:
            recorder.reset(seed=1)
            for _ in range(3):
                recorder.step(recorder.action_space.sample())
    for episode in store.refresh():
        assert [list(info) for info in episode.infos] == [["cost"]] * (episode.length + 1)
    assert set(seen) == {Untouchable}


@pytest.mark.parametrize("wrong", ["cost", None, 1, 0.5, ("cost", 3), b"cost"])
def test_a_choice_that_is_none_is_refused(tmp_path: Path, wrong: Any) -> None:
    """A single key in the place of several, and whatever is no key, before a run begins."""
    store = el.create(tmp_path / "store", SmallEnv())
    with pytest.raises(el.errors.InvalidArgumentError, match=r"expected True, False, or the keys to record"):
        store.record(SmallEnv(), record_infos=wrong)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"expected True, False, or the keys to record"):
        el.collect(SmallEnv, None, store, steps=3, workers=2, record_infos=wrong)
    assert store.refresh().runs.collect().is_empty()


@pytest.mark.parametrize("vector", [False, True])
def test_a_key_that_never_comes_is_named(tmp_path: Path, vector: bool) -> None:
    """A misspelt key gets a warning when the recorder closes; a key that comes once does not."""
    env = SyncVectorEnv([Scripted]) if vector else Scripted()
    store = el.create(tmp_path / "store", Scripted())

    def run(*keys: str) -> None:
        with store.record(env, record_infos=keys) as recorder:
            recorder.reset(seed=0)
            for _ in range(8):
                done = recorder.step(recorder.action_space.sample())[2:4]
                if not vector and any(done):
                    recorder.reset()

    with pytest.warns(RuntimeWarning, match=r"had the key 'sped'.* Did you mean speed\?"):
        run("sped", "deep")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run("speed", "deep")
