"""Exports to LeRobot with `frames="copy"`: packets of the store in MP4 files, without encoding them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.store.frames import VideoColumn
from test_exchange_lerobot_files import CAMERA, cameras, v3
from test_exchange_lerobot_video import (
    AGAIN,
    COLUMN,
    ENCODERS,
    FEATURE,
    HEIGHT,
    LENGTHS,
    STARTS,
    WIDTH,
    brought,
    by_episode,
    dataset,
    decoded,
    encode,
    pictures,
    same,
    seen,
    shared,
    v21,
    video_of,
)

IMAGE = spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
SPACE = spaces.Dict({"images": spaces.Dict({"top": IMAGE}), "state": spaces.Box(-9, 9, (2,), np.float32)})
ACTION = spaces.Box(-1, 1, (2,), np.float32)


def recorded(path: Path, encoding: el.Video | None, lengths: tuple[int, ...] = (6, 1, 17)) -> el.EpisodeStore:
    """A store whose episodes have their last observations."""
    store = el.create(
        path,
        observation_space=SPACE,
        action_space=ACTION,
        encodings=None if encoding is None else {COLUMN: encoding},
    )
    with store.writer() as writer:
        for seed, length in enumerate(lengths):
            writer.write_episode(
                observations={
                    "images": {"top": np.stack(pictures(length + 1, seed))},
                    "state": np.zeros((length + 1, 2), np.float32),
                },
                actions=np.zeros((length, 2), np.float32),
                rewards=np.arange(length, dtype=np.float64),
                terminations=False,
                truncations=True,
            )
    return store.refresh()


def exported(store: el.EpisodeStore, target: Path, **options: Any) -> tuple[dict[str, int], list[np.ndarray]]:
    """Export a store; the losses of frames, and the frames of each episode as PyAV decodes them."""
    report = store.export(target, format="lerobot", **options)
    lost = {what: count for what, count in report.lost.items() if "frames" in what}
    return lost, [frames for _, frames in placed(target)]


def rows_of(target: Path) -> list[dict[str, Any]]:
    """The rows of `meta/episodes`."""
    (file,) = (target / "meta/episodes").rglob("*.parquet")
    return pq.read_table(file).to_pylist()


def placed(target: Path) -> list[tuple[int, np.ndarray]]:
    """The number of the file of each episode, and the frames at the times that its row gives."""
    fps, found = json.loads((target / "meta/info.json").read_text())["fps"], []
    whole = [decoded(file) for file in sorted((target / "videos").rglob("*.mp4"))]
    for row in rows_of(target):
        given = {key.rpartition("/")[2]: value for key, value in row.items() if key.startswith("videos/")}
        start, stop = round(given["from_timestamp"] * fps), round(given["to_timestamp"] * fps)
        assert stop - start == row["length"]
        found.append((given["file_index"], whole[given["file_index"]][start:stop]))
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ENCODERS)
def test_an_import_goes_out_again_and_comes_back(tmp_path: Path, name: str) -> None:
    """Frames are those of the first dataset bit for bit, by default; nothing of them is lost twice."""
    encoder, codec, options = ENCODERS[name]
    root = dataset(tmp_path / "ds", shared(encoder, options))
    whole = by_episode(decoded(video_of(root)))
    store, _ = brought(root, tmp_path / "store")
    lost, frames = exported(store, tmp_path / "out")
    assert lost == {} and all(same(frames, whole))
    info = json.loads((tmp_path / "out/meta/info.json").read_text())["features"][CAMERA]
    assert (info["dtype"], info["info"]["video.codec"], info["info"]["video.pix_fmt"]) == (
        "video",
        codec,
        "yuv420p",
    )
    back, report = brought(tmp_path / "out", tmp_path / "back")
    assert AGAIN not in report.lost and all(same(seen(back), whole))
    assert back.handle.manifest.encodings == {COLUMN: el.Video(codec)} and not back.verify().faults


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_recorded_video_goes_out_and_comes_back(tmp_path: Path, codec: str) -> None:
    """The frame after the last transition is lost, though others may be decoded with it."""
    store = recorded(tmp_path / "store", el.Video(codec, gop=8))
    whole = [frames[:-1] for frames in seen(store)]
    lost, frames = exported(store, tmp_path / "out")
    assert lost == {} and all(same(frames, whole))
    back, report = brought(tmp_path / "out", tmp_path / "back")
    assert AGAIN not in report.lost and all(same(seen(back), whole)) and not back.verify().faults


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_packets_stay_the_same_over_many_copies(tmp_path: Path, codec: str) -> None:
    """Every export writes what the first one wrote: parameters of the decoder are not added again."""
    store = recorded(tmp_path / "store", el.Video(codec, gop=8))
    files = []
    for turn in range(4):
        store.export(target := tmp_path / f"out {turn}", format="lerobot")
        files.append(video_of(target).read_bytes())
        store, report = brought(target, tmp_path / f"store {turn}")
        assert AGAIN not in report.lost
    assert len({*files}) == 1


def test_times_are_those_of_the_frames_after_longer_delays(tmp_path: Path) -> None:
    """An episode with deeper B-frames than those before it begins another file."""
    options = {"g": "250", "bf": "8", "x264-params": "b-pyramid=normal:b-adapt=0"}
    store, _ = brought(v21(tmp_path / "ds", "libx264", options), tmp_path / "store")
    view = store.sort("length")
    view.export(tmp_path / "out", format="lerobot", fps=29.97)
    placed_frames = placed(tmp_path / "out")
    expected = [episode.observations["images"]["top"] for episode in view]
    assert all(same([frames for _, frames in placed_frames], expected))
    assert len({number for number, _ in placed_frames}) > 1
    start = rows_of(tmp_path / "out")[1][f"videos/{CAMERA}/from_timestamp"]
    assert start == pytest.approx(1 / 29.97, abs=1e-4)


def test_packets_with_other_parameters_begin_another_file(tmp_path: Path) -> None:
    """Episodes of two encoders; those of one share a file though others come between them."""
    root = v21(tmp_path / "ds", "libx264", {"g": "4"})
    for number in (3, 6):
        file = root / f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4"
        encode(file, pictures(LENGTHS[number], number), *ENCODERS["hevc"][::2])
    store, report = brought(root, tmp_path / "store")
    assert AGAIN not in report.lost
    lost, frames = exported(store, tmp_path / "out")
    assert lost == {} and all(same(frames, seen(store)))
    assert [number for number, _ in placed(tmp_path / "out")] == [0, 0, 0, 1, 0, 0, 1]


def test_a_full_file_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At an episode, once its bytes reach the limit."""
    monkeypatch.setattr("episodelake.exchange.lerobot.written_files.VIDEO_MB", 1e-3)
    store = recorded(tmp_path / "store", el.Video("av1", gop=4), (20, 20, 20))
    _, frames = exported(store, tmp_path / "out")
    assert all(same(frames, [each[:-1] for each in seen(store)]))
    assert len({number for number, _ in placed(tmp_path / "out")}) > 1


