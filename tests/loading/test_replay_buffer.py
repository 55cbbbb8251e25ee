"""Replay buffers beside plain lists of the same steps, and beside loaders of the same store."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import episodelake as el
from effort import with_folders
from episodelake.testing.adapters import case
from pools import Pool
from waiting import PATIENCE

#: So many draws that each of a few hundred transitions comes.
MANY = 4_000
TRANSITION = ("observation", "action", "reward", "next_observation", "terminated", "truncated")


class Scripted(gymnasium.Env):
    """Shows its own index, the episode and the step; episodes have the lengths given, again and again."""

    observation_space = Box(-1e6, 1e6, (3,), np.float32)
    action_space = Discrete(1000)

    def __init__(self, index: int = 0, lengths: tuple[int, ...] = (4, 1, 7, 2)) -> None:
        self.index, self.lengths = index, lengths
        self.episode, self.step_number = -1, 0
        self.t = 0

    def _shown(self) -> np.ndarray:
        return np.array([self.index, self.episode, self.step_number], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin the next episode."""
        self.episode, self.step_number = self.episode + 1, 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Give a reward that depends on everything; odd episodes terminate, even ones are truncated."""
        reward = float(action) + 1000.0 * self.step_number
        self.step_number += 1
        done = self.step_number >= self.lengths[self.episode % len(self.lengths)]
        odd = self.episode % 2 == 1
        return self._shown(), reward, done and odd, done and not odd, {}


class Plain:
    """A replay buffer of Python lists: what a reader of the documentation would write."""

    def __init__(self, capacity: int) -> None:
        self.newest: deque[tuple] = deque(maxlen=capacity)
        self.episodes: list[list[list]] = []

    def reset(self, observation: np.ndarray) -> None:
        """Cut the episode in hand, if any, and begin another."""
        if self.episodes and self.episodes[-1] and not (self.episodes[-1][-1][4] or self.episodes[-1][-1][5]):
            self.episodes[-1][-1][5] = True
        self.episodes.append([])
        self.before = observation

    def step(self, action: int, result: tuple) -> None:
        """Add a transition."""
        observation, reward, terminated, truncated, _ = result
        self.episodes[-1].append([self.before, action, reward, observation, terminated, truncated])
        self.newest.append((len(self.episodes) - 1, len(self.episodes[-1]) - 1))
        self.before = observation

    def transitions(self) -> set[tuple]:
        """Return everything that can be sampled."""
        return {_plain(*self.episodes[episode][step]) for episode, step in self.newest}

    def spans(self, n: int, gamma: float) -> set[tuple]:
        """Return all n-step transitions."""
        found = set()
        for number, first in self.newest:
            part = self.episodes[number][first : first + n]
            reward = sum(gamma**step * row[2] for step, row in enumerate(part))
            last = part[-1]
            discount = 0.0 if last[4] else gamma ** len(part)
            found.add((*_plain(*part[0][:2], reward, *last[3:]), round(discount, 9), len(part)))
        return found

    def sequences(self, length: int) -> set[tuple]:
        """Return all sequences."""
        rows, starts = [], {}
        for number, episode in enumerate(self.episodes):
            for step, row in enumerate(episode):
                starts[number, step] = len(rows)
                rows.append((*_numbers(row[0]), row[1], row[2], row[4], row[5], step == 0, False, False))
            if episode and (episode[-1][4] or episode[-1][5]):
                last = episode[-1]
                rows.append((*_numbers(last[3]), 0, 0.0, False, False, False, True, last[4]))
        wholes = (rows[starts[place] :][:length] for place in self.newest)
        return {tuple(whole) for whole in wholes if len(whole) == length}


def _numbers(observation: Any) -> tuple:
    return tuple(np.asarray(observation).tolist())


def _plain(observation: Any, action: Any, reward: Any, following: Any, *flags: Any) -> tuple:
    return (
        *_numbers(observation),
        int(action),
        round(float(reward), 6),
        *_numbers(following),
        *map(bool, flags),
    )


def _different(arrays: list[np.ndarray], columns: bool = False) -> Any:
    """Return the rows that differ, of arrays with one entry for each row; as arrays if asked for."""
    together = np.concatenate([array.reshape(len(array), -1).astype(float) for array in arrays], 1)
    chosen = np.unique(together, axis=0, return_index=True)[1]
    parts = [array[chosen] for array in arrays]
    return parts if columns else zip(*parts, strict=True)


def _sampled(buffer: el.ReplayBuffer) -> set[tuple]:
    batch = buffer.sample(MANY)
    return {_plain(*row) for row in _different([batch[key] for key in TRANSITION])}


def _sampled_spans(buffer: el.ReplayBuffer, n: int, gamma: float) -> set[tuple]:
    batch = buffer.sample(MANY, n_step=n, gamma=gamma)
    rows = _different([batch[key] for key in (*TRANSITION, "discount", "span")])
    return {(*_plain(*row[:6]), round(float(row[6]), 9), int(row[7])) for row in rows}


def _sampled_sequences(buffer: el.ReplayBuffer, length: int) -> set[tuple]:
    batch = buffer.sample_sequences(MANY, length)
    keys = ("action", "reward", "terminated", "truncated", "is_first", "is_last", "is_terminal")
    rows = zip(*_different([batch["observation"], *(batch[key] for key in keys)], columns=True), strict=True)
    return {
        tuple((*_numbers(row[0][step]), *(value[step].item() for value in row[1:])) for step in range(length))
        for row in rows
    }


def _store(path: Path) -> el.EpisodeStore:
    return el.create(path, Scripted())


def _play(env: gymnasium.Env, plain: Plain, steps: int, cut_every: int = 0) -> None:
    """Take some steps from a reset on, with an early reset now and then."""
    generator = np.random.default_rng(steps)
    plain.reset(env.reset()[0])
    for step in range(1, steps + 1):
        action = int(generator.integers(1000))
        result = env.step(action)
        plain.step(action, result)
        if result[2] or result[3] or (cut_every and step % cut_every == 0):
            plain.reset(env.reset()[0])


@pytest.mark.further
def test_steps_can_be_sampled_at_once(tmp_path: Path) -> None:
    """At any moment a buffer has the newest transitions, their spans and sequences, as plain lists have."""
    for folder, (capacity, at_once) in with_folders(itertools.product([1, 5, 23, 200], [1, 17]), tmp_path):
        with case((capacity, at_once)):
            store, plain = _store(folder / "store"), Plain(capacity)
            buffer = store.replay_buffer(capacity)
            scripted = Scripted(lengths=(4, 1, 7, 2, 30))
            with store.record(scripted, buffer=buffer) as env:
                for part in range(8):
                    _play(env, plain, at_once, cut_every=11)
                    plain_before = plain.episodes[-1]
                    assert not plain_before or len(plain_before) <= 30
                    assert len(buffer) == len(plain.newest)
                    env.reset()  # Ends the episode in hand, so that it counts as truncated.
                    plain.reset(np.zeros(3))
                    plain.episodes.pop()
                    scripted.episode -= 1
                    assert _sampled(buffer) == plain.transitions(), part
                    assert _sampled_spans(buffer, 3, 0.9) == plain.spans(3, 0.9)
                    expected = plain.sequences(4)
                    if expected:
                        assert _sampled_sequences(buffer, 4) == expected


def test_a_running_episode_is_not_truncated(tmp_path: Path) -> None:
    """The newest step of a running episode has no flag, and its span ends there."""
    store, plain = _store(tmp_path / "store"), Plain(50)
    buffer = store.replay_buffer(50)
    with store.record(Scripted(lengths=(9,)), buffer=buffer) as env:
        plain.reset(env.reset()[0])
        for action in range(5):
            plain.step(action, env.step(action))
            assert _sampled(buffer) == plain.transitions()
            assert _sampled_spans(buffer, 4, 0.5) == plain.spans(4, 0.5)
        assert not buffer.sample(MANY)["truncated"].any()
        with pytest.raises(el.errors.InvalidArgumentError, match="length=6"):
            buffer.sample_sequences(2, 6)
        assert buffer.sample_sequences(2, 5)["is_first"][:, 0].all()
    assert buffer.sample(MANY)["truncated"].any()


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("capacity", [7, 40, 400])
def test_vector_environments(tmp_path: Path, mode: AutoresetMode, capacity: int) -> None:
    """The rows of a vector environment are its environments' transitions, newest first to stay."""
    store = _store(tmp_path / "store")
    lengths = ((4, 1, 7), (2,), (30, 3))
    envs = SyncVectorEnv(
        [lambda index=index: Scripted(index, lengths[index]) for index in range(3)], autoreset_mode=mode
    )
    buffer = store.replay_buffer(capacity)
    newest: deque[tuple] = deque(maxlen=capacity)
    with store.record(envs, buffer=buffer) as recorder:
        before, _ = recorder.reset()
        resetting = np.zeros(3, bool)
        for step in range(60):
            if mode is AutoresetMode.DISABLED and resetting.any():
                before, _ = recorder.reset(options={"reset_mask": resetting})
                resetting[:] = False
            actions = np.arange(3) * 100 + step
            after, rewards, terminated, truncated, infos = recorder.step(actions)
            done = terminated | truncated
            for env in range(3):
                if mode is AutoresetMode.NEXT_STEP and resetting[env]:
                    continue
                last = (
                    infos["final_obs"][env] if mode is AutoresetMode.SAME_STEP and done[env] else after[env]
                )
                newest.append(
                    _plain(before[env], actions[env], rewards[env], last, terminated[env], truncated[env])
                )
            resetting, before = done & ~(resetting & (mode is AutoresetMode.NEXT_STEP)), after.copy()
            if step % 7 == 6:
                assert _sampled(buffer) == set(newest)
                assert len(buffer) == len(newest)
        for sequence in _sampled_sequences(buffer, 3):
            _check_sequence(sequence)
    store.refresh()
    if capacity == 400:
        assert _sampled(buffer) == _sampled(store.replay_buffer(capacity)) == _loaded(store)
        again = store.replay_buffer(capacity)
        assert _sampled_spans(buffer, 5, 0.9) == _sampled_spans(again, 5, 0.9)


