"""Replaying a multi-agent episode in an environment of PettingZoo, and finding the first step that differs.

The environment is played as it was recorded: all agents at once, or turn by turn. What comes to each agent is
compared as `replay` compares an episode of a single one. Used by `MultiAgentEpisode.replay`.

See https://pettingzoo.farama.org/api/parallel/ and https://pettingzoo.farama.org/api/aec/ for the loops.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium

from ...store.batches import single_value
from ...store.errors import InvalidArgumentError, SpaceMismatchError
from .replay import BATCH, Comparison, Difference, Played, ReplayReport, check_tolerances

if TYPE_CHECKING:
    from ..agents import MultiAgentEpisode

_PARALLEL = ("reset", "step", "observation_space", "action_space")
_AEC = (*_PARALLEL, "last", "agent_iter", "observe")


def replay_team(
    episode: MultiAgentEpisode, env: Any, api: str | None, rtol: float = 0.0, atol: float = 0.0
) -> ReplayReport:
    """Reset an environment as the episode was, let its agents act as they did, and compare.

    Args:
        episode: of several agents.
        env: of PettingZoo; left where the episode ended, or up to 256 steps behind the first difference.
        api: through which of PettingZoo's APIs it was recorded: "parallel" or "aec"; None if nobody knows.
        rtol, atol: as for `replay`.

    Raises:
        InvalidArgumentError: `env` is no environment of that API, or a tolerance is negative.
        SpaceMismatchError: an agent's spaces are not those of the store.
    """
    game = TeamGame(episode, env, api, rtol, atol)
    for made in game.play():
        if made % BATCH == 0 and game.differences():
            break
    return game.report()


class TeamGame:
    """An episode of several agents, played again step by step; arguments and errors as for `replay_team`."""

    def __init__(
        self, episode: MultiAgentEpisode, env: Any, api: str | None, rtol: float = 0.0, atol: float = 0.0
    ) -> None:
        check_tolerances(rtol, atol)
        own = _api(env)
        if api is not None and api != own:
            conversion = "parallel_to_aec" if api == "aec" else "aec_to_parallel"
            raise InvalidArgumentError(
                f"The episode was recorded through PettingZoo's {api} API, and {type(env).__name__} has the "
                f"{own} one. Convert it with pettingzoo.utils.{conversion}."
            )
        _check_spaces(episode, env)
        self._episode = episode
        self._comparison = _TeamComparison(episode, rtol, atol)
        self._player = (_Turns if own == "aec" else _Together)(episode, env, self._comparison)

    def play(self) -> Iterator[int]:
        """How many steps the environment has made: 0 after its reset, and so on."""
        for _ in self._player.play():
            yield self._player.made

    def differences(self) -> list[Difference]:
        """What differs at the first step at which anything does, of what was played."""
        return self._comparison.found()

    def report(self) -> ReplayReport:
        """What came of it so far."""
        differences = self.differences()
        made = differences[0].step - 1 if differences else self._player.made
        episode = self._episode
        return ReplayReport(episode.id, episode.seed, episode.length, max(0, made), tuple(differences))


def _api(env: object) -> str:
    found = not isinstance(env, gymnasium.Env | type)
    for api, names in (("aec", _AEC), ("parallel", _PARALLEL)):
        if found and all(callable(getattr(env, name, None)) for name in names):
            return api
    raise InvalidArgumentError(
        f"env is {type(env).__name__}; expected an environment of PettingZoo, since the episode has several "
        "agents."
    )


def api_of(spec: str | None) -> str | None:
    """Through which API a run was recorded, by its `env_spec`; None if it does not say."""
    try:
        said = json.loads(spec or "{}")["pettingzoo"]["api"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return said if said in ("parallel", "aec") else None


def _check_spaces(episode: MultiAgentEpisode, env: Any) -> None:
    for name in episode.agents:
        schema = episode.agent(name).agent_schema
        expected = (schema.observation_space, schema.action_space)
        try:
            given = (env.observation_space(name), env.action_space(name))
        except (KeyError, ValueError) as error:
            raise SpaceMismatchError(
                f"The environment has no agent {name!r}, as the episode has. Replay it in an environment of "
                "the same kind, with the same arguments."
            ) from error
        if given != expected:
            raise SpaceMismatchError(
                f"The agent {name!r} has the spaces {given} in the environment, and {expected} in the "
                "episode. Replay it in an environment of the same kind, with the same wrappers."
            )


class _TeamComparison:
    """What came to the agents, compared with what had come to them."""

    def __init__(self, episode: MultiAgentEpisode, rtol: float, atol: float) -> None:
        self._members = {name: episode.agent(name) for name in episode.agents}
        self._comparisons = {
            name: Comparison(member, member.agent_schema, rtol, atol)
            for name, member in self._members.items()
        }
        self._came: dict[str, list[Played]] = {name: [] for name in self._members}
        self._compared = dict.fromkeys(self._members, 0)
        self._differences: list[Difference] = []

    def add(self, agent: str, step: int, played: Played) -> None:
        """Something came to an agent; what it has no row for is not compared."""
        if self.expects(agent, step):
            self._came[agent].append(replace(played, observation=copy.deepcopy(played.observation)))

    def add_either(self, agent: str, step: int, played: Played, other: Played) -> None:
        """One of two came to an agent; what fits its row counts."""
        self.found()
        start = self._compared[agent]
        fits = played is other or not self._comparisons[agent].compare([played], start)
        wrong = not fits and bool(self._comparisons[agent].compare([other], start))
        self.add(agent, step, played if fits or wrong else other)

    def expects(self, agent: str, step: int) -> bool:
        """Whether the next row of an agent is of that step of the environment."""
        if agent not in self._members:
            return False
        row, moments = self._compared[agent] + len(self._came[agent]), self._members[agent].env_steps
        return row < len(moments) and moments[row] == step

    def note(self, step: int, leaf: str, expected: Any, got: Any) -> None:
        """Something that is no value of one agent differs."""
        self._differences.append(Difference(step, leaf, (), expected, got, 1))

    def found(self) -> list[Difference]:
        """All differences at the first step that has any, among all that came so far."""
        for name, values in self._came.items():
            if values:
                start = self._compared[name]
                moments = self._members[name].env_steps
                for each in self._comparisons[name].compare(values, start):
                    self._differences.append(replace(each, step=int(moments[each.step]), agent=name))
                self._compared[name] += len(values)
                self._came[name] = []
        first = min((difference.step for difference in self._differences), default=0)
        return [difference for difference in self._differences if difference.step == first]


class _Player:
    """Plays an episode; the base of the two loops.

    Attributes:
        made: how many steps the environment has made.
    """

    def __init__(self, episode: MultiAgentEpisode, env: Any, comparison: _TeamComparison) -> None:
        self.made = 0
        self._episode, self._env, self._comparison = episode, env, comparison
        #: By step of the environment, who had a row then, and which of its rows it was.
        self._rows: dict[int, dict[str, int]] = {}
        self._actions = episode.actions
        self._lengths = episode.agent_lengths
        for name in episode.agents:
            for row, step in enumerate(episode.agent(name).env_steps.tolist()):
                self._rows.setdefault(step, {})[name] = row

    def play(self) -> Iterator[None]:
        """Play it, with a pause after the reset and after each step."""
        raise NotImplementedError

    def _acted(self, step: int) -> dict[str, Any]:
        """Copies of the actions taken after so many steps: an environment may write into them."""
        return {
            name: copy.deepcopy(single_value(self._actions[name], row))
            for name, row in self._rows.get(step, {}).items()
            if row < self._lengths[name]
        }


class _Together(_Player):
    """All agents act at once."""

    def play(self) -> Iterator[None]:
        """See `_Player.play`."""
        gone: set[str] = set()
        observations, _ = self._env.reset(seed=self._episode.seed, options=self._episode.options)
        for name, observation in observations.items():
            self._comparison.add(name, self.made, Played(observation))
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
                outcome = (copy.deepcopy(rewards.get(name, 0.0)), flags) if stepped else ()
                self._comparison.add(name, self.made, Played(observations[name], *outcome))
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


class _Turns(_Player):
    """The agents take turns."""

    def play(self) -> Iterator[None]:
        """See `_Player.play`; ends at a turn that nobody knows, such as one that a crash lost."""
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
        """Whose turn it is; dead agents are stepped away."""
        env = self._env
        while env.agents and any(self._flags(env.agent_selection)):
            env.step(None)
            self._look()
        return env.agent_selection if env.agents else None

    def _look(self) -> None:
        """Take what came to the agent whose turn it is."""
        if not self._env.agents:
            return
        agent = self._env.agent_selection
        if agent in self._waiting or agent not in self._seen:
            observation, reward, terminated, truncated, _ = self._env.last()
            self._came(agent, observation, reward, terminated, truncated)

    def _settle(self) -> None:
        """Take what the last rows of the agents were made of, if they have rows that have not come.

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
        told: dict[str, Played] = {}
        while env.agents and any(self._flags(agent := env.agent_selection)):
            if agent in owed and agent not in told:
                told[agent] = self._outcome(agent, *env.last()[:4])
            env.step(None)
        for agent, played in owed.items():
            self._comparison.add_either(agent, self.made, told.get(agent, played), played)

    def _flags(self, agent: str) -> tuple[bool, bool]:
        return bool(self._env.terminations[agent]), bool(self._env.truncations[agent])

    def _came(self, agent: str, observation: Any, reward: Any, terminated: bool, truncated: bool) -> None:
        played = self._outcome(agent, observation, reward, terminated, truncated)
        self._comparison.add(agent, self.made, played)
        self._waiting.discard(agent)
        self._seen.add(agent)

    def _outcome(
        self, agent: str, observation: Any, reward: Any, terminated: bool, truncated: bool
    ) -> Played:
        """A copy of what came to an agent; without the outcome if it has not acted."""
        flags = bool(terminated), bool(truncated)
        outcome = (copy.deepcopy(reward), flags) if agent in self._waiting else ()
        return Played(copy.deepcopy(observation), *outcome)
