"""The environment bundle of a run: what is kept beside its spec, and the files that it names.

The bundle is a JSON text in the row of the run. A file's content is an artifact: a file of the store that
is named by the SHA-256 of its content, so runs with the same file share it. Writers make bundles, readers
make the environment again with them, and a merge carries the artifacts along.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import CorruptStoreError, InvalidArgumentError
from .files import guard_access
from .layout import Layout

#: The longest file, and all files of one run together.
LARGEST_FILE = 64 << 20
LARGEST_SUM = 256 << 20
MOST_FILES = 1000

_LONGEST_NAME = 200
_HASH = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"(?! )[^/\\:*?\"<>|\x00-\x1f\x7f]+(?<![ .])")


@dataclass(frozen=True)
class KeptFile:
    """A file that an environment needs.

    Attributes:
        name: a relative path with slashes, under which it is unpacked.
        sha256: of its content, in hexadecimal; the artifact's name.
        size: bytes.
    """

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class EnvBundle:
    """What is kept of a run's environment beside its spec and the versions of packages.

    Attributes:
        made_by: the class of the innermost environment, as `module:Name`; for people.
        files: the files that it needs.
        problems: sentences on what could not be kept.
    """

    made_by: str
    files: tuple[KeptFile, ...] = ()
    problems: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The text of the column `env_bundle`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str, where: str) -> EnvBundle:
        """Read a bundle that any program may have written.

        Raises:
            CorruptStoreError: it is none, or a file's name or hash leads somewhere else; names `where`.
        """
        try:
            content = json.loads(text)
            files = tuple(_checked_file(entry) for entry in content["files"])
            made_by, problems = content["made_by"], tuple(content["problems"])
            if not all(type(each) is str for each in (made_by, *problems)):
                raise ValueError("a value is no text")
            check_names([file.name for file in files])
            if len(files) > MOST_FILES or sum(file.size for file in files) > LARGEST_SUM:
                raise ValueError("its files are too many or too large")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptStoreError(f"{where} has a damaged environment bundle: {error}.") from error
        return EnvBundle(made_by, files, problems)


def _checked_file(entry: dict) -> KeptFile:
    file = KeptFile(entry["name"], entry["sha256"], entry["size"])
    if type(file.sha256) is not str or not _HASH.fullmatch(file.sha256):
        raise ValueError(f"{str(file.sha256)[:80]!r} is no SHA-256")
    if type(file.size) is not int or not 0 <= file.size <= LARGEST_FILE:
        raise ValueError(f"a file of {str(file.size)[:80]} bytes")
    return file


def check_names(names: Iterable[object]) -> None:
    """Refuse names that lead out of the folder that files are unpacked to, or get in each other's way.

    Raises:
        InvalidArgumentError: which one, and what is expected.
    """
    seen: dict[str, str] = {}
    for name in names:
        parts = name.split("/") if isinstance(name, str) else []
        if (
            not isinstance(name, str)
            or not name.isprintable()
            or not 0 < len(name.encode()) <= _LONGEST_NAME
            or not all(_PART.fullmatch(part) for part in parts)
        ):
            raise InvalidArgumentError(
                f"{str(name)[:_LONGEST_NAME]!r} is no name for a file of an environment; expected a relative "
                "path with slashes, such as 'assets/torso.stl'."
            )
        folded = name.casefold()
        if folded in seen:
            raise InvalidArgumentError(f"The files {seen[folded]!r} and {name!r} have the same name.")
        seen[folded] = name
    for folded, name in seen.items():
        above = folded.rpartition("/")[0]
        while above:
            if above in seen:
                raise InvalidArgumentError(f"{seen[above]!r} is a file and the folder of {name!r}.")
            above = above.rpartition("/")[0]


def keep_artifact(layout: Layout, data: bytes) -> str:
    """Keep a content once, durably and whole or not at all, and return its SHA-256.

    Raises:
        StoreAccessError: the store cannot be written.
    """
    digest = hashlib.sha256(data).hexdigest()
    place = layout.artifacts / digest
    with guard_access("keep the file", place):
        layout.artifacts.make_folder()
        # One that is damaged is written anew.
        if not place.exists() or hashlib.sha256(place.read()).hexdigest() != digest:
            place.write(data)
    return digest


def read_artifact(layout: Layout, file: KeptFile) -> bytes:
    """The content of a kept file, checked.

    Raises:
        CorruptStoreError: it is missing, or is not what was kept; the message names it.
        StoreAccessError: it cannot be read.
    """
    place = layout.artifacts / file.sha256
    try:
        with guard_access("read the file", place):
            # Before it is read: what stands there may be of any size.
            size = place.size()
            data = place.read() if size == file.size else b""
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise CorruptStoreError(
                f"The artifact {place} is missing; it is the environment's file {file.name!r}. Restore it "
                "from a copy."
            ) from error
        raise
    if size != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
        raise CorruptStoreError(
            f"The artifact {place} is damaged: its content ({size} bytes; {file.size} were kept) has another "
            f"SHA-256 than its name. It is the environment's file {file.name!r}; restore it from a copy."
        )
    return data


def unpack(layout: Layout, files: Iterable[KeptFile], folder: Path) -> None:
    """Write the files below a new folder of ours, under their names.

    Raises:
        CorruptStoreError: see `read_artifact`.
        StoreAccessError: the folder cannot be written.
    """
    for file in files:
        data = read_artifact(layout, file)
        path = folder.joinpath(*file.name.split("/"))
        with guard_access("unpack the file", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as target:
                target.write(data)