def test_pools(tmp_path: Path) -> None:
    """Environments of a pool that become ready in any order have whole transitions and sequences."""
    envs: list[Any] = [Scripted(index, lengths) for index, lengths in enumerate([(4, 1, 7), (2,), (30, 3)])]
    pool: Any = Pool(envs, 2)
    store = el.create(tmp_path / "store", pool)
    buffer = store.replay_buffer(400)
    with store.record(pool, buffer=buffer) as recorder:
        recorder.async_reset()
        for batch in range(90):
            _, _, _, _, infos = recorder.recv()
            ids = infos["env_id"].copy()
            recorder.send(ids * 100, ids)
            if batch % 15 == 14:
                _check_sequences(buffer)
    assert _sampled(buffer) == _sampled(store.refresh().replay_buffer(400)) == _loaded(store)


def _check_sequences(buffer: el.ReplayBuffer) -> None:
    for sequence in _sampled_sequences(buffer, 3):
        _check_sequence(sequence)


def test_several_recorders_and_collect_feed_one_buffer(tmp_path: Path) -> None:
    """Rows of several recorders do not mix, and what `collect` records is in the buffer as it is stored."""
    store = _store(tmp_path / "store")
    buffer = store.replay_buffer(1000)
    envs = SyncVectorEnv([lambda index=index: Scripted(index + 2) for index in range(2)])
    with (
        store.record(Scripted(0), buffer=buffer) as first,
        store.record(Scripted(1), buffer=buffer) as second,
        store.record(envs, buffer=buffer) as recorder,
    ):
        for env in (first, second):
            env.reset()
        for step in range(40):
            for env in (first, second):
                if any(env.step(step)[2:4]):
                    env.reset()
            if step % 10 == 9:
                _check_sequences(buffer)
        el.collect(recorder, lambda observation, info, state: np.full(len(observation), 7), store, episodes=9)
    assert _sampled(buffer) == _loaded(store.refresh())


