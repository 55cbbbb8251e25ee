"""The recorder: every rule of recording that concerns one environment, against a plain loop over it."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import Autoreset, RecordEpisodeStatistics

import episodelake as el
from episodelake.store.common.compatibility import AutoresetMode
from nasty_environments import (
    ODD_INFOS,
    ChangingInfos,
    Fragile,
    Nested,
    NotNumbers,
    ReusedBuffers,
    Rollout,
    SameStep,
    SmallEnv,
    Speaker,
    TwoGoals,
    WrongAt,
    advance,
    assert_recorded,
    assert_same_play,
    new_store,
    play,
    same_info,
    seeds,
)
from strategies import same

PUSH = np.zeros(2, np.float32)
MAKERS: dict[str, Callable[[], gym.Env]] = {
    "small": SmallEnv,
    "truncated": lambda: SmallEnv(3, "truncated"),
    "both flags at once": lambda: SmallEnv(3, "terminated and truncated"),
    "one step": lambda: SmallEnv(1),
    "reused buffers": ReusedBuffers,
    "unicode text": Speaker,
    "nested spaces": Nested,
    "not numbers": NotNumbers,
    "changing infos": lambda: ChangingInfos(2 * len(ODD_INFOS)),
}


def recorded(
    folder: Path, env: gym.Env, resets: list[dict[str, Any]], limit: int | None = None, **options: Any
) -> tuple[el.EpisodeStore, list[Rollout]]:
    """Play an environment through a recorder; return the store and what the caller of the recorder saw."""
    store = new_store(folder, env)
    with store.record(env, **options) as recorder:
        rollouts = play(recorder, resets, limit)
    return store.refresh(), rollouts


def assert_all_recorded(
    store: el.EpisodeStore, plain: list[Rollout], env: gym.Env, reasons: list[str] | None = None
) -> None:
    """Fail unless the store holds exactly these episodes, in this order."""
    assert len(store) == len(plain)
    for episode, rollout, reason in itertools.zip_longest(store, plain, reasons or []):
        assert_recorded(episode, rollout, env, reason)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MAKERS)
def test_every_environment_is_recorded_as_a_plain_loop_sees_it(tmp_path: Path, name: str) -> None:
    """T+1 observations and infos, unclipped actions, rewards and flags are those of a plain loop."""
    make = MAKERS[name]
    plain = play(make(), seeds(1, None, 2))
    store, _ = recorded(tmp_path, make(), seeds(1, None, 2))
    assert_all_recorded(store, plain, make())


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MAKERS)
def test_recording_changes_nothing_for_the_caller(tmp_path: Path, name: str) -> None:
    """The caller of a recorder gets what the caller of the bare environment gets."""
    make = MAKERS[name]
    _, ours = recorded(tmp_path, make(), seeds(1, None, 2))
    assert_same_play(ours, play(make(), seeds(1, None, 2)))


def test_the_caller_gets_the_very_objects_of_the_environment(tmp_path: Path) -> None:
    """Observation, reward, flags and info pass through a recorder without being replaced by copies."""
    env = ReusedBuffers(2)
    with new_store(tmp_path, env).record(env) as recorder:
        calls = [recorder.reset, *[lambda: recorder.step(PUSH.copy())] * 2]
        for call in calls:
            assert all(ours is theirs for ours, theirs in zip(call(), env.returned, strict=True))


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


def test_an_iterator_in_an_info_is_not_used_up(tmp_path: Path) -> None:
    """Recording an info does not consume an iterator in it, nor ask a default dictionary for its keys."""
    env = WrongAt({"iterator": iter([1, 2, 3])}, "info", 1)
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset()
        info = recorder.step(PUSH)[-1]
    assert list(info["iterator"]) == [1, 2, 3]
    assert store.refresh()[0].infos[1].keys() == {"iterator"}


def test_an_info_that_holds_itself_is_recorded(tmp_path: Path) -> None:
    """An info that refers to itself, or is nested very deeply, neither raises nor costs the other keys."""
    info: dict[str, Any] = {"before": 1, "deep": []}
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
    assert episode.infos[2]["before"] == 1
    assert episode.infos[2].keys() == info.keys()


def test_infos_of_all_kinds_leave_the_tables_readable(tmp_path: Path) -> None:
    """With every odd info recorded, Polars and DuckDB still read each column of the steps."""
    store, _ = recorded(tmp_path, ChangingInfos(2 * len(ODD_INFOS)), seeds(1, 2))
    rows = 2 * (2 * len(ODD_INFOS) + 1)
    assert store.steps.collect().height == rows
    assert store.sql("select * from steps").pl().height == rows
    names = [name.lower() for name in store.steps.collect_schema().names()]
    assert len(names) == len(set(names))


@pytest.mark.sample(1)
@pytest.mark.parametrize("flipped", [False, True])
def test_a_key_may_change_its_type_between_segments(tmp_path: Path, flipped: bool) -> None:
    """A key whose type contradicts the column that an earlier run committed comes back as it was recorded."""
    values = [1, "one", 1.5, [1], np.ones(2), {"a": 1}, True, None, 2**70, [None], b"x"]
    values = values[::-1] if flipped else values
    store = new_store(tmp_path, SmallEnv())
    for value in values:
        with store.record(WrongAt({"key": value, "Key": value}, "info", 1)) as recorder:
            play(recorder, seeds(1))
    for episode, value in zip(store.refresh(), values, strict=True):
        assert same_info(episode.infos[1], {"key": value, "Key": value})
        assert episode.infos[0] == {"t": 0}


@pytest.mark.parametrize("name", ["both", "1 and text"])
def test_keys_that_print_alike_are_both_kept(tmp_path: Path, name: str) -> None:
    """Two keys of an info that look the same as text do not overwrite one another."""
    info = {"both": {"a.b": 1, "a": {"b": 2}, "a%2Eb": 3}, "1 and text": {1: "number", "1": "text"}}[name]
    env = WrongAt(info, "info", 1)
    store, _ = recorded(tmp_path, env, seeds(1), 2)
    assert len(store[0].infos[1]) == len(info)


@pytest.mark.parametrize(
    "length",
    [
        33_000,
        pytest.param(70_000, marks=pytest.mark.further),
        pytest.param(200_000, marks=pytest.mark.slow),
    ],
)
def test_long_episodes_are_whole(tmp_path: Path, length: int) -> None:
    """An episode of tens and hundreds of thousands of steps comes back whole and in order."""
    store, plain = recorded(tmp_path, SmallEnv(length), seeds(4))
    assert_recorded(store[0], plain[0], SmallEnv())
    assert store[0].observations[:, 0].tolist() == list(range(length + 1))
    count, unique, last = store.sql("select count(*), count(distinct t), max(t) from steps").fetchall()[0]
    assert (count, unique, last) == (length + 1, length + 1, length)


def test_vector_rewards_are_kept_apart(tmp_path: Path) -> None:
    """With a reward shape, each step keeps a copy of its rewards and the return is a list of sums."""
    env = TwoGoals(4)
    store = new_store(tmp_path, env, reward_shape=(2,))
    with store.record(env) as recorder:
        play(recorder, seeds(1))
    episode = store.refresh()[0]
    plain = play(TwoGoals(4), seeds(1))[0]
    assert same(episode.rewards, np.array(plain.rewards))
    assert isinstance(episode.episode_return, list)
    assert episode.episode_return == pytest.approx([10.0, -10 / 3])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "reward", [np.float32(0.1), 3, np.int64(-7), True, np.bool_(True), np.array(0.5), -0.0]
)
def test_rewards_of_every_number_type_are_recorded(tmp_path: Path, reward: Any) -> None:
    """A reward may be any single number and comes back as its float64."""
    store, _ = recorded(tmp_path, WrongAt(reward, "reward", 1), seeds(1), 1)
    assert same(store[0].rewards, np.array([float(reward)]))


def test_actions_are_recorded_unclipped(tmp_path: Path) -> None:
    """An action outside the bounds of the space is recorded as it was handed over."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    actions = np.array([[5.0, -1e30], [np.nan, np.inf], [0.0, -0.0]], np.float32)
    with store.record(env) as recorder:
        recorder.reset()
        for action in actions:
            recorder.step(action)
    assert same(store.refresh()[0].actions, actions)


