"""Exceptions in the middle of recording: every recorder holds what the caller saw, and nothing else.

A caller catches whatever the environment or the recorder raises, tries to go on, is refused, and resets. The
truth is the caller's own list of what came back.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset

import episodelake as el
from agent_environments import Comings, Turns
from test_pool_recorder import Pool

ERRORS = (TimeoutError, KeyboardInterrupt)
_TURNS = itertools.cycle(ERRORS)
MISFITS: dict[str, tuple[int, Any]] = {
    "observation": (0, np.zeros(3)),
    "reward": (1, "much"),
    "info": (4, 5),
}
PLACES = ("before", "after", "render", "reset", *MISFITS)
MODES = tuple(AutoresetMode)


def alternating(text: str) -> BaseException:
    """Return an error, of another class each time."""
    return next(_TURNS)(text)


class World(gym.Env):
    """Observes (life, t), ends after `length` steps, and fails in a chosen way at chosen calls."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = spaces.Box(0, 1e6, (2,), np.float64)
    action_space = spaces.Discrete(100)

    def __init__(
        self, fails: set[int], way: str, error: Callable[[str], BaseException], length: int = 4
    ) -> None:
        self.fails, self.way, self.error, self.length = fails, way, error, length
        self.life = self.t = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin the next life; perhaps fail when it has begun."""
        self.life, self.t = self.life + 1, 0
        if self.way == "reset" and self.life in self.fails:
            raise self.error("reset")
        return self.look(), {"t": 0}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Move; perhaps fail before or after it, or give back something that does not fit."""
        self.steps += 1
        failing = self.steps in self.fails
        if failing and self.way == "before":
            raise self.error("before")
        self.t += 1
        if failing and self.way in ("after", "render"):
            self.render()
        result: list[Any] = [self.look(), float(self.t), self.t == self.length, False, {"t": self.t}]
        if failing and self.way in MISFITS:
            place, value = MISFITS[self.way]
            result[place] = value
        return result[0], result[1], result[2], result[3], result[4]

    def render(self) -> Any:
        """Fail."""
        raise self.error("render")

    def look(self) -> np.ndarray:
        """Return the observation."""
        return np.array([self.life, self.t], np.float64)


class WorldSameStep(World):
    """Resets itself within its last step."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Give the first observation of the next life with the flags of this one."""
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated:
            first, told = self.reset()
            return (
                first,
                reward,
                terminated,
                truncated,
                {**told, "final_obs": observation, "final_info": info},
            )
        return observation, reward, terminated, truncated, info


@dataclass
class Life:
    """What the caller saw of an episode."""

    observations: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    done: bool = False

    def add(self, action: Any, reward: Any, observation: Any, done: Any) -> None:
        """Add a transition."""
        self.actions.append(int(action))
        self.rewards.append(float(reward))
        self.observations.append(np.array(observation).tolist())
        self.done = bool(done)


def refused(step: Callable[[], Any]) -> None:
    """Fail unless a step is refused, again and again."""
    for _ in range(2):
        with pytest.raises(el.errors.RecorderStateError, match=r"reset\("):
            step()


def assert_saw(episodes: list[el.Episode], lives: list[Life]) -> None:
    """Fail unless these episodes are what the caller saw."""
    lives = [life for life in lives if life.actions]
    assert len(episodes) == len(lives)
    for episode, life in zip(episodes, lives, strict=True):
        assert episode.observations.tolist() == life.observations
        assert episode.actions.tolist() == life.actions
        assert episode.rewards.tolist() == life.rewards
        assert episode.end_reason == ("terminated" if life.done else "cut")


def chances(seed: int) -> tuple[set[int], Iterator[int]]:
    """At which calls something fails, and actions without end."""
    random = np.random.default_rng(seed)
    fails = set(random.choice(30, 6, replace=False).tolist())
    return fails, iter(lambda: int(random.integers(100)), None)


def persist(reset: Callable[[], Any]) -> Any:
    """Reset until it works."""
    while True:
        try:
            return reset()
        except ERRORS:
            pass


