"""Episodes of dm_env time steps in `.npz` files, as DrQ-v2, URLB and ExORL, Dreamer and DreamerV2 write them.

A file is an episode of T+1 rows of every array. Row t has observation t, and the action, reward and discount
that led to it (`ReplayBuffer._sample` of DrQ-v2: `observation[t - 1]`, `action[t]`, `reward[t]`,
`observation[t]`); the action of row 0 is a dummy of zeros. These tools write a file when an episode has
ended: it was terminated where the last discount is 0, else truncated. In DreamerV2 `is_terminal` and
`is_last` of the last row state both, and without `is_last` the episode is cut. DreamerV3's chunks are another
layout: they hold rows of several episodes, with the action that was taken at the observation.

Other arrays belong to the observation of their row, as `skill` of URLB and `physics` of ExORL do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from ..errors import DatasetError
from ..plugin import (
    ForeignDataset,
    ForeignEpisode,
    Format,
    ImportOptions,
    Match,
    Part,
)
from ..plugin.columns import EXTRA, OBSERVATION
from ..writers.importing.boundary import Files
from ..writers.importing.episode_rows import NO_TRANSITION
from ..writers.importing.flat import action_space_of, extra_column
from ..writers.importing.hdf5 import as_flags, check_lengths, discrete_of, is_discrete, space_of
from ..writers.importing.npy import NpzFile
from ..writers.importing.trees import NPZ, trees_of

_ACTION, _REWARD, _DISCOUNT = "action", "reward", "discount"
_FIRST, _LAST, _TERMINAL = "is_first", "is_last", "is_terminal"
_FLAGS = (_FIRST, _LAST, _TERMINAL)
_OWN = (_ACTION, _REWARD, _DISCOUNT, *_FLAGS)
#: Of DreamerV2: what its environments log, which its learner leaves out.
_LOGGED = "log_"
_DUMMY = "a reward other than 0 of a first row, which no action led to"
_DISCOUNTS = "a discount other than 1 before the last row"


def read_arrays(path: Path, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Return arrays of a file by name.

    Args:
        names: of those to read, where the file has them; None for all.

    Raises:
        DatasetError: it is damaged, or holds pickles.
    """
    file = NpzFile(path)
    try:
        wanted = file.names if names is None else [name for name in names if name in file.names]
        return {name: file.open(name)[()] for name in wanted}
    finally:
        file.close()


def _detect(source: Any) -> Match:
    """Look at the arrays of the first file, and for its dummy action."""
    first = next(trees_of(source, [NPZ]), None)
    if first is None:
        return Match("it is no .npz file, nor a folder with some", 4, related=False)
    arrays = read_arrays(first, _OWN)
    ends = _DISCOUNT in arrays or {*_FLAGS} <= {*arrays}
    lacking = [name for name in (_ACTION, _REWARD) if name not in arrays]
    lacking += [] if ends else [f"{_DISCOUNT}, nor {', '.join(_FLAGS)}"]
    if lacking:
        return Match(f"{first.name} has no {', '.join(lacking)}", len(lacking))
    if len({array.shape[:1] for array in arrays.values()}) > 1 or not _is_episode(arrays):
        return Match(f"{first.name} is not one episode whose first action is zeros", 1)
    by = _DISCOUNT if _DISCOUNT in arrays else _TERMINAL
    return Match(f"{first.name} has {_ACTION}, {_REWARD} and {by}, and a first action of zeros")


