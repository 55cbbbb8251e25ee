"""File operations: classified errors, atomic replacement, durable names, and calls that Windows or macOS
lack.

Only bytes that were read and contradict their checksum or format are damage. Arrow, Polars, DuckDB, delta-rs
and obstore wrap the operating system's errors in their own, some with its number and some with its words
only; their messages are read here, and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from ..errors import (
    EpisodelakeError,
    FileTakenError,
    InvalidArgumentError,
    MissingFileError,
    StoreAccessError,
    StoreUnavailableError,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: The process that has used a store; threads of the libraries do not live on in a forked child.
_process: list[int] = []
#: Folders of this process below which nothing is synced.
_scratch: list[Path] = []

_ZEROS = bytes(1 << 20)
#: The size of the pieces in which files are streamed.
CHUNK_BYTES = 8 << 20

try:
    import grp
    import pwd
except ImportError:  # Windows
    grp = pwd = None  # type: ignore[assignment]

#: Errors of the operating system that say nothing about the file and may be gone with the next call.
_PASSING_NAMES = """
    EMFILE ENFILE ENOMEM EIO EAGAIN EBUSY EINTR ESTALE ETIMEDOUT ENOBUFS ENOLCK EREMOTEIO ENODEV ENXIO
    ENOTCONN ESHUTDOWN ECONNREFUSED ECONNRESET ECONNABORTED EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH
    ENETRESET
"""
_PASSING = frozenset(getattr(errno, name) for name in _PASSING_NAMES.split() if hasattr(errno, name))
_DENIED = frozenset((errno.EACCES, errno.EPERM))
_NUMBER = re.compile(r"\(os error (\d+)\)|\[errno (\d+)\]|\berrno = (\d+)", re.IGNORECASE)
_ESCAPES = re.compile("\x1b\\[[0-9;]*m")
_BRANCH = re.compile(r"\s*↳\s*")
_STATUS = re.compile(r"(?:\bstatus(?: code)?:? |\(HTTP )(408|429|50[0234]|401|403)\b", re.IGNORECASE)
_WORDS = {os.strerror(number).lower(): number for number in sorted(_PASSING | _DENIED)}
_ENDS = re.compile(f"(?:^|: )({'|'.join(map(re.escape, _WORDS))})", re.IGNORECASE)
#: Timeouts and lost connections; and what Arrow and HDF5 say where they drop the system's error.
_LOST = re.compile(
    r"\btimed out|\bconnection (?:reset|refused|closed)|error sending request|error stat\(\)ing file|"
    r"lseek failed|can't retrieve stat info",
    re.IGNORECASE,
)
#: DuckDB takes a file whose state it could not get for one that is missing.
_OVERLOOKED = re.compile(r'No files found that match the pattern "([^"]+)"')


def is_passing(error: BaseException) -> bool:
    """Return whether an error may be gone with the next call: no descriptors or memory, a disk, server or
    connection in trouble, a busy service. It says nothing about the file.
    """
    return _number(error) in _PASSING


def is_denied(error: BaseException) -> bool:
    """Return whether this user may not do what failed."""
    return _number(error) in _DENIED


def _number(error: BaseException) -> int | None:
    """Return the number of the operating system's error behind an error, None where there is none."""
    for each in causes(error):
        if isinstance(each, MemoryError):
            return errno.ENOMEM
        if isinstance(each, OSError) and each.errno:
            return each.errno
        if isinstance(each, TimeoutError):
            return errno.ETIMEDOUT
        if (number := _quoted(str(each))) is not None:
            return number
    return None


def error_text(error: BaseException) -> str:
    """Return the first line of an error; a page of internals may follow."""
    return _flat(str(error)).strip().partition("\n")[0][:500]


