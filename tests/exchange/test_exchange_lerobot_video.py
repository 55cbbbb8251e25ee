"""Videos of LeRobot datasets: packets are copied where an episode begins at a keyframe."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.store.frames.chunks import Chunk
from episodelake.store.frames.ffmpeg import open_encoder
from test_exchange_lerobot_files import CAMERA, cameras, v3
from waiting import PATIENCE

HEIGHT, WIDTH = 48, 64
COLUMN = "observation.images.top"
FEATURE = {CAMERA: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]}}
AGAIN = f"frames of {CAMERA} that cannot be copied, and are encoded again"
LENGTHS = (5, 1, 2, 8, 7, 1, 16)
STARTS = np.cumsum([0, *LENGTHS])
QUIET = "log-level=none"

#: Encoders and their options, each with the codec of the column.
ENCODERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "h264 as LeRobot has it": ("libx264", "h264", {"g": "2", "crf": "30"}),
    "h264 with B-frames": ("libx264", "h264", {"g": "16", "bf": "3", "x264-params": "b-adapt=0:scenecut=0"}),
    "h264 with a pyramid": ("libx264", "h264", {"g": "250", "bf": "8", "x264-params": "b-pyramid=normal"}),
    "hevc": ("libx265", "hevc", {"g": "8", "x265-params": f"{QUIET}:open-gop=0"}),
    "av1": ("libsvtav1", "av1", {"g": "2", "crf": "30", "preset": "10"}),
}


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    """Pictures that move, 96 of them unlike each other."""
    first = np.random.default_rng(seed).integers(0, 255, (HEIGHT // 8, WIDTH // 8, 3)).astype(np.uint8)
    first = first.repeat(8, 0).repeat(8, 1)
    return [np.roll(first, (number, 2 * number), (0, 1)) for number in range(count)]


def encode(
    file: Path,
    frames: Sequence[np.ndarray],
    encoder: str = "libx264",
    options: dict[str, str] | None = None,
    keys: Collection[int] = (),
    pixels: str = "yuv420p",
    times: Sequence[int] | None = None,
) -> Path:
    """Write a video.

    Args:
        keys: frames that are keyframes whatever the encoder chooses.
        times: of the frames, in units of 1/30 s.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as box:
        stream: Any = box.add_stream(encoder, rate=30, options=options or {})
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], pixels
        open_encoder(stream.codec_context)
        for number, picture in enumerate(frames):
            frame: Any = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, 30)
            if number in keys:
                frame.pict_type = av.video.frame.PictureType.I
            box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    return file


def decoded(file: Path, form: str = "rgb24") -> np.ndarray:
    """All frames of a video as PyAV decodes them."""
    with av.open(str(file)) as box:
        frames = [frame.to_ndarray(format=form) for frame in box.decode(video=0)]
    return np.stack(frames).reshape(len(frames), HEIGHT, WIDTH, -1)


def packets(*files: Path) -> set[bytes]:
    """All packets of videos."""
    found = set()
    for file in files:
        with av.open(str(file)) as box:
            found |= {bytes(packet) for packet in box.demux(video=0) if packet.size}
    return found


def video_of(root: Path, suffix: str = "mp4") -> Path:
    """The file of a dataset with one."""
    return root / f"videos/{CAMERA}/chunk-000/file-000.{suffix}"


def dataset(root: Path, make: Callable[[Path], Any], suffix: str = "mp4", **more: Any) -> Path:
    """A dataset v3.0 with all episodes in one video."""
    path = f"videos/{{video_key}}/chunk-{{chunk_index:03d}}/file-{{file_index:03d}}.{suffix}"
    rows = cameras(LENGTHS, (STARTS[:-1] / 30).tolist())
    given = {"features": FEATURE, "video_path": path, **more}
    v3(root, LENGTHS, ([*range(len(LENGTHS))],), rows=rows, **given)
    make(video_of(root, suffix))
    return root


