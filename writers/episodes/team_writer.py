"""`TeamWriter`: fill a store of several agents without an environment, step by step or in whole episodes.

What one step brought to all agents goes to `AgentRows` together, as from the recorders of PettingZoo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...store.common.arguments import as_flag
from ...store.errors import InvalidArgumentError, SpaceMismatchError
from ...store.schema import OpenStore, StepSchema
from ...store.spaces.codec import single_value
from ..rows.agent_arrivals import Arrival, LiveAgent, LiveTeam
from ..rows.agent_rows import AgentRows
from ..rows.step_rows import EpisodeRow
from ..session.journal import SessionOptions
from ..session.run import RunOwner, run_header
from .episode_writer import OpenRecording
from .whole_episode import WholeEpisode

ByAgent = Mapping[str, Any]
_OWN = ("observations", "actions", "rewards", "terminations", "truncations")
_OPTIONAL = ("infos", "policy", "extra", "env_steps")


class OpenTeam(OpenRecording):
    """An episode that `TeamWriter.begin` started; several may be open at once."""

    _live: LiveTeam

    def __init__(
        self,
        writer: TeamWriter,
        live: LiveTeam,
        groups: Mapping[str, str],
    ) -> None:
        super().__init__(writer, live)
        self._record = writer.record
        self._groups = groups

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that are still there: each needs an action with the next step that it takes."""
        return tuple(name for name, agent in self._live.agents.items() if not agent.gone)

    def append(
        self,
        actions: ByAgent,
        rewards: ByAgent,
        observations: ByAgent,
        terminations: ByAgent | None = None,
        truncations: ByAgent | None = None,
        infos: ByAgent | None = None,
        policy: ByAgent | None = None,
        extra: ByAgent | None = None,
    ) -> None:
        """Add one step of the environment; all values are copied now.

        Each argument is a mapping by agent, as in PettingZoo's parallel API. An agent that acts has an
        action, a reward and an observation. An agent with an observation alone appears here. Where agents
        take turns, each turn is a step.

        Args:
            actions: taken at the agents' observations before.
            rewards: numbers, or k numbers for vector rewards.
            observations: the observations that followed, and the first ones of agents that appear.
            terminations, truncations: flags of agents that act; unset where they are missing.
            infos: came with the observations.
            policy: mappings of values beside the actions, become `policy.<key>`.
            extra: mappings, your own columns, on the rows of the observations.

        Raises:
            SpaceMismatchError: a value does not fit; nothing of the step was recorded.
            InvalidArgumentError: the mappings do not agree about who acts; nothing was recorded.
            RecorderStateError: the episode has ended.
        """
        live = self._live
        if self._ended or live.discarded or self._session.closing or not self.agents:
            self._refuse_step()
        terminations, truncations = terminations or {}, truncations or {}
        acting = set(actions)
        self._check_present(acting)
        _check_same(acting, "rewards", rewards)
        _check_within(acting, "terminations", terminations)
        _check_within(acting, "truncations", truncations)
        _check_within(acting, "policy", policy or {})
        missing = sorted(acting.difference(observations))
        if missing:
            raise InvalidArgumentError(f"The agents {missing} act, but observations has none of them.")
        silent = [name for name in observations if name in live.agents and name not in acting]
        if silent:
            raise InvalidArgumentError(
                f"observations has the agents {silent}, which do not act. Only an agent that appears has an "
                "observation without an action."
            )
        outcomes = {
            name: (
                actions[name],
                rewards[name],
                as_flag("terminations", terminations.get(name, False)),
                as_flag("truncations", truncations.get(name, False)),
            )
            for name in actions
        }
        self._record(live, live.length + 1, observations, self._groups, outcomes, infos, policy, extra)

    def _check_present(self, acting: Collection[str]) -> None:
        absent = sorted(set(acting).difference(self.agents), key=str)
        if absent:
            raise InvalidArgumentError(
                f"The agents {absent} act, but they are not there; those that are: {', '.join(self.agents)}."
            )

    def _nothing_stored(self) -> str:
        return "No agent of the episode acted: nothing was stored. Append steps first."


