"""Agents of a multi-agent store: their names, their spaces, and the columns of each group.

Agents with equal spaces make a group. A store with one group has the columns of a single agent; with more,
the columns of each begin with the group's name, as in `speaker.observation`, and are NULL on the rows of
others. The groups stand in `store.json`; the schemas take their columns from here.

The rows of a multi-agent episode are those of its agents, one agent after the other, in the order of the
column `agents`. Each lane, the rows of one agent, looks like the rows of a single-agent episode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
from gymnasium import spaces

from .errors import InvalidArgumentError, SpaceMismatchError
from .names import escape, has_utf8
from .spaces import SpaceCodec, plain_space, same_space, space_from_json, space_to_json
from .spaces.fixed import FixedNode
from .spaces.node import ValueBuffer

#: Names that columns of steps begin with, so that no group may have them.
_TAKEN = frozenset(
    {
        *("action", "agent_id", "env_step", "episode_id", "info", "metadata", "observation", "policy"),
        *("reward", "state", "t", "terminated", "truncated"),
    }
)
_NUMBER = re.compile(r"[_-]?\d+$")
#: Columns that lanes are derived from.
LANE_COLUMNS = ("agents", "agent_groups", "agent_lengths", "agent_terminations", "agent_truncations")
RETURNS = "agent_returns"
_MOST_ROWS = 1 << 40


@dataclass(frozen=True)
class AgentGroup:
    """Agents that have the same spaces.

    Attributes:
        name: of the group; the common part of its agents' names, where possible.
        agents: those that were known when the store was created; others of the same spaces may come.
        observation_space, action_space: the spaces of each of them.
    """

    name: str
    agents: tuple[str, ...]
    observation_space: gymnasium.Space
    action_space: gymnasium.Space

    def to_json(self) -> dict[str, Any]:
        """Return the group as `store.json` has it."""
        return {
            "group": self.name,
            "agents": list(self.agents),
            "observation": space_to_json(self.observation_space),
            "action": space_to_json(self.action_space),
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> AgentGroup:
        """Read it back.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        name, agents = content["group"], content["agents"]
        if not isinstance(name, str) or not isinstance(agents, list) or not all(map(is_agent_name, agents)):
            raise ValueError(f"a group of agents without names: {name!r}")
        observation, action = space_from_json(content["observation"]), space_from_json(content["action"])
        return AgentGroup(name, tuple(agents), observation, action)

    @staticmethod
    def find(
        groups: Sequence[AgentGroup],
        agent: str,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
    ) -> int:
        """Return the index of the group that an agent belongs to, by its spaces.

        Raises:
            InvalidArgumentError: its name is no text.
            SpaceMismatchError: its spaces are those of no group, or not those that it has in the store.
        """
        if not is_agent_name(agent):
            raise InvalidArgumentError(
                f"The agents of a store are named by text; the environment has {agent!r}."
            )
        pair = (observation_space, action_space)
        for index, group in enumerate(groups):
            if agent in group.agents:
                if all(map(same_space, pair, (group.observation_space, group.action_space))):
                    return index
                raise SpaceMismatchError(
                    f"The agent {agent!r} has the spaces {pair}; in the store it has "
                    f"{(group.observation_space, group.action_space)}. Record into a store that was created "
                    "with this environment."
                )
        for index, group in enumerate(groups):
            if (group.observation_space, group.action_space) == pair:
                return index
        known = "; ".join(f"{g.name}: {(g.observation_space, g.action_space)}" for g in groups)
        raise SpaceMismatchError(
            f"The agent {agent!r} has the spaces {pair}, which no group of the store has. Groups: {known}. "
            "Record into a store that was created with this environment."
        )


def is_agent_name(agent: object) -> bool:
    """Return whether a value can name an agent: text that UTF-8 can hold."""
    return isinstance(agent, str) and has_utf8(agent)


def group_agents(agents: Mapping[str, tuple[gymnasium.Space, gymnasium.Space]]) -> tuple[AgentGroup, ...]:
    """Sort agents into groups of equal spaces, in the order in which they are given.

    Args:
        agents: for each agent its observation space and its action space.

    Raises:
        InvalidArgumentError: there are none, or a name is no text.
    """
    wrong = [agent for agent in agents if not is_agent_name(agent)]
    if wrong or not agents:
        wrong_name = f"{wrong[0]!r}" if wrong else "none"
        raise InvalidArgumentError(f"The agents of a store are named by text; got {wrong_name}.")
    groups: list[tuple[tuple[gymnasium.Space, gymnasium.Space], list[str]]] = []
    for agent, given in agents.items():
        pair = plain_space(given[0]), plain_space(given[1])
        known = next((members for spaces_, members in groups if spaces_ == pair), None)
        if known is None:
            groups.append((pair, [agent]))
        else:
            known.append(agent)
    names = _group_names([members for _, members in groups])
    return tuple(
        AgentGroup(name, tuple(members), *pair) for name, (pair, members) in zip(names, groups, strict=True)
    )


