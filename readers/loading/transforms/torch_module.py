"""`TorchModule`: columns that a torch module computes from those of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ....store.common.arguments import expect, whole_number
from ....store.common.optional_packages import require
from ....store.errors import InvalidArgumentError
from ....store.names import MASK, is_observation
from ...columns.tree import Tree, leaves, map_leaves
from ..outputs import BatchOutput
from ..units import Batch
from .key_transforms import key_tuple, part_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class TorchModule:
    """Adds what a torch module computes for each row of a batch: values, log-probabilities, encodings.

    A loader runs it when a batch is taken, in the thread that takes it: after prefetching, worker processes
    and the conversion to tensors. So it always has the module's weights of that moment, and it comes last in
    the list of transforms. The module runs in evaluation mode and without gradients; afterwards each of its
    submodules is in the mode in which it was. If it raises, the loader stays before the batch.

    New columns are of the batch's kind: numpy arrays on the CPU, or tensors on the device of the batch.
    Inputs share the batch's memory where they are on the module's device already, so a module must not change
    them in place.

    Args:
        module: a `torch.nn.Module`, or a method of one, such as `policy.log_prob`.
        columns: keys of the batch, or parts of nested values by dotted names, each by itself
            (`next_observation` is not meant by `observation`). The module gets them as positional arguments,
            nested values as dicts and tuples of tensors. A mapping names keyword arguments:
            `{"obs": "observation"}`.
        outputs: the key for the tensor that the module returns. Several for a tuple or list of as many; of a
            mapping these are its keys. A key that the batch has is replaced.
        device: where the module takes its inputs; None for the device of its first parameter.
        axes: how many leading axes of the columns count rows. The module gets them as one: with 2, windows
            of shape (b, length, ...) as (b * length, ...), without padding, for which the new columns are 0.
            With 1, a module gets them as they are.
        max_rows: the most rows that the module gets at a time; None for all.

    Raises:
        InvalidArgumentError: an argument makes no sense, or torch cannot use the device.
        MissingPackageError: torch is not installed.
    """

    module: torch.nn.Module | Callable[..., Any]
    columns: str | Sequence[str] | Mapping[str, str]
    outputs: str | Sequence[str]
    device: Any = None
    axes: int = 1
    max_rows: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        torch = require("torch", "el.TorchModule")
        expected = "a torch.nn.Module or a method of one; a function of a batch is a transform by itself"
        valid = not isinstance(self.module, type) and isinstance(self._owner, torch.nn.Module)
        expect(valid, "module", self.module, expected)
        given = self.columns
        object.__setattr__(self, "columns", dict(given) if isinstance(given, Mapping) else key_tuple(given))
        key_tuple(self._inputs)
        object.__setattr__(self, "outputs", key_tuple(self.outputs))
        if len(set(self.outputs)) < len(self.outputs):
            raise InvalidArgumentError(f"outputs={self.outputs!r}: two have the same name. Rename one.")
        object.__setattr__(self, "axes", whole_number("axes", self.axes, 1))
        if self.max_rows is not None:
            object.__setattr__(self, "max_rows", whole_number("max_rows", self.max_rows, 1))
        if self.device is not None:
            from ..torch_output import usable_device

            object.__setattr__(self, "device", usable_device(self.device) or torch.device("cpu"))

    def __repr__(self) -> str:
        """Show the module by the name of its class."""
        name = type(self._owner).__name__
        method = "" if self._owner is self.module else f".{getattr(self.module, '__name__', '?')}"
        return f"TorchModule({name}{method}, {self.columns!r}, {self.outputs!r})"

    @property
    def _owner(self) -> Any:
        """The module itself; `module` may be a method of it."""
        return getattr(self.module, "__self__", self.module)

    @property
    def _inputs(self) -> tuple[str, ...]:
        """The keys of the batch that the module gets."""
        return tuple(self.columns.values() if isinstance(self.columns, Mapping) else self.columns)

    def __call__(self, batch: Any) -> Any:
        """Return a batch with the new columns; see the class.

        Args:
            batch: a dict of numpy arrays or of tensors, or a TensorDict.

        Raises:
            InvalidArgumentError: there is no such key, the columns have different numbers of rows, or the
                module returned something else than a tensor with a row for each.
            Exception: what the module raises, with a note of what it got.
        """
        import torch

        from ..torch_output import TorchOutput, as_tensor

        values = batch if isinstance(batch, dict) else batch.to_dict()
        inputs = {name: part_of(values, name) for name in self._inputs}
        mask = values.get(MASK) if self.axes > 1 else None
        mask = None if mask is None or isinstance(mask, dict) else as_tensor(mask)
        with _evaluating(self._owner):
            columns = self._computed(TorchOutput().prepare(inputs), mask)
        if not isinstance(next(leaf for _, leaf in leaves(inputs)), torch.Tensor):
            columns = {name: _as_array(value) for name, value in columns.items()}
        return batch | columns if isinstance(batch, dict) else batch.copy().update(columns)

    def _computed(self, given: dict[str, Tree], mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return the new columns, on the device of those given."""
        for name, leaf in leaves(given):
            if leaf.is_nested:
                raise InvalidArgumentError(
                    f"{self!r} needs tensors of one shape, but the rows of {name!r} differ in length. Pad "
                    "them with output=el.Output('torch', ragged='padded'): it then gets a dict of values and "
                    "mask."
                )
        if mask is not None:
            given = _aligned(given, mask.shape[1])
        lead = self._lead(given)
        rows = map_leaves(lambda leaf: leaf.reshape(-1, *leaf.shape[self.axes :]), given)
        home = next(leaf.device for _, leaf in leaves(rows))
        real = _real_rows(lead, mask)
        count = math.prod(lead) if real is None else len(real)
        step = self.max_rows or max(count, 1)
        # New columns belong to the caller, who may change them: they share no memory with inputs or weights.
        columns: dict[str, torch.Tensor] = {}
        for start in range(0, max(count, 1), step):
            stop = min(start + step, count)
            some = slice(start, stop) if real is None else real[start:stop]
            results = self._results(map_leaves(itemgetter(some), rows))
            for name, value in results.items():
                self._check(name, value, stop - start)
                form = _form(value)
                first = _form(columns[name]) if start else form
                if form != first:
                    raise InvalidArgumentError(
                        f"{self!r} returned {name!r} as {form} from row {start} on, and as {first} before. "
                        "Return one dtype and shape."
                    )
                if not start:
                    columns[name] = value.new_zeros((math.prod(lead), *value.shape[1:]), device=home)
                columns[name][some] = value.to(home)
        return {name: whole.reshape(*lead, *whole.shape[1:]) for name, whole in columns.items()}

    def _lead(self, given: dict[str, Tree]) -> tuple[int, ...]:
        """Return the shape of the leading axes."""
        leads = {tuple(leaf.shape[: self.axes]) for _, leaf in leaves(given)}
        lead = next(iter(leads))
        if len(lead) < self.axes or len(leads) > 1:
            shapes = ", ".join(f"{name}: {tuple(leaf.shape)}" for name, leaf in leaves(given))
            raise InvalidArgumentError(
                f"{self!r} needs columns with the same {self.axes} leading axes; there are {shapes}. Choose "
                "other columns or another axes=..."
            )
        return lead

    def _results(self, rows: dict[str, Tree]) -> dict[str, Any]:
        """Return the parts of the module's result for some rows, by the keys of the new columns."""
        from ..torch_output import moved

        weights = chain(self._owner.parameters(), self._owner.buffers())
        device = self.device or next((weight.device for weight in weights), _cpu())
        inputs = map_leaves(lambda leaf: moved(leaf, device), rows)
        try:
            if isinstance(self.columns, Mapping):
                result = self.module(**{name: inputs[key] for name, key in self.columns.items()})
            else:
                result = self.module(*(inputs[key] for key in self.columns))
        except Exception as error:
            error.add_note(
                f"Raised in the loader's {self!r}, which got {_described(inputs)} on {device}. Put el.Cast "
                "before it to change dtypes, and give axes=... to change shapes."
            )
            raise
        return self._by_name(result)

    def _by_name(self, result: Any) -> dict[str, Any]:
        """Return the parts of a module's result by the key of the new column."""
        names = self.outputs
        if isinstance(result, Mapping):
            missing = [name for name in names if name not in result]
            if missing:
                raise InvalidArgumentError(
                    f"{self!r} returned no {missing[0]!r}. It returned: {', '.join(map(str, result))}."
                )
            return {name: result[name] for name in names}
        several = isinstance(result, tuple | list)
        if several and len(result) == len(names):
            return dict(zip(names, result, strict=True))
        if several or len(names) > 1:
            what = f"{len(result)} values" if several else f"a {type(result).__name__}"
            raise InvalidArgumentError(
                f"{self!r} returned {what}; expected {len(names)}. Name each of them in outputs=..."
            )
        return {names[0]: result}

    def _check(self, name: str, value: Any, count: int) -> None:
        import torch

        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(
                f"{self!r} returned a {type(value).__name__} for {name!r}; expected a tensor. Give a method "
                "of the module that returns tensors."
            )
        if value.shape[:1] != (count,):
            raise InvalidArgumentError(
                f"{self!r} returned {name!r} with shape {tuple(value.shape)}; expected ({count}, ...): a "
                "value for each row."
            )


