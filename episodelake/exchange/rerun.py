"""Recordings for the viewer of Rerun: a folder with a file `.rrd` for each episode, of one application.

The timeline `step` is `t` of `steps`: step t has observation t with its info, the action taken there, and the
reward and flags of that action; `episode/return` adds up the rewards so far. Step T has the last
observation. The timeline `time` is there only where the store has times: a column, or frames per second.
The text of `episode/end` says why the episode ended. Numbers are plots, arrays of more dimensions tensors,
frames images or videos, texts logs; keys of Dict spaces and infos are parts of the paths of entities.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DatasetError, InvalidArgumentError
from ..plugin import (
    LISTS,
    Export,
    Option,
    collected,
    episodes_frame,
    export_format,
    positive_number,
    require,
    suggest,
)
from ..plugin.columns import EPISODE, METADATA, REWARD, unescape
from ..plugin.files import temporary_folder
from ..readers.exporting.shards import image_files, is_image
from ..readers.exporting.tables import BARE_TABLES, TableExport
from ..types import EncodedFrames

_EXTRA = "'episodelake[rerun]'"
#: Longer vectors are tensors, not as many lines of a plot.
_MOST_LINES = 1000
#: Bytes of the frames of one message.
_FRAME_BYTES = 32 << 20
#: Of videos where the store has no rate; the viewer shows frames at the times of their steps.
_VIDEO_FPS = 30
_FACTS = ("episode_id", "run_id", "seed", "length", "episode_return", "end_reason")
_TEXTS = (pa.string(), pa.large_string())


def _is_card(path: tuple[Any, ...], value: Any) -> bool:
    """Return whether an entry names the recordings, or places their steps in time."""
    return path in (("title",), ("fps",))


@export_format(
    "rerun",
    extra=_EXTRA,
    folder=True,
    holds=replace(BARE_TABLES, ends={}, card=_is_card),
    images=Option.choice(
        "copy (the default), which keeps the packets of frames that are encoded by a codec and writes others "
        "as png; png, which is lossless; jpeg; or raw, without compression",
        "copy",
        "png",
        "jpeg",
        "raw",
    ),
    time=Option("the column of steps with seconds or times, such as info.time, for the timeline `time`"),
    fps=Option.positive("steps per second, for the timeline `time`; that of the card by default", most=1e9),
    application=Option("the name of the application; the title of the card by default"),
)
def write_rerun(export: Export, target: Path) -> None:
    """Write a file for each episode, `000000.rrd` and so on.

    Raises:
        InvalidArgumentError: an option is not valid.
        DatasetError: a step has no time.
        MissingPackageError: rerun-sdk is not installed, or Pillow, and there are images.
    """
    purpose = "Exporting to Rerun"
    rerun, chunks, errors = (
        require(name, purpose, _EXTRA) for name in ("rerun", "rerun.chunk", "rerun.error_utils")
    )
    folder = _Folder(rerun, chunks, export, target)
    target.mkdir(parents=True)
    with errors.catch_and_log_exceptions(strict=True):
        folder.write()


class _Folder:
    def __init__(self, rerun: Any, chunks: Any, export: Export, target: Path) -> None:
        self._rerun = rerun
        self._chunks = chunks
        self._export = export
        self._target = target
        self._images = export.options["images"]
        snapshot = export.context.snapshot
        schema = snapshot.schema
        codecs = (schema.observation, schema.action, schema.reward)
        # Encoders have made odd sides even, so those frames are larger.
        self._copied = {
            each.name: each.image
            for each in schema.video
            if self._images == "copy"
            and not (each.encoding.lossless or each.image.height % 2 or each.image.width % 2)
        }
        self._leaves = {leaf.column: leaf for codec in codecs for leaf in codec.leaves}
        self._table = TableExport(export, layout="steps", encoded=self._copied)
        self._time = _time_column(export.options["time"], self._table.schema)
        if self._time is not None and export.options["fps"] is not None:
            raise InvalidArgumentError(
                f"fps={export.options['fps']!r}: the timeline comes from time={export.options['time']!r}. "
                "Leave out one of them."
            )
        self._fps = None if self._time is not None else _frames_per_second(export)
        default = export.card.get("title") or Path(str(snapshot.layout.root)).name
        name = str(export.options["application"] or default)
        self._application = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-") or "episodes"

    def write(self) -> None:
        """Write all episodes."""
        facts = self._facts()
        for rows in self._table.batches():
            numbers = rows.column(EPISODE).to_numpy()
            starts = np.flatnonzero(np.diff(numbers, prepend=-1))
            for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
                self._write_episode(rows.slice(start, stop - start), int(numbers[start]), next(facts))

    def _facts(self) -> Iterator[dict[str, Any]]:
        context = self._export.context
        frame = episodes_frame(context.snapshot, context.all_positions).select(*_FACTS, "started_at")
        return collected(frame).iter_rows(named=True)

    def _write_episode(self, rows: pa.Table, number: int, facts: Mapping[str, Any]) -> None:
        """Write the file of an episode of T+1 rows."""
        # Recording streams keep a part of what they wrote until the process ends; streams of chunks do not.
        # It takes a list, since it wraps the errors of a generator.
        chunks = list(self._episode_chunks(rows, number, facts))
        stream = self._chunks.LazyChunkStream.from_iter(chunks)
        path = self._target / f"{number:06d}.rrd"
        try:
            stream.write_rrd(path, application_id=self._application, recording_id=facts["episode_id"])
        except RuntimeError as error:  # as Rerun reports a full disk
            raise OSError(f"Rerun cannot write {path.name}: {error}") from error

    def _episode_chunks(self, rows: pa.Table, number: int, facts: Mapping[str, Any]) -> Iterator[Any]:
        rerun, chunk = self._rerun, self._chunks.Chunk
        started = facts["started_at"]
        info = rerun.archetypes.RecordingInfo.columns(
            name=[f"episode {number}"],
            start_time=None if started is None else [int(started.timestamp() * 1e6) * 1000],
        )
        yield chunk.from_columns("/__properties", [], info)
        properties = {name: facts[name] for name in _FACTS if facts[name] is not None} | _metadata(rows)
        # Of plain values Rerun gives each name one type in the whole process.
        typed = {name: pa.array([value]) for name, value in properties.items()}
        yield chunk.from_property("episode", rerun.AnyValues(**typed))
        times = _Times(rerun, self._axis(rows, number), rows.column("t").to_numpy())
        for field in rows.schema:
            skipped = field.name in (EPISODE, "t", "seed") or field.name.startswith(METADATA.prefix)
            if not skipped:
                entity = rerun.new_entity_path([*map(unescape, field.name.split("."))])
                for chosen, columns in self._parts(field.name, rows.column(field.name)):
                    yield chunk.from_columns(entity, [] if chosen is None else times.at(chosen), columns)
        for entity, chosen, columns in self._ends(rows, facts):
            yield chunk.from_columns(entity, times.at(chosen), columns)

    def _axis(self, rows: pa.Table, number: int) -> dict[str, np.ndarray]:
        """Return the timeline `time` as an argument of `TimeColumn`, if there is one."""
        if self._time is None:
            steps = rows.column("t").to_numpy()
            return {} if self._fps is None else {"duration": steps / self._fps}
        column = rows.column(self._time)
        wrong = column.combine_chunks().is_null(nan_is_null=True)
        if wrong.true_count:
            step = int(wrong.to_numpy(zero_copy_only=False).argmax())
            raise DatasetError(
                f"Episode {number} of the view has no {self._time!r} at step {step}; time= needs a value "
                "at every observation. Choose another column, or leave out time=."
            )
        values = column.to_numpy()
        return {"timestamp" if values.dtype.kind == "M" else "duration": values}

    def _ends(self, rows: pa.Table, facts: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray, Any]]:
        """Yield the return so far, and the reason of the end at the last step."""
        rewards = rows.column(REWARD).combine_chunks()
        acted = rewards.is_valid().to_numpy(zero_copy_only=False)
        if not isinstance(rewards.type, LISTS):
            returns = np.cumsum(rewards.drop_null().to_numpy())
            yield "/episode/return", acted, self._rerun.Scalars.columns(scalars=returns)
        last = np.arange(len(acted)) == len(acted) - 1
        yield "/episode/end", last, self._rerun.TextLog.columns(text=[facts["end_reason"]])

    def _parts(self, name: str, column: pa.ChunkedArray) -> Iterator[tuple[np.ndarray | None, Any]]:
        """Yield the rows of a column that have values, and these as components; frames in several parts.

        What belongs to all rows comes with None.
        """
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        if not len(rows):
            return
        values = column.drop_null().combine_chunks()
        leaf = self._leaves.get(name)
        if leaf is None:
            columns = self._plain(name, values)
            if columns is None:
                self._export.losses.add(f"the column {name}, of type {values.type}")
            else:
                yield rows, columns
            return
        video = self._video(name, values)
        if video is not None:
            yield None, video
            moments = np.round(np.arange(len(rows)) * (1e9 / float(self._video_rate))).astype(np.int64)
            yield rows, self._rerun.VideoFrameReference.columns_nanos(moments)
            return
        stack = leaf.decode([values])
        if is_image(leaf.native, leaf.shape, grey=True):
            size = max(1, _FRAME_BYTES // leaf.size)
            for start in range(0, len(stack), size):
                yield rows[start : start + size], self._frames(stack[start : start + size])
        elif len(leaf.shape) < 2 and leaf.size <= _MOST_LINES:
            yield rows, self._lines(name, stack.reshape(-1), leaf.size, len(stack))
        else:
            yield rows, self._tensors(stack)

    @property
    def _video_rate(self) -> Fraction:
        fps = self._fps or _VIDEO_FPS
        # Slower rates would be rounded to 0.
        return Fraction(fps).limit_denominator(1001) or Fraction(1, round(1 / fps))

    def _video(self, name: str, cells: pa.Array) -> Any:
        """Return the packets of frames as a video; None where they have to be decoded.

        Streams of packets have no place for frames that are shown in another order, as H.264 has them.
        """
        image = self._copied.get(name)
        if image is None:
            return None
        try:
            packets = EncodedFrames(cells, image).stream()
        except ValueError:  # Decoding says more.
            return None
        if packets is None:
            return None
        with temporary_folder("episodelake-rerun-") as folder:
            path = Path(folder) / "video.mp4"
            file = packets.new_file(path, self._video_rate, quick=False)
            file.write(packets)
            file.close()
            blob = path.read_bytes()
        return self._rerun.AssetVideo.columns(blob=[blob], media_type=["video/mp4"])

    def _plain(self, name: str, values: pa.Array) -> Any:
        """Return numbers, lists of numbers and texts as columns of components; None for other values."""
        kind = values.type
        if kind in _TEXTS:
            return self._rerun.TextLog.columns(text=values.to_pylist())
        if isinstance(kind, LISTS) and _is_number(kind.value_type):
            flat = pc.call_function("list_flatten", [values])
            lengths = pc.call_function("list_value_length", [values]).to_numpy()
            return self._lines(name, flat.to_numpy(zero_copy_only=False), lengths, len(values))
        if not _is_number(kind):
            return None
        return self._lines(name, values.to_numpy(zero_copy_only=False), 1, len(values))

    def _lines(self, name: str, values: np.ndarray, lengths: Any, rows: int) -> Any:
        """Return lines of a plot, which are doubles; counts the integers that these round."""
        doubles = values.astype(np.float64)
        if values.dtype.kind in "iu":
            with np.errstate(invalid="ignore"):
                rounded = np.count_nonzero(doubles.astype(values.dtype) != values)
            self._export.losses.add(f"digits of integers in {name}, which are doubles in Rerun", int(rounded))
        return self._rerun.Scalars.columns(scalars=doubles).partition(np.broadcast_to(lengths, rows))

    def _tensors(self, stack: np.ndarray) -> list[Any]:
        # Rerun makes a batch of one tensor only.
        rerun = self._rerun
        batch = rerun.components.TensorDataBatch
        arrays = [batch(each).as_arrow_array() for each in stack]
        descriptor = rerun.Tensor.descriptor_data()
        return [rerun.ComponentColumn(descriptor, batch(pa.concat_arrays(arrays)))]

    def _frames(self, frames: np.ndarray) -> Any:
        """Return frames, uint8 (T, H, W) or (T, H, W, C), as images."""
        rerun = self._rerun
        if self._images == "raw":
            model = "RGB" if frames.shape[-1:] == (3,) and frames.ndim == 4 else "L"
            size = {"width": frames.shape[2], "height": frames.shape[1]}
            form = rerun.components.ImageFormat(**size, color_model=model, channel_datatype="U8")
            return rerun.Image.columns(buffer=frames.reshape(len(frames), -1), format=[form] * len(frames))
        if self._images == "jpeg":
            self._export.losses.add("frames of lossy JPEG", len(frames))
        kind = "png" if self._images == "copy" else self._images
        files = image_files(frames, kind).field("bytes").to_pylist()
        media = [f"image/{kind}"] * len(files)
        return rerun.EncodedImage.columns(blob=files, media_type=media)


class _Times:
    """The timelines of an episode."""

    def __init__(self, rerun: Any, axis: Mapping[str, np.ndarray], steps: np.ndarray) -> None:
        self._rerun = rerun
        self._axis = axis
        self._steps = steps

    def at(self, rows: np.ndarray) -> list[Any]:
        """Return the timelines at some rows: their numbers, or a mask."""
        made = [self._rerun.TimeColumn("step", sequence=self._steps[rows])]
        return made + [
            self._rerun.TimeColumn("time", **{kind: values[rows]}) for kind, values in self._axis.items()
        ]


def _metadata(rows: pa.Table) -> dict[str, Any]:
    """Return the metadata of an episode as properties; values that are no numbers or texts as JSON."""
    names = [name for name in rows.schema.names if name.startswith(METADATA.prefix)]
    metadata = {name: rows.column(name)[0].as_py() for name in names}
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)
        for name, value in metadata.items()
        if value is not None
    }


def _time_column(name: Any, schema: pa.Schema) -> str | None:
    if name is None:
        return None
    known = [each.name for each in schema if _is_number(each.type) or pa.types.is_timestamp(each.type)]
    if name not in known:
        raise InvalidArgumentError(
            f"time={name!r} is no column of steps with seconds or times.{suggest(str(name), known)} Columns: "
            f"{', '.join(known)}."
        )
    return name


def _frames_per_second(export: Export) -> float | None:
    fps = export.options["fps"]
    if fps is None and export.card.get("fps") is not None:
        fps = positive_number("fps", export.card["fps"])
    return fps


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
