"""Arrays of other libraries as numpy arrays: one conversion for all recorders and writers.

Arrays of PyTorch, JAX and others are recognised by their protocols (`__array__`, DLPack, or `detach`, `cpu`
and `numpy`), never by their type, so no library is imported. Memory on a device is copied to the host,
gradients are dropped, and numbers that numpy lacks are widened: bfloat16 and 8-bit floats to float32, 4-bit
integers to int8 or uint8. An array of shape () becomes a scalar of numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .arguments import refuse_mask

#: Methods of PyTorch tensors without which numpy may not read them.
_PREPARE = ("detach", "cpu", "resolve_conj", "resolve_neg", "to_dense")
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
_WIDER = (np.int8, np.uint8, np.float32)


def is_foreign(value: Any) -> bool:
    """Return whether a value is an array of another library: no numpy array or scalar, and no class."""
    if isinstance(value, np.ndarray | np.generic | type):
        return False
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__") or is_tensor(value)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a PyTorch tensor, or behaves like one."""
    return all(hasattr(value, name) for name in ("detach", "cpu", "numpy"))


def from_foreign(value: Any) -> Any:
    """Return a foreign array as a numpy array, or as a scalar where its shape is ().

    The value itself is returned where it cannot be read as numbers or text.
    """
    try:
        host = value
        for step in _PREPARE:
            method = getattr(host, step, None)
            host = method() if callable(method) else host
        array = _read(host)
    except Exception:  # `__array__` may be the user's own code: the value is refused later, by its place
        return value
    return value if array.dtype.hasobject else standard(array)[()]


def _read(host: Any) -> np.ndarray:
    """Return the numbers of an array on the host; PyTorch's of a type that numpy lacks as float32."""
    if not hasattr(host, "__array__"):
        return np.asarray(host.numpy()) if is_tensor(host) else np.from_dlpack(host)
    try:
        return np.asarray(host)
    except TypeError:
        widen = getattr(host, "float", None)
        if not callable(widen):
            raise
        return np.asarray(widen())


def standard(array: np.ndarray) -> np.ndarray:
    """Return an array whose dtype belongs to numpy; the array itself where it does, or nothing wider fits."""
    if array.dtype.isbuiltin != 2:  # 2: registered by another package, such as ml_dtypes
        return array
    wider = next((each for each in _WIDER if np.can_cast(array.dtype, each)), None)
    return array if wider is None else array.astype(wider)


def to_numpy(values: Any) -> Any:
    """Return foreign arrays in nests of mappings, tuples and lists as numpy arrays; other values as they are.

    Mappings become dicts, named tuples stay what they are. Scalars of numpy stay scalars: as arrays they
    would be infos of shape (), and no branch of a OneOf.

    Raises:
        SpaceMismatchError: an array has masked elements.
    """
    kind = values.__class__
    if kind is np.ndarray:
        return standard(values)
    if kind in _PLAIN or isinstance(values, np.generic):
        return values
    if isinstance(values, Mapping):
        return {key: to_numpy(part) for key, part in values.items()}
    if isinstance(values, tuple):
        parts = map(to_numpy, values)
        return kind(*parts) if hasattr(values, "_fields") else tuple(parts)
    if isinstance(values, list):
        return [*map(to_numpy, values)]
    refuse_mask(values, "a value of the environment")
    if isinstance(values, np.ndarray):
        return standard(np.asarray(values))
    return from_foreign(values) if is_foreign(values) else values


def as_array(value: Any) -> np.ndarray:
    """Return `numpy.asarray(value)`, also where it or its parts are foreign arrays.

    Raises:
        TypeError, ValueError, RuntimeError: as `numpy.asarray`.
    """
    if value.__class__ is np.ndarray:
        return standard(value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError):
        return np.asarray(to_numpy(value))
    return np.asarray(to_numpy(value)) if array.dtype.hasobject else standard(array)
