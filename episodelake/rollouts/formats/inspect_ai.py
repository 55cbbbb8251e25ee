"""Logs of Inspect: `.eval` archives and the older `.json` logs, both of log version 2.

Each sample of an epoch is a rollout; `inspect_messages.py` has what becomes of it. An archive is a zip file
with `header.json` (`_journal/start.json` until the evaluation has ended) and `samples/ID_epoch_N.json`, which
this module reads one by one. Inspect compresses members with zstd, which `zipfile` cannot read before Python
3.14. See `EvalLog` and `EvalSample` in https://github.com/UKGovernmentBEIS/inspect_ai, log/_log.py.
"""

from __future__ import annotations

import copy
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...errors import DatasetError
from ...plugin import Format, Match, check_bytes, reading
from ...plugin.files import is_folder
from ...writers.importing.boundary import Files, closed_on_error, inside
from ...writers.importing.json_values import first_bytes, first_keys, parsed
from .inspect_messages import LogFacts, sample_arguments
from .records import (
    Arguments,
    Record,
    RolloutDataset,
    bounded_text,
    files_of,
    list_at,
    object_of,
    text_or_none,
)

VERSION = 2
_PATTERNS = ("**/*.eval", "**/*.json")
_HEADERS = ("header.json", "_journal/start.json")
_SAMPLES = "samples/"
_MARKS = frozenset({"version", "eval"})
_ZIP = b"PK"
#: In an archive, the parts of a sample that Inspect has split.
_SPLIT = re.compile(r"(samples/.+_epoch_\d+)/.+\.json", re.DOTALL)
_ZSTD = 93
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, _ZSTD)


#: Key and place of a sample, and what reads it.
_Sample = tuple[str, str, Callable[[], Arguments]]


def _files(source: Any) -> list[Path]:
    """Return the logs of a source; a folder may have other JSON beside them."""
    named = isinstance(source, Files) or (isinstance(source, str | Path) and not is_folder(source))
    return [path for path in files_of(source, *_PATTERNS) if named or _is_log(path)]


def _is_log(path: Path) -> bool:
    return path.suffix == ".eval" or first_keys(path) >= _MARKS


def _is_archive(path: Path) -> bool:
    return first_bytes(path).startswith(_ZIP)


def _detect(source: Any) -> Match:
    files = _files(source)
    if not files:
        return Match("it has no .eval log of Inspect", 2, related=False)
    if _is_log(files[0]):
        return Match(f"{files[0].name} is a log of Inspect")
    return Match(f"{files[0].name} has no {' and '.join(sorted(_MARKS))}", 2, related=False)


class _Dataset(RolloutDataset):
    def __init__(self, source: Any) -> None:
        super().__init__(source, _files(source), ".eval log of Inspect")
        self._archive: _Archive | None = None

    def records(self) -> Iterator[Record]:
        for path in self.files:
            name = path.relative_to(self.base).as_posix()
            try:
                samples = self._of_archive(path) if _is_archive(path) else self._of_json(path)
                for key, place, read in samples:
                    yield Record(place, f"{name}:{key}", read)
            except DatasetError as error:
                yield Record.damaged(str(path), name, error)

    def close(self) -> None:
        """Close the archive."""
        if self._archive is not None:
            self._archive.close()

    def _of_archive(self, path: Path) -> Iterator[_Sample]:
        archive = self._opened(path)
        read = self._reader(archive.header(), path)
        for member in archive.samples():
            key, place = member.removeprefix(_SAMPLES).removesuffix(".json"), f"{path}, {member}"
            yield key, place, partial(read, partial(self._member, path, member), place)

    def _of_json(self, path: Path) -> Iterator[_Sample]:
        log = object_of(parsed(bounded_text(path), str(path)), str(path))
        read = self._reader(log, path)
        for number, sample in enumerate(list_at(log, "samples", str(path))):
            place = f"{path}, sample {number}"
            names = [sample.get("id"), sample.get("epoch")] if isinstance(sample, Mapping) else []
            key = "_epoch_".join(text for each in names if (text := text_or_none(each)))
            yield key or str(number), place, partial(read, partial(_given, sample), place)

    def _reader(self, header: Any, path: Path) -> Callable[[Callable[[], Any], str], Arguments]:
        """Return a function from a sample's content and place to its arguments; the first call counts."""
        facts = _facts(header, path)
        results = bool(header.get("results"))

        def read(load: Callable[[], Any], place: str) -> Arguments:
            nonlocal results
            self.losses.add("the results of a log, which follow from its scores", int(results))
            results = False
            return sample_arguments(load(), facts, place, self.losses)

        return read

    def _member(self, path: Path, member: str) -> Any:
        return self._opened(path).read(member)

    def _opened(self, path: Path) -> _Archive:
        """Return an archive; the one before it is closed."""
        if self._archive is None or self._archive.path != path:
            self.close()
            self._archive = None  # the next one may not open
            self._archive = _Archive(path)
        return self._archive


