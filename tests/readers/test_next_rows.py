"""What came with the next observation: infos and policy values of transitions, in loaders, SQL and Polars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import episodelake as el
from effort import looped

LENGTHS = (3, 1, 5, 4)
#: The keys under test, with the column whose next row they stand for.
NEXT = {"next_info.cost": "info.cost", "next_info.goal.x": "info.goal.x", "next_policy.value": "policy.value"}


class Costly(gymnasium.Env):
    """Returns the cost of each step in its info; the k-th episode ends after LENGTHS[k] steps."""

    observation_space = Dict({"state": Box(-99, 99, (2,), np.float32), "mode": Discrete(3)})
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.episode, self.t = -1, 0

    def _seen(self) -> dict[str, Any]:
        return {"state": np.array([self.episode, self.t], np.float32), "mode": self.t % 3}

    def _info(self) -> dict[str, Any]:
        return {"cost": 100.0 * self.episode + self.t, "goal": {"x": self.t}}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin the next episode."""
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), self._info()

    def step(self, action: int) -> Any:
        """Count."""
        self.t += 1
        return self._seen(), float(self.t), self.t == LENGTHS[self.episode], False, self._info()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Four episodes whose policy gave a value for every observation, the last ones included."""
    made = el.create(tmp_path_factory.mktemp("next") / "store", Costly())

    with made.record(Costly(), run="costly") as env:
        for number, length in enumerate(LENGTHS):
            env.reset()
            for t in range(length):
                env.log(value=number * 10.0 + t)
                env.step(1)
            env.log(value=number * 10.0 + length)
    return made.refresh()


def following(store: el.EpisodeStore, key: str) -> list[list[float]]:
    """For each episode the values that a key has, by a loop over the steps as they were recorded."""
    episodes = []
    for number, length in enumerate(LENGTHS):
        of_step = {
            "next_info.cost": lambda t, number=number: 100.0 * number + t,
            "next_info.goal.x": lambda t: t,
            "next_policy.value": lambda t, number=number: number * 10.0 + t,
        }[key]
        episodes.append([of_step(t + 1) for t in range(length)])
    return episodes


def test_presence_of_the_next_value(store: el.EpisodeStore) -> None:
    """A key that tells where the next row has a value belongs to the same row."""
    (batch,) = store.loader(99, columns=["next_policy.value_present", "policy.value_present"])
    assert batch["next_policy.value_present"].all() and batch["policy.value_present"].all()


@pytest.mark.sample
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("key", NEXT)
def test_sql_has_the_next_row(store: el.EpisodeStore, key: str, read_only: bool, some: bool) -> None:
    """In transitions_with_next and in transitions_of."""
    view = store.filter("length > 3") if some else store
    truth = [values for values in following(store, key) if len(values) > 3 or not some]
    flat = sorted(value for values in truth for value in values)
    found = view.query(f'select "{key}" as v from transitions_with_next order by v', read_only=read_only)
    assert found["v"].to_list() == flat
    one = view.query(f"select \"{key}\" as v from transitions_of('{view[-1].id}')", read_only=read_only)
    assert one["v"].to_list() == truth[-1]


@looped("key", [*NEXT, "next_observation.state"])
@looped("some", [False, True])
def test_polars_has_the_next_row(store: el.EpisodeStore, key: str, some: bool) -> None:
    """`transitions_with_next` of a store and of a view, also for the last transition of an episode."""
    view = store.filter(pl.col("length") > 3) if some else store
    found = view.transitions_with_next.select("episode_id", "t", key).collect()
    asked = view.query(f'select episode_id, t, "{key}" from transitions_with_next')
    assert found.sort("episode_id", "t").rows() == asked.sort("episode_id", "t").rows()
    assert found.height == sum(view.episodes.collect()["length"]) and not found[key].is_null().any()


def test_transitions_have_no_column_more(store: el.EpisodeStore) -> None:
    """What is not asked for costs nothing: the frame and the view have the columns of steps."""
    columns = store.steps.collect_schema().names()
    assert store.transitions.collect_schema().names() == columns
    assert store.query("from transitions limit 1").columns == columns


def test_parts_of_observations_are_loaded_alone(store: el.EpisodeStore) -> None:
    """A part of a Dict is what the whole observation has there: now, one row on, in deltas and episodes."""
    whole, parts = (
        next(iter(store.loader(99, columns=columns)))
        for columns in (["observation", "next_observation"], ["observation.state", "next_observation.mode"])
    )
    assert np.array_equal(parts["observation.state"], whole["observation"]["state"])
    assert np.array_equal(parts["next_observation.mode"], whole["next_observation"]["mode"])
    assert parts["observation.state"].dtype == np.float32

    (episodes,) = store.loader(9, el.Episodes(), columns=["observation.state", "length"])
    for number, episode in enumerate(el.unpadded(episodes)):
        assert np.array_equal(episode["observation.state"], store[number].observations["state"])

    (deltas,) = store.loader(99, el.Deltas({"observation.state": [1]}))
    assert np.array_equal(deltas["observation.state"][:, 0], whole["next_observation"]["state"])
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"no column 'observation.stat' .*observation.state"
    ):
        store.loader(9, columns=["observation.stat"])


def test_parts_are_treated_like_the_whole(store: el.EpisodeStore) -> None:
    """A transform or dtype of a part reaches the part of the next observation, beside the whole one too."""
    keys = ["observation", "observation.state", "next_observation.state"]
    (raw,) = store.loader(99, columns=keys)
    by = el.Normalize({"observation.state": (1.0, 2.0)})
    (batch,) = store.loader(99, columns=keys, transforms=[el.Cast("observation.state", "float64"), by])
    for key in keys[1:]:
        assert batch[key].dtype == np.float64 and np.allclose(batch[key], (raw[key] - 1) / 2)


def test_missing_values_are_no_integers(tmp_path: Path) -> None:
    """An info that some steps lack is NaN, and cannot be cast to an integer."""
    store = el.create(tmp_path / "store", Costly())
    seen = {"state": np.zeros((3, 2), np.float32), "mode": np.zeros(3, np.int64)}
    with store.writer() as writer:
        writer.write_episode(
            observations=seen, actions=[0, 0], rewards=[1.0, 1.0], terminations=True, truncations=False,
            infos=[{}, {"lives": 3.0}, {}],
        )  # fmt: skip
    keys = ["info.lives", "next_info.lives"]
    (batch,) = store.refresh().loader(9, columns=keys)
    assert np.array_equal([batch[key] for key in keys], [[np.nan, 3], [3, np.nan]], equal_nan=True)
    with pytest.raises(el.errors.InvalidArgumentError, match="missing"):
        list(store.loader(9, columns=keys, transforms=[el.Cast("next_info.lives", "int64")]))


def test_weights_may_be_an_array(store: el.EpisodeStore) -> None:
    """One number for each episode of the view; what cannot be weights is refused."""
    (batch,) = store.loader(99, weights=np.array([0, 0, 1, 0]), columns=["episode"])
    assert set(batch["episode"].tolist()) == {2}
    (batch,) = store[::-1].loader(99, weights=[0, 0, 0, 2.5], columns=["next_info.cost"])
    assert batch["next_info.cost"].max() < 100
    for wrong, told in (
        ([1, 2], r"shape \(2,\); expected \(4,\)"),
        ([1, 2, -1, 0], "position 2 is -1"),
        ([0, 0, 0, 0], "All weights are zero"),
        (["a", "b", "c", "d"], "expected 'steps'"),
        ("step", "expected 'steps'"),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match=told):
            store.loader(9, weights=wrong)  # type: ignore[arg-type]
    with pytest.raises(el.errors.InvalidArgumentError, match="followed"):
        store.loader(9, weights=[1, 1, 1, 1], follow=el.Follow())


def test_dtypes_are_those_asked_for(store: el.EpisodeStore) -> None:
    """Rewards as float32, n-step sums too, computed in float64; transforms of batches see them so."""
    seen: list[Any] = []

    def watch(batch: Any) -> Any:
        seen.append(batch["reward"].dtype)
        return batch

    (batch,) = store.loader(99, n_step=3, gamma=0.9, transforms=[el.Cast("reward", "float32"), watch])
    (exact,) = store.loader(99, n_step=3, gamma=0.9)
    assert batch["reward"].dtype == np.float32 and seen == [np.float32]
    assert np.array_equal(batch["reward"], exact["reward"].astype(np.float32))
    assert batch["observation"]["state"].dtype == np.float32
    for key, dtype in (("reward", "text"), ("rewards", "float32")):
        with pytest.raises(el.errors.InvalidArgumentError):
            list(store.loader(9, transforms=[el.Cast(key, dtype)]))
