"""Orders: the unit at each place of an epoch, as a pure function of the seed and the epoch.

A permutation of 0 ... n-1 needs no memory: each entry is worked out from a key when it is asked for. A
Feistel network permutes the numbers of some bits, whatever its round function; numbers that fall outside are
sent through again until they fall inside ("cycle walking", Black and Rogaway 2002: Ciphers with arbitrary
finite domains). Four rounds are enough if the rounds mix well (Luby and Rackoff 1988); these use the
multiplications of MurmurHash3's finalizer. Only integer arithmetic is used, so the order depends neither on
numpy's version nor on the machine.

The position in an epoch is the state of a loader: a small dict that JSON can hold.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np

from ...store.errors import LoaderStateError

_ROUNDS = 4
#: Below, the keys of all entries are sorted instead: a network of few bits knows few permutations.
_SORTED = 1 << 12


@lru_cache(256)
def hash_words(*words: int) -> int:
    """Mix integers that are not negative, of any size, into 64 bits; the same ones give the same for ever."""
    state = np.zeros(1, np.uint64)
    for word in words:
        parts = [word >> shift & _ALL for shift in range(0, max(word.bit_length(), 1), 64)]
        # Their number keeps two small words and a large one apart.
        for part in (*parts, len(parts)):
            state = mix64(state ^ np.uint64(part))
    return int(state[0])


#: SplitMix64: Steele, Lea and Flood 2014. Numpy converts scalars at each use, arrays without dimensions not.
_GAMMA = np.array(0x9E3779B97F4A7C15, np.uint64)
_ROUND_1 = np.array(30, np.uint64), np.array(0xBF58476D1CE4E5B9, np.uint64)
_ROUND_2 = np.array(27, np.uint64), np.array(0x94D049BB133111EB, np.uint64)
_LAST_SHIFT, _MANTISSA_SHIFT = np.array(31, np.uint64), np.array(11, np.uint64)


def mix64(values: np.ndarray) -> np.ndarray:
    """Mix uint64 values one to one."""
    values = values + _GAMMA
    for shift, factor in (_ROUND_1, _ROUND_2):
        values ^= values >> shift
        values *= factor
    values ^= values >> _LAST_SHIFT
    return values


def uniforms(key: int, counters: np.ndarray) -> np.ndarray:
    """Return numbers in [0, 1), float64, one for each counter: the same key and counter give the same
    number.
    """
    mixed = mix64(mix64(counters.astype(np.uint64)) ^ np.uint64(key))
    return (mixed >> _MANTISSA_SHIFT).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Permutation:
    """A permutation of `size` numbers.

    Attributes:
        size: how many.
        key: chooses the permutation; 64 bits.
    """

    size: int
    key: int

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers at some places.

        Args:
            places: int64, each in [0, size).

        Returns:
            int64, of the same shape.
        """
        if self.size <= _SORTED:
            return self._table[places]
        numbers = self._network(places)
        outside = np.flatnonzero(numbers >= self.size)
        while len(outside):
            again = self._network(numbers[outside])
            numbers[outside] = again
            outside = outside[again >= self.size]
        return numbers.astype(np.int64)

    @cached_property
    def _table(self) -> np.ndarray:
        keys = mix64(mix64(np.arange(self.size, dtype=np.uint64)) ^ np.uint64(self.key))
        return np.argsort(keys, kind="stable")

    @cached_property
    def _halves(self) -> tuple[int, int]:
        """Bits of the left and the right half."""
        bits = (self.size - 1).bit_length()
        return bits // 2, bits - bits // 2

    @cached_property
    def _keys(self) -> list[int]:
        return [
            int(mixed) & _HALF for mixed in mix64(np.arange(_ROUNDS, dtype=np.uint64) ^ np.uint64(self.key))
        ]

    def _network(self, places: np.ndarray) -> np.ndarray:
        left_bits, right_bits = self._halves
        wide = np.uint64 if left_bits + right_bits > 32 else np.uint32
        values = places.astype(wide)
        left, right = values >> wide(right_bits), values & wide((1 << right_bits) - 1)
        mixed, shifted = np.empty_like(values, np.uint32), np.empty_like(values, np.uint32)
        for key in self._keys:
            _mix32(right, key, left_bits, mixed, shifted)
            left ^= mixed
            # The halves change places, and their sizes with them.
            left, right = right, left
            left_bits, right_bits = right_bits, left_bits
        return left << wide(right_bits) | right


def _mix32(values: np.ndarray, key: int, bits: int, mixed: np.ndarray, shifted: np.ndarray) -> None:
    """Write `bits` well mixed bits of each value and the key to `mixed`; `shifted` is room for work."""
    np.add(values, np.uint32(key), out=mixed, casting="unsafe")
    for shift, factor in _MIXING:
        np.right_shift(mixed, shift, out=shifted)
        mixed ^= shifted
        mixed *= factor
    # The upper bits of a product depend on all bits of its factors.
    np.right_shift(mixed, np.uint32(32 - bits), out=mixed)


