"""Statistics of columns, kept on disk: a small JSON file for each column of a version.

A file is written whole or not at all, says what it is about and has a checksum; one that does not fit is as
good as none. Anybody may delete the folder at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ...store.snapshot import Snapshot
from .cache_folder import VARIABLE, chosen_folder
from .column_stats import ColumnStats
from .columns import Column
from .episode_index import rows_digest

_FOLDER = "stats"
_FORMAT = 1
#: So many files are kept, the newest.
_MOST_FILES = 4096

_ARRAYS = {"count": "int64", "nan": "int64"} | dict.fromkeys(("mean", "std", "minimum", "maximum"), "float64")


class StatsCache:
    """The statistics on this machine.

    Args:
        folder: of the cache; None for the environment variable EPISODELAKE_CACHE, or else the user's cache
            directory.
    """

    def __init__(self, folder: str | PathLike[str] | None) -> None:
        self._folder = chosen_folder(folder) / _FOLDER

    def load(self, key: Mapping[str, Any]) -> list[ColumnStats] | None:
        """The statistics of a key, or None where there are none that can be read."""
        try:
            checksum, _, body = self._path(key).read_bytes().partition(b"\n")
            if int(checksum) != zlib.crc32(body):
                return None
            kept = json.loads(body)
            return [_restored(each) for each in kept["stats"]] if kept["key"] == key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, key: Mapping[str, Any], stats: list[ColumnStats]) -> None:
        """Keep statistics; where that fails, say so in a warning: nothing but time is lost."""
        body = json.dumps({"key": key, "stats": [_kept(each) for each in stats]}).encode()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(".tmp", "", self._folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(b"%d\n%b" % (zlib.crc32(body), body))
                os.replace(name, self._path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            self._drop_oldest()
        except OSError as error:
            warnings.warn(
                f"Statistics could not be kept in {self._folder}: {error.strerror or error}. They will be "
                f"measured again next time. Choose another folder with cache_folder=... or {VARIABLE}.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _path(self, key: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self._folder / f"{digest[:32]}.json"

    def _drop_oldest(self) -> None:
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                # Another process may be at it too.
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.stat().st_mtime_ns, entry.path))
        for _, path in sorted(found)[:-_MOST_FILES]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def cache_key(
    snapshot: Snapshot, positions: np.ndarray, column: Column, quantiles: tuple[float, ...]
) -> dict[str, Any]:
    """What statistics depend on, in values that JSON can hold."""
    annotation = getattr(column, "annotation", None)
    return {
        "format": _FORMAT,
        "store": snapshot.manifest.store_id,
        "version": snapshot.version,
        "rows": rows_digest(snapshot, positions),
        "column": column.name,
        "annotation": None if annotation is None else list(annotation.ids),
        "quantiles": list(quantiles),
    }


def _kept(stats: ColumnStats) -> dict[str, Any]:
    return {
        "name": stats.name,
        "dtype": stats.dtype,
        "shape": stats.shape,
        "rows": stats.rows,
        "absent": stats.absent,
        **{name: getattr(stats, name).tolist() for name in _ARRAYS},
        "quantiles": [[probability, values.tolist()] for probability, values in stats.quantiles.items()],
    }


def _restored(kept: dict[str, Any]) -> ColumnStats:
    arrays: dict[str, Any] = {name: np.array(kept[name], dtype) for name, dtype in _ARRAYS.items()}
    quantiles = {
        float(probability): np.array(values, np.float64) for probability, values in kept["quantiles"]
    }
    return ColumnStats(
        name=kept["name"],
        dtype=kept["dtype"],
        shape=tuple(kept["shape"]),
        rows=kept["rows"],
        absent=kept["absent"],
        **arrays,
        quantiles=quantiles,
    )