@pytest.mark.sample
@pytest.mark.parametrize("kind", ["plain", "autoreset", "same step"])
@pytest.mark.parametrize("way", PLACES)
def test_a_single_environment(tmp_path: Path, way: str, kind: str) -> None:
    """The episodes are what the caller saw, and after an exception only a reset goes on."""
    fails, actions = chances(PLACES.index(way))
    world = (WorldSameStep if kind == "same step" else World)(fails, way, alternating)
    env = Autoreset(world) if kind == "autoreset" else world
    store = el.create(tmp_path / "store", env)
    lives: list[Life] = []
    with store.record(env) as recorder:
        lives.append(Life([persist(recorder.reset)[0].tolist()]))
        for action in (next(actions) for _ in range(40)):
            life = lives[-1]
            if life.done and kind == "plain":
                refused(lambda action=action: recorder.step(action))
                lives.append(Life([persist(recorder.reset)[0].tolist()]))
                continue
            try:
                observation, reward, terminated, truncated, info = recorder.step(action)
            except (*ERRORS, el.errors.SpaceMismatchError):
                refused(lambda action=action: recorder.step(action))
                lives.append(Life([persist(recorder.reset)[0].tolist()]))
                continue
            if life.done:
                lives.append(Life([observation.tolist()]))
                continue
            done = terminated or truncated
            life.add(action, reward, info.get("final_obs", observation), done)
            if done and kind == "same step":
                lives.append(Life([observation.tolist()]))
    assert_saw(list(store.refresh()), lives)
    assert store.verify().faults == ()


@pytest.mark.sample
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", PLACES)
def test_vector_environments(tmp_path: Path, way: str, mode: AutoresetMode) -> None:
    """All episodes end where the caller last saw them, and after an exception only a reset goes on."""
    fails, actions = chances(PLACES.index(way))
    makers = [lambda: World(set(), way, alternating, 3), lambda: World(fails, way, alternating)]
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    store = el.create(tmp_path / "store", envs)
    lives: list[list[Life]] = [[], []]

    def begin(observations: np.ndarray, chosen: Any = (0, 1)) -> None:
        for env in chosen:
            lives[env].append(Life([observations[env].tolist()]))

    with store.record(envs) as recorder:
        begin(persist(recorder.reset)[0])
        for _ in range(40):
            action = np.array([next(actions), next(actions)])
            done = np.array([each[-1].done for each in lives])
            try:
                if mode is AutoresetMode.DISABLED and done.any():
                    refused(lambda action=action: recorder.step(action))
                    begin(recorder.reset(options={"reset_mask": done})[0], np.flatnonzero(done))
                    done[:] = False
                observations, rewards, terminated, _, infos = recorder.step(action)
            except (*ERRORS, el.errors.SpaceMismatchError, TypeError, ValueError, AttributeError):
                refused(lambda action=action: recorder.step(action))
                begin(persist(recorder.reset)[0])
                continue
            for env in range(2):
                if done[env]:
                    begin(observations, [env])
                    continue
                last = observations[env]
                if terminated[env] and mode is AutoresetMode.SAME_STEP:
                    last = infos["final_obs"][env]
                lives[env][-1].add(action[env], rewards[env], last, terminated[env])
                if terminated[env] and mode is AutoresetMode.SAME_STEP:
                    begin(observations, [env])
    store.refresh()
    for env in range(2):
        own = sorted((e for e in store if e.env_index == env), key=lambda e: e.number)
        assert_saw(own, lives[env])
    assert store.verify().faults == ()


