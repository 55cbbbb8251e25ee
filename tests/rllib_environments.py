"""Environments for RLlib with a log of their own: one JSON line for each reset and step, written at once."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from ray.rllib.env.multi_agent_env import MultiAgentEnv


class Log:
    """Writes the lines of one environment."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, f"{uuid.uuid4().hex}.jsonl")
        self.key = ""

    def reset(self, **values: Any) -> None:
        """Begin an episode with a key of its own."""
        self.write(None, **values)

    def write(self, action: Any, **values: Any) -> None:
        """Write what happened in the current episode."""
        with open(self._path, "a") as file:
            file.write(json.dumps({"key": self.key, "action": action, **values}, default=_plain) + "\n")


def logged_episodes(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of each episode that has a step."""
    for path in sorted(folder.glob("*.jsonl")):
        episodes: dict[str, list[dict[str, Any]]] = {}
        for line in path.read_text().splitlines():
            event = json.loads(line)
            episodes.setdefault(event["key"], []).append(event)
        yield from (events for events in episodes.values() if len(events) > 1)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


class LoggedEnv(gymnasium.Wrapper):
    """An environment of Gymnasium with a log and infos.

    Args:
        config: `id`; `log`, the folder; `fails_at`, the step of each environment's life that raises, once in
            the folder.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(gymnasium.make(config["id"], max_episode_steps=config.get("limit", 30)))
        self._log, self._config, self._life = Log(config["log"]), config, 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset and log."""
        observation, info = self.env.reset(**options)
        self._log.key = uuid.uuid4().hex
        info = {**info, "key": self._log.key, "t": 0}
        self._t = 0
        self._log.reset(observation=observation, info=info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step and log."""
        self._life += 1
        mark = Path(self._config["log"]) / "failed"
        if self._life == self._config.get("fails_at") and not mark.exists():
            mark.touch()
            raise ConnectionError("the simulator went away")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._t += 1
        info = {**info, "key": self._log.key, "t": self._t}
        if self._t % 3 == 0:
            info["third"] = float(self._t)
        result = observation, float(reward), bool(terminated), bool(truncated), info
        names = ("observation", "reward", "terminated", "truncated", "info")
        self._log.write(action, **dict(zip(names, result, strict=True)))
        return result


class Relay(MultiAgentEnv):
    """Agents that come late, answer late, leave early, and end with and without a last observation."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.possible_agents = ["red", "blue", 7]
        self.agents = list(self.possible_agents)
        small, wide = spaces.Box(-99, 99, (2,), np.float32), spaces.Box(-99, 99, (3,), np.float32)
        self.observation_spaces = {"red": small, "blue": small, 7: wide}
        two, force = spaces.Discrete(2), spaces.Box(-2, 2, (1,))
        self.action_spaces = {"red": two, "blue": two, 7: force}
        super().__init__()
        self._log, self._count = Log(config["log"]), 0

    def _look(self, agent: Any) -> np.ndarray:
        self._count += 1
        return np.full(self.observation_spaces[agent].shape, self._count % 97, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Begin with two agents."""
        self._log.key = uuid.uuid4().hex
        self._t, self._gone = 0, set()
        self._episode = getattr(self, "_episode", -1) + 1
        observations = {agent: self._look(agent) for agent in ("red", "blue")}
        infos = {"red": {"key": self._log.key, "t": 0}, "__common__": {"weather": "fine"}}
        self._log.reset(observation=_texts(observations), info=_texts(infos))
        return observations, infos

    def step(self, action_dict: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Red answers at once, blue every other step; 7 is there from step 2 to step 5, in odd episodes."""
        self._t += 1
        t, last = self._t, 6 + self._episode % 3
        done = t == last
        seen = {"red"} | ({"blue"} if t % 2 == 0 else set())
        terminated, truncated = {"__all__": False}, {"__all__": False}
        if self._episode % 2:
            if 2 <= t <= 5:
                seen.add(7)
            if t == 5:
                terminated[7] = True
        if done:
            # By turns: terminated, with blue's last observation missing if it waits; truncated, with it.
            kind = terminated if self._episode % 2 == 0 else truncated
            kind["__all__"] = True
            if kind is truncated:
                seen.add("blue")
        observations = {agent: self._look(agent) for agent in self.possible_agents if agent in seen}
        rewards = {agent: self._count / 8 for agent in ("red", "blue")}
        if self._episode % 2 and 1 <= t <= 5:
            rewards[7] = float(t)
        infos = {agent: {"t": t, "agent": str(agent)} for agent in observations}
        if t % 4 == 0:
            infos["__common__"] = {"weather": "foul"}
        names = ("observation", "reward", "terminated", "truncated", "info")
        result = observations, rewards, terminated, truncated, infos
        texts = map(_texts, result)
        self._log.write(_texts(action_dict), **dict(zip(names, texts, strict=True)))
        return result


def _texts(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in values.items()}
