"""`s3://`, `gs://` and `az://`: objects of a store, by obstore.

Objects are written whole or not at all; `exclusive` writes are conditional puts, so that of several writers
one succeeds. Files are written to a local temporary file first and uploaded in one go.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.fs

from ..errors import InvalidArgumentError
from .place import Entry, Place
from .ranges import ObjectFiles, open_object

_FLAGS = ("allow_http", "allow_invalid_certificates")
_CLIENT_KEYS = (*_FLAGS, "connect_timeout", "timeout", "proxy_url", "user_agent")
_RETRIES = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
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
        raise InvalidArgumentError(f"{url} or its storage_options are not valid: {error}") from error
    return RemotePlace(Bucket(url, options, store), "")


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    """What obstore takes for `storage_options`: it keeps three kinds of them apart."""
    config: dict[str, str] = {}
    client: dict[str, Any] = {}
    retry: dict[str, Any] = dict(_RETRIES)
    for name, value in options.items():
        bare = name.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if bare in _FLAGS:
            client[bare] = value.lower() in ("true", "1", "yes")
        elif bare in _CLIENT_KEYS:
            client[bare] = value
        elif bare == "max_retries":
            retry[bare] = int(value)
        elif bare == "retry_timeout":
            retry[bare] = timedelta(seconds=_seconds(value))
        else:
            config[name] = value
    return {"config": config, "client_options": client, "retry_config": retry}


def _seconds(text: str) -> float:
    found = _SECONDS.match(text)
    if found is None:
        raise ValueError(f"retry_timeout={text!r}: expected seconds, as in '60s'")
    return float(found.group(1))


@contextlib.contextmanager
def _as_os_errors(place: object) -> Iterator[None]:
    """Turn errors of the object store into the built-in ones of the same meaning."""
    from obstore import exceptions as found

    try:
        yield
    except (found.NotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(2, "there is no such object", str(place)) from error
    except (found.AlreadyExistsError, found.PreconditionError) as error:
        raise FileExistsError(17, "the object exists already", str(place)) from error
    except (found.PermissionDeniedError, found.UnauthenticatedError) as error:
        raise PermissionError(13, f"the object store refused: {_first_line(error)}", str(place)) from error
    except found.BaseError as error:
        raise OSError(5, f"the object store failed: {_first_line(error)}", str(place)) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:500]


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
        with _as_os_errors(self):
            return int(self._store.head(self._key)["size"])

    def read(self) -> bytes:
        """See `Place`."""
        with _as_os_errors(self):
            return bytes(self._store.get(self._key).bytes())

    def read_tail(self, count: int) -> tuple[bytes, int]:
        """See `Place`."""
        with _as_os_errors(self):
            found = self._store.get(self._key, options={"range": {"suffix": count}})
            return bytes(found.bytes()), int(found.meta["size"])

    def write(self, data: bytes, *, exclusive: bool = False) -> None:
        """See `Place`; an exclusive write is a conditional put."""
        with _as_os_errors(self):
            self._store.put(self._key, data, mode="create" if exclusive else "overwrite", use_multipart=False)

    @contextlib.contextmanager
    def written(self) -> Iterator[Path]:
        """See `Place`: the object appears when the upload is complete."""
        descriptor, name = tempfile.mkstemp(prefix="episodelake-", suffix=".parquet")
        os.close(descriptor)
        path = Path(name)
        try:
            yield path
            with _as_os_errors(self):
                self._store.put(self._key, path)
        finally:
            path.unlink(missing_ok=True)

    def copy_from(self, source: Place, *, link: bool = False) -> None:
        """See `Place`; within one bucket the object store copies by itself."""
        with _as_os_errors(self):
            if isinstance(source, RemotePlace) and source._bucket == self._bucket:
                self._store.copy(source._key, self._key, overwrite=True)
            elif source.local is not None:
                self._store.put(self._key, source.local)
            else:
                self._store.put(self._key, source.read())

    def remove(self) -> None:
        """See `Place`."""
        with contextlib.suppress(FileNotFoundError), _as_os_errors(self):
            self._store.delete(self._key)

    def make_folder(self) -> None:
        """See `Place`; an object store has no folders."""

    def remove_folder(self) -> None:
        """See `Place`; an object store has no folders."""

    def entries(self, *, deep: bool = False) -> Iterator[Entry]:
        """See `Place`."""
        prefix = f"{self._key}/" if self._key else ""
        with _as_os_errors(self):
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
        with _as_os_errors(self):
            found = self._store.list_with_delimiter(prefix or None)
        below = [path.rstrip("/").removeprefix(prefix) for path in found["common_prefixes"]]
        return sorted([*below, *(entry["path"].removeprefix(prefix) for entry in found["objects"])])

    def sync(self) -> None:
        """See `Place`; an object that was put is durable."""

    def parquet_source(self) -> Any:
        """See `Place`: a file that asks for ranges of the object as they are read."""
        with _as_os_errors(self):
            return open_object(self._store, self._key)

    def filesystem(self) -> tuple[Any, str]:
        """See `Place`."""
        return pyarrow.fs.PyFileSystem(ObjectFiles(self._store)), self._key
