"""The layout of format 1: the paths of a store below its root, names of files, and how files carry checksums.

All other modules take their paths from here. Each binary format has a mark of its own before its CRC-32. A
Parquet file has its checksum after the footer, within the length that the file gives for it, where readers
that do not know it pass over it.

The last member of a JSON file (`store.json`, `card.json`, tags, records, the markers of annotations) is
`crc32`, the CRC-32 of all bytes before its value. Files of earlier versions lack it and stay readable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from .errors import CorruptStoreError, MissingFileError, replaced_error
from .files import Place, locate
from .files.local import LocalPlace
from .files.locks import MAINTENANCE_LOCK

#: Of stores with encoded frames, and of all others. `docs/format.md` describes both.
VIDEO_FORMAT, PLAIN_FORMAT = 2, 1

MANIFEST = "store.json"
CARD = "card.json"
#: The mark of a copy that is not finished.
UNFINISHED = "store.unfinished"
RUNS = "runs"
EPISODES = "episodes"
STEPS = "steps"
JOURNAL = "journal"
UNFINISHED_NOTE = "maintenance.unfinished"
ANNOTATIONS = "annotations"
ARTIFACTS = "artifacts"
ARTIFACT_NAMES = "artifact_names"
ENVIRONMENTS = "environments"
TAGS = "tags"
#: What several machines write before one commit brings it in.
STAGING = ".writing"
TABLES = (RUNS, EPISODES, STEPS)
#: Digits of the number at the end of an id.
EPISODE_DIGITS = 6

_APPLICATION = "episodelake"
#: Files of records: the digest of a name, and the number of a version.
_RECORD = re.compile(r"[0-9a-f]{64}(-[1-9][0-9]{0,8})?\.json")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
#: Names the folder below which journals of remote stores lie.
SPOOL_VARIABLE = "EPISODELAKE_SPOOL"


@dataclass(frozen=True)
class Layout:
    """The places of the parts of one store.

    Attributes:
        root: the store's folder or URL.
        journals: the local folder with one folder of journal parts per run; for a remote store a spool
            folder of this machine.
        former_journals: where earlier versions of Episodelake put the journals of a remote store, if that is
            another folder; what lies there is recovered, and nothing new comes there.
        check_pages: whether every page of a file is checked before an engine gets the file.
        store_id: the identity of the store that was opened there; None before `store.json` was read.
    """

    #: The file that makes a folder a store, and the one in its place until a copy is finished.
    MANIFEST: ClassVar[str] = MANIFEST
    UNFINISHED: ClassVar[str] = UNFINISHED
    TABLES: ClassVar[tuple[str, ...]] = TABLES
    #: The folders beside the tables that a copy or merge fills.
    FOLDERS: ClassVar[tuple[str, ...]] = (ANNOTATIONS, ARTIFACTS, ARTIFACT_NAMES, ENVIRONMENTS)
    #: Those with records, a file for each version of a name, and what a record is of.
    RECORDS: ClassVar[Mapping[str, str]] = {
        ENVIRONMENTS: "a saved environment",
        ARTIFACT_NAMES: "an artifact",
    }

    root: Place
    journals: Path
    check_pages: bool = False
    store_id: str | None = None
    former_journals: Path | None = None

    @staticmethod
    def at(path: str | PathLike[str], storage_options: Mapping[str, str] | None = None) -> Layout:
        """Return the layout of the store at a path or URL.

        Raises:
            InvalidArgumentError: see `locate`.
        """
        root = locate(path, storage_options)
        if root.local is not None:
            return Layout(root, root.local / JOURNAL)
        chosen = os.environ.get(SPOOL_VARIABLE)
        if chosen is not None:
            return Layout(root, _spool(Path(chosen), str(root)))
        import platformdirs

        durable = platformdirs.user_state_path(_APPLICATION, appauthor=False)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", _APPLICATION)
        journals, former = (_spool(folder / "spool", str(root)) for folder in (durable, cache))
        return Layout(root, journals, former_journals=former)

    def of_store(self, store_id: str) -> Layout:
        """Return the same for a store whose identity is known: another one at that URL has other journals."""
        known = replace(self, store_id=store_id)
        if self.root.local is not None:
            return known
        former = self.former_journals
        return replace(
            known,
            journals=self.journals.parent / store_id / JOURNAL,
            former_journals=None if former is None else former.parent / store_id / JOURNAL,
        )

    def records(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of `RECORDS`, sorted; none where it is missing."""
        return [each for each in (self.root / folder).names() if _RECORD.fullmatch(each)]

    @property
    def maintenance_lock(self) -> Path:
        """The lock of operations that replace files of the store."""
        return self.journals / MAINTENANCE_LOCK

    @staticmethod
    def json_bytes(content: Mapping[str, Any]) -> bytes:
        """Return an object as the JSON files of a store have it, with a checksum at its end.

        Raises:
            TypeError, ValueError: the content is not plain JSON.
        """
        return checked_json(content)

    @staticmethod
    def read_json(place: Place) -> dict[str, Any]:
        """Read an object that `json_bytes` wrote.

        Raises:
            CorruptStoreError: the file is no JSON object, or its checksum does not match.
            StoreAccessError: it is missing or cannot be read.
        """
        return read_json(place)

    @staticmethod
    def parse_json(data: bytes, place: object) -> dict[str, Any]:
        """Return the object in the bytes of a file; see `read_json`."""
        return parse_json(data, place)

    @property
    def journal_places(self) -> tuple[Path, ...]:
        """All folders of this machine that may hold journals of the store."""
        return (self.journals,) if self.former_journals is None else (self.journals, self.former_journals)

    @property
    def unfinished_note(self) -> Place:
        """The file beside the journals while a maintenance operation is between its two commits."""
        return LocalPlace(self.journals / UNFINISHED_NOTE)

    def is_unfinished(self) -> bool:
        """Return whether a maintenance operation died between its commits, or is there now.

        Raises:
            StoreAccessError: the system cannot tell.
        """
        return self.unfinished_note.exists()

    @property
    def manifest(self) -> Place:
        """`store.json`, the identity of the store."""
        return self.root / MANIFEST

    @property
    def card(self) -> Place:
        """`card.json`, the dataset card."""
        return self.root / CARD

    @property
    def annotations(self) -> Place:
        """The folder with the files of columns that were added to steps later."""
        return self.root / ANNOTATIONS

    @property
    def tags(self) -> Place:
        """The folder with one file per tag."""
        return self.root / TAGS

    @property
    def artifacts(self) -> Place:
        """The folder with content-addressed files."""
        return self.root / ARTIFACTS

    def table(self, name: str) -> Place:
        """Return the directory of the Delta table `name` (one of `TABLES`)."""
        return self.root / name


