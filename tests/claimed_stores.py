"""Stores of real environments, and of values as bad as they come, for the tests of claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pyarrow.dataset as ds
import pytest
from gymnasium import spaces

import episodelake as el

HOSTILE = (
    "<script>alert('x')</script>\x1b[31mred\x1b]0;title\x07 & \"quote\" 'single' "
    "\u202egnp.exe\nsecond line\ttab"
)
LONG = "x" * 20_000


def play(env: gymnasium.Env, seeds: int, limit: int, action_seed: int = 0) -> None:
    """Random episodes in a recorder; those longer than the limit are reset in the middle, and so cut."""
    env.action_space.seed(action_seed)
    for seed in range(seeds):
        env.reset(seed=seed)
        for _ in range(limit):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                break
    env.close()


def record(path: Path, make: Callable[[], gymnasium.Env], seeds: int = 4, limit: int = 30) -> el.EpisodeStore:
    """A store of random episodes in a real environment."""
    store = el.create(path, make())
    play(store.record(make(), run="random"), seeds, limit)
    return store.refresh()


def treasure(path: Path, seeds: int) -> el.EpisodeStore:
    """Random episodes with two objectives, of a package that is not among the oldest dependencies."""
    mo_gymnasium = pytest.importorskip("mo_gymnasium")
    return record(path, lambda: mo_gymnasium.make("deep-sea-treasure-v0"), seeds)


def cartpole(path: Path, seeds: int = 8) -> el.EpisodeStore:
    """Two runs of CartPole: terminated, truncated and cut episodes, and metadata on one run only."""
    store = el.create(path, gymnasium.make("CartPole-v1"))
    play(store.record(gymnasium.make("CartPole-v1"), run="dynamic"), seeds, 30)
    short = gymnasium.make("CartPole-v1", max_episode_steps=9)
    play(store.record(short, run="short", metadata={"algo": "random"}), seeds, 30, 1)
    return store.refresh()


def columns_with_odd_names(path: Path) -> el.EpisodeStore:
    """Keys of info, policy, metadata and observation with dots, spaces, quotes, brackets and SQL words."""
    keys = [
        "select",
        "a.b",
        "with space",
        'say "hi"',
        "it's",
        "Größe",
        "观测",
        "UPPER",
        "x[0]",
        "50%",
        "-1",
        "order",
    ]
    observation = spaces.Dict({key: spaces.Box(-9, 9, (2,), np.float32) for key in keys})
    store = el.create(path, observation_space=observation, action_space=spaces.Discrete(3))
    with store.writer(run="odd names; drop table steps --") as writer:
        for number in range(4):
            length = 3 + number
            values = {
                key: np.arange(2 * (length + 1), dtype=np.float32).reshape(-1, 2) / 10 + place
                for place, key in enumerate(keys)
            }
            writer.write_episode(
                observations=values,
                actions=np.arange(length) % 3,
                rewards=np.arange(length, dtype=float),
                terminations=number % 2 == 0,
                truncations=number % 2 == 1,
                infos={key: np.arange(length + 1) * 1.5 for key in keys},
                policy={key: np.arange(length) * 0.5 for key in keys},
                metadata={key: number for key in keys},
            )
    return store.refresh()


ODD_REWARDS = (
    [1.0, float("nan"), 2.0, 3.0],
    [1.0, float("inf"), 2.0],
    [float("-inf")],
    [float("inf"), float("-inf"), 1.0],
    [0.0, -0.0, 1e308, 1e308],
    [-1.0, 0.5],
)


def odd_rewards(path: Path) -> el.EpisodeStore:
    """Rewards with NaN and infinities, episodes of one step, metadata that is NULL for most."""
    store = el.create(
        path, observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float64), action_space=spaces.Discrete(2)
    )
    with store.writer(run="odd") as writer:
        for number, rewards in enumerate(ODD_REWARDS):
            observations = np.arange(2.0 * (len(rewards) + 1)).reshape(-1, 2)
            if number == 0:
                observations[1] = [np.nan, np.inf]
            writer.write_episode(
                observations=observations,
                actions=np.arange(len(rewards)) % 2,
                rewards=rewards,
                terminations=number % 2 == 0,
                truncations=False,
                metadata={"note": "only here", "score": float("nan")} if number == 2 else {},
            )
    return store.refresh()


def hostile_texts(path: Path) -> el.EpisodeStore:
    """Texts that would be markup, colour or a title if somebody trusted them, wherever text may be."""
    store = el.create(
        path,
        observation_space=spaces.Dict(
            {"said": spaces.Text(30_000, charset=_charset()), "x": spaces.Box(-1, 1, (1,))}
        ),
        action_space=spaces.Discrete(2),
    )
    with store.writer(run="<b>bold</b>", metadata={"note": HOSTILE, "<i>key</i>": 1}) as writer:
        for number, text in enumerate([HOSTILE, "", LONG]):
            writer.write_episode(
                observations={"said": [text] * 4, "x": np.zeros((4, 1), np.float32)},
                actions=[0, 1, 0],
                rewards=[1.0, 2.0, 3.0],
                terminations=True,
                truncations=False,
                infos=[{"text": text, "<img src=x onerror=alert(1)>": 1.0}] * 4,
                metadata={"note": text, "\x1b[31mred": number},
            )
    return store.refresh()


def _charset() -> str:
    return "".join(sorted(set(HOSTILE + LONG)))


def two_segments(path: Path) -> el.EpisodeStore:
    """Two files of steps, four episodes in each."""
    store = el.create(path, observation_space=spaces.Box(-1, 1, (3,)), action_space=spaces.Discrete(2))
    for run in ("first", "second"):
        with store.writer(run=run) as writer:
            random = np.random.default_rng(len(run))
            for _ in range(4):
                writer.write_episode(
                    observations=random.random((2001, 3), np.float32),
                    actions=random.integers(2, size=2000),
                    rewards=random.random(2000),
                    terminations=True,
                    truncations=False,
                )
    return store.refresh()


def damage(store: el.EpisodeStore, run: str) -> Path:
    """Flip bytes in the middle of the steps of one run; the file that is damaged."""
    (file,) = (file for file in (Path(store.path) / "steps").glob("*.parquet") if file.name.startswith(run))
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[200 : middle + 4000] = bytes(255 - byte for byte in data[200 : middle + 4000])
    file.write_bytes(data)
    return file


def raw_steps(path: Path) -> list[dict]:
    """Rows of all steps files by pyarrow alone, in the order of episodes and t."""
    files = sorted(map(str, (path / "steps").glob("*.parquet")))
    rows = ds.dataset(files).to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["episode_id"], row.get("agent_id") or "", row["t"]))
