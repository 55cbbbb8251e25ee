"""Loading by torch: datasets for `torch.utils.data.DataLoader`, and batches from its worker processes.

The datasets can be pickled and sent to worker processes. They hold tensors of the CPU, whatever the device of
their loader, because a worker cannot fill a GPU's memory for its parent; `pin_memory=True` of DataLoader and
`.to(device, non_blocking=True)` bring them there.

The workers of a loader (`TorchWorkers`) iterate such a dataset. Its beginning is set before each iteration,
and the parent counts the batches that it yields, so all state is in the parent, and any number of workers
gives the same batches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ...store.common.arguments import whole_number
from ...store.errors import InvalidArgumentError, LoaderStateError, UnitNotFoundError
from ..columns.tree import Tree, map_leaves
from .feed import ArrayFeed, BatchSource, transformed
from .orders import Sequential, make_state, read_state
from .outputs import BatchOutput, NumpyOutput
from .torch_output import PackedBatch, TorchOutput, needs_pinning, pack
from .units import Batch


def torch_output(output: BatchOutput) -> TorchOutput:
    """Return the converter to tensors for a loader's output; numpy arrays become tensors.

    Raises:
        InvalidArgumentError: the loader yields something else.
    """
    if isinstance(output, NumpyOutput):
        return TorchOutput(ragged=output.ragged)
    if not isinstance(output, TorchOutput):
        raise InvalidArgumentError(
            "torch's DataLoader hands out tensors. Make the loader with output='torch' or 'tensordict'."
        )
    return output


class BatchDataset(IterableDataset[Any]):
    """The batches of an epoch, for `DataLoader(dataset, batch_size=None, collate_fn=dataset.collate, ...)`.

    Worker w of n makes the batches w, w + n, ..., so that DataLoader, which asks them in turn, has them in
    the loader's order with any number of workers. Every iteration yields the epoch that was set last, at
    first what is left of the loader's: call `set_epoch` before each one.

    Args:
        source: the batches, as numpy arrays.
        output: of the loader.
        state: of the loader: where the dataset begins.
    """

    def __init__(self, source: BatchSource, output: BatchOutput, state: Mapping[str, Any]) -> None:
        self._source = source
        self._output = torch_output(output).on_cpu()
        # The batches of a worker are counted, so here it matters how the epoch is cut into them.
        batching, shard = source.batching, source.shard
        cut = f"Batching(size={batching.size}, drop_last={batching.drop_last}, shard={shard!r})"
        self._identity = state["identity"] | {"batching": cut}
        # Shared with worker processes, so that those that go on for several epochs see a change.
        self._start = torch.tensor([state["epoch"], state["position"]]).share_memory_()
        self._standing: tuple[int, int, int] | None = None
        self._loaded: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch that comes next."""
        return self._source.count(int(self._start[0]))

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration yield an epoch from its beginning, in workers too."""
        self._begin_at(whole_number("epoch", epoch, 0), 0)

    def _begin_at(self, epoch: int, position: int) -> None:
        self._start.copy_(torch.tensor([epoch, position]))

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's batches."""
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        epoch, position = self._start.tolist()
        if self._loaded is not None:
            epoch, position, number = self._loaded
            self._loaded = None
        self._standing = epoch, position, number
        return self._batches(epoch, position, number, workers)

    def _batches(self, epoch: int, position: int, number: int, workers: int) -> Iterator[Any]:
        for batch in self._source.batches(epoch, position, number, workers):
            number += workers
            self._standing = epoch, position, number
            yield self._converted(batch)

    def _converted(self, batch: Batch) -> Any:
        return self._output(batch)

    @staticmethod
    def collate(batch: Any) -> Any:
        """Return the batch as it is, for DataLoader's `collate_fn`: torch's own function fails at a
        TensorDict.
        """
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process's last iteration; torchdata's `StatefulDataLoader` asks each
        worker.

        It belongs to one of several workers, and can be resumed only with the same number of workers. The
        state of `Loader.torch_loader` can be resumed with any number.
        """
        epoch, position, number = self._standing or (*self._start.tolist(), 0)
        return make_state(self._identity, epoch, position) | {"batch": number}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration in this process continue from the position of another one.

        Raises:
            LoaderStateError: the state is of another dataset, or is no state.
        """
        epoch, position = read_state(state, self._identity, self._source.feed.length)
        number = state.get("batch")
        if not isinstance(number, int) or number < 0:
            raise LoaderStateError(
                f"The state's batch is {number!r}: expected a whole number. The state of a loader goes to "
                "Loader.load_state_dict, or to that of Loader.torch_loader()."
            )
        self._loaded = epoch, position, number


class GatheredUnits(Sequence[Any]):
    """Units that were requested together: a list of units, and the batch of them.

    Attributes:
        batch: all of them, with a first axis of their number.
    """

    def __init__(self, batch: Batch, count: int) -> None:
        self.batch = batch
        self._count = count

    def __len__(self) -> int:
        """Return how many units."""
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Return one unit, as tensors without the first axis."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise UnitNotFoundError(f"There is no unit {index}: {self._count} were asked for.")
        return _row(self.batch, index)


