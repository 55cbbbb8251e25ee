"""`episode.frames()` and `episode.video()`: where the frames come from, and which of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ..episode import Episode
    from .video import Video

#: How `steps` can be given.
Steps = int | slice | Sequence[int] | np.ndarray | None


class PicturedEpisode:
    """The part of an episode that shows frames."""

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
        from .video import all_frames

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
        """A video of the episode: of its recorded images, or else of a replay in its environment.

        It shows itself in a notebook; `.save("episode.mp4")` writes it, and `.gif` and `.png`. A replay takes
        the recorded actions in the environment, made again as by `EpisodeStore.make_env` without trust, and
        compares
        what comes with the record: `report` says where they differ, and a `RuntimeWarning` does.

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
        from .video import make_video

        episode: Any = self
        return make_video(episode, steps, column, layout, env, fps)


def chosen_steps(episode: Episode, steps: Steps) -> range | list[int]:
    """The steps that are asked for, each from 0 to T.

    Raises:
        InvalidArgumentError: one is outside, or is no whole number; or there is none.
    """
    count = episode.length + 1
    if steps is None:
        return range(count)
    if isinstance(steps, slice):
        try:
            found: range | list[int] = range(count)[steps]
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"steps={steps!r} is no slice of steps: {error}.") from error
    else:
        found = [_step(step, count) for step in ([steps] if np.ndim(steps) == 0 else list(steps))]  # type: ignore[arg-type]
    if not len(found):
        raise InvalidArgumentError(f"steps={steps!r} chooses none of the {count} steps of {episode.id}.")
    return found


def _step(step: Any, count: int) -> int:
    try:
        number = operator.index(step)
    except TypeError as error:
        raise InvalidArgumentError(f"{step!r} is no step; expected whole numbers.") from error
    if isinstance(step, bool) or not -count <= number < count:
        raise InvalidArgumentError(f"There is no step {step!r}: the episode has the steps 0 to {count - 1}.")
    return number % count