def test_collect_feeds_the_buffer_it_is_given(tmp_path: Path) -> None:
    """With `buffer=` the buffer has what a loader finds in the store; other processes cannot have it."""
    store = _store(tmp_path / "store")
    buffer = store.replay_buffer(1000)
    el.collect(Scripted(), None, store, steps=23, buffer=buffer)
    assert len(buffer) == 23 and _sampled(buffer) == _loaded(store.refresh())
    with pytest.raises(el.errors.InvalidArgumentError, match="buffer cannot be sent to worker processes"):
        el.collect(Scripted, None, store, steps=5, buffer=buffer, workers=2)
    assert len(store.refresh().runs.collect()) == 1


@pytest.mark.further
def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    """After recovery a new buffer has the steps of the episode in which the process died."""
    store, context = _store(tmp_path / "store"), multiprocessing.get_context("spawn")
    process = context.Process(target=_record_and_die, args=(str(tmp_path / "store"),))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 9
    assert len(store.refresh().replay_buffer(100)) == 0
    el.recover(tmp_path / "store")
    batch = el.open(tmp_path / "store").replay_buffer(100).sample(MANY)
    assert set(batch["observation"][:, 2]) == set(range(30))
    assert (batch["truncated"] == (batch["observation"][:, 2] == 29)).all()


