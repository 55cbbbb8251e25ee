"""What learners of RLlib get from a store: whole episodes, compared with loops over the recorded values.

`make test-rllib` runs these tests in RLlib's own environment. Nothing here starts a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import polars as pl
import pytest

import episodelake as el
from episodelake.store.errors import InvalidArgumentError

pytestmark = pytest.mark.peers
GAMMA = 0.9
LENGTHS = (7, 3, 12, 1, 5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Episodes of known lengths with states of a module: observation [episode, t], reward t + 1."""
    path = tmp_path_factory.mktemp("offline") / "store"
    box = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    made = el.create(path, observation_space=box, action_space=gymnasium.spaces.Box(-2, 2, (1,), np.float32))
    with made.writer() as writer:
        for number, length in enumerate(LENGTHS):
            steps = np.arange(length + 1, dtype=np.float32)
            writer.write_episode(
                observations=np.stack([np.full(length + 1, number, np.float32), steps], axis=1),
                actions=np.linspace(-2, 2, length, dtype=np.float32)[:, None],
                rewards=np.arange(1.0, length + 1),
                terminations=[False] * (length - 1) + [number % 2 == 0],
                truncations=[False] * (length - 1) + [number % 2 == 1],
                policy={
                    "logp": -np.arange(length, dtype=np.float32),
                    "state": {"h": states(steps), "c": states(-steps)},
                },
            )
    return made.refresh()


def states(steps: np.ndarray) -> np.ndarray:
    """States of an LSTM of one layer with four cells: shape (T, 1, 4), as RLlib records them."""
    return np.tile(steps[:-1, None, None], (1, 1, 4))


def configured(kind: str, store: el.EpisodeStore, *, offline: Mapping[str, Any] = {}, **training: Any) -> Any:
    """A configuration of an algorithm that reads the store."""
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.algorithms.cql import CQLConfig
    from ray.rllib.algorithms.marwil import MARWILConfig

    from episodelake.integrations.rllib import StoreOfflineData

    config = {"bc": BCConfig, "marwil": MARWILConfig, "cql": CQLConfig}[kind]()
    schema = store.context.snapshot.schema
    config.environment(observation_space=schema.observation_space, action_space=schema.action_space)
    config.offline_data(
        input_=[str(store.path)],
        offline_data_class=StoreOfflineData,
        dataset_num_iters_per_learner=1,
        materialize_mapped_data=True,
        **offline,
    )
    return config.training(train_batch_size_per_learner=64, **training).debugging(seed=0)


