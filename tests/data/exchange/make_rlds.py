"""Write small RLDS datasets with tensorflow-datasets 4.9.10, and `expected.npz` with what it reads from them.

`python make_rlds.py rlds` ends episodes with an observation, `python make_rlds.py openx` with a transition.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

LENGTHS = (5, 3)


def builder(folder: Path, open_x: bool) -> tfds.core.DatasetBuilder:
    """Return a builder of `LENGTHS` steps."""
    features = tfds.features
    steps = {
        "observation": {
            "image": features.Image(shape=(8, 6, 3), encoding_format="jpeg" if open_x else "png"),
            "state": features.Tensor(shape=(2, 2), dtype=np.float32),
            "mode": features.Tensor(shape=(), dtype=np.int64),
            "language": features.Text(),
        },
        "action": features.Tensor(shape=(2,), dtype=np.float64 if open_x else np.float32),
        "reward": features.Scalar(dtype=np.float32),
        "discount": features.Scalar(dtype=np.float32),
        **{name: features.Scalar(dtype=np.bool_) for name in ("is_first", "is_last", "is_terminal")},
    }
    if open_x:
        steps["language_instruction"] = features.Text()
    metadata = {"file_path": features.Text(), "level": features.Scalar(dtype=np.int32)}
    random = np.random.default_rng(0)

    class Walk(tfds.core.GeneratorBasedBuilder):
        """A walk."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            return tfds.core.DatasetInfo(
                builder=self,
                features=features.FeaturesDict(
                    {"steps": features.Dataset(steps), "episode_metadata": metadata}
                ),
                description="A walk.",
                citation="Nobody, 2026",
            )

        def _split_generators(self, manager: tfds.download.DownloadManager) -> dict:
            return {"train": self._generate_examples(0), "val": self._generate_examples(1)}

        def _generate_examples(self, split: int) -> object:
            for index, length in enumerate(LENGTHS):
                found = [step(random, index, t, length, open_x) for t in range(length)]
                said = {"file_path": f"{split}/{index}.npz", "level": 3 + index}
                yield index, {"steps": found, "episode_metadata": said}

    return Walk(data_dir=folder)


def step(random: np.random.Generator, index: int, t: int, length: int, open_x: bool) -> dict:
    """Return a step; the action of an RLDS episode's last step is zero."""
    last = t == length - 1
    action = random.normal(size=2) * (open_x or not last)
    image = random.integers(0, 256, (8, 6, 3), np.uint8)
    if open_x:  # JPEG is near where neighbours are
        image = np.full_like(image, 20 * t + 90 * index)
    found = {
        "observation": {
            "image": image,
            "state": random.normal(size=(2, 2)).astype(np.float32),
            "mode": t,
            "language": f"seen {t}",
        },
        "action": action if open_x else action.astype(np.float32),
        "reward": 0.0 if last and not open_x else t + 1.0,
        "discount": 1.0,
        "is_first": t == 0,
        "is_last": last,
        "is_terminal": last and index == 0,
    }
    if open_x:
        found["language_instruction"] = "pick it up"
    return found


def main(folder: Path) -> None:
    """Write a dataset, and what TFDS reads."""
    made = builder(folder, folder.name == "openx")
    made.download_and_prepare(file_format="tfrecord")
    expected = {}
    read = tfds.builder_from_directory(made.data_dir)
    for split in ("train", "val"):
        for number, episode in enumerate(tfds.as_numpy(read.as_dataset(split=split))):
            for t, row in enumerate(episode["steps"]):
                for name in ("action", "reward", "is_terminal"):
                    expected[f"{split}/{number}/{t}/{name}"] = row[name]
                for name in ("image", "state", "mode"):
                    expected[f"{split}/{number}/{t}/{name}"] = row["observation"][name]
            expected[f"{split}/{number}/level"] = episode["episode_metadata"]["level"]
    np.savez_compressed(folder / "expected.npz", **expected)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
