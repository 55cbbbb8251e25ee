"""Files of limited size, one after the other; images and arrays as Hugging Face's `datasets` has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from .images import image_bytes


class ShardWriter:
    """Opens a file after another when one is full.

    Args:
        path: returns the path of a file by its number.
        opened: opens a file for writing.
        limit: the size of a file, which only a single larger item exceeds.

    Attributes:
        counts: how many items there are in each file.
        total: the size of all files, as far as the caller gave it.
        size: that of the open file; a caller who measures it may set it.
    """

    def __init__(self, path: Callable[[int], Path], opened: Callable[[Path], Any], limit: float) -> None:
        self.counts: list[int] = []
        self.total = self.size = 0
        self._path = path
        self._opened = opened
        self._limit = limit
        self._file: Any = None

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes go into the open file."""
        return self._file is not None and not (self.size and self.size + size > self._limit)

    def file_for(self, size: int) -> Any:
        """Return the file that an item of so many bytes goes into, open for writing."""
        if not self.has_room(size):
            self.close()
            path = self._path(len(self.counts))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._opened(path)
            self.counts.append(0)
        self.size += size
        self.total += size
        self.counts[-1] += 1
        return self._file

    def close(self) -> None:
        """Finish the file; the next item begins another."""
        file, self._file, self.size = self._file, None, 0
        if file is not None:
            file.close()

    def rename(self, name: Callable[[int, int], str]) -> list[Path]:
        """Close the file, and give all files their names by their number and the number of files."""
        self.close()
        count = len(self.counts)
        paths = [self._path(number) for number in range(count)]
        return [path.rename(path.with_name(name(number, count))) for number, path in enumerate(paths)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_image(dtype: Any, shape: Sequence[int], *, grey: bool = False) -> bool:
    """Return whether values are frames that PNG holds as they are: uint8, with 1 or 3 channels last.

    Args:
        dtype: of the values.
        shape: of one.
        grey: whether frames without channels count too.
    """
    channels = len(shape) == 3 and shape[2] in (1, 3)
    return dtype == np.uint8 and 0 not in shape and (channels or (grey and len(shape) == 2))


def image_files(frames: np.ndarray, kind: str = "png") -> pa.Array:
    """Return frames, uint8 (T, H, W, C) or (T, H, W), as images of a Hugging Face dataset."""
    files = [{"bytes": data, "path": None} for data in image_bytes(frames, kind)]
    return pa.array(files, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


def array_column(values: np.ndarray) -> pa.Array:
    """Return values of shape (T, ...) as `datasets` has them: numbers, vectors, or lists in lists."""
    shape = values.shape[1:]
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, shape[0])
    for size in reversed(shape):
        offsets = np.arange(0, len(column) + 1, size, dtype=np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content, indent=2))
