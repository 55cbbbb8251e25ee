"""Files of robots and simulators (tests/robot_files.py): their arrays are those of the store."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import episodelake as el
import robot_files
from effort import some, with_folders
from episodelake.testing.adapters import case

NO_LAST = "a last observation, which the source lacks"
NO_REWARDS = "rewards, which the source does not have: NaN"


def paths(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by their path."""
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from paths(part, f"{path}/{name}".lstrip("/"))
    else:
        yield path, tree


def check(
    episode: el.Episode, arrays: robot_files.Arrays, observation: str = "obs", action: str = "actions"
) -> None:
    """Compare every array that has a row for each step with an episode."""
    seen = dict(paths(episode.observations, observation))
    extra = dict(paths(episode.extra))
    assert np.array_equal(episode.actions, arrays[action])
    assert {path for path in arrays if path.startswith(f"{observation}/")} == set(seen)
    for path, values in arrays.items():
        if path in seen:
            assert np.array_equal(seen[path], values), path
            assert path == "obs/extra/is_grasped" or seen[path].dtype == values.dtype
        elif path in extra:
            rows = [row for row in extra[path] if row is not None][: len(values)]
            assert np.array_equal(np.array(rows), values), path


@pytest.mark.parametrize("name", ["isaac_lab", "mimicgen", "robocasa"])
def test_the_layout_of_robomimic_in_other_tools(tmp_path: Path, name: str) -> None:
    """Values are exact; rewards that are not there are NaN, and arrays of another length facts or losses."""
    episodes = getattr(robot_files, name)(tmp_path / "demos.hdf5")
    report = el.import_dataset(tmp_path / "demos.hdf5", tmp_path / "store")
    lost = {
        "isaac_lab": {NO_REWARDS: 9, NO_LAST: 2},
        "mimicgen": {"subtask_bounds, which has not a row for each step": 2},
        "robocasa": {NO_LAST: 2},
    }
    assert (report.format, report.episodes, dict(report.lost)) == ("robomimic", 2, lost[name])
    for index, (episode, arrays) in enumerate(zip(el.open(tmp_path / "store"), episodes, strict=True)):
        following = {
            path.removeprefix("next_"): v for path, v in arrays.items() if path.startswith("next_obs/")
        }
        for path, values in following.items():
            arrays[path] = np.concatenate([arrays[path], values[-1:]])
        check(episode, arrays)
        assert np.array_equal(
            episode.rewards, arrays.get("rewards", np.full(len(episode.actions), np.nan)), equal_nan=True
        )
        metadata = dict(paths(episode.metadata))
        if name == "isaac_lab":
            initial = arrays["initial_state/articulation/robot/joint_position"]
            assert metadata["initial_state/articulation/robot/joint_position"] == initial.tolist()
            assert (metadata["seed"], metadata["success"]) == (42, True)
        if name == "mimicgen":
            assert metadata["src_demo_inds"] == [3, 7, index]


def test_a_suite_of_libero_is_a_folder(tmp_path: Path) -> None:
    """A folder, a list and a pattern give the same episodes, with what differs between files as metadata."""
    suite = robot_files.libero(tmp_path / "suite")
    files = sorted((tmp_path / "suite").iterdir())
    stores = []
    for number, source in enumerate((tmp_path / "suite", files, str(tmp_path / "suite/*.hdf5"))):
        report = el.import_dataset(source, tmp_path / str(number))
        assert (report.format, report.episodes, dict(report.lost)) == ("robomimic", 4, {NO_LAST: 4})
        stores.append(el.open(tmp_path / str(number)))
    for store in stores:
        # Not `num_demos`, the number of the episodes in each file.
        assert store.card == {"tag": "libero-v1"}
        expected = [(name, arrays) for name in sorted(suite) for arrays in suite[name]]
        for episode, (name, arrays) in zip(store, expected, strict=True):
            check(episode, arrays)
            assert episode.rewards.sum() == 1
            task = name.removesuffix("_demo.hdf5")
            assert episode.metadata["env_args"] == {"task": task}
            assert json.loads(episode.metadata["problem_info"])["language_instruction"] == task.replace(
                "_", " "
            )
    assert el.import_dataset(tmp_path / "suite", stores[0]).present == 4


