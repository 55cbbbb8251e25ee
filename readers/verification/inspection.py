"""Verification: everything in the newest version is read and compared with everything else, and repaired.

`store/checks.py` checks files; `pages` reads them, and `relations` compares the tables.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...store.checks import (
    LOG,
    Fault,
    Findings,
    Listing,
    check_as_readers,
    check_columns,
    check_file,
    check_journals,
    check_leftovers,
    check_manifest,
    check_runs,
    check_schema,
    check_whole,
    read_groups,
    read_listing,
    read_runs,
)
from ...store.delta.log import TableFile
from ...store.errors import ConcurrentCommitError, CorruptStoreError, StoreAccessError, VersionNotFoundError
from ...store.files import Place
from ...store.journal.run_journal import journal_folders
from ...store.layout import ANNOTATIONS, EPISODES, RUNS, STEPS, TAGS
from ...store.recovery.recovery import recover_journals
from ...store.rewrite.artifacts import check_artifacts, check_bundles, check_records
from ...store.rewrite.operation import Operation, Progress, is_maintenance_file, reconcile
from ...store.schema import RUNS_SCHEMA, StoreHandle
from ...store.tables.annotation_files import (
    MARKER,
    PROPERTY,
    AnnotationFiles,
    StepAnnotation,
    check_marker,
    parse_annotations,
)
from ...store.tables.episode_figures import EpisodeFigures
from ...store.tables.table_files import is_file_name
from ...store.tags import read_tag, tag_files
from .pages import NAMES, Lanes, Pages
from .relations import Relations

__all__ = ["Fault", "VerifyReport", "verify"]

_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class VerifyReport:
    """The result of a verification.

    Attributes:
        episodes, steps: how many episodes and transitions the newest version has.
        files: how many files were read.
        faults: the faults, those that were mended included.
    """

    episodes: int
    steps: int
    files: int
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong any more."""
        return all(fault.mended for fault in self.faults)


def verify(store: StoreHandle, *, repair: bool = False, progress: Progress | None = None) -> VerifyReport:
    """Read everything in the newest version and in tagged ones, and check it; see `Fault` for what.

    Args:
        repair: seal dead writers' journals, make the list of `steps` agree with the episodes, delete
            unfinished files. Everything else stays as it is.
        progress: called with the segments read so far and all of them.

    Raises:
        StoreAccessError: a file may not be read or cannot be reached, or a repair cannot write.
    """
    findings = Findings()
    check_journals(store.layout, findings)
    with contextlib.ExitStack() as stack:
        operation = None
        if repair:
            _recover(store, findings)
            # Where the log of a table is damaged, the inspection reports it.
            with contextlib.suppress(CorruptStoreError):
                operation = stack.enter_context(Operation.begin(store, "repair"))
        inspection = _Inspection(store, findings, locked=operation is not None)
        report = inspection.run(progress)
        if operation is None:
            return report
        _repair(operation, findings)
        return VerifyReport(report.episodes, report.steps, report.files, findings.faults())


