"""The recorder of one environment: what `test_recorder_contract.py` does not have, against a plain loop."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics

import episodelake as el
from nasty_environments import (
    ODD_INFOS,
    ReusedBuffers,
    Rollout,
    SameStep,
    SmallEnv,
    WrongAt,
    assert_recorded,
    new_store,
    play,
    same_info,
    seeds,
)

PUSH = np.zeros(2, np.float32)


def assert_all_recorded(
    store: el.EpisodeStore, plain: list[Rollout], env: gym.Env, reasons: list[str] | None = None
) -> None:
    """Fail unless the store holds exactly these episodes, in this order."""
    assert len(store) == len(plain)
    for episode, rollout, reason in itertools.zip_longest(store, plain, reasons or []):
        assert_recorded(episode, rollout, env, reason)


def test_the_environment_gets_the_very_action_of_the_caller(tmp_path: Path) -> None:
    """An action that the environment overwrites is overwritten for the caller too, and recorded as it was."""
    env = ReusedBuffers()
    store = new_store(tmp_path, env)
    action = np.array([0.25, 0.5], np.float32)
    with store.record(env) as recorder:
        recorder.reset(seed=1)
        recorder.step(action)
    assert action.tolist() == [-777.0, -777.0]
    assert store.refresh()[0].actions.tolist() == [[0.25, 0.5]]


def test_infos_that_hold_iterators_or_themselves_are_recorded(tmp_path: Path) -> None:
    """An iterator is not used up; an info in itself, or nested very deeply, costs no other key."""
    info: dict[str, Any] = {"before": 1, "deep": [], "iterator": iter([1, 2, 3])}
    info["self"] = info
    for _ in range(3000):
        info["deep"] = [info["deep"]]
    env = WrongAt(info, "info", 2)
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset()
        recorder.step(PUSH)
        recorder.step(PUSH)
    episode = store.refresh()[0]
    assert list(info["iterator"]) == [1, 2, 3]
    assert episode.infos[2]["before"] == 1 and episode.infos[2].keys() == info.keys()


def test_a_run_may_have_any_name(tmp_path: Path) -> None:
    """Any text is a name for a run or is refused; no file lands outside the store."""
    env, names = SmallEnv(), ["", "a/b", "../up", "a b", "größe", "x" * 300, ".", "con:*?", "a\nb", "%2F"]
    store = new_store(tmp_path, env)
    plain: list[Rollout] = []
    for seed, name in enumerate(names):
        with contextlib.suppress(el.EpisodelakeError), store.record(env, run=name) as recorder:
            plain += play(recorder, seeds(seed))
    assert_all_recorded(store.refresh(), plain, env)
    assert [store[episode.id].seed for episode in store] == [episode.seed for episode in store]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_same_step_mode_keeps_infos_of_wrappers_with_the_episode_they_describe(tmp_path: Path) -> None:
    """Gymnasium's statistics stand on the last row; a step callback sees them there too."""
    seen: list[Any] = []
    for number, callback in enumerate((None, lambda step: seen.append((step.t, step.info.get("episode"))))):
        env = RecordEpisodeStatistics(SameStep(3))
        store = el.create(tmp_path / str(number), env)
        with store.record(env, step_callback=callback) as recorder:
            recorder.reset(seed=1)
            for _ in range(6):
                recorder.step(PUSH)
        assert len(store.refresh()) == 2
        for episode in store:
            assert ["episode" in info for info in episode.infos] == [False] * 3 + [True]
            assert [info["t"] for info in episode.infos] == [0, 1, 2, 3]
    assert [t for t, told in seen if told is not None] == [3, 3]


def test_an_extra_column_cannot_take_the_name_of_another(tmp_path: Path) -> None:
    """An extra column that is called like one of the store's is kept apart or refused, and spoils nothing."""
    plain = play(SmallEnv(2), seeds(1))
    names: tuple[Any, ...] = ("observation", "t", "reward", "episode_id", "info.t", "T", "Reward", "policy.x")
    for place, name in enumerate((*names, "", 1)):
        store = new_store(tmp_path / str(place), SmallEnv(2))
        try:
            with store.record(SmallEnv(2), step_callback=lambda step, name=name: {name: "mine"}) as recorder:
                play(recorder, seeds(1))
        except el.EpisodelakeError:
            assert len(store.refresh()) <= 1, name
            continue
        assert_all_recorded(store.refresh(), plain, SmallEnv(2))
        assert list(store[0].extra[str(name)]) == ["mine"] * 3, name


def test_metadata_may_be_anything(tmp_path: Path) -> None:
    """Every odd mapping is kept as metadata of an episode and of a run without an error."""
    env = SmallEnv(2)
    store = new_store(tmp_path, env)
    for odd in ODD_INFOS:
        with store.record(env, metadata=odd, episode_callback=lambda summary, odd=odd: odd) as recorder:
            play(recorder, seeds(1))
    for episode, odd in zip(store.refresh(), ODD_INFOS, strict=True):
        assert same_info(episode.metadata, odd), odd
    assert store.runs.collect().height == store.episodes.collect().height == len(ODD_INFOS)


def test_a_vector_environment_is_refused_clearly(tmp_path: Path) -> None:
    """A recorder of one environment takes no vector environment; the error names the recorder that does."""
    store = new_store(tmp_path, gym.make("CartPole-v1"))
    with pytest.raises(el.errors.InvalidArgumentError, match="VectorRecorder"):
        el.types.Recorder(gym.make_vec("CartPole-v1", num_envs=2), store)  # type: ignore[arg-type]
    assert el.recover(tmp_path / "store") == []


def test_a_step_is_not_recorded_twice(tmp_path: Path) -> None:
    """A recorder below a recorder of the same store is refused; of another store it is fine."""
    store = new_store(tmp_path, SmallEnv(3))
    with store.record(SmallEnv(3)) as recorder:
        between = gym.wrappers.TimeLimit(recorder, 10)
        for twice in (recorder, between):
            with pytest.raises(el.errors.InvalidArgumentError, match=r"recorded into .* already"):
                store.record(twice)
        with pytest.raises(el.errors.InvalidArgumentError, match="the recorder itself"):
            el.collect(between, None, store, steps=3)
        other = new_store(tmp_path / "other", SmallEnv(3))
        outer = other.record(between)
        play(outer, seeds(0))
        outer.close()
    assert len(other.refresh()) == len(store.refresh()) == 1
    store.record(recorder.env).close()
