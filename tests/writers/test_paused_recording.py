"""Pausing, discarding, and going on without a reset: what is stored, against plain loops."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv

import episodelake as el
from agent_environments import Comings
from effort import some, with_folders
from episodelake.testing.adapters import case
from nasty_environments import (
    SmallEnv,
    new_store,
)
from plain_agents import play_parallel, random_policy

PUSH = np.zeros(2, np.float32)


def steps(env: Any, count: int) -> None:
    """Take some steps."""
    for _ in range(count):
        env.step(PUSH)


def shapes(store: el.EpisodeStore) -> list[tuple[int, str, int | None]]:
    """Return length, end reason and seed of every episode, in order."""
    return [(episode.length, episode.end_reason, episode.seed) for episode in store.refresh()]


KILLED = """
import os, signal, sys
import numpy as np
import episodelake as el
from gymnasium.vector import SyncVectorEnv
from nasty_environments import SmallEnv

store = el.open(sys.argv[1])
kind, durability, when = sys.argv[2:]
envs = SmallEnv(9) if kind == "single" else SyncVectorEnv([lambda: SmallEnv(9)] * 2)
recorder = store.record(envs, run="a", durability=durability, flush_seconds=1e6, seal_seconds=1e6)
for seed in range(3):
    recorder.reset(seed=seed)
    for _ in range(5):
        recorder.step(np.zeros(recorder.action_space.shape, np.float32))
if when == "journalled":
    recorder.flush()
recorder.discard_episode(*([1] if kind == "vector" else []))
if when != "journalled":
    recorder.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


_NO_RECOVERY_BRINGS_A_DISCARDED: Any = [
    *itertools.product(
        [("single", "flush"), ("single", "fsync"), ("single", "none"), ("vector", "flush")],
        ["journalled", "in memory"],
    )
]


@pytest.mark.parametrize("cases", some(_NO_RECOVERY_BRINGS_A_DISCARDED, 2))
@pytest.mark.further
def test_no_recovery_brings_a_discarded_episode_back(tmp_path: Path, cases: Any) -> None:
    """Whether its rows were in the journal when it was discarded or not."""
    for folder, ((kind, durability), when) in with_folders(cases, tmp_path):
        with case((kind, durability, when)):
            new_store(folder, SmallEnv(9))
            path = folder / "store"
            folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            command = [sys.executable, "-c", KILLED, str(path), kind, durability, when]
            done = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)}, timeout=120
            )
            assert done.returncode == -signal.SIGKILL
            el.recover(path)
            store = el.open(path)
            if kind == "single":
                assert shapes(store) == [(5, "cut", 0), (5, "cut", 1)]
            else:
                found = sorted((e.env_index, e.seed, e.end_reason) for e in store)
                kept = [(0, 0, "cut"), (0, 1, "cut"), (0, 2, "interrupted"), (1, 1, "cut"), (1, 2, "cut")]
                assert found == kept and {e.length for e in store} == {5}
            assert not store.verify().faults


