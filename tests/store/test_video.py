"""Stores whose cameras are video: every way in and every way out gives the frames of a plain loop.

Each frame names its camera, episode and step in large blocks, so a lossy codec still tells which it is.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el
from effort import some, with_folders
from episodelake.readers.blocks import SegmentFile
from episodelake.readers.columns import step_arrays
from episodelake.store.frames import EncodedFrames, ImageShape, VideoColumn, ffmpeg, video_column
from episodelake.store.rewrite import rows as rewriting
from episodelake.store.segments import steps_file
from episodelake.store.spaces import fixed
from episodelake.testing.adapters import case
from video_reader import read_column, row_groups
from video_stores import (
    CODECS,
    ENCODINGS,
    LENGTHS,
    NUMBERS,
    SHAPES,
    Cameras,
    Team,
    arrays_of,
    check_episode,
    check_frame,
    check_frames,
    frame_of,
    new_store,
    play,
    recorded_store,
    seen,
)

#: The cameras of tests that try many operations: a codec with odd sides, one without loss, and raw frames.
FEW = {name: SHAPES[name] for name in ("odd", "exact", "raw")}


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a few rows, so that longer episodes span several."""
    monkeypatch.setattr(steps_file, "GROUP_ROWS", 8)
    monkeypatch.setattr(rewriting, "GROUP_ROWS", 5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Episodes of all cameras, in row groups of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_file, "GROUP_ROWS", 8)
        made = recorded_store(tmp_path_factory.mktemp("video") / "store")
    (file,) = (made.path / "steps").glob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups > 3
    return made


def check_cells(store: el.EpisodeStore, cameras: Any = SHAPES) -> None:
    """Fail unless a reader of docs/format.md finds the frames that the library decodes."""
    episodes = {episode.id: episode for episode in store}
    for column in ENCODINGS:
        camera = column.partition(".")[2]
        if camera in cameras:
            found = read_column(Path(store.path), column, SHAPES[camera])
            assert len(found) == sum(episode.length + 1 for episode in store)
            for (name, t), frame in found.items():
                assert np.array_equal(frame, episodes[name].observations[camera][t]), (camera, t)


def check_store(store: el.EpisodeStore, seeds: Any, cameras: Any = FEW) -> None:
    """Fail unless a store has the episodes of these seeds, and is sound."""
    assert [episode.seed for episode in store] == list(seeds)
    for episode in store:
        check_episode(episode, cameras)
    assert not store.verify().faults
    check_cells(store, cameras)


def encoded(store: el.EpisodeStore, column: str = "observation.odd") -> int:
    """How many cells of a column are chunks."""
    cells = [cell for _, _, part in row_groups(Path(store.path), column) for cell in part]
    return sum(cell is not None and cell[:4] == b"EPF1" for cell in cells)


# What is stored