def check_groups(groups: Sequence[AgentGroup]) -> None:
    """Refuse groups whose columns would clash, or that share an agent.

    Raises:
        ValueError: they do.
    """
    names = [group.name.casefold() for group in groups]
    agents = [agent for group in groups for agent in group.agents]
    if len(set(names)) < len(names) or _TAKEN.intersection(names) or len(set(agents)) < len(agents):
        raise ValueError(f"groups of agents with impossible or equal names: {names}")


def _group_names(groups: Sequence[Sequence[str]]) -> list[str]:
    """Return one name per group: its agents' names without their numbers, if these differ."""
    short = [_NUMBER.sub("", members[0]) or members[0] for members in groups]
    folded = [name.casefold() for name in short]
    names: list[str] = []
    used: set[str] = set(_TAKEN)
    for name, members in zip(short, groups, strict=True):
        candidates = [name] if folded.count(name.casefold()) == 1 else []
        candidates += [members[0], *(f"{members[0]}_group{number}" for number in range(len(groups) + 1))]
        chosen = next(each for each in candidates if each.casefold() not in used)
        used.add(chosen.casefold())
        names.append(chosen)
    return names


def joint_spaces(groups: Sequence[AgentGroup]) -> tuple[gymnasium.Space, gymnasium.Space]:
    """Return the spaces of all agents: those of the one group, or a Dict with one entry per group."""
    if len(groups) == 1:
        return groups[0].observation_space, groups[0].action_space
    return (
        spaces.Dict({group.name: group.observation_space for group in groups}),
        spaces.Dict({group.name: group.action_space for group in groups}),
    )


def column_prefix(groups: Sequence[AgentGroup], index: int) -> str:
    """Return the prefix of the columns of a group's observations and actions: empty for a single group."""
    return f"{escape(groups[index].name)}." if len(groups) > 1 else ""


class GroupedCodec(SpaceCodec):
    """The columns of several groups side by side; a value is a pair `(index of the group, value)`.

    Rows are read back group by group, with the group's own codec.
    """

    def __init__(self, space: gymnasium.Space, root: str, codecs: Sequence[SpaceCodec]) -> None:
        self.space = space
        self.root = root
        self._codecs = tuple(codecs)
        self.fields = tuple(field for codec in codecs for field in codec.fields)
        self.row_bytes = sum(codec.row_bytes for codec in codecs)
        self.max_rows = min(codec.max_rows for codec in codecs)

    @cached_property
    def leaves(self) -> tuple[FixedNode, ...]:
        """The leaves of each group, one group after the other."""
        return tuple(leaf for codec in self._codecs for leaf in codec.leaves)

    @property
    def parts(self) -> tuple[SpaceCodec, ...]:
        """The parts of each group, one group after the other."""
        return tuple(part for codec in self._codecs for part in codec.parts)

    def buffer(self, capacity: int) -> ValueBuffer:
        """Preallocate `capacity` rows for each group."""
        return _GroupedBuffer([codec.buffer(capacity) for codec in self._codecs], capacity)

    row_buffer = buffer

    def encode_many(self, values: Any, length: int) -> list[pa.Array]:
        """Raise an error: encode the values of each group with its own codec."""
        raise TypeError("A batch of several groups has no form; use the codec of each group.")

    def decode(self, arrays: Iterable[Any]) -> Any:
        """Raise an error: decode the rows of each group with its own codec."""
        raise TypeError("Rows of several groups have no common form; use the codec of each group.")


