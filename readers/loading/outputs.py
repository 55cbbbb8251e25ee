"""The kinds of arrays in batches: numpy, torch, JAX or TensorDict.

The packages are optional: the module of an output is imported when that output is chosen.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol

from ...store.common.optional_packages import require
from ...store.errors import InvalidArgumentError
from .unit import Batch

OutputName = Literal["numpy", "torch", "jax", "tensordict"]
OUTPUT_NAMES = ("numpy", "torch", "jax", "tensordict")


class BatchOutput(Protocol):
    """Turns batches of numpy arrays into another kind; can be pickled."""

    def __call__(self, batch: Batch) -> Any:
        """Return a batch of the other kind, which may share the memory of this one."""
        ...


@dataclass(frozen=True)
class NumpyOutput:
    """Leaves batches as they are."""

    def __call__(self, batch: Batch) -> Batch:
        """See `BatchOutput`."""
        return batch


@dataclass(frozen=True)
class Output:
    """Arrays of a batch and their device; `store.loader(256, output=el.Output("torch", device="cuda"))`.

    Args:
        kind: "numpy", "torch", "jax" or "tensordict".
        device: of the arrays, as their package names devices; None for the CPU, or for JAX's default.

    Raises:
        InvalidArgumentError: there is no such kind, or numpy arrays are asked for on a device.
    """

    kind: OutputName = "numpy"
    _: KW_ONLY
    device: Any = None

    def __post_init__(self) -> None:
        if self.kind not in OUTPUT_NAMES:
            raise InvalidArgumentError(
                f"output={self.kind!r}: expected {', '.join(map(repr, OUTPUT_NAMES))} or el.Output(...)."
            )
        if self.kind == "numpy" and self.device is not None:
            raise InvalidArgumentError(
                f"device={self.device!r} was given, but numpy arrays are in main memory. Choose "
                "el.Output('torch', device=...), 'tensordict' or 'jax', or leave the device out."
            )

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
            return NumpyOutput()
        require("jax" if self.kind == "jax" else "torch", f"output={self.kind!r}")
        if self.kind == "jax":
            from .jax_output import JaxOutput, find_device

            return JaxOutput(find_device(self.device))
        from .torch_output import TensorDictOutput, TorchOutput, usable_device

        if self.kind == "torch":
            return TorchOutput(usable_device(self.device))
        require("tensordict", "output='tensordict'")
        return TensorDictOutput(usable_device(self.device))