def test_an_action_out_of_the_range_of_a_discrete_space_is_recorded(tmp_path: Path) -> None:
    """A discrete action that the space does not contain, but has its structure, is kept as it is."""
    env = SmallEnv(action_space=spaces.Discrete(2))
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset()
        for action in (0, 7, -3, np.int64(1), np.uint8(200)):
            recorder.step(action)
    assert store.refresh()[0].actions.tolist() == [0, 7, -3, 1, 200]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**63 - 1, 2**63, 2**64, 2**80, 2**200 + 1])
def test_the_seed_of_a_reset_comes_back_exactly(tmp_path: Path, seed: int) -> None:
    """A seed passed to `reset` is kept exactly, however wide, and 0 is a seed like any other."""
    store, _ = recorded(tmp_path, SmallEnv(), seeds(seed, None))
    assert [episode.seed for episode in store] == [seed, None]
    assert type(store[0].seed) is int


def test_a_seed_may_be_a_numpy_integer(tmp_path: Path) -> None:
    """A seed that is a numpy integer reads back as a plain int."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        play(recorder, [{"seed": int(np.int64(5))}])
    assert store.refresh()[0].seed == 5


def test_an_unseeded_first_reset_keeps_the_seed_that_the_environment_drew(tmp_path: Path) -> None:
    """Without a seed the first episode has the environment's own, which plays it again."""
    store, plain = recorded(tmp_path, SmallEnv(), seeds(None, None))
    first, second = store
    assert isinstance(first.seed, int)
    again = play(SmallEnv(), seeds(first.seed))
    assert same(first.observations, np.array(again[0].observations))
    assert second.seed is None
    assert not same(second.observations, np.array(plain[0].observations))


def test_a_generator_of_unknown_seed_gives_no_seed(tmp_path: Path) -> None:
    """An environment whose generator was set by hand has no known seed, so NULL is kept."""
    env = SmallEnv()
    env.np_random = np.random.default_rng(3)
    store, _ = recorded(tmp_path, env, seeds(None))
    assert store[0].seed is None


def test_an_environment_used_before_gives_no_seed_that_does_not_replay(tmp_path: Path) -> None:
    """If the environment ran before it was recorded, an old seed is not put down for an unseeded reset."""
    env = SmallEnv()
    play(env, seeds(5))
    store, _ = recorded(tmp_path, env, seeds(None))
    again = play(SmallEnv(), seeds(5))
    assert not same(store[0].observations[:, 2], np.array(again[0].observations)[:, 2])
    assert store[0].seed is None


