"""Frames of a replay: the recorded actions, taken again in the environment, which renders each step.

What the environment gives is compared with the record as it goes, as `Episode.replay` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...store.errors import EnvUnavailableError
from ..replaying.replay import Game, ReplayReport


class RenderedFrames:
    """Plays an episode once, and yields what the environment renders.

    Args:
        make_game: makes the game; called at once too, so that an argument that does not fit is refused now.
        env: the environment of the game, with the render mode `rgb_array`.
        length: of the episode.

    Attributes:
        env: the environment.
        report: the outcome of the comparison so far; None before the first frame.
    """

    def __init__(self, make_game: Callable[[], Game], env: Any, length: int) -> None:
        make_game()
        self._make_game = make_game
        self._length = length
        self.env = env
        self.report: ReplayReport | None = None

    def frames(self, steps: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each step with its frame, uint8 (H, W, 3); `steps` ascend.

        It ends early where the environment does.

        Raises:
            EnvUnavailableError: the environment renders no RGB arrays.
        """
        wanted = iter(steps)
        following = next(wanted, None)
        game = self._make_game()
        for made in game.play():
            while following == made:
                self.report = game.report()
                yield made, rendered(self.env)
                following = next(wanted, None)
            if following is None and made < self._length:
                return
        self.report = game.report()


def rendered(env: Any) -> np.ndarray:
    """Return what an environment shows now, uint8 (H, W, 3).

    Raises:
        EnvUnavailableError: it shows something else than an RGB array.
    """
    try:
        frame = env.render()
    except Exception as error:  # whatever the environment's own code raises
        raise EnvUnavailableError(
            f"The environment {env} cannot render here: {type(error).__name__}: {error}. Without a screen, "
            "environments of MuJoCo need the variable MUJOCO_GL=egl (or osmesa), set before Python starts."
        ) from error
    if isinstance(frame, list) and frame:
        frame = frame[-1]
    array = np.asarray(frame) if frame is not None else np.zeros(0)
    if array.ndim != 3 or array.shape[-1] not in (3, 4) or array.dtype != np.uint8:
        raise EnvUnavailableError(
            f"The environment {env} renders no RGB array (render_mode={getattr(env, 'render_mode', None)!r}, "
            f"got {type(frame).__name__}), so there is no video of it. Pass one that was made with "
            'render_mode="rgb_array": episode.video(env=env).'
        )
    return np.ascontiguousarray(array[..., :3])
