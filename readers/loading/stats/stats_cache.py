"""Cached statistics: a small JSON file for each column of a version.

A file is written atomically, with its key and a checksum; a file that does not match is ignored. The
folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ....store.checksums import checksum
from ....store.files import replacing
from ....store.snapshot import Snapshot
from ....store.tables.pointers import Pointers
from ..columns.cache_folder import VARIABLE, chosen_folder
from ..columns.episode_index import rows_digest
from ..columns.specs import Column
from .column_stats import ColumnStats

_FOLDER = "stats"
_FORMAT = 1
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
        self._folder = chosen_folder(folder) / _FOLDER

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
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._path(key)) as draft, open(draft, "xb") as file:
                file.write(b"%d\n%b" % (checksum(body), body))
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
            for entry in filter(_is_own, entries):
                # Another process may be at it too.
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.stat().st_mtime_ns, entry.path))
        for _, path in sorted(found)[:-_MOST_FILES]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _is_own(entry: os.DirEntry[str]) -> bool:
    return _OWN_NAME.fullmatch(entry.name) is not None and entry.is_file(follow_symlinks=False)


def cache_key(
    snapshot: Snapshot, pointers: Pointers, column: Column, quantiles: tuple[float, ...]
) -> dict[str, Any]:
    """Return the values that statistics depend on; JSON can hold them."""
    return {
        **column.facts,
        "format": _FORMAT,
        "store": snapshot.manifest.store_id,
        "version": snapshot.version,
        "rows": rows_digest(pointers),
        "quantiles": list(quantiles),
    }


def _kept(stats: ColumnStats) -> dict[str, Any]:
    quantiles = [[probability, values.tolist()] for probability, values in stats.quantiles.items()]
    arrays = {name: getattr(stats, name).tolist() for name in _ARRAYS}
    return {**vars(stats), **arrays, "quantiles": quantiles}


def _restored(kept: dict[str, Any]) -> ColumnStats:
    arrays = {name: np.array(kept[name], dtype) for name, dtype in _ARRAYS.items()}
    quantiles = {
        float(probability): np.array(values, np.float64) for probability, values in kept["quantiles"]
    }
    return ColumnStats(**{**kept, **arrays, "shape": tuple(kept["shape"]), "quantiles": quantiles})
