"""Untrusted sources: imports read nothing outside, need bounded memory, and raise errors of our tree."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from gymnasium.spaces import Box, Discrete

import episodelake as el
from effort import with_folders
from episodelake.testing.adapters import case

h5py = pytest.importorskip("h5py")

FURTHER = pytest.mark.further
DATA = Path(__file__).parents[1] / "data" / "exchange"


def folder_of(name: str) -> Path:
    """The folder of a dataset that stands in a folder of its name and version."""
    return next((DATA / name).rglob("features.json")).parent if name.startswith("rlds") else DATA / name


def copied(name: str, tmp_path: Path) -> Path:
    """A copy of a dataset of another library."""
    source = folder_of(name)
    target = tmp_path / "source" / source.name
    return Path(shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, _made(target)))


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_snapshots_of_the_hub_may_link_to_its_blobs(tmp_path: Path) -> None:
    """The cache of the Hugging Face Hub keeps files beside a snapshot; links to other places are refused."""
    source = copied("lerobot-v3", tmp_path)
    snapshot = tmp_path / "datasets--lab--walk" / "snapshots" / "abc"
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(each for each in source.rglob("*") if each.is_file())):
        blob = Path(shutil.copy(file, blobs / str(number)))
        _made(snapshot / file.relative_to(source)).symlink_to(blob)
    assert el.import_dataset(snapshot, tmp_path / "into").episodes
    (snapshot / "more").symlink_to(tmp_path)
    with pytest.raises(el.errors.DatasetError, match="outside of the source"):
        el.import_dataset(snapshot, tmp_path / "into")


def test_delta_logs_list_no_file_outside(tmp_path: Path) -> None:
    """A log that names a file outside of its table does not bring in its rows."""
    rows = {"episode": [0, 0], "observation": [0.5, 1.5], "action": [0, 1], "reward": [7.0] * 2}
    pq.write_table(table := pa.table(rows), tmp_path / "secret.parquet")
    for index, path in enumerate(
        [
            "../secret.parquet",
            f"{tmp_path}/secret.parquet",
            f"file://{tmp_path}/secret.parquet",
            "%2e%2e/secret.parquet",
        ]
    ):
        folder = tmp_path / f"delta{index}"
        write_deltalake(str(folder), table)
        (log,) = (folder / "_delta_log").glob("*.json")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "add" in line:
                line["add"]["path"] = path
        log.write_text("\n".join(map(json.dumps, lines)))
        with pytest.raises(el.errors.DatasetError):
            el.import_dataset(folder, tmp_path / "into")


@pytest.mark.further
def test_patterns_are_lerobots_alone(tmp_path: Path) -> None:
    """A pattern that is none of LeRobot's is an error, and nothing of Python's format language runs."""
    cases: list[Any] = [
        "data/{chunk_index:>400000000}",
        "data/{chunk_index.__class__}/x",
        "data/{chunk_index!r}.parquet",
        "data/{chunk_index:03d}{",
        "data/}{chunk_index}",
        "data/{other}",
        "data/{chunk_index:0{file_index}d}",
        "data/{{chunk_index}}",
        "data/{chunk_index:0999d}",
        "data/{}",
        "{chunk_index}/../../../x",
        "/etc/{chunk_index}",
        "C:/{chunk_index}",
        "",
        "\0{chunk_index}",
        7,
        None,
        ["data"],
    ]
    for folder, pattern in with_folders(cases, tmp_path):
        with case(pattern):
            source = copied("lerobot-v3", folder)
            info = json.loads((source / "meta/info.json").read_text())
            for name in ("data_path", "video_path"):
                (source / "meta/info.json").write_text(json.dumps(info | {name: pattern}))
                with pytest.raises(
                    el.errors.DatasetError, match=r"no pattern of LeRobot|leads out|cannot be read"
                ):
                    el.import_dataset(source, folder / "into")


def test_videos_are_mp4_or_matroska_alone(tmp_path: Path) -> None:
    """FFmpeg gets no playlist, whatever the file is called."""
    source = copied("lerobot-v3", tmp_path)
    for text in (
        "#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
        "ffconcat version 1.0\nfile x.mp4\n",
        "<MPD/>",
        "",
    ):
        for video in source.rglob("*.mp4"):
            video.write_text(text)
        with pytest.raises(el.errors.DatasetError, match="no MP4 or Matroska"):
            el.import_dataset(source, tmp_path / "into")


@pytest.mark.parametrize("name", ["../x.arrow", "/etc/passwd", "a/../../x", "", None, 3])
def test_names_of_files_in_metadata_stay_inside(tmp_path: Path, name: Any) -> None:
    """`state.json` of a Hugging Face folder and keys of a TensorDict's `meta.json` name files."""
    source = copied("imitation", tmp_path)
    state = json.loads((source / "state.json").read_text())
    state["_data_files"][0]["filename"] = name
    (source / "state.json").write_text(json.dumps(state))
    with pytest.raises(el.errors.DatasetError):
        el.import_dataset(source, tmp_path / "into", format="imitation")
    source = copied("torchrl-dumps", tmp_path)
    (meta,) = (source / "storage").glob("meta.json")
    (source / "storage" / "meta.json").write_text(
        json.dumps(json.loads(meta.read_text()) | {str(name): {"type": "TensorDict"}})
    )
    with pytest.raises(el.errors.DatasetError):
        el.import_dataset(source, tmp_path / "into", format="torchrl")


