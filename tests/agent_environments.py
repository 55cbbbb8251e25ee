"""PettingZoo environments of our own: agents come late, leave early, have other spaces, share one buffer."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from pettingzoo import AECEnv, ParallelEnv

SCOUT: tuple[Space, Space] = (Box(-9, 9, (2,), np.float32), Discrete(3))
TANK: tuple[Space, Space] = (
    Dict({"view": Box(0, 255, (3, 3, 1), np.uint8), "fuel": Box(0, 9, (), np.float64)}),
    Box(-1, 1, (2,), np.float32),
)
SPACES = {"scout_0": SCOUT, "tank_0": TANK, "scout_1": SCOUT, "tank_1": TANK}
#: After how many steps of the environment each agent appears and leaves.
COMES = {"scout_0": 0, "tank_0": 0, "scout_1": 2, "tank_1": 6}
LEAVES = {"scout_0": 3, "tank_0": 7, "scout_1": 6, "tank_1": 8}


class Comings(ParallelEnv):
    """Four agents of two kinds that come and go; all observations of a kind are one buffer."""

    metadata: ClassVar[dict] = {"name": "comings_v0"}
    possible_agents: ClassVar[list] = list(SPACES)

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._scout = np.zeros(2, np.float32)
        self._view = np.zeros((3, 3, 1), np.uint8)

    def observation_space(self, agent: str) -> Space:
        """The agent's own."""
        return SPACES[agent][0]

    def action_space(self, agent: str) -> Space:
        """The agent's own."""
        return SPACES[agent][1]

    def _observation(self, agent: str) -> Any:
        number = int(agent[-1])
        if agent.startswith("scout"):
            self._scout[:] = self._step, number
            return self._scout.copy() if number else self._scout
        self._view[:] = self._step + 10 * number
        return {"view": self._view.copy() if number else self._view, "fuel": np.float64(self._step / 7)}

    def _info(self, agent: str) -> dict[str, Any]:
        found: dict[str, Any] = {"mask": np.array([1, self._step % 2, 0], np.int8)}
        return found | {"height": self._step * 0.5} if agent.startswith("tank") else found

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Begin with the agents that are there from the start."""
        self._random = np.random.default_rng(seed)
        self._step = 0
        self.agents = [agent for agent, at in COMES.items() if at == 0]
        return self._all(self._observation), self._all(self._info)

    def _all(self, get: Any) -> dict[str, Any]:
        return {agent: get(agent) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """One step; those that leave get their last observation, those that come their first."""
        self._step += 1
        acted = list(self.agents)
        self.agents = acted + [agent for agent, at in COMES.items() if at == self._step]
        rewards = {agent: float(self._random.normal() + np.sum(actions[agent])) for agent in acted}
        terminations = {agent: agent[:5] == "scout" and LEAVES[agent] == self._step for agent in acted}
        truncations = {agent: agent[:4] == "tank" and LEAVES[agent] == self._step for agent in acted}
        observations, infos = self._all(self._observation), self._all(self._info)
        self.agents = [agent for agent in self.agents if LEAVES[agent] > self._step]
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """How many steps were made, and by how many agents the next will be."""
        return np.array([self._step, len(self.agents)], np.int32)


class Turns(AECEnv):
    """Agents take turns; everyone is paid at every turn, one comes late, one leaves early."""

    metadata: ClassVar[dict] = {"name": "turns_v0", "is_parallelizable": False}
    possible_agents: ClassVar[list] = ["scout_0", "tank_0", "scout_1"]

    def __init__(self, length: int = 9) -> None:
        super().__init__()
        self._length = length

    def observation_space(self, agent: str) -> Space:
        """The agent's own."""
        return SPACES[agent][0]

    def action_space(self, agent: str) -> Space:
        """The agent's own."""
        return SPACES[agent][1]

    def observe(self, agent: str) -> Any:
        """What the agent sees after so many turns."""
        if agent.startswith("scout"):
            return np.array([self._turn, len(self.agents)], np.float32)
        return {"view": np.full((3, 3, 1), self._turn, np.uint8), "fuel": np.float64(self._turn / 7)}

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Begin with two agents."""
        self._random = np.random.default_rng(seed)
        self._turn = 0
        self.agents = ["scout_0", "tank_0"]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = "scout_0"

    def step(self, action: Any) -> None:
        """The turn of the selected agent."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._turn += 1
        self._cumulative_rewards[agent] = 0
        if self._turn == 3:
            self._join("scout_1")
        for each in self.agents:
            self.rewards[each] = float(self._random.normal())
            self.infos[each] = {"turn": self._turn}
        if self._turn == 5:
            self.terminations["tank_0"] = True
        if self._turn >= self._length:
            self.truncations = dict.fromkeys(self.agents, True)
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self._accumulate_rewards()
        self.agent_selection = following
        self._deads_step_first()

    def _join(self, agent: str) -> None:
        self.agents.append(agent)
        self._cumulative_rewards[agent] = 0.0
        self.terminations[agent] = self.truncations[agent] = False