def shared(encoder: str, options: dict[str, str], **more: Any) -> Callable[[Path], Path]:
    """A video of all episodes, each of which begins with a keyframe."""
    starts = {*STARTS[:-1].tolist()}
    return lambda file: encode(file, pictures(int(STARTS[-1])), encoder, options, starts, **more)


def v21(root: Path, encoder: str, options: dict[str, str]) -> Path:
    """A dataset v2.1 with a file for each episode."""
    v3(root, LENGTHS, [[number] for number in range(len(LENGTHS))], features=FEATURE)
    lines = []
    for number, length in enumerate(LENGTHS):
        rows = root / f"data/chunk-000/file-{number:03d}.parquet"
        rows.rename(rows.with_name(f"episode_{number:06d}.parquet"))
        encode(
            root / f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4",
            pictures(length, number),
            encoder,
            options,
        )
        lines.append(json.dumps({"episode_index": number, "tasks": [], "length": length}))
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    paths = {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    change(root, codebase_version="v2.1", **paths)
    return root


def change(root: Path, **values: Any) -> None:
    """Change entries of `meta/info.json`."""
    file = root / "meta/info.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def brought(root: Path, into: Path, **options: Any) -> tuple[el.EpisodeStore, Any]:
    """Import a dataset; the store, and the report."""
    report = el.import_dataset(root, into, **{"last_observation": "missing", **options})
    return el.open(into), report


def seen(store: el.EpisodeStore) -> list[np.ndarray]:
    """The frames of each episode."""
    return [episode.observations["images"]["top"] for episode in store]


def chunks(store: el.EpisodeStore) -> list[Chunk]:
    """The chunks of the column in the order of the store; raw frames are none."""
    cells = store.steps.sort("episode_id", "t").select(COLUMN).collect()[COLUMN]
    raw = HEIGHT * WIDTH * 3
    return [Chunk.parse(memoryview(cell)) for cell in cells if cell and len(cell) != raw]


def is_copied(store: el.EpisodeStore, *files: Path) -> bool:
    """Whether every chunk has packets of these files alone."""
    found = {bytes(packet) for chunk in chunks(store) for packet in chunk.packets}
    return bool(found) and found <= packets(*files)


def by_episode(frames: np.ndarray) -> list[np.ndarray]:
    """Frames of one video by episode."""
    return [frames[start:stop] for start, stop in itertools.pairwise(STARTS)]


def same(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> list[bool]:
    """Which arrays are equal."""
    return [np.array_equal(one, other) for one, other in zip(left, right, strict=True)]


@pytest.mark.sample
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("name", ENCODERS)
def test_packets_are_copied_from_a_file_of_many_episodes(tmp_path: Path, name: str, suffix: str) -> None:
    """Frames are those that PyAV decodes, bit for bit; no loss of frames; a second import adds nothing."""
    encoder, codec, options = ENCODERS[name]
    root = dataset(tmp_path / "ds", shared(encoder, options), suffix)
    store, report = brought(root, tmp_path / "store")
    assert not [lost for lost in report.lost if "frames" in lost]
    assert all(same(seen(store), by_episode(decoded(video_of(root, suffix)))))
    assert is_copied(store, video_of(root, suffix))
    assert {chunk.codec for chunk in chunks(store)} == {codec}
    assert not store.verify().faults
    again = el.import_dataset(root, store, last_observation="missing")
    assert (again.episodes, again.present) == (0, len(LENGTHS))


@pytest.mark.parametrize("name", ["h264 with B-frames", "av1"])
def test_packets_are_copied_from_a_file_per_episode(tmp_path: Path, name: str) -> None:
    """Version 2.1."""
    encoder, codec, options = ENCODERS[name]
    root = v21(tmp_path / "ds", encoder, options)
    change(root, features={**json.loads((root / "meta/info.json").read_text())["features"], **stated(codec)})
    store, report = brought(root, tmp_path / "store")
    files = sorted(root.rglob("*.mp4"))
    assert AGAIN not in report.lost and is_copied(store, *files)
    assert all(same(seen(store), [decoded(file) for file in files]))
    assert store.handle.manifest.encodings == {COLUMN: el.Video(codec)}


def two_encoders(file: Path) -> Path:
    """A video of all episodes; keyframes of its second half have the parameters of another encoder."""
    whole, middle = pictures(int(STARTS[-1])), int(STARTS[4])
    halves = [
        encode(file.with_name("a.mp4"), whole[:middle], "libx264", {"g": "4", "bf": "0"}, STARTS.tolist()),
        encode(
            file.with_name("b.mp4"),
            whole[middle:],
            "libx264",
            {"g": "4", "bf": "0", "x264-params": "ref=4:cabac=0:no-8x8dct=1"},
            (STARTS - middle).tolist(),
        ),
    ]
    with av.open(str(halves[0])) as first, av.open(str(halves[1])) as second, av.open(str(file), "w") as box:
        stream: Any = box.add_stream_from_template(first.streams.video[0])
        ticks = int(1 / (30 * first.streams.video[0].time_base))
        extra = bytes(second.streams.video[0].codec_context.extradata)
        behind = 8 + int.from_bytes(extra[6:8])
        size = int.from_bytes(extra[behind + 1 : behind + 3])
        units = extra[8:behind], extra[behind + 3 : behind + 3 + size]
        parameters = b"".join(len(unit).to_bytes(4) + unit for unit in units)
        for half, start in ((first, 0), (second, middle)):
            for packet in half.demux(video=0):
                if not packet.size:
                    continue
                has = half is second and packet.is_keyframe
                copied: Any = av.Packet((parameters if has else b"") + bytes(packet))
                copied.stream, copied.time_base = stream, packet.time_base
                copied.pts, copied.dts = packet.pts + start * ticks, packet.dts + start * ticks
                copied.is_keyframe = packet.is_keyframe
                box.mux(copied)
    for half in halves:
        half.unlink()
    return file


def test_a_file_of_two_encoders_shows_what_a_player_shows(tmp_path: Path) -> None:
    """Packets are copied from both."""
    root = dataset(tmp_path / "ds", two_encoders)
    store, _ = brought(root, tmp_path / "store")
    assert all(same(seen(store), by_episode(decoded(video_of(root)))))
    assert is_copied(store, video_of(root))


def stated(codec: str) -> dict[str, Any]:
    """The feature with the codec that LeRobot states."""
    return {CAMERA: {**FEATURE[CAMERA], "info": {"video.codec": codec}}}


@pytest.mark.parametrize(
    ("options", "copied"),
    [
        ({"g": "8", "bf": "3", "x264-params": "scenecut=0:b-adapt=0"}, [0, 3, 4, 6]),
        ({"g": "8", "bf": "3", "x264-params": "scenecut=0:b-adapt=0:open-gop=1"}, [0]),
    ],
)
def test_episodes_that_begin_elsewhere_are_encoded_again(
    tmp_path: Path, options: dict[str, str], copied: list[int]
) -> None:
    """The report counts their frames by feature; these are near, and those of the others exact."""
    root = dataset(tmp_path / "ds", lambda file: encode(file, pictures(int(STARTS[-1])), options=options))
    store, report = brought(root, tmp_path / "store")
    whole = by_episode(decoded(video_of(root)))
    assert [number for number, equal in enumerate(same(seen(store), whole)) if equal] == copied
    assert report.lost[AGAIN] == sum(LENGTHS) - sum(LENGTHS[number] for number in copied)
    for ours, theirs in zip(seen(store), whole, strict=True):
        assert np.abs(ours.astype(int) - theirs).mean() < 20
    assert not store.verify().faults


def test_codecs_that_chunks_do_not_have_are_encoded_again(tmp_path: Path) -> None:
    """MPEG-4 becomes H.264."""
    root = dataset(tmp_path / "ds", shared("mpeg4", {"g": "2", "qscale": "2"}))
    store, report = brought(root, tmp_path / "store")
    assert report.lost[AGAIN] == sum(LENGTHS)
    assert {chunk.codec for chunk in chunks(store)} == {"h264"}
    for ours, theirs in zip(seen(store), by_episode(decoded(video_of(root))), strict=True):
        assert np.abs(ours.astype(int) - theirs).mean() < 20


@pytest.mark.parametrize("rate", [29.3, 30.9])
def test_a_clock_that_is_off_moves_no_frame(tmp_path: Path, rate: float) -> None:
    """Row i has frame i of its episode, copied."""
    clocks = [np.arange(length) / rate + 0.004 for length in LENGTHS]
    encoder, _, options = ENCODERS["h264 with B-frames"]
    root = dataset(tmp_path / "ds", shared(encoder, options), times=clocks)
    store, report = brought(root, tmp_path / "store")
    assert AGAIN not in report.lost
    assert all(same(seen(store), by_episode(decoded(video_of(root)))))


def test_every_second_frame_is_encoded_again(tmp_path: Path) -> None:
    """Rows that lack a frame in between cannot have its packet."""
    encoder, _, options = ENCODERS["h264 as LeRobot has it"]
    root = v3(
        tmp_path / "ds",
        (8,),
        ([0],),
        rows=cameras((8,), (0.0,)),
        times=[np.arange(8) / 15],
        features=FEATURE,
    )
    encode(video_of(root), pictures(16), encoder, options)
    store, report = brought(root, tmp_path / "store")
    assert report.lost[AGAIN] == 8
    assert np.abs(seen(store)[0].astype(int) - decoded(video_of(root))[::2]).mean() < 20


def test_grey_videos_have_one_channel(tmp_path: Path) -> None:
    """Their packets are copied as well."""
    feature = {CAMERA: {**FEATURE[CAMERA], "shape": [HEIGHT, WIDTH, 1]}}
    make = shared("libx264", {"g": "4"}, pixels="gray")
    root = dataset(tmp_path / "ds", make, features=feature)
    store, report = brought(root, tmp_path / "store")
    assert AGAIN not in report.lost and is_copied(store, video_of(root))
    assert all(same(seen(store), by_episode(decoded(video_of(root), "gray"))))


def small(root: Path) -> Path:
    """A dataset whose packets are copied."""
    encoder, _, options = ENCODERS["h264 with B-frames"]
    return dataset(root, shared(encoder, options))


def store_for(path: Path, root: Path, **encodings: el.Video) -> el.EpisodeStore:
    """An empty store with the spaces of a dataset."""
    source = el.import_dataset(root, path.with_name("never"), dry_run=True)
    given = {f"observation.images.{name}": each for name, each in encodings.items()}
    return el.create(
        path,
        observation_space=source.observation_space,
        action_space=source.action_space,
        encodings=given or None,
    )


def test_a_store_of_raw_frames_decodes(tmp_path: Path) -> None:
    """It keeps format 1, and frames are exact."""
    root = small(tmp_path / "ds")
    store_for(tmp_path / "store", root)
    store, report = brought(root, tmp_path / "store")
    assert json.loads((tmp_path / "store/store.json").read_text())["format"] == 1
    assert report.lost["frames of lossy video"] == sum(LENGTHS) and AGAIN not in report.lost
    assert not chunks(store)
    assert all(same(seen(store), by_episode(decoded(video_of(root)))))


def test_a_store_with_other_encodings_takes_the_packets(tmp_path: Path) -> None:
    """Encodings are for frames that have to be encoded."""
    root = small(tmp_path / "ds")
    store_for(tmp_path / "store", root, top=el.Video("av1"))
    store, report = brought(root, tmp_path / "store")
    assert AGAIN not in report.lost and is_copied(store, video_of(root))
    assert {chunk.codec for chunk in chunks(store)} == {"h264"}
    assert all(same(seen(store), by_episode(decoded(video_of(root)))))


def test_encodings_of_a_new_store_are_chosen(tmp_path: Path) -> None:
    """Raw frames in format 1, or another codec; an interrupted import is resumed with the same ones alone."""
    root = small(tmp_path / "ds")
    whole = by_episode(decoded(video_of(root)))
    raw, report = brought(root, tmp_path / "raw", encodings={})
    assert raw.handle.manifest.format_version == 1 and report.lost["frames of lossy video"] == sum(LENGTHS)
    other, report = brought(root, tmp_path / "other", encodings={COLUMN: el.Video(lossless=True)})
    assert other.handle.manifest.encodings == {COLUMN: el.Video(lossless=True)} and AGAIN not in report.lost
    assert is_copied(other, video_of(root))
    for store in (raw, other):
        assert all(same(seen(store), whole))
    last = root / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(last)
    pq.write_table(rows.slice(0, len(rows) - 1), last)
    for chosen in ({}, {COLUMN: el.Video("av1")}):
        with pytest.raises(el.errors.DatasetError, match="rows of episode 6"):
            el.import_dataset(root, tmp_path / "store", last_observation="missing", encodings=chosen)
    assert len([path for path in tmp_path.iterdir() if "importing" in path.name]) == 2


def test_encodings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """Before anything is written; a store that is there has its own."""
    root = small(tmp_path / "ds")
    given: Any
    for given, message in (
        ({"observation.state": el.Video()}, "no column of frames"),
        ({COLUMN: "h264"}, r"is str; expected episodelake\.Video"),
        ([COLUMN], "expected a mapping from columns"),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            el.import_dataset(root, tmp_path / "store", last_observation="missing", encodings=given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds"]
    store, _ = brought(root, tmp_path / "store")
    with pytest.raises(el.errors.InvalidArgumentError, match="is for a new store"):
        el.import_dataset(root, store, last_observation="missing", encodings={})
    own = store.handle.manifest.encodings
    assert el.import_dataset(root, store, last_observation="missing", encodings=own).episodes == 0


def test_last_observations_are_dropped_or_repeated_exactly(tmp_path: Path) -> None:
    """The repeated frame is equal to the one before, though its packet cannot be copied."""
    root = small(tmp_path / "ds")
    whole = by_episode(decoded(video_of(root)))
    dropped, report = brought(root, tmp_path / "dropped", last_observation="drop")
    kept = [frames for frames in whole if len(frames) > 1]
    assert AGAIN not in report.lost and all(same(seen(dropped), kept))
    repeated, report = brought(root, tmp_path / "repeated", last_observation="repeat")
    assert AGAIN not in report.lost
    assert all(same(seen(repeated), [np.concatenate([frames, frames[-1:]]) for frames in whole]))
    for store in (dropped, repeated):
        assert not store.verify().faults


def test_a_dry_run_writes_nothing_and_shows_the_first_frames(tmp_path: Path) -> None:
    """Its losses are those of the first episode."""
    options = {"g": "8", "bf": "3", "x264-params": "scenecut=0:b-adapt=0"}
    root = dataset(tmp_path / "ds", lambda file: encode(file, pictures(int(STARTS[-1])), options=options))
    report = el.import_dataset(root, tmp_path / "store", last_observation="missing", dry_run=True)
    assert report.preview is not None and report.preview[COLUMN][0].startswith(b"EPF1")
    assert AGAIN not in report.lost and not (tmp_path / "store").exists()


@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (HEIGHT, WIDTH, 1)])
def test_a_space_of_the_caller_takes_packets(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Grey frames with and without an axis of channels."""
    feature = {CAMERA: {**FEATURE[CAMERA], "shape": [HEIGHT, WIDTH, 1]}}
    root = dataset(tmp_path / "ds", shared("libx264", {"g": "4"}, pixels="gray"), features=feature)
    space = spaces.Dict(
        {
            "images": spaces.Dict({"top": spaces.Box(0, 255, shape, np.uint8)}),
            "state": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        }
    )
    store, report = brought(root, tmp_path / "store", observation_space=space)
    whole = by_episode(decoded(video_of(root), "gray"))
    assert AGAIN not in report.lost and is_copied(store, video_of(root))
    assert all(same(seen(store), [frames.reshape(-1, *shape) for frames in whole]))


def test_a_space_of_the_caller_without_frames_takes_decoded_ones(tmp_path: Path) -> None:
    """Numbers of another dtype are no video; the store keeps format 1."""
    root = small(tmp_path / "ds")
    whole = by_episode(decoded(video_of(root)))
    floats = spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.float32)
    state = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    space = spaces.Dict({"images": spaces.Dict({"top": floats}), "state": state})
    store, report = brought(root, tmp_path / "floats", observation_space=space, cast="safe")
    assert all(same(seen(store), whole)) and store.handle.manifest.format_version == 1
    assert report.lost["frames of lossy video"] == sum(LENGTHS)


@pytest.mark.further
def test_an_import_that_was_killed_goes_on(tmp_path: Path) -> None:
    """The journal has chunks that were copied; nothing is imported twice."""
    root = small(tmp_path / "ds")
    code = f"""
import os
import episodelake as el
from episodelake.exchange.lerobot.videos import OpenVideos
copied, calls = OpenVideos.copied, []
def killed(*args, **options):
    calls.append(args)
    if len(calls) == 5:
        os._exit(9)
    return copied(*args, **options)
OpenVideos.copied = killed
el.import_dataset({str(root)!r}, {str(tmp_path / "store")!r}, last_observation="missing")
"""
    process = subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, env={**os.environ})
    assert process.returncode == 9 and not (tmp_path / "store").exists()
    store, report = brought(root, tmp_path / "store")
    assert report.episodes == len(LENGTHS)
    assert all(same(seen(store), by_episode(decoded(video_of(root)))))
    assert is_copied(store, video_of(root)) and not store.verify().faults
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "store"]


def test_a_changed_video_is_noticed(tmp_path: Path) -> None:
    """Other packets are another content."""
    root = small(tmp_path / "ds")
    store, _ = brought(root, tmp_path / "store")
    video_of(root).unlink()
    encoder, _, options = ENCODERS["h264 as LeRobot has it"]
    shared(encoder, options)(video_of(root))
    with pytest.raises(el.errors.DatasetError, match="episodes with other values"):
        el.import_dataset(root, store, last_observation="missing")
    report = el.import_dataset(root, store, last_observation="missing", on_changed="replace")
    assert report.replaced == len(LENGTHS)
    assert all(same(seen(store), by_episode(decoded(video_of(root)))))


def test_two_cameras_of_which_one_is_copied(tmp_path: Path) -> None:
    """Each column is what its video allows."""
    other = "observation.images.side"
    starts = (STARTS[:-1] / 30).tolist()
    rows = cameras(LENGTHS, starts)
    for row in rows:
        row.update({key.replace(CAMERA, other): value for key, value in [*row.items()]})
    root = v3(
        tmp_path / "ds",
        LENGTHS,
        ([*range(len(LENGTHS))],),
        rows=rows,
        features={**FEATURE, other: FEATURE[CAMERA]},
    )
    shared("libsvtav1", ENCODERS["av1"][2])(video_of(root))
    side = root / f"videos/{other}/chunk-000/file-000.mp4"
    shared("mpeg4", {"g": "2", "qscale": "2"})(side)
    store, report = brought(root, tmp_path / "store")
    assert report.lost[AGAIN.replace(CAMERA, other)] == sum(LENGTHS) and AGAIN not in report.lost
    assert all(same(seen(store), by_episode(decoded(video_of(root)))))
    for episode, theirs in zip(store, by_episode(decoded(side)), strict=True):
        assert np.abs(episode.observations["images"]["side"].astype(int) - theirs).mean() < 20
    assert not store.verify().faults
