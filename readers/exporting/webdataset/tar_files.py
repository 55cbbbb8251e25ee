"""Tar files of limited size whose bytes depend on nothing but their content, and NumPy's headers."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

_BLOCK = tarfile.BLOCKSIZE
#: What a header's fields for the name, size and checksum can hold.
_NAME, _SIZE = 100, 8**11 - 1


class TarShards:
    """Files `shard-000000.tar` with samples: members of one key, which stay together.

    Args:
        target: the folder.
        limit: the size of a file, which only a single larger sample exceeds.

    Attributes:
        samples: how many there are in each file.
    """

    def __init__(self, target: Path, limit: int) -> None:
        self.samples: list[int] = []
        self._target = target
        self._limit = limit
        self._file: IO[bytes] | None = None
        self._size = 0

    def append(self, key: str, members: Iterable[tuple[str, bytes]]) -> None:
        """Append a sample.

        Args:
            key: without a dot, in ASCII.
            members: what follows the dot behind the key, and the content.
        """
        encoded = key.encode()
        total = sum(encoded)
        parts: list[bytes] = []
        for name, content in members:
            size = len(content)
            head = _member_header(len(encoded), name, size)
            if head is None:
                parts.append(_long_header(f"{key}.{name}", size))
            else:
                parts += (encoded, head[0], b"%06o" % (total + head[2]), head[1])
            parts += (content, bytes(-size % _BLOCK))
        size = sum(map(len, parts))
        if self._file is not None and self._size + size + 2 * _BLOCK > self._limit:
            self.close()
        if self._file is None:
            self._file = (self._target / f"shard-{len(self.samples):06d}.tar").open("wb")
            self.samples.append(0)
        self._file.writelines(parts)
        self._size += size
        self.samples[-1] += 1

    def close(self) -> None:
        """Finish the file; the next sample begins another."""
        if self._file is not None:
            self._file.write(bytes(2 * _BLOCK))
            self._file.close()
        self._file, self._size = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@lru_cache(1 << 12)
def _member_header(key: int, name: str, size: int) -> tuple[bytes, bytes, int] | None:
    """Return the header of a member behind its key, up to the checksum and from there; and a checksum.

    That lacks the bytes of the key. None if the old fields cannot hold the name or the size.

    Args:
        key: its length.
    """
    if key + 1 + len(name) > _NAME or size > _SIZE or not name.isascii():
        return None
    info = tarfile.TarInfo("\1" * key + "." + name)
    info.size = size
    header = info.tobuf(tarfile.USTAR_FORMAT)
    return header[key:148], header[154:], int(header[148:154], 8) - key


def _long_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


@lru_cache
def npy_head(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return what stands before the data of an array in C order in a `.npy` file."""
    target = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        target, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return target.getvalue()
