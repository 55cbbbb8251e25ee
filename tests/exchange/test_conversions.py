"""Episodes of a view as objects of other libraries, each against a plain loop over the episodes.

The libraries of the test extra are tested here; tests/exchange/test_conversion_peers.py has the others.
"""

from __future__ import annotations

import gc
from pathlib import Path

import gymnasium
import numpy as np
import pandas as pd
import pytest
import torch

import episodelake as el
from plain_transitions import plain_transitions, tree_equal, written_store


@pytest.fixture(params=["box", "dict"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> el.EpisodeStore:
    """Five episodes, one for each way to end and one with a single transition."""
    return written_store(tmp_path / "store", request.param)


def test_pandas_has_the_rows_of_polars(store: el.EpisodeStore) -> None:
    """Every table; with Arrow's types an action that is NULL in row T stays an integer."""
    for table in ("transitions", "steps", "episodes", "runs"):
        frame = store[1:4].to.pandas(table)
        assert isinstance(frame, pd.DataFrame)
        expected = getattr(store[1:4], table).collect()
        assert list(frame.columns) == expected.columns and list(frame.index) == list(range(len(expected)))
        for name, values in expected.to_dict(as_series=False).items():
            for found, value in zip(frame[name], values, strict=True):
                assert pd.isna(found) if value is None else np.array_equal(found, value), name
    frame = store.to.pandas("steps", arrow=True)
    expected = store.steps.collect()["action"].to_list()
    assert [None if found is pd.NA else found for found in frame["action"]] == expected
    assert frame["terminated"].isna().sum() == len(store)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"table='rows' is unknown"):
        store.to.pandas("rows")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:A TensorDict of transitions:RuntimeWarning")
def test_a_tensordict_has_the_layout_of_torchrl(store: el.EpisodeStore) -> None:
    """The outcome of each transition stands under "next", and every episode ends with `done`."""
    found = store.to.torchrl()
    rows = plain_transitions(store)
    assert found.batch_size == torch.Size([len(rows)])
    for index, row in enumerate(rows):
        assert tree_equal(found["observation"][index], row["observation"])
        assert tree_equal(found["next", "observation"][index], row["next_observation"])
        assert tree_equal(found["action"][index], row["action"])
        assert found["next", "reward"][index].tolist() == [np.float32(row["reward"])]
        for flag in ("done", "terminated", "truncated"):
            assert found["next", flag][index].tolist() == [row[flag]]
            assert found[flag][index].tolist() == [False]
        assert found["collector", "traj_ids"][index] == row["episode"]
    assert found["next", "reward"].dtype == torch.float32
    found["next", "reward"].zero_()
    assert store[0].rewards.any()


def test_losses_are_a_warning_at_the_call(tmp_path: Path) -> None:
    """It counts columns by episodes, and ends without a flag; without losses there is none."""
    store = written_store(tmp_path / "store", "box")
    with pytest.warns(RuntimeWarning) as caught:
        store.to.torchrl()
    (warning,) = [each for each in caught if each.category is RuntimeWarning]
    assert warning.filename == __file__
    assert str(warning.message) == (
        "A TensorDict of transitions does not hold: the column info.cost (5); the column policy.value (5); "
        "that an episode was cut, not truncated (2)."
    )
    quiet = el.create(
        tmp_path / "quiet", observation_space=store.observation_space, action_space=store.action_space
    )
    with quiet.writer() as writer:
        episode = store[0]
        writer.write_episode(
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=True,
            truncations=False,
        )
    assert len(quiet.refresh().to.torchrl()) == episode.length


def test_what_cannot_be_converted_is_told(tmp_path: Path) -> None:
    """Several agents, and a view without episodes."""
    store = written_store(tmp_path / "store", "box")
    with pytest.raises(el.errors.InvalidArgumentError, match="the view is empty"):
        store[:0].to.torchrl()
    pair = store.observation_space, store.action_space
    team = el.create(tmp_path / "team", agents={"a": pair, "b": pair})
    with pytest.raises(el.errors.DatasetError, match="the store has the agents a, b"):
        team.to.torchrl()
    assert len(team.to.pandas()) == 0


@pytest.mark.filterwarnings("ignore:A MinariDataset does not hold:RuntimeWarning")
def test_a_minari_dataset_lies_in_a_folder_of_its_own(store: el.EpisodeStore) -> None:
    """It has the episodes, and its folder goes with it."""
    dataset = store.to.minari()
    folder = Path(dataset.storage.data_path)
    for found, episode in zip(dataset.iterate_episodes(), store, strict=True):
        assert tree_equal(found.observations, episode.observations)
        for name in ("actions", "rewards", "terminations", "truncations"):
            assert np.array_equal(getattr(found, name), getattr(episode, name))
    assert folder.is_dir()
    del dataset
    gc.collect()
    assert not folder.exists()


def test_a_missing_next_observation_is_not_made_up(tmp_path: Path) -> None:
    """Its transition is left out, the one before ends the episode, and the warning counts it."""
    space = gymnasium.spaces.Discrete(9)
    store = el.create(tmp_path / "store", observation_space=space, action_space=space)
    with store.writer() as writer:
        for length in (3, 1):
            writer.write_episode(
                observations=np.arange(length),
                actions=np.arange(length),
                rewards=np.ones(length),
                terminations=True,
                truncations=False,
                last_observation="missing",
            )
    with pytest.warns(
        RuntimeWarning,
        match=r"is missing \(1\); an episode without a transition between two observations \(1\)",
    ):
        found = store.refresh().to.torchrl()
    assert found["next", "observation"].tolist() == [1, 2]
    assert found["next", "done"].flatten().tolist() == [False, True]
    assert found["next", "terminated"].flatten().tolist() == [False, False]
