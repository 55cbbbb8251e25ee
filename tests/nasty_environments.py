"""Small environments that are nasty on purpose, a plain loop over them, and the comparison of the two.

`play` runs any environment, recorded or not, and keeps deep copies of all that came back. A test plays a
fresh environment by itself, plays another one through a recorder, and `assert_recorded` compares what the
store gives with the first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import episodelake as el
from episodelake import testing
from episodelake.store.common.compatibility import AutoresetMode
from episodelake.testing.infos import ODD_INFOS, same_info
from strategies import same, stack

FLOATS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
PUSHES = spaces.Box(-1.0, 1.0, (2,), np.float32)


class SmallEnv(gym.Env):
    """Observes (t, episode, seeded noise) and ends after `length` steps."""

    def __init__(
        self, length: int = 5, ending: str = "terminated", action_space: spaces.Space = PUSHES
    ) -> None:
        self.observation_space: spaces.Space = FLOATS
        self.action_space = copy.deepcopy(action_space)
        self.length = length
        self.ending = ending
        self.t = 0
        self.episode = -1
        self.stepped = 0
        self.closed = 0
        self.returned: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start over."""
        super().reset(seed=seed)
        self.t = 0
        self.episode += 1
        self.returned = (self.look(), self.tell())
        return self.returned

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Count one further."""
        self.t += 1
        self.stepped += 1
        last = self.t >= self.length
        flags = last and "terminated" in self.ending, last and "truncated" in self.ending
        self.returned = (self.look(), self.earn(action), *flags, self.tell())
        return self.returned

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1

    def look(self) -> Any:
        """Return the observation."""
        return np.array([self.t, self.episode, self.np_random.normal()], np.float32)

    def earn(self, action: Any) -> Any:
        """Return the reward."""
        return float(self.np_random.normal())

    def tell(self) -> Any:
        """Return the info."""
        return {"t": self.t}


class ReusedBuffers(SmallEnv):
    """Hands out the same arrays for ever, and overwrites them and the action that it is given."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self.buffer = np.zeros(3, np.float32)
        self.shared = {"place": np.zeros(2), "parts": {"inner": np.zeros(2, np.int64)}, "path": []}

    def look(self) -> Any:
        """Overwrite the one buffer."""
        self.buffer[:] = super().look()
        return self.buffer

    def earn(self, action: Any) -> Any:
        """Overwrite the action."""
        reward = float(np.sum(action))
        action[:] = -777.0
        return reward

    def tell(self) -> Any:
        """Overwrite the one info."""
        self.shared["place"][:] = self.t
        self.shared["parts"]["inner"][:] = 10 * self.t
        self.shared["path"].append(self.t)
        return self.shared


class ChangingInfos(SmallEnv):
    """Tells something of another shape and type at every step, the whole of `ODD_INFOS` in turn."""

    def tell(self) -> Any:
        """Return the next of them, a different one each episode."""
        return copy.copy(ODD_INFOS[(self.t + 3 * self.episode) % len(ODD_INFOS)])


class Speaker(SmallEnv):
    """Observes unicode text, and acts by text."""

    WORDS = ("", "größe", "日本語", "😀", "a\nb", "x" * 40, "\x00", "'\"\\", "e\u0301", "\u202e")

    def __init__(self, length: int = 12) -> None:
        super().__init__(length)
        self.observation_space = spaces.Text(max_length=40, charset="".join(sorted(set("".join(self.WORDS)))))
        self.action_space = spaces.Text(max_length=8)

    def look(self) -> Any:
        """Return the next word."""
        return self.WORDS[self.t % len(self.WORDS)]


class Nested(SmallEnv):
    """Observes and acts in nests of Dict and Tuple with unusual keys."""

    def __init__(self, length: int = 6) -> None:
        super().__init__(length)
        inner = spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, (), np.float64), spaces.Text(5)))
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
                "a.b": spaces.MultiBinary([2, 2]),
                "größe x": inner,
                "half": spaces.Box(-np.inf, np.inf, (2,), np.float16),
                "many": spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32)),
            }
        )
        self.action_space = spaces.Tuple(
            (spaces.Discrete(3, start=-1), spaces.Dict({"m": spaces.MultiDiscrete([2, 3])}))
        )

    def look(self) -> Any:
        """Return a sample that the environment's own generator decides."""
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