_MIXING = ((np.uint32(16), np.uint32(0x85EBCA6B)), (np.uint32(13), np.uint32(0xC2B2AE35)))
_ALL, _HALF = (1 << 64) - 1, (1 << 32) - 1


_SHUFFLE, _DRAW, _UNIT = 1, 2, 3


class Order(Protocol):
    """An order of units."""

    @property
    def length(self) -> int:
        """Places of an epoch."""
        ...

    def units(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Return the units at some places, int64; `places` are in [0, length)."""
        ...


@dataclass(frozen=True)
class Sequential:
    """One unit after the other."""

    length: int

    def units(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """See `Order`."""
        return places


@dataclass(frozen=True)
class Shuffled:
    """Each unit once an epoch, in an order of that epoch's own."""

    length: int
    seed: int

    def units(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """See `Order`."""
        return _permutation(self.length, self.seed, epoch)(places)


@lru_cache(8)
def _permutation(length: int, seed: int, epoch: int) -> Permutation:
    return Permutation(length, hash_words(seed, epoch, _SHUFFLE))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Units drawn independently: an episode by its weight, then one of its units, all alike.

    Attributes:
        length: draws of an epoch.
        seed: of the draws.
        edges: int64, shape (E + 1,): the first unit of each episode.
        weights: float64, shape (E,): not negative, not all zero; None to draw all units alike.
    """

    length: int
    seed: int
    edges: np.ndarray
    weights: np.ndarray | None = field(default=None)

    def units(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """See `Order`."""
        first = uniforms(hash_words(self.seed, epoch, _DRAW), places)
        if self.weights is None:
            return _scaled(first, self.edges[-1])
        reached = self._reached
        # The product may be rounded up to the whole sum, which belongs to no episode.
        wanted = np.minimum(first * reached[-1], np.nextafter(reached[-1], 0.0))
        episodes = np.searchsorted(reached, wanted, side="right")
        second = uniforms(hash_words(self.seed, epoch, _UNIT), places)
        counts = self.edges[episodes + 1] - self.edges[episodes]
        return self.edges[episodes] + _scaled(second, counts)

    @cached_property
    def _reached(self) -> np.ndarray:
        """The sum of the weights up to each episode; those without a unit have none."""
        assert self.weights is not None
        return np.cumsum(np.where(np.diff(self.edges) > 0, self.weights, 0.0))


def _scaled(fractions: np.ndarray, counts: np.ndarray | int) -> np.ndarray:
    # The product may be rounded up to the count itself.
    return np.minimum((fractions * counts).astype(np.int64), np.asarray(counts) - 1)


_FORMAT = 1


def make_state(identity: Mapping[str, Any], epoch: int, position: int) -> dict[str, Any]:
    """Return the state at a position of an epoch."""
    return {"format": _FORMAT, "identity": dict(identity), "epoch": epoch, "position": position}


def read_state(
    state: Mapping[str, Any], identity: Mapping[str, Any], length: float, kind: str = "loader"
) -> tuple[int, int]:
    """Return the epoch and the position of a state.

    Args:
        state: as `make_state` returned it.
        identity: the identity that the state must have.
        length: the last position of an epoch.
        kind: the kind of loader that the state must belong to, for messages.

    Raises:
        LoaderStateError: it is of another identity, or is no state.
    """
    try:
        form, own = state["format"], dict(state["identity"])
        epoch, position = operator.index(state["epoch"]), operator.index(state["position"])
    except (TypeError, KeyError, ValueError) as error:
        raise LoaderStateError(
            f"This is no state of a {kind}: {state!r:.200}. Expected the result of state_dict()."
        ) from error
    other = [name for name in identity if own.get(name) != identity[name]]
    if other:
        differences = "; ".join(f"{name}: {own.get(name)!r} there, {identity[name]!r} here" for name in other)
        raise LoaderStateError(
            f"This state belongs to another {kind} ({differences}). Open the same version of the store, and "
            f"make the {kind} with the same arguments."
        )
    if form != _FORMAT or epoch < 0 or not 0 <= position <= length:
        raise LoaderStateError(
            f"The state has format {form!r}, epoch {epoch} and position {position}; expected format "
            f"{_FORMAT}, an epoch from 0 on, and a position from 0 to {length}."
        )
    return epoch, position


class EpochPosition:
    """The position of a loader or a mixture in its epochs."""

    _epoch = _position = 0
    #: Counts the moves, so that an iteration notices that its loader was moved.
    _moves = 0

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, counted from 0."""
        return self._epoch

    def _move_to(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._moves += 1

    def _check_unmoved(self, moves: int, kind: str) -> None:
        if moves != self._moves:
            raise LoaderStateError(
                f"The {kind} was moved, or another iteration began, during this iteration. Begin a new one: "
                f"it continues from the {kind}'s position."
            )
