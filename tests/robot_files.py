"""Small files as the recorders of robots and simulators write them, and the arrays in them.

Each function writes what the tool named in its first line writes, and returns the arrays by their path.
"""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

Arrays = dict[str, np.ndarray]
#: Steps of the episodes.
LENGTHS = (5, 4)


def numbers(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return random numbers; bytes for uint8."""
    random = np.random.default_rng(seed)
    if dtype == np.uint8:
        return random.integers(0, 256, shape, np.uint8)
    return random.standard_normal(shape).astype(dtype)


def jpeg(frame: np.ndarray) -> bytes:
    """Return a frame as OpenCV encodes it, which takes red for blue."""
    file = io.BytesIO()
    Image.fromarray(frame[..., ::-1]).save(file, "JPEG", quality=95)
    return file.getvalue()


def decoded(data: bytes) -> np.ndarray:
    """Return a frame as OpenCV decodes it."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[..., ::-1]


def write_tree(file: Any, arrays: Arrays) -> None:
    """Write arrays by their path."""
    for path, array in arrays.items():
        file[path] = array


def demos(path: Path, episodes: list[Arrays], attributes: dict[str, Any], **own: Any) -> None:
    """Write groups `data/demo_N`, with `num_samples` and attributes of each demonstration."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update({"total": sum(len(each["actions"]) for each in episodes), **attributes})
        for index, arrays in enumerate(episodes):
            demo = data.create_group(f"demo_{index}")
            demo.attrs.update({"num_samples": len(arrays["actions"]), **own})
            write_tree(demo, arrays)


def isaac_lab(path: Path) -> list[Arrays]:
    """Isaac Lab's HDF5DatasetFileHandler: no rewards, states behind the steps, one initial state."""
    episodes = []
    for index, count in enumerate(LENGTHS):
        arrays = {
            "actions": numbers(index, count, 7),
            "processed_actions": numbers(index + 10, count, 7),
            "obs/joint_pos": numbers(index + 20, count, 9),
            "obs/table_cam": numbers(index, count, 8, 8, 3, dtype=np.uint8),
        }
        for group, rows in (("initial_state", 1), ("states", count)):
            arrays[f"{group}/articulation/robot/joint_position"] = numbers(index + 30, rows, 9)
            arrays[f"{group}/rigid_object/cube_1/root_pose"] = numbers(index + 40, rows, 7)
        episodes.append(arrays)
    args = json.dumps({"env_name": "Isaac-Stack-Cube-Franka-IK-Rel-v0", "type": 2})
    demos(path, episodes, {"env_args": args}, seed=42, success=True)
    return episodes


def mimicgen(path: Path) -> list[Arrays]:
    """MimicGen: robomimic's layout with a source demonstration for each of three subtasks."""
    episodes = []
    for index, count in enumerate(LENGTHS):
        seen = numbers(index, count + 1, 14, dtype=float)
        episodes.append(
            {
                "actions": numbers(index + 10, count, 7, dtype=float),
                "states": numbers(index + 20, count, 45, dtype=float),
                "rewards": (np.arange(count) == count - 1).astype(float),
                "dones": (np.arange(count) == count - 1).astype(int),
                "obs/object": seen[:-1],
                "next_obs/object": seen[1:],
                "datagen_info/eef_pose": numbers(index + 30, count, 4, 4, dtype=float),
                "datagen_info/subtask_term_signals/grasp": np.zeros(count, int),
                "src_demo_inds": np.array([3, 7, index]),
                "src_demo_labels": np.full((count, 1), 3),
                "subtask_bounds": np.zeros((3, 2), int),
            }
        )
    args = json.dumps({"env_name": "Stack_D0", "type": 1, "env_kwargs": {"control_freq": 20}})
    demos(path, episodes, {"env_args": args}, model_file="<mujoco/>")
    return episodes


def robocasa(path: Path) -> list[Arrays]:
    """RoboCasa: robomimic's layout with the parts of the actions, and the task in `ep_meta`."""
    episodes = []
    for index, count in enumerate(LENGTHS):
        episodes.append(
            {
                "actions": numbers(index, count, 12, dtype=float),
                "actions_abs": numbers(index + 10, count, 12, dtype=float),
                "action_dict/abs_pos": numbers(index + 20, count, 3),
                "rewards": np.zeros(count),
                "dones": np.zeros(count, int),
                "states": numbers(index + 30, count, 30, dtype=float),
                "obs/robot0_eef_pos": numbers(index + 40, count, 3, dtype=float),
                "obs/robot0_agentview_left_image": numbers(index, count, 8, 8, 3, dtype=np.uint8),
            }
        )
    own = {"ep_meta": json.dumps({"lang": "open the drawer", "layout_id": 3})}
    demos(path, episodes, {"env_args": json.dumps({"env_name": "OpenDrawer", "type": 1})}, **own)
    return episodes


def libero(folder: Path) -> dict[str, list[Arrays]]:
    """LIBERO: a suite is a folder with a file for each task; the reward is in the last row."""
    folder.mkdir()
    suite = {}
    for task in ("pick_up_the_bowl", "open_the_drawer"):
        episodes = []
        for index, count in enumerate(LENGTHS):
            last = np.arange(count) == count - 1
            episodes.append(
                {
                    "actions": numbers(index + len(task), count, 7, dtype=float),
                    "obs/agentview_rgb": numbers(index, count, 8, 8, 3, dtype=np.uint8),
                    "obs/ee_pos": numbers(index + 10, count, 3, dtype=float),
                    "obs/gripper_states": numbers(index + 20, count, 2, dtype=float),
                    "states": numbers(index + 30, count, 11, dtype=float),
                    "robot_states": numbers(index + 40, count, 9, dtype=float),
                    "rewards": last.astype(np.uint8),
                    "dones": last.astype(np.uint8),
                }
            )
        problem = {"problem_name": "tabletop", "language_instruction": task.replace("_", " ")}
        facts = {
            "problem_info": json.dumps(problem),
            "tag": "libero-v1",
            "num_demos": len(LENGTHS),
            "env_args": json.dumps({"task": task}),
        }
        demos(folder / f"{task}_demo.hdf5", episodes, facts, init_state=numbers(1, 11, dtype=float))
        suite[f"{task}_demo.hdf5"] = episodes
    return suite


def aloha(folder: Path, *, compressed: bool = False) -> list[Arrays]:
    """ALOHA and ACT: a file for each episode; compressed images are rows that end in zeros."""
    folder.mkdir()
    episodes = []
    for index in (0, 1, 10):
        count = LENGTHS[0]
        frames = {name: numbers(index, count, 8, 12, 3, dtype=np.uint8) for name in ("cam_high", "cam_low")}
        arrays = {
            "action": numbers(index, count, 14, dtype=float),
            "observations/qpos": numbers(index + 20, count, 14, dtype=float),
            "observations/qvel": numbers(index + 30, count, 14, dtype=float),
            "observations/effort": numbers(index + 40, count, 14, dtype=float),
            "base_action": numbers(index + 50, count, 2, dtype=float),
        }
        with h5py.File(folder / f"episode_{index}.hdf5", "w") as file:
            file.attrs.update({"sim": False, "compress": compressed})
            write_tree(file, arrays)
            lengths = []
            for name, values in frames.items():
                path = f"observations/images/{name}"
                if not compressed:
                    file[path] = values
                    continue
                rows = [jpeg(frame) for frame in values]
                lengths.append([len(row) for row in rows])
                longest = max(map(len, rows))
                padded = [np.frombuffer(row.ljust(longest, b"\0"), np.uint8) for row in rows]
                file[path] = np.stack(padded)
                frames[name] = np.stack([decoded(row) for row in rows])
            if compressed:
                file["compress_len"] = np.array(lengths, float)
        arrays |= {f"observations/images/{name}": values for name, values in frames.items()}
        episodes.append(arrays)
    return episodes


def maniskill(path: Path) -> list[Arrays]:
    """ManiSkill's RecordEpisode: T+1 observations and states, and a JSON file with the same name."""
    episodes = []
    facts = []
    with h5py.File(path, "w") as file:
        for index, count in enumerate(LENGTHS):
            last = np.arange(count) == count - 1
            arrays = {
                "obs/agent/qpos": numbers(index, count + 1, 9),
                "obs/extra/is_grasped": np.arange(count + 1) > 2,
                "obs/sensor_data/base_camera/rgb": numbers(index, count + 1, 8, 8, 3, dtype=np.uint8),
                "obs/sensor_data/base_camera/depth": numbers(index, count + 1, 8, 8, 1).astype(np.int16),
                "actions": numbers(index + 10, count, 8),
                "terminated": last & (index == 0),
                "truncated": last & (index == 1),
                "success": last & (index == 0),
                "env_states/actors/cube": numbers(index + 20, count + 1, 13),
                "env_states/articulations/panda": numbers(index + 30, count + 1, 31),
                "rewards": numbers(index + 40, count),
            }
            write_tree(file.create_group(f"traj_{index}", track_order=True), arrays)
            facts.append(
                {
                    "episode_id": index,
                    "episode_seed": 2022 + index,
                    "control_mode": "pd_joint_delta_pos",
                    "elapsed_steps": count,
                    "reset_kwargs": {"options": {}, "seed": 2022 + index},
                    "success": index == 0,
                }
            )
            episodes.append(arrays)
    info = {"env_id": "PickCube-v1", "env_kwargs": {"obs_mode": "rgbd"}, "max_episode_steps": 50}
    content = {"env_info": info, "commit_info": None, "episodes": facts, "source_type": "motionplanning"}
    path.with_suffix(".json").write_text(json.dumps(content))
    return episodes


def replay_buffer(path: Path, version: int, *, keys: tuple[str, ...] = ("img", "state", "action")) -> Arrays:
    """Zarr stores of diffusion_policy: flat arrays in `data`, and `meta/episode_ends`; `.zip` for a file."""
    import zarr

    total = sum(LENGTHS)
    arrays = {
        name: numbers(index, total, 8, 8, 3, dtype=np.uint8) if name == "img" else numbers(index, total, 5)
        for index, name in enumerate(keys)
    }
    store: Any = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else str(path)
    root = zarr.open_group(store, mode="w", zarr_format=version)
    for name, values in arrays.items():
        root.create_array(f"data/{name}", data=values, chunks=(3, *values.shape[1:]))
    root.create_array("meta/episode_ends", data=np.cumsum(LENGTHS))
    if path.suffix == ".zip":
        store.close()
    return arrays


def ogbench(folder: Path) -> dict[str, Arrays]:
    """OGBench: shards of a large dataset, each with a file for validation."""
    folder.mkdir()
    shards = {}
    for index, name in enumerate(("000", "000-val", "001", "001-val")):
        total = sum(LENGTHS) + len(LENGTHS)
        ends = np.cumsum([count + 1 for count in LENGTHS]) - 1
        arrays = {
            "observations": numbers(index, total, 4),
            "actions": numbers(index + 10, total, 2),
            "terminals": np.isin(np.arange(total), ends).astype(float),
            "qpos": numbers(index + 20, total, 3),
        }
        np.savez(folder / f"cube-{name}.npz", **arrays)
        shards[f"cube-{name}.npz"] = arrays
    return shards


def bridge(folder: Path, date: str = "2022-01-01_00-00-00") -> list[Arrays]:
    """BridgeData: folders of trajectories with images and pickles, below a dated folder."""
    episodes = []
    for index, count in enumerate(LENGTHS):
        path = folder / date / f"raw/traj_group0/traj{index}"
        arrays = {
            "actions": numbers(index, count, 7, dtype=float),
            "state": numbers(index + 10, count + 1, 7, dtype=float),
            "qpos": numbers(index + 20, count + 1, 6, dtype=float),
        }
        for camera in ("images0", "images1"):
            (path / camera).mkdir(parents=True)
            frames = []
            for t, frame in enumerate(numbers(index, count + 1, 8, 8, 3, dtype=np.uint8)):
                (path / camera / f"im_{t}.jpg").write_bytes(jpeg(frame))
                frames.append(np.asarray(Image.open(path / camera / f"im_{t}.jpg")))
            arrays[camera] = np.stack(frames)
        observed = {"full_state": arrays["state"], "qpos": arrays["qpos"], "env_done": [False] * count}
        policy = [{"actions": action, "policy_type": "VRTeleopPolicy"} for action in arrays["actions"]]
        (path / "obs_dict.pkl").write_bytes(pickle.dumps(observed))
        (path / "policy_out.pkl").write_bytes(pickle.dumps(policy))
        (path / "agent_data.pkl").write_bytes(pickle.dumps({"traj_ok": True}))
        (path / "lang.txt").write_text("put the pot on the burner\nconfidence: 1\n")
        episodes.append(arrays)
    (folder / date / "collection_metadata.json").write_text(json.dumps({"environment": "toykitchen2"}))
    return episodes


def write_all(folder: Path) -> None:
    """Write one of each, under the names that the documentation uses."""
    isaac_lab(folder / "dataset.hdf5")
    mimicgen(folder / "stack_d0.hdf5")
    robocasa(folder / "open_drawer.hdf5")
    libero(folder / "libero_spatial")
    aloha(folder / "aloha_transfer_cube", compressed=True)
    (folder / "PickCube-v1").mkdir()
    maniskill(folder / "PickCube-v1/trajectory.h5")
    replay_buffer(folder / "pusht.zarr", 2)
    umi = ("robot0_eef_pos", "robot0_eef_rot_axis_angle", "robot0_gripper_width")
    replay_buffer(folder / "cup.zarr.zip", 2, keys=umi)
    ogbench(folder / "cube-quadruple-100m")
    bridge(folder / "bridgedata_raw")
    with h5py.File(folder / "sessions.h5", "w") as file:
        for index, count in enumerate(LENGTHS):
            group = file.create_group(f"runs/session{index}")
            group["state/q"], group["cmd"] = numbers(index, count + 1, 3), numbers(index, count, 2)
            group["gain"] = np.ones(count)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["pose"], file["cmd"] = numbers(0, sum(LENGTHS), 3), numbers(1, sum(LENGTHS), 2)
        file["ends"] = np.cumsum(LENGTHS)