class TeamWriter(RunOwner[AgentRows]):
    """Write episodes of several agents; `store.team_writer()` returns one.

    An instance belongs to one thread and one process; use one writer per process.

    Args:
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        options: durability and when to flush and seal; see `SessionOptions`.

    Raises:
        InvalidArgumentError: the store is for a single agent.
        StoreAccessError: the store cannot be written.
    """

    def __init__(
        self,
        store: OpenStore,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: SessionOptions | None = None,
    ) -> None:
        self._rows = self._open_run(store, run_header(run, metadata), options, AgentRows)
        self._schema = self._session.store.schema

    def begin(
        self,
        observations: ByAgent,
        infos: ByAgent | None = None,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        extra: ByAgent | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> OpenTeam:
        """Start an episode with the first observations of the agents that are there from the beginning.

        Args:
            observations, infos, extra: by agent.
            seed, options, metadata: of the episode.
            groups: the groups of agents that the store was not created with; not needed with one group.

        Raises:
            SpaceMismatchError: an observation does not fit; no episode was started.
            InvalidArgumentError: there is no agent, or one of no known group.
            RecorderStateError: the writer is closed.
        """
        if not observations:
            raise InvalidArgumentError("observations is empty: an episode begins with at least one agent.")
        live = self._rows.begin_team(seed=seed, options=options, metadata=metadata)
        try:
            self.record(live, 0, observations, groups or {}, {}, infos, None, extra)
        except BaseException:
            self._rows.discard(live)
            raise
        return OpenTeam(self, live, dict(groups or {}))

    def write_episode(
        self,
        agents: Mapping[str, Mapping[str, Any]],
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> EpisodeRow:
        """Write a whole episode from arrays of each agent.

        Args:
            agents: by agent, a mapping with the arguments of `EpisodeWriter.write_episode` that belong to
                steps: `observations` (T+1), `actions`, `rewards`, `terminations`, `truncations` (T), and if
                you like `infos`, `policy` and `extra`. `env_steps` (T+1 ascending whole numbers) gives the
                step of the environment of each observation, 0 to T without it. An agent that never acts has
                T = 0. The agents appear in this order where they appear at the same step.
            seed, options, metadata: of the episode.
            groups: as for `begin`.

        Raises:
            SpaceMismatchError: shapes, dtypes or lengths do not fit, or a flag is set before an agent's last
                transition; nothing was recorded.
            InvalidArgumentError: no agent acts, or an agent has an unknown key or lacks one.
            RecorderStateError: the writer is closed.
        """
        self._session.check_usable()
        wholes = [
            _AgentEpisode.of(self._schema, self._rows.group_of(name, groups), name, arrays)
            for name, arrays in agents.items()
        ]
        first = min((int(each.env_steps[0]) for each in wholes), default=0)
        if first:
            raise InvalidArgumentError(f"env_steps begin at {first}; an episode begins at step 0.")
        if not any(each.whole.length for each in wholes):
            raise InvalidArgumentError("No agent has a transition. An episode needs at least one.")
        live = self._rows.begin_team(seed=seed, options=options, metadata=metadata)
        try:
            for step, rows in _by_step(wholes):
                fresh = [each.name for each, t in rows if t == 0]
                arriving = {
                    each.name: self._rows.newcomer(live, each.name, each.group, fresh.index(each.name))
                    if t == 0
                    else live.agents[each.name]
                    for each, t in rows
                }
                self._rows.record(live, step, [each.arrival(t, arriving[each.name]) for each, t in rows])
            for each in wholes:
                agent = live.agents[each.name]
                agent.terminated, agent.truncated = each.whole.terminated, each.whole.truncated
            late = {each.name: each.whole.late for each in wholes if each.whole.late}
            record = self._rows.end(live, "cut", None, late)
        except BaseException:
            self._rows.discard(live)
            raise
        assert record is not None
        return EpisodeRow.of(self._session, record)

    def record(
        self,
        live: LiveTeam,
        env_step: int,
        observations: ByAgent,
        groups: Mapping[str, str],
        outcomes: Mapping[str, tuple[Any, Any, bool, bool]],
        infos: ByAgent | None,
        policy: ByAgent | None,
        extra: ByAgent | None,
    ) -> None:
        """Record what one step brought, all of it or nothing; see `OpenTeam.append`."""
        infos, policy, extra = infos or {}, policy or {}, extra or {}
        for name, values in (("infos", infos), ("extra", extra)):
            _check_within(set(observations), name, values)
        newcomers = [name for name in observations if name not in live.agents]
        arrivals = []
        for name, observation in observations.items():
            agent = live.agents.get(name)
            if agent is None:
                agent = self._rows.newcomer(
                    live, name, self._rows.group_of(name, groups), newcomers.index(name)
                )
            arrivals.append(
                Arrival(
                    agent, observation, infos.get(name), outcomes.get(name), policy.get(name), extra.get(name)
                )
            )
        self._rows.record(live, env_step, arrivals)
        for arrival in arrivals:
            arrival.agent.gone = arrival.agent.terminated or arrival.agent.truncated


@dataclass(frozen=True)
class _AgentEpisode:
    """The checked arrays of one agent."""

    name: str
    group: int
    whole: WholeEpisode
    env_steps: np.ndarray

    @staticmethod
    def of(schema: StepSchema, group: int, name: str, arrays: Mapping[str, Any]) -> _AgentEpisode:
        missing = [key for key in _OWN if key not in arrays]
        unknown = [key for key in arrays if key not in (*_OWN, *_OPTIONAL)]
        if missing or unknown:
            problem = f"lacks {', '.join(missing)}" if missing else f"has the key {unknown[0]!r}"
            raise InvalidArgumentError(
                f"The agent {name!r} {problem}; expected {', '.join(_OWN)} and if you like "
                f"{', '.join(_OPTIONAL)}."
            )
        given = [arrays.get(key) for key in (*_OWN, "infos", "policy", "extra")]
        try:
            whole = WholeEpisode.of(schema.parts[group], *given, least=0)
        except (SpaceMismatchError, InvalidArgumentError) as error:
            raise type(error)(f"The agent {name!r}: {error}") from error
        for row in whole.extras or ():
            schema.check_extra(row or {})
        steps = arrays.get("env_steps")
        positions = np.arange(whole.length + 1) if steps is None else np.asarray(steps)
        ascending = positions.dtype.kind in "iu" and positions.shape == (whole.length + 1,)
        if not ascending or positions[0] < 0 or (np.diff(positions) <= 0).any():
            raise InvalidArgumentError(
                f"The agent {name!r} has env_steps {positions.tolist()!r:.100}; expected {whole.length + 1} "
                "ascending whole numbers from 0 on, one for each observation."
            )
        return _AgentEpisode(name, group, whole, positions)

    def arrival(self, t: int, agent: LiveAgent) -> Arrival:
        """Return the arrival of observation t."""
        whole = self.whole
        info = whole.infos[t] if whole.infos else None
        extra = whole.extras[t] if whole.extras else None
        observation = single_value(whole.observations, t)
        if t == 0:
            return Arrival(agent, observation, info, None, None, extra)
        last = t == whole.length
        outcome = (
            single_value(whole.actions, t - 1),
            whole.rewards[t - 1],
            last and whole.terminated,
            last and whole.truncated,
        )
        policy = whole.policies[t - 1] if whole.policies else None
        return Arrival(agent, observation, info, outcome, policy, extra)


def _by_step(agents: Sequence[_AgentEpisode]) -> Iterable[tuple[int, list[tuple[_AgentEpisode, int]]]]:
    """Return the observations that came at each step of the environment, in its order."""
    rows: dict[int, list[tuple[_AgentEpisode, int]]] = {}
    for each in agents:
        for t, step in enumerate(each.env_steps.tolist()):
            rows.setdefault(step, []).append((each, t))
    return sorted(rows.items())


def _check_same(acting: Collection[str], name: str, values: ByAgent) -> None:
    _check_within(acting, name, values)
    missing = sorted(set(acting).difference(values), key=str)
    if missing:
        raise InvalidArgumentError(f"The agents {missing} act, but {name} has none of them.")


def _check_within(known: Collection[str], name: str, values: ByAgent) -> None:
    unknown = sorted(set(values).difference(known), key=str)
    if unknown:
        raise InvalidArgumentError(
            f"{name} has the agents {unknown}; this step has {', '.join(sorted(known, key=str))}."
        )
