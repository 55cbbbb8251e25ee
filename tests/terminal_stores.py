"""Stores of every kind that the commands of the command line are tried on, each with what it cannot do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pyarrow.dataset as ds
from gymnasium import spaces

import episodelake as el
from maintenance_stores import make_awkward_store
from rollout_stores import make_rollouts

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class RawStore:
    """A store, and its tables as they lie in the files, read by pyarrow alone.

    Attributes:
        path: the store's folder.
    """

    path: Path

    def table(self, name: str) -> list[dict]:
        """Rows of a table's Parquet files, of stores without deleted or compacted files."""
        files = sorted(map(str, (self.path / name).glob("*.parquet")))
        return ds.dataset(files).to_table().to_pylist() if files else []


def _empty(path: Path) -> None:
    el.create(path, gymnasium.make("CartPole-v1"))


def _empty_agents(path: Path) -> None:
    pair = (spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    el.create(path, agents={"red": pair, "blue": pair})


def _agents(path: Path) -> None:
    shutil.copytree(DATA / "format-1-agents" / "store", path)
    # It was left with the journal of a writer that died.
    el.recover(path)


def _objectives(path: Path) -> None:
    store = el.create(
        path,
        observation_space=spaces.Box(-1, 1, (3,)),
        action_space=spaces.Box(-1, 1, (2,)),
        reward_shape=(2,),
    )
    random = np.random.default_rng(0)
    with store.writer(run="many") as writer:
        for length in (3, 9, 5):
            writer.write_episode(
                observations=random.uniform(-1, 1, (length + 1, 3)).astype(np.float32),
                actions=random.uniform(-1, 1, (length, 2)).astype(np.float32),
                rewards=random.normal(size=(length, 2)),
                terminations=True,
                truncations=False,
            )


def _images(path: Path) -> None:
    space = spaces.Dict(camera=spaces.Box(0, 255, (16, 24, 3), np.uint8), speed=spaces.Box(-1, 1, ()))
    store = el.create(path, observation_space=space, action_space=spaces.Discrete(3))
    random = np.random.default_rng(1)
    with store.writer(run="film") as writer:
        for length in (4, 6):
            writer.write_episode(
                observations={
                    "camera": random.integers(0, 256, (length + 1, 16, 24, 3), np.uint8),
                    "speed": np.linspace(-1, 1, length + 1, dtype=np.float32),
                },
                actions=np.arange(length) % 3,
                rewards=np.ones(length),
                terminations=True,
                truncations=False,
            )


def _awkward(path: Path) -> None:
    make_awkward_store(path)


def _cartpole(path: Path) -> None:
    store = el.create(path, gymnasium.make("CartPole-v1"))
    for run in ("left", "mixed"):
        env = store.record(gymnasium.make("CartPole-v1"), run=run, metadata={"policy": run})
        with env:
            for seed in range(6):
                random = np.random.default_rng(seed)
                env.reset(seed=seed)
                done = False
                while not done:
                    _, _, terminated, truncated, _ = env.step(0 if run == "left" else int(random.integers(2)))
                    done = terminated or truncated


#: Characters that change the direction of writing.
TURNED = "a\u202eb\u2066c\u200fd\ufeffe"


def _odd(path: Path) -> None:
    parts = {"a.b": spaces.Box(-1, 1, (2,)), "50%": spaces.Box(-1, 1, ()), "select": spaces.Discrete(3)}
    store = el.create(path, observation_space=spaces.Dict(parts), action_space=spaces.Discrete(2))
    with store.writer(run="odd", metadata={"note": TURNED}) as writer:
        for number, reward in enumerate((np.nan, np.nan, np.inf, -np.inf, np.inf, -0.5)):
            writer.write_episode(
                observations={
                    "a.b": np.full((3, 2), number / 8, np.float32),
                    "50%": np.linspace(-1, 1, 3, dtype=np.float32),
                    "select": np.array([0, 1, 2]),
                },
                actions=[0, 1],
                rewards=[0.0, reward],
                terminations=True,
                truncations=False,
                metadata={"note": TURNED},
            )


def make_small_store(path: Path) -> el.EpisodeStore:
    """Three episodes of 2, 10 and 3 transitions: terminated, truncated and cut, each in a segment."""
    box = spaces.Box(-10, 10, (2,), np.float32)
    card = {"author": "Zoë"}
    store = el.create(path, observation_space=box, action_space=spaces.Discrete(3), card=card)
    with store.writer(run="first", metadata={"policy": "x"}) as writer:
        for length, terminated, truncated in ((2, True, False), (10, False, True), (3, False, False)):
            writer.write_episode(
                observations=np.arange(2 * length + 2, dtype=np.float32).reshape(-1, 2) / 10,
                actions=np.arange(length) % 3,
                rewards=np.arange(length) / 2,
                terminations=terminated,
                truncations=truncated,
                infos=[{"note": "tab\there" if t else "first\x1b[31m"} for t in range(length + 1)],
                seed=length,
                metadata={"length": length},
            )
            writer.seal()
    return store.refresh()


MAKERS: dict[str, Callable[[Path], None]] = {
    "cartpole": _cartpole,
    "awkward": _awkward,
    "agents": _agents,
    "objectives": _objectives,
    "images": _images,
    "odd": _odd,
    "rollouts": make_rollouts,
    "empty": _empty,
    "empty agents": _empty_agents,
}


def make_stores(folder: Path) -> dict[str, RawStore]:
    """Make a store of every kind below a folder."""
    found = {}
    for name, make in MAKERS.items():
        make(folder / name.replace(" ", "-"))
        found[name] = RawStore(folder / name.replace(" ", "-"))
    return found
