"""Crashes of vector recorders: what is recovered is what plain loops over the same environments saw."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import episodelake as el
from nasty_environments import Rollout, SmallEnv, assert_recorded
from test_crash import BEGIN, process
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
