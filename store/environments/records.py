"""Records by name: saved environments and named artifacts, each a JSON file with a checksum.

A file is named by the SHA-256 of the record's name, so a name may have slashes, dots and letters of any case
on every file system. A record is written whole or not at all, and of several writers that add the same one,
one succeeds.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from ..common.arguments import whole_number
from ..errors import CorruptStoreError, InvalidArgumentError
from ..files import visible_step
from ..layout import ARTIFACT_NAMES, ENVIRONMENTS, Layout, check_identity, checked_json, read_json
from .artifacts import EnvBundle, KeptFile, checked_file, is_hash

_LONGEST_NAME = 200
_LARGEST_VERSION = 10**9 - 1
_VERSIONED = re.compile(r"(?P<name>.+)@(?P<version>[1-9][0-9]{0,8})")


@dataclass(frozen=True)
class SavedEnvironment:
    """An environment that a store keeps by itself, without a run.

    Attributes:
        name: its name, in Unicode's normal form C.
        version: from 1; several versions of a name are kept side by side.
        description, difficulty: texts for people, or None.
        release: the version as its author calls it, such as "1.2-beta", or None.
        metadata: of the author's choice, as a JSON object.
        created_at: when this version was saved, in UTC, as ISO 8601.
        env_spec, versions, env_bundle: JSON texts, as in the table of runs.
    """

    folder: ClassVar[str] = ENVIRONMENTS

    name: str
    version: int
    description: str | None
    difficulty: str | None
    created_at: str
    env_spec: str
    versions: str
    env_bundle: str
    release: str | None = None
    metadata: str = "{}"

    @cached_property
    def bundle(self) -> EnvBundle:
        """The files of the environment and the class that it was made of.

        Raises:
            CorruptStoreError: it is damaged.
        """
        return EnvBundle.from_json(self.env_bundle, f"The saved environment {self.key!r}")

    @property
    def key(self) -> str:
        """The name with the version, as `make_env` takes them: `pole@2`."""
        return f"{self.name}@{self.version}"

    @property
    def content_hash(self) -> str:
        """The SHA-256 of the spec, its arguments and the hashes of its files, as canonical JSON."""
        files = {file.name: file.sha256 for file in self.bundle.files}
        content = {"files": files, "spec": json.loads(self.env_spec)}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{_stem(self.name)}-{self.version}.json"

    @property
    def files(self) -> tuple[KeptFile, ...]:
        """The artifacts that it refers to."""
        return self.bundle.files

    def check(self) -> None:
        """Raise ValueError or TypeError if a value has the wrong type."""
        texts = (self.name, self.created_at, self.env_spec, self.versions, self.env_bundle)
        texts += tuple(each for each in (self.description, self.difficulty, self.release) if each is not None)
        if not all(type(each) is str for each in (*texts, self.metadata)) or not _is_version(self.version):
            raise ValueError("a value has the wrong type")
        if any(type(json.loads(each)) is not dict for each in (self.metadata, self.env_spec)):
            raise ValueError("its metadata or its spec is no object")
        _check_moment(self.created_at)


def env_content(spec: str, files: Iterable[KeptFile]) -> str:
    """Return the content of an environment as a text, the same for one that was made again.

    Args:
        spec: JSON text of its spec.
        files: that it needs.
    """
    # `gymnasium.make` drops the entry point of the vectorized form.
    plain = {**json.loads(spec), "vector_entry_point": None}
    return json.dumps([plain, sorted((each.name, each.sha256) for each in files)], sort_keys=True)


@dataclass(frozen=True)
class NamedArtifact:
    """A content with a name.

    Attributes:
        name: its name, in Unicode's normal form C.
        sha256: of the content, in hexadecimal.
        size: bytes.
        created_at: when the name was given, in UTC, as ISO 8601.
    """

    folder: ClassVar[str] = ARTIFACT_NAMES

    name: str
    sha256: str
    size: int
    created_at: str

    @property
    def content_hash(self) -> str:
        """The SHA-256 of its content."""
        return self.sha256

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{_stem(self.name)}.json"

    @property
    def files(self) -> tuple[KeptFile, ...]:
        """The artifact that it refers to."""
        return (KeptFile(self.name, self.sha256, self.size),)

    def check(self) -> None:
        """Raise ValueError or TypeError if a value has the wrong type."""
        if type(self.name) is not str or type(self.created_at) is not str:
            raise ValueError("a value has the wrong type")
        checked_file(asdict(self))
        _check_moment(self.created_at)


Record = TypeVar("Record", bound=SavedEnvironment | NamedArtifact)


@dataclass(frozen=True)
class Records(Generic[Record]):
    """All records of one kind in a store.

    Args:
        layout: of the store.
        kind: the class of the records.
    """

    layout: Layout
    kind: type[Record]

    def file_names(self, name: str | None = None) -> list[str]:
        """Return the files of the records, or of those with a name."""
        files = self.layout.records(self.kind.folder)
        return files if name is None else [each for each in files if each[:64] == _stem(name)]

    def all(self) -> list[Record]:
        """Return all records, ordered by name and version.

        Raises:
            CorruptStoreError: a record is damaged.
        """
        return sorted(map(self.read, self.file_names()), key=_order)

    def of(self, name: str) -> list[Record]:
        """Return the records with a name, the newest version last; damaged records of other names do no harm.

        Raises:
            CorruptStoreError: a record is damaged.
        """
        return sorted(map(self.read, self.file_names(normal(name))), key=_order)

    def read(self, file_name: str) -> Record:
        """Read a record.

        Raises:
            CorruptStoreError: it is damaged, or stands under the name of another one.
        """
        place = self.layout.root / self.kind.folder / file_name
        content = read_json(place)
        try:
            optional = {each.name for each in fields(self.kind) if each.default is not MISSING}
            given = [each.name for each in fields(self.kind) if each.name not in optional - content.keys()]
            record = self.kind(**{name: content[name] for name in given})
            record.check()
            if record.file_name != file_name or record.name != normal(record.name):
                raise ValueError(f"it is the record of {record.name[:_LONGEST_NAME]!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptStoreError(
                f"{place} is damaged: {error}. Restore the file from a copy, or delete it."
            ) from error
        return record

    def write(self, record: Record, *, exclusive: bool) -> bool:
        """Write a record; return False if there is one already and `exclusive` is set.

        Raises:
            StoreAccessError: the store cannot be written.
        """
        check_identity(self.layout)
        folder = self.layout.root / self.kind.folder
        data = checked_json(asdict(record))
        place = folder / record.file_name
        with visible_step(f"The record of {record.name!r} is written"):
            folder.make_folder()
            try:
                place.write(data, exclusive=exclusive)
            except FileExistsError:
                return False
        return True

    def remove(self, file_names: list[str]) -> None:
        """Remove records, readable or not; their contents stay until a vacuum.

        Raises:
            StoreAccessError: the store cannot be written.
        """
        check_identity(self.layout)
        for name in file_names:
            place = self.layout.root / self.kind.folder / name
            place.remove()


KINDS: tuple[type[SavedEnvironment] | type[NamedArtifact], ...] = (SavedEnvironment, NamedArtifact)


def _order(record: SavedEnvironment | NamedArtifact) -> tuple[str, int]:
    return record.name, record.version if isinstance(record, SavedEnvironment) else 0


def _stem(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _check_moment(text: str) -> None:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text[:80]!r} has no time zone")


def _is_version(version: object) -> bool:
    return type(version) is int and 1 <= version <= _LARGEST_VERSION


def now_text() -> str:
    """Return the present, as records state it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def normal(name: str) -> str:
    """Return a name in Unicode's normal form C, so that names that look the same are the same."""
    return unicodedata.normalize("NFC", name)