def batches(config: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """The train batches of one epoch, as the worker of Ray Data makes them, without Ray."""
    import ray.data

    from episodelake.integrations.rllib import StoreOfflineData

    blocks: list[Any] = []
    monkeypatch.setattr(ray.data, "from_arrow", blocks.extend)
    if config.is_multi_agent:
        spec = config.get_multi_rl_module_spec()
    else:
        spec = config.get_multi_rl_module_spec(
            spaces={"default_policy": (config.observation_space, config.action_space)}
        )
    offline = StoreOfflineData(config)
    worker = offline.prelearner_class(
        config=config, spaces=(config.observation_space, config.action_space), module_spec=spec
    )
    made = []
    for block in blocks:
        for group in range(len(block)):
            rows = {name: np.array(block[name][group : group + 1].to_pylist()) for name in block.column_names}
            made.append(worker(rows, **offline.map_batches_kwargs["fn_kwargs"]))
    return [{name: np.asarray(column) for name, column in batch.items()} for batch in made]


def joined(found: list[dict[str, np.ndarray]], column: str, module: str = "default_policy") -> np.ndarray:
    """A column of all batches."""
    return np.concatenate([batch[f"{module}/{column}"] for batch in found])


@pytest.mark.parametrize("capacity", [4, 1000])
def test_an_epoch_has_each_transition_once(
    store: el.EpisodeStore, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However episodes are grouped, every transition comes once, with its own action, mapped to [-1, 1]."""
    config = configured("bc", store, offline={"prelearner_buffer_kwargs": {"capacity": capacity}})
    found = batches(config, monkeypatch)
    assert len(found) == (1 if capacity == 1000 else 4)
    rows = np.concatenate([joined(found, "obs"), joined(found, "actions"), joined(found, "new_obs")], axis=1)
    expected = [
        [number, t, np.linspace(-1, 1, length, dtype=np.float32)[t], number, t + 1]
        for number, length in enumerate(LENGTHS)
        for t in range(length)
    ]
    assert sorted(map(tuple, rows.round(5).tolist())) == sorted(
        map(tuple, np.array(expected, np.float32).round(5).tolist())
    )
    if capacity == 1000:
        assert joined(found, "obs").tolist() != sorted(joined(found, "obs").tolist())


def test_value_targets_are_returns_of_whole_episodes(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MARWIL's value targets are discounted returns to the end of each terminated episode."""
    found = batches(configured("marwil", store, gamma=GAMMA), monkeypatch)
    mask = joined(found, "loss_mask")
    observations, targets = joined(found, "obs")[mask], joined(found, "value_targets")[mask]
    assert len(targets) == sum(LENGTHS)
    seen = 0
    for (number, t), target in zip(observations.astype(int).tolist(), targets.tolist(), strict=True):
        if number % 2 == 0:
            rewards = np.arange(1.0, LENGTHS[number] + 1)[t:]
            assert target == pytest.approx(float(rewards @ GAMMA ** np.arange(len(rewards))), rel=1e-4)
            seen += 1
    assert seen == sum(LENGTHS[::2])


def test_n_step_rewards_reach_over_rows(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `n_step=3` a row has the discounted sum of three rewards and the observation after them."""
    found = batches(configured("cql", store, gamma=GAMMA, n_step=3), monkeypatch)
    names = ("obs", "new_obs", "rewards", "n_step", "terminateds")
    rows = zip(*(joined(found, name) for name in names), strict=True)
    seen = set()
    for observation, following, reward, count, terminated in rows:
        number, t = observation.astype(int).tolist()
        length = LENGTHS[number]
        stop = min(t + 3, length)
        assert following.tolist() == [number, stop] and count == stop - t
        assert reward == pytest.approx(sum(GAMMA**k * (t + 1 + k) for k in range(stop - t)))
        assert bool(terminated) == (number % 2 == 0 and stop == length)
        seen.add((number, t))
    assert len(seen) == sum(LENGTHS)


def test_a_transition_without_its_next_observation_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the last observation is missing, learners get one transition less, and bootstrap there."""
    box = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    made = el.create(tmp_path / "store", observation_space=box, action_space=gymnasium.spaces.Discrete(3))
    lengths = ((4, False), (3, True), (1, True))
    with made.writer() as writer:
        for number, (length, missing) in enumerate(lengths):
            steps = np.arange(length + (not missing), dtype=np.float32)
            writer.write_episode(
                observations=np.stack([np.full(len(steps), number, np.float32), steps], axis=1),
                actions=np.zeros(length, np.int64),
                rewards=np.ones(length),
                terminations=True,
                truncations=False,
                last_observation="missing" if missing else "present",
            )
    found = batches(configured("cql", made, gamma=GAMMA, n_step=1), monkeypatch)
    rows = np.concatenate([joined(found, "obs"), joined(found, "new_obs")], axis=1).astype(int).tolist()
    ends = joined(found, "terminateds").tolist()
    expected = [([0, t, 0, t + 1], t == 3) for t in range(4)] + [([1, t, 1, t + 1], False) for t in range(2)]
    assert sorted(zip(rows, ends, strict=True)) == expected
    nothing = {"input_read_method_kwargs": {"where": "length = 1"}}
    with pytest.raises(InvalidArgumentError, match="next observation was recorded"):
        batches(configured("bc", made, offline=nothing), monkeypatch)


def test_sampled_actions_are_taken_as_they_are(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded output that is mapped to `actions` takes the place of the environment's actions."""
    schema = {"actions": "policy.logp"}
    found = batches(configured("bc", store, offline={"input_read_schema": schema}), monkeypatch)
    steps, actions = joined(found, "obs")[:, 1], joined(found, "actions").ravel()
    assert actions.tolist() == (-steps).tolist()


def test_other_columns_can_be_the_rewards(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output or an annotation that is mapped to `rewards` is what learners and their value targets get."""
    copied = store.copy(tmp_path / "copy")
    keys = ["episode_id", "t"]
    doubled = copied.transitions.select(*keys, doubled=(pl.col("reward") * 2).cast(pl.Int64))
    copied.annotate(doubled, on=keys)
    copied.refresh()
    for column, expected in (("doubled", lambda t: 2.0 * (t + 1)), ("policy.logp", lambda t: -t)):
        options = {"input_read_schema": {"rewards": column, "obs": "observation"}}
        found = batches(configured("marwil", copied, gamma=GAMMA, offline=options), monkeypatch)
        mask = joined(found, "loss_mask")
        steps, rewards = joined(found, "obs")[mask][:, 1], joined(found, "rewards")[mask]
        assert rewards.tolist() == [expected(t) for t in steps.tolist()]
        ends = joined(found, "terminateds")[mask]
        targets = joined(found, "value_targets")[mask]
        assert np.allclose(targets[ends], rewards[ends]) and ends.sum() == len(LENGTHS[::2])


def test_outputs_with_names_of_columns_replace_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded outputs that are called as columns of RLlib are left out, or named by the user."""
    box = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    made = el.create(tmp_path / "store", observation_space=box, action_space=gymnasium.spaces.Discrete(3))
    names = ["actions", "infos", "n_step", "rewards", "weights", "obs", "t", "kept"]
    with made.writer() as writer:
        writer.write_episode(
            observations=np.zeros((4, 2), np.float32),
            actions=[0, 1, 2],
            rewards=np.ones(3),
            terminations=True,
            truncations=False,
            policy={name: np.full(3, 7.0) for name in names},
        )
    options = {"input_read_schema": {"mine": "policy.actions"}}
    for offline in ({}, options):
        (batch,) = batches(configured("bc", made, offline=offline), monkeypatch)
        assert sorted(batch["default_policy/actions"].tolist()) == [0, 1, 2]
        assert set(batch["default_policy/rewards"].tolist()) == {1.0}
        assert batch["default_policy/obs"].shape == (3, 2)
        assert set(batch["default_policy/kept"].tolist()) == {7.0}
        assert not {f"default_policy/{name}" for name in ("n_step", "weights", "t")} & batch.keys()
        assert ("default_policy/mine" in batch) == bool(offline)
    chosen = {"input_read_method_kwargs": {"extra_model_outputs": ["actions"]}}
    with pytest.raises(InvalidArgumentError, match="column of RLlib"):
        batches(configured("bc", made, offline=chosen), monkeypatch)


@pytest.mark.parametrize("recorded", [False, True])
def test_sequences_of_stateful_modules(
    store: el.EpisodeStore, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An LSTM gets sequences of `max_seq_len` steps, from zeros or from the recorded states."""
    config = configured(
        "bc",
        store,
        offline={
            "prelearner_use_recorded_module_states": recorded,
            "input_read_schema": {"state_out": "policy.state"},
        },
    )
    config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5})
    found = batches(config, monkeypatch)
    observations, mask = joined(found, "obs"), joined(found, "loss_mask")
    states = joined(found, "state_in/h"), joined(found, "state_in/c")
    assert observations.shape == (sum(-(-length // 5) for length in LENGTHS), 5, 2)
    assert mask.sum() == sum(LENGTHS)
    for sequence, valid, hidden, cell in zip(observations, mask, *states, strict=True):
        number, t = sequence[0].astype(int).tolist()
        count = int(valid.sum())
        assert sequence[:count].tolist() == [[number, t + k] for k in range(count)]
        assert count == min(5, LENGTHS[number] - t)
        # The state before step t is the one that came out of step t - 1.
        expected = float(t - 1) if recorded and t else 0.0
        assert hidden.tolist() == [[expected] * 4] and cell.tolist() == [[-expected] * 4]


def test_chunks_have_lookback_and_recorded_outputs(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of long episodes begin where they should, and connectors can look back into earlier steps."""
    from episodelake.integrations.rllib import StorePreLearner

    chunks = []

    class Watching(StorePreLearner):
        def episodes(self, episodes: list[Any]) -> list[Any]:
            chunks.extend(episodes)
            return episodes

    options = {"chunk_length": 5, "extra_model_outputs": ["logp"], "infos": True, "where": "length > 5"}
    config = configured(
        "bc", store, offline={"prelearner_class": Watching, "input_read_method_kwargs": options}
    )
    config.episode_lookback_horizon = 2
    config.offline_data(input_read_schema={"action_logp": "logp"})
    logps = joined(batches(config, monkeypatch), "action_logp")
    assert sorted(logps.tolist()) == sorted(-float(t) for length in (7, 12) for t in range(length))
    places = [(int(chunk.get_observations(0)[0]), chunk.t_started, len(chunk)) for chunk in chunks]
    assert sorted(places) == [(0, 0, 5), (0, 5, 2), (2, 0, 5), (2, 5, 5), (2, 10, 2)]
    for chunk, (number, start, count) in zip(chunks, places, strict=True):
        back = chunk.get_observations(slice(-2, 0), neg_index_as_lookback=True, fill=0.0)
        expected = [[number, start - 2], [number, start - 1]] if start else [[0, 0], [0, 0]]
        assert back.tolist() == expected
        assert chunk.is_done == (start + count == LENGTHS[number])
        assert chunk.get_infos(-1) == {} and chunk.t == start + count


def test_only_chosen_modules_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents train the module that they are mapped to; a module with fewer rows gets some of them twice."""
    box, choice = gymnasium.spaces.Box(-9, 99, (2,), np.float32), gymnasium.spaces.Discrete(3)
    agents = {"a": "walkers", "b": "walkers", "c": "fliers"}
    env = leaving_env({"a": 6, "b": 4, "c": 3}, box, choice)
    with el.create(tmp_path / "team", env).record(env) as recorder:
        recorder.reset(seed=0)
        while recorder.agents:
            recorder.step(dict.fromkeys(recorder.agents, 1))
    store = el.open(tmp_path / "team")

    def config(trained: list[str]) -> Any:
        from ray.rllib.algorithms.bc import BCConfig
        from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec

        from episodelake.integrations.rllib import StoreOfflineData

        found = BCConfig().environment(
            observation_space=gymnasium.spaces.Dict(dict.fromkeys(agents, box)),
            action_space=gymnasium.spaces.Dict(dict.fromkeys(agents, choice)),
        )
        found.offline_data(
            input_=[str(store.path)], offline_data_class=StoreOfflineData, dataset_num_iters_per_learner=1
        )
        found.multi_agent(
            policies={"walkers", "fliers"},
            policy_mapping_fn=lambda agent, episode, **_: agents[agent],
            policies_to_train=trained,
        )
        default = BCConfig().get_default_rl_module_spec().module_class
        spec = RLModuleSpec(module_class=default, observation_space=box, action_space=choice, model_config={})
        return found.rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={"walkers": spec, "fliers": spec})
        )

    both = batches(config(["walkers", "fliers"]), monkeypatch)
    walked, flown = (joined(both, "obs", name).tolist() for name in ("walkers", "fliers"))
    assert sorted(walked) == sorted([agent, t] for agent, n in ((0, 6), (1, 4)) for t in range(n))
    assert len(flown) == 10 and {tuple(row) for row in flown} == {(2, t) for t in range(3)}
    assert {name.split("/")[0] for batch in batches(config(["fliers"]), monkeypatch) for name in batch} == {
        "fliers"
    }
    with pytest.raises(InvalidArgumentError, match="policies_to_train"):
        batches(config(["swimmers"]), monkeypatch)


def leaving_env(lengths: Mapping[str, int], box: gymnasium.Space, choice: gymnasium.Space) -> Any:
    """A PettingZoo environment whose agents leave one after the other: observation [number of agent, t]."""
    from pettingzoo import ParallelEnv

    class Leaving(ParallelEnv):
        metadata: ClassVar[dict[str, Any]] = {"name": "leaving", "render_modes": []}
        possible_agents: ClassVar[list[str]] = list(lengths)

        def observation_space(self, agent: str) -> gymnasium.Space:
            return box

        def action_space(self, agent: str) -> gymnasium.Space:
            return choice

        def seen(self) -> dict[str, np.ndarray]:
            return {name: np.array([list(lengths).index(name), self.t], np.float32) for name in self.agents}

        def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
            self.agents, self.t = list(lengths), 0
            return self.seen(), {name: {} for name in self.agents}

        def step(self, actions: dict[str, int]) -> tuple[dict, ...]:
            self.t += 1
            ended = {name: self.t == lengths[name] for name in self.agents}
            seen, none = self.seen(), dict.fromkeys(self.agents, False)
            infos: dict[str, dict] = {name: {} for name in self.agents}
            rewards = dict.fromkeys(self.agents, 1.0)
            self.agents = [name for name in self.agents if not ended[name]]
            return seen, rewards, ended, none, infos

    return Leaving()


@pytest.mark.parametrize(
    ("offline", "message"),
    [
        ({"input_read_method_kwargs": {"where": "length > 100"}}, "none of which"),
        ({"input_read_method_kwargs": {"chunk_length": 0}}, "chunk_length=0: expected .* from 1 on"),
        ({"input_read_method_kwargs": {"extra_model_outputs": ["nothing"]}}, "'nothing'"),
        ({"input_read_method_kwargs": {"wher": "length > 1"}}, "'wher'. Did you mean where"),
        ({"input_read_method_kwargs": {"infos": "yes"}}, "infos"),
        ({"input_read_schema": {"rewards": "info.shaped"}}, "'info.shaped'"),
        ({"input_read_schema": {"rewards": "policy.state"}}, "no single number"),
        ({"input_read_schema": {"action_logp": "policy.no_such"}}, "'no_such'"),
        ({"input_read_schema": {"obs": "policy.logp"}}, "'obs' comes from the store alone"),
        ({"input_read_schema": {"new_obs": "observation"}}, "'new_obs' comes from the store alone"),
        ({"input_read_method_kwargs": {"storage_options": {"aws_region": "x"}}}, "object stores"),
        ({"materialize_data": True}, "materialize_data"),
        ({"input_read_episodes": True, "shuffle_buffer_size": 3}, "input_read_episodes, shuffle_buffer_size"),
        ({"prelearner_buffer_kwargs": {"capacity": 9, "alpha": 1}}, "other than 'capacity'"),
    ],
)
def test_wrong_options_are_named(
    store: el.EpisodeStore, offline: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option that leaves nothing to train from raises an error that names it."""
    with pytest.raises(InvalidArgumentError, match=message):
        batches(configured("bc", store, offline=offline), monkeypatch)


def test_other_prelearners_are_refused(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pre-learner of RLlib, which reads rows, is refused before anything is read."""
    from ray.rllib.offline.offline_prelearner import OfflinePreLearner

    config = configured("bc", store, offline={"prelearner_class": OfflinePreLearner})
    with pytest.raises(InvalidArgumentError, match="StorePreLearner"):
        batches(config, monkeypatch)
