"""How a writer treats the disk: when rows reach the journal, and when episodes become visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..store.errors import InvalidArgumentError

Durability = Literal["flush", "fsync", "none"]


@dataclass(frozen=True)
class SessionOptions:
    """How a session treats the disk.

    Attributes:
        durability: "flush" (rows survive the process), "fsync" (rows survive the machine) or "none"
            (rows reach the journal when the row buffer is full, no sooner).
        flush_seconds: rows reach the journal after this time at the latest; not used with "none".
        seal_seconds: finished episodes become visible to readers after about this time at the latest.
        segment_bytes: finished episodes are sealed as soon as the journal holds about this much.
    """

    durability: Durability = "flush"
    flush_seconds: float = 1.0
    seal_seconds: float = 60.0
    segment_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.durability not in ("flush", "fsync", "none"):
            raise InvalidArgumentError(
                f"durability={self.durability!r} is unknown; expected 'flush', 'fsync' or 'none'."
            )
        for name in ("flush_seconds", "seal_seconds", "segment_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise InvalidArgumentError(f"{name}={value!r}: expected a positive number.")
