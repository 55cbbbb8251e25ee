"""Adapters for `episodelake.testing`: every recorder and writer of this library, and collection.

Each driver overwrites what the recorder returned and the actions that it handed over, as a caller may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

import episodelake as el
from episodelake.store.common.compatibility import AutoresetMode
from episodelake.testing import Driver, PlayedEpisode, RecorderAdapter, ScriptedEnv
from episodelake.testing.infos import ODD_INFOS
from episodelake.testing.values import overwrite, own, stack

Values = Sequence[Mapping[str, Any]]


class EnvDriver(Driver):
    """A recorder that is closed as such."""

    def __init__(self, envs: Sequence[ScriptedEnv], recorder: Any) -> None:
        self.envs, self.recorder = envs, recorder

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset all."""
        self._returned(self.recorder.reset(seed=seed, options=options))

    def close(self) -> None:
        """Close."""
        self.recorder.close()

    def _returned(self, result: Any) -> None:
        """Keep the objects that came back, and overwrite what is in them."""
        self.returned = tuple(result)
        overwrite(list(result))


# One environment, and many at a time


class SingleDriver(EnvDriver):
    """A `Recorder`."""

    def step(self) -> None:
        """Step, or reset after the end."""
        (env,) = self.envs
        if env.waiting:
            self.reset()
            return
        self.act()

    def act(self) -> None:
        """Step."""
        action = self.envs[0].action()
        self._returned(self.recorder.step(action))
        overwrite(action)

    def log(self, values: Values) -> Sequence[int]:
        """Log."""
        self.recorder.log(**values[0])
        return [0]


class Single(RecorderAdapter):
    """`store.record` of one environment."""

    name = "single"

    def make(self, envs: Sequence[ScriptedEnv]) -> Any:
        """Return what is recorded."""
        return envs[0]

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Record."""
        return SingleDriver(envs, store.record(envs[0], **options))


class WithinStep(gym.Wrapper):
    """Resets its environment within the last step, and hands the true end over beside the new beginning."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    @property
    def unwrapped(self) -> Any:
        """Itself: a wrapper that adds infos would be told from the environment by their keys."""
        return self

    def step(self, action: Any) -> Any:
        """Give the first observation of the next episode with the flags of this one."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            final = {"final_obs": own(observation), "final_info": own(info)}
            observation, told = self.env.reset()
            info = {**told, **final}
        return observation, reward, terminated, truncated, info


class SelfResettingDriver(SingleDriver):
    """A `Recorder` of an environment that resets itself."""

    def step(self) -> None:
        """Step; the action after an end is dropped."""
        self.act()


class SelfResetting(RecorderAdapter):
    """`store.record` of one environment that resets itself."""

    def __init__(self, name: str, wrap: Callable[[ScriptedEnv], Any]) -> None:
        self.name, self.wrap = name, wrap

    def make(self, envs: Sequence[ScriptedEnv]) -> Any:
        """Return what is recorded."""
        return self.wrap(envs[0])

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Record."""
        return SelfResettingDriver(envs, store.record(self.make(envs), **options))


def is_batched(info: Mapping[Any, Any]) -> bool:
    """Whether Gymnasium's batch of an info has its values unchanged."""
    space = spaces.Discrete(2)
    envs = SyncVectorEnv([lambda: ScriptedEnv(space, space, [])])
    try:
        told = VectorEnv._add_info(envs, {}, dict(info), 0)
    except (OverflowError, ValueError, TypeError):
        return False
    scalars = any(isinstance(value, np.ndarray) and not value.ndim for value in info.values())
    return all(type(key) is str for key in told) and not scalars


def batch(space: spaces.Space, values: Sequence[Any], *, raw: bool = False) -> Any:
    """Return single values as a batch; raw, with the dtype that they have."""
    if raw:
        return np.stack(list(values))
    return concatenate(space, list(values), create_empty_array(space, len(values), fn=np.zeros))


