"""Objects of an object store: errors of requests as the built-in ones, and files that read by ranges.

Arrow datasets read through pyarrow's own file systems, in threads of their own. A file system written in
Python would be called from these threads; it deadlocks against the interpreter's lock now and then.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs

from ..errors import EpisodelakeError, InvalidArgumentError
from .access import check_process, error_text

#: Answers that repeating the request does not change.
_REJECTED = re.compile(r"status code: (?!408|409|429)(4\d\d|501)\b")

#: S3 and Google; Azure.
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")

_PREFIXES = ("aws_", "google_", "azure_storage_", "azure_")
_S3_NAMES = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "token": "session_token",
    "region": "region",
    "default_region": "region",
}
_AZURE_NAMES = {"account_name": "account_name", "account_key": "account_key", "sas_token": "sas_token"}
#: Options of other parts than the credentials; these file systems have their own settings for them.
_PASSED_OVER = frozenset(
    {
        "allow_http",
        "conditional_put",
        "connect_timeout",
        "endpoint",
        "endpoint_url",
        "max_retries",
        "retry_timeout",
        "skip_signature",
        "timeout",
        "virtual_hosted_style_request",
    }
)


@contextlib.contextmanager
def as_os_errors(place: object) -> Iterator[None]:
    """Turn errors of obstore into `OSError` and its subclasses, each with its number.

    Args:
        place: what was read or written, shown as text.

    Raises:
        StoreAccessError: this process was forked from one that has used a store; obstore would wait for
            threads that are not there.
    """
    from obstore import exceptions

    check_process()
    try:
        yield
    except EpisodelakeError:
        raise
    except (exceptions.NotFoundError, FileNotFoundError) as error:
        what = "bucket" if _NO_BUCKET.search(str(error)) else "object"
        raise FileNotFoundError(errno.ENOENT, f"there is no such {what}", str(place)) from error
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, "the object exists already", str(place)) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        reason = f"the object store refused: {error_text(error)}"
        raise PermissionError(errno.EACCES, reason, str(place)) from error
    except (exceptions.BaseError, NotImplementedError) as error:
        if _NO_BUCKET.search(str(error)):
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", str(place)) from error
        unsupported = isinstance(error, exceptions.NotSupportedError | NotImplementedError)
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


def arrow_files(url: str, options: Mapping[str, str]) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system behind a URL, and the URL's path in it.

    Args:
        url: `s3://`, `gs://`, `az://` or `abfs://`.
        options: `storage_options`, keys in lower case; what is left out comes from the environment.

    Raises:
        InvalidArgumentError: an option has no counterpart.
    """
    scheme, _, path = url.partition("://")
    bare = {bare_option(name): value for name, value in options.items()}
    if scheme in ("s3", "s3a"):
        return _s3(bare), path
    if scheme == "gs":
        _check(bare, {})
        return pyarrow.fs.GcsFileSystem(anonymous=_truth(bare, "skip_signature")), path
    return _azure(bare, url)


def _azure(options: Mapping[str, str], url: str) -> tuple[pyarrow.fs.FileSystem, str]:
    parts = urlsplit(url)
    path = f"{parts.netloc}{parts.path}"
    settings = _renamed(options, _AZURE_NAMES)
    if "@" in parts.netloc:
        container, _, host = parts.netloc.partition("@")
        path = f"{container}{parts.path}"
        settings.setdefault("account_name", host.partition(".")[0])
    account = settings.setdefault("account_name", os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"))
    if not account:
        raise InvalidArgumentError(
            f"SQL cannot reach {url}: it needs the storage option azure_storage_account_name. "
            "Read with Polars: episodes, steps and filter take every option."
        )
    endpoint = options.get("endpoint") or os.environ.get("AZURE_STORAGE_ENDPOINT")
    return pyarrow.fs.AzureFileSystem(**settings, **_azure_endpoint(endpoint, account)), path


def _azure_endpoint(endpoint: str | None, account: str) -> dict[str, str]:
    """Return the settings for a service at another address than Azure's own.

    Raises:
        InvalidArgumentError: the address has the account neither as its first name nor as its path.
    """
    if not endpoint:
        return {}
    parts = urlsplit(endpoint)
    if parts.netloc.startswith(f"{account}."):
        blob = parts.netloc.removeprefix(account)
    elif parts.path.strip("/") == account:
        blob = parts.netloc
    else:
        raise InvalidArgumentError(
            f"SQL cannot reach the azure_storage_endpoint {endpoint!r}: expected https://{account}.HOST or "
            f"https://HOST/{account}. Read with Polars: episodes, steps and filter take every option."
        )
    return {
        "blob_storage_authority": blob,
        "blob_storage_scheme": parts.scheme,
        "dfs_storage_authority": blob.replace(".blob.", ".dfs.", 1),
        "dfs_storage_scheme": parts.scheme,
    }


def _truth(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() in ("true", "1", "yes")


def bare_option(name: str) -> str:
    """Return the name of a storage option without the prefix of its service."""
    return next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)


def _s3(options: Mapping[str, str]) -> pyarrow.fs.FileSystem:
    settings = _renamed(options, _S3_NAMES)
    given = (options.get(name) for name in ("endpoint_url", "endpoint"))
    known = (os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    endpoint = next((each for each in (*given, *known) if each), None)
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        settings |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    if _truth(options, "skip_signature"):
        settings["anonymous"] = True
    return pyarrow.fs.S3FileSystem(**settings)


def _renamed(options: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    _check(options, names)
    return {names[name]: value for name, value in options.items() if name in names}


def _check(options: Mapping[str, str], names: Mapping[str, str]) -> None:
    unknown = sorted(set(options) - set(names) - _PASSED_OVER)
    if unknown:
        raise InvalidArgumentError(
            f"SQL cannot reach this store with the storage option {unknown[0]!r}. Give the setting through "
            "the environment instead, or read with Polars: episodes, steps and filter take every option."
        )
