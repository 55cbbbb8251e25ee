"""`RenderedFrames`: what an environment renders while an episode is played in it again."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from ...store.errors import EnvUnavailableError
from ..episode_data import EpisodeData
from .environment import remake_env
from .replay import ReplayReport, SoloGame
from .run_envs import RunEnv
from .team_replay import team_game


class RenderedFrames:
    """Plays an episode again, and yields what the environment renders.

    Args:
        episode: of one agent or of several.
        env: the environment, with the render mode `rgb_array`; of several agents one of PettingZoo.
        close: close the environment with this object.

    Raises:
        InvalidArgumentError, SpaceMismatchError: it is not one for the episode.
        EnvUnavailableError: it has another render mode.

    Attributes:
        env: the environment.
        report: the outcome of the comparison so far; None before the first frame.
    """

    def __init__(self, episode: EpisodeData, env: Any, *, close: bool = False) -> None:
        try:
            self._make_game = partial(team_game if episode.agents else SoloGame, episode, env)
            # What does not fit is refused now.
            self._make_game()
            mode = getattr(env, "render_mode", None)
            if mode not in ("rgb_array", "rgb_array_list") or (episode.agents and mode != "rgb_array"):
                raise EnvUnavailableError(
                    f'The environment has render_mode={mode!r}. Make it with render_mode="rgb_array".',
                    hint="" if episode.agents else 'store.make_env(render_mode="rgb_array") does.',
                )
        except BaseException:
            if close:
                env.close()
            raise
        if close:
            weakref.finalize(self, env.close)
        self._length = episode.length
        self.env = env
        self.report: ReplayReport | None = None

    @staticmethod
    def remake_env(episode: EpisodeData) -> gymnasium.Env:
        """Return the environment of the episode's run, made again to be rendered.

        Raises:
            UntrustedEnvError: the store chooses code or paths.
            EnvUnavailableError: it cannot be made again here.
        """
        snapshot = episode._rows.snapshot
        run: RunEnv = RunEnv.chosen(RunEnv.of_runs(snapshot), episode.run_id)
        return remake_env(snapshot, run, stacklevel=5, render_mode="rgb_array")

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
                yield made, _rendered(self.env)
                following = next(wanted, None)
            if following is None and made < self._length:
                return
        self.report = game.report()


def _rendered(env: Any) -> np.ndarray:
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
