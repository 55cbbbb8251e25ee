"""`frames_of`: video files beside arrays, written as they are encoded or decoded."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from effort import with_folders
from episodelake.store.frames.chunks import Chunk
from episodelake.testing.adapters import case
from test_exchange_lerobot_video import ENCODERS, HEIGHT, WIDTH, decoded, encode, packets, pictures

COUNT = 21
IMAGE = spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
ACTION = spaces.Box(-1, 1, (1,), np.float32)
STATE = spaces.Box(-1, 1, (2,), np.float32)


def video(file: Path, name: str = "h264 with B-frames", count: int = COUNT, **more: Any) -> Path:
    """A video file."""
    encoder, _, options = ENCODERS[name]
    return encode(file, pictures(count), encoder, options, **more)


def written(path: Path, space: spaces.Space, observations: Any, length: int, **more: Any) -> el.EpisodeStore:
    """A store with an episode of T actions."""
    encodings = more.pop("encodings", None)
    store = el.create(path, observation_space=space, action_space=ACTION, encodings=encodings)
    with store.writer() as writer:
        writer.write_episode(
            observations=observations,
            actions=np.zeros((length, 1), np.float32),
            rewards=np.zeros(length),
            terminations=False,
            truncations=True,
            **more,
        )
    return store.refresh()


def chunks(store: el.EpisodeStore, column: str) -> list[Chunk]:
    """The chunks of a column, which has no raw frames."""
    cells = store.steps.select(column).collect()[column]
    return [Chunk.parse(memoryview(cell)) for cell in cells if cell]


def test_a_file_is_like_an_array(tmp_path: Path) -> None:
    """Shape, dtype, single frames, slices, lists and all frames are those that PyAV decodes."""
    for folder, (suffix, name) in with_folders(itertools.product(["mp4", "mkv"], ENCODERS), tmp_path):
        with case((suffix, name)):
            file = video(folder / f"a.{suffix}", name)
            frames, whole = el.frames_of(file), decoded(file)
            assert (frames.shape, frames.dtype, frames.ndim, len(frames)) == (whole.shape, np.uint8, 4, COUNT)
            assert np.array_equal(np.asarray(frames), whole)
            for key in (
                0,
                7,
                -1,
                slice(3, 12, 4),
                slice(None, None, -1),
                [5, 2, 5],
                np.arange(COUNT) % 3 == 0,
            ):
                assert np.array_equal(frames[key], whole[key])
            assert all(np.array_equal(one, other) for one, other in zip(frames, whole, strict=True))
            with pytest.raises(IndexError):
                frames[COUNT]


def test_grey_video_has_one_channel(tmp_path: Path) -> None:
    """Where FFmpeg decodes it as grey, as HEVC; H.264 becomes three channels."""
    file = video(tmp_path / "a.mp4", "hevc", pixels="gray")
    assert np.array_equal(np.asarray(el.frames_of(file)), decoded(file, "gray"))
    other = video(tmp_path / "b.mp4", pixels="gray")
    assert np.array_equal(np.asarray(el.frames_of(other)), decoded(other))


def _exp_golomb(number: int) -> str:
    digits = f"{number + 1:b}"
    return "0" * (len(digits) - 1) + digits


def _undelayed(unit: bytes, depth: int, held: int) -> bytes:
    """Parameters of H.264 that deny a delay of `depth` frames."""
    bits = "".join(f"{byte:08b}" for byte in unit[1:].replace(b"\0\0\3", b"\0\0")).rstrip("0")
    end = f"{_exp_golomb(depth)}{_exp_golomb(held)}1"
    assert bits.endswith(end)
    bits = bits.removesuffix(end) + f"{_exp_golomb(0)}{_exp_golomb(held)}1"
    data = int(bits + "0" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8))
    return unit[:1] + re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", data)


def test_headers_with_a_wrong_delay_are_not_trusted(tmp_path: Path) -> None:
    """FFmpeg plays the file, but a decoder of its packets alone would leave frames out."""
    options = {"g": "250", "x264-params": "bframes=2:b-pyramid=none:b-adapt=0:ref=1"}
    whole = encode(tmp_path / "a.mp4", pictures(10), "libx264", options)
    with av.open(str(whole)) as source, av.open(str(tmp_path / "b.mp4"), "w") as target:
        packed = source.streams.video[0]
        extra = bytes(packed.codec_context.extradata)
        middle = 8 + int.from_bytes(extra[6:8])
        sequence, picture = extra[8:middle], extra[middle + 3 :]
        picture = picture[: int.from_bytes(extra[middle + 1 : middle + 3])]
        head = b"".join(b"\0\0\1" + each for each in (_undelayed(sequence, 1, 2), picture))
        stream: Any = target.add_mux_stream("h264", rate=30, width=WIDTH, height=HEIGHT)
        stream.time_base = packed.time_base
        for packet in source.demux(packed):
            if not packet.size:
                continue
            data, units = bytes(packet), []
            while data:
                size = int.from_bytes(data[:4])
                units.append(data[4 : 4 + size])
                data = data[4 + size :]
            copied = av.Packet(
                (head if packet.is_keyframe else b"") + b"".join(b"\0\0\1" + each for each in units)
            )
            copied.stream, copied.time_base = stream, packet.time_base
            copied.pts, copied.dts, copied.is_keyframe = packet.pts, packet.dts, packet.is_keyframe
            target.mux(copied)
    expected = decoded(tmp_path / "b.mp4")
    assert len(expected) == 10
    frames = el.frames_of(tmp_path / "b.mp4")
    assert np.array_equal(np.asarray(frames), expected)


def test_other_codecs_are_decoded(tmp_path: Path) -> None:
    """MPEG-4, which no chunk has."""
    file = encode(tmp_path / "a.mp4", pictures(9), "mpeg4", {"g": "4", "qscale": "2"})
    assert np.array_equal(np.asarray(el.frames_of(file)), decoded(file))


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_frames_of_any_times_stay_in_order(tmp_path: Path, suffix: str) -> None:
    """A variable frame rate; frames are not located by time."""
    file = video(tmp_path / f"a.{suffix}", times=[number * number for number in range(COUNT)])
    assert np.array_equal(np.asarray(el.frames_of(file)), decoded(file))


def test_files_that_are_no_video_are_refused(tmp_path: Path) -> None:
    """Text, audio alone, a missing file, one that is cut: each error has the path."""
    text, audio, cut = (tmp_path / name for name in ("text.mp4", "audio.mp4", "cut.mp4"))
    text.write_text("no video at all")
    with av.open(str(audio), "w") as box:
        stream: Any = box.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    cut.write_bytes(video(tmp_path / "a.mp4").read_bytes()[:900])
    for file, message in (
        (text, "is no MP4 or Matroska file"),
        (audio, "has no video, only 1 other streams"),
        (cut, "cannot be decoded"),
    ):
        with pytest.raises(el.errors.DatasetError, match=message) as caught:
            el.frames_of(file)
        assert str(file) in str(caught.value)
    with pytest.raises(el.errors.DatasetError, match="missing"):
        el.frames_of(tmp_path / "missing.mp4")


@pytest.mark.parametrize("last", ["present", "missing"])
def test_an_encoded_store_takes_packets_over(tmp_path: Path, last: Any) -> None:
    """In a nested Dict beside arrays, whatever codec new frames have."""
    file = video(tmp_path / "a.mp4")
    space = spaces.Dict({"cameras": spaces.Dict({"front": IMAGE, "side": IMAGE}), "state": STATE})
    length = COUNT - (last == "present")
    store = written(
        tmp_path / "store",
        space,
        {
            "cameras": {"front": el.frames_of(file), "side": np.stack(pictures(COUNT, 1))},
            "state": np.zeros((COUNT, 2), np.float32),
        },
        length,
        encodings={"observation.cameras.front": el.Video("av1")},
        last_observation=last,
    )
    cameras = store[0].observations["cameras"]
    assert np.array_equal(cameras["front"], decoded(file))
    assert np.array_equal(cameras["side"], np.stack(pictures(COUNT, 1)))
    found = chunks(store, "observation.cameras.front")
    assert {chunk.codec for chunk in found} == {"h264"}
    assert {bytes(packet) for chunk in found for packet in chunk.packets} <= packets(file)
    assert (store[0].length, store[0].has_last_observation) == (length, last == "present")
    assert not store.verify().faults


def test_frames_may_be_the_whole_observation(tmp_path: Path) -> None:
    """The column `observation`, encoded and raw."""
    file = video(tmp_path / "a.mkv", "av1")
    encoded = written(
        tmp_path / "encoded",
        IMAGE,
        el.frames_of(file),
        COUNT - 1,
        encodings={"observation": el.Video("h264")},
    )
    raw = written(tmp_path / "raw", IMAGE, el.frames_of(file), COUNT - 1)
    assert {chunk.codec for chunk in chunks(encoded, "observation")} == {"av1"}
    for store in (encoded, raw):
        assert np.array_equal(store[0].observations, decoded(file))
        assert not store.verify().faults
    assert raw.handle.manifest.format_version == 1


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Another number of frames, another size of them; the store stays empty and usable."""
    file = video(tmp_path / "a.mp4")
    small = spaces.Box(0, 255, (HEIGHT, WIDTH // 2, 3), np.uint8)
    for number, (space, length) in enumerate(((IMAGE, COUNT), (IMAGE, COUNT - 2), (small, COUNT - 1))):
        for encodings in (None, {"observation.front": el.Video("h264")}):
            path = tmp_path / f"{number}-{encodings is None}"
            given = {"front": el.frames_of(file)}
            with pytest.raises(el.errors.SpaceMismatchError):
                written(path, spaces.Dict({"front": space}), given, length, encodings=encodings)
            assert len(el.open(path)) == 0


def test_frames_survive_a_flush(tmp_path: Path) -> None:
    """Chunks in the journal, which a recovery seals."""
    file = video(tmp_path / "a.mp4")
    store = el.create(
        tmp_path / "store",
        observation_space=IMAGE,
        action_space=ACTION,
        encodings={"observation": el.Video("h264")},
    )
    with store.writer() as writer:
        for _ in range(3):
            writer.write_episode(
                observations=el.frames_of(file),
                actions=np.zeros((COUNT - 1, 1), np.float32),
                rewards=np.zeros(COUNT - 1),
                terminations=False,
                truncations=True,
            )
            writer.flush()
    store.refresh()
    for episode in store:
        assert np.array_equal(episode.observations, decoded(file))
    assert not store.verify().faults


def test_packets_that_a_decoder_would_show_otherwise_are_not_copied(tmp_path: Path) -> None:
    """Intra refresh marks frames as keyframes from which a decoder does not show every frame."""
    options = {"preset": "veryfast", "x264-params": "intra-refresh=1:keyint=16:log-level=none"}
    file = encode(tmp_path / "a.mp4", pictures(60), "libx264", options)
    frames, whole = el.frames_of(file), decoded(file)
    assert np.array_equal(np.asarray(frames), whole)
    assert all(np.array_equal(frames[row], whole[row]) for row in range(60))


def test_colours_that_only_the_container_states_are_kept(tmp_path: Path) -> None:
    """Frames of a file in full range, whose packets do not say so, are those that PyAV decodes."""
    plain, full = video(tmp_path / "a.mkv"), tmp_path / "b.mkv"
    with av.open(str(plain)) as source, av.open(str(full), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        stream.codec_context.color_range = 2
        for packet in source.demux(video=0):
            if packet.pts is not None:
                packet.stream = stream
                target.mux(packet)
    assert np.array_equal(np.asarray(el.frames_of(full)), decoded(full))


@pytest.mark.further
def test_row_groups_of_long_copied_chunks_begin_with_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks reach over the tables that a segment is written from."""
    from episodelake.store.segments import steps_file

    monkeypatch.setattr(steps_file, "GROUP_BYTES", 40_000)
    monkeypatch.setattr(steps_file, "_PICTURES_BYTES", 40_000)
    options = {"preset": "veryfast", "x264-params": "keyint=50:min-keyint=50:scenecut=0:log-level=none"}
    file = encode(tmp_path / "a.mp4", pictures(301), "libx264", options)
    encodings = {"observation": el.Video("h264")}
    store = written(tmp_path / "store", IMAGE, el.frames_of(file), 300, encodings=encodings)
    assert store.verify().ok
    loader = store.loader(16, columns=["observation", "t"], cache=el.Cache("mmap", folder=tmp_path / "cache"))
    whole = decoded(file)
    for batch in loader:
        assert np.array_equal(batch["observation"], whole[batch["t"]])
