"""Images of episodes: recorded ones as RGB, and the choice of steps."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from ...store.errors import CorruptStoreError, InvalidArgumentError, NothingToDrawError
from ...store.frames import EncodedFrames
from ...store.schema import StepSchema
from ...store.spaces.fixed import FixedNode
from ..episode_data import EpisodeData

#: Smaller arrays are drawn only if they are named: a grid of 7 x 7 cells of codes is no picture.
SMALLEST = 8
#: H height, W width, C channels (1, 3 or 4), K images one after the other, of which the last is shown.
LAYOUTS = ("HW", "HWC", "CHW", "KHW", "HWK", "KHWC", "KCHW")


@dataclass(frozen=True)
class ImageColumn:
    """A part of the observation that can be shown.

    Attributes:
        leaf: its column, dtype and shape.
        layout: its axes; one of `LAYOUTS`.
        low, high: the values of black and white.
    """

    leaf: FixedNode
    layout: str
    low: float
    high: float

    @property
    def name(self) -> str:
        """The column."""
        return self.leaf.column

    def rgb(self, values: np.ndarray) -> np.ndarray:
        """Images as they are shown.

        Args:
            values: shape (n, *shape) in the space's dtype.

        Returns:
            uint8, shape (n, H, W, 3). Values of uint8 are kept as they are; others are scaled from the bounds
            of the space. Of RGBA the colours are kept, of a stack the last image.
        """
        layout = self.layout
        if "K" in layout:
            values = np.take(values, -1, axis=1 + layout.index("K"))
            layout = layout.replace("K", "")
        if layout == "CHW":
            values = np.moveaxis(values, 1, -1)
        elif layout == "HW":
            values = values[..., None]
        channels = values[..., :3] if values.shape[-1] >= 3 else values[..., :1]
        scaled = channels if channels.dtype == np.uint8 else self._scaled(channels)
        return np.ascontiguousarray(np.broadcast_to(scaled, (*scaled.shape[:-1], 3)))

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        span = (self.high - self.low) or 1.0
        share = np.nan_to_num((values.astype(np.float64) - self.low) / span, nan=0.0, posinf=1.0, neginf=0.0)
        return np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)


def image_columns(schema: StepSchema) -> tuple[str, ...]:
    """Return the columns of the observation that are pictures without being named; those of each group of
    agents.
    """
    leaves = [leaf for part in schema.parts for leaf in part.observation.leaves]
    return tuple(leaf.column for leaf in leaves if _is_picture(leaf))


def small_images(schema: StepSchema) -> str:
    """Return a hint at the arrays that may be images, and are too small to be taken for some."""
    small = [leaf for leaf in schema.observation.leaves if _may_be_picture(leaf) and not _is_picture(leaf)]
    names = " or ".join(f"column={leaf.column!r}" for leaf in small)
    return f" Arrays below {SMALLEST} x {SMALLEST} are shown if they are named: {names}." if names else ""


def image_column(schema: StepSchema, column: str | None, layout: str | None) -> ImageColumn:
    """Return the image that is asked for.

    Args:
        schema: of one agent.
        column: its name, as `observation.camera`, or `camera` for short; None for the only one.
        layout: its axes; None to infer them from the shape.

    Raises:
        NothingToDrawError: there is no image.
        InvalidArgumentError: there are several; there is none of that name; it has other axes.
    """
    leaves = schema.observation.leaves
    known = [leaf.column for leaf in leaves if _is_picture(leaf)]
    if column is None:
        if not known:
            raise NothingToDrawError(f"The observations hold no images.{small_images(schema)}")
        if len(known) > 1:
            raise InvalidArgumentError(
                f"There are several images. Choose one by its column: {', '.join(known)}."
            )
        column = known[0]
    root = f"{schema.observation.root}."
    matches = [leaf for leaf in leaves if column in (leaf.column, leaf.column.removeprefix(root))]
    if not matches:
        raise InvalidArgumentError(
            f"column={column!r} is no part of the observation with a fixed shape. "
            f"Images are: {', '.join(known) or 'none'}."
        )
    return _image(matches[0], layout)


def _image(leaf: FixedNode, layout: str | None) -> ImageColumn:
    chosen = layout or _layout(leaf.shape)
    shape = leaf.shape
    if chosen is None or not _fits(shape, chosen):
        wanted = "no image" if chosen is None else f"no image of the layout {chosen!r}"
        raise InvalidArgumentError(
            f"{leaf.column} has the shape {shape}, which is {wanted}. "
            f"Layouts are: {', '.join(LAYOUTS)} (C is 1, 3 or 4 channels; of K images the last is shown)."
        )
    low, high = _range(leaf)
    return ImageColumn(leaf, chosen, low, high)


def _fits(shape: tuple[int, ...], layout: str) -> bool:
    if layout not in LAYOUTS or len(layout) != len(shape) or not all(shape):
        return False
    return "C" not in layout or shape[layout.index("C")] in (1, 3, 4)


def _range(leaf: FixedNode) -> tuple[float, float]:
    if leaf.native == np.bool_ or not isinstance(leaf.space, gymnasium.spaces.Box):
        return 0.0, 1.0
    low, high = float(np.min(leaf.space.low)), float(np.max(leaf.space.high))
    if leaf.native != np.uint8 and not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise InvalidArgumentError(
            f"{leaf.column} has the bounds {low:g} and {high:g}, so the pixel range is ambiguous. "
            "Make frames from the arrays of episode.observations."
        )
    return low, high


def _is_picture(leaf: FixedNode) -> bool:
    """Return whether a leaf is an image without being named."""
    layout = _layout(leaf.shape)
    if layout is None or min(leaf.shape[layout.index(axis)] for axis in "HW") < SMALLEST:
        return False
    return _may_be_picture(leaf)


def _may_be_picture(leaf: FixedNode) -> bool:
    """Return whether a leaf is an array of bytes, or of numbers from 0 to 1 or to 255, with the axes of an
    image.
    """
    layout = _layout(leaf.shape)
    if layout is None or not isinstance(leaf.space, gymnasium.spaces.Box):
        return False
    low, high = float(np.min(leaf.space.low)), float(np.max(leaf.space.high))
    return leaf.native == np.uint8 or (len(layout) > 2 and low == 0 and high in (1, 255))


def _layout(shape: tuple[int, ...]) -> str | None:
    """Return the most likely axes of a shape; None if it is no image.

    Four channels first are taken for four stacked grey images, as agents of Atari see them; last, for RGBA.
    """
    match shape:
        case (_, _):
            return "HW"
        case (_, _, 1 | 3 | 4):
            return "HWC"
        case (1 | 3, _, _):
            return "CHW"
        case (first, middle, last):
            return "KHW" if first <= min(middle, last) else "HWK"
        case (_, _, _, 1 | 3 | 4):
            return "KHWC"
        case (_, 1 | 3 | 4, _, _):
            return "KCHW"
    return None


#: Rows that are decoded at once.
_ROWS = 64


def recorded_frames(
    episode: EpisodeData, column: ImageColumn, steps: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each step with its frame, uint8 (H, W, 3), in the order of `steps`.

    Only the row groups that hold the wanted rows are read, one at a time, so memory is bounded by one of them
    however long the episode is.

    Args:
        episode: of one agent.
        column: the image.
        steps: in any order.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
    """
    file = episode._block.file
    rows = np.asarray(steps, np.int64) + episode._block.first + episode._start
    groups = np.searchsorted(file.starts, rows, side="right") - 1
    position = 0
    while position < len(rows):
        group = int(groups[position])
        stop = position + int(np.argmax(np.append(groups[position:] != group, True)))
        table = file.read([group], [column.name])
        if column.name not in table.column_names:
            raise CorruptStoreError(f"The file {file.path} has no column {column.name!r}.")
        cells = table.column(0)
        for begin in range(position, stop, _ROWS):
            chosen = rows[begin : min(stop, begin + _ROWS)] - int(file.starts[group])
            with episode._naming_frames(int(rows[position] - steps[position]) - int(file.starts[group])):
                decoded = column.leaf.frames_at(cells, chosen)
            for offset, frame in enumerate(column.rgb(decoded)):
                yield int(steps[begin + offset]), frame
        position = stop


