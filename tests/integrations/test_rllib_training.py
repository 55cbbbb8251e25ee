"""RLlib's offline algorithms trained from stores, beside the same data in RLlib's own format.

`make test-rllib-training` runs these tests in RLlib's own environment.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el

pytestmark = pytest.mark.peers
SEED = 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A small cluster of Ray."""
    import ray

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 * 2**20, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    gc.collect()  # iterators of Ray Data report to the cluster when they go
    ray.shutdown()


def balance(observation: np.ndarray, rng: np.random.Generator, noise: float) -> int:
    """A policy that balances the pole, with some random actions."""
    if rng.random() < noise:
        return int(rng.integers(2))
    return int(observation @ [0.1, 0.2, 3.0, 1.0] > 0)


def swing_up(observation: np.ndarray, rng: np.random.Generator, noise: float) -> np.ndarray:
    """A policy that swings the pendulum up and holds it, with some noise."""
    cosine, sine, speed = observation.tolist()
    if cosine > 0.7:
        torque = -8 * np.arctan2(sine, cosine) - 2 * speed
    else:
        torque = (1 if 0.5 * speed**2 < 15 * (1 - cosine) else -1) * (2 if speed >= 0 else -2)
    return np.clip(np.array([torque + noise * rng.normal()], np.float32), -2, 2)


def recorded(folder: Path, name: str, policy: Callable[..., Any], noises: list[float], limit: int) -> Path:
    """A folder with the same 30 episodes as a store and as a Parquet file for RLlib."""
    env, rng = gymnasium.make(name, max_episode_steps=limit), np.random.default_rng(SEED)
    rows = []
    store = el.create(folder / "store", env)
    with store.record(env) as recorder:
        for number in range(30):
            observation, _ = recorder.reset(seed=number)
            ended = False
            while not ended:
                action = policy(observation, rng, noises[number % len(noises)])
                following, reward, terminated, truncated, _ = recorder.step(action)
                rows.append((number, observation, action, reward, following, terminated, truncated))
                observation, ended = following, terminated or truncated
    box = isinstance(env.action_space, gymnasium.spaces.Box)
    names = ("eps_id", "obs", "actions", "rewards", "new_obs", "terminateds", "truncateds")
    columns: dict[str, list] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    # RLlib records the actions of its modules, between -1 and 1.
    columns["actions"] = [(action / 2).tolist() if box else action for action in columns["actions"]]
    columns["eps_id"] = list(map(str, columns["eps_id"]))
    vector = pa.list_(pa.float32())
    types = {"obs": vector, "new_obs": vector, "actions": vector if box else pa.int64()}
    table = pa.table({key: pa.array(values, types.get(key)) for key, values in columns.items()})
    (folder / "rllib").mkdir()
    pq.write_table(table, folder / "rllib" / "data.parquet")
    return folder


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good and bad episodes of CartPole."""
    return recorded(tmp_path_factory.mktemp("cartpole"), "CartPole-v1", balance, [0.2, 0.9], 200)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of Pendulum."""
    return recorded(tmp_path_factory.mktemp("pendulum"), "Pendulum-v1", swing_up, [0.2], 200)


def configured(kind: str, name: str, source: Path, **training: Any) -> Any:
    """A configuration that reads a store or RLlib's own format."""
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.algorithms.cql import CQLConfig
    from ray.rllib.algorithms.marwil import MARWILConfig

    from episodelake.integrations.rllib import StoreOfflineData

    config = {"bc": BCConfig, "marwil": MARWILConfig, "cql": CQLConfig}[kind]()
    with gymnasium.make(name) as env:
        config.environment(name, observation_space=env.observation_space, action_space=env.action_space)
    chosen = {"offline_data_class": StoreOfflineData} if source.name == "store" else {}
    config.offline_data(input_=[str(source)], materialize_data=False, materialize_mapped_data=True, **chosen)
    config.training(train_batch_size_per_learner=256, **training)
    config.rl_module(model_config={"fcnet_hiddens": [64, 64]})
    return config.debugging(seed=SEED, log_level="ERROR")


