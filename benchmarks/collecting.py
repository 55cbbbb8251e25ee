"""Collecting: the overhead of `collect` per transition over a bare loop, and Tianshou's.

Both sides play 64 natively vectorised CartPoles. Ours writes every transition to disk and is measured until
all is sealed; Tianshou's collector puts them into a replay buffer in memory. The overhead is the time of the
collection minus the time of the bare loop on the same side, resets included.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import cartpoles
import episodelake as el
from measure import Row, Samples, interleave, overhead
from setting import Setting

COUNT = 64
WORK = f"collect from {COUNT} native CartPoles"


def run(setting: Setting) -> list[Row]:
    """Measure both sides, and the share of the recorder alone."""
    steps = COUNT * setting.choose(20_000, 500)
    their_steps = COUNT * setting.choose(2_000, 200)
    ask = partial(setting.tianshou.ask, count=COUNT, steps=their_steps)
    sides: dict[str, Any] = {
        "bare": lambda: _bare(steps),
        "recorded": lambda: _recorded(steps, setting),
        "collected": lambda: _collected(steps, setting),
        "their bare": lambda: ask("bare", kind="native")["seconds"],
        "theirs": lambda: ask("collect", kind="native")["seconds"],
        "dummy bare": lambda: ask("bare", kind="dummy")["seconds"],
        "dummy": lambda: ask("collect", kind="dummy")["seconds"],
    }
    found = interleave(sides, setting.repeats)
    ours = overhead(found["collected"], found["bare"], steps)
    theirs = overhead(found["theirs"], found["their bare"], their_steps)
    dummy = overhead(found["dummy"], found["dummy bare"], their_steps)
    recorder = overhead(found["recorded"], found["bare"], steps)
    unit = "us/transition"
    bare = _each(found["bare"], steps)
    return [
        Row(WORK, unit, ours, "Tianshou Collector", theirs),
        Row(WORK, unit, ours, "Tianshou Collector, its DummyVectorEnv", dummy),
        Row(f"{WORK}, against a loop with a recorder", unit, ours, "VectorRecorder", recorder),
        Row(f"{WORK}, the whole call", unit, _each(found["collected"], steps), "bare loop", bare),
    ]


def _each(seconds: list[float], steps: int) -> Samples:
    return Samples(tuple(value / steps * 1e6 for value in seconds))


def _bare(steps: int) -> float:
    envs = cartpoles.make_native(COUNT)
    start = time.perf_counter()
    _play(envs, steps)
    return time.perf_counter() - start


def _recorded(steps: int, setting: Setting) -> float:
    envs = cartpoles.make_native(COUNT)
    recorder = el.create(setting.fresh("recorded"), envs).record(envs)
    start = time.perf_counter()
    _play(recorder, steps)
    recorder.close()
    return time.perf_counter() - start


def _play(envs: Any, steps: int) -> None:
    """Take at least `steps` transitions, not counting steps that reset."""
    observations, _ = envs.reset(seed=0)
    taken, resetting = 0, 0
    while taken < steps:
        observations, _, terminated, truncated, _ = envs.step(cartpoles.balance(observations))
        taken += COUNT - resetting
        resetting = int((terminated | truncated).sum())


def _collected(steps: int, setting: Setting) -> float:
    envs = cartpoles.make_native(COUNT)
    store = el.create(setting.fresh("collected"), envs)
    start = time.perf_counter()
    el.collect(envs, _policy, store, steps=steps, seed=0)
    return time.perf_counter() - start


def _policy(observation: Any, info: Any, state: Any) -> Any:
    return cartpoles.balance(observation)