def _record_and_die(path: str) -> None:
    store = el.open(path)
    env = store.record(Scripted(lengths=(100,)), buffer=store.replay_buffer(100))
    env.reset()
    for _ in range(30):
        env.step(1)
    env.flush()
    os._exit(9)


def _check_sequence(sequence: tuple) -> None:
    """Steps of one environment, in order, with the marks in the right places."""
    for (env, episode, t, *_, first, last, terminal), following in pairwise(sequence):
        assert first == (t == 0)
        assert following[0] == env
        assert following[1:3] == ((episode + 1, 0) if last else (episode, t + 1))
        assert terminal == (last and episode % 2 == 1)


def _loaded(store: el.EpisodeStore, **options: Any) -> set[tuple]:
    batches = list(store.loader(256, **options))
    return {_plain(*row) for batch in batches for row in _different([batch[key] for key in TRANSITION])}


@pytest.mark.parametrize("capacity", [1, 13, 14, 15, 500])
def test_a_buffer_is_refilled_after_a_restart(tmp_path: Path, capacity: int) -> None:
    """A new buffer of the sealed store has what the old one had: transitions, spans and sequences."""
    store, plain = _store(tmp_path / "store"), Plain(capacity)
    buffer = store.replay_buffer(capacity)
    with store.record(Scripted(), buffer=buffer) as env:
        _play(env, plain, 100, cut_every=13)
    again = el.open(tmp_path / "store").replay_buffer(capacity)
    assert len(again) == len(buffer) == min(capacity, 100)
    assert _sampled(again) == _sampled(buffer)
    assert _sampled_spans(again, 3, 0.9) == _sampled_spans(buffer, 3, 0.9)
    if capacity > 10:
        assert _sampled_sequences(again, 5) == _sampled_sequences(buffer, 5)
    with el.open(tmp_path / "store").record(Scripted(7), buffer=again) as env:
        _play(env, Plain(1), 3)
    assert {row for row in _sampled(again) if row[0] == 7} or capacity < 3
    assert len(again) == min(capacity, 103)


