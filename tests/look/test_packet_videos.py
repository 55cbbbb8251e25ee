"""Videos of cameras that a store encodes: the packets of the store, neither decoded nor encoded again."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import fastapi
import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from gymnasium.spaces import Box, Dict

import episodelake as el
from effort import looped
from episodelake.explorer.pictures.served import add_frames
from episodelake.explorer.pictures.sources import frame_sources
from episodelake.readers.pictures import video as videos
from episodelake.store.frames import EncodedFrames, ffmpeg, h264_order
from episodelake.store.frames.chunks import Chunk
from episodelake.store.segments import steps_file
from picture_stores import Page, decoded
from test_video_files import video as video_file
from test_video_files import written
from video_reader import row_groups
from video_stores import SHAPES, arrays_of, check_frames, new_store

#: Those whose packets browsers play, and those that have to be decoded.
PLAYED = ("grey", "odd", "rgb")
OTHERS = ("mono", "exact", "raw")
LENGTH = 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Two episodes, which several row groups hold."""
    cameras = {name: SHAPES[name] for name in (*PLAYED, *OTHERS)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_file, "GROUP_ROWS", 8)
        made = new_store(tmp_path_factory.mktemp("packets") / "store", cameras=cameras)
        with made.writer() as writer:
            for number in range(2):
                writer.write_episode(**arrays_of(cameras, number, LENGTH + number))
    assert len(made.refresh()[1]._block.groups) > 2
    return made


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the library decodes."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a frame was decoded")

    for name in ("decode", "_decoder"):
        monkeypatch.setattr(ffmpeg, name, refuse)


def stored_packets(store: el.EpisodeStore, column: str, episode: str) -> list[bytes]:
    """The packets of an episode, from the cells of its file as docs/format.md describes them."""
    found = []
    for ids, _, cells in row_groups(Path(store.path), column):
        for name, cell in zip(ids, cells, strict=True):
            if name == episode and cell:
                *_, extra, count = struct.unpack_from("<4sBBHII", cell)
                place = 16 + 4 * count + extra
                for size in struct.unpack_from(f"<{count}I", cell, 16):
                    found.append(cell[place : place + size])
                    place += size
    return found


def pictures_of(packet: bytes, codec: str) -> list[bytes]:
    """The parts of a packet that have pixels: slices of H.264; of AV1 all but the delimiter of its start."""
    if codec == "libdav1d":
        return [packet.removeprefix(b"\x12\0")]
    units = [unit.rstrip(b"\0") for unit in packet.split(b"\0\0\1")[1:]]
    return [unit for unit in units if unit[0] & 31 in (1, 5)]


@pytest.mark.parametrize("camera", PLAYED)
def test_the_packets_are_those_of_the_store(
    store: el.EpisodeStore, camera: str, tmp_path: Path, undecoded: None
) -> None:
    """A file has the packets of all row groups, in order, at the rate; nothing is decoded."""
    column = f"observation.{camera}"
    for number, episode in enumerate(store):
        episode.video(column=column, fps=12.5).save(tmp_path / "copied.mp4")
        with av.open(str(tmp_path / "copied.mp4")) as container:
            (stream,) = container.streams
            codec = stream.codec_context.name
            packets = [packet for packet in container.demux(stream) if packet.size]
            times = sorted(packet.pts * packet.time_base for packet in packets)
            if codec == "h264":
                change = av.BitStreamFilterContext("h264_mp4toannexb", stream)
                packets = [made for packet in packets for made in change.filter(packet)]
            written = [pictures_of(bytes(packet), codec) for packet in packets]
        stored = [pictures_of(packet, codec) for packet in stored_packets(store, column, episode.id)]
        assert stored and written == stored
        assert times == [Fraction(2 * t, 25) for t in range(LENGTH + number + 1)]


@pytest.mark.parametrize("camera", PLAYED)
def test_players_show_the_frames_of_the_store(store: el.EpisodeStore, camera: str, tmp_path: Path) -> None:
    """PyAV decodes those of `observations`; of odd sides a row and a column are the encoder's."""
    for episode in store:
        shown = decoded(episode.video(column=camera).save(tmp_path / "copied.mp4"))
        expected = episode.observations[camera]
        if expected.ndim == 3:
            expected = expected[..., None].repeat(3, -1)
        height, width = expected.shape[1:3]
        assert shown.shape[1:3] == (height + height % 2, width + width % 2)
        difference = np.abs(shown[:, :height, :width].astype(int) - expected)
        # A player turns grey into colours, and rounds.
        assert difference.max() <= (2 if camera == "grey" else 0)


