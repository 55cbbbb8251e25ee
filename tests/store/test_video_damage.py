"""Bad input to stores with video: damaged cells, hostile sizes, wrong encodings, no PyAV.

FFmpeg decodes in the process of the reader, so what may crash it runs in a child.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Discrete

import episodelake as el
import independent_tables
from effort import with_folders
from episodelake.store.frames import ImageShape, VideoColumn, ffmpeg
from episodelake.testing.adapters import case
from video_stores import CODECS, SHAPES, Cameras, check_episode, play, recorded_store

CAMERAS = {name: SHAPES[name] for name in ("odd", "exact")}
TESTS = f"{Path(__file__).parents[1]}{os.pathsep}{Path(__file__).parent}"
VIDEO = el.Video()


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """Two episodes."""
    return recorded_store(tmp_path / "store", range(2), cameras=CAMERAS)


def child(script: str, *arguments: Any) -> str:
    """Run a script, check that it succeeds and writes no error, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": TESTS},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    return done.stdout


# Damaged cells

FUZZ = """
import collections, json, struct, sys
import numpy as np
import pyarrow as pa
import episodelake as el
from episodelake.store.frames import ImageShape, VideoColumn
from video_stores import CODECS, frame_of

codec, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shape = (33, 47, 3)
column = VideoColumn("observation.odd", ImageShape(shape), CODECS[codec])
frames = [frame_of(shape, 1, 2, t).tobytes() for t in range(8)]
cells = column.encode(pa.array(frames, pa.binary()), np.arange(8) == 0).to_pylist()
random = np.random.default_rng(seed)
seen = collections.Counter()
for number in range(count):
    changed = list(cells)
    place = int(random.choice([row for row, cell in enumerate(cells) if cell]))
    cell = bytearray(changed[place])
    extra, packets = struct.unpack_from("<II", cell, 8)
    edges = [0, 16, 16 + 4 * packets, 16 + 4 * packets + extra, len(cell)]
    zone = int(random.choice([0, 1, 2, 3, 3, 3, 3, 3]))
    low, high = edges[zone], edges[zone + 1]
    if low == high:
        low, high = 0, len(cell)
    kind = int(random.integers(5))
    if kind == 0:
        cell = cell[: random.integers(len(cell))]
    elif kind == 1:
        at = int(random.integers(low, high))
        cell[at:at] = random.bytes(int(random.integers(1, 20)))
    else:
        for _ in range(int(random.integers(1, 30))):
            cell[random.integers(low, high)] = random.integers(256)
    changed[place] = bytes(cell)
    try:
        found = column.decoded(pa.table({column.name: pa.array(changed, pa.binary())}))
        assert {len(each) for each in found[column.name].to_pylist()} == {33 * 47 * 3}
        seen["frames"] += 1
    except el.errors.CorruptStoreError as error:
        assert column.name in str(error)
        seen["refused"] += 1
print(json.dumps(seen))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("codec", CODECS)
def test_damaged_chunks_give_frames_or_an_error(codec: str) -> None:
    """Header, sizes, extradata and packets: no crash, no hang, no other error, nothing printed."""
    seen = json.loads(child(FUZZ, codec, 1, 50))
    assert sum(seen.values()) == 50 and seen["refused"] > 5


@pytest.mark.further
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_damaged_chunks(codec: str, seed: int) -> None:
    """As above."""
    assert sum(json.loads(child(FUZZ, codec, seed, 400)).values()) == 400


#: SPS, PPS and a slice of H.264: a picture of 16000 x 16000 pixels, of which one row of blocks is there.
LARGE = bytes.fromhex(
    "0000016764003eacd9400fa001f46840000003004000000f03c489658000000168ef8fcb000001658884002fffcdf81ee7e7"
    "4d17c87ff7d941aa99467a4bc302de2405645dbd81"
)
HOSTILE = """
import re, sys
import pyarrow as pa
import episodelake as el
from episodelake.store.frames import ImageShape, VideoColumn

