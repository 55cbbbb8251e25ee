"""Metadata of finished episodes: one as `EpisodeRecord`, many as `EpisodeColumns`, one array per field.

A vector environment may end several episodes in every step, so nothing here is made for each of them: begins
and ends are kept as arrays from the recorder to the episodes table. What only few episodes have (a seed,
options, metadata) stands aside by the episode's number.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..common.arguments import integer
from ..dynamic.values import dump_json, freeze
from ..errors import InvalidArgumentError
from ..layout import episode_id

EndReason = Literal["terminated", "truncated", "cut", "interrupted"]
#: The fields of `EpisodeColumns` that are arrays.
_ARRAYS: dict[str, type] = {
    "number": np.int64,
    "started_at": np.int64,
    "ended_at": np.int64,
    "length": np.int64,
    "episode_return": np.float64,
    "terminated": np.bool_,
    "truncated": np.bool_,
}


@dataclass(frozen=True)
class AgentRecord:
    """One agent of a finished episode.

    Attributes:
        agent_id: its name.
        group: the index of its group.
        length: its number of transitions, 0 if it never acted.
        episode_return: sum of its rewards in order of time.
        terminated, truncated: its last flags from the environment.
    """

    agent_id: str
    group: int
    length: int
    episode_return: float | list[float]
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class EpisodeRecord:
    """One finished episode.

    Attributes:
        number: counts the episodes of a run from 0.
        env_index: which sub-environment it came from; 0 for a single environment.
        started_at, ended_at: microseconds since 1970, UTC.
        length: number of transitions T.
        episode_return: sum of the rewards in order of time (float64), a list for vector rewards.
        terminated, truncated: the flags of the last transition, from the environment.
        end_reason: why the recording ended.
        facts: its seed, options and metadata.
        agents: of a multi-agent episode, in the order in which they appeared; then `length` counts steps of
            the environment and `episode_return` is the sum over the agents.
    """

    number: int
    env_index: int | None
    started_at: int
    ended_at: int
    length: int
    episode_return: float | list[float]
    terminated: bool
    truncated: bool
    end_reason: EndReason
    facts: EpisodeFacts
    agents: tuple[AgentRecord, ...] = ()

    @property
    def transitions(self) -> int:
        """The number of transitions, over all agents."""
        return sum(agent.length for agent in self.agents) if self.agents else self.length


@dataclass(frozen=True)
class Continued:
    """An episode of the store that another one continues, and replaces once that has more steps.

    Attributes:
        episode_id: its id.
        length: its transitions, with which the other one begins.
    """

    episode_id: str
    length: int


@dataclass(frozen=True)
class EpisodeFacts:
    """Seed, reset options and metadata that a caller gives for an episode, checked and copied.

    Attributes:
        seed: of its reset, any size.
        options: JSON text of the reset's options, or None.
        metadata: frozen mapping.
        continues: the episode of the store whose place it takes.
        last_missing: whether its source lacked the last observation.
    """

    seed: int | None
    options: str | None
    metadata: dict[Any, Any]
    continues: Continued | None = None
    last_missing: bool = False

    @staticmethod
    def of(seed: Any, options: Any, metadata: Any, *, last_missing: bool = False) -> EpisodeFacts:
        """Check and copy.

        Raises:
            InvalidArgumentError: the seed is no whole number, or the others are no mappings.
        """
        try:
            number = None if seed is None else integer(seed)
        except TypeError as error:
            raise InvalidArgumentError(f"seed={seed!r}: expected a whole number or None.") from error
        kept = None if options is None else dump_json(_mapping("options", options))
        return EpisodeFacts(number, kept, _mapping("metadata", metadata), last_missing=last_missing)

    def with_metadata(self, metadata: Any) -> EpisodeFacts:
        """Return the same with more metadata; new values count before old ones."""
        return replace(self, metadata={**self.metadata, **_mapping("metadata", metadata)})


def copied_options(options: Any) -> dict[Any, Any] | None:
    """Return a copy of the options of a reset, which an environment may change; None if there are none.

    Raises:
        InvalidArgumentError: they are no mapping.
    """
    return None if options is None else _mapping("options", options)


def _mapping(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping | None):
        raise InvalidArgumentError(f"{name} is {type(value).__name__}; expected a mapping.")
    return freeze(value or {})


def timestamp_now() -> int:
    """Return the present, in microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def end_reason_of(terminated: bool, truncated: bool, otherwise: EndReason) -> EndReason:
    """Return the end reason that the flags imply; `otherwise` if neither is set."""
    if terminated:
        return "terminated"
    return "truncated" if truncated else otherwise