def bomb_npz(path: Path) -> None:
    """An `.npz` file of one long episode of zeros."""
    rows = 14_000_000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, shape in (("observations", (rows, 4)), ("actions", (rows, 1)), ("terminals", (1,))):
            head = io.BytesIO()
            claimed = (rows, *shape[1:])
            np.lib.format.write_array_header_1_0(
                head,
                {"descr": "|u1" if name == "terminals" else "<f4", "fortran_order": False, "shape": claimed},
            )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(head.getvalue())
                for _ in range(rows // 1_000_000):
                    file.write(bytes(1_000_000 * (1 if name == "terminals" else 4 * shape[1])))


def bomb_gzip(path: Path) -> None:
    """A checkpoint of Dopamine that claims a large array."""
    shutil.copytree(DATA / "dopamine-ring", path)
    (file, *_) = sorted(path.glob("$store$_terminal*"))
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    file.write_bytes(gzip.compress(head.getvalue()))


def bomb_hdf5(path: Path) -> None:
    """A file of D4RL with arrays that were never written."""
    with h5py.File(path, "w") as file:
        for name, shape in (("observations", (1 << 40, 3)), ("actions", (1 << 40, 1))):
            file.create_dataset(name, shape, np.float32, chunks=(1024, shape[1]))
        for name in ("rewards", "terminals"):
            file.create_dataset(name, (1 << 40,), np.float32, chunks=(1024,))


def bomb_parquet(path: Path) -> None:
    """A table of one episode whose columns are each one value, many times."""
    rows = 9_000_000
    same = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), rows), pa.array([0.0]))
    zeros = same.dictionary_decode()
    table = pa.table(
        {"episode": zeros.cast(pa.int64()), **dict.fromkeys(("observation", "action", "reward"), zeros)}
    )
    pq.write_table(table, path, compression="zstd")


def bomb_lerobot(path: Path) -> None:
    """A dataset of LeRobot whose frames are as large as a city."""
    shutil.copytree(DATA / "lerobot-v3", path)
    info = json.loads((path / "meta/info.json").read_text())
    for feature in info["features"].values():
        if feature["dtype"] in ("video", "image"):
            feature["shape"] = [100_000, 100_000, 3]
    (path / "meta/info.json").write_text(json.dumps(info))


BOMBS = [
    pytest.param("x.npz", bomb_npz, marks=pytest.mark.further),
    ("dopamine", bomb_gzip),
    ("x.hdf5", bomb_hdf5),
    ("x.parquet", bomb_parquet),
    ("lerobot", bomb_lerobot),
]


