"""Frames and videos: recorded images and replays, compared with plain loops and with files decoded again."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import ale_py
import av
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from PIL import Image

import episodelake as el
from agent_environments import Comings
from episodelake.readers.blocks import SegmentFile
from episodelake.readers.pictures import video as videos
from episodelake.readers.pictures.images import image_columns
from picture_stores import HOSTILE, Page, cartpole, decoded, is_harmless, pictures, play
from plain_agents import play_parallel, random_policy
from test_cli import call, refused
from waiting import PATIENCE

gymnasium.register_envs(ale_py)
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> tuple[el.EpisodeStore, np.ndarray]:
    """Forty steps of Breakout, and its frames as a plain loop over the same environment sees them."""
    env = gymnasium.make("ALE/Breakout-v5")
    store = el.create(tmp_path_factory.mktemp("ale") / "store", env)
    with store.record(env, run="atari") as recorder:
        play(recorder, 7, 40)
    plain = gymnasium.make("ALE/Breakout-v5")
    plain.action_space.seed(7)
    frames = [plain.reset(seed=7)[0]]
    frames += [plain.step(plain.action_space.sample())[0] for _ in range(40)]
    return store.refresh(), np.stack(frames)


@pytest.fixture(scope="module")
def pole(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Two episodes of CartPole, which has no images."""
    return cartpole(tmp_path_factory.mktemp("pole") / "store", range(2))


def test_a_shape_that_is_no_image_says_so(pole: el.EpisodeStore) -> None:
    """A column without the axes of an image is refused with its shape and the layouts, not with None."""
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"has the shape \(4,\), which is no image\. Layouts"
    ):
        pole[0].frames(column="observation")


SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")
UNSEEN = ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT")