def test_batches_are_those_of_the_loader(tmp_path: Path) -> None:
    """Keys, dtypes, shapes and values agree with the loader's, to the last bit."""
    store = _store(tmp_path / "store")
    buffer = store.replay_buffer(1000)
    with store.record(Scripted(), buffer=buffer) as env:
        _play(env, Plain(1), 80, cut_every=13)
    store.refresh()
    for options in ({}, {"n_step": 4, "gamma": 0.97}):
        batch = next(iter(store.loader(1000, **options)))
        ours = buffer.sample(1000, **options)
        assert list(batch) == list(ours)
        assert {key: value.dtype for key, value in batch.items()} == {
            key: value.dtype for key, value in ours.items()
        }
        assert {key: value.shape[1:] for key, value in batch.items()} == {
            key: value.shape[1:] for key, value in ours.items()
        }
        loaded = {tuple(value[row].tobytes() for value in batch.values()) for row in range(80)}
        assert {tuple(value[row].tobytes() for value in ours.values()) for row in range(1000)} == loaded


@pytest.mark.further
def test_memory_is_bounded_and_exact_for_the_shortest_episodes(tmp_path: Path) -> None:
    """Episodes of one step and resets without one need more observations, but twice as many at most."""
    store, plain = _store(tmp_path / "store"), Plain(3000)
    buffer = store.replay_buffer(3000)
    before = buffer.nbytes
    with store.record(Scripted(lengths=(1,)), buffer=buffer) as env:
        _play(env, plain, 7000)
        assert len(buffer) == 3000
        sampled = buffer.sample(20_000)
        assert sampled["observation"][:, 1].min() == 4000
        assert (sampled["next_observation"] - sampled["observation"] == [0, 0, 1]).all()
        grown = buffer.nbytes
        assert before < grown < 2.5 * before
        for _ in range(3000):
            env.reset()
        assert len(buffer) == len(buffer)
        assert buffer.nbytes < 2.5 * before
        sampled = buffer.sample(2000)
        assert (sampled["next_observation"] - sampled["observation"] == [0, 0, 1]).all()


def test_discarded_episodes_disappear(tmp_path: Path) -> None:
    """What a recorder gives up is sampled no more, neither alike nor by priority nor in sequences."""
    store = _store(tmp_path / "store")
    envs = SyncVectorEnv([lambda index=index: Scripted(index, (50,)) for index in range(2)])
    buffers = [store.replay_buffer(100), store.replay_buffer(100, prioritized=el.Prioritized())]
    for buffer in buffers:
        with store.record(envs, buffer=buffer) as recorder:
            recorder.reset()
            for _ in range(10):
                recorder.step(np.zeros(2, int))
            assert len(buffer) == 20
            unit = buffer.sample(400).get("unit")
            recorder.discard([1])
            assert len(buffer) == 10
            assert not buffer.sample(400)["observation"][:, 0].any()
            assert not buffer.sample_sequences(20, 4)["observation"][:, :, 0].any()
            if unit is not None:
                buffer.update_priorities(unit, np.full(400, 5.0))
                assert not buffer.sample(400)["observation"][:, 0].any()
    store.refresh()
    assert _sampled(store.replay_buffer(100)) == _loaded(store)


