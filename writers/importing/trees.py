"""Trees of arrays: HDF5 files, zarr stores and `.npz` files, found in folders and opened alike.

A tree is a mapping of paths to groups and arrays. Groups have `items`, `get`, `in` and `attrs`; arrays have
`shape`, `dtype`, and rows that are read when they are asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...store.errors import DatasetError, MissingPackageError
from ...store.files import is_file, is_folder
from .boundary import Files, reading
from .columns import image_frames, nested, opened_image
from .formats import Match
from .hdf5 import hdf5_path, leaves, member, open_hdf5
from .npy import NpzFile, npz_path
from .zarr_files import ZarrFile, is_zarr

#: Of images by Pillow's mode; conversion from others would change values.
_CHANNELS = {"L": 1, "RGB": 3}
#: How the images begin that rows of bytes may hold.
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG")


@dataclass(frozen=True)
class Kind:
    """A kind of tree.

    Attributes:
        name: for messages.
        suffixes: of such files in a folder; others are left out.
        has: whether a path is one.
        only: whether nothing else has these suffixes, so that a file in a folder that is none is damaged.
        open: opens it.
    """

    name: str
    suffixes: tuple[str, ...]
    has: Callable[[Path], bool]
    open: Callable[[Path], Any]
    only: bool = True


H5 = Kind("HDF5 file", (".hdf5", ".h5"), lambda path: hdf5_path(path) is not None, open_hdf5)
NPZ = Kind(".npz file", (".npz",), lambda path: npz_path(path) is not None, NpzFile)
ZARR = Kind("zarr store", (".zarr", ".zip"), is_zarr, ZarrFile, only=False)

#: By the names that `tree_format` takes.
KINDS = {"hdf5": H5, "zarr": ZARR, "npz": NPZ}


def open_tree(path: Path, kinds: Sequence[Kind]) -> Any:
    """Open a tree of one of some kinds; the caller closes it.

    Raises:
        DatasetError: it is of none of these kinds, is damaged, or leads outside of itself.
        MissingPackageError: the package for it is not installed.
    """
    with reading(path):
        for kind in kinds:
            if kind.has(path):
                return kind.open(path)
    raise DatasetError(f"{path} is no {names_of(kinds)}.")


def names_of(kinds: Sequence[Kind]) -> str:
    """Return the names of some kinds, for messages."""
    return " or ".join(kind.name for kind in kinds)


def trees_of(source: Any, kinds: Sequence[Kind]) -> Iterator[Path]:
    """Yield the paths of the trees of a source, in the order of their names, numbers as numbers.

    Args:
        source: a file or a zarr store, a folder of these at any depth, or `Files`.
    """

    def is_tree(path: Path) -> bool:
        return any(kind.has(path) for kind in kinds)

    def is_named(path: Path) -> bool:
        return any(
            path.suffix in kind.suffixes and (is_file(path) if kind.only else kind.has(path))
            for kind in kinds
        )

    if isinstance(source, Files):
        # One that is none is no part of such a dataset.
        if all(map(is_tree, source.paths)):
            yield from sorted(source.paths, key=natural)
        return
    if not isinstance(source, str | Path):
        return
    path = Path(source)
    if is_file(path) or is_tree(path):
        yield from filter(is_tree, [path])
        return
    waiting = [path] if is_folder(path) else []
    while waiting:
        folder = waiting.pop()
        if is_file(folder):
            yield folder
            continue
        if folder != path and is_zarr(folder):
            yield from filter(is_tree, [folder])
            continue
        with os.scandir(folder) as entries:
            inner = [
                Path(entry.path)
                for entry in entries
                if entry.name[0] not in "._"
                and (entry.is_dir(follow_symlinks=False) or is_named(Path(entry.path)))
            ]
        waiting += sorted(inner, key=natural, reverse=True)


def natural(path: Path | str) -> list[Any]:
    """Return a key that sorts names by the numbers in them."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", str(path)))]


def looked_into_tree(source: Any, look: Callable[[Any], Match], kinds: Sequence[Kind]) -> Match:
    """Return what `look` finds in the first tree of a source; a mismatch where there is none.

    Raises:
        DatasetError: the tree is damaged, or exceeds the limits of the import.
    """
    path = next(trees_of(source, kinds), None)
    if path is None:
        return Match(f"it is no {names_of(kinds)}", 4, related=False)
    try:
        tree = open_tree(path, kinds)
    except MissingPackageError as error:
        return Match(str(error), 1)
    with closing(tree):
        return look(tree)


def is_group(item: Any) -> bool:
    """Return whether an item of a tree is a group."""
    return hasattr(item, "items")


