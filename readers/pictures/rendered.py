"""Frames of a replay: the recorded actions, taken again in the environment, which renders each step.

What the environment gives is compared with the record as it goes, as `Episode.replay` does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from ...store.batches import single_value
from ...store.errors import EnvUnavailableError
from ..replaying.replay import Comparison, Difference, Played, ReplayReport
from ..replaying.run_envs import run_envs
from ..replaying.team_replay import TeamGame, api_of

if TYPE_CHECKING:
    from ..agents import MultiAgentEpisode
    from ..episode import Episode

#: Steps that are played before they are compared.
_BATCH = 64


class RenderedFrames:
    """Plays an episode once, and hands out what the environment renders.

    Args:
        episode: of one agent.
        env: with the render mode `rgb_array`.

    Attributes:
        env: the environment.
        report: what came of the comparison so far; None before the first frame.
    """

    def __init__(self, episode: Episode, env: gymnasium.Env) -> None:
        self._episode = episode
        self.env = env
        self.report: ReplayReport | None = None

    def frames(self, steps: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Each step with its frame, uint8 (H, W, 3); `steps` ascend.

        It ends early where the environment does.

        Raises:
            EnvUnavailableError: the environment renders no RGB arrays.
        """
        wanted = iter(steps)
        following = next(wanted, None)
        differences: list[Difference] = []
        compared = 0
        comparison = Comparison(self._episode, self._episode.schema, 0.0, 0.0)
        batch: list[Played] = []
        for t, played in enumerate(self._played()):
            batch.append(played)
            if len(batch) >= _BATCH or t == self._episode.length or t == following:
                if not differences:
                    differences = comparison.compare(batch, compared)
                compared += len(batch)
                batch = []
                self._note(differences, compared)
            while following == t:
                yield t, rendered(self.env)
                following = next(wanted, None)
            if following is None and t < self._episode.length:
                return
        if batch and not differences:
            self._note(comparison.compare(batch, compared), compared + len(batch))

    def _note(self, differences: list[Difference], played: int) -> None:
        same = differences[0].step - 1 if differences else played - 1
        episode = self._episode
        self.report = ReplayReport(episode.id, episode.seed, episode.length, max(0, same), tuple(differences))

    def _played(self) -> Iterator[Played]:
        episode, env = self._episode, self.env
        observation, _ = env.reset(seed=episode.seed, options=episode.options)
        yield Played(copy.deepcopy(observation))
        for t in range(episode.length):
            action = copy.deepcopy(single_value(episode.actions, t))
            observation, reward, terminated, truncated, info = env.step(action)
            flags = (bool(terminated), bool(truncated))
            if any(flags) and "final_obs" in info:
                observation = info["final_obs"]
            yield Played(copy.deepcopy(observation), copy.deepcopy(reward), flags)
            if any(flags):
                return


class RenderedGame:
    """The same of an episode of several agents, in an environment of PettingZoo.

    Args:
        episode: of several agents.
        env: with the render mode `rgb_array`.

    Attributes:
        env: the environment.
        report: what came of the comparison so far; None before the first frame.
    """

    def __init__(self, episode: MultiAgentEpisode, env: Any) -> None:
        self._episode = episode
        self.env = env
        self.report: ReplayReport | None = None
        self._api = api_of_run(episode)
        # What does not fit is told now, not with the first frame.
        TeamGame(episode, env, self._api)

    def frames(self, steps: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Each step of the environment with its frame; see `RenderedFrames.frames`."""
        wanted = iter(steps)
        following = next(wanted, None)
        game = TeamGame(self._episode, self.env, self._api)
        for made in game.play():
            while following == made:
                self.report = game.report()
                yield made, rendered(self.env)
                following = next(wanted, None)
            if following is None and made < self._episode.length:
                return
        self.report = game.report()


def api_of_run(episode: MultiAgentEpisode) -> str | None:
    """Through which API of PettingZoo an episode was recorded; None if its run does not say."""
    kept = run_envs(episode._rows.snapshot).get(episode.run_id)
    return api_of(kept.spec if kept else None)


def rendered(env: Any) -> np.ndarray:
    """What an environment shows now, uint8 (H, W, 3).

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
