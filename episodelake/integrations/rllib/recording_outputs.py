"""The outputs of RLlib's modules on their way to the environments, for `recording`.

RLlib forwards the sampled actions and the other outputs of the module through a pipeline of connectors. The
last one sees them as they go to `env.step` and into RLlib's episodes, before the environments are stepped.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gymnasium import Space, spaces
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns

#: The policy value with an action before RLlib clipped or rescaled it.
SAMPLED_ACTION = "sampled_action"

Outputs = dict[str, Any]


class ModuleOutputs(ConnectorV2):
    """Passes on what goes through the pipeline unchanged, after `receive` has seen it.

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
    found = dict(batch)
    sampled = found.pop(Columns.ACTIONS, None)
    if found.pop(Columns.ACTIONS_FOR_ENV, None) is not None:
        found[SAMPLED_ACTION] = sampled
    return {name: values for name, values in found.items() if chosen is None or name in chosen}


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