def evaluated(module: Any, name: str) -> float:
    """The mean return of a module that acts without noise in ten environments."""
    import torch

    envs = gymnasium.make_vec(name, num_envs=10, vectorization_mode="sync")
    observations, _ = envs.reset(seed=1000)
    alive, returns = np.ones(10, bool), np.zeros(10)
    box = isinstance(envs.single_action_space, gymnasium.spaces.Box)
    while alive.any():
        with torch.no_grad():
            found = module.forward_inference({"obs": torch.as_tensor(observations)})
        chosen = module.get_inference_action_dist_cls().from_logits(found["action_dist_inputs"])
        actions = chosen.to_deterministic().sample().numpy()
        actions = np.clip(actions, -1, 1) * 2 if box else actions
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        returns += rewards * alive
        alive &= ~(terminated | truncated)
    return float(returns.mean())


def imitation_error(module: Any, source: Path) -> float:
    """The mean squared distance of a module's actions from the recorded ones, between -1 and 1."""
    import torch

    transitions = el.open(source.parent / "store").transitions.collect()
    observations = torch.as_tensor(np.array(transitions["observation"].to_list(), np.float32))
    with torch.no_grad():
        found = module.forward_inference({"obs": observations})
    chosen = module.get_inference_action_dist_cls().from_logits(found["action_dist_inputs"])
    actions = chosen.to_deterministic().sample().numpy()
    return float(np.mean((actions - np.array(transitions["action"].to_list()) / 2) ** 2))


def trained(config: Any, updates: int, measure: Callable[[Any], float]) -> float:
    """What a measure says of the module after so many updates."""
    algorithm = config.offline_data(dataset_num_iters_per_learner=updates).build_algo()
    try:
        algorithm.train()
        return measure(algorithm.learner_group._learner.module["default_policy"])
    finally:
        algorithm.stop()


#: MARWIL divides advantages by the root of their running mean square, which begins at 100; of whole episodes
#: with returns of 200 they are larger.
MARWIL = {"beta": 1.0, "vf_coeff": 0.01, "moving_average_sqd_adv_norm_start": 10_000.0}


@pytest.mark.parametrize(("kind", "updates", "options"), [("bc", 200, {}), ("marwil", 400, MARWIL)])
def test_cartpole_trains_as_well_as_from_rllibs_format(
    kind: str, updates: int, options: dict[str, Any], cartpole: Path, cluster: None
) -> None:
    """After as many updates on the same data, the pole is balanced at least as long."""
    returns = [
        trained(
            configured(kind, "CartPole-v1", cartpole / source, lr=0.003, **options),
            updates,
            lambda module: evaluated(module, "CartPole-v1"),
        )
        for source in ("store", "rllib")
    ]
    assert returns[0] > 300 and returns[0] >= 0.9 * returns[1], returns


def test_pendulum_trains_as_well_as_from_rllibs_format(pendulum: Path, cluster: None) -> None:
    """After as many updates on the same data, CQL's actor, which clones first, is as near to the actions."""
    options = {"bc_iters": 1000, "num_actions": 2, "lr": None}
    options |= {"actor_lr": 0.003, "critic_lr": 0.001, "alpha_lr": 0.001}
    errors = [
        trained(
            configured("cql", "Pendulum-v1", pendulum / source, **options),
            40,
            lambda module: imitation_error(module, pendulum / "store"),
        )
        for source in ("store", "rllib")
    ]
    assert errors[0] < 0.5 and errors[0] <= 1.15 * errors[1], errors


def test_several_learners_share_the_data(cartpole: Path, cluster: None) -> None:
    """Two learners get disjoint parts of the stream and learn one policy, in several epochs."""
    config = configured("bc", "CartPole-v1", cartpole / "store", lr=0.003)
    config.offline_data(dataset_num_iters_per_learner=20, materialize_mapped_data=False)
    algorithm = config.learners(num_learners=2).build_algo()
    try:
        # A policy that has learned nothing of two actions has the loss ln 2; epochs of 20 batches vary.
        losses = [algorithm.train()["learners"]["default_policy"]["policy_loss"] for _ in range(2)]
        assert max(losses) < 0.95 * np.log(2), losses
        weights = algorithm.learner_group.foreach_learner(
            lambda learner: learner.module["default_policy"].get_state()
        )
        one, other = (result.get() for result in weights)
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[key], other[key]) for key in one)
    finally:
        algorithm.stop()