def test_priorities(tmp_path: Path) -> None:
    """Units are drawn in proportion to their priorities, with their weights, and keep their numbers."""
    store = _store(tmp_path / "store")
    rule = el.Prioritized(alpha=1.0, beta=0.5, epsilon=0.0)
    buffer = store.replay_buffer(10, prioritized=rule)
    with store.record(Scripted(lengths=(100,)), buffer=buffer) as env:
        env.reset()
        for _ in range(14):
            env.step(0)
        batch = buffer.sample(500)
        assert set(batch["unit"]) == set(range(4, 14))
        np.testing.assert_array_equal(batch["observation"][:, 2], batch["unit"])
        assert (batch["weight"] == 1.0).all()
        buffer.update_priorities(np.arange(14), np.r_[np.zeros(12), 3.0, 1.0])
        batch = buffer.sample(4000)
        assert set(batch["unit"]) == {12, 13}
        assert 0.7 < (batch["unit"] == 12).mean() < 0.8
        np.testing.assert_allclose(batch["weight"], np.where(batch["unit"] == 12, 3**-0.5, 1.0))
        env.step(0)
        assert set(buffer.sample(500)["unit"]) == {12, 13, 14}
        for _ in range(10):
            env.step(0)
        buffer.update_priorities([14], [1e9])
        assert set(buffer.sample(500)["unit"]) == set(range(15, 25))
        spans = buffer.sample(500, n_step=3)
        np.testing.assert_array_equal(spans["next_observation"][:, 2] - spans["unit"], spans["span"])
        buffer.beta = 1.0
        assert buffer.beta == 1.0
        with pytest.raises(el.errors.InvalidArgumentError, match="no unit 25"):
            buffer.update_priorities([25], [1.0])


def test_nested_spaces(tmp_path: Path) -> None:
    """Dict observations come as dicts of arrays, images with their shape."""

    class Nested(Scripted):
        observation_space = Dict({"b": Box(0, 255, (4, 4, 3), np.uint8), "a": Discrete(1000)})

        def _shown(self) -> Any:
            return {"b": np.full((4, 4, 3), self.step_number, np.uint8), "a": self.step_number}

    store = el.create(tmp_path / "store", Nested())
    buffer = store.replay_buffer(20)
    with store.record(Nested(lengths=(40,)), buffer=buffer) as env:
        env.reset()
        for _ in range(30):
            env.step(0)
        batch = buffer.sample(100)
        assert (batch["next_observation"]["b"][:, 0, 0, 0] == batch["next_observation"]["a"]).all()
        assert (batch["next_observation"]["a"] == batch["observation"]["a"] + 1).all()
        assert set(batch["observation"]["a"]) == set(range(10, 30))
        sequences = buffer.sample_sequences(8, 6)
        assert sequences["observation"]["b"].shape == (8, 6, 4, 4, 3)
    loaded = next(iter(store.refresh().loader(2)))
    assert list(loaded["observation"]) == list(batch["observation"])
    assert loaded["observation"]["a"].dtype == batch["observation"]["a"].dtype


@pytest.mark.further
def test_one_thread_records_and_one_samples(tmp_path: Path) -> None:
    """Every batch that is sampled during recording has whole transitions, in every row buffer's turn."""
    store = _store(tmp_path / "store")
    buffer = store.replay_buffer(500)
    done = threading.Event()
    failures: list[BaseException] = []

    def record(env: Any) -> None:
        try:
            with store.record(env, buffer=buffer, seal_seconds=0.05, flush_seconds=0.01) as recorder:
                vector = isinstance(env, SyncVectorEnv)
                recorder.reset()
                for step in range(6_000):
                    result = recorder.step(np.full(4, step % 1000) if vector else step % 1000)
                    if not vector and (result[2] or result[3]):
                        recorder.reset()
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    for env in (Scripted(), SyncVectorEnv([lambda index=index: Scripted(index) for index in range(4)])):
        done.clear()
        thread = threading.Thread(target=record, args=(env,))
        thread.start()
        while not done.is_set():
            if len(buffer) < 20:
                continue
            batch = buffer.sample(64)
            assert (batch["next_observation"] - batch["observation"] == [0, 0, 1]).all()
            assert (batch["reward"] == batch["action"] + 1000 * batch["observation"][:, 2]).all()
            spans = buffer.sample(64, n_step=3)
            moved = spans["next_observation"][:, 2] - spans["observation"][:, 2]
            assert (moved == spans["span"]).all()
        thread.join(PATIENCE)
        assert not failures
        assert len(buffer) == 500
    assert _sampled(buffer) <= _loaded(store.refresh())


