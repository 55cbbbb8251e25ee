"""`mix`: batches made of the units of several loaders, each with a share."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from ...store.errors import InvalidArgumentError, LoaderStateError
from .arguments import whole_number
from .loader import Loader
from .outputs import Output
from .shares import DrawnShares, ExactShares, Shares, normalised
from .tree import leaves
from .units.unit import Batch, Units

_STATE_FORMAT = 1
SOURCE = "source"

#: What an epoch of a mixture is: "longest", "shortest", a number of batches, or None: it has no end.
Epoch = Literal["longest", "shortest"] | int | None


class MixedLoader:
    """Batches that hold units of several loaders; made by `mix`.

    Each loader goes on along its own epochs, one after the other. Within a batch the units of the first
    loader come first, then those of the second, and so on. It owns its loaders from then on: whoever moves
    one of them moves the mixture. Not safe to use from several threads.

    Args:
        loaders: where units come from.
        shares: how many of each.
        batch_size: units of a batch.
        batches: batches of an epoch; None if it has no end.
        source: whether batches say which loader each unit is from.
        identity: what the composition depends on, by name; a state of another identity is refused.
    """

    def __init__(
        self,
        loaders: Sequence[Loader | MixedLoader],
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
        self._epoch = 0
        self._position = 0
        self._moves = 0

    def __repr__(self) -> str:
        """What it mixes and where it stands, in one line."""
        length = "no end" if self._batches is None else f"{self._batches} batches"
        return (
            f"MixedLoader({len(self._loaders)} loaders, {length} of {self._size}, epoch {self._epoch}, "
            f"position {self._position})"
        )

    @property
    def loaders(self) -> tuple[Loader | MixedLoader, ...]:
        """The loaders that are mixed; `source` counts them from 0."""
        return self._loaders

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, counted from 0."""
        return self._epoch

    @property
    def epoch_units(self) -> int | None:
        """Units of an epoch; None if it has no end."""
        return None if self._batches is None else self._batches * self._size

    @property
    def output(self) -> Output:
        """What makes of a batch what is handed out; all loaders have the same."""
        return self._loaders[0].output

    @property
    def kind(self) -> Units:
        """The kind of unit: that of the first loader."""
        return self._loaders[0].kind

    def __bool__(self) -> bool:
        """True, with or without a length."""
        return True

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises:
            TypeError: it has no end.
        """
        if self._batches is None:
            raise TypeError(
                "This mixture has no length: it never ends. Give mix(..., epoch=...) to have one."
            )
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        """Yield what is left of the epoch, or batches for ever."""
        self._moves += 1
        moves = self._moves
        while True:
            batch = self._taken(self._size)
            self._position += 1
            over = self._position == self._batches
            if over:
                self._epoch, self._position = self._epoch + 1, 0
            yield self.output(batch)
            if moves != self._moves:
                raise LoaderStateError(
                    "The mixture was moved, or iterated anew, while this iteration went on. Begin a new one: "
                    "it goes on from where the mixture stands."
                )
            if over:
                return

    def take(self, count: int) -> Any:
        """The next `count` units as one batch; does not count as a batch of the epoch.

        Raises:
            InvalidArgumentError: count is not a whole number from 1 on, or the loaders' batches differ.
        """
        return self.output(self._take(count))

    def _take(self, count: int) -> Batch:
        self._moves += 1
        return self._taken(whole_number("count", count, 1))

    def _taken(self, count: int) -> Batch:
        counts = self._shares.counts(self._units, self._units + count)
        mark = self._mark()
        try:
            parts = [self._part(number, own) for number, own in enumerate(counts) if own]
        except BaseException:
            # One of them gave nothing, so the others give theirs again.
            self._go_back(mark)
            raise
        self._units += count
        batch = dict(parts[0] if len(parts) == 1 else self.kind.join(parts))
        if self._source:
            batch[SOURCE] = np.repeat(np.arange(len(counts)), counts)
        return batch

    def _part(self, number: int, count: int) -> Batch:
        batch = self._loaders[number]._take(count)
        self._check_alike(number, batch)
        return batch

    def _mark(self) -> tuple[Any, ...]:
        """Where it and all its loaders stand, for `_go_back`."""
        return self._epoch, self._position, self._units, [loader._mark() for loader in self._loaders]

    def _go_back(self, mark: tuple[Any, ...]) -> None:
        self._epoch, self._position, self._units, marks = mark
        for loader, own in zip(self._loaders, marks, strict=True):
            loader._go_back(own)
        self._moves += 1

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
        """Where the mixture and all its loaders stand: a dict, as large as the loaders' own."""
        return {
            "format": _STATE_FORMAT,
            "identity": dict(self._identity),
            "epoch": self._epoch,
            "position": self._position,
            "units": self._units,
            "loaders": [loader.state_dict() for loader in self._loaders],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where another mixture stood: the same batches follow.

        Raises:
            LoaderStateError: it is no state of a mixture of these loaders with these arguments; nothing has
                moved.
        """
        try:
            form, identity, parts = state["format"], state["identity"], list(state["loaders"])
            epoch, position, units = (operator.index(state[name]) for name in ("epoch", "position", "units"))
        except (TypeError, KeyError, ValueError) as error:
            raise LoaderStateError(
                f"This is no state of a mixture: {state!r:.200}. Expected what state_dict() gave."
            ) from error
        if form != _STATE_FORMAT or identity != self._identity or len(parts) != len(self._loaders):
            raise LoaderStateError(
                f"The state is that of another mixture (format {form!r}, {identity!r:.300}, {len(parts)} "
                f"loaders; here format {_STATE_FORMAT}, {self._identity!r:.300}, {len(self._loaders)} "
                "loaders). Mix the same loaders with the same arguments."
            )
        if min(epoch, position, units) < 0 or (self._batches is not None and position >= self._batches):
            raise LoaderStateError(
                f"The state has epoch {epoch}, position {position} and {units} units; this cannot be."
            )
        self._load_parts(parts)
        self._epoch, self._position, self._units = epoch, position, units
        self._moves += 1

    def _load_parts(self, states: Sequence[Mapping[str, Any]]) -> None:
        before = [loader.state_dict() for loader in self._loaders]
        for number, (loader, state) in enumerate(zip(self._loaders, states, strict=True)):
            try:
                loader.load_state_dict(state)
            except LoaderStateError as error:
                for moved, old in zip(self._loaders[:number], before[:number], strict=True):
                    moved.load_state_dict(old)
                raise LoaderStateError(f"Loader {number} of the mixture: {error}") from error


def mix(
    parts: Sequence[tuple[Loader | MixedLoader, float]],
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
        exact: shares are met to the unit: in each batch where they divide, and in all units so far as near
            as whole units can. False: each unit's loader is drawn, so they are met in expectation.
        epoch: what an epoch is, where iteration pauses: "longest" (so many batches that the units of each
            loader have come once, as far as shares go), "shortest" (as many as the first loader takes to come
            to its end), a number of batches, or None for batches without end. It is the same number of
            batches each time; the loaders go on where they stand. Loaders without end do not count.
        source: give each batch the key `source`: int64, shape (b,), the number of the loader in `parts`.
        seed: of the draws, if not exact.

    Raises:
        InvalidArgumentError: an argument makes no sense. Where batches differ in keys, dtypes or shapes, the
            first batch raises it.
    """
    loaders, shares = _checked_parts(parts)
    size, seed = whole_number("batch_size", batch_size, 1), whole_number("seed", seed, 0)
    identity = {"shares": [str(share) for share in shares], "exact": exact, "seed": seed}
    return MixedLoader(
        loaders,
        ExactShares(shares) if exact else DrawnShares(shares, seed),
        size,
        _epoch_batches(epoch, loaders, shares, size),
        source=source,
        identity=identity,
    )


def _checked_parts(parts: Any) -> tuple[list[Loader | MixedLoader], tuple[Fraction, ...]]:
    try:
        pairs = [(loader, share) for loader, share in parts]
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"mix got {parts!r:.200}; expected pairs such as [(loader, 0.75), (other, 0.25)]."
        ) from error
    for number, (loader, share) in enumerate(pairs):
        if not isinstance(loader, Loader | MixedLoader):
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
            "Give both the same output=... and device=..."
        )
    shares = normalised([share if isinstance(share, Fraction) else float(share) for _, share in pairs])
    if not all(shares):
        raise InvalidArgumentError("A share is a billionth of another or less: no unit would come of it.")
    return loaders, shares


def _epoch_batches(
    epoch: Any, loaders: Sequence[Loader | MixedLoader], shares: Sequence[Fraction], size: int
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
    """Dtype and shape of a unit of a batch, by key; a padded axis is left out."""
    return {name: (leaf.dtype, leaf.shape[1 + ragged :]) for name, leaf in leaves(batch)}


def _difference(one: int, form: Mapping[str, tuple], two: int, other: Mapping[str, tuple]) -> str:
    told = []
    for number, names in ((one, {*form} - {*other}), (two, {*other} - {*form})):
        if names:
            told.append(f"only loader {number} has {', '.join(map(repr, sorted(names)))}")
    told += [
        f"{name!r} is {_told(form[name])} in loader {one} and {_told(other[name])} in loader {two}"
        for name in form
        if name in other and form[name] != other[name]
    ]
    return (
        f"Loaders {one} and {two} of the mixture do not give the same batches: {'; '.join(told)}. Give both "
        "the same columns=..., or transform one."
    )


def _told(form: tuple) -> str:
    dtype, shape = form
    return f"{dtype} of shape {shape}"
