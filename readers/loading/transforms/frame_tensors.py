"""`ToTensor`: frames as float32 from 0 to 1 with the channels in front, as image models take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ....store.common.arguments import one_of
from ....store.errors import InvalidArgumentError
from ...columns.tree import Tree, leaves
from ..units import Batch
from .key_transforms import change, key_tuple

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class ToTensor:
    """Gives frames as float32 from 0 to 1 with the axes (..., C, H, W).

    Arrays of numpy and tensors of torch, which stay on their device, are converted in one go. In `transforms`
    it converts where batches are made; called with a batch that was taken, where that batch is.

    Args:
        keys: a key of the batch or several, or parts of nested values by dotted names. `observation` stands
            for `next_observation` too.
        axes: those of a frame: "HWC", "CHW" or "HW", which gets one channel. Axes before these stay.

    Raises:
        InvalidArgumentError: `axes` are others.
    """

    keys: str | Sequence[str]
    axes: Literal["HWC", "CHW", "HW"] = "HWC"

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        one_of("axes", self.axes, ("HWC", "CHW", "HW"))

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with fresh arrays under these keys: values divided by the largest of their dtype.

        Raises:
            InvalidArgumentError: there is no such key, or its values are of another dtype or axes.
        """
        return change(batch, key_tuple(self.keys), self._converted)

    def _converted(self, values: Tree, name: str, key: str) -> Any:
        if isinstance(values, dict | tuple):
            inner = ", ".join(part for part, _ in leaves(values, name))
            raise InvalidArgumentError(f"{name!r} is nested; name the frames in it: {inner}.")
        kind, shape = str(values.dtype).removeprefix("torch."), tuple(values.shape)
        channels = {"HWC": -1, "CHW": -3}.get(self.axes)
        fits = len(shape) >= len(self.axes) and (channels is None or shape[channels] in _CHANNELS)
        if kind not in ("uint8", "uint16") or not fits:
            raise InvalidArgumentError(
                f"ToTensor(axes={self.axes!r}): {name!r} is {kind} of shape {shape}; expected uint8 or "
                f"uint16 of (..., {', '.join(self.axes)}) with 1, 3 or 4 channels C. Other axes: axes=."
            )
        largest = np.iinfo(kind).max
        if not isinstance(values, np.ndarray):
            return _of_torch(values, self.axes, largest)
        if self.axes == "HW":
            values = values[..., None, :, :]
        elif self.axes == "HWC":
            values = np.moveaxis(values, -1, -3)
        made = np.empty(values.shape, np.float32)
        return np.divide(values, np.float32(largest), out=made, dtype=np.float32)


def _of_torch(values: Any, axes: str, largest: int) -> Any:
    import torch

    if axes == "HW":
        values = values.unsqueeze(-3)
    elif axes == "HWC":
        values = values.movedim(-1, -3)
    return values.to(torch.float32, memory_format=torch.contiguous_format).div_(largest)