class UnitDataset(Dataset[Any]):
    """Single units by number, in the order of the episodes, for DataLoader and a sampler of torch's.

    With `collate_fn=dataset.collate` DataLoader gets each batch in one gather; with its own collate function
    the result is the same, but put together unit by unit, and a TensorDict is refused.

    Args:
        source: units in the order of the episodes and without a shard: both are the sampler's to choose.
        output: of the loader.
    """

    def __init__(self, source: BatchSource, output: BatchOutput) -> None:
        feed = source.feed
        if not isinstance(feed, ArrayFeed):
            raise InvalidArgumentError(
                "A map-style dataset needs any unit at any time, which this loader does not have. Take "
                "iterable_dataset() or torch_loader()."
            )
        if not isinstance(feed.order, Sequential) or source.shard.world > 1:
            raise InvalidArgumentError(
                "In a map-style dataset torch's sampler chooses order and shard. Leave shuffle, weights and "
                "shard out here, or take iterable_dataset() or torch_loader(), which keep them."
            )
        self._feed = feed
        self._transforms = source.transforms
        self._output = torch_output(output).on_cpu()

    def __len__(self) -> int:
        """Return the number of units."""
        return self._feed.length

    def __getitem__(self, number: int) -> Any:
        """Return one unit: its tensors have no axis of the batch.

        Raises:
            UnitNotFoundError: there is none of that number.
        """
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> GatheredUnits:
        """Return several units, gathered at once; DataLoader requests those of a batch in this way.

        Raises:
            UnitNotFoundError: there is none of a number.
        """
        wanted = np.asarray(numbers, np.int64)
        count = len(self)
        outside = wanted[(wanted < -count) | (wanted >= count)]
        if len(outside):
            raise UnitNotFoundError(
                f"There is no unit {outside[0]}: there are {count}, from 0 to {count - 1}."
            )
        batch = transformed(self._feed.gather(wanted % count), self._transforms)
        return GatheredUnits(self._output(batch), len(wanted))

    def __iter__(self) -> Iterator[Any]:
        """Yield each unit."""
        return (self[number] for number in range(len(self)))

    @staticmethod
    def collate(units: GatheredUnits) -> Any:
        """Return the batch of units that `__getitems__` gathered, as it is."""
        return units.batch


def _row(tree: Tree, number: int) -> Tree:
    return map_leaves(lambda leaf: leaf[number], tree)


class TorchWorkers:
    """Makes batches of tensors in worker processes.

    Args:
        source: the batches, as numpy arrays.
        output: of the loader; numpy arrays become tensors.
        options: for `torch.utils.data.DataLoader`.

    Raises:
        InvalidArgumentError: torch refuses an option, or the loader yields JAX arrays.
    """

    def __init__(self, source: BatchSource, output: BatchOutput, options: Mapping[str, Any]) -> None:
        self.output: TorchOutput = torch_output(output)
        self._dataset = _PackedBatches(source, self.output, {"identity": {}, "epoch": 0, "position": 0})
        self._options = dict(options)
        if source.feed.reads_objects and options.get("num_workers"):
            self._options["multiprocessing_context"] = options.get("multiprocessing_context") or "spawn"
        self._workers: DataLoader[Any] | None = self._make_workers()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the processes."""
        return vars(self) | {"_workers": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take a position of its own: another process that unpickles a loader would share the sender's."""
        vars(self).update(state)
        self._dataset._start = self._dataset._start.clone().share_memory_()

    def _make_workers(self) -> DataLoader[Any]:
        dataset = self._dataset
        pinned = needs_pinning(self.output.device)
        try:
            return DataLoader(
                dataset, batch_size=None, collate_fn=dataset.collate, pin_memory=pinned, **self._options
            )
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(f"torch's DataLoader refuses these arguments: {error}") from error

    def batches(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches of an epoch from a position on, prepared for `output`."""
        if self._workers is None:
            self._workers = self._make_workers()
        self._dataset._begin_at(epoch, position)
        received = iter(self._workers)
        while True:
            try:
                tensors = next(received)
            except StopIteration:
                return
            except Exception as error:
                # Torch's frames and the error refer to each other and keep the workers. Break the cycle, so
                # that the workers end now and not when it is collected, after their queues.
                del received
                # Errors of a worker's own say so; these come from its end of a pipe.
                if isinstance(error, EOFError | ConnectionError) and "worker" not in str(error):
                    error = RuntimeError(
                        "A worker process ended while it handed over a batch: it was killed, or ran out of "
                        "memory. Use fewer workers or smaller batches; the batch comes in the next iteration."
                    )
                raise error.with_traceback(None) from None
            yield tensors.unpacked() if isinstance(tensors, PackedBatch) else tensors


class _PackedBatches(BatchDataset):
    """Batches of tensors; those that come from another process are packed."""

    def _converted(self, batch: Batch) -> Batch | PackedBatch:
        tensors = self._output.prepare(batch)
        return tensors if get_worker_info() is None else pack(tensors)
