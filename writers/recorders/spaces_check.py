"""Whether an environment is one of a store: a recorder takes only those of its own spaces."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium

from ...store.errors import SpaceMismatchError
from ...store.schema import StepSchema


def check_spaces(schema: StepSchema, given: Mapping[str, gymnasium.Space]) -> None:
    """Compare the two spaces of an environment, observation and action, with the store's.

    Args:
        given: the spaces under their names, for the message.

    Raises:
        SpaceMismatchError: one is another.
    """
    for (name, space), expected in zip(
        given.items(), (schema.observation_space, schema.action_space), strict=True
    ):
        if space != expected:
            raise SpaceMismatchError(
                f"The environment's {name} is {space}; the store's is {expected}. Record into a store that "
                "was created with this environment's spaces."
            )