def _flat(text: str) -> str:
    """Return a message without colours, with the causes that delta-rs puts below each other in one line."""
    return _BRANCH.sub(": ", _ESCAPES.sub("", text))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then each that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def _quoted(text: str) -> int | None:
    """Return the number of the system's error that another library's message quotes."""
    text = _flat(text)
    if match := _NUMBER.search(text):
        return int(match[match.lastindex or 0])
    if match := _STATUS.search(text):
        return errno.EACCES if match[1] in ("401", "403") else errno.EIO
    if match := _ENDS.search(text):
        return _WORDS[match[1].lower()]
    overlooked = _OVERLOOKED.search(text)
    return errno.EIO if _LOST.search(text) or (overlooked and os.path.isfile(overlooked[1])) else None


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with the user's folder for `~`; as in a shell, `~name` stays if there is no such user.

    Raises:
        InvalidArgumentError: it is neither text nor a path object.
    """
    try:
        plain = Path(path)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{path!r:.100} is not a path; expected text or a path object, such as 'data/cartpole'."
        ) from error
    try:
        return plain.expanduser()
    except RuntimeError:
        return plain


def _refusal(beginning: str, path: object, error: Exception) -> EpisodelakeError | None:
    """Return our error for one of the system; None if it is ours already, or a bug."""
    if isinstance(error, EpisodelakeError):
        return None
    if isinstance(error, OSError):
        return access_error(f"{beginning} {path}", error, path)
    # How Python refuses such a path before the system sees it.
    if str(error) != "embedded null byte":
        return None
    return InvalidArgumentError(
        f"{beginning} {str(path)!r}: it holds a null byte, which no path may. Choose another path."
    )


@contextlib.contextmanager
def _guarded(beginning: str, path: object) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        refusal = _refusal(beginning, path, error)
        if refusal is None:
            raise
        raise refusal from error


def guard_access(action: str, path: object) -> contextlib.AbstractContextManager[None]:
    """Turn an `OSError` of the operating system into a `StoreAccessError` that names the path.

    It goes around code that has another library touch files, or touches several. Methods of a `Place`, and
    the functions below, raise our errors themselves.

    Args:
        action: what was being done, as in "write the journal".
        path: the file or folder concerned, shown as text.

    Raises:
        StoreUnavailableError: the system could not, for now.
        StoreAccessError: the system refused.
        InvalidArgumentError: the path holds a null byte.
    """
    return _guarded(f"Could not {action} at", path)


def touching(action: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a function of a path or place, its first argument, or a generator of one: what the system
    refuses is a `StoreAccessError` that names it, as with `guard_access`.

    Args:
        action: what the function does to it, as in "read".
    """
    beginning = f"Could not {action}"

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def called(*args: _P.args, **options: _P.kwargs) -> _T:
            # Not `_guarded`: every look at a file passes here.
            try:
                return function(*args, **options)
            except (OSError, ValueError) as error:
                refusal = _refusal(beginning, args[0], error)
                if refusal is None:
                    raise
                raise refusal from error

        @functools.wraps(function)
        def generated(*args: _P.args, **options: _P.kwargs) -> Iterator[Any]:
            with _guarded(beginning, args[0]):
                yield from cast(Iterator[Any], function(*args, **options))

        return cast(Callable[_P, _T], generated) if inspect.isgeneratorfunction(function) else called

    return decorate


def access_error(problem: str, error: BaseException, path: object) -> StoreAccessError:
    """Return the error for what the system, or a library on its behalf, could not do.

    Args:
        problem: the first part of the message, as in "Could not read data/pong".
        error: what was raised.
        path: the file or folder concerned.
    """
    reason = (isinstance(error, OSError) and error.strerror) or error_text(error)
    ours = access_class(error)(f"{problem}: {reason}. {_hint(error, path)}")
    if isinstance(error, OSError):
        ours.errno, ours.strerror, ours.filename = error.errno, error.strerror, error.filename
    return ours


