"""Reading HDF5 files: recognition, columns of equal length, and the spaces of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ...store.common.optional_packages import require
from ...store.errors import DatasetError
from ...store.files import file_state, is_denied, is_file, is_passing
from .boundary import TRUST, Boundary, boundary, check_bytes, expanded, reading
from .columns import array_space, discrete_space
from .formats import ForeignDataset, Match

_MAGIC = b"\x89HDF\r\n\x1a\n"
#: Arrays of a file's metadata with more items, such as weights, do not go to the card.
_CARD_ITEMS = 64
#: Arrays and groups that are looked at together.
_MOST_ITEMS = 100_000

#: The values of rows: an array, or dicts of them.
Values = np.ndarray | dict[str, "Values"]


def looked_into(source: Any, look: Callable[[Any], Match]) -> Match:
    """Return what `look` finds in an open HDF5 file; a mismatch for any other source.

    Raises:
        DatasetError: the file is damaged, or exceeds the limits of the import.
    """
    path = hdf5_path(source)
    if path is None:
        return Match("it is no HDF5 file", 4, related=False)
    try:
        import h5py  # noqa: F401
    except ImportError:
        return Match("reading HDF5 needs h5py: pip install 'episodelake[hdf5]'", 1)
    with reading(path, "cannot be opened as HDF5"), open_hdf5(path) as file:
        return look(file)


def open_hdf5(path: Path) -> Any:
    """Return an open HDF5 file that reads no other file, unless the import trusts it.

    Raises:
        DatasetError: it has links to other files, or datasets whose values are in other files; or a dataset
            claims far more bytes than are stored.
        OSError: it cannot be opened.
    """
    h5py = require("h5py", "Reading HDF5")

    file = h5py.File(path)
    try:
        fault, _ = _looked_through(path, _state(path), boundary())
        if fault is not None:
            raise DatasetError(f"{path}: {fault}")
    except BaseException:
        file.close()
        raise
    return file


def claimed_bytes(path: Path) -> float:
    """Return how many bytes all arrays of a file without a fault take in memory; infinity where several links
    lead to one of them, which a reader may read as often.
    """
    return _looked_through(path, _state(path), boundary())[1]


def _state(path: Path) -> tuple[int, int, int]:
    state = file_state(path)
    return state.st_ino, state.st_size, state.st_mtime_ns


@lru_cache(maxsize=8)  # each format of HDF5 looks at the file
def _looked_through(path: Path, _: tuple[int, int, int], limits: Boundary) -> tuple[str | None, float]:
    """Return what makes a file no safe source, None if nothing does, and how many bytes its arrays claim."""
    h5py = require("h5py", "Reading HDF5")
    total = items = links = 0

    def link(name: bytes, info: Any) -> str | None:
        nonlocal links
        links += 1
        inner = limits.trust or info.type in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)
        return None if inner else f"{name.decode(errors='replace')} is a link to another file. {TRUST}"

    def item(name: bytes) -> str | None:
        nonlocal total, items
        items += 1
        opened = h5py.h5o.open(file.id, name)
        if not isinstance(opened, h5py.h5d.DatasetID):
            return None
        place, made = name.decode(errors="replace"), opened.get_create_plist()
        if not limits.trust and (made.get_layout() == h5py.h5d.VIRTUAL or made.get_external_count()):
            return f"the values of {place} are in other files. {TRUST}"
        claimed = opened.get_type().get_size() * math.prod(opened.shape or ())
        if not limits.chosen and limits.limit is not None and claimed > expanded(opened.get_storage_size()):
            return (
                f"{place} claims {claimed:,} bytes, and {opened.get_storage_size():,} are stored. If that is "
                "right, pass max_bytes= (--max-bytes), the most bytes of an episode in memory."
            )
        total += claimed
        return None

    with h5py.File(path) as file:
        fault = file.id.links.visit(link, info=True) or h5py.h5o.visit(file.id, item)
        return fault, math.inf if links > items else total


def missing_names(group: Any, *names: str) -> list[str]:
    """Return those names that a group lacks."""
    return [name for name in names if name not in group]


def missing_arrays(group: Any, *names: str) -> list[str]:
    """Return those names under which a group has no array."""
    return [name for name in names if not hasattr(member(group, name), "shape")]


def member(group: Any, name: str) -> Any:
    """Return an item of a group of a tree, or one of its attributes; None if there is none.

    Raises:
        KeyError: it cannot be read, for which `get` and `items` of h5py give None.
    """
    item = group.get(name)
    if item is None and name in group:
        try:
            return group[name]
        except KeyError as error:  # of h5py, also for a link to nothing
            if is_passing(error) or is_denied(error):
                raise
    return item


def members(group: Any) -> dict[str, Any]:
    """Return all items of a group of a tree, or all of its attributes, by name."""
    return {name: member(group, name) for name in group}


class Hdf5Dataset(ForeignDataset):
    """An open HDF5 file.

    Raises:
        DatasetError: it cannot be opened.
    """

    def __init__(self, source: Any, name: str) -> None:
        super().__init__()
        require("h5py", f"Importing from {name}")
        path = hdf5_path(source)
        if path is None:
            raise DatasetError(f"{source} is no HDF5 file, so it is no {name} dataset.")
        self.path = path
        with reading(path):
            self.file = open_hdf5(path)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def leaves(group: Any, prefix: str = "") -> dict[str, Any]:
    """Return the arrays of a group and the groups in it, by path, in the order of the file.

    Raises:
        DatasetError: there are more than a hundred thousand, as by links to a group that has others.
    """
    arrays: dict[str, Any] = {}
    waiting, seen = [(prefix, group)], 0
    while waiting:
        path, item = waiting.pop()
        seen += 1
        if seen > _MOST_ITEMS:
            raise DatasetError(f"{getattr(group, 'name', 'A group')} has more than {_MOST_ITEMS:,} items.")
        if hasattr(item, "items"):
            base = path if item is group else f"{path}/"
            waiting += [(f"{base}{name}", part) for name, part in reversed(members(item).items())]
        else:
            arrays[path] = item
    return arrays


def check_lengths(place: Any, arrays: Mapping[str, Any]) -> int:
    """Return how many rows arrays have.

    Raises:
        DatasetError: they have different lengths.
    """
    lengths = {name: len(array) if array.shape else 0 for name, array in arrays.items()}
    first, rows = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != rows:
            raise DatasetError(
                f"{place}: {name} has {length:,} rows, but {first} has {rows:,}; columns must be of one "
                "length."
            )
    return rows


def flags_of(place: Any, array: Any, name: str | None = None) -> np.ndarray:
    """Return an array of flags as bool, shape (rows,).

    Args:
        name: of the array; None for that of its own in a file.

    Raises:
        DatasetError: as for `as_flags`.
    """
    where = f"{place}: {name or array.name.strip('/')}"
    return as_flags(whole(array, where), where)


def whole(array: Any, place: str) -> np.ndarray:
    """Return an array of a file in memory.

    Raises:
        DatasetError: it is damaged, or larger than the limit of the import.
    """
    check_bytes(place, array.dtype.itemsize * math.prod(array.shape or ()))
    with reading(place):
        return np.asarray(array[()])


def as_flags(values: np.ndarray, place: str) -> np.ndarray:
    """Return flags of any number type, with shape (n,) or (n, 1), as bool of shape (n,).

    Raises:
        DatasetError: a value is neither 0 nor 1, or there is more than one in a row.
    """
    if values.shape[1:] not in ((), (1,)) or values.dtype.kind not in "biuf":
        raise DatasetError(
            f"{place} has shape {values.shape} and dtype {values.dtype}; expected a flag per row."
        )
    values = values.reshape(len(values))
    if values.dtype.kind == "b":
        return values.copy()
    odd = np.flatnonzero((values != 0) & (values != 1))
    if len(odd):
        raise DatasetError(f"{place}: row {odd[0]:,} is {values[odd[0]]}; expected 0 or 1.")
    return values.astype(bool)


def box_of(array: Any, option: str) -> Space:
    """Return the space of an array's rows, without narrower bounds than its dtype's.

    Raises:
        DatasetError: its values are not numbers.
    """
    if array.dtype.kind not in "iuf":
        raise DatasetError(
            f"{getattr(array, 'name', 'An array')} has dtype {array.dtype}; expected numbers. Give the space "
            f"with {option}=."
        )
    return array_space(array.dtype, array.shape[1:])


def discrete_of(arrays: Iterator[Any]) -> spaces.Discrete:
    """Return the space of all integers from the smallest, or 0, to the largest."""
    limits = [0]
    for array in arrays:
        if len(array):
            numbers = whole(array, "The actions")
            limits += [int(numbers.min()), int(numbers.max())]
    return discrete_space(min(limits), max(limits))


def is_discrete(array: Any) -> bool:
    """Return whether the rows of an array are one integer each."""
    return array.dtype.kind in "iu" and array.shape[1:] in ((), (1,))


def space_of(group: Any, option: str) -> Space:
    """Return the space of an array's rows, or a Dict of those of a group.

    Raises:
        DatasetError: values are not numbers.
    """
    if not hasattr(group, "items"):
        flags = group.dtype.kind == "b"
        return array_space(group.dtype, group.shape[1:]) if flags else box_of(group, option)
    return spaces.Dict({name: space_of(part, option) for name, part in members(group).items()})


def card_values(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return texts, numbers and short arrays as plain values, and the names of the other arrays."""
    kept: dict[str, Any] = {}
    rest: list[str] = []
    for name, array in arrays.items():
        if array.shape is None or array.size > _CARD_ITEMS or array.dtype.kind not in "biufSUO":
            rest.append(name)
            continue
        kept[name] = plain(array[()])
    return kept, rest


def plain(value: Any) -> Any:
    """Return attributes or a scalar of HDF5 as texts, numbers, lists and dicts."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if type(value).__name__ == "Empty":  # of h5py: a dtype and no value
        return None
    return [plain(each) for each in value] if isinstance(value, list) else value


def hdf5_path(source: Any) -> Path | None:
    """Return the path of a file that begins like HDF5; None for any other source."""
    if not isinstance(source, str | Path):
        return None
    if not is_file(Path(source)):
        return None
    with open(source, "rb") as file:
        return Path(source) if file.read(len(_MAGIC)) == _MAGIC else None
