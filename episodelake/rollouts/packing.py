"""`Packed` and `Padded`: token sequences of rollouts as batches for trainers.

    for batch in store.loader(units=el.Packed(8192), shuffle=True, output="torch"): ...

Both are kinds of unit that bring their own feed, so the loader has everything that loaders have: order,
shards, state, workers. A unit of `Padded` is a sequence. A unit of `Packed` is a pack of sequences: packs are
made for each epoch from its order, so their number differs from epoch to epoch.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np

from ..errors import InvalidArgumentError
from ..plugin import ReadContext, flag, one_of, warn_caller, whole_number
from ..plugin.columns import EPISODE
from ..readers.columns.mapped import Cache
from ..readers.loading.config import LoaderConfig
from ..readers.loading.feed import Batches, BatchSource, Feed, ShardSlice
from ..readers.loading.feeding import FedUnits
from ..readers.loading.loader import Loader
from ..readers.loading.orders import Order, Shuffled
from ..readers.loading.outputs import JaxOutput, NumpyOutput
from ..readers.loading.units import Batch, Units
from .batch_keys import ATTENTION_MASK, POSITION_IDS, SEQUENCE_LENGTHS, BatchKeys
from .declaration import check_rollouts
from .sequences import INPUT_IDS, LOSS_MASK, Messages, Sequences, TokenArrays

TooLong = Literal["error", "cut", "split"]
#: Tokens of a batch's sequence, at most.
_MOST = 2**31 - 1


class SequenceUnits(FedUnits):
    """A kind of unit made of token sequences of rollouts."""

    default_keys = (INPUT_IDS, POSITION_IDS, LOSS_MASK)
    n: int
    too_long: TooLong

    def _check(self) -> None:
        object.__setattr__(self, "n", whole_number("n", self.n, 1, _MOST))
        one_of("too_long", self.too_long, ("error", "cut", "split"))

    @property
    def every(self) -> None:
        """None: sequences begin at no step."""
        return

    def counts(self, index: Any) -> NoReturn:
        """Raise an error: steps do not make sequences.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"{self} has token sequences of rollouts, which only store.loader(units={self}) gives."
        )

    def gathering(self, arrays: Any, chosen: Any) -> NoReturn:
        """Raise an error, as `counts` does."""
        self.counts(None)

    @abstractmethod
    def feed(self, sequences: Sequences, arrays: TokenArrays, making: _Making) -> SequenceFeed:
        """Return the feed of sequences."""

    @abstractmethod
    def batching(self, given: Batches) -> Batches:
        """Return how an epoch is cut into batches."""

    def loader(self, context: ReadContext, config: LoaderConfig) -> Loader:
        """See `FedUnits`."""
        check_rollouts(context.snapshot.manifest.rollouts)
        self._check_arguments(config)
        context.check_not_empty("to load")
        batching = self.batching(config.batching)
        keys = BatchKeys.of(context, config)
        messages = Messages.read(context, keys.numbers)
        _check_tokens(messages, len(context))
        sequences = self._limited(messages.branches())
        wide = not isinstance(config.output, NumpyOutput | JaxOutput)
        order = config.order(np.array([0, len(sequences)]), None)
        feed = self.feed(sequences, messages.tokens, _Making(keys, order, config.seed, wide))
        identity = {
            "store": context.snapshot.manifest.store_id,
            "version": context.snapshot.version,
            "episodes": zlib.crc32(context.all_positions.tobytes()),
            "units": repr(self),
            "order": type(order).__name__,
            "seed": config.seed,
        }
        source = BatchSource(feed, batching, config.shard, config.pipeline.on_batch)
        return Loader(source, identity, config.output, config.pipeline.modules)

    def _check_arguments(self, config: LoaderConfig) -> None:
        given = {
            "weights": config.weights is not None,
            "agent": config.agent is not None,
            "group": config.group is not None,
            "joint": config.joint,
            "transitions": config.transitions is not None,
            "cache": config.cache != Cache(),
        }
        wrong = [name for name, is_given in given.items() if is_given]
        if wrong:
            raise InvalidArgumentError(
                f"{wrong[0]}=... does not go with {self}, which holds the tokens of whole rollouts in memory "
                "and gives each branch once an epoch.",
                hint="Leave it out, and choose rollouts with filter(...), such as "
                "store.filter('\"group\" = ...').",
            )
        if config.pipeline.on_read:
            raise InvalidArgumentError(
                f"{config.pipeline.on_read[0]!r} derives columns of steps, but {self} has tokens. Leave it "
                "out; functions of batches are applied."
            )

    def _limited(self, branches: Sequences) -> Sequences:
        """Return the sequences of at most `n` tokens that branches give."""
        long = np.flatnonzero(branches.lengths > self.n)
        if not len(long):
            return branches
        if self.too_long == "error":
            worst = long[branches.lengths[long].argmax()]
            raise InvalidArgumentError(
                f"{len(long)} of {len(branches)} branches have more than {self.n} tokens; the longest has "
                f"{branches.lengths[worst]}, in the rollout at position {branches.rollouts[worst]}.",
                hint=f"Choose a larger n, or too_long='cut' for the first {self.n} tokens of each, or "
                "'split' for pieces.",
            )
        return branches.pieces(self.n, all_pieces=self.too_long == "split")


