"""Multi-agent episodes of the campaign: scripts, the environments that play them, what may come of them.

Two scouts and a tank, whose spaces differ. In a parallel episode the tank leaves after three steps and a
scout comes after two; in one of turns each acts in its turn, and all are done after the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv, ParallelEnv

import episodelake as el

SCOUT: tuple[Space, Space] = (Box(-1e9, 1e9, (2,), np.float32), Discrete(3))
TANK: tuple[Space, Space] = (Box(-1e9, 1e9, (3,), np.float32), Discrete(2))
TEAM_SPACES: dict[str, tuple[Space, Space]] = {"scout_0": SCOUT, "tank_0": TANK, "scout_1": SCOUT}
AGENTS = tuple(TEAM_SPACES)
#: After how many steps of a parallel episode each agent comes, and leaves if it does so before the end.
COMES = {"scout_0": 0, "tank_0": 0, "scout_1": 2}
LEAVES = {"tank_0": 3}


@dataclass(frozen=True)
class TeamScript:
    """One episode as it should become; see `Script` for what is not said here.

    Attributes:
        length: steps of the environment, 4 or more.
        turns: whether the agents take turns.
    """

    key: int
    length: int
    ending: str
    late: bool = False
    turns: bool = False
    metadata: ClassVar[dict[str, Any]] = {}
    last_metadata: ClassVar[dict[str, Any]] = {}

    def observation(self, agent: str, step: int) -> np.ndarray:
        """What an agent sees after so many steps of the environment."""
        place = AGENTS.index(agent)
        return np.array([self.key, step, place][: TEAM_SPACES[agent][0].shape[0]], np.float32)  # type: ignore

    def action(self, agent: str, step: int) -> int:
        """What it does then."""
        return (7 * self.key + step + AGENTS.index(agent)) % (2 if agent == "tank_0" else 3)

    def reward(self, agent: str, step: int) -> float:
        """What step `step`, counted from 1, brings it; sums of it are exact."""
        return self.key + (step + 3 * AGENTS.index(agent)) / 8

    def info(self, agent: str, step: int) -> dict[str, Any]:
        """What it is told after so many steps."""
        told: dict[str, Any] = {"step": step, "who": agent}
        return {**told, "late": f"{self.key}.{step}"} if self.late and step % 2 else told

    def policy(self, step: int) -> dict[str, float]:
        """What a policy says after so many steps."""
        return {"value": -step / 4}

    def flags(self, agent: str, step: int) -> tuple[bool, bool]:
        """Terminated and truncated, as a step leaves them."""
        if not self.turns and step == LEAVES.get(agent):
            return True, False
        ending = self.ending if step == self.length else ""
        return ending == "terminated", ending == "truncated"

    def natural(self, agent: str, length: int) -> list[int]:
        """At which steps of an episode of that length an agent's rows came by themselves."""
        if self.turns:
            return list(range(AGENTS.index(agent), length + 1, len(AGENTS)))
        return list(range(COMES[agent], min(length, LEAVES.get(agent, length)) + 1))

    def whole(self, agent: str, length: int) -> list[int]:
        """The same with the last row of an agent whose turn was not settled when the episode ended."""
        rows = self.natural(agent, length)
        return rows if not self.turns or length in rows else [*rows, length]

    def settled(self, length: int) -> int:
        """Steps that are in the journal when so many were made and what was recorded is journalled."""
        return length if not self.turns or length >= len(AGENTS) else 0


class Together(ParallelEnv):
    """Plays the parallel script whose key is the seed of the reset."""

    metadata: ClassVar[dict] = {"name": "together_v0"}
    possible_agents: ClassVar[list] = list(AGENTS)

    def __init__(self, scripts: dict[int, TeamScript]) -> None:
        self._scripts = scripts
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space:
        """The agent's own."""
        return TEAM_SPACES[agent][0]

    def action_space(self, agent: str) -> Space:
        """The agent's own."""
        return TEAM_SPACES[agent][1]

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Begin the episode with this key."""
        assert seed is not None
        self.script, self.t = self._scripts[seed], 0
        self.agents = [agent for agent in AGENTS if COMES[agent] == 0]
        return self._told("observation"), self._told("info")

    def _told(self, what: str) -> dict[str, Any]:
        return {agent: getattr(self.script, what)(agent, self.t) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Go one further."""
        acted, self.t = list(self.agents), self.t + 1
        self.agents = acted + [agent for agent in AGENTS if COMES[agent] == self.t]
        rewards = {agent: self.script.reward(agent, self.t) for agent in acted}
        flags = self._told("flags")
        result = (self._told("observation"), rewards, *({a: f[k] for a, f in flags.items()} for k in (0, 1)))
        infos = self._told("info")
        self.agents = [agent for agent in self.agents if not any(flags[agent])]
        return (*result, infos)


