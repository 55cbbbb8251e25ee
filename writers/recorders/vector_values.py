"""Values of vector environments as numpy, and the values beside a step that a recorder stores.

See Gymnasium's documentation of `VectorEnv` for the form of infos: a dict of arrays, each with a mask under
`_key` that says which environments have the key.

`InfoChoice` is the argument `record_infos`. Policy values that were logged for environments wait in
`LoggedValues` until the next call records them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ...store.common.arguments import as_flags, suggest
from ...store.common.foreign_arrays import to_numpy
from ...store.errors import InvalidArgumentError, SpaceMismatchError
from ..rows.vector_buffer import DynamicEntry, VectorBuffer, owned_values

#: What a vector environment tells under SAME_STEP of episodes that have just ended.
FINAL = ("final_obs", "_final_obs", "final_info", "_final_info")

InfoLeaf = tuple[tuple[Any, ...], np.ndarray, np.ndarray | None]
_BOOL = np.dtype(np.bool_)


def flags(values: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return flags as a bool array of the given shape; it may be the caller's own.

    Raises:
        SpaceMismatchError: there are more or fewer, or one is neither a boolean nor 0 or 1.
    """
    array = values if values.__class__ is np.ndarray else np.asarray(to_numpy(values))
    if array.shape != shape:
        raise SpaceMismatchError(
            f"{name} has shape {array.shape}; expected {shape}, one flag for each environment."
        )
    return array if array.dtype is _BOOL else as_flags(name, array)


def single(space: gymnasium.Space, values: Any, env: int) -> Any:
    """Return the value of one environment from a batch of values of `space`, or from a list of single
    values.
    """
    if isinstance(space, gymnasium.spaces.Dict) and isinstance(values, Mapping):
        return {key: single(part, values[key], env) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple) and isinstance(values, tuple):
        return tuple(single(part, of_part, env) for part, of_part in zip(space.spaces, values, strict=True))
    return values[env]


def final_value(space: gymnasium.Space, values: Any, env: int) -> Any:
    """Return the last observation of one environment from `final_obs`: an array of single values, or a
    batch.
    """
    return to_numpy(single(space, values, env))


def info_leaves(
    infos: Mapping[Any, Any],
    num_envs: int,
    path: tuple[Any, ...] = (),
    present: np.ndarray | None = None,
    keys: Collection[str] | None = None,
) -> Iterator[InfoLeaf]:
    """Yield `(key path, values, which environments have it)` for each leaf of infos.

    Values have shape (num_envs, ...); None instead of a mask says that all environments have the key. They
    are still the environment's own. Of `infos` itself only `keys` are looked at, all if None.
    """
    for key, value in infos.items():
        if keys is not None and key not in keys:
            continue
        if _is_mask(infos, key, num_envs):
            continue
        mask = _mask_of(infos, key, num_envs)
        here = present if mask is None else mask if present is None else present & mask
        if here is not None and not here.any():
            continue
        inner = (*path, key)
        if isinstance(value, Mapping) and value and all(type(each) is str for each in value):
            yield from info_leaves(value, num_envs, inner, here)
        else:
            yield inner, per_env(value, num_envs), here


def by_key(infos: Any, num_envs: int) -> Mapping[Any, Any]:
    """Return infos as a mapping with masks; wrappers such as `DictInfoToList` give a list of mappings.

    Raises:
        SpaceMismatchError: they are neither a mapping, nor a list with a mapping for each environment.
    """
    if isinstance(infos, Mapping):
        return infos
    each = infos if isinstance(infos, list | tuple) else ()
    if len(each) != num_envs or not all(isinstance(info, Mapping) for info in each):
        raise SpaceMismatchError(
            f"infos is {type(infos).__name__}; expected a mapping of arrays, or a list of "
            f"{num_envs} mappings, one for each environment."
        )
    return _joined(each)


def _joined(infos: Sequence[Mapping[Any, Any] | None]) -> dict[Any, Any]:
    joined: dict[Any, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info or ()):
        mask = np.array([info is not None and key in info for info in infos])
        values = [info[key] if info is not None and key in info else None for info in infos]
        if all(isinstance(value, Mapping) for value, there in zip(values, mask, strict=True) if there):
            joined[key] = _joined(values)
        else:
            joined[key] = np.empty(len(values), object)
            for env, value in enumerate(values):
                joined[key][env] = value
        joined[f"_{key}"] = mask
    return joined


