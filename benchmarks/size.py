"""Size on disk: the same trajectories in a store and in a Minari dataset, every file of both counted.

HalfCheetah gives float control data, Breakout gives frames of 210x160x3 bytes. Minari keeps frames as JPEG,
which loses; a row with its lossless setting stands beside it. Both environments are played with seeded random
actions.
"""

from __future__ import annotations

from functools import partial

import ale_py
import gymnasium as gym

from measure import Row, Samples
from setting import Setting, create, folder_bytes, write_all
from trajectories import Trajectories, play


def run(setting: Setting) -> list[Row]:
    """Measure control data and frames."""
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    control = play(gym.make("HalfCheetah-v5"), "control", setting.choose(50_000, 3_000))
    frames = play(gym.make("ALE/Breakout-v5"), "frames", setting.choose(3_000, 400))
    return _control(setting, control) + _frames(setting, frames)


def _control(setting: Setting, data: Trajectories) -> list[Row]:
    size = partial(_minari_size, setting, data, "control")
    work, ours = "size, HalfCheetah floats", _our_size(setting, data)
    return [
        Row(work, "B/step", ours, "Minari hdf5", size("hdf5"), ratio_target=0.75),
        Row(work, "B/step", ours, "Minari arrow", size("arrow")),
    ]


def _frames(setting: Setting, data: Trajectories) -> list[Row]:
    size = partial(_minari_size, setting, data, "frames")
    work, ours = "size, Breakout frames, lossless", _our_size(setting, data)
    return [
        Row(work, "B/step", ours, "Minari hdf5, JPEG", size("hdf5"), ratio_target=1 / 20),
        Row(work, "B/step", ours, "Minari arrow, JPEG", size("arrow"), ratio_target=1 / 20),
        Row(work, "B/step", ours, "Minari hdf5, lossless", size("hdf5", jpeg=False)),
    ]


def _our_size(setting: Setting, data: Trajectories) -> Samples:
    path = setting.fresh("sized")
    write_all(create(path, data.kind), data)
    return Samples((folder_bytes(path) / data.steps,))


def _minari_size(setting: Setting, data: Trajectories, name: str, form: str, jpeg: bool = True) -> Samples:
    arrays = setting.folder / f"sized-{name}-arrays"
    if not arrays.exists():
        data.save(arrays)
    answer = setting.minari.ask(
        "build", arrays=str(arrays), dataset=f"sized-{name}-v0", data_format=form, jpeg=jpeg
    )
    return Samples((answer["bytes"] / data.steps,))
