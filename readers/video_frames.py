"""`decode_frames`: the images of some rows of a frame of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl

from ..store.common.arguments import suggest
from ..store.errors import InvalidArgumentError
from ..store.names import AGENT_ID
from .context import ReadContext
from .episodes import find_episode
from .frames import collected

if TYPE_CHECKING:
    from ..store.spaces.fixed import FixedNode


def decode_frames(context: ReadContext, rows: Any, column: str) -> np.ndarray:
    """Return the images of rows; see `ReadView.decode_frames`."""
    leaf = _leaf(context, column)
    keys = ["episode_id", *([AGENT_ID] if context.snapshot.schema.groups else []), "t"]
    table = _rows(rows, keys)
    images = np.empty((table.height, *leaf.shape), leaf.native)
    for key, part in table.with_row_index("_place").group_by(keys[:-1], maintain_order=True):
        episode_id, *agent = map(str, key)
        episode: Any = find_episode(context, episode_id)
        owner = episode.agent(*agent) if agent else episode
        t = part["t"].to_numpy()
        wrong = t[(t < 0) | (t >= owner._observation_count)]
        if len(wrong):
            raise InvalidArgumentError(
                f"rows names t={int(wrong[0])} of {episode_id!r}, which has the observations 0 to "
                f"{owner._observation_count - 1}."
            )
        with owner._naming_frames(0):
            images[part["_place"].to_numpy()] = owner._block.frames_at(leaf, owner._start, t)
    return images


def _leaf(context: ReadContext, column: str) -> FixedNode:
    leaves = [leaf for part in context.snapshot.schema.parts for leaf in part.observation.leaves]
    frames = {leaf.column: leaf for leaf in leaves if leaf.binary}
    if column not in frames:
        raise InvalidArgumentError(
            f"There is no column {column!r} of frames.{suggest(column, list(frames))} Those are: "
            f"{', '.join(frames) or 'none'}."
        )
    return frames[column]


def _rows(rows: Any, keys: list[str]) -> pl.DataFrame:
    if isinstance(rows, pl.LazyFrame):
        rows = collected(rows.select(keys))
    elif isinstance(rows, duckdb.DuckDBPyRelation):
        rows = rows.pl()
    elif not isinstance(rows, pl.DataFrame):
        rows = pl.DataFrame(pl.from_arrow(rows))
    missing = [name for name in keys if name not in rows.columns]
    if missing:
        raise InvalidArgumentError(
            f"rows lacks {', '.join(missing)}; it has {', '.join(rows.columns) or 'no columns'}. Keep the "
            f"columns {', '.join(keys)}, which say where a frame is."
        )
    t = rows["t"]
    if not t.dtype.is_integer() or t.null_count():
        raise InvalidArgumentError(
            f"rows has t of {t.dtype} with {t.null_count()} NULLs; expected whole numbers, as in steps."
        )
    return rows.select(keys)