class SameStepInfos(NamedTuple):
    """The infos of a SAME_STEP step at the environments that are done, each mapping with its masks.

    Attributes:
        final: `final_info`: what the environments gave with their last observations.
        added: what wrappers around the environments added to the step, such as `episode` of
            `gymnasium.wrappers.vector.RecordEpisodeStatistics`: it describes the ended episodes too.
        fresh: what the environments gave with the first observations of their next episodes.
    """

    final: Mapping[Any, Any]
    added: dict[Any, Any]
    fresh: dict[Any, Any]

    @staticmethod
    def of(infos: Mapping[Any, Any], num_envs: int, reset_keys: Collection[Any] | None) -> SameStepInfos:
        """Split infos by who gave them.

        A wrapper does not know of `final_info` and puts its keys beside it, where those of the resets are. A
        key is a wrapper's if no reset had it and `final_info` lacks it, since a key has one giver.

        Args:
            infos: of the step.
            num_envs: how many environments they are of.
            reset_keys: the keys of infos that resets gave so far; None where there is no wrapper.

        Raises:
            SpaceMismatchError: `final_info` is neither a mapping nor a mapping for each environment.
        """
        final = infos.get("final_info", {})
        if not isinstance(final, Mapping):
            final = by_key([info or {} for info in final], num_envs)
        added: dict[Any, Any] = {}
        fresh: dict[Any, Any] = {}
        for key, value in infos.items():
            if key in FINAL or _is_mask(infos, key, num_envs):
                continue
            part = fresh if reset_keys is None or key in reset_keys or key in final else added
            part[key] = value
            if f"_{key}" in infos:
                part[f"_{key}"] = infos[f"_{key}"]
        return SameStepInfos(final, added, fresh)


def info_of(infos: Mapping[Any, Any], env: int, num_envs: int) -> dict[Any, Any]:
    """Return the info of one environment, as it would give it alone."""
    info: dict[Any, Any] = {}
    for key, value in infos.items():
        mask = _mask_of(infos, key, num_envs)
        if _is_mask(infos, key, num_envs) or (mask is not None and not mask[env]):
            continue
        if isinstance(value, Mapping):
            info[key] = info_of(value, env, num_envs)
        else:
            info[key] = per_env(value, num_envs)[env]
    return info


def _is_mask(infos: Mapping[Any, Any], key: Any, num_envs: int) -> bool:
    if type(key) is not str or not key.startswith("_") or not _is_flags(to_numpy(infos[key]), num_envs):
        return False
    return key[1:] in infos or any(type(other) is not str and f"_{other}" == key for other in infos)


def _mask_of(infos: Mapping[Any, Any], key: Any, num_envs: int) -> np.ndarray | None:
    """Return the mask beside a key, if there is one."""
    mask = to_numpy(infos.get(f"_{key}"))
    return mask if _is_flags(mask, num_envs) else None


