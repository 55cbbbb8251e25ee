"""The orders of loaders never change: a training of last year can be repeated, batch by batch."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest

import episodelake as el
from effort import with_folders
from episodelake.testing.adapters import case

LENGTHS = [5, 1, 17, 9, 30, 2, 11]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Seven episodes whose numbers are all exact, whatever the machine."""
    box = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    path = tmp_path_factory.mktemp("recorded") / "store"
    made = el.create(path, observation_space=box, action_space=gym.spaces.Discrete(5))
    with made.writer(run="exact") as writer:
        for number, length in enumerate(LENGTHS):
            steps = np.arange(length + 1)
            writer.write_episode(
                observations=np.stack([steps * 0.5, steps % 3, steps * 0 + number], axis=1).astype("f4"),
                actions=steps[:-1] % 5,
                rewards=(steps[:-1] % 4 - number).astype(float),
                terminations=(steps[1:] == length) & (number % 2 == 0),
                truncations=(steps[1:] == length) & (number % 2 == 1),
            )
    return made.refresh()


def digest(batches: Iterable[Any]) -> str:
    """A checksum of the keys, dtypes, shapes and bytes of batches."""
    found = hashlib.sha256()

    def add(name: str, tree: Any) -> None:
        if isinstance(tree, dict):
            for key, part in tree.items():
                add(f"{name}.{key}", part)
        else:
            found.update(f"{name} {tree.dtype} {tree.shape}".encode() + tree.tobytes())

    for batch in batches:
        add("", batch)
    return found.hexdigest()[:16]


def two_epochs(loader: Any) -> str:
    """The digest of two epochs."""
    return digest(batch for _ in range(2) for batch in loader)


def forty(loader: Any) -> str:
    """The digest of forty batches of a loader without end, each of which changes some priorities."""
    found = []
    for batch in islice(loader, 40):
        found.append(batch)
        if "unit" in batch:
            loader.update_priorities(batch["unit"], np.abs(batch["reward"]) + 0.5)
    return digest(found)


def mixed(one: Any, other: Any) -> str:
    """The digest of two epochs of a mixture."""
    return two_epochs(el.mix([(one, 0.75), (other, 0.25)], 8, source=True, seed=3))


AT_ONCE: dict[str, Any] = {"refresh_seconds": 0, "wait_seconds": 0}
RULE = el.Prioritized(alpha=1.0, beta=1.0, epsilon=0.0)
DELTAS = el.Deltas({"observation": [-1, 0], "reward": [0, 2]})


def taken(loader: Any) -> str:
    """The digest of batches of any size."""
    return digest(loader.take(count) for count in (3, 50, 1, 40))


#: By name: the digest before, of what, and the arguments now.
CASES: dict[str, tuple[str, Callable[[Any], str], dict[str, Any]]] = {
    "shuffled": ("493e7a50b6db4363", two_epochs, {"shuffle": True, "seed": 3}),
    "with replacement": ("7e9b73efe7efb691", two_epochs, {"weights": "steps", "seed": 7}),
    "weights of episodes": ("2f0f1ba8305afee3", two_epochs, {"weights": "episodes", "seed": 7}),
    "weights": ("24ee8ed020effe5f", two_epochs, {"window": 2, "weights": pl.col("length") ** 2, "seed": 7}),
    "stream": (
        "d8b992eeb4af01ca",
        two_epochs,
        {"shuffle": True, "cache": el.Cache("stream", buffer_bytes=1 << 11)},
    ),
    "taken": ("c013e194d4ded35d", taken, {"window": 2, "shuffle": True}),
    "prioritized": ("d40272957742b001", forty, {"n_step": 2, "gamma": 0.5, "weights": RULE, "seed": 2}),
    "followed": ("bcd1d1a81b02da5c", forty, {"seed": 2, "follow": el.Follow(newest_steps=40, **AT_ONCE)}),
    "followed with weights": (
        "d99bb4c90640a5c0",
        forty,
        {"seed": 2, "weights": pl.col("length"), "follow": el.Follow(newest_episodes=4, **AT_ONCE)},
    ),
    "followed by priority": (
        "75845adf35b0e0dc",
        forty,
        {"seed": 2, "weights": RULE, "follow": el.Follow(**AT_ONCE)},
    ),
}


def test_batches_are_those_of_the_former_spelling(store: el.EpisodeStore, tmp_path: Path) -> None:
    """For the same seeds: each digest was computed by the version before, with its keywords."""
    for folder, name in with_folders(CASES, tmp_path):
        with case(name), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.chdir(folder)
            expected, digest_of, arguments = CASES[name]
            assert digest_of(store.loader(**{"batch_size": 8, **arguments})) == expected


def test_mixtures_are_those_of_the_former_spelling(store: el.EpisodeStore) -> None:
    """Each loader's own batch size and last batch do not matter."""
    one = store.loader(el.Batches(drop_last=True), shuffle=True)
    assert mixed(one, store.loader(weights="steps", seed=1)) == "bf6be7288c9e284d"


def test_follow_needs_its_object(store: el.EpisodeStore) -> None:
    """`follow=True` is answered with the object that is expected."""
    with pytest.raises(el.errors.InvalidArgumentError, match=r"follow=True: expected el\.Follow\("):
        store.loader(8, follow=True)  # pyright: ignore[reportArgumentType]


def test_objects_are_values() -> None:
    """Equal, printed as they were written, picklable, and normalized to plain numbers."""
    made = [
        el.Windows(4, stride=2, pad="left"),
        el.NSteps(3, gamma=0.5),
        DELTAS,
        el.Episodes(),
        el.Transitions(),
        el.Batches(8, drop_last=True),
        el.Cache("mmap", folder="here"),
        el.Follow(newest_steps=3),
        el.Output("torch", device="cpu"),
        el.Shard(1, 3, uneven="drop"),
    ]
    for value in made:
        assert value == pickle.loads(pickle.dumps(value)) == eval(repr(value), vars(el))
    assert el.Windows(np.int32(4)) == el.Windows(4) and repr(el.Windows(np.int32(4))) == repr(el.Windows(4))
    assert repr(DELTAS) == "Deltas(steps={'observation': (-1, 0), 'reward': (0, 2)})"
