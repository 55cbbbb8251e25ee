"""Checks of a store's files, one function each: existence, readability, content.

Every check adds its faults to `Findings` and goes on. `readers/verification` calls them, and compares
episodes with their steps.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from .delta.log import TableFile
from .delta.version import TableVersion
from .dynamic.logical_types import field_kind
from .errors import CorruptStoreError, EpisodelakeError, MissingFileError, StoreAccessError
from .files import Place, is_folder, stat_or_none
from .files.locks import holder
from .journal.run_journal import DAMAGED_SUFFIX, journal_folders, lock_path, part_paths
from .layout import (
    ANNOTATIONS,
    ARTIFACT_NAMES,
    ARTIFACTS,
    CARD,
    ENVIRONMENTS,
    EPISODES,
    JOURNAL,
    MANIFEST,
    RUNS,
    TABLES,
    TAGS,
    Layout,
)
from .manifest import read_card, read_manifest
from .parquet.files import check_listed, open_parquet, read_footer, reading_error
from .schema import ENV_BUNDLE, LAST_OBSERVATION, StoreHandle, checked_schema
from .tables.annotation_files import ANNOTATION_KEY

_EXAMPLES = 3
LOG = "_delta_log"
LEFTOVER = re.compile(r"\..*\.tmp")
#: A process that still writes an unfinished file touches it more often.
_LEFTOVER_SECONDS = 3600.0


@dataclass(frozen=True)
class Fault:
    """A fault of a store.

    Attributes:
        kind: "manifest", "log" (a table's log cannot be read), "schema", "missing", "size",
            "unreadable", "rows" (a steps file's rows are not those of its episodes), "pointer", "episode",
            "runs", "return", "flags", "listing", "annotation", "tag", "artifact", "record" (of a saved
            environment or a named artifact), "journal" or "leftover".
        file: relative to the store.
        message: the expected and the found state.
        mended: whether a repair mended it.
    """

    kind: str
    file: str
    message: str
    mended: bool


@dataclass
class _Sum:
    count: int = 0
    examples: tuple[str, ...] = ()
    mended: bool = False


class Findings:
    """Faults as they are found; equal ones of one file become one.

    Attributes:
        files: how many files were read.
    """

    def __init__(self) -> None:
        self.files = 0
        self._found: dict[tuple[str, str, str, str | None], _Sum] = {}

    def add(
        self,
        kind: str,
        file: str,
        message: str,
        examples: Sequence[str] = (),
        count: int | None = None,
        mend: str | None = None,
    ) -> None:
        """Record a fault.

        Args:
            kind, file, message: see `Fault`; equal ones are counted together.
            examples: where it was found.
            count: in how many places; None for as many as there are examples.
            mend: the repair that would mend it.
        """
        total = self._found.setdefault((kind, file, message, mend), _Sum())
        total.count += len(examples) if count is None else count
        total.examples = (*total.examples, *examples)[:_EXAMPLES]

    def mended(self, mend: str, files: Collection[str]) -> None:
        """Record that a repair of some files succeeded."""
        for (_, file, _, own), total in self._found.items():
            total.mended |= own == mend and file in files

    def waiting(self, mend: str) -> set[str]:
        """Return the files that a repair would mend."""
        return {file for (_, file, _, own), total in self._found.items() if own == mend and not total.mended}

    def about(self, *files: str) -> bool:
        """Return whether one of these files has a fault."""
        return any(file in files for _, file, _, _ in self._found)

    def absorb(self, other: Findings) -> None:
        """Add the faults of other findings."""
        self.files += other.files
        for (kind, file, message, mend), total in other._found.items():
            self.add(kind, file, message, total.examples, total.count, mend)

    def faults(self) -> tuple[Fault, ...]:
        """Return all faults, by file."""
        faults = [
            Fault(kind, file, _text(message, total), total.mended)
            for (kind, file, message, _), total in self._found.items()
        ]
        return tuple(sorted(faults, key=lambda fault: (fault.file, fault.kind, fault.message)))


def _text(message: str, total: _Sum) -> str:
    if not total.examples:
        return message
    more = total.count - len(total.examples)
    return f"{message}: {'; '.join(total.examples)}{f'; and {more} more' if more > 0 else ''}."


@dataclass(frozen=True)
class Listing:
    """The content of a table's log at one version."""

    name: str
    place: Place
    schema: pa.Schema
    files: dict[str, TableFile]
    properties: dict[str, str]

    def file(self, name: str) -> str:
        """Return a file's name relative to the store."""
        return f"{self.name}/{name}"


def read_listing(layout: Layout, name: str, findings: Findings, version: int | None = None) -> Listing | None:
    """Read a table's log; None if it is damaged, which is a fault."""
    try:
        table = TableVersion(layout.table(name), version)
        files = {file.name: file for file in table.files()}
        return Listing(name, layout.table(name), table.schema, files, table.properties())
    except MemoryError:
        raise
    except (CorruptStoreError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        findings.add("log", f"{name}/{LOG}", str(error))
        return None


def check_manifest(handle: StoreHandle, findings: Findings) -> None:
    """Check that `store.json` names the columns of its spaces, and that `card.json` can be read."""
    findings.files += 1
    try:
        expected = read_manifest(handle.layout).content["columns"]
        columns = json.loads(handle.layout.manifest.read()).get("columns")
        if expected != columns:
            message = f"It names the columns {columns}; its spaces have {expected}."
            findings.add("manifest", MANIFEST, message)
    except EpisodelakeError as error:
        if isinstance(error, StoreAccessError):
            raise
        findings.add("manifest", MANIFEST, str(error))
    try:
        read_card(handle.layout)
    except CorruptStoreError as error:
        findings.add("manifest", CARD, str(error))


def check_schema(listing: Listing, standard: pa.Schema, findings: Findings) -> None:
    """Check the columns of a table as readers do, and that each is of the format or marked."""
    file = f"{listing.name}/{LOG}"
    try:
        checked_schema(listing.place, listing.schema, standard)
    except CorruptStoreError as error:
        findings.add("schema", file, str(error))
    optional = {RUNS: (ENV_BUNDLE,), EPISODES: (LAST_OBSERVATION,)}.get(listing.name, ())
    for column in listing.schema:
        known = column.name in standard.names or column in optional
        if not known and field_kind(column) is None and not (column.metadata or {}).get(ANNOTATION_KEY):
            findings.add("schema", file, f"The column {column.name!r} is neither of the format nor marked.")


def check_file(
    place: Place,
    file: str,
    listed: TableFile | None,
    findings: Findings,
    dictionaries: Sequence[str] = (),
    needed: str = "",
    mend: str | None = None,
) -> pq.ParquetFile | None:
    """Check that a file exists with the listed size and rows and an intact footer.

    Args:
        place, file: where it lies, and its name relative to the store.
        listed: its entry in the log; None if there is none.
        dictionaries: columns to read dictionary-encoded.
        needed: a sentence for the message that names the user of the file.
        mend: the repair that helps if it is missing.

    Returns:
        The open file; None if it is damaged.
    """
    try:
        size = place.size()
    except MissingFileError:
        findings.add("missing", file, f"The file is missing.{needed}", mend=mend)
        return None
    findings.files += 1
    if listed is not None and size != listed.size:
        message = f"It has {size} bytes; {listed.size} were committed. It is not the file that was committed."
        findings.add("size", file, message)
        return None
    try:
        footer = read_footer(place)
        paths = {footer.schema.column(index).path for index in range(footer.num_columns)}
        parquet = open_parquet(place, footer, [name for name in dictionaries if name in paths])
    except CorruptStoreError as error:
        findings.add("unreadable", file, f"{error}{needed}")
        return None
    if listed is not None and parquet.metadata.num_rows != listed.rows:
        findings.add("rows", file, f"It has {parquet.metadata.num_rows} rows; {listed.rows} were committed.")
    return parquet


def read_groups(
    parquet: pq.ParquetFile, place: Place, file: str, findings: Findings
) -> Iterator[pa.Table | None]:
    """Yield every row group, each page of all columns decoded; None for one that is damaged."""
    for index in range(parquet.metadata.num_row_groups):
        try:
            table = parquet.read_row_group(index)
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            problem = reading_error(place, error)
            if not isinstance(problem, CorruptStoreError):
                raise problem from error
            findings.add("unreadable", file, f"Its row groups cannot be read ({error})", [f"number {index}"])
            yield None
        else:
            yield table


def column_types(parquet: pq.ParquetFile) -> dict[str, pa.DataType]:
    """Return the types of a file's columns, whether or not they are read dictionary-encoded."""
    return {
        column.name: column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        for column in parquet.schema_arrow
    }


def check_columns(
    parquet: pq.ParquetFile, file: str, listing: Listing, standard: pa.Schema, findings: Findings
) -> bool:
    """Check that a file has the standard columns, and all its columns the types of its table."""
    has = column_types(parquet)
    usable = True
    for column in [*standard, *(c for c in listing.schema if c.name not in standard.names)]:
        if column.name in has and has[column.name] != column.type:
            usable &= column.name not in standard.names
            message = f"The column {column.name!r} has the type {has[column.name]}; expected {column.type}."
            findings.add("schema", file, message)
    missing = [name for name in standard.names if name not in has]
    if missing:
        findings.add("schema", file, f"It lacks the columns {missing}.")
        return False
    return usable


def check_as_readers(listing: Listing, name: str, findings: Findings) -> None:
    """Check a file as readers do, unless it or its table's log has a fault already."""
    file, listed = listing.file(name), listing.files.get(name)
    if listed is None or findings.about(file, f"{listing.name}/{LOG}"):
        return
    try:
        check_listed(listing.place / name, listed, listing.schema)
    except CorruptStoreError as error:
        findings.add("schema", file, str(error))


def check_whole(
    place: Place, file: str, listed: TableFile | None, findings: Findings, needed: str = ""
) -> pa.Table | None:
    """Return a small file as a table, every page read; None if it is damaged."""
    parquet = check_file(place, file, listed, findings, needed=needed)
    groups = [] if parquet is None else list(read_groups(parquet, place, file, findings))
    tables = [table for table in groups if table is not None]
    if parquet is None or len(tables) < len(groups):
        return None
    return pa.concat_tables(tables) if tables else parquet.schema_arrow.empty_table()


def read_runs(listing: Listing, findings: Findings) -> dict[str, pa.Table]:
    """Return the rows of `runs` by file; damaged files are reported and left out."""
    tables = {
        name: check_whole(listing.place / name, listing.file(name), listed, findings)
        for name, listed in listing.files.items()
    }
    return {name: rows for name, rows in tables.items() if rows is not None}


def check_runs(
    listing: Listing, tables: Mapping[str, pa.Table], standard: pa.Schema, findings: Findings
) -> set[str] | None:
    """Return the ids of all runs, one row each; None if a file cannot be read."""
    runs: set[str] = set()
    whole = len(tables) == len(listing.files)
    for name, table in tables.items():
        whole &= "run_id" in table.column_names
        missing = [column for column in standard.names if column not in table.column_names]
        if missing:
            findings.add("schema", listing.file(name), f"It lacks the columns {missing}.")
            continue
        ids = table.column("run_id").to_pylist()
        counts = Counter(ids)
        twice = sorted(str(run) for run in counts if run is None or run in runs or counts[run] > 1)
        if twice:
            findings.add("runs", listing.file(name), "There is more than one row of a run", twice)
        runs.update(run for run in ids if run is not None)
    return runs if whole else None


def check_journals(layout: Layout, findings: Findings) -> None:
    """Report journals of dead writers that wait for recovery, or were set aside as damaged.

    Those of hosts whose locks do not reach this one are no faults: their writers may live.
    """
    for directory in journal_folders(*layout.journal_places):
        file = f"{JOURNAL}/{directory.name}"
        if directory.name.endswith(DAMAGED_SUFFIX):
            message = (
                f"A damaged journal was set aside in {directory}; what could be read of it is in the store. "
                "Delete the folder when you no longer need it."
            )
            findings.add("journal", file, message)
            continue
        # Parts may be deleted while they are counted.
        lock = lock_path(directory)
        waits = not any(holder(lock)) and is_folder(directory)
        states = [stat_or_none(path) for path in part_paths(directory)] if waits else []
        if waits:
            size = sum(state.st_size for state in states if state is not None)
            message = f"Its writer is dead; {size} bytes of journal wait for recovery (episodelake recover)."
            findings.add("journal", file, message, mend="journal")


def check_leftovers(layout: Layout, findings: Findings) -> None:
    """Report unfinished files of processes that died."""
    latest = time.time() - _LEFTOVER_SECONDS
    folders = [
        "",
        TAGS,
        ARTIFACTS,
        ARTIFACT_NAMES,
        ENVIRONMENTS,
        *TABLES,
        *(f"{table}/{LOG}" for table in TABLES),
        ANNOTATIONS,
    ]
    for folder in folders:
        place = layout.root / folder if folder else layout.root
        for entry in place.entries(deep=folder == ANNOTATIONS):
            unfinished = LEFTOVER.fullmatch(entry.name.rpartition("/")[2])
            if unfinished and entry.modified < latest:
                file = f"{folder}/{entry.name}" if folder else entry.name
                findings.add("leftover", file, "It was never finished; its writer is gone.", mend="leftover")
