"""Rows and frames of LeRobot datasets are found by their number and time, wherever `meta` says they are."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import episodelake as el
from episodelake.exchange.lerobot.videos import VideoSpan, frame_stamps, opened_video, span_packets

CAMERA = "observation.images.top"
COUNTERS = ("frame_index", "episode_index", "index", "task_index")


def encode(file: Path, pictures: Sequence[np.ndarray], **options: str) -> None:
    """Write a video with B-frames and two key frames a second."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as box:
        stream: Any = box.add_stream("libx264", rate=30, options={"g": "15", "bf": "3", **options})
        stream.height, stream.width, stream.pix_fmt = *pictures[0].shape[:2], "yuv420p"
        for picture in pictures:
            box.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        box.mux(stream.encode(None))


def decoded(file: Path) -> np.ndarray:
    """All frames of a video."""
    with av.open(str(file)) as box:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in box.decode(video=0)])


def v3(
    root: Path,
    lengths: Sequence[int],
    files: Sequence[Sequence[int]],
    *,
    rows: Sequence[dict[str, Any]] = (),
    times: Sequence[np.ndarray] | None = None,
    features: dict[str, Any] | None = None,
    columns: dict[str, Any] | None = None,
    **info: Any,
) -> Path:
    """Write a dataset v3.0: the episodes of each file, and more of each row of `meta/episodes`."""
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    starts = np.cumsum([0, *lengths])
    for number, episodes in enumerate(files):
        index = np.concatenate([np.arange(starts[e], starts[e + 1]) for e in episodes])
        episode = np.concatenate([np.full(lengths[e], e) for e in episodes])
        clock = times or [np.arange(length) / 30 for length in lengths]
        values = np.stack([index, -index], 1).astype(np.float32)
        table = {
            "observation.state": pa.array(values.tolist(), pa.list_(pa.float32(), 2)),
            "action": pa.array((values * 2).tolist(), pa.list_(pa.float32(), 2)),
            "timestamp": np.concatenate([clock[e] for e in episodes]).astype(np.float32),
            "frame_index": index - starts[episode],
            "episode_index": episode,
            "index": index,
            "task_index": np.zeros(len(index), int),
            **{name: pa.array(column).take(pa.array(index)) for name, column in (columns or {}).items()},
        }
        pq.write_table(pa.table(table), root / f"data/chunk-000/file-{number:03d}.parquet", row_group_size=5)
    meta = [
        {"episode_index": e, "length": length, "data/chunk_index": 0, "data/file_index": 0}
        for e, length in enumerate(lengths)
    ]
    for row, more in zip(meta, rows, strict=False):
        row.update(more)
    pq.write_table(pa.Table.from_pylist(meta), root / "meta/episodes/chunk-000/file-000.parquet")
    declared = {name: {"dtype": "float32", "shape": [2]} for name in ("observation.state", "action")}
    declared |= {name: {"dtype": "int64", "shape": [1]} for name in COUNTERS}
    declared |= {"timestamp": {"dtype": "float32", "shape": [1]}, **(features or {})}
    content = {
        "codebase_version": "v3.0",
        "fps": 30,
        "total_episodes": len(lengths),
        "features": declared,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps({**content, **info}))
    return root


def states(store: el.EpisodeStore) -> list[list[float]]:
    """The first number of each observation, by episode."""
    return [episode.observations["state"][:, 0].tolist() for episode in store]


def expected(root: Path) -> list[list[float]]:
    """The same, as DuckDB finds them in the files by their own columns."""
    query = """SELECT list("observation.state"[1] ORDER BY frame_index) FROM read_parquet(?)
        GROUP BY episode_index ORDER BY episode_index"""
    return [row for (row,) in duckdb.execute(query, [str(root / "data/*/*.parquet")]).fetchall()]