FORMAT = Format(
    "inspect",
    None,
    "an .eval log of Inspect (log version 2) or one in JSON, or a folder of them",
    _detect,
    lambda source, options: _Dataset(source),
    (),
)


def _given(content: Any) -> Any:
    return content


def _facts(header: Any, path: Path) -> LogFacts:
    """Return the facts of a log, given its header."""
    content = object_of(header, f"The header of {path}")
    version = content.get("version", VERSION)
    if version != VERSION:
        raise DatasetError(
            f"{path} has log version {version!r:.100}; known is {VERSION}. `inspect log convert` of Inspect "
            "writes older logs anew."
        )
    return LogFacts.of(content, path.stem, f"The header of {path}")


class _Archive:
    """An open `.eval` file.

    Raises:
        DatasetError: it is no whole zip file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            try:
                self._zip = zipfile.ZipFile(path)
            except zipfile.BadZipFile as error:
                if isinstance(error.__context__, OSError):
                    raise
                raise DatasetError(
                    f"{path} is no whole zip archive: {error}. It is damaged, or its writer or a copy was "
                    "interrupted."
                ) from error
        # A sample that was logged again is there twice: the last one counts.
        self._members = {each.filename: each for each in self._zip.infolist()}
        with closed_on_error(self._zip):
            for name in self._members:
                inside(path, name)

    def close(self) -> None:
        """Close the file."""
        self._zip.close()

    def header(self) -> Any:
        """Return the header, or what the log began with where the evaluation has not ended."""
        name = next((name for name in _HEADERS if name in self._members), None)
        if name is None:
            raise DatasetError(f"{self.path} has neither {' nor '.join(_HEADERS)}.")
        return self.read(name)

    def samples(self) -> Iterator[str]:
        """Yield the names of samples; of a sample in several members that of the first."""
        split: set[str] = set()
        for name in self._members:
            if name.startswith(_SAMPLES) and name.endswith(".json"):
                match = _SPLIT.fullmatch(name)
                if match is None or match[1] not in split:
                    yield name
                split.add(match[1] if match else name)

    def read(self, name: str) -> Any:
        """Return the content of a member.

        Raises:
            DatasetError: it is damaged, too large, or a part of a sample.
        """
        place = f"{self.path}, {name}"
        member = self._members[name]
        if _SPLIT.fullmatch(name):
            raise DatasetError(
                f"{place} is a part of a sample. This import reads samples of one member each, as Inspect "
                "writes them by default."
            )
        check_bytes(place, member.file_size)
        with reading(place):
            content = self._content(member)
        if len(content) != member.file_size or zlib.crc32(content) != member.CRC:
            raise DatasetError(f"{place} is damaged: its content differs from its size or checksum.")
        return parsed(content, place)

    def _content(self, member: zipfile.ZipInfo) -> bytes:
        """Return the bytes of a member, one more than it states at most."""
        if member.compress_type not in _METHODS:  # others are decompressed without a bound
            raise DatasetError(
                f"{self.path}, {member.filename} has the compression method {member.compress_type}; known "
                "are stored, deflate and zstd."
            )
        if member.compress_type != _ZSTD:
            with self._zip.open(member) as file:
                return file.read(member.file_size + 1)
        stored = copy.copy(member)
        stored.compress_type, stored.file_size = zipfile.ZIP_STORED, member.compress_size
        del stored.CRC  # of the content, not of the compressed bytes
        with (
            self._zip.open(stored) as file,
            pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd") as made,
        ):
            return made.read(member.file_size + 1)
