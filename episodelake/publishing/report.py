"""`PublishReport`: the result of a publication."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishReport:
    """The result of a publication, or of its dry run.

    Attributes:
        address: of the version; `el.pull` takes it.
        tag: its name.
        episodes, steps: how many episodes and transitions.
        files, size: of the version, and their bytes.
    """

    address: str
    tag: str
    episodes: int
    steps: int
    files: int
    size: int
