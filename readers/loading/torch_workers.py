"""Batches from the worker processes of `torch.utils.data.DataLoader`.

The parent requests each batch by epoch, position and number. A worker continues its iterator if the request
is the next batch of it, and begins another iterator otherwise. So all state is in the parent, which counts
the batches that it yields, and any number of workers gives the same batches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from ...store.errors import InvalidArgumentError
from .batch_source import BatchSource
from .output.outputs import BatchOutput
from .output.packed_batch import PackedBatch, pack
from .output.torch_output import TorchOutput, needs_pinning
from .torch_datasets import torch_output
from .units.unit import Batch

#: Epoch, first position of the iteration, number of the batch from there.
BatchRequest = tuple[int, int, int]


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
        self._source = source
        self._options = dict(options)
        self._requests = _Requests()
        self._workers: DataLoader[Any] | None = self._make_workers()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the processes."""
        return vars(self) | {"_workers": None}

    def _make_workers(self) -> DataLoader[Any]:
        try:
            return DataLoader(
                _WorkerBatches(self._source, self.output),
                batch_size=None,
                sampler=self._requests,
                collate_fn=_as_it_is,
                pin_memory=needs_pinning(self.output.device),
                **self._options,
            )
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(f"torch's DataLoader refuses these arguments: {error}") from error

    def batches(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches of an epoch from a position on, converted."""
        if self._workers is None:
            self._workers = self._make_workers()
        requests = self._requests
        requests.epoch, requests.position, requests.count = epoch, position, self._source.count(position)
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
                raise error.with_traceback(None) from None
            yield self.output.finish(tensors.unpacked() if isinstance(tensors, PackedBatch) else tensors)


class _Requests(Sampler[BatchRequest]):
    """The batches that DataLoader asks its workers for."""

    def __init__(self) -> None:
        self.epoch = self.position = self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[BatchRequest]:
        epoch, position = self.epoch, self.position
        return ((epoch, position, number) for number in range(self.count))


class _WorkerBatches(Dataset[Batch | PackedBatch]):
    """Makes the batches that are requested of a worker."""

    def __init__(self, source: BatchSource, output: TorchOutput) -> None:
        self._source = source
        self._output = output
        self._walk: Iterator[Batch] = iter(())
        self._next: BatchRequest | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_walk": iter(()), "_next": None}

    def __getitem__(self, wanted: BatchRequest) -> Batch | PackedBatch:
        epoch, position, number = wanted
        worker = get_worker_info()
        workers = 1 if worker is None else worker.num_workers
        if wanted != self._next:
            self._walk = self._source.batches(epoch, position, number, workers)
        # Reset first: after an error the iterator is exhausted.
        self._next = None
        batch = self._output.tensors(next(self._walk))
        self._next = epoch, position, number + workers
        return batch if worker is None else pack(batch)


def _as_it_is(batch: Any) -> Any:
    return batch
