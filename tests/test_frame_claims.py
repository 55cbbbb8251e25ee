"""What frames and videos promise, held against plain loops of the same seed and against other decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ale_py
import av
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import episodelake as el
from claimed_stores import odd_rewards, record

gymnasium.register_envs(ale_py)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, el.EpisodeStore]:
    """A store of frames, one of a small environment and one of a writer, only read."""
    root = tmp_path_factory.mktemp("frames")
    return {
        "lake": record(root / "lake", lambda: gymnasium.make("FrozenLake-v1"), 4),
        "breakout": record(root / "breakout", lambda: gymnasium.make("ALE/Breakout-v5"), 1, 14),
        "rewards": odd_rewards(root / "rewards"),
    }


def test_recorded_frames_are_those_of_the_environment(stores: dict[str, el.EpisodeStore]) -> None:
    """Frames of steps, slices and lists are the observations of a plain loop of the same seed."""
    env = gymnasium.make("ALE/Breakout-v5")
    env.action_space.seed(0)
    seen = [env.reset(seed=0)[0].copy()]
    seen += [env.step(env.action_space.sample())[0].copy() for _ in range(14)]
    episode = stores["breakout"][0]
    assert np.array_equal(episode.frames(), np.stack(seen))
    assert np.array_equal(episode.frames(3), seen[3][None]) and np.array_equal(
        episode.frames(-1), seen[-1][None]
    )
    assert np.array_equal(episode.frames(slice(2, 12, 4)), np.stack(seen[2:12:4]))
    assert np.array_equal(episode.frames([7, 1, 1]), np.stack([seen[7], seen[1], seen[1]]))
    assert episode.frames().flags.writeable
    for wrong in (15, -16, [0, 99], []):
        with pytest.raises(el.errors.InvalidArgumentError):
            episode.frames(wrong)


def test_videos_decode_to_the_same_frames(stores: dict[str, el.EpisodeStore], tmp_path: Path) -> None:
    """A lossless MP4, a GIF and a PNG hold, decoded by others, the pixels of the record."""
    episode = stores["breakout"][0]
    video = episode.video(fps=10)
    assert (len(video), video.source, video.report) == (15, "observation", None)
    video.save(tmp_path / "x.mp4", lossless=True, scale=1)
    with av.open(str(tmp_path / "x.mp4")) as container:
        assert container.streams.video[0].average_rate == 10
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert np.array_equal(np.stack(decoded), episode.frames())
    video.save(tmp_path / "y.mp4", scale=1)
    with av.open(str(tmp_path / "y.mp4")) as container:
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(decoded) == 15 and np.abs(np.stack(decoded).astype(int) - episode.frames()).mean() < 10
    video.save(tmp_path / "x.gif", scale=1)
    with Image.open(tmp_path / "x.gif") as gif:
        shown = []
        for number in range(getattr(gif, "n_frames", 1)):
            gif.seek(number)
            shown += [np.asarray(gif.convert("RGB"))] * round(gif.info["duration"] / 100)
    assert np.array_equal(np.stack(shown), episode.frames())
    episode.video(4).save(tmp_path / "x.png", scale=1)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "x.png").convert("RGB")), episode.frames(4)[0])


def test_a_replay_renders_what_the_environment_renders(
    stores: dict[str, el.EpisodeStore], tmp_path: Path
) -> None:
    """Frames of a store without images are those of a fresh environment that takes the recorded actions."""
    episode = stores["lake"][1]
    env = gymnasium.make("FrozenLake-v1", render_mode="rgb_array")
    env.reset(seed=episode.seed)
    expected: list[Any] = [env.render()]
    for action in episode.actions:
        env.step(int(action))
        expected.append(env.render())
    video = episode.video()
    assert np.array_equal(np.stack([frame for _, frame in video]), np.stack(expected))
    assert video.source == "replay" and video.report is not None and video.report.same
    assert np.array_equal(episode.frames([0, -1]), np.stack([expected[0], expected[-1]]))
    assert video.save(tmp_path / "lake.gif").stat().st_size > 0


def test_a_replay_that_differs_is_said(stores: dict[str, el.EpisodeStore]) -> None:
    """Another environment than the recorded one gives a warning and a report, and still a picture."""
    other = gymnasium.make("FrozenLake-v1", render_mode="rgb_array", desc=["SHHH", "HHHH", "HHHH", "HHHG"])
    episode = max(stores["lake"], key=len)
    video = episode.video(env=other)
    with pytest.warns(RuntimeWarning):
        frames = [frame for _, frame in video]
    assert frames and video.report is not None and not video.report.same


def test_no_frames_and_no_environment_is_said(stores: dict[str, el.EpisodeStore], tmp_path: Path) -> None:
    """A store of a writer, without images and environment, says why there is no video, and writes no file."""
    with pytest.raises(el.errors.NothingToDrawError, match="environment"):
        stores["rewards"][0].video().save(tmp_path / "x.mp4")
    with pytest.raises((el.errors.NothingToDrawError, el.errors.InvalidArgumentError)):
        stores["rewards"][0].frames(column="observation")
    with pytest.raises(el.errors.InvalidArgumentError):
        stores["breakout"][0].video().save(tmp_path / "x.webm")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((16, 17), None), ((16, 17, 1), None), ((3, 36, 38), None), ((4, 36, 38), "KHW"), ((1, 36, 38), None)],
)
def test_images_of_every_layout(tmp_path: Path, shape: tuple[int, ...], layout: str | None) -> None:
    """Grey, one-channel, channels-first and stacked images become RGB frames of the same pixels."""
    store = el.create(
        tmp_path / "s", observation_space=spaces.Box(0, 255, shape, np.uint8), action_space=spaces.Discrete(2)
    )
    images = np.random.default_rng(0).integers(0, 256, (4, *shape), np.uint8)
    with store.writer(run="images") as writer:
        writer.write_episode(
            observations=images, actions=[0, 1, 0], rewards=[0.0] * 3, terminations=True, truncations=False
        )
    frames = store.refresh()[0].frames(layout=layout)
    assert frames.dtype == np.uint8
    if shape[0] in (1, 3) and len(shape) == 3:
        expected = np.moveaxis(images, 1, -1)
    elif layout == "KHW":
        expected = images[:, -1, :, :, None]
    else:
        expected = images.reshape(4, *shape[:2], 1)
    assert np.array_equal(frames, np.broadcast_to(expected, (4, *expected.shape[1:3], 3)))


def test_tiny_images_are_shown_when_they_are_named(tmp_path: Path) -> None:
    """An image too small to be taken for one is shown by its column, and an error without it says so."""
    store = el.create(
        tmp_path / "s",
        observation_space=spaces.Box(0, 255, (5, 6), np.uint8),
        action_space=spaces.Discrete(2),
    )
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 6), np.uint8)
    with store.writer(run="tiny") as writer:
        writer.write_episode(
            observations=images, actions=[0, 1], rewards=[0.0] * 2, terminations=True, truncations=False
        )
    episode = store.refresh()[0]
    assert np.array_equal(episode.frames(column="observation")[..., 0], images)
    for layout in (None, "HW"):
        with pytest.raises(el.EpisodelakeError, match=r"column=.*observation|observation.*column="):
            episode.frames(layout=layout)