class _GroupedBuffer(ValueBuffer):
    """Rows of several groups: each row belongs to one of them and is NULL in the columns of the others."""

    def __init__(self, buffers: Sequence[ValueBuffer], capacity: int) -> None:
        self._buffers = buffers
        self._groups = groups = np.full(capacity, -1, np.int32)

        def put(index: int, value: tuple[int, Any]) -> None:
            group, single = value
            buffers[group].put(index, single)
            groups[index] = group

        self.put = put

    def arrays(self, start: int, stop: int, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `ValueBuffer.arrays`."""
        parts: list[pa.Array] = []
        for number, buffer in enumerate(self._buffers):
            mask = self._groups[start:stop] == number
            parts += buffer.arrays(start, stop, mask if valid is None else mask & valid)
        return parts

    def put_many(self, start: int, values: Any, length: int, chosen: np.ndarray | None = None) -> None:
        """See `ValueBuffer.put_many`; the values are a sequence of pairs, put one by one."""
        places = range(length) if chosen is None else chosen.tolist()
        for offset, place in enumerate(places):
            self.put(start + offset, values[place])

    def copy_rows(self, into: np.ndarray, source: ValueBuffer, rows: np.ndarray) -> None:
        """See `ValueBuffer.copy_rows`."""
        assert isinstance(source, _GroupedBuffer)
        self._groups[into] = source._groups[rows]
        for buffer, other in zip(self._buffers, source._buffers, strict=True):
            buffer.copy_rows(into, other, rows)

    def gather(self, rows: np.ndarray, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `ValueBuffer.gather`."""
        gathered: list[pa.Array] = []
        for number, buffer in enumerate(self._buffers):
            mask = self._groups[rows] == number
            gathered += buffer.gather(rows, mask if valid is None else mask & valid)
        return gathered


@dataclass(frozen=True)
class Lanes:
    """The lanes of some rows of the episodes table, in order; arrays have one entry per lane.

    Attributes:
        episode: the row of the episodes table that it belongs to.
        agent: its agent's name.
        group: the index of its agent's group.
        length: its number of transitions; it has one row more.
        offset: its first row, counted from the episode's first.
        flags: shape (n, 2), of its last transition.
        bad: one entry per episode: True if its columns contradict each other. It has no lanes then.
    """

    episode: np.ndarray
    agent: pa.Array
    group: np.ndarray
    length: np.ndarray
    offset: np.ndarray
    flags: np.ndarray
    bad: np.ndarray


def transitions_in(rows: pa.Table) -> int:
    """Return the number of transitions of some episodes: all rows but one for each agent."""
    count = int(rows.column("row_count").to_numpy().sum())
    if "agents" not in rows.column_names:
        return count - rows.num_rows
    return count - len(rows.column("agents").combine_chunks().flatten())


def lanes_of(rows: pa.Table, groups: Sequence[AgentGroup]) -> Lanes:
    """Return the lanes of a multi-agent store's episodes.

    Args:
        rows: with the columns `row_count`, `LANE_COLUMNS` and `RETURNS`.
        groups: the store's.
    """
    import pyarrow.compute as pc

    columns = {name: rows.column(name).combine_chunks() for name in (*LANE_COLUMNS, RETURNS)}
    sizes = np.stack(
        [pc.call_function("list_value_length", [each]).fill_null(-1).to_numpy() for each in columns.values()]
    )
    bad = (sizes < 1).any(axis=0) | (sizes != sizes[0]).any(axis=0)
    flat = {name: each.filter(pa.array(~bad)).flatten() for name, each in columns.items()}
    episode = np.repeat(np.arange(len(bad)), np.where(bad, 0, sizes[0]))
    known = pc.SetLookupOptions(pa.array([group.name for group in groups], pa.string()))
    group = pc.call_function("index_in", [flat["agent_groups"]], known).fill_null(-1).to_numpy()
    length = flat["agent_lengths"].fill_null(-1).to_numpy()
    wrong = (group < 0) | (length < 0) | (length >= _MOST_ROWS) | _repeated(flat["agents"], episode)
    for name in LANE_COLUMNS:
        wrong |= flat[name].is_null().to_numpy(zero_copy_only=False)
    bad[episode[wrong]] = True
    counts = np.bincount(episode, np.where(wrong, 0, length) + 1, rows.num_rows)
    bad |= counts != rows.column("row_count").fill_null(-1).to_numpy()
    keep = ~bad[episode]
    episode, length, group = episode[keep], length[keep], group[keep]
    flags = [flat[name].fill_null(False).to_numpy(zero_copy_only=False)[keep] for name in LANE_COLUMNS[3:]]
    agent = flat["agents"].filter(pa.array(keep))
    return Lanes(episode, agent, group, length, _offsets(episode, length + 1), np.stack(flags, axis=1), bad)


def _repeated(names: pa.Array, episode: np.ndarray) -> np.ndarray:
    """Return a mask of the agents that appear in their episode before."""
    code = names.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    first = np.zeros(len(code), bool)
    if len(code):
        first[np.unique(np.stack([episode, code]), axis=1, return_index=True)[1]] = True
    return ~first


def _offsets(episode: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the number of rows of earlier lanes of the same episode, for each lane."""
    before = np.cumsum(counts) - counts
    if not len(before):
        return before
    starts = np.flatnonzero(np.concatenate([[True], episode[1:] != episode[:-1]]))
    return before - np.repeat(before[starts], np.diff(np.append(starts, len(before))))