def add_in_order(total: float | list[float], rewards: np.ndarray) -> float | list[float]:
    """Add rewards, shape (n,) or (n, k), to a return one after the other, as a plain loop would."""
    rows = np.empty((len(rewards) + 1, *rewards.shape[1:]))
    # The sum of a lane or a recovered episode begins with 0.0, whatever the shape of its rewards.
    rows[0], rows[1:] = total, rewards
    return sums_in_order(rows, np.zeros(len(rows), np.intp), 1)[0].tolist()


def sums_in_order(rewards: np.ndarray, episodes: np.ndarray, count: int) -> np.ndarray:
    """Return the sums of some episodes, (count,) or (count, k), each added as by a plain loop from 0.0 on.

    Args:
        rewards: shape (n,) or (n, k).
        episodes: which of them each row belongs to, from 0 on.
    """
    # Unlike a sum, `bincount` adds in the order of the rows, and inf to -inf without a warning.
    if rewards.ndim == 1:
        return np.bincount(episodes, rewards, count)
    sums = np.empty((count, rewards.shape[1]))
    for objective, column in enumerate(rewards.T):
        sums[:, objective] = np.bincount(episodes, column, count)
    return sums


def team_flags(agents: Sequence[AgentRecord]) -> tuple[bool, bool]:
    """`terminated` and `truncated` of a multi-agent episode, from its agents'.

    Both are unset while an agent goes on. Then the episode is terminated if all agents are, and truncated if
    any is.
    """
    if not agents or not all(agent.terminated or agent.truncated for agent in agents):
        return False, False
    return all(agent.terminated for agent in agents), any(agent.truncated for agent in agents)


def team_return(returns: Sequence[float | list[float]], objectives: int | None) -> float | list[float]:
    """Return the sum of the agents' returns in their order; `objectives` is None for scalar rewards."""
    start = 0.0 if objectives is None else [0.0] * objectives
    return add_in_order(start, np.array(returns, np.float64)) if returns else start


#: What is known of an episode without seed, options and metadata.
NO_FACTS = EpisodeFacts(None, None, {})


@dataclass(frozen=True, slots=True)
class Begins:
    """Episodes that began.

    Attributes:
        numbers, env_index: int64, one for each.
        started_at: int64, microseconds since 1970, UTC, one for each.
        facts: by number, where there is something to say.
    """

    numbers: np.ndarray
    env_index: np.ndarray
    started_at: np.ndarray
    facts: Mapping[int, EpisodeFacts]


@dataclass(slots=True)
class Ends:
    """Episodes that ended; those without a step leave nothing.

    Attributes:
        table: int64, shape (n, 4): of each its number, environment, length, and start (microseconds since
            1970, UTC).
        returns: float64, shape (n,) or (n, k).
        terminated, truncated: the flags of the last transitions.
        ended_at: int64, microseconds since 1970, UTC, one for each.
        facts: by number, where there is something to say.
    """

    table: np.ndarray
    returns: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended_at: np.ndarray
    facts: Mapping[int, EpisodeFacts]

    @property
    def numbers(self) -> np.ndarray:
        """The episodes."""
        return self.table[:, 0]

    @property
    def env_index(self) -> np.ndarray:
        """Their environments."""
        return self.table[:, 1]

    @property
    def lengths(self) -> np.ndarray:
        """Their transitions."""
        return self.table[:, 2]

    @property
    def empty(self) -> np.ndarray:
        """Bool, set for the episodes without a step."""
        return self.table[:, 2] == 0

    def chosen(self, mask: np.ndarray) -> Ends:
        """Return those where `mask` is set."""
        table = self.table[mask]
        numbers = table[:, 0].tolist() if self.facts else ()
        facts = {number: self.facts[number] for number in numbers if number in self.facts}
        flags = self.terminated[mask], self.truncated[mask]
        return Ends(table, self.returns[mask], *flags, self.ended_at[mask], facts)

    @staticmethod
    def joined(ends: Iterable[Ends]) -> Ends | None:
        """Put those of several moments together; None if there is no episode."""
        some = [end for end in ends if len(end.table)]
        if not some:
            return None
        return Ends(
            np.concatenate([end.table for end in some]),
            np.concatenate([end.returns for end in some]),
            np.concatenate([end.terminated for end in some]),
            np.concatenate([end.truncated for end in some]),
            np.concatenate([end.ended_at for end in some]),
            {number: facts for end in some for number, facts in end.facts.items()},
        )


