"""Signals: the narrow parts of an episode, against the columns as Polars reads them from the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple

import episodelake as el
from agent_environments import Comings
from episodelake.readers.blocks import SegmentFile
from episodelake.readers.charts.signals import signal_columns, signals_of
from picture_stores import cartpole, scores
from plain_agents import play_parallel, random_policy


def from_files(store: el.EpisodeStore, episode: el.Episode) -> pl.DataFrame:
    """The rows of an episode, read by Polars from the Parquet files."""
    frame = pl.read_parquet(store.path / "steps" / "*.parquet").filter(pl.col("episode_id") == episode.id)
    return frame.sort("t")


def test_signals_are_the_columns_of_the_files(tmp_path: Path) -> None:
    """Reward, action and each number of the observation come in order, with T or T+1 values."""
    store = cartpole(tmp_path / "store")
    for episode in store:
        rows = from_files(store, episode)
        found = {signal.name: signal for signal in signals_of(episode)}
        assert list(found) == ["reward", "action", *(f"observation[{index}]" for index in range(4))]
        for name in ("reward", "action"):
            expected = rows[name].drop_nulls().cast(pl.Float64).to_numpy()
            np.testing.assert_array_equal(found[name].values, expected)
            assert found[name].t.tolist() == list(range(episode.length))
        for index in range(4):
            expected = rows["observation"].list.get(index).cast(pl.Float64).to_numpy()
            np.testing.assert_array_equal(found[f"observation[{index}]"].values, expected)


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """A store with images, texts, a wide vector, and infos and policy outputs that come and go."""
    observation = Dict(
        camera=Box(0, 255, (9, 9, 3), np.uint8),
        word=Text(9),
        wide=Box(-1, 1, (9,), np.float32),
        place=Box(-1, 1, (2, 2), np.float64),
    )
    action = Tuple([Discrete(3, start=-1), MultiBinary(2)])
    store = el.create(
        tmp_path_factory.mktemp("nested") / "store", observation_space=observation, action_space=action
    )
    observation.seed(0)
    action.seed(0)
    with store.writer(run="nested") as writer:
        episode = writer.begin(observation.sample(), info={"speed": 1.5, "note": "x"})
        for t in range(4):
            episode.append(
                action.sample(),
                [0.0, np.nan, np.inf, 2.0][t],
                observation.sample(),
                terminated=t == 3,
                truncated=False,
                info={"speed": float(t)} if t != 1 else {},
                policy={"value": np.array([t, -t], np.float32)},
            )
        episode.end()
    return store.refresh()


def test_only_narrow_numbers_are_signals(nested: el.EpisodeStore) -> None:
    """Images, texts and wide vectors give none; parts of nested spaces give one each."""
    names = [signal.name for signal in signals_of(nested[0])]
    place = [f"observation.place[{index}]" for index in range(4)]
    assert names == ["reward", "action.0", "action.1[0]", "action.1[1]", *place]


def test_values_that_are_not_finite_stay(nested: el.EpisodeStore) -> None:
    """NaN and inf are what was recorded, and booleans become 0 and 1."""
    found = {signal.name: signal.values for signal in signals_of(nested[0])}
    np.testing.assert_array_equal(found["reward"], [0.0, np.nan, np.inf, 2.0])
    np.testing.assert_array_equal(found["action.1[1]"], nested[0].actions[1][:, 1].astype(float))


def test_infos_and_policy_outputs_are_signals_if_asked_for(nested: el.EpisodeStore) -> None:
    """An absent info is NaN, a policy output stands on the transitions, and texts are left out."""
    found = {signal.name: signal for signal in signals_of(nested[0], ["info", "policy"])}
    assert list(found) == ["info.speed", "policy.value[0]", "policy.value[1]"]
    np.testing.assert_array_equal(found["info.speed"].values, [1.5, 0.0, np.nan, 2.0, 3.0])
    np.testing.assert_array_equal(found["policy.value[1]"].values, [0, -1, -2, -3])


def test_a_single_column_can_be_named(nested: el.EpisodeStore) -> None:
    """A root may be the whole name of a column, in the order in which they are named, each once."""
    found = signals_of(nested[0], ["observation.place", "reward", "observation"])
    assert [signal.column for signal in found] == ["observation.place"] * 4 + ["reward"]


def test_numbers_of_wide_columns_can_be_named(nested: el.EpisodeStore) -> None:
    """Some numbers of a column are signals however wide it is; those that it does not have are none."""
    rows = from_files(nested, nested[0])
    roots = ["observation.wide[7:]", "observation.wide[2]", "policy.value[1:9]"]
    found = {signal.name: signal.values for signal in signals_of(nested[0], roots)}
    assert list(found) == [*(f"observation.wide[{index}]" for index in (2, 7, 8)), "policy.value[1]"]
    for index in (2, 7, 8):
        expected = rows["observation.wide"].list.get(index).cast(pl.Float64).to_numpy()
        np.testing.assert_array_equal(found[f"observation.wide[{index}]"], expected)
    assert signals_of(nested[0], ["observation.wide[9]", "observation.camera[0]", "reward[0]x"]) == []
    assert len(signals_of(nested[0], ["observation.wide"], widest=9)) == 9


def test_columns_that_may_be_signals(nested: el.EpisodeStore) -> None:
    """Images and texts are none of them; wide vectors, infos and policy outputs are."""
    assert signal_columns(nested[0]) == [
        *("reward", "action.0", "action.1", "observation.wide", "observation.place"),
        *("info.speed", "policy.value"),
    ]


def test_images_are_not_read(nested: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for the signals of an episode of images reads no image."""
    asked: set[str] = set()
    read = SegmentFile.read

    def noted(self: SegmentFile, groups: object, columns: object, **options: object) -> object:
        names = list(columns)  # type: ignore[call-overload]
        asked.update(names)
        return read(self, groups, names, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentFile, "read", noted)
    # Opened anew: the blocks of a snapshot stay in memory.
    assert signals_of(el.open(nested.path)[0])
    assert "reward" in asked
    assert not {"observation.camera", "observation.wide", "observation.word"} & asked


