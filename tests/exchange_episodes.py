"""Random stores of odd values, and what a round trip through a format changes without a loss for it."""

from __future__ import annotations

import io
import random
import re
import tarfile
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from gymnasium import spaces

import episodelake as el
from episodelake.store.dynamic.values import load_json
from strategies import same, stack, value_of

_LAST = "last transition|next observation|without a transition"
#: The words of a loss that explains a difference.
_WORDS = {
    "spaces": "spaces",
    "card": "card",
    "episodes": "without a transition|nothing is left",
    "observations": f"{_LAST}|last observation|the shape",
    "has_last": f"{_LAST}|last observation",
    "actions": f"{_LAST}|the shape|actions in the units",
    "rewards": _LAST,
    "end": f"{_LAST}|not cut|not truncated|as well|whether an episode",
    "infos": f"{_LAST}|info|types of other",
    "policy": f"{_LAST}|policy|types of other",
    "extra": f"{_LAST}|last observation|column",
    "seed": "seed",
    "options": "options",
    "metadata": "metadata|types of other",
}
_KEYS = ["a", "b.c", "x y", "Ä", "next_a", "info.x", "observation", "a/b", "reward", "t", "0", "episode"]
_METADATA: list[dict[str, Any]] = [
    {"ü": "ß", "k": 1, "deep": {"a": 1.5, "l": [1, 2]}},
    {"seed": 5, "id": "x", "total_steps": 9, "num_samples": 3},
    {"a/b": 1, "a.b": 2, "flag": True, "none": None, "nul": "a\0b"},
    {"task": "walk", "splits": ["train"], "tags": ["q", 1], "big": 2**70, "empty": {}},
]


def write_random(path: Path, chosen: random.Random) -> el.EpisodeStore:
    """A store of one to three episodes."""
    simple = chosen.random() < 0.5
    observation = _vector(chosen) if simple else _space(chosen)
    action = chosen.choice([_vector, lambda _: spaces.Discrete(3)])(chosen) if simple else _space(chosen)
    reward_shape = (2,) if chosen.random() < 0.1 else ()
    card = chosen.choice([{}, {"author": "x", "n": 3, "w": [1, 2], "d": {"k": 1}}])
    store = el.create(
        path, observation_space=observation, action_space=action, reward_shape=reward_shape, card=card
    )
    numbers = np.random.default_rng(chosen.randrange(10**9))
    observation.seed(int(numbers.integers(2**31)))
    action.seed(int(numbers.integers(2**31)))
    with store.writer() as writer:
        for index in range(chosen.randint(1, 3)):
            length = chosen.choice([1, 2, 5])
            missing = chosen.random() < 0.2 and any(part.shape != (0,) for part in _parts(observation))
            count = length + (not missing)
            terminated, truncated = chosen.choice(
                [(False, False), (True, False), (False, True), (True, True)]
            )
            writer.write_episode(
                observations=stack(observation, [value_of(observation, numbers) for _ in range(count)]),
                actions=stack(action, [value_of(action, numbers) for _ in range(length)]),
                rewards=numbers.choice([0.0, 1.5, np.nan, np.inf, 1 / 3], (length, *reward_shape)),
                terminations=terminated,
                truncations=truncated,
                infos=_infos(chosen, index, count),
                last_observation="missing" if missing else "present",
                **_facts(chosen, length, count),
            )
    return store.refresh()


