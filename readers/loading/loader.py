"""`Loader`: walks along the order of an epoch, hands out batches, and knows where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...store.errors import InvalidArgumentError, LoaderStateError
from .arguments import whole_number
from .feed import Feed, Places
from .shard import Shard
from .taking import Picking, Taking
from .units.unit import Batch, Units

_STATE_FORMAT = 1


@dataclass(frozen=True)
class Batching:
    """How an epoch is cut into batches.

    Attributes:
        size: units of a batch.
        drop_last: leave out the last batch of an epoch if it is smaller.
        shard: which part of the epoch.
    """

    size: int
    drop_last: bool
    shard: Shard

    def places(self, position: int, length: int) -> Places:
        """The places that are batched, from a position on."""
        places = self.shard.places(position, length)
        if self.drop_last:
            places = replace(places, count=places.count // self.size * self.size)
        return places

    def batches(self, position: int, length: int) -> int:
        """How many batches are left."""
        return -(-self.places(position, length).count // self.size)


class Loader:
    """Batches of a view's units, epoch after epoch.

    Iterating yields the batches that are left of the epoch and moves on to the next one; whoever stops in
    between goes on there. There is one place where a loader stands, so one iteration at a time: one that was
    begun before the loader was moved, or before another one began, says so.

    A batch is a dict of numpy arrays (nested for Dict and Tuple spaces); they are fresh and belong to whoever
    gets them. Not safe to use from several threads.

    Args:
        feed: where units come from.
        batching: how they are cut into batches.
        identity: what the units and their order depend on, by name; a state of another identity is refused.
        transforms: applied to each batch in turn.
    """

    def __init__(
        self,
        feed: Feed,
        batching: Batching,
        identity: Mapping[str, Any],
        transforms: Sequence[Callable[[Batch], Batch]] = (),
    ) -> None:
        self._feed = feed
        self._batching = batching
        self._identity = dict(identity)
        self._transforms = tuple(transforms)
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

    def __len__(self) -> int:
        """Batches of a whole epoch, for this shard."""
        return self._batching.batches(0, self._feed.length)

    def __iter__(self) -> Iterator[Batch]:
        """Yield what is left of the epoch."""
        self._moves += 1
        moves, epoch, begun = self._moves, self._epoch, self._position
        places = self._batching.places(begun, self._feed.length)
        taken = 0
        for batch in self._feed.batches(epoch, places, self._batching.size):
            taken = min(taken + self._batching.size, places.count)
            # Counted before it is handed out: whoever saves the state then has had this batch.
            self._stand_at(epoch, begun + taken * places.step, taken == places.count)
            for transform in self._transforms:
                batch = transform(batch)
            yield batch
            if moves != self._moves:
                raise LoaderStateError(
                    "The loader was moved, or iterated anew, while this iteration went on. Begin a new one: "
                    "it goes on from where the loader stands."
                )
        if not places.count:
            self._stand_at(epoch, begun, True)

    @property
    def epoch_units(self) -> int | None:
        """Units that this shard takes of an epoch; None if it has no end."""
        return self._batching.shard.places(0, self._feed.length).count

    @property
    def kind(self) -> Units:
        """The kind of unit."""
        return self._feed.units

    def take(self, count: int) -> Batch:
        """The next `count` units as one batch; where the epoch ends in between, the next one begins.

        Neither `batch_size` nor `drop_last` matter. It ends iterations that were begun, as any move does.

        Raises:
            InvalidArgumentError: count is not a whole number from 1 on.
        """
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
        for transform in self._transforms:
            batch = transform(batch)
        return batch

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
        return {
            "format": _STATE_FORMAT,
            "identity": dict(self._identity),
            "epoch": self._epoch,
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where another loader stood.

        Raises:
            LoaderStateError: the state is of another store, version, selection, kind of unit or order, or is
                no state; the loader stands where it stood.
        """
        try:
            form, identity = state["format"], state["identity"]
            epoch, position = int(state["epoch"]), int(state["position"])
        except (TypeError, KeyError, ValueError) as error:
            raise LoaderStateError(
                f"This is no state of a loader: {state!r:.200}. Expected what state_dict() gave."
            ) from error
        if form != _STATE_FORMAT or epoch < 0 or not 0 <= position <= self._feed.length:
            raise LoaderStateError(
                f"The state has format {form!r}, epoch {epoch} and position {position}; expected format "
                f"{_STATE_FORMAT}, an epoch from 0 on, and a position from 0 to {self._feed.length}."
            )
        other = [name for name in self._identity if identity.get(name) != self._identity[name]]
        if other:
            told = "; ".join(
                f"{name}: {identity.get(name)!r} there, {self._identity[name]!r} here" for name in other
            )
            raise LoaderStateError(
                f"The state is that of another loader ({told}). Open the same version of the store, and make "
                "the loader with the same arguments."
            )
        self._move_to(epoch, position)