class _Inspection:
    """One pass through a store.

    Args:
        findings: where faults go.
        locked: whether the caller keeps other maintenance out.
    """

    _relations: Relations
    _lanes: Lanes

    def __init__(self, store: StoreHandle, findings: Findings, *, locked: bool) -> None:
        self.store = store
        self.findings = findings
        schema = store.schema
        self._standard = {EPISODES: schema.episodes, STEPS: schema.steps, RUNS: RUNS_SCHEMA}
        self._steps = self._blank(STEPS)
        self._annotations = AnnotationFiles(store.layout, {})
        #: How many transitions each segment has that episodes point at.
        self._pointed: dict[str, int] = {}
        self._complete = False
        self._locked = locked
        self._read: set[str] = set()
        #: What readers refuse of files, and wrong figures; reported where nothing else is wrong with them.
        self._refused: dict[str, Findings] = {}

    def _blank(self, name: str) -> Listing:
        """Return an empty listing, for a table whose log cannot be read."""
        return Listing(name, self.store.layout.table(name), self._standard[name], {}, {})

    def run(self, progress: Progress | None) -> VerifyReport:
        """Check every file of the store."""
        layout = self.store.layout
        check_manifest(self.store, self.findings)
        check_artifacts(layout, self.findings)
        check_records(layout, self.findings)
        check_leftovers(layout, self.findings)
        self._take()
        self._check_segments(progress or (lambda done, total: None))
        self._relations.close()
        self._check_tags()
        steps = sum(self._pointed.values())
        return VerifyReport(self._relations.count, steps, self.findings.files, self.findings.faults())

    def _take(self) -> None:
        """Read the logs and the episodes of the newest version.

        Between the two commits of a maintenance operation the tables disagree, and a vacuum may delete what
        was listed a moment ago. So faults are checked once more while no other operation runs.
        """
        attempts = _ATTEMPTS if self.store.layout.root.local is None else 2
        own = Findings()
        for attempt in range(attempts):
            own = Findings()
            with contextlib.ExitStack() as stack:
                if attempt and not self._locked:
                    with contextlib.suppress(StoreAccessError, CorruptStoreError):
                        stack.enter_context(Operation.begin(self.store, "verify"))
                if attempt > 1:
                    time.sleep(_PAUSE_SECONDS)
                if self._look(own):
                    break
        self.findings.absorb(own)

    def _look(self, findings: Findings) -> bool:
        """Read the newest version once; return False if it may have been a moment too early."""
        layout = self.store.layout
        # A recovery writes the row of its run last, and then removes the journal.
        recovering = {directory.name for directory in journal_folders(*layout.journal_places)}
        # Episodes before steps, as readers do it.
        self._refused = {}
        read = [read_listing(layout, name, findings) for name in (EPISODES, STEPS, RUNS)]
        for listing in read:
            if listing is not None:
                check_schema(listing, self._standard[listing.name], findings)
        episodes, self._steps = read[0] or self._blank(EPISODES), read[1] or self._blank(STEPS)
        known = None
        if read[2] is not None:
            runs = read_runs(read[2], findings)
            known = check_runs(read[2], runs, RUNS_SCHEMA, findings)
            check_bundles(layout, read[2], runs, findings)
        self._read |= {episodes.file(name) for name in episodes.files}
        self._annotations = self._read_annotations(episodes, findings)
        self._relations = Relations(self.store.schema, None if known is None else known | recovering)
        read_files = [self._read_episodes(episodes, name, findings) for name in episodes.files]
        self._complete = read[0] is not None and all(read_files)
        self._lanes = self._relations.lanes()
        self._pointed = self._lanes.steps()
        agreed = read[1] is None or self._check_listing(findings)
        return agreed and known is not None and self._complete

    def _read_episodes(self, listing: Listing, name: str, findings: Findings) -> bool:
        """Read every page of a file of the episodes table; return whether it can be used."""
        place, file = listing.place / name, listing.file(name)
        parquet = check_file(place, file, listing.files[name], findings)
        usable = parquet is not None and check_columns(
            parquet, file, listing, self.store.schema.episodes, findings
        )
        groups = list(read_groups(parquet, place, file, findings)) if parquet is not None else []
        tables = [group for group in groups if group is not None]
        if not usable or len(tables) < len(groups):
            return False
        check_as_readers(listing, name, findings)
        self._check_figures(listing.files[name], file, tables)
        self._relations.add(file, tables)
        return True

    def _check_figures(self, listed: TableFile, file: str, tables: Sequence[pa.Table]) -> None:
        """Compare the figures that the log has of a file of episodes with its rows."""
        if listed.figures is None or not tables:
            return
        own = None
        with contextlib.suppress(CorruptStoreError):
            own = EpisodeFigures.of(pa.concat_tables(tables), self.store.schema)
        if own is None or own != EpisodeFigures.parsed(listed.figures, listed.rows):
            figures = "lengths, returns, end reasons, runs, agents"
            message = f"The log has other figures ({figures}) than its episodes."
            self._refused.setdefault(file, Findings()).add("listing", file, message)

    def _read_annotations(self, episodes: Listing, findings: Findings) -> AnnotationFiles:
        layout = self.store.layout
        try:
            annotations = parse_annotations(episodes.properties.get(PROPERTY), layout.root)
        except CorruptStoreError as error:
            findings.add("annotation", f"{EPISODES}/_delta_log", str(error))
            annotations = {}
        files = AnnotationFiles(layout, annotations)
        missing = files.missing_folders()
        for annotation in annotations.values():
            for folder in (name for name in annotation.ids if name not in missing):
                try:
                    check_marker(layout, annotation, folder)
                except CorruptStoreError as error:
                    findings.add("annotation", f"{ANNOTATIONS}/{folder}/{MARKER}", str(error))
        return files

    def _check_listing(self, findings: Findings) -> bool:
        """Return whether `steps` lists the segments of the episodes, and no leftover of maintenance."""
        steps, pointed = self._steps, self._pointed
        lost = sorted(pointed.keys() - steps.files.keys())
        stray = [name for name in steps.files if name not in pointed and is_maintenance_file(name)]
        # Those that are not there are reported as missing.
        lost, stray = ([name for name in names if (steps.place / name).exists()] for names in (lost, stray))
        for name in lost:
            message = "Episodes point at it, and the table steps does not list it."
            findings.add("listing", steps.file(name), message, mend="listing")
        for name in stray if self._complete else ():
            message = "The table steps lists it, and no episode points at it."
            findings.add("listing", steps.file(name), message, mend="listing")
        return not lost and not stray

    def _check_segments(self, progress: Progress) -> None:
        """Read every steps file that is listed or pointed at, and the annotations beside it."""
        names = [*self._pointed, *(name for name in self._steps.files if name not in self._pointed)]
        pages = Pages(self.store.schema, self._lanes, self.findings)
        sizes: dict[str, int | None] = {}
        for done, name in enumerate(names, 1):
            self._check_segment(name, pages, sizes)
            progress(done, len(names))
        self._relations.report(self._lanes, sizes, self.findings)
        for file, own in self._refused.items():
            if not self.findings.about(file, f"{file.partition('/')[0]}/{LOG}"):
                self.findings.absorb(own)

    def _check_segment(self, name: str, pages: Pages, sizes: dict[str, int | None]) -> None:
        """Read a steps file and the annotations beside it; note its size and what readers refuse of it."""
        steps, findings, own = self._steps, self.findings, Findings()
        place, file, pointed = steps.place / name, steps.file(name), name in self._pointed
        self._read.add(file)
        mend = "unlist" if self._complete and not pointed else None
        parquet = check_file(place, file, steps.files.get(name), own, NAMES, mend=mend)
        if parquet is None and self._is_replaced(name):
            return
        findings.absorb(own)
        within = self._lanes.of(name)
        rows, sizes[name] = None if parquet is None else parquet.metadata.num_rows, None
        if parquet is not None:
            usable = check_columns(parquet, file, steps, self.store.schema.steps, findings)
            sizes[name] = rows if usable else None
            pages.read_steps(parquet, place, file, within if usable else None)
            check_as_readers(steps, name, self._refused.setdefault(file, Findings()))
        for annotation, beside, file in self._beside(self._annotations, name) if pointed else ():
            self._read.add(file)
            parquet = check_file(beside, file, None, findings, NAMES)
            if parquet is not None:
                pages.read_annotation(parquet, beside, file, annotation, within, rows)

    def _is_replaced(self, name: str) -> bool:
        """Return whether a steps file was listed, and is no longer: others replaced it meanwhile."""
        newest = read_listing(self.store.layout, STEPS, Findings())
        return newest is not None and name in self._steps.files and name not in newest.files

    def _beside(self, files: AnnotationFiles, segment: str) -> Iterator[tuple[StepAnnotation, Place, str]]:
        """Yield the annotations of a segment with their files; a missing folder is a fault."""
        for name, annotation in files.annotations.items():
            try:
                place = files.find(name, segment)
            except CorruptStoreError as error:
                self.findings.add("annotation", f"{ANNOTATIONS}/{', '.join(annotation.ids)}", str(error))
                continue
            if place is not None:
                yield annotation, place, f"{ANNOTATIONS}/{place.parent.name}/{place.name}"

    def _check_tags(self) -> None:
        """Check that the version of each tag opens and that all its files can be read."""
        for name in tag_files(self.store.layout):
            self.findings.files += 1
            try:
                version = read_tag(self.store.layout, name)
                listing = read_listing(self.store.layout, EPISODES, Findings(), version)
                if listing is None:
                    raise CorruptStoreError("The log of the table episodes cannot be read.")
            except (CorruptStoreError, VersionNotFoundError) as error:
                self.findings.add("tag", f"{TAGS}/{name}", str(error))
                continue
            self._read_version(listing, f" The tag {name.removesuffix('.json')!r} needs it.")

    def _read_version(self, episodes: Listing, needed: str) -> None:
        """Read the files of an older version, as far as the newest does not have them."""
        segments: set[str] = set()
        for name, listed in episodes.files.items():
            file = episodes.file(name)
            if file not in self._read:
                self._read.add(file)
                table = check_whole(episodes.place / name, file, listed, self.findings, needed)
                if table is not None and "segment" in table.column_names:
                    segments |= set(table.column("segment").unique().to_pylist())
        annotations = self._read_annotations(episodes, self.findings)
        for name in sorted(filter(is_file_name, segments)):
            listed = self._steps.files.get(name)
            self._read_file(self._steps.place / name, self._steps.file(name), listed, needed)
            for _, place, file in self._beside(annotations, name):
                self._read_file(place, file, None, needed)

    def _read_file(self, place: Place, file: str, listed: TableFile | None, needed: str) -> None:
        if file not in self._read:
            self._read.add(file)
            parquet = check_file(place, file, listed, self.findings, needed=needed)
            if parquet is not None:
                for _ in read_groups(parquet, place, file, self.findings):
                    pass


