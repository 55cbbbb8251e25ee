"""`EpisodeVideo`: frames of an episode that are made as they are needed, for a file or a notebook."""

from __future__ import annotations

import base64
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ...store.common.arguments import positive_number, whole_number
from ...store.errors import (
    EpisodelakeError,
    InvalidArgumentError,
    NothingToDrawError,
    UntrustedEnvError,
)
from ...store.files import temporary_folder, user_path
from ...store.schema import StepSchema
from ..episode_data import EpisodeData
from ..replaying.rendering import RenderedFrames
from ..replaying.replay import ReplayReport
from ..replaying.run_envs import RunEnv
from .images import (
    Steps,
    chosen_steps,
    image_column,
    image_columns,
    recorded_frames,
    recorded_packets,
    small_images,
)
from .writing import FORMATS, PLAYED_CODECS, SHEET_FRAMES, Packets, copy_mp4, write_gif, write_mp4, write_png

FPS = 30.0
#: The most frames per second.
FASTEST = 1000
#: A notebook keeps what it shows, so it is shown a part of long videos.
SHOWN_FRAMES = 1_500
SHOWN_BYTES = 20_000_000
REPLAY = "replay"

FrameSource = Callable[[Sequence[int]], Iterator[tuple[int, np.ndarray]]]


class EpisodeVideo:
    """Frames of an episode, made one at a time whenever they are asked for.

    Iterating gives pairs of a step and its frame, uint8 (H, W, 3); `len()` is the number of steps that were
    asked for. Nothing of it is kept, so a long episode takes no more memory than a short one.

    Attributes:
        episode_id: the episode.
        source: the column of recorded images, or "replay".
        steps: of the frames.
        fps: frames per second.
    """

    def __init__(
        self,
        episode_id: str,
        source: str,
        make: FrameSource,
        steps: Sequence[int],
        fps: float,
        rendered: Any = None,
        packets: Callable[[], Packets] | None = None,
    ) -> None:
        self.episode_id = episode_id
        self.source = source
        self.steps = steps
        self.fps = fps
        self._make = make
        self._rendered = rendered
        self._packets = packets
        self._page: str | None = None

    @property
    def report(self) -> ReplayReport | None:
        """Report of the last replay, as far as it was played; None before one, and for recorded images."""
        return None if self._rendered is None else self._rendered.report

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each step with its frame."""
        yield from self._make(self.steps)
        if self.difference:
            warnings.warn(self.difference, RuntimeWarning, stacklevel=2)

    @property
    def difference(self) -> str:
        """How the last replay differs from the recording, as sentences; empty if it does not."""
        report = self.report
        if report is None or report.same:
            return ""
        unseeded = "" if report.seed is not None else " The episode has no seed to start from."
        return (
            f"The replay differs from the recording: {report.first_difference}.{unseeded} "
            "Its frames from that step on are not those of the episode."
        )

    def save(self, path: str | PathLike[str], *, lossless: bool = False, scale: int | None = None) -> Path:
        """Write the video, or a picture of it.

        Frames that the store encodes as h264 or av1 come into an `.mp4` as they are, without decoding, if the
        video has all of the episode, and neither `lossless` nor `scale` is given.

        Args:
            path: its suffix says what: `.mp4`, `.gif`, or `.png` (a single frame, or a sheet of up to 12 of
                them). A file that is there is replaced, once the new one is whole.
            lossless: of `.mp4`, keep every pixel as it is; not every player shows such files. GIF is exact as
                long as a frame has no more than 256 colours, PNG always.
            scale: how many pixels wide and high each pixel becomes; None for 1, or more for small frames
                that are encoded.

        Returns:
            The path.

        Raises:
            InvalidArgumentError: another suffix or scale.
            MissingPackageError: PyAV or Pillow is not installed.
            StoreAccessError: the file cannot be written.
            CorruptStoreError, EnvUnavailableError: a frame cannot be read or rendered; nothing is written.
        """
        target = user_path(path)
        kind = target.suffix.lower()
        if kind not in FORMATS:
            raise InvalidArgumentError(f"{target.name!r}: expected a name that ends in {', '.join(FORMATS)}.")
        if scale is not None:
            scale = whole_number("scale", scale, 1, 64)
        if kind == ".png":
            count = len(self)
            places = np.unique(np.linspace(0, count - 1, min(count, SHEET_FRAMES)).round().astype(int))
            part = self.chosen([self.steps[place] for place in places.tolist()])
            write_png(_any_frames(part), target, scale)
        elif kind == ".gif":
            write_gif(_any_frames(self), target, self.fps, scale)
        else:
            packets = self._packets() if self._packets and scale is None and not lossless else None
            write_mp4(_any_frames(self), target, self.fps, lossless=lossless, scale=scale, packets=packets)
        return target

    def chosen(self, steps: Sequence[int]) -> EpisodeVideo:
        """Return the same with other steps."""
        return EpisodeVideo(self.episode_id, self.source, self._make, steps, self.fps, self._rendered)

    def _repr_html_(self) -> str:
        """Return a player with the video in it; of a long one, evenly spaced frames."""
        if self._page is None:
            self._page = _page(self)
        return self._page

    def __repr__(self) -> str:
        """Return the episode, the number of frames and their source."""
        return f"EpisodeVideo({self.episode_id!r}, {len(self)} frames of {self.source}, {self.fps:g} fps)"


def make_video(
    episode: EpisodeData, steps: Steps, column: str | None, layout: str | None, env: Any, fps: float | None
) -> EpisodeVideo:
    """Return the video of an episode; see `Episode.video`."""
    if fps is not None:
        fps = positive_number("fps", fps, FASTEST)
    named = column is not None or layout is not None
    recorded = env is None and (named or image_columns(episode._own_schema)) and not episode.agents
    chosen = chosen_steps(episode, steps, episode._observation_count if recorded else episode.length + 1)
    if episode.agents:
        return _video_of_game(episode, chosen, env, fps)
    if recorded:
        image = image_column(episode._own_schema, column, layout)
        frames = partial(recorded_frames, episode, image)
        whole = chosen == range(episode._observation_count) and "K" not in image.layout
        copied = whole and is_played(episode.schema, image.name)
        packets = partial(recorded_packets, episode, image) if copied else None
        fps = fps or recorded_fps(episode)
        return EpisodeVideo(episode.id, image.name, frames, chosen, fps, packets=packets)
    if hasattr(episode, "agent_id"):
        raise NothingToDrawError(
            f"The observations of this agent hold no images.{small_images(episode._own_schema)} It cannot be "
            "replayed alone.",
            hint=f"Replay the episode in an environment of PettingZoo: store[{episode.id!r}].video(env=env).",
        )
    if named:
        raise InvalidArgumentError(
            "column= and layout= choose recorded images; with env= the episode is replayed."
        )
    _check_ascending(chosen)
    rendered = RenderedFrames(episode, _made_env(episode) if env is None else env, close=env is None)
    return EpisodeVideo(
        episode.id, REPLAY, rendered.frames, chosen, fps or _fps_of(rendered.env.metadata), rendered
    )


def is_played(schema: StepSchema, column: str) -> bool:
    """Return whether browsers play the packets that a store has of a column."""
    encoding = schema.encodings.get(column)
    return encoding is not None and encoding.codec in PLAYED_CODECS


def _video_of_game(episode: EpisodeData, steps: Sequence[int], env: Any, fps: float | None) -> EpisodeVideo:
    if env is None:
        raise InvalidArgumentError(
            f"{episode.id!r} has several agents.",
            hint=f"Choose one, episode.agent({episode.agents[0]!r}).video(), or replay them all in an "
            "environment of PettingZoo with render_mode='rgb_array': video(env=env).",
        )
    _check_ascending(steps)
    rendered = RenderedFrames(episode, env)
    return EpisodeVideo(episode.id, REPLAY, rendered.frames, steps, fps or _fps_of(env.metadata), rendered)


def _check_ascending(steps: Sequence[int]) -> None:
    if list(steps) != sorted(steps):
        raise InvalidArgumentError("A replay runs forward only: give steps that ascend.")


def all_frames(video: EpisodeVideo) -> np.ndarray:
    """Return all frames of a video in one array."""
    frames, count = np.empty(0, np.uint8), 0
    for _, frame in _any_frames(video):
        if not count:
            frames = np.empty((len(video), *frame.shape), np.uint8)
        frames[count] = frame
        count += 1
    return frames[:count]


def _any_frames(video: EpisodeVideo) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the steps and frames of a video; at least one."""
    shown = None
    for shown in video:
        yield shown
    if shown is None:
        raise NothingToDrawError(
            f"The replay of {video.episode_id} ended before the steps that were asked for."
        )