def test_options_are_kept_as_they_were_passed(tmp_path: Path) -> None:
    """Options are kept from before the environment could change them, numpy values as plain ones."""

    class Greedy(SmallEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if options:
                options.clear()
            return super().reset(seed=seed)

    options = {"low": -0.5, "names": ["a", "ü"], "deep": {"n": None, "flag": True}, "number": np.int64(3)}
    plain = {**options, "number": 3}
    resets = [{"seed": 1, "options": dict(options)}, {"seed": 2}]
    store, _ = recorded(tmp_path, Greedy(), resets)
    assert store[0].options == plain
    assert store[1].options is None
    assert resets[0]["options"] == {}


@pytest.mark.sample(3)
@pytest.mark.parametrize("value", [np.arange(3), object(), {1, 2}, b"x", float("nan"), 2**70, "\ud800"])
def test_odd_options_never_stop_a_recording(tmp_path: Path, value: Any) -> None:
    """An option that is no JSON is kept in some form beside the others, and the episode is recorded."""
    store, plain = recorded(tmp_path, SmallEnv(), [{"seed": 1, "options": {"odd": value, "even": 2}}])
    assert_recorded(store[0], plain[0], SmallEnv())
    assert store[0].options is not None
    assert store[0].options.keys() == {"odd", "even"}
    assert store[0].options["even"] == 2


def test_reset_in_the_middle_cuts(tmp_path: Path) -> None:
    """A reset before the end closes the running episode as cut and leaves its flags unset."""
    plain = play(SmallEnv(), seeds(1, 2, 3), limit=3)
    store, _ = recorded(tmp_path, SmallEnv(), seeds(1, 2, 3), limit=3)
    assert_all_recorded(store, plain, SmallEnv(), ["cut"] * 3)


def test_reset_without_a_step_stores_nothing(tmp_path: Path) -> None:
    """Resets in a row leave no episode behind, and no rows of one."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        for seed in range(5):
            recorder.reset(seed=seed)
        plain = play(recorder, seeds(9))
        recorder.reset()
    assert len(store.refresh()) == 1
    assert_recorded(store[0], plain[0], env)
    assert store.steps.collect().height == env.length + 1


def test_a_recording_of_nothing_leaves_an_empty_store(tmp_path: Path) -> None:
    """A recorder that never stepped leaves a store of no episodes that still answers."""
    store, _ = recorded(tmp_path, SmallEnv(), [])
    assert len(store) == 0
    assert store.steps.collect().height == 0
    assert store.sql("select count(*) from transitions").fetchall() == [(0,)]


def test_close_in_the_middle_cuts(tmp_path: Path) -> None:
    """Closing with an episode open keeps its steps as cut."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    recorder = store.record(env)
    play(recorder, seeds(1, 2), limit=4)
    recorder.close()
    assert_all_recorded(store.refresh(), play(SmallEnv(), seeds(1, 2), limit=4), SmallEnv(), ["cut"] * 2)


def test_close_twice_is_harmless_and_closes_the_environment(tmp_path: Path) -> None:
    """A second close does nothing: the episodes are there once and the environment was closed once."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        play(recorder, seeds(1))
        recorder.close()
        recorder.close()
    recorder.close()
    assert len(store.refresh()) == 1
    assert env.closed == 1


def test_a_closed_recorder_refuses_to_go_on(tmp_path: Path) -> None:
    """After close, reset, step and log raise and do not touch the environment."""
    env = SmallEnv()
    recorder = new_store(tmp_path, env).record(env)
    play(recorder, seeds(1), limit=2)
    recorder.close()
    stepped, episode = env.stepped, env.episode
    for call in (recorder.reset, lambda: recorder.step(PUSH), lambda: recorder.log(a=1)):
        with pytest.raises(el.errors.RecorderStateError):
            call()
    assert (env.stepped, env.episode) == (stepped, episode)


def test_an_environment_that_cannot_close_costs_nothing(tmp_path: Path) -> None:
    """An exception from the environment's close passes on after all was sealed."""

    class Stuck(SmallEnv):
        def close(self) -> None:
            raise OSError("the simulator hangs")

    env = Stuck()
    store = new_store(tmp_path, env)
    recorder = store.record(env)
    plain = play(recorder, seeds(1))
    with pytest.raises(OSError, match="hangs"):
        recorder.close()
    assert_all_recorded(store.refresh(), plain, env)


def test_step_before_the_first_reset_is_refused(tmp_path: Path) -> None:
    """A step before any reset raises, and the environment is not stepped."""
    env = SmallEnv()
    with new_store(tmp_path, env).record(env) as recorder:
        with pytest.raises(el.errors.RecorderStateError, match="reset"):
            recorder.step(PUSH)
        assert env.stepped == 0
        assert recorder.episode_id is None


@pytest.mark.parametrize("mode", [None, AutoresetMode.DISABLED])
def test_step_after_the_end_is_refused(tmp_path: Path, mode: AutoresetMode | None) -> None:
    """A step after the end raises, does not step the environment, and the next reset goes on as usual."""
    env = SmallEnv(2)
    env.metadata = {} if mode is None else {"autoreset_mode": mode}
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        plain = play(recorder, seeds(1))
        with pytest.raises(el.errors.RecorderStateError):
            recorder.step(PUSH)
        assert env.stepped == 2
        plain += play(recorder, seeds(2))
    assert_all_recorded(store.refresh(), plain, env)


def test_episode_ids_name_the_stored_episodes(tmp_path: Path) -> None:
    """The id that a recorder shows during an episode finds this episode in the store afterwards."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    ids = []
    with store.record(env, run="named", metadata={"algo": "ppo", "depth": {"x": [1]}}) as recorder:
        for seed in (1, 2):
            recorder.reset(seed=seed)
            ids.append(recorder.episode_id)
            play(recorder, [])
            for _ in range(env.length):
                recorder.step(PUSH)
        run_id = recorder.run_id
    assert [store.refresh()[name].seed for name in ids] == [1, 2]
    assert run_id.startswith("named")
    assert {episode.run_id for episode in store} == {run_id}
    run = store.runs.collect().row(0, named=True)
    assert (run["run_id"], run["name"], run["metadata.algo"]) == (run_id, "named", "ppo")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", ["", "a/b", "../up", "a b", "größe", "x" * 300, ".", "con:*?", "a\nb", "%2F"]
)
def test_a_run_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Any text is a name for a run or is refused; no file lands outside the store."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    try:
        with store.record(env, run=name) as recorder:
            plain = play(recorder, seeds(1))
    except el.EpisodelakeError:
        return
    assert_all_recorded(store.refresh(), plain, env)
    assert store[store[0].id].seed == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_recorder_can_be_made_by_hand(tmp_path: Path) -> None:
    """`el.types.Recorder(env, store)` is what `store.record(env)` is: a wrapper that Gymnasium accepts."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    with el.types.Recorder(env, store, run="by-hand") as recorder:
        assert isinstance(recorder, gym.Wrapper)
        assert recorder.unwrapped is env
        plain = play(gym.wrappers.TimeLimit(recorder, 3), seeds(1, 2))
    for episode, rollout in zip(store.refresh(), plain, strict=True):
        assert same(episode.observations, np.array(rollout.observations))
    assert [episode.length for episode in store.refresh()] == [3, 3]
    assert [episode.end_reason for episode in store] == ["cut", "cut"]


def test_seal_shows_finished_episodes_only(tmp_path: Path) -> None:
    """After `seal` a reader sees all finished episodes and nothing of the running one, which goes on."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        plain = play(recorder, seeds(1, 2))
        plain += play(recorder, seeds(3), limit=2)
        recorder.seal()
        assert_all_recorded(store.refresh(), plain[:2], env)
        while not plain[-1].terminations[-1]:
            advance(recorder, plain[-1], PUSH)
        recorder.seal()
        recorder.seal()
        assert_all_recorded(store.refresh(), plain, env)
    assert_all_recorded(store.refresh(), plain, env)


def test_several_runs_share_a_store(tmp_path: Path) -> None:
    """Recorders one after the other and at the same time keep their episodes apart."""
    store = new_store(tmp_path, SmallEnv())
    played = {}
    with store.record(SmallEnv(3), run="a") as one, store.record(SmallEnv(4), run="a") as two:
        for recorder in (one, two, one):
            played.setdefault(recorder.run_id, []).extend(play(recorder, seeds(len(played), None)))
    with store.record(SmallEnv(2), run="a") as three:
        played[three.run_id] = play(three, seeds(8))
    store.refresh()
    assert len(played) == 3
    assert len(store) == 7
    for run_id, plain in played.items():
        ours = [episode for episode in store if episode.run_id == run_id]
        assert [episode.number for episode in ours] == list(range(len(plain)))
        for episode, rollout in zip(ours, plain, strict=True):
            assert_recorded(episode, rollout, SmallEnv())


def test_an_open_store_shows_nothing_new_until_refreshed(tmp_path: Path) -> None:
    """A store object keeps its snapshot while a recorder commits, and moves only by `refresh`."""
    env = SmallEnv()
    store = new_store(tmp_path, env)
    watcher = el.open(tmp_path / "store")
    with store.record(env) as recorder:
        play(recorder, seeds(1))
        recorder.seal()
        assert len(watcher) == 0
        assert watcher.steps.collect().height == 0
        assert len(watcher.refresh()) == 1


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3), StopIteration()])
def test_an_exception_in_step_keeps_what_there_was(tmp_path: Path, error: BaseException) -> None:
    """The environment's own exception passes on unchanged, and the steps before it are kept as cut."""
    plain = play(SmallEnv(8), seeds(1), limit=3)
    env = Fragile(error, steps=[3])
    store = new_store(tmp_path, env)
    with pytest.raises(type(error)) as caught, store.record(env) as recorder:
        play(recorder, seeds(1))
    assert caught.value is error
    assert_all_recorded(store.refresh(), plain, SmallEnv(), ["cut"])


@pytest.mark.parametrize("wrap", [Autoreset, lambda env: RecordEpisodeStatistics(Autoreset(env))])
def test_an_autoresetting_wrapper_loses_and_adds_no_step(tmp_path: Path, wrap: Any) -> None:
    """The step after a done starts the next episode: no transition, its action dropped, its info at t = 0."""
    store = new_store(tmp_path, SmallEnv())
    with store.record(wrap(SmallEnv(3))) as recorder:
        observation, _ = recorder.reset(seed=1)
        seen = [observation] + [recorder.step(np.full(2, k, np.float32))[0] for k in range(1, 11)]
    whole = np.array(seen)
    episodes = list(store.refresh())
    assert [episode.length for episode in episodes] == [3, 3, 2]
    assert [episode.end_reason for episode in episodes] == ["terminated", "terminated", "cut"]
    assert [episode.seed for episode in episodes] == [1, None, None]
    assert same(np.concatenate([episode.observations for episode in episodes]), whole)
    taken = [episode.actions[:, 0].tolist() for episode in episodes]
    assert taken == [[1, 2, 3], [5, 6, 7], [9, 10]]
    assert [[info["t"] for info in episode.infos] for episode in episodes] == [[0, 1, 2, 3]] * 2 + [[0, 1, 2]]


def test_a_reset_by_hand_after_a_done_opens_no_extra_episode(tmp_path: Path) -> None:
    """With an autoresetting environment, calling reset after the end works like anywhere else."""
    store = new_store(tmp_path, SmallEnv())
    with store.record(Autoreset(SmallEnv(3))) as recorder:
        plain = play(recorder, seeds(1, 2))
    assert_all_recorded(store.refresh(), plain, SmallEnv())


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, "NextStep"])
def test_next_step_mode_is_read_from_the_metadata(tmp_path: Path, mode: Any) -> None:
    """An environment that says NEXT_STEP in its metadata is recorded like one under `Autoreset`."""

    class SelfResetting(SmallEnv):
        def step(self, action: Any) -> Any:
            if self.t >= self.length:
                observation, info = self.reset()
                return observation, 0.0, False, False, info
            return super().step(action)

    env = SelfResetting(2)
    env.metadata = {"autoreset_mode": mode}
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset(seed=1)
        for _ in range(6):
            recorder.step(PUSH)
    assert [episode.length for episode in store.refresh()] == [2, 2]
    assert [episode.observations[:, 0].tolist() for episode in store] == [[0, 1, 2]] * 2


