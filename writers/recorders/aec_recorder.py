"""`AECRecorder`: records PettingZoo environments in which agents take turns.

See https://pettingzoo.farama.org/api/aec/ for the semantics of `last` and `step` that it keeps. A turn's
outcome is known only when its agent is selected again, so that is when its transition is recorded:

    step(action of A) ... step(action of B) ... A is selected: its observation, and the reward since
"""

from __future__ import annotations

from typing import Any

from ...store.errors import RecorderStateError
from ..buffers.agent_arrivals import LiveTeam
from .pettingzoo_api import own
from .team_recorder import Seen, TeamRecorder


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
            self._interrupt(settle=True)
            raise

    def log(self, agent: str | None = None, /, **values: Any) -> None:
        """Add `policy.<key>` values to the row of an agent's observation in hand.

        They stand beside the action taken there; after the agent's last turn they stand on the row of its
        last observation. Of two values for one key the later counts.

        Args:
            agent: whose; None for the agent whose turn it is.

        Raises:
            RecorderStateError: there is no episode, or it is nobody's turn.
            InvalidArgumentError: the episode has no such agent.
        """
        if agent is None and self._running is None and not (self._muted or self._paused):
            raise RecorderStateError("It is nobody's turn: name the agent to log for.")
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
                self._settle(team)
            finally:
                self._stop()
            return
        agent = self.env.agent_selection
        if agent in self._actions or agent not in team.agents:
            self._record(team, [self._selected()])

    def _selected(self) -> Seen:
        agent = self.env.agent_selection
        observation, reward, terminated, truncated, info = self.env.last()
        return self._seen(agent, observation, reward, bool(terminated), bool(truncated), info)

    def _seen(
        self, agent: str, observation: Any, reward: Any, terminated: bool, truncated: bool, info: Any
    ) -> Seen:
        stepped = agent in self._actions
        action = self._actions.pop(agent, None)
        return Seen(agent, observation, info or {}, reward, terminated, truncated, action, stepped)

    def _settle(self, team: LiveTeam) -> None:
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
        flags = bool(env.terminations.get(agent, False)), bool(env.truncations.get(agent, False))
        return self._seen(agent, observation, reward, *flags, env.infos.get(agent))

    def _finish(self) -> None:
        if self._running is None:
            super()._finish()
            return
        try:
            self._settle(self._running)
        finally:
            super()._finish()