def _check_tokens(messages: Messages, count: int) -> None:
    lacking = messages.without_tokens
    if lacking == count:
        raise InvalidArgumentError(
            f"None of the {count} rollouts has tokens, so there is nothing to train on.",
            hint="Write rollouts with write_rollout(..., tokens=...).",
        )
    if lacking:
        warn_caller(f"The loader leaves out {lacking} of {count} rollouts, which have no tokens.")


@dataclass(frozen=True)
class _Making:
    """How batches are made.

    Attributes:
        keys: of a batch.
        order: of the sequences.
        seed: of the order.
        wide: whether ids and positions are int64, for torch; else int32.
    """

    keys: BatchKeys
    order: Order
    seed: int
    wide: bool


@dataclass(frozen=True)
class SequenceFeed(Feed):
    """Batches of sequences; the base of packs and padded batches.

    Attributes:
        sequences: the sequences.
        arrays: their tokens.
        making: how batches are made.
        units: the kind of unit.
    """

    sequences: Sequences
    arrays: TokenArrays
    making: _Making
    units: Units

    @property
    def length(self) -> int:
        """Sequences of all rollouts: places of an epoch, at most."""
        return len(self.sequences)

    @property
    def nbytes(self) -> int:
        """See `Feed`."""
        return self.arrays.nbytes

    def take(self, epoch: int, places: ShardSlice, counts: Iterator[int]) -> Iterator[Batch]:
        """See `Feed`."""
        first, every = 0, places.wrapped(0, places.count)
        for count in counts:
            yield self.gather(self.chosen(epoch, every[first : first + count]))
            first += count

    @abstractmethod
    def chosen(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Return the sequences of a batch, given its places of the epoch."""

    @abstractmethod
    def gather(self, some: np.ndarray) -> Batch:
        """Return a batch of some sequences."""

    def joined(self, some: np.ndarray) -> Mapping[str, Callable[[], np.ndarray]]:
        """Return the values of some sequences, one after the other, by key."""
        spans = self.sequences.spans(some)
        starts, stops = self.sequences.starts[spans], self.sequences.stops[spans]
        lengths = self.sequences.lengths[some]
        # Copies of slices are several times faster than a gather by index.
        bounds = list(map(slice, starts.tolist(), stops.tolist()))

        def taken(name: str, dtype: Any = None) -> np.ndarray:
            return np.concatenate(list(map(self.arrays.columns[name].__getitem__, bounds)), dtype=dtype)

        def loss_mask() -> np.ndarray:
            mask = taken(LOSS_MASK)
            if self.sequences.shared:
                mask &= np.repeat(self.sequences.first[spans], stops - starts)
            return mask

        def positions() -> np.ndarray:
            return np.concatenate([self._numbers[:length] for length in lengths.tolist()])

        return {
            **{name: lambda name=name: taken(name) for name in self.making.keys.numbers},
            **{
                name: lambda values=values: values[self.sequences.rollouts[some]]
                for name, values in self.making.keys.facts.items()
            },
            INPUT_IDS: lambda: taken(INPUT_IDS, self._numbers.dtype),
            POSITION_IDS: positions,
            LOSS_MASK: loss_mask,
            SEQUENCE_LENGTHS: lambda: lengths.astype(np.int32),
            EPISODE: lambda: self.sequences.rollouts[some],
        }

    @cached_property
    def _numbers(self) -> np.ndarray:
        """The positions of the longest sequence, of the type that ids have in batches."""
        return np.arange(self.sequences.lengths.max(), dtype=np.int64 if self.making.wide else np.int32)


@dataclass(frozen=True)
class PackFeed(SequenceFeed):
    """Packs of sequences, made from the order of each epoch.

    Attributes:
        room: tokens of a pack, at most.
    """

    room: int
    _plans: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, compare=False, repr=False)

    def epoch_length(self, epoch: int) -> int:
        """See `Feed`: the number of packs."""
        return len(self._plan(epoch)[1]) - 1

    def chosen(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """See `SequenceFeed`; of a single pack."""
        if len(places) > 1:
            raise _one_pack(self.units)
        sequences, edges = self._plan(epoch)
        return sequences[edges[places[0]] : edges[places[0] + 1]]

    def gather(self, some: np.ndarray) -> Batch:
        """See `SequenceFeed`; tokens one after the other."""
        values = self.joined(some)
        return {key: values[key]() for key in self.making.keys.names}

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sequences by pack, and the first of each pack with the number of all."""
        shuffled = isinstance(self.making.order, Shuffled)
        epoch = epoch if shuffled else 0
        plan = self._plans.get(epoch)
        if plan is None:
            order = self.making.order.units(epoch, np.arange(len(self.sequences)))
            packs = first_fit(self.sequences.lengths[order], self.room)
            count = int(packs.max()) + 1
            if shuffled:
                # First fit moves short sequences forward; the packs' own order undoes that.
                packs = Shuffled(count, self.making.seed).units(epoch, np.arange(count))[packs]
            edges = np.concatenate([[0], np.cumsum(np.bincount(packs, minlength=count))])
            plan = order[np.argsort(packs, kind="stable")], edges
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.clear()
            self._plans[epoch] = plan
        return plan


_KEPT_PLANS = 2


def first_fit(lengths: np.ndarray, room: int) -> np.ndarray:
    """Return the pack of each sequence: the first one with room for it, in order; int64.

    Args:
        lengths: tokens of each, from 1 to `room`.
        room: tokens of a pack.
    """
    # Any two packs hold more than `room` tokens together.
    most = min(len(lengths), 2 * int(lengths.sum()) // room + 1)
    leaves = 1 << max(most - 1, 0).bit_length()
    # The room of each pack, and above each pair of entries the larger one.
    free = [room] * (2 * leaves)
    packs = np.empty(len(lengths), np.int64)
    for number, length in enumerate(lengths.tolist()):
        node = 1
        while node < leaves:
            node *= 2
            if free[node] < length:
                node += 1
        packs[number] = node - leaves
        free[node] -= length
        while node > 1:
            node //= 2
            larger = max(free[2 * node], free[2 * node + 1])
            if free[node] == larger:
                break
            free[node] = larger
    return packs


@dataclass(frozen=True)
class PaddedFeed(SequenceFeed):
    """Sequences with padding after them.

    Attributes:
        padded_length: tokens with padding; None for those of the longest sequence of a batch.
        pad_id: the token id of padding.
    """

    padded_length: int | None
    pad_id: int

    def chosen(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """See `SequenceFeed`."""
        return self.making.order.units(epoch, places)

    def gather(self, some: np.ndarray) -> Batch:
        """See `SequenceFeed`; arrays of shape (b, L)."""
        values = self.joined(some)
        lengths = self.sequences.lengths[some]
        attended = np.arange(self.padded_length or lengths.max()) < lengths[:, None]

        def padded(key: str) -> np.ndarray:
            if key == ATTENTION_MASK:
                return attended.copy()
            flat = values[key]()
            if key in (SEQUENCE_LENGTHS, EPISODE, *self.making.keys.facts):
                return flat
            made = np.full(attended.shape, self.pad_id if key == INPUT_IDS else 0, flat.dtype)
            made[attended] = flat
            return made

        return {key: padded(key) for key in self.making.keys.names}


@dataclass(frozen=True)
class Packed(SequenceUnits):
    """Token sequences of rollouts, packed; `store.loader(units=el.Packed(8192), shuffle=True)`.

    A sequence is a branch of a rollout: a path of messages from a first one to one that no message continues.
    Sequences are packed whole, in the order of the epoch, each into the first pack with room for it. A batch
    is one pack of N <= n tokens in k sequences, with the keys

    - `input_ids`: shape (N,), int64 with torch, else int32; and `position_ids` alike, from 0 in each sequence
    - `loss_mask`: bool, shape (N,): the tokens that the model sampled; those that branches share only in the
      first branch
    - `logprobs`, `reference_logprobs`, `advantages`, `loss_weights`, `token_rewards`: float32, shape (N,), if
      the store has them; 0 for tokens without one. `advantages` are those of the tokens, else that of the
      rollout
    - `sequence_lengths`: int32, shape (k,); `episode`: int64, shape (k,), the position of each sequence's
      rollout in the view

    `columns=` of the loader also takes columns of episodes, shape (k,), and columns of messages with a number
    (that of each of its tokens) or a list for its tokens, shape (N,); annotations among them.

    Args:
        n: tokens of a pack, at most.
        too_long: what becomes of a branch with more tokens: "error", "cut" (its first n tokens) or "split"
            (pieces of n tokens, each a sequence of its own).

    Raises:
        InvalidArgumentError: `n` is no whole number from 1 on, or `too_long` is something else.
    """

    ragged = True

    n: int
    _: KW_ONLY
    too_long: TooLong = "error"

    def __post_init__(self) -> None:
        self._check()

    def feed(self, sequences: Sequences, arrays: TokenArrays, making: _Making) -> PackFeed:
        """See `SequenceUnits`."""
        return PackFeed(sequences, arrays, making, self, self.n)

    def batching(self, given: Batches) -> Batches:
        """See `SequenceUnits`; batches of one pack."""
        if given.size not in (1, Batches().size) or given.drop_last:
            raise _one_pack(self)
        return replace(given, size=1)

    def join(self, batches: Sequence[Batch]) -> Batch:
        """Raise an error: a pack is a batch."""
        raise _one_pack(self)


def _one_pack(units: Units) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"A batch of {units} is one pack, never several, nor smaller than others.",
        hint="Leave out batch_size and drop_last; choose n instead. Elsewhere, ask for one unit at a time.",
    )


@dataclass(frozen=True)
class Padded(SequenceUnits):
    """Token sequences of rollouts, padded; `store.loader(16, el.Padded(4096), shuffle=True)`.

    A batch has `batch_size` sequences. Its keys are those of `Packed`, of shape (b, n) instead of (N,), and
    `attention_mask` (bool, shape (b, n)): True for tokens, False for the padding after them, where
    `input_ids` is `pad_id` and everything else 0. `sequence_lengths` and `episode` have the shape (b,).

    Args:
        n: tokens of a sequence, at most.
        too_long: as for `Packed`.
        to_longest: pad to the longest sequence of each batch instead of `n`.
        pad_id: the token id of padding.

    Raises:
        InvalidArgumentError: a number is no whole number in its range, or another value is unknown.
    """

    default_keys = (*SequenceUnits.default_keys, ATTENTION_MASK)

    n: int
    _: KW_ONLY
    too_long: TooLong = "error"
    to_longest: bool = False
    pad_id: int = 0

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "to_longest", flag("to_longest", self.to_longest))
        object.__setattr__(self, "pad_id", whole_number("pad_id", self.pad_id, 0, _MOST))

    @property
    def ragged(self) -> bool:
        """Whether batches differ in their second axis."""
        return self.to_longest

    def feed(self, sequences: Sequences, arrays: TokenArrays, making: _Making) -> PaddedFeed:
        """See `SequenceUnits`."""
        length = None if self.to_longest else self.n
        return PaddedFeed(sequences, arrays, making, self, length, self.pad_id)

    def batching(self, given: Batches) -> Batches:
        """See `SequenceUnits`."""
        return given

    def join(self, batches: Sequence[Batch]) -> Batch:
        """See `Units`; pads all batches to the longest."""
        return {key: self._joined(key, [batch[key] for batch in batches]) for key in batches[0]}

    def _joined(self, key: str, parts: Sequence[np.ndarray]) -> np.ndarray:
        if parts[0].ndim > 1:
            longest = max(part.shape[1] for part in parts)
            fill = self.pad_id if key == INPUT_IDS else 0
            parts = [
                np.pad(part, ((0, 0), (0, longest - part.shape[1])), constant_values=fill) for part in parts
            ]
        return np.concatenate(parts)
