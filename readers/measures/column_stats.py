"""Statistics of columns: values that print as a table and become a Polars frame, and their cache.

The cache has a small JSON file for each column of a version. It is written atomically, with its key and a
checksum; a file that does not match is ignored. The folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ...store.common.arguments import is_real
from ...store.errors import InvalidArgumentError
from ...store.files import make_folder, replacing
from ...store.layout import checksum
from ...store.snapshot import Snapshot
from ...store.tables.table_files import Pointers
from ..columns.cache_folder import VARIABLE, CacheFolder
from ..columns.column import Column
from ..columns.selection import rows_digest
from ..formatting import frame_html


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
        minimum, maximum: float64; of the column's dtype where an int64 or uint64 column has numbers from
            2^53 on, of which a float64 rounds some.
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
        extremes: np.ndarray | None = None,
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
            extremes: int64 or uint64, shape (2, n): the exact minimum and maximum where float64 rounds them.
        """
        rows = int(np.count_nonzero(present))
        count, nan, mean, std, *rest = (part.reshape(shape) for part in numbers)
        low, high, *between = rest
        if extremes is not None:
            low, high = (part.reshape(shape) for part in extremes)
        return ColumnStats(
            name,
            values.dtype.name,
            values.shape[1:],
            rows,
            len(present) - rows,
            count.astype(np.int64),
            nan.astype(np.int64),
            mean,
            std,
            low,
            high,
            quantiles=dict(zip(quantiles, between, strict=True)),
        )

    def quantile(self, probability: float) -> np.ndarray:
        """Return one of the quantiles.

        Raises:
            InvalidArgumentError: it was not measured; the message names those that were.
        """
        if not is_real(probability) or probability not in self.quantiles:
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

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        return frame_html(repr(self), self.frame())

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
        return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()

    def __str__(self) -> str:
        """Return a table."""
        return _table(self.frame())

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        return frame_html(repr(self), self.frame())

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


_FOLDER = "stats"
_FORMAT = 3
#: So many files are kept, the newest.
_MOST_FILES = 4096
#: Earlier versions left `<16 digits>.tmp` where they were killed.
_OWN_NAME = re.compile(r"[0-9a-f]{32}\.json|\.[0-9a-f]{32}\.json\.[0-9a-f]{8}\.tmp|[0-9a-z_]{8,16}\.tmp")

_ARRAYS = {"count": "int64", "nan": "int64"} | dict.fromkeys(("mean", "std", "minimum", "maximum"), "float64")


class StatsCache:
    """The statistics on this machine.

    Args:
        folder: of the cache; None for the environment variable EPISODELAKE_CACHE, or else the user's cache
            directory.
    """

    def __init__(self, folder: str | PathLike[str] | None) -> None:
        self._folder = CacheFolder.of(folder).path / _FOLDER

    def load(self, key: Mapping[str, Any]) -> list[ColumnStats] | None:
        """Return the statistics of a key, or None where there are none that can be read."""
        try:
            expected, _, body = self._path(key).read_bytes().partition(b"\n")
            if int(expected) != checksum(body):
                return None
            kept = json.loads(body)
            return [_restored(each) for each in kept["stats"]] if kept["key"] == key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, key: Mapping[str, Any], stats: list[ColumnStats]) -> None:
        """Save statistics; warn if that fails, since only time is lost."""
        body = json.dumps({"key": key, "stats": [_kept(each) for each in stats]}).encode()
        try:
            make_folder(self._folder)
            with replacing(self._path(key)) as draft, open(draft, "xb") as file:
                file.write(b"%d\n%b" % (checksum(body), body))
            self._drop_oldest()
        except OSError as error:
            warnings.warn(
                f"Statistics could not be kept in {self._folder}: {error.strerror or error}. They will be "
                f"measured again next time. Choose another folder with cache_folder=... or {VARIABLE}.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _path(self, key: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self._folder / f"{digest[:32]}.json"

    def _drop_oldest(self) -> None:
        files = []
        with os.scandir(self._folder) as entries:
            for entry in filter(_is_own, entries):
                # Another process may be at it too.
                with contextlib.suppress(FileNotFoundError):
                    files.append((entry.stat().st_mtime_ns, entry.path))
        for _, path in sorted(files)[:-_MOST_FILES]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _is_own(entry: os.DirEntry[str]) -> bool:
    return _OWN_NAME.fullmatch(entry.name) is not None and entry.is_file(follow_symlinks=False)


def cache_key(
    snapshot: Snapshot, pointers: Pointers, column: Column, quantiles: tuple[float, ...]
) -> dict[str, Any]:
    """Return the values that statistics depend on; JSON can hold them."""
    return {
        **column.facts(snapshot, pointers),
        "format": _FORMAT,
        "store": snapshot.manifest.store_id,
        "version": snapshot.version,
        "rows": rows_digest(snapshot, pointers),
        "quantiles": list(quantiles),
    }


def _kept(stats: ColumnStats) -> dict[str, Any]:
    quantiles = [[probability, values.tolist()] for probability, values in stats.quantiles.items()]
    arrays = {name: getattr(stats, name).tolist() for name in _ARRAYS}
    return {**vars(stats), **arrays, "quantiles": quantiles}


def _restored(kept: dict[str, Any]) -> ColumnStats:
    arrays = {name: np.array(kept[name], dtype) for name, dtype in _ARRAYS.items()}
    # Extremes are whole numbers where a float64 would round them.
    exact = {name: np.array(kept[name]) for name in ("minimum", "maximum")}
    if all(values.dtype.kind in "iu" for values in exact.values()):
        arrays |= {name: values.astype(kept["dtype"]) for name, values in exact.items()}
    quantiles = {
        float(probability): np.array(values, np.float64) for probability, values in kept["quantiles"]
    }
    return ColumnStats(**{**kept, **arrays, "shape": tuple(kept["shape"]), "quantiles": quantiles})
