"""First importable shape; the checks follow."""

from __future__ import annotations

from dataclasses import dataclass

from ..handle import StoreHandle
from .operation import Progress


@dataclass(frozen=True)
class Fault:
    """A fault."""

    kind: str
    file: str
    message: str
    mended: bool


@dataclass(frozen=True)
class VerifyReport:
    """What was found."""

    episodes: int
    steps: int
    files: int
    faults: tuple[Fault, ...]


def verify(store: StoreHandle, *, repair: bool = False, progress: Progress | None = None) -> VerifyReport:
    """Not there yet."""
    raise NotImplementedError
