"""Episodes without their last observation, as sources have them that hold T observations of T transitions."""

from __future__ import annotations

from typing import Any, Literal, get_args

from ...store.errors import InvalidArgumentError
from ...store.schema import MISSING, StepSchema

LastObservation = Literal["present", "missing"]


def is_last_missing(schema: StepSchema, value: Any) -> bool:
    """Return whether `last_observation` states that episodes lack their last observation.

    Raises:
        InvalidArgumentError: it has no such value, or the store cannot hold such an episode.
    """
    if not isinstance(value, str) or value not in get_args(LastObservation):
        raise InvalidArgumentError(
            f"last_observation={value!r:.200} is unknown; expected 'present' or 'missing'."
        )
    if value == MISSING:
        check_last_missing(schema)
    return value == MISSING


def check_last_missing(schema: StepSchema) -> None:
    """Refuse an episode without its last observation where no column can show that it is missing.

    Raises:
        InvalidArgumentError: the observation space has no column that is never NULL otherwise.
    """
    if not schema.observation.required:
        raise InvalidArgumentError(
            f"A missing observation shows as NULL, but {schema.observation_space} has no column in which "
            "other observations are never NULL. Leave out the last transition of each episode instead."
        )
