"""Replaying all episodes of a context."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium

from ..context import ReadContext
from ..iteration import iterate
from .environment import remake_env
from .replay import ReplayReport
from .run_envs import chosen_run, run_envs_of


def replay_all(context: ReadContext, env: Any, rtol: float, atol: float) -> list[ReplayReport]:
    """Replay every episode; see `EpisodeView.replay`."""
    if env is not None:
        return [episode.replay(env, rtol=rtol, atol=atol) for episode in iterate(context)]
    envs = run_envs_of(context)
    made: dict[str, gymnasium.Env] = {}
    reports = []
    with contextlib.ExitStack() as stack:
        for episode in iterate(context):
            run_id = episode.run_id
            if run_id not in made:
                again = remake_env(context.snapshot, chosen_run(envs, run_id), stacklevel=3)
                made[run_id] = stack.enter_context(contextlib.closing(again))
            reports.append(episode.replay(made[run_id], rtol=rtol, atol=atol))
    return reports