def test_the_seed_decides_the_draws(tmp_path: Path) -> None:
    """Buffers of one store draw alike with the same seed, and otherwise differently."""
    store = _store(tmp_path / "store")
    with store.record(Scripted()) as env:
        _play(env, Plain(1), 200)
    store.refresh()
    first, second, other = (store.replay_buffer(150, seed=seed) for seed in (1, 1, 2))
    for _ in range(3):
        expected = first.sample(20)["reward"]
        assert (second.sample(20)["reward"] == expected).all()
        assert (other.sample(20)["reward"] != expected).any()


def test_draws_are_uniform(tmp_path: Path) -> None:
    """Every transition comes about as often as the others."""
    store = _store(tmp_path / "store")
    buffer = store.replay_buffer(20)
    with store.record(Scripted(lengths=(100,)), buffer=buffer) as env:
        _play(env, Plain(1), 50)
        counts = np.unique(buffer.sample(20_000)["observation"][:, 2], return_counts=True)[1]
    assert len(counts) == 20
    assert ((counts - 1000) ** 2 / 1000).sum() < 60


def test_a_writer_feeds_a_buffer(tmp_path: Path) -> None:
    """Appended steps can be sampled at once; whole episodes, which would not be, are refused."""
    store = _store(tmp_path / "store")
    buffer, plain = store.replay_buffer(20), np.zeros(3, np.float32)
    values = pa.array([[0.0] * 3] * 2, pa.list_(pa.float32()))
    rows = pa.table(
        {"observation": values, "action": [0, None], "reward": [1.0, None], "episode": [1, 1]}
        | {"terminated": [True, None], "truncated": [False, None]}
    )
    with store.writer(buffer=buffer) as writer:
        episode = writer.begin(plain)
        for t in range(1, 6):
            episode.append(t % 2, float(t), plain + t, terminated=t == 5)
            assert len(buffer) == t
        episode.end()
        batch = buffer.sample(200)
        assert {*batch["reward"].tolist()} == {1.0, 2.0, 3.0, 4.0, 5.0}
        assert (batch["observation"][:, 0] == batch["reward"] - 1).all()
        assert (batch["terminated"] == (batch["reward"] == 5)).all()
        whole = {"observations": np.zeros((2, 3), np.float32), "actions": [0], "rewards": [1.0]}
        with pytest.raises(el.errors.InvalidArgumentError, match="begin"):
            writer.write_episode(**whole, terminations=True, truncations=False)
        with pytest.raises(el.errors.InvalidArgumentError, match="begin"):
            writer.write_episodes(rows)
    assert len(store.refresh()) == 1 and len(buffer) == 5
    with pytest.raises(el.errors.InvalidArgumentError, match="another store"):
        _store(tmp_path / "other").writer(buffer=buffer)


def test_errors(tmp_path: Path) -> None:
    """Wrong arguments are refused before anything is recorded."""
    store = _store(tmp_path / "store")
    buffer = store.replay_buffer(10)
    with pytest.raises(el.errors.InvalidArgumentError, match="no transition to sample"):
        buffer.sample(1)
    with pytest.raises(el.errors.InvalidArgumentError, match="no transition to sample"):
        buffer.sample_sequences(1, 1)
    with pytest.raises(el.errors.InvalidArgumentError, match="capacity=0"):
        store.replay_buffer(0)
    with pytest.raises(el.errors.RecorderStateError, match="prioritized"):
        buffer.update_priorities([0], [1.0])
    other = _store(tmp_path / "other")
    with pytest.raises(el.errors.InvalidArgumentError, match="another store"):
        other.record(Scripted(), buffer=buffer)
    assert not len(other.refresh().runs.collect())
    text = el.create(tmp_path / "text", observation_space=Text(5), action_space=Discrete(2))
    with pytest.raises(el.errors.InvalidArgumentError, match="no fixed shape"):
        text.replay_buffer(10)
