"""Recording: the overhead of a recorder per step, ours and Minari's `DataCollector`.

Overhead is the time of the loop with the recorder minus the time of the same loop over the bare environment.
Ours runs from the first reset until `seal` has committed everything. Minari's stepping includes writing each
finished episode; with `create_dataset` it is a separate row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym

import environments
import episodelake as el
from measure import Row, interleave, overhead
from setting import FORMATS, Setting

TARGET = 1 / 20
WORK = {
    "synthetic": "record 17 floats in, 6 out",
    "halfcheetah-replayed": "record HalfCheetah with infos, from memory",
    "halfcheetah": "record HalfCheetah with infos, simulated",
}


def run(setting: Setting) -> list[Row]:
    """Measure all three environments."""
    few = setting.choose(20_000, 3_000)
    rows = _record("synthetic", setting, setting.choose(300_000, 20_000), few)
    rows += _record("halfcheetah-replayed", setting, setting.choose(100_000, 10_000), few)
    # The simulator's own time varies by more than a recorder costs, so the difference needs more repeats.
    return rows + _record("halfcheetah", replace(setting, repeats=2 * setting.repeats), few, few)


def _record(name: str, setting: Setting, steps: int, minari_steps: int) -> list[Row]:
    """Measure one environment. The bare loop of each side runs in the same round as its recorded loops."""
    env = environments.make(name)
    actions = environments.make_actions(env)
    ask = partial(setting.minari.ask, env=name, steps=minari_steps)
    sides: dict[str, Any] = {
        "ours": lambda: environments.seconds_stepping(env, actions, steps),
        "ours recorded": lambda: _seconds_recorded(env, actions, steps, setting),
        "bare": partial(ask, "bare"),
    }
    for form in FORMATS:
        sides[form] = partial(ask, "record", data_format=form, infos=name != "synthetic")
    measured = interleave(sides, setting.repeats)
    ours = overhead(measured["ours recorded"], measured["ours"], steps)
    bare = [answer["seconds"] for answer in measured["bare"]]

    def row(peer: str, seconds: Sequence[float], target: float | None) -> Row:
        theirs = overhead(seconds, bare, minari_steps)
        return Row(WORK[name], "us/step", ours, peer, theirs, ratio_target=target)

    rows = []
    for form in FORMATS:
        stepping = [answer["stepping"] for answer in measured[form]]
        with_dataset = [answer["stepping"] + answer["creating"] for answer in measured[form]]
        rows.append(row(f"Minari {form}", stepping, TARGET))
        rows.append(row(f"Minari {form} with create_dataset", with_dataset, None))
    return rows


def _seconds_recorded(env: gym.Env, actions: list[Any], steps: int, setting: Setting) -> float:
    """Return the seconds of the loop with our recorder, until all its episodes are committed.

    Closing the recorder closes the environment too, after which all of these can still be reset and stepped.
    """
    recorder = el.create(setting.fresh("recorded"), env).record(env)
    start = time.perf_counter()
    environments.run_steps(recorder, actions, steps)
    recorder.seal()
    seconds = time.perf_counter() - start
    recorder.close()
    return seconds