@pytest.mark.parametrize("call", ["send", "recv", "observation"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_pool(tmp_path: Path, call: str, error: type[BaseException]) -> None:
    """After an exception in `send` or `recv` neither goes on until a reset, and no episode has a gap."""
    pool = Pool([World(set(), "", error, 50) for _ in range(2)], 2)
    store = el.create(tmp_path / "store", pool)
    bare = getattr(pool, "recv" if call == "observation" else call)

    def failing(*arguments: Any) -> Any:
        result = bare(*arguments)
        if call == "observation":
            return np.zeros((2, 3)), *result[1:]
        raise error("moved")

    still = np.zeros(2, np.int64)
    with store.record(pool) as recorder:
        recorder.async_reset()
        recorder.recv()
        recorder.step(still)
        setattr(pool, "recv" if call == "observation" else call, failing)
        with pytest.raises((error, el.errors.SpaceMismatchError)):
            recorder.step(still)
        setattr(pool, "recv" if call == "observation" else call, bare)
        refused(lambda: recorder.send(still))
        refused(recorder.recv)
        recorder.async_reset()
        recorder.recv()
        recorder.step(still)
        recorder.step(still)
    found = sorted(episode.observations[:, 1].tolist() for episode in store.refresh())
    assert found == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert {episode.end_reason for episode in store} == {"cut"}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", ["step", "reset"])
def test_agents_in_parallel(tmp_path: Path, place: str, error: type[BaseException]) -> None:
    """An exception after the move of all agents cuts the episode at what the caller saw."""

    class Failing(Comings):
        """Fails at its third step, or in its second reset."""

        resets = 0

        def step(self, actions: Any) -> Any:
            """Move, then perhaps raise."""
            result = super().step(actions)
            if self._step == 3 and place == "step" and self.resets == 1:
                raise error("moved")
            return result

        def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
            """Begin, then perhaps raise."""
            self.resets += 1
            result = super().reset(seed, options)
            if self.resets == 2 and place == "reset":
                raise error("moved")
            return result

    env = Failing()
    store = el.create(tmp_path / "store", env)

    def actions() -> dict[str, Any]:
        return {agent: env.action_space(agent).sample() for agent in env.agents}

    rewards: dict[str, list[float]] = {}
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        for _ in range(2):
            for agent, reward in recorder.step(actions())[1].items():
                rewards.setdefault(agent, []).append(reward)
        with pytest.raises(error):
            recorder.step(actions()) if place == "step" else recorder.reset()
        refused(lambda: recorder.step(actions()))
        recorder.reset(seed=1)
        recorder.step(actions())
    first, second = store.refresh()
    for agent, expected in rewards.items():
        found = first.agent(agent).rewards.tolist()
        assert found == expected
    assert (first.end_reason, second.length) == ("cut", 1)
    assert store.verify().faults == ()


@pytest.mark.sample(4)
@pytest.mark.parametrize("turn", [1, 2, 4, 6])
@pytest.mark.parametrize("place", ["step", "last"])
def test_agents_in_turns(tmp_path: Path, turn: int, place: str) -> None:
    """Each agent keeps the turns whose outcome it saw; nothing is read from an environment in mid-step."""

    class Failing(Turns):
        """Fails at one of its turns, when it has moved or when its agent looks."""

        failing = True

        def step(self, action: Any) -> None:
            """Move, then perhaps raise."""
            super().step(action)
            if self.failing and self._turn == turn and place == "step":
                raise alternating("moved")

        def last(self, observe: bool = True) -> Any:
            """Perhaps raise."""
            if self.failing and self._turn == turn and place == "last":
                raise alternating("asked")
            return super().last(observe)

    def play(recorder: Any, turns: int) -> dict[str, list[Any]]:
        seen: dict[str, list[Any]] = {}
        while recorder.unwrapped._turn < turns:
            agent = recorder.agent_selection
            _, reward, terminated, truncated, info = recorder.last()
            seen.setdefault(agent, []).append((reward, info.get("turn")))
            recorder.step(None if terminated or truncated else env.action_space(agent).sample())
        return seen

    env = Failing()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        with pytest.raises(ERRORS):
            play(recorder, 9)
        refused(lambda: recorder.step(0))
        env.failing = False
        recorder.reset(seed=0)
        play(recorder, 4)
    plain = Turns()
    plain.reset(seed=0)
    env = plain
    truth = play(plain, turn)
    episodes = store.refresh()
    first = episodes[0] if len(episodes) > 1 else None
    lengths = {agent: len(seen) - 1 for agent, seen in truth.items() if len(seen) > 1}
    if place == "step":
        found = {} if first is None else {a: n for a, n in first.agent_lengths.items() if n}
        assert found == lengths
        for agent in lengths:
            assert first is not None
            rewards = [reward for reward, _ in truth[agent][1:]]
            assert np.allclose(first.agent(agent).rewards, rewards)
    if first is not None:
        assert first.end_reason == "cut"
    assert store.verify().faults == ()


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_a_flag_of_a_step_callback_is_not_followed_by_silence(tmp_path: Path, flag: str) -> None:
    """A callback that sets a flag ends the episode; the next step without a reset is refused."""
    store = el.create(tmp_path / "store", World(set(), "", TimeoutError))

    def early(step: el.types.StepData) -> Any:
        return replace(step, **{flag: True}) if step.t == 2 else None

    env = World(set(), "", TimeoutError, 50)
    with store.record(env, step_callback=early) as recorder:
        recorder.reset()
        recorder.step(0)
        recorder.step(0)
        refused(lambda: recorder.step(0))
        recorder.reset()
        recorder.step(0)
    for mode in MODES:
        envs = SyncVectorEnv([lambda: World(set(), "", TimeoutError, 50)] * 2, autoreset_mode=mode)
        one = lambda step: early(step) if step.env_index else None  # noqa: E731
        with store.record(envs, step_callback=one) as recorder:
            still = np.zeros(2, np.int64)
            recorder.reset()
            recorder.step(still)
            recorder.step(still)
            refused(lambda recorder=recorder, still=still: recorder.step(still))
            if mode is AutoresetMode.DISABLED:
                recorder.reset(options={"reset_mask": np.array([False, True])})
                recorder.step(still)
    pool = Pool([World(set(), "", TimeoutError, 50)], 1)
    with store.record(pool, step_callback=early) as recorder:
        recorder.async_reset()
        recorder.recv()
        recorder.step(still[:1])
        recorder.step(still[:1])
        refused(lambda: recorder.step(still[:1]))
        recorder.async_reset()
        recorder.recv()
        recorder.step(still[:1])
    assert [e.length for e in store.refresh() if e.env_index == 0 and e.end_reason == flag] == [2, 2]
    assert sorted(e.length for e in store if e.env_index) == [1, 2, 2, 2]


def test_a_flag_for_an_agent_is_not_followed_by_silence(tmp_path: Path) -> None:
    """A callback that ends one agent early makes the next step an error, unless the environment agrees."""
    for env in (Comings(), Turns()):
        store = el.create(tmp_path / type(env).__name__, env)

        def early(step: el.types.StepData) -> Any:
            done = step.agent == "tank_0" and step.t == 1
            return replace(step, truncated=True) if done else None

        with store.record(env, step_callback=early) as recorder:
            recorder.reset(seed=0)
            with pytest.raises(el.errors.RecorderStateError, match="tank_0"):
                for _ in range(6):
                    if isinstance(env, Turns):
                        recorder.step(env.action_space(env.agent_selection).sample())
                    else:
                        recorder.step({agent: env.action_space(agent).sample() for agent in env.agents})
            recorder.reset(seed=0)
        (episode,) = store.refresh()
        assert episode.agent_lengths["tank_0"] == 1
        assert store.verify().faults == ()


@pytest.mark.sample
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_collect_goes_on_after_an_exception(tmp_path: Path, mode: AutoresetMode | None, twice: bool) -> None:
    """A call of `collect` that an environment broke leaves whole stretches; the next one begins anew."""
    fails = {5, 6} if twice else {5}

    makers = [lambda: World(fails, "after", TimeoutError, 7), lambda: World(set(), "", TimeoutError, 5)]
    env = makers[0]() if mode is None else SyncVectorEnv(makers, autoreset_mode=mode)
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        for _ in range(1 + twice):
            with pytest.raises(TimeoutError):
                el.collect(recorder, None, store, steps=30)
        el.collect(recorder, None, store, steps=30)
    store.refresh()
    for episode in store:
        assert len(set(episode.observations[:, 0].tolist())) == 1
        assert episode.observations[:, 1].tolist() == list(range(episode.length + 1))
    assert sum(map(len, store)) >= 34
    assert store.verify().faults == ()


def test_recorders_and_writers_are_neither_copied_nor_pickled(tmp_path: Path) -> None:
    """copy, deepcopy and pickle raise an error of the tree, and recording goes on as if nothing had been."""
    world = World(set(), "", TimeoutError)
    store = el.create(tmp_path / "store", world)
    agents = el.create(tmp_path / "agents", Comings())
    turns = el.create(tmp_path / "turns", Turns())
    with store.writer() as writer:
        open_episode = writer.begin(np.zeros(2))
        things: list[Any] = [
            writer,
            open_episode,
            store.record(world),
            store.record(SyncVectorEnv([lambda: World(set(), "", TimeoutError)])),
            store.record(Pool([World(set(), "", TimeoutError)], 1)),
            agents.record(Comings()),
            turns.record(Turns()),
        ]
        for thing in things:
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(el.errors.RecorderStateError, match=type(thing).__name__):
                    attempt(thing)
        for thing in things[2:]:
            thing.close()
        open_episode.append(1, 0.0, np.ones(2))
        open_episode.end()
    assert [episode.length for episode in store.refresh()] == [1]