def _is_flags(value: Any, num_envs: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == bool and value.shape == (num_envs,)


def per_env(value: Any, num_envs: int) -> np.ndarray:
    """Return a value for each environment: those of an array or sequence of that length, else one for all."""
    value = to_numpy(value)
    if isinstance(value, np.ndarray) and value.ndim and len(value) == num_envs:
        return value
    each = np.empty(num_envs, object)
    if isinstance(value, Mapping):
        for env in range(num_envs):
            each[env] = info_of(value, env, num_envs)
        return each
    if isinstance(value, list | tuple) and len(value) == num_envs:
        for env, own in enumerate(value):
            each[env] = own
        return each
    for env in range(num_envs):
        each[env] = value
    return each


RecordInfos = bool | Collection[str]
#: So many keys of infos are remembered for the warning about keys that never came.
_REMEMBERED = 100


@dataclass(frozen=True)
class InfoChoice:
    """The keys of infos that a recorder stores: its argument `record_infos`, read.

    Attributes:
        keys: keys at the top of infos; None for all.
    """

    keys: frozenset[str] | None
    _missing: set[str] = field(init=False, repr=False, compare=False, default_factory=set)
    _others: dict[str, None] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._missing.update(self.keys or ())

    @staticmethod
    def of(record_infos: RecordInfos) -> InfoChoice:
        """Read the argument `record_infos`.

        Raises:
            InvalidArgumentError: it is neither True, False nor a collection of keys.
        """
        if isinstance(record_infos, bool | np.bool_):
            return InfoChoice(None if record_infos else frozenset())
        keys = record_infos if isinstance(record_infos, Collection) else None
        if keys is None or isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
            raise InvalidArgumentError(
                f"record_infos={record_infos!r}: expected True, False, or the keys to record, such as "
                "('cost', 'success')."
            )
        return InfoChoice(frozenset(keys))

    @property
    def none(self) -> bool:
        """Whether no info is stored."""
        return self.keys is not None and not self.keys

    def note(self, keys: Iterable[Any]) -> None:
        """Remember which keys infos have, until each of the chosen ones was among them."""
        if self._missing:
            self._missing.difference_update(keys)
            if len(self._others) < _REMEMBERED:
                # Vector environments have a mask `_key` for each key.
                self._others.update((key, None) for key in keys if str(key)[:1] != "_")

    def warn_of_missing(self) -> None:
        """Warn of chosen keys that no info of the run had, if infos had others."""
        others = [str(key) for key in self._others]
        for key in sorted(self._missing) if others else ():
            warnings.warn(
                f"record_infos: no info of this run had the key {key!r}, so nothing was stored for it."
                f"{suggest(key, others)} The infos had: {', '.join(others)}.",
                RuntimeWarning,
                stacklevel=4,
            )

    def chosen(self, info: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return the chosen entries of an info."""
        if self.keys is None or not isinstance(info, Mapping):
            return info
        self.note(info)
        return {key: value for key, value in info.items() if key in self.keys}


#: Values with one entry for each environment, and which of these they are for; None: all.
_Logged = tuple[np.ndarray, np.ndarray | None]


class LoggedValues:
    """Values of `num_envs` environments by key path; false while there are none."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._values: dict[tuple[Any, ...], _Logged] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def items(self) -> ItemsView[tuple[Any, ...], _Logged]:
        """Return values and mask by key path."""
        return self._values.items()

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()

    def add(self, values: Mapping[str, Any], mask: Any) -> list[tuple[Any, ...]]:
        """Keep values of the environments in `mask`; None: of all. Return their key paths.

        Raises:
            SpaceMismatchError: a value has not one entry for each environment.
        """
        chosen = None if mask is None else self._checked_mask(mask)
        paths = []
        for path, batch, _ in info_leaves(_checked(values, self._num_envs), self._num_envs):
            paths.append(path)
            fresh = owned_values(batch)
            known = self._values.get(path)
            if chosen is None or known is None:
                self._values[path] = fresh, chosen
            else:
                self._values[path] = _merged(known, fresh, chosen)
        return paths

    def use_up(self, envs: np.ndarray | None) -> None:
        """Forget what was logged for these environments; None: for all."""
        if envs is None or not self._values:
            self._values.clear()
            return
        for path, (values, mask) in list(self._values.items()):
            left = np.ones(self._num_envs, bool) if mask is None else mask.copy()
            left[envs] = False
            if left.any():
                self._values[path] = values, left
            else:
                del self._values[path]

    def put(self, block: VectorBuffer, rows: np.ndarray, envs: np.ndarray) -> None:
        """Put what was logged for the environments `envs` into `rows`, one for each."""
        for path, (values, mask) in self._values.items():
            if mask is None:
                block.policies.add(DynamicEntry(path, rows, values[envs]))
            else:
                here = mask[envs]
                block.policies.add(DynamicEntry(path, rows[here], values[envs[here]]))

    def among(self, envs: np.ndarray) -> np.ndarray:
        """Return those of some environments that have a value."""
        has = np.zeros(self._num_envs, bool)
        for _, mask in self._values.values():
            has |= True if mask is None else mask
        return envs[has[envs]]

    def _checked_mask(self, mask: Any) -> np.ndarray:
        array = np.asarray(to_numpy(mask))
        if array.dtype != bool or array.shape != (self._num_envs,):
            raise SpaceMismatchError(
                f"mask is {array.dtype} of shape {array.shape}; expected bool of shape ({self._num_envs},)."
            )
        return array.copy()


def _checked(values: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return logged values as arrays with one entry for each environment."""
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            checked[key] = _checked(value, num_envs)
            continue
        array = to_numpy(value)
        many = array.ndim > 0 if isinstance(array, np.ndarray) else isinstance(array, list | tuple)
        if not many or len(array) != num_envs:
            raise SpaceMismatchError(
                f"The logged value {key!r} is {_described(array)}; expected one entry for each of the "
                f"{num_envs} environments. Repeat what all of them share: numpy.full({num_envs}, value)."
            )
        checked[key] = per_env(array, num_envs)
    return checked


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__} of length {len(value)}" if hasattr(value, "__len__") else repr(value)


def _merged(known: _Logged, fresh: np.ndarray, mask: np.ndarray) -> _Logged:
    """Return logged values with those of the environments in `mask` replaced."""
    old, before = known
    if old.dtype == fresh.dtype and old.shape == fresh.shape:
        merged = old.copy()
    else:
        merged = np.empty(len(old), object)
        merged[:] = list(old)
        fresh = np.array([None, *fresh], object)[1:]
    merged[mask] = fresh[mask]
    return merged, None if before is None else before | mask
