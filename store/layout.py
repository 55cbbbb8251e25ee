"""Where everything of a store lies below its root directory.

Every other module asks here for a path, so the directory layout of format 1 is written once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from .places import Place, locate

FORMAT_VERSION = 1

MANIFEST = "store.json"
CARD = "card.json"
RUNS = "runs"
EPISODES = "episodes"
STEPS = "steps"
JOURNAL = "journal"
ANNOTATIONS = "annotations"
ARTIFACTS = "artifacts"
TAGS = "tags"
TABLES = (RUNS, EPISODES, STEPS)

#: Names the folder below which journals of remote stores lie.
SPOOL_VARIABLE = "EPISODELAKE_SPOOL"


@dataclass(frozen=True)
class Layout:
    """Where the parts of one store lie.

    Attributes:
        root: the store's folder or URL.
        journals: the local folder with one folder of journal parts per run; for a remote store a spool
            folder of this machine.
        check_pages: whether every page of a file is checked before an engine gets the file.
    """

    root: Place
    journals: Path
    check_pages: bool = False

    @staticmethod
    def at(path: str | PathLike[str], storage_options: Mapping[str, str] | None = None) -> Layout:
        """The layout of the store at a path or URL.

        Raises:
            InvalidArgumentError: see `locate`.
        """
        root = locate(path, storage_options)
        return Layout(root, _spool(str(root)) if root.local is None else root.local / JOURNAL)

    def of_store(self, store_id: str) -> Layout:
        """The same for a store whose identity is known: another one at that URL has other journals."""
        if self.root.local is not None:
            return self
        return replace(self, journals=self.journals.parent / store_id / JOURNAL)

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
        """The directory of the Delta table `name` (one of `TABLES`)."""
        return self.root / name


def _spool(url: str) -> Path:
    """The folder of this machine for the journals of a remote store."""
    base = os.environ.get(SPOOL_VARIABLE)
    if base is None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        base = str(Path(cache, "episodelake", "spool"))
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(base, f"{url.rpartition('/')[2]}-{digest}", JOURNAL).absolute()


def segment_name(run_id: str, segment: int) -> str:
    """The file name that the steps and the episodes of one segment share."""
    return f"{run_id}-{segment:06d}.parquet"


def episode_id(run_id: str, number: int) -> str:
    """The id of episode `number` of a run; sorts by number within a run of up to a million episodes."""
    return f"{run_id}/{number:06d}"
