"""Parts of a batch of values: a stacked array, a list, or nested dicts and tuples of them.

A batch is what the codecs of `spaces` take and give for many values of one space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def single_value(values: Any, index: int) -> Any:
    """Return value `index` of a batch: of an array or list, or of each part of nested dicts and tuples."""
    if isinstance(values, Mapping):
        return {key: single_value(part, index) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(single_value(part, index) for part in values)
    return values[index]


def slice_batch(values: Any, start: int, stop: int) -> Any:
    """Return the values `[start, stop)` of a batch: of nested dicts and tuples in each part."""
    if isinstance(values, Mapping):
        return {key: slice_batch(part, start, stop) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(slice_batch(part, start, stop) for part in values)
    return values[start:stop]