def test_files_of_a_folder_must_fit_each_other(tmp_path: Path) -> None:
    """A file of another kind or other spaces is an error that names it, and the store does not appear."""
    robot_files.libero(tmp_path / "suite")
    robot_files.mimicgen(tmp_path / "suite/stack.hdf5")
    with pytest.raises(
        el.errors.DatasetError, match=r"open_the_drawer_demo\.hdf5 and .*stack\.hdf5 have the spaces"
    ):
        el.import_dataset(tmp_path / "suite", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_shards_of_ogbench_are_a_folder(tmp_path: Path) -> None:
    """Every file of the folder; the row of a terminal is the last observation."""
    shards = robot_files.ogbench(tmp_path / "shards")
    report = el.import_dataset(tmp_path / "shards", tmp_path / "store")
    assert (report.format, report.episodes) == ("ogbench", 8)
    assert report.lost[NO_REWARDS] == 4 * sum(robot_files.LENGTHS)
    episodes = iter(el.open(tmp_path / "store"))
    for name in sorted(shards):
        start = 0
        for count in robot_files.LENGTHS:
            episode, rows = next(episodes), slice(start, start + count + 1)
            assert name in episode.metadata["source_key"]
            assert np.array_equal(episode.observations, shards[name]["observations"][rows])
            assert np.array_equal(episode.actions, shards[name]["actions"][rows][:-1])
            assert np.array_equal(np.array(episode.extra["qpos"]), shards[name]["qpos"][rows])
            start += count + 1


@pytest.mark.parametrize("compressed", [False, True])
def test_files_of_aloha(tmp_path: Path, compressed: bool) -> None:
    """In the order of their numbers, with frames as OpenCV decodes them and the second action as a column."""
    episodes = robot_files.aloha(tmp_path / "aloha", compressed=compressed)
    report = el.import_dataset(tmp_path / "aloha", tmp_path / "store")
    assert (report.format, report.episodes, report.lost[NO_REWARDS]) == ("aloha", 3, 15)
    store = el.open(tmp_path / "store")
    assert [episode.metadata["source_key"].split("/")[-1] for episode in store] == [
        f"episode_{number}.hdf5" for number in (0, 1, 10)
    ]
    for episode, arrays in zip(store, episodes, strict=True):
        check(episode, arrays, "observations", "action")
        assert (episode.metadata["compress"], episode.end_reason) == (compressed, "cut")
    report = el.import_dataset(tmp_path / "aloha/episode_1.hdf5", tmp_path / "one")
    assert (report.format, report.episodes) == ("aloha", 1)


def test_trajectories_of_maniskill(tmp_path: Path) -> None:
    """With the last observation, flags, seeds, and the facts of the JSON file; without it these are lost."""
    episodes = robot_files.maniskill(tmp_path / "demo.h5")
    report = el.import_dataset(tmp_path / "demo.h5", tmp_path / "store")
    assert (report.format, report.episodes, dict(report.lost)) == ("maniskill", 2, {})
    store = el.open(tmp_path / "store")
    assert store.card["env_info"]["env_id"] == "PickCube-v1"
    for index, (episode, arrays) in enumerate(zip(store, episodes, strict=True)):
        check(episode, arrays)
        assert np.array_equal(episode.rewards, arrays["rewards"])
        assert (episode.seed, episode.end_reason) == (2022 + index, ["terminated", "truncated"][index])
        assert episode.metadata["reset_kwargs"]["seed"] == 2022 + index
    (tmp_path / "demo.json").unlink()
    report = el.import_dataset(tmp_path / "demo.h5", tmp_path / "bare")
    assert dict(report.lost) == {"the seeds and facts of the episodes, whose JSON file is not there": 2}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/demo.json").write_text("{}")
    (tmp_path / "demo.json").symlink_to(tmp_path / "other/demo.json")
    with pytest.raises(el.errors.DatasetError, match="outside of the source"):
        el.import_dataset(tmp_path / "demo.h5", tmp_path / "linked")


@pytest.mark.parametrize("grouped", [True, False])
def test_vectors_of_rewards_have_no_place(tmp_path: Path, grouped: bool) -> None:
    """The error names the array, its shape and the one that is expected."""
    with h5py.File(tmp_path / "vectors.h5", "w") as file:
        group = file.create_group("demo_0") if grouped else file
        group["pose"], group["cmd"], group["prize"] = np.ones((9, 2)), np.ones((9, 1)), np.ones((9, 2))
        file["ends"] = np.array([9])
    mapping = {"observation": "pose", "action": "cmd", "reward": "prize"}
    mapping["episode"] = "demo_*" if grouped else "ends"
    with pytest.raises(el.errors.DatasetError, match=r"\(9, 2\); expected"):
        el.import_dataset(tmp_path / "vectors.h5", tmp_path / "store", mapping=mapping)


UMI = [
    f"robot{robot}_{part}" for robot in (0, 1) for part in ("eef_pos", "eef_rot_axis_angle", "gripper_width")
]


_REPLAY_BUFFERS_IN_ZARR: Any = [
    *itertools.product(
        [2, 3], ["replay.zarr", "replay.zarr.zip"], [("img", "state", "action"), (*UMI, "img")]
    )
]


@pytest.mark.parametrize("cases", some(_REPLAY_BUFFERS_IN_ZARR))
def test_replay_buffers_in_zarr(tmp_path: Path, cases: Any) -> None:
    """Folders and zip files of both versions; poses of UMI are the actions of their own step."""
    for folder, (version, name, keys) in with_folders(cases, tmp_path):
        with case((version, name, keys)):
            arrays = robot_files.replay_buffer(folder / name, version, keys=keys)
            report = el.import_dataset(folder / name, folder / "store")
            assert (report.format, report.episodes) == ("diffusion_policy", 2)
            assert report.lost[NO_REWARDS] == sum(robot_files.LENGTHS)
            actions = (
                arrays["action"]
                if "action" in arrays
                else np.concatenate([arrays[key] for key in UMI], axis=1)
            )
            start = 0
            for episode, count in zip(el.open(folder / "store"), robot_files.LENGTHS, strict=True):
                rows = slice(start, start := start + count)
                assert np.array_equal(episode.actions, actions[rows])
                assert set(episode.observations) == set(arrays) - {"action"}
                for key, values in episode.observations.items():
                    assert np.array_equal(values, arrays[key][rows])
                    assert values.dtype == arrays[key].dtype


def test_lists_and_patterns_of_zarr_folders(tmp_path: Path) -> None:
    """They are one source, as a folder of them is; other folders in a list are refused."""
    pytest.importorskip("zarr")
    for name in ("b", "a"):
        robot_files.replay_buffer(tmp_path / f"runs/{name}.zarr", 2)
    folders = [tmp_path / "runs/a.zarr", tmp_path / "runs/b.zarr"]
    sources = [tmp_path / "runs", folders, str(tmp_path / "runs/*.zarr"), str(tmp_path / "runs/**/*")]
    contents = []
    for number, source in enumerate(sources):
        report = el.import_dataset(source, tmp_path / f"store{number}")
        assert (report.format, report.episodes) == ("diffusion_policy", 4), source
        store = el.open(tmp_path / f"store{number}")
        contents.append([(str(each.actions), each.metadata["source_digest"]) for each in store])
    assert all(content == contents[0] for content in contents)
    (tmp_path / "plain").mkdir()
    with pytest.raises(el.errors.DatasetError, match="plain is a folder, and a list"):
        el.import_dataset([*folders, tmp_path / "plain"], tmp_path / "store")


def test_a_space_of_one_array_is_no_group(tmp_path: Path) -> None:
    """Neither rows nor groups become the only array in them; robomimic's exports give an array a name."""
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    box = spaces.Box(-9, 9, (2,), np.float32)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        for group in (file, file.create_group("runs/run_0")):
            robot_files.write_tree(group, {"obs/flat": values, "act": values})
        file["ends"] = [3]
    for episode in ("ends", "runs/run_*"):
        mapping = {"observation": "obs", "action": "act", "episode": episode}
        with pytest.raises(el.errors.SpaceMismatchError, match="is a group with flat; its space is Box"):
            el.import_dataset(tmp_path / "own.h5", tmp_path / "store", mapping=mapping, observation_space=box)
    assert not (tmp_path / "store").exists()


def test_mappings_of_files_that_are_recognised(tmp_path: Path) -> None:
    """The error names the format that reads them by a mapping, which may name attributes as metadata."""
    robot_files.isaac_lab(tmp_path / "demos.hdf5")
    with h5py.File(tmp_path / "demos.hdf5") as file:
        seen = next(iter(file["data/demo_0/obs"]))
    mapping = {"episode": "data/demo_*", "observation": f"obs/{seen}", "action": "actions"}
    mapping["metadata"] = "success"
    with pytest.raises(el.errors.InvalidArgumentError, match=r"with format= \(--format\): tree\."):
        el.import_dataset(tmp_path / "demos.hdf5", tmp_path / "store", mapping=mapping)
    el.import_dataset(tmp_path / "demos.hdf5", tmp_path / "store", mapping=mapping, format="tree")
    assert el.open(tmp_path / "store")[0].metadata["success"] is True
    mapping["metadata"] = {"solved": "success"}
    el.import_dataset(tmp_path / "demos.hdf5", tmp_path / "named", mapping=mapping, format="tree")
    assert el.open(tmp_path / "named")[0].metadata["solved"] is True
    assert "success" not in el.open(tmp_path / "named")[0].metadata
    for names, error in (
        ({"a": "success", "b": "success"}, "gives two names to the metadata success"),
        ({"num_samples": "success"}, "has a 'num_samples' of its own"),
    ):
        with pytest.raises(el.errors.EpisodelakeError, match=error):
            el.import_dataset(
                tmp_path / "demos.hdf5",
                tmp_path / "wrong",
                mapping=mapping | {"metadata": names},
                format="tree",
            )
    for wrong in ({"metadata": "nothing"}, {"extra": "success"}):
        with pytest.raises(
            el.errors.DatasetError, match=r"which the mapping names.* the attributes .*success"
        ):
            el.import_dataset(
                tmp_path / "demos.hdf5", tmp_path / "other", mapping={**mapping, **wrong}, format="tree"
            )


def test_files_of_a_folder_that_are_damaged_are_named(tmp_path: Path) -> None:
    """A partly copied file in a folder is an error, not a file to skip."""
    robot_files.libero(tmp_path / "suite")
    robot_files.ogbench(tmp_path / "shards")
    for folder, name in (("suite", "zz.hdf5"), ("shards", "zz.npz")):
        (tmp_path / folder / name).write_bytes(b"PK\x03\x04")
        with pytest.raises(el.errors.DatasetError, match=rf"{name} is no "):
            el.import_dataset(tmp_path / folder, tmp_path / "store")


def rewritten(path: Path, name: str, **changed: Any) -> None:
    """Change what a zarr array of version 2 states of itself."""
    file = path / name / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"compressor": {"id": "pickle", "protocol": 4}}, "the codec 'pickle', which may run code"),
        ({"filters": [{"id": "json2"}]}, "the codec 'json2', which may run code"),
        ({"compressor": {"id": "of_the_source"}}, "the codec 'of_the_source', which may run code"),
        ({"shape": [1 << 50, 5]}, "takes .* bytes in memory"),
        ({"chunks": [1 << 40, 5]}, "a chunk takes .* bytes in memory"),
    ],
)
def test_zarr_stores_that_may_harm_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    """Codecs that run code, by name, and claims of more bytes than the source may have."""
    robot_files.replay_buffer(tmp_path / "replay.zarr", 2)
    rewritten(tmp_path / "replay.zarr", "data/state", **changed)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(tmp_path / "replay.zarr", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_zarr_stores_lead_nowhere_else(tmp_path: Path) -> None:
    """Neither by links nor by names of consolidated metadata."""
    robot_files.replay_buffer(tmp_path / "other.zarr", 2)
    robot_files.replay_buffer(tmp_path / "replay.zarr", 2)
    meta = {
        "metadata": {".zgroup": {"zarr_format": 2}, "data/../../other.zarr/data/.zgroup": {"zarr_format": 2}}
    }
    (tmp_path / "replay.zarr/.zmetadata").write_text(json.dumps(meta | {"zarr_consolidated_format": 1}))
    assert el.import_dataset(tmp_path / "replay.zarr", tmp_path / "store").episodes == 2
    (tmp_path / "replay.zarr/data/link").symlink_to(tmp_path / "other.zarr/data/img")
    with pytest.raises(el.errors.DatasetError, match="outside of the source"):
        el.import_dataset(tmp_path / "replay.zarr", tmp_path / "linked")


def test_images_of_zarr_need_imagecodecs(tmp_path: Path) -> None:
    """UMI stores JPEG XL: read where the package is there, and named with it otherwise."""
    codecs = pytest.importorskip("imagecodecs.numcodecs")
    zarr = pytest.importorskip("zarr")
    arrays = robot_files.replay_buffer(tmp_path / "replay.zarr", 2, keys=("state", "action"))
    codecs.register_codecs(verbose=False)
    frames = robot_files.numbers(1, sum(robot_files.LENGTHS), 16, 16, 3, dtype=np.uint8)
    data = zarr.open_group(str(tmp_path / "replay.zarr"))["data"]
    chosen = codecs.Jpegxl(lossless=True)
    data.create_array("rgb", data=frames, chunks=(1, 16, 16, 3), compressors=chosen)
    report = el.import_dataset(tmp_path / "replay.zarr", tmp_path / "store")
    assert report.episodes == 2
    seen = np.concatenate([episode.observations["rgb"] for episode in el.open(tmp_path / "store")])
    assert np.array_equal(seen, frames)
    assert arrays.keys() == {"state", "action"}


def test_groups_by_mapping(tmp_path: Path) -> None:
    """A pattern of groups, paths of arrays, and vectors of several arrays; what is not named is lost."""
    with h5py.File(tmp_path / "own.h5", "w") as file:
        for number in (2, 10):
            group = file.create_group(f"runs/session{number}/log")
            for name, shape in (
                ("q", (4, 3)),
                ("grip", (4,)),
                ("goal", (2,)),
                ("noise", (3, 1)),
                ("temp", (3,)),
            ):
                group[f"state/{name}" if name in "q grip" else name] = robot_files.numbers(number, *shape)
            group["cmd"] = robot_files.numbers(number, 3, 2)
            group["gain"], group["end"] = np.arange(3.0), np.array([0, 0, number == 2])
    mapping = {
        "observation": {"body": ["state/q", "state/grip"]},
        "action": "cmd",
        "reward": "gain",
        "terminated": "end",
        "episode": "runs/session*/log",
        "extra": {"kelvin": "temp"},
        "metadata": ["goal"],
    }
    report = el.import_dataset(tmp_path / "own.h5", tmp_path / "store", mapping=mapping)
    assert (report.format, report.episodes) == ("tree", 2)
    assert dict(report.lost) == {"noise, which the mapping does not name": 2}
    assert report.mapping["observation"] == "state/q, state/grip"
    with h5py.File(tmp_path / "own.h5") as file:
        for number, episode in zip((2, 10), el.open(tmp_path / "store"), strict=True):
            group = file[f"runs/session{number}/log"]
            body = np.column_stack([group["state/q"], group["state/grip"]])
            assert np.array_equal(episode.observations["body"], body)
            assert np.array_equal(episode.actions, group["cmd"])
            assert (episode.rewards.tolist(), episode.terminated) == ([0, 1, 2], number == 2)
            assert episode.extra["kelvin"][:3] == group["temp"][()].tolist()
            assert episode.metadata["goal"] == group["goal"][()].tolist()
    with pytest.raises(
        el.errors.DatasetError, match=r"own\.h5 has no known format .*tree: it has runs: name paths"
    ):
        el.import_dataset(tmp_path / "own.h5", tmp_path / "unnamed")
    with pytest.raises(el.errors.DatasetError, match=r"has no groups nowhere/\*"):
        el.import_dataset(tmp_path / "own.h5", tmp_path / "b", mapping=mapping | {"episode": "nowhere/*"})
    with pytest.raises(el.errors.DatasetError, match=r"own\.h5: session2 has no speed; it has cmd, end"):
        el.import_dataset(tmp_path / "own.h5", tmp_path / "b", mapping=mapping | {"action": "speed"})
    for wrong in ({"reward": "gian"}, {"extra": ["tmp"]}, {"metadata": ["gole"]}, {"terminated": "ends"}):
        with pytest.raises(el.errors.DatasetError, match=r"no (gian|tmp|gole|ends)"):
            el.import_dataset(tmp_path / "own.h5", tmp_path / "b", mapping=mapping | wrong)
    for name, value in (("step", "t"), ("action_leads_to", True)):
        with pytest.raises(el.errors.InvalidArgumentError, match=f"The mapping has {name}, which trees"):
            el.import_dataset(tmp_path / "own.h5", tmp_path / "b", mapping=mapping | {name: value})


def test_flat_rows_and_files_by_mapping(tmp_path: Path) -> None:
    """Ends, numbers of each row, and a file for each episode give the same episodes, from HDF5 and zarr."""
    zarr = pytest.importorskip("zarr")
    total = sum(robot_files.LENGTHS)
    arrays = {"pose": robot_files.numbers(1, total, 3), "motor/cmd": robot_files.numbers(2, total, 2)}
    arrays["number"] = np.repeat([7, 3], robot_files.LENGTHS)
    arrays["ends"] = np.cumsum(robot_files.LENGTHS)
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        robot_files.write_tree(file, arrays)
    group = zarr.open_group(str(tmp_path / "flat.zarr"), mode="w")
    for name, values in arrays.items():
        group.create_array(name, data=values)
    (tmp_path / "logs").mkdir()
    for index, stop in enumerate(arrays["ends"]):
        with h5py.File(tmp_path / f"logs/{index}.h5", "w") as file:
            rows = slice(stop - robot_files.LENGTHS[index], stop)
            robot_files.write_tree(file, {name: arrays[name][rows] for name in ("pose", "motor/cmd")})
    sources = [("flat.h5", "ends"), ("flat.zarr", "number"), ("logs", el.FILE), ("logs/*.h5", el.FILE)]
    for number, (source, episode) in enumerate(sources):
        mapping = el.ColumnMapping(observation="pose", action="motor/cmd", episode=episode)
        report = el.import_dataset(str(tmp_path / source), tmp_path / str(number), mapping=mapping)
        assert (report.format, report.lost[NO_REWARDS]) == ("tree", total), source
        store = el.open(tmp_path / str(number))
        assert [each.length for each in store] == [*robot_files.LENGTHS]
        assert np.array_equal(np.concatenate([each.observations for each in store]), arrays["pose"])
        assert np.array_equal(np.concatenate([each.actions for each in store]), arrays["motor/cmd"])


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([9, 5], "are no ends of episodes in 9 rows"),
        ([5, 10], "are no ends of episodes in 9 rows"),
        ([-1, 9], "are no ends of episodes in 9 rows"),
        ([5.0, 9.0], "expected whole numbers"),
        ([0, 0, 1, 1, 0, 0, 2, 2, 2], "the rows of an episode must be neighbours"),
    ],
)
def test_wrong_ends_are_refused(tmp_path: Path, ends: list[Any], message: str) -> None:
    """With the array that has them, and nothing is written."""
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file["pose"], file["cmd"], file["ends"] = np.ones((9, 2)), np.ones((9, 1)), np.array(ends)
    mapping = {"observation": "pose", "action": "cmd", "episode": "ends"}
    with pytest.raises(el.errors.DatasetError, match=f"ends.*{message}"):
        el.import_dataset(tmp_path / "flat.h5", tmp_path / "store", mapping=mapping)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("date", ["2022-01-01_00-00-00", "2021-07-22_10-00-00"])
