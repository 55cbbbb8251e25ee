"""Policies: their configuration, and the rule that distinguishes the three forms of their outputs.

    action | (action, extras) | (action, extras, state)

A tuple of two or three items whose second item is a mapping or None is one of the latter two; anything else
is an action. Where actions are tuples themselves (Tuple, Sequence, OneOf, Graph and custom spaces) that would
be a guess, so there every plain tuple is an action, and extras need a `PolicyOutput`, which is never a guess.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ...store.common.arguments import flag
from ...store.common.foreign_arrays import to_numpy
from ...store.errors import InvalidArgumentError, SpaceMismatchError
from ...store.names import RAW_ACTION, STATE
from .memory import check_actions, check_rows, copied, detached, keyed

PolicyFunction = Callable[[Any, Mapping[str, Any], Any], Any]
#: One policy, or of several agents each its own, by agent or group; None samples.
AnyPolicy = PolicyFunction | Mapping[str, PolicyFunction | None]

_NEVER_TUPLES = (
    spaces.Box,
    spaces.Dict,
    spaces.Discrete,
    spaces.MultiBinary,
    spaces.MultiDiscrete,
    spaces.Text,
)


@dataclass(frozen=True)
class PolicyOutput:
    """Output of a policy in a form that is no value of any action space.

    Attributes:
        action: for a single environment one action; for a vector environment a batch of them, as its
            `action_space` has it.
        extras: what to record beside the action, as `policy.<key>`: numbers, arrays, tensors, nested dicts.
            For a vector environment every array has one row per environment; a plain number counts for all.
        state: the recurrent state to be given back at the next step; None for a policy without one.
    """

    action: Any
    extras: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None


def has_tuple_actions(space: gymnasium.Space) -> bool:
    """Return whether an action of this space may be a tuple."""
    return not isinstance(space, _NEVER_TUPLES)


def read_output(output: Any, tuple_actions: bool) -> tuple[Any, Mapping[str, Any] | None, Any]:
    """Return action, extras and state of what a policy returned.

    Args:
        output: what it returned.
        tuple_actions: whether a plain tuple is an action; see `has_tuple_actions`.

    Raises:
        SpaceMismatchError: the action is None.
        InvalidArgumentError: extras of a `PolicyOutput` are no mapping, or have a key
            that is no text.
    """
    if isinstance(output, PolicyOutput):
        action, extras, state = output.action, output.extras, output.state
    elif (
        not tuple_actions
        and output.__class__ is tuple
        and len(output) in (2, 3)
        and (output[1] is None or isinstance(output[1], Mapping))
    ):
        action, extras, *rest = output
        state = rest[0] if rest else None
    else:
        action, extras, state = output, None, None
    if action is None:
        raise SpaceMismatchError(
            "The policy returned None as the action; expected an action of the environment. Does it lack a "
            "`return`?"
        )
    if extras:
        _check_extras(extras)
    return action, extras, state


def _check_extras(extras: Any) -> None:
    if not isinstance(extras, Mapping):
        raise InvalidArgumentError(
            f"A policy returned extras of the type {type(extras).__name__}; expected a mapping from names "
            "to values."
        )
    for key in extras:
        if not isinstance(key, str):
            raise InvalidArgumentError(
                f"A policy returned extras with the key {key!r}; expected text, since it names a column "
                "policy.<key>."
            )


Explore = Callable[[Any, np.random.Generator], Any]
MapAction = Callable[[Any], Any]


@dataclass(frozen=True)
class Policy:
    """A policy with its recurrent state, its exploration noise and its mapping of actions, for `collect`.

        el.collect(env, el.Policy(act, map_action=lambda action: 2 * action), store, steps=1000)

    With one of the three hooks on actions, `policy.raw_action` has the policy's own action. Hooks get a copy
    and may change it. For several agents `initial_state` is a mapping by agent or group, and each hook may be
    one.

    Attributes:
        policy: a function or a mapping by agent, as for `collect`; None samples the action space.
        initial_state: the state at the first step of an episode; for a vector environment or a pool a batch
            of them.
        record_state: record the state that the policy was given, as `policy.state`.
        explore: called with the policy's action and a numpy generator; returns the action to take.
        map_action: called with that action; returns the environment's. Neither is called for samples, which
            are the environment's actions already.
        map_action_inverse: called with a sample; returns the policy's action for it, to be recorded as
            `policy.raw_action`. The sample itself goes to the environment and to `action`.

    Raises:
        InvalidArgumentError: a function cannot be called, or `record_state` is neither True nor False.
    """

    policy: AnyPolicy | None = None
    _: KW_ONLY
    initial_state: Any = None
    record_state: bool = False
    explore: Explore | Mapping[str, Explore | None] | None = None
    map_action: MapAction | Mapping[str, MapAction | None] | None = None
    map_action_inverse: MapAction | Mapping[str, MapAction | None] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "record_state", flag("record_state", self.record_state))
        for name in ("policy", "explore", "map_action", "map_action_inverse"):
            value = getattr(self, name)
            for each in value.values() if isinstance(value, Mapping) else [value]:
                if each is not None and not callable(each):
                    hint = " Wrap the whole mapping in one." if isinstance(each, Policy) else ""
                    raise InvalidArgumentError(
                        f"{name} is {type(each).__name__}, which cannot be called; expected a function or "
                        f"None.{hint}"
                    )


@dataclass(frozen=True)
class PolicyConfig(Policy):
    """A policy and its seed.

    Attributes:
        seed: of the sampling, of the generator that `explore` is given, and of a policy that has a method
            `seed`; None leaves all of them alone.
    """

    _: KW_ONLY
    seed: int | None = None

    @staticmethod
    def of(policy: Policy | AnyPolicy | None, seed: int | None) -> PolicyConfig:
        """Return the configuration of a policy, wrapped or not."""
        wrapped = policy if isinstance(policy, Policy) else Policy(policy)
        return PolicyConfig(**vars(wrapped), seed=seed)


class Actor:
    """Asks a policy for actions.

    Args:
        config: the policy, and how it is asked.
        space: the environment's action space; of a vector environment the batched one.
        single_space: the action space of one environment.
        size: how many environments; None for a single one.
        sample: draws the actions where there is no policy; None samples `space`.

    Raises:
        InvalidArgumentError: a callable cannot be called.
    """

    def __init__(
        self,
        config: PolicyConfig,
        space: gymnasium.Space,
        single_space: gymnasium.Space,
        size: int | None,
        *,
        sample: PolicyFunction | None = None,
    ) -> None:
        self._config: Any = config
        self._single_space = single_space
        self._size = size
        self._nested = isinstance(single_space, spaces.Dict | spaces.Tuple)
        self._tuple_actions = has_tuple_actions(space)
        self._policy = without_gradients(_seeded(config, space)) if sample is None else sample
        hooks = config.explore, config.map_action, config.map_action_inverse
        # A sample of the action space is the environment's action already.
        self._hooked = config.policy is not None and any(hook is not None for hook in hooks)
        self._inverse: Any = config.map_action_inverse if config.policy is None else None
        self._generator = np.random.default_rng(config.seed)

    def act(self, observation: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, dict[str, Any], Any]:
        """Ask the policy.

        Returns:
            The environment's action, what to record beside it by key, and the state for the next step.

        Raises:
            SpaceMismatchError: the answer has not one row for each environment.
            InvalidArgumentError: the extras are no mapping from names to values.
        """
        columns: dict[str, Any] = {}
        if self._config.record_state:
            # Copied first: a policy may change its state in place.
            none = None if self._size is None else np.full(self._size, None)
            columns[STATE] = none if state is None else keyed(copied(state))
        output = self._policy(observation, info, state)
        action, extras, state = read_output(output, self._tuple_actions)
        action = to_numpy(action)
        if action.__class__ is np.ndarray and action.ndim == 0:
            action = action[()]
        if self._hooked:
            columns[RAW_ACTION] = keyed(copied(action))
            action = self._changed(action)
        elif self._inverse is not None:
            columns[RAW_ACTION] = keyed(copied(self._inverse(copy.deepcopy(action))))
        if extras:
            self._add(columns, extras)
        if self._size is not None:
            self._check(action, self._size)
            columns = self._batched(columns, self._size) if columns else columns
        return action, columns, detached(state)

    def _check(self, action: Any, size: int) -> None:
        plain = action.__class__ is np.ndarray and not self._nested
        if not (plain and action.ndim and len(action) == size):
            check_actions(self._single_space, action, size)

    def _changed(self, action: Any) -> Any:
        """Return the action as the hooks make it."""
        action = copy.deepcopy(action)
        if self._config.explore is not None:
            action = self._config.explore(action, self._generator)
        if self._config.map_action is not None:
            action = self._config.map_action(action)
        return to_numpy(action)

    def _add(self, columns: dict[str, Any], extras: Mapping[str, Any]) -> None:
        for key, value in extras.items():
            if key in columns:
                raise InvalidArgumentError(
                    f"A policy returned an extra called {key!r}, a name that the collector "
                    "itself records. Rename the extra, or leave out the option."
                )
            columns[key] = to_numpy(value)

    def _batched(self, columns: dict[str, Any], size: int) -> dict[str, Any]:
        batches = {key: _rows(value, size, f"extra {key!r}") for key, value in columns.items()}
        return {key: value for key, value in batches.items() if value is not None}


def _rows(value: Any, size: int, path: str) -> Any:
    """Return a column for a batch: one row per environment; a plain number or text counts for all. None for
    none.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        rows = {key: _rows(part, size, f"{path}.{key}") for key, part in value.items()}
        return {key: part for key, part in rows.items() if part is not None} or None
    if not isinstance(value, list) and (isinstance(value, str | bytes) or _dimensions(value, path) == 0):
        return np.full(size, value)
    check_rows(value, size, path)
    return value


