"""Outputs of RLlib's modules, and the environments of a `MultiAgentEnvRunner`, on their way to a recorder.

RLlib forwards the sampled actions and the other outputs of the module through a pipeline of connectors. The
last one sees them as they go to `env.step` and into RLlib's episodes, before the environments are stepped.

An agent's transition is complete when its next observation comes, as in RLlib's own episodes: until then its
action waits here and its rewards add up. See `MultiAgentEpisode.add_env_step` for the cases.
"""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import gymnasium
from gymnasium import Space, spaces
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.env.vector.vector_multi_agent_env import VectorMultiAgentEnv
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from ... import EpisodeStore
from ...errors import RecorderStateError
from ...plugin import InfoChoice, freeze_value
from ...types import AgentGroup, OpenTeam, SessionKeywords, TeamWriter

#: The policy value with an action before RLlib clipped or rescaled it.
SAMPLED_ACTION = "sampled_action"

Outputs = dict[str, Any]


class ModuleOutputs(ConnectorV2):
    """Pass-through of the pipeline, after `receive` has seen its data.

    Args:
        receive: takes the columns. None in a pipeline that RLlib has restored from a checkpoint.
    """

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        receive: Callable[[Outputs], None] | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self._receive = receive

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        """Return nothing for checkpoints: what receives the columns belongs to this process."""
        return (), {}

    def __call__(self, *, batch: Outputs, **_: Any) -> Outputs:
        """See `ConnectorV2.__call__`."""
        if self._receive is not None:
            self._receive(batch)
        return batch


def recorded_columns(batch: Outputs, chosen: Collection[str] | None) -> Outputs:
    """Return the columns to record: what the module returned, under RLlib's names.

    The actions that the module sampled are `SAMPLED_ACTION`. They are left out where they went to the
    environment as they are, because the rows have them as its actions.

    Args:
        chosen: names of columns; None for all.
    """
    columns = dict(batch)
    sampled = columns.pop(Columns.ACTIONS, None)
    if columns.pop(Columns.ACTIONS_FOR_ENV, None) is not None:
        columns[SAMPLED_ACTION] = sampled
    return {name: values for name, values in columns.items() if chosen is None or name in chosen}


