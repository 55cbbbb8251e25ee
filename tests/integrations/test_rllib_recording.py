"""`StoreRecorder` records what RLlib samples, each transition once, as the environments log it themselves.

`make test-rllib` runs these tests in RLlib's own environment.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import episodelake as el
from waiting import wait_until

pytestmark = pytest.mark.peers
ROOT = Path(__file__).parents[2]
EPISODE = "rllib_episode"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Keep torch's threads from spinning beside the tests of others."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The folder of the environments' own logs."""
    folder = tmp_path / "log"
    folder.mkdir()
    return folder


def configured(store: Path, log: Path, name: str = "CartPole-v1", **options: Any) -> Any:
    """A configuration of PPO that records an environment with a log; RLlib's own options go through."""
    from ray.rllib.algorithms.ppo import PPOConfig

    from episodelake.integrations.rllib import StoreRecorder
    from rllib_environments import LoggedEnv

    limits = {key: options.pop(key) for key in ("limit", "fails_at") if key in options}
    recorder = {
        key: options.pop(key) for key in ("policy", "record_infos", "run", "evaluation") if key in options
    }
    config = PPOConfig().environment(LoggedEnv, env_config={"id": name, "log": str(log), **limits})
    config.env_runners(**{"num_env_runners": 0, **options}).debugging(seed=3)
    return config.callbacks(StoreRecorder(store, **recorder))


def single_runner(config: Any) -> Any:
    """An `EnvRunner` by itself, in this process."""
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    return SingleAgentEnvRunner(config=config)


def check_against_log(store: Path, log: Path, interrupted: int = 0) -> el.EpisodeStore:
    """Compare every episode of a store with the environments' own logs: the same ones, value by value."""
    from rllib_environments import logged_episodes

    found = {episode.infos[0]["key"]: episode for episode in el.open(store)}
    logged = {events[0]["key"]: events for events in logged_episodes(log)}
    assert found.keys() == logged.keys() and len(found) == len(el.open(store))
    for key, events in logged.items():
        check_episode(found[key], events)
    assert [each.end_reason for each in found.values()].count("interrupted") == interrupted
    return el.open(store)


def check_episode(episode: Any, events: list[dict[str, Any]]) -> None:
    """Compare one episode with its log."""
    steps, last = events[1:], events[-1]
    assert episode.length == len(steps)
    np.testing.assert_array_equal(
        episode.observations, np.array([event["observation"] for event in events], np.float32)
    )
    dtype = episode.actions.dtype
    np.testing.assert_array_equal(episode.actions, np.array([step["action"] for step in steps], dtype))
    assert episode.rewards.tolist() == [step["reward"] for step in steps]
    assert episode.terminations.tolist() == [step["terminated"] for step in steps]
    assert episode.truncations.tolist() == [step["truncated"] for step in steps]
    assert [dict(info) for info in episode.infos] == [event["info"] for event in events]
    if last["terminated"] or last["truncated"]:
        assert episode.end_reason == ("terminated" if last["terminated"] else "truncated")
    else:
        assert episode.end_reason in ("cut", "interrupted")