def test_same_step_mode_keeps_the_true_last_observation(tmp_path: Path) -> None:
    """With SAME_STEP the last row is `final_obs` with `final_info`; the next episode has begun."""
    plain = play(SmallEnv(3), seeds(1, None, None))
    env = SameStep(3)
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset(seed=1)
        env.action_space.seed(0)
        for _ in range(9):
            recorder.step(env.action_space.sample())
    store.refresh()
    assert len(store) == 3
    for episode, rollout in zip(store, plain, strict=True):
        assert same(episode.observations, np.array(rollout.observations))
        assert same(episode.actions, np.array(rollout.actions))
        assert episode.rewards.tolist() == rollout.rewards
        assert episode.end_reason == "terminated"
        assert [info["t"] for info in episode.infos] == [0, 1, 2, 3]
        assert episode.infos[-1] == {"t": 3}


def test_same_step_mode_copies_the_last_observation_at_once(tmp_path: Path) -> None:
    """A `final_obs` that is overwritten by the very next step was copied before."""

    class Overwriting(SameStep):
        held = np.zeros(3, np.float32)

        def step(self, action: Any) -> Any:
            self.held[:] = -1.0
            result = super().step(action)
            if "final_obs" in result[-1]:
                self.held[:] = result[-1]["final_obs"]
                result[-1]["final_obs"] = self.held
            return result

    env = Overwriting(2)
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset(seed=1)
        for _ in range(5):
            recorder.step(PUSH)
    assert [episode.observations[-1, 0] for episode in store.refresh()][:2] == [2.0, 2.0]


