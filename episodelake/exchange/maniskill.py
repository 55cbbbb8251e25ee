"""ManiSkill: an HDF5 file with a group `traj_N` for each episode, and a JSON file of the same name beside it.

Observations and `env_states` have a row more than the actions, the last observation. `terminated` and
`truncated` have a flag for each step; the last row counts. Rewards that were not recorded are NaN. `success`,
`fail` and `env_states` become step columns.

The JSON file gives the card (`env_info` and the source) and the metadata of each episode; `episode_seed` is
its seed. Demonstrations without observations, as they are downloaded, are refused: ManiSkill's replay adds
them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..errors import DatasetError
from ..plugin import GroupedTree, Match, TreeLayout, check_bytes, tree_format
from ..plugin.files import is_file
from ..writers.importing.boundary import TRUST, boundary
from ..writers.importing.columns import read_json

_LAYOUT = TreeLayout(
    episode="traj_*",
    observation="obs",
    action="actions",
    reward="rewards",
    terminated="terminated",
    truncated="truncated",
    hint="ManiSkill's `python -m mani_skill.trajectory.replay_trajectory --save-traj -o state` adds them.",
)
_SEED = "episode_seed"


class _Dataset(GroupedTree):
    own_name = "maniskill"

    def card_of(self) -> dict[str, Any]:
        """Return what the JSON file states of all episodes; read that of each."""
        content = _facts_beside(self.path)
        episodes = content.pop("episodes", None) or []
        self._facts: dict[str, dict[str, Any]] = {f"traj_{each['episode_id']}": each for each in episodes}
        if not content:
            self.losses.add(
                "the seeds and facts of the episodes, whose JSON file is not there", len(self.groups)
            )
        return {key: value for key, value in content.items() if value is not None}

    def facts_of(self, name: str, group: Any) -> dict[str, Any]:
        """Return what the JSON file states of an episode."""
        facts = self._facts.get(name, {})
        hidden = {_SEED} if self.seed_of(name) is not None else set()
        return super().facts_of(name, group) | {key: each for key, each in facts.items() if key not in hidden}

    def seed_of(self, name: str) -> int | None:
        """Return the seed of an episode."""
        seed = self._facts.get(name, {}).get(_SEED)
        return seed if isinstance(seed, int) and seed >= 0 else None


def _facts_beside(path: Path) -> dict[str, Any]:
    """Return the content of the JSON file with the same name; empty if there is none."""
    file = path.with_suffix(".json")
    if not is_file(file):
        return {}
    if not boundary().trust and file.resolve().parent != path.resolve().parent:
        raise DatasetError(f"{file} is a link to {file.resolve()}, outside of the source. {TRUST}")
    check_bytes(str(file), file.stat().st_size)
    content = read_json(file)
    if not isinstance(content, dict):
        raise DatasetError(f"{file} is no JSON object with env_info and episodes.")
    return content


def _look(file: Any) -> Match:
    count = sum(name.startswith("traj_") for name in file)
    if not count:
        return Match("it has no traj_N", 2)
    first = next(file[name] for name in file if name.startswith("traj_"))
    return (
        Match(f"it has {count} groups traj_N")
        if "actions" in first
        else Match("its traj_N have no actions", 1)
    )


FORMAT = tree_format(
    "maniskill",
    ["hdf5"],
    "'episodelake[hdf5]'",
    "HDF5 files with groups traj_N, one or a folder, each with a JSON file",
    _look,
    partial(_Dataset, layout=_LAYOUT),
)
"""ManiSkill's trajectories."""