def _is_episode(arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether rows begin with a dummy action, and an episode begins at no other row."""
    actions, firsts = arrays[_ACTION], arrays.get(_FIRST)
    if not actions.ndim or not len(actions) or actions[0].any():
        return False
    return firsts is None or np.flatnonzero(firsts).tolist() == [0]


class _Dataset(ForeignDataset):
    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__()
        self._files = list(trees_of(source, [NPZ]))
        if not self._files:
            raise DatasetError(f"{source!s:.200} has no .npz files, so it has no dm_env time steps.")
        self._base = source.base if isinstance(source, Files) else Path(source)
        self.count = len(self._files)
        first = read_arrays(self._files[0])
        lacking = [name for name in (_ACTION, _REWARD) if name not in first]
        if lacking:
            raise DatasetError(f"{self._files[0]} has no {', '.join(lacking)}; it has {', '.join(first)}.")
        others = [name for name in first if name not in _OWN and not name.startswith(_LOGGED)]
        self._observed = [OBSERVATION] if OBSERVATION in first else others
        self._extra = {
            name: EXTRA.path(extra_column(name, "dm_env"))
            for name in first
            if name not in (*_OWN, *self._observed)
        }
        if not self._observed:
            raise DatasetError(f"{self._files[0]} has no observations; it has {', '.join(first)}.")
        self.observation_space = options.observation_space or space_of(
            self._observations(first), "observation_space"
        )
        self.action_space = options.action_space or self._action_space(first[_ACTION])
        self.mapping = {
            "observation": ", ".join(self._observed),
            "action": f"{_ACTION} of the next row",
            "reward": f"{_REWARD} of the next row",
            "terminated": _TERMINAL if _TERMINAL in first else f"a last {_DISCOUNT} of 0",
            "truncated": f"{_LAST} alone" if _LAST in first else f"another last {_DISCOUNT}",
            **{EXTRA.column(path): name for name, path in self._extra.items()},
        }

    def _action_space(self, first: np.ndarray) -> Space:
        if not is_discrete(first):
            return action_space_of(first)
        return discrete_of(read_arrays(file, (_ACTION,))[_ACTION] for file in self._files)

    def _observations(self, arrays: Mapping[str, np.ndarray]) -> Any:
        if len(self._observed) == 1:
            return arrays[self._observed[0]]
        return {name: arrays[name] for name in self._observed}

    def parts(self) -> Iterator[Part]:
        for file in self._files:
            key = file.name if file == self._base else file.relative_to(self._base).as_posix()
            yield Part((key,), partial(self._load, file))

    def _load(self, file: Path) -> ForeignEpisode | None:
        arrays = read_arrays(file)
        wanted = [*self._observed, _ACTION, _REWARD, *self._extra]
        lacking = [name for name in wanted if name not in arrays]
        if lacking:
            raise DatasetError(f"{file} has no {', '.join(lacking)}, which other files of the source have.")
        total = check_lengths(file, {name: arrays[name] for name in arrays if name in (*wanted, *_OWN)})
        actions, rewards = arrays[_ACTION], arrays[_REWARD]
        if not _is_episode(arrays):
            raise DatasetError(
                f"{file}: its first action is not zeros, or an episode begins after its first row, so it is "
                "no episode of dm_env time steps, whose action led to the observation. Import with "
                "format='table' and a mapping that states what the rows are."
            )
        if total < 2:
            self.losses.add(NO_TRANSITION)
            return None
        for name in arrays:
            if name not in (*wanted, *_OWN):
                self.losses.add(f"{name}, which the first file does not have")
        if rewards.shape[1:] == (1,):
            rewards = rewards[:, 0]
        self.losses.add(_DUMMY, int(np.any(rewards[0] != 0)))
        terminated, truncated = self._ends(file, arrays)
        extra: dict[str, Any] = {}
        for name, (*group, key) in self._extra.items():
            (extra.setdefault(group[0], {}) if group else extra)[key] = arrays[name]
        return ForeignEpisode(
            observations=self._observations(arrays),
            actions=actions[1:],
            rewards=rewards[1:].astype(np.float64),
            terminations=terminated,
            truncations=truncated,
            extra=extra or None,
        )

    def _ends(self, file: Path, arrays: Mapping[str, np.ndarray]) -> tuple[bool, bool]:
        """Return whether an episode was terminated and truncated; count what other rows state."""
        if _TERMINAL in arrays:
            terminals = as_flags(arrays[_TERMINAL], f"{file}: {_TERMINAL}")
            lasts = as_flags(arrays.get(_LAST, terminals), f"{file}: {_LAST}")
            self.losses.add(
                f"{_TERMINAL} or {_LAST} before the last row", int((terminals | lasts)[:-1].sum())
            )
            return bool(terminals[-1]), bool(lasts[-1] and not terminals[-1])
        if _DISCOUNT not in arrays:
            return False, False
        discounts = arrays[_DISCOUNT].reshape(len(arrays[_DISCOUNT]), -1)
        self.losses.add(_DISCOUNTS, int((discounts[1:-1] != 1).any(axis=1).sum()))
        terminated = not discounts[-1].any()
        return terminated, not terminated


FORMAT = Format(
    "dm_env",
    None,
    "`.npz` files with action, reward, and discount or is_first, is_last and is_terminal, whose first action "
    "is zeros",
    _detect,
    _Dataset,
)