@dataclass(frozen=True)
class LaneColumns:
    """Whose rows a segment has: each episode, or each agent of each, in order.

    Attributes:
        numbers: int64, the number of the episode.
        agents: int64, which agent of it; 0 where there is one.
        names: the agents; None in a store for one.
        lengths: int64, transitions.
        first: int64, one more than episodes: the first lane of each.
    """

    numbers: np.ndarray
    agents: np.ndarray
    names: Sequence[str] | None
    lengths: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def per_episode(self, counts: np.ndarray) -> np.ndarray:
        """Return the sum over the lanes of each episode."""
        ends = np.concatenate([[0], np.cumsum(counts)])
        return np.diff(ends[self.first])


@dataclass(frozen=True)
class EpisodeColumns:
    """Finished episodes in the order in which they ended; the attributes are those of `EpisodeRecord`.

    Attributes:
        number, started_at, ended_at, length: int64.
        env_index: one for each, None without an environment.
        episode_return: float64 of shape (n,), or (n, k) for vector rewards.
        terminated, truncated: bool.
        end_reason: one for each.
        facts: by number: seed, options and metadata, where an episode has any.
        agents: by number, of multi-agent episodes.
    """

    number: np.ndarray
    env_index: Sequence[int | None]
    started_at: np.ndarray
    ended_at: np.ndarray
    length: np.ndarray
    episode_return: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    end_reason: Sequence[EndReason]
    facts: Mapping[int, EpisodeFacts] = field(default_factory=dict)
    agents: Mapping[int, Sequence[AgentRecord]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def numbers(self) -> set[int]:
        """The numbers of all of them."""
        return set(self.number.tolist())

    def ids(self, run_id: str) -> list[str]:
        """Return the ids of all of them, in order."""
        return [episode_id(run_id, number) for number in self.number.tolist()]

    @cached_property
    def lanes(self) -> LaneColumns:
        """Whose rows they have."""
        if not self.agents:
            agents = np.zeros(len(self), np.int64)
            return LaneColumns(self.number, agents, None, self.length, np.arange(len(self) + 1))
        teams = [self.agents[number] for number in self.number.tolist()]
        sizes = np.array([len(team) for team in teams], np.int64)
        first = np.concatenate([[0], np.cumsum(sizes)])
        return LaneColumns(
            numbers=np.repeat(self.number, sizes),
            agents=np.arange(first[-1]) - np.repeat(first[:-1], sizes),
            names=[agent.agent_id for team in teams for agent in team],
            lengths=np.array([agent.length for team in teams for agent in team], np.int64),
            first=first,
        )

    @cached_property
    def continued(self) -> list[Continued]:
        """The episodes of the store that some of them continue."""
        every = (self.facts[number].continues for number in self.facts.keys() & self.numbers)
        return [each for each in every if each is not None]

    def facts_in_order(self) -> list[EpisodeFacts]:
        """Seed, options and metadata of each."""
        return [self.facts.get(number, NO_FACTS) for number in self.number.tolist()]

    @staticmethod
    def of(records: Sequence[EpisodeRecord]) -> EpisodeColumns:
        """Single records as columns."""
        arrays = {
            name: np.array([getattr(record, name) for record in records], kind)
            for name, kind in _ARRAYS.items()
        }
        return EpisodeColumns(
            **arrays,
            env_index=[record.env_index for record in records],
            end_reason=[record.end_reason for record in records],
            facts={record.number: record.facts for record in records if record.facts != NO_FACTS},
            agents={record.number: record.agents for record in records if record.agents},
        )

    @staticmethod
    def joined(parts: Sequence[EpisodeColumns]) -> EpisodeColumns:
        """Several, one after the other; one at least."""
        if len(parts) == 1:
            return parts[0]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
        return EpisodeColumns(
            **arrays,
            env_index=[index for part in parts for index in part.env_index],
            end_reason=[reason for part in parts for reason in part.end_reason],
            facts={number: facts for part in parts for number, facts in part.facts.items()},
            agents={number: team for part in parts for number, team in part.agents.items()},
        )

    @staticmethod
    def of_ended(ended: Ends) -> EpisodeColumns | None:
        """Return the episodes with a step among those that ended; None if there is none."""
        kept = ~ended.empty
        if not kept.any():
            return None
        number, env_index, length, started_at = ended.table[kept].T
        terminated, truncated = ended.terminated[kept], ended.truncated[kept]
        return EpisodeColumns(
            number=number,
            env_index=env_index.tolist(),
            started_at=started_at,
            ended_at=ended.ended_at[kept],
            length=length,
            episode_return=ended.returns[kept],
            terminated=terminated,
            truncated=truncated,
            end_reason=_reasons(terminated, truncated),
            facts=ended.facts,
        )


def _reasons(terminated: np.ndarray, truncated: np.ndarray) -> list[EndReason]:
    names: tuple[EndReason, ...] = ("cut", "truncated", "terminated")
    codes = np.where(terminated, 2, truncated)
    return [names[code] for code in codes.tolist()]
