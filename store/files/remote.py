"""`s3://`, `gs://` and `az://`: objects of a store, by obstore.

Objects are written whole or not at all; `exclusive` writes are conditional puts, so that of several writers
one succeeds. Files are written to a local temporary file first and uploaded in one go.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import InvalidArgumentError, StoreAccessError
from .access import error_text, guard_access, is_denied, touching
from .objects import RangedFile, arrow_files, as_os_errors, bare_option
from .place import CHUNK_BYTES, Entry, Place, oversized_error

_FLAGS = ("allow_http", "allow_invalid_certificates")
_CLIENT_KEYS = (*_FLAGS, "connect_timeout", "timeout", "proxy_url", "user_agent")
_RETRIES = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
_ATTEMPTS = 6
#: Pieces of one object that are on their way, and in memory, at a time.
_UPLOADS = 3
_PAUSE_SECONDS = 0.1
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
#: Roots, with their options, whose object store honours conditional puts, as this process has seen.
_checked: set[tuple[Any, ...]] = set()
_SECONDS = re.compile(r"^(\d+(?:\.\d+)?) ?s?$")


@dataclass(frozen=True)
class Bucket:
    """An object store and how to reach it: what all places of one store share.

    Attributes:
        url: the root, without a slash at its end.
        options: `storage_options` as the caller gave them, keys in lower case.
        store: the obstore object of the root.
    """

    url: str
    options: Mapping[str, str]
    store: Any


def remote_place(url: str, options: Mapping[str, str]) -> RemotePlace:
    """Return the place of a URL.

    Raises:
        InvalidArgumentError: obstore is not installed, or the URL or an option is not valid.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise InvalidArgumentError(
            f"{url} is on an object store, which needs more packages: pip install 'episodelake[cloud]'"
        ) from error
    url = url.rstrip("/")
    options = {str(name).lower(): str(value) for name, value in options.items()}
    try:
        store = from_url(url, **_settings(options))
    except (BaseError, ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{url} or its storage options are not valid: {error_text(error)}"
        ) from error
    return RemotePlace(Bucket(url, options, store), "")


