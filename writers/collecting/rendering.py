"""Rendering while a policy plays: the environment's own `render`, and a pause, after every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import sleep
from typing import Any

import numpy as np

from ...store.errors import InvalidArgumentError
from ..recorders.pool_recorder import is_pool


def checked_pause(render: Any) -> float | None:
    """Return the seconds to wait after each rendered step; None for no rendering.

    Raises:
        InvalidArgumentError: it is neither a bool nor a finite number of at least 0.
    """
    if render is None or isinstance(render, bool | np.bool_):
        return 0.0 if render else None
    if not isinstance(render, int | float | np.number) or not 0 <= render < math.inf:
        raise InvalidArgumentError(
            f"render={render!r}: expected True, False, or the seconds to wait after each step, at least 0."
        )
    return float(render)


def check_render_mode(env: Any) -> None:
    """Refuse an environment that cannot be rendered.

    Raises:
        InvalidArgumentError: it is a pool, or has no render mode.
    """
    if is_pool(env):
        raise InvalidArgumentError(
            f"render was given, but {type(env).__name__} is a pool, whose environments are stepped in "
            "threads of their own. Collect from a single environment to watch the policy."
        )
    if getattr(env, "render_mode", None) is None:
        raise InvalidArgumentError(
            f"render was given, but {env} has no render mode. Make the environment with one, such as "
            'gymnasium.make(id, render_mode="human").'
        )


def renderer(env: Any, pause: float | None) -> Callable[[], None] | None:
    """Return a function that renders an environment and waits; None for no rendering."""
    if pause is None:
        return None

    def render() -> None:
        env.render()
        if pause:
            sleep(pause)

    return render
