"""`record(observation=)`: a part of each observation is stored, and the caller sees the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import episodelake as el
from agent_environments import Comings
from nasty_environments import SameStep, SmallEnv
from pools import Pool
from strategies import same
from vector_rollouts import MODES, Maker, alone, batches, together

STATE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
PIXELS = spaces.Box(0, 255, (2, 2, 3), np.uint8)
CART = gym.make("CartPole-v1").observation_space
TWO = spaces.Dict({"word": spaces.Text(5), "pixels": PIXELS})


class Sighted(SmallEnv):
    """Observes a state and a picture."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(length)
        self.observation_space = spaces.Dict({"state": STATE, "pixels": PIXELS, "word": spaces.Text(5)})

    def look(self) -> Any:
        """Return both, the picture drawn from the environment's generator."""
        pixels = self.np_random.integers(256, size=(2, 2, 3), dtype=np.uint8)
        return {"state": np.full(3, self.t, np.float32), "pixels": pixels, "word": str(self.t)}


class SightedSameStep(Sighted, SameStep):
    """The same, which resets itself within the last step."""


def first_two(observation: Any) -> Any:
    """Return what no batch could give by the same expression."""
    return observation["state"][:2] * (1 + observation["pixels"].max() * 0)


#: Choice, the store's space, and the part by hand.
CHOICES: list[tuple[Any, spaces.Space, Any]] = [
    ("state", STATE, lambda whole: whole["state"]),
    (["word", "pixels"], TWO, lambda whole: {key: whole[key] for key in ("pixels", "word")}),
    (first_two, spaces.Box(-np.inf, np.inf, (2,), np.float32), lambda whole: whole["state"][:2]),
]


def store_of(folder: Path, space: spaces.Space, env: Any = None) -> el.EpisodeStore:
    """Return a store with a space of observations of its own."""
    action = SmallEnv().action_space if env is None else env.action_space
    return el.create(folder, observation_space=space, action_space=action)


def parts(episode: el.Episode) -> list[Any]:
    """Return the stored observations one by one."""
    values = episode.observations
    if isinstance(values, dict):
        return [{key: values[key][t] for key in values} for t in range(episode.length + 1)]
    return list(values)


def assert_parts(store: el.EpisodeStore, plain: list[Any], part: Any) -> None:
    """Fail unless the store holds the parts of what plain loops saw, with all the rest."""
    store.refresh()
    for index, rollouts in enumerate(plain):
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        assert len(own) == len(rollouts)
        for episode, rollout in zip(own, rollouts, strict=True):
            for stored, whole in zip(parts(episode), rollout.observations, strict=True):
                expected = part(whole)
                pairs = [(stored, expected)] if not isinstance(expected, dict) else [
                    (stored[key], expected[key]) for key in expected
                ]  # fmt: skip
                assert all(np.array_equal(left, right) for left, right in pairs)
            assert episode.rewards.tolist() == rollout.rewards
    assert store.verify().faults == ()


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])
def test_vector_environments_store_a_part(tmp_path: Path, mode: Any) -> None:
    """Of every choice and autoreset mode, with callback and without, the part is what plain loops see."""
    makers: list[Maker] = [lambda n=n: Sighted(n) for n in (3, 1, 4)]
    bare = SyncVectorEnv(makers, autoreset_mode=mode)
    taken = batches(bare, 9)
    plain = alone(makers, taken, mode, bare.action_space)
    theirs = together(bare, taken, mode)  # type: ignore[arg-type]
    seen: list[Any] = []
    for number, (choice, space, part) in enumerate(CHOICES):
        for callback in (None, lambda step: seen.append(step.observation)):
            store = store_of(tmp_path / f"{number}-{callback is None}", space)
            envs = SyncVectorEnv(makers, autoreset_mode=mode)
            with store.record(envs, observation=choice, step_callback=callback) as recorder:
                ours = together(recorder, taken, mode)
            assert all(same(left[0], right[0]) for left, right in zip(ours, theirs, strict=True))
            assert_parts(store, plain, part)
        assert seen and all(space.contains(value) for value in seen)
        seen.clear()


def test_worker_processes_and_pools_store_a_part(tmp_path: Path) -> None:
    """An AsyncVectorEnv and a pool give the same episodes as plain loops."""
    makers: list[Maker] = [lambda n=n: Sighted(n) for n in (3, 4)]
    envs = AsyncVectorEnv(makers)
    taken = batches(envs, 9)
    store = store_of(tmp_path / "workers", STATE)
    with store.record(envs, observation="state") as recorder:
        together(recorder, taken, AutoresetMode.NEXT_STEP)
    assert_parts(store, alone(makers, taken, AutoresetMode.NEXT_STEP, envs.action_space), CHOICES[0][2])
    store = store_of(tmp_path / "pool", CHOICES[2][1])
    pool: Any = Pool([make() for make in makers], 2)
    with store.record(pool, observation=first_two) as recorder:
        recorder.async_reset()
        for _ in range(12):
            observations, *_, infos = recorder.recv()
            assert set(observations) == {"state", "pixels", "word"}
            recorder.send(np.zeros((2, 2), np.float32), infos["env_id"])
    assert len(store.refresh()) > 4
    for episode in store:
        assert episode.observations[:, 0].tolist() == list(range(episode.length + 1))


