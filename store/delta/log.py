"""Files of a table's log: names, listing, actions, CRC-32 checksums; and the files that its actions list.

Delta logs have no checksums of their own, and a flipped byte in one may name another file, hide one, or
change the history. Every commit of ours ends with a CRC-32, the last entry of its commit info, which other
readers ignore; a checkpoint has one after its footer, which Parquet readers skip. Both include the file's
name, so a commit under another number does not pass either.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any
from urllib.parse import unquote

from ..errors import CorruptStoreError, MissingFileError
from ..files import Place, is_link, oversized_error
from ..layout import checksum

_PLAIN = re.compile(r"[^/\\:%\x00.][^/\\:%\x00]{0,254}")
_MOST_ROWS = 2**36
#: The tag of a file of episodes with their figures.
FIGURES = "episodelake.figures"
#: The tag of a file with the CRC-32 of its footer.
FOOTER = "episodelake.footer"


@dataclass(frozen=True)
class NewFile:
    """A written Parquet file that is to become part of a table.

    Attributes:
        name: file name, relative to the table.
        rows: number of rows.
        null_counts: by column; says at the same time which columns the file has.
        smallest, largest: statistics of a few columns.
        moment: its place in the order of files, as for `TableFile`; None for the end.
        size: its bytes, where it was put on an object store just now; None to look them up.
        figures: of its episodes, as text; None to list none.
        footer: the CRC-32 of its footer, as text; None to list none.
    """

    name: str
    rows: int
    null_counts: Mapping[str, int]
    smallest: Mapping[str, Any]
    largest: Mapping[str, Any]
    moment: int | None = None
    size: int | None = None
    figures: str | None = None
    footer: str | None = None

    def action(self, table: Place, moment: int) -> dict[str, Any]:
        """Return the Delta action that adds the file; `moment` is used if it has none of its own."""
        statistics = {
            "numRecords": self.rows,
            "minValues": dict(self.smallest),
            "maxValues": dict(self.largest),
            "nullCount": dict(self.null_counts),
        }
        tags = {FIGURES: self.figures, FOOTER: self.footer}
        tags = {name: text for name, text in tags.items() if text is not None}
        known = self.size if table.local is None else None
        # Looked up now: a file that is gone must not be listed.
        size = (table / self.name).size() if known is None else known
        return {
            "add": {
                "path": self.name,
                "partitionValues": {},
                "size": size,
                "modificationTime": moment if self.moment is None else self.moment,
                "dataChange": True,
                "stats": json.dumps(statistics),
                **({"tags": tags} if tags else {}),
            }
        }


@dataclass(frozen=True)
class TableFile:
    """A file that one version of a table consists of.

    Attributes:
        name: file name, relative to the table.
        size: bytes.
        moment: milliseconds since 1970; files of a version are ordered by it.
        stats: its statistics in the log, as JSON.
        figures: of the episodes in it, as `EpisodeFigures.text` returns them; None where the log has none.
        footer: the CRC-32 of its footer, as text; None where the log has none.
        listed: whether the log lists it; else `stats` has rows and columns only.
    """

    name: str
    size: int
    moment: int
    stats: str | None
    figures: str | None = None
    footer: str | None = None
    listed: bool = True

    @staticmethod
    def of(path: Any, size: Any, moment: Any, stats: Any, tags: Any) -> TableFile:
        """Return the file that an add action lists.

        Raises:
            ValueError: a value cannot be one of an add action.
        """
        if type(path) is not str or type(size) is not int or type(moment) is not int:
            raise ValueError(f"it adds the file {path!r} of {size!r} bytes at {moment!r}")
        if stats is not None and type(stats) is not str:
            raise ValueError(f"the file {path!r} has the statistics {stats!r}")
        # Checkpoints have pairs.
        known = dict(tags or ())
        figures, footer = (
            text if type(text) is str else None for text in (known.get(FIGURES), known.get(FOOTER))
        )
        return TableFile(unquote(path), size, moment, stats, figures, footer)

    @staticmethod
    def unlisted(name: str, rows: int, size: int, columns: list[str]) -> TableFile:
        """Return a file that the log does not list."""
        statistics = {"numRecords": rows, "nullCount": dict.fromkeys(columns, 0)}
        return TableFile(name, size, 0, json.dumps(statistics), listed=False)

    @cached_property
    def _known(self) -> tuple[int, frozenset[str], Mapping[str, Any], Mapping[str, Any]]:
        """Rows, columns, smallest and largest values; the counts of NULLs are not kept in memory."""
        statistics = self._statistics()
        rows = statistics.get("numRecords") or 0
        if type(rows) is not int:
            raise ValueError(f"the file {self.name!r} has {rows!r} rows")
        columns = _column_set(tuple(statistics.get("nullCount") or ()))
        smallest, largest = (dict(statistics.get(key) or {}) for key in ("minValues", "maxValues"))
        return rows, columns, smallest, largest

    def _statistics(self) -> dict[str, Any]:
        return dict(json.loads(self.stats or "{}"))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._known[0]

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that it has: those whose NULLs were counted."""
        return self._known[1]

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """Return the smallest and the largest value of a column; None if the log lacks them."""
        low, high = self._known[2].get(name), self._known[3].get(name)
        return None if low is None or high is None else (low, high)

    def nulls(self, name: str) -> int:
        """Return the number of NULLs in a column; that of all rows if the log lacks it."""
        count = (self._statistics().get("nullCount") or {}).get(name)
        return count if type(count) is int else self.rows

    def may_hold_run(self, run_id: str) -> bool:
        """Return whether a file of episodes can have some of a run: their ids begin with the run's."""
        low, high = self.bounds("episode_id") or ("", "\U0010ffff")
        return low <= f"{run_id}0" and high >= f"{run_id}/"

    def again(self) -> NewFile:
        """Return the same file to be listed once more, at its place."""
        return replace(self.as_new(self.name), moment=self.moment)

    def as_new(self, name: str) -> NewFile:
        """Return the same content to be listed under another name, at the end."""
        counts = self._statistics().get("nullCount") or {}
        _, _, smallest, largest = self._known
        tags = (self.figures, self.footer)
        return NewFile(name, self.rows, counts, smallest, largest, None, None, *tags)

    def check(self, table: Place) -> None:
        """Refuse a name that leads out of the table's folder, and impossible statistics.

        Raises:
            CorruptStoreError: the log is damaged.
        """
        try:
            rows = self.rows
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptStoreError(f"The log of {table} is damaged: {error}.") from error
        if not _PLAIN.fullmatch(self.name) or not 0 <= rows < _MOST_ROWS:
            raise CorruptStoreError(
                f"The log of {table} lists the file {self.name!r} with {rows} rows; expected the name of a "
                "file in that folder. The log is damaged."
            )