def logged(folder: Path, body: Callable[[el.types.Recorder], None]) -> el.Episode:
    """Record one episode of three steps, of which `body` does what it likes, and return it."""
    env = SmallEnv(3)
    store = new_store(folder, env)
    with store.record(env) as recorder:
        recorder.reset(seed=1)
        body(recorder)
    return store.refresh()[0]


def test_what_is_logged_stands_beside_the_action(tmp_path: Path) -> None:
    """A value logged before step t belongs to row t, the row of the action."""

    def body(recorder: el.types.Recorder) -> None:
        for t in range(3):
            recorder.log(log_prob=-float(t), logits=np.array([t, 2 * t], np.float32))
            recorder.step(PUSH)

    episode = logged(tmp_path, body)
    assert same(episode.policy["log_prob"], np.array([-0.0, -1.0, -2.0]))
    assert same(episode.policy["logits"], np.array([[0, 0], [1, 2], [2, 4]], np.float32))


def test_of_two_logged_values_the_last_wins(tmp_path: Path) -> None:
    """Logging a key again before the step replaces its value, and leaves other keys alone."""

    def body(recorder: el.types.Recorder) -> None:
        recorder.log(a=1, b=1)
        recorder.log(a=2)
        recorder.step(PUSH)

    episode = logged(tmp_path, body)
    assert list(episode.policy["a"]) == [2]
    assert list(episode.policy["b"]) == [1]


def test_a_logged_array_is_copied(tmp_path: Path) -> None:
    """An array that is overwritten after it was logged keeps its value of then."""
    buffer = np.zeros(2)

    def body(recorder: el.types.Recorder) -> None:
        for t in range(3):
            buffer[:] = t
            recorder.log(hidden=buffer, deep={"inner": [buffer]})
            buffer[:] = -9
            recorder.step(PUSH)

    episode = logged(tmp_path, body)
    assert np.asarray(episode.policy["hidden"]).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert [list(inner[0]) for inner in episode.policy["deep"]["inner"][:3]] == [[0, 0], [1, 1], [2, 2]]