def test_single_environments_store_a_part_and_policies_see_the_whole(tmp_path: Path) -> None:
    """`collect` gives whole observations to the policy, which decides by what is not stored."""
    for kind in (Sighted, SightedSameStep):
        for number, (choice, space, _) in enumerate(CHOICES):
            seen: list[Any] = []

            def policy(observation: Any, info: Any, state: Any, seen: list[Any] = seen) -> Any:
                seen.append(observation)
                return np.full(2, observation["pixels"].mean() / 255, np.float32)

            store = store_of(tmp_path / f"{kind.__name__}-{number}", space)
            el.collect(kind(4), policy, store, episodes=3, seed=0, observation=choice)
            assert all(set(observation) == {"state", "pixels", "word"} for observation in seen)
            assert len(store.refresh()) == 3 and len(seen) == 12
            stored = [value for episode in store for value in parts(episode)[:-1]]
            part = CHOICES[number][2]
            for left, whole in zip(stored, seen, strict=True):
                right = part(whole)
                keys = list(right) if isinstance(right, dict) else [...]
                assert all(
                    np.array_equal(left[key], right[key]) for key in keys if key is ... or key != "word"
                )
            actions = np.concatenate([episode.actions[:, 0] for episode in store])
            assert np.allclose(actions, [whole["pixels"].mean() / 255 for whole in seen])


def test_choices_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A missing key, a space without keys, a wrong part and several agents are clear errors."""
    store = store_of(tmp_path / "store", STATE)
    for env, choice, kind, words in (
        (Sighted(), "position", el.errors.InvalidArgumentError, "no key 'position'"),
        (SmallEnv(), "state", el.errors.InvalidArgumentError, "no key 'state'"),
        (Sighted(), 5, el.errors.InvalidArgumentError, "expected a function"),
        (Sighted(), [], el.errors.InvalidArgumentError, "expected a function"),
        (Sighted(), "pixels", el.errors.SpaceMismatchError, "the store's is"),
        (Sighted(), None, el.errors.SpaceMismatchError, "the store's is"),
    ):
        with pytest.raises(kind, match=words):
            store.record(env, observation=choice)  # type: ignore[arg-type]
    for env in (Sighted(), SyncVectorEnv([Sighted])):
        recorder: Any = store.record(env, observation=lambda whole: whole["pixels"])
        with recorder, pytest.raises(el.errors.SpaceMismatchError, match="observation"):
            recorder.reset(seed=0)
    assert len(store.refresh()) == 0


def test_several_agents_are_refused(tmp_path: Path) -> None:
    """Environments of PettingZoo have no single observation to choose from."""
    env: Any = Comings()
    with pytest.raises(el.errors.InvalidArgumentError, match="several"):
        el.create(tmp_path / "team", env).record(env, observation="state")


def test_environments_of_such_runs_show_whole_observations(tmp_path: Path) -> None:
    """`make_env` warns of the other space, and a replay takes an environment that shows the part."""
    env = gym.wrappers.TransformObservation(
        gym.make("CartPole-v1"),
        lambda state: {"state": state, "sign": np.sign(state)},
        spaces.Dict({"state": CART, "sign": CART}),
    )
    store = store_of(tmp_path / "store", CART, env)
    el.collect(env, None, store, random=True, episodes=1, seed=3, observation="state")
    episode = store.refresh()[0]
    shown = gym.wrappers.TransformObservation(env, lambda whole: whole["state"], CART)
    assert episode.replay(shown).same
    with pytest.raises(el.errors.SpaceMismatchError, match="same wrappers"):
        episode.replay(env)
    store = store_of(
        tmp_path / "single", spaces.Box(-np.inf, np.inf, (2,), np.float32), gym.make("CartPole-v1")
    )
    el.collect("CartPole-v1", None, store, random=True, episodes=1, observation=lambda state: state[:2])
    with pytest.warns(RuntimeWarning, match="stored a part of the observations"):
        made = store.refresh().make_env()
    assert made.observation_space == CART
    with pytest.raises(el.errors.EnvUnavailableError, match="stored a part"):
        store.make_env(strict=True)