@dataclass(frozen=True)
class EncodedPart:
    """The encoded frames of an episode in one row group.

    Attributes:
        first: the step of the first frame.
        frames: as the store has them.
        place: names them in errors.
    """

    first: int
    frames: EncodedFrames
    place: str

    def packets(self, start: int = 0, stop: int | None = None) -> Any:
        """Return the `PacketStream` of some frames, counted from `first`; see `EncodedFrames.stream`.

        Raises:
            CorruptStoreError: the file is damaged; the message names it.
        """
        try:
            return self.frames.stream(start, stop)
        except ValueError as error:
            raise CorruptStoreError(f"{self.place}: {error}.") from error


def encoded_part(episode: EpisodeData, column: ImageColumn, t: int) -> EncodedPart:
    """Return the frames of the row group that has a step.

    Args:
        episode: of one agent.
        column: an image that the store encodes.
        t: below the number of observations.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
    """
    file = episode._block.file
    (image,) = (each.image for each in episode.schema.video if each.name == column.name)
    start = episode._block.first + episode._start
    (group,) = file.groups_of(start + t, 1)
    table = file.read([group], [column.name])
    if column.name not in table.column_names:
        raise CorruptStoreError(f"The file {file.path} has no column {column.name!r}.")
    offset = int(file.starts[group])
    first, stop = max(0, start - offset), start + episode._observation_count - offset
    cells = table.column(0)[first:stop].combine_chunks()
    frames = EncodedFrames(cells, image)
    return EncodedPart(first + offset - start, frames, f"{file.path}, column '{column.name}'")


