"""Columnar episode metadata: the fields of `EpisodeRecord`, one array each.

A vector environment may end several episodes in every step, so nothing here is made for each of them: begins
and ends are kept as arrays from the recorder to the episodes table. What only few episodes have (a seed,
options, metadata) stands aside by the episode's number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..layout import episode_id
from .episode_record import AgentRecord, Continued, EndReason, EpisodeFacts, EpisodeRecord

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
        found = [end for end in ends if len(end.table)]
        if not found:
            return None
        return Ends(
            np.concatenate([end.table for end in found]),
            np.concatenate([end.returns for end in found]),
            np.concatenate([end.terminated for end in found]),
            np.concatenate([end.truncated for end in found]),
            np.concatenate([end.ended_at for end in found]),
            {number: facts for end in found for number, facts in end.facts.items()},
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

    def without(self, numbers: Collection[int]) -> EpisodeColumns | None:
        """Return the other episodes; None if there are none."""
        kept = [place for place, number in enumerate(self.number.tolist()) if number not in numbers]
        if len(kept) == len(self):
            return self
        arrays = ("number", "started_at", "ended_at", "length", "episode_return", "terminated", "truncated")
        lists = ("env_index", "end_reason")
        changes = {name: getattr(self, name)[kept] for name in arrays}
        changes |= {name: [getattr(self, name)[place] for place in kept] for name in lists}
        return replace(self, **changes) if kept else None

    def ids(self, run_id: str) -> list[str]:
        """Return the ids of all of them, in order."""
        return [episode_id(run_id, number) for number in self.number.tolist()]

    @cached_property
    def lanes(self) -> LaneColumns:
        """Whose rows they have."""
        if not self.agents:
            nobody = np.zeros(len(self), np.int64)
            return LaneColumns(self.number, nobody, None, self.length, np.arange(len(self) + 1))
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
        found = (self.facts.get(number, NO_FACTS).continues for number in self.facts.keys() & self.numbers)
        return [each for each in found if each is not None]

    def facts_in_order(self) -> list[EpisodeFacts]:
        """Seed, options and metadata of each."""
        return [self.facts.get(number, NO_FACTS) for number in self.number.tolist()]

    @staticmethod
    def of(records: Sequence[EpisodeRecord] | EpisodeColumns) -> EpisodeColumns:
        """Single records as columns; columns stay as they are."""
        if isinstance(records, EpisodeColumns):
            return records
        whole = {
            name: np.array([getattr(record, name) for record in records], np.int64)
            for name in ("number", "started_at", "ended_at", "length")
        }
        flags = {
            name: np.array([getattr(record, name) for record in records], bool)
            for name in ("terminated", "truncated")
        }
        return EpisodeColumns(
            **whole,
            **flags,
            env_index=[record.env_index for record in records],
            episode_return=np.array([record.episode_return for record in records], np.float64),
            end_reason=[record.end_reason for record in records],
            facts={record.number: record.facts for record in records if record.facts != NO_FACTS},
            agents={record.number: record.agents for record in records if record.agents},
        )

    @staticmethod
    def joined(parts: Sequence[EpisodeColumns]) -> EpisodeColumns:
        """Several, one behind the other; one at least."""
        if len(parts) == 1:
            return parts[0]

        def arrays(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        return EpisodeColumns(
            number=arrays("number"),
            env_index=[index for part in parts for index in part.env_index],
            started_at=arrays("started_at"),
            ended_at=arrays("ended_at"),
            length=arrays("length"),
            episode_return=arrays("episode_return"),
            terminated=arrays("terminated"),
            truncated=arrays("truncated"),
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
