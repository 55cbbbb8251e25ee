"""Environments and wrappers that a run can name by their module, and stores whose runs claim what they like.

`Scripted` gives values of many kinds of spaces that follow from its seed alone, changed at one place on
demand. `claiming_store` writes a run with a spec, versions and a bundle of any content, as a hostile program
could.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

import episodelake as el
from episodelake.writers.rows.step_rows import StepRows
from episodelake.writers.session.environment import keep_env
from episodelake.writers.session.run import run_header
from episodelake.writers.session.session import RunSession

EVERYTHING = spaces.Dict(
    {
        "body.arm": spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
        "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "count": spaces.Discrete(10),
        "pair": spaces.Tuple([spaces.MultiBinary(3), spaces.Box(-1, 1, (), np.float64)]),
        "trail": spaces.Sequence(spaces.Box(-1, 1, (2,), np.float64)),
        "word": spaces.Text(8),
    }
)


class Scripted(gymnasium.Env):
    """Gives samples of a space, drawn anew by each reset, and ends after `length` steps.

    Args:
        space: of observations.
        length: of an episode.
        changes: replaces (step, leaf) by a function of the value there; leaves are "observation", "reward",
            "terminated" and "truncated".
    """

    def __init__(
        self,
        space: spaces.Space | None = None,
        length: int = 5,
        changes: Mapping[tuple[int, str], Any] | None = None,
    ) -> None:
        self.observation_space = EVERYTHING if space is None else space
        self.action_space = spaces.Discrete(3)
        self.changes = changes or {}
        self.length = length
        self.actions: list[Any] = []
        self.options: Any = None

    def _now(self, leaf: str, value: Any) -> Any:
        change = self.changes.get((len(self.actions), leaf))
        return value if change is None else change(value)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Begin the script of this seed."""
        super().reset(seed=seed)
        self.actions = []
        self.options = options
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self._now("observation", self.observation_space.sample()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Read on in it."""
        self.actions.append(action)
        t = len(self.actions)
        observation = self._now("observation", self.observation_space.sample())
        reward = self._now("reward", float(self.np_random.normal()))
        flags = (self._now("terminated", t == self.length), self._now("truncated", False))
        return observation, reward, *flags, {}


class Reader(gymnasium.Env):
    """Observes how many bytes its file has, if it can read it."""

    observation_space = spaces.Box(-1, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, file: str | Path | None = None, token_file: str = "", level: str = "") -> None:
        given = [each for each in (file, token_file, level) if each]
        self.size = float(sum(len(Path(each).read_bytes()) for each in given))
        self.file = file

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Observe."""
        super().reset(seed=seed)
        return np.array([self.size]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Observe again."""
        return np.array([self.size]), 1.0, False, False, {}


class Scaled(gymnasium.RewardWrapper, gymnasium.utils.RecordConstructorArgs):
    """Multiplies rewards, and keeps its argument."""

    def __init__(self, env: gymnasium.Env, factor: float) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, factor=factor)
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> Any:
        """The reward, multiplied."""
        return self.factor * float(reward)


class Forgetful(gymnasium.Wrapper):
    """Changes nothing, and does not keep its arguments."""

    def __init__(self, env: gymnasium.Env, level: int = 1) -> None:
        super().__init__(env)
        self.level = level


class Argumentless(gymnasium.Wrapper):
    """Turns rewards around; takes the environment alone, so that there is nothing to keep."""

    def step(self, action: Any) -> Any:
        """Step."""
        observation, reward, *rest = self.env.step(action)
        return observation, -float(reward), *rest


class Halving(Argumentless):
    """Halves rewards; takes the environment alone, in a method of its own."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.share = 0.5

    def step(self, action: Any) -> Any:
        """Step."""
        observation, reward, *rest = self.env.step(action)
        return observation, self.share * float(reward), *rest


def record(path: Path | str, env: gymnasium.Env, steps: int = 12, **options: Any) -> el.EpisodeStore:
    """Play an environment at random, with seeds, into a store that may be there already; gives the store."""
    storage = options.pop("storage_options", None)
    try:
        store = el.open(path, storage_options=storage)
    except el.errors.StoreNotFoundError:
        store = el.create(path, env, storage_options=storage)
    with store.record(env, **options) as recorder:
        recorder.action_space.seed(3)
        recorder.reset(seed=11)
        for number in range(steps):
            if any(recorder.step(recorder.action_space.sample())[2:4]):
                recorder.reset(seed=12 + number)
    return store.refresh()


def run_row(store: el.EpisodeStore) -> dict[str, Any]:
    """The row of the last run, its JSON texts parsed."""
    row = store.runs.collect().to_dicts()[-1]
    names = ("env_spec", "versions", "env_bundle")
    return {**row, **{name: json.loads(row[name]) for name in names if row.get(name) is not None}}


def claiming_store(
    path: Path,
    spec: Any,
    versions: Mapping[str, Any] | None = None,
    files: list[dict[str, Any]] | None = None,
) -> el.EpisodeStore:
    """A store like that of CartPole-v1, with one run that says of its environment what is given here."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(path, env)
    bundle = {"made_by": "somewhere:Something", "files": files or [], "problems": []}
    header = dataclasses.replace(
        run_header("claims", {}, keep_env(None, env)),
        env_spec=spec if spec is None or isinstance(spec, str) else json.dumps(spec),
        versions=json.dumps(versions or {}),
        env_bundle=json.dumps(bundle),
    )
    session = RunSession(store.handle, header, el.types.SessionOptions(), StepRows, env)
    observation = np.zeros(4, np.float32)
    episode = session.rows.begin(observation, {}, seed=1)
    buffer = session.rows.room()
    buffer.put_action(buffer.count, 0)
    buffer.add_step(episode, 1.0, observation, False, False, {}, None)
    session.rows.end(episode)
    session.close()
    return store.refresh()


def all_files(folder: Path) -> set[str]:
    """The files and folders below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


class Tabled(CartPoleEnv):
    """CartPole with any argument."""

    def __init__(self, table: Any = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.table = table
