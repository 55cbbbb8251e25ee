"""The vector recorder: every autoreset mode and every kind of environment, against one-by-one rollouts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import episodelake as el
from episodelake.testing.adapters import case
from episodelake.writers.recorders.env_recording import EnvRecording
from episodelake.writers.rows import vector_buffer
from episodelake.writers.session import seal_queue
from nasty_environments import (
    SmallEnv,
    Speaker,
)
from strategies import same
from vector_rollouts import MODES, Maker, alone, assert_all, batches, together
from waiting import PATIENCE

LENGTHS = (3, 1, 4, 2)
MODE_NAMES = [mode.value for mode in MODES]


class Pictures(SmallEnv):
    """Observes pictures, and acts by a number."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(length, action_space=spaces.Discrete(4, start=2))
        self.observation_space = spaces.Box(0, 255, (6, 5, 3), np.uint8)

    def look(self) -> Any:
        """Draw the next one."""
        return self.np_random.integers(256, size=(6, 5, 3), dtype=np.uint8)

    def earn(self, action: Any) -> Any:
        """Earn the action."""
        return float(action)


def of(kind: Any, lengths: tuple[int, ...] = LENGTHS, **arguments: Any) -> list[Maker]:
    """Return makers of environments of one class and of these lengths."""
    return [lambda length=length: kind(length, **arguments) for length in lengths]


KINDS: dict[str, list[Maker]] = {"small": of(SmallEnv), "pictures": of(Pictures), "text": of(Speaker)}


def new_store(folder: Path, envs: VectorEnv, **arguments: Any) -> el.EpisodeStore:
    """Return an empty store for a vector environment."""
    return el.create(folder / "store", envs, **arguments)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_worker_processes_are_recorded_alike(tmp_path: Path, mode: AutoresetMode) -> None:
    """An AsyncVectorEnv gives the same episodes, with shared memory and without."""
    shared_memory = mode is not AutoresetMode.DISABLED
    makers = KINDS["small"]
    envs = AsyncVectorEnv(makers, shared_memory=shared_memory, copy=False, autoreset_mode=mode)
    taken = batches(envs, 8)
    store = new_store(tmp_path, envs)
    with store.record(envs) as recorder:
        together(recorder, taken, mode)
    assert_all(store, alone(makers, taken, mode, envs.action_space), SmallEnv())


def test_a_native_vector_environment_is_recorded_as_a_plain_loop_sees_it(tmp_path: Path) -> None:
    """CartPole in its own vector code: every episode is a stretch of what a plain loop sees."""
    number = 5
    envs, bare = (
        gym.make_vec("CartPole-v1", num_envs=number, vectorization_mode="vector_entry_point")
        for _ in range(2)
    )
    rng = np.random.default_rng(1)
    taken = [rng.integers(2, size=number) for _ in range(120)]
    seen = [bare.reset(seed=5)[0]]
    results = [bare.step(actions) for actions in taken]
    seen += [result[0] for result in results]
    store = new_store(tmp_path, envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=5)
        for actions in taken:
            recorder.step(actions)
    store.refresh()
    for env in range(number):
        start = 0
        for episode in sorted((e for e in store if e.env_index == env), key=lambda e: e.number):
            stop = start + episode.length
            assert same(episode.observations, np.array([batch[env] for batch in seen[start : stop + 1]]))
            assert episode.actions.tolist() == [actions[env] for actions in taken[start:stop]]
            assert episode.rewards.tolist() == [result[1][env] for result in results[start:stop]]
            ended = [bool(result[2][env] or result[3][env]) for result in results[start:stop]]
            assert ended[:-1] == [False] * (episode.length - 1)
            assert ended[-1] == (episode.end_reason != "cut")
            start = stop + 1
        assert start == len(seen) or start == len(seen) + (0 if ended[-1] else 1) - 1
    assert store.verify().faults == ()


def test_the_seed_of_a_native_vector_environment_belongs_to_no_episode(tmp_path: Path) -> None:
    """One generator serves all: the seed stands in the metadata of the first episodes and is nobody's own."""
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
    store = new_store(tmp_path, envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=5)
        recorder.step(np.zeros(2, np.int64))
    assert [episode.seed for episode in store.refresh()] == [None, None]
    assert [episode.metadata for episode in store] == [{"vector_seed": 5}] * 2


def test_seeds_may_be_a_list(tmp_path: Path) -> None:
    """Each sub-environment of a list of seeds has its own; None is none that is known."""
    envs = SyncVectorEnv(KINDS["small"])
    store = new_store(tmp_path, envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=[7, 2**70, 0, 3])
        recorder.step(np.zeros((4, 2), np.float32))
    assert sorted((episode.env_index, episode.seed) for episode in store.refresh()) == [
        (0, 7),
        (1, 2**70),
        (2, 0),
        (3, 3),
    ]


