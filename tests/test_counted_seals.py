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
from agent_environments import Comings
from episodelake.store.errors import StoreAccessError
from episodelake.writers.session.journal import RunJournal
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


def test_recorders_flush_each_step_before_it_returns(store):
    """With 1, each step of an environment stands in the journal when it returns."""
    with store.record(Counting(), flush_steps=1, **LATER) as env:
        done = True
        for steps in range(1, 13):
            if done:
                env.reset()
            done = env.step(0)[2]
            assert journalled(store) == steps


@pytest.mark.parametrize("mode", gymnasium.vector.AutoresetMode)
@pytest.mark.parametrize("every", [1, 10])
def test_vector_recorders_flush_by_steps(mode, every, store):
    """The rows of all sub-environments count, in every autoreset mode."""
    envs = gymnasium.vector.SyncVectorEnv([Counting] * 3, autoreset_mode=mode)
    with store.record(envs, flush_steps=every, **LATER) as recorder:
        recorder.reset()
        done = np.zeros(3, bool)
        for _ in range(17):
            if mode is gymnasium.vector.AutoresetMode.DISABLED and done.any():
                recorder.reset(options={"reset_mask": done})
            done = recorder.step(np.zeros(3, int))[2]
            assert recorder.transitions - every < journalled(store) <= recorder.transitions
    assert visible(store) == recorder.episodes


def test_agents_flush_by_steps(tmp_path):
    """A step of a multi-agent environment is in the journal, whole, when it returns."""
    store = el.create(tmp_path / "agents", Comings())
    with store.record(Comings(), flush_steps=1, **LATER) as env:
        env.reset(seed=0)
        (journal,) = journals(tmp_path / "agents")
        seen = 0
        while env.agents:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            size = sum(part.stat().st_size for part in journal.iterdir())
            assert size > seen
            seen = size


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


def test_journal_that_fails_raises_before_the_next_step(store, monkeypatch):
    """The step that could not be journalled is recorded; the next raises before the environment moves."""
    env = Counting()
    with store.record(env, flush_steps=1, **LATER) as recorder:
        recorder.reset()
        recorder.step(0)
        with monkeypatch.context() as broken:
            broken.setattr(RunJournal, "write", failing)
            recorder.step(0)
            for _ in range(2):
                with pytest.raises(StoreAccessError, match="disk"):
                    recorder.step(0)
            assert env.t == 2
        assert journalled(store) == 1
        for _ in range(3):
            recorder.step(0)
        assert journalled(store) == LENGTH
    assert store.refresh()[0].length == LENGTH


def test_journal_that_fails_raises_before_the_next_vector_step(store, monkeypatch):
    """The same for many environments at once."""
    envs = gymnasium.vector.SyncVectorEnv([Counting] * 2)
    with store.record(envs, flush_steps=1, **LATER) as recorder:
        recorder.reset()
        with monkeypatch.context() as broken:
            broken.setattr(RunJournal, "write", failing)
            recorder.step(np.zeros(2, int))
            with pytest.raises(StoreAccessError, match="disk"):
                recorder.step(np.zeros(2, int))
        recorder.step(np.zeros(2, int))
        assert journalled(store) == 4
        assert [env.unwrapped.t for env in envs.envs] == [2, 2]  # type: ignore[attr-defined]


def failing(*_):
    """Fail as a full disk does."""
    raise StoreAccessError("the disk is full")


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


@pytest.mark.parametrize("durability", ["flush", "none"])
@pytest.mark.parametrize(
    "options", [{"seal_episodes": 2}, {"seal_steps": 10}, {"seal_episodes": 1, "flush_steps": 1}]
)
def test_vector_episodes_show_by_count(options, durability, store):
    """Episodes of a vector environment show with the step behind the one that ended them."""
    envs = gymnasium.vector.SyncVectorEnv([Counting] * 2)
    with store.record(envs, durability=durability, **options, **LATER) as recorder:
        recorder.reset()
        for _ in range(3):
            for _ in range(LENGTH + 1):
                recorder.step(np.zeros(2, int))
            ended = recorder.episodes
            wait_until(lambda ended=ended: visible(store) == ended, "the episodes of the round")
    assert visible(store) == recorder.episodes


@pytest.mark.parametrize("durability", ["flush", "none"])
@pytest.mark.parametrize("options", [{"seal_episodes": 2}, {"seal_steps": 10}])
def test_episodes_that_end_before_a_commit_is_noted_show(options, durability, store, monkeypatch):
    """Readers see a commit before its writer notes it; episodes that end in between are sealed, too."""
    noted, commit = threading.Event(), SealQueue._commit

    def commit_and_wait(queue: SealQueue, job: Any) -> None:
        commit(queue, job)
        assert noted.wait(PATIENCE)

    monkeypatch.setattr(SealQueue, "_commit", commit_and_wait)
    envs = gymnasium.vector.SyncVectorEnv([Counting] * 2)
    with store.record(envs, durability=durability, **options, **LATER) as recorder:
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


@pytest.mark.parametrize("name", ["flush_steps", "seal_steps", "seal_episodes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_counts_are_whole_numbers(name, value, store):
    """Anything else raises and names the option."""
    with pytest.raises(el.errors.InvalidArgumentError, match=name):
        store.writer(**{name: value})
