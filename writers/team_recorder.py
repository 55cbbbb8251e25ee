"""`TeamRecorder`: what the recorders of PettingZoo's two APIs have in common.

It keeps the episode in hand, calls callbacks, adds what was logged, and hands all of it to an `AgentSession`.
Everything that it does not define is the environment's own.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..store.agent_arrivals import Arrival, LiveAgent, LiveTeam
from ..store.agents import find_group
from ..store.errors import InvalidArgumentError, RecorderStateError
from ..store.handle import OpenStore
from ..store.records import end_reason_of
from ..store.values import freeze, freeze_value, load_json
from .agent_session import AgentSession
from .callbacks import (
    EpisodeCallback,
    EpisodeSummary,
    StepCallback,
    StepData,
    apply_episode_callback,
    apply_step_callback,
)
from .environment import keep_env
from .nesting import check_unrecorded
from .options import SessionOptions
from .pettingzoo_api import Api, agents_header, pettingzoo_api

STATE = "state"
INITIAL_REWARD = "initial_reward"


class Seen(NamedTuple):
    """What came to one agent.

    Attributes:
        agent: its name.
        observation, info: what came.
        reward, terminated, truncated: what came with them.
        action: what led here, owned by us; meaningful if `stepped`.
        stepped: whether this ends a transition; else it is the agent's first observation.
    """

    agent: str
    observation: Any
    info: Mapping[str, Any]
    reward: Any = 0.0
    terminated: bool = False
    truncated: bool = False
    action: Any = None
    stepped: bool = False


class TeamRecorder:
    """The base of `ParallelRecorder` and `AECRecorder`.

    Args:
        env: the environment; each agent's spaces must be those of a group of the store.
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        step_callback: sees, and may change, what came to each agent before it is recorded; `StepData.agent`
            says to whom. `end=True` ends the whole episode.
        episode_callback: sees each finished episode and returns metadata for it; see `EpisodeSummary`.
        options: durability and when to flush and seal; see `SessionOptions`.
        files, packages: what the environment needs beside its spec; see `EpisodeStore.record`.
        state: record `env.state()` at every step of the environment, as the column `state`.

    Attributes:
        env: the environment.

    Raises:
        SpaceMismatchError: an agent's spaces are not the store's.
        InvalidArgumentError: the environment has not this API, or the store is for a single agent.
        StoreAccessError: the store cannot be written.
    """

    api: ClassVar[Api]

    def __init__(
        self,
        env: Any,
        store: OpenStore,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        step_callback: StepCallback | None = None,
        episode_callback: EpisodeCallback | None = None,
        options: SessionOptions | None = None,
        files: Mapping[str, str | PathLike[str]] | None = None,
        packages: Sequence[str] = (),
        state: bool = False,
    ) -> None:
        if pettingzoo_api(env) != self.api:
            raise InvalidArgumentError(
                f"{type(self).__name__} takes an environment of PettingZoo's {self.api} API; got "
                f"{type(env).__name__}. EpisodeStore.record chooses the recorder."
            )
        if state and not callable(getattr(env, STATE, None)):
            raise InvalidArgumentError(f"state=True, but {type(env).__name__} has no state().")
        check_unrecorded(env, store.handle)
        self.env = env
        self._groups = store.handle.schema.groups
        self._group_names = {group.name.casefold() for group in self._groups}
        self._known: dict[str, int] = {}
        for agent in getattr(env, "possible_agents", ()) if self._groups else ():
            self._group(agent)
        kept = keep_env(store.handle.layout, env, files, packages)
        header = agents_header(run, metadata, env, kept, self.api)
        self._session = AgentSession(store.handle, header, options or SessionOptions())
        self._step_callback = step_callback
        self._episode_callback = episode_callback
        self._with_state = state
        # The episode in hand; and the same while it goes on, None once it is done.
        self._possible = len(getattr(env, "possible_agents", ()))
        self._team: LiveTeam | None = None
        self._running: LiveTeam | None = None
        self._env_step = 0
        self._state_at = -1
        # Whether the environment goes on although the recording of the episode was ended.
        self._muted = False
        self._was_reset = False
        self._logged: dict[str, dict[str, Any]] = {}
        self._final_metadata: Mapping[str, Any] = {}
        atexit.register(self.close)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the environment has; of its private parts only the rewards that AEC loops need."""
        if name == "env" or (name.startswith("_") and name != "_cumulative_rewards"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def run_id(self) -> str:
        """The id of this recorder's run."""
        return self._session.header.run_id

    @property
    def episode_id(self) -> str | None:
        """The id of the episode in hand; None before the first reset."""
        return None if self._team is None else self._session.episode_id(self._team)

    def seal(self) -> None:
        """Make all finished episodes visible to readers, and wait for it.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; nothing is lost, call again.
        """
        if self._running is None:
            self._finish()
        self._session.seal()

    def close(self) -> None:
        """Seal everything, finish the run and close the environment; a second call does nothing.

        Raises:
            StoreAccessError, ConcurrentCommitError: sealing failed; the journal keeps everything, call again.
        """
        if self._session.closed or not self._session.owned:
            return
        try:
            try:
                self._finish()
            finally:
                self._session.close()
        finally:
            self.env.close()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        """Return the recorder itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an exception from within the block passes on."""
        self.close()

    # Episodes

    def _begin(self, seed: int | None, fresh_seed: object, options: Any) -> LiveTeam:
        if seed is None and not self._was_reset and isinstance(fresh_seed, int) and fresh_seed >= 0:
            seed = fresh_seed
        self._was_reset = True
        self._team = self._running = self._session.begin_team(seed=seed, options=options)
        self._env_step, self._state_at = 0, -1
        self._muted = False
        self._logged = {}
        return self._team

    def _reset_env(self, seed: int | None, options: dict | None) -> Any:
        """Reset the environment and start an episode; give what it gave."""
        self._session.check_usable()
        self._finish()
        self._make_room()
        # The environment may change the options: keep them as they were passed.
        kept = None if options is None else freeze(options)
        result = self.env.reset(seed=seed, options=options)
        self._begin(seed, getattr(self.unwrapped, "_np_random_seed", None), kept)
        return result

    def _make_room(self) -> None:
        """Reserve rows for all that a step of the environment, and the end of the episode, may bring.

        A journal that cannot be written tells so here, before the environment goes on.
        """
        agents = max(self._possible, 0 if self._team is None else len(self._team.agents))
        # A step, what is settled at the end, and what was logged for last observations.
        self._session.reserve(3 * agents + 1)

    def _team_for_step(self) -> LiveTeam | None:
        """The episode that goes on, with room for a step; None if nothing is recorded until the next reset.

        Raises:
            RecorderStateError: there is none.
            StoreAccessError: the journal could not be written; the environment was not stepped, call again.
        """
        if self._running is not None:
            self._make_room()
            return self._running
        self._session.check_usable()
        if self._muted:
            return None
        told = "The episode has ended" if self._was_reset else "There is no episode yet"
        raise RecorderStateError(f"{told}: call reset() before the next step().")

    def _group(self, agent: str) -> int:
        if agent not in self._known:
            spaces = (self.env.observation_space(agent), self.env.action_space(agent))
            self._known[agent] = find_group(self._groups, agent, *spaces)
        return self._known[agent]

    def _record(self, team: LiveTeam, seen: Sequence[Seen]) -> None:
        """Record what came, all of it or nothing; if it does not fit, no further step is recorded."""
        # After an error the environment has gone on, so what comes next would not follow the last row.
        ends = True
        try:
            ends = self._record_all(team, seen)
        finally:
            if ends:
                try:
                    self._settle(team)
                finally:
                    self._stop(muted=True)

    def _settle(self, team: LiveTeam) -> None:
        """Record what is known of agents beside what came last; where all act at once, nothing is."""

    def _record_all(self, team: LiveTeam, seen: Sequence[Seen]) -> bool:
        arrivals: list[Arrival] = []
        ends = False
        extra = self._state()
        newcomers = 0
        for each in seen:
            agent = team.agents.get(each.agent)
            if agent is None:
                agent = self._session.newcomer(team, each.agent, self._group(each.agent), newcomers)
                newcomers += 1
                if np.any(each.reward):
                    extra = {**extra, INITIAL_REWARD: _plain(each.reward)}
            if self._step_callback is None:
                arrivals.append(self._arrival(agent, each, extra))
            else:
                arrival, end = self._changed(agent, each, extra)
                arrivals.append(arrival)
                ends |= end
            extra = {}
        self._session.record(team, self._env_step, arrivals)
        for each, arrival in zip(seen, arrivals, strict=True):
            if each.stepped:
                if self._logged:
                    self._logged.pop(each.agent, None)
            else:
                # The flags of an agent that was done before it could act stand on no row.
                arrival.agent.terminated, arrival.agent.truncated = each.terminated, each.truncated
            arrival.agent.gone = arrival.agent.terminated or arrival.agent.truncated
        return ends

    def _arrival(self, agent: LiveAgent, seen: Seen, extra: Mapping[str, Any]) -> Arrival:
        """What came to an agent, as it is recorded."""
        if not seen.stepped:
            return Arrival(agent, seen.observation, seen.info, None, None, extra)
        outcome = (seen.action, seen.reward, seen.terminated, seen.truncated)
        return Arrival(agent, seen.observation, seen.info, outcome, self._logged.get(agent.agent_id), extra)

    def _changed(self, agent: LiveAgent, seen: Seen, extra: Mapping[str, Any]) -> tuple[Arrival, bool]:
        """The same as the step callback would have it, and whether it ends the episode."""
        assert self._step_callback is not None
        outcome = (seen.action, seen.reward, seen.terminated, seen.truncated)
        policy: Mapping[str, Any] = self._logged.get(agent.agent_id, {}) if seen.stepped else {}
        step = StepData(
            agent.length + seen.stepped,
            seen.observation,
            *(outcome if seen.stepped else (None, None, None, None)),
            seen.info,
            policy,
            extra,
            agent=seen.agent,
        )
        step = apply_step_callback(self._step_callback, step)
        if self._group_names.intersection(str(key).casefold() for key in step.extra):
            raise InvalidArgumentError(
                f"The step columns {sorted(map(str, step.extra))} have the name of a group of agents "
                f"({', '.join(group.name for group in self._groups)}). Rename the column."
            )
        changed = None
        if seen.stepped:
            changed = (step.action, step.reward, bool(step.terminated), bool(step.truncated))
        return Arrival(agent, step.observation, step.info, changed, step.policy, step.extra), step.end

    def _state(self) -> dict[str, Any]:
        """The environment's state, once for each of its steps."""
        if not self._with_state or self._state_at == self._env_step:
            return {}
        self._state_at = self._env_step
        try:
            return {STATE: self.env.state()}
        except NotImplementedError as error:
            raise InvalidArgumentError(
                f"state=True, but {type(self.unwrapped).__name__} does not implement state()."
            ) from error

    def _log(self, agent: str, values: Mapping[str, Any]) -> None:
        if self._muted:
            return
        if self._team is None:
            raise RecorderStateError("There is no step to log for: call reset() first.")
        if agent not in self._team.agents:
            known = ", ".join(self._team.agents) or "none"
            raise InvalidArgumentError(f"The episode has no agent {agent!r}; its agents are {known}.")
        frozen = {key: freeze_value(value) for key, value in values.items()}
        self._logged[agent] = {**self._logged.get(agent, {}), **frozen}

    def _stop(self, *, muted: bool) -> None:
        """Let no further step into the episode; it stays in hand, so that its last rows can be logged for."""
        team, self._running = self._running, None
        self._muted = muted
        if team is not None:
            self._final_metadata = self._call_episode_callback(team)

    def _finish(self) -> None:
        """End the episode in hand, if any."""
        going_on = self._running is not None
        team, self._team, self._running = self._team, None, None
        late, self._logged = self._logged, {}
        if team is None:
            return
        metadata, self._final_metadata = self._final_metadata, {}
        try:
            if going_on:
                metadata = self._call_episode_callback(team)
        finally:
            # A callback that fails passes on its exception; the episode is kept all the same.
            self._session.end(team, "cut", metadata, late)

    def _call_episode_callback(self, team: LiveTeam) -> Mapping[str, Any]:
        if self._episode_callback is None or not any(agent.length for agent in team.agents.values()):
            return {}
        self._session.settle(team)
        options = team.facts.options
        summary = EpisodeSummary(
            id=self._session.episode_id(team),
            number=team.number,
            length=team.length,
            episode_return=team.episode_return,
            terminated=team.terminated,
            truncated=team.truncated,
            end_reason=end_reason_of(team.terminated, team.truncated, "cut"),
            seed=team.facts.seed,
            options=None if options is None else load_json(options, "the journal"),
            metadata=dict(team.facts.metadata),
            agent_lengths={name: agent.length for name, agent in team.agents.items()},
            agent_returns={name: agent.episode_return for name, agent in team.agents.items()},
        )
        return apply_episode_callback(self._episode_callback, summary)


def _plain(reward: Any) -> Any:
    return np.asarray(reward, np.float64) if np.ndim(reward) else float(reward)