@pytest.mark.parametrize("flushed", [False, True])
def test_an_open_episode_is_discarded_beside_others(tmp_path: Path, flushed: bool) -> None:
    """The others go on, and the discarded one takes nothing more."""
    store = new_store(tmp_path, SmallEnv())
    with store.writer(flush_seconds=1e6, seal_seconds=1e6) as writer:
        kept, gone = (writer.begin(np.zeros(3, np.float32), seed=seed) for seed in (1, 2))
        for episode in (kept, gone, kept):
            episode.append(PUSH, 1.0, np.ones(3, np.float32))
        if flushed:
            writer.flush()
        gone.discard()
        if flushed:
            (part,) = (tmp_path / "store" / "journal").rglob("*.frames")
            assert b'"discard"' in part.read_bytes()
        for call in (gone.discard, gone.end, lambda: gone.append(PUSH, 1.0, np.ones(3, np.float32))):
            with pytest.raises(el.errors.RecorderStateError, match="has ended"):
                call()
        kept.append(PUSH, 1.0, np.ones(3, np.float32), terminated=True)
        kept.end()
        with pytest.raises(el.errors.RecorderStateError, match="has ended"):
            kept.discard()
    assert shapes(store) == [(3, "terminated", 1)]
    assert not store.verify().faults


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException) -> None:
    """Have the next call of a method fail before it does anything, and the later ones work."""
    method = getattr(owner, name)

    def failing(*args: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        raise error

    monkeypatch.setattr(owner, name, failing)


_A_DISCARD_THAT_FAILS_MAY_BE_RE: Any = [*itertools.product([True, False], ["forget", "flush"], [False, True])]


@pytest.mark.parametrize("cases", some(_A_DISCARD_THAT_FAILS_MAY_BE_RE, 2))
def test_a_discard_that_fails_may_be_repeated(tmp_path: Path, cases: Any) -> None:
    """Interrupted anywhere, or without a journal, nothing of the episode is stored, not even by `close`."""
    for folder, (repeated, place, team) in with_folders(cases, tmp_path):
        with case((repeated, place, team)), pytest.MonkeyPatch.context() as monkeypatch:
            here = np.zeros(3, np.float32)
            spaces = Box(-9, 9, (3,), np.float32), Box(-1, 1, (2,), np.float32)
            names = ("observation_space", "action_space")
            kind: dict[str, Any] = (
                {"agents": {"a": spaces}} if team else dict(zip(names, spaces, strict=True))
            )
            store = el.create(folder / "store", **kind)
            options = {"flush_seconds": 1e6, "seal_seconds": 1e6}
            with (store.team_writer if team else store.writer)(**options) as writer:
                gone = writer.begin({"a": here} if team else here)
                step = [PUSH, 1.0, here]
                gone.append(*([{"a": value} for value in step] if team else step))
                writer.flush()
                session = writer.session
                owner = session.finished if place == "forget" else session
                error = KeyboardInterrupt() if place == "forget" else el.errors.StoreAccessError("full")
                once(monkeypatch, owner, place, error)
                with pytest.raises(type(error)):
                    gone.discard()
                with pytest.raises(el.errors.RecorderStateError, match="has ended"):
                    gone.append(*([{"a": value} for value in step] if team else step))
                if repeated:
                    gone.discard()
                    (part,) = (folder / "store" / "journal").rglob("*.frames")
                    assert b'"discard"' in part.read_bytes()
                    with pytest.raises(el.errors.RecorderStateError, match="has ended already"):
                        gone.discard()
            assert len(store.refresh()) == 0 and not store.verify().faults


# Several agents


def test_a_callback_goes_on_with_all_agents_that_are_there(tmp_path: Path) -> None:
    """Whom the environment took away ends; the others begin the next episode where they are."""
    plain = Comings()
    lanes = play_parallel(plain, random_policy(plain, 1), 1)
    splits = (3, 5)

    def split(step: el.types.StepData) -> el.types.StepData:
        at = step.agent == "tank_0" and step.t > 0 and made[-1] in splits
        return replace(step, truncated=at or step.truncated, end="continue" if at else False)

    class Counting(Comings):
        def step(self, actions: dict[str, Any]) -> Any:
            result = super().step(actions)
            made.append(self._step)
            return result

    made = [0]
    store = el.create(tmp_path / "store", Comings())
    with store.record(Counting(), step_callback=split, state=True) as recorder:
        play_parallel(recorder, random_policy(recorder, 1), 1)
    episodes: list[Any] = list(store.refresh())
    assert [(e.length, e.seed) for e in episodes] == [(3, 1), (2, None), (3, None)]
    assert [sorted(e.agents) for e in episodes] == [
        ["scout_0", "scout_1", "tank_0"],
        ["scout_1", "tank_0"],
        ["scout_1", "tank_0", "tank_1"],
    ]
    assert [e.agent("tank_0").end_reason for e in episodes] == ["truncated"] * 3
    for name in lanes:
        lane, parts = lanes[name], [e.agent(name) for e in episodes if name in e.agents]
        assert np.concatenate([part.rewards for part in parts]).tolist() == lane.rewards
        seen = [step for e in episodes if name in e.agents for step in e.agent(name).infos]
        assert len(seen) == len(lane.infos) + len(parts) - 1
    assert [e.states[:, 0].tolist() for e in episodes] == [[0, 1, 2, 3], [3, 4, 5], [5, 6, 7, 8]]
    assert not store.verify().faults


# Many environments


def go_on(step: el.types.StepData) -> el.types.StepData:
    """Go on with the next episode wherever the environment has made two steps."""
    return replace(step, end="continue" if step.observation[0] == 2 else False)


def test_which_environment_is_meant_must_be_said(tmp_path: Path) -> None:
    """Without an index, and for one that does not exist, nothing is discarded."""
    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 3)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=0)
        recorder.step(np.zeros((3, 2), np.float32))
        wrong: list[Any] = [None, -1, 3, 1.0, True, [0, 0], [], [True, False, False], "0"]
        for each in wrong:
            with pytest.raises(el.errors.InvalidArgumentError, match="from 0 to 2"):
                recorder.discard_episode(each)
        recorder.discard_episode(np.array([2]))
        with pytest.raises(el.errors.RecorderStateError, match=r"\[2\]"):
            recorder.discard_episode([0, 2])
        assert [each is None for each in recorder.episode_ids] == [False, False, True]
    assert {episode.env_index for episode in store.refresh()} == {0, 1}


