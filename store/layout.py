"""Where everything of a store lies below its root directory.

Every other module asks here for a path, so the directory layout of format 1 is written once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from .errors import InvalidArgumentError

FORMAT_VERSION = 1

MANIFEST = "store.json"
CARD = "card.json"
RUNS = "runs"
EPISODES = "episodes"
STEPS = "steps"
JOURNAL = "journal"
TABLES = (RUNS, EPISODES, STEPS)


_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


@dataclass(frozen=True)
class Layout:
    """The paths of one store."""

    root: Path

    @staticmethod
    def at(path: str | PathLike[str]) -> Layout:
        """The layout of the store at a path, which is made absolute.

        Raises:
            InvalidArgumentError: the path holds a percent escape.
        """
        root = Path(path).absolute()
        if _ESCAPE.search(str(root)):
            raise InvalidArgumentError(
                f"The path {root} holds a percent sign with two hexadecimal digits, which the table library "
                "takes for an escaped character. Choose or rename the folder so that it has none."
            )
        return Layout(root)

    @property
    def manifest(self) -> Path:
        """`store.json`, the identity of the store."""
        return self.root / MANIFEST

    @property
    def card(self) -> Path:
        """`card.json`, the dataset card."""
        return self.root / CARD

    @property
    def journals(self) -> Path:
        """The directory that holds one directory of journal parts per run."""
        return self.root / JOURNAL

    def table(self, name: str) -> Path:
        """The directory of the Delta table `name` (one of `TABLES`)."""
        return self.root / name


def segment_name(run_id: str, segment: int) -> str:
    """The file name that the steps and the episodes of one segment share."""
    return f"{run_id}-{segment:06d}.parquet"


def episode_id(run_id: str, number: int) -> str:
    """The id of episode `number` of a run; sorts by number within a run of up to a million episodes."""
    return f"{run_id}/{number:06d}"
