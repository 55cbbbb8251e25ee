"""Zarr stores, folders or zip files of version 2 or 3, as trees of arrays that only trusted codecs decode."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...store.common.optional_packages import require
from ...store.errors import DatasetError
from ...store.files import is_file, is_folder, walk
from .boundary import ZARR_ROOTS, boundary, check_bytes, closed_on_error, is_zarr_folder, reading
from .npy import is_zip

#: The files that state the codecs of an array.
_STATED = ("zarr.json", ".zarray")
#: Codecs that turn bytes into numbers or texts, and run no code of the source. Version 3 writes those of
#: numcodecs with a prefix.
_CODECS = {
    *("bytes", "endian", "transpose", "sharding_indexed", "vlen-utf8", "vlen-bytes", "blosc", "zlib", "gzip"),
    *(
        "bz2",
        "lzma",
        "zstd",
        "lz4",
        "shuffle",
        "delta",
        "fixedscaleoffset",
        "quantize",
        "bitround",
        "packbits",
    ),
    *("astype", "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3", "pcodec", "zfpy"),
}
#: Codecs of images, from the package `imagecodecs`.
_IMAGES = "imagecodecs_"


def is_zarr(path: Path) -> bool:
    """Return whether a path is a folder or a zip file with a zarr group at its root."""
    if is_folder(path):
        return is_zarr_folder(path)
    if path.suffix != ".zip" or not is_zip(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name in ZARR_ROOTS for name in archive.namelist())


class ZarrGroup(Mapping[str, Any]):
    """A group, as a mapping of names or paths to groups and arrays.

    Attributes:
        attrs: its attributes, plain values.
    """

    def __init__(self, group: Any, path: Path) -> None:
        self._group, self._path = group, path
        self.name = group.name
        self.attrs: Mapping[str, Any] = dict(group.attrs)

    def __getitem__(self, name: str) -> Any:
        """Return a group or an array.

        Raises:
            KeyError: there is none of this name.
            DatasetError: the array claims more bytes than the store may have.
        """
        item = self._group[name]
        return ZarrGroup(item, self._path) if hasattr(item, "keys") else ZarrArray(item, self._path)

    def __contains__(self, name: object) -> bool:
        return name in self._group

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._group.keys()))

    def __len__(self) -> int:
        return len(self._group)


class ZarrFile(ZarrGroup):
    """An open store.

    Raises:
        DatasetError: it is no zarr group, an array has a codec that may run code or is unknown, or a file of
            the store is too large for memory.
        MissingPackageError: the package `zarr`, or the one of a codec, is not installed.
    """

    def __init__(self, path: Path) -> None:
        zarr: Any = require("zarr", "Reading zarr")
        for name, text in _stated(path):
            with reading(f"{path}: {name}"):
                for codec in _codecs(json.loads(text)):
                    _check_codec(codec, f"{path}: {name}")
        self._store: Any = zarr.storage.ZipStore(path, mode="r") if is_file(path) else None
        with closed_on_error(self):
            # Consolidated metadata may name arrays that are not there.
            opened = zarr.open_group(self._store or str(path), mode="r", use_consolidated=False)
            super().__init__(opened, path)

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()


class ZarrArray:
    """An array, whose rows are read when they are asked for.

    Attributes:
        name: its path.
    """

    def __init__(self, array: Any, path: Path) -> None:
        self._array = array
        self.name, self.shape, self.dtype = array.name, array.shape, np.dtype(array.dtype)
        place = f"{path}: {self.name.strip('/')}"
        check_bytes(f"{place}: a chunk", self.dtype.itemsize * math.prod(array.chunks))
        claimed, limits = self.dtype.itemsize * math.prod(self.shape), boundary()
        if not limits.chosen and limits.limit is not None and claimed > limits.limit:
            # Chunks that are not there count as zeros.
            check_bytes(place, claimed)

    @property
    def size(self) -> int:
        """The number of items."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        return np.asarray(self._array[rows])


def _stated(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a store that state codecs, by name."""
    if is_file(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                check_bytes(f"{path}: {entry.filename}", entry.file_size)
                if entry.filename.rpartition("/")[2] in _STATED:
                    yield entry.filename, archive.read(entry)
        return
    for folder, _, files in walk(path):
        for name in _STATED:
            if name in files:
                file = Path(folder, name)
                check_bytes(str(file), file.stat().st_size)
                yield file.relative_to(path).as_posix(), file.read_bytes()


def _codecs(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the codecs of an array, those within a shard included."""
    listed = [*(metadata.get("filters") or ()), metadata.get("compressor"), *(metadata.get("codecs") or ())]
    for codec in listed:
        if isinstance(codec, Mapping):
            yield str(codec.get("id") or codec["name"])
            inner = codec.get("configuration") or {}
            yield from _codecs({"codecs": [*inner.get("codecs", ()), *inner.get("index_codecs", ())]})
        elif codec is not None:
            yield str(codec)


def _check_codec(name: str, place: str) -> None:
    short = name.removeprefix("numcodecs.")
    if short.startswith(_IMAGES):
        images: Any = require("imagecodecs.numcodecs", f"{place}: the codec {short}", "imagecodecs")
        images.register_codecs(verbose=False)
    elif short not in _CODECS:
        raise DatasetError(
            f"{place} has the codec {name!r}, which may run code or is unknown. Write it again with another "
            f"one: {', '.join(sorted(_CODECS))}."
        )
