"""Writing a store in Ray Data, when tasks and drivers fail too, compared with what was recorded.

`make test-rllib` runs these tests on a small Ray cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from gymnasium import spaces

import episodelake as el
from test_ray_reading import LENGTHS, SPACES, recorded
from waiting import PATIENCE

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("cluster")]


def emptied(source: el.EpisodeStore, path: Path) -> Path:
    """An empty store with the spaces of another."""
    spaces = {"observation_space": source.observation_space, "action_space": source.action_space}
    el.create(path, **spaces)
    return path


def check_equal(path: Path, source: el.EpisodeStore, count: int = len(LENGTHS)) -> None:
    """The store has the episodes of the other, each once, and nothing waits beside it."""
    found, expected = el.open(path), source
    assert len(found) == count
    assert not found.verify().faults
    here, there = (
        sorted(str(rows.drop("episode_id").rows()) for rows in steps.partition_by("episode_id"))
        for steps in (found.steps.collect(), expected.steps.collect())
    )
    assert here == there
    assert [name for name in os.listdir(path.parent) if name.startswith(".")] == []


@pytest.mark.parametrize("kind", SPACES)
def test_what_was_read_is_written_and_once(tmp_path: Path, kind: str) -> None:
    """Steps with their last observations come back as they were; the same write again adds nothing."""
    from episodelake.integrations.ray import read_steps, write_steps

    source, _ = recorded(tmp_path / "s", *SPACES[kind])
    target = emptied(source, tmp_path / "t")
    read = read_steps(tmp_path / "s", last=True, override_num_blocks=3)
    report = write_steps(read, target, write_id="nightly")
    assert (report.episodes, report.steps, report.present) == (len(LENGTHS), sum(LENGTHS), 0)
    check_equal(target, source)
    version = el.open(target).version
    again = write_steps(read, target, write_id="nightly")
    assert (again.episodes, again.present) == (0, len(LENGTHS)) and el.open(target).version == version
    assert write_steps(read, target, write_id="nightly 2").episodes == len(LENGTHS)
    assert len(el.open(target)) == 2 * len(LENGTHS)


def rows_of(source: el.EpisodeStore) -> pa.Table:
    """All rows, as a plain table."""
    return source.steps.collect().to_arrow()


def test_rows_of_an_episode_in_several_blocks_are_refused_or_brought_together(tmp_path: Path) -> None:
    """Torn episodes are named before the commit; after `repartition` by key they are whole, in any order."""
    import ray

    from episodelake.integrations.ray import write_steps

    source, _ = recorded(tmp_path / "s", *SPACES["discrete"])
    target = emptied(source, tmp_path / "t")
    shuffled = rows_of(source).take(np.random.default_rng(0).permutation(source.steps.collect().height))
    torn = ray.data.from_arrow([shuffled.slice(start, 30) for start in range(0, len(shuffled), 30)])
    with pytest.raises(ray.exceptions.RayTaskError, match=r"dataset\.repartition"):
        write_steps(torn, target, write_id="a")
    # Without gaps, only the driver can see it: also the first row of an episode alone.
    rows = rows_of(source)
    for cut in (10, 9):
        halves = ray.data.from_arrow([rows.slice(0, cut), rows.slice(cut)])
        with pytest.raises(el.errors.DatasetError, match=r"Nothing was written: .* several blocks \(1\)"):
            write_steps(halves, target, write_id="a")
    nameless = ray.data.from_arrow(rows.drop_columns(["episode_id", "t"]))
    with pytest.raises(ray.exceptions.RayTaskError, match="episode"):
        names = ("observation", "action", "reward", "terminated", "truncated")
        write_steps(nameless, target, write_id="a", mapping={name: name for name in names})
    assert not len(el.open(target)) and not list(tmp_path.glob(".*"))
    whole = torn.repartition(4, keys=["episode_id"])
    assert write_steps(whole, target, write_id="a").episodes == len(LENGTHS)
    check_equal(target, source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.filter(pl.col("t") != 2), "step"),
        (lambda rows: pl.concat([rows, rows.head(1)]), "step"),
        (lambda rows: rows.with_columns(observation=pl.lit("x")), "observation"),
        (lambda rows: rows.drop("action"), "action"),
    ],
)
def test_wrong_rows_leave_nothing(tmp_path: Path, change: Any, message: str) -> None:
    """Gaps, duplicates, values outside the space and missing columns: the error says so, nothing stays."""
    import ray

    from episodelake.integrations.ray import write_steps

    source, _ = recorded(tmp_path / "s", *SPACES["discrete"])
    target = emptied(source, tmp_path / "t")
    rows = change(source.steps.collect()).to_arrow()
    with pytest.raises(ray.exceptions.RayTaskError, match=message):
        write_steps(ray.data.from_arrow(rows), target, write_id="a")
    assert not len(el.open(target)) and not list(tmp_path.glob(".*"))


def test_killed_tasks_are_tried_again(tmp_path: Path) -> None:
    """A worker that dies while its task has staged some episodes leaves nothing twice."""
    from episodelake.integrations.ray import read_steps, writing

    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    target, marker = emptied(source, tmp_path / "t"), tmp_path / "died"

    class Dying(writing.StoreDatasink):
        def write(self, blocks: Any, ctx: Any) -> Any:
            staged = super().write(blocks, ctx)
            if ctx.task_idx == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return staged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "StoreDatasink", Dying)
        read = read_steps(tmp_path / "s", last=True, override_num_blocks=3)
        report = writing.write_steps(read, target, write_id="a")
    assert marker.exists() and report.episodes == len(LENGTHS)
    check_equal(target, source)


DRIVER = """
import os, signal, sys
import ray
from episodelake.integrations.ray import read_steps, write_steps, writing