def _recover(store: StoreHandle, findings: Findings) -> None:
    """Seal the journals of dead writers."""
    waiting = findings.waiting("journal")
    if not waiting:
        return
    # What cannot be sealed stays reported.
    with contextlib.suppress(CorruptStoreError, ConcurrentCommitError):
        recover_journals(store)
    after = Findings()
    check_journals(store.layout, after)
    findings.absorb(after)
    findings.mended("journal", waiting - after.waiting("journal"))


def _repair(operation: Operation, findings: Findings) -> None:
    """Mend the list of `steps`, and delete unfinished files."""
    if findings.waiting("listing"):
        with contextlib.suppress(CorruptStoreError, ConcurrentCommitError):
            findings.mended("listing", {f"{STEPS}/{name}" for name in reconcile(operation)})
    gone = findings.waiting("unlist")
    if gone:
        with contextlib.suppress(ConcurrentCommitError):
            listed = [file.name for file in operation.tables.steps.files() if f"{STEPS}/{file.name}" in gone]
            details = {"episodelake.operation": "list mended"}
            operation.tables.steps.replace([], listed, f"{operation.id}.unlist", details)
            findings.mended("unlist", gone)
    for file in findings.waiting("leftover"):
        place = operation.store.layout.root / file
        place.remove()
        findings.mended("leftover", {file})