def _spool(base: Path, url: str) -> Path:
    """Return the folder below a spool folder for the journals of a remote store."""
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(base, f"{url.rpartition('/')[2]}-{digest}", JOURNAL).absolute()


def segment_name(run_id: str, segment: int) -> str:
    """Return the file name that the steps and the episodes of one segment share."""
    return f"{run_id}-{segment:06d}.parquet"


def episode_id(run_id: str, number: int) -> str:
    """Return the id of episode `number` of a run; sorts by number within a run of up to a million
    episodes.
    """
    return f"{run_id}/{number:0{EPISODE_DIGITS}d}"


def time_ordered_suffix() -> str:
    """Return fifteen characters that grow with time and are unique, for names that no other process chooses.

    The time in milliseconds and 25 random bits in Crockford's base 32 (https://www.crockford.com/base32.html).
    """
    moment = time.time_ns() // 1_000_000
    time_digits = "".join(_ALPHABET[moment >> shift & 31] for shift in range(45, -1, -5))
    return time_digits + "".join(secrets.choice(_ALPHABET) for _ in range(5))


#: Behind the footer of a Parquet file of segments and tables.
FOOTER_MARK = b"ELF1"
#: Behind the footer of a checkpoint of a table's log.
CHECKPOINT_MARK = b"ELC1"
#: At the end of a file of the cache folder; earlier versions wrote the checkpoints' mark there.
CACHE_MARKS = (b"ELM1", b"ELC1")

