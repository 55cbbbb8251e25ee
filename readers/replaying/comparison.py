"""Values that came in a replay, compared with the recorded ones.

They go through the store's own columns first, so both sides are what a reader of the store would see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...store.errors import SpaceMismatchError
from ...store.names import escape
from ...store.schema import FLAGS, StepSchema
from ...store.spaces import SpaceCodec
from ...store.spaces.codec import single_value, slice_batch
from ..episode_data import EpisodeData

_LONGEST = 200


@dataclass(frozen=True)
class Difference:
    """First difference between a replay and the recorded episode in one value.

    Attributes:
        step: 0 for what `reset` gave, k for what the k-th `step` gave: `observations[k]`, `rewards[k - 1]`
            and so on of the episode.
        leaf: the column, such as `observation.image`, `reward`, `terminated` or `truncated`.
        index: of the first element that differs; () for a scalar, and for values of ragged spaces.
        expected: the recorded value.
        got: the environment's value; a text if that does not fit the space.
        elements: number of elements of the leaf that differ at this step.
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
        """Return one line: the place, the recorded and the replayed value."""
        whose = "" if self.agent is None else f"{self.agent} "
        where = whose + self.leaf + "".join(f"[{number}]" for number in self.index)
        more = f" ({self.elements} elements differ)" if self.elements > 1 else ""
        return f"step {self.step}: {where} was {_short(self.expected)}, now {_short(self.got)}{more}"


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@dataclass(frozen=True)
class Outcome:
    """Values of one call of `reset` or `step`; without reward and flags for a reset."""

    observation: Any
    reward: Any = None
    flags: tuple[bool, bool] | None = None


class Comparison:
    """Compares the values of an environment with those of an episode of one agent."""

    def __init__(self, episode: EpisodeData, schema: StepSchema, rtol: float, atol: float) -> None:
        self._episode = episode
        self._schema = schema
        self._rtol = rtol
        self._atol = atol
        encodings = episode.schema.encodings.items()
        self._lossy = {column for column, encoding in encodings if not encoding.lossless}

    def compare(self, values: list[Outcome], start: int) -> list[Difference]:
        """Return all differences at the first of some steps that has any.

        Args:
            values: from the environment.
            start: the step of the first of them.
        """
        episode = self._episode
        stop = start + len(values)
        got = [value.observation for value in values]
        # A replay shows one more observation than an episode has whose last one is missing.
        seen = min(stop, episode._observation_count)
        recorded = slice_batch(episode.observations, start, seen)
        differences = self._columns(self._schema.observation, recorded, got[: seen - start])
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
        differences += [_moved(difference, skipped) for difference in later]
        earliest = min((difference.step for difference in differences), default=0)
        return [_moved(difference, start) for difference in differences if difference.step == earliest]

    def _columns(self, codec: SpaceCodec, recorded: Any, got: list[Any]) -> list[Difference]:
        """Differences in the columns of one space; steps count from 0."""
        try:
            again = codec.decode(codec.encode_many(got, len(got)))
        except SpaceMismatchError:
            return self._one_by_one(codec, recorded, got)
        return [
            difference
            for name, expected, value in _leaves(codec.root, recorded, again)
            if name not in self._lossy
            for difference in self._leaf(name, expected, value)
        ]

    def _one_by_one(self, codec: SpaceCodec, recorded: Any, got: list[Any]) -> list[Difference]:
        """Return the same where some value does not fit the space."""
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
        """Return the first step of a leaf that differs; none or one."""
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
        """Return which elements of two arrays of one shape differ."""
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
        """Return whether two values of a ragged space are the same, part by part."""
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


class GameComparison:
    """Values that came to the agents of an episode, compared with the recorded ones.

    Args:
        members: the agents by name, each as an episode of its own.
    """

    def __init__(self, members: Mapping[Any, EpisodeData], rtol: float, atol: float) -> None:
        self._comparisons = {
            name: Comparison(member, member._own_schema, rtol, atol) for name, member in members.items()
        }
        self._moments = {name: member._moments for name, member in members.items()}
        self._came: dict[Any, list[Outcome]] = {name: [] for name in members}
        self._compared = dict.fromkeys(members, 0)
        self._differences: list[Difference] = []

    def add(self, agent: str | None, step: int, played: Outcome) -> None:
        """Add a copy of the values that came to an agent, unless it has no row for them."""
        if self.expects(agent, step):
            kept = replace(played, observation=deepcopy(played.observation), reward=deepcopy(played.reward))
            self._came[agent].append(kept)

    def add_either(self, agent: str, step: int, played: Outcome, other: Outcome) -> None:
        """Add one of two values that may have come to an agent: the one that fits its row."""
        self.differences()
        start = self._compared[agent]
        fits = played is other or not self._comparisons[agent].compare([played], start)
        wrong = not fits and bool(self._comparisons[agent].compare([other], start))
        self.add(agent, step, played if fits or wrong else other)

    def expects(self, agent: str | None, step: int) -> bool:
        """Return whether the next row of an agent is of that step of the environment."""
        if agent not in self._moments:
            return False
        row, moments = self._compared[agent] + len(self._came[agent]), self._moments[agent]
        return row < len(moments) and moments[row] == step

    def note(self, step: int, leaf: str, expected: Any, got: Any) -> None:
        """Add a difference in something that is no value of one agent."""
        self._differences.append(Difference(step, leaf, (), expected, got, 1))

    def differences(self) -> list[Difference]:
        """Return all differences at the first step that has any, among all values that came so far."""
        for name, values in self._came.items():
            if values:
                differences = self._comparisons[name].compare(values, self._compared[name])
                moments = self._moments[name]
                self._differences += [
                    replace(each, step=int(moments[each.step]), agent=name) for each in differences
                ]
                self._compared[name] += len(values)
                self._came[name] = []
        first = min((difference.step for difference in self._differences), default=0)
        self._differences = [difference for difference in self._differences if difference.step == first]
        return self._differences


def _moved(difference: Difference, steps: int) -> Difference:
    return replace(difference, step=difference.step + steps)


def _leaves(name: str, recorded: Any, got: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the leaves of two batches of one space with their columns."""
    if isinstance(recorded, dict):
        for key, part in recorded.items():
            yield from _leaves(f"{name}.{escape(key)}", part, got[key])
    elif isinstance(recorded, tuple):
        for number, part in enumerate(recorded):
            yield from _leaves(f"{name}.{number}", part, got[number])
    else:
        yield name, recorded, got