class InTurn(AECEnv):
    """Plays the script of turns whose key is the seed of the reset."""

    metadata: ClassVar[dict] = {"name": "in_turn_v0"}
    possible_agents: ClassVar[list] = list(AGENTS)

    def __init__(self, scripts: dict[int, TeamScript]) -> None:
        super().__init__()
        self._scripts = scripts

    observation_space = Together.observation_space
    action_space = Together.action_space

    def observe(self, agent: str) -> np.ndarray:
        """What the agent sees now."""
        return self.script.observation(agent, self.t)

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Begin the episode with this key."""
        assert seed is not None
        self.script, self.t = self._scripts[seed], 0
        self.agents = list(AGENTS)
        self.agent_selection = self.agents[0]
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self._tell()

    def _tell(self) -> None:
        self.rewards = {agent: self.script.reward(agent, self.t) for agent in self.agents}
        self.infos = {agent: self.script.info(agent, self.t) for agent in self.agents}
        flags = {agent: self.script.flags(agent, self.t) for agent in self.agents}
        self.terminations = {agent: each[0] for agent, each in flags.items()}
        self.truncations = {agent: each[1] for agent, each in flags.items()}

    def step(self, action: Any) -> None:
        """The turn of the selected agent."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.t += 1
        self._cumulative_rewards[agent] = 0.0
        self._tell()
        self._accumulate_rewards()
        self.agent_selection = AGENTS[self.t % len(AGENTS)]
        self._deads_step_first()


def untrue_team(episode: el.Episode, script: TeamScript) -> Iterator[str]:
    """What a multi-agent episode says that is not so; it may be shorter than its script."""
    assert isinstance(episode, el.MultiAgentEpisode)
    if episode.length > script.length:
        yield f"it has {episode.length} steps of {script.length}"
        return
    wanted = {agent: script.whole(agent, episode.length) for agent in AGENTS}
    for agent, rows in wanted.items():
        there = agent in episode.agents
        found = episode.agent(agent).env_steps.tolist() if there else []
        # Only a death may cost a turn that was not settled yet.
        least = script.natural(agent, episode.length) if episode.end_reason == "interrupted" else rows
        if found not in (rows, least):
            yield f"{agent} has rows at {found!r:.200}, expected {rows!r:.200}"
        elif there:
            yield from (f"{agent}: {fault}" for fault in _untrue_agent(episode.agent(agent), script, found))
    if strange := set(episode.agents) - set(AGENTS):
        yield f"it has the agents {strange}"


def _untrue_agent(episode: el.AgentEpisode, script: TeamScript, rows: list[int]) -> Iterator[str]:
    agent, acted, came = episode.agent_id, rows[:-1], rows[1:]
    rewards = [
        sum(script.reward(agent, step) for step in range(before + 1, after + 1))
        for before, after in zip(acted, came, strict=True)
    ]
    flags = [script.flags(agent, step) for step in came]
    wanted: dict[str, tuple[Any, Any]] = {
        "observations": (
            episode.observations.tolist(),
            [script.observation(agent, step).tolist() for step in rows],
        ),
        "actions": (episode.actions.tolist(), [script.action(agent, step) for step in acted]),
        "rewards": (episode.rewards.tolist(), rewards),
        "infos": (episode.infos, [script.info(agent, step) for step in rows]),
        "return": (episode.episode_return, sum(rewards)),
        "terminations": (episode.terminations.tolist(), [each[0] for each in flags]),
        "truncations": (episode.truncations.tolist(), [each[1] for each in flags]),
    }
    if acted:
        said = [script.policy(step)["value"] for step in acted]
        wanted["policy"] = (list(episode.policy["value"][: len(acted)]), said)
    for name, (got, expected) in wanted.items():
        if got != expected:
            yield f"{name} are {got!r:.200}, expected {expected!r:.200}"
