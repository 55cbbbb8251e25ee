"""Errors of the object store as the built-in ones of the same meaning."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator


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
        raise FileNotFoundError(errno.ENOENT, "there is no such object", str(place)) from error
    except (found.AlreadyExistsError, found.PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, "the object exists already", str(place)) from error
    except (found.PermissionDeniedError, found.UnauthenticatedError) as error:
        reason = f"the object store refused: {first_line(error)}"
        raise PermissionError(errno.EACCES, reason, str(place)) from error
    except found.BaseError as error:
        if "NoSuchBucket" in str(error):
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", str(place)) from error
        raise OSError(errno.EIO, f"the object store failed: {first_line(error)}", str(place)) from error


def first_line(error: BaseException) -> str:
    """What an error says first; a page of internals may follow."""
    return str(error).strip().partition("\n")[0][:500]
