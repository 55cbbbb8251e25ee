"""From the observations of several agents to their actions: a policy for each, or one for all.

Each agent has an `Actor` of its own, with its state, its hooks and its seed. One policy for all is asked
first, and every agent's `Actor` is given its share of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from ...store.agents import AgentGroup
from ...store.common.arguments import expect
from ...store.errors import InvalidArgumentError
from ..recorders.team_recorder import TeamRecorder
from .actor import Actor, PolicyConfig, PolicyOutput, Sample, derived_seed, read_output, without_gradients
from .memory import Memory, copied

_OF_POLICY, _OF_AGENT = 0, 1
_MASK = "action_mask"


class TeamActor:
    """Asks policies for the actions of all agents that act.

    Args:
        config: the policy: one for all, or one for each agent; see `collect`.
        recorder: the environment's recorder.
    """

    def __init__(self, config: PolicyConfig, recorder: TeamRecorder) -> None:
        self._config = config
        self._recorder = recorder
        self._env = recorder.env
        self._joint = config.policy is not None and not isinstance(config.policy, Mapping)
        self._actors: dict[str, Actor] = {}
        self._shares: dict[str, _Share] = {}
        _seed_policies(config)

    def act(
        self, observation: Mapping[str, Any], info: Mapping[str, Any], state: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Ask the policies.

        Returns:
            By agent: the environment's actions, what to record beside them, and the states of all agents that
            have acted in this episode.

        Raises:
            InvalidArgumentError: an agent has no policy; the answer for all has no action for an agent.
        """
        agents = [agent for agent in self._env.agents if agent in observation]
        infos = {agent: info.get(agent) or {} for agent in agents}
        states: dict[str, Any] = dict(state or {})
        for agent in agents:
            actor = self._actor(agent)
            if agent not in states:
                states[agent] = self._first_state(agent)
        if self._joint:
            given = {agent: states[agent] for agent in agents}
            if self._config.record_state:
                # Copied first: the policy may change states in place.
                states.update(copied(given))
            self._ask(({agent: observation[agent] for agent in agents}, infos, given))
        actions, columns = {}, {}
        for agent in agents:
            actor = self._actors[agent]
            actions[agent], columns[agent], states[agent] = actor.act(
                observation[agent], infos[agent], states[agent]
            )
        return actions, columns, states

    def _ask(self, asked: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
        """Ask the policy of all agents, and keep each one's share of the answer."""
        assert callable(self._config.policy)
        actions, extras, states = read_output(without_gradients(self._config.policy)(*asked), False)
        agents = asked[0]
        _check_answer("actions", actions, agents, all_of_them=True)
        _check_answer("extras", extras or {}, agents)
        _check_answer("states", states or {}, agents)
        for agent in agents:
            answer = PolicyOutput(actions[agent], (extras or {}).get(agent) or {}, (states or {}).get(agent))
            self._shares[agent].answer = answer

    def _actor(self, agent: str) -> Actor:
        """Return what asks the policy of one agent."""
        known = self._actors.get(agent)
        if known is not None:
            return known
        config, space = self._config, self._env.action_space(agent)
        order = list(getattr(self._env, "possible_agents", ()))
        number = order.index(agent) if agent in order else len(order) + len(self._actors)
        seed = derived_seed(config.seed, _OF_AGENT, number)
        policy = self._shares.setdefault(agent, _Share()) if self._joint else self._own("policy", agent)
        own = replace(
            config,
            policy=None if policy is None else _unseeded(policy),
            seed=seed,
            explore=self._own("explore", agent),
            map_action=self._own("map_action", agent),
            map_action_inverse=self._own("map_action_inverse", agent),
        )
        sample = _MaskedSample(space, seed) if policy is None else None
        self._actors[agent] = actor = Actor(own, space, space, None, sample=sample)
        return actor

    def _first_state(self, agent: str) -> Any:
        memory = Memory(self._own("initial_state", agent), None)
        memory.renew((0,))
        return memory.state

    def _own(self, name: str, agent: str) -> Any:
        """Return an agent's part of an argument: the value itself, or that of its name or of its group."""
        value = getattr(self._config, name)
        if not isinstance(value, Mapping):
            return value
        if agent in value:
            return value[agent]
        group = self._recorder.group_name(agent)
        if name == "policy" and group not in value:
            raise _no_policy(agent, group, value)
        return value.get(group)


class _Share:
    """The part of an answer for all agents that is one agent's."""

    def __init__(self) -> None:
        self.answer: PolicyOutput | None = None

    def __call__(self, observation: Any, info: Any, state: Any) -> Any:
        """Return it."""
        return self.answer


class _MaskedSample(Sample):
    """A random policy that keeps to the agent's action mask, where there is one."""

    def __call__(self, observation: Any, info: Mapping[str, Any], state: Any) -> PolicyOutput:
        """Sample; PettingZoo has masks in the observation or in the info."""
        mask = info.get(_MASK)
        if mask is None and isinstance(observation, Mapping):
            mask = observation.get(_MASK)
        if mask is None or not isinstance(self.space, spaces.Discrete):
            return super().__call__(observation, info, state)
        return PolicyOutput(self.space.sample(np.asarray(mask, np.int8)), state=state)


def _unseeded(policy: Callable[..., Any]) -> Callable[..., Any]:
    """Return a policy without its method `seed`, which was called already."""
    quiet = without_gradients(policy)
    return lambda observation, info, state: quiet(observation, info, state)


def _seed_policies(config: PolicyConfig) -> None:
    """Seed the policies that can be seeded, each of them once."""
    policy: Any = config.policy
    policies = list(policy.values()) if isinstance(policy, Mapping) else [policy]
    seeded: list[Any] = []
    for number, each in enumerate(policies):
        seeding = getattr(each, "seed", None)
        if config.seed is None or not callable(seeding) or any(each is known for known in seeded):
            continue
        seeded.append(each)
        seeding(derived_seed(config.seed, _OF_POLICY, number) if isinstance(policy, Mapping) else config.seed)


def _check_answer(name: str, given: Any, agents: Mapping[str, Any], *, all_of_them: bool = False) -> None:
    expected = list(agents)
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"The policy of all agents returned {name} of the type {type(given).__name__}; expected a "
            f"mapping by agent, of {expected}. Policies of single agents are passed as {{agent: policy}}."
        )
    wrong = [key for key in given if key not in agents]
    missing = [agent for agent in expected if all_of_them and agent not in given]
    if missing or (wrong and not all_of_them):
        raise InvalidArgumentError(
            f"The policy of all agents returned {name} of {list(given)}; expected them by agent, of "
            f"{expected}."
        )


