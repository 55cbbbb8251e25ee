"""Annotations that a store computes by itself: labels of episodes, and parts of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from polars.selectors import by_name

from ..readers.frames import collected
from ..readers.view import ReadView
from ..store.common.arguments import known_name
from ..store.errors import InvalidArgumentError


def label(store: Any, episodes: int | str | ReadView, labels: Mapping[str, Any]) -> pl.DataFrame:
    """Write labels of episodes; see `EpisodeStore.label`."""
    if not labels:
        raise InvalidArgumentError("There is no label; give some by name, such as good=True.")
    if isinstance(episodes, ReadView):
        ids = collected(episodes.episodes.select("episode_id"))
    else:
        ids = pl.DataFrame({"episode_id": [store[episodes].id]})
    store.refresh()
    known = store.episodes.collect_schema()
    for name, value in labels.items():
        if value is None and name not in known:
            problem = f"{name}=None: there is no annotation {name!r} to clear."
            known_name(name, store.annotations.get_column("name"), problem)
    try:
        frame = ids.with_columns(
            pl.lit(value, known[name] if value is None else None).alias(name)
            for name, value in labels.items()
        )
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InvalidArgumentError(
            f"{labels!r:.200} cannot be labels: {str(error).partition(chr(10))[0]}. Expected booleans, "
            "numbers, texts, datetimes or lists of those."
        ) from error
    # By name, since `select` takes some names for patterns.
    had = by_name("episode_id", *(name for name in labels if name in known))
    before = collected(store.episodes.select(had))
    store.annotate(frame)
    missing = (pl.lit(None, frame.schema[name]).alias(name) for name in labels if name not in known)
    return ids.join(before, on="episode_id", how="left").with_columns(missing)


def split(
    store: Any,
    shares: Mapping[str, float] | None,
    by: str,
    seed: int,
    name: str,
    sizes: Sequence[int] | Mapping[str, int] | None,
) -> None:
    """Annotate every episode with the part that it belongs to; see `EpisodeStore.split`."""
    from ..store.annotations.annotations import parts_of, sized_parts

    if (shares is None) == (sizes is None):
        raise InvalidArgumentError("split() takes shares={'train': 0.9, 'val': 0.1} or sizes=[20, 10].")

    store.refresh()
    column = {"episode": "episode_id", "run": "run_id"}.get(by, by) if isinstance(by, str) else ""
    known = store.context.snapshot.episodes_schema.names
    known_name(column, known, f"Cannot split by {by!r}.", "Expected 'episode', 'run' or a column of episodes")
    frame = collected(store.episodes.select("episode_id", pl.col(column).alias("key")))
    keys = frame["key"].to_list()
    if shares is not None:
        parts: Sequence[str | None] = parts_of(keys, shares, seed)
    else:
        named = sizes if isinstance(sizes, Mapping) else {str(i): size for i, size in enumerate(sizes or ())}
        parts = sized_parts(keys, named, seed)
    store.annotate(frame.select("episode_id", pl.Series(name, parts, dtype=pl.String)))
