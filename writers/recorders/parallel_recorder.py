"""`ParallelRecorder`: records PettingZoo environments in which all agents act at once.

See https://pettingzoo.farama.org/api/parallel/ for the semantics of `reset` and `step` that it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...store.errors import RecorderStateError, SpaceMismatchError
from ..buffers.agent_arrivals import LiveAgent, LiveTeam
from .pettingzoo_api import own
from .team_recorder import Seen, TeamRecorder


class ParallelRecorder(TeamRecorder):
    """Record the episodes of one PettingZoo `ParallelEnv`; see `TeamRecorder` for the arguments.

    It is used like the environment: `reset` and `step` take and return the very objects, and every other
    attribute is the environment's. An agent's rows begin with its first observation and end with its last,
    whenever it comes or leaves. The episode ends when no agent is left. `reset()` in the middle ends it as
    `cut`; `reset()` without a step stores nothing. An instance belongs to one thread and one process.
    """

    api = "parallel"

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Reset the environment and start an episode; a running one ends as `cut`.

        Raises:
            SpaceMismatchError: an agent's first observation does not fit its space.
            RecorderStateError: the recorder is closed.
        """
        self._left: set[str] = set()
        try:
            result = self._reset_env(seed, options)
            observations, infos = result
            seen = [Seen(agent, value, infos.get(agent) or {}) for agent, value in observations.items()]
            if self._episode is not None:
                self._record(self._episode, seen)
        except BaseException:
            self._interrupt()
            raise
        return result

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Step the environment and record a transition of each agent that is there.

        Actions of agents that are not there go to the environment and are not recorded.

        Raises:
            SpaceMismatchError: an action does not fit or is missing (the environment is not stepped), or what
                came back does not fit; nothing of the step is recorded, and the episode ends as it was.
            RecorderStateError: before the first reset, after the end of an episode, after an exception in
                `step` or `reset`, or after `close`; an agent came back that had left the episode.
        """
        team = self._team_for_step()
        if team is None:
            return self.env.step(actions)
        live = [agent for agent in team.agents.values() if not agent.gone]
        staged = self._stage(live, actions)
        try:
            result = self.env.step(actions)
            self._env_step += 1
            self._record(team, self._came(team, live, staged, result))
            if self._running is team:
                there = set(self.env.agents)
                for name, agent in team.agents.items():
                    if name not in there:
                        self._left.add(name)
                        agent.gone = True
                if all(agent.gone for agent in team.agents.values()):
                    self._stop()
        except BaseException:
            self._interrupt()
            raise
        return result

    def log(self, agent: str, /, **values: Any) -> None:
        """Add `policy.<key>` values to the row of an agent's observation in hand.

        They stand beside the action taken there; after the agent's last step they stand on the row of its
        last observation. Of two values for one key the later counts.

        Raises:
            RecorderStateError: there is no episode.
            InvalidArgumentError: the episode has no such agent.
        """
        self._log(agent, values)

    def _stage(self, live: list[LiveAgent], actions: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the actions of present agents, checked before the environment sees them."""
        if not isinstance(actions, Mapping):
            raise SpaceMismatchError(
                f"The actions are {type(actions).__name__}; expected a mapping of agents to actions. "
                "The environment was not stepped."
            )
        missing = [agent.agent_id for agent in live if agent.agent_id not in actions]
        if missing:
            raise SpaceMismatchError(
                f"The actions have no entry for {', '.join(missing)}; expected one for each of "
                f"{', '.join(agent.agent_id for agent in live)}. The environment was not stepped."
            )
        buffer = self._rows.arrivals(1)
        for agent in live:
            buffer.check_action(agent, actions[agent.agent_id])
        return {agent.agent_id: own(actions[agent.agent_id]) for agent in live}

    def _came(
        self, team: LiveTeam, live: list[LiveAgent], staged: Mapping[str, Any], result: tuple
    ) -> list[Seen]:
        """Return what the step brought, agent by agent: those that acted, then those that appeared."""
        observations, rewards, terminations, truncations, infos = result
        seen: list[Seen] = []
        for agent in live:
            name = agent.agent_id
            if name in observations and name in rewards:
                flags = bool(terminations.get(name, False)), bool(truncations.get(name, False))
                info = infos.get(name) or {}
                seen.append(
                    Seen(name, observations[name], info, rewards[name], *flags, staged[name], stepped=True)
                )
            elif name in observations or name in rewards:
                lacks = "no reward" if name in observations else "a reward, but no observation"
                raise SpaceMismatchError(
                    f"The step gave the agent {name!r} {lacks}. An agent that acted gets both."
                )
        for name in observations if len(observations) > len(seen) else ():
            if name not in team.agents:
                flags = bool(terminations.get(name, False)), bool(truncations.get(name, False))
                info = infos.get(name) or {}
                seen.append(Seen(name, observations[name], info, rewards.get(name, 0.0), *flags))
        back = [name for name in self.env.agents if name in self._left] if self._left else ()
        if back:
            raise RecorderStateError(
                f"The agent {back[0]!r} came back into an episode that it had left. Give it another name, or "
                "end the episode."
            )
        return seen