def test_rows_are_located_where_meta_does_not_fit(tmp_path: Path) -> None:
    """File numbers of an old converter, none at all, rows out of order, and rows of a repeated episode."""
    for listed in ("stale", "absent", "unsorted", "repeated"):
        root = v3(tmp_path / listed, (7, 5, 9, 4), ([1, 0], [3, 2]))
        file = root / "meta/episodes/chunk-000/file-000.parquet"
        meta = pq.read_table(file).to_pylist()
        if listed == "absent":
            meta = [{name: row[name] for name in ("episode_index", "length")} for row in meta]
        elif listed == "unsorted":
            meta.reverse()
        elif listed == "repeated":
            meta.insert(0, {**meta[2], "length": 3})
        pq.write_table(pa.Table.from_pylist(meta), file)
        el.import_dataset(root, tmp_path / f"{listed}-store", last_observation="missing")
        assert states(el.open(tmp_path / f"{listed}-store")) == expected(root), listed


def test_files_of_meta_with_other_columns_are_read(tmp_path: Path) -> None:
    """A later file of `meta/episodes` has a column that the first one lacks."""
    root = v3(tmp_path / "ds", (3, 4), ([0, 1],))
    file = root / "meta/episodes/chunk-000/file-000.parquet"
    first, second = pq.read_table(file).to_pylist()
    pq.write_table(pa.Table.from_pylist([first]), file)
    pq.write_table(pa.Table.from_pylist([{**second, "grade": 5}]), file.with_name("file-001.parquet"))
    el.import_dataset(root, tmp_path / "store", last_observation="missing")
    assert [episode.metadata.get("grade") for episode in el.open(tmp_path / "store")] == [None, 5]


def test_episodes_without_their_rows_are_named(tmp_path: Path) -> None:
    """An episode of another length, and one that no file has; the others come in."""
    root = v3(tmp_path / "ds", (3, 4, 5), ([0, 1],), rows=({}, {"length": 9}))
    report = el.import_dataset(root, tmp_path / "store", last_observation="missing", on_error="skip")
    problems = dict(report.skipped)
    assert report.episodes == 1 and sorted(problems) == ["1", "2"]
    assert "has 4 rows of episode 1; expected 9" in problems["1"]
    assert "has no rows with the episode_index 2" in problems["2"]


def shades(count: int) -> list[np.ndarray]:
    """Pictures that tell their number in four bits of brightness, which a lossy codec keeps."""
    bits = [[255 * (number >> bit & 1) for bit in range(8)] for number in range(count)]
    return [np.repeat(np.array(row, np.uint8), 8)[None, :, None].repeat(16, 0).repeat(3, 2) for row in bits]


def numbers_of(frames: np.ndarray) -> list[int]:
    """The numbers that `shades` has put into pictures."""
    bits = frames.reshape(len(frames), 16, 8, 8, 3).mean((1, 3, 4)) > 127
    return (bits @ (1 << np.arange(8))).tolist()


def cameras(lengths: Sequence[int], starts: Sequence[float], stops: bool = False) -> list[dict[str, Any]]:
    """The rows of `meta/episodes` of a camera whose episodes share a file."""
    rows = []
    for length, start in zip(lengths, starts, strict=True):
        row = {"chunk_index": 0, "file_index": 0, "from_timestamp": start}
        row |= {"to_timestamp": start + length / 30} if stops else {}
        rows.append({f"videos/{CAMERA}/{key}": value for key, value in row.items()})
    return rows


VIDEO = {CAMERA: {"dtype": "video", "shape": [16, 64, 3], "names": ["height", "width", "channels"]}}


