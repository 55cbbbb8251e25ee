"""Artifacts in the maintenance of a store: they are checked, and a merge carries them along.

An artifact is a file of an environment, named by the SHA-256 of its content; runs name those that they need
(see `store.bundle`). Vacuum leaves artifacts alone: a run's row stays, whatever becomes of its episodes.
"""

from __future__ import annotations

import hashlib
import re

import pyarrow as pa

from ..bundle import EnvBundle, keep_artifact, read_artifact
from ..errors import CorruptStoreError
from ..files import guard_access
from ..layout import ARTIFACTS, Layout
from ..places import Place
from ..schema import ENV_BUNDLE
from .checks import LEFTOVER, Findings, Listing, check_whole

_HASH = re.compile(r"[0-9a-f]{64}")
_CHUNK = 8 << 20


def check_artifacts(layout: Layout, findings: Findings) -> None:
    """Each artifact has the content whose SHA-256 is its name."""
    with guard_access("list", layout.artifacts):
        names = [entry.name for entry in layout.artifacts.entries()]
    for name in sorted(name for name in names if not LEFTOVER.fullmatch(name)):
        findings.files += 1
        found = _sha256(layout.artifacts / name)
        if not _HASH.fullmatch(name) or found != name:
            findings.add("artifact", f"{ARTIFACTS}/{name}", f"Its content has the SHA-256 {found}.")


def _sha256(place: Place) -> str:
    digest = hashlib.sha256()
    with guard_access("read", place):
        if place.local is None:
            digest.update(place.read())
            return digest.hexdigest()
        with open(place.local, "rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
    return digest.hexdigest()


def check_bundles(layout: Layout, listing: Listing, findings: Findings) -> None:
    """The artifacts that runs name are there; whether they are whole, `check_artifacts` says."""
    with guard_access("list", layout.artifacts):
        sizes = {entry.name: entry.size for entry in layout.artifacts.entries()}
    for name, listed in listing.files.items():
        file = listing.file(name)
        # What is wrong with the file itself is told elsewhere.
        table = check_whole(listing.place / name, file, listed, Findings())
        try:
            found = [] if table is None else _bundles(table)
        except CorruptStoreError as error:
            findings.add("schema", file, str(error))
            continue
        for run_id, text in found:
            try:
                bundle = EnvBundle.from_json(text, f"The run {run_id!r}")
            except CorruptStoreError as error:
                findings.add("runs", file, str(error))
                continue
            for kept in bundle.files:
                artifact = f"{ARTIFACTS}/{kept.sha256}"
                if kept.sha256 not in sizes:
                    message = "It is missing, and environments of runs need it"
                    findings.add("artifact", artifact, message, [str(run_id)])
                elif sizes[kept.sha256] != kept.size:
                    message = f"It has {sizes[kept.sha256]} bytes; a run says {kept.size}"
                    findings.add("artifact", artifact, message, [str(run_id)])


def carry_artifacts(source: Layout, target: Layout, rows: pa.Table) -> None:
    """Bring the artifacts that some runs name.

    Raises:
        CorruptStoreError: one is missing or damaged.
        StoreAccessError: one cannot be read or written.
    """
    for run_id, text in _bundles(rows):
        for file in EnvBundle.from_json(text, f"The run {run_id!r}").files:
            keep_artifact(target, read_artifact(source, file))


def _bundles(rows: pa.Table) -> list[tuple[str, str]]:
    """Run ids and bundles of the rows of `runs` that have one.

    Raises:
        CorruptStoreError: the column has another type.
    """
    if ENV_BUNDLE.name not in rows.column_names:
        return []
    if rows.schema.field(ENV_BUNDLE.name).type != ENV_BUNDLE.type:
        raise CorruptStoreError(f"The column {ENV_BUNDLE.name!r} of runs is no {ENV_BUNDLE.type}.")
    found = rows.select(["run_id", ENV_BUNDLE.name]).to_pylist()
    return [(row["run_id"], row[ENV_BUNDLE.name]) for row in found if row[ENV_BUNDLE.name] is not None]