@lru_cache(4096)
def _column_set(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names as a set that files with the same columns share."""
    return frozenset(names)


#: A table with this property has a checksum in every commit and every checkpoint.
PROPERTY = "episodelake.sums"
#: The file of a log that says where its newest checkpoint is.
HINT = "_last_checkpoint"
#: A larger file is no part of a log; reading it would take all memory.
LARGEST = 1 << 30
#: The key of the checksum in a commit's information.
KEY = "episodelake.crc32"
_KEY_BYTES = f'"{KEY}"'.encode()
#: Under this key a commit on an object store repeats the actions of the commits before it, back to the last
#: one at which a checkpoint is due, so that readers ask for one commit.
_REPEATED = "episodelake.repeated"
#: Most commits, and about how many bytes of them.
MOST_REPEATED, _REPEATED_BYTES = 10, 1 << 18
_INFORMATION = b'{"commitInfo"'
_END = re.compile(rb'"episodelake\.crc32": "([0-9a-f]{8})"\}\}')
_END_BYTES = len('"episodelake.crc32": "01234567"}}')
_TAIL_BYTES = len('01234567"}}')
_LARGEST_HINT = 1 << 20
#: Without the guess of an encoding for each line.
_decoded = json.JSONDecoder().decode
_READERS = 8
_COMMIT = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\.parquet")


def commit_name(version: int) -> str:
    """Return the file of a commit in its log.

    >>> commit_name(3)
    '00000000000000000003.json'
    """
    return f"{version:020d}.json"


def commit_place(table: Place, version: int) -> Place:
    """Return the file of a commit in the log of the table in a folder."""
    return table / f"_delta_log/{commit_name(version)}"


def checkpoint_name(version: int) -> str:
    """Return the file of a checkpoint in its log."""
    return f"{version:020d}.checkpoint.parquet"


def commit_text(
    table: str, version: int, actions: Sequence[Mapping[str, Any]], information: Mapping[str, Any]
) -> bytes:
    """Return a commit with its checksum.

    Args:
        table: the name of the table's folder.
        version: the commit's number.
        actions: what it does.
        information: the entry of the history.
    """
    lines = [json.dumps(action) for action in actions]
    lines.append(json.dumps({"commitInfo": {**information, KEY: "0" * 8}}))
    body = "\n".join(lines).encode()[:-_TAIL_BYTES]
    return body + b'%08x"}}' % file_sum(table, commit_name(version), body)


def actions_text(data: bytes) -> str:
    """Return the lines of a commit without its entry of the history."""
    return "\n".join(line.decode() for line in data.splitlines() if not line.startswith(_INFORMATION))


def repeated_actions(version: int, earlier: Sequence[str], every: int) -> dict[str, Any]:
    """Return what a commit on an object store adds to its information: the commits before it.

    Args:
        version: the commit's number.
        earlier: the actions of the last commits before it, as `actions_text` returns them, oldest first.
        every: at multiples of it a checkpoint is due.
    """
    due = (version - 1) // every * every
    texts: list[str] = []
    # Version 0 belongs to those before the first checkpoint.
    for text in itertools.islice(reversed(earlier), version - due - (due > 0)):
        if sum(map(len, texts)) + len(text) > _REPEATED_BYTES:
            break
        texts.insert(0, text)
    return {_REPEATED: texts} if texts else {}


def actions_before(table: Place, version: int, data: bytes) -> list[str]:
    """Return the actions of commits before a commit that it repeats, oldest first; see `repeated_actions`.

    Raises:
        CorruptStoreError: it repeats none that can be.
    """
    if not has_checksum(data):
        return []
    with reading_commit(table, version):
        information = _decoded(data[data.rindex(_INFORMATION) :].decode())["commitInfo"]
        texts = information.get(_REPEATED) or []
        if len(texts) > version or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{_REPEATED} is {texts!r:.100}")
        return texts


def history_entry(information: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the entry of the history of a commit, given its information."""
    return {**{key: value for key, value in information.items() if key != _REPEATED}, "version": version}


def commit_information(operation: str, moment: int, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the history for a commit; `moment` is in milliseconds since 1970."""
    entries = {key: str(value) for key, value in details.items()}
    parameters = {"mode": "Append", "partitionBy": "[]"} if operation == "WRITE" else {}
    return {"timestamp": moment, "operation": operation, "operationParameters": parameters, **entries}


def removals(names: Sequence[str], moment: int) -> list[dict[str, Any]]:
    """Return the actions that remove files."""
    gone = {"deletionTimestamp": moment, "dataChange": True}
    return [{"remove": {"path": name, **gone}} for name in names]


def commit_fits(table: str, version: int, data: bytes) -> bool:
    """Return whether a commit has a checksum that matches."""
    end = _END.fullmatch(data[-_END_BYTES:])
    name = commit_name(version)
    return end is not None and int(end[1], 16) == file_sum(table, name, data[:-_TAIL_BYTES])


def has_checksum(data: bytes) -> bool:
    """Return whether a commit has a checksum, which `read_commit` then compared."""
    return _KEY_BYTES in data


def file_sum(table: str, name: str, data: bytes) -> int:
    """Return the CRC-32 of a file of a log, of its name too."""
    return checksum(f"{table}/{name}".encode(), data)


def checkpoints_of(names: Sequence[str]) -> list[int]:
    """Return the versions of the checkpoints among the files of a log, in order."""
    return sorted(int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name))


def commits_of(names: Sequence[str]) -> list[int]:
    """Return the versions of the commits among the files of a log, in order."""
    return sorted(int(name[:20]) for name in names if _COMMIT.fullmatch(name))


def first_version(table: Place) -> int:
    """Return the oldest version that a table's log still has; 0 as well if it is damaged."""
    names = (table / "_delta_log").names()
    return oldest_version(commits_of(names), checkpoints_of(names))


def oldest_version(commits: Sequence[int], checkpoints: Sequence[int]) -> int:
    """Return the oldest version of a log, given the versions of its commits and checkpoints, in order."""
    if commits[:1] == [0] or not checkpoints:
        return 0
    # A writer that slept may leave an old checkpoint, without the commits that it stood before.
    known = set(commits)
    return next((version for version in checkpoints if version in known), checkpoints[0])


def check_log(table: Place) -> list[str]:
    """Return the names of the files of a log, after a check of the folders and of the files' sizes.

    Raises:
        CorruptStoreError: there are no commits, a link is in the place of a folder, or a file is empty or
            too large to read.
    """
    log = table / "_delta_log"
    for folder in (table, log):
        if folder.local is not None and is_link(folder.local):
            raise CorruptStoreError(f"{folder} is a link; a store has folders of its own only.")
    # Listing objects tells their sizes; those of a folder's files are looked up one by one.
    sizes = {} if log.local is not None else {entry.name: entry.size for entry in log.entries()}
    names = sorted(sizes)
    if log.local is not None:
        with contextlib.suppress(MissingFileError):
            names = log.names()
    commits = set(filter(_COMMIT.fullmatch, names))
    if not commits:
        raise CorruptStoreError(
            f"The table {table} is missing: its log has no commits. If its disk is not mounted or it was "
            "moved, bring it back; else restore it from a copy of the store. Nothing was changed."
        )
    summed_up = max((name for name in names if ".checkpoint" in name), default="")[:20]
    for name in names:
        # Other readers read these files whole.
        if name >= summed_up and (name[:20].isdigit() or name == HINT):
            size = sizes[name] if name in sizes else (log / name).size()
            most = _LARGEST_HINT if name == HINT else LARGEST
            if size > most:
                raise oversized_error(log / name, size, most)
            if not size and name in commits:
                raise CorruptStoreError(f"The log of the table {table} is damaged: {name} is empty.")
    return names


def read_commit(table: Place, version: int, *, checksummed: bool = True) -> bytes:
    """Return the bytes of a commit; a checksum that it has must match.

    Args:
        table: the table's folder.
        version: the commit's number.
        checksummed: whether it must have a checksum.

    Raises:
        CorruptStoreError: it was changed, or has no checksum; the message names it.
        StoreAccessError: it cannot be read.
    """
    place = commit_place(table, version)
    return _checked(table, version, place, place.read(LARGEST), checksummed=checksummed)


def _checked(table: Place, version: int, place: Place, data: bytes, *, checksummed: bool) -> bytes:
    if (checksummed or has_checksum(data)) and not commit_fits(table.name, version, data):
        raise changed_error(place, data)
    return data


def read_commits(table: Place, versions: Sequence[int], *, checksummed: bool = False) -> Iterable[bytes]:
    """Return the bytes of commits, in order; those of object stores are read several at a time.

    Raises:
        CorruptStoreError, StoreAccessError: see `read_commit`.
    """
    read = partial(read_commit, table, checksummed=checksummed)
    if table.local is not None:
        return map(read, versions)
    with ThreadPoolExecutor(_READERS, "episodelake log") as pool:
        return list(pool.map(read, versions))


def find_commit(
    table: Place, version: int, *, checksummed: bool = False, known: bytes | None = None
) -> bytes | None:
    """Return the bytes of a commit; None if it is absent.

    Args:
        table, version, checksummed: as for `read_commit`.
        known: the bytes that it had; the same ones are not checked again.

    Raises:
        CorruptStoreError, StoreAccessError: see `read_commit`.
    """
    place = commit_place(table, version)
    try:
        data = place.read(LARGEST)
    except MissingFileError:
        return None
    return data if data == known else _checked(table, version, place, data, checksummed=checksummed)


@contextlib.contextmanager
def reading_commit(table: Place, version: int) -> Iterator[None]:
    """Turn errors of a commit whose actions are not what they should be into a `CorruptStoreError`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration) as error:
        raise CorruptStoreError(
            f"The commit {commit_place(table, version)} is damaged ({type(error).__name__}: {error}). "
            "Restore it from a copy; nothing was changed."
        ) from error


def commit_actions(table: Place, version: int, data: bytes) -> list[dict[str, Any]]:
    """Return the actions of a commit.

    Raises:
        CorruptStoreError: it is no list of JSON objects.
    """
    with reading_commit(table, version):
        return [dict(_decoded(line.decode())) for line in data.splitlines()]


def changed_error(place: Place, data: bytes = b"") -> CorruptStoreError:
    """Return the error for a file of a log whose checksum does not match.

    Args:
        data: the content of a commit; it names the program that made it.
    """
    with contextlib.suppress(ValueError, AttributeError, TypeError, RecursionError):
        entries = [json.loads(line).get("commitInfo") for line in data.splitlines()]
        made = next((dict(entry) for entry in entries if entry), None)
        if made is not None and KEY not in made:
            by, what = made.get("engineInfo", "another program"), made.get("operation")
            return CorruptStoreError(
                f"The commit {place} is not one of Episodelake: {by!s:.80} made it (operation {what!r:.80}). "
                "Other programs may read a store's tables, not change them: its rows have no episodes. To "
                "undo it, move this file and all later ones out of the folder; the files of earlier commits "
                "are there. Add episodes with `store.writer`, `import_dataset`, or from Ray with "
                "`write_steps`."
            )
    return CorruptStoreError(
        f"The file {place} is not as Episodelake wrote it: its checksum does not fit. It is damaged, or "
        "another program wrote it; others may read a store's tables, not change them. Restore it from a copy."
    )