def unexplained_transitions(store: el.EpisodeStore, folder: Path, name: str) -> list[Any]:
    """Return the differences of transitions after a conversion and an import that no loss of either explains.

    Replay buffers hold no facts of whole episodes, and those of two libraries have rewards and actions of
    float32. A conversion or an import that refuses explains all.
    """
    spaces_: dict[str, Any] = {
        "observation_space": store.observation_space,
        "action_space": store.action_space,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            source = getattr(store.to, name)()
            again = el.import_dataset(source, folder / "back", **spaces_)
        except (el.errors.DatasetError, el.errors.InvalidArgumentError) as error:
            assert "failed:" not in str(error), error
            return []
    lost = "\n".join([*(str(each.message) for each in caught), *again.lost])
    found = dict(_differences(store, el.open(folder / "back")))
    parts = ("episodes", "observations", "actions", "rewards", "end", "has_last", "infos", "policy", "extra")
    words = _WORDS | {"end": f"{_WORDS['end']}|that an episode was cut", "episodes": _LAST}
    return [
        (part, found[part], lost)
        for part in parts
        if part in found
        and not re.search(words[part], lost)
        and not (name != "tianshou" and part in ("rewards", "actions") and _rounded(*found[part]))
    ]


def _rounded(ours: Any, theirs: Any) -> bool:
    """Return whether arrays differ by no more than float32 rounds them."""
    arrays = isinstance(ours, np.ndarray) and ours.dtype.kind == "f" and isinstance(theirs, np.ndarray)
    return arrays and np.allclose(ours, theirs, rtol=1e-6, equal_nan=True)


def webdataset_differences(store: el.EpisodeStore, folder: Path) -> list[Any]:
    """Return what samples of episodes, read by tarfile and NumPy, have otherwise than the store."""
    try:
        store.export(folder / "target", format="webdataset", strict=True)
    except el.errors.DatasetError as error:
        assert re.search("WebDataset cannot hold|cannot hold the name", str(error)), error
        return []
    found: dict[str, dict[Any, Any]] = {}
    for file in sorted((folder / "target").glob("*.tar")):
        with tarfile.open(file) as shard:
            for member in shard:
                key, name, suffix = re.fullmatch(r"(\d+)\.(.*?)\.?(npy|json)", member.name).groups()  # type: ignore[union-attr]
                content = shard.extractfile(member).read()  # type: ignore[union-attr]
                value = np.load(io.BytesIO(content)) if suffix == "npy" else load_json(content.decode(), name)
                found.setdefault(key, {})[_path(name)] = value
    assert len(found) == len(store)
    return [
        (episode.id, path, value, parts.get(path))
        for parts, episode in zip(found.values(), store, strict=True)
        for path, value in _sample(episode, parts.pop(("",)), parts)
        if not same(value, parts.get(path)) and _plain(value) != _plain(parts.get(path))
    ]


def _sample(episode: el.Episode, facts: dict[str, Any], parts: dict[Any, Any]) -> Any:
    """Yield what the sample of an episode must have; adds the columns of its facts to the parts."""
    parts.update((_path(name), values) for name, values in facts.pop("steps", {}).items())
    for name, value in facts.items():
        parts["fact", name] = value
        yield ("fact", name), getattr(episode, name)
    for side in ("observation", "action"):
        yield from _flat(getattr(episode, f"{side}s"), (side,))
    yield ("reward",), episode.rewards
    yield ("terminated",), episode.terminations
    yield ("truncated",), episode.truncations
    yield from _flat({"info": episode.info_arrays, "policy": episode.policy, **episode.extra})


def _path(name: str) -> tuple[str, ...]:
    return tuple("" if part == "%" else unquote(part).strip("<>") for part in name.split("."))


def _flat(values: Any, path: tuple[str, ...] = ()) -> Any:
    if isinstance(values, dict | tuple):
        for key, part in values.items() if isinstance(values, dict) else enumerate(values):
            yield from _flat(part, (*path, str(key)))
    else:
        yield path, values


def _differences(store: el.EpisodeStore, back: el.EpisodeStore) -> Any:
    if (store.observation_space, store.action_space) != (back.observation_space, back.action_space):
        yield "spaces", (back.observation_space, back.action_space)
    if any(_plain(back.card.get(key)) != _plain(value) for key, value in store.card.items()):
        yield "card", back.card
    if len(store) != len(back):
        yield "episodes", len(back)
        return
    for ours, theirs in zip(store, back, strict=True):
        expected, found = _described(ours), _described(theirs)
        yield from (
            (part, (expected[part], found[part])) for part in found if not same(expected[part], found[part])
        )


def _described(episode: Any) -> dict[str, Any]:
    return {
        "observations": episode.observations,
        "actions": episode.actions,
        "rewards": episode.rewards,
        "end": (episode.end_reason, bool(episode.terminated), bool(episode.truncated)),
        "has_last": episode.has_last_observation,
        "infos": _plain(episode.infos),
        "policy": _plain(episode.policy),
        "extra": _plain(episode.extra),
        "seed": episode.seed,
        "options": _plain(episode.options),
        "metadata": _plain(
            {k: value for k, value in episode.metadata.items() if not k.startswith("source_")}
        ),
    }


def _plain(value: Any) -> Any:
    """Return a value as dicts in order, lists and numbers; floats as text, so that NaN is NaN."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in sorted(value.items())}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return repr(value) if isinstance(value, float) else value


def _vector(chosen: random.Random) -> spaces.Space:
    return spaces.Box(-np.inf, np.inf, (chosen.randint(1, 3),), chosen.choice([np.float32, np.float64]))


def _leaf(chosen: random.Random) -> spaces.Space:
    kind: Any = chosen.choice([np.uint8, np.int64, np.float16, np.float32, np.float64, np.int8])
    shape = chosen.choice([(), (1,), (3,), (2, 2), (0,), (4, 4, 3)])
    bounds = (-np.inf, np.inf) if np.dtype(kind).kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    others = [
        spaces.Discrete(5, start=-3),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([3, 4]),
        spaces.Text(6),
    ]
    return chosen.choice([*[spaces.Box(*bounds, shape, kind)] * 4, *others])


def _space(chosen: random.Random, depth: int = 0) -> spaces.Space:
    kind = chosen.random() if depth < 2 else 1
    if kind < 0.2:
        return spaces.Dict({key: _space(chosen, depth + 1) for key in chosen.sample(_KEYS, 2)})
    if kind < 0.27:
        return spaces.Tuple([_space(chosen, depth + 1) for _ in range(2)])
    return _leaf(chosen)


def _parts(space: spaces.Space) -> list[spaces.Space]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [leaf for part in inner for leaf in _parts(part)]
    return [space]


def _infos(chosen: random.Random, index: int, count: int) -> list[dict[str, Any]]:
    odd = {"l": [1, "a"], "n": None, "big": 2**70, "nan": float("nan"), "next_x": 1}
    kinds: list[Any] = [
        lambda t: {},
        lambda t: {"cost": float(t), "v": np.arange(2.0) * t, "b": t % 2 == 0, "n": t},
        lambda t: {"s": f"é{t}" + "\0" * (t % 3 == 2)},
        lambda t: {"cost": float(t)} if t % 2 else {"s": "x"},
        lambda t: {"a": {"b": t, "c.d": 1.5}, "a/b": 2},
        lambda t: {"cost": 1.0} if index % 2 else {},
        lambda t: {"kind": t if t % 2 else "x"},
        lambda t: odd,
    ]
    kind = chosen.choice(kinds)
    return [kind(t) for t in range(count)]


def _facts(chosen: random.Random, length: int, count: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "policy": {"logp": np.arange(float(length)), "vec": np.ones((length, 2), np.float32)},
        "extra": {"note": [f"n{t}" for t in range(count)], "w": np.arange(count), "task": ["do"] * count},
        "seed": chosen.choice([0, 7, -3, 2**63 + 5, 2**70]),
        "options": {"a": {"b": [1, None, "ü"]}, "x": 1.5, "e": {}},
        "metadata": chosen.choice(_METADATA),
    }
    return {name: value for name, value in facts.items() if chosen.random() < 0.3}
