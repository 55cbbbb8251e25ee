"""`checksums.json`: the files of a published version with their sizes and SHA-256.

It comes from outside, so every name is checked before a file is written under it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..readers.publish_report import PublishReport
from ..store.errors import CorruptStoreError, InvalidArgumentError, StoreExistsError
from ..store.files import Place, guard_access
from ..store.files.local import LocalPlace
from ..store.layout import (
    ANNOTATIONS,
    ARTIFACT_NAMES,
    ARTIFACTS,
    CARD,
    ENVIRONMENTS,
    JOURNAL,
    MANIFEST,
    STEPS,
    TABLES,
    checked_json,
    read_json,
)
from ..store.manifest import UNFINISHED

CHECKSUMS = "checksums.json"
README = "README.md"
CHART = "returns.svg"
_FILES = (MANIFEST, CARD, README, CHART)
_FOLDERS = (*TABLES, ANNOTATIONS, ARTIFACTS, ARTIFACT_NAMES, ENVIRONMENTS)
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_BELOW = re.compile(rf"({'|'.join(_FOLDERS)})(/{_PART}){{1,2}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: Git, and so the Hub, refuses these.
_NO_TAG = re.compile(r"\.\.|\.$|\.lock$")
_MOST_FILES = 1_000_000
#: The year 10000, in milliseconds.
LATEST = 253_402_300_800_000


@dataclass(frozen=True)
class KnownFile:
    """A file as it was published: its SHA-256 in hexadecimal, and its bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Contents:
    """The tag, counts and files of a published version.

    Attributes:
        tag: its name.
        episodes, steps: how many episodes and transitions.
        files: by name, relative to the version, with slashes; `checksums.json` itself is not among them.
        origin: identity and version of the store that it was published from.
        moment: when it was published, in milliseconds since 1970; no part of what is compared. None, like
            `origin`, for a version of an early release.
    """

    tag: str
    episodes: int
    steps: int
    files: Mapping[str, KnownFile]
    origin: tuple[str, int] | None = None
    moment: int | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def report(self, address: str, sent: Collection[KnownFile]) -> PublishReport:
        """Return the report for this version and the files that were sent."""
        counts = len(self.files) + 1, self.size
        sizes = len(sent), sum(file.size for file in sent)
        return PublishReport(address, self.tag, self.episodes, self.steps, *counts, *sizes)

    def to_bytes(self) -> bytes:
        """Return the content of `checksums.json`."""
        files = {name: [file.sha256, file.size] for name, file in sorted(self.files.items())}
        counts = {"episodes": self.episodes, "steps": self.steps}
        known = {"origin": self.origin, "moment": self.moment}
        about = {name: value for name, value in known.items() if value is not None}
        return checked_json({"published": 1, "tag": self.tag, **about, **counts, "files": files})

    @staticmethod
    def read(version: Place) -> Contents:
        """Read the list of a version.

        Raises:
            CorruptStoreError: it is damaged, or names a file that no version has; nothing was written.
            StoreAccessError: it is missing or cannot be read.
        """
        return Contents.of(read_json(version / CHECKSUMS), version / CHECKSUMS)

    @staticmethod
    def of(content: Mapping[str, Any], place: object) -> Contents:
        """Return the list that a JSON object holds.

        Raises:
            CorruptStoreError: see `read`.
        """
        try:
            if content["published"] != 1 or len(content["files"]) > _MOST_FILES:
                raise ValueError("it is not of a version that this release reads")
            files = {name: KnownFile(*file) for name, file in content["files"].items()}
            for name, file in files.items():
                _check_file(name, file)
            # Names that differ in case are one file on some systems.
            if len({name.casefold() for name in files}) < len(files) or MANIFEST not in files:
                raise ValueError(f"names repeat, or {MANIFEST} is missing")
            counts = content["episodes"], content["steps"]
            store, version = content.get("origin") or (None, 0)
            moment = content.get("moment")
            numbers = (*counts, version, *([] if moment is None else [moment]))
            if not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
                raise ValueError(f"impossible numbers {numbers}")
            if not isinstance(store, str | None) or (moment is not None and moment >= LATEST):
                raise ValueError(f"impossible origin {store!r:.50} or moment {moment}")
            origin = None if store is None else (store, version)
            return Contents(check_tag(content["tag"]), *counts, files, origin, moment)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptStoreError(
                f"{place} is no list of a published version: {error}. Nothing was written."
            ) from error


