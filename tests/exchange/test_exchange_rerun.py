"""Recordings for Rerun, read by Rerun's own reader; `make test-peers` runs what needs rerun-sdk."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from array_stores import recorded
from video_stores import SHAPES, arrays_of, new_store

PEERS = pytest.mark.peers
CARTS = (spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(3))


def columns_of(file: Path) -> tuple[Any, dict[str, dict[str, list[Any]]]]:
    """The recording of a file, and the columns of each of its entities."""
    chunk = pytest.importorskip("rerun.chunk")
    reader = chunk.RrdReader(str(file))
    (recording,) = reader.recordings()
    columns: dict[str, dict[str, list[Any]]] = {}
    for each in reader.store().stream():
        batch = each.to_record_batch()
        entity = columns.setdefault(each.entity_path, {})
        for name in batch.schema.names[1:]:
            entity.setdefault(name, []).extend(batch.column(name).to_pylist())
    return recording, columns


def walks(path: Path, lengths: tuple[int, ...], **card: Any) -> el.EpisodeStore:
    """Episodes of these lengths: observation [episode, t], reward t + 1, a text where t is even."""
    store = el.create(path, observation_space=CARTS[0], action_space=CARTS[1], card=card)
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            steps = np.arange(length + 1)
            writer.write_episode(
                observations=np.stack([np.full(length + 1, number), steps], 1).astype(np.float32),
                actions=steps[:-1] % 3,
                rewards=steps[1:].astype(float),
                terminations=number == 0,
                truncations=number == 1,
                infos=[
                    {"at": 0.5 * t, "said": f"step {t}"} if t % 2 == 0 else {"at": 0.5 * t} for t in steps
                ],
                seed=number,
                metadata={"driver": "ann", "tags": ["a", "b"]},
            )
    return store.refresh()


@PEERS
def test_a_recording_has_the_steps_of_an_episode(tmp_path: Path) -> None:
    """Every number at its step and time, texts where there are some, and facts as properties."""
    pytest.importorskip("rerun")
    store = walks(tmp_path / "store", (5, 3, 2), title="My walks!", fps=20)
    report = store.export(tmp_path / "out", format="rerun")
    assert report.files == ("000000.rrd", "000001.rrd", "000002.rrd")
    for number, episode in enumerate(store):
        recording, columns = columns_of(tmp_path / "out" / report.files[number])
        assert (recording.application_id, recording.recording_id) == ("My-walks", episode.id)
        steps = list(range(episode.length + 1))
        seen = columns["/observation"]
        assert seen["step"] == steps
        assert [time.total_seconds() for time in seen["time"]] == [step / 20 for step in steps]
        assert seen["Scalars:scalars"] == episode.observations.tolist()
        for name, values in (
            ("action", episode.actions),
            ("reward", episode.rewards),
            ("episode/return", np.cumsum(episode.rewards)),
            ("terminated", episode.terminations),
            ("truncated", episode.truncations),
        ):
            assert columns[f"/{name}"]["step"] == steps[:-1]
            assert columns[f"/{name}"]["Scalars:scalars"] == [[float(value)] for value in values], name
        assert columns["/info/at"]["Scalars:scalars"] == [[0.5 * step] for step in steps]
        assert columns["/info/said"]["step"] == steps[::2]
        assert columns["/info/said"]["TextLog:text"] == [[f"step {step}"] for step in steps[::2]]
        assert (columns["/episode/end"]["step"], columns["/episode/end"]["TextLog:text"]) == (
            steps[-1:],
            [[episode.end_reason]],
        )
        facts = columns["/__properties/episode"]
        assert (facts["seed"], facts["length"]) == ([[episode.seed]], [[episode.length]])
        assert facts["episode_return"] == [[episode.rewards.sum()]]
        assert (facts["metadata.driver"], facts["metadata.tags"]) == ([["ann"]], [['["a", "b"]']])


@PEERS
def test_recordings_have_images_and_tensors(tmp_path: Path) -> None:
    """Frames decode to those of the store, compressed and not; arrays and texts of a Dict have entities."""
    pytest.importorskip("rerun")
    image = pytest.importorskip("PIL.Image")
    store = recorded(tmp_path / "store")
    for images in ("png", "raw", "jpeg"):
        report = store.export(tmp_path / images, format="rerun", images=images, time="info.cost")
        assert report.lost.get("frames of lossy JPEG", 0) == (24 if images == "jpeg" else 0)
        for number, episode in enumerate(store):
            _, columns = columns_of(tmp_path / images / f"{number:06d}.rrd")
            for key in ("camera", "depth"):
                frames = episode.observations[key]
                entity = columns[f"/observation/{key}"]
                if images == "raw":
                    seen = [
                        np.array(each[0], np.uint8).reshape(frames[0].shape)
                        for each in entity["Image:buffer"]
                    ]
                else:
                    blobs = [bytes(each[0]) for each in entity["EncodedImage:blob"]]
                    seen = [np.asarray(image.open(io.BytesIO(blob))) for blob in blobs]
                    assert entity["EncodedImage:media_type"] == [[f"image/{images}"]] * len(frames)
                assert images == "jpeg" or np.array_equal(seen, frames)
                assert np.shape(seen) == frames.shape
            tensors = columns["/observation/grid"]["Tensor:data"]
            assert [each[0]["shape"] for each in tensors] == [[2, 3]] * (episode.length + 1)
            values = [np.ravel(each[0]["buffer"]) for each in tensors]
            assert np.array_equal(values, episode.observations["grid"].reshape(-1, 6))
            assert columns["/observation/word"]["TextLog:text"] == [
                [word] for word in episode.observations["word"]
            ]
            times = [time.total_seconds() for time in columns["/action"]["time"]]
            assert times == [info["cost"] for info in episode.infos[:-1]]


@PEERS
@pytest.mark.parametrize("fps", [None, 12.5])
def test_encoded_frames_are_copied(tmp_path: Path, fps: float | None) -> None:
    """Rerun finds a frame for each step in the video of a camera; others are images, and all on request."""
    rerun = pytest.importorskip("rerun")
    image = pytest.importorskip("PIL.Image")
    copied = ("grey", "mono", "rgb")
    cameras = {name: SHAPES[name] for name in (*copied, "odd", "exact", "raw")}
    store = new_store(tmp_path / "store", cameras=cameras)
    with store.writer() as writer:
        for number, length in enumerate((11, 1)):
            writer.write_episode(**arrays_of(cameras, number, length))
    store.refresh().export(tmp_path / "png", format="rerun", images="png")
    report = store.export(tmp_path / "out", format="rerun", **({} if fps is None else {"fps": fps}))
    assert not any("frames" in loss for loss in report.lost)
    for number, episode in enumerate(store):
        _, columns = columns_of(tmp_path / "out" / f"{number:06d}.rrd")
        _, plain = columns_of(tmp_path / "png" / f"{number:06d}.rrd")
        steps = [*range(episode.length + 1)]
        for name in cameras:
            entity, frames = columns[f"/observation/{name}"], episode.observations[name]
            for blobs in (plain[f"/observation/{name}"], *([] if name in copied else [entity])):
                seen = [
                    np.asarray(image.open(io.BytesIO(bytes(each[0])))) for each in blobs["EncodedImage:blob"]
                ]
                assert np.array_equal(np.reshape(seen, frames.shape), frames)
            if name not in copied:
                continue
            ((blob,),) = (each for each in entity["AssetVideo:blob"] if each is not None)
            video = rerun.AssetVideo(contents=bytes(blob), media_type="video/mp4")
            moments = [each[0] for each in entity["VideoFrameReference:timestamp"] if each is not None]
            known = np.sort(video.read_frame_timestamps_nanos())
            assert len(known) == len(moments) == len(steps)
            assert np.abs(known - moments).max() <= 1e9 / (fps or 30) / 100
            assert [step for step in entity["step"] if step is not None] == steps
            with av.open(io.BytesIO(bytes(blob))) as container:
                form = "gray" if cameras[name][2:] in ((), (1,)) else "rgb24"
                shown = [frame.to_ndarray(format=form) for frame in container.decode(video=0)]
            assert np.array_equal(np.reshape(shown, frames.shape), frames)


@PEERS
def test_a_step_without_its_time_is_named(tmp_path: Path) -> None:
    """The error names the episode and the step, and no folder appears."""
    pytest.importorskip("rerun")
    store = walks(tmp_path / "store", (2,))
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((3, 2), np.float32),
            actions=np.zeros(2, np.int64),
            rewards=np.zeros(2),
            terminations=True,
            truncations=False,
            infos=[{"at": 0.0}, {}, {"at": 1.0}],
        )
    with pytest.raises(el.errors.DatasetError, match=r"Episode 1 of the view has no 'info\.at' at step 1"):
        store.refresh().export(tmp_path / "out", format="rerun", time="info.at")
    assert not (tmp_path / "out").exists()


def test_the_package_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install; nothing is written."""
    monkeypatch.setitem(sys.modules, "rerun", None)
    store = walks(tmp_path / "store", (2,))
    with pytest.raises(el.errors.MissingPackageError, match=r"pip install 'episodelake\[rerun\]'"):
        store.export(tmp_path / "out", format="rerun")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]
