"""`InFlight`: the environments of a pool that were sent something and have not come back yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from .vector_values import to_numpy


class InFlight:
    """Environments in flight.

    Args:
        pool: the pool.
        action_space: the action space of one environment.
        num_envs: how many environments the pool has.

    Attributes:
        mask: bool, shape (num_envs,): which environments are in flight.
        batch_size: how many environments one `recv` waits for; None if the pool does not say.
    """

    def __init__(self, pool: Any, action_space: gymnasium.Space, num_envs: int) -> None:
        self._pool = pool
        self._action_space = action_space
        self.mask = np.zeros(num_envs, bool)
        self.batch_size = _batch_size(pool, num_envs)

    @property
    def missing(self) -> int:
        """How many more environments must be sent something before `recv` can return."""
        return max(0, (self.batch_size or 0) - int(np.count_nonzero(self.mask)))

    def landed(self, infos: Mapping[str, Any]) -> None:
        """Take out the environments of a batch; one without ids is refused where it is recorded."""
        if "env_id" in infos:
            self.mask[np.asarray(to_numpy(infos["env_id"]), np.int64)] = False

    def drain(self) -> None:
        """Receive and drop all that is in flight.

        EnvPool hands out full batches only, and ends the process where environments in flight are reset. So
        a last batch that is not full is filled with random steps of environments that have come back.
        """
        size = self.batch_size
        rest = int(np.count_nonzero(self.mask)) % size if size else 0
        if size and rest:
            idle = np.flatnonzero(~self.mask)[: size - rest]
            self._pool.send(batch_space(self._action_space, len(idle)).sample(), idle.astype(np.int32))
            self.mask[idle] = True
        while self.mask.any():
            self.landed(self._pool.recv()[-1])


def _batch_size(pool: Any, num_envs: int) -> int | None:
    config = getattr(pool, "config", None)
    found = config.get("batch_size") if isinstance(config, Mapping) else None
    found = getattr(pool, "batch_size", None) if found is None else found
    if not isinstance(found, int | np.integer):
        return None
    return min(int(found), num_envs) if found > 0 else num_envs