class VectorDriver(EnvDriver):
    """A `VectorRecorder`."""

    mode: AutoresetMode

    def step(self) -> None:
        """Step all, after those that ended were reset where that is not done for them."""
        ended = np.array([env.waiting for env in self.envs])
        if self.mode is AutoresetMode.DISABLED and ended.any():
            self._returned(self.recorder.reset(options={"reset_mask": ended}))
        self.act()

    def act(self) -> None:
        """Step all."""
        env = self.envs[0]
        actions = batch(env.action_space, [env.action() for env in self.envs], raw=env.raw)
        self._returned(self.recorder.step(actions))
        overwrite(actions)

    def log(self, values: Values) -> Sequence[int]:
        """Log each key for those that have it."""
        for key in dict.fromkeys(key for each in values for key in each):
            mask = np.array([key in each for each in values])
            some = next(each[key] for each in values if key in each)
            self.recorder.log(**{key: columns([each.get(key, some) for each in values])}, mask=mask)
        return range(len(values))


class RawVector(SyncVectorEnv):
    """Hands over what its environments gave, without a cast to the dtypes of the spaces."""

    def reset(self, **arguments: Any) -> Any:
        """Reset."""
        _, infos = super().reset(**arguments)
        return np.stack(list(self._env_obs)), infos

    def step(self, actions: Any) -> Any:
        """Step."""
        _, *others = super().step(actions)
        return np.stack(list(self._env_obs)), *others


def columns(values: list[Any]) -> Any:
    """Return nested values of each environment as a batch."""
    if isinstance(values[0], Mapping):
        return {key: columns([value[key] for value in values]) for key in values[0]}
    return np.stack(values) if isinstance(values[0], np.ndarray) else values