def access_class(error: BaseException) -> type[StoreAccessError]:
    """Return the class of an error that reports another one: whether that passes by itself stays known, and
    whether a file was missing or its name taken.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingFileError
    if isinstance(error, FileExistsError):
        return FileTakenError
    return StoreUnavailableError if is_passing(error) else StoreAccessError


def _hint(error: BaseException, path: object) -> str:
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):
        return "No file descriptor is free: close files, or raise the limit (ulimit -n), and call again."
    if is_passing(error) and "://" not in str(path):
        return "Nothing is known to be damaged: call again, and check the disk or file server if this stays."
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "The disk is full: free some space and call again."
    if is_denied(error):
        return f"{_owner(path)}Check that you may write there, or choose another folder."
    if number == errno.EROFS:
        return "The file system is mounted for reading only: choose another folder."
    if number == errno.ELOOP:
        return "Links in it lead in a circle: repair them, or choose another path."
    if number in (errno.ENOTDIR, errno.EEXIST):
        return "A file stands where a folder is needed: choose another path."
    if "://" in str(path):
        return "Check the address, the storage_options and that the object store is reachable."
    return "Check the path and the file system."


def _owner(path: object) -> str:
    """Describe the owner of the file, or of the nearest folder above it that can be seen."""
    if pwd is None or grp is None:
        return ""
    folder = Path(str(path))
    for place in (folder, *folder.parents):
        try:
            state = place.lstat()
        except OSError:
            continue
        return (
            f"{place} belongs to the user {_name(pwd.getpwuid, state.st_uid)} and the group "
            f"{_name(grp.getgrgid, state.st_gid)}, with the mode {stat.S_IMODE(state.st_mode):04o}; this "
            f"process runs as {_name(pwd.getpwuid, os.geteuid())}. To share a store with a group, use a "
            "folder with the setgid bit (chmod g+ws) and record with umask 002; for files that exist, its "
            "owner can use chmod -R g+rwX. "
        )
    return ""


def _name(look_up: Callable[[int], Sequence[Any]], number: int) -> str:
    try:
        return f"{look_up(number)[0]} ({number})"
    except KeyError:
        return str(number)


@contextlib.contextmanager
@touching("write")
def replacing(path: Path, ending: str = ".tmp", *, exclusive: bool = False) -> Iterator[Path]:
    """Yield a new path beside `path`; the file written there takes its name in one step.

    If anything fails, `path` is as it was, and the new file is removed as far as that is possible. A caller
    that promises durability syncs the file first and the folder afterwards.

    Args:
        path: the file to replace.
        ending: of the new file's name, for writers that choose a format by it.
        exclusive: do not replace a file that is there.

    Raises:
        FileTakenError: there is one already, and `exclusive` is set.
        StoreAccessError: the system refused.
    """
    draft = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}{ending}")
    try:
        yield draft
        if exclusive:
            os.link(draft, path)
        else:
            os.replace(draft, path)
    finally:
        # A draft that stays is of no harm, and `path` may have its content already.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[None]:
    """Let `sync_path` and `sync_open` sync nothing below a folder until the block ends.

    Its files may be gone after a crash of the machine.
    """
    _scratch.append(folder)
    try:
        yield
    finally:
        _scratch.remove(folder)


@touching("sync")
def sync_path(path: Path | str) -> None:
    """Make a file, or the names in a folder, durable; see `sync_open`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_open(descriptor, path)
    finally:
        os.close(descriptor)


def sync_open(descriptor: int, path: Path | str) -> None:
    """Make an open file durable, unless it is in a `scratch` folder."""
    if not _scratch or not any(Path(path).is_relative_to(folder) for folder in _scratch):
        os.fsync(descriptor)


def _pread(descriptor: int, count: int, start: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, count)


#: Without `os.pread` the descriptor belongs to one thread.
_read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _pread)


def pread(descriptor: int, count: int, start: int) -> bytes:
    """Read from a place in a file; fewer bytes than asked for only at its end."""
    data = _read_at(descriptor, count, start)
    if len(data) in (0, count):
        return data
    parts = [data]
    while data and (left := count - sum(map(len, parts))):
        data = _read_at(descriptor, left, start + count - left)
        parts.append(data)
    return b"".join(parts)


def read_chunks(descriptor: int) -> Iterator[bytes]:
    """Yield an open file from its start in pieces, and close it.

    A buffered file of Python takes `EAGAIN` for the end of the data.

    Raises:
        OSError: a piece cannot be read.
    """
    try:
        start = 0
        while data := pread(descriptor, CHUNK_BYTES, start):
            yield data
            start += len(data)
    finally:
        os.close(descriptor)


def allocate(descriptor: int, size: int) -> None:
    """Take room on the disk for the first `size` bytes of a new file.

    Raises:
        OSError: the disk is full.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS: a file with a hole would not reserve anything.
    left = size
    while left:
        left -= os.write(descriptor, _ZEROS[:left])


def check_process() -> None:
    """Refuse to continue in a child that was forked from a process which has used a store.

    Raises:
        StoreAccessError: it was; the message says what to do instead.
    """
    if not _process:
        _process.append(os.getpid())
    if _process[0] != os.getpid():
        raise StoreAccessError(
            "This process was forked from one that has used a store, and threads that reading and writing "
            "need do not survive a fork. Start processes with multiprocessing.get_context('spawn') or "
            "'forkserver', and open the store in each."
        )
