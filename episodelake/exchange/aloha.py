"""ALOHA and ACT: an HDF5 file for each episode, with `action`, `observations/qpos` and images of cameras.

The episodes have neither rewards nor flags nor the observation after the last action: rewards are NaN, and
every episode is cut. Images are frames, or rows with a JPEG each that is padded with zeros to one length. A
JPEG is decoded into the array that ACT trains on: its recorder lets OpenCV encode frames in RGB, which takes
red for blue, and its dataset decodes them the same way, so channels come back in the order of the camera.

`base_action` and other arrays beside the observations become step columns, attributes metadata.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..plugin import GroupedTree, Match, TreeLayout, tree_format
from ..writers.importing.hdf5 import missing_arrays

_LAYOUT = TreeLayout(
    episode="",
    observation="observations",
    action="action",
    unused=("compress_len",),
    swapped=True,
)


class _Dataset(GroupedTree):
    own_name = "aloha"


def _look(file: Any) -> Match:
    lacking = missing_arrays(file, "action", "observations/qpos")
    return Match(
        f"it has no {', '.join(lacking)}" if lacking else "it has action and observations/qpos", len(lacking)
    )


FORMAT = tree_format(
    "aloha",
    ["hdf5"],
    "'episodelake[hdf5]'",
    "HDF5 files with action and observations/qpos, an episode each",
    _look,
    partial(_Dataset, layout=_LAYOUT),
)
"""ALOHA's files, which ACT reads."""
