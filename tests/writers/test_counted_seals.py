"""`flush_steps`, `seal_steps` and `seal_episodes`: journal and tables follow by count, not by time.

Time plays no part here: `flush_seconds` and `seal_seconds` are longer than any test.
"""

import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.testing.adapters import case
from episodelake.writers.session.seal_queue import SealQueue
from waiting import PATIENCE, journals, steps_told, wait_until

LATER: Any = {"flush_seconds": 1e6, "seal_seconds": 1e6}
LENGTH = 5


class Counting(gymnasium.Env):
    """Episodes of five steps whose observations count them."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Begin."""
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """Count."""
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == LENGTH, False, {}


@pytest.fixture
def store(tmp_path):
    """Return a store for `Counting`."""
    return el.create(tmp_path / "store", Counting())


def journalled(store) -> int:
    """Return how many transitions an independent reader finds in the journal of the one live run."""
    (journal,) = journals(Path(str(store.path)))
    return steps_told(journal)


def visible(store) -> int:
    """Return how many episodes a reader sees now."""
    return len(store.refresh())


@pytest.mark.parametrize("every", [1, 3, 7])
def test_writer_flushes_by_steps(every, store):
    """Fewer rows than asked ever wait, however many episodes are open, and all do without the option."""
    with store.writer(flush_steps=every, **LATER) as writer, store.writer(**LATER) as idle:
        directory = Path(str(store.path)) / "journal" / writer.run_id
        other = idle.begin(np.zeros(1, np.float32))
        open_episodes = [writer.begin(np.zeros(1, np.float32)) for _ in range(2)]
        for t in range(1, 20):
            for episode in (*open_episodes, other):
                episode.append(0, 1.0, np.full(1, t % 9, np.float32))
            told = steps_told(directory)
            assert 2 * t - every < told <= 2 * t
            assert every > 1 or told == 2 * t
            assert steps_told(directory.parent / idle.run_id) == 0


@pytest.mark.parametrize("length", [20, 200])
def test_whole_episodes_flush_by_steps(length, store):
    """Arrays reach the journal by the same count, short ones and those that stay in memory otherwise."""
    with store.writer(flush_steps=300, **LATER) as writer:
        for count in range(1, 30):
            write(writer, length)
            assert count * length - 300 < journalled(store) <= count * length


def write(writer, length):
    """Write an episode of this length."""
    writer.write_episode(
        observations=np.zeros((length + 1, 1), np.float32),
        actions=np.zeros(length, int),
        rewards=np.ones(length),
        terminations=True,
        truncations=False,
    )


@pytest.mark.parametrize("options", [{"seal_episodes": 3}, {"seal_steps": 3 * LENGTH}])
def test_episodes_show_by_count(options, store):
    """Two episodes wait, and the third shows all of them; nothing else is written for time."""
    with store.writer(**options, **LATER) as writer:
        for count in range(1, 10):
            write(writer, LENGTH)
            wait_until(lambda count=count: visible(store) >= count - count % 3, "a seal by count")
            assert visible(store) == count - count % 3
    assert visible(store) == 9


def test_each_episode_shows_as_soon_as_it_ends(store):
    """With 1, an episode that ended shows while others are open, and needs no call after it."""
    with store.writer(seal_episodes=1, durability="none", **LATER) as writer:
        left_open = writer.begin(np.zeros(1, np.float32))
        left_open.append(0, 1.0, np.zeros(1, np.float32))
        for count in range(1, 6):
            write(writer, 2 if count % 2 else 300)
            wait_until(lambda count=count: visible(store) == count, "the episode that ended")
    assert visible(store) == 6


def test_seals_that_are_slower_than_episodes_gather_them(store):
    """Many episodes in no time make few segments, all show without a further call, and none twice."""
    with store.writer(seal_episodes=1, **LATER) as writer:
        for _ in range(300):
            write(writer, 2)
        wait_until(lambda: visible(store) == 300, "all episodes")
        assert store.episodes.collect()["segment"].n_unique() < 250


@pytest.mark.parametrize("options", [{"seal_episodes": 2}, {"seal_steps": 10}])
def test_episodes_that_end_before_a_commit_is_noted_show(options, store, monkeypatch):
    """Readers see a commit before its writer notes it; episodes that end in between are sealed, too."""
    noted, commit = threading.Event(), SealQueue._commit

    def commit_and_wait(queue: SealQueue, job: Any) -> None:
        commit(queue, job)
        assert noted.wait(PATIENCE)

    monkeypatch.setattr(SealQueue, "_commit", commit_and_wait)
    envs = gymnasium.vector.SyncVectorEnv([Counting] * 2)
    with store.record(envs, **options, **LATER) as recorder:
        recorder.reset()
        for _ in range(LENGTH + 1):
            recorder.step(np.zeros(2, int))
        wait_until(lambda: visible(store) == 2, "the first episodes")
        for _ in range(LENGTH + 1):
            recorder.step(np.zeros(2, int))
        noted.set()
        wait_until(lambda: visible(store) == 4, "the episodes that ended meanwhile")


def test_collect_takes_the_options(store):
    """`collect` hands them to the recorder that it opens."""
    el.collect(Counting(), None, store, episodes=4, seal_episodes=1, flush_steps=2, seed=0)
    assert visible(store) == 4


def test_counts_are_whole_numbers(store):
    """Anything else raises and names the option."""
    for name in ("flush_steps", "seal_steps", "seal_episodes"):
        for value in (0, -1, 1.5, True, "1"):
            with case((name, value)), pytest.raises(el.errors.InvalidArgumentError, match=name):
                store.writer(**{name: value})