def test_a_value_may_be_logged_for_the_last_observation(tmp_path: Path) -> None:
    """A value logged after the last step stands on row T, so that there are T+1 of them."""

    def body(recorder: el.types.Recorder) -> None:
        for t in range(3):
            recorder.log(value=t)
            recorder.step(PUSH)
        recorder.log(value=99)
        recorder.reset()

    assert list(logged(tmp_path, body).policy["value"]) == [0, 1, 2, 99]


def test_a_value_logged_after_sealing_is_kept_or_refused(tmp_path: Path) -> None:
    """A value logged for an episode that was sealed in between is not lost in silence."""
    refused = []

    def body(recorder: el.types.Recorder) -> None:
        for _ in range(3):
            recorder.step(PUSH)
        recorder.seal()
        try:
            recorder.log(value=99)
        except el.errors.RecorderStateError as error:
            refused.append(error)

    episode = logged(tmp_path, body)
    assert refused or list(episode.policy["value"])[-1] == 99


def test_a_key_logged_only_once_is_absent_elsewhere(tmp_path: Path) -> None:
    """A key that was logged at one step only is None at the others, not 0 and not NaN."""

    def body(recorder: el.types.Recorder) -> None:
        recorder.step(PUSH)
        recorder.log(**{"odd key.ü": 5})
        recorder.step(PUSH)
        recorder.step(PUSH)

    assert list(logged(tmp_path, body).policy["odd key.ü"])[:3] == [None, 5, None]


def test_logging_without_an_episode_is_refused(tmp_path: Path) -> None:
    """There is no current step before the first reset, so log raises."""
    env = SmallEnv()
    with new_store(tmp_path, env).record(env) as recorder, pytest.raises(el.errors.RecorderStateError):
        recorder.log(value=1)


def test_a_logged_value_does_not_leak_into_the_next_episode(tmp_path: Path) -> None:
    """What was logged for the last observation of a cut episode is not put on the first row of the next."""
    env = SmallEnv(3)
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset(seed=1)
        recorder.step(PUSH)
        recorder.log(value=5)
        recorder.reset(seed=2)
        recorder.step(PUSH)
    first, second = store.refresh()
    assert list(first.policy["value"]) == [None, 5]
    assert all(value is None for value in second.policy.get("value", []))


def with_callback(
    folder: Path, step: Any = None, episode: Any = None, env: gym.Env | None = None
) -> tuple[el.EpisodeStore, list[Rollout]]:
    """Record two episodes with callbacks."""
    return recorded(folder, env or SmallEnv(4), seeds(1, 2), step_callback=step, episode_callback=episode)


def test_a_step_callback_sees_each_reset_and_step(tmp_path: Path) -> None:
    """The callback is called for every reset and step with the data of it, and changes nothing by None."""
    seen: list[el.types.StepData] = []
    store, plain = with_callback(tmp_path, lambda step: seen.append(copy.deepcopy(step)))
    assert_all_recorded(store, plain, SmallEnv())
    assert [step.t for step in seen] == [0, 1, 2, 3, 4] * 2
    first = seen[0]
    assert (first.action, first.reward, first.terminated, first.truncated) == (None,) * 4
    for rollout, steps in zip(plain, (seen[:5], seen[5:]), strict=True):
        assert same([step.observation for step in steps], rollout.observations)
        assert same([step.action for step in steps[1:]], rollout.actions)
        assert [step.reward for step in steps[1:]] == rollout.rewards
        assert [step.terminated for step in steps[1:]] == rollout.terminations
        assert [dict(step.info) for step in steps] == rollout.infos


def test_a_step_callback_sees_what_was_logged(tmp_path: Path) -> None:
    """What was logged for an action is in the step data of that action."""
    seen = []
    env = SmallEnv(3)
    with new_store(tmp_path, env).record(
        env, step_callback=lambda step: seen.append(dict(step.policy))
    ) as recorder:
        recorder.reset()
        for t in range(2):
            recorder.log(value=t)
            recorder.step(PUSH)
    assert seen == [{}, {"value": 0}, {"value": 1}]


def test_a_step_callback_adds_columns(tmp_path: Path) -> None:
    """Extra columns stand on the row of the observation of the same call, on the first one too."""
    store, _ = with_callback(
        tmp_path, lambda s: dataclasses.replace(s, extra={"height": 0.5 * s.t, "n.m": [s.t]})
    )
    for episode in store:
        assert list(episode.extra["height"]) == [0.0, 0.5, 1.0, 1.5, 2.0]
        assert [list(value) for value in episode.extra["n.m"]] == [[0], [1], [2], [3], [4]]
    assert "height" in store.steps.collect_schema().names()


def test_a_mapping_from_a_step_callback_is_extra_columns(tmp_path: Path) -> None:
    """A step callback that returns a mapping adds it as extra columns."""
    store, plain = with_callback(tmp_path, lambda step: {"height": step.t})
    assert list(store[1].extra["height"]) == [0, 1, 2, 3, 4]
    assert_all_recorded(store, plain, SmallEnv())


@pytest.mark.parametrize(
    "name", ["observation", "t", "reward", "episode_id", "info.t", "T", "Reward", "policy.x"]
)
def test_an_extra_column_cannot_take_the_name_of_another(tmp_path: Path, name: str) -> None:
    """An extra column that is called like one of the store's is kept apart or refused, and spoils nothing."""
    env = SmallEnv(2)
    store = new_store(tmp_path, env)
    plain = play(SmallEnv(2), seeds(1))
    try:
        with store.record(env, step_callback=lambda step: {name: "mine"}) as recorder:
            play(recorder, seeds(1))
    except el.EpisodelakeError:
        assert len(store.refresh()) <= 1
        return
    assert_all_recorded(store.refresh(), plain, env)
    assert list(store[0].extra[name]) == ["mine"] * 3


