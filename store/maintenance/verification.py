"""Verification: everything in the newest version is read and checked against everything else.

`checks` looks at files, `episode_checks` at episodes and their steps; this module leads them through a store,
compares what the steps say with the episodes table, and mends what follows from what is whole.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ..common.engines import Engine
from ..delta.log import TableFile
from ..dynamic.columns import with_columns
from ..errors import ConcurrentCommitError, CorruptStoreError, StoreAccessError, VersionNotFoundError
from ..files import Place, guard_access
from ..journal.run_journal import journal_folders
from ..layout import ANNOTATIONS, EPISODES, RUNS, STEPS, TAGS
from ..schema import RUNS_SCHEMA, StoreHandle
from ..tables.annotation_files import (
    MARKER,
    PROPERTY,
    AnnotationFiles,
    check_marker,
    parse_annotations,
)
from ..tables.table_files import is_file_name
from .artifacts import check_artifacts, check_bundles, check_records
from .checks import (
    Fault,
    Findings,
    Listing,
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
from .episode_checks import Episodes
from .operation import Operation, Progress, is_maintenance_file, reconcile
from .recovery import recover_journals
from .segment_checks import EpisodeGroup, EpisodeGroups, Packed, SegmentChecks, beside, read_episode_groups
from .tags import read_tag, tag_files

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


def verify(
    store: StoreHandle,
    *,
    repair: bool = False,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read everything in the newest version and in tagged ones, and check it; see `Fault` for what.

    Args:
        repair: mend what follows from what is whole: seal dead writers' journals, make the list of `steps`
            agree with the episodes, compute returns, lengths, flags and end reasons anew from the steps,
            delete unfinished files. What cannot be mended stays as it is.
        engine: reads the segments; None for this process.
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
        inspection = _Inspection(store, findings, engine or Engine(), locked=operation is not None)
        inspection.run(progress)
        if operation is not None:
            _mend(operation, inspection)
        return inspection.report()


class _Inspection:
    """One pass through a store.

    Args:
        findings: where faults go.
        engine: reads the segments.
        locked: whether the caller keeps other maintenance out.

    Attributes:
        corrected: as in `Checked`, of all segments.
    """

    def __init__(self, store: StoreHandle, findings: Findings, engine: Engine, *, locked: bool) -> None:
        self.store = store
        self.findings = findings
        schema = store.schema
        self._standard = {EPISODES: schema.episodes, STEPS: schema.steps, RUNS: RUNS_SCHEMA}
        self.corrected: dict[str, pa.Table] = {}
        self._episodes = EpisodeGroups((), False, 0, 0)
        self._steps = self._blank(STEPS)
        self._annotations = AnnotationFiles(store.layout, {})
        self._engine = engine
        self._locked = locked
        self._read: set[str] = set()

    def _blank(self, name: str) -> Listing:
        """Return an empty listing, for a table whose log cannot be read."""
        return Listing(name, self.store.layout.table(name), self._standard[name], {}, {})

    def run(self, progress: Progress | None) -> None:
        """Check the whole store."""
        layout = self.store.layout
        check_manifest(self.store, self.findings)
        check_artifacts(layout, self.findings)
        check_records(layout, self.findings)
        check_leftovers(layout, self.findings)
        self._take()
        self._check_segments(progress or (lambda done, total: None))
        self._check_tags()

    def report(self) -> VerifyReport:
        """Return the report."""
        episodes = self._episodes
        return VerifyReport(episodes.episodes, episodes.steps, self.findings.files, self.findings.faults())

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
        groups = read_episode_groups(episodes, self.store.schema, known, recovering, findings)
        self._episodes = replace(groups, complete=groups.complete and read[0] is not None)
        agreed = read[1] is None or self._check_listing(findings)
        return agreed and known is not None and self._episodes.complete

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
        steps, pointed = self._steps, self._episodes.segments
        lost = sorted(pointed - steps.files.keys())
        stray = [name for name in steps.files if name not in pointed and is_maintenance_file(name)]
        # Those that are not there are reported as missing.
        with guard_access("look for the files of steps", steps.place):
            lost, stray = (
                [name for name in names if (steps.place / name).exists()] for names in (lost, stray)
            )
        for name in lost:
            message = "Episodes point at it, and the table steps does not list it."
            findings.add("listing", steps.file(name), message, mend="listing")
        for name in stray if self._episodes.complete else ():
            message = "The table steps lists it, and no episode points at it."
            findings.add("listing", steps.file(name), message, mend="listing")
        return not lost and not stray

    def _check_segments(self, progress: Progress) -> None:
        """Read every steps file that is listed or pointed at, and the annotations beside it."""
        checks = SegmentChecks(self.store, self._steps, self._annotations, self._episodes.complete)
        groups, pointed = self._episodes.groups, self._episodes.segments
        none = Packed.of(Episodes.of([], self.store.schema))
        strays = [EpisodeGroup(none, (name,)) for name in self._steps.files if name not in pointed]
        done, total = 0, len(pointed) + len(strays)
        for _, checked in self._engine.run(checks, [*groups, *strays]):
            self.findings.absorb(checked.findings)
            self._read |= checked.files
            self.corrected |= checked.corrected
            done += checked.segments
            progress(done, total)

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
            for _, place, file in beside(annotations, name, self.findings):
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


def _mend(operation: Operation, inspection: _Inspection) -> None:
    """Mend what follows from what is whole; what others changed meanwhile stays as it is."""
    findings, layout = inspection.findings, inspection.store.layout
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
        place = layout.root / file
        with guard_access("delete", place):
            place.remove()
        findings.mended("leftover", {file})
    _mend_episodes(operation, inspection)


def _mend_episodes(operation: Operation, inspection: _Inspection) -> None:
    """Write episodes files anew with what follows from the steps; every episode keeps its position."""
    findings, tables = inspection.findings, inspection.corrected
    listed = {f"{EPISODES}/{file.name}": file for file in operation.tables.episodes.files()}
    old = [listed[file] for file in sorted(tables.keys() & listed.keys())]

    def corrected(file: TableFile, rows: pa.Table) -> pa.Table:
        columns = tables[f"{EPISODES}/{file.name}"]
        changed = {}
        for name in columns.drop_columns(["whole"]).column_names:
            values = columns.column(name).combine_chunks()
            whole = pc.call_function("and", [columns.column("whole").combine_chunks(), values.is_valid()])
            changed[name] = pc.call_function("if_else", [whole, values, rows.column(name)])
        return with_columns(rows, changed)

    new = operation.rewritten(old, corrected)
    if old:
        with contextlib.suppress(ConcurrentCommitError):
            operation.commit(((), ()), (new, old))
            findings.mended("derived", {f"{EPISODES}/{file.name}" for file in old})