def checked_name(name: object) -> str:
    """Return a name for a new record in its normal form.

    Raises:
        InvalidArgumentError: it is no name; the message tells what is expected.
    """
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or name != name.strip()
        or not 0 < len(normal(name).encode()) <= _LONGEST_NAME
    ):
        raise InvalidArgumentError(
            f"name={str(name)[:_LONGEST_NAME]!r}: expected a printable text of 1 to {_LONGEST_NAME} bytes "
            "without spaces around it, such as 'ALE/Pong-v5'."
        )
    if is_hash(name) or _VERSIONED.fullmatch(name):
        raise InvalidArgumentError(
            f"name={name!r} reads like a SHA-256 or like a name with a version. Choose another name."
        )
    return normal(name)


def checked_version(version: object) -> int:
    """Return a version for a saved environment.

    Raises:
        InvalidArgumentError: it is no whole number from 1, or too large.
    """
    return whole_number("version", version, 1, _LARGEST_VERSION)


def checked_release(release: object) -> str | None:
    """Return a release for a saved environment, which `name@release` finds.

    Raises:
        InvalidArgumentError: it is neither a text nor None, or reads like the number of a version.
    """
    if release is None:
        return None
    if not isinstance(release, str) or not release or not release.isprintable() or "@" in release:
        raise InvalidArgumentError(
            f"release={release!r:.200}: expected a printable text without '@', such as '1.2-beta', or None."
        )
    if _VERSIONED.fullmatch(f"name@{release}"):
        raise InvalidArgumentError(
            f"release={release!r} reads like a version: name@{release} finds version={release}. Choose "
            f"another release, such as '{release}.0', or pass version=."
        )
    return release


def split_version(name: str) -> tuple[str, int | None]:
    """Return the name and the version of `name@version`; None where there is no version."""
    match = _VERSIONED.fullmatch(name)
    return (name, None) if match is None else (match["name"], int(match["version"]))
