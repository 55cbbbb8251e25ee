"""Sheets: a few small pictures of an episode side by side, which play where the pointer is, in lists."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from urllib.parse import quote

import numpy as np

from ... import Episode, EpisodeStore
from ...plugin import require
from ...readers.pictures.images import image_column, image_columns
from .served import offered

#: The pictures of a sheet, as the page's style has them too, and their height at most.
FRAMES = 12
_HEIGHT = 96
#: The most bytes of sheets that are kept for a store.
_KEPT = 64_000_000
#: Reading larger frames is slow: sheets have fewer different ones, and a single one beside names in lists.
_QUICK = 128 * 128
_FEW = 4


class Sheets:
    """The sheets of a store's episodes, made when a browser asks for one; safe to use from several threads.

    Args:
        store: in its first version.
        find: returns an episode of the newest version by its id; None if it is gone.

    Attributes:
        ratio: the width of a frame by its height; None if episodes have no pictures.
        quick: sheets cost little.
    """

    def __init__(self, store: EpisodeStore, find: Callable[[str], Episode | None]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, bool], bytes] = {}
        self.url = offered(self)
        self.ratio, self.quick = None, False
        schema = store.selection().snapshot.schema
        columns = () if schema.groups else image_columns(schema)
        if columns:
            image = image_column(schema, columns[0], None)
            height, width = (image.leaf.shape[image.layout.index(axis)] for axis in "HW")
            self.ratio, self.quick = width / height, height * width <= _QUICK

    def url_of(self, episode_id: str) -> str | None:
        """Return the address of an episode's sheet; None without pictures."""
        return None if self.ratio is None else f"{self.url}/sheet/{quote(episode_id, safe='')}"

    def sheet(self, episode_id: str, *, still: bool = False) -> bytes:
        """Return a sheet as JPEG; empty if the episode is gone or has no pictures.

        Args:
            episode_id: the episode.
            still: one picture, again and again.

        Raises:
            CorruptStoreError: the file is damaged.
        """
        # One at a time: the episode that is open comes first.
        with self._lock:
            sheet = self._kept.pop((episode_id, still), None)
            if sheet is None:
                episode = self._find(episode_id)
                distinct = 1 if still else FRAMES if self.quick else _FEW
                sheet = b"" if episode is None else sheet_of(episode, distinct)
            if sheet:
                self._kept[episode_id, still] = sheet
            while sum(map(len, self._kept.values())) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return sheet


def sheet_of(episode: Episode, distinct: int) -> bytes:
    """Return pictures of the first camera of an episode, spread evenly, side by side as JPEG.

    Args:
        episode: of one agent.
        distinct: how many different ones; a divisor of `FRAMES`. A single one is from the middle.

    Raises:
        CorruptStoreError: the file is damaged.
    """
    last = episode._observation_count - 1
    places = (np.linspace(0, last, distinct) if distinct > 1 else np.array([last / 2])).round().astype(int)
    steps = np.unique(places).tolist()
    frames = episode.video(steps, column=image_columns(episode._own_schema)[0])
    images = require("PIL.Image", "A sheet of pictures")
    small = {}
    for t, frame in frames:
        picture = images.fromarray(frame)
        picture.thumbnail((picture.width, _HEIGHT))
        small[t] = np.asarray(picture)
    file = io.BytesIO()
    side_by_side = [small[t] for t in places.repeat(FRAMES // distinct).tolist()]
    images.fromarray(np.concatenate(side_by_side, axis=1)).save(file, "jpeg", quality=85)
    return file.getvalue()