@pytest.mark.parametrize("fps", [29, 29.97, 0.37, 1e-4])
def test_frames_are_shown_at_their_times(store: el.EpisodeStore, fps: float, tmp_path: Path) -> None:
    """Also where frames are no whole number of the usual ticks apart, and at rates below 1/1000."""
    path = store[0].video(column="rgb", fps=fps).save(tmp_path / "video.mp4")
    with av.open(str(path)) as file:
        (stream,) = file.streams.video
        times = [float(frame.pts * stream.time_base) for frame in file.decode(stream)]
    np.testing.assert_allclose(times, np.arange(LENGTH + 1) / fps, rtol=1e-12)


def test_no_frame_is_left_out_where_a_chunk_lacks_it(store: el.EpisodeStore) -> None:
    """Cells without a frame are no stream of packets, so decoding them says what is wrong."""
    episode = store[0]
    (column,) = (each for each in episode.schema.video if each.name == "observation.rgb")
    cells = episode._block.cells(column.name).slice(episode._start, LENGTH + 1).combine_chunks().to_pylist()
    head = [row for row, cell in enumerate(cells) if cell][1]
    chunk = Chunk.parse(memoryview(cells[head]))

    def damaged(row: int, cell: bytes | None) -> EncodedFrames:
        return EncodedFrames(
            pa.array([*cells[:row], cell, *cells[row + 1 :]], pa.large_binary()), column.image
        )

    assert damaged(0, cells[0]).stream() is not None
    fewer = (replace(chunk, packets=chunk.packets[:count]).to_bytes(column.image.size) for count in (2, 0))
    for row, cell in ((0, b""), (head, b""), (head + 1, None), *((head, each) for each in fewer)):
        assert damaged(row, cell).stream() is None
        if cell is not None:
            with pytest.raises(ValueError, match="row"):
                np.asarray(damaged(row, cell))