def _made_env(episode: EpisodeData) -> gymnasium.Env:
    try:
        return RenderedFrames.remake_env(episode)
    except UntrustedEnvError as error:
        raise NothingToDrawError(
            f"{episode.id} has no images.{small_images(episode.schema)} A replay needs your trust: "
            f"{error.problem}",
            hint="If you trust the author of the store: "
            'episode.video(env=store.make_env(trust=True, render_mode="rgb_array")).',
        ) from error
    except EpisodelakeError as error:
        raise NothingToDrawError(
            f"{episode.id} has no images.{small_images(episode.schema)} Its environment cannot be made again "
            f"to replay it: {error.problem}",
            hint="To replay it in one of your own: episode.video(env=env).",
        ) from error


def _fps_of(metadata: Any) -> float:
    fps = metadata.get("render_fps") if isinstance(metadata, dict) else None
    return float(fps) if isinstance(fps, int | float) and 0 < fps <= FASTEST else FPS


def recorded_fps(episode: EpisodeData) -> float:
    """Return the frame rate of the environment's class if its module is already imported, else `FPS`."""
    try:
        run: RunEnv = RunEnv.chosen(RunEnv.of_runs(episode._rows.snapshot), episode.run_id)
    except EpisodelakeError:
        return FPS
    spec = gymnasium.registry.get(run.env_id or "")
    entry = spec.entry_point if spec is not None else None
    if isinstance(entry, str):
        module, _, name = entry.partition(":")
        entry = getattr(sys.modules.get(module), name, None)
    return _fps_of(getattr(entry, "metadata", None))


