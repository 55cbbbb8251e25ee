"""Replay buffers of diffusion_policy and UMI: zarr stores with flat arrays, and the ends of episodes.

Row k of each array in `data` belongs to step k, and `meta/episode_ends` has the number of rows up to the end
of each episode. There are neither rewards nor flags nor observations after the last action: rewards are NaN,
and every episode is cut.

The action is `data/action`, or the arrays whose names begin with `action`, side by side. UMI records poses
alone: as in its dataset, the action of a step has the position, rotation and width of each gripper at that
step. `timestamp` and `stage` become step columns, and all other arrays are the observation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..plugin import FlatTree, ImportOptions, Match, TreeLayout, tree_format
from ..writers.importing.layouts import Paths

_ENDS = "meta/episode_ends"
_EXTRAS = ("timestamp", "stage")
_REWARD = "reward"
_POSE = ("eef_pos", "eef_rot_axis_angle", "gripper_width")


class _Dataset(FlatTree):
    own_name = "diffusion_policy"
    left_out = "is no array of steps"


def _layout(file: Any) -> TreeLayout | None:
    """Return the paths of a store; None if it has no actions."""
    names = list(file["data"])
    actions = [name for name in names if name.startswith("action")]
    seen = [name for name in names if name not in (*actions, *_EXTRAS, _REWARD)]
    if not actions:
        robots = sorted(name.removesuffix(_POSE[0]) for name in names if name.endswith(f"_{_POSE[0]}"))
        actions = [robot + part for robot in robots for part in _POSE if robot + part in names]
    if not actions or not seen:
        return None
    observation: Paths = {name: f"data/{name}" for name in seen} if len(seen) > 1 else f"data/{seen[0]}"
    action: Paths = [f"data/{name}" for name in actions] if len(actions) > 1 else f"data/{actions[0]}"
    return TreeLayout(
        episode=_ENDS,
        observation=observation,
        action=action,
        reward=f"data/{_REWARD}",
        extra={name: f"data/{name}" for name in _EXTRAS},
    )


def _look(file: Any) -> Match:
    lacking = [name for name in ("data", _ENDS) if name not in file]
    if lacking:
        return Match(f"it has no {', '.join(lacking)}", len(lacking))
    if _layout(file) is None:
        return Match("its data has no action, or nothing else", 1)
    return Match(f"it has {_ENDS} and data/{', data/'.join(list(file['data'])[:8])}")


def _open(path: Path, file: Any, options: ImportOptions) -> FlatTree:
    layout = _layout(file)
    assert layout is not None  # `_look` has found one
    return _Dataset(path, file, options, layout)


FORMAT = tree_format(
    "diffusion_policy",
    ["zarr"],
    "'episodelake[zarr]'",
    "zarr stores, folders or zip files, with data and meta/episode_ends",
    _look,
    _open,
)
"""Replay buffers of diffusion_policy and UMI."""
