"""`mix`: batches made of the units of several loaders, each with a share.

The loader of each unit is a pure function of the shares and the unit's number. Exactly: the first G units are
shared out as seats are among parties, by the divisors 1, 3, 5, ... (Webster, Sainte-Laguë). Each part has its
share of G, rounded; whole numbers are met exactly. Of all ways to round this is one in which no part ever
loses a unit as G grows (largest remainders do: the Alabama paradox; Balinski and Young 1982: Fair
Representation).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ...store.common.arguments import flag, whole_number
from ...store.errors import InvalidArgumentError, LoaderStateError
from ...store.names import SOURCE
from ..columns.texts import is_text
from ..columns.tree import leaves
from .loader import Loader
from .orders import EpochPosition, hash_words, make_state, read_state, uniforms
from .units import Batch

_MIX = 5


@dataclass(frozen=True)
class Shares:
    """The number of units of each part in a range of units.

    Attributes:
        shares: of each part; they add up to 1.
        seed: draw each unit's part independently, which meets shares in expectation (multinomial); None to
            meet them as exactly as whole units can, at any time.
    """

    shares: tuple[Fraction, ...]
    seed: int | None = None

    def counts(self, first: int, stop: int) -> list[int]:
        """Return how many of the units `first` to `stop` - 1 come from each part."""
        if self.seed is not None:
            return self._drawn(self.seed, first, stop)
        before, after = self._seats(first), self._seats(stop)
        return [late - early for early, late in zip(before, after, strict=True)]

    def _drawn(self, seed: int, first: int, stop: int) -> list[int]:
        drawn = uniforms(hash_words(seed, _MIX), np.arange(first, stop))
        reached = np.cumsum([float(share) for share in self.shares])
        # The last share may be rounded to end a little before 1.
        parts = np.searchsorted(reached[:-1], drawn, side="right")
        return np.bincount(parts, minlength=len(self.shares)).tolist()

    @cached_property
    def _whole(self) -> list[int]:
        """The shares as integers."""
        common = math.lcm(*(share.denominator for share in self.shares))
        return [int(share * common) for share in self.shares]

    def _seats(self, total: int) -> list[int]:
        """Units of each part among the first `total`."""
        # Rounded shares are the seats of some total near by; add or remove the next ones.
        whole = self._whole
        seats = [(2 * part * total + sum(whole)) // (2 * sum(whole)) for part in whole]
        while sum(seats) < total:
            claims = [share / (2 * seat + 1) for share, seat in zip(self.shares, seats, strict=True)]
            seats[claims.index(max(claims))] += 1
        while sum(seats) > total:
            held = [
                (share / (2 * seat - 1), -part)
                for part, (share, seat) in enumerate(zip(self.shares, seats, strict=True))
                if seat
            ]
            seats[-min(held)[1]] -= 1
        return seats


def normalized(weights: Sequence[float | Fraction]) -> tuple[Fraction, ...]:
    """Return shares that add up to exactly 1; 0.1 counts as one tenth."""
    exact = [Fraction(weight).limit_denominator(1_000_000_000) for weight in weights]
    return tuple(weight / sum(exact) for weight in exact)


#: What an epoch of a mixture is: "longest", "shortest", a number of batches, or None: it has no end.
Epoch = Literal["longest", "shortest"] | int | None


class MixedLoader(EpochPosition):
    """Batches that hold units of several loaders; made by `mix`.

    Each loader proceeds through its own epochs. Within a batch the units of the first loader come first, then
    those of the second, and so on. The mixture owns its loaders: moving one of them moves the mixture. Not
    safe to use from several threads.

    Args:
        loaders: where units come from.
        shares: how many of each.
        batch_size: units of a batch.
        batches: batches of an epoch; None if it has no end.
        source: whether batches hold the number of each unit's loader.
        identity: what the composition depends on, by name; a state of another identity is refused.
    """

    def __init__(
        self,
        loaders: Sequence[Loader],
        shares: Shares,
        batch_size: int,
        batches: int | None,
        *,
        source: bool,
        identity: Mapping[str, Any],
    ) -> None:
        self._loaders = tuple(loaders)
        self._shares = shares
        self._size = batch_size
        self._batches = batches
        self._source = source
        self._identity = dict(identity)
        self._forms: dict[int, dict[str, tuple]] = {}
        self._units = 0

    def __repr__(self) -> str:
        """Show the loaders and the position in one line."""
        length = "no end" if self._batches is None else f"{self._batches} batches"
        return (
            f"MixedLoader({len(self._loaders)} loaders, {length} of {self._size}, epoch {self._epoch}, "
            f"position {self._position})"
        )

    @property
    def loaders(self) -> tuple[Loader, ...]:
        """The loaders that are mixed; `source` counts them from 0."""
        return self._loaders

    def __bool__(self) -> bool:
        """Return True, with or without a length."""
        return True

    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises:
            TypeError: it has no end.
        """
        if self._batches is None:
            raise TypeError(
                "This mixture has no length: it never ends. Give mix(..., epoch=...) to have one."
            )
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of the epoch, or batches for ever."""
        self._moves += 1
        moves = self._moves
        while True:
            batch = self._next(self._size)
            self._position += 1
            over = self._position == self._batches
            if over:
                self._epoch, self._position = self._epoch + 1, 0
            yield batch
            self._check_unmoved(moves, "mixture")
            if over:
                return

    def take(self, count: int) -> Any:
        """Return the next `count` units as one batch, which does not count as a batch of the epoch.

        Raises:
            InvalidArgumentError: count is not a whole number from 1 on, or the loaders' batches differ.
        """
        self._moves += 1
        return self._next(whole_number("count", count, 1))

    def _next(self, count: int) -> Any:
        """Return the next units, converted; after an error each loader is where it was."""
        counts = self._shares.counts(self._units, self._units + count)
        marks = [loader._mark() for loader in self._loaders]
        try:
            parts = [self._part(number, own) for number, own in enumerate(counts) if own]
            batch = dict(parts[0] if len(parts) == 1 else self._loaders[0].kind.join(parts))
            if self._source:
                batch[SOURCE] = np.repeat(np.arange(len(counts)), counts)
            converted = self._loaders[0].output(batch)
        except BaseException:
            for loader, mark in zip(self._loaders, marks, strict=True):
                loader._go_back(mark)
            raise
        self._units += count
        return converted

    def _part(self, number: int, count: int) -> Batch:
        batch = self._loaders[number]._take(count)
        self._check_alike(number, batch)
        return batch

    def _check_alike(self, number: int, batch: Batch) -> None:
        """Compare a loader's batch with those of the others so far."""
        form = _form(batch, ragged=self._loaders[number].kind.ragged)
        if self._forms.get(number) == form:
            return
        for other, known in self._forms.items():
            if other != number and known != form:
                raise InvalidArgumentError(_difference(other, known, number, form))
        if self._source and SOURCE in batch:
            raise InvalidArgumentError(
                f"The batches of loader {number} have a key {SOURCE!r} already. Leave it out of its columns, "
                "or give mix(..., source=False)."
            )
        self._forms[number] = form

    def state_dict(self) -> dict[str, Any]:
        """Return the positions of the mixture and its loaders: a dict, as large as the loaders' own."""
        return {
            **make_state(self._identity, self._epoch, self._position),
            "units": self._units,
            "loaders": [loader.state_dict() for loader in self._loaders],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to the position of another mixture: the same batches follow.

        Raises:
            LoaderStateError: it is no state of a mixture of these loaders with these arguments; nothing has
                moved.
        """
        last = math.inf if self._batches is None else self._batches - 1
        epoch, position = read_state(state, self._identity, last, "mixture")
        units: Any = state.get("units")
        parts: Any = state.get("loaders")
        whole = isinstance(units, int) and units >= 0
        if not whole or not isinstance(parts, Sequence) or len(parts) != len(self._loaders):
            raise LoaderStateError(
                f"The state has {units!r} units and the states {parts!r:.200} of loaders; this cannot be. "
                f"Expected a number from 0 on and {len(self._loaders)} states."
            )
        self._load_parts(parts)
        self._units = units
        self._move_to(epoch, position)

    def _load_parts(self, states: Any) -> None:
        before = [loader.state_dict() for loader in self._loaders]
        for number, (loader, state) in enumerate(zip(self._loaders, states, strict=True)):
            try:
                loader.load_state_dict(state)
            except LoaderStateError as error:
                for moved, old in zip(self._loaders[:number], before[:number], strict=True):
                    moved.load_state_dict(old)
                raise LoaderStateError(f"Loader {number} of the mixture: {error}") from error


def mix(
    parts: Sequence[tuple[Loader, float]],
    batch_size: int = 256,
    *,
    exact: bool = True,
    epoch: Epoch = "longest",
    source: bool = False,
    seed: int = 0,
) -> MixedLoader:
    """Mix loaders: batches in which each has its share of the units.

    Args:
        parts: loaders and their shares: numbers above zero, scaled to add up to 1. The loaders' batch sizes
            do not matter; their transforms are applied, each to its own units. Their batches must have the
            same keys, with the same dtypes and shapes, and go to the same output and device.
        batch_size: units of a batch.
        exact: meet shares to the unit: in each batch where they divide, and over all units so far as closely
            as whole units can. False: draw each unit's loader, so shares are met in expectation.
        epoch: the number of batches after which iteration pauses: "longest" (until the units of each loader
            have come once, as far as shares go), "shortest" (until the first loader ends), a number, or None
            for batches without end. It is the same number each time, and no loader restarts for it. Loaders
            without end do not count.
        source: give each batch the key `source`: int64, shape (b,), the number of the loader in `parts`.
        seed: of the draws, if not exact.

    Raises:
        InvalidArgumentError: an argument makes no sense. Where batches differ in keys, dtypes or shapes, the
            first batch raises it.
    """
    exact = flag("exact", exact)
    source = flag("source", source)
    loaders, shares = _checked_parts(parts)
    size, seed = whole_number("batch_size", batch_size, 1), whole_number("seed", seed, 0)
    identity = {"shares": [str(share) for share in shares], "exact": exact, "seed": seed}
    return MixedLoader(
        loaders,
        Shares(shares, None if exact else seed),
        size,
        _epoch_batches(epoch, loaders, shares, size),
        source=source,
        identity=identity,
    )


def _checked_parts(parts: Any) -> tuple[list[Loader], tuple[Fraction, ...]]:
    try:
        pairs = [(loader, share) for loader, share in parts]
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"mix got {parts!r:.200}; expected pairs such as [(loader, 0.75), (other, 0.25)]."
        ) from error
    for number, (loader, share) in enumerate(pairs):
        if isinstance(loader, MixedLoader):
            raise InvalidArgumentError(
                f"Part {number} of the mixture is a mixture itself. Mix its loaders directly, each with the "
                "product of its shares."
            )
        if not isinstance(loader, Loader):
            raise InvalidArgumentError(
                f"Part {number} of the mixture is {loader!r:.200}; expected a loader of store.loader(...)."
            )
        real = isinstance(share, int | float | Fraction | np.number) and not isinstance(share, bool)
        if not real or not 0 < share < math.inf:
            raise InvalidArgumentError(
                f"The share of loader {number} is {share!r}; expected a number above zero."
            )
    loaders = [loader for loader, _ in pairs]
    if not loaders or len({id(loader) for loader in loaders}) < len(loaders):
        raise InvalidArgumentError("mix takes one or more loaders, each of them once. Make another loader.")
    other = next(
        (number for number, loader in enumerate(loaders) if loader.output != loaders[0].output), None
    )
    if other is not None:
        raise InvalidArgumentError(
            f"Loader 0 of the mixture hands out {loaders[0].output}, loader {other} {loaders[other].output}. "
            "Give both the same output=... and the same el.TorchModule, if any."
        )
    shares = normalized([share if isinstance(share, Fraction) else float(share) for _, share in pairs])
    if not all(shares):
        raise InvalidArgumentError("A share is a billionth of another or less: no unit would come of it.")
    return loaders, shares


def _epoch_batches(
    epoch: Any, loaders: Sequence[Loader], shares: Sequence[Fraction], size: int
) -> int | None:
    if epoch is None:
        return None
    if epoch not in ("longest", "shortest"):
        return whole_number("epoch", epoch, 1)
    needed = [
        loader.epoch_units / (share * size)
        for loader, share in zip(loaders, shares, strict=True)
        if loader.epoch_units is not None
    ]
    if not needed:
        return None
    return math.ceil(max(needed)) if epoch == "longest" else max(math.floor(min(needed)), 1)


def _form(batch: Batch, *, ragged: bool) -> dict[str, tuple]:
    """Return the dtype and shape of a unit of a batch, by key, without the padded axis.

    Texts of all widths are alike.
    """
    return {
        name: (np.dtype(str) if is_text(leaf) else leaf.dtype, leaf.shape[1 + ragged :])
        for name, leaf in leaves(batch)
    }


def _difference(one: int, form: Mapping[str, tuple], two: int, other: Mapping[str, tuple]) -> str:
    differences = []
    for number, names in ((one, {*form} - {*other}), (two, {*other} - {*form})):
        if names:
            differences.append(f"only loader {number} has {', '.join(map(repr, sorted(names)))}")
    differences += [
        f"{name!r} is {_described(form[name])} in loader {one} and {_described(other[name])} in loader {two}"
        for name in form
        if name in other and form[name] != other[name]
    ]
    return (
        f"Loaders {one} and {two} of the mixture have different batches: {'; '.join(differences)}. Give both "
        "the same columns=..., or transform one."
    )


def _described(form: tuple) -> str:
    dtype, shape = form
    return f"{dtype} of shape {shape}"