def test_raw_folders_of_bridge(tmp_path: Path, date: str) -> None:
    """Pickles need trust; before July 2021 the first observation and the last action are left out."""
    episodes = robot_files.bridge(tmp_path / "bridge", date)
    with pytest.raises(el.errors.DatasetError, match=r"obs_dict\.pkl is pickled, .* trust=True"):
        el.import_dataset(tmp_path / "bridge", tmp_path / "store")
    report = el.import_dataset(tmp_path / "bridge", tmp_path / "store", trust=True)
    lag = int(date < "2021-07-23")
    lost = {
        NO_REWARDS: sum(robot_files.LENGTHS),
        "agent_data.pkl, which is not read": 2,
        "env_done of obs_dict.pkl, which has not a row for each observation": 2,
    }
    lagged = {"a first observation and a last action, since images lagged up to 2021-07-23": 2}
    assert (report.format, report.episodes, dict(report.lost)) == (
        "bridge",
        2,
        lost | (lagged if lag else {}),
    )
    for episode, arrays in zip(el.open(tmp_path / "store"), episodes, strict=True):
        for name in ("state", "images0", "images1"):
            assert np.array_equal(episode.observations[name], arrays[name][lag:])
        assert np.array_equal(episode.actions, arrays["actions"][: len(arrays["actions"]) - lag])
        assert np.array_equal(np.array(episode.extra["qpos"]), arrays["qpos"][lag:])
        assert set(episode.extra["policy_out"]["policy_type"][:-1]) == {"VRTeleopPolicy"}
        assert episode.metadata["task"] == "put the pot on the burner"
        assert episode.metadata["collection_metadata"] == {"environment": "toykitchen2"}


