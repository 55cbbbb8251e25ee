"""Artifacts, saved environments and named artifacts in the maintenance of a store.

An artifact is a content named by its SHA-256; runs, saved environments and names refer to it (see
`store.environments`). Verification checks them, a merge copies them, and vacuum deletes those that nothing
refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from ..checks import LEFTOVER, Findings, Listing
from ..environments.artifacts import EnvBundle, KeptFile, artifact_chunks, is_hash, keep_artifact, measure
from ..environments.records import KINDS, NamedArtifact, Records, SavedEnvironment
from ..errors import CorruptStoreError
from ..files import Entry
from ..layout import ARTIFACTS, Layout
from ..schema import ENV_BUNDLE


def check_artifacts(layout: Layout, findings: Findings) -> None:
    """Check that each artifact has the content whose SHA-256 is its name."""
    names = [entry.name for entry in layout.artifacts.entries()]
    for name in sorted(name for name in names if not LEFTOVER.fullmatch(name)):
        findings.files += 1
        place = layout.artifacts / name
        try:
            digest, _ = measure(place.chunks())
        except CorruptStoreError as error:
            findings.add("artifact", f"{ARTIFACTS}/{name}", str(error))
            continue
        if not is_hash(name) or digest != name:
            findings.add("artifact", f"{ARTIFACTS}/{name}", f"Its content has the SHA-256 {digest}.")


def check_bundles(
    layout: Layout, listing: Listing, tables: Mapping[str, pa.Table], findings: Findings
) -> None:
    """Check that the artifacts of runs exist; `check_artifacts` checks their content."""
    sizes = {entry.name: entry.size for entry in layout.artifacts.entries()}
    for name, table in tables.items():
        file = listing.file(name)
        try:
            bundles = _bundles(table)
        except CorruptStoreError as error:
            findings.add("schema", file, str(error))
            continue
        for run_id, text in bundles:
            try:
                bundle = EnvBundle.from_json(text, f"The run {run_id!r}")
            except CorruptStoreError as error:
                findings.add("runs", file, str(error))
                continue
            _check_files(bundle.files, sizes, "environments of runs need it", str(run_id), findings)


def check_records(layout: Layout, findings: Findings) -> None:
    """Check saved environments and named artifacts, and that the artifacts exist that they refer to."""
    sizes = {entry.name: entry.size for entry in layout.artifacts.entries()}
    for kind in KINDS:
        records = Records(layout, kind)
        for name in records.file_names():
            findings.files += 1
            file = f"{kind.folder}/{name}"
            try:
                needed = records.read(name).files
            except CorruptStoreError as error:
                findings.add("record", file, str(error))
                continue
            _check_files(needed, sizes, f"{kind.folder} need it", name, findings)


def _check_files(
    files: Sequence[KeptFile], sizes: Mapping[str, int], needed: str, by: str, findings: Findings
) -> None:
    for kept in files:
        artifact = f"{ARTIFACTS}/{kept.sha256}"
        if kept.sha256 not in sizes:
            findings.add("artifact", artifact, f"It is missing, and {needed}", [by])
        elif sizes[kept.sha256] != kept.size:
            message = f"It has {sizes[kept.sha256]} bytes; expected {kept.size}, since {needed}"
            findings.add("artifact", artifact, message, [by])


def orphans(layout: Layout, runs: Iterable[pa.Table], alive: set[str], before: float) -> list[Entry]:
    """Return the artifacts that nothing refers to and that were last kept before a moment.

    Where references may be unknown, all artifacts stay: while a run is not in the table of runs yet, and
    where one cannot be read.

    Args:
        layout: of the store.
        runs: rows of the newest version of `runs`, which has those of all versions.
        alive: ids of runs that have journals.
        before: seconds since 1970.
    """
    contents = [entry for entry in layout.artifacts.entries() if is_hash(entry.name)]
    needed: set[str] = set()
    try:
        for rows in runs:
            alive = alive - set(rows.column("run_id").to_pylist())
            for run_id, text in _bundles(rows):
                needed |= {file.sha256 for file in EnvBundle.from_json(text, f"The run {run_id!r}").files}
        for kind in KINDS:
            needed |= {file.sha256 for record in Records(layout, kind).all() for file in record.files}
    except CorruptStoreError:  # `verify` reports it
        return []
    return [] if alive else [each for each in contents if each.name not in needed and each.modified < before]


def carry_records_content(source: Layout, target: Layout) -> None:
    """Copy the contents of saved environments and named artifacts that are not in the target.

    Raises:
        CorruptStoreError: one is missing or damaged.
        StoreAccessError: one cannot be read or written.
    """
    for record in _missing_records(source, target):
        _carry(source, target, record.files)


def carry_records(source: Layout, target: Layout) -> None:
    """Copy saved environments and named artifacts, whose contents are there, unless they are there.

    Raises:
        CorruptStoreError: one is damaged.
        StoreAccessError: one cannot be read or written.
    """
    for record in _missing_records(source, target):
        Records(target, type(record)).write(record, exclusive=True)


def _missing_records(source: Layout, target: Layout) -> Iterator[SavedEnvironment | NamedArtifact]:
    for kind in KINDS:
        records = Records(source, kind)
        for name in sorted(set(records.file_names()) - set(Records(target, kind).file_names())):
            yield records.read(name)


def carry_artifacts(source: Layout, target: Layout, rows: pa.Table) -> None:
    """Copy the artifacts that some runs name.

    Raises:
        CorruptStoreError: one is missing or damaged.
        StoreAccessError: one cannot be read or written.
    """
    for run_id, text in _bundles(rows):
        _carry(source, target, EnvBundle.from_json(text, f"The run {run_id!r}").files)


def _carry(source: Layout, target: Layout, files: Iterable[KeptFile]) -> None:
    for file in files:
        keep_artifact(target, partial(artifact_chunks, source, file))


def _bundles(rows: pa.Table) -> list[tuple[str, str]]:
    """Return run ids and bundles of the rows of `runs` that have a bundle.

    Raises:
        CorruptStoreError: the column has another type.
    """
    if ENV_BUNDLE.name not in rows.column_names:
        return []
    if rows.schema.field(ENV_BUNDLE.name).type != ENV_BUNDLE.type:
        raise CorruptStoreError(f"The column {ENV_BUNDLE.name!r} of runs is no {ENV_BUNDLE.type}.")
    pairs = rows.select(["run_id", ENV_BUNDLE.name]).to_pylist()
    return [(row["run_id"], row[ENV_BUNDLE.name]) for row in pairs if row[ENV_BUNDLE.name] is not None]
