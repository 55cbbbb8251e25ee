"""Outputs of a policy, and the rule that tells their three forms apart.

    action | (action, extras) | (action, extras, state)

A tuple of two or three items whose second item is a mapping or None is one of the latter two; anything else
is an action. Where actions are tuples themselves (Tuple, Sequence, OneOf, Graph and custom spaces) that would
be a guess, so there every plain tuple is an action, and extras need a `PolicyOutput`, which is never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium import spaces

from ...store.errors import InvalidArgumentError

Policy = Callable[[Any, Mapping[str, Any], Any], Any]
#: One policy, or of several agents each its own, by agent or group; None samples.
AnyPolicy = Policy | Mapping[str, Policy | None]

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
        InvalidArgumentError: extras of a `PolicyOutput` are no mapping, or have a key that is no text.
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
        return output, None, None
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