_CHECK = struct.Struct("<4sI")
#: How a Parquet file ends: the length of its footer, and a magic number.
PARQUET_END = struct.Struct("<I4s")
#: The member that holds the checksum.
CHECKSUM = "crc32"
_LARGEST = 64 << 20
_KEY = b'"crc32": '
_END = re.compile(_KEY + rb'"([0-9a-f]{8})"\n\}')
_VALUE_BYTES = len('"01234567"\n}')


def checksum(*parts: bytes | memoryview) -> int:
    """Return the CRC-32, as in zlib, of bytes that follow each other."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def checked_end(end: bytes, mark: bytes, value: int) -> bytes:
    """Return the end of a Parquet file with a checksum before it.

    Args:
        end: the last bytes of the file, as Parquet has them.
        mark: says what the checksum is of.
        value: the checksum.
    """
    length, magic = PARQUET_END.unpack(end)
    return _CHECK.pack(mark, value) + PARQUET_END.pack(length + _CHECK.size, magic)


def checksum_of_end(data: bytes, mark: bytes) -> tuple[int, int] | None:
    """Find the checksum before the end of a Parquet file.

    Returns:
        Where it begins, and the checksum; None if there is none with this mark.
    """
    start = len(data) - PARQUET_END.size - _CHECK.size
    if start < 0:
        return None
    own_mark, value = _CHECK.unpack_from(data, start)
    return (start, value) if own_mark == mark else None


def checked_json(content: Mapping[str, Any]) -> bytes:
    """Return an object as JSON that ends with its checksum.

    Raises:
        TypeError, ValueError: the content is not plain JSON.
    """
    text = json.dumps({**content, CHECKSUM: "0" * 8}, indent=1, allow_nan=False).encode()
    before = text[:-_VALUE_BYTES]
    return before + b'"%08x"\n}' % checksum(before)


def read_json(place: Place, most: int = _LARGEST) -> dict[str, Any]:
    """Read an object, without its checksum; a file of more than `most` bytes is refused unread.

    Raises:
        CorruptStoreError: the file is no JSON object, or its checksum does not match; the message names it.
        StoreAccessError: it is missing or cannot be read.
    """
    data = place.read(most)
    return parse_json(data, place)


def parse_json(data: bytes, place: object) -> dict[str, Any]:
    """Return the object that the bytes of a file hold, without its checksum; see `read_json`."""
    try:
        content = json.loads(data, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(
            f"{place} is no valid JSON ({error}). Restore the file from a copy."
        ) from error
    if not isinstance(content, dict):
        raise CorruptStoreError(f"{place} holds {type(content).__name__}; expected a JSON object.")
    end = _END.fullmatch(data[-len(_KEY) - _VALUE_BYTES :])
    if end is None:
        return content
    if int(end[1], 16) != checksum(data[:-_VALUE_BYTES]):
        raise CorruptStoreError(
            f"{place} is damaged: its checksum does not match. Restore the file from a copy; if it was "
            f"edited by hand, remove its member {CHECKSUM!r}."
        )
    del content[CHECKSUM]
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice")
    return members


def check_identity(layout: Layout) -> None:
    """Make sure that a place still holds the store that a layout was made for.

    A store may be deleted, and another one created at its path or URL, while a writer or a reader of the old
    one lives. Commits and moves to a newer version are checked here first.

    Raises:
        StoreNotFoundError: it holds another store, or none.
        CorruptStoreError: `store.json` is damaged.
        StoreAccessError: it cannot be read.
    """
    if layout.store_id is None:
        return
    try:
        there = read_json(layout.manifest).get("store_id")
    except MissingFileError:
        there = None
    if there != layout.store_id:
        raise replaced_error(layout.root)