def _check_file(name: str, file: KnownFile) -> None:
    if not is_of_version(name):
        raise ValueError(f"a version has no file {name!r:.200}")
    if type(file.sha256) is not str or not _DIGEST.fullmatch(file.sha256):
        raise ValueError(f"{name} has no SHA-256")
    if type(file.size) is not int or file.size < 0:
        raise ValueError(f"{name} has {file.size!r:.50} bytes")


def check_tag(tag: object) -> str:
    """Return the name of a version that a caller gave.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(tag, str) or not _TAG.fullmatch(tag) or tag.isdigit() or _NO_TAG.search(tag):
        raise InvalidArgumentError(
            f"{tag!r:.200} cannot be a tag: expected 1 to 100 letters, digits, dots, dashes and underscores, "
            "such as 'v1'. It begins with a letter or a digit, is not digits alone, has no two dots in a "
            "row, and does not end with a dot or '.lock'."
        )
    return tag


def is_of_version(name: str) -> bool:
    """Return whether a version may have a file of this name."""
    return name in _FILES or _BELOW.fullmatch(name) is not None


def is_steps(name: str) -> bool:
    """Return whether a file holds steps, or annotations of them, which a preview does without."""
    folder, _, rest = name.partition("/")
    return folder in (STEPS, ANNOTATIONS) and rest.endswith(".parquet")


def is_needed_for_episodes(name: str) -> bool:
    """Return whether a preview needs a file."""
    return not is_steps(name) and not name.startswith((ARTIFACTS, README, CHART))


def digest_of(pieces: Iterable[bytes]) -> KnownFile:
    """Return the checksum and the size of a file that comes in pieces."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return KnownFile(digest.hexdigest(), size)


def contents_of(version: Place, tag: str, episodes: int, steps: int) -> Contents:
    """Return the list of the files in a folder.

    Raises:
        StoreAccessError: a file cannot be read.
    """
    files = {}
    with guard_access("read", version):
        for entry in version.entries(deep=True):
            files[entry.name] = digest_of(place_of(version, entry.name).chunks())
    return Contents(tag, episodes, steps, files)


@contextlib.contextmanager
def temporary_folder(work: str) -> Iterator[LocalPlace]:
    """Yield a new folder for temporary files, deleted at the end.

    Raises:
        StoreAccessError: it cannot be made.
    """
    with guard_access("make a temporary folder", work):
        folder = tempfile.TemporaryDirectory(prefix=f"episodelake-{work}-", ignore_cleanup_errors=True)
    with folder as name:
        yield LocalPlace(Path(name).resolve())


def check_removable(folder: Path) -> None:
    """Refuse a folder that is not of a version alone.

    Raises:
        StoreExistsError: it is a link, or holds what is not of a version.
    """
    if folder.is_symlink():
        raise StoreExistsError(f"{folder} is a link; remove it first.")
    own = {*_FILES, *_FOLDERS, CHECKSUMS, UNFINISHED, JOURNAL}
    names = os.listdir(folder) if folder.exists() else []
    others = sorted(name for name in names if name not in own and name[0] != ".")
    if others:
        raise StoreExistsError(
            f"{folder}, where a version is to be removed, holds other things: {', '.join(others[:5])}. "
            "Move them away."
        )


def remove_unfinished(folder: Path) -> bool:
    """Delete what an earlier call left in its working folder; return whether there was any.

    Raises:
        StoreExistsError: it is a link, or holds what is not of a version; nothing was deleted.
        StoreAccessError: it cannot be deleted.
    """
    with guard_access("remove an unfinished version", folder):
        check_removable(folder)
        if not folder.exists():
            return False
        shutil.rmtree(folder)
        return True


def place_of(version: Place, name: str) -> Place:
    """Return the place of a file of a version."""
    for part in name.split("/"):
        version /= part
    return version