def recorded_packets(episode: EpisodeData, column: ImageColumn) -> Iterator[Any]:
    """Yield a `PacketStream` of the frames of an episode by row group; None for a part to be decoded.

    Args:
        episode: of one agent.
        column: an image that the store encodes.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
    """
    t = 0
    while t < episode._observation_count:
        part = encoded_part(episode, column, t)
        packets = part.packets()
        # Others are shown with frames that no row has.
        yield packets if packets is not None and packets.shown.max() < len(part.frames) else None
        t += len(part.frames)


#: How `steps` can be given.
Steps = int | slice | Sequence[int] | np.ndarray | None


def chosen_steps(episode: EpisodeData, steps: Steps, count: int) -> range | list[int]:
    """Return the steps that are asked for, each below `count`.

    Args:
        episode: names it in errors.
        steps: counted from 0, or from the end if negative.
        count: how many steps there are to show.

    Raises:
        InvalidArgumentError: one is outside, or is no whole number; or there is none.
    """
    if steps is None:
        return range(count)
    if isinstance(steps, slice):
        try:
            chosen: range | list[int] = range(count)[steps]
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"steps={steps!r} is no slice of steps: {error}.") from error
    else:
        chosen = [_step(step, count) for step in ([steps] if np.ndim(steps) == 0 else list(steps))]  # type: ignore[arg-type]
    if not len(chosen):
        raise InvalidArgumentError(f"steps={steps!r} chooses none of the {count} steps of {episode.id}.")
    return chosen


def _step(step: Any, count: int) -> int:
    try:
        number = operator.index(step)
    except TypeError as error:
        raise InvalidArgumentError(f"{step!r} is no step; expected whole numbers.") from error
    if isinstance(step, bool) or not -count <= number < count:
        raise InvalidArgumentError(f"There is no step {step!r}: the episode has the steps 0 to {count - 1}.")
    return number % count