@pytest.mark.parametrize("rate", [29.3, 30, 30.9])
def test_clocks_of_the_hardware_take_no_frame_of_another_episode(tmp_path: Path, rate: float) -> None:
    """Row i has frame i of its episode, in order and in the reverse order of `meta`."""
    lengths = (60, 55, 40)
    starts = (np.cumsum([0, *lengths[:-1]]) / 30).tolist()
    clocks = [np.arange(length) / rate + 0.004 for length in lengths]
    root = v3(
        tmp_path / "ds", lengths, ([0, 1, 2],), rows=cameras(lengths, starts), times=clocks, features=VIDEO
    )
    encode(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", shades(sum(lengths)))
    el.import_dataset(root, tmp_path / "store", last_observation="missing")
    seen = [numbers_of(episode.observations["images"]["top"]) for episode in el.open(tmp_path / "store")]
    assert [number for each in seen for number in each] == list(range(155))
    if rate == 30:
        whole = decoded(root / f"videos/{CAMERA}/chunk-000/file-000.mp4")
        second = el.open(tmp_path / "store")[1].observations["images"]["top"]
        assert np.array_equal(second, whole[60:115])


def test_videos_with_more_frames_than_rows_are_read_by_time(tmp_path: Path) -> None:
    """Every third frame; a clock that drifts away from the frames is an error that names the row."""
    rows = cameras((20, 10), (0.0, 2.1), stops=False)
    third = [np.arange(20) / 10, np.arange(10) / 10]
    root = v3(tmp_path / "ds", (20, 10), ([0, 1],), rows=rows, times=third, features=VIDEO)
    encode(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", shades(110))
    el.import_dataset(root, tmp_path / "store", last_observation="missing")
    seen = [numbers_of(episode.observations["images"]["top"]) for episode in el.open(tmp_path / "store")]
    assert seen == [list(range(0, 60, 3)), list(range(63, 93, 3))]
    drifting = [np.arange(20) / 9.7, np.arange(10) / 10]
    other = v3(tmp_path / "other", (20, 10), ([0, 1],), rows=rows, times=drifting, features=VIDEO)
    encode(other / f"videos/{CAMERA}/chunk-000/file-000.mp4", shades(110))
    with pytest.raises(el.errors.DatasetError, match=r"has no frame at 0\.3093 s, frame 3 of the episode"):
        el.import_dataset(other, tmp_path / "store2", last_observation="missing")


def test_stamps_of_an_episode_are_those_of_its_packets(tmp_path: Path) -> None:
    """The same for a file with one key frame, and for one in which each frame is one."""
    for number, options in enumerate(({"g": "250"}, {"g": "1", "bf": "0"})):
        file = tmp_path / f"{number}.mp4"
        encode(file, shades(90), **options)
        with opened_video(file) as (container, stream):
            stamps = [round(frame.pts * stream.time_base * 30) for frame in container.decode(stream)]
            assert stamps == list(range(90))
            for start, stop in ((0, 90), (30, 90), (31, 47), (89, 90)):
                span = VideoSpan(file, start / 30, stop / 30)
                packets = span_packets(container, stream, span, 30.0)
                found = frame_stamps(packets, stream, span, np.arange(stop - start) / 30, 30.0)
                assert np.rint(found * float(stream.time_base) * 30).tolist() == list(range(start, stop))


def test_texts_of_steps_and_files_of_others_come_in(tmp_path: Path) -> None:
    """Language columns as JSON, GR00T's annotations as texts and its `modality.json`; the rest is counted."""
    message = {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.0}
    messages = [[message], [message], []]
    root = v3(
        tmp_path / "ds",
        (3,),
        ([0],),
        features={
            "language_persistent": {"dtype": "language", "shape": [1]},
            "language_events": {"dtype": "language", "shape": [1]},
            "annotation.human.validity": {"dtype": "int64", "shape": [1]},
            "annotation.human.other": {"dtype": "int64", "shape": [1]},
        },
        columns={
            "language_persistent": messages,
            "language_events": pa.array([[], [], []], pa.list_(pa.struct({"role": pa.string()}))),
            "annotation.human.validity": [1, 1, 0],
            "annotation.human.other": [7, 1, 0],
            "undeclared": [1.0, 2.0, 3.0],
        },
    )
    tasks = pa.table({"task_index": [0, 1], "task": ["pick", "valid"]})
    pq.write_table(tasks, root / "meta/tasks.parquet")
    modality = {"state": {"arm": {"start": 0, "end": 2}}}
    (root / "meta/modality.json").write_text(json.dumps(modality))
    (root / "meta/notes.txt").write_text("odd")
    report = el.import_dataset(root, tmp_path / "store", last_observation="missing")
    store = el.open(tmp_path / "store")
    extra = store[0].extra
    assert [None if text is None else json.loads(text) for text in extra["language_persistent"]] == [
        [message],
        [message],
        None,
    ]
    assert "language_events" not in extra
    assert extra["annotation"]["human"]["validity"] == ["valid", "valid", "pick"]
    assert extra["annotation"]["human"]["other"].tolist() == [7, 1, 0]
    assert store.card["lerobot"]["modality"] == modality
    assert store.card["lerobot"]["tasks"] == {"0": "pick", "1": "valid"}
    lost = {"undeclared, which meta/info.json does not list": 3, "meta/notes.txt, which is not read": 1}
    assert lost.items() <= report.lost.items()
    assert len(report.lost) == 4, "with the rewards and the last observation"


def quantized(metres: np.ndarray, low: float, high: float, shift: float, logarithmic: bool) -> np.ndarray:
    """Codes of depths, as LeRobot 0.6 documents them."""
    if logarithmic:
        shares = (np.log(metres + shift) - np.log(low + shift)) / (np.log(high + shift) - np.log(low + shift))
    else:
        shares = (metres - low) / (high - low)
    return np.rint(shares * 4095).clip(0, 4095).astype(np.uint16)


@pytest.mark.parametrize("unit", ["mm", "m", None])
def test_depth_maps_are_depths(tmp_path: Path, unit: str | None) -> None:
    """Videos of 12-bit codes within a code of the depths; images of millimetres and metres as they are."""
    metres = np.random.default_rng(0).uniform(0.2, 4, (6, 16, 32)).astype(np.float32)
    infos: list[dict[str, Any]] = [
        {"is_depth_map": True, "depth_unit": unit},
        {"video.is_depth_map": True, "depth_unit": unit, "video.use_log": False, "video.depth_max": 5.0},
        {"is_depth_map": True, "depth_unit": unit},
    ]
    names = ["observation.images.log", "observation.images.linear", "observation.images.raw"]
    features = {
        name: {"dtype": kind, "shape": [16, 32, 1], "names": ["height", "width", "channels"], "info": info}
        for name, kind, info in zip(names, ("video", "video", "image"), infos, strict=True)
    }
    for name, (high, logarithmic) in zip(names, ((10.0, True), (5.0, False)), strict=False):
        file = tmp_path / f"ds/videos/{name}/chunk-000/file-000.mp4"
        file.parent.mkdir(parents=True)
        with av.open(str(file), "w") as box:
            stream: Any = box.add_stream(
                "libx265", rate=30, options={"x265-params": "lossless=1:log-level=0"}
            )
            stream.height, stream.width, stream.pix_fmt = 16, 32, "gray12le"
            for codes in quantized(metres, 0.01, high, 3.5, logarithmic):
                box.mux(stream.encode(av.VideoFrame.from_ndarray(codes, format="gray12le")))
            box.mux(stream.encode(None))
    stored = metres if unit != "mm" else np.rint(metres * 1000).astype(np.uint16)
    pictures = []
    for each in stored:
        content = io.BytesIO()
        Image.fromarray(each).save(content, "TIFF")
        pictures.append({"bytes": content.getvalue(), "path": None})
    place = {"chunk_index": 0, "file_index": 0, "from_timestamp": 0.0}
    row = {f"videos/{name}/{key}": value for name in names[:2] for key, value in place.items()}
    v3(tmp_path / "ds", (6,), ([0],), rows=[row], features=features, columns={names[2]: pictures})
    report = el.import_dataset(tmp_path / "ds", tmp_path / "store", last_observation="missing")
    assert report.lost["depths quantized to 12 bits in a video"] == 12
    (episode,) = el.open(tmp_path / "store")
    seen = episode.observations["images"]
    scale = 1 if unit == "m" else 1000
    for name, step in (("log", 13.5 * np.log(13.5 / 3.51) / 4095), ("linear", 4.99 / 4095)):
        assert seen[name].dtype == (np.float32 if unit == "m" else np.uint16)
        apart = np.abs(seen[name][..., 0] / scale - metres)
        assert apart.max() <= step / 2 + (5e-4 if scale == 1000 else 1e-6)
    assert np.array_equal(seen["raw"][..., 0], stored)


def openpi(root: Path) -> Path:
    """A folder with openpi's names: one picture, a state, actions, and more."""
    pictures = []
    for picture in shades(4):
        content = io.BytesIO()
        Image.fromarray(picture).save(content, "PNG")
        pictures.append({"bytes": content.getvalue(), "path": None})
    v3(
        root,
        (4,),
        ([0],),
        features={
            "image": {"dtype": "image", "shape": [16, 64, 3], "names": ["height", "width", "channel"]},
            "state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
            "gripper": {"dtype": "float64", "shape": [1]},
            "actions": {"dtype": "float32", "shape": [2], "names": ["dx", "dy"]},
            "score": {"dtype": "float32", "shape": [1]},
            "solved": {"dtype": "bool", "shape": [1]},
        },
        columns={
            "image": pictures,
            "state": pa.array([[t, -t] for t in range(4)], pa.list_(pa.float32(), 2)),
            "gripper": [0.5, 0.25, 0.125, 0.0],
            "actions": pa.array([[t, t] for t in range(4)], pa.list_(pa.float32(), 2)),
            "score": pa.array([0, 0, 0, 1], pa.float32()),
            "solved": [False, False, False, True],
        },
    )
    file = root / "meta/info.json"
    info = json.loads(file.read_text())
    for name in ("observation.state", "action"):
        del info["features"][name]
    file.write_text(json.dumps(info))
    return root


def test_a_mapping_names_the_features_of_other_recorders(tmp_path: Path) -> None:
    """One feature, a vector of several, and a Dict; what has no role is a step column."""
    source = openpi(tmp_path / "ds")
    with pytest.raises(el.errors.DatasetError, match=r"has no feature observation\.\*.*mapping="):
        el.import_dataset(source, tmp_path / "none")
    mapping = {
        "observation": {"image": "image", "arm": {"state": ["state", "gripper"]}},
        "action": "actions",
        "reward": "score",
        "terminated": "solved",
    }
    report = el.import_dataset(source, tmp_path / "store", mapping=mapping, last_observation="missing")
    assert report.mapping["observation.arm.state"] == "state, gripper"
    store = el.open(tmp_path / "store")
    (episode,) = store
    seen: Any = episode.observations
    assert numbers_of(seen["image"]) == [0, 1, 2, 3]
    assert seen["arm"]["state"].tolist() == [[t, -t, 0.5 ** (t + 1) * (t < 3)] for t in range(4)]
    assert episode.actions.tolist() == [[t, t] for t in range(4)]
    assert (episode.rewards.tolist(), episode.end_reason) == ([0, 0, 0, 1], "terminated")
    el.import_dataset(source, tmp_path / "flat", mapping={"observation": "state", "action": ["actions"]})
    flat = el.open(tmp_path / "flat")
    assert flat[0].observations.shape == (4, 2) and flat[0].extra["score"].tolist() == [0, 0, 0, 1]
    flat.export(tmp_path / "out", format="lerobot")
    features = json.loads((tmp_path / "out/meta/info.json").read_text())["features"]
    assert (features["action"]["names"], features["observation.state"]["names"]) == (["dx", "dy"], ["x", "y"])


def test_mappings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """Unknown keys and features, features given twice, and pictures in a vector."""
    source = openpi(tmp_path / "ds")
    for mapping, message in (
        ({"observation": "state"}, "expected a dict with observation and action"),
        ({"observation": "state", "action": "actions", "obs": "state"}, "expected a dict with observation"),
        ({"observation": "stat", "action": "actions"}, r"no feature 'stat'.*Did you mean state"),
        ({"observation": {"a": "state", "b": "state"}, "action": "actions"}, "names state for observation.a"),
        ({"observation": ["image", "state"], "action": "actions"}, "image has the dtype image"),
        ({"observation": [], "action": "actions"}, "expected a feature, a list of features"),
        ({"observation": {"a": 3}, "action": "actions"}, "has 3 for observation.a"),
    ):
        with pytest.raises((el.errors.DatasetError, el.errors.InvalidArgumentError), match=message):
            el.import_dataset(source, tmp_path / "store", mapping=mapping)
    assert not (tmp_path / "store").exists()
