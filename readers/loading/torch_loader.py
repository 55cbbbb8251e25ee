"""`TorchLoader`: a loader whose batches are made by the worker processes of `torch.utils.data.DataLoader`.

The parent says which batch is wanted, of which epoch and from which position on; a worker that is asked for
the batch that its walk comes to next goes on walking, and begins another walk otherwise. So all that
changes is in the parent, which counts what it hands out, and any workers will do.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from ...store.errors import InvalidArgumentError
from .batch_source import BatchSource
from .loader import Loader
from .packed_batch import PackedBatch, pack
from .torch_datasets import torch_output
from .torch_output import TorchOutput, needs_pinning
from .units.unit import Batch

#: Epoch, position from which it is walked, number of the batch from there.
Wanted = tuple[int, int, int]


class TorchLoader(Loader):
    """Batches of tensors, epoch after epoch, made by worker processes.

    It is a `Loader` in every respect: what it yields, where it stands, its state. Workers that are kept
    (`persistent_workers=True`) end with it.

    Args:
        loader: whose batches, from where it stands; the two move independently.
        options: for `torch.utils.data.DataLoader`.
    """

    def __init__(self, loader: Loader, options: Mapping[str, Any]) -> None:
        source, state = loader.source, loader.state_dict()
        output = torch_output(loader.output)
        super().__init__(source.feed, source.batching, state["identity"], source.transforms, output)
        self._tensors: TorchOutput = output
        self._options = dict(options)
        self._wanted = _WantedBatches()
        self._workers: DataLoader[Any] | None = self._make_workers()
        self.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """Processes are not taken along."""
        return super().__getstate__() | {"_workers": None}

    def _make_workers(self) -> DataLoader[Any]:
        try:
            return DataLoader(
                _WorkerBatches(self.source, self._tensors),
                batch_size=None,
                sampler=self._wanted,
                collate_fn=_as_it_is,
                pin_memory=needs_pinning(self._tensors.device),
                **self._options,
            )
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(f"torch's DataLoader refuses these arguments: {error}") from error

    def _made(self, epoch: int, position: int) -> Generator[Any, None, None]:
        if self._workers is None:
            self._workers = self._make_workers()
        self._wanted.epoch, self._wanted.position = epoch, position
        self._wanted.count = self.source.count(position)
        received = iter(self._workers)
        while True:
            try:
                tensors = next(received)
            except StopIteration:
                return
            except Exception as error:
                # Torch's frames hold the error, which holds them, and the workers with them. Those are to end
                # now, and not when the cycle is found, with their queues gone before they can be told.
                del received
                raise error.with_traceback(None) from None
            yield self._tensors.finish(tensors.unpacked() if isinstance(tensors, PackedBatch) else tensors)


class _WantedBatches(Sampler[Wanted]):
    """Tells DataLoader which batches are wanted."""

    def __init__(self) -> None:
        self.epoch = self.position = self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Wanted]:
        epoch, position = self.epoch, self.position
        return ((epoch, position, number) for number in range(self.count))


class _WorkerBatches(Dataset[Batch | PackedBatch]):
    """Makes the batches that a worker is asked for."""

    def __init__(self, source: BatchSource, output: TorchOutput) -> None:
        self._source = source
        self._output = output
        self._walk: Iterator[Batch] = iter(())
        self._next: Wanted | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_walk": iter(()), "_next": None}

    def __getitem__(self, wanted: Wanted) -> Batch | PackedBatch:
        epoch, position, number = wanted
        worker = get_worker_info()
        workers = 1 if worker is None else worker.num_workers
        if wanted != self._next:
            self._walk = self._source.batches(epoch, position, number, workers)
        # Forgotten first: after an error the walk is over.
        self._next = None
        batch = self._output.tensors(next(self._walk))
        self._next = epoch, position, number + workers
        return batch if worker is None else pack(batch)


def _as_it_is(batch: Any) -> Any:
    return batch
