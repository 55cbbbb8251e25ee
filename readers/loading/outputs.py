"""What a loader's batches are made of: numpy arrays, or what another package calls an array.

The packages are optional: each output's module is imported when the output is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ...store.errors import InvalidArgumentError
from ..optional_packages import require
from .units.unit import Batch

OutputName = Literal["numpy", "torch", "jax", "tensordict"]
OUTPUT_NAMES = ("numpy", "torch", "jax", "tensordict")


class Output(Protocol):
    """Turns batches of numpy arrays into another kind; can be pickled."""

    def __call__(self, batch: Batch) -> Any:
        """A batch of the other kind, which may share the memory of this one."""
        ...


@dataclass(frozen=True)
class NumpyOutput:
    """Leaves batches as they are."""

    def __call__(self, batch: Batch) -> Batch:
        """See `Output`."""
        return batch


def choose_output(name: Any, device: Any) -> Output:
    """The output of some name.

    Args:
        name: one of `OUTPUT_NAMES`.
        device: where its arrays are to be, as its package names devices; None for the CPU, or for JAX's own
            choice.

    Raises:
        InvalidArgumentError: there is no such output, or no such device here.
        MissingPackageError: its package is not installed.
    """
    if name not in OUTPUT_NAMES:
        raise InvalidArgumentError(f"output={name!r}: expected one of {', '.join(map(repr, OUTPUT_NAMES))}.")
    if name == "numpy":
        if device is not None:
            raise InvalidArgumentError(
                f"device={device!r} was given, but numpy arrays are in main memory. Choose output='torch', "
                "'tensordict' or 'jax', or leave the device out."
            )
        return NumpyOutput()
    require("jax" if name == "jax" else "torch", f"output={name!r}")
    if name == "jax":
        from .jax_output import JaxOutput, find_device

        return JaxOutput(find_device(device))
    from .torch_output import TensorDictOutput, TorchOutput, usable_device

    if name == "torch":
        return TorchOutput(usable_device(device))
    require("tensordict", "output='tensordict'")
    return TensorDictOutput(usable_device(device))
