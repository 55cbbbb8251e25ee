"""`Loader`: yields the batches of an epoch, and keeps its position."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import polars as pl

from ...store.common.arguments import whole_number
from ...store.common.optional_packages import require
from ...store.common.prefetch import prefetch
from ...store.errors import InvalidArgumentError, LoaderStateError
from ..columns.tree import leaves
from ..formatting import frame_html, size_text
from .feed import BatchSource, ShardSlice, transformed
from .orders import EpochPosition, make_state, read_state
from .outputs import BatchOutput
from .priorities import Priorities
from .transforms.torch_module import ModuleOutput, TorchModule
from .units import Batch, Units

if TYPE_CHECKING:
    from .torch_loading import BatchDataset, TorchWorkers, UnitDataset


@dataclass(frozen=True)
class _Taking:
    """Units that are taken a few at a time.

    Attributes:
        place: number of moves, epoch and place at which it continues.
        counts: the next number of units.
        batches: yields as many.
    """

    place: tuple[int, ...]
    counts: list[int]
    batches: Iterator[Batch]


class Loader(EpochPosition):
    """Batches of a view's units, epoch after epoch.

    Iterating yields the remaining batches of the epoch and then moves to the next epoch; after a `break`, the
    next iteration continues there. A loader has one position, so it supports one iteration at a time: an
    iteration raises an error once the loader was moved or another iteration began.

    A batch is a dict of arrays (nested for Dict and Tuple spaces); the arrays are fresh and belong to the
    caller. Not safe to use from several threads. A loader can be pickled, with the arrays that it reads from;
    a spawned process shares them instead.

    Args:
        source: the batches, as numpy arrays.
        identity: what the units and their order depend on, by name; a state of another identity is refused.
        output: converts batches.
        modules: run on each batch when it is taken.
        workers: make the batches of an iteration; None to make them in this process.
    """

    #: Whether a batch depends on what happens before it, so that none can be made ahead or elsewhere.
    live = False

    def __init__(
        self,
        source: BatchSource,
        identity: Mapping[str, Any],
        output: BatchOutput,
        modules: tuple[TorchModule, ...] = (),
        workers: TorchWorkers | None = None,
    ) -> None:
        self._source = source
        self._feed = source.feed
        self._identity = dict(identity)
        self._output = output
        self._modules = modules
        self._workers = workers
        self._taking: _Taking | None = None

    def __repr__(self) -> str:
        """Show the units and the position in one line."""
        return (
            f"Loader({self.units} units, {len(self)} batches of {self._source.batching.size}, "
            f"epoch {self._epoch}, position {self._position})"
        )

    def _repr_html_(self) -> str:
        """Return a card for a notebook: the keys of the next batch, before `TorchModule`, and the order."""
        try:
            rows = [] if self.live else self._keys_of_batch()
            note = "" if rows else "Batches come as the store grows." if self.live else "There are no units."
        except Exception as error:  # a damaged file must not stop a notebook
            rows, note = [], f"A batch cannot be made. {error}"
        facts = {**self._identity, "kind": self.kind, "output": self._output, "bytes": size_text(self.nbytes)}
        shown = ("kind", "order", "weights", "seed", "transitions", "output", "bytes")
        words = [f"{name}: {facts[name]}" for name in shown if facts.get(name) is not None]
        schema = {"key": pl.String, "dtype": pl.String, "shape": pl.String}
        frame = pl.DataFrame(rows, schema, orient="row")
        return frame_html(repr(self), frame, f"{', '.join(words)}. {note}")

    def _keys_of_batch(self) -> list[tuple[str, str, str]]:
        """Return key, dtype and shape of the arrays of the batch at the position."""
        with contextlib.closing(self._source.batches(self._epoch, self._position)) as batches:
            batch = next(batches, {})
        return [
            (name, str(getattr(values, "dtype", type(values).__name__)), str(getattr(values, "shape", "")))
            for name, values in leaves(batch)
        ]

    def __getitem__(self, key: object) -> NoReturn:
        """Raise an InvalidArgumentError: batches have an order, and torch's `DataLoader` needs a dataset."""
        raise InvalidArgumentError(
            f"A loader yields batches in an order and has no item {key!r:.100}. Iterate over it; in place of "
            "torch's DataLoader(loader) take loader.torch_loader(num_workers), or a DataLoader of "
            "loader.iterable_dataset() with batch_size=None."
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out units that were read ahead."""
        return {**vars(self), "_taking": None}

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch."""
        self._move_to(whole_number("epoch", epoch, 0), 0)

    @property
    def units(self) -> int:
        """Units of the current epoch, of all shards together."""
        return self._feed.epoch_length(self._epoch)

    @property
    def agents(self) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
        """The agents that `agent_id` refers to; of `joint=True`, those of the axis of agents, by group."""
        joint = self._identity.get("joint")
        if joint is not None:
            return {group: tuple(names) for group, names in joint.items()}
        return tuple(self._identity.get("agents", ()))

    @property
    def nbytes(self) -> int:
        """Bytes of the columns in memory."""
        return self._feed.nbytes

    def __len__(self) -> int:
        """Return the number of batches of the whole current epoch, for this shard."""
        return self._source.count(self._epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of the epoch."""
        self._moves += 1
        moves, epoch, begun = self._moves, self._epoch, self._position
        places, output = self._source.places(epoch, begun), self.output
        taken = 0
        with contextlib.closing(self._made(epoch, begun)) as batches:
            for batch in batches:
                batch = output.finish(batch)
                taken = min(taken + self._source.batching.size, places.count)
                # Counted before it is yielded: a state saved from here on includes this batch.
                self._stand_at(epoch, begun + taken * places.step, taken == places.count)
                yield batch
                self._check_unmoved(moves, "loader")
        if not places.count:
            self._stand_at(epoch, begun, True)

    @property
    def output(self) -> BatchOutput:
        """The converter of batches; it runs the modules too."""
        return ModuleOutput(self._output, self._modules) if self._modules else self._output

    def _made(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the prepared batches of an epoch from a position on."""
        if self._workers is not None:
            return self._workers.batches(epoch, position)
        gathered = self._source.batches(epoch, position)
        memory = self._output.memory(unchanged=not self._source.transforms)
        if memory is not None:
            gathered = memory.gathered(gathered)
        batches = (self._output.prepare(batch) for batch in gathered)
        ahead = self._source.batching.prefetch
        return prefetch(batches, ahead) if ahead else batches

    @property
    def epoch_units(self) -> int | None:
        """Units of an epoch that this shard takes; None if an epoch never ends."""
        return self._source.shard.places(0, self.units).count

    @property
    def kind(self) -> Units:
        """The kind of unit."""
        return self._feed.units

    def take(self, count: int) -> Any:
        """Return the next `count` units as one batch, across the end of an epoch where necessary.

        Neither the batch size nor `drop_last` matter. It ends iterations that were begun, as any move does.

        Raises:
            InvalidArgumentError: count is not a whole number from 1 on.
        """
        mark = self._mark()
        batch = self._take(count)
        try:
            return self.output(batch)
        except BaseException:
            self._go_back(mark)
            raise

    def _take(self, count: int) -> Batch:
        """Take units as numpy arrays, for mixtures."""
        left, parts = whole_number("count", count, 1), []
        while left:
            epoch, begun = self._epoch, self._position
            places = self._source.shard.places(begun, self._feed.epoch_length(epoch))
            now = min(left, places.count)
            if now:
                parts.append(self._taken(epoch, places, now))
            elif begun == 0:
                raise LoaderStateError(
                    f"This shard has none of the {self.units} units of an epoch. Use fewer shards."
                )
            self._stand_at(epoch, begun + now * places.step, now == places.count)
            self._moves += 1
            left -= now
        batch = parts[0] if len(parts) == 1 else self.kind.join(parts)
        return transformed(batch, self._source.transforms)

    def _taken(self, epoch: int, places: ShardSlice, count: int) -> Batch:
        # Continue where the last call ended, if nothing moved in between.
        taking, self._taking = self._taking, None
        if taking is None or taking.place != (self._moves, epoch, places.start):
            counts: list[int] = []
            taking = _Taking((), counts, self._feed.take(epoch, places, iter(counts.pop, None)))
        taking.counts.append(count)
        batch = next(taking.batches)
        place = (self._moves + 1, epoch, places.start + count * places.step)
        self._taking = replace(taking, place=place)
        return batch

    def _check_not_live(self, what: str) -> None:
        if self.live:
            raise InvalidArgumentError(
                f"{what} makes batches ahead, in other processes, but this loader decides on each batch when "
                "it is asked for, by priorities or new episodes. Iterate it here, with output='torch' for "
                "tensors."
            )

    def _check_no_modules(self, what: str) -> None:
        if self._modules:
            raise InvalidArgumentError(
                f"{what} makes batches in worker processes, where {self._modules[0]!r} would not have the "
                "weights that you train. Use torch_loader(num_workers=...), which runs the module in this "
                "process, or apply it to batches of the dataset."
            )

    def _mark(self) -> tuple[int, int]:
        """Return the position, for `_go_back`."""
        return self._epoch, self._position

    def _go_back(self, mark: tuple[int, int]) -> None:
        self._move_to(*mark)

    def _stand_at(self, epoch: int, position: int, over: bool) -> None:
        self._epoch, self._position = (epoch + 1, 0) if over else (epoch, position)

    @property
    def _priorities(self) -> Priorities:
        if self._feed.priorities is None:
            raise InvalidArgumentError(
                "This loader does not draw by priority. Make it with weights=el.Prioritized()."
            )
        return self._feed.priorities

    @property
    def beta(self) -> float:
        """The exponent of the importance weights, 0 to 1; may be set at any time.

        Raises:
            InvalidArgumentError: the loader does not draw by priority, or the number is out of range.
        """
        return self._priorities.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._priorities.beta = beta

    def update_priorities(self, units: Any, priorities: Any) -> None:
        """Set the priorities of some units; the next batch is drawn by them.

        In a loader that follows a store, units whose episode has gone since the batch was made are skipped;
        its unit numbers mean nothing to another loader.

        Args:
            units: int64, shape (b,): `unit` of a batch. Where a unit occurs twice the last priority counts.
            priorities: shape (b,), finite, from 0 on, such as absolute TD errors.

        Raises:
            InvalidArgumentError: the loader does not draw by priority, a unit does not exist, a priority is
                negative or not finite, or their numbers differ; no priority was changed.
        """
        self._feed.update_priorities(self._priorities, units, priorities)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: a small dict that JSON can hold.

        A loader that loads it continues with the next batch, also with another batch size, number of shards
        or number of workers; then all shards must load the same state. By priority it also holds all
        priorities, 8 bytes for each unit, as `bytes`.
        """
        return {**make_state(self._identity, self._epoch, self._position), **self._feed.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to the position of another loader, with its priorities if it has any: the same batches follow.

        Raises:
            LoaderStateError: the state is of another store, version, selection, kind of unit or order, or is
                no state; the loader keeps its position.
        """
        epoch, position = read_state(state, self._identity, self._feed.length)
        self._feed.load_state(state)
        self._move_to(epoch, position)

    def torch_loader(
        self,
        num_workers: int = 0,
        *,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> Loader:
        """Return a loader of the same batches, from this position, as tensors that worker processes make.

        The order is the same for any number of workers, and so is the state, which counts the batches that
        were yielded. Workers replace `prefetch`. See `torch.utils.data.DataLoader` for the arguments.
        Workers that are kept (`persistent_workers=True`) end with the loader; the two loaders move
        independently.

        Raises:
            MissingPackageError: torch is not installed.
            InvalidArgumentError: torch refuses an argument, or this loader yields JAX arrays.
        """
        self._check_not_live("torch_loader()")
        require("torch", "torch_loader()")
        from .torch_loading import TorchWorkers

        if not num_workers and (timeout or worker_init_fn is not None):
            name = "timeout" if timeout else "worker_init_fn"
            raise InvalidArgumentError(f"{name}=... is for worker processes: give num_workers=, from 1.")
        options = {
            "num_workers": num_workers,
            "persistent_workers": persistent_workers,
            "prefetch_factor": prefetch_factor,
            "multiprocessing_context": multiprocessing_context,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
        }
        workers = TorchWorkers(self._source, self._output, options)
        made = Loader(self._source, self._identity, workers.output, self._modules, workers)
        made._move_to(self._epoch, self._position)
        return made

    def iterable_dataset(self) -> BatchDataset:
        """Return the batches as an iterable dataset, for `DataLoader(dataset, batch_size=None, ...)`.

        Raises:
            MissingPackageError: torch is not installed.
            InvalidArgumentError: this loader yields JAX arrays.
        """
        self._check_not_live("iterable_dataset()")
        self._check_no_modules("iterable_dataset()")
        require("torch", "iterable_dataset()")
        from .torch_loading import BatchDataset

        return BatchDataset(self._source, self._output, self.state_dict())

    def map_dataset(self) -> UnitDataset:
        """Return the units as a map-style dataset: `DataLoader(dataset, ..., collate_fn=dataset.collate)`.

        Raises:
            MissingPackageError: torch is not installed.
            InvalidArgumentError: this loader has an order or a shard, which torch's sampler decides here; or
                it yields JAX arrays, or streams.
        """
        self._check_not_live("map_dataset()")
        self._check_no_modules("map_dataset()")
        require("torch", "map_dataset()")
        from .torch_loading import UnitDataset

        return UnitDataset(self._source, self._output)


class PrioritizedLoader(Loader):
    """A loader that draws units by priority, with replacement (Schaul et al. 2016).

    `store.loader(weights=el.Prioritized())` returns one. Batches also have `unit` (int64, shape (b,)), the
    units' numbers, and `weight` (float64, shape (b,)), their importance weights. All units begin with the
    priority 1. Of several shards each has its own priorities.
    """

    live = True
