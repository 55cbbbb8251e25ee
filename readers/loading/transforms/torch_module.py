"""`TorchModule`: columns that a torch module computes from those of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ....store.errors import InvalidArgumentError
from ....store.optional_packages import require
from ....store.reserved import MASK, is_observation
from ..arguments import whole_number
from ..output.outputs import BatchOutput
from ..output.tree import Tree, leaves, map_leaves
from ..units.unit import Batch
from .keys import key_tuple, part_of

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
        if isinstance(self.module, type) or not isinstance(self._owner, torch.nn.Module):
            raise InvalidArgumentError(
                f"module={self.module!r:.200}: expected a torch.nn.Module or a method of one. A function "
                "from batch to batch is a transform by itself."
            )
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
            from ..output.torch_output import usable_device

            object.__setattr__(self, "device", usable_device(self.device) or torch.device("cpu"))

    def __repr__(self) -> str:
        """Show the module by the name of its class."""
        name = type(self._owner).__name__
        method = "" if self._owner is self.module else f".{getattr(self.module, '__name__', '?')}"
        return f"TorchModule({name}{method}, {self.columns!r}, {self.outputs!r})"

    @property
    def _owner(self) -> Any:
        """The module itself, of which `module` may be a method."""
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

        from ..output.torch_output import TorchOutput

        values = batch if isinstance(batch, dict) else batch.to_dict()
        inputs = {name: part_of(values, name) for name in self._inputs}
        tensors = isinstance(next(leaf for _, leaf in leaves(inputs)), torch.Tensor)
        given = TorchOutput().tensors(inputs)
        mask = TorchOutput().tensors({MASK: values[MASK]})[MASK] if MASK in values else None
        with _evaluating(self._owner):
            found = self._computed(given, mask)
        if not tensors:
            found = {name: _as_array(value) for name, value in found.items()}
        return batch | found if isinstance(batch, dict) else batch.copy().update(found)

    def _computed(self, given: dict[str, Tree], mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return the new columns, on the device of those given."""
        import torch

        if self.axes > 1 and mask is not None:
            given = _aligned(given, mask.shape[1])
        lead = self._lead(given)
        rows = map_leaves(lambda leaf: leaf.reshape(-1, *leaf.shape[self.axes :]), given)
        real = _real_rows(lead, mask)
        if real is not None:
            rows = map_leaves(lambda leaf: leaf[real], rows)
        home = next(leaf.device for _, leaf in leaves(rows))
        count = len(next(leaf for _, leaf in leaves(rows)))
        step = self.max_rows or max(count, 1)
        parts = [
            self._outputs(map_leaves(itemgetter(slice(start, start + step)), rows), home)
            for start in range(0, max(count, 1), step)
        ]
        found = {}
        for name in self.outputs:
            whole = parts[0][name] if len(parts) == 1 else torch.cat([part[name] for part in parts])
            if real is not None:
                filled = whole.new_zeros((len(real), *whole.shape[1:]))
                filled[real] = whole
                whole = filled
            found[name] = whole.reshape(*lead, *whole.shape[1:])
        return found

    def _lead(self, given: dict[str, Tree]) -> tuple[int, ...]:
        """Return the shape of the leading axes."""
        leads = {name: tuple(leaf.shape[: self.axes]) for name, leaf in leaves(given)}
        first = next(iter(leads.values()))
        if len(first) < self.axes or len(set(leads.values())) > 1:
            shapes = ", ".join(f"{name}: {tuple(leaf.shape)}" for name, leaf in leaves(given))
            raise InvalidArgumentError(
                f"{self!r} needs columns with the same {self.axes} leading axes; there are {shapes}. Choose "
                "other columns or another axes=..."
            )
        return first

    def _outputs(self, rows: dict[str, Tree], home: torch.device) -> dict[str, torch.Tensor]:
        """Return what the module gives for some rows, on the device where they are."""
        device = self.device or _device_of(self._owner)
        inputs = map_leaves(lambda leaf: _sent(leaf, device), rows)
        if isinstance(self.columns, Mapping):
            positional, keywords = (), {name: inputs[key] for name, key in self.columns.items()}
        else:
            positional, keywords = tuple(inputs[key] for key in self.columns), {}
        try:
            result = self.module(*positional, **keywords)
        except Exception as error:
            error.add_note(
                f"Raised in the loader's {self!r}, which got {_described(inputs)} on {device}. Put el.Cast "
                "before it to change dtypes, and give axes=... to change shapes."
            )
            raise
        count = len(next(leaf for _, leaf in leaves(rows)))
        taken = {_storage(leaf) for _, leaf in leaves(inputs)}
        taken |= {_storage(leaf) for leaf in (*self._owner.parameters(), *self._owner.buffers())}
        found = {}
        for name, value in self._by_name(result).items():
            self._check(name, value, count)
            value = value.detach().to(home).contiguous()
            # New columns belong to the caller, who may change them: inputs and weights must not change too.
            found[name] = value.clone() if _storage(value) in taken else value
        return found

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


@dataclass(frozen=True)
class ModuleOutput:
    """An output whose batches go through modules after their conversion."""

    output: BatchOutput
    modules: tuple[TorchModule, ...]

    def __call__(self, batch: Batch) -> Any:
        """See `BatchOutput`."""
        return run_modules(self.output(batch), self.modules)


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
    """Return columns of one length where whole episodes have an observation more than transitions."""
    lengths = {leaf.shape[1] for _, leaf in leaves(given) if leaf.ndim > 1}
    if lengths != {transitions, transitions + 1}:
        return given
    return {
        name: map_leaves(lambda leaf: leaf[:, :transitions], tree) if is_observation(name) else tree
        for name, tree in given.items()
    }


def _real_rows(lead: tuple[int, ...], mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return which rows are no padding: bool, shape (rows,); None if all are real, or if no mask fits."""
    import torch

    if mask is None or len(lead) < 2 or lead[1] - mask.shape[1] not in (0, 1):
        return None
    if lead[1] > mask.shape[1]:
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask], 1)
    if mask.all():
        return None
    return mask.reshape(*mask.shape, *[1] * (len(lead) - 2)).expand(lead).reshape(-1)


def _device_of(module: torch.nn.Module) -> torch.device:
    import torch

    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            return tensor.device
    return torch.device("cpu")


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; itself if it is there."""
    from ..output.torch_output import moved

    on_its_way = tensor.device.type == "cpu" and device.type != "cpu"
    return moved(tensor, device) if on_its_way else tensor.to(device)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _as_array(tensor: torch.Tensor) -> Any:
    """Return the values on the CPU as a numpy array; numpy has no bfloat16, so these become float32."""
    import torch

    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _described(tree: Tree) -> str:
    return ", ".join(
        f"{name}: {str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for name, leaf in leaves(tree)
    )