def _form(value: torch.Tensor) -> str:
    return f"{value.dtype} of shape (n, {', '.join(map(str, value.shape[1:]))})"


@dataclass(frozen=True)
class ModuleOutput(BatchOutput):
    """An output whose batches go through modules after their conversion."""

    output: BatchOutput
    modules: tuple[TorchModule, ...]

    def prepare(self, batch: Batch) -> Batch:
        """See `BatchOutput`."""
        return self.output.prepare(batch)

    def finish(self, batch: Batch) -> Any:
        """See `BatchOutput`."""
        return run_modules(self.output.finish(batch), self.modules)


def run_modules(batch: Any, modules: Sequence[TorchModule]) -> Any:
    """Return a batch after each module in turn."""
    for module in modules:
        batch = module(batch)
    return batch


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, without gradients; then each part into the mode in which it was."""
    import torch

    training = [part for part in module.modules() if part.training]
    try:
        if training:
            module.eval()
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True


def _aligned(given: dict[str, Tree], transitions: int) -> dict[str, Tree]:
    """Return columns of one length; episodes have an observation more than transitions."""
    lengths = {leaf.shape[1] for _, leaf in leaves(given) if leaf.ndim > 1}
    if lengths != {transitions, transitions + 1}:
        return given
    return {
        name: map_leaves(lambda leaf: leaf[:, :transitions], tree) if is_observation(name) else tree
        for name, tree in given.items()
    }


def _real_rows(lead: tuple[int, ...], mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return the rows that are no padding: int64; None if all are real, or if the mask does not fit."""
    import torch

    if mask is None or lead[1] - mask.shape[1] not in (0, 1):
        return None
    real = torch.ones(lead[:2], dtype=torch.bool, device=mask.device)
    # Whole episodes have an observation more than transitions.
    real[:, lead[1] - mask.shape[1] :] = mask
    if real.all():
        return None
    return real.reshape(*lead[:2], *[1] * (len(lead) - 2)).expand(lead).flatten().nonzero()[:, 0]


def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")


def _as_array(tensor: torch.Tensor) -> Any:
    """Return the values on the CPU as a numpy array; numpy has no bfloat16, so these become float32."""
    import torch

    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _described(tree: Tree) -> str:
    return ", ".join(
        f"{name}: {str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for name, leaf in leaves(tree)
    )
