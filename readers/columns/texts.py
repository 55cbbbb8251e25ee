"""Texts in arrays of one width, which are gathered, mapped and pickled like numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...store.errors import InvalidArgumentError


def text_array(texts: Sequence[str], what: str) -> np.ndarray:
    """Return texts as an array of `<U` of the longest one's width, at least 1.

    Raises:
        InvalidArgumentError: a text ends in NUL, which such arrays drop.
    """
    array = np.array(texts, np.str_) if len(texts) else np.zeros(0, "<U1")
    if any(text.endswith("\0") for text in set(texts)):
        raise InvalidArgumentError(
            f"{what} has a text that ends in a NUL character, which numpy's arrays of texts drop. Leave the "
            "column out."
        )
    return array


def is_text(leaf: Any) -> bool:
    """Return whether a leaf of a batch is an array of texts."""
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind == "U"
