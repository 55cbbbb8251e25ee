"""Options of a run: when rows reach the journal, when episodes become visible, which values are cast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from ..store.errors import InvalidArgumentError
from ..store.spaces.coerce import Cast

Durability = Literal["flush", "fsync", "none"]


class SessionKeywords(TypedDict, total=False):
    """The attributes of `SessionOptions` as keyword arguments of whatever opens a run."""

    durability: Durability
    flush_seconds: float
    flush_steps: int | None
    seal_seconds: float
    seal_steps: int | None
    seal_episodes: int | None
    segment_bytes: int
    cast: Cast


@dataclass(frozen=True)
class SessionOptions:
    """When a session writes to the disk, and which values it casts.

    Attributes:
        durability: "flush" (rows survive the process), "fsync" (rows survive the machine) or "none"
            (rows reach the journal when the row buffer is full or `flush_steps` asks, no sooner).
        flush_seconds: rows reach the journal after this time at the latest; not used with "none".
        flush_steps: rows reach the journal as soon as this many wait, before the call that brings the last of
            them returns. A reset is a row, and so is the arrival of each agent or sub-environment.
        seal_seconds: finished episodes become visible to readers after about this time at the latest.
        seal_steps, seal_episodes: finished episodes are sealed in the background as soon as they have this
            many steps, or are this many. While a segment is written they gather for the next.
        segment_bytes: finished episodes are sealed as soon as the journal holds about this much.
        cast: "no" takes arrays whose dtype the space's dtype holds exactly. "safe" and "same_kind" also take
            what `numpy.can_cast` allows by that rule, rounded to the space's dtype: float64 in a float32
            space with "same_kind". A number outside the range of the space's dtype is an error either way.
    """

    durability: Durability = "flush"
    flush_seconds: float = 1.0
    flush_steps: int | None = None
    seal_seconds: float = 60.0
    seal_steps: int | None = None
    seal_episodes: int | None = None
    segment_bytes: int = 64 << 20
    cast: Cast = "no"

    @property
    def seals_by_count(self) -> bool:
        """Whether the number of finished episodes or their steps can cause a seal."""
        return self.seal_steps is not None or self.seal_episodes is not None

    def __post_init__(self) -> None:
        for name, choices in (("durability", Durability), ("cast", Cast)):
            value, known = getattr(self, name), get_args(choices)
            if not isinstance(value, str) or value not in known:
                expected = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
                raise InvalidArgumentError(f"{name}={value!r} is unknown; expected {expected}.")
        for name in ("flush_seconds", "seal_seconds", "segment_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise InvalidArgumentError(f"{name}={value!r}: expected a positive number.")
        for name in ("flush_steps", "seal_steps", "seal_episodes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidArgumentError(f"{name}={value!r}: expected a whole number from 1 on, or None.")