def is_rescaled(space: Space) -> bool:
    """Return whether RLlib clips or rescales parts of the actions of a space."""
    if isinstance(space, spaces.Dict):
        return any(is_rescaled(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(is_rescaled(part) for part in space.spaces)
    return isinstance(space, spaces.Box)


def as_mappings(value: Any) -> Any:
    """Return nested values with tuples as mappings by index, as `policy` columns are named."""
    if isinstance(value, tuple):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        return {str(key): as_mappings(part) for key, part in value.items()}
    return value


ALL, COMMON = "__all__", "__common__"
#: The step column that marks a last observation that the environment did not give.
REPEATED = "observation_repeated"

ByAgent = Mapping[Any, Any]


def agent_spaces(envs: VectorMultiAgentEnv) -> dict[str, tuple[Space, Space]]:
    """Return the observation and action space of each possible agent, by its name as text."""
    assert envs.envs is not None
    env = envs.envs[0].unwrapped
    return {
        str(agent): (env.get_observation_space(agent), env.get_action_space(agent))
        for agent in env.possible_agents
    }


class AgentsRecording:
    """Puts a recorder around each environment of a vector; all write one run.

    Args:
        envs: the vector environment; its environments are replaced.
        store: where to.
        facts: gives the metadata of the episode that ends in an environment, by its index.
        arguments: `run`, `metadata` and `record_infos` of the run.
        options: of the session.
    """

    def __init__(
        self,
        envs: VectorMultiAgentEnv,
        store: EpisodeStore,
        facts: Callable[[int], Mapping[str, Any]],
        arguments: Mapping[str, Any],
        options: SessionKeywords,
    ) -> None:
        assert envs.envs is not None
        infos = InfoChoice.of(arguments["record_infos"])
        spaces = agent_spaces(envs)
        known = store.agent_groups
        groups = {name: known[AgentGroup.find(known, name, *pair)].name for name, pair in spaces.items()}
        self._rescaled = {name: is_rescaled(action_space) for name, (_, action_space) in spaces.items()}
        writer = store.team_writer(run=arguments["run"], metadata=arguments["metadata"], **options)
        team = _TeamRun(writer, groups, infos, facts, set(range(len(envs.envs))))
        self.envs = [RecordedAgents(env, team, index) for index, env in enumerate(envs.envs)]
        envs.envs = list(self.envs)

    def log(self, outputs: Outputs, weights_seq_no: int | None) -> None:
        """See `Recording.log`."""
        for env in self.envs:
            env.policy.clear()
        for name, column in outputs.items():
            for env, values in zip(self.envs, column, strict=True):
                for agent, value in values.items():
                    said = env.policy.setdefault(str(agent), {})
                    if weights_seq_no is not None:
                        said[WEIGHTS_SEQ_NO] = weights_seq_no
                    if name != SAMPLED_ACTION or self._rescaled.get(str(agent)):
                        said[name] = freeze_value(as_mappings(value))


class _TeamRun(NamedTuple):
    """State shared by the recorded environments of a vector; `open` has the indices that are not closed."""

    writer: TeamWriter
    groups: Mapping[str, str]
    infos: InfoChoice
    facts: Callable[[int], Mapping[str, Any]]
    open: set[int]


class _Taken(NamedTuple):
    """An action whose next observation has not come yet."""

    action: Any
    policy: Mapping[str, Any]


class RecordedAgents(gymnasium.Wrapper):
    """Records one `MultiAgentEnv`.

    Attributes:
        policy: by agent, outputs of the module for the next actions.
    """

    def __init__(self, env: gymnasium.Env, run: _TeamRun, index: int) -> None:
        super().__init__(env)
        self._run = run
        self._index = index
        self.policy: dict[str, dict[str, Any]] = {}
        self._team: OpenTeam | None = None
        self._was_reset = False
        self._forget()

    def _forget(self) -> None:
        self._taken: dict[str, _Taken] = {}
        self._rewards: dict[str, float] = {}
        self._last: dict[str, Any] = {}
        self._transitions = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset the environment and begin an episode; a running one ends as `cut`."""
        self._end()
        kept = None if options is None else freeze_value(options)
        observations, infos = self.env.reset(seed=seed, options=options)
        drawn = getattr(self.env.unwrapped, "_np_random_seed", None)
        if seed is None and not self._was_reset and isinstance(drawn, int) and drawn >= 0:
            seed = drawn
        self._was_reset = True
        first = _by_name(observations)
        self._team = self._run.writer.begin(
            first,
            self._infos(first, infos),
            seed=seed,
            options=kept,
            metadata={"env_index": self._index},
            groups=self._run.groups,
        )
        self._last = {name: copy.deepcopy(value) for name, value in first.items()}
        return observations, infos

    def step(self, action: ByAgent) -> Any:
        """Step the environment and record the transitions that it completes."""
        for name, value in _by_name(action).items():
            self._taken[name] = _Taken(copy.deepcopy(value), self.policy.pop(name, {}))
        try:
            result: Any = self.env.step(action)
            if self._team is not None:
                self._record(self._team, *result)
        except BaseException:
            self._end()
            raise
        return result

    def close(self) -> None:
        """Close the environment; the last to be closed of a vector ends the run."""
        try:
            self._end()
            self._run.open.discard(self._index)
            if not self._run.open:
                self._run.writer.close()
        finally:
            self.env.close()

    def _record(
        self,
        team: OpenTeam,
        observations: ByAgent,
        rewards: ByAgent,
        terminateds: ByAgent,
        truncateds: ByAgent,
        infos: ByAgent,
    ) -> None:
        terminated, truncated = _Flags(terminateds), _Flags(truncateds)
        for name, reward in _by_name(rewards).items():
            self._rewards[name] = self._rewards.get(name, 0.0) + (reward or 0.0)
        came = {
            name: observation
            for name, observation in _by_name(observations).items()
            # An agent that is done before it can act has no part in the episode.
            if name in self._taken or not (terminated[name] or truncated[name])
        }
        repeated = [
            name for name in self._taken if name not in came and (terminated[name] or truncated[name])
        ]
        extra: dict[str, dict[str, Any]] = {name: {REPEATED: True} for name in repeated}
        came |= {name: self._last[name] for name in repeated}
        stepped = {name: self._taken.pop(name) for name in came if name in self._taken}
        earned = {name: self._rewards.pop(name, 0.0) for name in came}
        early = [name for name in came if name not in stepped and earned[name]]
        extra |= {name: {"initial_reward": earned[name]} for name in early}
        team.append(
            {name: taken.action for name, taken in stepped.items()},
            {name: earned[name] for name in stepped},
            came,
            {name: terminated[name] for name in stepped},
            {name: truncated[name] for name in stepped},
            self._infos(came, infos),
            {name: taken.policy for name, taken in stepped.items()},
            extra,
        )
        self._transitions += len(stepped)
        self._last |= {name: copy.deepcopy(value) for name, value in came.items()}
        if terminated.all or truncated.all or not team.agents:
            self._end()

    def _infos(self, came: Mapping[str, Any], infos: ByAgent) -> dict[str, Mapping[Any, Any]]:
        """Return the infos of the agents with an observation; what all share is in that of the first one."""
        given = _by_name(infos)
        by_agent = {name: dict(given[name]) for name in came if given.get(name)}
        if came and given.get(COMMON):
            by_agent.setdefault(next(iter(came)), {})[COMMON] = given[COMMON]
        return {name: self._run.infos.chosen(info) for name, info in by_agent.items()}

    def _end(self) -> None:
        """End the running episode; what no observation followed has no row."""
        team, transitions = self._team, self._transitions
        self._team = None
        self._forget()
        if team is None or self._run.writer.session.closed:
            return
        # An episode in which no agent acted is given up.
        with contextlib.nullcontext() if transitions else contextlib.suppress(RecorderStateError):
            team.end(self._run.facts(self._index))


class _Flags:
    """One kind of flags of a step; "__all__" sets those of all agents."""

    def __init__(self, flags: ByAgent) -> None:
        self._flags = _by_name(flags)
        self.all = bool(self._flags.get(ALL, False))

    def __getitem__(self, name: str) -> bool:
        return self.all or bool(self._flags.get(name, False))


def _by_name(values: ByAgent | None) -> dict[str, Any]:
    """Return values by agent with names that are text; RLlib takes numbers too."""
    return {str(agent): value for agent, value in (values or {}).items()}
