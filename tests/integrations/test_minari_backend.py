"""Minari datasets in the format "episodelake" hold what the same datasets in Minari's own format hold."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.cli import app as minari_command
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from typer.testing import CliRunner

import episodelake as el
from episodelake.integrations import minari as backend
from waiting import PATIENCE

FORMATS = ("hdf5", "episodelake")


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of Minari datasets, and the backend, until the end of a test."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    backend.register()
    yield tmp_path
    backend._storages._registry.pop(backend.FORMAT)


class Walk(gym.Env):
    """A seeded walk with observations of several kinds, and infos of several kinds."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "image": spaces.Box(0, 255, (40, 40, 3), np.uint8),
            "parts": spaces.Tuple((spaces.Discrete(5), spaces.MultiBinary(3))),
            "word": spaces.Text(4, charset="ab"),
        }
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def _seen(self) -> tuple[dict[str, Any], dict[str, Any]]:
        random = self.np_random
        observation = {
            "place": random.normal(size=2).astype(np.float32),
            "image": random.integers(0, 256, (40, 40, 3), np.uint8),
            "parts": (np.int64(random.integers(5)), random.integers(0, 2, 3).astype(np.int8)),
            "word": "ab"[: 1 + self._t % 2],
        }
        info = {"t": self._t, "cost": self._t / 3, "inner": {"force": random.normal(size=3)}}
        return observation, info

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[dict, dict]:
        """Begin at step 0."""
        super().reset(seed=seed)
        self._t = 0
        return self._seen()

    def step(self, action: Any) -> tuple[dict, float, bool, bool, dict]:
        """Take one of seven steps."""
        self._t += 1
        observation, info = self._seen()
        return observation, self._t * 0.1, self._t == 7, False, info


def collect(data_format: str, name: str, episodes: int = 4) -> minari.MinariDataset:
    """Record a seeded walk in a format, the last episode cut by a reset."""
    env = minari.DataCollector(Walk(), data_format=data_format, record_infos=True)
    env.action_space.seed(5)
    for seed in range(episodes):
        env.reset(seed=seed, options={"hard": seed % 2 == 0, "goal": [1, seed]})
        for _ in range(7 if seed < episodes - 1 else 3):
            env.step(env.action_space.sample())
    env.reset()
    dataset = env.create_dataset(name, author="A. Author")
    env.close()
    return dataset


def equal(one: Any, other: Any) -> bool:
    """Whether nested values agree, arrays in dtype and shape too."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == np.asarray(other).dtype and np.array_equal(one, other)
    return one == other


def test_a_collected_dataset_equals_the_one_in_hdf5(datasets: Path) -> None:
    """Observations (but for the images, which hdf5 holds as JPEG), actions, flags, infos and metadata."""
    theirs, ours = (minari.load_dataset(collect(each, f"walk/{each}-v0").id) for each in FORMATS)
    assert len(ours) == len(theirs) == 4 and ours.total_steps == theirs.total_steps == 24
    for expected, found in zip(theirs, ours, strict=True):
        assert found.id == expected.id
        assert found.observations["image"].shape == expected.observations["image"].shape
        assert equal({**expected.observations, "image": 0}, {**found.observations, "image": 0})
        assert equal(expected.infos, found.infos)
        for name in ("actions", "rewards", "terminations", "truncations"):
            assert equal(getattr(expected, name), getattr(found, name)), name
    metadata = [list(dataset.storage.get_episode_metadata(range(4))) for dataset in (theirs, ours)]
    for expected, found in zip(*metadata, strict=True):
        expected["options"]["goal"] = expected["options"]["goal"].tolist()
        assert {**found, "id": int(found["id"])} == expected
    assert theirs.storage.metadata.keys() == ours.storage.metadata.keys()
    ours.storage.update_metadata({"ref_min_score": 0.0, "ref_max_score": 3.0})
    assert minari.get_normalized_score(ours, np.array(1.5)) == 0.5


def test_images_are_kept_without_loss(datasets: Path) -> None:
    """Whatever `jpeg_encoding` says."""
    dataset = collect("episodelake", "walk/images-v0", episodes=1)
    env = Walk()
    env.reset(seed=0)
    env.np_random.bit_generator.state = np.random.default_rng().bit_generator.state
    observation, _ = env.reset(seed=0)
    assert np.array_equal(dataset[0].observations["image"][0], observation["image"])


def test_the_dataset_is_a_store_and_answers_in_sql(datasets: Path) -> None:
    """One run for all episodes, the callback's metadata as columns, and nothing beside store and metadata."""
    dataset = collect("episodelake", "walk/sql-v0")
    folder = Path(dataset.storage.data_path)
    assert sorted(path.name for path in folder.iterdir()) == ["metadata.json", "store"]
    store = el.open(folder / "store")
    assert store.runs.collect().height == 1 and store.verify().ok
    rows = store.sql("select rewards_sum, episode_return, seed from episodes order by seed").fetchall()
    assert [row[2] for row in rows] == [0, 1, 2, 3]
    assert all(one == pytest.approx(other) for one, other, _ in rows)
    assert json.loads((folder / "metadata.json").read_text())["total_episodes"] == 4


