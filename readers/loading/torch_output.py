"""Batches as torch tensors or as a TensorDict, on the CPU or on another device.

On the CPU a tensor shares the memory of the gathered array, which has no other owner. For a CUDA or XPU
device batches are gathered into pinned memory, from where the device fetches them while the program goes on
(https://docs.pytorch.org/docs/stable/notes/cuda.html, "Use pinned memory buffers"). Torch hands out a piece
of it again once its tensors are gone and the copies from it have run.

Between processes torch hands over tensors by descriptors of shared memory, one for each, which costs more
than the batch itself. So a worker packs a batch into one tensor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch

from ...store.errors import InvalidArgumentError
from ..columns.ragged import Ragged
from ..columns.texts import is_text
from ..columns.tree import ALIGNMENT, Tree, lay_out, leaves, map_leaves, taken_into, unpack
from .ragged_output import RaggedForm, padded
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


def moved(leaf: torch.Tensor | np.ndarray, device: torch.device) -> torch.Tensor:
    """Return a tensor, or an array in pinned memory, on a device; from the CPU the copy goes on while the
    program does, where the device can.
    """
    if isinstance(leaf, np.ndarray):
        piece = _Piece.of(leaf)
        assert piece is not None
        return piece.moved(leaf, device)
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        values, offsets = (moved(part, device) for part in _parts(leaf))
        return torch.nested.nested_tensor_from_jagged(values, offsets)
    pinned = leaf.device.type == "cpu" and needs_pinning(device)
    return (leaf.pin_memory() if pinned else leaf).to(device, non_blocking=pinned)


class PinnedMemory:
    """Makes the arrays that batches are gathered into: pieces of pinned memory, one for each gather.

    Args:
        whole: whether a piece goes to the device as a whole, since nothing changes a batch before that.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._piece: np.ndarray | None = None
        #: Bytes of the piece that are taken, of this gather's pieces before it, and of the last gather.
        self._used, self._before, self._expected = 0, 0, 0

    def gathered(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        """Yield the batches of a generator, whose gathers then copy into pinned memory."""
        with contextlib.closing(batches):
            while True:
                self._expected = self._before + self._used or self._expected
                self._piece, self._used, self._before = None, 0, 0
                with taken_into(self._array):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
                del batch

    def _array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        if self._piece is None or start + size > len(self._piece):
            self._before, start = self._before + self._used, 0
            bytes_ = -(-max(size, self._expected) // ALIGNMENT) * ALIGNMENT
            self._piece = np.asarray(_Piece(pinned_bytes(bytes_), self._whole))
        self._used = start + size
        return self._piece[start : start + size].view(dtype).reshape(shape)


class _Piece:
    """A piece of pinned memory; the base of the arrays in it.

    Attributes:
        whole: whether it goes to the device as a whole.
    """

    def __init__(self, memory: torch.Tensor, whole: bool) -> None:
        self._memory, self.whole = memory, whole
        self.__array_interface__ = memory.numpy().__array_interface__
        #: The stream in which it was last copied as a whole, and the copy, by the dtype it is seen as.
        self._stream: int | None = None
        self._copies: dict[np.dtype, torch.Tensor] = {}

    @staticmethod
    def of(array: Any) -> _Piece | None:
        """Return the piece that contains a contiguous array; None if there is none."""
        owner = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        return owner if isinstance(owner, _Piece) and array.size and array.flags.c_contiguous else None

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """Return an array as a pinned tensor."""
        return self._part(self._memory.view(_dtype(array.dtype)), array)

    def moved(self, array: np.ndarray, device: torch.device) -> torch.Tensor:
        """Return an array as a tensor on a device; its piece is copied once per stream."""
        stream = torch.accelerator.current_stream(device).stream_id
        if stream != self._stream:
            copy = self._memory.to(device, non_blocking=True)
            self._stream, self._copies = stream, {np.dtype(np.uint8): copy}
        if array.dtype not in self._copies:
            self._copies[array.dtype] = self._copies[np.dtype(np.uint8)].view(_dtype(array.dtype))
        return self._part(self._copies[array.dtype], array)

    def _part(self, memory: torch.Tensor, array: np.ndarray) -> torch.Tensor:
        start = array.__array_interface__["data"][0] - self.__array_interface__["data"][0]
        strides = [stride // array.itemsize for stride in array.strides]
        return memory.as_strided(array.shape, strides, start // array.itemsize)


def pinned_bytes(size: int) -> torch.Tensor:
    """Return uninitialised pinned memory: uint8, shape (size,)."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


@lru_cache(64)
def _dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _host_tensor(leaf: Any) -> Any:
    """Return a pinned tensor; an array stays one if its whole piece goes to the device.

    Raises:
        TypeError, ValueError: torch has no such values.
    """
    if isinstance(leaf, Ragged):
        return _nested(leaf, lambda array: as_tensor(array).pin_memory())
    piece = _Piece.of(leaf)
    if piece is None:
        return as_tensor(leaf).pin_memory()
    return leaf if piece.whole else piece.tensor(leaf)


def as_tensor(leaf: Any) -> torch.Tensor:
    """Return a tensor with the memory of an array; with its own where torch cannot share it.

    Raises:
        TypeError, ValueError: torch has no such values.
    """
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, Ragged):
        return _nested(leaf, as_tensor)
    array = np.asarray(leaf)
    # Torch supports neither negative strides nor read-only tensors.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _nested(rows: Ragged, converted: Callable[[np.ndarray], torch.Tensor]) -> torch.Tensor:
    """Return rows of different lengths as a nested tensor in the jagged layout.

    Raises:
        TypeError: they have more than one axis, or values that differ in length themselves.
    """
    if len(rows.leading) > 1 or isinstance(rows.values, Ragged):
        raise TypeError(
            f"{rows!r} has further axes of rows, or rows within rows, which nested tensors lack. Pad them "
            "with output=el.Output('torch', ragged='padded')"
        )
    return torch.nested.nested_tensor_from_jagged(converted(rows.values), converted(rows.offsets))


def _apart(leaf: torch.Tensor) -> Tree:
    """Return a tensor, or the values and offsets of a nested one, under a key that no space has."""
    return {Ragged: _parts(leaf)} if leaf.is_nested else leaf


def _parts(nested: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return nested.values(), nested.offsets()


def _together(tree: Tree) -> Tree:
    """Return the tensors that `_apart` took apart."""
    if isinstance(tree, tuple):
        return tuple(map(_together, tree))
    if not isinstance(tree, dict):
        return tree
    if Ragged in tree:
        return torch.nested.nested_tensor_from_jagged(*tree[Ragged])
    return {key: _together(part) for key, part in tree.items()}


@dataclass(frozen=True)
class TorchOutput:
    """Tensors, nested as the arrays are.

    Attributes:
        device: where they are to be; None for the CPU.
        ragged: see `Output`.
    """

    device: torch.device | None = None
    ragged: RaggedForm = None

    def __call__(self, batch: Batch) -> Any:
        """See `BatchOutput`."""
        return self.finish(self.prepare(batch))

    def prepare(self, batch: Batch) -> Batch:
        """Return tensors on the CPU, pinned if the device fetches them; texts stay arrays of numpy.

        Raises:
            InvalidArgumentError: torch has no such values; the message names the key.
        """
        made: Batch = {}
        converted = _host_tensor if needs_pinning(self.device) else as_tensor
        for key, value in padded(batch, self.ragged).items():
            try:
                made[key] = value if is_text(value) else map_leaves(converted, value)
            except (TypeError, ValueError) as error:
                raise InvalidArgumentError(
                    f"{_described(key, value)} cannot be a torch tensor: {error}"
                ) from error
        return made

    def memory(self, *, unchanged: bool) -> PinnedMemory | None:
        """See `BatchOutput`."""
        return PinnedMemory(whole=unchanged) if needs_pinning(self.device) else None

    def finish(self, batch: Batch) -> Any:
        """Return the final batch: its tensors on the device, in the order of the caller's stream there."""
        device = self.device
        if device is None:
            return batch
        return map_leaves(lambda leaf: leaf if is_text(leaf) else moved(leaf, device), batch)

    def on_cpu(self) -> TorchOutput:
        """Return the same on the CPU."""
        return replace(self, device=None)


@dataclass(frozen=True)
class TensorDictOutput(TorchOutput):
    """A TensorDict of batch size (b,); a Dict is a TensorDict in it, a Tuple one with keys "0", "1", ..."""

    def finish(self, batch: Batch) -> Any:
        """See `TorchOutput`."""
        from tensordict import TensorDict

        texts = [key for key, value in batch.items() if is_text(value)]
        if texts:
            raise InvalidArgumentError(
                f"{', '.join(map(repr, texts))}: a TensorDict holds tensors, no texts. Map them to numbers "
                "with a transform of batches, or choose output='torch'."
            )
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
        slots: the place of each tensor, nested as they are; arrays of texts, which are in no memory of
            torch, themselves.
    """

    memory: torch.Tensor
    slots: Tree

    def pin_memory(self) -> Self:
        """Return a copy in pinned memory; DataLoader's pinning thread calls it."""
        return type(self)(self.memory.pin_memory(), self.slots)

    def unpacked(self) -> Batch:
        """Return the tensors; they share the memory."""
        tensors = self.parts()
        return {key: _together(tensors[key]) if key in tensors else slot for key, slot in self.slots.items()}

    def parts(self) -> dict[str, Tree]:
        """Return the tensors, nested ones taken apart."""
        return unpack({key: slot for key, slot in self.slots.items() if not is_text(slot)}, self.memory)


def pack(tensors: Batch) -> PackedBatch:
    """Copy the tensors of a batch into one piece of memory."""
    numbers = {key: map_leaves(_apart, tensor) for key, tensor in tensors.items() if not is_text(tensor)}
    slots, size = lay_out(numbers)
    packed = PackedBatch(
        torch.empty(size, dtype=torch.uint8), {key: slots.get(key, text) for key, text in tensors.items()}
    )
    map_leaves(lambda into, tensor: into.copy_(tensor), packed.parts(), numbers)
    return packed
