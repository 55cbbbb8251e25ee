"""The request of a call of `collect`: its goal, and the seeds and options of its resets.

A `Goal` is a number of transitions or of episodes, with optional quotas for each environment.

Seeds and options are for the first reset, or for every one. Episodes are numbered from 0 in the order in
which they begin; environments that begin in the same step are numbered by their index. A list or a function
gives a value to each number. Worker w of W plays the episodes w, w + W, w + 2W, ... of the whole collection.
`alike` says which environments of a vector environment are reset together, `merge_infos` joins their infos.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from ...store.common.arguments import flag, is_integer, whole_number
from ...store.common.compatibility import AutoresetMode, masks_resets
from ...store.errors import InvalidArgumentError
from .display import CollectProgress
from .stats import Tally


@dataclass(frozen=True)
class Goal:
    """The goal of a call of `collect`.

    Attributes:
        steps: how many transitions at least; None if episodes are counted.
        episodes: how many episodes; None if transitions are counted.
        quotas: whether each environment has an equal share of the episodes.
    """

    steps: int | None = None
    episodes: int | None = None
    quotas: bool = False

    @staticmethod
    def of(steps: Any, episodes: Any, quotas: Any) -> Goal:
        """Check the arguments of a caller.

        Raises:
            InvalidArgumentError: both or neither of steps and episodes; no positive whole number; quotas
                where steps are counted.
        """
        if (steps is None) == (episodes is None):
            got = "neither" if steps is None else f"steps={steps!r} and episodes={episodes!r}"
            raise InvalidArgumentError(
                f"collect was given {got}; expected exactly one of steps (how many transitions) and "
                "episodes (how many of them)."
            )
        if flag("quotas", quotas) and episodes is None:
            raise InvalidArgumentError(
                "quotas=True goes with episodes: it gives each environment an equal share of them."
            )
        return Goal(positive("steps", steps), positive("episodes", episodes), bool(quotas))

    @property
    def total(self) -> int:
        """The number of steps or episodes to record."""
        return self.episodes if self.steps is None else self.steps  # type: ignore[return-value]

    def split(self, parts: int) -> list[Goal]:
        """Return the same in at most so many parts that differ by one at the most; none is empty."""
        shares = [share for share in even_shares(self.total, parts).tolist() if share]
        if self.steps is None:
            return [Goal(episodes=share, quotas=self.quotas) for share in shares]
        return [Goal(steps=share) for share in shares]


def positive(name: str, value: Any) -> int | None:
    """Return a positive integer, or None.

    Raises:
        InvalidArgumentError: it is something else.
    """
    return None if value is None else whole_number(name, value, 1)


def even_shares(total: int, parts: int) -> np.ndarray:
    """Split `total` into `parts` integer shares, int64, the larger ones first."""
    shares = np.full(parts, total // parts, np.int64)
    shares[: total % parts] += 1
    return shares


class CollectProgressState:
    """Progress of a call: its counts, and the amount that may still be recorded.

    Args:
        goal: what is asked for.
        size: how many environments take part.
        deferred: whether episode ends may be reported later.

    Attributes:
        deferred: the same; never where episodes are counted.
    """

    def __init__(self, goal: Goal, size: int, *, deferred: bool = False) -> None:
        self.goal = goal
        self.deferred = deferred and goal.steps is not None
        self.tally = Tally()
        self._total = goal.total
        #: Episodes that each environment may still give, int64 of shape (size,); None with `steps`.
        self.quotas = None
        #: Episodes that no environment has yet: those whose episodes end take them, one by one.
        self._spare = 0
        if goal.episodes is not None:
            given = goal.episodes if goal.quotas else min(goal.episodes, size)
            self.quotas = even_shares(given, size)
            self._spare = goal.episodes - given

    @staticmethod
    def unbounded() -> CollectProgressState:
        """Return one that is never reached."""
        return CollectProgressState(Goal(steps=sys.maxsize), 1)

    def use_up(self, envs: np.ndarray) -> None:
        """Count an episode of each of these environments, and hand out remaining ones.

        So the episodes that begin first are recorded, however long they are.
        """
        if self.quotas is not None:
            self.quotas[envs] -= 1
            again = envs[: self._spare]
            self.quotas[again] += 1
            self._spare -= len(again)

    @property
    def reached(self) -> bool:
        """True once the goal is reached."""
        return self.done >= self._total

    @property
    def done(self) -> int:
        """The number of steps or episodes recorded so far."""
        return self.tally.episodes if self.goal.steps is None else self.tally.steps

    def report(self) -> CollectProgress:
        """Return the values for a display."""
        tally = self.tally
        return CollectProgress(
            self.done, self.goal.total, tally.steps, tally.episodes, tally.return_sum, tally.seconds
        )


Seeds = int | Sequence[int | None] | Callable[[int], int | None]
ResetOptions = (
    Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | Callable[[int], Mapping[str, Any] | None]
)

_NUMBERS = "biufc"


@dataclass(frozen=True)
class Resets:
    """Seeds and options of the resets of a call.

    Attributes:
        seed: of the first reset, as the environment takes it; a list or a function for every episode.
        options: likewise; a mapping is for the first reset.
        anew: whether to begin with a reset although episodes are running; they end as `cut`.
        first, stride: episode k of this process is episode first + stride * k of the collection.
        first_only: whether a list of seeds is for the first reset of a vector environment only.
    """

    seed: Any = None
    options: Any = None
    anew: bool = False
    first: int = 0
    stride: int = 1
    first_only: bool = False

    @staticmethod
    def of(seed: Any, options: Any, goal: Goal) -> Resets:
        """Check the arguments of a caller.

        Raises:
            InvalidArgumentError: a seed is neither None nor a whole number of at least 0, options are no
                mapping, or neither is a list or a function of such.
        """
        seed, options = _checked_seeds(seed), _checked_options(options)
        # A function waits for the resets that come; all else asks for one now.
        asked = any(value is not None and not callable(value) for value in (seed, options))
        return Resets(seed, options, anew=goal.episodes is not None or asked)

    @property
    def per_episode(self) -> bool:
        """True if resets after the first one have seeds or options too."""
        return _many(self.options) or (_many(self.seed) and not self.first_only)

    def at(self, number: int) -> tuple[int | None, dict[str, Any] | None]:
        """Return seed and options of an episode of this process.

        Raises:
            InvalidArgumentError: a list has no value for it, or a function returned something else.
        """
        return (
            checked_seed("seed", self._value("seed", self.seed, number), self._episode(number)),
            _checked_mapping("options", self._value("options", self.options, number), self._episode(number)),
        )

    def _episode(self, number: int) -> int:
        return self.first + self.stride * number

    def _value(self, name: str, given: Any, number: int) -> Any:
        """Return the value for an episode of this process, as it was given."""
        episode = self._episode(number)
        if callable(given):
            return given(episode)
        if not isinstance(given, list):
            return given if number == 0 else None
        if episode < len(given):
            return given[episode]
        if name == "seed" and self.first_only:
            return None
        raise InvalidArgumentError(
            f"{name} is a list of {len(given)}, one for each episode, and episode {episode} begins. Give "
            "more, or a function of the episode's number."
        )

    def fitted(self, env: Any, goal: Goal) -> Resets:
        """Return the same for an environment, which decides what as many seeds as it has environments mean.

        Raises:
            InvalidArgumentError: a list is too short for the goal or the first reset; a vector environment
                cannot reset one environment with a seed of its own.
        """
        vector = isinstance(env, VectorEnv)
        size = env.num_envs if vector else 1
        episodes = size if goal.episodes is None else goal.episodes
        first_only = vector and self.stride == 1 and isinstance(self.seed, list) and len(self.seed) == size
        fitted = replace(self, first_only=first_only and (goal.episodes is None or episodes > size))
        fitted.check_lengths(episodes)
        if vector and fitted.per_episode:
            _check_masks(env)
        return fitted

    def check_lengths(self, episodes: int) -> None:
        """Make sure that lists have a value for so many episodes of this process.

        Raises:
            InvalidArgumentError: one is too short.
        """
        needed = self.first + self.stride * (episodes - 1) + 1
        for name, value in (("seed", self.seed), ("options", self.options)):
            if isinstance(value, list) and len(value) < needed and not (name == "seed" and self.first_only):
                raise InvalidArgumentError(
                    f"{name} is a list of {len(value)}, one for each episode; expected at least {needed} for "
                    f"this call. Give more, or a function of the episode's number."
                )


def _many(value: Any) -> bool:
    """Return whether it has a value for each episode."""
    return isinstance(value, list) or callable(value)


def checked_seed(name: str, seed: Any, number: int | None = None) -> int | None:
    """Return a seed as a number of Python's own, which is what environments take.

    Raises:
        InvalidArgumentError: it is neither None nor a whole number of at least 0.
    """
    if seed is None or (is_integer(seed) and seed >= 0):
        return None if seed is None else int(seed)
    place = "" if number is None else f" for episode {number}"
    raise InvalidArgumentError(f"{name}={seed!r}{place}: expected a whole number of at least 0, or None.")


def _checked_seeds(seed: Any) -> Any:
    if callable(seed):
        return seed
    listed = isinstance(seed, np.ndarray) and seed.ndim == 1
    if listed or (isinstance(seed, Sequence) and not isinstance(seed, str | bytes)):
        return [checked_seed(f"seed[{index}]", part) for index, part in enumerate(seed)]
    try:
        return checked_seed("seed", seed)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{error} Or a list of them, or a function of the episode's number."
        ) from None


def _checked_mapping(name: str, options: Any, number: int | None = None) -> dict[str, Any] | None:
    """Return a copy of the options of a reset."""
    if not isinstance(options, Mapping | None):
        place = "" if number is None else f" for episode {number}"
        raise InvalidArgumentError(
            f"{name}={options!r}{place}: expected a mapping, for the environment's reset, or None."
        )
    return None if options is None else dict(options)


def _checked_options(options: Any) -> Any:
    if callable(options):
        return options
    if isinstance(options, list | tuple):
        return [_checked_mapping(f"options[{index}]", part) for index, part in enumerate(options)]
    return _checked_mapping("options", options)


def _check_masks(env: VectorEnv) -> None:
    kind = type(env.unwrapped).__name__
    if not isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        raise InvalidArgumentError(
            f"Seeds and options for every episode need a SyncVectorEnv or an AsyncVectorEnv; {kind} cannot "
            "reset one of its environments with a seed of its own."
        )
    if not masks_resets:
        raise InvalidArgumentError(
            "Seeds and options for every episode of a vector environment need gymnasium>=1.1."
        )
    vector: Any = env.unwrapped
    if vector.autoreset_mode is AutoresetMode.NEXT_STEP and not getattr(vector, "shared_memory", True):
        # Up to Gymnasium 1.4 its processes do not notice such a reset, and reset again in the next step.
        raise InvalidArgumentError(
            "Seeds and options for every episode need an AsyncVectorEnv with shared_memory=True, or with "
            "autoreset_mode=AutoresetMode.SAME_STEP or DISABLED."
        )


def merge_infos(before: Mapping[str, Any], after: Mapping[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Return the infos of all environments: of the reset where `mask` is set, the earlier ones elsewhere.

    Args:
        before: what the last step returned, in the form of Gymnasium's vector environments: arrays of shape
            (num_envs, ...) beside their masks `_key`. It is not changed.
        after: what the reset returned, which holds nothing of the other environments.
        mask: bool, shape (num_envs,).
    """
    merged: dict[str, Any] = {}
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            earlier, later = (part if isinstance(part, Mapping) else {} for part in (old, new))
            merged[key] = merge_infos(earlier, later, mask)
        else:
            merged[key] = _merged(key, old, new, mask)
    return merged


