"""`TeamRecorder`: the base of the recorders of PettingZoo's two APIs.

It keeps the current episode, calls callbacks, adds what was logged, and hands all of it to `AgentRows`.
Everything that it does not define is the environment's own.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

import numpy as np

from ...store.agents import AgentGroup
from ...store.common.arguments import as_flag
from ...store.common.foreign_arrays import as_array
from ...store.dynamic.values import freeze_value
from ...store.errors import InvalidArgumentError, RecorderStateError
from ...store.journal.episodes import copied_options
from ...store.schema import OpenStore
from ..rows.agent_arrivals import Arrival, LiveAgent, LiveTeam
from ..rows.agent_rows import AgentRows
from .callbacks import ENDED_EARLY, INTERRUPTED, EpisodeSummary, StepData, apply_step_callback, continues
from .env_checks import Api, kept_agents, pettingzoo_api
from .env_recorder import EpisodeRecorder, RecorderKeywords

End = bool | Literal["continue"]
STATE = "state"
INITIAL_REWARD = "initial_reward"


_open_recorders: weakref.WeakSet[TeamRecorder] = weakref.WeakSet()


class Seen(NamedTuple):
    """The observation and outcome of one agent.

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


def flags_of(
    agent: str, terminations: Mapping[str, Any], truncations: Mapping[str, Any]
) -> tuple[bool, bool]:
    """Return an agent's flags; unset where it has none."""
    terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
    return as_flag(f"terminations[{agent!r}]", terminated), as_flag(f"truncations[{agent!r}]", truncated)


