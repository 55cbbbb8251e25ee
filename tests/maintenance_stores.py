"""What the tests of maintenance share: stores of awkward episodes, and the comparison of whole contents.

`contents` takes everything that the Episode API gives, before an operation; `assert_contents` compares it
with what there is afterwards. `assert_faces_agree` reads a store as a user of Polars, of DuckDB and of a bare
Delta reader would, and compares the three with the episodes, row by row.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from deltalake import DeltaTable
from gymnasium import spaces
from polars.testing import assert_frame_equal

import episodelake as el
from real_environments import equal_values
from strategies import value_of

AWKWARD_SPACES: dict[str, Any] = {
    "observation_space": spaces.Dict(
        {
            "frame": spaces.Box(0, 255, (2, 3), np.uint8),
            "pair": spaces.Tuple(
                [spaces.Discrete(3, start=-1), spaces.Box(-np.inf, np.inf, (2,), np.float32)]
            ),
            "words": spaces.Sequence(spaces.Discrete(5)),
            "text": spaces.Text(5),
        }
    ),
    "action_space": spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (1,), np.float64)]),
}
# fmt: off
FIELDS = [
    "id", "run_id", "number", "env_index", "observations", "actions", "rewards", "terminations",
    "truncations", "infos", "policy", "extra", "seed", "options", "metadata", "episode_return",
    "length", "terminated", "truncated", "end_reason", "started_at", "ended_at", "annotations",
    "step_annotations",
]
# fmt: on

# Infos of four segments: the kind of "x" changes from file to file, columns come late, and one file has none.
INFOS: list[list[dict[str, Any]]] = [
    [{"x": 1, "same": 0.5}, {"x": 2, "same": float("nan")}],
    [{"x": "one", "same": 1.5}, {"late": [1, 2], "nest": {"a": None, "b.c": True}}, {"late": []}],
    [{}],
    [{"x": None, "X": 3, "array": np.arange(4, dtype=np.int8).reshape(2, 2)}, {"x": 2.5, "late": ["a"]}],
]


def write_awkward(writer: el.EpisodeWriter, number: int, length: int, infos: list[dict[str, Any]]) -> str:
    """Write an episode of extreme values that follow from `number`; its id. Every third return is NaN."""
    random = np.random.default_rng(number)
    observation_space, action_space = AWKWARD_SPACES["observation_space"], AWKWARD_SPACES["action_space"]
    for space in (observation_space, action_space):
        space.seed(number)
    episode = writer.begin(
        value_of(observation_space, random),
        infos[0],
        seed=number if number % 2 else None,
        options={"level": number} if number % 4 == 0 else None,
        metadata={"label": f"m{number % 3}", **({"score": number / 2} if number % 2 else {})},
        extra={"height": float(number)},
    )
    for t in range(length):
        last = t == length - 1
        episode.append(
            value_of(action_space, random),
            float("nan") if last and number % 3 == 2 else number + t / 8,
            value_of(observation_space, random),
            terminated=last and number % 2 == 0,
            truncated=last and number % 5 == 0,
            info=infos[(t + 1) % len(infos)],
            policy={"log_prob": -t / 4},
            extra={"height": t / 2},
        )
    return episode.end().episode_id


def make_awkward_store(
    path: Path, files: int = 4, infos: list[list[dict[str, Any]]] = INFOS
) -> el.EpisodeStore:
    """Make a store of `files` segments with two awkward episodes each, from two runs."""
    store = el.create(path, **AWKWARD_SPACES)
    for half in range(2):
        with store.writer(run=f"awkward-{half}", metadata={"half": half}) as writer:
            for file in range(files * half // 2, files * (half + 1) // 2):
                for number in (2 * file, 2 * file + 1):
                    write_awkward(writer, number, 1 + number * 3 % 7, infos[file % len(infos)])
                writer.seal()
    return store.refresh()


@functools.cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="episodelake-awkward-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_awkward_store(folder / "store").path


def awkward_store(path: Path) -> el.EpisodeStore:
    """Give a store of eight awkward episodes in four segments: a copy, so ids are the same in all of them."""
    shutil.copytree(_template(), path)
    return el.open(path)


def contents(view: Iterable[el.Episode]) -> list[dict[str, Any]]:
    """Return everything that the Episode API tells of every episode, in order."""
    return [{name: getattr(episode, name) for name in FIELDS} for episode in view]


def equal(left: Any, right: Any) -> bool:
    """Tell whether two contents are the same in kind, dtype, shape and value; NaN is NaN."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list) and isinstance(right, tuple | list):
        return len(left) == len(right) and all(map(equal, left, right))
    return equal_values(left, right)


