"""A batch of tensors in one piece of memory, for its way from a worker process to the parent.

Torch hands tensors from process to process by descriptors of shared memory, one for each, which costs more
than the batch itself. A packed batch is one tensor and needs one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from .tree import Tree, map_leaves
from .units.unit import Batch

#: Where tensors begin: at a cache line.
_ALIGNMENT = 64


@dataclass(frozen=True)
class _Part:
    """Where in the memory a tensor is."""

    start: int
    stop: int
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class PackedBatch:
    """Tensors in one piece of memory.

    Attributes:
        memory: uint8, shape (n,).
        parts: where each tensor is, nested as they are.
    """

    memory: torch.Tensor
    parts: Tree

    def pin_memory(self) -> Self:
        """The same in pinned memory; DataLoader's thread for that asks."""
        return type(self)(self.memory.pin_memory(), self.parts)

    def unpacked(self) -> Batch:
        """The tensors; they share the memory."""

        def unpack(part: _Part) -> torch.Tensor:
            return self.memory[part.start : part.stop].view(part.dtype).view(part.shape)

        return map_leaves(unpack, self.parts)


def pack(tensors: Batch) -> PackedBatch:
    """Copy the tensors of a batch into one piece of memory."""
    flat: list[torch.Tensor] = []
    stop = 0

    def place(tensor: torch.Tensor) -> _Part:
        nonlocal stop
        start = -(-stop // _ALIGNMENT) * _ALIGNMENT
        stop = start + tensor.nbytes
        flat.append(tensor)
        return _Part(start, stop, tensor.shape, tensor.dtype)

    parts = map_leaves(place, tensors)
    packed = PackedBatch(torch.empty(stop, dtype=torch.uint8), parts)
    following = iter(flat)
    map_leaves(lambda into: into.copy_(next(following)), packed.unpacked())
    return packed
