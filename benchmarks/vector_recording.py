"""Recording of vector environments: the overhead of a recorder per transition.

CartPole in Gymnasium's own vector code, 8, 64 and 1,024 at a time, played by random actions, so that episodes
end after some 22 steps; 64 environments of 17 floats that cost nothing; 16 environments of stacked Breakout
frames. Overhead is the time of the loop with the recorder minus the time of the same loop without it, each
transition its share. It is measured until the loop ends, and until everything is sealed and committed. The
processor time of all threads stands beside, since much of the work is done in the background.

Frames are compared with the minimum work of a recorder: copying them once and compressing them once with the
store's codec. Minari refuses vector environments; the other rows show its overhead for a single one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pyarrow as pa
from gymnasium.vector import AutoresetMode, VectorEnv

import episodelake as el
from measure import Row, Samples, interleave, overhead, scaled
from setting import Setting

CARTPOLES = {8: 40_000, 64: 20_000, 1024: 2_000}
LIMIT = 0.2
MINARI_TARGET = 1 / 150
# 60 % of the bound's speed.
BOUND_TARGET = 1 / 0.6
FRAME_ENVS = 16
_DIFFERENT = 64
_PAGE_BYTES = 4 << 20


class Costless(VectorEnv):
    """Returns batches of a table at no cost; episodes have 1000 steps."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, observations: np.ndarray, space: gym.Space, action_space: gym.Space) -> None:
        self.num_envs = observations.shape[1]
        self.single_observation_space, self.single_action_space = space, action_space
        self.action_space = gym.vector.utils.batch_space(action_space, self.num_envs)
        self._observations = list(observations)
        self._rewards = list(np.random.default_rng(0).standard_normal((len(observations), self.num_envs)))
        self._never, self._now = np.zeros(self.num_envs, bool), np.ones(self.num_envs, bool)
        self._t = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict]:
        """Start again at the first batch."""
        self._t = 0
        return self._observations[0], {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Hand out the next batch; the actions change nothing."""
        self._t += 1
        place = self._t % len(self._observations)
        truncated = self._now if self._t % 1001 == 1000 else self._never
        return self._observations[place], self._rewards[place], self._never, truncated, {}


@dataclass(frozen=True)
class Work:
    """A vector environment, its actions, and how many steps of it are measured."""

    name: str
    envs: VectorEnv
    steps: int

    @property
    def transitions(self) -> int:
        """Transitions, resets included, since each takes a row as well."""
        return self.steps * self.envs.num_envs


def run(setting: Setting) -> list[Row]:
    """Measure all of them."""
    minari_steps = setting.choose(20_000, 3_000)
    ask = partial(setting.minari.ask, env="synthetic", steps=minari_steps)
    rows: list[Row] = []
    for work in _cheap(setting):
        sides = {**_sides(work, setting)}
        if work.envs.num_envs == FRAME_ENVS * 4:
            sides |= {
                "Minari bare": lambda: (ask("bare")["seconds"],) * 2,
                "Minari": lambda: (ask("record", data_format="hdf5", infos=False)["stepping"],) * 2,
            }
        rows += _rows(work, interleave(sides, setting.repeats), minari_steps)
    return rows + _frames(setting)


def _cheap(setting: Setting) -> list[Work]:
    found = [
        Work(
            f"record {count} CartPoles, native vector",
            gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode="vector_entry_point"),
            setting.choose(steps, steps // 20),
        )
        for count, steps in CARTPOLES.items()
    ]
    table = np.random.default_rng(0).standard_normal((_DIFFERENT, 64, 17))
    floats = gym.spaces.Box(-np.inf, np.inf, (17,), np.float64)
    costless = Costless(table, floats, gym.spaces.Box(-1, 1, (6,), np.float32))
    return [*found, Work("record 64 envs of 17 floats", costless, setting.choose(20_000, 1_000))]


def _sides(work: Work, setting: Setting) -> dict[str, Any]:
    actions = _actions(work.envs)
    return {
        "bare": lambda: _costs(lambda: _seconds(work.envs, actions, work.steps)),
        "recorded": lambda: _seconds_recorded(work, actions, setting),
    }


def _costs(run: Callable[[], float]) -> tuple[float, float, float]:
    """The seconds that something says of itself, twice, and the processor time that it took."""
    start = time.process_time()
    seconds = run()
    return seconds, seconds, time.process_time() - start


def _rows(work: Work, measured: dict[str, list[tuple[float, ...]]], minari_steps: int) -> list[Row]:
    def added(which: int) -> Samples:
        bare, recorded = measured["bare"], measured["recorded"]
        return overhead([each[which] for each in recorded], [each[which] for each in bare], work.transitions)

    limit = LIMIT if work.envs.num_envs == 64 else None
    rows = [
        Row(f"{work.name}, while stepping", "us/transition", added(0)),
        Row(f"{work.name}, until sealed", "us/transition", added(1), limit=limit),
        Row(f"{work.name}, processor time", "us/transition", added(2)),
    ]
    if "Minari" in measured:
        recorded, bare = ([each[0] for each in measured[name]] for name in ("Minari", "Minari bare"))
        theirs = overhead(recorded, bare, minari_steps)
        peer = "Minari hdf5, one env"
        rows.append(Row(work.name, "us/transition", added(1), peer, theirs, ratio_target=MINARI_TARGET))
    return rows


def _frames(setting: Setting) -> list[Row]:
    """Frames: ours until everything is sealed, beside copying and compressing the same frames once."""
    frames = _breakout(setting.choose(600, 100))
    space = gym.spaces.Box(0, 255, frames.shape[2:], np.uint8)
    work = Work(
        f"record {FRAME_ENVS} envs of 84x84x4 frames",
        Costless(frames, space, gym.spaces.Discrete(4)),
        setting.choose(600, 100),
    )
    sides = {**_sides(work, setting), "bound": lambda: _costs(lambda: _bound(frames[: work.steps]))}
    measured = interleave(sides, setting.repeats)
    recorded, bare, bound = (measured[name] for name in ("recorded", "bare", "bound"))
    rows = []
    for words, which, target in (("", 1, BOUND_TARGET), (", processor time", 2, None)):
        ours = overhead([each[which] for each in recorded], [each[which] for each in bare], work.transitions)
        theirs = scaled([each[which] for each in bound], 1e6 / work.transitions)
        name = f"{work.name}{words}"
        rows.append(Row(name, "us/transition", ours, "memcpy + zstd", theirs, ratio_target=target))
    return rows


def _breakout(steps: int) -> np.ndarray:
    """Stacks of four small Breakout screens for each environment and step, uint8."""
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = gym.make("ALE/Breakout-v5", obs_type="grayscale", frameskip=4)
    env.action_space.seed(0)
    columns = np.linspace(0, 159, 84).astype(int)
    screens = np.zeros((FRAME_ENVS, steps + 3, 84, 84), np.uint8)
    for index in range(FRAME_ENVS):
        env.reset(seed=index)
        for step in range(steps + 3):
            screen, _, terminated, truncated, _ = env.step(env.action_space.sample())
            screens[index, step] = screen[34:202:2][:, columns]
            if terminated or truncated:
                env.reset()
    env.close()
    stacks = [screens[:, start : start + steps] for start in range(4)]
    return np.ascontiguousarray(np.stack(stacks, -1).swapaxes(0, 1))


def _bound(frames: np.ndarray) -> float:
    """Return the seconds that it takes to copy frames once and to compress them once, page by page."""
    codec = pa.Codec("zstd", compression_level=1)
    start = time.perf_counter()
    copied = frames.swapaxes(0, 1).copy().reshape(-1)
    for page in range(0, len(copied), _PAGE_BYTES):
        codec.compress(pa.py_buffer(copied[page : page + _PAGE_BYTES]))
    return time.perf_counter() - start


def _actions(envs: VectorEnv) -> list[Any]:
    """Sample the actions beforehand, outside the measured loop."""
    envs.action_space.seed(0)
    return [envs.action_space.sample() for _ in range(_DIFFERENT)]


def _seconds(envs: VectorEnv, actions: list[Any], steps: int) -> float:
    start = time.perf_counter()
    envs.reset(seed=0)
    for step in range(steps):
        envs.step(actions[step % _DIFFERENT])
    return time.perf_counter() - start


def _seconds_recorded(work: Work, actions: list[Any], setting: Setting) -> tuple[float, float, float]:
    """Return the seconds of the loop with our recorder, and until all its episodes are committed too, and the
    processor time of all that.
    """
    recorder = el.create(setting.fresh("recorded"), work.envs).record(work.envs)
    start, busy = time.perf_counter(), time.process_time()
    stepping = _seconds(recorder, actions, work.steps)
    recorder.reset()
    recorder.seal()
    sealed, busy = time.perf_counter() - start, time.process_time() - busy
    recorder.detach()
    return stepping, sealed, busy
