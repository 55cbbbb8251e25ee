"""The kinds of arrays in batches: numpy, torch, JAX or TensorDict.

The packages are optional, and imported when their output is chosen.

Without `jax_enable_x64` JAX has no types of 64 bits: float64 becomes float32, and integers become int32 or
uint32 (https://docs.jax.dev/en/latest/default_dtypes.html). That is JAX's rule and is kept, but an
integer that does not fit is an error and not another number.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ...store.common.arguments import expect, whole_number
from ...store.common.optional_packages import require
from ...store.errors import InvalidArgumentError
from ..columns.ragged import Ragged
from ..columns.tree import map_leaves
from .ragged_output import RaggedForm, padded
from .units import Batch

if TYPE_CHECKING:
    from .torch_output import PinnedMemory

OutputName = Literal["numpy", "torch", "jax", "tensordict"]
OUTPUT_NAMES = ("numpy", "torch", "jax", "tensordict")


class BatchOutput(Protocol):
    """Turns batches of numpy arrays into another kind; can be pickled."""

    def __call__(self, batch: Batch) -> Any:
        """Return a batch of the other kind, which may share the memory of this one."""
        return self.finish(self.prepare(batch))

    def prepare(self, batch: Batch) -> Batch:
        """Convert the arrays of a batch, which a background thread may do."""
        return batch

    def finish(self, batch: Batch) -> Any:
        """Return a prepared batch as the caller gets it; runs in the caller's thread."""
        return batch

    def memory(self, *, unchanged: bool) -> PinnedMemory | None:
        """Return what makes the memory that batches are gathered into; None for numpy's own.

        Args:
            unchanged: whether nothing changes the arrays of a batch before it is converted.
        """
        return None


@dataclass(frozen=True)
class NumpyOutput(BatchOutput):
    """Leaves batches as they are, but for rows of different lengths.

    Attributes:
        ragged: see `Output`.
    """

    ragged: RaggedForm = None

    def prepare(self, batch: Batch) -> Batch:
        """See `BatchOutput`."""
        return padded(batch, self.ragged)


@dataclass(frozen=True)
class Output:
    """Arrays of a batch and their device; `store.loader(256, output=el.Output("torch", device="cuda"))`.

    Args:
        kind: "numpy", "torch", "jax" or "tensordict".
        device: of the arrays, as their package names devices; None for the CPU, or for JAX's default.
        ragged: form of rows of different lengths. "nested": nested tensors of torch in the jagged layout, the
            default of "torch" and "tensordict". "padded": a dict of `values`, padded with zeros to the
            longest row of the batch, and `mask`. A number: the same, padded to so many values. None: the
            default; for numpy `el.types.Ragged`.

    Raises:
        InvalidArgumentError: there is no such kind or form, or numpy arrays are asked for on a device.
    """

    kind: OutputName = "numpy"
    _: KW_ONLY
    device: Any = None
    ragged: RaggedForm = None

    def __post_init__(self) -> None:
        valid = self.kind in OUTPUT_NAMES
        expect(valid, "output", self.kind, f"{', '.join(map(repr, OUTPUT_NAMES))} or el.Output(...)")
        if self.kind == "numpy" and self.device is not None:
            raise InvalidArgumentError(
                f"device={self.device!r} was given, but numpy arrays are in main memory. Choose "
                "el.Output('torch', device=...), 'tensordict' or 'jax', or leave the device out."
            )
        if isinstance(self.ragged, str | None):
            forms = ("nested", "padded") if self.kind in ("torch", "tensordict") else ("padded",)
            expected = f"{' or '.join(map(repr, forms))} with {self.kind!r}, or a number of values to pad to"
            expect(self.ragged is None or self.ragged in forms, "ragged", self.ragged, expected)
        else:
            object.__setattr__(self, "ragged", whole_number("ragged", self.ragged, 1))

    @staticmethod
    def of(value: Any) -> Output:
        """Return the argument `output` of a loader as an object."""
        return value if isinstance(value, Output) else Output(value)

    def converter(self) -> BatchOutput:
        """Return the function that converts batches.

        Raises:
            InvalidArgumentError: there is no such device here.
            MissingPackageError: the package is not installed.
        """
        if self.kind == "numpy":
            return NumpyOutput(self.ragged)
        require("jax" if self.kind == "jax" else "torch", f"output={self.kind!r}")
        if self.kind == "jax":
            return JaxOutput(find_device(self.device), self.ragged)
        from .torch_output import TensorDictOutput, TorchOutput, usable_device

        if self.kind == "torch":
            return TorchOutput(usable_device(self.device), self.ragged)
        require("tensordict", "output='tensordict'")
        return TensorDictOutput(usable_device(self.device), self.ragged)


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
class JaxOutput(BatchOutput):
    """JAX arrays, nested as the numpy arrays are.

    Attributes:
        device: the name of the device where they are to be; None for JAX's own choice.
        ragged: see `Output`.
    """

    device: str | None = None
    ragged: RaggedForm = None

    def prepare(self, batch: Batch) -> Batch:
        """See `BatchOutput`.

        Raises:
            InvalidArgumentError: JAX has no such values; the message names the key.
        """
        jax = _jax()
        device = None if self.device is None else _device(self.device)
        made: Batch = {}
        for key, value in padded(batch, self.ragged).items():
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
    if isinstance(leaf, Ragged):
        raise TypeError(
            f"{leaf!r} has rows of different lengths. Pad them with "
            "output=el.Output('jax', ragged='padded'), or to one length, which compiles once, with ragged=64."
        )
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