def joined(chunks: list[Any], column: str) -> dict[str, np.ndarray]:
    """One output of the module by episode, over all its chunks in RLlib's own objects."""
    found = defaultdict(list)
    for chunk in sorted(chunks, key=lambda chunk: chunk.t_started):
        found[chunk.id_].extend(
            chunk.get_actions() if column == "actions" else chunk.get_extra_model_outputs(column)
        )
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("fragment", [1, 7, 50])
@pytest.mark.parametrize("envs", [1, 4])
def test_every_sampled_transition_is_recorded_once(
    tmp_path: Path, log: Path, fragment: int, envs: int
) -> None:
    """However episodes are cut into fragments, a store holds what the environments did and RLlib sampled."""
    config = configured(
        tmp_path / "store", log, num_envs_per_env_runner=envs, rollout_fragment_length=fragment
    )
    runner = single_runner(config)
    chunks = [chunk for _ in range(120 // fragment) for chunk in runner.sample()]
    runner.stop()
    store = check_against_log(tmp_path / "store", log)
    assert len(store.transitions.collect()) == sum(map(len, chunks))
    logp = joined(chunks, "action_logp")
    assert logp and {episode.metadata[EPISODE] for episode in store} == logp.keys()
    for episode in store:
        np.testing.assert_array_equal(episode.policy["action_logp"], logp[episode.metadata[EPISODE]])
        assert "sampled_action" not in episode.policy


def test_actions_and_observations_are_the_environments_own(tmp_path: Path, log: Path) -> None:
    """Connectors that rescale actions and normalize observations change nothing of what is recorded."""
    from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter

    config = configured(
        tmp_path / "store",
        log,
        "Pendulum-v1",
        num_envs_per_env_runner=2,
        rollout_fragment_length=20,
        env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
    )
    runner = single_runner(config)
    chunks = [chunk for _ in range(4) for chunk in runner.sample()]
    runner.stop()
    store = check_against_log(tmp_path / "store", log)
    sampled, inputs = joined(chunks, "actions"), joined(chunks, "action_dist_inputs")
    changed = 0
    for episode in store:
        name = episode.metadata[EPISODE]
        raw = episode.policy["sampled_action"]
        np.testing.assert_array_equal(raw, sampled[name])
        np.testing.assert_array_equal(episode.policy["action_dist_inputs"], inputs[name])
        np.testing.assert_allclose(episode.actions, np.clip(2 * raw, -2, 2), rtol=1e-5, atol=1e-6)
        changed += int((episode.actions != raw).sum())
    assert changed > 50
    seen = np.concatenate([chunk.get_observations() for chunk in chunks])
    assert not np.isin(seen[:, 0], np.concatenate([e.observations for e in store])[:, 0]).all()


def test_module_states_are_recorded(tmp_path: Path, log: Path) -> None:
    """The states that a recurrent module returns stand beside its actions; `policy` chooses columns."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = configured(
        tmp_path / "store",
        log,
        num_envs_per_env_runner=2,
        rollout_fragment_length=10,
        policy=("state_out", "weights_seq_no"),
    )
    config.rl_module(model_config=DefaultModelConfig(use_lstm=True, lstm_cell_size=4, max_seq_len=5))
    runner = single_runner(config)
    chunks = [chunk for _ in range(4) for chunk in runner.sample()]
    runner.stop()
    store = check_against_log(tmp_path / "store", log)
    states: dict[str, list[Any]] = defaultdict(list)
    for chunk in chunks:
        states[chunk.id_].extend(chunk.get_extra_model_outputs("state_out")["h"])
    for episode in store:
        np.testing.assert_array_equal(
            episode.policy["state_out"]["h"], np.array(states[episode.metadata[EPISODE]])
        )
        assert set(episode.policy) == {"state_out", "weights_seq_no"}


def test_whole_episodes_and_random_actions(tmp_path: Path, log: Path) -> None:
    """Sampling by episodes ends the others as cut; random actions have no policy values."""
    runner = single_runner(configured(tmp_path / "store", log, num_envs_per_env_runner=3, run="both"))
    sampled = [*runner.sample(num_episodes=4), *runner.sample(num_episodes=2, random_actions=True)]
    sampled += runner.sample(num_timesteps=11, force_reset=True)
    steps = runner.get_metrics()["num_env_steps_sampled"]
    runner.stop()
    store = check_against_log(tmp_path / "store", log)
    found = {episode.metadata[EPISODE]: episode for episode in store}
    assert sum(len(episode) for episode in store) == (steps.peek() if hasattr(steps, "peek") else steps)
    for chunk in sampled:
        episode = found.pop(chunk.id_)
        np.testing.assert_array_equal(episode.observations, chunk.get_observations())
        drawn = "action_logp" not in chunk.extra_model_outputs
        assert drawn == ("action_logp" not in episode.policy)
    # RLlib also drops an episode that ends in the same step as the last one it waits for.
    assert "cut" in {episode.end_reason for episode in found.values()}


def test_a_failed_environment_ends_its_episodes_and_goes_on(tmp_path: Path, log: Path) -> None:
    """Environments that RLlib makes again after an error are recorded too, as a run of their own."""
    config = configured(
        tmp_path / "store", log, num_envs_per_env_runner=2, rollout_fragment_length=9, fails_at=15
    )
    runner = single_runner(config.fault_tolerance(restart_failed_sub_environments=True))
    for _ in range(4):
        runner.sample()
    runner.stop()
    store = check_against_log(tmp_path / "store", log)
    assert len(store.runs.collect()) == 2


def test_asynchronous_environments_are_recorded(tmp_path: Path, log: Path) -> None:
    """Environments that RLlib steps in processes of their own are recorded the same."""
    config = configured(
        tmp_path / "store",
        log,
        num_envs_per_env_runner=2,
        rollout_fragment_length=20,
        gym_env_vectorize_mode="async",
    )
    runner = single_runner(config)
    chunks = [chunk for _ in range(3) for chunk in runner.sample()]
    runner.stop()
    store = check_against_log(tmp_path / "store", log)
    assert len(store.transitions.collect()) == sum(map(len, chunks)) >= 120


def test_evaluations_are_recorded_if_asked(tmp_path: Path, log: Path) -> None:
    """Workers of an evaluation record with `evaluation=True` only, and their runs say so."""
    for evaluation in (False, True):
        config = configured(tmp_path / "store", log, evaluation=evaluation)
        config.in_evaluation = True
        runner = single_runner(config)
        runner.sample(num_timesteps=5)
        runner.stop()
        assert (tmp_path / "store").exists() == evaluation
    assert el.open(tmp_path / "store").runs.collect()["metadata.evaluation"].to_list() == [True]


# Several agents


def multi_config(store: Path, log: Path, **options: Any) -> Any:
    """A configuration of PPO that records agents with a log."""
    from ray.rllib.algorithms.ppo import PPOConfig

    from episodelake.integrations.rllib import StoreRecorder
    from rllib_environments import Relay

    # RLlib's checks of an environment would step it before it is sampled.
    config = PPOConfig().environment(Relay, env_config={"log": str(log)}, disable_env_checking=True)
    config.env_runners(**{"num_env_runners": 0, **options})
    config.multi_agent(
        policies={"small", "wide"},
        policy_mapping_fn=lambda agent, episode, **_: "wide" if agent == 7 else "small",
    )
    return config.callbacks(StoreRecorder(store))


def lanes_of(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The transitions of each agent, worked out from the log of an episode."""
    lanes = {}
    for agent in ("red", "blue", "7"):
        rows: dict[str, Any] = defaultdict(list)
        action, owed = None, 0.0
        for t, event in enumerate(events):
            if t and agent in event["action"]:
                action = event["action"][agent]
            owed += event["reward"].get(agent, 0.0) if t else 0.0
            over = [t > 0 and (event[kind]["__all__"] or event[kind].get(agent, False)) for kind in FLAGS]
            observation = event["observation"].get(agent)
            rows["repeated"].extend([True] if action is not None and any(over) and not observation else [])
            if observation is None and action is not None and any(over):
                observation = rows["observations"][-1]
            if observation is None or (action is None and any(over)):
                continue
            rows["observations"].append(observation)
            rows["env_steps"].append(t)
            rows["infos"].append(event["info"].get(agent, {}))
            if action is not None:
                rows["actions"].append(action)
                rows["rewards"].append(owed)
                rows["flags"].append(over)
            elif owed:
                rows["initial"].append(owed)
            action, owed = None, 0.0
        if rows["observations"]:
            lanes[agent] = rows
    return lanes


FLAGS = ("terminated", "truncated")


@pytest.mark.parametrize(("fragment", "envs"), [(1, 1), (5, 2), (40, 4)])
def test_agents_are_recorded_as_their_environment_logs_them(
    tmp_path: Path, log: Path, fragment: int, envs: int
) -> None:
    """Agents that come late, answer late and leave early have exactly their own transitions."""
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

    from rllib_environments import logged_episodes

    config = multi_config(
        tmp_path / "store", log, num_envs_per_env_runner=envs, rollout_fragment_length=fragment
    )
    runner = MultiAgentEnvRunner(config=config)
    for _ in range(60 // fragment):
        runner.sample()
    runner.stop()
    store = el.open(tmp_path / "store")
    logged = {events[0]["key"]: events for events in logged_episodes(log)}
    ends = Counter()
    for episode in store:
        events = logged.pop(episode.agent("red").infos[0]["key"])
        lanes = lanes_of(events)
        assert set(episode.agents) == set(lanes) and episode.length == len(events) - 1
        for name, lane in lanes.items():
            check_lane(episode.agent(name), lane)
        assert episode.agent("red").infos[0]["__common__"] == {"weather": "fine"}
        ends[episode.end_reason] += 1
    assert not logged and ends["terminated"] and ends["truncated"]


def check_lane(agent: Any, lane: dict[str, Any]) -> None:
    """Compare the transitions of one agent."""
    np.testing.assert_array_equal(agent.observations, np.array(lane["observations"], np.float32))
    np.testing.assert_array_equal(agent.actions, np.array(lane["actions"], agent.actions.dtype))
    assert agent.rewards.tolist() == lane["rewards"] and agent.env_steps.tolist() == lane["env_steps"]
    flags = np.stack([agent.terminations, agent.truncations], 1).tolist()
    assert flags == [list(map(bool, over)) for over in lane["flags"]]
    shared = [{key: info[key] for key in info if key != "__common__"} for info in agent.infos]
    assert shared == lane["infos"]
    assert ("observation_repeated" in agent.extra) == bool(lane["repeated"])
    assert [value for value in agent.extra.get("initial_reward", ()) if value is not None] == lane["initial"]
    assert len(agent.policy["action_logp"]) == agent.length
    assert ("sampled_action" in agent.policy) == (agent.agent_id == "7")


def test_agents_episodes_equal_rllibs(tmp_path: Path, log: Path) -> None:
    """Of whole episodes a store holds each agent's values and outputs as RLlib does."""
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

    runner = MultiAgentEnvRunner(config=multi_config(tmp_path / "store", log, num_envs_per_env_runner=2))
    sampled = runner.sample(num_episodes=6)
    runner.stop()
    found = {episode.metadata[EPISODE]: episode for episode in el.open(tmp_path / "store")}
    compared = 0
    for theirs in sampled:
        for name, lane in theirs.agent_episodes.items():
            ours = found[theirs.id_].agent(str(name))
            np.testing.assert_array_equal(ours.observations, lane.get_observations())
            raw = ours.policy.get("sampled_action", ours.actions)
            np.testing.assert_array_equal(raw, lane.get_actions())
            np.testing.assert_array_equal(ours.rewards, lane.get_rewards())
            logp = lane.get_extra_model_outputs("action_logp")
            np.testing.assert_array_equal(ours.policy["action_logp"], logp)
            compared += 1
    assert compared >= 12


# Processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A small Ray cluster on this machine."""
    import ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 << 20,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}},
    )
    yield
    ray.shutdown()