def test_other_frames_are_encoded_again(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Codecs that few browsers play, frames without loss, raw ones; and videos of some steps, or larger."""
    episode = store[0]
    for camera in OTHERS:
        shown = decoded(episode.video(column=camera).save(tmp_path / f"{camera}.mp4", scale=1))
        height, width = SHAPES[camera][:2]
        check_frames(
            shown[:, :height, :width, : SHAPES[camera][2]], camera, 0, range(LENGTH + 1), exact=False
        )
    some = decoded(episode.video(slice(3, 9), column="rgb").save(tmp_path / "some.mp4", scale=1))
    check_frames(some, "rgb", 0, range(3, 9), exact=False)
    assert decoded(episode.video(column="rgb").save(tmp_path / "large.mp4", scale=2)).shape[1:3] == (96, 128)
    exact = decoded(episode.video(column="rgb").save(tmp_path / "exact.mp4", lossless=True, scale=1))
    np.testing.assert_array_equal(exact, episode.observations["rgb"])


def test_a_notebook_shows_all_packets(
    store: el.EpisodeStore, undecoded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a long video, as long as they are small."""
    whole = store[0].video(column="rgb")._repr_html_()
    monkeypatch.setattr(videos, "SHOWN_FRAMES", 10)
    long = store[0].video(column="rgb")._repr_html_()
    assert long == whole and "every" not in Page(long).text and f"{LENGTH + 1} frames" in Page(long).text


@pytest.mark.parametrize("camera", PLAYED)
def test_browsers_get_packets_of_the_store(
    store: el.EpisodeStore, camera: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those from the keyframe before the first step on, of all row groups; the server decodes none of them,
    and each frame is there.
    """
    application = fastapi.FastAPI()
    add_frames(application)
    client = TestClient(application)
    sources = {source.name: source for source in frame_sources(store[0], replayed=False)}
    assert {name for name, source in sources.items() if source.props["encoded"]} == {*PLAYED}
    source = sources[camera]
    frames = store[0].observations[camera]
    frames = frames if frames.ndim == 4 else frames[..., None].repeat(3, -1)
    for first, rows in ((0, LENGTH + 1), (0, 5), (5, 9), (13, 3), (LENGTH, 4)):
        monkeypatch.setitem(source.props, "rows", rows)
        with monkeypatch.context() as patch:
            patch.setattr(ffmpeg, "decode", None)
            answer = client.get(f"{source.props['url']}/{first}?want=packets")
        assert answer.headers["cache-control"] == "no-store"
        steps = range(first, min(first + rows, LENGTH + 1))
        head, shown = opened(answer.content)
        assert head["codec"][:5] == ("av01." if camera == "rgb" else "avc1.")
        assert head["frames"][0]["key"] and head["frames"][0]["t"] <= first
        for t in steps:
            height, width = frames.shape[1:3]
            assert np.abs(shown[t][:height, :width].astype(int) - frames[t]).max() <= 2, t
    assert client.get(f"{source.props['url']}/{LENGTH + 1}?want=packets").status_code == 200
    url = source.props["url"]
    del source, sources
    gone = client.get(f"{url}/0?want=packets")
    assert (gone.status_code, gone.headers["cache-control"]) == (204, "no-store")


def opened(pack: bytes) -> tuple[dict[str, Any], dict[int, np.ndarray]]:
    """The head of a pack, and its frames by step, decoded from keyframe to keyframe as a browser does."""
    end = 4 + int.from_bytes(pack[:4], "little")
    head, shown = json.loads(pack[4:end]), {}
    if "codec" not in head:
        return head, shown
    decoder: Any = None
    for frame in [*head["frames"], None]:
        if decoder is not None and (frame is None or frame["key"]):
            shown |= {each.pts: each.to_ndarray(format="rgb24") for each in decoder.decode(None)}
        if frame is None:
            break
        if frame["key"]:
            decoder = av.CodecContext.create("libdav1d" if head["codec"].startswith("av01") else "h264", "r")
        packet = av.Packet(pack[end : end + frame["size"]])
        packet.pts = frame["t"]
        shown |= {each.pts: each.to_ndarray(format="rgb24") for each in decoder.decode(packet)}
        end += frame["size"]
    assert end == len(pack)
    return head, shown


@pytest.mark.parametrize(
    ("name", "pixels", "copied"),
    [
        ("h264 with B-frames", "yuv420p", True),
        ("av1", "yuv420p", True),
        ("hevc", "yuv420p", False),
        ("h264 with B-frames", "yuv444p", False),
    ],
)
def test_packets_of_files_go_on(tmp_path: Path, name: str, pixels: str, copied: bool) -> None:
    """Those that a camera wrote; codecs and colours that few browsers play are encoded, and have no file."""
    file = video_file(tmp_path / "camera.mp4", name, pixels=pixels)
    frames, column = el.frames_of(file), "observation.front"
    space = Dict({"front": Box(0, 255, frames.shape[1:], np.uint8)})
    made = written(
        tmp_path / "store", space, {"front": frames}, len(frames) - 1, encodings={column: el.Video("h264")}
    )
    (source,) = frame_sources(made[0], replayed=False)
    head, shown = opened(source.packed(1, want="packets"))
    assert ("codec" in head) == (name != "hevc")
    if copied:
        assert [shown[t].tolist() for t in range(1, len(frames))] == decoded(file)[1:].tolist()
    saved = decoded(made[0].video().save(tmp_path / "saved.mp4", scale=None if copied else 1))
    difference = np.abs(saved.astype(int) - decoded(file))
    assert difference.max() == 0 if copied else 0 < difference.mean() < 12


OPTIONS = {
    "no B-frames": "bframes=0",
    "B-frames": "bframes=3:b-adapt=0",
    "pyramid": "bframes=8:b-adapt=0:b-pyramid=normal",
    "many references": "bframes=3:b-adapt=0:ref=8",
    "slices": "bframes=2:b-adapt=0:slices=4",
}


@looped("options", OPTIONS.values())
def test_the_order_of_h264_is_that_of_a_decoder(options: str) -> None:
    """Also of groups in which the number of the order wraps around many times."""
    for count in (1, 7, 600):
        packets = encoded(count, options)
        order = h264_order.shown_order(packets)
        assert order is not None and order.tolist() == decoded_order(packets), count


def test_unusual_h264_is_left_to_a_decoder() -> None:
    """Interlaced pictures, packets without parameters, or with a second keyframe, and damage."""
    packets = encoded(9, "bframes=2:b-adapt=0")
    assert h264_order.shown_order(encoded(9, "interlaced=1")) is None
    assert h264_order.shown_order(packets[1:]) is None
    assert h264_order.shown_order(packets + packets) is None
    assert h264_order.shown_order([packets[0][:20]]) is None
    for size in range(1, 80):
        h264_order.shown_order([packets[0], packets[1][:size]])
    rng = np.random.default_rng(0)
    for _ in range(200):
        h264_order.shown_order([packets[0], *(rng.bytes(40) for _ in range(3))])


def encoded(count: int, options: str) -> list[bytes]:
    """A group of pictures, with start codes, from x264."""
    context = av.CodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = 64, 48, "yuv420p"
    context.time_base = Fraction(1, 30)
    own = f"keyint=1000:min-keyint=1000:scenecut=0:log-level=none:{options}"
    context.options = {"preset": "ultrafast", "x264-params": own}
    packets = []
    for t in range(count):
        frame = av.VideoFrame.from_ndarray(np.roll(PICTURE, 3 * t, axis=1), format="rgb24")
        frame.pts = t
        packets += context.encode(frame)
    return [bytes(packet) for packet in (*packets, *context.encode(None))]


def decoded_order(packets: list[bytes]) -> list[int]:
    """The place at which the frame of each packet is shown, as a decoder has it."""
    context = av.CodecContext.create("h264", "r")
    context.thread_count = 1
    shown = []
    for number, data in enumerate([*packets, None]):
        packet = None if data is None else av.Packet(data)
        if packet is not None:
            packet.pts = number
        shown += [frame.pts for frame in context.decode(packet)]
    assert sorted(shown) == [*range(len(packets))]
    return np.argsort(shown).tolist()


PICTURE = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