@pytest.mark.further
def test_frames_that_no_packets_hold_are_encoded(tmp_path: Path) -> None:
    """Raw frames, lossless ones, and episodes of both kinds; the report counts them by feature."""
    for number, encoding in enumerate((None, el.Video(lossless=True))):
        store = recorded(tmp_path / f"{number}", encoding)
        lost, frames = exported(store, tmp_path / f"{number}-default")
        assert lost == {"frames of lossy video": 24}
        lost, frames = exported(store, tmp_path / f"{number}-copy", frames="copy")
        assert lost == ({AGAIN: 24} if encoding else {"frames of lossy video": 24})
        for ours, theirs in zip(seen(store), frames, strict=True):
            assert np.abs(ours[:-1].astype(int) - theirs).mean() < 20
    both = recorded(tmp_path / "both", el.Video("h264"), (6, 1, 17))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(VideoColumn, "encode", lambda column, cells, starts: cells)
        el.merge([tmp_path / "0"], both)
    both.refresh()
    lost, frames = exported(both, tmp_path / "both-copy")
    assert lost == {AGAIN: 24} and len(frames) == 6
    assert all(same(frames[:3], [each[:-1] for each in seen(both)[:3]]))
    with pytest.raises(el.errors.DatasetError, match="cannot be copied"):
        both.export(tmp_path / "strict", format="lerobot", strict=True)


