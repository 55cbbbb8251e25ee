"""Policy values that were logged for environments, until the next call records them."""

from __future__ import annotations

from collections.abc import ItemsView, Mapping
from typing import Any

import numpy as np

from ...store.errors import SpaceMismatchError
from ..buffers.dynamic_blocks import DynamicEntry, owned_values
from ..buffers.vector_buffer import VectorBuffer
from .vector_values import per_env, to_numpy, told

#: Values with one entry for each environment, and which of these they are for; None: all.
_Logged = tuple[np.ndarray, np.ndarray | None]


class LoggedValues:
    """Values of `num_envs` environments by key path; false while there are none."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._values: dict[tuple[Any, ...], _Logged] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def items(self) -> ItemsView[tuple[Any, ...], _Logged]:
        """Return values and mask by key path."""
        return self._values.items()

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()

    def add(self, values: Mapping[str, Any], mask: Any) -> None:
        """Keep values of the environments in `mask`; None: of all.

        Raises:
            SpaceMismatchError: a value has not one entry for each environment.
        """
        chosen = None if mask is None else self._checked_mask(mask)
        for path, found, _ in told(_checked(values, self._num_envs), self._num_envs):
            fresh = owned_values(found)
            known = self._values.get(path)
            if chosen is None or known is None:
                self._values[path] = fresh, chosen
            else:
                self._values[path] = _merged(known, fresh, chosen)

    def use_up(self, envs: np.ndarray | None) -> None:
        """Forget what was logged for these environments; None: for all."""
        if envs is None or not self._values:
            self._values.clear()
            return
        for path, (values, mask) in list(self._values.items()):
            left = np.ones(self._num_envs, bool) if mask is None else mask.copy()
            left[envs] = False
            self._values[path] = values, left

    def put(self, block: VectorBuffer, rows: np.ndarray, envs: np.ndarray) -> None:
        """Put what was logged for the environments `envs` into `rows`, one for each."""
        for path, (values, mask) in self._values.items():
            if mask is None:
                block.policies.add(DynamicEntry(path, rows, values[envs]))
            else:
                here = mask[envs]
                block.policies.add(DynamicEntry(path, rows[here], values[envs[here]]))

    def among(self, envs: np.ndarray) -> np.ndarray:
        """Return those of some environments that have a value."""
        has = np.zeros(self._num_envs, bool)
        for _, mask in self._values.values():
            has |= True if mask is None else mask
        return envs[has[envs]]

    def _checked_mask(self, mask: Any) -> np.ndarray:
        found = np.asarray(to_numpy(mask))
        if found.dtype != bool or found.shape != (self._num_envs,):
            raise SpaceMismatchError(
                f"mask is {found.dtype} of shape {found.shape}; expected bool of shape ({self._num_envs},)."
            )
        return found.copy()


def _checked(values: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return logged values as arrays with one entry for each environment."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found[key] = _checked(value, num_envs)
            continue
        array = to_numpy(value)
        many = array.ndim > 0 if isinstance(array, np.ndarray) else isinstance(array, list | tuple)
        if not many or len(array) != num_envs:
            raise SpaceMismatchError(
                f"The logged value {key!r} is {_described(array)}; expected one entry for each of the "
                f"{num_envs} environments. Repeat what all of them share: numpy.full({num_envs}, value)."
            )
        found[key] = per_env(array, num_envs)
    return found


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__} of length {len(value)}" if hasattr(value, "__len__") else repr(value)


def _merged(known: _Logged, fresh: np.ndarray, mask: np.ndarray) -> _Logged:
    """Return logged values with those of the environments in `mask` replaced."""
    old, before = known
    if old.dtype == fresh.dtype and old.shape == fresh.shape:
        merged = old.copy()
    else:
        merged = np.empty(len(old), object)
        merged[:] = list(old)
        fresh = np.array([None, *fresh], object)[1:]
    merged[mask] = fresh[mask]
    return merged, None if before is None else before | mask
