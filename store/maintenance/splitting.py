"""Splits: a share of the episodes for training, another for validation, by a hash of what they are.

An episode's part depends on its key and the seed alone, so it stays when others come or go.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping

from ..errors import InvalidArgumentError

_DIGEST_BYTES = 8


def parts_of(keys: Iterable[object], shares: Mapping[str, float], seed: int) -> list[str]:
    """Return the part of each key.

    A key's BLAKE2b hash, together with the seed, gives a number in [0, 1), and the shares, in their order,
    cut that interval.

    Raises:
        InvalidArgumentError: the shares are no positive numbers that add up to 1, or the seed is no integer.
    """
    _check(shares, seed)
    bounds = list(itertools.accumulate(shares.values()))
    names = list(shares)
    known: dict[object, str] = {}
    found = []
    for key in keys:
        if key not in known:
            place = _fraction(f"{seed}:{key}")
            index = next((i for i, bound in enumerate(bounds) if place < bound), len(names) - 1)
            known[key] = names[index]
        found.append(known[key])
    return found


def _fraction(text: str) -> float:
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") / 2 ** (8 * _DIGEST_BYTES)


def _check(shares: Mapping[str, float], seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidArgumentError(f"seed={seed!r}: expected a whole number.")
    good = (
        isinstance(shares, Mapping)
        and shares
        and all(
            isinstance(name, str)
            and isinstance(share, int | float)
            and not isinstance(share, bool)
            and share > 0
            for name, share in shares.items()
        )
    )
    if not good or not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-9):
        raise InvalidArgumentError(
            f"The shares {shares!r} are not valid: expected names with positive numbers that add up to 1, "
            'as in {"train": 0.9, "val": 0.1}.'
        )
