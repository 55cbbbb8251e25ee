"""Errors of the object store as the built-in ones of the same meaning."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator

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
        reason = f"the object store refused: {first_line(error)}"
        raise PermissionError(errno.EACCES, reason, str(place)) from error
    except (found.BaseError, NotImplementedError) as error:
        if "NoSuchBucket" in str(error):
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", str(place)) from error
        unsupported = isinstance(error, found.NotSupportedError | NotImplementedError)
        if unsupported or _REJECTED.search(str(error)):
            reason = f"the object store rejected the request: {first_line(error)}"
            raise OSError(errno.ENOTSUP, reason, str(place)) from error
        raise OSError(errno.EIO, f"the object store failed: {first_line(error)}", str(place)) from error


def first_line(error: BaseException) -> str:
    """Return what an error says first; a page of internals may follow."""
    return str(error).strip().partition("\n")[0][:500]
