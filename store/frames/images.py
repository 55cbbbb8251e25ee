"""The axes of the images that can be encoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import InvalidArgumentError

#: The fewest pixels of a side that encoders take.
_SMALLEST_SIDE = 16


@dataclass(frozen=True)
class ImageShape:
    """The shape of a frame: (H, W), (H, W, C) or (C, H, W), with one or three channels.

    Raises:
        InvalidArgumentError: it is another one.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the shape."""
        if self._axes is None:
            raise InvalidArgumentError(
                f"Frames of the shape {self.shape} cannot be encoded: expected (H, W), (H, W, C) or "
                "(C, H, W) with one or three channels C, of at least "
                f"{_SMALLEST_SIDE} x {_SMALLEST_SIDE} pixels."
            )

    @cached_property
    def _axes(self) -> tuple[int, int, int, bool] | None:
        """Height, width, channels, and whether the channels come first."""
        match self.shape:
            case (height, width):
                axes = height, width, 1, False
            case (height, width, (1 | 3) as channels):
                axes = height, width, channels, False
            case ((1 | 3) as channels, height, width):
                axes = height, width, channels, True
            case _:
                return None
        return axes if min(axes[:2]) >= _SMALLEST_SIDE else None

    @property
    def height(self) -> int:
        """In pixels."""
        return self._known[0]

    @property
    def width(self) -> int:
        """In pixels."""
        return self._known[1]

    @property
    def channels(self) -> int:
        """1 or 3."""
        return self._known[2]

    @property
    def channels_first(self) -> bool:
        """Whether the axes are (C, H, W)."""
        return self._known[3]

    @property
    def _known(self) -> tuple[int, int, int, bool]:
        assert self._axes is not None
        return self._axes

    @cached_property
    def size(self) -> int:
        """Bytes of a frame."""
        return int(np.prod(self.shape))

    def pixels(self, frame: np.ndarray) -> np.ndarray:
        """Return a frame, uint8 of `shape`, as (H, W) for one channel or (H, W, 3); shares its memory."""
        if self.channels_first:
            frame = np.moveaxis(frame, 0, -1)
        return frame.reshape(self.height, self.width) if self.channels == 1 else frame

    def write(self, pixels: np.ndarray, into: np.ndarray) -> None:
        """Copy pixels, as `pixels` returns them, into a frame of `shape`."""
        if self.channels == 1:
            into[...] = pixels.reshape(self.shape)
        elif self.channels_first:
            into[...] = np.moveaxis(pixels, -1, 0)
        else:
            into[...] = pixels
