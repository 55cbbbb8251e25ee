"""The visible step of an operation, and errors after it: the change is made, so they become warnings.

    visible_step   around the one call that makes the change visible; warns where it may not be durable
    afterwards     around what comes later, such as deleting what is not needed any more
    syncing        inside such a call, around what makes the new name durable

A writer that acknowledges episodes does not use `visible_step`: it repeats a commit until that is durable.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..common.warn import warn_caller
from ..errors import EpisodelakeError, StoreAccessError
from .access import causes, error_text, sync_path, touching


@contextlib.contextmanager
def syncing() -> Iterator[None]:
    """Mark errors of access as `unsynced`: what the block makes durable is visible already."""
    try:
        yield
    except StoreAccessError as error:
        error.unsynced = True
        raise


@touching("rename")
def rename_durably(source: Path, target: Path) -> None:
    """Rename a file or folder, and make the change of both folders durable.

    Raises:
        StoreAccessError: it is not renamed; if `unsynced`, it is, and may have its old name again after a
            crash of the machine.
    """
    os.rename(source, target)
    with syncing():
        for folder in dict.fromkeys((target.parent, source.parent)):
            sync_path(folder)


def is_visible(error: BaseException) -> bool:
    """Return whether an error came after the change was visible."""
    return any(isinstance(each, StoreAccessError) and each.unsynced for each in causes(error))


@contextlib.contextmanager
def visible_step(change: str) -> Iterator[None]:
    """Make a change visible; if it is visible and may not be durable, warn instead of raising.

    Args:
        change: the change as a sentence without its full stop, such as "The tag 'v1' is written".
    """
    try:
        yield
    except OSError as error:
        if not is_visible(error):
            raise
        warn_caller(
            f"{change} and visible, but it may be lost if this machine crashes or loses power now, since its "
            f"name could not be made durable: {_reason(error)}. Check the disk or file server."
        )


@contextlib.contextmanager
def afterwards(change: str, left: str) -> Iterator[None]:
    """Warn of errors instead of raising them, since the change of the operation is visible.

    Args:
        change: as for `visible_step`.
        left: what is left undone and what to do about it, as a sentence.
    """
    try:
        yield
    except (OSError, EpisodelakeError) as error:
        warn_caller(f"{change}. {left} The reason: {_reason(error)}.")


def _reason(error: BaseException) -> str:
    """Return what the system said, or else what the error says first, without advice to call again."""
    system = [each for each in causes(error) if isinstance(each, OSError) and each.strerror]
    if not system:
        return error_text(error).removesuffix(".")
    last = system[-1]
    return f"{last.strerror} ({last.filename})" if last.filename else str(last.strerror)
