"""Batches as torch tensors or as a TensorDict, on the CPU or on another device.

On the CPU a tensor shares the memory of the gathered array, which has no other owner. For a CUDA or XPU
device it is copied into pinned memory, from where the device fetches it while the program goes on
(https://docs.pytorch.org/docs/stable/notes/cuda.html, "Use pinned memory buffers").

Between processes torch hands over tensors by descriptors of shared memory, one for each, which costs more
than the batch itself. So a worker packs a batch into one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from ...store.errors import InvalidArgumentError
from ..columns.tree import Tree, lay_out, leaves, map_leaves, unpack
from .units import Batch

#: Devices that fetch from pinned memory by themselves.
_PINNING = ("cuda", "xpu")


def usable_device(device: Any) -> torch.device | None:
    """Return a device of torch; None for the CPU.

    Raises:
        InvalidArgumentError: torch knows no such device, or cannot use it here.
    """
    if device is None:
        return None
    try:
        usable = torch.device(device)
        torch.empty(0, device=usable)
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgumentError(
            f"device={device!r}: torch cannot use it here ({reason}). Name one that is here, such as 'cpu'."
        ) from error
    return None if usable.type == "cpu" else usable


def needs_pinning(device: torch.device | None) -> bool:
    """Return whether tensors go to a device by way of pinned memory."""
    return device is not None and device.type in _PINNING


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; from the CPU, where it can, the copy goes on while the program does."""
    pinned = tensor.device.type == "cpu" and needs_pinning(device)
    return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)


def as_tensor(leaf: Any) -> torch.Tensor:
    """Return a tensor with the memory of an array; with its own where torch cannot share it.

    Raises:
        TypeError, ValueError: torch has no such values.
    """
    if isinstance(leaf, torch.Tensor):
        return leaf
    array = np.asarray(leaf)
    # Torch supports neither negative strides nor read-only tensors.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


@dataclass(frozen=True)
class TorchOutput:
    """Tensors, nested as the arrays are.

    Attributes:
        device: where they are to be; None for the CPU.
    """

    device: torch.device | None = None

    def __call__(self, batch: Batch) -> Any:
        """See `BatchOutput`."""
        return self.finish(self.prepare(batch))

    def prepare(self, batch: Batch) -> Batch:
        """Return tensors on the CPU, pinned if the device fetches them.

        Raises:
            InvalidArgumentError: torch has no such values; the message names the key.
        """
        made: Batch = {}
        for key, value in batch.items():
            try:
                made[key] = map_leaves(as_tensor, value)
            except (TypeError, ValueError) as error:
                raise InvalidArgumentError(
                    f"{_described(key, value)} cannot be a torch tensor: {error}"
                ) from error
        return map_leaves(torch.Tensor.pin_memory, made) if needs_pinning(self.device) else made

    def finish(self, batch: Batch) -> Any:
        """Return the final batch: its tensors on the device, in the order of the caller's stream there."""
        device = self.device
        return batch if device is None else map_leaves(lambda tensor: moved(tensor, device), batch)

    def on_cpu(self) -> TorchOutput:
        """Return the same on the CPU."""
        return replace(self, device=None)


@dataclass(frozen=True)
class TensorDictOutput(TorchOutput):
    """A TensorDict of batch size (b,); a Dict is a TensorDict in it, a Tuple one with keys "0", "1", ..."""

    def finish(self, batch: Batch) -> Any:
        """See `TorchOutput`."""
        from tensordict import TensorDict

        named = {key: _with_names(value) for key, value in super().finish(batch).items()}
        try:
            size = next(len(leaf) for _, leaf in leaves(batch))
            return TensorDict(named, batch_size=[size], device=self.device)
        except (RuntimeError, TypeError) as error:
            shapes = ", ".join(f"{name}: {tuple(leaf.shape)}" for name, leaf in leaves(batch))
            raise InvalidArgumentError(
                "These values do not make one TensorDict, which needs the same first axis everywhere: "
                f"{shapes}."
            ) from error


def _with_names(tree: Tree) -> Tree:
    """Turn tuples into dicts."""
    if isinstance(tree, tuple):
        tree = {str(number): part for number, part in enumerate(tree)}
    return {key: _with_names(part) for key, part in tree.items()} if isinstance(tree, dict) else tree


def _described(key: str, value: Any) -> str:
    dtypes = dict.fromkeys(str(getattr(leaf, "dtype", type(leaf).__name__)) for _, leaf in leaves(value))
    return f"{key!r} ({', '.join(dtypes)})"


@dataclass(frozen=True)
class PackedBatch:
    """Tensors in one piece of memory.

    Attributes:
        memory: uint8, shape (n,).
        slots: the place of each tensor, nested as they are.
    """

    memory: torch.Tensor
    slots: Tree

    def pin_memory(self) -> Self:
        """Return a copy in pinned memory; DataLoader's pinning thread calls it."""
        return type(self)(self.memory.pin_memory(), self.slots)

    def unpacked(self) -> Batch:
        """Return the tensors; they share the memory."""
        return unpack(self.slots, self.memory)


def pack(tensors: Batch) -> PackedBatch:
    """Copy the tensors of a batch into one piece of memory."""
    slots, size = lay_out(tensors)
    packed = PackedBatch(torch.empty(size, dtype=torch.uint8), slots)
    map_leaves(lambda into, tensor: into.copy_(tensor), packed.unpacked(), tensors)
    return packed