source, target, point, address = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
merge = writing.merge

def dying(*arguments):
    if point == "after":
        merge(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

writing.merge = dying
write_steps(read_steps(source, last=True, override_num_blocks=3), target, write_id="a")
"""


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_killed_driver(tmp_path: Path, point: str) -> None:
    """Before the commit nothing shows, after it everything; the same write then makes it whole."""
    import ray

    from episodelake.integrations.ray import read_steps, write_steps

    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    target = emptied(source, tmp_path / "t")
    address = ray.get_runtime_context().gcs_address
    arguments = [sys.executable, "-c", DRIVER, str(tmp_path / "s"), str(target), point, address]
    killed = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert len(el.open(target)) == (0 if point == "before" else len(LENGTHS))
    report = write_steps(read_steps(tmp_path / "s", last=True), target, write_id="a")
    added = (report.episodes, report.present)
    assert added == ((len(LENGTHS), 0) if point == "before" else (0, len(LENGTHS)))
    check_equal(target, source)


def test_bad_arguments(tmp_path: Path) -> None:
    """No store, a store of agents, and an empty id are refused before a task runs."""
    from episodelake.integrations.ray import read_steps, write_steps

    recorded(tmp_path / "s", *SPACES["discrete"])
    read = read_steps(tmp_path / "s")
    with pytest.raises(el.errors.StoreNotFoundError):
        write_steps(read, tmp_path / "none", write_id="a")
    with pytest.raises(el.errors.InvalidArgumentError, match="write_id"):
        write_steps(read, tmp_path / "s", write_id="")
    box = spaces.Box(-1, 1, (2,))
    el.create(tmp_path / "team", agents={"red": (box, box), "blue": (box, box)})
    with pytest.raises(el.errors.InvalidArgumentError, match="several agents"):
        write_steps(read, tmp_path / "team", write_id="a")
    with pytest.raises(el.errors.InvalidArgumentError, match="in the memory of"):
        el.create("memory://ray-target", observation_space=box, action_space=box)
        write_steps(read, "memory://ray-target", write_id="a")
