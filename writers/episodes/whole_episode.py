"""A whole episode given as arrays, and its checks.

`EpisodeWriter.write_episode` uses it. Sources that hold T observations of T transitions have episodes without
their last observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces

from ...store.common.arguments import as_flags, refuse_mask
from ...store.common.foreign_arrays import as_array
from ...store.errors import InvalidArgumentError, SpaceMismatchError
from ...store.schema import MISSING, StepSchema
from ...store.spaces.codec import single_value

LastObservation = Literal["present", "missing"]


def is_last_missing(schema: StepSchema, value: Any) -> bool:
    """Return whether `last_observation` states that episodes lack their last observation.

    Raises:
        InvalidArgumentError: it has no such value, or the store cannot hold such an episode.
    """
    if not isinstance(value, str) or value not in get_args(LastObservation):
        raise InvalidArgumentError(
            f"last_observation={value!r:.200} is unknown; expected 'present' or 'missing'."
        )
    if value == MISSING:
        check_last_missing(schema)
    return value == MISSING


def check_last_missing(schema: StepSchema) -> None:
    """Refuse an episode without its last observation where no column can show that it is missing.

    Raises:
        InvalidArgumentError: the observation space has no column that is never NULL otherwise.
    """
    if not schema.observation.required:
        raise InvalidArgumentError(
            f"A missing observation shows as NULL, but {schema.observation_space} has no column in which "
            "other observations are never NULL. Leave out the last transition of each episode instead."
        )


@dataclass(frozen=True)
class WholeEpisode:
    """The checked arrays of one episode.

    Attributes:
        length: T.
        observations, actions: batches of T+1 and T values, as given.
        rewards: float64, shape (T,) or (T, k).
        terminated, truncated: flags of the last transition.
        infos, extras: T+1 mappings each; None if the caller gave none.
        policies: T mappings, or T+1 with one for the last observation; None if the caller gave none.
        last_missing: whether there are T observations, without the last one.
    """

    length: int
    observations: Any
    actions: Any
    rewards: np.ndarray
    terminated: bool
    truncated: bool
    infos: Sequence[Mapping | None] | None
    policies: Sequence[Mapping | None] | None
    extras: Sequence[Mapping | None] | None
    last_missing: bool = False

    @property
    def observed(self) -> int:
        """How many observations there are."""
        return self.length + (not self.last_missing)

    @property
    def late(self) -> Mapping | None:
        """The policy values that belong to the last observation."""
        return self.policies[-1] if self.policies and len(self.policies) > self.length else None

    @staticmethod
    def checked(
        schema: StepSchema,
        *,
        infos: Any = None,
        policy: Mapping[str, Any] | None = None,
        extra: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None,
        last_observation: LastObservation = "present",
        **arrays: Any,
    ) -> WholeEpisode:
        """Check the arguments of `EpisodeWriter.write_episode` that are about steps; see there."""
        last_missing = is_last_missing(schema, last_observation)
        whole = WholeEpisode.of(
            schema, infos=infos, policy=policy, extra=extra, last_missing=last_missing, **arrays
        )
        for row in (extra,) if isinstance(extra, Mapping) else whole.extras or ():
            schema.check_extra(row or {})
        return whole

    @staticmethod
    def of(
        schema: StepSchema,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        infos: Any,
        policy: Mapping[str, Any] | None,
        extra: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None,
        least: int = 1,
        last_missing: bool = False,
    ) -> WholeEpisode:
        """Check lengths and flags; see `EpisodeWriter.write_episode` for the errors.

        Args:
            least: the fewest transitions; the others are as for `write_episode`.
            last_missing: whether the last observation is missing; then infos and extra may lack its row too.
        """
        checked = _rewards(schema, rewards)
        length = len(checked)
        if length < least:
            raise InvalidArgumentError(
                "The episode has no transition: rewards are empty. An episode needs at least one step."
            )
        observations = _batch(schema.observation_space, observations)
        actions = _batch(schema.action_space, actions)
        _check_length("observations", observations, length + (not last_missing), last_missing)
        _check_length("actions", actions, length)
        rows = (length, length + 1) if last_missing else (length + 1,)
        made = [_mappings(name, given, *rows) for name, given in (("infos", infos), ("extra", extra))]
        padded = [given and [*given, *[None] * (length + 1 - len(given))] for given in made]
        return WholeEpisode(
            length,
            observations,
            actions,
            checked,
            _flag("terminations", terminations, length),
            _flag("truncations", truncations, length),
            padded[0],
            _mappings("policy", policy, length, length + 1),
            padded[1],
            last_missing,
        )


def _batch(space: gymnasium.Space | None, values: Any) -> Any:
    """Return values of a space, those in a tuple as a list: tuples are batches of `Tuple` spaces only.

    None is the space of a key that the space lacks, which is refused later.
    """
    if isinstance(space, spaces.Dict) and isinstance(values, Mapping):
        return {name: _batch(space.get(name), part) for name, part in values.items()}
    if not isinstance(values, tuple):
        return values
    if isinstance(space, spaces.Tuple):
        return tuple(map(_batch, space, values)) if len(values) == len(space) else values
    return list(values)


def batch_lengths(values: Any) -> set[int]:
    """Return the numbers of values that the parts of a batch have: one if it is sound, none if it has no
    arrays.

    Raises:
        TypeError: a part has no length.
    """
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple):
        return set().union(*map(batch_lengths, values))
    if isinstance(values, str | bytes):
        raise TypeError("text is no batch of values")
    return {len(values)}


def _check_length(name: str, values: Any, expected: int, last_missing: bool = False) -> None:
    lengths = _lengths(name, values)
    if not lengths <= {expected}:
        counts = " and ".join(map(str, sorted(lengths)))
        rule = "An episode of T rewards has T actions and T+1 observations"
        if last_missing:
            rule = 'With last_observation="missing" an episode of T rewards has T observations'
        elif name == "observations" and lengths == {expected - 1}:
            rule += '; if the source lacks the last one, pass last_observation="missing"'
        raise SpaceMismatchError(f"{name}: got {counts} values; expected {expected}. {rule}.")


def _lengths(name: str, values: Any) -> set[int]:
    try:
        return batch_lengths(values)
    except TypeError as error:
        raise SpaceMismatchError(f"{name} is or holds {type(values).__name__}: {error}.") from error


def _rewards(schema: StepSchema, rewards: Any) -> np.ndarray:
    shape = schema.reward_shape
    refuse_mask(rewards, "rewards")
    try:
        array = as_array(rewards)
    except (ValueError, TypeError, RuntimeError) as error:
        raise SpaceMismatchError(f"The rewards make no array: {error}.") from error
    if not shape and array.shape[1:] == (1,):
        # Of an environment that gives arrays of one item.
        array = array[:, 0]
        rewards = [row[0] for row in rewards] if isinstance(rewards, list | tuple) else array
    if array.dtype.kind not in "biuf" or array.shape[1:] != shape or array.ndim != 1 + len(shape):
        expected = "(T,)" if not shape else f"(T, {shape[0]})"
        if array.size or array.ndim != 1:
            raise SpaceMismatchError(
                f"The rewards have dtype {array.dtype} and shape {array.shape}; expected numbers of "
                f"shape {expected}."
            )
    (leaf,) = schema.reward.leaves
    # Numpy may have rounded integers of a list; the list itself still has them.
    given = rewards if isinstance(rewards, list | tuple) else array
    return np.array(leaf.coerce(given, (len(array), *shape)))


def _flag(name: str, values: Any, length: int) -> bool:
    if isinstance(values, bool):
        return values
    refuse_mask(values, name)
    flags = as_flags(name, as_array(values))
    if flags.ndim == 0:
        return bool(flags)
    if flags.shape != (length,):
        raise SpaceMismatchError(
            f"{name} have shape {flags.shape}; expected ({length},), one per reward, or a single bool."
        )
    if flags[:-1].any():
        early = int(np.flatnonzero(flags)[0])
        raise SpaceMismatchError(
            f"{name}[{early}] is set before the last transition ({length - 1}). Split the data into "
            f"episodes first."
        )
    return bool(flags[-1]) if length else False


def _mappings(name: str, values: Any, *lengths: int) -> list[Mapping | None] | None:
    """Return rows of mappings, from a list of mappings or a mapping of arrays; None if there are none."""
    if values is None or (isinstance(values, Mapping) and not values):
        return None
    if isinstance(values, Mapping):
        sizes = _lengths(name, values)
        if len(sizes) != 1 or not sizes <= set(lengths):
            counts = " and ".join(map(str, sorted(sizes)))
            raise SpaceMismatchError(
                f"{name} has columns of length {counts}; expected {_either(lengths)} each."
            )
        return [single_value(values, row) for row in range(sizes.pop())]
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise SpaceMismatchError(
            f"{name} is {type(values).__name__}; expected a mapping of arrays, or mappings."
        )
    rows = list(values)
    if len(rows) not in lengths or not all(isinstance(row, Mapping | None) for row in rows):
        raise SpaceMismatchError(f"{name} has {len(rows)} entries; expected {_either(lengths)} mappings.")
    return rows


def _either(lengths: Sequence[int]) -> str:
    return " or ".join(str(length) for length in lengths)
