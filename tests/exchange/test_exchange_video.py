"""Exports of stores with video: each format has the decoded frames, and never a chunk as a frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import episodelake as el
import peer_readers
from strategies import same
from video_stores import CODECS, SHAPES, arrays_of, check_frame
from webdataset_samples import sample_differences

#: By kind of observation space: the cameras.
KINDS = {"grey": ("grey",), "colour": ("odd",), "several": ("grey", "odd", "planar", "exact")}
FORMATS: dict[str, tuple[dict[str, Any], str]] = {
    "minari": ({}, ""),
    "minari, Arrow": ({"data_format": "arrow"}, ""),
    "d4rl": ({}, ".hdf5"),
    "d3rlpy": ({}, ".h5"),
    "robomimic": ({}, ".hdf5"),
    "parquet": ({"layout": "steps"}, ".parquet"),
    "parquet, transitions": ({"layout": "transitions"}, ".parquet"),
    "huggingface": ({}, ""),
    "lerobot": ({"frames": "image"}, ""),
    "lerobot, video": ({"frames": "video"}, ""),
    "rlds": ({}, ""),
    "rllib, rows": ({"kind": "rows"}, ""),
    "rllib": ({"kind": "episodes"}, ""),
    "webdataset": ({}, ""),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, el.EpisodeStore]:
    """By kind: three episodes, one of a single step."""
    made = {}
    encodings = {"grey": "h264", "odd": "h264", "planar": "hevc", "exact": "lossless"}
    for kind, cameras in KINDS.items():
        boxes = {name: Box(0, 255, SHAPES[name], np.uint8) for name in cameras}
        alone = len(boxes) == 1
        store = el.create(
            tmp_path_factory.mktemp("video") / kind,
            observation_space=next(iter(boxes.values())) if alone else Dict(boxes),
            action_space=Box(-1, 1, (2,), np.float32),
            encodings={
                "observation" if alone else f"observation.{name}": CODECS[encodings[name]] for name in cameras
            },
        )
        with store.writer() as writer:
            for seed, length in enumerate((3, 1, 6)):
                arrays = arrays_of({name: SHAPES[name] for name in cameras}, seed, length)
                seen = arrays["observations"]
                arrays["observations"] = seen[cameras[0]] if alone else {key: seen[key] for key in cameras}
                writer.write_episode(**{**arrays, "actions": np.zeros((length, 2), np.float32)})
        made[kind] = store.refresh()
    return made


def frames_of(observations: Any, camera: str) -> Any:
    """The frames of a camera; of an only one, whatever its name."""
    if not isinstance(observations, dict):
        return observations
    return observations[camera if camera in observations else "observation"]


def exported(store: el.EpisodeStore, target: Path, form: str, options: dict[str, Any]) -> bool:
    """Export; False if the format cannot hold the spaces. No file has a chunk."""
    try:
        store.export(target, format=form, **options)
    except el.errors.DatasetError as error:
        assert "failed:" not in str(error), error
        return False
    for file in [target] if target.is_file() else target.rglob("*"):
        assert file.is_dir() or b"EPF1" not in file.read_bytes(), file
    return True


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMATS)
def test_exports_have_the_decoded_frames(
    stores: dict[str, el.EpisodeStore], tmp_path: Path, form: str, kind: str
) -> None:
    """An import of the export has the frames of the episodes; samples of WebDataset are read by tarfile."""
    store, (options, suffix) = stores[kind], FORMATS[form]
    name = form.partition(",")[0]
    target = tmp_path / f"export{suffix}"
    if name == "webdataset":
        assert exported(store, tmp_path / "export", name, options)
        assert not sample_differences(store, tmp_path / "export")
        return
    if not exported(store, target, name, options):
        # Some formats have no Dict spaces.
        assert kind == "several"
        return
    el.import_dataset(target, tmp_path / "back")
    back = el.open(tmp_path / "back")
    assert len(back) == 3
    for episode, other in zip(store, back, strict=True):
        for camera in KINDS[kind]:
            ours, theirs = (frames_of(each.observations, camera) for each in (episode, other))
            # Some formats have no last observation.
            assert len(theirs) >= episode.length and theirs.dtype == np.uint8
            assert np.array_equal(np.reshape(theirs, (-1, *ours.shape[1:])), ours[: len(theirs)])
            check_frame(ours[-1], camera, episode.seed or 0, episode.length)


def test_csv_has_the_decoded_pixels(tmp_path: Path) -> None:
    """A column for each pixel."""
    frames = np.arange(3 * 16 * 16).reshape(3, 16, 16).astype(np.uint8)
    store = el.create(
        tmp_path / "store",
        observation_space=Box(0, 255, (16, 16), np.uint8),
        action_space=Discrete(3),
        encodings={"observation": CODECS["h264"]},
    )
    with store.writer() as writer:
        writer.write_episode(**{**arrays_of({}, 0, 2), "observations": frames})
    store.refresh().export(tmp_path / "export.csv", format="csv", layout="steps")
    table = pl.read_csv(tmp_path / "export.csv").select(cs.starts_with("observation"))
    assert np.array_equal(table.to_numpy().reshape(-1, 16, 16), store[0].observations)


#: Options, suffix of the file, and reader of formats whose readers need no package of their own.
READERS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "minari-hdf5": ({}, "", peer_readers.minari),
    "minari-arrow": ({"data_format": "arrow"}, "", peer_readers.minari),
    "minari-parquet": ({"data_format": "parquet"}, "", peer_readers.minari),
    "d4rl": ({}, ".hdf5", peer_readers.d4rl),
    "lerobot": ({"frames": "image"}, "", peer_readers.lerobot),
    "parquet": ({"layout": "steps"}, ".parquet", peer_readers.parquet),
    "rllib-rows": ({"kind": "rows"}, "", peer_readers.rllib_rows),
    "rllib-episodes": ({"kind": "episodes"}, "", peer_readers.rllib_episodes),
}


@pytest.mark.further
@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("kind", ["grey", "colour"])
def test_peers_read_the_decoded_frames(
    stores: dict[str, el.EpisodeStore], tmp_path: Path, form: str, kind: str
) -> None:
    """The readers of the formats' own libraries, or plain ones, find the frames."""
    options, suffix, read = READERS[form]
    store, target = stores[kind], tmp_path / f"export{suffix}"
    assert exported(store, target, form.partition("-")[0], options)
    for episode, values in zip(store, read(target, store), strict=True):
        theirs = np.asarray(values.observations)
        assert len(theirs) >= episode.length
        assert same(episode.observations[: len(theirs)], theirs)
