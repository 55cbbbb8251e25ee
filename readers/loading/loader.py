"""`Loader`: walks along the order of an epoch, hands out batches, and knows where it stands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...store.errors import InvalidArgumentError, LoaderStateError
from ..optional_packages import require
from .arguments import whole_number
from .batch_source import Batching, BatchSource, transformed
from .feed import Feed, Places
from .outputs import NumpyOutput, Output
from .prefetching import prefetched
from .state import make_state, read_state
from .taking import Picking, Taking
from .units.unit import Batch, Units

if TYPE_CHECKING:
    from .torch_datasets import BatchDataset, UnitDataset
    from .torch_loader import TorchLoader


class Loader:
    """Batches of a view's units, epoch after epoch.

    Iterating yields the batches that are left of the epoch and moves on to the next one; whoever stops in
    between goes on there. There is one place where a loader stands, so one iteration at a time: one that was
    begun before the loader was moved, or before another one began, says so.

    A batch is a dict of arrays (nested for Dict and Tuple spaces); they are fresh and belong to whoever gets
    them. Not safe to use from several threads. It can be pickled, with the arrays that it reads from; a
    process that is spawned with it shares them instead.

    Args:
        feed: where units come from.
        batching: how they are cut into batches.
        identity: what the units and their order depend on, by name; a state of another identity is refused.
        transforms: applied to each batch in turn.
        output: turns batches into what is handed out.
        prefetch: how many batches are made ahead, in a thread.
    """

    #: Whether a batch depends on what happens before it, so that none can be made ahead or elsewhere.
    live = False

    def __init__(
        self,
        feed: Feed,
        batching: Batching,
        identity: Mapping[str, Any],
        transforms: Sequence[Callable[[Batch], Batch]] = (),
        output: Output | None = None,
        prefetch: int = 0,
    ) -> None:
        self._feed = feed
        self._batching = batching
        self._identity = dict(identity)
        self._transforms = tuple(transforms)
        self._output = NumpyOutput() if output is None else output
        self._prefetch = prefetch
        self._epoch = 0
        self._position = 0
        self._moves = 0
        self._taking: tuple[int, int, Taking] | None = None

    def __repr__(self) -> str:
        """What it yields and where it stands, in one line."""
        return (
            f"Loader({self.units} units, {len(self)} batches of {self._batching.size}, epoch {self._epoch}, "
            f"position {self._position})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """What is read ahead stays here."""
        return {**vars(self), "_taking": None}

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, counted from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._move_to(whole_number("epoch", epoch, 0), 0)

    @property
    def units(self) -> int:
        """Units of an epoch, of all shards together."""
        return self._feed.length

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that it holds."""
        return self._feed.nbytes

    def __len__(self) -> int:
        """Batches of a whole epoch, for this shard."""
        return self._batching.batches(0, self._feed.length)

    def __iter__(self) -> Iterator[Any]:
        """Yield what is left of the epoch."""
        self._moves += 1
        moves, epoch, begun = self._moves, self._epoch, self._position
        places = self._batching.places(begun, self._feed.length)
        taken = 0
        with contextlib.closing(self._made(epoch, begun)) as batches:
            for batch in batches:
                taken = min(taken + self._batching.size, places.count)
                # Counted before it is handed out: whoever saves the state then has had this batch.
                self._stand_at(epoch, begun + taken * places.step, taken == places.count)
                yield batch
                if moves != self._moves:
                    raise LoaderStateError(
                        "The loader was moved, or iterated anew, while this iteration went on. Begin a new "
                        "one: it goes on from where the loader stands."
                    )
        if not places.count:
            self._stand_at(epoch, begun, True)

    @property
    def source(self) -> BatchSource:
        """Where its batches come from, wherever the loader stands; for other readers of the same batches."""
        return BatchSource(self._feed, self._batching, self._transforms)

    @property
    def output(self) -> Output:
        """What makes of a batch what is handed out."""
        return self._output

    def _made(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches of an epoch from a position on, ready to be handed out."""
        batches = (self._output(batch) for batch in self.source.batches(epoch, position))
        return prefetched(batches, self._prefetch) if self._prefetch else batches

    @property
    def epoch_units(self) -> int | None:
        """Units that this shard takes of an epoch; None if it has no end."""
        return self._batching.shard.places(0, self._feed.length).count

    @property
    def kind(self) -> Units:
        """The kind of unit."""
        return self._feed.units

    def take(self, count: int) -> Any:
        """The next `count` units as one batch; where the epoch ends in between, the next one begins.

        Neither `batch_size` nor `drop_last` matter. It ends iterations that were begun, as any move does.

        Raises:
            InvalidArgumentError: count is not a whole number from 1 on.
        """
        return self._output(self._take(count))

    def _take(self, count: int) -> Batch:
        """The same as numpy arrays, for mixtures."""
        left, parts = whole_number("count", count, 1), []
        while left:
            epoch, begun = self._epoch, self._position
            rest = self._batching.shard.places(begun, self._feed.length)
            places = replace(rest, count=min(left, rest.count))
            if places.count:
                parts.append(self._taken(epoch, places, rest))
            elif begun == 0:
                raise LoaderStateError(
                    f"This shard has none of the {self.units} units of an epoch. Use fewer shards."
                )
            self._stand_at(epoch, begun + places.count * places.step, places.count == rest.count)
            self._moves += 1
            left -= places.count
        batch = parts[0] if len(parts) == 1 else self.kind.join(parts)
        return transformed(batch, self._transforms)

    def _taken(self, epoch: int, places: Places, rest: Places) -> Batch:
        if isinstance(self._feed, Picking):
            return self._feed.pick(epoch, places)
        # Goes on reading where the last call ended, if nothing moved in between.
        if self._taking is None or self._taking[:2] != (self._moves, places.start):
            self._taking = (0, 0, Taking(self._feed, epoch, rest, places.count))
        taking, self._taking = self._taking[2], None
        batch = taking.next(places.count)
        self._taking = (self._moves + 1, places.start + places.count * places.step, taking)
        return batch

    def _check_not_live(self, what: str) -> None:
        if self.live:
            raise InvalidArgumentError(
                f"{what} makes batches beforehand, in other processes; what this loader draws next depends "
                "on new priorities or new episodes. Iterate it here, with output='torch' for tensors."
            )

    def _mark(self) -> tuple[int, int]:
        """Where it stands, for `_go_back`."""
        return self._epoch, self._position

    def _go_back(self, mark: tuple[int, int]) -> None:
        self._move_to(*mark)

    def _move_to(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._moves += 1

    def _stand_at(self, epoch: int, position: int, over: bool) -> None:
        self._epoch, self._position = (epoch + 1, 0) if over else (epoch, position)

    def update_priorities(self, units: Any, priorities: Any) -> None:
        """Set the priorities of some units, where the loader draws by priority; see `PrioritisedLoader`.

        Raises:
            InvalidArgumentError: it does not.
        """
        raise InvalidArgumentError(
            "This loader does not draw by priority. Make it with prioritised=Prioritised()."
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: a small dict that JSON can hold.

        Taken after a batch, a loader that loads it goes on with the next batch, also with another batch size,
        number of shards or number of workers: then all shards must load the same state.
        """
        return make_state(self._identity, self._epoch, self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where another loader stood.

        Raises:
            LoaderStateError: the state is of another store, version, selection, kind of unit or order, or is
                no state; the loader stands where it stood.
        """
        epoch, position = read_state(state, self._identity, self._feed.length)
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
    ) -> TorchLoader:
        """A loader of the same batches, as tensors that worker processes make, from where this one stands.

        The order is the same for any number of workers, and so is the state, which counts the batches that
        were handed out. Workers take the place of `prefetch`. See `torch.utils.data.DataLoader` for the
        arguments.

        Raises:
            MissingPackageError: torch is not installed.
            InvalidArgumentError: torch refuses an argument, or this loader hands out JAX arrays.
        """
        self._check_not_live("torch_loader()")
        require("torch", "torch_loader()")
        from .torch_loader import TorchLoader

        options = {
            "num_workers": num_workers,
            "persistent_workers": persistent_workers,
            "prefetch_factor": prefetch_factor,
            "multiprocessing_context": multiprocessing_context,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
        }
        return TorchLoader(self, options)

    def iterable_dataset(self) -> BatchDataset:
        """The batches as an iterable dataset for torch's DataLoader; see there for how.

        Raises:
            MissingPackageError: torch is not installed.
            InvalidArgumentError: this loader hands out JAX arrays.
        """
        self._check_not_live("iterable_dataset()")
        require("torch", "iterable_dataset()")
        from .torch_datasets import BatchDataset

        return BatchDataset(self)

    def map_dataset(self) -> UnitDataset:
        """The units as a map-style dataset, for `DataLoader(dataset, ..., collate_fn=dataset.collate)`.

        Raises:
            MissingPackageError: torch is not installed.
            InvalidArgumentError: this loader has an order or a shard, which torch's sampler decides here; or
                it hands out JAX arrays, or streams.
        """
        self._check_not_live("map_dataset()")
        require("torch", "map_dataset()")
        from .torch_datasets import UnitDataset

        return UnitDataset(self)