class OpenedGroup:
    """A group of a tree with its arrays open: HDF5 opens an array at each access.

    Attributes:
        attrs: of the group.

    Raises:
        DatasetError: as `leaves`.
    """

    def __init__(self, group: Any) -> None:
        self.attrs = group.attrs
        self._group = group
        self._arrays = leaves(group)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by path."""
        return self._arrays

    def get(self, path: str) -> Any:
        """Return an array, or a group or its arrays by path; None if there is none."""
        if path in self._arrays:
            return self._arrays[path]
        start = f"{path}/"
        below = {name[len(start) :]: array for name, array in self._arrays.items() if name.startswith(start)}
        return below or member(self._group, path)

    def __getitem__(self, path: str) -> Any:
        return self._arrays[path] if path in self._arrays else self._group[path]

    def __contains__(self, path: str) -> bool:
        return path in self._arrays or path in self._group

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)


def part_of(group: Any, part: Any, place: str, *, swapped: bool = False) -> Any:
    """Return the array or nested dict of arrays that a part of a layout names.

    Args:
        part: a path; paths whose arrays are joined into vectors; or parts by key.
        swapped: whether encoded images have blue for red.

    Raises:
        DatasetError: there is nothing at a path.
    """
    if isinstance(part, Mapping):
        return {key: part_of(group, each, place, swapped=swapped) for key, each in part.items()}
    if not isinstance(part, str):
        return Vectors([part_of(group, each, place) for each in part], place)
    item = member(group, part)
    if item is None:
        raise DatasetError(f"{place} has no {part}; it has {', '.join(list(group)[:20]) or 'nothing'}.")
    return arrays_of(item, swapped=swapped)


def arrays_of(item: Any, *, swapped: bool = False) -> Any:
    """Return an array, or those of a group as nested dicts; rows of encoded images as frames."""
    if is_group(item):
        arrays = leaves(item)
        return nested({path: arrays_of(array, swapped=swapped) for path, array in arrays.items()}, "/")
    return Frames(item, swapped=swapped) if _is_images(item) else item


def _is_images(array: Any) -> bool:
    """Return whether each row is an encoded image: of bytes that are padded to one length, or of any."""
    dimensions = len(array.shape or ())
    rows = (array.dtype == np.uint8 and dimensions == 2) or (array.dtype.kind in "SOV" and dimensions == 1)
    return rows and len(array) > 0 and _bytes(array[0:1][0]).startswith(_IMAGES)


def _bytes(row: Any) -> bytes:
    if isinstance(row, np.ndarray | np.void):
        return row.tobytes()
    return bytes(row) if isinstance(row, bytes) else b""


class Frames:
    """Rows of encoded images, padded or not, as uint8 (T, H, W, C).

    Attributes:
        name: the path.
        shape, dtype: of the frames; those of the first row.

    Raises:
        DatasetError: the first is no image of 8 bits, gray or RGB.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, array: Any, *, swapped: bool) -> None:
        self._array, self._swapped, self.name = array, swapped, array.name
        with opened_image(_bytes(array[0:1][0]), self.name) as image:
            if image.mode not in _CHANNELS:
                raise DatasetError(
                    f"{self.name} has images of mode {image.mode}; expected gray or RGB ones of 8 bits."
                )
            channels = _CHANNELS[image.mode]
            self.shape = (len(array), image.height, image.width, channels)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        encoded = [_bytes(row) for row in self._array[slice(None) if rows == () else rows]]
        frames = image_frames(Path(), self.name.strip("/"), encoded, self.shape[1:])[0]
        return frames[..., ::-1] if self._swapped else frames


class Vectors:
    """Arrays side by side, one vector in each row.

    Attributes:
        shape, dtype: of the vectors.

    Raises:
        DatasetError: an array has no numbers, or they have other lengths.
    """

    def __init__(self, arrays: list[Any], place: str) -> None:
        for array in arrays:
            if is_group(array) or array.dtype.kind not in "biuf" or len(array.shape) not in (1, 2):
                raise DatasetError(f"{place}: only arrays of numbers or vectors can be joined into vectors.")
        if len({len(array) for array in arrays}) != 1:
            raise DatasetError(f"{place}: arrays of other lengths cannot be joined into vectors.")
        self._arrays = arrays
        self.name = ", ".join(array.name.strip("/") for array in arrays)
        self.dtype = np.result_type(*(array.dtype for array in arrays))
        widths = sum(1 if len(array.shape) == 1 else array.shape[1] for array in arrays)
        self.shape = (len(arrays[0]), widths)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        parts = [np.asarray(array[rows]) for array in self._arrays]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1, dtype=self.dtype)
