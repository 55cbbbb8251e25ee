"""A store as plain Python values: what each version of it must show, and the comparison."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars
from gymnasium import spaces
from polars.testing import assert_frame_equal

from .. import EpisodeStore, EpisodeView
from ..readers.episode import Episode
from ..types import EpisodeRow
from ..writers.episodes.episode_writer import EpisodeWriter
from .backends import Backend
from .infos import same_info
from .values import same, stack

OBSERVATION = spaces.Dict(
    {
        "frame": spaces.Box(0, 255, (2, 3), np.uint8),
        "pair": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.Box(-np.inf, np.inf, (2,), np.float32)]),
        "words": spaces.Sequence(spaces.Discrete(5)),
    }
)
ACTION = spaces.Discrete(10)
SPACES: dict[str, Any] = {"observation_space": OBSERVATION, "action_space": ACTION}
#: Columns that every segment has, so that readers without the library find them.
_PLAIN = ["episode_id", "t", "action", "reward", "terminated", "truncated"]
_KEYS = ["episode_id", "t"]


def observation(number: int, t: int) -> dict[str, Any]:
    """Return the observation of row `t` of the episode with a number."""
    pair = np.int64(t % 3 - 1), np.array([number, t / 8], np.float32)
    words = tuple(np.int64((number + i) % 5) for i in range((number + t) % 3))
    return {"frame": np.full((2, 3), (number + t) % 256, np.uint8), "pair": pair, "words": words}


@dataclass
class ModelEpisode:
    """One episode; its observations, actions, rewards, policy values and extras follow from `number`.

    Attributes:
        reward: of each step, to which t / 8 is added.
        ended: the flags of the last step.
        end_reason: how the recording ended.
        info: of every even row, beside the row's `t`.
        labels: annotations of the episode, by name.
        marks: annotations of its rows, by name.
    """

    number: int
    length: int
    reward: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    ended: tuple[bool, bool] = (False, False)
    end_reason: str = ""
    episode_id: str = ""
    labels: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, dict[int, Any]] = field(default_factory=dict)

    @property
    def rewards(self) -> list[float]:
        """The rewards of all steps."""
        return [self.reward + t / 8 for t in range(self.length)]

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The infos of all rows."""
        return [{"t": t, **({} if t % 2 else self.info)} for t in range(self.length + 1)]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that it began with."""
        return {"number": self.number, **self.info}

    def begin(self, writer: EpisodeWriter) -> Any:
        """Begin it in a writer; return the open episode, which has no step yet."""
        handle = writer.begin(
            observation(self.number, 0),
            self.infos[0],
            seed=self.number,
            metadata=self.metadata,
            extra={"height": 0.0},
        )
        self.episode_id = handle.id
        return handle

    def write(self, writer: EpisodeWriter) -> EpisodeRow:
        """Write all of it, and end it."""
        handle = self.begin(writer)
        self.append(handle)
        self.finish("cut")
        return handle.end()

    def append(self, handle: Any, first: int = 0) -> None:
        """Append the steps from `first` to the last to an open episode."""
        for t in range(first, self.length):
            last = t == self.length - 1
            handle.append(
                (self.number + t) % 10,
                self.rewards[t],
                observation(self.number, t + 1),
                *(self.ended if last else (False, False)),
                info=self.infos[t + 1],
                policy={"p": t / 2},
                extra={"height": t + 1.0},
            )

    def finish(self, otherwise: str) -> None:
        """Set the end reason by the flags, or `otherwise` if neither is set."""
        terminated, truncated = self.ended
        self.end_reason = "terminated" if terminated else "truncated" if truncated else otherwise

    def arrays(self) -> dict[str, Any]:
        """Return the arguments of `write_episode`."""
        terminated, truncated = self.ended
        return {
            "observations": stack(OBSERVATION, [observation(self.number, t) for t in range(self.length + 1)]),
            "actions": np.array([(self.number + t) % 10 for t in range(self.length)]),
            "rewards": np.array(self.rewards),
            "terminations": terminated,
            "truncations": truncated,
            "infos": self.infos,
            "policy": {"p": np.arange(self.length) / 2},
            "extra": {"height": np.arange(self.length + 1.0)},
            "metadata": self.metadata,
            "seed": self.number,
        }

    def check(self, episode: Episode) -> None:
        """Fail unless an episode of a store is this one."""
        length = self.length
        assert episode.id == self.episode_id
        expected = [observation(self.number, t) for t in range(length + 1)]
        assert same(episode.observations, stack(OBSERVATION, expected)), f"observations of {episode.id}"
        assert episode.actions.tolist() == [(self.number + t) % 10 for t in range(length)]
        assert same(episode.rewards, np.array(self.rewards, np.float64)), f"rewards of {episode.id}"
        for flags, last in zip((episode.terminations, episode.truncations), self.ended, strict=True):
            assert flags.tolist() == [False] * (length - 1) + [last]
        assert same_info(episode.infos, self.infos), f"{episode.infos} is not {self.infos}"
        assert same_info(episode.metadata, self.metadata), f"{episode.metadata} is not {self.metadata}"
        assert list(episode.policy["p"]) == [t / 2 for t in range(length)]
        assert list(episode.extra["height"]) == list(range(length + 1))
        assert (episode.seed, episode.length, episode.end_reason) == (self.number, length, self.end_reason)
        assert same(np.asarray(episode.episode_return), np.asarray(sum(self.rewards)))


@dataclass
class Shown:
    """The contents of a version: episodes by position, and the names of its annotations."""

    episodes: list[ModelEpisode] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)

    def copy(self) -> Shown:
        """Return a copy that shares nothing."""
        return copy.deepcopy(self)

    def rename(self, name: str, new: str | None) -> None:
        """Rename an annotation; without a new name it is dropped."""
        for names in (self.labels, self.marks):
            if name in names:
                names.remove(name)
                names.update([] if new is None else [new])
        for each in self.episodes:
            kept: dict[str, Any]
            for kept in (each.labels, each.marks):
                value = kept.pop(name, None)
                if new is not None and value is not None:
                    kept[new] = value

    @property
    def ids(self) -> list[str]:
        """The ids of the episodes."""
        return [each.episode_id for each in self.episodes]

    def check(self, store: EpisodeStore) -> None:
        """Fail unless episodes, Polars and DuckDB show exactly this."""
        assert ids_of(store) == self.ids
        names = set(store.annotations.select("name", "table").rows())
        assert names == {(each, "episodes") for each in self.labels} | {
            (each, "steps") for each in self.marks
        }
        runs = store.runs.collect()["run_id"].to_list()
        assert len(runs) == len(set(runs))
        for episode, model in zip(store, self.episodes, strict=True):
            assert episode.run_id in runs
            model.check(episode)
            assert dict(episode.annotations) == {name: model.labels.get(name) for name in self.labels}
        check_engines(store, self)


def ids_of(view: EpisodeView) -> list[str]:
    """Return the ids of a view, by position."""
    return view.episodes.select("episode_id").collect()["episode_id"].to_list()


def check_engines(store: EpisodeStore, shown: Shown) -> None:
    """Fail unless Polars shows the rows of the episodes, and DuckDB those of Polars."""
    steps, episodes = store.steps.collect(), store.episodes.collect()
    for name in shown.marks:
        marks = [each.marks.get(name, {}).get(t) for each in shown.episodes for t in range(each.length + 1)]
        assert steps[name].to_list() == marks, f"{name}: {steps[name].to_list()}, not {marks}"
    for name in shown.labels:
        assert episodes[name].to_list() == [each.labels.get(name) for each in shown.episodes], name
    if shown.episodes:
        own = polars.concat([each.frame() for each in store])
        assert_frame_equal(steps.select(own.columns), own)
    assert steps.height == sum(each.length + 1 for each in shown.episodes)
    transitions = store.transitions.collect()
    assert transitions.height == sum(each.length for each in shown.episodes)
    frames: Sequence[tuple[str, polars.DataFrame, list[str]]] = (
        ("steps", steps, _KEYS),
        ("episodes", episodes, _KEYS[:1]),
        ("transitions", transitions, _KEYS),
    )
    for table, frame, keys in frames:
        same_rows(store.sql(f"select * from {table}").pl(), frame, keys)


def check_raw(backend: Backend, shown: Shown, name: str = "store") -> None:
    """Fail unless readers without the library find each row of the shown episodes once, and no other."""
    models = {each.episode_id: each for each in shown.episodes}
    rows = [(each.episode_id, t) for each in shown.episodes for t in range(each.length + 1)]
    raw = backend.frame("steps", name)
    assert sorted(raw.select(_KEYS).rows()) == sorted(rows)
    assert backend.frame("episodes", name)["episode_id"].sort().to_list() == sorted(shown.ids)
    assert backend.count("steps", name) == len(rows)
    assert backend.count("episodes", name) == len(models)
    for key, t, action, reward, terminated, truncated in raw.select(_PLAIN).iter_rows():
        model = models[key]
        if t == model.length:
            continue
        ended = model.ended if t == model.length - 1 else (False, False)
        assert (action, terminated, truncated) == ((model.number + t) % 10, *ended)
        assert same(np.float64(reward), np.float64(model.rewards[t]))


def same_rows(left: polars.DataFrame, right: polars.DataFrame, keys: list[str]) -> None:
    """Fail unless two frames have the same columns and rows, in whatever order."""
    assert_frame_equal(left.sort(keys), right.sort(keys), check_column_order=False, check_exact=True)


def label_frame(name: str, values: Mapping[str, Any]) -> polars.DataFrame:
    """Return a frame of one annotation of episodes, by their ids."""
    frame = {"episode_id": [*values], name: [*values.values()]}
    return polars.DataFrame(frame, schema_overrides={name: _TYPES[name]}, strict=True)


def mark_frame(name: str, values: Mapping[tuple[str, int], Any]) -> polars.DataFrame:
    """Return a frame of one annotation of steps, by ids and t."""
    frame = {"episode_id": [key for key, _ in values], "t": [t for _, t in values], name: [*values.values()]}
    return polars.DataFrame(frame, schema_overrides={name: _TYPES[name]}, strict=True)


#: Names of annotations and their types.
_TYPES: dict[str, Any] = {
    "good": polars.Boolean,
    "note": polars.String,
    "gain": polars.Float64,
    "word": polars.String,
}


def kill(writer: EpisodeWriter) -> None:
    """Leave a writer as a kill after a flush does: its journal stays, and no process holds the lock."""
    session = writer._session
    try:
        writer.flush()
    finally:
        session._leave_journal()
