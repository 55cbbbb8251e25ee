"""`NumberSet`: some of the numbers 0 ... n-1, two bits for each of all."""

from __future__ import annotations

import numpy as np

_BITS = 64
#: Halves of a word that are searched, from 32 bits down, and their masks.
_HALVES = [(width, np.uint64((1 << width) - 1)) for width in (32, 16, 8, 4, 2, 1)]


class NumberSet:
    """Some of the numbers 0 ... n-1: the k-th of them, and how many are below a number, in a few steps each.

    Args:
        marked: bool, shape (n,): which they are.
    """

    def __init__(self, marked: np.ndarray) -> None:
        packed = np.packbits(marked, bitorder="little")
        # One word more, so that n has a word too.
        filled = np.zeros((len(marked) // _BITS + 1) * (_BITS // 8), np.uint8)
        filled[: len(packed)] = packed
        self.words = filled.view("<u8").astype(np.uint64, copy=False)
        self._before = np.concatenate([[0], np.cumsum(np.bitwise_count(self.words), dtype=np.int64)])

    def __len__(self) -> int:
        """Return how many numbers are in it."""
        return int(self._before[-1])

    def below(self, numbers: np.ndarray) -> np.ndarray:
        """Return, for each number in [0, n], the count of members below it: int64."""
        words, bits = numbers // _BITS, (numbers % _BITS).astype(np.uint64)
        lower = self.words[words] & ((np.uint64(1) << bits) - np.uint64(1))
        return self._before[words] + np.bitwise_count(lower)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers at some places in ascending order: int64; places are in [0, len(self))."""
        word = np.searchsorted(self._before, places, side="right") - 1
        left = places - self._before[word]
        words, bit = self.words[word], np.zeros(len(word), np.int64)
        for width, mask in _HALVES:
            count = np.bitwise_count(words & mask)
            above = left >= count
            left -= np.where(above, count, 0)
            words = np.where(above, words >> np.uint64(width), words)
            bit += width * above
        return word * _BITS + bit