def trained(algorithm: Any) -> int:
    """Train once more and return how many workers are well."""
    algorithm.train()
    return algorithm.env_runner_group.num_healthy_remote_workers()


def test_processes_write_runs_of_their_own(tmp_path: Path, log: Path, cluster: None) -> None:
    """Two workers, one of them killed and restarted, record all that they sampled, without evaluations."""
    import ray

    other = tmp_path / "evaluations"
    other.mkdir()
    config = configured(
        tmp_path / "store", log, num_env_runners=2, num_envs_per_env_runner=2, rollout_fragment_length=16
    )
    config.callbacks_class.options["flush_steps"] = 1
    config.training(train_batch_size=64, minibatch_size=32, num_epochs=1)
    config.evaluation(
        evaluation_interval=1,
        evaluation_duration=1,
        evaluation_config={"env_config": {"id": "CartPole-v1", "log": str(other)}},
    )
    config.fault_tolerance(restart_failed_env_runners=True)
    config.env_runners(num_cpus_per_env_runner=0.5).learners(num_learners=0)
    algorithm = config.build_algo()
    algorithm.train()
    victim = algorithm.env_runner_group._worker_manager.actors()[1]
    ray.kill(victim, no_restart=False)
    algorithm.train()
    wait_until(lambda: trained(algorithm) == 2, "the restart of the worker")
    algorithm.train()
    algorithm.stop()
    store = check_against_log(tmp_path / "store", log, interrupted=2)
    assert list(other.glob("*.jsonl"))
    runs = store.runs.sort("started_at").collect()
    assert Counter(runs["metadata.worker_index"].to_list()) == {1: 2, 2: 1}
    assert not runs["metadata.evaluation"].any()


