"""`view.to` and exports with libraries of their own environment, which read or fill the same themselves.

`make test-peers` runs them, and installs those whose pins contradict each other without what they require.
TensorFlow is too large for that: the test with TFDS runs where `tensorflow-datasets` is installed.
"""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import episodelake as el
from array_stores import recorded
from episodelake.testing.values import same
from exported_store import rich_store
from plain_transitions import plain_transitions, tree_equal, written_store
from test_exchange_d3rlpy import ACTIONS, store_of_actions

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:.* does not hold:RuntimeWarning")]


@pytest.fixture(params=["box", "dict"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> el.EpisodeStore:
    """Five episodes, one for each way to end and one with a single transition."""
    return written_store(tmp_path / "store", request.param)


def test_torchrl_samples_the_transitions(store: el.EpisodeStore) -> None:
    """A buffer holds them once each, and slices of it stay within episodes."""
    data = importlib.import_module("torchrl.data")
    buffer = store.to.torchrl(buffer=True)
    rows = plain_transitions(store)
    assert len(buffer) == len(rows)
    for index, row in enumerate(rows):
        assert tree_equal(buffer[index]["next", "observation"], row["next_observation"])
    sliced = data.TensorDictReplayBuffer(
        storage=buffer.storage,
        sampler=data.SliceSampler(slice_len=2, end_key=("next", "done")),
        batch_size=40,
    )
    batch = sliced.sample().reshape(-1, 2)
    assert (batch["collector", "traj_ids"][:, 0] == batch["collector", "traj_ids"][:, 1]).all()


def test_tianshou_has_what_it_would_have_added(store: el.EpisodeStore) -> None:
    """The arrays, the place of the next transition of each, and n-step returns, as after `add`."""
    data = importlib.import_module("tianshou.data")
    algorithm = importlib.import_module("tianshou.algorithm.algorithm_base")
    rows = plain_transitions(store)
    expected = data.ReplayBuffer(len(rows))
    for row in rows:
        expected.add(
            data.Batch(
                obs=row["observation"],
                act=row["action"],
                rew=row["reward"],
                terminated=row["terminated"],
                truncated=row["truncated"],
                obs_next=row["next_observation"],
                info={},
            )
        )
    found = store.to.tianshou()
    indices = np.arange(len(rows))
    for name in ("act", "rew", "terminated", "truncated", "done"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    for name in ("obs", "obs_next"):
        assert tree_equal(getattr(found, name), _plain(getattr(expected, name)))
    for step in ("next", "prev"):
        assert np.array_equal(getattr(found, step)(indices), getattr(expected, step)(indices))
    assert (len(found), found.unfinished_index().tolist()) == (len(rows), [])
    returns = [
        algorithm.Algorithm.compute_episodic_return(
            buffer[indices], buffer, indices, gamma=0.9, gae_lambda=1.0
        )[0]
        for buffer in (found, expected)
    ]
    assert np.array_equal(*returns)
    wider = data.ReplayBuffer(50)
    wider.update(found)
    assert len(wider) == len(rows) and np.array_equal(wider.rew[: len(rows)], found.rew)


def test_sb3_has_what_it_would_have_added(store: el.EpisodeStore) -> None:
    """The arrays and the place to write next, as after `add`; batches treat only termination as done."""
    buffers = importlib.import_module("stable_baselines3.common.buffers")
    rows = plain_transitions(store)
    kind = buffers.DictReplayBuffer if isinstance(rows[0]["observation"], dict) else buffers.ReplayBuffer
    space = store.action_space
    for size in (None, 40):
        expected = kind(size or len(rows), store.observation_space, space, device="cpu")
        for row in rows:
            action = row["action"]
            if isinstance(space, gymnasium.spaces.Box):
                action = 2.0 * ((action - space.low) / (space.high - space.low)) - 1.0
            expected.add(
                _with_axis(row["observation"]),
                _with_axis(row["next_observation"]),
                np.asarray(action)[None],
                np.array([row["reward"]]),
                np.array([row["done"]]),
                [{"TimeLimit.truncated": row["truncated"] and not row["terminated"]}],
            )
        found = store.to.sb3(buffer_size=size, device="cpu")
        assert type(found) is kind and (found.pos, found.full) == (expected.pos, expected.full)
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            assert tree_equal(getattr(found, name), getattr(expected, name)), name
    batch = found._get_samples(np.arange(len(rows)))
    assert batch.dones[:, 0].tolist() == [float(row["terminated"]) for row in rows]
    with pytest.raises(el.errors.InvalidArgumentError, match="buffer_size=3 is too small"):
        store.to.sb3(buffer_size=3)


def test_sb3_trains_on_what_was_recorded(tmp_path: Path) -> None:
    """The buffer holds the actions that the model's policy stores, and the model trains on it."""
    sb3 = importlib.import_module("stable_baselines3")
    env = gymnasium.make("Pendulum-v1", max_episode_steps=20)
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        for seed in range(3):
            recorder.reset(seed=seed)
            while not any(recorder.step(recorder.action_space.sample())[2:4]):
                pass
    store.refresh()
    model = sb3.SAC("MlpPolicy", env, device="cpu", policy_kwargs={"net_arch": [8]}, batch_size=16)
    model.replay_buffer = store.to.sb3(device="cpu")
    actions = np.concatenate([episode.actions for episode in store])
    assert np.allclose(model.policy.scale_action(actions), model.replay_buffer.actions[:, 0])
    model.set_logger(importlib.import_module("stable_baselines3.common.logger").Logger(None, []))
    before = [each.detach().clone() for each in model.policy.parameters()]
    model.train(2, 16)
    assert any(not (old == new).all() for old, new in zip(before, model.policy.parameters(), strict=True))


def test_one_reward_per_transition_is_what_sb3_holds(tmp_path: Path) -> None:
    """Rewards of several objectives are refused by SB3, and kept by TorchRL and Tianshou."""
    space = gymnasium.spaces.Discrete(3)
    store = el.create(tmp_path / "store", observation_space=space, action_space=space, reward_shape=(2,))
    rewards = np.array([[1.0, 2.0], [3.0, 4.0]])
    with store.writer() as writer:
        writer.write_episode(
            observations=[0, 1, 2], actions=[0, 1], rewards=rewards, terminations=True, truncations=False
        )
    store.refresh()
    with pytest.raises(el.errors.DatasetError, match=r"rewards of shape \(2,\)"):
        store.to.sb3()
    assert np.array_equal(store.to.tianshou().rew, rewards)
    assert np.array_equal(store.to.torchrl()["next", "reward"], rewards)


def test_imitation_has_the_episodes(store: el.EpisodeStore) -> None:
    """Each is a trajectory, terminal where the environment ended it, of the same transitions."""
    rollout = importlib.import_module("imitation.data.rollout")
    found = store.to.imitation()
    assert sum(each.terminal for each in found) == 3
    for trajectory, episode in zip(found, store, strict=True):
        assert trajectory.terminal == (episode.end_reason != "cut")
        assert np.array_equal(trajectory.acts, episode.actions)
        assert np.array_equal(trajectory.rews, episode.rewards)
        assert trajectory.infos.tolist() == episode.infos[1:]
    flat = rollout.flatten_trajectories_with_rew(found)
    rows = plain_transitions(store)
    for index, row in enumerate(rows):
        assert tree_equal(_unwrapped(flat[index]["next_obs"]), row["next_observation"])


def test_trajectories_of_imitation_come_back(store: el.EpisodeStore, tmp_path: Path) -> None:
    """As objects, as a pickle, and through its own files where it can write them; truncation is lost."""
    serialize = importlib.import_module("imitation.data.serialize")
    made = store.to.imitation()
    (tmp_path / "old.pkl").write_bytes(pickle.dumps(made))
    sources: list[tuple[Any, dict[str, Any]]] = [
        (made, {}),
        (tmp_path / "old.pkl", {"format": "imitation", "trust": True}),
    ]
    if isinstance(made[0].obs, np.ndarray):
        serialize.save(tmp_path / "saved", made)
        loaded = serialize.load(tmp_path / "saved")
        assert type(loaded).__name__ == "TrajectoryDatasetSequence"
        sources += [(loaded, {}), (tmp_path / "saved", {}), (tmp_path / "saved", {"trust": True})]
    for number, (source, options) in enumerate(sources):
        report = el.import_dataset(source, tmp_path / f"copy{number}", **options)
        copy = el.open(tmp_path / f"copy{number}")
        assert report.format == "imitation"
        assert report.lost["whether an episode was terminated or truncated"] == 3
        for trajectory, ours, again in zip(made, store, copy, strict=True):
            assert again.end_reason == ("terminated" if trajectory.terminal else "cut")
            assert tree_equal(again.observations, ours.observations)
            assert np.array_equal(again.actions, ours.actions)
            assert np.array_equal(again.rewards, ours.rewards)
            assert again.infos[1:] == ours.infos[1:]


def test_hugging_face_has_the_rows(store: el.EpisodeStore) -> None:
    """Of each table, as Polars has them."""
    for table in ("transitions", "steps", "episodes", "runs"):
        assert store.to.huggingface(table).to_list() == getattr(store, table).collect().to_dicts()


def test_hugging_face_loads_exported_folders(tmp_path: Path) -> None:
    """`load_dataset` of the folder and of its files alone: splits, features and values are the store's."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("PIL")
    store = recorded(tmp_path / "store")
    for layout, images in (("transitions", "png"), ("steps", "array")):
        out = tmp_path / f"{layout}-out"
        store.export(out, format="huggingface", layout=layout, images=images, split="split", shard_mb=0.01)
        loaded = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
        rows = {"train": 6, "test": 3} if layout == "transitions" else {"train": 8, "test": 4}
        assert {split: part.num_rows for split, part in loaded.items()} == rows
        files = sorted(map(str, out.glob("data/train-*")))
        alone = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
        for part in (loaded["train"], alone["train"]):
            _check_features(part, images)
            for row in part.with_format("numpy"):
                (episode,) = store.filter(f"seed = {int(row['seed'])}")
                assert _has_observation(row, episode, int(row["t"]))


def test_a_dataset_of_hugging_face_is_a_source(tmp_path: Path) -> None:
    """Rows in memory, in the order that `select` gave them."""
    datasets = pytest.importorskip("datasets")
    rows = {
        "episode": ["a", "a", "b", "b"],
        "observation": [[0.0], [0.5], [1.0], [1.5]],
        "action": [0, 1, 1, 0],
        "reward": [1.0, 2.0, 3.0, 4.0],
    }
    chosen = datasets.Dataset.from_dict(rows).select([2, 3, 0, 1])
    report = el.import_dataset(chosen, tmp_path / "s", last_observation="missing")
    assert report.format == "table"
    assert [each.rewards.tolist() for each in el.open(tmp_path / "s")] == [[3.0, 4.0], [1.0, 2.0]]


def test_hugging_face_has_arrays_and_images(tmp_path: Path) -> None:
    """In memory, too, and without next observations."""
    pytest.importorskip("datasets")
    pytest.importorskip("PIL")
    store = recorded(tmp_path / "store")
    for images in ("png", "array"):
        found = store.to.huggingface("steps", images=images)
        _check_features(found, images)
        expected = [(episode, t) for episode in store for t in range(episode.length + 1)]
        for row, (episode, t) in zip(found.with_format("numpy"), expected, strict=True):
            assert _has_observation(row, episode, t)


def _check_features(part: Any, images: str) -> None:
    features = {name: repr(feature) for name, feature in part.features.items()}
    assert features["observation.grid"] == "Array2D(shape=(2, 3), dtype='float16')"
    assert features["observation.speed"] == "List(Value('uint8'), length=3)"
    image = "Image(" if images == "png" else "Array3D(shape=(16, 12, 3), dtype='uint8')"
    assert features["observation.camera"].startswith(image)


def _has_observation(row: dict[str, Any], episode: el.Episode, t: int) -> bool:
    return all(
        np.array_equal(row[f"observation.{key}"], values[t]) for key, values in episode.observations.items()
    )


def test_d3rlpy_has_the_transitions(tmp_path: Path) -> None:
    """Those of its own transition picker, and the number of actions of the space."""
    store = written_store(tmp_path / "store", "box")
    found = store.to.d3rlpy()
    assert found.dataset_info.action_size == 5
    rows = plain_transitions(store)
    assert found.transition_count == len(rows)
    picked = [
        found.transition_picker(episode, index)
        for episode in found.episodes
        for index in range(episode.transition_count)
    ]
    for transition, row in zip(picked, rows, strict=True):
        assert np.array_equal(transition.observation, row["observation"])
        assert transition.action == row["action"] and transition.terminal == row["terminated"]
        if not row["terminated"]:
            assert np.array_equal(transition.next_observation, row["next_observation"])


def test_d3rlpy_detects_discrete_actions_as_exports_state(tmp_path: Path) -> None:
    """An export counts what `ReplayBuffer.load` gets wrong; `view.to.d3rlpy()` names the kind of actions."""
    dataset = importlib.import_module("d3rlpy.dataset")
    for index, (space, actions, discrete) in enumerate(ACTIONS):
        store = store_of_actions(tmp_path / f"store{index}", space, actions)
        store.export(tmp_path / f"{index}.h5", format="d3rlpy")
        with (tmp_path / f"{index}.h5").open("rb") as file:
            loaded = dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer()).dataset_info
        converted = store.to.d3rlpy().dataset_info
        assert (loaded.action_space != converted.action_space) == discrete, space


def _unwrapped(observation: Any) -> Any:
    unwrap = getattr(observation, "unwrap", None)
    return observation if unwrap is None else unwrap()


def _with_axis(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_axis(part) for key, part in value.items()}
    return np.asarray(value)[None]


def _plain(batch: Any) -> Any:
    return {key: _plain(batch[key]) for key in batch.get_keys()} if hasattr(batch, "get_keys") else batch


def test_tfds_reads_an_exported_rlds_dataset(tmp_path: Path) -> None:
    """Every step of every episode has the values and dtypes of the store, through `as_dataset`."""
    tfds = pytest.importorskip("tensorflow_datasets")
    store = rich_store(tmp_path / "store")
    store.export(tmp_path / "walk" / "2.1.0", format="rlds", shard_bytes=9000)
    builder = tfds.builder("walk", data_dir=tmp_path)
    assert builder.info.full_name == "walk/2.1.0"
    assert builder.info.splits["train"].num_examples == len(store)
    read = tfds.builder_from_directory(tmp_path / "walk" / "2.1.0").as_dataset(
        split="train", shuffle_files=False, read_config=tfds.ReadConfig(interleave_cycle_length=1)
    )
    for found, episode in zip(tfds.as_numpy(read), store, strict=True):
        steps = list(found["steps"])
        assert len(steps) == episode.length + 1
        for t, step in enumerate(steps):
            last = t == episode.length
            seen, values = step["observation"], episode.observations
            assert seen["pair"].pop("1").decode() == values["pair"][1][t]
            expected = {name: part for name, part in values.items() if name not in ("arm", "pair")}
            assert all(same(np.asarray(seen[name]), part[t, ...]) for name, part in expected.items())
            assert same(np.asarray(seen["pair"]["0"]), values["pair"][0][t, ...])
            assert same(seen["arm"]["a%2Eb%2Fc"], values["arm"]["a.b/c"][t])
            assert (step["is_first"], step["is_last"]) == (t == 0, last)
            assert step["is_terminal"] == (last and episode.terminated)
            assert step["info"]["say"].decode() == episode.infos[t]["say"]
            assert same(step["info"]["force"], episode.infos[t]["force"])
            assert same(step["frame"], episode.extra["frame"][t])
            assert step["reward"] == (0 if last else episode.rewards[t])
            ending = t == episode.length - 1 and episode.terminated
            assert step["discount"] == (not last and not ending)
            for name, part in enumerate(episode.actions):
                assert same(
                    np.asarray(step["action"][str(name)]), np.zeros_like(part[0]) if last else part[t, ...]
                )
        assert found["episode_metadata"]["level"] == episode.metadata["level"]


@pytest.mark.parametrize("layout", ["episodes", "transitions"])
def test_webdataset_reads_exported_shards(tmp_path: Path, layout: str) -> None:
    """Its own decoders give arrays, frames and JSON objects."""
    webdataset = pytest.importorskip("webdataset")
    store = rich_store(tmp_path / "store")
    store.export(tmp_path / "out", format="webdataset", layout=layout, shard_bytes=1 << 17)
    shards = sorted(str(file) for file in (tmp_path / "out").glob("*.tar"))
    found = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"))
    assert len(found) == (len(store) if layout == "episodes" else sum(episode.length for episode in store))
    assert found[0]["json"]["end_reason"] == store[0].end_reason
    observations = store[0].observations
    if layout == "episodes":
        assert same(found[0]["observation.front.npy"], observations["front"])
        assert found[0]["observation.pair.1.json"] == observations["pair"][1]
    else:
        assert same(found[0]["next_observation.front.png"], observations["front"][1])
        assert found[0]["observation.pair.1.txt"] == observations["pair"][1][0]
