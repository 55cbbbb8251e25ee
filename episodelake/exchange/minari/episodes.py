"""Episodes of Minari in memory: an `EpisodeBuffer` or `EpisodeData`, or a list of one of them.

They have T+1 observations and infos, and both flags of every transition, as datasets have. They state no
spaces, so these come from the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ...errors import DatasetError
from ...plugin import ForeignDataset, ForeignEpisode, ImportOptions, Part
from ...writers.importing.flat import class_names
from ...writers.importing.hdf5 import discrete_of, is_discrete, plain, space_of

_KINDS = {"EpisodeBuffer", "EpisodeData"}
#: Columns of ours, and the attributes or arrays of Minari that they come from.
MAPPING = {
    "observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminations",
    "truncated": "truncations",
    "info": "infos",
}


def episodes_of(source: Any) -> Sequence[Any] | None:
    """Return the episodes of a source; None if its first item, or itself, is none of Minari."""
    if class_names(source, "minari") & _KINDS:
        return [source]
    first = next(iter(source), None) if isinstance(source, list | tuple) else None
    return source if class_names(first, "minari") & _KINDS else None


class Episodes(ForeignDataset):
    """Episodes in memory, in their order.

    Raises:
        DatasetError: an item of the list is no episode, or there is no space for its values.
    """

    def __init__(self, episodes: Sequence[Any], options: ImportOptions) -> None:
        super().__init__()
        self._episodes = episodes
        self.count = len(episodes)
        for index, each in enumerate(episodes):
            if not class_names(each, "minari") & _KINDS:
                raise DatasetError(
                    f"Item {index} of the list is a {type(each).__name__}; expected an EpisodeBuffer or "
                    "EpisodeData of Minari."
                )
            if not len(each.rewards):
                raise DatasetError(f"Item {index} of the list has no transition. Leave it out.")
        self.observation_space = options.observation_space or self._space("observations")
        self.action_space = options.action_space or self._space("actions")
        self.mapping = dict(MAPPING)

    def _space(self, name: str) -> Space:
        return _space_of([_arrays(getattr(each, name)) for each in self._episodes], f"{name[:-1]}_space")

    def parts(self) -> Iterator[Part]:
        """Yield an episode each, by its id where every one has its own."""
        ids = [each.id for each in self._episodes]
        named = None not in ids and len({*ids}) == len(ids)
        for index, each in enumerate(self._episodes):
            yield Part((str(ids[index] if named else index),), partial(_loaded, each))


def _loaded(episode: Any) -> ForeignEpisode:
    seed, options = getattr(episode, "seed", None), getattr(episode, "options", None)
    return ForeignEpisode(
        _arrays(episode.observations),
        _arrays(episode.actions),
        np.asarray(episode.rewards),
        np.asarray(episode.terminations, bool),
        np.asarray(episode.truncations, bool),
        infos=texts(episode.infos or {}) or None,
        seed=None if seed is None else int(seed),
        options=plain(options) or None,
    )


def _arrays(values: Any) -> Any:
    """Return lists of steps as arrays, in dicts and tuples of parts; texts as they are."""
    if isinstance(values, Mapping):
        return {key: _arrays(part) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(map(_arrays, values))
    if isinstance(values, list) and values and isinstance(values[0], str):
        return values
    return np.asarray(values)


def _space_of(values: Sequence[Any], option: str) -> Space:
    """Return the space of the values of all episodes."""
    first = values[0]
    if isinstance(first, Mapping):
        return spaces.Dict({key: _space_of([each[key] for each in values], option) for key in first})
    if isinstance(first, tuple):
        return spaces.Tuple([_space_of(parts, option) for parts in zip(*values, strict=True)])
    if isinstance(first, list):
        raise DatasetError(f"The texts of Minari's episodes state no space. Pass {option}=.")
    if is_discrete(first) and not first.shape[1:]:
        return discrete_of(iter(values))
    return space_of(first, option)


def texts(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return infos with the texts of HDF5, which Minari reads as bytes, as texts."""
    plain_infos: dict[str, Any] = {}
    for key, values in infos.items():
        if isinstance(values, Mapping):
            plain_infos[key] = texts(values)
        elif isinstance(values, np.ndarray) and values.dtype.kind == "O":
            plain_infos[key] = [value.decode() if isinstance(value, bytes) else value for value in values]
        else:
            plain_infos[key] = values
    return plain_infos
