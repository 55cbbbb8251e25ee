"""`Normalize`: shifts and scales values, by given numbers or by statistics of a store; and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ....store.common.arguments import one_of
from ....store.errors import InvalidArgumentError
from ...columns.ragged import Ragged
from ...columns.tree import Tree, leaves
from ...measures.column_stats import ColumnStats, Stats
from ..units import Batch
from .key_transforms import change, key_tuple

Method = Literal["standard", "range", "quantiles"]


@dataclass(frozen=True, eq=False)
class Normalize:
    """Gives `(value - offset) / scale`; float64 stays float64, everything else becomes float32.

    NaN stays NaN. Numbers that do not vary have the scale 1, so that they become 0.

    Args:
        by: offset and scale for each key of the batch, or part of a nested value by its dotted name: numbers,
            or arrays that broadcast against an item. `observation` stands for `next_observation` too.
        inverted: give `value * scale + offset` instead.
    """

    by: Mapping[str, tuple[Any, Any]]
    inverted: bool = False

    def __post_init__(self) -> None:
        """Check the arguments."""
        made = {}
        if not isinstance(self.by, Mapping) or not self.by:
            raise InvalidArgumentError(
                f"{self.by!r}: expected (offset, scale) by key. See Normalize.from_stats."
            )
        for key, pair in self.by.items():
            try:
                offset, scale = (np.asarray(part, np.float64) for part in pair)
            except (TypeError, ValueError) as error:
                raise InvalidArgumentError(f"{key!r}: {pair!r}: expected (offset, scale).") from error
            if not np.isfinite(offset).all() or not (np.isfinite(scale) & (scale >= 0)).all():
                raise InvalidArgumentError(
                    f"{key!r} cannot be normalized by offset {offset} and scale {scale}: expected finite "
                    "numbers, and no scale below 0. Were all its values NaN, or some infinite?"
                )
            made[key] = (offset, np.where(scale == 0, 1.0, scale))
        object.__setattr__(self, "by", made)

    @classmethod
    def from_stats(
        cls,
        stats: Stats,
        keys: str | Sequence[str] = ("observation",),
        method: Method = "standard",
        quantiles: tuple[float, float] = (0.01, 0.99),
    ) -> Normalize:
        """Normalize by the statistics of a store: `Normalize.from_stats(store.stats(), "observation")`.

        Args:
            stats: of all the columns.
            keys: which are normalized; a nested column means all its parts.
            method: "standard": mean 0 and standard deviation 1; "range": least value -1, greatest 1;
                "quantiles": two quantiles at -1 and 1, so that a few far values do not squeeze the rest (they
                lie outside; see `Clip`).
            quantiles: which two.

        Raises:
            InvalidArgumentError: there are no statistics of a key, or not those quantiles.
        """
        one_of("method", method, ("standard", "range", "quantiles"))
        measured = [column for key in key_tuple(keys) for column in _columns(stats, key)]
        return cls({column.name: _offset_and_scale(column, method, quantiles) for column in measured})

    def inverse(self) -> Normalize:
        """Return the way back, for instance for the actions of a policy that was trained on normalized
        ones.
        """
        return Normalize(self.by, not self.inverted)

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with other arrays under these keys.

        Raises:
            InvalidArgumentError: there is no such key, or its items have another shape.
        """
        return change(batch, tuple(self.by), self._moved)

    def _moved(self, values: Tree, name: str, key: str) -> Tree:
        offset, scale = self.by[key]
        if isinstance(values, Ragged):
            return values.with_values(self._moved(values.values, name, key))
        if not isinstance(values, np.ndarray):
            inner = ", ".join(part for part, _ in leaves(values, name))
            raise InvalidArgumentError(f"{name!r} is nested; name its parts to normalize them: {inner}.")
        _check_shape(name, values, offset, scale)
        # Whole numbers of 32 bits and more are exact in float64 only.
        exact = np.result_type(values.dtype, np.float32)
        moved, by = offset.astype(exact), scale.astype(exact)
        if self.inverted:
            scaled = np.multiply(values, by, dtype=exact)
            scaled += moved
        else:
            scaled = np.subtract(values, moved, dtype=exact)
            scaled /= by
        return scaled.astype(np.float64 if values.dtype == np.float64 else np.float32, copy=False)

    def __repr__(self) -> str:
        """Show the keys with offset and scale: numbers, or the shapes of arrays."""
        parts = ", ".join(
            f"{key!r}: ({_shown(offset)}, {_shown(scale)})" for key, (offset, scale) in self.by.items()
        )
        return f"Normalize({{{parts}}}{', inverted=True' if self.inverted else ''})"


def _check_shape(name: str, values: np.ndarray, *parts: np.ndarray) -> None:
    """Refuse parts that do not belong to the items of a batch."""
    for part in parts:
        axes = zip(part.shape[::-1], values.shape[:0:-1], strict=False)
        if part.ndim >= max(values.ndim, 1) or any(own not in (1, size) for own, size in axes):
            raise InvalidArgumentError(
                f"{name!r} has items of shape {values.shape[1:]}; offset or scale has the shape "
                f"{part.shape}. The first axis is that of the batch: a single item needs one, as in x[None]."
            )


def _shown(values: np.ndarray) -> str:
    return repr(float(values)) if not values.ndim else f"array of shape {values.shape}"


def _columns(stats: Stats, key: str) -> Iterator[ColumnStats]:
    names = [name for name in stats if name == key or name.startswith(f"{key}.")]
    if not names:
        raise InvalidArgumentError(
            f"No statistics of {key!r}; there are: {', '.join(stats)}. Measure it with stats([...])."
        )
    yield from (stats[name] for name in names)


def _offset_and_scale(
    column: ColumnStats, method: Method, quantiles: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    if method == "standard":
        return column.mean, column.std
    low, high = (each.astype(np.float64) for each in (column.minimum, column.maximum))
    if method == "quantiles":
        low, high = (column.quantile(probability) for probability in quantiles)
    return low / 2 + high / 2, high / 2 - low / 2