class TwoGoals(SmallEnv):
    """Earns two rewards at once, in an array that it uses again."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self.purse = np.zeros(2)

    def earn(self, action: Any) -> Any:
        """Overwrite the one purse."""
        self.purse[:] = self.t, -self.t / 3
        return self.purse


class SameStep(SmallEnv):
    """Resets itself within the last step, and hands the true end over in `final_obs` and `final_info`."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return the first observation of the next episode with the flags of this one."""
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            first, told = self.reset()
            self.returned = (
                first,
                reward,
                terminated,
                truncated,
                {**told, "final_obs": observation, "final_info": info},
            )
        return self.returned


class WrongAt(SmallEnv):
    """Returns `wrong` as the "observation" or "reward" or "info" of time step `when`."""

    def __init__(self, wrong: Any, what: str = "observation", when: int = 3) -> None:
        super().__init__(length=8)
        self.wrong, self.what, self.when = wrong, what, when

    def look(self) -> Any:
        """Return the wrong one in time."""
        right = super().look()
        return self.wrong if (self.what, self.when) == ("observation", self.t) else right

    def earn(self, action: Any) -> Any:
        """Return the wrong one in time."""
        right = super().earn(action)
        return self.wrong if (self.what, self.when) == ("reward", self.t) else right

    def tell(self) -> Any:
        """Return the wrong one in time."""
        return self.wrong if (self.what, self.when) == ("info", self.t) else super().tell()


class Rollout(testing.PlayedEpisode):
    """One episode as a plain loop saw it."""

    def cut(self, length: int) -> Rollout:
        """Return its first `length` transitions."""
        lists = {name: value[:length] for name, value in vars(self).items() if isinstance(value, list)}
        whole = {"observations": self.observations[: length + 1], "infos": self.infos[: length + 1]}
        return Rollout(**{**lists, **whole})


def play(
    env: gym.Env, resets: Iterable[Mapping[str, Any]], limit: int | None = None, seed: int = 0
) -> list[Rollout]:
    """Play an episode for each reset, to its end or for `limit` steps, with actions that `seed` decides."""
    env.action_space.seed(seed)
    rollouts = []
    for arguments in resets:
        observation, info = env.reset(**arguments)
        rollout = Rollout([copy.deepcopy(observation)], [copy.deepcopy(info)])
        rollouts.append(rollout)
        while limit is None or len(rollout.actions) < limit:
            advance(env, rollout, env.action_space.sample())
            if rollout.terminations[-1] or rollout.truncations[-1]:
                break
    return rollouts


def advance(env: gym.Env, rollout: Rollout, action: Any) -> None:
    """Take one step and keep it."""
    taken = copy.deepcopy(action)
    observation, reward, terminated, truncated, info = env.step(action)
    rollout.actions.append(taken)
    rollout.observations.append(copy.deepcopy(observation))
    rollout.infos.append(copy.deepcopy(info))
    rollout.rewards.append(copy.deepcopy(reward))
    rollout.terminations.append(bool(terminated))
    rollout.truncations.append(bool(truncated))


def seeds(*numbers: int | None) -> list[dict[str, Any]]:
    """Return the arguments of one `reset` for each seed."""
    return [{"seed": number} for number in numbers]


def new_store(folder: Path, env: gym.Env, **arguments: Any) -> el.EpisodeStore:
    """Return an empty store for an environment."""
    return el.create(folder / "store", env, **arguments)


def assert_recorded(episode: el.Episode, plain: Rollout, env: gym.Env, end_reason: str | None = None) -> None:
    """Fail unless a stored episode is exactly what a plain loop saw."""
    assert len(episode) == episode.length == len(plain.actions)
    assert same(episode.observations, stack(env.observation_space, plain.observations))
    assert same(episode.actions, stack(env.action_space, plain.actions))
    rewards = np.array(plain.rewards, np.float64)
    assert same(episode.rewards, rewards)
    assert same(episode.terminations, np.array(plain.terminations, bool))
    assert same(episode.truncations, np.array(plain.truncations, bool))
    assert np.array_equal(np.asarray(episode.episode_return), sum(rewards), equal_nan=True)
    assert (episode.terminated, episode.truncated) == (plain.terminations[-1], plain.truncations[-1])
    reason = "terminated" if plain.terminations[-1] else "truncated" if plain.truncations[-1] else "cut"
    assert episode.end_reason == (end_reason or reason)
    assert len(episode.infos) == len(plain.infos)
    for t, (stored, true) in enumerate(zip(episode.infos, plain.infos, strict=True)):
        assert same_info(stored, true), f"info {t}: {stored!r} instead of {true!r}"
