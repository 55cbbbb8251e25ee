"""`Episode`: one rollout, and everything that can be done with it.

Charts, pictures, replays and cards are made from the values of its base, `EpisodeData`, so none of them needs
this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..store.common.optional_packages import EXPLORE, require
from ..store.common.suggestions import missing_attribute
from ..store.errors import InvalidArgumentError
from .episode_data import EpisodeData
from .pictures.images import Steps
from .replaying.replay import ReplayReport, replay

if TYPE_CHECKING:
    from .pictures.video import Video
    from .plots.chart import AnyChart


class Episode(EpisodeData):
    """One episode of a snapshot: T transitions, T+1 observations.

    It can be pickled while the files of its version are there.

    Attributes:
        position: its position in the snapshot.
        length: number of transitions T.
    """

    # Type checkers find names that are not there by themselves.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError that has the names most like an unknown one."""
            raise missing_attribute(self, name, {"episode_id": "id"})

    def agent(self, agent_id: str) -> Episode:
        """Return one agent of a multi-agent episode, as an episode of its own.

        Raises:
            InvalidArgumentError: the episode has no such agent.
        """
        raise InvalidArgumentError(f"{self.id!r} has a single agent, and no {agent_id!r}.")

    def plot(self, signals: Sequence[str] | None = None) -> AnyChart:
        """Return the episode over its steps: reward, actions, and what of the observation is a few numbers.

        Args:
            signals: what to draw instead: "reward", "action", "observation", "info", "policy", columns such
                as "observation.place", or single signals such as "observation[2]".

        Returns:
            A chart of Altair with a panel for each element (for each column where that would be more than
            twelve); zooming in one zooms in all. Discrete actions of many steps are ticks. Beyond 2,000 steps
            it holds the smallest and the largest value of equal stretches, and its subtitle says so.

        Raises:
            NothingToDrawError: nothing of it is a few numbers at every step.
            InvalidArgumentError: there is no such signal.
            MissingPackageError: Altair is not installed.
            CorruptStoreError: the steps are damaged.
        """
        require("altair", "A chart", EXPLORE)
        from .plots.episode_chart import draw_episode

        return draw_episode(self, signals)

    def frames(
        self, steps: Steps = None, *, column: str | None = None, layout: str | None = None, env: Any = None
    ) -> np.ndarray:
        """Frames of the episode as one array.

        Args:
            steps: which: None for all T+1, a step t, a slice, or a sequence of steps; negative ones count
                from the end.
            column, layout, env: as for `video`.

        Returns:
            uint8, shape (n, H, W, 3), owned by the caller; of one step n is 1. Of recorded images only the
            row groups that hold the steps are read.

        Raises:
            as for `video`.
        """
        from .pictures.video import all_frames

        return all_frames(self.video(steps, column=column, layout=layout, env=env))

    def video(
        self,
        steps: Steps = None,
        *,
        column: str | None = None,
        layout: str | None = None,
        env: Any = None,
        fps: float | None = None,
    ) -> Video:
        """Return a video of the episode: of its recorded images, or else of a replay in its environment.

        It shows itself in a notebook; `.save("episode.mp4")` writes it, and `.gif` and `.png`. A replay takes
        the recorded actions in the environment, made again as by `EpisodeStore.make_env` without trust, and
        compares what comes with the record: `report` says where they differ, and a `RuntimeWarning` does.

        Args:
            steps: which steps: None for all, a slice such as `slice(0, 500, 2)`, or a sequence.
            column: the image to show where an observation has several, such as "observation.camera".
            layout: what the axes of the image are, such as "CHW", where its shape does not tell; of "KHW",
                stacked images, the last is shown.
            env: an environment with `render_mode="rgb_array"` to replay in, even where images were recorded.
                The caller keeps it and closes it.
            fps: frames per second; None for what the environment says (`metadata["render_fps"]`), or 30.

        Raises:
            NothingToDrawError: there are no images, and the environment cannot be made again; the message
                says why.
            EnvUnavailableError: the environment renders no images.
            InvalidArgumentError: no such column, layout or step; the episode has several agents and no `env`.
        """
        from .pictures.video import make_video

        return make_video(self, steps, column, layout, env, fps)

    def replay(self, env: Any = None, *, rtol: float = 0.0, atol: float = 0.0) -> ReplayReport:
        """Reset an environment with the recorded seed and options, take the recorded actions, and compare.

        Args:
            env: an environment of the same kind (a `gymnasium.Env`); None to make that of the run again, as
                `EpisodeStore.make_env` does without trust, and to close it afterwards.
            rtol, atol: how far numbers may be apart, as for `numpy.isclose`; with 0 for both they are
                compared exactly. NaN equals NaN.

        Returns:
            The first step at which an observation, a reward, terminated or truncated differs, if any does.
            Infos are not compared. An episode that was cut is played to where it was cut.

        Raises:
            InvalidArgumentError: `env` is no single environment.
            SpaceMismatchError: its spaces are not those of the store.
            EnvUnavailableError, UntrustedEnvError: without `env`, it cannot be made again.
        """
        return replay(self, env, rtol, atol)

    def _repr_html_(self) -> str:
        """Return a card: what is known of the episode, its signals, and some frames of images."""
        from .cards.episode_card import episode_card

        return episode_card(self)

    def __repr__(self) -> str:
        """Id, length, return and end reason in one line."""
        return (
            f"Episode({self.id!r}, length={self.length}, episode_return={self.episode_return}, "
            f"end_reason={self.end_reason!r})"
        )
