"""Recorders in the checkers of Gymnasium, PettingZoo, Stable-Baselines3 and TorchRL, and loaders in torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import episodelake as el


def recorded(path: Path, env: Any) -> Any:
    """A recorder of an environment, in a store of its own."""
    return el.create(path, env).record(env)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_gymnasium_accepts_a_recorder(tmp_path: Path, env_id: str) -> None:
    """`check_env` passes, and the spec of a recorder makes the environment without it."""
    env = gymnasium.make(env_id)
    with recorded(tmp_path / "store", env) as recorder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it advises the author of the environment
            check_env(recorder)
        assert recorder.spec == env.spec
        assert not isinstance(gymnasium.make(recorder.spec), type(recorder))
    store = el.open(tmp_path / "store")
    assert len(store) and not store.verify().faults
    assert store.make_env().spec.additional_wrappers == () == recorder.spec.additional_wrappers


def test_wrappers_around_a_recorder_are_specified(tmp_path: Path) -> None:
    """A wrapper around a recorder stays in the spec, without the recorder."""
    env = gymnasium.make("CartPole-v1")
    with recorded(tmp_path / "store", env) as recorder:
        outer = gymnasium.wrappers.TimeAwareObservation(recorder)
        again = gymnasium.make(outer.spec)
        names = [wrapper.name for wrapper in again.spec.additional_wrappers]
        assert names == ["TimeAwareObservation"]
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with recorded(tmp_path / "vector", envs) as recorder:
        assert isinstance(recorder, gymnasium.vector.VectorEnv) and recorder.spec == envs.spec


@pytest.mark.further
def test_pettingzoo_accepts_recorders(tmp_path: Path) -> None:
    """The API tests and the seed test of PettingZoo pass, and what they stepped is recorded."""
    from mpe2 import simple_reference_v3
    from pettingzoo import AECEnv, ParallelEnv
    from pettingzoo.classic import tictactoe_v3
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

    count = iter(range(100))

    def recorder_of(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: recorded(tmp_path / str(next(count)), make())

    for make in (tictactoe_v3.env, simple_reference_v3.env):
        with recorder_of(make)() as recorder:
            assert isinstance(recorder, AECEnv) and not isinstance(recorder, ParallelEnv)
            assert type(recorder) is el.types.AECRecorder
            api_test(recorder, num_cycles=30)
        seed_test(recorder_of(make), num_cycles=20)
    with recorder_of(simple_reference_v3.parallel_env)() as recorder:
        assert isinstance(recorder, ParallelEnv) and type(recorder) is el.types.ParallelRecorder
        parallel_api_test(recorder, num_cycles=60)
    parallel_seed_test(recorder_of(simple_reference_v3.parallel_env), num_cycles=20)
    stores = [el.open(path) for path in sorted(tmp_path.iterdir(), key=lambda path: int(path.name))]
    assert len(stores) == 9 and all(len(store) for store in (stores[0], stores[3], stores[6]))
    assert not any(store.verify().faults for store in stores)


@pytest.mark.peers
def test_learners_accept_recorders(tmp_path: Path) -> None:
    """`check_env` of Stable-Baselines3 and `check_env_specs` of TorchRL pass."""
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    torchrl = pytest.importorskip("torchrl.envs")
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        with recorded(tmp_path / f"sb3-{env_id}", gymnasium.make(env_id)) as recorder:
            sb3.check_env(recorder, warn=False)
        with recorded(tmp_path / f"torchrl-{env_id}", gymnasium.make(env_id)) as recorder:
            torchrl.check_env_specs(torchrl.GymWrapper(recorder))
    for path in tmp_path.iterdir():
        assert len(el.open(path)) and not el.open(path).verify().faults


@pytest.mark.further
def test_torch_takes_loaders(tmp_path: Path) -> None:
    """`torch.utils.data` takes the dataset of a loader: alone, chained, and with its workers."""
    data = pytest.importorskip("torch.utils.data")
    store = el.create(tmp_path / "store", "CartPole-v1")
    el.collect("CartPole-v1", None, store, steps=200, seed=0)
    store.refresh()

    def loader() -> Any:
        return store.loader(16, shuffle=True, seed=0, output="torch")

    plain = [batch["observation"] for batch in loader()]
    assert isinstance(loader().iterable_dataset(), data.IterableDataset)
    for given in (loader().iterable_dataset(), data.ChainDataset([loader().iterable_dataset()])):
        batches = [batch["observation"] for batch in data.DataLoader(given, batch_size=None)]
        assert len(batches) == len(plain)
        assert all((one == other).all() for one, other in zip(batches, plain, strict=True))
    dataset = loader().iterable_dataset()
    rows = data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    seen = np.concatenate([batch["observation"].numpy() for batch in rows])
    expected = np.concatenate([batch.numpy() for batch in plain])
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, expected.tolist()))