def test_other_frames_can_be_asked_for(tmp_path: Path) -> None:
    """PNG keeps decoded frames exactly; encoding counts as lossy."""
    store = recorded(tmp_path / "store", el.Video("h264"))
    lost, _ = exported(store, tmp_path / "video", frames="video")
    assert lost == {"frames of lossy video": 24}
    assert not {**store.export(tmp_path / "image", format="lerobot", frames="image").lost}.get(AGAIN)
    back, _ = brought(tmp_path / "image", tmp_path / "back")
    assert all(same(seen(back), [frames[:-1] for frames in seen(store)]))


def test_statistics_are_of_some_frames(tmp_path: Path) -> None:
    """Every k-th, at most 100 of an episode; of a short one all."""
    store = recorded(tmp_path / "store", el.Video("h264"), (250, 30))
    exported(store, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    for row, frames, step in zip(rows, seen(store), (3, 1), strict=True):
        sample = frames[:-1][::step]
        assert row[f"stats/{CAMERA}/count"] == [len(sample)] and len(sample) <= 100
        mean = np.ravel(row[f"stats/{CAMERA}/mean"])
        assert np.allclose(mean, sample.reshape(-1, 3).mean(0) / 255)
        assert row["stats/action/count"] == [row["length"]]


def test_a_column_beside_video_is_a_picture(tmp_path: Path) -> None:
    """Of two cameras of which one is encoded, both go out; the raw one is encoded."""
    space = spaces.Dict({"a": IMAGE, "b": IMAGE})
    store = el.create(
        tmp_path / "store",
        observation_space=space,
        action_space=ACTION,
        encodings={"observation.a": el.Video("h264")},
    )
    with store.writer() as writer:
        writer.write_episode(
            observations={name: np.stack(pictures(9, seed)) for seed, name in enumerate("ab")},
            actions=np.zeros((8, 2), np.float32),
            rewards=np.zeros(8),
            terminations=False,
            truncations=True,
        )
    store.refresh()
    report = store.export(tmp_path / "out", format="lerobot", frames="copy")
    assert report.lost["frames of lossy video"] == 8
    file = tmp_path / "out/videos/observation.a/chunk-000/file-000.mp4"
    assert np.array_equal(decoded(file)[:8], store[0].observations["a"][:8])
    assert store.export(tmp_path / "default", format="lerobot").lost["frames of lossy video"] == 16


def test_an_episode_of_a_view_is_copied(tmp_path: Path) -> None:
    """A filter, and the reverse order."""
    rows = cameras(LENGTHS, (STARTS[:-1] / 30).tolist())
    root = v3(tmp_path / "ds", LENGTHS, ([*range(len(LENGTHS))],), rows=rows, features=FEATURE)
    shared(*(ENCODERS["hevc"][place] for place in (0, 2)))(video_of(root))
    store, _ = brought(root, tmp_path / "store")
    view = store.filter("length > 4").sort("length")
    view.export(tmp_path / "out", format="lerobot")
    expected = [episode.observations["images"]["top"] for episode in view]
    assert all(same([frames for _, frames in placed(tmp_path / "out")], expected))


def test_a_damaged_chunk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its episode and column; nothing is written."""
    store = recorded(tmp_path / "store", el.Video("hevc"))

    def damaged(*_: Any) -> None:
        raise ValueError("FFmpeg cannot decode it")

    monkeypatch.setattr("episodelake.store.frames.ffmpeg.shown_order", damaged)
    with pytest.raises(el.errors.CorruptStoreError, match=rf"{store[0].id}.*{COLUMN}.*cannot decode"):
        store.export(tmp_path / "out", format="lerobot")
    assert not (tmp_path / "out").exists()
