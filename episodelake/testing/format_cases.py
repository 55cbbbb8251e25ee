"""Stores that together hold every kind of value, fact and end, as the cases of a contract."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
import polars as pl
from gymnasium import spaces

from .. import Video
from ..opening import EpisodeStore, create, open_store, recover
from .format_values import EPISODES, FACTS, ODD_NAMES, SEEDS, SPACES, STEP_VALUES, VECTOR, Value
from .values import extreme_value, stack

ACTION = spaces.Box(-np.inf, np.inf, (1,), np.float32)


@dataclass(frozen=True)
class Case:
    """A store to write.

    Attributes:
        name: for messages.
        write: creates the store at a path.
        parts: the same values in smaller stores, for a format that refuses this one.
        probe: a smaller store; a format that refuses it as well has no use for the parts.
        lost: parts of `LOSSES` that a report has to name unless the import gives them back.
        facts: what an import of a format with a place for it gives back, by the part of `LOSSES`: a function
            of the store, and the value.
    """

    name: str
    write: Callable[[Path], EpisodeStore]
    parts: Callable[[], Sequence[Case]] = tuple
    probe: Callable[[Path], EpisodeStore] | None = None
    lost: tuple[str, ...] = ()
    facts: Mapping[str, tuple[Callable[[Any], Any], Any]] = field(default_factory=dict)

    def store(self) -> EpisodeStore:
        """Return the store, which is written once in a process; callers do not change it."""
        return _written(self)

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and self.name == other.name


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="episodelake-cases-")


@cache
def _written(case: Case) -> EpisodeStore:
    number = len(list(Path(_folder().name).iterdir()))
    return case.write(Path(_folder().name, f"{number}", "store"))


def write_episodes(
    path: Path,
    observation: spaces.Space = VECTOR,
    action: spaces.Space = VECTOR,
    facts: Callable[[int, int], Mapping[str, Any]] = lambda index, length: {},
    episodes: Sequence[tuple[int, bool, bool]] = EPISODES,
    run: Mapping[str, Any] | None = None,
    **described: Any,
) -> EpisodeStore:
    """Create a store with samples of its spaces.

    Args:
        path: where nothing is.
        observation, action: the spaces.
        facts: other arguments of `write_episode` for an episode, by its number and length.
        episodes: length and flags of each.
        run: arguments of the writer.
        described: of the store.
    """
    store = create(path, observation_space=observation, action_space=action, **described)
    add_episodes(store, facts, episodes, run)
    return store.refresh()


def add_episodes(
    store: EpisodeStore,
    facts: Callable[[int, int], Mapping[str, Any]] = lambda index, length: {},
    episodes: Sequence[tuple[int, bool, bool]] = EPISODES,
    run: Mapping[str, Any] | None = None,
) -> None:
    """Add episodes to a store; see `write_episodes`."""
    observation, action = store.observation_space, store.action_space
    observation.seed(1)
    action.seed(2)
    options: dict[str, Any] = dict(run or {})
    with store.writer(**options) as writer:
        for index, (length, terminated, truncated) in enumerate(episodes):
            given: dict[str, Any] = {
                "rewards": np.arange(length) / 3 + index,
                "terminations": terminated,
                "truncations": truncated,
                **facts(index, length),
            }
            seen = length + (given.get("last_observation") != "missing")
            observations = stack(observation, [observation.sample() for _ in range(seen)])
            actions = stack(action, [action.sample() for _ in range(length)])
            writer.write_episode(**{"observations": observations, "actions": actions, **given})


def _rows(values: Mapping[str, Value], index: int, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in values.items():
        for t, row in enumerate(rows):
            try:
                row[name] = value(index, t)
            except (KeyError, IndexError):
                continue
    return rows


#: Groups of values: "info", "policy" and "extra" of steps, "metadata" and "options" of episodes.
_GROUPS = ("info", "policy", "extra", "metadata", "options")


def _every_value() -> dict[tuple[str, str], Any]:
    """Return the values that an episode can have, by group and name."""
    values: dict[tuple[str, str], Any] = {}
    for group in _GROUPS[:3]:
        # Own columns have no names that others may have.
        prefix = "own " if group == "extra" else ""
        values |= {(group, f"{prefix}{name}"): value for name, value in STEP_VALUES.items()}
        values |= {(group, f"{prefix}{name}"): STEP_VALUES["float"] for name in ODD_NAMES}
    values["extra", "task"] = STEP_VALUES["text"]
    for group in _GROUPS[3:]:
        values |= {(group, name): value for name, value in FACTS.items()}
    return values


def _arguments(values: Mapping[tuple[str, str], Any], index: int, length: int) -> dict[str, Any]:
    """Return the arguments of an episode that has the values; the last one has no facts of its own."""
    of = {group: {n: value for (g, n), value in values.items() if g == group} for group in _GROUPS}
    given: dict[str, Any] = {"infos": _rows(of["info"], index, length + 1)}
    for group in ("policy", "extra"):
        rows = _rows(of[group], index, length + (group == "extra"))
        names = [name for name in of[group] if all(name in row for row in rows)]
        given[group] = {name: [row[name] for row in rows] for name in names}
    return given | ({group: of[group] for group in _GROUPS[3:]} if index < 2 else {})


def _halves(names: Sequence[Any]) -> list[Sequence[Any]]:
    return [names[: len(names) // 2], names[len(names) // 2 :]] if len(names) > 1 else []


def _values(values: Mapping[tuple[str, str], Any]) -> Case:
    """Return a case with named values, whose parts have half of them."""
    names = [*values]
    return Case(
        "values" if len(names) > 20 else " and ".join(f"{group} {name}" for group, name in names),
        lambda path: write_episodes(path, facts=lambda index, length: _arguments(values, index, length)),
        lambda: [_values({name: values[name] for name in half}) for half in _halves(names)],
    )


def _dict_of(names: Sequence[str], extreme: bool = False) -> Case:
    """Return a case with many spaces in one, whose parts have half of them."""
    space = spaces.Dict({name: SPACES[name] for name in names})

    def facts(index: int, length: int) -> dict[str, Any]:
        if not extreme:
            return {}
        random = np.random.default_rng(index + 2)
        values = [extreme_value(space, random) for _ in range(2 * length + 1)]
        return {"observations": stack(space, values[length:]), "actions": stack(space, values[:length])}

    return Case(
        f"{'extreme values' if extreme else 'a Dict'} of {', '.join(names)}",
        lambda path: write_episodes(path, space, space, facts),
        lambda: [_dict_of(half, extreme) for half in _halves(names)],
        lambda path: write_episodes(path, spaces.Dict(a=VECTOR), VECTOR),
    )


#: Frames that are stored as video: of even and odd sizes, channels last and first, lossy and lossless.
_CAMERAS: dict[str, tuple[tuple[int, ...], Video]] = {
    "grey": ((16, 16), Video("h264", gop=4)),
    "odd": ((17, 19, 3), Video("h264", gop=4)),
    "planar": ((3, 17, 19), Video("hevc", gop=4)),
    "exact": ((17, 19, 3), Video(lossless=True)),
}


def _video(*names: str) -> Case:
    """Return a case with cameras whose frames are stored as video; one alone is the whole observation."""
    boxes: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(0, 255, _CAMERAS[name][0], np.uint8) for name in names
    }
    alone = len(names) == 1
    encodings = {
        "observation" if alone else f"observation.{name}": encoding
        for name, (_, encoding) in _CAMERAS.items()
        if name in names
    }
    space = boxes[names[0]] if alone else spaces.Dict(boxes)
    return Case(
        f"video of {', '.join(names)}",
        lambda path: write_episodes(path, space, VECTOR, encodings=encodings),
        lambda: [] if alone else [_video(name) for name in names],
    )


def _single_spaces() -> list[Case]:
    """Return a case for each space as that of observations, with another one as that of actions."""
    names = [*SPACES]
    return [_pair(name, names[(index + 9) % len(names)]) for index, name in enumerate(names)]


def _pair(observation: str, action: str) -> Case:
    def parts() -> list[Case]:
        alone = (SPACES[observation], VECTOR), (VECTOR, SPACES[action])
        names = f"observation {observation}", f"action {action}"
        return [
            Case(name, lambda path, both=both: write_episodes(path, *both))
            for name, both in zip(names, alone, strict=True)
        ]

    return Case(
        f"observation {observation}, action {action}",
        lambda path: write_episodes(path, SPACES[observation], SPACES[action]),
        parts,
    )


def _flags() -> list[Case]:
    """Return a case for each way to end, so that a loss of one explains no other."""
    ways = {
        "terminated": (True, False),
        "truncated": (False, True),
        "both": (True, True),
        "cut": (False, False),
    }
    return [
        Case(f"the end: {name}", lambda path, flags=flags: write_episodes(path, episodes=[(3, *flags)]))
        for name, flags in ways.items()
    ]


def _missing(index: int, length: int) -> dict[str, Any]:
    return {"last_observation": "missing"} if index % 2 else {}


def _numbers(index: int, length: int) -> dict[str, Any]:
    rewards = np.resize([np.nan, np.inf, -np.inf, 1 / 3, -0.0], length)
    observations = np.resize(np.array([np.nan, -np.inf, 0.1, -0.0, 1e-40], np.float32), (length + 1, 2))
    return {"rewards": rewards, "observations": observations, "seed": SEEDS[index]}


def _written_numbers(path: Path) -> EpisodeStore:
    episodes = [(5, index % 2 == 0, index % 2 == 1) for index in range(len(SEEDS))]
    return write_episodes(path, facts=_numbers, episodes=episodes)


def _vector_rewards(path: Path) -> EpisodeStore:
    def facts(index: int, length: int) -> dict[str, Any]:
        return {"rewards": np.ones((length, 2)) / 3}

    return write_episodes(path, facts=facts, reward_shape=(2,))


def _interrupted(path: Path) -> EpisodeStore:
    alive = create(path.with_name("alive"), observation_space=VECTOR, action_space=ACTION)
    with alive.writer() as writer:
        episode = writer.begin(np.zeros(2, np.float32))
        for _ in range(2):
            episode.append(np.ones(1, np.float32), 0.5, np.ones(2, np.float32))
        writer.flush()
        shutil.copytree(path.with_name("alive"), path)
    recover(path)
    return open_store(path)


class Line(gymnasium.Env):
    """An environment of two steps, which names nothing that has to be installed."""

    observation_space = VECTOR
    action_space = ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Return the first observation."""
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}