def _again(url: str, options: Mapping[str, str], key: str) -> RemotePlace:
    return RemotePlace(remote_place(url, options)._bucket, key)


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Return what obstore takes for `storage_options`: it keeps three kinds of them apart."""
    config: dict[str, str] = {}
    client: dict[str, Any] = {}
    retry: dict[str, Any] = dict(_RETRIES)
    environment = os.environ.get("AWS_ALLOW_HTTP")
    if environment is not None:
        options = {"aws_allow_http": environment, **options}
    for name, value in options.items():
        bare = bare_option(name)
        try:
            if bare in _FLAGS:
                client[bare] = _TRUTHS[value.lower()]
            elif bare in ("timeout", "connect_timeout"):
                client[bare] = timedelta(seconds=_seconds(value))
            elif bare in _CLIENT_KEYS:
                client[bare] = value
            elif bare == "max_retries":
                retry[bare] = int(value)
            elif bare == "retry_timeout":
                retry[bare] = timedelta(seconds=_seconds(value))
            else:
                config[name] = value
        except (KeyError, ValueError) as error:
            expected = {"max_retries": "a whole number", **dict.fromkeys(_FLAGS, "true or false")}
            raise InvalidArgumentError(
                f"The storage option {name}={value!r} is not valid; expected "
                f"{expected.get(bare, 'seconds, as in 30s')}."
            ) from error
    return {"config": config, "client_options": client, "retry_config": retry}


def _seconds(text: str) -> float:
    match = _SECONDS.match(text)
    if match is None:
        raise ValueError(text)
    return float(match.group(1))


def _repeated(request: Callable[[], None]) -> None:
    """Make a request again while connections are lost: obstore repeats no conditional puts and deletions."""
    for attempt in range(_ATTEMPTS):
        try:
            return request()
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            if is_denied(error) or error.errno == errno.ENOTSUP or attempt == _ATTEMPTS - 1:
                raise
        time.sleep(_PAUSE_SECONDS * 2**attempt)


class RemotePlace(Place):
    """An object, or a prefix of objects."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key

    def __truediv__(self, name: str) -> RemotePlace:
        """See `Place`."""
        return RemotePlace(self._bucket, f"{self._key}/{name}" if self._key else name)

    def __str__(self) -> str:
        """Return the URL."""
        return f"{self._bucket.url}/{self._key}" if self._key else self._bucket.url

    def __eq__(self, other: object) -> bool:
        """Return whether both name the same object of the same bucket."""
        return isinstance(other, RemotePlace) and (self._bucket, self._key) == (other._bucket, other._key)

    def __hash__(self) -> int:
        """By the URL."""
        return hash(str(self))

    @property
    def name(self) -> str:
        """See `Place`."""
        return str(self).rpartition("/")[2]

    @property
    def parent(self) -> RemotePlace:
        """See `Place`."""
        return RemotePlace(self._bucket, self._key.rpartition("/")[0])

    def __reduce__(self) -> tuple[Any, ...]:
        """With the options, so keep a pickle as secret as they are."""
        return _again, (self._bucket.url, dict(self._bucket.options), self._key)

    @property
    def options(self) -> dict[str, str] | None:
        """See `Place`."""
        return dict(self._bucket.options) or None

    @property
    def _store(self) -> Any:
        return self._bucket.store

    @touching("look at")
    def exists(self) -> bool:
        """See `Place`."""
        if self._key:
            with contextlib.suppress(FileNotFoundError):
                return self.size() >= 0
        return bool(self.names())

    @touching("look at")
    def size(self) -> int:
        """See `Place`."""
        with as_os_errors(self):
            return int(self._store.head(self._key)["size"])

    def check_plain(self) -> None:
        """See `Place`; objects are plain."""

    @touching("read")
    def read(self, most: int | None = None) -> bytes:
        """See `Place`."""
        with as_os_errors(self):
            answer = self._store.get(self._key)
            size = int(answer.meta["size"])
            if most is not None and size > most:
                raise oversized_error(self, size, most)
            return bytes(answer.bytes())

    @touching("read")
    def chunks(self) -> Iterator[bytes]:
        """See `Place`."""
        with as_os_errors(self):
            for piece in self._store.get(self._key).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(piece)

    @touching("read")
    def read_tail(self, count: int) -> tuple[bytes, int]:
        """See `Place`."""
        from obstore.exceptions import NotSupportedError

        with as_os_errors(self):
            try:
                answer = self._store.get(self._key, options={"range": {"suffix": count}})
                return bytes(answer.bytes()), int(answer.meta["size"])
            except NotSupportedError:
                # Azure has no ranges that are counted from the end.
                size = int(self._store.head(self._key)["size"])
                start = max(0, size - count)
                tail = self._store.get_range(self._key, start=start, end=size) if size else b""
                return bytes(tail), size

    @touching("write")
    def write(self, data: bytes | Iterator[bytes], *, exclusive: bool = False) -> None:
        """See `Place`; an exclusive write is a conditional put, and many pieces are a multipart upload."""
        if not isinstance(data, bytes):
            first, second = next(data, b""), next(data, None)
            if second is not None:
                pieces = itertools.chain([first, second], data)
                with as_os_errors(self):
                    self._store.put(self._key, pieces, chunk_size=CHUNK_BYTES, max_concurrency=_UPLOADS)
                return
            data = first
        if exclusive:
            self.check_exclusive()
            self._create(data)
            return
        with as_os_errors(self):
            self._store.put(self._key, data, use_multipart=False)

    def _create(self, data: bytes) -> None:
        """Put conditionally. Retry if the answer was lost; our own object is then no rival's."""

        def put() -> None:
            try:
                with as_os_errors(self):
                    self._store.put(self._key, data, mode="create", use_multipart=False)
            except FileExistsError:
                if self.read() != data:
                    raise

        _repeated(put)

    def check_exclusive(self) -> None:
        """See `Place`; two conditional puts of an object of its own, which is removed afterwards."""
        root = RemotePlace(self._bucket, "")
        known = (self._bucket.url, *sorted(self._bucket.options.items()))
        if known in _checked:
            return
        # Named like the temporary files of a manifest, which a creation passes over.
        probe = root / f".store.json.{secrets.token_hex(8)}.tmp"
        with guard_access("check for conditional puts", root):
            try:
                fault = probe._conditional_fault()
            finally:
                # Where deleting is forbidden the small object stays.
                with contextlib.suppress(OSError):
                    probe.remove()
        if fault is not None:
            raise StoreAccessError(
                f"The object store behind {root} does not honour conditional puts (If-None-Match): {fault}. "
                "Writers would overwrite each other's commits and lose episodes. Nothing was committed. Use "
                "a service that honours them, or update the server or gateway: see docs/object-stores.md."
            )
        _checked.add(known)

    def _conditional_fault(self) -> str | None:
        """Put an object twice on condition that it is new, and say what the service did wrong, if anything.

        Raises:
            OSError: the service cannot be reached, or takes no puts at all.
        """
        first, second = b"episodelake probe 1", b"episodelake probe 2"
        try:
            self._create(first)
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            # A service that refuses this put too has another reason than the condition.
            self.write(first)
            return f"it takes plain puts only ({error.strerror})"
        try:
            self._create(second)
            return "it accepted a second object under a name that was taken"
        except FileExistsError:
            replaced = self.read() != first
            return "it refused a second object and stored it nevertheless" if replaced else None
        except FileNotFoundError:
            return "it does not show an object right after it was put"

    @contextlib.contextmanager
    @touching("write")
    def written(self) -> Iterator[Path]:
        """See `Place`: the object appears when the upload is complete."""
        descriptor, name = tempfile.mkstemp(prefix="episodelake-", suffix=".parquet")
        os.close(descriptor)
        path = Path(name)
        try:
            yield path
            with as_os_errors(self):
                self._store.put(self._key, path)
        finally:
            path.unlink(missing_ok=True)

    @touching("write")
    def copy_from(self, source: Place, *, link: bool = False) -> None:
        """See `Place`; the object store copies objects below our root, also from another store there."""
        below = f"{self._bucket.url}/"
        with as_os_errors(self):
            if (
                isinstance(source, RemotePlace)
                and source._bucket.options == self._bucket.options
                and str(source).startswith(below)
            ):
                self._store.copy(str(source).removeprefix(below), self._key, overwrite=True)
            elif source.local is not None:
                self._store.put(self._key, source.local)
            else:
                self.write(source.chunks())

    @touching("delete")
    def remove(self) -> None:
        """See `Place`."""

        def delete() -> None:
            with contextlib.suppress(FileNotFoundError), as_os_errors(self):
                self._store.delete(self._key)

        _repeated(delete)

    def make_folder(self) -> None:
        """See `Place`; an object store has no folders."""

    def remove_folder(self) -> None:
        """See `Place`; an object store has no folders."""

    @touching("list")
    def entries(self, *, deep: bool = False) -> Iterator[Entry]:
        """See `Place`."""
        prefix = f"{self._key}/" if self._key else ""
        with as_os_errors(self):
            if deep:
                pages = self._store.list(prefix or None)
            else:
                pages = [self._store.list_with_delimiter(prefix or None)["objects"]]
            for page in pages:
                for entry in page:
                    name = entry["path"].removeprefix(prefix)
                    yield Entry(name, int(entry["size"]), entry["last_modified"].timestamp())

    def names(self) -> list[str]:
        """See `Place`."""
        folders, files = self.listed()
        return sorted([*folders, *files])

    @touching("list")
    def listed(self) -> tuple[list[str], list[str]]:
        """See `Place`."""
        prefix = f"{self._key}/" if self._key else ""
        try:
            with as_os_errors(self):
                listed = self._store.list_with_delimiter(prefix or None)
        except FileNotFoundError:
            # The bucket itself is missing.
            return [], []
        folders = [path.rstrip("/").removeprefix(prefix) for path in listed["common_prefixes"]]
        return sorted(folders), sorted(entry["path"].removeprefix(prefix) for entry in listed["objects"])

    def sync(self) -> None:
        """See `Place`; an object that was put is durable."""

    @touching("read")
    def parquet_source(self, size: int | None = None) -> Any:
        """See `Place`: a file that asks for ranges of the object as they are read."""
        size = self.size() if size is None else size
        return pa.PythonFile(RangedFile(self._store, self._key, size), "r")

    def filesystem(self) -> tuple[Any, str]:
        """See `Place`."""
        return arrow_files(str(self), self._bucket.options)