def test_a_step_callback_replaces_data(tmp_path: Path) -> None:
    """Replaced observation, action, reward and info are recorded; the caller gets the environment's."""

    def replaced(step: el.types.StepData) -> el.types.StepData:
        new = dataclasses.replace(step, observation=-step.observation, info={"new": step.t})
        return new if step.t == 0 else dataclasses.replace(new, reward=step.t, action=step.action + 1)

    store, ours = with_callback(tmp_path, replaced)
    plain = play(SmallEnv(4), seeds(1, 2))
    assert_same_play(ours, plain)
    for episode, rollout in zip(store, plain, strict=True):
        assert same(episode.observations, -np.array(rollout.observations))
        assert same(episode.actions, np.array(rollout.actions) + 1)
        assert episode.rewards.tolist() == [1, 2, 3, 4]
        assert episode.episode_return == 10
        assert episode.infos == [{"new": t} for t in range(5)]


def test_a_step_callback_drops_data(tmp_path: Path) -> None:
    """Infos and logged values that the callback removes are not recorded."""
    env = SmallEnv(3)
    store = new_store(tmp_path, env)
    with store.record(env, step_callback=lambda s: dataclasses.replace(s, info={}, policy={})) as recorder:
        recorder.reset()
        for _ in range(3):
            recorder.log(secret=1)
            assert recorder.step(PUSH)[-1] != {}
    episode = store.refresh()[0]
    assert episode.infos == [{}] * 4
    assert not episode.policy


def test_a_step_callback_ends_the_episode(tmp_path: Path) -> None:
    """`end=True` closes the episode as cut; later steps are passed on but not recorded."""
    store, ours = with_callback(tmp_path, lambda step: dataclasses.replace(step, end=step.t == 2))
    plain = play(SmallEnv(4), seeds(1, 2))
    assert_same_play(ours, plain)
    assert_all_recorded(store, [rollout.cut(2) for rollout in plain], SmallEnv(), ["cut", "cut"])


@pytest.mark.parametrize("when", [0, 4])
def test_a_step_callback_ends_the_episode_at_its_edges(tmp_path: Path, when: int) -> None:
    """Ended at the reset nothing is stored; ended at the true end the flags say why."""
    store, ours = with_callback(tmp_path, lambda step: dataclasses.replace(step, end=step.t == when))
    assert_same_play(ours, play(SmallEnv(4), seeds(1, 2)))
    assert [episode.end_reason for episode in store] == ["terminated"] * (2 if when else 0)


def test_a_step_callback_may_set_a_flag_as_it_ends_the_episode(tmp_path: Path) -> None:
    """An episode ended by the callback with `truncated` set ends as truncated."""
    store, _ = with_callback(
        tmp_path, lambda s: dataclasses.replace(s, truncated=True, end=True) if s.t == 2 else None
    )
    assert [episode.end_reason for episode in store] == ["truncated", "truncated"]
    assert [episode.truncations.tolist() for episode in store] == [[False, True]] * 2


def test_ending_by_callback_under_autoreset_waits_for_the_reset(tmp_path: Path) -> None:
    """Under `Autoreset`, after `end=True` recording begins again with the episode that the wrapper starts."""
    store = new_store(tmp_path, SmallEnv())
    env = Autoreset(SmallEnv(4))
    with store.record(env, step_callback=lambda s: dataclasses.replace(s, end=s.t == 2)) as recorder:
        recorder.reset(seed=1)
        for _ in range(12):
            recorder.step(PUSH)
    assert [episode.observations[:, 0].tolist() for episode in store.refresh()] == [[0, 1, 2]] * 3
    assert [episode.observations[0, 1] for episode in store] == [0, 1, 2]


def test_an_exception_in_a_step_callback_passes_on(tmp_path: Path) -> None:
    """The callback's exception reaches the caller unchanged; the steps before it are kept as they were."""
    error = ZeroDivisionError("mine")

    def failing(step: el.types.StepData) -> None:
        if step.t == 3:
            raise error

    env = SmallEnv(5)
    store = new_store(tmp_path, env)
    with pytest.raises(ZeroDivisionError) as caught, store.record(env, step_callback=failing) as recorder:
        play(recorder, seeds(1))
    assert caught.value is error
    episode = store.refresh()[0]
    assert episode.length >= 2
    assert_recorded(episode, play(SmallEnv(5), seeds(1))[0].cut(episode.length), env, "cut")


