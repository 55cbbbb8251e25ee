"""What vector environments hand over, as numpy: batches, flags, and infos with their masks.

Arrays of other libraries are taken by what they can do (`__array__`, DLPack), never by their type, so no
library is imported for it. See Gymnasium's documentation of `VectorEnv` for the form of infos: a dict of
arrays, each with a mask under `_key` that says which environments have the key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from ...store.errors import SpaceMismatchError

#: What a vector environment tells under SAME_STEP of episodes that have just ended.
FINAL = ("final_obs", "_final_obs", "final_info", "_final_info")

Told = tuple[tuple[Any, ...], np.ndarray, np.ndarray | None]


def to_numpy(values: Any) -> Any:
    """Arrays of other libraries in nests of dicts, tuples and lists as numpy arrays; the rest as it is.

    Scalars of numpy are no arrays: as such they would be infos of shape (), and no branch of a OneOf.
    """
    kind = values.__class__
    if kind is np.ndarray or kind is str or isinstance(values, np.generic):
        return values
    if isinstance(values, Mapping):
        return {key: to_numpy(part) for key, part in values.items()}
    if kind is tuple or kind is list:
        return kind(map(to_numpy, values))
    if hasattr(values, "__array__") or hasattr(values, "__dlpack__"):
        return _from_foreign(values)
    return values


def _from_foreign(values: Any) -> Any:
    """Return a foreign array as numpy, wherever its memory is; what cannot be read stays and is refused
    later.
    """
    for step in ("detach", "cpu"):
        # Torch refuses to show memory that is on a device or part of a graph; its own methods help.
        method = getattr(values, step, None)
        if callable(method):
            values = method()
    try:
        return np.asarray(values) if hasattr(values, "__array__") else np.from_dlpack(values)
    except (TypeError, ValueError, RuntimeError, BufferError):
        return values


def flags(values: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return flags as a bool array of the given shape; it may be the caller's own.

    Raises:
        SpaceMismatchError: there are more or fewer.
    """
    found = values if values.__class__ is np.ndarray else np.asarray(to_numpy(values))
    if found.shape != shape:
        raise SpaceMismatchError(
            f"{name} has shape {found.shape}; expected {shape}, one flag for each environment."
        )
    return found if found.dtype == bool else found.astype(bool)


def single(space: gymnasium.Space, values: Any, env: int) -> Any:
    """Return the value of one environment from a batch of values of `space`, or from a list of single
    values.
    """
    if isinstance(space, gymnasium.spaces.Dict) and isinstance(values, Mapping):
        return {key: single(part, values[key], env) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple) and isinstance(values, tuple):
        return tuple(single(part, of_part, env) for part, of_part in zip(space.spaces, values, strict=True))
    return values[env]


def final_value(space: gymnasium.Space, values: Any, env: int) -> Any:
    """Return the last observation of one environment from `final_obs`: an array of single values, or a
    batch.
    """
    return to_numpy(single(space, values, env))


def told(
    infos: Mapping[Any, Any],
    num_envs: int,
    path: tuple[Any, ...] = (),
    present: np.ndarray | None = None,
    keys: Collection[str] | None = None,
) -> Iterator[Told]:
    """Yield `(key path, values, which environments have it)` for each leaf of infos.

    Values have shape (num_envs, ...); None instead of a mask says that all environments have the key. They
    are still the environment's own. Of `infos` itself only `keys` are looked at, all if None.
    """
    for key, value in infos.items():
        if keys is not None and key not in keys:
            continue
        if _is_mask(infos, key, num_envs):
            continue
        mask = _mask_of(infos, key, num_envs)
        here = present if mask is None else mask if present is None else present & mask
        if here is not None and not here.any():
            continue
        inner = (*path, key)
        if isinstance(value, Mapping) and value and all(type(each) is str for each in value):
            yield from told(value, num_envs, inner, here)
        else:
            yield inner, per_env(value, num_envs), here


def info_of(infos: Mapping[Any, Any], env: int, num_envs: int) -> dict[Any, Any]:
    """Return the info of one environment, as it would have told it alone."""
    found: dict[Any, Any] = {}
    for key, value in infos.items():
        mask = _mask_of(infos, key, num_envs)
        if _is_mask(infos, key, num_envs) or (mask is not None and not mask[env]):
            continue
        if isinstance(value, Mapping):
            found[key] = info_of(value, env, num_envs)
        else:
            found[key] = per_env(value, num_envs)[env]
    return found


def _is_mask(infos: Mapping[Any, Any], key: Any, num_envs: int) -> bool:
    if type(key) is not str or not key.startswith("_") or not _is_flags(infos[key], num_envs):
        return False
    return key[1:] in infos or any(type(other) is not str and f"_{other}" == key for other in infos)


def _mask_of(infos: Mapping[Any, Any], key: Any, num_envs: int) -> np.ndarray | None:
    """Return the mask beside a key, if there is one."""
    mask = infos.get(f"_{key}")
    return mask if _is_flags(mask, num_envs) else None


def _is_flags(value: Any, num_envs: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == bool and value.shape == (num_envs,)


def per_env(value: Any, num_envs: int) -> np.ndarray:
    """Return a value for each environment: those of an array or sequence of that length, else one for all."""
    value = to_numpy(value)
    if isinstance(value, np.ndarray) and value.ndim and len(value) == num_envs:
        return value
    each = np.empty(num_envs, object)
    if isinstance(value, Mapping):
        for env in range(num_envs):
            each[env] = info_of(value, env, num_envs)
        return each
    if isinstance(value, list | tuple) and len(value) == num_envs:
        for env, own in enumerate(value):
            each[env] = own
        return each
    for env in range(num_envs):
        each[env] = value
    return each


def rows_of(result: tuple, rows: np.ndarray) -> tuple:
    """Return some rows of what a batch brought: observations, rewards, flags, infos."""
    observations, *values, infos = result
    count = len(np.asarray(to_numpy(values[0])))
    chosen = (np.asarray(to_numpy(value))[rows] for value in values)
    return _rows_of_space(to_numpy(observations), rows), *chosen, _rows_of_infos(infos, rows, count)


def _rows_of_space(values: Any, rows: np.ndarray) -> Any:
    if isinstance(values, Mapping):
        return {key: _rows_of_space(part, rows) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_rows_of_space(part, rows) for part in values)
    return values[rows]


def _rows_of_infos(infos: Mapping[Any, Any], rows: np.ndarray, count: int) -> dict[Any, Any]:
    return {
        key: _rows_of_infos(value, rows, count) if isinstance(value, Mapping) else per_env(value, count)[rows]
        for key, value in infos.items()
    }