@pytest.mark.parametrize(("name", "make"), BOMBS)
def test_sources_that_expand_are_refused(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    """A small source that becomes large in memory is an error that names `max_bytes`, also in a rehearsal."""
    make(tmp_path / name)
    for dry_run in (True, False):
        with pytest.raises(el.errors.DatasetError, match="max_bytes"):
            el.import_dataset(tmp_path / name, tmp_path / "into", dry_run=dry_run, last_observation="missing")


@pytest.mark.further
def test_max_bytes_bounds_an_episode_not_the_source(tmp_path: Path) -> None:
    """A source of many episodes passes a limit that holds each of them; a smaller limit names the episode."""
    count, rows = 3, 20_000
    numbers = np.arange(count * rows)
    observations = np.zeros((count * rows, 128), np.float32)  # 10.24 MB in an episode
    actions = np.zeros((count * rows, 1), np.float32)
    terminals = numbers % rows == rows - 1
    np.savez(tmp_path / "walk.npz", observations=observations, actions=actions, terminals=terminals)
    columns = {"observation": observations, "action": actions, "episode": numbers // rows}
    pl.DataFrame({**columns, "reward": np.zeros(len(numbers))}).write_parquet(tmp_path / "walk.parquet")
    with h5py.File(tmp_path / "walk.hdf5", "w") as file:
        for index in range(count):
            demo = file.create_group(f"data/demo_{index}")
            demo["obs/state"], demo["actions"] = observations[:rows], actions[:rows]
            demo["rewards"] = demo["dones"] = np.zeros(rows)
    for name in ("walk.npz", "walk.parquet", "walk.hdf5"):
        words: dict[str, Any] = {"last_observation": "missing"}
        with pytest.raises(
            el.errors.DatasetError, match=r"the limit is 9,000,000 \(max_bytes\).*--max-bytes"
        ):
            el.import_dataset(tmp_path / name, tmp_path / "into", max_bytes=9_000_000, **words)
        report = el.import_dataset(tmp_path / name, tmp_path / name[5:], max_bytes=12_000_000, **words)
        assert report.episodes == count
    for wrong in (0, -1, True, "1", 1.5):
        with pytest.raises(el.errors.InvalidArgumentError, match="max_bytes"):
            el.import_dataset(tmp_path / "walk.npz", tmp_path / "other", max_bytes=wrong)  # type: ignore[arg-type]


def test_links_to_one_array_count_as_often_as_they_are_read(tmp_path: Path) -> None:
    """Minari reads it once for each of forty names, each half a megabyte."""
    pytest.importorskip("minari")
    box, rows = Box(-1, 1, (2,), np.float32), 1 << 16
    store = el.create(tmp_path / "store", observation_space=box, action_space=Discrete(2))
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((rows + 1, 2), np.float32),
            actions=np.zeros(rows, int),
            rewards=np.zeros(rows),
            terminations=True,
            truncations=False,
        )
    store.refresh().export(tmp_path / "data", format="minari", data_format="hdf5")
    options: dict[str, Any] = {"max_bytes": 9_000_000, "dry_run": True}
    assert el.import_dataset(tmp_path / "data", tmp_path / "into", **options).format == "minari"
    (path,) = (tmp_path / "data").rglob("*.hdf5")
    with h5py.File(path, "a") as file:
        for number in range(40):
            file[f"episode_0/infos/same_{number}"] = file["episode_0/observations"]
    with pytest.raises(el.errors.DatasetError, match=r"Episode 0 of .* the limit is 9,000,000 \(max_bytes\)"):
        el.import_dataset(tmp_path / "data", tmp_path / "into", **options)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its links cannot be checked, though files in it can be opened by name."""
    inner = tmp_path / "data" / "chunk"
    inner.mkdir(parents=True)
    scandir = os.scandir

    def refused(path: Any = ".") -> Any:
        if Path(path) == inner:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(el.errors.StoreAccessError, match=r"chunk of the source cannot be listed"):
        el.import_dataset(tmp_path / "data", tmp_path / "store", format="lerobot")
    assert not (tmp_path / "store").exists()