@pytest.mark.further
def test_cells_are_those_of_the_format(store: el.EpisodeStore) -> None:
    """An independent reader finds every frame; codecs have several chunks, and few of them."""
    check_cells(store)
    for column, encoding in ENCODINGS.items():
        rows = sum(length + 1 for length in LENGTHS)
        most = rows if encoding.lossless else sum(-(-(length + 1) // 4) + 1 for length in LENGTHS)
        assert len(LENGTHS) <= encoded(store, column) <= most
    raw = [cell for _, _, part in row_groups(Path(store.path), "observation.raw") for cell in part]
    assert {len(cell) for cell in raw} == {33 * 47 * 3}


@pytest.mark.further
@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_takes_each_shape(tmp_path: Path, codec: str) -> None:
    """All shapes in a store of one codec."""
    encodings = {f"observation.{camera}": CODECS[codec] for camera in SHAPES}
    store = recorded_store(tmp_path / "store", range(3), encodings=encodings)
    check_cells(store)
    for episode in store:
        for camera in SHAPES:
            exact = codec == "lossless"
            frames = episode.observations[camera]
            check_frames(frames, camera, episode.seed or 0, range(episode.length + 1), exact)


@pytest.mark.parametrize("shape", [(33, 47, 3), (3, 17, 20), (16, 21)])
def test_noise_survives_a_lossless_column(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Random pixels, all of one value, a ramp, and a camera that stands still: bit for bit, in any order."""
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    encodings = {"observation": CODECS["lossless"]}
    store = el.create(
        tmp_path / "store", observation_space=space, action_space=Cameras.action_space, encodings=encodings
    )
    noise = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    ramp = np.arange(2 * noise[0].size).reshape(2, *shape).astype(np.uint8)
    still = np.repeat(noise[:1], 10, axis=0)
    still[:, 0] += np.arange(10, dtype=np.uint8).reshape(10, *[1] * (len(shape) - 1))
    frames = np.concatenate([noise, np.zeros_like(ramp), ramp, still])
    with store.writer() as writer:
        arrays = arrays_of({}, 0, len(frames) - 1)
        writer.write_episode(**{**arrays, "observations": frames})
    (episode,) = store.refresh()
    assert np.array_equal(episode.observations, frames)
    independent = read_column(tmp_path / "store", "observation", shape)
    assert np.array_equal([independent[episode.id, t] for t in range(len(frames))], frames)
    # Frames that differ little share chunks, at most eight of them.
    assert encoded(store, "observation") < 15
    loader = store.loader(1, columns=["observation"], shuffle=True, seed=1)
    seen = np.concatenate([batch["observation"] for batch in loader])
    assert sorted(map(bytes, seen)) == sorted(map(bytes, frames[:-1]))


def test_a_black_first_frame_costs_nothing_later() -> None:
    """Each frame that starts a chunk is stored in the way that suits it, whatever suited the one before."""
    image = ImageShape((64, 96, 3))
    ramp = (np.arange(64)[:, None, None] + np.arange(96)[:, None] + np.zeros(3)).astype(np.uint8)
    frames = np.array([np.roll(ramp * 3, 7 * t, axis=1) for t in range(12)])
    column = VideoColumn("observation", image, el.Video(lossless=True))

    def size(frames: np.ndarray) -> int:
        cells = pa.array([frame.tobytes() for frame in frames], pa.binary())
        return column.encode(cells, np.arange(len(frames)) == 0).nbytes

    assert size(np.concatenate([np.zeros_like(frames[:1]), frames])) < 1.1 * size(frames) < frames.nbytes / 3


# What reads

Frames = Iterator[tuple[str, int, int, Any]]


def of_batch(batch: dict[str, Any], key: str = "observation", later: int = 0) -> Frames:
    """The frames of a batch of transitions, by the state beside them."""
    tree = batch[key]
    for row, (episode, t) in enumerate(np.asarray(tree["state"]).astype(int).tolist()):
        for camera in SHAPES:
            yield camera, episode, t, tree[camera][row]


def of_episodes(store: el.EpisodeStore, positions: Any) -> Frames:
    """The arrays of episodes in an order."""
    for position in positions:
        episode = store[int(position)]
        for camera in SHAPES:
            for t, frame in enumerate(episode.observations[camera]):
                yield camera, episode.seed or 0, t, frame


def of_view(view: Any) -> Frames:
    """The arrays of episodes as a view yields them."""
    for episode in view:
        for camera in SHAPES:
            for t, frame in enumerate(episode.observations[camera]):
                yield camera, episode.seed or 0, t, frame


def of_frames(store: el.EpisodeStore) -> Frames:
    """The Polars frames of episodes, which have bytes."""
    for episode in store:
        for row in episode.frame().iter_rows(named=True):
            for camera, shape in SHAPES.items():
                data = row[f"observation.{camera}"]
                yield camera, episode.seed or 0, row["t"], np.frombuffer(data, np.uint8).reshape(shape)


def of_loader(store: el.EpisodeStore, **more: Any) -> Frames:
    """Observations and next observations of all transitions."""
    for batch in store.loader(7, columns=["observation", "next_observation"], **more):
        yield from of_batch(batch)
        yield from of_batch(batch, "next_observation")


def of_windows(store: el.EpisodeStore, units: Any, **more: Any) -> Frames:
    """Observations of the shape (b, k, ...), where the mask is set."""
    for batch in store.loader(5, units, columns=["observation", "mask"], **more):
        tree, mask = batch["observation"], batch["mask"]
        mask = mask["observation"] if isinstance(mask, dict) else mask
        for row, place in np.argwhere(mask).tolist():
            episode, t = tree["state"][row, place].astype(int).tolist()
            for camera in SHAPES:
                yield camera, episode, t, tree[camera][row, place]


def of_video(store: el.EpisodeStore, steps: Any = None) -> Frames:
    """Pictures of an episode, always (H, W, 3)."""
    for episode in store[1:4]:
        for camera, shape in SHAPES.items():
            wanted = range(episode.length + 1) if steps is None else [steps(episode.length)]
            chosen = None if steps is None else wanted[0]
            for t, rgb in zip(wanted, episode.frames(chosen, column=f"observation.{camera}"), strict=True):
                frame = rgb if 3 in shape else rgb[..., 0].reshape(shape)
                yield camera, episode.seed or 0, t, np.moveaxis(frame, -1, 0) if shape[0] == 3 else frame


def of_buffer(store: el.EpisodeStore) -> Frames:
    """A replay buffer that was filled from the store."""
    buffer = store.replay_buffer(1000)
    for _ in range(3):
        yield from of_batch(buffer.sample(16))


READERS: dict[str, Callable[[el.EpisodeStore, Path], Frames]] = {
    "by position": lambda store, _: of_episodes(store, range(len(store))),
    "by position, shuffled": lambda store, _: of_episodes(store, [5, 2, 7, 2, 0, 6, 1, 3, 4]),
    "in order": lambda store, _: of_view(store),
    "sorted": lambda store, _: of_view(store.sort("length", descending=True)),
    "filtered": lambda store, _: of_view(store.filter("length > 3")),
    "frames": lambda store, _: of_frames(store),
    "video": lambda store, _: of_video(store),
    "video, one frame": lambda store, _: of_video(store, lambda length: length // 2 + 1),
    "loader": lambda store, _: of_loader(store),
    "loader, shuffled": lambda store, _: of_loader(store, shuffle=True, seed=3),
    "loader, streamed": lambda store, _: of_loader(store, cache="stream", shuffle=True, seed=3),
    "loader, mapped": lambda store, path: of_loader(store, cache=el.Cache("mmap", folder=path)),
    "windows": lambda store, _: of_windows(store, el.Windows(3, pad="left")),
    "windows, streamed": lambda store, _: of_windows(store, el.Windows(3, pad="left"), cache="stream"),
    "deltas": lambda store, _: of_windows(store, el.Deltas({"observation": [-2, 0, 1]})),
    "replay buffer": lambda store, _: of_buffer(store),
}


def test_readers_give_the_recorded_frames(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Each frame is the one that its state names."""
    for folder, reader in with_folders(READERS, tmp_path):
        with case(reader):
            found = set()
            for camera, episode, t, frame in READERS[reader](el.open(store.path), folder):
                check_frame(frame, camera, episode, t)
                found.add((camera, episode, t))
            # The buffer draws, videos and the filter have some episodes, and windows no last observations.
            some = ("replay buffer", "video", "video, one frame", "filtered")
            ends = 0 if reader.startswith("windows") else len(LENGTHS)
            least = 3 if reader in some else sum(LENGTHS) + ends
            assert len(found) >= least * len(SHAPES)


def test_iterating_reads_the_next_episodes_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first row group no read waits for a program, and each column of a group is read once."""
    monkeypatch.setattr(steps_file, "GROUP_ROWS", 16)
    store = new_store(tmp_path / "store", cameras=FEW)
    with store.record(Cameras(FEW, (3,))) as env:
        play(env, range(24))
    reads: list[tuple[bool, int, str]] = []
    read = SegmentFile.read

    def noted(file: Any, groups: Any, columns: Any, *, threads: bool = True) -> Any:
        columns, foreground = list(columns), threading.current_thread() is threading.main_thread()
        reads.extend((foreground, group, name) for group in groups for name in columns)
        time.sleep(0.02)  # so that other parts of the block ask meanwhile
        return read(file, groups, columns, threads=threads)

    monkeypatch.setattr(SegmentFile, "read", noted)
    for number, episode in enumerate(store.refresh()):
        check_frames(episode.observations["odd"], "odd", number, range(4))
    cells = [each[1:] for each in reads]
    assert len(set(cells)) == len(cells) and {group for group, _ in cells} == set(range(6))
    assert {group for foreground, group, _ in reads if foreground} == {0}


def test_iterating_encoded_frames_decodes_each_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of four and a raw frame: no frame is decoded for another."""
    image, shape = ImageShape(SHAPES["odd"]), SHAPES["odd"]
    column = VideoColumn("observation.odd", image, CODECS["h264"])
    raw = [frame_of(shape, NUMBERS["odd"], 5, t).tobytes() for t in range(11)]
    cells = column.encode(pa.array(raw[:10], pa.binary()), np.arange(10) == 0)
    frames = EncodedFrames(pa.concat_arrays([cells, pa.array(raw[10:], pa.binary())]), image)
    decoded: list[int] = []
    write = ffmpeg._write
    monkeypatch.setattr(ffmpeg, "_write", lambda *given: decoded.append(1) or write(*given))
    for number, _ in enumerate(frames):
        # The raw frame is not decoded.
        assert len(decoded) == min(number + 1, 10)
    check_frames(list(frames), "odd", 5, range(11))
    assert list(frames[:0]) == [] and list(EncodedFrames(cells[:0], image)) == []


def two_cameras(path: Path, length: int) -> el.EpisodeStore:
    """An episode of two cameras whose groups of pictures begin together only in its first row."""
    encodings = {"observation.odd": el.Video(gop=7), "observation.rgb": el.Video(gop=11)}
    cameras = {name: SHAPES[name] for name in ("odd", "rgb")}
    store = el.create(path, Cameras(cameras), encodings=encodings)
    with store.writer() as writer:
        writer.write_episode(**arrays_of(cameras, 3, length))
    return store.refresh()


def test_frames_are_mapped_a_camera_and_a_few_groups_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds few decoded frames beside the files, and no row is looked at again and again."""
    store = two_cameras(tmp_path / "store", 75)
    decoded: list[int] = []
    seen_rows: list[int] = []
    decode, starts = fixed.decode_frames, video_column.chunk_starts
    monkeypatch.setattr(
        fixed, "decode_frames", lambda cells, *more: decoded.append(len(cells)) or decode(cells, *more)
    )
    monkeypatch.setattr(
        video_column, "chunk_starts", lambda cells: seen_rows.append(len(cells)) or starts(cells)
    )
    monkeypatch.setattr(step_arrays, "_PART_BYTES", 1)
    loader = store.loader(8, columns=["observation"], cache=el.Cache("mmap", folder=tmp_path / "cache"))
    assert sum(decoded) == 2 * 76 and max(decoded) <= 16 + 11
    assert sum(seen_rows) == 2 * 76
    tree = {name: np.concatenate([each["observation"][name] for each in loader]) for name in ("odd", "rgb")}
    for name, frames in tree.items():
        check_frames(frames, name, 3, range(75))
    decoded.clear()
    assert store.verify().ok
    assert sum(decoded) == 2 * 76


FORKED = """
import os, sys, threading
import episodelake as el
from episodelake.store.frames import EncodedFrames, ImageShape
from video_stores import CODECS, SHAPES, check_frames, frame_of, NUMBERS
import numpy as np, pyarrow as pa
from episodelake.store.frames import VideoColumn

shape = SHAPES["odd"]
column = VideoColumn("observation.odd", ImageShape(shape), CODECS["h264"])
raw = pa.array([frame_of(shape, NUMBERS["odd"], 5, t).tobytes() for t in range(64)], pa.binary())
frames = EncodedFrames(column.encode(raw, np.arange(64) == 0), column.image)

def decode():
    check_frames(np.asarray(frames), "odd", 5, range(64))

threads = [threading.Thread(target=decode) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
decoders = [each for each in threading.enumerate() if each.name.startswith("episodelake decoding")]
assert 0 < len(decoders) <= os.cpu_count(), decoders
child = os.fork()
decode()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.further
def test_all_callers_share_the_threads_that_decode() -> None:
    """There are as many as processors, however many threads ask; a forked child has its own."""
    paths = f"{Path(__file__).parent}:{Path(__file__).parents[1]}"
    script = [sys.executable, "-W", "ignore", "-c", FORKED]
    subprocess.run(script, env=os.environ | {"PYTHONPATH": paths}, check=True, timeout=300)


# What writes


def by_write_episode(store: el.EpisodeStore) -> None:
    """Whole episodes from arrays."""
    with store.writer() as writer:
        for seed in range(len(LENGTHS)):
            writer.write_episode(**arrays_of(FEW, seed, LENGTHS[seed]))


def by_steps(store: el.EpisodeStore) -> None:
    """Step by step, sealed several times."""
    with store.writer() as writer:
        for seed, length in enumerate(LENGTHS):
            episode = writer.begin(seen(FEW, seed, 0), seed=seed)
            for t in range(1, length + 1):
                episode.append(0, 1.0, seen(FEW, seed, t), t == length)
            if seed % 3 == 2:
                writer.seal()


def by_vector(store: el.EpisodeStore) -> None:
    """A vector environment; each lane has seeds of its own."""
    envs = gym.vector.SyncVectorEnv([lambda: Cameras(FEW), lambda: Cameras(FEW)])
    with store.record(envs) as recorder:
        recorder.reset(seed=[0, 4])
        for _ in range(40):
            recorder.step(np.zeros(2, np.int64))


WRITERS = {"write_episode": by_write_episode, "step by step": by_steps, "vector": by_vector}


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("writer", WRITERS)
def test_writers_store_video(tmp_path: Path, writer: str) -> None:
    """Frames arrive whatever wrote them, and are encoded."""
    store = new_store(tmp_path / "store", cameras=FEW)
    WRITERS[writer](store)
    assert len(store.refresh()) >= len(LENGTHS)
    for episode in store:
        length = episode.length if writer == "vector" else None
        check_episode(episode, FEW, length)
    assert not store.verify().faults
    check_cells(store, FEW)
    assert encoded(store) > len(LENGTHS)


def test_last_observations_may_be_missing(tmp_path: Path) -> None:
    """Their cells are NULL, and stay so."""
    store = new_store(tmp_path / "store", cameras=FEW)
    with store.writer() as writer:
        for seed in range(4):
            arrays = arrays_of(FEW, seed, LENGTHS[seed])
            shorter = {name: values[:-1] for name, values in arrays["observations"].items()}
            writer.write_episode(**{**arrays, "observations": shorter}, last_observation="missing")
    store.refresh().compact(order_by="length")
    assert not store.verify().faults
    for episode in store:
        for camera in FEW:
            check_frames(episode.observations[camera], camera, episode.seed or 0, range(episode.length))
            assert episode.frame()[f"observation.{camera}"].null_count() == 1


def test_agents_have_cameras_of_their_own(tmp_path: Path) -> None:
    """A camera for each group of agents; every lane begins with a chunk."""
    encodings = {"tall.observation.grey": CODECS["h264"], "wide.observation.odd": CODECS["hevc"]}
    store = el.create(tmp_path / "store", Team(), encodings=encodings)
    with store.record(Team()) as env:
        for seed in range(3):
            env.reset(seed=seed)
            while env.agents:
                env.step(dict.fromkeys(env.agents, 0))
    assert len(store.refresh()) == 3
    assert not store.verify().faults
    for episode in store:
        for number, (agent, camera) in enumerate(Team.cameras.items()):
            own = episode.agent(agent)
            assert own.length == (2 if agent == "tall_1" else 6)
            steps = range(own.length + 1)
            check_frames(own.observations[camera], camera, (episode.seed or 0) + 16 * number, steps)
    for batch in store.loader(4, columns=["observation"], group="wide"):
        for row, (episode, t) in enumerate(batch["observation"]["state"].astype(int).tolist()):
            check_frame(batch["observation"]["odd"][row], "odd", episode, t)


KILLED = """
import os, sys
import episodelake as el
from episodelake.store.frames import EncodedFrames, ImageShape, VideoColumn, ffmpeg
from episodelake.store.segments import steps_file
from episodelake.store.spaces import fixed
from test_video import FEW
from video_stores import Cameras, play

store, point = el.open(sys.argv[1]), sys.argv[2]
steps_file.GROUP_ROWS = 8
encode, calls = VideoColumn.encode, []

def dying(self, cells, starts):
    calls.append(self)
    if len(calls) == 3:
        os.kill(os.getpid(), 9)
    return encode(self, cells, starts)

recorder = store.record(Cameras(FEW))
play(recorder, range(3))
recorder.reset(seed=6)
for _ in range(5):
    recorder.step(0)
recorder.flush()
if point == "recorded":
    os.kill(os.getpid(), 9)
VideoColumn.encode = dying
recorder.close()
"""


@pytest.mark.further
@pytest.mark.parametrize("point", ["recorded", "encoding"])
def test_a_killed_writer_loses_no_frame(tmp_path: Path, point: str) -> None:
    """`recover` seals its raw frames as video, also of an episode that was cut; encoders print nothing."""
    store = new_store(tmp_path / "store", cameras=FEW)
    script = [sys.executable, "-c", KILLED, str(store.path), point]
    paths = f"{Path(__file__).parent}:{Path(__file__).parents[1]}"
    done = subprocess.run(script, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-9, b"", b"")
    assert not store.refresh()
    el.recover(store.path)
    assert [episode.seed for episode in store.refresh()] == [0, 1, 2, 6]
    for episode in store:
        check_episode(episode, FEW, 5 if episode.seed == 6 else None)
    assert not store.verify().faults
    assert encoded(store) > 4


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("cut", [1, 2, 5, 9])
def test_an_episode_is_continued_inside_a_chunk(tmp_path: Path, cut: int) -> None:
    """Its last frame is decoded, and the whole is as if it had never been cut."""
    store = new_store(tmp_path / "store", cameras=FEW)
    with store.writer() as writer:
        episode = writer.begin(seen(FEW, 2, 0), seed=2)
        for t in range(1, cut + 1):
            episode.append(0, 1.0, seen(FEW, 2, t), False)
    old = store.refresh()[0]
    assert old.length == cut
    with store.writer() as writer:
        episode = writer.reopen(old.id)
        check_frame(episode.observation["odd"], "odd", 2, cut)
        for t in range(cut + 1, LENGTHS[2] + 1):
            episode.append(0, 1.0, seen(FEW, 2, t), t == LENGTHS[2])
    store = store.refresh()
    store.vacuum(timedelta(0))
    check_store(store, [2])


# What rewrites


def half_encoded(path: Path) -> el.EpisodeStore:
    """A store whose first episodes are raw and whose later ones are encoded, in a segment each."""
    store = new_store(path / "half", cameras=FEW)
    with pytest.MonkeyPatch.context() as patched, store.record(Cameras(FEW)) as env:
        patched.setattr(VideoColumn, "encode", lambda column, cells, starts: cells)
        play(env, range(4))
    with store.record(Cameras(FEW)) as env:
        play(env, range(4, 8))
    assert 0 < encoded(store.refresh()) <= 12
    return store.refresh()


def in_segments(path: Path) -> el.EpisodeStore:
    """A store with three segments."""
    store = new_store(path / "segments", cameras=FEW)
    for seeds in (range(3), range(3, 6), range(6, 8)):
        with store.record(Cameras(FEW)) as env:
            play(env, seeds)
    return store.refresh()


def compacted(store: el.EpisodeStore, path: Path) -> el.EpisodeStore:
    """All segments joined, chunks as they were."""
    before = encoded(store)
    store.compact()
    store.vacuum(timedelta(0))
    assert encoded(store) == before
    return store


def ordered(store: el.EpisodeStore, path: Path) -> el.EpisodeStore:
    """Sorted by length; a second rewrite sorts them back."""
    store.compact(order_by="length", descending=True)
    assert [episode.length for episode in store] == sorted(LENGTHS, reverse=True)
    for episode in store:
        check_episode(episode, FEW)
    store.compact(order_by="started_at")
    store.vacuum(timedelta(0))
    return store


def without_two(store: el.EpisodeStore, path: Path) -> el.EpisodeStore:
    """An episode of each side of a segment is deleted."""
    store.delete("seed in (2, 3)")
    store.vacuum(timedelta(0))
    return store


def copied(store: el.EpisodeStore, path: Path) -> el.EpisodeStore:
    """A copy of most episodes."""
    return store.copy(path / "copy", "seed not in (2, 3)")


def merged(store: el.EpisodeStore, path: Path) -> el.EpisodeStore:
    """Merged from two views into a new store."""
    el.merge([store.filter("seed < 5"), store.filter("seed >= 5")], path / "merged")
    return el.open(path / "merged")


def published(store: el.EpisodeStore, path: Path) -> el.EpisodeStore:
    """Published, and some of it pulled."""
    store.publish(path / "target", tag="v1")
    return el.pull(path / "target", path / "pulled", where="seed not in (2, 3)")


def annotated(store: el.EpisodeStore, path: Path) -> el.EpisodeStore:
    """A column of steps that is computed from frames, and then rewritten with them."""
    store.map_episodes(lambda one: one.observations["odd"][:-1, 0, 0, 0].astype(int), "corner", of="step")
    for episode in store.refresh():
        corners = episode.step_annotations["corner"]
        assert np.array_equal(corners[: episode.length], episode.observations["odd"][:-1, 0, 0, 0])
    return compacted(store, path)


OPERATIONS = {
    "compact": compacted,
    "compact in another order": ordered,
    "delete and vacuum": without_two,
    "copy": copied,
    "merge": merged,
    "publish and pull": published,
    "annotate": annotated,
}
SOURCES = {"segments": in_segments, "half encoded": half_encoded}


_REWRITES_KEEP_FRAMES: Any = [*itertools.product(SOURCES, OPERATIONS)]


@pytest.mark.parametrize("cases", some(_REWRITES_KEEP_FRAMES))
@pytest.mark.usefixtures("small_groups")
@pytest.mark.further
def test_rewrites_keep_frames(tmp_path: Path, cases: Any) -> None:
    """No frame changes, none is decoded, and every row group begins with a chunk."""
    for folder, (source, operation) in with_folders(cases, tmp_path):
        with case((source, operation)):
            store = SOURCES[source](folder)
            cells = {frame.tobytes() for episode in store for frame in episode.observations["odd"]}
            made = OPERATIONS[operation](store, folder)
            some = operation in ("delete and vacuum", "copy", "publish and pull")
            check_store(made, [seed for seed in range(8) if not some or seed not in (2, 3)])
            assert {frame.tobytes() for episode in made for frame in episode.observations["odd"]} <= cells


@pytest.mark.usefixtures("small_groups")
def test_an_older_version_and_a_tag_show_their_frames(tmp_path: Path) -> None:
    """They read the segments that a rewrite replaced."""
    store = in_segments(tmp_path)
    store.tag("before")
    version = store.version
    store.delete("seed = 2")
    store.compact()
    store.vacuum(timedelta(0))
    for old in (el.open(store.path, version="before"), el.open(store.path, version=version)):
        assert [episode.seed for episode in old] == list(range(8))
        for episode in old:
            check_episode(episode, FEW)


def test_raw_stores_take_no_encoded_frames(tmp_path: Path) -> None:
    """A merge into one is refused before anything is written; a new store takes both, and one with video."""
    store = recorded_store(tmp_path / "store", range(2), cameras=FEW)
    plain = recorded_store(tmp_path / "plain", range(2, 4), cameras=FEW, encodings={})
    with pytest.raises(el.errors.SpaceMismatchError, match=r"encoded frames in observation.exact, obs"):
        el.merge([store], plain)
    assert len(plain.refresh()) == 2
    el.merge([plain, store], tmp_path / "new")
    check_store(el.open(tmp_path / "new"), [2, 3, 0, 1])
    el.merge([plain], store)
    check_store(store.refresh(), range(4))


def test_a_copy_encodes_raw_frames(tmp_path: Path) -> None:
    """Every frame of the copy is the right one; a column that is encoded keeps its encoding."""
    raw = recorded_store(tmp_path / "raw", range(4), cameras=FEW, encodings={})
    encodings = {name: each for name, each in ENCODINGS.items() if name.partition(".")[2] in FEW}
    made = raw.copy(tmp_path / "copy", encodings=encodings)
    check_store(made, range(4))
    assert encoded(made) > 0 and made.verify().ok
    with pytest.raises(el.errors.InvalidArgumentError, match=r"observation\.odd.*encoded otherwise"):
        made.copy(tmp_path / "again", encodings={"observation.odd": el.Video("h264", crf=50)})
    assert not (tmp_path / "again").exists()


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("codec", ["h264", "lossless"])
def test_a_copy_encodes_several_row_groups_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """Of one camera too; the cells are those of a copy that encodes one after the other."""
    cameras, encodings = {"odd": SHAPES["odd"]}, {"observation.odd": CODECS[codec]}
    raw = recorded_store(tmp_path / "raw", cameras=cameras, encodings={})
    both, calls = threading.Barrier(2, timeout=120), itertools.count()
    encode = VideoColumn.encode

    def met(column: VideoColumn, cells: pa.Array, starts: np.ndarray) -> pa.Array:
        if next(calls) < 2:
            both.wait()
        return encode(column, cells, starts)

    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    alone = raw.copy(tmp_path / "alone", encodings=encodings)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(VideoColumn, "encode", met)
    made = raw.copy(tmp_path / "made", encodings=encodings)
    check_store(made, range(8), cameras)
    groups = [list(row_groups(Path(store.path), "observation.odd")) for store in (alone, made)]
    expected, rows = ([(*row[:2], [*map(bool, row[2])]) for row in each] for each in groups)
    assert rows == expected
    if codec == "lossless":
        # x264 reads memory that it did not write: on some processors no two of its runs give equal bytes.
        assert [part for _, _, part in groups[0]] == [part for _, _, part in groups[1]]


def test_rows_of_frames_and_queries_are_decoded(store: el.EpisodeStore) -> None:
    """In any order, without the rows that their chunks begin in; bad rows are refused."""
    column = "observation.odd"
    text = "select episode_id, t from steps where t >= 1 order by hash(episode_id, t)"
    frame = store.sql(text).pl()
    frames = {episode.id: episode.observations["odd"] for episode in store}
    for rows in (frame, frame.lazy(), frame.to_arrow(), store.sql(text)):
        images = store.decode_frames(rows, column)
        for (episode_id, t), image in zip(frame.iter_rows(), images, strict=True):
            assert np.array_equal(image, frames[episode_id][t])
    for bad, message in (
        (frame.drop("t"), "lacks t"),
        (frame.with_columns(t=frame["t"] + 1000), "no observation t=1"),
        (frame.with_columns(t=frame["t"].cast(float)), "whole numbers"),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            store.decode_frames(bad, column)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"no column 'observation\.od' of frames"):
        store.decode_frames(frame, "observation.od")


def test_a_shuffled_stream_of_few_episodes_warns(tmp_path: Path) -> None:
    """With raw frames the buffer holds few episodes; as video it holds all."""
    small = el.Cache("stream", buffer_bytes=40_000)
    raw = recorded_store(tmp_path / "raw", cameras=FEW, encodings={})
    with pytest.warns(RuntimeWarning, match="has room for the rows of"):
        raw.loader(4, shuffle=True, cache=small)


def test_streams_go_by_the_sizes_of_frames_as_they_are_stored(tmp_path: Path) -> None:
    """Simple lossless frames take a tenth of what is expected of them, so more episodes are mixed."""
    cameras = {"exact": SHAPES["exact"]}
    store = recorded_store(tmp_path / "store", cameras=cameras)
    rows = [cell for _, _, part in row_groups(Path(store.path), "observation.exact") for cell in part]
    size, guess = sum(map(len, rows)) / len(rows), math.prod(cameras["exact"]) / 2
    assert size < guess / 5
    # Half of it for each group, with the state and the order of units.
    buffer = int(2 * (size + 60) * len(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = store.loader(
            8, columns=["observation"], shuffle=True, cache=el.Cache("stream", buffer_bytes=buffer)
        )
    first = next(iter(loader))["observation"]["state"][:, 0]
    assert len(set(first.tolist())) >= 4
