"""Columns of images, as Hugging Face's `datasets` keep them: structs of the bytes of a file and its path.

They are decoded when the rows of an episode are read, next observations only where these are the last.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import Space

from ....store.errors import DatasetError
from ....store.losses import Losses
from ....store.optional_packages import EXPLORE, require
from ....store.spaces import SpaceCodec
from ....store.spaces.arrow import equal_binaries
from .mapping import Leaf, ResolvedMapping, is_image, leaves

#: Bytes of the frames that are decoded at a time.
_FRAME_BYTES = 64 << 20


def image_shape(column: pa.ChunkedArray, place: str) -> tuple[int, ...]:
    """Return the shape of the first image of a column: (H, W, C).

    Raises:
        DatasetError: there is none, or it does not decode.
        MissingPackageError: Pillow is not installed.
    """
    first = next((value for value in column.to_pylist() if value is not None), None)
    if first is None:
        raise DatasetError(f"{place} has no image in its first rows. State the spaces.")
    frame, _ = _decoded(first["bytes"], place)
    return frame.shape


class ImageColumns:
    """The images among the columns of observations.

    Args:
        mapping: the columns.
        space: of observations.
        place: the table, for errors.

    Raises:
        DatasetError: an image stands where the space has no array of uint8.
    """

    def __init__(self, mapping: ResolvedMapping, schema: pa.Schema, space: Space, place: str) -> None:
        self._place = place
        now = [leaf for leaf in leaves(mapping.observation) if _is_image(leaf, schema)]
        shapes = {leaf.column: leaf.shape for leaf in SpaceCodec(space, "observation").leaves if leaf.binary}
        for leaf in now:
            if leaf.name not in shapes:
                raise DatasetError(
                    f"{place}: the column `{leaf}` has images, and the space of `{leaf.name}` is no Box of "
                    "uint8 with two or more dimensions."
                )
        after = [] if mapping.following is None else list(leaves(mapping.following))
        self._now = {leaf.columns[0]: shapes[leaf.name] for leaf in now}
        self._after = {
            leaf.columns[0]: shapes[leaf.name.removeprefix("next_")]
            for leaf in after
            if _is_image(leaf, schema)
        }
        size = sum(int(np.prod(shape)) for shape in self._now.values())
        #: The most rows to decode at a time.
        self.rows = max(1, _FRAME_BYTES // size) if size else None

    def decode(self, rows: pa.Table, lasts: Sequence[int], losses: Losses) -> pa.Table:
        """Return rows with frames in the place of images; count those that are JPEG.

        Args:
            lasts: the last rows of episodes, the only ones whose next observations are decoded.

        Raises:
            DatasetError: an image does not decode, or has another shape than the space.
        """
        last = np.zeros(rows.num_rows, bool)
        last[list(lasts)] = True
        for columns, chosen in ((self._now, None), (self._after, last)):
            for name, shape in columns.items():
                index = rows.column_names.index(name)
                frames = self._frames(name, rows, chosen, shape, losses)
                rows = rows.set_column(index, name, frames)
        return rows

    def _frames(
        self, name: str, rows: pa.Table, chosen: np.ndarray | None, shape: tuple[int, ...], losses: Losses
    ) -> pa.Array:
        place, column = f"{self._place}: `{name}`", rows.column(name)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        valid = valid if chosen is None else valid & chosen
        found = np.empty((int(valid.sum()), *shape), np.uint8)
        for index, value in enumerate(column.filter(pa.array(valid)).to_pylist()):
            frame, jpeg = _decoded(value["bytes"], place)
            if frame.shape not in (shape, (*shape, 1)):
                raise DatasetError(f"{place} has an image of shape {frame.shape}; expected {shape}.")
            found[index] = frame.reshape(shape)
            losses.add("frames of lossy JPEG", int(jpeg))
        return equal_binaries(found.reshape(-1), int(np.prod(shape)), len(column), valid)


def _decoded(data: Any, place: str) -> tuple[np.ndarray, bool]:
    """Return an image as uint8 (H, W, C), and whether it is a JPEG."""
    images: Any = require("PIL.Image", "Reading images", EXPLORE)
    if not isinstance(data, bytes):
        raise DatasetError(f"{place} has an image without its bytes. Store the images in the table.")
    try:
        with images.open(io.BytesIO(data)) as image:
            if image.mode not in ("L", "RGB", "RGBA"):
                raise DatasetError(
                    f"{place} has an image of the mode {image.mode!r}; expected L, RGB or RGBA. Convert it."
                )
            frame = np.asarray(image)
            return frame.reshape(*frame.shape[:2], -1), image.format == "JPEG"
    except (OSError, ValueError, SyntaxError, images.DecompressionBombError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{place} has an image that does not decode: {error}") from error


def _is_image(leaf: Leaf, schema: pa.Schema) -> bool:
    return not leaf.vector and not leaf.path and is_image(schema.field(leaf.columns[0]).type)