@pytest.mark.further
def test_a_replay_without_a_screen_says_nothing_of_it(pole: el.EpisodeStore, tmp_path: Path) -> None:
    """Where no variable tells of a screen, a film is made without a word of SDL or pygame."""
    surroundings = {name: value for name, value in os.environ.items() if name not in (*SCREENS, *UNSEEN)}
    program = "import sys, episodelake as el; el.open(sys.argv[1])[0].video().save(sys.argv[2])"
    made = subprocess.run(
        [sys.executable, "-c", program, str(pole.path), str(tmp_path / "film.gif")],
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
    assert (tmp_path / "film.gif").stat().st_size


@pytest.mark.parametrize(
    ("given", "mode", "expected"),
    [
        ({}, "rgb_array", ["dummy", "dummy", "1"]),
        ({}, None, [None, None, None]),
        ({"SDL_VIDEODRIVER": "offscreen"}, "rgb_array", ["offscreen", "dummy", "1"]),
        ({"DISPLAY": ":0"}, "rgb_array", [None, None, None]),
    ],
)
def test_what_the_user_set_for_screens_stays(
    pole: el.EpisodeStore,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    mode: str | None,
    expected: list[str | None],
) -> None:
    """Variables of SDL are set for frames alone, where there is no screen, and none that is set already."""
    for name in (*SCREENS, *UNSEEN):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    pole.make_env(render_mode=mode).close()
    assert [os.environ.get(name) for name in UNSEEN] == expected


def test_frames_are_those_that_the_environment_gave(breakout: tuple[el.EpisodeStore, np.ndarray]) -> None:
    """All frames, some of them, and one, are those of a plain loop."""
    store, frames = breakout
    episode = store[0]
    np.testing.assert_array_equal(episode.frames(), frames)
    assert episode.frames().flags.writeable
    np.testing.assert_array_equal(episode.frames([40, 3, 3, -1]), frames[[40, 3, 3, -1]])
    np.testing.assert_array_equal(episode.frames(slice(5, None, 10)), frames[5::10])
    np.testing.assert_array_equal(episode.frames(-2), frames[[-2]])
    assert episode.frames(np.int64(3)).shape == (1, 210, 160, 3)
    assert [t for t, _ in episode.video(slice(0, 9, 4))] == [0, 4, 8]


def test_files_hold_the_frames(breakout: tuple[el.EpisodeStore, np.ndarray], tmp_path: Path) -> None:
    """GIF and lossless MP4 give every pixel back, plain MP4 nearly, and a PNG of one frame exactly."""
    store, frames = breakout
    video = store[0].video()
    assert video.save(tmp_path / "exact.gif", scale=1) == tmp_path / "exact.gif"
    np.testing.assert_array_equal(decoded(tmp_path / "exact.gif"), frames)
    video.save(tmp_path / "exact.mp4", lossless=True)
    np.testing.assert_array_equal(decoded(tmp_path / "exact.mp4"), frames)
    video.save(tmp_path / "plain.mp4", scale=1)
    near = decoded(tmp_path / "plain.mp4")
    assert near.shape == frames.shape
    assert np.abs(near.astype(int) - frames).mean() < 4
    store[0].video(17).save(str(tmp_path / "one.png"), scale=1)
    np.testing.assert_array_equal(np.array(Image.open(tmp_path / "one.png")), frames[17])


def test_small_frames_are_written_with_larger_pixels(tmp_path: Path) -> None:
    """Each pixel of a small frame becomes a square; odd sides are padded only where the codec wants it."""
    frames = RANDOM.integers(0, 256, (4, 9, 13, 3), np.uint8)
    video = pictures(tmp_path / "store", frames)[0].video()
    video.save(tmp_path / "large.gif")
    large = decoded(tmp_path / "large.gif")
    assert large.shape[1:3] == (27 * 9, 27 * 13)
    np.testing.assert_array_equal(large[:, 13::27, 13::27], frames)
    video.save(tmp_path / "odd.mp4", scale=1)
    assert decoded(tmp_path / "odd.mp4").shape == (4, 10, 14, 3)


def test_a_contact_sheet_shows_evenly_spaced_frames(tmp_path: Path) -> None:
    """A PNG of many frames is a sheet of twelve, from the first to the last, without a background."""
    frames = np.stack([np.full((240, 240, 3), 2 * t, np.uint8) for t in range(100)])
    pictures(tmp_path / "store", frames)[0].video().save(tmp_path / "sheet.png")
    sheet = np.array(Image.open(tmp_path / "sheet.png"))
    shown = [sheet[row * 266 + 100, column * 246 + 100] for row in range(3) for column in range(4)]
    steps = np.linspace(0, 99, 12).round().astype(int)
    assert [pixel.tolist() for pixel in shown] == [[2 * t, 2 * t, 2 * t, 255] for t in steps]
    assert sheet[100, 243, 3] == 0


def test_a_gif_of_many_colours_is_near(tmp_path: Path) -> None:
    """A frame of more colours than a GIF can have gets the nearest of 256."""
    across, along = np.meshgrid(np.arange(64), np.arange(64))
    frame = np.stack([across * 4, along * 4, (across + along) * 2], axis=-1).astype(np.uint8)
    frames = np.stack([frame, frame[::-1]])
    pictures(tmp_path / "store", frames)[0].video().save(tmp_path / "many.gif", scale=1)
    assert np.abs(decoded(tmp_path / "many.gif").astype(int) - frames).mean() < 10


def test_without_h264_there_is_mpeg4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyAV that lacks H.264 writes MPEG-4, and says that it cannot be lossless."""
    frames = np.stack([np.full((64, 64, 3), 10 * t, np.uint8) for t in range(8)])
    video = pictures(tmp_path / "store", frames)[0].video()
    monkeypatch.setattr(av, "codecs_available", {"mpeg4", "gif"})
    video.save(tmp_path / "plain.mp4", scale=1)
    assert np.abs(decoded(tmp_path / "plain.mp4").astype(int) - frames).mean() < 4
    with pytest.raises(el.errors.InvalidArgumentError, match="cannot be lossless"):
        video.save(tmp_path / "exact.mp4", lossless=True)


@pytest.mark.parametrize("fps", [10, 25, 50])
def test_files_keep_the_time(tmp_path: Path, fps: int) -> None:
    """Frames of files stand at their time: T+1 frames at so many per second."""
    frames = RANDOM.integers(0, 256, (11, 16, 16), np.uint8)
    video = pictures(tmp_path / "store", frames)[0].video(fps=fps)
    for suffix in ("mp4", "gif"):
        video.save(tmp_path / f"timed.{suffix}")
        with av.open(str(tmp_path / f"timed.{suffix}")) as container:
            moments = [float(frame.time) for frame in container.decode(video=0)]
        np.testing.assert_allclose(np.diff(moments), 1 / fps, atol=1e-6)


GREY = RANDOM.integers(0, 256, (3, 10, 12), np.uint8)
COLOUR = RANDOM.integers(0, 256, (3, 10, 12, 3), np.uint8)
STACK = RANDOM.integers(0, 256, (3, 4, 10, 12), np.uint8)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("frames", "layout", "expected"),
    [
        (GREY, None, np.stack([GREY] * 3, -1)),
        (GREY[..., None], None, np.stack([GREY] * 3, -1)),
        (GREY[:, None], None, np.stack([GREY] * 3, -1)),
        (COLOUR, None, COLOUR),
        (np.moveaxis(COLOUR, -1, 1), None, COLOUR),
        (np.moveaxis(COLOUR, -1, 1), "KHW", np.stack([COLOUR[..., 2]] * 3, -1)),
        (np.concatenate([COLOUR, COLOUR[..., :1]], -1), None, COLOUR),
        (STACK, None, np.stack([STACK[:, 3]] * 3, -1)),
        (np.moveaxis(STACK, 1, -1), "HWK", np.stack([STACK[:, 3]] * 3, -1)),
        (np.stack([COLOUR, COLOUR // 2], 1), None, COLOUR // 2),
        (np.stack([np.moveaxis(COLOUR, -1, 1)] * 2, 1), "KCHW", COLOUR),
    ],
    ids=["HW", "HW1", "1HW", "HWC", "CHW", "CHW as stack", "RGBA", "KHW", "HWK", "KHWC", "KCHW"],
)
def test_layouts(tmp_path: Path, frames: np.ndarray, layout: str | None, expected: np.ndarray) -> None:
    """Grey, colour, channels first, and stacks, of which the last is shown, become RGB."""
    episode = pictures(tmp_path / "store", frames)[0]
    np.testing.assert_array_equal(episode.frames(layout=layout), expected)


@pytest.mark.parametrize("high", [1, 255])
def test_floats_are_scaled_from_their_bounds(tmp_path: Path, high: int) -> None:
    """An image of floats is scaled from the bounds of its space; NaN is black, and what is beyond is cut."""
    values = RANDOM.random((2, 9, 8, 3)).astype(np.float32) * high
    values[0, 0, 0] = (np.nan, high, 0)
    episode = pictures(tmp_path / "store", values, Box(0, high, (9, 8, 3), np.float32))[0]
    expected = np.rint(np.nan_to_num(values.astype(np.float64)) / high * 255).astype(np.uint8)
    np.testing.assert_array_equal(episode.frames(), expected)


@pytest.fixture(scope="module")
def two_cameras(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """A store with two images, a small grid and numbers without bounds."""
    space = Dict(
        left=Box(0, 255, (9, 9, 3), np.uint8),
        right=Box(0, 255, (8, 8), np.uint8),
        grid=Box(0, 10, (7, 7, 3), np.uint8),
        free=Box(-np.inf, np.inf, (9, 9), np.float32),
    )
    store = el.create(
        tmp_path_factory.mktemp("cameras") / "store", observation_space=space, action_space=Discrete(2)
    )
    space.seed(0)
    with store.writer(run="cameras") as writer:
        writer.write_episode(
            observations=[space.sample() for _ in range(4)],
            actions=np.zeros(3, np.int64),
            rewards=np.zeros(3),
            terminations=True,
            truncations=False,
        )
    return store.refresh()


def test_a_small_image_is_hinted_at(tmp_path: Path) -> None:
    """A grid of 5 x 5 is no picture unless it is named; the message names it."""
    store = el.create(
        tmp_path / "store", observation_space=Box(0, 255, (5, 5, 3), np.uint8), action_space=Discrete(2)
    )
    grids = np.arange(3 * 75, dtype=np.uint8).reshape(3, 5, 5, 3)
    with store.writer(run="grids") as writer:
        writer.write_episode(
            observations=grids, actions=np.zeros(2, np.int64), rewards=np.zeros(2),
            terminations=True, truncations=False,
        )  # fmt: skip
    episode = store.refresh()[0]
    for asked in ({}, {"layout": "HWC"}):
        with pytest.raises(el.errors.NothingToDrawError, match="column='observation'"):
            episode.frames(**asked)
    np.testing.assert_array_equal(episode.frames(column="observation"), grids)


def test_one_of_several_images_is_named(two_cameras: el.EpisodeStore) -> None:
    """With several images one has to be named, whole or in short; a grid of codes only by name."""
    episode = two_cameras[0]
    assert image_columns(two_cameras.selection().snapshot.schema) == ("observation.left", "observation.right")
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"column: observation\.left, observation\.right"
    ):
        episode.video()
    np.testing.assert_array_equal(episode.frames(column="left"), episode.observations["left"])
    right = episode.frames(column="observation.right")
    np.testing.assert_array_equal(right[..., 1], episode.observations["right"])
    np.testing.assert_array_equal(episode.frames(column="grid"), episode.observations["grid"])


def test_what_is_no_image_is_refused(two_cameras: el.EpisodeStore) -> None:
    """Wrong names, layouts, steps, rates and suffixes are answered with what would do."""
    episode = two_cameras[0]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"column": "middle"}, "Images are: observation.left, observation.right"),
        ({"column": "left", "layout": "HW"}, "no image of the layout 'HW'"),
        ({"column": "left", "layout": "CHW"}, "Layouts are: HW, HWC"),
        ({"column": "free"}, "bounds -inf and inf"),
        ({"column": "left", "steps": 4}, "the steps 0 to 3"),
        ({"column": "left", "steps": -5}, "the steps 0 to 3"),
        ({"column": "left", "steps": []}, "step"),
        ({"column": "left", "steps": [0, 1.5]}, "1.5 is no step"),
        ({"column": "left", "steps": slice(9, 12)}, "none of the 4 steps"),
        ({"column": "left", "steps": slice("a", None)}, "no slice of steps"),
        ({"column": "left", "fps": 0}, "fps=0: expected a positive number of at most 1000"),
    ]
    for arguments, message in refused:
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            episode.video(**arguments)
    video = episode.video(column="left")
    for name, scale in (("video.avi", None), ("video", None), ("video.gif", 0)):
        with pytest.raises(el.errors.InvalidArgumentError, match="expected a"):
            video.save(name, scale=scale)


@pytest.mark.further
def test_only_the_row_groups_of_the_steps_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few frames of a long episode cost a few row groups, and going through all keeps one at a time."""
    frames = RANDOM.integers(0, 256, (3000, 96, 96, 3), np.uint8)
    episode = pictures(tmp_path / "store", frames)[0]
    groups = len(episode._block.groups)
    assert groups > 2
    asked: list[list[int]] = []
    read = SegmentFile.read

    def noted(self: SegmentFile, chosen: Any, columns: Any, **options: Any) -> Any:
        asked.append(list(chosen))
        return read(self, chosen, columns, **options)

    monkeypatch.setattr(SegmentFile, "read", noted)
    np.testing.assert_array_equal(episode.frames([1, 2999]), frames[[1, 2999]])
    assert asked == [[0 + episode._block.groups[0]], [episode._block.groups[-1]]]
    tracemalloc.start()
    for t, frame in episode.video():
        assert frame[0, 0, 0] == frames[t, 0, 0, 0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < frames.nbytes / 3


def test_a_failure_leaves_the_old_file(breakout: tuple[el.EpisodeStore, np.ndarray], tmp_path: Path) -> None:
    """What stands at the path is replaced only by a whole file, and nothing else stays behind."""
    store, _ = breakout
    (tmp_path / "video.gif").write_bytes(b"old")
    video = store[0].video()

    def failing(steps: Any) -> Any:
        yield 0, np.zeros((8, 8, 3), np.uint8)
        raise el.errors.CorruptStoreError("the disk")

    video._make = failing
    for suffix in ("gif", "mp4", "png"):
        with pytest.raises(el.errors.CorruptStoreError):
            video.save(tmp_path / f"video.{suffix}")
    assert [file.name for file in tmp_path.iterdir()] == ["video.gif"]
    assert (tmp_path / "video.gif").read_bytes() == b"old"
    with pytest.raises(el.errors.StoreAccessError, match="nowhere"):
        store[0].video().save(tmp_path / "nowhere" / "video.gif")


# Replays


def test_a_replay_renders_what_a_plain_loop_renders(pole: el.EpisodeStore) -> None:
    """Without images the episode is played again, and shows what the same environment shows a plain loop."""
    for seed, episode in enumerate(pole):
        expected = play(gymnasium.make("CartPole-v1", render_mode="rgb_array"), seed)
        video = episode.video()
        assert (video.source, video.fps, video.report) == ("replay", 50, None)
        found = list(video)
        assert [t for t, _ in found] == list(range(episode.length + 1))
        np.testing.assert_array_equal(np.stack([frame for _, frame in found]), np.stack(expected))
        assert video.report is not None
        assert video.report.same
        assert video.report.compared == episode.length
        np.testing.assert_array_equal(episode.frames([2, 5]), np.stack(expected)[[2, 5]])


def test_a_replay_that_differs_says_where(pole: el.EpisodeStore) -> None:
    """With other physics the report, a warning and the page name the first difference."""
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.unwrapped.gravity = 20.0  # type: ignore[attr-defined]
    episode = pole[0]
    expected = episode.replay(env)
    assert not expected.same
    video = episode.video(env=env)
    assert expected.first_difference is not None
    with pytest.warns(RuntimeWarning, match=f"step {expected.first_difference.step}: observation"):
        list(video)
    assert video.report is not None
    assert video.report.differences == expected.differences
    assert "the replay differs from the record" in Page(video._repr_html_()).text
    first = episode.video(slice(0, 1), env=env)
    list(first)
    assert first.report is not None
    assert first.report.same


def test_a_replay_without_a_seed_says_why_it_differs(tmp_path: Path) -> None:
    """The warning names the missing seed, which vector code and later resets leave."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "unseeded", env)
    with store.record(env) as recorder:
        for _ in range(2):
            recorder.reset()
            recorder.step(0)
    episode = store.refresh()[1]
    assert episode.seed is None
    with pytest.warns(RuntimeWarning, match="step 0: observation.* has no seed"):
        list(episode.video())


@pytest.mark.parametrize("steps", [[4], [4, 5]])
def test_a_replay_that_ends_before_the_steps_is_told(
    pole: el.EpisodeStore, tmp_path: Path, steps: list[int]
) -> None:
    """Frames and files of every kind say that no frame came, and no file is left."""
    video = pole[0].video(
        steps, env=gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=2)
    )
    for suffix in ("mp4", "gif", "png"):
        with (
            pytest.warns(RuntimeWarning),
            pytest.raises(el.errors.NothingToDrawError, match="ended before the steps"),
        ):
            video.save(tmp_path / f"episode.{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_replayed_is_told(pole: el.EpisodeStore, tmp_path: Path) -> None:
    """No environment, one without pictures, one of other spaces, and steps that go back are refused."""
    plain = el.create(tmp_path / "plain", observation_space=Discrete(3), action_space=Discrete(2))
    with plain.writer(run="import") as writer:
        writer.write_episode(
            observations=np.zeros(2, np.int64), actions=np.zeros(1, np.int64), rewards=np.zeros(1),
            terminations=True, truncations=False,
        )  # fmt: skip
    with pytest.raises(el.errors.NothingToDrawError, match=r"has no images.*episode\.video\(env=env\)"):
        plain.refresh()[0].video()
    with pytest.raises(el.errors.EnvUnavailableError, match='render_mode="rgb_array"'):
        pole[0].video(env=gymnasium.make("CartPole-v1"))
    with pytest.raises(el.errors.SpaceMismatchError, match="observation space"):
        pole[0].video(env=gymnasium.make("Acrobot-v1", render_mode="rgb_array"))
    with pytest.raises(el.errors.InvalidArgumentError, match=r"gymnasium\.Env"):
        pole[0].video(env=3)
    with pytest.raises(el.errors.InvalidArgumentError, match="ascend"):
        pole[0].frames([5, 2])
    with pytest.raises(el.errors.InvalidArgumentError, match="choose recorded images"):
        pole[0].video(layout="HWC", env=gymnasium.make("CartPole-v1", render_mode="rgb_array"))
    with pytest.raises(el.errors.NothingToDrawError, match="hold no images"):
        pole[0].video(layout="HWC")
    with pytest.raises(el.errors.InvalidArgumentError, match=r"no part of the observation"):
        pole[0].video(column="camera")


class Filmed(gymnasium.Env):
    """An environment of another package, which renders how far it is."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    observation_space = Discrete(200)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin at 0."""
        super().reset(seed=seed)
        self.at = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        """One further."""
        self.at += 1
        return self.at, 1.0, self.at >= 150, False, {}

    def render(self) -> Any:
        """As bright as it is far."""
        return np.full((16, 24, 3), self.at, np.uint8)


def test_untrusted_environments_need_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of the store's choice is not imported for a video; one that is handed over is used."""
    gymnasium.register("Filmed-v0", entry_point="test_pictures:Filmed")
    env = gymnasium.make("Filmed-v0")
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        play(recorder, 0)
    episode = store.refresh()[0]
    with pytest.raises(
        el.errors.NothingToDrawError, match=r"trust.*make_env\(trust=True, render_mode=\"rgb_array\"\)"
    ):
        episode.video()
    told = refused(1, "show", store.path, 0, "--frames", tmp_path / "film.png")
    assert "add --trust." in told and "make_env" not in told and "video(" not in told
    assert "add --trust." in refused(1, "replay", store.path, 0)
    assert call("show", store.path, 0, "--frames", tmp_path / "film.png", "--trust").exit_code == 0
    assert (tmp_path / "film.png").stat().st_size
    video = episode.video(env=Filmed("rgb_array"))
    assert video.fps == 12
    assert [frame[0, 0, 0] for _, frame in video] == list(range(151))
    assert video.report is not None
    assert video.report.compared == 150
    monkeypatch.setattr(Filmed, "render", lambda self: "text")
    with pytest.raises(el.errors.EnvUnavailableError, match="renders no RGB array"):
        episode.frames(env=Filmed("rgb_array"))


class FilmedComings(Comings):
    """Several agents, seen as how many steps were made."""

    render_mode = "rgb_array"

    def render(self) -> np.ndarray:
        """As bright as it is late."""
        return np.full((16, 16, 3), 20 * self._step, np.uint8)


def test_an_episode_of_several_agents_is_replayed_as_a_whole(tmp_path: Path) -> None:
    """All agents act again in an environment that is handed over; one alone needs images."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        play_parallel(recorder, random_policy(env, 1), 1)
    episode = store.refresh()[0]
    video = episode.video(env=FilmedComings())
    assert [(t, frame[0, 0, 0]) for t, frame in video] == [(t, 20 * t) for t in range(episode.length + 1)]
    assert video.report is not None
    assert video.report.same
    with pytest.raises(el.errors.InvalidArgumentError, match=r"agent\('scout_0'\)\.video\(\)"):
        episode.video()
    with pytest.raises(el.errors.EnvUnavailableError, match="render_mode"):
        episode.video(env=Comings())
    with pytest.raises(el.errors.NothingToDrawError, match=r"video\(env=env\)"):
        episode.agent("scout_0").video()
    tank = episode.agent("tank_0")
    np.testing.assert_array_equal(tank.frames(column="view")[..., :1], tank.observations["view"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["egl", "glfw"])
def test_mujoco_is_replayed_without_a_screen(tmp_path: Path, backend: str) -> None:
    """A replay of MuJoCo renders through EGL; where it cannot, the error names the variable to set."""
    env = gymnasium.make("HalfCheetah-v5")
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        play(recorder, 0, 10)
    code = """if True:
        import sys, episodelake as el
        episode = el.open(sys.argv[1])[0]
        video = episode.video()
        try:
            frames = [frame for _, frame in video]
        except el.errors.EnvUnavailableError as error:
            print("MUJOCO_GL=egl" in str(error))
        else:
            print(len(frames) == 11 and frames[0].std() > 5 and video.report.same and video.fps == 20)
    """
    surroundings = {**os.environ, "MUJOCO_GL": backend}
    surroundings.pop("DISPLAY", None)
    done = subprocess.run(
        (sys.executable, "-c", code, str(store.path)),
        env=surroundings,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stdout.splitlines()[-1] == "True"


def test_an_environment_that_cannot_render_is_told(
    pole: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an environment raises when it is to render becomes an error with a hint."""
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")

    def failing() -> None:
        raise AttributeError("no screen")

    monkeypatch.setattr(env, "render", failing)
    with pytest.raises(el.errors.EnvUnavailableError, match=r"AttributeError: no screen.*MUJOCO_GL"):
        pole[0].frames(env=env)


# In a notebook


def embedded(page: str, tmp_path: Path) -> np.ndarray:
    """The frames of the video in a page."""
    found = re.search(r'src="data:video/mp4;base64,([^"]+)"', page)
    assert found is not None
    (tmp_path / "shown.mp4").write_bytes(base64.b64decode(found[1]))
    return decoded(tmp_path / "shown.mp4")


def test_a_video_shows_itself(
    breakout: tuple[el.EpisodeStore, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook gets a player with all frames; of a long video some, and a word on it."""
    store, frames = breakout
    page = store[0].video()._repr_html_()
    shown = embedded(page, tmp_path)
    assert len(shown) == 41
    assert np.abs(shown[:, ::2, ::2].astype(int) - frames).mean() < 12
    monkeypatch.setattr(videos, "SHOWN_FRAMES", 10)
    page = store[0].video()._repr_html_()
    assert len(embedded(page, tmp_path)) == 9
    assert "every 5th frame is shown" in Page(page).text
    monkeypatch.setattr(videos, "SHOWN_BYTES", 100)
    assert "too much for a notebook" in Page(store[0].video()._repr_html_()).text


def test_names_of_columns_stay_texts_in_the_page(tmp_path: Path) -> None:
    """A column with a hostile name is escaped in the player's caption."""
    space = Dict({HOSTILE[1]: Box(0, 255, (9, 9), np.uint8)})
    store = el.create(tmp_path / "store", observation_space=space, action_space=Discrete(2))
    with store.writer(run="h") as writer:
        writer.write_episode(
            observations=[space.sample(), space.sample()], actions=np.zeros(1, np.int64), rewards=np.zeros(1),
            terminations=True, truncations=False,
        )  # fmt: skip
    page = Page(store.refresh()[0].video()._repr_html_())
    assert is_harmless(page)
    assert "img" not in page.tags


def test_missing_packages_are_told(
    breakout: tuple[el.EpisodeStore, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without PyAV or Pillow the error says what to install, and a notebook shows it instead of failing."""
    store, _ = breakout
    cases = (("av", "mp4", "video"), ("av", "gif", "video"), ("PIL.Image", "png", "explore"))
    for name, suffix, extra in cases:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(el.errors.MissingPackageError, match=rf"pip install 'episodelake\[{extra}\]'"):
                store[0].video().save(tmp_path / f"video.{suffix}")
    monkeypatch.setitem(sys.modules, "av", None)
    assert "No video" in Page(store[0].video()._repr_html_()).text


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Frames of a damaged file raise the error that names it, and a notebook shows it."""
    store = pictures(tmp_path / "store", GREY)
    (file,) = (store.path / "steps").glob("*.parquet")
    whole = bytearray(file.read_bytes())
    opened = el.open(store.path)
    video = opened[0].video()
    whole[4 : len(whole) // 3] = bytes(len(whole) // 3 - 4)
    file.write_bytes(whole)
    with pytest.raises(el.errors.CorruptStoreError, match=file.name):
        list(video)
    assert "No video" in Page(video._repr_html_()).text