def _environments(*ids: str) -> Callable[[Path], EpisodeStore]:
    def write(path: Path) -> EpisodeStore:
        store = create(path, observation_space=VECTOR, action_space=ACTION)
        for each in ids:
            add_episodes(store, run={"env": each})
        return store.refresh()

    return write


_RUN = {"lr": 3e-4, "wandb": {"id": "x"}}


def _runs(path: Path) -> EpisodeStore:
    store = write_episodes(path, run={"run": "ppo", "metadata": _RUN})
    add_episodes(store, lambda index, length: {"metadata": {"run": 5}} if index else {}, run={"run": "dqn"})
    return store.refresh()


def _annotated(path: Path) -> EpisodeStore:
    store = write_episodes(path)
    ids = [episode.id for episode in store]
    store.annotate(pl.DataFrame({"episode_id": ids, "label": ["good", None, "bad"]}))
    return store


def _annotated_steps(path: Path) -> EpisodeStore:
    store = write_episodes(path)
    steps = {"episode_id": [store[0].id] * 2, "t": [0, 1], "quality": [0.5, 1.5]}
    store.annotate(pl.DataFrame(steps), on=("episode_id", "t"))
    return store


def _qualities(store: EpisodeStore) -> Any:
    """Return the annotations of two steps, which come back as a column of the caller's."""
    return [*store[0].extra.get("quality", ())][:2]


