"""Stores with cameras whose frames name themselves, so that even an encoded frame tells which one it is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv

import episodelake as el

#: By camera: the shape of a frame.
SHAPES: dict[str, tuple[int, ...]] = {
    "grey": (48, 64),
    "mono": (48, 64, 1),
    "rgb": (48, 64, 3),
    "odd": (33, 47, 3),
    "planar": (3, 33, 47),
    "exact": (33, 47, 3),
    "still": (3, 48, 64),
    "raw": (33, 47, 3),
}
NUMBERS = {name: number for number, name in enumerate(SHAPES)}
#: Groups of four frames, so that short episodes have several.
CODECS: dict[str, el.Video] = {
    "h264": el.Video("h264", crf=23, gop=4),
    "hevc": el.Video("hevc", crf=23, gop=4),
    "av1": el.Video("av1", crf=30, gop=4),
    "lossless": el.Video(lossless=True),
}
ENCODINGS = {
    "observation.grey": CODECS["h264"],
    "observation.mono": CODECS["hevc"],
    "observation.rgb": CODECS["av1"],
    "observation.odd": CODECS["h264"],
    "observation.planar": CODECS["hevc"],
    "observation.exact": CODECS["lossless"],
    "observation.still": CODECS["lossless"],
}
#: How many transitions the episode of each seed has.
LENGTHS = (3, 1, 12, 4, 7, 1, 9, 5)
ALL = range(len(LENGTHS))
#: How far pixels of an encoded frame may be from those that were recorded, on average.
FAR = 16.0
#: A frame is a grid of so many blocks, each dark or bright: a number in binary.
_GRID = (4, 5)
_DARK, _BRIGHT = 40, 210


@cache
def frame_of(shape: tuple[int, ...], camera: int, episode: int, t: int) -> np.ndarray:
    """The frame of a camera (below 16) at step t of an episode, both below 256."""
    bits = (camera << 16 | episode << 8 | t) >> np.arange(20) & 1
    height, width = _sides(shape)
    tall, wide = _counts((height, width))
    blocks = bits.reshape(_GRID).repeat(tall, axis=0).repeat(wide, axis=1)
    pixels = np.where(blocks, _BRIGHT, _DARK).astype(np.uint8)
    if 3 not in (shape[0], shape[-1]):
        return pixels.reshape(shape)
    # The channels differ: red has the number, green its complement, and blue is bright.
    colours = np.stack([pixels, _DARK + _BRIGHT - pixels, np.full_like(pixels, _BRIGHT)], axis=-1)
    return colours if shape[-1] == 3 else np.ascontiguousarray(np.moveaxis(colours, -1, 0))


def name_of(frame: np.ndarray) -> tuple[int, int, int]:
    """The camera, episode and step that a frame names; fails unless all channels agree."""
    assert frame.dtype == np.uint8
    height, width = _sides(frame.shape)
    if 3 in (frame.shape[0], frame.shape[-1]):
        red, green, blue = np.moveaxis(frame, 0 if frame.shape[0] == 3 else -1, 0)
        assert blue.mean() > 150
    else:
        red, green = frame.reshape(height, width), None
    number = _number(red)
    assert green is None or _number(255 - green) == number
    return number >> 16, number >> 8 & 255, number & 255


def _number(pixels: np.ndarray) -> int:
    rows, columns = _starts(pixels.shape)
    sums = np.add.reduceat(np.add.reduceat(pixels.astype(np.int64), rows, axis=0), columns, axis=1)
    means = (sums / np.outer(*_counts(pixels.shape))).reshape(-1)
    assert (np.abs(means - 125) > 30).all(), means
    return int(((means > 125) << np.arange(20)).sum())


def _starts(sides: tuple[int, ...]) -> list[list[int]]:
    """Where each row and each column of blocks begins."""
    return [
        [side * place // count for place in range(count)] for side, count in zip(sides, _GRID, strict=True)
    ]


def _counts(sides: tuple[int, ...]) -> list[np.ndarray]:
    """How many pixels each row and each column of blocks has."""
    return [np.diff([*starts, side]) for starts, side in zip(_starts(sides), sides, strict=True)]


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], shape[1]) if len(shape) == 2 or shape[-1] in (1, 3) else (shape[1], shape[2])


def seen(cameras: Mapping[str, tuple[int, ...]], episode: int, t: int) -> dict[str, np.ndarray]:
    """The observation of all cameras, and a state that says the same in numbers."""
    frames = {name: frame_of(shape, NUMBERS[name], episode, t) for name, shape in cameras.items()}
    return frames | {"state": np.array([episode, t], np.float32)}


def observation_space(cameras: Mapping[str, tuple[int, ...]]) -> Dict:
    """Cameras and a state."""
    boxes = {name: Box(0, 255, shape, np.uint8) for name, shape in cameras.items()}
    return Dict(boxes | {"state": Box(0, 255, (2,), np.float32)})


class Cameras(gym.Env):
    """Each seed is an episode of its own, of `LENGTHS[seed]` steps."""

    action_space = Discrete(3)

    def __init__(self, cameras: Mapping[str, tuple[int, ...]] = SHAPES, lengths: tuple[int, ...] = LENGTHS):
        self.cameras, self.lengths, self.next_seed = cameras, lengths, 0
        self.observation_space = observation_space(cameras)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin the episode of the seed, or the one after the last."""
        super().reset(seed=seed)
        self.episode = self.next_seed if seed is None else seed
        self.next_seed = self.episode + 1
        self.t = 0
        return seen(self.cameras, self.episode, 0), {}

    def step(self, action: Any):
        """One frame further."""
        self.t += 1
        ended = self.t == self.lengths[self.episode % len(self.lengths)]
        return seen(self.cameras, self.episode, self.t), 1.0, ended, False, {}


