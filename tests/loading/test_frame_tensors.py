"""`ToTensor`: frames as float32 from 0 to 1 in the axes of torch, compared with plain arithmetic."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el
from effort import looped
from video_stores import SHAPES, recorded_store

CASES = {"HWC": (4, 5, 3), "CHW": (3, 4, 5), "HW": (4, 5)}


def plain(values: np.ndarray, axes: str) -> np.ndarray:
    """Frame by frame and pixel by pixel."""
    frames = values.reshape(-1, *CASES[axes])
    height, width = (CASES[axes][axes.index(axis)] for axis in "HW")
    made = np.zeros((len(frames), 3 if "C" in axes else 1, height, width), np.float32)
    for number, channel, row, column in np.ndindex(*made.shape):
        at = {"H": row, "W": column, "C": channel}
        pixel = frames[number][tuple(at[axis] for axis in axes)]
        made[number, channel, row, column] = np.float32(pixel) / np.float32(np.iinfo(values.dtype).max)
    return made.reshape(*values.shape[: values.ndim - len(axes)], *made.shape[1:])


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
@pytest.mark.parametrize("axes", CASES)
def test_values_and_axes(axes: Any, leading: tuple[int, ...], dtype: Any, output: str) -> None:
    """Of single frames, batches and windows; the result is contiguous, and the batch stays as it was."""
    most = np.iinfo(dtype).max
    values = np.random.default_rng(0).integers(0, most, (*leading, *CASES[axes]), dtype, endpoint=True)
    values.flat[:2] = 0, most
    given: Any = values.copy()
    if output == "torch":
        given = pytest.importorskip("torch").from_numpy(given)
    transform = pickle.loads(pickle.dumps(el.ToTensor(["observation.front", "image"], axes)))
    found = transform({"observation": {"front": given, "state": 1}, "image": given, "reward": 0})
    for made in (found["observation"]["front"], found["image"]):
        assert str(made.dtype).endswith("float32")
        assert made.flags.c_contiguous if output == "numpy" else made.is_contiguous()
        # torch multiplies by the reciprocal on some processors.
        np.testing.assert_allclose(np.asarray(made), plain(values, axes), rtol=2e-7)
        assert np.asarray(made).min() == 0 and np.asarray(made).max() == 1
    assert found["observation"]["state"] == 1 and found["reward"] == 0
    assert np.array_equal(np.asarray(given), values)


@pytest.mark.parametrize("encoded", [True, False])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_loaders_and_deltas(tmp_path: Path, output: Any, encoded: bool) -> None:
    """As a transform, of encoded and raw cameras of all axes: what the same transform gives later."""
    if output == "torch":
        pytest.importorskip("torch")
    cameras = {name: SHAPES[name] for name in ("odd", "still", "grey", "mono")}
    more: dict[str, Any] = {} if encoded else {"encodings": {}}
    store = recorded_store(tmp_path / "store", range(3), cameras=cameras, **more)
    names = [f"observation.{name}" for name in cameras]
    transforms = [
        el.ToTensor([names[0], names[3]]),
        el.ToTensor(names[1], axes="CHW"),
        el.ToTensor(names[2], axes="HW"),
    ]
    units = el.Deltas({name: [-1, 0] for name in names})
    for given in (el.Transitions(), units):
        raw = store.loader(4, given, columns=names)
        converted = store.loader(4, given, columns=names, transforms=transforms, output=output)
        for batch, made in zip(raw, converted, strict=True):
            for name, (camera, shape) in zip(names, cameras.items(), strict=True):
                later: Any = batch
                for transform in transforms:
                    later = transform(later)
                np.testing.assert_allclose(np.asarray(made[name]), later[name], rtol=2e-7)
                channels, height, width = {"odd": (3, 33, 47), "still": shape}.get(camera, (1, 48, 64))
                assert made[name].shape[-3:] == (channels, height, width)
                assert made[name].ndim == 4 + (given is units)


def test_next_observations_are_meant_too() -> None:
    """As with other transforms of batches."""
    frames = np.full((2, 4, 4, 3), 255, np.uint8)
    found = el.ToTensor("observation")({"observation": frames, "next_observation": frames})
    assert found["next_observation"].shape == (2, 3, 4, 4) and found["next_observation"].max() == 1


@looped(
    ("axes", "values", "message"),
    [
        ("HWC", np.zeros((2, 3, 8, 8), np.uint8), r"uint8 of shape \(2, 3, 8, 8\).*Other axes: axes="),
        ("CHW", np.zeros((2, 8, 8, 3), np.uint8), r"expected uint8 or uint16 of \(\.\.\., C, H, W\)"),
        ("HW", np.zeros(8, np.uint8), r"of shape \(8,\)"),
        ("HWC", np.zeros((8, 8, 3), np.float32), "is float32"),
        ("HWC", {"front": np.zeros((8, 8, 3), np.uint8)}, r"is nested; name the frames in it: image\.front"),
    ],
)
def test_what_are_no_frames_is_refused(axes: Any, values: Any, message: str) -> None:
    """With the shape and what was expected."""
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        el.ToTensor("image", axes)({"image": values})
    with pytest.raises(el.errors.InvalidArgumentError, match="axes='WHC'"):
        el.ToTensor("image", "WHC")  # pyright: ignore[reportArgumentType]