column = VideoColumn("observation", ImageShape((48, 64)), el.Video())
for cell in map(bytes.fromhex, sys.argv[1:]):
    try:
        column.decoded(pa.table({"observation": pa.array([cell], pa.binary())}))
    except el.errors.CorruptStoreError as error:
        print(error)
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
"""


def chunk(
    codec: int, frames: int, extra: int, sizes: list[int], data: bytes, count: int | None = None
) -> bytes:
    """A cell by docs/format.md; `count` is how many packets it says."""
    numbers = np.array(sizes, "<u4").tobytes()
    head = b"EPF1" + bytes([codec, 0]) + np.array([frames], "<u2").tobytes()
    return head + np.array([extra, len(sizes) if count is None else count], "<u4").tobytes() + numbers + data


HOSTILE_CELLS = {
    "large picture": (chunk(1, 1, 0, [len(LARGE)], LARGE), "FFmpeg cannot decode"),
    "many packets": (chunk(1, 1, 0, [1], b"x", 2**32 - 1), "lists 4294967295 packets"),
    "large packet": (chunk(1, 1, 0, [2**32 - 1], b"x"), "its packets end at byte"),
    "large extradata": (chunk(2, 1, 2**32 - 1, [1], b"x"), "its packets end at byte"),
    "no frames": (chunk(1, 0, 0, [1], b"x"), "begins with"),
    "no packets": (chunk(1, 1, 0, [], b""), "0 frames"),
    "empty packets": (chunk(1, 1, 0, [0, 0], b""), "FFmpeg cannot decode|0 frames"),
    "another codec": (chunk(9, 1, 0, [1], b"x"), "begins with"),
    "lossless, too many frames": (chunk(0, 65535, 0, [1], b"\0"), "65535 lossless frames in 1 packets"),
    "lossless, too large": (
        chunk(0, 1, 0, [len(packed := b"\0" + pa.compress(bytes(10**8), "zstd", asbytes=True))], packed),
        "cannot be decompressed",
    ),
    "lossless, nothing before": (
        chunk(0, 1, 0, [len(packed := b"\2" + pa.compress(bytes(48 * 64), "zstd", asbytes=True))], packed),
        "refers to one before it",
    ),
    "lossless, another kind": (chunk(0, 1, 0, [1], b"\3"), "begins with none of 0, 1 and 2"),
}


def test_hostile_sizes_take_no_memory() -> None:
    """Sizes are compared with the column's before anything of that size is made."""
    *messages, memory = child(HOSTILE, *(cell.hex() for cell, _ in HOSTILE_CELLS.values())).splitlines()
    for message, (_, expected) in zip(messages, HOSTILE_CELLS.values(), strict=True):
        assert any(each in message for each in expected.split("|")), message
    assert int(memory) < 500 << 10


def _second(cells: list[bytes], new: Callable[[bytes], bytes]) -> list[bytes]:
    place = [row for row, cell in enumerate(cells) if cell][1]
    return [*cells[:place], new(cells[place]), *cells[place + 1 :]]


