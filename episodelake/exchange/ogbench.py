"""OGBench datasets: `.npz` files with flat rows; `terminals` mark the last row of each trajectory.

A row has an observation and the action taken there. The row with a terminal holds the last observation of its
trajectory; OGBench's `load_dataset` leaves out its action, whose next observation is not stored, and takes no
row after it as the next one. The terminal says that "the dataset trajectory is over, regardless of task
completion", and the last transition that is kept had ended nothing, so every episode is cut.

Files have no rewards: these depend on the task, and OGBench computes them from `qpos` and `button_states`
when a task is chosen. Where a file has `rewards`, row k has that of transition k. Other arrays, `masks` among
them, become step columns.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..plugin import FlatTree, Match, TreeLayout, tree_format
from ..writers.importing.npy import npz_path
from ..writers.importing.trees import NPZ, looked_into_tree

_LAYOUT = TreeLayout(observation="observations", action="actions", reward="rewards", last="terminals")


class _Dataset(FlatTree):
    own_name = "ogbench"


def _look(file: Any) -> Match:
    return Match.of_names(file.names, "observations", "actions", "terminals")


def _look_into_shard(file: Any) -> Match:
    # A folder of rollouts with rewards is a table, of an episode in each file.
    return Match("its files have rewards", 1) if "rewards" in file.names else _look(file)


def _detect(source: Any) -> Match:
    return looked_into_tree(source, _look_into_shard if npz_path(source) is None else _look, [NPZ])


FORMAT = replace(
    tree_format(
        "ogbench",
        ["npz"],
        None,
        ".npz files with observations, actions and terminals, one or a folder of shards",
        _look,
        partial(_Dataset, layout=_LAYOUT),
    ),
    detect=_detect,
)