def _push(observation: Any, info: Any, state: Any) -> Any:
    return PUSH


def test_collect_takes_no_paused_recorder_and_counts_what_goes_on(tmp_path: Path) -> None:
    """A pause is refused at once, and an episode that a callback begins is an episode."""
    store = new_store(tmp_path, SmallEnv(9))
    with store.record(SmallEnv(9), step_callback=go_on) as recorder:
        recorder.pause()
        with pytest.raises(el.errors.RecorderStateError, match="resume"):
            el.collect(recorder, _push, store, episodes=1)
        recorder.resume()
        assert el.collect(recorder, _push, store, episodes=3).episodes == 3
    assert [episode.length for episode in store.refresh()][:3] == [2, 7, 2]
    vector = el.create(tmp_path / "vector", SmallEnv(9))
    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 2)
    with vector.record(envs, step_callback=go_on) as recorder:
        policy = lambda observations, infos, state: np.zeros((2, 2), np.float32)  # noqa: E731
        assert el.collect(recorder, policy, vector, steps=18).steps == 18
    assert sorted(episode.length for episode in vector.refresh()) == [2, 2, 7, 7]


@pytest.mark.parametrize("vector", [False, True])
def test_a_continued_episode_keeps_the_chosen_infos(tmp_path: Path, vector: bool) -> None:
    """Its row 0 has no info that was not selected, and its callback sees its own observations."""
    seen = []

    def remember(episode: el.types.EpisodeSummary) -> None:
        seen.append(np.asarray(episode.observations).tolist())

    def go_on(step: el.types.StepData) -> el.types.StepData | None:
        return replace(step, truncated=True, end="continue") if step.t == 2 else None

    class Told(gym.Env):
        """Counts its steps and tells two infos."""

        observation_space = gym.spaces.Discrete(20)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> tuple[int, dict]:
            """Begin at 0."""
            self.t = 0
            return self.t, {"kept": self.t, "left": "out"}

        def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
            """Count on to 5."""
            self.t += 1
            return self.t, 1.0, self.t == 5, False, {"kept": self.t, "left": "out"}

    store = el.create(tmp_path / "store", Told())
    env: Any = SyncVectorEnv([Told]) if vector else Told()
    recorder = store.record(env, step_callback=go_on, episode_callback=remember, record_infos=("kept",))
    with recorder as env:
        env.reset()
        for _ in range(5):
            env.step(np.zeros(1, int) if vector else 0)
    episodes = list(store.refresh())
    assert [episode.observations.tolist() for episode in episodes] == [[0, 1, 2], [2, 3, 4], [4, 5]] == seen
    infos = [[info for info in episode.infos] for episode in episodes]
    assert infos == [[{"kept": t} for t in rows] for rows in ([0, 1, 2], [2, 3, 4], [4, 5])]
