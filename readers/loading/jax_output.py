"""Batches as JAX arrays.

Without `jax_enable_x64` JAX has no types of 64 bits: float64 becomes float32, and integers become int32 or
uint32 (https://docs.jax.dev/en/latest/default_dtypes.html). That is JAX's rule and is kept, but an
integer that does not fit is an error and not another number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...store.common.optional_packages import require
from ...store.errors import InvalidArgumentError
from ..columns.tree import map_leaves
from .unit import Batch


def find_device(device: Any) -> str | None:
    """Return the name of a device of JAX, such as "gpu" or "gpu:1"; None for JAX's own choice.

    Raises:
        InvalidArgumentError: there is no such device here.
    """
    if device is None:
        return None
    jax = _jax()
    name = f"{device.platform}:{device.id}" if isinstance(device, jax.Device) else str(device)
    _device(name)
    return name


def _jax() -> Any:
    # Not at the top of the module: importing JAX starts threads, and a process that forks is better without.
    return require("jax", "output='jax'")


def _device(name: str) -> Any:
    jax = _jax()
    platform, _, number = name.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        there = ", ".join(f"{device.platform}:{device.id}" for device in jax.devices())
        raise InvalidArgumentError(
            f"device={name!r}: JAX has no such device here. There are: {there}."
        ) from error


@dataclass(frozen=True)
class JaxOutput:
    """JAX arrays, nested as the numpy arrays are.

    Attributes:
        device: the name of the device where they are to be; None for JAX's own choice.
    """

    device: str | None = None

    def __call__(self, batch: Batch) -> Batch:
        """See `BatchOutput`.

        Raises:
            InvalidArgumentError: JAX has no such values; the message names the key.
        """
        jax = _jax()
        device = None if self.device is None else _device(self.device)
        made: Batch = {}
        for key, value in batch.items():
            try:
                made[key] = map_leaves(lambda leaf: jax.device_put(_checked(jax, leaf), device), value)
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidArgumentError(f"{key!r} cannot be a JAX array: {error}") from error
        return made


def _checked(jax: Any, leaf: Any) -> Any:
    """Return an array of the same values, if JAX has them all.

    Raises:
        OverflowError: an integer has more than 32 bits, and JAX is set to take no more.
    """
    if isinstance(leaf, jax.Array):
        return leaf
    leaf = np.asarray(leaf)
    wide = leaf.dtype.kind in "iu" and leaf.itemsize == 8
    if wide and leaf.size and not jax.config.read("jax_enable_x64"):
        limits = np.iinfo(f"{leaf.dtype.kind}4")
        low, high = leaf.min(), leaf.max()
        if low < limits.min or high > limits.max:
            raise OverflowError(
                f"{leaf.dtype} values from {low} to {high} do not fit {limits.dtype}, which JAX uses. Set "
                "jax.config.update('jax_enable_x64', True), or cast the column."
            )
    return leaf
