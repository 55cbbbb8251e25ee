"""An environment that its seed decides entirely, and plain loops that say what a recording must hold.

Each observation holds the action that led to it, so a dropped action shows. Lengths, ends and infos are
drawn from the seed: keys come and go, some are nested, and each has a dtype of its own.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Scripted(gymnasium.Env):
    """Episodes of 1 to `longest` steps; `reuse` hands out one buffer, `fails_at` is the call that raises."""

    observation_space = Dict(place=Box(-1e6, 1e6, (3,), np.float32), mark=Box(0, 255, (2, 2), np.uint8))
    action_space = Discrete(7)

    def __init__(self, longest: int = 5, reuse: bool = False, fails_at: int = 0) -> None:
        self.longest, self.reuse, self.fails_at = longest, reuse, fails_at
        self.calls = 0
        self.place = np.zeros(3, np.float32)
        self.mark = np.zeros((2, 2), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Draw how long the episode is."""
        super().reset(seed=seed)
        self.t = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        return self._observation(0), self._info()

    def step(self, action: Any):
        """One step nearer to the end."""
        self.calls += 1
        self.t += 1
        if self.calls == self.fails_at:
            raise ArithmeticError("the motor stopped")
        last = self.t >= self.length
        kind = int(self.np_random.integers(3))
        reward = float(self.np_random.normal())
        return self._observation(int(action)), reward, last and kind != 1, last and kind != 0, self._info()

    def _observation(self, action: int) -> dict[str, np.ndarray]:
        self.place[:] = (action, self.t, self.np_random.random())
        self.mark[:] = self.np_random.integers(256, size=(2, 2))
        if self.reuse:
            return {"place": self.place, "mark": self.mark}
        return {"place": self.place.copy(), "mark": self.mark.copy()}

    def _info(self) -> dict[str, Any]:
        number = self.np_random.random()
        everything = {
            "count": int(self.t),
            "lucky": bool(number > 0.5),
            "speed": float(number),
            "small": np.full(2, number, np.float16),
            "name": f"step {self.t}",
            "whole": np.int16(self.t),
            "_private": int(self.t) + 1,
            "deep": {"x": float(number), "deeper": {"mask": np.array([self.t, 1], np.int8)}},
        }
        told = self.np_random.random(len(everything)) < 0.5
        return {key: value for (key, value), is_told in zip(everything.items(), told, strict=True) if is_told}


def assert_same_value(ours: Any, theirs: Any) -> None:
    """Two infos are equal: keys, nesting, array dtypes, and the Python types of numbers."""
    if isinstance(theirs, Mapping):
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            assert_same_value(ours[key], value)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    else:
        plain = theirs.item() if isinstance(theirs, np.generic) else theirs
        assert type(ours) is type(plain)
        assert ours == plain