def assert_contents(
    view: Iterable[el.Episode], expected: list[dict[str, Any]], without: tuple[str, ...] = ()
) -> None:
    """Check that a view has exactly these contents, in this order."""
    found = contents(view)
    assert [one["id"] for one in found] == [one["id"] for one in expected]
    for one, other in zip(found, expected, strict=True):
        for name in FIELDS:
            if name not in without:
                assert equal(one[name], other[name]), (
                    f"{one['id']}.{name}: {one[name]!r}, not {other[name]!r}"
                )


def ids_of(view: el.EpisodeView) -> list[str]:
    """Return the ids of a view in its order, read with Polars."""
    return view.episodes.select("episode_id").collect()["episode_id"].to_list()


def segments_of(store: el.EpisodeStore) -> set[str]:
    """Return the names of the segments that the episodes point at."""
    return set(store.episodes.select("segment").collect()["segment"].to_list())


def raw_frame(store: el.EpisodeStore, table: str) -> pl.DataFrame:
    """Read a whole table as a Delta reader does that knows nothing of the library."""
    return pl.read_delta(DeltaTable(str(store.path / table)))


def assert_faces_agree(store: el.EpisodeStore, raw: bool = True) -> None:
    """Check that episodes, Polars, DuckDB and (for the newest version) bare Delta tell the same.

    A bare reader must find every row of a visible episode exactly once, and no episode that is not visible.
    """
    episodes, steps = store.episodes.collect(), store.steps.collect()
    assert len(store) == episodes.height
    if len(store):
        own = pl.concat([one.frame() for one in store])
        assert_frame_equal(steps.select(own.columns), own)
    keys = ["episode_id", "t"]
    queried = store.sql("select * from steps").pl()
    same_rows(queried, steps, keys)
    same_rows(store.sql("select * from episodes").pl(), episodes, ["episode_id"])
    same_rows(store.sql("select * from transitions").pl(), store.transitions.collect(), keys)
    assert store.transitions.collect().height == episodes["length"].sum()
    for episode in store:
        rows = steps.filter(pl.col("episode_id") == episode.id)
        assert rows["t"].to_list() == list(range(len(episode) + 1))
        assert equal(rows["reward"].to_list()[:-1], episode.rewards.tolist())
        assert rows["terminated"].to_list()[:-1] == episode.terminations.tolist()
    if raw:
        plain = with_overflow(raw_frame(store, "steps"), steps)
        assert plain.height == steps.height, "a bare Delta reader finds other rows than the store shows"
        same_rows(plain, steps.select(one for one in steps.columns if one in plain.columns), keys)
        assert sorted(raw_frame(store, "episodes")["episode_id"].to_list()) == sorted(ids_of(store))


def with_overflow(plain: pl.DataFrame, shown: pl.DataFrame) -> pl.DataFrame:
    """Fill the columns of a bare frame that readers show wider, from the JSON column, as the format says."""
    for name in plain.columns:
        if plain[name].dtype != shown[name].dtype:
            family, _, key = name.rpartition(".")
            texts = plain[f"{family}._json" if family else "_json"].to_list()
            others = [None if text is None else json.loads(text).get(key) for text in texts]
            values = [
                (other if isinstance(other, int | float) else None) if cell is None else cell
                for cell, other in zip(plain[name].to_list(), others, strict=True)
            ]
            plain = plain.with_columns(pl.Series(name, values, shown[name].dtype, strict=False))
    return plain


def same_rows(left: pl.DataFrame, right: pl.DataFrame, keys: list[str]) -> None:
    """Check that two frames have the same rows and columns, in whatever order."""
    assert_frame_equal(left.sort(keys), right.sort(keys), check_column_order=False, check_exact=True)


def crashed_copy(store: el.EpisodeStore, path: Path) -> Path:
    """Copy a store with all its journals, whose locks nobody holds there: as if all writers died now."""
    shutil.copytree(store.path, path)
    return path


def files_under(path: Path) -> set[str]:
    """Return all files of a store, relative to it, but for locks."""
    found = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return {str(file) for file in found if file.suffix != ".lock"}
