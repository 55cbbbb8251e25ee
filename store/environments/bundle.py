"""The environment bundle of a run: the data beside its spec, and the files that it names.

The bundle is a JSON text in the row of the run. A file's content is an artifact: a file of the store that
is named by the SHA-256 of its content, so runs with the same file share it. Writers make bundles, readers
make the environment again with them, and a merge carries the artifacts along.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import CorruptStoreError, InvalidArgumentError

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
    """The part of a run's environment that is kept beside its spec and the versions of packages.

    Attributes:
        made_by: the class of the innermost environment, as `module:Name`; for people.
        files: the files that it needs.
        problems: sentences on what could not be kept.
    """

    made_by: str
    files: tuple[KeptFile, ...] = ()
    problems: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the text of the column `env_bundle`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str, where: str) -> EnvBundle:
        """Read a bundle that any program may have written.

        Raises:
            CorruptStoreError: it is no bundle, or a file's name or hash is not valid; names `where`.
        """
        try:
            content = json.loads(text)
            files = tuple(checked_file(entry) for entry in content["files"])
            made_by, problems = content["made_by"], tuple(content["problems"])
            if not all(type(each) is str for each in (made_by, *problems)):
                raise ValueError("a value is no text")
            check_names([file.name for file in files])
            if len(files) > MOST_FILES:
                raise ValueError(f"it has {len(files)} files")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptStoreError(f"{where} has a damaged environment bundle: {error}.") from error
        return EnvBundle(made_by, files, problems)


def checked_file(entry: Mapping[str, Any]) -> KeptFile:
    """Read the description of a kept file; raises ValueError, KeyError or TypeError if it is not valid."""
    file = KeptFile(entry["name"], entry["sha256"], entry["size"])
    if type(file.sha256) is not str or not _HASH.fullmatch(file.sha256):
        raise ValueError(f"{str(file.sha256)[:80]!r} is no SHA-256")
    if type(file.size) is not int or not 0 <= file.size < 1 << 63:
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