def test_a_restored_algorithm_records_on(tmp_path: Path, log: Path, cluster: None) -> None:
    """An algorithm that records can be saved; the one restored from it records into the store too."""
    from ray.rllib.algorithms.algorithm import Algorithm

    config = configured(tmp_path / "store", log, rollout_fragment_length=32)
    config.training(train_batch_size=32, minibatch_size=32, num_epochs=1).learners(num_learners=0)
    first = config.build_algo()
    first.train()
    path = first.save_to_path(str(tmp_path / "checkpoint"))
    first.train()
    first.restore_from_path(path)
    first.train()
    first.stop()
    second = Algorithm.from_checkpoint(path)
    second.train()
    second.stop()
    store = check_against_log(tmp_path / "store", log)
    assert len(store.runs.collect()) == 2 and len(store.transitions.collect()) == 4 * 32


# Recorders as environments


def test_rllib_accepts_recorders(tmp_path: Path) -> None:
    """RLlib's check of multi-agent environments passes, and a runner samples from a recorder."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
    from ray.rllib.utils.pre_checks.env import check_multiagent_environments
    from ray.tune import register_env

    from agent_environments import Comings, Turns

    for wrapper, env in ((ParallelPettingZooEnv, Comings()), (PettingZooEnv, Turns())):
        path = tmp_path / type(env).__name__
        wrapped = wrapper(el.create(path, env).record(env))
        check_multiagent_environments(wrapped)
        wrapped.close()
        (episode,) = el.open(path)
        assert episode.end_reason == "cut" and episode.seed == 42
        assert not el.open(path).verify().faults

    path = tmp_path / "store"

    def recorded(config: Any) -> el.types.Recorder:
        env = gymnasium.make("CartPole-v1")
        return el.create(path, env).record(env)

    register_env("recorded", recorded)
    runner = single_runner(PPOConfig().environment("recorded").env_runners(num_env_runners=0))
    chunks = runner.sample(num_episodes=3)
    runner.stop()
    store = el.open(path)
    assert {episode.end_reason for episode in store} == {"terminated"} and not store.verify().faults
    for episode, chunk in zip(store, chunks, strict=True):
        np.testing.assert_array_equal(episode.observations, chunk.get_observations())
        np.testing.assert_array_equal(episode.actions, chunk.get_actions())
        np.testing.assert_array_equal(episode.rewards, chunk.get_rewards())


# Arguments


def test_arguments_are_checked_at_once(tmp_path: Path) -> None:
    """A wrong argument is an error where the recorder is made, and nothing is created."""
    from episodelake.integrations.rllib import StoreRecorder

    for wrong in ({"policy": "action_logp"}, {"record_infos": "cost"}, {"durability": "always"}):
        with pytest.raises(el.errors.InvalidArgumentError):
            StoreRecorder(tmp_path / "store", **wrong)
    assert not (tmp_path / "store").exists()


def test_another_environments_store_is_refused(tmp_path: Path, log: Path) -> None:
    """A store with other spaces is an error at the first sample; nothing is recorded."""
    el.create(tmp_path / "store", gymnasium.make("Pendulum-v1"))
    runner = single_runner(configured(tmp_path / "store", log))
    with pytest.raises(el.errors.SpaceMismatchError):
        runner.sample()
    runner.stop()
    assert len(el.open(tmp_path / "store").runs.collect()) == 0
