"""Folders for Hugging Face's `datasets`: their files, their card, and the way back through tables.

`test_conversion_peers.py` reads them with `datasets` itself.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml
from gymnasium import spaces
from PIL import Image

import episodelake as el
from array_stores import CARD, EPISODES, SPACE, recorded
from episodelake.testing.format_compare import unlike


def test_files_have_images_and_features(tmp_path: Path) -> None:
    """Pillow opens the images, and the schema names the feature of each column; README.md agrees."""
    store = recorded(tmp_path / "store")
    store.export(tmp_path / "out", format="huggingface")
    (file,) = (tmp_path / "out" / "data").iterdir()
    table = pq.read_table(file)
    rows = table.to_pylist()
    seen = [row for row in rows if row["seed"] == 1]
    (episode,) = store.filter("seed = 1")
    for t, row in enumerate(seen):
        for key in ("camera", "depth"):
            for prefix, step in (("", t), ("next_", t + 1)):
                image = np.asarray(Image.open(io.BytesIO(row[f"{prefix}observation.{key}"]["bytes"])))
                assert np.array_equal(image, episode.observations[key][step])
        assert np.array_equal(row["observation.stack"], episode.observations["stack"][t])
        assert row["action"] == episode.actions[t].tolist()
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert list(features) == table.column_names
    assert features["observation.camera"] == {"_type": "Image"}
    assert features["observation.grid"] == {"shape": [2, 3], "dtype": "float16", "_type": "Array2D"}
    assert features["next_observation.speed"] == {
        "feature": {"dtype": "uint8", "_type": "Value"},
        "length": 3,
        "_type": "List",
    }
    card = (tmp_path / "out" / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert (front["pretty_name"], front["license"]) == (CARD["title"], "mit")
    assert front["size_categories"] == ["n<1K"]
    info = front["dataset_info"]
    assert [each["name"] for each in info["features"]] == table.column_names
    assert {"name": "observation.speed", "list": "uint8", "length": 3} in info["features"]
    assert (info["splits"][0]["num_examples"], info["download_size"]) == (9, file.stat().st_size)
    assert "| env_spec | Walk-v0 |" in card and "| truncated episodes | 1 |" in card
    returns = [sum(range(length)) for _, _, length, _ in EPISODES]
    assert f"| mean return | {np.mean(returns):.6g} |" in card


def test_splits_and_shards(tmp_path: Path) -> None:
    """A file set for each split, of several shards where they are small; Polars finds each row once."""
    store = recorded(tmp_path / "store", spaces.Dict({"grid": SPACE["grid"]}))
    options = {"split": "split", "shard_mb": 1e-6}
    report = store.export(tmp_path / "out", format="huggingface", **options)
    files = [Path(file).name for file in report.files[1:]]
    assert sorted({name.split("-")[0] for name in files}) == ["test", "train"]
    train = pl.read_parquet(tmp_path / "out" / "data" / "train-*.parquet")
    assert train["seed"].unique().sort().to_list() == [0, 2] and train.height == 6
    el.import_dataset(tmp_path / "out", tmp_path / "back")
    both = (
        sorted(each, key=lambda episode: episode.seed or 0) for each in (store, el.open(tmp_path / "back"))
    )
    assert [*unlike(*both)] == []
    front = yaml.safe_load((tmp_path / "out" / "README.md").read_text().split("---")[1])
    assert {each["name"]: each["num_examples"] for each in front["dataset_info"]["splits"]} == {
        "train": 6,
        "test": 3,
    }


def png(pixels: np.ndarray, mode: str | None = None, kind: str = "png") -> dict[str, Any]:
    """An image as `datasets` stores it."""
    target = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(target, kind)
    return {"bytes": target.getvalue(), "path": None}


def test_images_of_others_come_in(tmp_path: Path) -> None:
    """Their first image gives the space; a JPEG is counted."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 9, 8, 3), np.uint8)
    table = {
        "observation": [*map(png, pixels[:2]), png(pixels[2], kind="jpeg")],
        "action": [0, 1, 1],
        "reward": [0.0, 1.0, 1.0],
        "episode": [0, 0, 0],
    }
    report = el.import_dataset(pl.DataFrame(table), tmp_path / "store", last_observation="missing")
    assert report.observation_space == spaces.Box(0, 255, (9, 8, 3), np.uint8)
    assert report.lost["frames of lossy JPEG"] == 1
    assert np.array_equal(el.open(tmp_path / "store")[0].observations[:2], pixels[:2])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (png(np.zeros((8, 9, 3), np.uint8)), r"`observation` has an image of shape \(8, 9, 3\)"),
        (png(np.zeros((9, 8, 3), np.uint8), "P"), "an image of the mode 'P'"),
        ({"bytes": b"GIF8", "path": None}, "an image that does not decode"),
        ({"bytes": None, "path": "a.png"}, "an image without its bytes"),
    ],
)
def test_images_that_do_not_fit_are_refused(tmp_path: Path, second: dict[str, Any], message: str) -> None:
    """The error names the column, and no store appears."""
    images = [png(np.zeros((9, 8, 3), np.uint8)), second]
    table = {"observation": images, "action": [0, 1], "reward": [0.0, 1.0], "episode": [0, 0]}
    frame = pl.DataFrame(
        table, schema_overrides={"observation": pl.Struct({"bytes": pl.Binary, "path": pl.String})}
    )
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(frame, tmp_path / "store", last_observation="missing")
    assert not list(tmp_path.iterdir())