#: What is done to the cells of a segment, and what `verify` says.
DAMAGE: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "first is empty": (
        lambda cells: [b"", *cells[1:]],
        "in the episode before",
    ),
    "all are empty": (
        lambda cells: [b""] * len(cells),
        "in the episode before",
    ),
    "an episode's first is empty": (lambda cells: _second(cells, lambda _: b""), "in the episode before"),
    "first is garbage": (lambda cells: [b"garbage", *cells[1:]], "cannot be decoded"),
    "another is garbage": (lambda cells: _second(cells, lambda _: b"garbage"), "cannot be decoded"),
    "too few frames": (lambda cells: _second(cells, lambda c: c[:6] + b"\1\0" + c[8:]), "it has 1 frames"),
    "cut": (lambda cells: _second(cells, lambda c: c[:-9]), "its packets end at byte"),
}
READERS: dict[str, Callable[[el.EpisodeStore, Path], Any]] = {
    "observations": lambda store, _: [episode.observations for episode in store],
    "frame": lambda store, _: [episode.frame() for episode in store],
    "frames": lambda store, _: [episode.frames(column="observation.odd") for episode in store],
    "loader": lambda store, _: list(store.loader(2, columns=["observation"])),
    "stream": lambda store, _: list(store.loader(2, columns=["observation"], cache="stream")),
    "parquet": lambda store, path: store.export(path / "export.parquet", format="parquet"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cells_are_named_by_verify_and_read_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Every reader raises CorruptStoreError with the column; other columns are read."""
    encode, (change, fault) = VideoColumn.encode, DAMAGE[damage]

    def damaged(column: VideoColumn, cells: pa.Array, starts: np.ndarray) -> pa.Array:
        encoded = encode(column, cells, starts)
        return (
            pa.array(change(encoded.to_pylist()), pa.binary())
            if column.name == "observation.odd"
            else encoded
        )

    monkeypatch.setattr(VideoColumn, "encode", damaged)
    store = recorded_store(tmp_path / "store", [1, 3], cameras=CAMERAS)
    assert any(fault in each.message for each in store.verify().faults)
    for read in READERS.values():
        with pytest.raises(el.errors.CorruptStoreError, match=r"observation\.odd"):
            read(el.open(store.path), tmp_path)
    batches = list(store.loader(2, columns=["reward", "observation.exact"]))
    assert sum(len(batch["reward"]) for batch in batches) == 5
    assert [len(episode.rewards) for episode in store] == [1, 4]


def test_errors_name_the_episode_and_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second episode of a row group is damaged from its second chunk on: t=4."""
    encode = VideoColumn.encode

    def damaged(column: VideoColumn, cells: pa.Array, starts: np.ndarray) -> pa.Array:
        encoded = encode(column, cells, starts).to_pylist()
        place = int(np.flatnonzero(starts)[1]) + 4
        assert encoded[place]
        return pa.array([*encoded[:place], b"garbage", *encoded[place + 1 :]], pa.binary())

    monkeypatch.setattr(VideoColumn, "encode", damaged)
    store = recorded_store(tmp_path / "store", [0, 2], cameras={"odd": SHAPES["odd"]})
    place = f"the chunk at t=4 of '{store[1].id}' is damaged: it has 7 bytes"
    rows = pl.DataFrame({"episode_id": [store[1].id], "t": [5]})
    for read in (
        lambda: store[1].observations,
        lambda: store[1].frame(),
        lambda: [episode.observations for episode in store],
        lambda: store[1].frames(6, column="observation.odd"),
        lambda: store.decode_frames(rows, "observation.odd"),
    ):
        with pytest.raises(el.errors.CorruptStoreError, match=re.escape(place)):
            read()
    assert len(store[0].observations["odd"]) == 4
    for cache in ("memory", "stream"):
        with pytest.raises(
            el.errors.CorruptStoreError, match=r"at t=4 of the episode at position 1 is damaged"
        ):
            list(store.loader(2, columns=["observation"], cache=cache))


class Failing:
    """A decoder of PyAV that fails as FFmpeg does."""

    def __init__(self, number: int) -> None:
        self.number, self.options = number, {}

    def decode(self, packet: Any) -> Any:
        """Raise the error of a number."""
        av.error.err_check(-self.number)


#: FFmpeg's AVERROR_INVALIDDATA.
INVALID_DATA = 0x41444E49
#: Numbers of FFmpeg's errors, and what readers raise.
FAILURES: dict[int, type[Exception]] = {
    errno.ENOMEM: MemoryError,
    errno.EAGAIN: el.errors.StoreUnavailableError,
    errno.EIO: el.errors.StoreUnavailableError,
    errno.EMFILE: el.errors.StoreUnavailableError,
    errno.EINVAL: el.errors.CorruptStoreError,
    errno.EPERM: el.errors.CorruptStoreError,
    INVALID_DATA: el.errors.CorruptStoreError,
}


@pytest.mark.parametrize("number", FAILURES)
def test_only_damage_is_called_damage(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Without memory or descriptors nothing is known of the chunk: readers and `verify` pass that on."""
    monkeypatch.setattr(ffmpeg, "_decoder", lambda chunk, image: Failing(number))
    expected = FAILURES[number]
    for read in READERS.values():
        with pytest.raises(expected):
            read(el.open(store.path), tmp_path)
    if expected is el.errors.CorruptStoreError:
        assert any("cannot be decoded" in fault.message for fault in store.verify().faults)
    else:
        with pytest.raises(expected):
            store.verify()


def test_memory_that_runs_out_in_lossless_frames_is_no_damage(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's error of memory is one of Arrow's errors too."""

    class NoMemory:
        def decompress(self, *arguments: Any) -> Any:
            raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(pa, "Codec", lambda *arguments, **options: NoMemory())
    for read in (lambda: list(store.loader(2, columns=["observation.exact"])), lambda: store[0].observations):
        with pytest.raises(MemoryError):
            read()


# Encodings

BAD_ENCODINGS: dict[str, tuple[Any, tuple[int, ...], Any, str]] = {
    "a list": (["observation"], (48, 64), np.uint8, "expected a mapping"),
    "a codec": ("h264", (48, 64), np.uint8, "expected a mapping"),
    "a codec's name": ({"observation": "h264"}, (48, 64), np.uint8, "='h264': expected episodelake.Video"),
    "another column": ({"front": VIDEO}, (48, 64), np.uint8, "names 'front'.*Those are: observation"),
    "no column": ({5: VIDEO}, (48, 64), np.uint8, "names 5"),
    "small": ({"observation": VIDEO}, (8, 64), np.uint8, "at least 16 x 16"),
    "four channels": ({"observation": VIDEO}, (48, 64, 4), np.uint8, "one or three channels"),
    "stacked": ({"observation": VIDEO}, (4, 48, 64, 3), np.uint8, "one or three channels"),
    "more than 8 bits": ({"observation": VIDEO}, (48, 64), np.uint16, "no column of frames"),
    "a vector": ({"observation": VIDEO}, (48,), np.uint8, "no column of frames"),
}


def test_bad_encodings_are_refused(tmp_path: Path) -> None:
    """Before anything is written, with what was expected."""
    for folder, name in with_folders(BAD_ENCODINGS, tmp_path):
        with case(name):
            encodings, shape, dtype, message = BAD_ENCODINGS[name]
            spaces = {"observation_space": Box(0, 255, shape, dtype), "action_space": Discrete(2)}
            with pytest.raises(el.errors.InvalidArgumentError, match=message):
                el.create(folder / "store", encodings=encodings, **spaces)
            assert not (folder / "store").exists()


def test_bad_options_of_video_are_refused() -> None:
    """With what was expected."""
    cases: list[Any] = [
        ({"codec": "vp9"}, "expected one of h264, hevc, av1"),
        ({"codec": ["h264"]}, "expected one of h264"),
        ({"crf": 52}, "a crf of at most 51"),
        ({"codec": "av1", "crf": 64}, "a crf of at most 63"),
        ({"crf": 1.5}, "whole number"),
        ({"gop": 0}, "whole number"),
        ({"gop": 1025}, "at most 1024"),
        ({"lossless": True, "gop": 3}, "take no codec, crf or gop"),
        ({"lossless": 1}, "True or False"),
    ]
    for options, message in cases:
        with case((options, message)), pytest.raises(el.errors.InvalidArgumentError, match=message):
            el.Video(**options)


H264 = {"codec": "h264", "crf": 23, "gop": 4}
MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "a later codec": ({"encodings": {"observation.odd": {**H264, "codec": "vp9"}}}, "expected one of h264"),
    "no codec": ({"encodings": {"observation.odd": {}}}, "'codec'"),
    "no gop": ({"encodings": {"observation.odd": {**H264, "gop": None}}}, "lacks its codec, crf or gop"),
    "a fraction": ({"encodings": {"observation.odd": {**H264, "crf": 1.5}}}, "whole number"),
    "no number": ({"encodings": {"observation.odd": {**H264, "crf": float("inf")}}}, "whole number"),
    "an absent column": ({"encodings": {"observation.none": H264}}, "no column of frames"),
    "a column of numbers": ({"encodings": {"observation.state": H264}}, "no column of frames"),
    "a list": ({"encodings": []}, "not an object"),
    "nothing": ({"encodings": None}, "not an object"),
    "a text": ({"encodings": {"observation.odd": "h264"}}, "TypeError"),
}


def test_damaged_encodings_in_store_json_are_named(store: el.EpisodeStore) -> None:
    """The file is named, and nothing else comes out; later formats ask for a later release."""
    file = Path(store.path) / "store.json"
    sound = json.loads(file.read_text())
    assert (sound["format"], sound["encodings"]["observation.odd"]) == (2, H264)
    for changed, message in MANIFESTS.values():
        file.write_text(json.dumps({**copy.deepcopy(sound), **changed}))
        with pytest.raises(el.errors.CorruptStoreError, match=rf"store\.json is damaged: .*{message}"):
            el.open(store.path)
    file.write_text(json.dumps({**sound, "format": 3}))
    with pytest.raises(el.errors.FormatVersionError, match="reads formats 1 and 2"):
        el.open(store.path)


def test_only_stores_with_video_have_format_2(tmp_path: Path, store: el.EpisodeStore) -> None:
    """A reader of format 1 refuses them, and reads the others."""
    plain = recorded_store(tmp_path / "plain", range(1), cameras=CAMERAS, encodings={})
    independent_tables.read_manifest(Path(plain.path))
    with pytest.raises(independent_tables.Refused):
        independent_tables.read_manifest(Path(store.path))


# PyAV


@pytest.fixture
def without_av(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> el.EpisodeStore:
    """The store, opened where PyAV is not installed."""
    monkeypatch.setitem(sys.modules, "av", None)
    ffmpeg._av.cache_clear()
    monkeypatch.setattr(ffmpeg, "_av", ffmpeg._av.__wrapped__)
    return el.open(store.path)


def test_without_pyav_other_columns_are_read(without_av: el.EpisodeStore, tmp_path: Path) -> None:
    """Frames need it, and recording; numbers, lossless columns and maintenance do not."""
    opened, missing = without_av, el.errors.MissingPackageError
    assert [len(episode.rewards) for episode in opened] == [3, 1]
    assert opened.sql("select count(*) from steps").fetchall() == [(6,)]
    list(opened.loader(2, columns=["reward", "observation.exact"]))
    spaces = {"observation_space": Box(0, 255, (48, 64), np.uint8), "action_space": Discrete(2)}
    el.create(tmp_path / "lossless", encodings={"observation": el.Video(lossless=True)}, **spaces)
    for reading in (*READERS.values(), lambda store, _: store.verify()):
        with pytest.raises(missing, match=r"pip install 'episodelake\[video\]'"):
            reading(opened, tmp_path)
    with pytest.raises(missing):
        el.create(tmp_path / "new", encodings={"observation": VIDEO}, **spaces)
    with pytest.raises(missing):
        opened.record(Cameras(CAMERAS))
    with pytest.raises(missing):
        opened.writer()
    opened.compact(order_by="length")
    assert len(opened) == 2


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="threads have no policies here")
@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_encoders_make_no_real_time_threads(codec: Any) -> None:
    """SVT-AV1 would, as root: whatever else runs on the machine would wait for it."""
    usual = os.sched_getscheduler(0)
    context: Any = av.CodecContext.create(ffmpeg._ENCODERS[codec], "w")
    context.height, context.width, context.pix_fmt = 64, 64, "yuv420p"
    context.time_base, context.framerate = Fraction(1, 30), Fraction(30)
    context.options = ffmpeg._options(el.Video(codec), 64)
    ffmpeg.open_encoder(context)
    assert {os.sched_getscheduler(thread) for thread in ffmpeg._threads()} == {usual}
    column = VideoColumn("observation", ImageShape((64, 64)), el.Video(codec))
    column.encode(pa.array([bytes(64 * 64)] * 3, pa.binary()), np.arange(3) == 0)
    assert {os.sched_getscheduler(thread) for thread in ffmpeg._threads()} == {usual}


def test_a_build_without_an_encoder_says_which_it_has(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a store is created, and when a writer begins."""
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libx264", "h264"})
    spaces = {"observation_space": Box(0, 255, (48, 64), np.uint8), "action_space": Discrete(2)}
    message = "no encoder libx264.*It has those of: hevc, av1"
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        el.create(tmp_path / "new", encodings={"observation": VIDEO}, **spaces)
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        store.writer()
    with pytest.raises(el.errors.MissingPackageError, match="no decoder of h264"):
        store[0].observations  # noqa: B018
    # A merge checks it where frames have to be encoded, and takes encoded ones over without.
    plain = recorded_store(tmp_path / "plain", range(2, 4), cameras=CAMERAS, encodings={})
    for into in (tmp_path / "merged", store):
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            el.merge([store, plain], into)
    frames = np.zeros((3, 48, 64), np.uint8)
    arrays = {
        "observations": frames,
        "actions": np.zeros(3),
        "rewards": np.zeros(3),
        "terminals": frames[:, 0, 0],
    }
    np.savez(tmp_path / "arrays.npz", **arrays)
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        el.import_dataset(tmp_path / "arrays.npz", tmp_path / "merged", encodings={"observation": VIDEO})
    assert not (tmp_path / "merged").exists() and len(store.refresh()) == 2
    el.merge([store], tmp_path / "merged")
    assert len(el.open(tmp_path / "merged")) == 2


def test_a_store_that_exists_has_to_have_the_same_encodings(store: el.EpisodeStore) -> None:
    """`exist_ok` refuses others as it does other spaces; without encodings those of the store stay."""
    own = {"observation.odd": CODECS["h264"], "observation.exact": CODECS["lossless"]}
    for encodings in (own, None):
        assert len(el.create(store.path, Cameras(CAMERAS), encodings=encodings, exist_ok=True)) == 2
    for encodings in (
        {**own, "observation.odd": el.Video("h264", crf=24, gop=4)},
        {**own, "observation.odd": el.Video("h264", crf=23, gop=5)},
        {**own, "observation.odd": CODECS["hevc"]},
        {"observation.odd": CODECS["h264"]},
        {},
    ):
        with pytest.raises(
            el.errors.SpaceMismatchError, match=r"encodings that were given are \{.*store .* has"
        ):
            el.create(store.path, Cameras(CAMERAS), encodings=encodings, exist_ok=True)


UNCLOSED = """
import sys
import episodelake as el
from video_stores import SHAPES, Cameras, play

recorder = el.open(sys.argv[1]).record(Cameras({name: SHAPES[name] for name in ("odd", "exact")}))
play(recorder, [3])
"""


@pytest.mark.further
def test_a_process_that_ends_unclosed_encodes(store: el.EpisodeStore) -> None:
    """No thread can be started then; nothing is printed."""
    assert child(UNCLOSED, store.path) == ""
    assert [episode.seed for episode in store.refresh()] == [0, 1, 3]
    for episode in store:
        check_episode(episode, CAMERAS)
    with store.record(Cameras(CAMERAS)) as env:
        play(env, [4])
    assert len(store.refresh()) == 4
