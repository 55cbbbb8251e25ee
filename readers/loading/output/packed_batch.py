"""A batch of tensors in one piece of memory, for its way from a worker process to the parent.

Torch hands tensors from process to process by descriptors of shared memory, one for each, which costs more
than the batch itself. A packed batch is one tensor and needs one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from ..units.unit import Batch
from .tree import Tree, lay_out, map_leaves, unpack


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
