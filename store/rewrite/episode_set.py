"""Episodes of one snapshot that are copied or merged."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ..snapshot import Snapshot


@dataclass(frozen=True)
class EpisodeSet:
    """Episodes of a snapshot: all, or those with certain ids.

    Attributes:
        snapshot: the snapshot.
        ids: their ids, in any order; None for all.
    """

    snapshot: Snapshot
    ids: pa.Array | None = None
