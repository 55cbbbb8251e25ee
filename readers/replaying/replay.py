"""Replaying a recorded episode in an environment, and finding the first step that differs.

What the environment gives goes through the store's own columns before it is compared, so both sides are what
a reader of the store would see. Used by `Episode.replay` and by the demo.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from ...store.batches import single_value, slice_batch
from ...store.errors import InvalidArgumentError, SpaceMismatchError
from ...store.names import escape
from ...store.schema import FLAGS, StepSchema
from ...store.spaces import SpaceCodec

if TYPE_CHECKING:
    from ..episode import Episode

#: Steps that are played before they are compared.
BATCH = 256
_LONGEST = 200


@dataclass(frozen=True)
class Difference:
    """Where a replay first differs from the recorded episode in one value.

    Attributes:
        step: 0 for what `reset` gave, k for what the k-th `step` gave: `observations[k]`, `rewards[k - 1]`
            and so on of the episode.
        leaf: the column, such as `observation.image`, `reward`, `terminated` or `truncated`.
        index: of the first element that differs; () for a scalar, and for values of ragged spaces.
        expected: what was recorded there.
        got: what the environment gave; a text if it gave something that does not fit the space.
        elements: how many elements of the leaf differ at this step.
        agent: in an episode of several agents whose value it is, and `step` then counts those of the
            environment; None where it is no value of one agent: with the leaf `agents` which agents were
            there, with `agent_selection` whose turn it was.
    """

    step: int
    leaf: str
    index: tuple[int, ...]
    expected: Any
    got: Any
    elements: int
    agent: str | None = None

    def __str__(self) -> str:
        """One line: where, what was recorded and what came."""
        whose = "" if self.agent is None else f"{self.agent} "
        where = whose + self.leaf + "".join(f"[{number}]" for number in self.index)
        more = f" ({self.elements} elements differ)" if self.elements > 1 else ""
        return f"step {self.step}: {where} was {_short(self.expected)}, now {_short(self.got)}{more}"


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@dataclass(frozen=True)
class ReplayReport:
    """What came of a replay.

    Attributes:
        episode_id: the episode.
        seed: of its reset; None if it has none, so that its start cannot be repeated.
        transitions: of the recorded episode; of several agents, steps of the environment.
        compared: transitions that were played and found the same. Fewer than there are, and no difference,
            only where a crash lost turns that agents were waiting on.
        differences: all values that differ at the first step at which any does; empty if all are the same.
    """

    episode_id: str
    seed: int | None
    transitions: int
    compared: int
    differences: tuple[Difference, ...] = ()

    @property
    def same(self) -> bool:
        """Whether everything came out as recorded."""
        return not self.differences

    @property
    def first_difference(self) -> Difference | None:
        """The first value that differs, or None."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        """What was compared, the values that differ, and whether there was a seed."""
        if self.same:
            lines = [f"{self.episode_id}: {self.compared} transitions replayed, all the same."]
            if self.compared < self.transitions:
                lines.append(f"  {self.transitions - self.compared} more were not recorded in full.")
        else:
            lines = [f"{self.episode_id}: differs after {self.compared} of {self.transitions} transitions."]
            lines += [f"  {difference}" for difference in self.differences]
        if self.seed is None:
            lines.append("  The episode has no seed, so the environment may have started elsewhere.")
        return "\n".join(lines)


def replay(episode: Episode, env: gymnasium.Env, rtol: float = 0.0, atol: float = 0.0) -> ReplayReport:
    """Reset an environment as the episode was, take its actions, and compare.

    Args:
        episode: of one agent.
        env: left where the episode ended, or up to 256 steps behind the first difference.
        rtol, atol: how far numbers may be apart, as for `numpy.isclose`; with 0 for both they are compared
            exactly. NaN equals NaN.

    Raises:
        InvalidArgumentError: `env` is no single environment, or a tolerance is negative.
        SpaceMismatchError: the environment's spaces are not those of the store.
    """
    if isinstance(env, VectorEnv) or not isinstance(env, gymnasium.Env):
        raise InvalidArgumentError(f"env is {type(env).__name__}; expected one gymnasium.Env.")
    check_tolerances(rtol, atol)
    schema = episode.schema
    check_spaces(env, schema)
    comparison = Comparison(episode, schema, rtol, atol)
    start = 0
    for values in _played(episode, env):
        differences = comparison.compare(values, start)
        if differences:
            step = differences[0].step
            return ReplayReport(
                episode.id, episode.seed, episode.length, max(0, step - 1), tuple(differences)
            )
        start += len(values)
    return ReplayReport(episode.id, episode.seed, episode.length, episode.length)


def check_tolerances(rtol: float, atol: float) -> None:
    """Refuse tolerances that are negative or no numbers.

    Raises:
        InvalidArgumentError: one of them is.
    """
    if not all(isinstance(each, int | float | np.number) and each >= 0 for each in (rtol, atol)):
        raise InvalidArgumentError(f"rtol={rtol!r}, atol={atol!r}: expected numbers that are not negative.")


def check_spaces(env: gymnasium.Env, schema: StepSchema) -> None:
    """Refuse an environment of other spaces.

    Raises:
        SpaceMismatchError: they are not those of the store.
    """
    pairs = {
        "observation": (env.observation_space, schema.observation_space),
        "action": (env.action_space, schema.action_space),
    }
    for name, (given, expected) in pairs.items():
        if given != expected:
            raise SpaceMismatchError(
                f"The environment's {name} space is {given}; the episode's is {expected}. Replay it in an "
                "environment of the same kind, with the same wrappers."
            )


@dataclass(frozen=True)
class Played:
    """What one call of `reset` or `step` gave; without reward and flags for a reset."""

    observation: Any
    reward: Any = None
    flags: tuple[bool, bool] | None = None


def _played(episode: Episode, env: gymnasium.Env) -> Iterator[list[Played]]:
    """What the environment gives, a batch at a time; ends where either side ends."""
    observation, _ = env.reset(seed=episode.seed, options=episode.options)
    batch = [Played(copy.deepcopy(observation))]
    actions = episode.actions
    for t in range(episode.length):
        # An environment may write into the action it is given.
        action = copy.deepcopy(single_value(actions, t))
        observation, reward, terminated, truncated, info = env.step(action)
        flags = (bool(terminated), bool(truncated))
        if any(flags) and "final_obs" in info:
            observation = info["final_obs"]
        batch.append(Played(copy.deepcopy(observation), copy.deepcopy(reward), flags))
        if any(flags):
            break
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class Comparison:
    """The recorded side of a replay."""

    def __init__(self, episode: Episode, schema: StepSchema, rtol: float, atol: float) -> None:
        self._episode = episode
        self._schema = schema
        self._rtol = rtol
        self._atol = atol

    def compare(self, values: list[Played], start: int) -> list[Difference]:
        """All differences at the first of some steps that has any.

        Args:
            values: what the environment gave.
            start: the step of the first of them.
        """
        episode = self._episode
        stop = start + len(values)
        got = [value.observation for value in values]
        found = self._columns(self._schema.observation, slice_batch(episode.observations, start, stop), got)
        stepped = [value for value in values if value.flags is not None]
        skipped = len(values) - len(stepped)
        first = start + skipped - 1
        last = first + len(stepped)
        rewards = [np.asarray(value.reward, np.float64) for value in stepped]
        later = self._columns(self._schema.reward, episode.rewards[first:last], rewards) if stepped else []
        for number, name in enumerate(FLAGS):
            recorded = (episode.terminations, episode.truncations)[number][first:last]
            flags = np.array([value.flags[number] for value in stepped if value.flags], bool)
            later += self._leaf(name, recorded, flags)
        found += [_moved(difference, skipped) for difference in later]
        earliest = min((difference.step for difference in found), default=0)
        return [_moved(difference, start) for difference in found if difference.step == earliest]

    def _columns(self, codec: SpaceCodec, recorded: Any, got: list[Any]) -> list[Difference]:
        """Differences in the columns of one space; steps count from 0."""
        try:
            again = codec.decode(codec.encode_many(got, len(got)))
        except SpaceMismatchError:
            return self._one_by_one(codec, recorded, got)
        return [
            difference
            for name, expected, value in _leaves(codec.root, recorded, again)
            for difference in self._leaf(name, expected, value)
        ]

    def _one_by_one(self, codec: SpaceCodec, recorded: Any, got: list[Any]) -> list[Difference]:
        """The same where some value does not fit the space."""
        for step, value in enumerate(got):
            try:
                codec.encode_many([value], 1)
            except SpaceMismatchError as error:
                before = self._columns(codec, slice_batch(recorded, 0, step), got[:step]) if step else []
                return before or [
                    Difference(step, codec.root, (), single_value(recorded, step), str(error), 1)
                ]
        return []

    def _leaf(self, name: str, recorded: Any, got: Any) -> list[Difference]:
        """The first step of a leaf that differs; none or one."""
        if not isinstance(recorded, np.ndarray):
            for step, (expected, value) in enumerate(zip(recorded, got, strict=True)):
                if not self._equal(expected, value):
                    return [Difference(step, name, (), expected, value, 1)]
            return []
        wrong = self._wrong(recorded, got)
        if not wrong.any():
            return []
        step = int(wrong.reshape(len(wrong), -1).any(axis=1).argmax())
        where = np.argwhere(wrong[step])
        index = tuple(int(number) for number in where[0])
        return [Difference(step, name, index, recorded[step][index], got[step][index], len(where))]

    def _wrong(self, recorded: np.ndarray, got: np.ndarray) -> np.ndarray:
        """Which elements of two arrays of one shape differ."""
        if (self._rtol or self._atol) and recorded.dtype.kind in "fiu":
            with np.errstate(invalid="ignore"):
                return ~np.isclose(got, recorded, self._rtol, self._atol, equal_nan=True)
        wrong = recorded != got
        if recorded.dtype.kind == "f":
            wrong &= ~(np.isnan(recorded) & np.isnan(got))
            # Exactly means every bit: 0.0 is not -0.0.
            wrong |= (recorded == 0) & (got == 0) & (np.signbit(recorded) != np.signbit(got))
        return wrong

    def _equal(self, expected: Any, value: Any) -> bool:
        """Whether two values of a ragged space are the same, part by part."""
        if isinstance(expected, dict) and isinstance(value, dict):
            return expected.keys() == value.keys() and all(
                self._equal(part, value[key]) for key, part in expected.items()
            )
        if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
            return len(expected) == len(value) and all(map(self._equal, expected, value))
        if isinstance(expected, np.ndarray | np.number) and isinstance(value, np.ndarray | np.number):
            one, other = np.asarray(expected), np.asarray(value)
            alike = one.shape == other.shape and one.dtype == other.dtype
            return alike and not self._wrong(one, other).any()
        return type(expected) is type(value) and bool(expected == value)


def _moved(difference: Difference, steps: int) -> Difference:
    return replace(difference, step=difference.step + steps)


def _leaves(name: str, recorded: Any, got: Any) -> Iterator[tuple[str, Any, Any]]:
    """The leaves of two batches of one space with their columns."""
    if isinstance(recorded, dict):
        for key, part in recorded.items():
            yield from _leaves(f"{name}.{escape(key)}", part, got[key])
    elif isinstance(recorded, tuple):
        for number, part in enumerate(recorded):
            yield from _leaves(f"{name}.{number}", part, got[number])
    else:
        yield name, recorded, got