def _page(video: EpisodeVideo) -> str:
    caption = [escape(f"{len(video):,} frames of {video.source}, {video.fps:g} fps")]
    every = -(-len(video) // SHOWN_FRAMES)
    with temporary_folder("episodelake-video-") as folder:
        path = Path(folder) / "video.mp4"
        try:
            with warnings.catch_warnings():
                # What a replay warns of stands in the caption.
                warnings.simplefilter("ignore", RuntimeWarning)
                whole = every > 1 and video._packets and copy_mp4(video._packets(), path, video.fps)
                if every > 1 and (not whole or path.stat().st_size > SHOWN_BYTES):
                    video.chosen(video.steps[::every]).save(path)
                    caption.append(f"every {every}th frame is shown; save() writes all")
                elif not whole:
                    video.save(path)
        except Exception as error:  # a notebook shows it; the environment's own code may raise anything
            return f"<p><strong>No video:</strong> {escape(str(error) or type(error).__name__)}</p>"
        size = path.stat().st_size
        if size > SHOWN_BYTES:
            large = f"The video has {size / 1e6:.0f} MB, too much for a notebook"
            return f"<p>{large}: save it with .save(path), or choose fewer steps.</p>"
        content = base64.b64encode(path.read_bytes()).decode()
    if video.report is not None:
        caption.append(_checked(video.report))
    return (
        '<figure style="margin:0"><video controls loop muted autoplay playsinline '
        'style="max-width:100%;max-height:480px;min-width:240px;image-rendering:pixelated" '
        f'src="data:video/mp4;base64,{content}"></video>'
        f'<figcaption style="font-size:0.85em;opacity:0.75">{"; ".join(caption)}</figcaption></figure>'
    )


def _checked(report: ReplayReport) -> str:
    """Return the result of a replay as HTML."""
    if not report.same:
        difference = escape(str(report.first_difference))
        return f"<strong>the replay differs from the record</strong>: {difference}"
    if report.compared < report.transitions:
        return f"the replay is the same as the record up to step {report.compared:,}"
    return "the replay is the same as the record"
