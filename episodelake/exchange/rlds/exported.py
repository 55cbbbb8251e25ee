"""RLDS datasets of our own export: spaces and card from `episodelake.json`, and facts that each record has.

The last step is an observation alone, unless the record says that the last observation is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium import Space, spaces

from ...errors import DatasetError, EpisodelakeError
from ...plugin import ForeignEpisode, load_json, slice_batch, space_from_json
from ...plugin.columns import unescape
from ...plugin.files import exists
from ...writers.importing.columns import plain_texts, read_json

FILE = "episodelake.json"
#: The feature with the seed, options and metadata.
FACTS = "episode_metadata/episodelake"
_SIDES = ("observation", "action")
_NOT_EXTRA = frozenset(
    (*_SIDES, "reward", "discount", "is_first", "is_last", "is_terminal", "info", "metadata", "policy")
)


@dataclass(frozen=True)
class Exported:
    """Facts that an export has of all episodes."""

    observation_space: Space
    action_space: Space
    reward_shape: tuple[int, ...]
    card: dict[str, Any]


def read_exported(folder: Path) -> Exported | None:
    """Read the file; None if the dataset has none.

    Raises:
        DatasetError: it is damaged.
    """
    file = folder / FILE
    if not exists(file):
        return None
    stated = read_json(file)
    try:
        observation, action = (space_from_json(stated[f"{side}_space"], str(file)) for side in _SIDES)
        return Exported(
            observation, action, tuple(int(size) for size in stated["reward_shape"]), dict(stated["card"])
        )
    except (EpisodelakeError, LookupError, TypeError, ValueError) as error:
        raise DatasetError(f"{file} is not as our export writes it: {error!r}.") from error


def exported_episode(
    values: Mapping[str, Any], facts: str, ends: tuple[bool, bool], ours: Exported
) -> ForeignEpisode:
    """Return the episode of a record.

    Args:
        values: of each feature at every step.
        facts: what the record says of the episode.
        ends: whether it was terminated, and truncated.

    Raises:
        DatasetError: the record does not fit the spaces, or its facts are damaged.
    """
    try:
        stated = load_json(facts, FACTS)
        missing = stated.get("last_observation") == "missing"
        tree: dict[str, Any] = {}
        for name, each in values.items():
            *outer, last = map(unescape, name.split("/"))
            place = tree
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = plain_texts(each)
        count = len(tree["reward"]) - (not missing)
        policy = slice_batch(tree.get("policy", {}), 0, count)
        return ForeignEpisode(
            _rebuilt(ours.observation_space, tree["observation"]),
            slice_batch(_rebuilt(ours.action_space, tree["action"]), 0, count),
            tree["reward"][:count],
            *ends,
            infos=tree.get("info"),
            policy=policy or None,
            extra={key: part for key, part in tree.items() if key not in _NOT_EXTRA} or None,
            seed=stated["seed"],
            options=stated["options"],
            metadata=stated["metadata"],
            last_observation="missing" if missing else "present",
        )
    except (EpisodelakeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"A record is not as our export writes it: {error!r}.") from error


def _rebuilt(space: Space, part: Any) -> Any:
    """Return stacked values of a space from nested mappings."""
    if isinstance(space, spaces.Dict):
        return {key: _rebuilt(inner, part[key]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_rebuilt(inner, part[str(index)]) for index, inner in enumerate(space.spaces))
    return part