def _with_artifacts(path: Path) -> EpisodeStore:
    store = write_episodes(path)
    store.artifacts.add(b"prices", name="prices.bin")
    return store


def _metadata(*keys: str) -> Callable[[Any], Any]:
    return lambda store: [[each.metadata.get(key) for key in keys] for each in store]


def _of_card(key: str) -> Callable[[Any], Any]:
    return lambda store: store.card.get(key)


def _has_environment(store: Any) -> bool:
    return "Line-v0" in str(store.card.get("env_spec"))


_CARD = {"author": "A", "algorithm": "sac", "n": 3, "odd": {"k": [1, None]}}
#: Two episodes have metadata of that name, in whose place the name of their run has no room.
_OF_RUNS = [["ppo", _RUN]] * 3 + [["dqn", None]] * 3


def _facts() -> list[Case]:
    """Return the cases of episodes, runs and stores."""
    return [
        Case("plain", write_episodes),
        Case("numbers that no sample has, and seeds", _written_numbers),
        *_flags(),
        Case("missing last observations", lambda path: write_episodes(path, facts=_missing)),
        Case("an interrupted episode", _interrupted),
        Case("runs", _runs, lost=("run",), facts={"run": (_metadata("run", "run_metadata"), _OF_RUNS)}),
        Case("an environment", _environments("Line-v0"), facts={"environment": (_has_environment, True)}),
        Case("two environments", _environments("Line-v0", "Line-v1"), lost=("environment",)),
        Case(
            "a card",
            lambda path: write_episodes(path, card=_CARD),
            facts={f"card {key}": (_of_card(key), value) for key, value in _CARD.items()},
        ),
        Case("annotations of episodes", _annotated, lost=("annotations",)),
        Case("of steps", _annotated_steps, facts={"annotations quality": (_qualities, [0.5, 1.5])}),
        Case("artifacts", _with_artifacts, lost=("artifacts",)),
        Case("vector rewards", _vector_rewards),
        _values(_every_value()),
        _dict_of([*SPACES]),
        _dict_of([*SPACES], extreme=True),
        # Stores with video need PyAV.
        *([_video(*_CAMERAS)] if find_spec("av") else ()),
    ]


@cache
def all_cases() -> tuple[Case, ...]:
    """Return the cases: those of episodes and stores first, then a space each."""
    return (*_facts(), *_single_spaces())
