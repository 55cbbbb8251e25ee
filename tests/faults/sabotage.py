"""Workloads that do damage on purpose, each against one invariant, to prove that these can fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from log_edits import read_actions, write_actions

from .recording import Context


def _segments(context: Context, table: str) -> list[Path]:
    return sorted((context.path / table).glob("*.parquet"))


def lose_the_journal(context: Context) -> None:
    """Remove the journal of a dead writer."""
    shutil.rmtree(context.path / "journal")


def change_a_reward(context: Context) -> None:
    """Add one to every reward of a segment."""
    file = _segments(context, "steps")[0]
    table = pq.read_table(file)
    index = table.column_names.index("reward")
    pq.write_table(table.set_column(index, "reward", pc.add(table.column("reward"), 1.0)), file)
    # A file of another size would not even be read.
    for commit in (context.path / "steps" / "_delta_log").glob("*.json"):
        actions = read_actions(commit)
        for action in actions:
            if action.get("add", {}).get("path") == file.name:
                action["add"]["size"] = file.stat().st_size
        write_actions(commit, actions)


def double_the_rows(context: Context) -> None:
    """Give a segment of episodes each of its rows twice."""
    file = _segments(context, "episodes")[0]
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table, table]), file)


def shorten_a_segment(context: Context) -> None:
    """Take a segment of steps its last rows."""
    file = _segments(context, "steps")[0]
    table = pq.read_table(file)
    pq.write_table(table.slice(0, table.num_rows - 5), file)


def forget_the_last_commit(context: Context) -> None:
    """Remove the newest version of the episodes."""
    log = context.path / "episodes" / "_delta_log"
    max(log.glob("*.json")).unlink()


def lose_an_old_segment(context: Context) -> None:
    """Remove a file that only older versions need."""
    context.log.note(visible=[0], version=2)
    _segments(context, "steps")[0].unlink()


SABOTAGE: dict[str, Callable[[Context], None]] = {
    work.__name__: work
    for work in (
        lose_the_journal,
        change_a_reward,
        double_the_rows,
        shorten_a_segment,
        forget_the_last_commit,
        lose_an_old_segment,
    )
}
