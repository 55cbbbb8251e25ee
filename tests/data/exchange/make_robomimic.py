"""Write the files for test_exchange_robomimic.py with robomimic 0.3, for which torch is enough.

robomimic writes datasets from a simulator alone, so the demonstrations are laid out here as its
`dataset_states_to_obs.py` does, and the masks as its `create_hdf5_filter_key`. `robomimic.npz` has the
trajectories that its `SequenceDataset` reads.
"""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
from robomimic.utils.dataset import SequenceDataset

FOLDER = Path(__file__).parent
# The order of names is not that of numbers.
LENGTHS = {2: 5, 0: 3, 10: 4}
OBSERVATIONS = {"object": (4,), "robot0_eef_pos": (3,)}


def main() -> None:
    """Write both files."""
    path = FOLDER / "robomimic.hdf5"
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number, length in LENGTHS.items():
            demo = data.create_group(f"demo_{number}")
            for name, shape in OBSERVATIONS.items():
                seen = random.normal(size=(length + 1, *shape))
                demo[f"obs/{name}"], demo[f"next_obs/{name}"] = seen[:-1], seen[1:]
            demo["actions"] = random.uniform(-1, 1, (length, 2))
            demo["states"] = random.normal(size=(length, 6))
            demo["rewards"] = demo["dones"] = (np.arange(length) == length - 1) * float(number != 2)
            demo.attrs["model_file"] = f"<mujoco model='{number}'/>"
            demo.attrs["num_samples"] = length
        data.attrs["total"] = sum(LENGTHS.values())
        env_args = {"env_name": "Lift", "type": 1, "env_kwargs": {"freq": 20}}
        data.attrs["env_args"] = json.dumps(env_args, indent=4)
        for mask, demos in (("train", ["demo_0", "demo_10"]), ("valid", ["demo_2"]), ("50", ["demo_10"])):
            file[f"mask/{mask}"] = np.array(demos, dtype="S")
    dataset = SequenceDataset(str(path), tuple(OBSERVATIONS), ("actions", "rewards", "dones", "states"))
    found = {}
    for index in range(dataset.n_demos):
        read = dataset.get_trajectory_at_index(index)
        for part, values in read.items():
            for name, value in (values if isinstance(values, dict) else {"": values}).items():
                found[f"{index}/{part}/{name}"] = np.asarray(value)
    np.savez_compressed(FOLDER / "robomimic.npz", **found)


if __name__ == "__main__":
    main()
