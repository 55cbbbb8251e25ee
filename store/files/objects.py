"""Objects of an object store: errors of requests as the built-in ones, and files that read by ranges."""

from __future__ import annotations

import contextlib
import errno
import io
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from .access import error_text

#: Answers that repeating the request does not change.
_REJECTED = re.compile(r"status code: (?!408|409|429)(4\d\d|501)\b")


@contextlib.contextmanager
def as_os_errors(place: object) -> Iterator[None]:
    """Turn errors of obstore into `OSError` and its subclasses, each with its number.

    Args:
        place: what was read or written, shown as text.
    """
    from obstore import exceptions as found

    try:
        yield
    except (found.NotFoundError, FileNotFoundError) as error:
        what = "bucket" if "NoSuchBucket" in str(error) else "object"
        raise FileNotFoundError(errno.ENOENT, f"there is no such {what}", str(place)) from error
    except (found.AlreadyExistsError, found.PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, "the object exists already", str(place)) from error
    except (found.PermissionDeniedError, found.UnauthenticatedError) as error:
        reason = f"the object store refused: {error_text(error)}"
        raise PermissionError(errno.EACCES, reason, str(place)) from error
    except (found.BaseError, NotImplementedError) as error:
        if "NoSuchBucket" in str(error):
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", str(place)) from error
        unsupported = isinstance(error, found.NotSupportedError | NotImplementedError)
        if unsupported or _REJECTED.search(str(error)):
            reason = f"the object store rejected the request: {error_text(error)}"
            raise OSError(errno.ENOTSUP, reason, str(place)) from error
        raise OSError(errno.EIO, f"the object store failed: {error_text(error)}", str(place)) from error


class RangedFile(io.RawIOBase):
    """A read-only file over an object; every read is one request for a range.

    Args:
        store: the obstore object.
        key: the object.
        size: its bytes.
    """

    def __init__(self, store: Any, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; nothing is asked of the object store."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def size(self) -> int:
        """Bytes of the object."""
        return self._size

    def read(self, size: int | None = -1, /) -> Any:
        """Ask for the next `size` bytes (negative: all that are left); fewer at the end."""
        stop = self._size if size is None or size < 0 else min(self._size, self._position + size)
        if stop <= self._position:
            return b""
        with as_os_errors(self._key):
            data = self._store.get_range(self._key, start=self._position, end=stop)
        self._position = stop
        return memoryview(data)


def open_object(store: Any, key: str) -> pa.PythonFile:
    """Return an object as an Arrow file; asks for its size."""
    with as_os_errors(key):
        size = int(store.head(key)["size"])
    return pa.PythonFile(RangedFile(store, key, size), "r")