def test_agents_have_signals_over_the_steps_of_the_environment(tmp_path: Path) -> None:
    """Each agent's own columns, from the step at which it came; the whole episode has those of all."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        play_parallel(recorder, random_policy(env, 0), 0)
    episode = store.refresh()[0]
    whole = {signal.name: signal for signal in signals_of(episode)}
    for name in episode.agents:
        agent = episode.agent(name)
        own = {signal.name: signal for signal in signals_of(agent)}
        np.testing.assert_array_equal(own["reward"].values, agent.rewards)
        np.testing.assert_array_equal(own["reward"].t, agent.env_steps[: agent.length])
        for each, signal in own.items():
            np.testing.assert_array_equal(whole[f"{name}: {each}"].values, signal.values)
    scouts = [signal.name for signal in signals_of(episode.agent("scout_0"))]
    assert scouts == ["reward", "scout.action", "scout.observation[0]", "scout.observation[1]"]
    assert not any("view" in name for name in whole)


def test_objectives_are_signals(tmp_path: Path) -> None:
    """A vector reward gives a signal for each objective."""
    store = el.create(
        tmp_path / "store", observation_space=Discrete(3), action_space=Discrete(3), reward_shape=(2,)
    )
    with store.writer(run="two") as writer:
        writer.write_episode(
            observations=np.array([0, 1, 2]),
            actions=np.array([1, 1]),
            rewards=np.array([[1.0, -1.0], [2.0, -2.0]]),
            terminations=True,
            truncations=False,
        )
    found = {signal.name: signal.values.tolist() for signal in signals_of(store.refresh()[0])}
    assert found == {"reward[0]": [1, 2], "reward[1]": [-1, -2], "action": [1, 1], "observation": [0, 1, 2]}


def test_episodes_that_share_a_row_group_keep_to_their_rows(tmp_path: Path) -> None:
    """Signals of an episode of an iteration are those of the same episode by itself."""
    store = scores(tmp_path / "store", {"a": [1.0, 2.0, 3.0], "b": [4.0]})
    for position, episode in enumerate(store):
        for one, other in zip(signals_of(episode), signals_of(store[position]), strict=True):
            np.testing.assert_array_equal(one.values, other.values)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Signals of a damaged file raise the error that names it."""
    store = cartpole(tmp_path / "store", range(1))
    (file,) = (store.path / "steps").glob("*.parquet")
    file.write_bytes(b"PAR1" + bytes(file.stat().st_size - 8) + b"PAR1")
    with pytest.raises(el.errors.CorruptStoreError, match=file.name):
        signals_of(el.open(store.path)[0])