def check_team(env: Any, config: PolicyConfig, groups: Sequence[AgentGroup]) -> None:
    """Make sure that mappings by agent name agents or groups, and that every possible agent has a policy.

    Raises:
        InvalidArgumentError: one does not.
        SpaceMismatchError: an agent's spaces are those of no group.
    """
    possible = list(getattr(env, "possible_agents", ()))
    if not (possible and groups):
        return
    names = [group.name for group in groups]
    valid = isinstance(config.initial_state, Mapping | None)
    expect(valid, "initial_state", config.initial_state, "a mapping by agent or group")
    for name in ("policy", "explore", "map_action", "map_action_inverse", "initial_state"):
        value = getattr(config, name)
        wrong = [key for key in value if key not in possible + names] if isinstance(value, Mapping) else []
        if wrong:
            raise InvalidArgumentError(
                f"{name} has the key {wrong[0]!r}; the agents are {possible}, their groups {names}."
            )
    policy: Any = config.policy
    for agent in possible if isinstance(policy, Mapping) else ():
        group = names[AgentGroup.find(groups, agent, env.observation_space(agent), env.action_space(agent))]
        if agent not in policy and group not in policy:
            raise _no_policy(agent, group, policy)


def _no_policy(agent: str, group: str, policy: Mapping[str, Any]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"policy has no entry for the agent {agent!r} of the group {group!r}; it has {list(policy)}. Name "
        "the agent or its group; None samples its action space."
    )