def test_a_dataset_can_be_moved(datasets: Path) -> None:
    """Its folder knows nothing of where it is."""
    folder = Path(collect("episodelake", "walk/here-v0").storage.data_path)
    shutil.move(folder, datasets / "elsewhere")
    assert [len(episode) for episode in minari.MinariDataset(datasets / "elsewhere")] == [7, 7, 7, 3]


def test_datasets_are_split_filtered_combined_and_extended(datasets: Path) -> None:
    """As with Minari's formats; a dataset in another format can be the source."""
    ours, theirs = collect("episodelake", "walk/a-v0"), collect("hdf5", "walk/b-v0")
    first, second = minari.split_dataset(ours, sizes=[1, 3], seed=3)
    assert sorted([*first.episode_indices, *second.episode_indices]) == [0, 1, 2, 3]
    assert list(ours.filter_episodes(lambda episode: episode.truncations[-1]).episode_indices) == [3]
    combined = minari.combine_datasets([ours, theirs], "walk/both-v0")
    assert len(combined) == 8 and combined.total_steps == 48
    env = minari.DataCollector(Walk(), data_format="episodelake", record_infos=True)
    env.reset(seed=9)
    env.step(np.zeros(2, np.float32))
    env.add_to_dataset(ours)
    env.close()
    assert len(ours) == 5 and ours[4].rewards.tolist() == [0.1]
    assert ours.sample_episodes(2)
    reloaded = minari.load_dataset("walk/a-v0")
    assert reloaded.total_episodes == 5 and reloaded.total_steps == 25


def buffer(length: int = 2, **more: Any) -> EpisodeBuffer:
    """An episode of a line."""
    return EpisodeBuffer(
        observations=[np.array([k], np.float64) for k in range(length + 1)],
        actions=[1] * length,
        rewards=[1.0] * length,
        terminations=[False] * (length - 1) + [True],
        truncations=[False] * length,
        **more,
    )


def line(folder: Path) -> MinariStorage:
    """An empty storage for such episodes, of float32 observations."""
    return MinariStorage.new(
        folder,
        observation_space=spaces.Box(-9, 9, (1,), np.float32),
        action_space=spaces.Discrete(3),
        data_format="episodelake",
    )


def test_metadata_of_any_kind_come_back(datasets: Path) -> None:
    """Of one type as columns, of several types, of reserved and odd names, and nested, as JSON."""
    storage = line(datasets / "line")
    storage.update_episodes([buffer(), buffer(), buffer(seed=2**63 + 5)])
    storage.update_episode_metadata([{"level": 1}, {"level": 2}, {"level": 3, "length": "long"}])
    storage.update_episode_metadata([{"level": 2.5, "a b": [1, {"c": None}]}, {"ok": True}], [0, 2])
    found = list(MinariStorage.read(datasets / "line").get_episode_metadata([0, 1, 2]))
    assert found == [
        {"id": 0, "total_steps": 2, "level": 2.5, "a b": [1, {"c": None}]},
        {"id": 1, "total_steps": 2, "level": 2},
        {"id": 2, "total_steps": 2, "seed": 2**63 + 5, "level": 3, "length": "long", "ok": True},
    ]
    with pytest.raises(ValueError, match="one mapping"):
        storage.update_episode_metadata([{}], [0, 1])


def test_infos_may_begin_with_the_first_step(datasets: Path) -> None:
    """The row of the first observation then has none."""
    storage = line(datasets / "line")
    storage.update_episodes([buffer(infos={"cost": [1.0, 2.0]})])
    (episode,) = storage.get_episodes([0])
    assert episode["infos"]["cost"] == [None, 1.0, 2.0]


def test_a_stored_episode_cannot_grow(datasets: Path) -> None:
    """Its id is refused, as is one that leaves a gap; the next one is taken."""
    storage = line(datasets / "line")
    storage.update_episodes([buffer(id=0), buffer(id=1)])
    for wrong in (0, 3):
        with pytest.raises(el.errors.InvalidArgumentError, match="next one of this dataset is 2"):
            storage.update_episodes([buffer(id=wrong)])
    storage.update_episodes([buffer(id=2)])
    assert [episode["id"] for episode in storage.get_episodes([2, 0, 2])] == [2, 0, 2]


@pytest.mark.parametrize("part", ["observations", "actions"])
def test_an_integer_beyond_the_dtype_of_the_space_is_refused(datasets: Path, part: str) -> None:
    """An integer that fits is stored, and one that does not is never stored as another one."""
    space = spaces.Box(-(2**31), 2**31 - 1, (1,), np.int32)
    for value in (2**31 - 1, 2**40 + 7, -(2**40)):
        values = {"observations": np.zeros((3, 1), np.int64), "actions": np.zeros((2, 1), np.int64)}
        values[part][1] = value
        buffer = EpisodeBuffer(
            id=None, rewards=[0.0, 0.0], terminations=[False, True], truncations=[False, False], **values
        )

        def create(buffer: EpisodeBuffer = buffer, name: str = f"ints/{part}{value}-v0") -> Any:
            return minari.create_dataset_from_buffers(
                name, [buffer], observation_space=space, action_space=space, data_format="episodelake"
            )

        if value < 2**31 and value > 0:
            assert getattr(create()[0], part)[1, 0] == value
        else:
            with pytest.raises(el.errors.SpaceMismatchError, match=str(abs(value))):
                create()


