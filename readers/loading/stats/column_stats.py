"""Statistics of columns: values that print as a table and become a Polars frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ....store.errors import InvalidArgumentError


@dataclass(frozen=True)
class ColumnStats:
    """Exact statistics of a column, or of a part of a nested one.

    Those of vectors and of other arrays of numbers are taken element by element, and have the shape of an
    item. Those of frames (uint8 with two or more dimensions) are taken over all pixels of a channel, and have
    a shape that broadcasts against an item: (c,), (c, 1, 1), or () where there are no channels.

    Attributes:
        name: the column; of a part of a nested one, its dotted name.
        dtype: of the column.
        shape: of an item.
        rows: rows that have a value: T + 1 for observations, T for what belongs to transitions, fewer where
            a column of infos, policy or users has gaps.
        absent: rows that have none.
        count: int64: numbers that were measured.
        nan: int64: values that are NaN; they are left out of everything that follows.
        mean, std: float64; the standard deviation of the population (divided by `count`). NaN if nothing was
            measured, and where the values are infinite.
        minimum, maximum: float64.
        quantiles: float64, by probability; between two values a quantile is interpolated linearly, as
            `numpy.quantile` and DuckDB's `quantile_cont` do.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: int
    absent: int
    count: np.ndarray
    nan: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    quantiles: Mapping[float, np.ndarray]

    @staticmethod
    def of(
        name: str,
        values: np.ndarray,
        present: np.ndarray,
        numbers: np.ndarray,
        shape: tuple[int, ...],
        quantiles: Sequence[float],
    ) -> ColumnStats:
        """Return the statistics that some measured numbers make.

        Args:
            name: the column.
            values: an array of the column's dtype and shape, with any number of rows.
            present: bool, one per row: whether it has a value.
            numbers: float64, for each of n elements the count, NaN, mean, deviation, minimum, maximum and
                quantiles; shape (6 + quantiles, n).
            shape: of the n elements.
            quantiles: their probabilities.
        """
        rows = int(np.count_nonzero(present))
        count, nan, *found = (part.reshape(shape) for part in numbers)
        return ColumnStats(
            name,
            values.dtype.name,
            values.shape[1:],
            rows,
            len(present) - rows,
            count.astype(np.int64),
            nan.astype(np.int64),
            *found[:4],
            quantiles=dict(zip(quantiles, found[4:], strict=True)),
        )

    def quantile(self, probability: float) -> np.ndarray:
        """Return one of the quantiles.

        Raises:
            InvalidArgumentError: it was not measured; the message names those that were.
        """
        if probability not in self.quantiles:
            known = ", ".join(map(str, self.quantiles))
            raise InvalidArgumentError(
                f"The quantile {probability!r} of {self.name!r} was not measured; those that were: {known}. "
                "Ask for it with stats(..., quantiles=[...])."
            )
        return self.quantiles[probability]

    def frame(self) -> pl.DataFrame:
        """Return one row per element, with the columns `column`, `element`, `rows`, `absent`, `count`, ...
        .
        """
        elements = [",".join(map(str, place)) for place in np.ndindex(self.mean.shape)]
        own = ("rows", "absent", "count", "nan", "mean", "std", "minimum", "maximum")
        measured = {name: getattr(self, name) for name in own}
        measured |= {f"q{probability:g}": values for probability, values in self.quantiles.items()}
        numbers = {
            name: np.broadcast_to(values, self.mean.shape).ravel() for name, values in measured.items()
        }
        return pl.DataFrame({"column": [self.name] * len(elements), "element": elements, **numbers})

    def __str__(self) -> str:
        """Return a table."""
        return _table(self.frame())

    def __repr__(self) -> str:
        """Show the column in one line."""
        return (
            f"ColumnStats({self.name!r}, {self.dtype} {self.shape}, {self.rows} rows, {self.absent} absent)"
        )


class Stats(Mapping[str, ColumnStats]):
    """Statistics by column; prints as a table.

    Args:
        columns: what was measured, in order.
    """

    def __init__(self, columns: Mapping[str, ColumnStats]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> ColumnStats:
        """Return those of a column, or of a part of a nested one by its dotted name.

        Raises:
            KeyError: it was not measured.
        """
        if name not in self._columns:
            raise KeyError(f"There are no statistics of {name!r}; there are: {', '.join(self._columns)}.")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter(self._columns)

    def __len__(self) -> int:
        """Return how many columns."""
        return len(self._columns)

    def frame(self) -> pl.DataFrame:
        """Return one row per element of each column; see `ColumnStats.frame`."""
        frames = [column.frame() for column in self._columns.values()]
        return pl.concat(frames, how="diagonal") if frames else pl.DataFrame()

    def __str__(self) -> str:
        """Return a table."""
        return _table(self.frame())

    def __repr__(self) -> str:
        """Return the names of the columns."""
        return f"Stats({', '.join(self._columns)})"


def _table(frame: pl.DataFrame) -> str:
    with pl.Config(
        tbl_rows=60,
        tbl_cols=-1,
        tbl_width_chars=220,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
    ):
        return str(frame)
