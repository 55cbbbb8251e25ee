"""Replaying a multi-agent episode in an environment of PettingZoo, and finding the first step that differs.

The environment is played as it was recorded: all agents at once, or turn by turn. What comes to each agent is
compared as `replay` compares an episode of a single one. Used by `MultiAgentEpisode.replay`.

See https://pettingzoo.farama.org/api/parallel/ and https://pettingzoo.farama.org/api/aec/ for the loops.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium

from ...store.errors import InvalidArgumentError, SpaceMismatchError
from ...store.spaces import same_space
from ...store.spaces.codec import single_value
from ..episode_data import EpisodeData
from .comparison import Outcome
from .replay import Game, ReplayReport
from .run_envs import RunEnv

_PARALLEL = ("reset", "step", "observation_space", "action_space")
_AEC = (*_PARALLEL, "last", "agent_iter", "observe")


def replay_team(episode: EpisodeData, env: Any, rtol: float = 0.0, atol: float = 0.0) -> ReplayReport:
    """Reset an environment as the episode was, let its agents act as they did, and compare.

    Args:
        episode: of several agents.
        env: of PettingZoo; left where the episode ended, or up to 256 steps after the first difference.
        rtol, atol: as for `replay`.

    Raises:
        InvalidArgumentError: `env` is no environment of the API of PettingZoo through which the episode was
            recorded, or a tolerance is negative.
        SpaceMismatchError: an agent's spaces are not those of the store.
    """
    return team_game(episode, env, rtol, atol).finish()


def team_game(episode: EpisodeData, env: Any, rtol: float = 0.0, atol: float = 0.0) -> TeamGame:
    """Return an episode of several agents, to be played again; arguments and errors as for `replay_team`."""
    api, own = recorded_api(episode), _api(env)
    if api is not None and api != own:
        conversion = "parallel_to_aec" if api == "aec" else "aec_to_parallel"
        raise InvalidArgumentError(
            f"The episode was recorded through PettingZoo's {api} API, and {type(env).__name__} has the "
            f"{own} one. Convert it with pettingzoo.utils.{conversion}."
        )
    _check_spaces(episode, env)
    return (_Turns if own == "aec" else _Together)(episode, env, rtol, atol)


def _api(env: object) -> str:
    instance = not isinstance(env, gymnasium.Env | type)
    for api, names in (("aec", _AEC), ("parallel", _PARALLEL)):
        if instance and all(callable(getattr(env, name, None)) for name in names):
            return api
    raise InvalidArgumentError(
        f"env is {type(env).__name__}; expected an environment of PettingZoo, since the episode has several "
        "agents."
    )


def recorded_api(episode: EpisodeData) -> str | None:
    """Return the API of PettingZoo through which an episode was recorded; None if unknown."""
    kept = RunEnv.of_runs(episode._rows.snapshot).get(episode.run_id)
    api = kept and kept.part_of_spec("pettingzoo", "api")
    return api if api in ("parallel", "aec") else None


def _check_spaces(episode: EpisodeData, env: Any) -> None:
    for name, member in episode._members.items():
        schema = member._own_schema
        expected = (schema.observation_space, schema.action_space)
        try:
            given = (env.observation_space(name), env.action_space(name))
        except (KeyError, ValueError) as error:
            raise SpaceMismatchError(
                f"The environment has no agent {name!r}, as the episode has. Replay it in an environment of "
                "the same kind, with the same arguments."
            ) from error
        if not all(map(same_space, given, expected)):
            raise SpaceMismatchError(
                f"The agent {name!r} has the spaces {given} in the environment, and {expected} in the "
                "episode. Replay it in an environment of the same kind, with the same wrappers."
            )


class TeamGame(Game):
    """An episode of several agents; the base of the two loops."""

    def __init__(self, episode: EpisodeData, env: Any, rtol: float, atol: float) -> None:
        super().__init__(episode, env, episode._members, rtol, atol)
        #: By step of the environment, who had a row then, and which of its rows it was.
        self._rows: dict[int, dict[str, int]] = {}
        self._actions = episode.actions
        self._lengths = {name: member.length for name, member in episode._members.items()}
        for name, member in episode._members.items():
            for row, step in enumerate(member._moments.tolist()):
                self._rows.setdefault(step, {})[name] = row

    def _acted(self, step: int) -> dict[str, Any]:
        """Return copies of the actions taken after so many steps: an environment may write into them."""
        return {
            name: copy.deepcopy(single_value(self._actions[name], row))
            for name, row in self._rows.get(step, {}).items()
            if row < self._lengths[name]
        }


class _Together(TeamGame):
    """All agents act at once."""

    def _moves(self) -> Iterator[None]:
        """See `Game._moves`."""
        gone: set[str] = set()
        observations, _ = self._env.reset(seed=self._episode.seed, options=self._episode.options)
        for name, observation in observations.items():
            self._comparison.add(name, self.made, Outcome(observation))
        same = self._same_agents(set(observations))
        yield
        while same and self.made < self._episode.length:
            actions = self._acted(self.made)
            observations, rewards, terminations, truncations, _ = self._env.step(actions)
            self.made += 1
            there = [name for name in observations if name not in gone]
            for name in there:
                flags = bool(terminations.get(name, False)), bool(truncations.get(name, False))
                stepped = name in actions
                outcome = (rewards.get(name, 0.0), flags) if stepped else ()
                self._comparison.add(name, self.made, Outcome(observations[name], *outcome))
                if any(flags):
                    gone.add(name)
            gone |= set(there) - set(self._env.agents)
            same = self._same_agents(set(there))
            yield

    def _same_agents(self, there: set[str]) -> bool:
        expected = set(self._rows.get(self.made, {}))
        if there != expected:
            self._comparison.note(self.made, "agents", sorted(expected), sorted(there))
        return there == expected


class _Turns(TeamGame):
    """The agents take turns."""

    def _moves(self) -> Iterator[None]:
        """See `Game._moves`; ends at an unrecorded turn, such as one that a crash lost."""
        env = self._env
        self._waiting: set[str] = set()
        self._seen: set[str] = set()
        env.reset(seed=self._episode.seed, options=self._episode.options)
        self._look()
        yield
        while self.made < self._episode.length:
            turn = self._acted(self.made)
            if not turn:
                break
            selected = self._selected()
            if selected not in turn:
                self._comparison.note(self.made, "agent_selection", next(iter(turn)), selected)
                return
            env.step(turn[selected])
            self._waiting.add(selected)
            self.made += 1
            self._look()
            yield
        self._settle()

    def _selected(self) -> str | None:
        """Step dead agents away, and return the agent whose turn it is."""
        env = self._env
        while env.agents and any(self._flags(env.agent_selection)):
            env.step(None)
            self._look()
        return env.agent_selection if env.agents else None

    def _look(self) -> None:
        """Take the values that came to the agent whose turn it is."""
        if not self._env.agents:
            return
        agent = self._env.agent_selection
        if agent in self._waiting or agent not in self._seen:
            observation, reward, terminated, truncated, _ = self._env.last()
            self._came(agent, observation, reward, terminated, truncated)

    def _settle(self) -> None:
        """Take the values of the agents' last rows, where those have not come yet.

        A loop may have stepped the dead agents away or have stopped before, and what they saw may depend on
        it, so either will do.
        """
        env = self._env
        agents = dict.fromkeys((*env.agents, *self._waiting))
        owed = {
            agent: self._outcome(agent, env.observe(agent), env._cumulative_rewards.get(agent, 0.0), *flags)
            for agent, flags in ((agent, self._flags(agent)) for agent in agents if agent in env.terminations)
            if self._comparison.expects(agent, self.made)
        }
        last_seen: dict[str, Outcome] = {}
        while env.agents and any(self._flags(agent := env.agent_selection)):
            if agent in owed and agent not in last_seen:
                last_seen[agent] = self._outcome(agent, *env.last()[:4])
            env.step(None)
        for agent, played in owed.items():
            self._comparison.add_either(agent, self.made, last_seen.get(agent, played), played)

    def _flags(self, agent: str) -> tuple[bool, bool]:
        return bool(self._env.terminations[agent]), bool(self._env.truncations[agent])

    def _came(self, agent: str, observation: Any, reward: Any, terminated: bool, truncated: bool) -> None:
        played = self._outcome(agent, observation, reward, terminated, truncated)
        self._comparison.add(agent, self.made, played)
        self._waiting.discard(agent)
        self._seen.add(agent)

    def _outcome(
        self, agent: str, observation: Any, reward: Any, terminated: bool, truncated: bool
    ) -> Outcome:
        """Return a copy of the values that came to an agent; without the outcome if it has not acted."""
        flags = bool(terminated), bool(truncated)
        outcome = (copy.deepcopy(reward), flags) if agent in self._waiting else ()
        return Outcome(copy.deepcopy(observation), *outcome)
