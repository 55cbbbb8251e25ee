"""Resets of some environments of a vector environment: who is reset together, and the infos afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_NUMBERS = "biufc"


def merge_infos(before: Mapping[str, Any], after: Mapping[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Return the infos of all environments: of the reset where `mask` is set, the earlier ones elsewhere.

    Args:
        before: what the last step returned, in the form of Gymnasium's vector environments: arrays of shape
            (num_envs, ...) beside their masks `_key`. It is not changed.
        after: what the reset returned, which holds nothing of the other environments.
        mask: bool, shape (num_envs,).
    """
    found: dict[str, Any] = {}
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            earlier, later = (part if isinstance(part, Mapping) else {} for part in (old, new))
            found[key] = merge_infos(earlier, later, mask)
        else:
            found[key] = _merged(key, old, new, mask)
    return found


def _merged(key: str, old: Any, new: Any, mask: np.ndarray) -> Any:
    if not isinstance(old, np.ndarray) or old.shape[:1] != mask.shape:
        return old if new is None else new
    if new is None:
        # The masks tell which values count: those of the environments that were reset no longer do.
        return old & ~mask if key.startswith("_") and old.dtype == bool else old
    if not isinstance(new, np.ndarray) or old.shape != new.shape:
        return new
    numbers = old.dtype.kind in _NUMBERS and new.dtype.kind in _NUMBERS
    found = old.astype(np.result_type(old, new) if numbers else object)
    found[mask] = new[mask]
    return found


def alike(mask: np.ndarray, options: Sequence[Any]) -> Iterator[np.ndarray]:
    """Yield masks of neighbours that can be reset together, in the order of their indices.

    Only neighbours, so that episodes are begun in the order of their environments.

    Args:
        mask: bool, shape (num_envs,): those to be reset.
        options: of each environment's reset; Gymnasium gives all the same.
    """
    envs = np.flatnonzero(mask).tolist()
    start = 0
    for stop in range(1, len(envs) + 1):
        if stop == len(envs) or not _equal(options[envs[stop]], options[envs[start]]):
            some = np.zeros_like(mask)
            some[envs[start:stop]] = True
            yield some
            start = stop


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (TypeError, ValueError):  # arrays have no single truth
        return False