class Team(ParallelEnv):
    """Two agents with a camera each, of other shapes, and one that leaves early."""

    metadata: ClassVar[dict[str, Any]] = {"name": "cameras_v0"}
    possible_agents: ClassVar[list[str]] = ["tall_0", "tall_1", "wide"]
    cameras: ClassVar[dict[str, str]] = {"tall_0": "grey", "tall_1": "grey", "wide": "odd"}

    def observation_space(self, agent: str) -> Any:
        """The agent's own."""
        name = self.cameras[agent]
        return observation_space({name: SHAPES[name]})

    def action_space(self, agent: str) -> Any:
        """The agent's own."""
        return Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin the episode of the seed."""
        self.episode, self.t = seed or 0, 0
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]):
        """One step; "tall_1" leaves after two."""
        self.t += 1
        ended = {agent: self.t == (2 if agent == "tall_1" else 6) for agent in self.agents}
        observations = self._seen()
        acted = list(self.agents)
        self.agents = [agent for agent in acted if not ended[agent]]
        nothing = dict.fromkeys(acted, False)
        return observations, dict.fromkeys(acted, 1.0), ended, nothing, {agent: {} for agent in acted}

    def _seen(self) -> dict[str, Any]:
        return {
            agent: seen(
                {self.cameras[agent]: SHAPES[self.cameras[agent]]}, self.episode + 16 * number, self.t
            )
            for number, agent in enumerate(self.possible_agents)
            if agent in self.agents
        }


def play(env: Any, seeds: Any) -> None:
    """Record the episode of each seed."""
    for seed in seeds:
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, _, ended, _, _ = env.step(0)


def new_store(
    path: Path,
    encodings: Mapping[str, el.Video] = ENCODINGS,
    cameras: Mapping[str, tuple[int, ...]] = SHAPES,
) -> el.EpisodeStore:
    """An empty store for these cameras; the encodings of others are left out."""
    chosen = {name: each for name, each in encodings.items() if name.partition(".")[2] in cameras}
    return el.create(path, Cameras(cameras), encodings=chosen)


def recorded_store(path: Path, seeds: Any = ALL, **more: Any) -> el.EpisodeStore:
    """A store with the episodes of these seeds."""
    store = new_store(path, **more)
    with store.record(Cameras(more.get("cameras", SHAPES))) as env:
        play(env, seeds)
    return store.refresh()


def arrays_of(cameras: Mapping[str, tuple[int, ...]], episode: int, length: int) -> dict[str, Any]:
    """Return the arguments of `write_episode`."""
    rows = [seen(cameras, episode, t) for t in range(length + 1)]
    return {
        "observations": {name: np.stack([row[name] for row in rows]) for name in rows[0]},
        "actions": np.zeros(length, np.int64),
        "rewards": np.ones(length),
        "terminations": True,
        "truncations": False,
        "seed": episode,
    }


def check_frame(frame: Any, camera: str, episode: int, t: int, exact: bool | None = None) -> None:
    """Fail unless this is the frame; of a lossless camera, bit for bit."""
    frame = np.asarray(frame)
    expected = frame_of(SHAPES[camera], NUMBERS[camera], episode, t)
    assert frame.shape == expected.shape
    assert name_of(frame) == (NUMBERS[camera], episode, t)
    if camera in ("exact", "still", "raw") if exact is None else exact:
        assert np.array_equal(frame, expected)
    assert np.abs(frame.astype(int) - expected).mean() < FAR, camera


def check_frames(frames: Any, camera: str, episode: int, steps: Any, exact: bool | None = None) -> None:
    """Fail unless these are the frames of these steps."""
    steps = list(steps)
    assert len(frames) == len(steps)
    for frame, t in zip(frames, steps, strict=True):
        check_frame(frame, camera, episode, t, exact)


def check_episode(
    episode: el.Episode, cameras: Mapping[str, Any] = SHAPES, length: int | None = None
) -> None:
    """Fail unless an episode has the frames of its seed."""
    seed = int(episode.observations["state"][0, 0])
    length = LENGTHS[seed % len(LENGTHS)] if length is None else length
    assert episode.length == length
    for name in cameras:
        check_frames(episode.observations[name], name, seed, range(length + 1))
