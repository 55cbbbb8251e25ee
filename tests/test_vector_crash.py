"""Crashes of vector recorders: what is recovered is what plain loops over the same environments saw."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import episodelake as el
from nasty_environments import Rollout, SmallEnv, assert_recorded
from strategies import same
from test_crash import BEGIN, killed, process
from vector_rollouts import MODES, alone
from waiting import PATIENCE, said

# `make test-crashes` runs them, and so does the continuous integration.
pytestmark = pytest.mark.slow

LENGTHS = (3, 1, 7, 1000)

# Sixty steps, each third of which is waited for until it is in the journal; then the process waits.
IDLE = (
    BEGIN
    + """
from gymnasium.vector import AutoresetMode, SyncVectorEnv
mode = AutoresetMode(sys.argv[2])
envs = SyncVectorEnv([lambda n=n: SmallEnv(n) for n in (3, 1, 7, 1000)], autoreset_mode=mode)
recorder = store.record(envs, run="idle", metadata={"who": "idle"}, flush_seconds=0.02, seal_seconds=1e6)
recorder.reset(seed=10, options={"o": 1})
for step in range(60):
    recorder.log(step=np.full(4, step))
    done = np.logical_or(*recorder.step(np.full((4, 2), step / 100, np.float32))[2:4])
    if mode is AutoresetMode.DISABLED and done.any():
        recorder.reset(options={"reset_mask": done})
    if step % 20 == 19:
        journalled(recorder, recorder.transitions, ended=recorder.episodes)
print("ready", flush=True)
time.sleep(600)
"""
)

# Steps that are sealed and flushed as often as it goes: more than are waited for, and no more than these.
LAST = 10_000
BUSY = (
    BEGIN
    + """
from gymnasium.vector import SyncVectorEnv
envs = SyncVectorEnv([lambda n=n: SmallEnv(n) for n in (3, 1, 7, 1000)])
recorder = store.record(envs, run="busy", flush_seconds=0.005, seal_seconds=0.02, segment_bytes=20_000)
recorder.reset(seed=10)
for step in range(LAST):
    recorder.step(np.full((4, 2), step % 1000 / 1000, np.float32))
    if step % 300 == 0:
        recorder.seal()
        print(step, flush=True)
time.sleep(600)
""".replace("LAST", str(LAST))
)


def makers() -> list[type[SmallEnv]]:
    """Return the makers of the environments that the processes play."""
    return [lambda n=n: SmallEnv(n) for n in LENGTHS]  # type: ignore[misc]


def expected(steps: int, mode: AutoresetMode, scale: float) -> list[list[Rollout]]:
    """Play what a process played, one environment after the other."""
    space = SyncVectorEnv(makers()).action_space
    taken = [np.full((4, 2), step % scale / scale, np.float32) for step in range(steps)]
    return alone(makers(), taken, mode, space)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_killed_recorder_is_recovered_whole(tmp_path: Path, mode: AutoresetMode) -> None:
    """Finished episodes and the parts of running ones that are in the journal come back, and nothing else."""
    path = tmp_path / "store"
    el.create(path, SmallEnv())
    with process(IDLE, path, mode.value) as child:
        said(child)
        child.send_signal(signal.SIGKILL)
        child.wait(PATIENCE)
    plain = expected(60, mode, 100)
    (run,) = el.recover(path)
    assert run.episodes == sum(map(len, plain)) and run.torn_bytes == 0
    assert run.steps == sum(len(rollout.actions) for rollouts in plain for rollout in rollouts)
    store = el.open(path)
    for index, rollouts in enumerate(plain):
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        assert len(own) == len(rollouts)
        for place, (episode, rollout) in enumerate(zip(own, rollouts, strict=True)):
            going_on = not (rollout.terminations[-1] or rollout.truncations[-1])
            assert_recorded(episode, rollout, SmallEnv(), "interrupted" if going_on else None)
            assert (episode.seed, episode.options) == ((10 + index, {"o": 1}) if place == 0 else (None, None))
            steps = episode.policy["step"].tolist()[: episode.length]
            assert steps == [round(float(action[0]) * 100) for action in rollout.actions]
    assert store.verify().faults == ()
    assert el.recover(path) == []


@pytest.mark.parametrize("lines", [1, 4, 9])
def test_a_recorder_killed_at_any_moment_loses_only_its_last_steps(tmp_path: Path, lines: int) -> None:
    """Sealed and recovered episodes are a beginning of what plain loops see, without gap or double."""
    path = tmp_path / "store"
    el.create(path, SmallEnv())
    killed(BUSY, path, lines)
    el.recover(path)
    store = el.open(path)
    assert store.verify().faults == ()
    plain = expected(LAST, AutoresetMode.NEXT_STEP, 1000)
    rows = []
    for index, rollouts in enumerate(plain):
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        for episode, rollout in zip(own, rollouts, strict=False):
            cut = rollout.cut(episode.length)
            whole = len(cut.actions) == len(rollout.actions)
            assert_recorded(episode, cut, SmallEnv(), None if whole else "interrupted")
        assert [e.end_reason for e in own[:-1]] == ["terminated"] * (len(own) - 1)
        rows.append(sum(episode.length + 1 for episode in own))
    assert min(rows) >= 300 * (lines - 1)
    assert max(rows) - min(rows) <= 1


INTERRUPTED = (
    BEGIN
    + """
import random, signal
from gymnasium.vector import AutoresetMode, SyncVectorEnv

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
mode = AutoresetMode(sys.argv[2])
rng = random.Random(int(sys.argv[3]))
envs = SyncVectorEnv([lambda n=n: SmallEnv(n) for n in (3, 1, 7, 1000)], autoreset_mode=mode)
recorder = store.record(envs, flush_seconds=0.001, seal_seconds=0.01, segment_bytes=10_000)
still = np.zeros((4, 2), np.float32)

def play():
    recorder.reset(seed=10)
    while True:
        done = np.logical_or(*recorder.step(still)[2:4])
        if mode is AutoresetMode.DISABLED and done.any():
            recorder.reset(options={"reset_mask": done})

attempt = 0
while attempt < 40 or recorder.episodes < 60:
    attempt += 1
    try:
        # Longer each time: on a slow machine the first ones may come before the first step.
        signal.setitimer(signal.ITIMER_REAL, (0.002 + rng.random() * 0.02) * (1 + attempt / 40))
        try:
            play()
        except el.EpisodelakeError:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        pass
recorder.close()
"""
)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_interrupts_at_any_line_leave_whole_episodes(tmp_path: Path, mode: AutoresetMode) -> None:
    """Whatever line an interrupt hits, what is stored are beginnings of true episodes, none of them twice."""
    path = tmp_path / "store"
    el.create(path, SmallEnv())
    with process(INTERRUPTED, path, mode.value, "1") as child:
        assert child.wait(PATIENCE) == 0
    store = el.open(path)
    assert store.verify().faults == ()
    rows = store.episodes.collect()
    assert rows.height > 40 and rows["number"].n_unique() == rows.height
    for episode in store:
        times = episode.observations[:, 0]
        assert same(times, np.arange(episode.length + 1, dtype=np.float32))
        assert [info["t"] for info in episode.infos] == list(range(episode.length + 1))
        whole = episode.length == LENGTHS[episode.env_index]
        assert episode.end_reason == ("terminated" if whole else "cut")
        assert episode.episode_return == sum(episode.rewards)