def test_a_mask_that_the_environment_refuses_ends_nothing(tmp_path: Path) -> None:
    """The error of Gymnasium passes through, and the episodes go on."""
    envs = SyncVectorEnv(of(SmallEnv, (5, 5)), autoreset_mode=AutoresetMode.DISABLED)
    store = new_store(tmp_path, envs)
    still = np.zeros((2, 2), np.float32)
    with store.record(envs) as recorder:
        recorder.reset(seed=1)
        recorder.step(still)
        for mask in (np.zeros(2, bool), np.ones(3, bool), [True, True]):
            with pytest.raises((ValueError, TypeError)):
                recorder.reset(options={"reset_mask": mask})
        recorder.step(still)
    assert [episode.length for episode in store.refresh()] == [2, 2]


def test_an_unknown_mode_is_a_clear_error(tmp_path: Path) -> None:
    """A mode that is none of Gymnasium's, or that nobody says, is refused with the three there are."""
    for number, stated in enumerate([{"autoreset_mode": "sometimes"}, {"autoreset_mode": 3}, {}, None]):
        with case(stated):
            _check_an_unknown_mode_is_a_clear_error(tmp_path / str(number), stated)


def _check_an_unknown_mode_is_a_clear_error(tmp_path: Path, stated: Any) -> None:
    envs = SyncVectorEnv(KINDS["small"])
    store = new_store(tmp_path, envs)
    envs.metadata = stated
    with pytest.raises(el.errors.InvalidArgumentError, match="'NextStep', 'SameStep', 'Disabled'"):
        store.record(envs)
    assert el.recover(tmp_path / "store") == []


@pytest.mark.parametrize("look", ["ended", "transitions", "step"])
def test_the_journal_thread_in_the_middle_of_a_flush_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """Whoever asks while another thread works out what the last steps came to sees all of it, or none."""
    envs = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    store = el.create(tmp_path / "store", envs)
    inside, go_on = threading.Event(), threading.Event()
    put = EnvRecording._put

    def slow_put(self: EnvRecording, block: Any, count: int, state: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            # As `put` does it, with the other thread coming in between.
            block.counted = (count, len(block.begins), len(block.ends))
            inside.set()
            go_on.wait(PATIENCE)
        put(self, block, count, state)

    class Settling:
        """The lock around pending steps; the other thread goes on when the main thread asks for it."""

        lock = threading.Lock()

        def __enter__(self) -> None:
            if threading.current_thread() is threading.main_thread():
                go_on.set()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    zero = np.zeros(3, np.int64)
    with store.record(envs, flush_seconds=1e6, seal_seconds=1e6) as recorder:
        recorder.reset(seed=1)
        while recorder.ended is None:
            recorder.step(zero)
        recorder.step(zero)
        monkeypatch.setattr(EnvRecording, "_put", slow_put)
        monkeypatch.setattr(recorder.recording, "_pending_lock", Settling())
        flush = threading.Thread(target=recorder.recording.record_pending)
        flush.start()
        assert inside.wait(PATIENCE)
        if look == "step":
            recorder.log(value=zero)
            recorder.step(zero)
        found = recorder.ended if look == "ended" else None, recorder.transitions
        go_on.set()
        flush.join(PATIENCE)
        assert recorder.transitions == found[1]
        assert found[0] is recorder.ended or look != "ended"
    assert store.refresh().transitions.collect().height == found[1]
    assert not store.verify().faults


def test_recording_goes_on_at_once_after_failed_seals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorder with more seals than may wait tries them again itself, whatever `flush_seconds` says."""
    monkeypatch.setattr(vector_buffer, "_MOST_ROWS", 8)
    envs = SyncVectorEnv([lambda: SmallEnv(3)] * 2)
    store = new_store(tmp_path, envs)
    options = el.types.SessionOptions(flush_seconds=1e5, seal_seconds=1e5, segment_bytes=1)
    refused = 0

    def refuse(*_: object) -> None:
        raise el.errors.StoreAccessError("The disk is full.")

    with el.types.VectorRecorder(envs, store, options=options) as recorder:
        recorder.reset(seed=0)
        for step in range(200):
            with monkeypatch.context() as patched:
                if step < 100:
                    patched.setattr(seal_queue, "seal_segment", refuse)
                try:
                    recorder.step(np.zeros((2, 2), np.float32))
                except el.errors.StoreAccessError:
                    refused += 1
                    recorder.step(np.zeros((2, 2), np.float32))
        # A reset takes every fourth step.
        assert recorder.transitions == 2 * 150
    assert refused and store.refresh().episodes.collect()["length"].to_list() == [3] * 100