@pytest.mark.parametrize("nonsense", [5, "text", [1], object(), True, (1, 2), {1: 2}, {"": object()}])
def test_nonsense_from_a_step_callback_loses_nothing(tmp_path: Path, nonsense: Any) -> None:
    """A step callback that returns something else gets an error of the tree, or its mapping is kept."""
    env = SmallEnv(5)
    store = new_store(tmp_path, env)

    def step_callback(step: el.types.StepData) -> Any:
        return nonsense if step.t == 3 else None

    try:
        with store.record(env, step_callback=step_callback) as recorder:
            play(recorder, seeds(1))
    except el.EpisodelakeError:
        pass
    else:
        assert isinstance(nonsense, dict)
    episode = store.refresh()[0]
    plain = play(SmallEnv(5), seeds(1))[0]
    assert_recorded(episode, plain.cut(episode.length), env)
    assert episode.length >= 2


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "change",
    [
        {"observation": None},
        {"observation": np.zeros(4, np.float32)},
        {"observation": "text"},
        {"reward": None},
        {"reward": "much"},
        {"action": np.zeros(3, np.float32)},
        {"info": 5},
        {"policy": [1]},
        {"extra": "text"},
        {"terminated": "yes"},
    ],
)
def test_a_wrong_replacement_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """A replaced value that does not fit raises an error of the tree; the steps before are kept."""
    env = SmallEnv(5)
    store = new_store(tmp_path, env)

    def replaced(step: el.types.StepData) -> el.types.StepData | None:
        return dataclasses.replace(step, **change) if step.t == 3 else None

    with pytest.raises(el.EpisodelakeError), store.record(env, step_callback=replaced) as recorder:
        play(recorder, seeds(1))
    assert_all_recorded(store.refresh(), [play(SmallEnv(5), seeds(1))[0].cut(2)], env, ["cut"])


def test_an_episode_callback_adds_metadata(tmp_path: Path) -> None:
    """What an episode callback returns becomes the metadata of its episode."""
    seen: list[el.types.EpisodeSummary] = []

    def described(summary: el.types.EpisodeSummary) -> dict[str, Any]:
        seen.append(summary)
        return {"score": summary.length, "odd key.ü": ODD_INFOS[3], "Score": "x", "tags": ["a", "b"]}

    store, plain = with_callback(tmp_path, episode=described)
    assert [(s.id, s.number, s.length, s.seed) for s in seen] == [
        (e.id, e.number, e.length, e.seed) for e in store
    ]
    assert [s.episode_return for s in seen] == [e.episode_return for e in store]
    assert [(s.terminated, s.truncated, s.end_reason) for s in seen] == [(True, False, "terminated")] * 2
    assert_all_recorded(store, plain, SmallEnv())
    for episode in store:
        expected = {"score": 4, "odd key.ü": ODD_INFOS[3], "Score": "x", "tags": ["a", "b"]}
        assert same_info(episode.metadata, expected)
    assert len(store.filter('"metadata.score" = 4')) == 2


@pytest.mark.sample(8)
@pytest.mark.parametrize("index", range(len(ODD_INFOS)))
def test_metadata_may_be_anything(tmp_path: Path, index: int) -> None:
    """Every odd mapping is kept as metadata of an episode and of a run without an error."""
    env = SmallEnv(2)
    store = new_store(tmp_path, env)
    odd = ODD_INFOS[index]
    with store.record(env, metadata=odd, episode_callback=lambda summary: odd) as recorder:
        play(recorder, seeds(1))
    assert same_info(store.refresh()[0].metadata, odd)
    assert store.runs.collect().height == 1
    assert store.episodes.collect().height == 1


def test_an_exception_in_an_episode_callback_keeps_the_episode(tmp_path: Path) -> None:
    """The callback's exception reaches the caller unchanged, and the finished episode is there."""
    error = ZeroDivisionError("mine")
    failures: Iterator[Any] = iter([error])

    def failing(summary: el.types.EpisodeSummary) -> None:
        for failure in failures:
            raise failure

    env = SmallEnv(4)
    store = new_store(tmp_path, env)
    with pytest.raises(ZeroDivisionError) as caught, store.record(env, episode_callback=failing) as recorder:
        play(recorder, seeds(1))
    assert caught.value is error
    assert_all_recorded(store.refresh(), play(SmallEnv(4), seeds(1)), env)


@pytest.mark.parametrize("nonsense", [5, "text", [1], object(), True])
def test_nonsense_from_an_episode_callback_keeps_the_episode(tmp_path: Path, nonsense: Any) -> None:
    """An episode callback that returns no mapping gets an error of the tree, and the episode is there."""
    env = SmallEnv(4)
    store = new_store(tmp_path, env)
    answers = iter([nonsense])
    with (
        pytest.raises(el.EpisodelakeError),
        store.record(env, episode_callback=lambda summary: next(answers, None)) as recorder,
    ):
        play(recorder, seeds(1))
    assert_all_recorded(store.refresh(), play(SmallEnv(4), seeds(1)), env)


def test_an_episode_callback_sees_cut_episodes_too(tmp_path: Path) -> None:
    """Episodes that a reset or a close cuts pass by the callback once; empty ones do not."""
    seen = []
    env = SmallEnv(5)
    with new_store(tmp_path, env).record(
        env, episode_callback=lambda s: seen.append(s.end_reason)
    ) as recorder:
        play(recorder, seeds(1, 2), limit=2)
        recorder.reset()
        recorder.reset()
        recorder.step(PUSH)
    assert seen == ["cut"] * 3


def test_an_environment_of_other_spaces_is_refused(tmp_path: Path) -> None:
    """A store records only environments of its own spaces; nothing is left behind by the refusal."""
    store = new_store(tmp_path, SmallEnv())
    with pytest.raises(el.errors.SpaceMismatchError):
        store.record(Speaker())
    with pytest.raises(el.errors.SpaceMismatchError):
        store.record(SmallEnv(action_space=spaces.Discrete(2)))
    assert len(store.refresh()) == 0
    assert el.recover(tmp_path / "store") == []


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
