"""The part of an observation that is stored, where the policy needs more than the store keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from ...store.common.arguments import expect
from ...store.errors import InvalidArgumentError
from .vector_values import single

#: A function from an observation of the environment to the stored one, a key of a Dict space, or several.
ObservationChoice = Callable[[Any], Any] | str | Sequence[str]


class ObservedPart:
    """The argument `observation` of `record`: which part of an observation is stored.

    Args:
        space: of one environment's observations.
        choice: the argument.

    Attributes:
        space: of the part; None where a function gives it, whose values are checked as they come.

    Raises:
        InvalidArgumentError: the choice is none of these, the space is no Dict, or it lacks a key.
    """

    def __init__(self, space: gymnasium.Space, choice: ObservationChoice) -> None:
        self._whole = space
        self.space: gymnasium.Space | None = None
        if callable(choice):
            self._choose: Callable[[Any], Any] = choice
            return
        keys = (choice,) if isinstance(choice, str) else choice
        expected = "a function from an observation to the stored one, or keys of a Dict space"
        valid = isinstance(keys, list | tuple) and keys and all(isinstance(key, str) for key in keys)
        expect(valid, "observation", choice, expected)
        known = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
        missing = [key for key in keys if key not in known]
        if missing:
            raise InvalidArgumentError(
                f"observation={choice!r}: the environment's observation space has no key {missing[0]!r}; it "
                f"is {space}. Give keys of a Dict space, or a function."
            )
        if isinstance(choice, str):
            self.space = known[choice]
            self._choose = lambda observation: observation[choice]
        else:
            self.space = gymnasium.spaces.Dict({key: known[key] for key in keys})
            self._choose = lambda observation: {key: observation[key] for key in keys}

    @staticmethod
    def of(space: gymnasium.Space, choice: ObservationChoice | None) -> ObservedPart | None:
        """Return the chosen part; None if observations are stored completely."""
        return None if choice is None else ObservedPart(space, choice)

    def one(self, observation: Any) -> Any:
        """Return the part of one observation."""
        return self._choose(observation)

    def each(self, observations: Any, count: int) -> list[Any]:
        """Return the parts of the observations of a batch."""
        return [self._choose(single(self._whole, observations, place)) for place in range(count)]

    def final(self, observations: Any, env: int) -> Any:
        """Return the part of one environment's last observation, from `final_obs`."""
        return self._choose(single(self._whole, observations, env))


def part_space(part: ObservedPart | None, whole: gymnasium.Space, stored: gymnasium.Space) -> gymnasium.Space:
    """Return the space to compare with the stored one, which is that one where only values show it."""
    if part is None:
        return whole
    return stored if part.space is None else part.space