def _dimensions(value: Any, path: str) -> int:
    try:
        return np.ndim(value)
    except ValueError as error:
        raise SpaceMismatchError(
            f"The policy's {path} is a {type(value).__name__} whose parts have different shapes. For a "
            "vector environment, return a mapping of arrays with one row for each environment, or a list "
            "with one value for each."
        ) from error


class Sample:
    """A random policy.

    Args:
        space: the action space.
        seed: of its own copy of the space; None samples the space itself.
    """

    def __init__(self, space: gymnasium.Space, seed: int | None) -> None:
        if seed is not None:
            # A copy: the caller's own space goes on as it was.
            space = copy.deepcopy(space)
            space.seed(seed)
        self.space: Any = space

    def __call__(self, observation: Any, info: Mapping[str, Any], state: Any) -> PolicyOutput:
        """Return a sample."""
        return PolicyOutput(self.space.sample(), state=state)


def _seeded(config: PolicyConfig, space: gymnasium.Space) -> PolicyFunction:
    policy: Any = config.policy
    seed = config.seed
    if policy is None:
        return Sample(space, seed)
    seeding = getattr(policy, "seed", None)
    if seed is not None and callable(seeding):
        seeding(seed)
    return policy


def without_gradients(policy: PolicyFunction) -> PolicyFunction:
    """Return a policy that records no gradients, if it is a module of PyTorch or a method of one.

    A function around a module decides for itself: it may learn while it plays.
    """
    torch: Any = sys.modules.get("torch")
    called = policy.func if isinstance(policy, partial) else policy
    module = getattr(called, "__self__", called)
    if torch is None or not isinstance(module, torch.nn.Module):
        return policy

    def call(observation: Any, info: Mapping[str, Any], state: Any) -> Any:
        with torch.no_grad():
            return policy(observation, info, state)

    return call


def derived_seed(seed: Any, *key: int) -> int | None:
    """Return a seed of 31 bits that follows from another one and a key, and repeats neither; None for None
    and for a function.
    """
    if seed is None or callable(seed):
        return None
    entropy = [int(part or 0) for part in seed] if isinstance(seed, list | tuple) else int(seed)
    (word,) = np.random.SeedSequence(entropy, spawn_key=key).generate_state(1)
    return int(word) >> 1
