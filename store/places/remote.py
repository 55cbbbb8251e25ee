"""`s3://`, `gs://` and `az://`: objects of a store, by obstore.

Objects are written whole or not at all; `exclusive` writes are conditional puts, so that of several writers
one succeeds. Files are written to a local temporary file first and uploaded in one go.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from .arrow_files import arrow_files
from .object_errors import as_os_errors, first_line
from .place import Entry, Place
from .ranges import open_object

_FLAGS = ("allow_http", "allow_invalid_certificates")
_CLIENT_KEYS = (*_FLAGS, "connect_timeout", "timeout", "proxy_url", "user_agent")
_RETRIES = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
_CREATIONS = 6
_PAUSE_SECONDS = 0.1
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
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
    """The place of a URL.

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
            f"{url} or its storage_options are not valid: {first_line(error)}"
        ) from error
    return RemotePlace(Bucket(url, options, store), "")


def _again(url: str, options: Mapping[str, str], key: str) -> RemotePlace:
    return RemotePlace(remote_place(url, options)._bucket, key)


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    """What obstore takes for `storage_options`: it keeps three kinds of them apart."""
    config: dict[str, str] = {}
    client: dict[str, Any] = {}
    retry: dict[str, Any] = dict(_RETRIES)
    environment = os.environ.get("AWS_ALLOW_HTTP")
    if environment is not None:
        options = {"aws_allow_http": environment, **options}
    for name, value in options.items():
        bare = name.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
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
                f"storage_options: {name}={value!r} is not valid; expected "
                f"{expected.get(bare, 'seconds, as in 30s')}."
            ) from error
    return {"config": config, "client_options": client, "retry_config": retry}


def _seconds(text: str) -> float:
    found = _SECONDS.match(text)
    if found is None:
        raise ValueError(text)
    return float(found.group(1))


class RemotePlace(Place):
    """An object, or a prefix of objects."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key

    def __truediv__(self, name: str) -> RemotePlace:
        """See `Place`."""
        return RemotePlace(self._bucket, f"{self._key}/{name}" if self._key else name)

    def __str__(self) -> str:
        """The URL."""
        return f"{self._bucket.url}/{self._key}" if self._key else self._bucket.url

    def __repr__(self) -> str:
        """The URL, quoted; options are left out, since they may hold secrets."""
        return f"RemotePlace({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        """Whether both name the same object of the same bucket."""
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

    def exists(self) -> bool:
        """See `Place`."""
        if not self._key:
            return bool(self.names())
        try:
            self.size()
        except FileNotFoundError:
            return bool(self.names())
        return True

    def size(self) -> int:
        """See `Place`."""
        with as_os_errors(self):
            return int(self._store.head(self._key)["size"])

    def check_plain(self) -> None:
        """See `Place`; objects are plain."""

    def read(self) -> bytes:
        """See `Place`."""
        with as_os_errors(self):
            return bytes(self._store.get(self._key).bytes())

    def read_tail(self, count: int) -> tuple[bytes, int]:
        """See `Place`."""
        with as_os_errors(self):
            found = self._store.get(self._key, options={"range": {"suffix": count}})
            return bytes(found.bytes()), int(found.meta["size"])

    def write(self, data: bytes, *, exclusive: bool = False) -> None:
        """See `Place`; an exclusive write is a conditional put."""
        if exclusive:
            self._create(data)
            return
        with as_os_errors(self):
            self._store.put(self._key, data, use_multipart=False)

    def _create(self, data: bytes) -> None:
        """A conditional put. One whose answer was lost is tried again; our own object is then no rival's."""
        for attempt in range(_CREATIONS):
            try:
                with as_os_errors(self):
                    self._store.put(self._key, data, mode="create", use_multipart=False)
                return
            except PermissionError:
                raise
            except FileExistsError:
                if self.read() == data:
                    return
                raise
            except OSError as error:
                if isinstance(error, FileNotFoundError) or attempt == _CREATIONS - 1:
                    raise
                time.sleep(_PAUSE_SECONDS * 2**attempt)

    @contextlib.contextmanager
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

    def copy_from(self, source: Place, *, link: bool = False) -> None:
        """See `Place`; within one bucket the object store copies by itself."""
        with as_os_errors(self):
            if isinstance(source, RemotePlace) and source._bucket == self._bucket:
                self._store.copy(source._key, self._key, overwrite=True)
            elif source.local is not None:
                self._store.put(self._key, source.local)
            else:
                self._store.put(self._key, source.read())

    def remove(self) -> None:
        """See `Place`."""
        with contextlib.suppress(FileNotFoundError), as_os_errors(self):
            self._store.delete(self._key)

    def make_folder(self) -> None:
        """See `Place`; an object store has no folders."""

    def remove_folder(self) -> None:
        """See `Place`; an object store has no folders."""

    def entries(self, *, deep: bool = False) -> Iterator[Entry]:
        """See `Place`."""
        prefix = f"{self._key}/" if self._key else ""
        with as_os_errors(self):
            if deep:
                pages = self._store.list(prefix or None)
            else:
                pages = [self._store.list_with_delimiter(prefix or None)["objects"]]
            for page in pages:
                for found in page:
                    name = found["path"].removeprefix(prefix)
                    yield Entry(name, int(found["size"]), found["last_modified"].timestamp())

    def names(self) -> list[str]:
        """See `Place`."""
        prefix = f"{self._key}/" if self._key else ""
        try:
            with as_os_errors(self):
                found = self._store.list_with_delimiter(prefix or None)
        except FileNotFoundError:
            # The bucket itself is missing.
            return []
        below = [path.rstrip("/").removeprefix(prefix) for path in found["common_prefixes"]]
        return sorted([*below, *(entry["path"].removeprefix(prefix) for entry in found["objects"])])

    def sync(self) -> None:
        """See `Place`; an object that was put is durable."""

    def parquet_source(self) -> Any:
        """See `Place`: a file that asks for ranges of the object as they are read."""
        with as_os_errors(self):
            return open_object(self._store, self._key)

    def filesystem(self) -> tuple[Any, str]:
        """See `Place`."""
        return arrow_files(str(self), self._bucket.options)
