"""Environments of PettingZoo, recorded by a `TeamRecorder`, as a batch of one: an episode at a time.

A step is one step of the environment: an action of each agent that is there, or one agent's turn.
Observations, infos, actions and what is recorded beside the actions are mappings by agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..buffers.agent_arrivals import LiveTeam
from ..recorders.callbacks import EpisodeSummary
from ..recorders.team_recorder import TeamRecorder
from .batch import Taken
from .single import SingleBatch


@dataclass(frozen=True, eq=False)
class _TeamEpisode:
    """An episode that is being recorded, as `SingleBatch` sees it.

    Attributes:
        recorder: its recorder.
        team: the episode.
    """

    recorder: TeamRecorder
    team: LiveTeam

    @property
    def length(self) -> int:
        """Steps of the environment, also those whose outcome is not recorded yet."""
        return self.recorder.env_steps if self.recorder.running is self.team else self.team.length


class _Game:
    """A recorder that resets and steps like one of a single environment."""

    def __init__(self, recorder: TeamRecorder) -> None:
        self.recorder: Any = recorder
        self._turns = recorder.api == "aec"
        self._episode: _TeamEpisode | None = None

    @property
    def running(self) -> _TeamEpisode | None:
        """The episode that the next step goes to."""
        team = self.recorder.running
        return None if team is None else self._of(team)

    @property
    def episode(self) -> _TeamEpisode | None:
        """The episode in hand."""
        team = self.recorder.episode
        return None if team is None else self._of(team)

    def _of(self, team: LiveTeam) -> _TeamEpisode:
        if self._episode is None or self._episode.team is not team:
            self._episode = _TeamEpisode(self.recorder, team)
        return self._episode

    def reset(self, **arguments: Any) -> tuple[Any, Any]:
        """Reset; return observations and infos by agent."""
        result = self.recorder.reset(**arguments)
        return self._look() if self._turns else result

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step; return what came, by agent."""
        recorder = self.recorder
        if not self._turns:
            return recorder.step(actions)
        env = recorder.env
        recorder.step(actions.get(env.agent_selection))
        outcome = dict(env.rewards), dict(env.terminations), dict(env.truncations)
        observation, info = self._look()
        return observation, *outcome, info

    def _look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return observation and info of the agent whose turn it is; the dead are stepped with None."""
        env, team = self.recorder.env, self.recorder.running
        while team is not None and self.recorder.running is team and env.agents:
            agent = env.agent_selection
            observation, _, terminated, truncated, info = env.last()
            if not (terminated or truncated):
                return {agent: observation}, {agent: info}
            self.recorder.step(None)
        return {}, {}

    def log(self, columns: Mapping[str, Mapping[str, Any]]) -> None:
        """Record values beside the actions of agents that are recorded."""
        episode = self.recorder.running
        for agent, values in columns.items():
            lane = None if episode is None else episode.agents.get(agent)
            if values and lane is not None and not lane.gone:
                self.recorder.log(agent, **values)


class TeamBatch(SingleBatch):
    """Steps a recorder of an environment of PettingZoo, and resets it where an episode has ended."""

    def __init__(self, recorder: TeamRecorder) -> None:
        self._game = _Game(recorder)
        super().__init__(cast(Any, self._game))

    def step(self, action: Any, columns: Mapping[str, Any]) -> Taken:
        """Take one step of the environment."""
        game, live = self._game, cast(_TeamEpisode, self._live)
        before = live.length
        game.log(columns)
        self.observation, reward, terminated, truncated, self.info = game.step(action)
        ended: Sequence[Any] = ()
        running = game.running
        if running is not live:
            ended = (game.recorder.summary(live.team),) if live.length else ()
            # A step callback may have begun the next episode already.
            self._live = cast(Any, running)
            self._beginning = running is not None
        return Taken(live.length - before, ended, reward, terminated, truncated)

    def summaries(self, ended: Any) -> list[EpisodeSummary]:
        """Return the recorder's records of ended episodes."""
        return list(ended)