@pytest.mark.further
def test_episodes_survive_a_kill(datasets: Path) -> None:
    """Those in the journal are in the dataset when it is opened next."""
    code = f"""
import os, signal, sys
sys.path[:0] = {[str(each) for each in Path(__file__).parents[:2]]!r}
from pathlib import Path
import test_minari_backend as tests
tests.backend.register()
storage = tests.line(Path(sys.argv[1]))
storage.update_episodes([tests.buffer(), tests.buffer()])
storage._recording._writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, str(datasets / "line")], timeout=PATIENCE, env={**os.environ}
    )
    assert ended.returncode == -signal.SIGKILL
    el.recover(datasets / "line" / "store")
    storage = MinariStorage.read(datasets / "line")
    assert storage.total_episodes == 2 and storage.total_steps == 4


def test_a_collector_that_is_dropped_ends_quietly(datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no dataset is made, its folder goes with its episodes, as that of Minari's own formats."""
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    env = minari.DataCollector(gym.make("CartPole-v1"), data_format="episodelake")
    for seed in range(2):
        env.reset(seed=seed)
        while not any(env.step(0)[2:4]):
            pass
    with pytest.raises(ValueError, match="malformed"):
        env.create_dataset(dataset_id="malformed id")
    del env
    gc.collect()
    assert lost == []


def test_an_episode_without_its_last_observation_ends_before(datasets: Path) -> None:
    """Minari's episodes have an observation more than steps, so the step to a missing one is left out."""
    dataset = collect("episodelake", "walk/missing-v0", episodes=1)
    store = el.open(Path(dataset.storage.data_path) / backend.STORE_FOLDER)
    (episode,) = store
    with store.writer() as writer:
        writer.write_episode(
            observations={
                name: tuple(part[:3] for part in values) if isinstance(values, tuple) else values[:3]
                for name, values in episode.observations.items()
            },
            actions=episode.actions[:3],
            rewards=episode.rewards[:3],
            terminations=True,
            truncations=False,
            infos={"cost": np.arange(3.0)},
            last_observation="missing",
        )
    whole, cut = dataset.storage.get_episodes([0, 1])
    assert len(cut["actions"]) == len(cut["rewards"]) == len(cut["terminations"]) == 2
    assert np.array_equal(cut["observations"]["place"], whole["observations"]["place"][:3])
    assert cut["infos"]["cost"].tolist() == [0, 1, 2] and not cut["terminations"].any()
    steps = [each["total_steps"] for each in dataset.storage.get_episode_metadata([0, 1])]
    assert steps == [3, 2]


def test_an_export_leaves_out_the_step_to_a_missing_observation(tmp_path: Path) -> None:
    """The exported dataset has the observations that there are, and the report says what it lost."""
    space = spaces.Box(-9, 9, (2,), np.float32)
    store = el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    seen = np.arange(6, dtype=np.float32).reshape(3, 2)
    with store.writer() as writer:
        writer.write_episode(
            observations=seen,
            actions=np.array([0, 1, 0]),
            rewards=np.ones(3),
            terminations=True,
            truncations=False,
            last_observation="missing",
        )
    report = store.refresh().export(tmp_path / "data", format="minari")
    assert "a last transition, whose next observation is missing" in str(report)
    (episode,) = minari.MinariDataset(tmp_path / "data" / "data")
    assert np.array_equal(episode.observations, seen) and episode.actions.tolist() == [0, 1]


@pytest.mark.further
def test_minari_commands_take_the_format(datasets: Path) -> None:
    """Combine, in a process that nobody registered it in; list, show and delete."""
    for name in ("walk/a-v0", "walk/b-v0"):
        collect("episodelake", name, episodes=2)
    words = ("combine", "walk/a-v0", "walk/b-v0", "--dataset-id", "both-v0")
    command = [sys.executable, "-W", "ignore", "-m", "episodelake.integrations.minari", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ})
    assert ended.returncode == 0, ended.stderr
    one, other, both = (minari.load_dataset(name) for name in ("walk/a-v0", "walk/b-v0", "both-v0"))
    assert both.storage.FORMAT == "episodelake" and both.total_episodes == 4
    for found, expected in zip(both, [*one, *other], strict=True):
        assert equal(found.observations, expected.observations) and equal(found.infos, expected.infos)
    for words in (("list", "local"), ("show", "both-v0"), ("delete", "both-v0")):
        result = CliRunner().invoke(minari_command, words, input="y\n")
        assert result.exit_code == 0 and "both-v0" in result.output, result.output
    assert not (datasets / "both-v0").exists()
