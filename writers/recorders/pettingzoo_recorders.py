"""`ParallelRecorder` and `AECRecorder`: PettingZoo environments whose agents act together, or in turns.

See https://pettingzoo.farama.org/api/parallel/ for the semantics of `reset` and `step` that the first keeps,
and https://pettingzoo.farama.org/api/aec/ for those of `last` and `step` that the second keeps. A turn's
outcome is known only when its agent is selected again, so that is when its transition is recorded:

    step(action of A) ... step(action of B) ... A is selected: its observation, and the reward since
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...store.common.arguments import as_flag
from ...store.errors import RecorderStateError, SpaceMismatchError
from ..rows.agent_arrivals import LiveAgent, LiveTeam
from .env_checks import own
from .team_recorder import Seen, TeamRecorder, flags_of


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
        """Add `policy.<key>` values to the row of an agent's current observation.

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
                flags = flags_of(name, terminations, truncations)
                info = infos.get(name) or {}
                seen.append(
                    Seen(name, observations[name], info, rewards[name], *flags, staged[name], stepped=True)
                )
            elif name in observations or name in rewards:
                lacks = "no reward" if name in observations else "a reward, but no observation"
                raise SpaceMismatchError(
                    f"The step gave the agent {name!r} {lacks}. An agent that acted gets both."
                )
            elif name in self.env.agents:
                raise SpaceMismatchError(
                    f"The step gave the agent {name!r}, which acted and is still there, no observation "
                    "and no reward, so its action has no row. Let the environment repeat the agent's last "
                    "observation, with a reward of 0.0."
                )
        for name in observations if len(observations) > len(seen) else ():
            if name not in team.agents:
                flags = flags_of(name, terminations, truncations)
                info = infos.get(name) or {}
                seen.append(Seen(name, observations[name], info, rewards.get(name, 0.0), *flags))
        back = [name for name in self.env.agents if name in self._left] if self._left else ()
        if back:
            raise RecorderStateError(
                f"The agent {back[0]!r} came back into an episode that it had left. Give it another name, or "
                "end the episode."
            )
        return seen


class AECRecorder(TeamRecorder):
    """Record the episodes of one PettingZoo `AECEnv`; see `TeamRecorder` for the arguments.

    It is used like the environment: `agent_iter`, `last` and every other attribute are the environment's own.
    Each turn is one transition of its agent: from the observation at which it acted to the one at its next
    turn, with the reward that `last()` has added up in between. `step(None)` of a dead agent is no
    transition. When the episode ends, or `reset()` ends it as `cut`, the last observation of every agent is
    recorded, with the reward it got since its last turn.

    An instance belongs to one thread and one process.
    """

    api = "aec"

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Reset the environment and start an episode; a running one ends as `cut`.

        Raises:
            SpaceMismatchError: an observation does not fit its agent's space.
            RecorderStateError: the recorder is closed.
        """
        try:
            self._reset_env(seed, options)
            #: The last action of each agent whose outcome is not known yet.
            self._actions: dict[str, Any] = {}
            if self._episode is not None:
                self._look(self._episode)
        except BaseException:
            self._interrupt()
            raise

    def step(self, action: Any) -> None:
        """Take the turn of the selected agent.

        Raises:
            SpaceMismatchError: the action does not fit (the environment is not stepped), or an observation or
                reward does not; nothing of it is recorded, and the episode ends as it was.
            RecorderStateError: before the first reset, after the end of an episode, after an exception in
                `step` or `reset`, or after `close`.
        """
        team = self._team_for_step()
        if team is None:
            self.env.step(action)
            return
        agent = self.env.agent_selection
        acts = not (self.env.terminations[agent] or self.env.truncations[agent])
        kept = self._stage(team, agent, action) if acts else None
        try:
            self.env.step(action)
        except BaseException:
            # What the environment says of earlier turns now may already contain a part of this one.
            self._actions.clear()
            self._interrupt()
            raise
        try:
            if acts:
                self._actions[agent] = kept
                self._env_step += 1
            self._look(team)
        except BaseException:
            self._interrupt(record_pending=True)
            raise

    def log(self, agent: str | None = None, /, **values: Any) -> None:
        """Add `policy.<key>` values to the row of an agent's current observation.

        They stand beside the action taken there; after the agent's last turn they stand on the row of its
        last observation. Of two values for one key the later counts.

        Args:
            agent: whose; None for the agent whose turn it is.

        Raises:
            RecorderStateError: there is no episode, or no agent is to act.
            InvalidArgumentError: the episode has no such agent.
        """
        if agent is None and self._running is None and not (self._muted or self._paused):
            raise RecorderStateError("No agent is to act: name the agent to log for.")
        self._log(self.env.agent_selection if agent is None else agent, values)

    def _stage(self, team: LiveTeam, agent: str, action: Any) -> Any:
        """Return a copy of an action, checked before the environment sees it."""
        lane = team.agents.get(agent)
        if lane is None:
            # The turn was handed over without a look at it, by something that set agent_selection.
            self._record(team, [self._selected()])
            lane = team.agents[agent]
        self._rows.arrivals(1).check_action(lane, action)
        return own(action)

    def _look(self, team: LiveTeam) -> None:
        """Record what came to the agent whose turn it is now."""
        if not self.env.agents:
            try:
                self._record_pending(team)
            finally:
                self._stop()
            return
        agent = self.env.agent_selection
        if agent in self._actions or agent not in team.agents:
            self._record(team, [self._selected()])

    def _selected(self) -> Seen:
        agent = self.env.agent_selection
        observation, reward, terminated, truncated, info = self.env.last()
        return self._seen(agent, observation, reward, terminated, truncated, info)

    def _seen(
        self, agent: str, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> Seen:
        stepped = agent in self._actions
        action = self._actions.pop(agent, None)
        flags = as_flag("terminated", terminated), as_flag("truncated", truncated)
        return Seen(agent, observation, info or {}, reward, *flags, action, stepped)

    def _record_pending(self, team: LiveTeam) -> None:
        """Record what came to agents since their last turn, as far as the environment still knows them."""
        env = self.env
        agents = dict.fromkeys((*env.agents, *self._actions))
        failed: Exception | None = None
        for agent in agents:
            if agent not in env.terminations or not (agent in self._actions or agent not in team.agents):
                continue
            try:
                self._record_all(team, [self._owed(agent)])
            except Exception as error:
                # The trouble of one agent must not cost the others their turns.
                failed = failed or error
        if failed is not None:
            raise failed

    def _owed(self, agent: str) -> Seen:
        """Return what an agent would see if it were its turn."""
        env = self.env
        observation, reward = env.observe(agent), env._cumulative_rewards.get(agent, 0.0)
        flags = env.terminations.get(agent, False), env.truncations.get(agent, False)
        return self._seen(agent, observation, reward, *flags, env.infos.get(agent))

    def _finish(self) -> None:
        if self._running is None:
            super()._finish()
            return
        try:
            self._record_pending(self._running)
        finally:
            super()._finish()