@pytest.mark.further
def test_files_of_arrays_lead_nowhere_else(tmp_path: Path) -> None:
    """Links to groups that make a million paths of a few groups are refused, and files of two kinds."""
    with h5py.File(tmp_path / "many.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"], demo["obs/x"] = np.ones((2, 1)), np.ones((2, 1))
        inner = demo
        for _ in range(25):
            below = inner.create_group("a")
            inner["b"] = below
            inner = below
    with pytest.raises(el.errors.DatasetError, match="more than 100,000 items"):
        el.import_dataset(tmp_path / "many.hdf5", tmp_path / "store")
    robot_files.maniskill(tmp_path / "demo.h5")
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(el.errors.DatasetError, match=r"2 files in .* no known format"):
        el.import_dataset([tmp_path / "demo.h5", tmp_path / "notes.txt"], tmp_path / "store")


@pytest.mark.parametrize(("mode", "kind"), [("RGB", np.uint8), ("L", np.uint8), ("I;16", np.uint16)])
def test_rows_of_encoded_images(tmp_path: Path, mode: str, kind: Any) -> None:
    """PNG in rows of any length is decoded without loss; images of 16 bits are refused."""
    shape = (4, 6, 7, 3) if mode == "RGB" else (4, 6, 7)
    frames = np.random.default_rng(0).integers(0, 255, shape).astype(kind)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        rows = file.create_dataset("camera", 4, h5py.vlen_dtype(np.uint8))
        for index, frame in enumerate(frames):
            Image.fromarray(frame).save(data := io.BytesIO(), "PNG")
            rows[index] = np.frombuffer(data.getvalue(), np.uint8)
        file["cmd"] = np.ones((3, 2))
    mapping = {"observation": "camera", "action": "cmd", "episode": el.FILE}
    if mode == "I;16":
        with pytest.raises(el.errors.DatasetError, match="expected gray or RGB ones of 8 bits"):
            el.import_dataset(tmp_path / "own.h5", tmp_path / "store", mapping=mapping)
        return
    el.import_dataset(tmp_path / "own.h5", tmp_path / "store", mapping=mapping)
    assert np.array_equal(el.open(tmp_path / "store")[0].observations.reshape(shape), frames)
