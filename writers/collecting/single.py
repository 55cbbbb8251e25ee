"""Environments that are a batch of one, without a batch axis: a single one, or one of PettingZoo.

A step of a PettingZoo environment is an action of each agent that is there, or one agent's turn.
Observations, infos, actions and what is recorded beside the actions are mappings by agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..recorders.callbacks import EpisodeSummary
from ..recorders.recorder import Recorder
from ..recorders.team_recorder import TeamRecorder
from ..rows.arrivals import LiveEpisode
from .goal import CollectProgressState, Resets
from .loop import Batch, Taken

_NONE: tuple[int, ...] = ()
_FIRST = (0,)


class SingleBatch(Batch):
    """Steps a recorder, and resets it where an episode has ended.

    Args:
        recorder: the recorder. What was done with it meanwhile is seen in `enter`.
    """

    size: int | None = None

    def __init__(self, recorder: Recorder) -> None:
        self.observation: Any = None
        self.info: Mapping[str, Any] = {}
        self._recorder = recorder
        self._resets = Resets()
        # The number of the episode that the next reset begins.
        self._number = 0
        # The episode that goes on, and its length when the last call ended; None if a reset comes next.
        self._live: LiveEpisode | None = None
        self._length = 0
        self._beginning = False

    def enter(self, progress: CollectProgressState, resets: Resets) -> None:
        """Begin a call; an episode goes on unless somebody else has stepped the recorder since."""
        running = self._recorder.running
        untouched = running is not None and running is self._live and self._steps_of(running) == self._length
        if resets.anew or not untouched:
            self._live = None
        if resets.anew:
            self._number = 0
        self._resets = resets

    def reset_ended(self) -> Sequence[int]:
        """Reset if an episode has ended."""
        if self._live is None:
            seed, options = self._resets.at(self._number)
            self.observation, self.info = self._reset(seed=seed, options=options)
            self._number += 1
            self._live, self._beginning = self._recorder.episode, False
            return _FIRST
        if self._beginning:
            self._beginning = False
            return _FIRST
        return _NONE

    def _steps_of(self, live: LiveEpisode) -> int:
        """Return the steps of an episode."""
        return live.length

    def _reset(self, **arguments: Any) -> tuple[Any, Any]:
        """Reset; return observations and infos."""
        return self._recorder.reset(**arguments)

    def step(self, action: Any, columns: Mapping[str, Any]) -> Taken:
        """Step the recorder."""
        recorder, live = self._recorder, self._live
        assert live is not None  # after `reset_ended`
        before = live.length
        if columns:
            recorder.log(**columns)
        self.observation, reward, terminated, truncated, self.info = recorder.step(action)
        ended: Sequence[LiveEpisode] = ()
        running = recorder.running
        if running is not live:
            ended = (live,) if live.length else ()
            # An environment that resets itself within the step has begun the next episode already.
            self._live = running
            if self._resets.per_episode and (terminated or truncated):
                self._live = None
            self._beginning = self._live is not None
        return Taken(live.length - before, ended, reward, terminated, truncated)

    def leave(self, complete: bool) -> int:
        """End a call. A single environment never has a surplus episode."""
        live = self._live
        self._length = self._steps_of(live) if live is not None else 0
        return int(self._length > 0)

    def summaries(self, ended: Any) -> list[EpisodeSummary]:
        """Return the recorder's records of ended episodes."""
        return [self._recorder.summary(episode) for episode in ended]


class TeamBatch(SingleBatch):
    """Steps a recorder of an environment of PettingZoo, and resets it where an episode has ended."""

    _recorder: Any

    def __init__(self, recorder: TeamRecorder) -> None:
        super().__init__(cast(Any, recorder))
        self._turns = recorder.api == "aec"

    def _steps_of(self, live: LiveEpisode) -> int:
        """Return the environment's steps of an episode, also those whose outcome is not recorded yet."""
        recorder = self._recorder
        return recorder.env_steps if recorder.running is live else live.length

    def _reset(self, **arguments: Any) -> tuple[Any, Any]:
        result = super()._reset(**arguments)
        return self._look() if self._turns else result

    def step(self, action: Any, columns: Mapping[str, Any]) -> Taken:
        """Take one step of the environment."""
        recorder, live = self._recorder, self._live
        assert live is not None  # after `reset_ended`
        before = self._steps_of(live)
        self._log(columns)
        self.observation, reward, terminated, truncated, self.info = self._act(action)
        steps, ended, running = self._steps_of(live), (), recorder.running
        if running is not live:
            ended = (recorder.summary(live),) if steps else ()
            # A step callback may have begun the next episode already.
            self._live, self._beginning = running, running is not None
        return Taken(steps - before, ended, reward, terminated, truncated)

    def _act(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step; return what came, by agent."""
        recorder, env = self._recorder, self._recorder.env
        if not self._turns:
            return recorder.step(actions)
        recorder.step(actions.get(env.agent_selection))
        outcome = dict(env.rewards), dict(env.terminations), dict(env.truncations)
        observation, info = self._look()
        return observation, *outcome, info

    def _look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return observation and info of the agent whose turn it is; the dead are stepped with None."""
        recorder, env = self._recorder, self._recorder.env
        team = recorder.running
        while team is not None and recorder.running is team and env.agents:
            agent = env.agent_selection
            observation, _, terminated, truncated, info = env.last()
            if not (terminated or truncated):
                return {agent: observation}, {agent: info}
            recorder.step(None)
        return {}, {}

    def _log(self, columns: Mapping[str, Mapping[str, Any]]) -> None:
        """Record values beside the actions of agents that are recorded."""
        episode = self._recorder.running
        for agent, values in columns.items():
            lane = None if episode is None else episode.agents.get(agent)
            if values and lane is not None and not lane.gone:
                self._recorder.log(agent, **values)

    def summaries(self, ended: Any) -> list[EpisodeSummary]:
        """Return the recorder's records of ended episodes."""
        return list(ended)