class TeamRecorder(EpisodeRecorder[AgentRows, LiveTeam]):
    """The base of `ParallelRecorder` and `AECRecorder`.

    Args:
        env: the environment; each agent's spaces must be those of a group of the store.
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        step_callback: sees, and may change, what came to each agent before it is recorded; `StepData.agent`
            says to whom. `end=True` ends the whole episode, and so does "continue"; of both True counts.
        episode_callback: sees each finished episode and returns metadata for it; see `EpisodeSummary`.
        options: durability and when to flush and seal; see `SessionOptions`.
        files, packages: what the environment needs beside its spec; see `EpisodeStore.record`.
        record_infos: whether to store infos, or the keys to store; see `EpisodeStore.record`.
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
        state: bool = False,
        **given: Unpack[RecorderKeywords],
    ) -> None:
        if pettingzoo_api(env) != self.api:
            raise InvalidArgumentError(
                f"{type(self).__name__} takes an environment of PettingZoo's {self.api} API; got "
                f"{type(env).__name__}. EpisodeStore.record chooses the recorder."
            )
        if state and not callable(getattr(env, STATE, None)):
            raise InvalidArgumentError(f"state=True, but {type(env).__name__} has no state().")
        self.env = env
        self._groups = store.handle.schema.groups
        self._known: dict[str, int] = {}
        for agent in getattr(env, "possible_agents", ()) if self._groups else ():
            self._group(agent)
        self._begin_episodes(store, env, AgentRows, partial(kept_agents, api=self.api), **given)
        self._with_state = state
        self._possible = len(getattr(env, "possible_agents", ()))
        self._env_step = 0
        self._state_at = -1
        # Agents whose rows ended by a flag that only a step callback set.
        self._ended_early: set[str] = set()
        self._was_reset = False
        _open_recorders.add(self)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the environment; of its private ones only AEC rewards."""
        if name == "env" or (name.startswith("_") and name != "_cumulative_rewards"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    # PettingZoo's checkers and wrappers ask for instances of AECEnv and ParallelEnv. A base class of these
    # would hide the environment's own attributes, and PettingZoo need not be installed: so the recorder shows
    # the class of its environment, as other transparent proxies do. `type(recorder)` is the recorder's own.
    @property
    def __class__(self) -> type:
        """The class of the environment."""
        return type(self.env)

    @__class__.setter
    def __class__(self, value: type) -> None:
        raise AttributeError("The class of a recorder cannot be changed.")

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def env_steps(self) -> int:
        """How many steps the environment has made in the current episode."""
        return self._env_step

    def group_name(self, agent: str) -> str:
        """Return the name of an agent's group.

        Raises:
            SpaceMismatchError: its spaces are those of no group.
        """
        return self._groups[self._group(agent)].name

    def close(self, **kwargs: Any) -> None:
        """See `EnvRecorder.close`; in a forked process it does nothing."""
        if self._session.owned:
            super().close(**kwargs)

    # Episodes

    def _begin(self, seed: int | None, fresh_seed: object, options: Any) -> LiveTeam:
        if seed is None and not self._was_reset and isinstance(fresh_seed, int) and fresh_seed >= 0:
            seed = fresh_seed
        self._was_reset = True
        self._env_step, self._state_at = 0, -1
        self._logged = {}
        self._ended_early.clear()
        self._episode = self._running = self._rows.begin_team(seed=seed, options=options)
        return self._episode

    def _reset_env(self, seed: int | None, options: dict | None) -> Any:
        """Reset the environment and start an episode; give what it gave."""
        self._session.check_usable()
        kept = copied_options(options)
        self._expect_reset(INTERRUPTED)
        self._finish()
        self._make_room()
        result = self.env.reset(seed=seed, options=options)
        if self._paused:
            self._was_reset = self._muted = True
        else:
            self._begin(seed, getattr(self.unwrapped, "_np_random_seed", None), kept)
        return result

    def _make_room(self) -> None:
        """Reserve rows for all that a step of the environment, and the end of the episode, may bring.

        A journal that cannot be written tells so here, before the environment goes on.
        """
        agents = max(self._possible, 0 if self._episode is None else len(self._episode.agents))
        # A step, pending rows at the end, and what was logged for last observations.
        self._rows.reserve(3 * agents + 1)

    def _team_for_step(self) -> LiveTeam | None:
        """Return the episode that goes on, with room for a step; None if nothing is recorded until the next
        reset.

        Raises:
            RecorderStateError: there is none.
            StoreAccessError: the journal could not be written; the environment was not stepped, call again.
        """
        if self._running is not None:
            ended = self._ended_early and sorted(self._ended_early.intersection(self.env.agents))
            if ended:
                raise RecorderStateError(f"{ENDED_EARLY} The agents are {ended}. Call reset() first.")
            self._make_room()
            return self._running
        self._session.check_usable()
        if self._muted or self._paused:
            return None
        raise RecorderStateError(f"{self._reset_because} Call reset() before the next step().")

    def _group(self, agent: str) -> int:
        if agent not in self._known:
            spaces = (self.env.observation_space(agent), self.env.action_space(agent))
            self._known[agent] = AgentGroup.find(self._groups, agent, *spaces)
        return self._known[agent]

    def _record(self, team: LiveTeam, seen: Sequence[Seen]) -> None:
        """Record what came, all of it or nothing; if it does not fit, the episode ends."""
        try:
            end, arrivals = self._record_all(team, seen)
            if end == "continue":
                self._continue(seen, arrivals)
                return
        except BaseException:
            self._interrupt(record_pending=True)
            raise
        if end:
            try:
                self._record_pending(team)
            finally:
                self._stop(muted=True)

    def _interrupt(self, *, record_pending: bool = False) -> None:
        """End the episode after an exception: what comes next would not follow its last rows.

        Args:
            record_pending: whether the environment can still be asked for what is known of its agents.
        """
        if self._running is None:
            return
        try:
            if record_pending:
                self._record_pending(self._running)
        finally:
            self._stop(reset_because=INTERRUPTED)

    def _record_pending(self, team: LiveTeam) -> None:
        """Record what is known of agents beside what came last; where all act at once, nothing is."""

    def _continue(self, seen: Sequence[Seen], arrivals: Sequence[Arrival]) -> None:
        """End the episode, and begin the next one with the last observations of the agents that go on.

        Do nothing at a reset, and where the environment has ended the episode.
        """
        there = [
            arrival
            for each, arrival in zip(seen, arrivals, strict=True)
            if each.agent in self.env.agents and not (each.terminated or each.truncated)
        ]
        if not there or not any(each.stepped for each in seen):
            return
        self._stop()
        self._finish()
        team, extra = self._begin(None, None, None), self._state()
        first: list[Arrival] = []
        for place, (old, observation, info, _, _, own) in enumerate(there):
            agent = self._rows.newcomer(team, old.agent_id, old.group, place)
            kept = {key: value for key, value in (own or {}).items() if key not in (STATE, INITIAL_REWARD)}
            first.append(Arrival(agent, observation, info, None, None, {**kept, **extra}))
            extra = {}
        self._rows.record(team, 0, first)

    def _record_all(self, team: LiveTeam, seen: Sequence[Seen]) -> tuple[End, list[Arrival]]:
        """Record what came; return it as recorded, and whether a callback ended the episode."""
        arrivals: list[Arrival] = []
        ends: End = False
        extra = self._state()
        newcomers = 0
        for each in seen:
            agent = team.agents.get(each.agent)
            if agent is None:
                agent = self._rows.newcomer(team, each.agent, self._group(each.agent), newcomers)
                newcomers += 1
                if as_array(each.reward).any():
                    extra = {**extra, INITIAL_REWARD: _plain(each.reward)}
            if self._step_callback is None:
                arrivals.append(self._arrival(agent, each, extra))
            else:
                arrival, end = self._changed(agent, each, extra)
                arrivals.append(arrival)
                ends = end if ends is not True and end else ends
            extra = {}
        self._rows.record(team, self._env_step, arrivals)
        for each, arrival in zip(seen, arrivals, strict=True):
            if each.stepped:
                if self._logged:
                    self._logged.pop(each.agent, None)
            else:
                # The flags of an agent that was done before it could act stand on no row.
                arrival.agent.terminated, arrival.agent.truncated = each.terminated, each.truncated
            arrival.agent.gone = arrival.agent.terminated or arrival.agent.truncated
        return ends, arrivals

    def _arrival(self, agent: LiveAgent, seen: Seen, extra: Mapping[str, Any]) -> Arrival:
        """Return what came to an agent, as it is recorded."""
        if not seen.stepped:
            return Arrival(agent, seen.observation, seen.info, None, None, extra)
        outcome = (seen.action, seen.reward, seen.terminated, seen.truncated)
        return Arrival(agent, seen.observation, seen.info, outcome, self._logged.get(agent.agent_id), extra)

    def _changed(self, agent: LiveAgent, seen: Seen, extra: Mapping[str, Any]) -> tuple[Arrival, End]:
        """Return the same as the step callback would have it, and whether it ends the episode."""
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
            env=self.env,
        )
        step = apply_step_callback(self._step_callback, step, self._session.store.schema)
        changed = None
        if seen.stepped:
            changed = (step.action, step.reward, bool(step.terminated), bool(step.truncated))
            if any(changed[2:]) and not (step.end or seen.terminated or seen.truncated):
                self._ended_early.add(seen.agent)
        end: End = "continue" if continues(step) else bool(step.end)
        if continues(step) and self.api == "aec":
            raise InvalidArgumentError(
                "StepData.end is 'continue', which needs agents that act at once: in turns, the outcome of "
                "the last turns is not known yet. Use end=True and reset()."
            )
        return Arrival(agent, step.observation, step.info, changed, step.policy, step.extra), end

    def _state(self) -> dict[str, Any]:
        """Return the environment's state, once for each of its steps."""
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
        episode = self._episode
        if not self._logs() or episode is None:
            return
        if agent not in episode.agents:
            known = ", ".join(episode.agents) or "none"
            raise InvalidArgumentError(f"The episode has no agent {agent!r}; its agents are {known}.")
        frozen = {key: freeze_value(value) for key, value in values.items()}
        self._logged[agent] = {**self._logged.get(agent, {}), **frozen}

    def summary(self, episode: LiveTeam) -> EpisodeSummary:
        """See `EpisodeRecorder.summary`."""
        self._rows.update_totals(episode)
        return super().summary(episode)


@atexit.register
def _close_open_recorders() -> None:
    """Close what is open when the interpreter exits, last turns included."""
    for recorder in list(_open_recorders):
        recorder.close()


def _plain(reward: Any) -> Any:
    array = as_array(reward).astype(np.float64)
    return array if array.ndim else float(array)
