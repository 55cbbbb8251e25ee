"""What the recorded episodes hold, as plain functions: whatever a store shows is compared with these.

An episode is known by its key, which is also its seed, so it is recognised whatever number it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import episodelake as el

CARD = {"description": "made to be broken"}
SPACES: dict[str, Any] = {
    "observation_space": spaces.Box(-1e9, 1e9, (2,), np.float32),
    "action_space": spaces.Discrete(3),
}


@dataclass(frozen=True)
class Script:
    """One episode as it should become.

    Attributes:
        key: its name, and its seed.
        length: transitions T.
        ending: "terminated", "truncated" or "cut" (no flag is set).
        late: whether it has an info and a metadata key that earlier episodes do not have.
        bare: whether it has no metadata, as a recorder's episodes.
    """

    key: int
    length: int
    ending: str
    late: bool = False
    bare: bool = False

    def observation(self, t: int) -> np.ndarray:
        """Observation t, 0 to T."""
        return np.array([self.key, t], np.float32)

    def action(self, t: int) -> int:
        """The action at observation t."""
        return (7 * self.key + t) % 3

    def reward(self, t: int) -> float:
        """The reward of transition t; sums of it are exact."""
        return self.key + t / 8

    def info(self, t: int) -> dict[str, Any]:
        """The info that comes with observation t."""
        return {"t": t, "late": f"{self.key}.{t}"} if self.late and t % 2 else {"t": t}

    def policy(self, t: int) -> dict[str, float]:
        """What the policy says at observation t."""
        return {"value": -t / 4}

    @property
    def metadata(self) -> dict[str, Any]:
        """Given at the begin."""
        if self.bare:
            return {}
        return {"key": self.key, "late": "yes"} if self.late else {"key": self.key}

    @property
    def last_metadata(self) -> dict[str, Any]:
        """Added by an orderly end."""
        return {} if self.bare else {"end": -self.key}


class ScriptedEnv(gymnasium.Env):
    """An environment that plays the script whose key is the seed of the reset."""

    def __init__(self, scripts: dict[int, Script]) -> None:
        self.observation_space = SPACES["observation_space"]
        self.action_space = SPACES["action_space"]
        self._scripts = scripts
        self.script = next(iter(scripts.values()))
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin the episode with this key."""
        super().reset(seed=seed)
        assert seed is not None
        self.script, self.t = self._scripts[seed], 0
        return self.script.observation(0), self.script.info(0)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Go one further."""
        reward = self.script.reward(self.t)
        self.t += 1
        ending = self.script.ending if self.t == self.script.length else ""
        observation, info = self.script.observation(self.t), self.script.info(self.t)
        return observation, reward, ending == "terminated", ending == "truncated", info


def untrue(episode: el.Episode, script: Script) -> Iterator[str]:
    """What an episode says that is not so; it may be shorter than its script."""
    length = len(episode)
    if length > script.length:
        yield f"it has {length} steps of {script.length}"
        return
    places, steps = range(length + 1), range(length)
    ends = length == script.length
    wanted: dict[str, tuple[Any, Any]] = {
        "observations": (episode.observations.tolist(), [script.observation(t).tolist() for t in places]),
        "actions": (episode.actions.tolist(), [script.action(t) for t in steps]),
        "rewards": (episode.rewards.tolist(), [script.reward(t) for t in steps]),
        "infos": (episode.infos, [script.info(t) for t in places]),
        "policy": (list(episode.policy["value"][:length]), [script.policy(t)["value"] for t in steps]),
        "return": (episode.episode_return, sum(script.reward(t) for t in steps)),
        "terminated": (episode.terminated, ends and script.ending == "terminated"),
        "truncated": (episode.truncated, ends and script.ending == "truncated"),
        "terminations": (int(episode.terminations.sum()), int(ends and script.ending == "terminated")),
        "truncations": (int(episode.truncations.sum()), int(ends and script.ending == "truncated")),
        "metadata": ({**episode.metadata, **script.metadata}, episode.metadata),
    }
    for name, (got, expected) in wanted.items():
        if got != expected:
            yield f"{name} are {got!r:.200}, expected {expected!r:.200}"
