"""`episodelake diff`: it finds exactly what was changed, and its exit status tells."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from effort import examples
from log_edits import read_actions, write_actions
from maintenance_stores import awkward_store
from test_cli import call, no_terminal

__all__ = ["no_terminal"]

DATA = Path(__file__).parents[1] / "data"
BOX = spaces.Box(-9, 9, (2,), np.float64)


def compared(*words: object) -> dict[str, Any]:
    """The report of a comparison; the exit status agrees with it."""
    result = call("diff", *words, "--json")
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["same"] else 1)
    return report


def write(path: Path, rewards: list[list[float]]) -> el.EpisodeStore:
    """A store with an episode per list of rewards."""
    store = el.create(path, observation_space=BOX, action_space=spaces.Discrete(2))
    with store.writer(run="run") as writer:
        for each in rewards:
            writer.write_episode(
                observations=np.zeros((len(each) + 1, 2)),
                actions=[0] * len(each),
                rewards=each,
                terminations=True,
                truncations=False,
            )
    return store.refresh()


@pytest.mark.sample(1)
@pytest.mark.parametrize("link", [True, False])
def test_a_copy_is_the_same(tmp_path: Path, link: bool) -> None:
    """A copy, linked or not, has no difference; nor has a compacted one, whose files differ."""
    store = awkward_store(tmp_path / "a")
    store.copy(tmp_path / "b", link=link)
    assert compared(tmp_path / "a", tmp_path / "b")["episodes"]["same"] == 8
    copy = el.open(tmp_path / "b")
    copy.compact()
    assert len({path.name for path in (tmp_path / "b" / "steps").glob("*.parquet")}) > 4
    report = compared(tmp_path / "a", tmp_path / "b")
    assert (report["same"], report["episodes"]["same"]) == (True, 8)
    assert call("diff", tmp_path / "a", tmp_path / "b").stdout == "No difference in 8 episodes.\n"


@pytest.mark.further
@settings(max_examples=examples(10))
@given(
    st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_steps_that_differ_are_found(
    tmp_path_factory: pytest.TempPathFactory, rewards: list[list[float]], data: st.DataObject
) -> None:
    """Exactly the episodes whose steps were changed differ, in the column that was changed."""
    folder = tmp_path_factory.mktemp("steps")
    store = write(folder / "a", rewards)
    store.copy(folder / "b")
    index = data.draw(st.integers(0, len(rewards) - 1))
    t = data.draw(st.integers(0, len(rewards[index]) - 1))
    wanted = store[index].id
    (file,) = (folder / "b" / "steps").glob("*.parquet")
    frame = pl.read_parquet(file)
    here = (pl.col("episode_id") == wanted) & (pl.col("t") == t)
    flipped = pl.when(here).then(~pl.col("truncated")).otherwise(pl.col("truncated")).alias("truncated")
    _replace_steps(folder / "b", frame.with_columns(flipped))
    report = compared(folder / "a", folder / "b")
    assert report["episodes"]["differing"] == [{"id": wanted, "columns": ["steps.truncated"]}]
    assert report["episodes"]["same"] == len(rewards) - 1
    assert compared(folder / "a", folder / "b", "--episodes-only")["same"]


def _replace_steps(path: Path, frame: pl.DataFrame) -> None:
    """Put other rows into the only segment of a store, and give its log the size of the new file."""
    (file,) = (path / "steps").glob("*.parquet")
    pq.write_table(frame.to_arrow().cast(pq.read_schema(file)), file)
    commit = max((path / "steps" / "_delta_log").glob("*.json"))
    actions = read_actions(commit)
    for action in actions:
        if "add" in action:
            action["add"]["size"] = file.stat().st_size
    write_actions(commit, actions)


def test_a_damaged_segment_is_trouble(tmp_path: Path) -> None:
    """Where steps that have to be compared are damaged, the file is named and the status is 2."""
    store = write(tmp_path / "a", [[1.0], [2.0, 3.0]])
    store.copy(tmp_path / "b")
    (file,) = (tmp_path / "b" / "steps").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:200])
    result = call("diff", tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, result.stdout) == (2, "")
    assert file.name in result.stderr
