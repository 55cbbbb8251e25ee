"""Plain loops over PettingZoo environments that keep what came: what recordings are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import episodelake as el
from episodelake.writers.session.journal import RunJournal


@dataclass
class Lane:
    """Everything that came to one agent, in order."""

    observations: list[Any] = field(default_factory=list)
    infos: list[dict] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    terminations: list[bool] = field(default_factory=list)
    truncations: list[bool] = field(default_factory=list)
    env_steps: list[int] = field(default_factory=list)

    def saw(self, step: int, observation: Any, info: Any) -> None:
        """Keep an observation."""
        self.env_steps.append(step)
        self.observations.append(copy.deepcopy(observation))
        self.infos.append(copy.deepcopy(dict(info or {})))


Policy = Callable[[str, Any, Any], Any]


def random_policy(env: Any, seed: int) -> Policy:
    """Draws legal actions; `action_mask` of the observation or the info is heeded."""
    generators = {}

    def act(agent: str, observation: Any, info: Mapping[str, Any]) -> Any:
        if agent not in generators:
            generators[agent] = np.random.default_rng([seed, len(generators)])
        masks = observation if isinstance(observation, Mapping) else {}
        mask = masks.get("action_mask", info.get("action_mask"))
        space = env.action_space(agent)
        if mask is not None:
            return int(generators[agent].choice(np.flatnonzero(mask)))
        space.seed(int(generators[agent].integers(2**31)))
        return space.sample()

    return act


def play_parallel(env: Any, policy: Policy, seed: int, steps: int = 10_000) -> dict[str, Lane]:
    """One episode of a parallel environment."""
    lanes: dict[str, Lane] = {}
    observations, infos = env.reset(seed=seed)
    for agent, observation in observations.items():
        lanes.setdefault(agent, Lane()).saw(0, observation, infos.get(agent))
    for step in range(1, steps + 1):
        acting = list(env.agents)
        actions = {agent: policy(agent, observations[agent], infos.get(agent, {})) for agent in acting}
        for agent in acting:
            lanes[agent].actions.append(copy.deepcopy(actions[agent]))
        observations, rewards, terminations, truncations, infos = env.step(actions)
        for agent in acting:
            lanes[agent].rewards.append(rewards[agent])
            lanes[agent].terminations.append(bool(terminations[agent]))
            lanes[agent].truncations.append(bool(truncations[agent]))
        for agent in observations:
            if agent in acting or agent not in lanes:
                lanes.setdefault(agent, Lane()).saw(step, observations[agent], infos.get(agent))
        if not env.agents:
            break
    return lanes


def play_turns(env: Any, policy: Policy, seed: int, turns: int = 10_000) -> dict[str, Lane]:
    """One episode of an AEC environment, as PettingZoo's manual writes the loop."""
    lanes: dict[str, Lane] = {}
    waiting: set[str] = set()
    made = 0
    env.reset(seed=seed)
    for agent in env.agent_iter():
        observation, reward, termination, truncation, info = env.last()
        lane = lanes.setdefault(agent, Lane())
        if agent in waiting or not lane.observations:
            lane.saw(made, observation, info)
        if agent in waiting:
            lane.rewards.append(reward)
            lane.terminations.append(bool(termination))
            lane.truncations.append(bool(truncation))
            waiting.discard(agent)
        if made == turns:
            break
        if termination or truncation:
            env.step(None)
            continue
        action = policy(agent, observation, info)
        lane.actions.append(copy.deepcopy(action))
        waiting.add(agent)
        env.step(action)
        made += 1
    return lanes


def check_agents(episode: el.MultiAgentEpisode, lanes: Mapping[str, Lane]) -> None:
    """An episode holds exactly what a plain loop saw."""
    assert set(episode.agents) == set(lanes)
    for name, lane in lanes.items():
        agent = episode.agent(name)
        assert agent.length == len(lane.rewards)
        assert agent.env_steps.tolist() == lane.env_steps
        check_batch(agent.observations, lane.observations)
        check_batch(agent.actions, lane.actions)
        assert np.array_equal(agent.rewards, np.array(lane.rewards, np.float64).reshape(agent.rewards.shape))
        assert agent.terminations.tolist() == lane.terminations
        assert agent.truncations.tolist() == lane.truncations
        total = 0.0
        for reward in lane.rewards:
            total += np.float64(reward)
        assert np.array_equal(agent.episode_return, total)
        assert len(agent.infos) == len(lane.infos)
        for got, expected in zip(agent.infos, lane.infos, strict=True):
            assert got.keys() == expected.keys()
            assert all(np.array_equal(got[key], expected[key]) for key in expected)


def check_batch(batch: Any, values: list[Any]) -> None:
    """A stacked batch equals a list of single values, part by part, dtypes included."""
    if isinstance(batch, Mapping):
        for key in batch:
            check_batch(batch[key], [value[key] for value in values])
    elif isinstance(batch, list):
        assert batch == values
    else:
        assert len(batch) == len(values)
        for got, value in zip(batch, values, strict=True):
            assert np.array_equal(got, value) and got.shape == np.shape(value)
            assert not isinstance(value, np.ndarray) or got.dtype == value.dtype


def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next write to a journal fail, as on a disk that is full for a moment."""
    append = RunJournal.append

    def fail(*arguments: Any) -> None:
        monkeypatch.setattr(RunJournal, "append", append)
        raise el.errors.StoreAccessError("the disk is full")

    monkeypatch.setattr(RunJournal, "append", fail)
