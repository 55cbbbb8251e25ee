"""Sheets: a few small pictures of an episode side by side, which play where the pointer is, in lists."""

from __future__ import annotations

import io
import threading
from urllib.parse import quote

import numpy as np

from .. import Episode
from ..plugin import require
from ..readers.pictures.images import image_column, image_columns
from .camera_video import offered
from .live.watch import Watch

#: The pictures of a sheet, as the page's style has them too, and their height at most.
FRAMES = 12
_HEIGHT = 96
#: The most bytes of sheets that are kept for a store.
_KEPT = 64_000_000
#: Lists show pictures beside names where a frame has so many pixels at most: reading larger ones is slow.
_QUICK = 128 * 128


class Sheets:
    """The sheets of a store's episodes, made when a browser asks for one; safe to use from several threads.

    Args:
        watch: the store.

    Attributes:
        ratio: the width of a frame by its height; None if episodes have no pictures.
        quick: sheets cost little.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._kept: dict[str, bytes] = {}
        self.url = offered(self)
        self.ratio, self.quick = None, False
        schema = watch.shown.store.selection().snapshot.schema
        columns = () if schema.groups else image_columns(schema)
        if columns:
            image = image_column(schema, columns[0], None)
            height, width = (image.leaf.shape[image.layout.index(axis)] for axis in "HW")
            self.ratio, self.quick = width / height, height * width <= _QUICK

    def url_of(self, episode_id: str) -> str | None:
        """Return the address of an episode's sheet; None without pictures."""
        return None if self.ratio is None else f"{self.url}/sheet/{quote(episode_id, safe='')}"

    def sheet(self, episode_id: str) -> bytes:
        """Return a sheet as JPEG; empty if the episode is gone or has no pictures.

        Raises:
            CorruptStoreError: the file is damaged.
        """
        # One at a time: the episode that is open comes first.
        with self._lock:
            sheet = self._kept.pop(episode_id, None)
            if sheet is None:
                shown = self._watch.shown
                position = shown.episodes.position_of(episode_id)
                sheet = b"" if position is None else sheet_of(shown.store[position])
            if sheet:
                self._kept[episode_id] = sheet
            while sum(map(len, self._kept.values())) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return sheet


def sheet_of(episode: Episode) -> bytes:
    """Return pictures of the first camera of an episode, spread evenly, side by side as JPEG.

    Raises:
        CorruptStoreError: the file is damaged.
    """
    steps = np.linspace(0, episode._observation_count - 1, FRAMES).round().astype(int)
    distinct = np.unique(steps)
    frames = dict(episode.video(distinct.tolist(), column=image_columns(episode._own_schema)[0]))
    images = require("PIL.Image", "A sheet of pictures")
    small = {}
    for t, frame in frames.items():
        picture = images.fromarray(frame)
        height = min(_HEIGHT, picture.height)
        small[t] = np.asarray(picture.resize((max(1, picture.width * height // picture.height), height)))
    file = io.BytesIO()
    images.fromarray(np.concatenate([small[t] for t in steps.tolist()], axis=1)).save(
        file, "jpeg", quality=85
    )
    return file.getvalue()
