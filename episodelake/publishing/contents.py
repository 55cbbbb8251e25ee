"""`checksums.json`: the files of a published version with their sizes and SHA-256.

It comes from outside, so every name is checked before a file is written under it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CorruptStoreError, InvalidArgumentError
from ..plugin import Layout
from ..plugin.files import LocalPlace, Place, real_path, temporary_folder
from ..types import PublishReport

CHECKSUMS = "checksums.json"
README = "README.md"
#: The picture is in versions of early releases.
_FILES = (Layout.MANIFEST, "card.json", README, "returns.svg")
_FOLDERS = (*Layout.TABLES, *Layout.FOLDERS)
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
        moment: when it was published, in milliseconds since 1970; no part of what is compared. 0, and no
            `origin`, for a version of an early release.
    """

    tag: str
    episodes: int
    steps: int
    files: Mapping[str, KnownFile]
    origin: tuple[str, int] | None = None
    moment: int = field(default=0, compare=False)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def report(self, address: str) -> PublishReport:
        """Return the report for this version."""
        return PublishReport(
            address, self.tag, self.episodes, self.steps, files=len(self.files) + 1, size=self.size
        )

    def to_bytes(self) -> bytes:
        """Return the content of `checksums.json`."""
        files = {name: [file.sha256, file.size] for name, file in sorted(self.files.items())}
        counts = {"episodes": self.episodes, "steps": self.steps}
        about = {"tag": self.tag, "origin": self.origin, "moment": self.moment}
        return Layout.json_bytes({"published": 1, **about, **counts, "files": files})

    @staticmethod
    def read(version: Place) -> Contents:
        """Read the list of a version.

        Raises:
            CorruptStoreError: it is damaged, or names a file that no version has; nothing was written.
            StoreAccessError: it is missing or cannot be read.
        """
        return Contents.of(Layout.read_json(version / CHECKSUMS), version / CHECKSUMS)

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
            if len({name.casefold() for name in files}) < len(files) or Layout.MANIFEST not in files:
                raise ValueError(f"names repeat, or {Layout.MANIFEST} is missing")
            store, version = content.get("origin") or (None, 0)
            counts = content["episodes"], content["steps"]
            moment = content.get("moment") or 0
            numbers = (*counts, version, moment)
            possible = all(type(each) is int and 0 <= each < 2**63 for each in numbers) and moment < LATEST
            if not possible or not isinstance(store, str | None):
                raise ValueError(f"impossible numbers {numbers} or origin {store!r:.50}")
            origin = None if store is None else (store, version)
            return Contents(check_tag(content["tag"]), *counts, files, origin, moment)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptStoreError(
                f"{place} is no list of a published version: {error}. Nothing was written."
            ) from error


@dataclass(frozen=True)
class Source:
    """A published version, wherever it is.

    Attributes:
        address: for messages.
        contents: its files.
        chunks: yields a file in pieces, given its name.
    """

    address: str
    contents: Contents
    chunks: Callable[[str], Iterator[bytes]]


def _check_file(name: str, file: KnownFile) -> None:
    known = name in _FILES or _BELOW.fullmatch(name) is not None
    digest = type(file.sha256) is str and _DIGEST.fullmatch(file.sha256) is not None
    if not (known and digest and type(file.size) is int and file.size >= 0):
        raise ValueError(f"a version has no file {name!r:.200} with {file!r:.200}")


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


def is_steps(name: str) -> bool:
    """Return whether a file holds steps, or annotations of them, which a preview does without."""
    folder, _, rest = name.partition("/")
    return folder in ("steps", "annotations") and rest.endswith(".parquet")


def is_needed_for_episodes(name: str) -> bool:
    """Return whether a preview needs a file."""
    return not is_steps(name) and not name.startswith(("artifacts", README))


def digest_of(pieces: Iterable[bytes]) -> KnownFile:
    """Return the checksum and the size of a file that comes in pieces."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return KnownFile(digest.hexdigest(), size)


@contextlib.contextmanager
def working_folder(work: str) -> Iterator[LocalPlace]:
    """Yield a new folder for temporary files, deleted at the end.

    Raises:
        StoreAccessError: it cannot be made.
    """
    with temporary_folder(f"episodelake-{work}-") as name:
        yield LocalPlace(real_path(Path(name)))


def place_of(version: Place, name: str) -> Place:
    """Return the place of a file of a version."""
    for part in name.split("/"):
        version /= part
    return version