class Vector(RecorderAdapter):
    """`store.record` of a `SyncVectorEnv` in one of Gymnasium's autoreset modes."""

    lanes = 3
    faithful = False
    infos = tuple(filter(is_batched, ODD_INFOS))

    def __init__(self, mode: AutoresetMode) -> None:
        self.mode = mode
        self.name = f"vector {mode.value}"
        # The last observation is handed over by reference, after the reset that would overwrite it.
        self.reuses = mode is not AutoresetMode.SAME_STEP

    def lane_infos(self, lane: int) -> Sequence[Mapping[Any, Any]]:
        """Keep the keys of environments apart, which a batch cannot have with several types."""
        found = super().lane_infos(lane)
        return found if lane == 0 else [{f"of {lane}": info} if info else {} for info in found]

    def carries(self, info: Mapping[Any, Any]) -> bool:
        """Whether a batch has it unchanged."""
        return is_batched(info)

    def make(self, envs: Sequence[ScriptedEnv]) -> SyncVectorEnv:
        """Return the vector environment."""
        makers = [lambda env=env: env for env in envs]
        kind = RawVector if envs[0].raw else SyncVectorEnv
        # What reuses its arrays is handed over without a copy.
        vector = kind(makers, autoreset_mode=self.mode, copy=not envs[0].reuses)
        if envs[0].raw:
            vector._rewards = np.stack([env.episodes[0].rewards[0] for env in envs])
        elif hasattr(envs[0], "reward_space"):
            vector._rewards = np.zeros((len(envs), *envs[0].reward_space.shape))
        return vector

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Record."""
        driver = VectorDriver(envs, store.record(self.make(envs), **options))
        driver.mode = self.mode
        return driver


class Pool:
    """A pool of our own: environments that become ready in an order that a seed decides.

    An environment that is done is reset by its next action, which is dropped, as EnvPool does it.
    """

    def __init__(self, envs: Sequence[ScriptedEnv], batch_size: int, seed: int = 0) -> None:
        self.envs, self.batch_size, self.num_envs = list(envs), batch_size, len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.rng = np.random.default_rng(seed)
        self.ready: list[tuple[int, tuple[Any, ...]]] = []
        self.closed = 0

    def async_reset(self) -> None:
        """Reset all."""
        self.ready = []
        for index in range(self.num_envs):
            self._reset(index)

    def send(self, action: Any, env_id: Any = None) -> None:
        """Step each of the environments, or reset it if it is done."""
        ids = np.arange(self.num_envs) if env_id is None else np.asarray(env_id)
        for index, one in zip(ids.tolist(), self._singles(action, len(ids)), strict=True):
            if self.envs[index].waiting:
                self._reset(index)
            else:
                self.ready.append((index, own(self.envs[index].step(own(one)))))

    def recv(self) -> tuple[Any, ...]:
        """Return some that are ready."""
        order = self.rng.permutation(len(self.ready))[: self.batch_size].tolist()
        chosen = [self.ready[place] for place in order]
        self.ready = [each for place, each in enumerate(self.ready) if place not in order]
        ids = np.array([index for index, _ in chosen], np.int32)
        results = [result for _, result in chosen]
        infos = {
            "env_id": ids,
            "elapsed_step": np.array([self.envs[index].t for index in ids], np.int32),
            **{key: np.array([result[4][key] for result in results]) for key in results[0][4]},
        }
        raw = self.envs[0].raw
        observations = batch(self.observation_space, [result[0] for result in results], raw=raw)
        rewards = np.array([result[1] for result in results], None if raw else np.float64)
        return observations, rewards, *(np.array([r[k] for r in results], bool) for k in (2, 3)), infos

    def step(self, action: Any, env_id: Any = None) -> tuple[Any, ...]:
        """Send and receive."""
        self.send(action, env_id)
        return self.recv()

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1

    def _reset(self, index: int) -> None:
        env = self.envs[index]
        observation, info = env.reset()
        shape = getattr(env, "reward_space", spaces.Box(0, 1, ())).shape
        self.ready.append((index, (own(observation), np.zeros(shape), False, False, own(info))))

    def _singles(self, actions: Any, count: int) -> list[Any]:
        if isinstance(self.action_space, spaces.Box):
            return list(actions)
        return list(iterate(batch_space(self.action_space, count), actions))


class PoolDriver(EnvDriver):
    """A `PoolRecorder`, asked for one batch at a time."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset all and receive the first batch."""
        self._drain()
        self.recorder.async_reset()
        self._receive()

    def step(self) -> None:
        """Send actions to the last batch and receive the next."""
        self.act()
        self._receive()

    def act(self) -> None:
        """Send actions to the last batch, or to all."""
        env, ids = self.envs[0], getattr(self, "ids", np.arange(len(self.envs)))
        actions = batch(env.action_space, [self.envs[index].action() for index in ids], raw=env.raw)
        self.recorder.send(actions, ids)
        overwrite(actions)

    def log(self, values: Values) -> Sequence[int]:
        """Log each key for those of the last batch that have it."""
        for key in dict.fromkeys(key for index in self.ids for key in values[index]):
            ids = [index for index in self.ids.tolist() if key in values[index]]
            self.recorder.log(ids, **{key: columns([values[index][key] for index in ids])})
        return self.ids.tolist()

    def close(self) -> None:
        """Receive what is in flight, and close."""
        self._drain()
        super().close()

    def _drain(self) -> None:
        while self.recorder.pool.ready and self.recorder.whole and not self.recorder.session.closed:
            self._receive()

    def _receive(self) -> None:
        result = self.recorder.recv()
        self.ids = result[-1]["env_id"].copy()
        self._returned(result)


