"""The paths of a store below its root directory, and names of files.

All other modules take their paths from here, so the directory layout of format 1 is written once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import platformdirs

from .files import Place, guard_access, locate
from .files.local import LocalPlace

FORMAT_VERSION = 1

MANIFEST = "store.json"
CARD = "card.json"
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
TABLES = (RUNS, EPISODES, STEPS)
#: Digits of the number at the end of an id.
EPISODE_DIGITS = 6

_APPLICATION = "episodelake"
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

    @property
    def journal_places(self) -> tuple[Path, ...]:
        """All folders in which journals of the store may lie on this machine."""
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
        with guard_access("look for an unfinished operation", self.unfinished_note):
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