def _merged(key: str, old: Any, new: Any, mask: np.ndarray) -> Any:
    if not isinstance(old, np.ndarray) or old.shape[:1] != mask.shape:
        return old if new is None else new
    if new is None:
        # The masks tell which values count: those of the environments that were reset no longer do.
        return old & ~mask if key.startswith("_") and old.dtype == bool else old
    if not isinstance(new, np.ndarray) or old.shape != new.shape:
        return new
    numbers = old.dtype.kind in _NUMBERS and new.dtype.kind in _NUMBERS
    joined = old.astype(np.result_type(old, new) if numbers else object)
    joined[mask] = new[mask]
    return joined


def alike(mask: np.ndarray, options: Sequence[Any]) -> Iterator[np.ndarray]:
    """Yield masks of neighbours that can be reset together, in the order of their indices.

    Only neighbours, so that episodes are begun in the order of their environments.

    Args:
        mask: bool, shape (num_envs,): those to be reset.
        options: of each environment's reset; Gymnasium gives all the same.
    """
    envs = np.flatnonzero(mask).tolist()
    start = 0
    for stop in range(1, len(envs) + 1):
        if stop == len(envs) or not _equal(options[envs[stop]], options[envs[start]]):
            some = np.zeros_like(mask)
            some[envs[start:stop]] = True
            yield some
            start = stop


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (TypeError, ValueError):  # arrays have no single truth
        return False