class PoolOf(RecorderAdapter):
    """`store.record` of a pool, two of three environments at a time."""

    name = "pool"
    lanes = 3
    faithful = False
    infos = tuple({"step": t, "share": t / 4, "pair": np.array([t, -t])} for t in range(50))

    def __init__(self, batch_size: int = 2) -> None:
        self.batch_size = batch_size

    def carries(self, info: Mapping[Any, Any]) -> bool:
        """Whether the array of a batch has it unchanged."""
        return all(isinstance(value, int | float | str | np.ndarray) for value in info.values()) and not any(
            isinstance(value, int) and abs(value) >= 2**63 for value in info.values()
        )

    def kept_infos(self, rollout: PlayedEpisode, lane: int) -> list[Mapping[Any, Any]]:
        """Add what the pool says of each row."""
        rows = enumerate(rollout.infos)
        return [{"env_id": np.int32(lane), "elapsed_step": np.int32(t), **info} for t, info in rows]

    def make(self, envs: Sequence[ScriptedEnv]) -> Pool:
        """Return the pool."""
        return Pool(envs, self.batch_size)

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Record."""
        return PoolDriver(envs, store.record(self.make(envs), **options))


# Several agents


class Agents:
    """One scripted environment for each agent, in the form that PettingZoo's environments have."""

    metadata: ClassVar[dict[str, Any]] = {"name": "agents_v0", "is_parallelizable": True}

    def __init__(self, envs: Sequence[ScriptedEnv]) -> None:
        self.envs = {f"lane_{number}": env for number, env in enumerate(envs)}
        self.possible_agents = list(self.envs)
        self.agents: list[str] = []
        self.closed = 0

    @property
    def unwrapped(self) -> Any:
        """Itself."""
        return self

    def observation_space(self, agent: str) -> spaces.Space:
        """The agent's own."""
        return self.envs[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space:
        """The agent's own."""
        return self.envs[agent].action_space

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


class Together(Agents):
    """All agents act at once; those whose episode has ended leave."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Reset all."""
        self.agents = list(self.envs)
        results = {agent: env.reset(seed=seed, options=options) for agent, env in self.envs.items()}
        return {a: result[0] for a, result in results.items()}, {a: r[1] for a, r in results.items()}

    def step(self, actions: dict[str, Any]) -> tuple[dict, ...]:
        """Step all that are there."""
        results = {agent: self.envs[agent].step(actions[agent]) for agent in self.agents}
        self.agents = [agent for agent in self.agents if not self.envs[agent].waiting]
        return tuple({agent: result[part] for agent, result in results.items()} for part in range(5))


class InTurns(Agents):
    """Agents take turns; each is paid for its own turns only."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset all."""
        self.agents = list(self.envs)
        results = {agent: env.reset(seed=seed, options=options) for agent, env in self.envs.items()}
        self._seen = {agent: result[0] for agent, result in results.items()}
        self.infos = {agent: result[1] for agent, result in results.items()}
        self.rewards = {agent: self._nothing(agent) for agent in self.agents}
        self._cumulative_rewards = dict(self.rewards)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.agent_selection = self.agents[0]

    def step(self, action: Any) -> None:
        """Take a turn; that of an agent whose episode has ended takes it away."""
        agent = self.agent_selection
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
            for each in (self.terminations, self.truncations, self.rewards, self._cumulative_rewards):
                each.pop(agent)
        else:
            result = self.envs[agent].step(action)
            self._seen[agent], self._cumulative_rewards[agent] = result[:2]
            self.terminations[agent], self.truncations[agent], self.infos[agent] = result[2:]
        self.agent_selection = following

    def observe(self, agent: str) -> Any:
        """Return the last observation of the agent."""
        return self._seen[agent]

    def last(self, observe: bool = True) -> tuple[Any, ...]:
        """Everything of the selected agent."""
        agent = self.agent_selection
        flags = self.terminations[agent], self.truncations[agent]
        return self._seen[agent], self._cumulative_rewards[agent], *flags, self.infos[agent]

    def agent_iter(self, max_iter: int = 2**63) -> Iterator[str]:
        """The agents in turn."""
        while self.agents:
            yield self.agent_selection

    def _nothing(self, agent: str) -> Any:
        space = getattr(self.envs[agent], "reward_space", None)
        return 0.0 if space is None else np.zeros(space.shape)


class ParallelDriver(EnvDriver):
    """A `ParallelRecorder`."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset."""
        self._returned(self.recorder.reset(seed, options))

    def step(self) -> None:
        """Step those that are there, or reset."""
        recorder = self.recorder
        if not recorder.agents:
            self.reset()
            return
        self.act()

    def act(self) -> None:
        """Step those that are there."""
        recorder = self.recorder
        actions = {agent: recorder.unwrapped.envs[agent].action() for agent in recorder.agents}
        self._returned(recorder.step(actions))
        overwrite(actions)

    def log(self, values: Values) -> Sequence[int]:
        """Log for all, those that have left included."""
        for lane, each in enumerate(values):
            self.recorder.log(f"lane_{lane}", **each)
        return range(len(values))


class TurnsDriver(ParallelDriver):
    """An `AECRecorder`; a step is a round."""

    def __init__(self, envs: Sequence[ScriptedEnv], recorder: Any) -> None:
        super().__init__(envs, recorder)
        self.logged: dict[str, Mapping[str, Any]] = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset."""
        self.recorder.reset(seed, options)

    def step(self) -> None:
        """Give each agent its turn, or reset."""
        recorder = self.recorder
        if not recorder.agents:
            self.reset()
            return
        for agent in list(recorder.agents):
            assert recorder.agent_selection == agent
            recorder.log(**self.logged.pop(agent, {}))
            _, _, terminated, truncated, _ = recorder.last()
            action = None if terminated or truncated else recorder.unwrapped.envs[agent].action()
            recorder.step(action)
            overwrite(action)

    def act(self) -> None:
        """Take a turn."""
        self.recorder.step(self.envs[0].action())

    def log(self, values: Values) -> Sequence[int]:
        """Keep the values for the turns of those that are there."""
        there = [lane for lane in range(len(values)) if f"lane_{lane}" in self.recorder.agents]
        self.logged = {f"lane_{lane}": own(dict(values[lane])) for lane in there}
        return there


class Team(RecorderAdapter):
    """`store.record` of an environment with several agents."""

    lanes = 3

    def __init__(self, name: str, make: Callable[[Sequence[ScriptedEnv]], Any], driver: Any) -> None:
        self.name, self.make, self.driver = name, make, driver

    def create(self, path: Any, env: ScriptedEnv, **options: Any) -> el.EpisodeStore:
        """Create a store of three agents of one group."""
        own_spaces = env.observation_space, env.action_space
        agents = {f"lane_{number}": own_spaces for number in range(self.lanes)}
        return el.create(path, agents=agents, **options)

    def episodes(self, store: Any, lane: int) -> list[Any]:
        """Return the agent's part of each episode that it is in."""
        whole = sorted(store, key=lambda each: (each.run_id, each.number))
        return [each.agent(f"lane_{lane}") for each in whole if f"lane_{lane}" in each.agents]

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Record."""
        return self.driver(envs, store.record(self.make(envs), **options))


# Writers


class PlainDriver(Driver):
    """Plays environments by a plain loop and keeps what came, for a writer.

    Args:
        envs: the environments.
        recorder: the writer.
    """

    def __init__(self, envs: Sequence[ScriptedEnv], recorder: Any) -> None:
        self.envs, self.recorder = envs, recorder
        self.logged: list[dict[str, Any]] = [{} for _ in envs]

    def log(self, values: Values) -> Sequence[int]:
        """Keep the values for the next step; the last observation takes none."""
        lanes = [lane for lane, env in enumerate(self.envs) if not env.waiting]
        for lane in lanes:
            self.logged[lane] = own(dict(values[lane]))
        return lanes

    def taken(self, lane: int) -> dict[str, Any]:
        """Return what was logged for an environment, once."""
        found, self.logged[lane] = self.logged[lane], {}
        return found

    def close(self) -> None:
        """Close."""
        self.recorder.close()


class StepsDriver(PlainDriver):
    """An `EpisodeWriter`, and an open episode of each environment."""

    def __init__(self, envs: Sequence[ScriptedEnv], recorder: Any) -> None:
        super().__init__(envs, recorder)
        self.open: list[Any] = [None] * len(envs)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """End what runs, and begin."""
        for lane in range(len(self.envs)):
            self._begin(lane, seed, options)

    def step(self) -> None:
        """Append a step of each, or begin its next episode."""
        for lane, env in enumerate(self.envs):
            if env.waiting:
                self._begin(lane)
                continue
            action = env.action()
            observation, reward, terminated, truncated, info = env.step(own(action))
            flags = {"terminated": terminated, "truncated": truncated}
            policy = self.taken(lane)
            self.open[lane].append(action, reward, observation, **flags, info=info, policy=policy)
            overwrite([action, observation, info, policy])

    def _begin(self, lane: int, seed: int | None = None, options: Any = None) -> None:
        env = self.envs[lane]
        if self.open[lane] is not None and env.history[-1].actions:
            self.open[lane].end()
        observation, info = env.reset(seed=seed, options=own(options))
        facts = {"seed": seed, "options": options, "env_index": lane}
        self.open[lane] = self.recorder.begin(observation, info, **facts)
        overwrite([observation, info])


class Steps(RecorderAdapter):
    """`EpisodeWriter.begin` and `append`, several episodes at a time."""

    name = "steps"
    lanes = 3
    wraps = False

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Write."""
        return StepsDriver(envs, store.writer(**options))


def play_alone(env: ScriptedEnv) -> None:
    """Play an episode by a plain loop."""
    env.reset()
    while not env.waiting:
        env.step(env.action())


def arrays(env: ScriptedEnv, rollout: PlayedEpisode) -> dict[str, Any]:
    """Return an episode as `write_episode` takes it, in arrays and lists of its own."""
    gather = _raw if env.raw else stack
    return {
        "observations": own(gather(env.observation_space, rollout.observations)),
        "actions": own(gather(env.action_space, rollout.actions)),
        "rewards": [
            own(reward) if np.size(reward) > 1 else np.ravel(reward)[0] for reward in rollout.rewards
        ],
        "terminations": np.array(rollout.terminations),
        "truncations": np.array(rollout.truncations),
        "infos": own(rollout.infos),
    }


def _raw(space: spaces.Space, values: list[Any]) -> Any:
    return np.array(values)


class WholeDriver(PlainDriver):
    """An `EpisodeWriter` that gets each episode when it has ended."""

    closed = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Write what ran, and begin."""
        for lane, env in enumerate(self.envs):
            self._write(lane)
            env.reset(seed=seed, options=own(options))

    def step(self) -> None:
        """Take a step of each, or write its episode and begin the next."""
        for lane, env in enumerate(self.envs):
            if env.waiting or self.closed:
                self._write(lane)
                env.reset()
            else:
                env.step(env.action())

    def close(self) -> None:
        """Write what ran, and close."""
        for lane in range(len(self.envs) if not self.closed else 0):
            self._write(lane)
        self.closed = True
        self.recorder.close()

    def _write(self, lane: int) -> None:
        env = self.envs[lane]
        if not env.history or not env.history[-1].actions:
            return
        rollout = env.history[-1]
        given = arrays(env, rollout)
        facts = {"seed": rollout.seed, "options": rollout.options, "env_index": lane}
        self.recorder.write_episode(**given, **facts)
        overwrite(given)


class Whole(Steps):
    """`EpisodeWriter.write_episode`, from arrays."""

    name = "whole"

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Write."""
        return WholeDriver(envs, store.writer(**options))


class ArrowDriver(StepsDriver):
    """Gathers all in a store beside, and writes its tables with `write_episodes` when it is closed."""

    def __init__(self, envs: Sequence[ScriptedEnv], beside: el.EpisodeStore, writer: Any) -> None:
        super().__init__(envs, beside.writer())
        self.beside, self.writer = beside, writer

    def close(self) -> None:
        """Write all of it, in batches of a few rows."""
        super().close()
        if self.writer is None:
            return
        writer, self.writer = self.writer, None
        with writer:
            steps = self.beside.refresh().steps.collect().to_arrow()
            writer.write_episodes(iter(steps.to_batches(7)), episodes=self.beside.episodes.collect())


class Arrow(Steps):
    """`EpisodeWriter.write_episodes`, from Arrow data."""

    name = "arrow"
    casts = False

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Write."""
        writer = store.writer(**options)
        beside = self.create(
            store.path.parent / f"{writer.run_id} beside", envs[0], reward_shape=store.reward_shape
        )
        return ArrowDriver(envs, beside, writer)


class TeamStepsDriver(PlainDriver):
    """A `TeamWriter`, step by step."""

    team: Any = None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """End what runs, and begin."""
        if self.team is not None and self.envs[0].history[-1].actions:
            self.team.end()
        results = {f"lane_{n}": env.reset(seed=seed, options=own(options)) for n, env in enumerate(self.envs)}
        first, infos = ({agent: result[k] for agent, result in results.items()} for k in (0, 1))
        self.team = self.recorder.begin(first, infos, seed=seed, options=options)
        overwrite([first, infos])

    def step(self) -> None:
        """Append a step of all whose episode goes on; begin the next if none is left."""
        there = [lane for lane, env in enumerate(self.envs) if not env.waiting]
        if not there:
            self.reset()
            return
        actions = {f"lane_{lane}": self.envs[lane].action() for lane in there}
        results = {f"lane_{lane}": self.envs[lane].step(own(actions[f"lane_{lane}"])) for lane in there}
        parts = [{agent: result[k] for agent, result in results.items()} for k in range(5)]
        policy = {f"lane_{lane}": self.taken(lane) for lane in there}
        observations, rewards, terminations, truncations, infos = parts
        self.team.append(actions, rewards, observations, terminations, truncations, infos, policy)
        overwrite([actions, observations, infos, policy])


class TeamWholeDriver(WholeDriver):
    """A `TeamWriter` that gets each episode when it has ended."""

    def step(self) -> None:
        """Take a step of all whose episode goes on."""
        if self.closed or all(env.waiting for env in self.envs):
            self.reset()
            return
        for env in self.envs:
            if not env.waiting:
                env.step(env.action())

    def _write(self, lane: int) -> None:
        if lane or not self.envs[0].history or not self.envs[0].history[-1].actions:
            return
        given = {f"lane_{n}": arrays(env, env.history[-1]) for n, env in enumerate(self.envs)}
        first = self.envs[0].history[-1]
        self.recorder.write_episode(given, seed=first.seed, options=first.options)
        overwrite(given)


class TeamSteps(Team):
    """`TeamWriter`, by steps or by whole episodes."""

    wraps = False

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Write."""
        return self.driver(envs, store.team_writer(**options))


# Collection


class CollectDriver(EnvDriver):
    """`collect` with a recorder, one step at a call; the policy plays the script.

    The first call of `collect` begins with a reset, so a reset before it waits for it.
    """

    def __init__(self, envs: Sequence[ScriptedEnv], recorder: Any, store: el.EpisodeStore) -> None:
        super().__init__(envs, recorder)
        self.store, self.seed = store, {}
        self.logged: Any = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset, perhaps with the next step."""
        if self.envs[0].history or self.recorder.session.closed:
            super().reset(seed, options)
        else:
            self.seed = {} if seed is None else {"seed": seed}

    def step(self) -> None:
        """Collect a step, with a reset before it after the end."""
        seed, self.seed = self.seed, {}
        el.collect(self.recorder, self._act, self.store, steps=1, **seed)

    def log(self, values: Values) -> Sequence[int]:
        """Keep the values for the next step."""
        if self.envs[0].waiting:
            return []
        self.logged = own(dict(values[0]))
        return [0]

    def _act(self, observation: Any, info: Any, state: Any) -> Any:
        extras, self.logged = self.logged, {}
        return el.PolicyOutput(self.envs[0].action(), extras)


class Collect(Single):
    """`collect` in one environment."""

    name = "collect"

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Record."""
        return CollectDriver(envs, store.record(envs[0], **options), store)


class CollectVectorDriver(CollectDriver):
    """`collect` in a vector environment."""

    def log(self, values: Values) -> Sequence[int]:
        """Keep the values; None where an environment has none of a key."""
        keys = dict.fromkeys(key for each in values for key in each)
        self.logged = {key: columns(own([each.get(key) for each in values])) for key in keys}
        # Actions of a step that only resets are dropped with what belongs to them.
        return [lane for lane, env in enumerate(self.envs) if not env.history or not env.waiting]

    def _act(self, observation: Any, info: Any, state: Any) -> Any:
        actions = batch(self.envs[0].action_space, [env.action() for env in self.envs])
        extras, self.logged = self.logged, {}
        return el.PolicyOutput(actions, extras)


class CollectVector(Vector):
    """`collect` in a vector environment."""

    def open(self, store: el.EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Record."""
        return CollectVectorDriver(envs, store.record(self.make(envs), **options), store)


AUTORESET = partial(SelfResetting, "autoreset", gym.wrappers.Autoreset)
WITHIN_STEP = partial(SelfResetting, "within the step", WithinStep)
PARALLEL = partial(Team, "parallel", Together, ParallelDriver)
TURNS = partial(Team, "turns", InTurns, TurnsDriver)
TEAM_STEPS = partial(TeamSteps, "team steps", Together, TeamStepsDriver)
TEAM_WHOLE = partial(TeamSteps, "team whole", Together, TeamWholeDriver)
