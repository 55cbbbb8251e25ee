"""Joint rows: all agents of each step of the environment side by side, absent ones masked.

An episode has a row for each of its environment steps, and a column an axis of agents after it. Units and
orders see ordinary episodes. The agents' own rows are read first and then placed by `env_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...store.agents import column_prefix
from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.names import AGENT_MASK
from ...store.schema import ENV_STEP
from ...store.snapshot import Snapshot
from ...store.tables.table_files import Pointers
from ..blocks import Block
from ..columns.column import Column
from ..columns.episode_columns import choose_loaded
from ..columns.selection import EpisodeIndex, Selection, check_chosen, select
from ..columns.step_arrays import ColumnSource, empty_arrays, large_pages
from ..columns.tree import Tree, leaves, map_leaves
from .units import Units


@dataclass(frozen=True)
class JointGroup:
    """The agents of a group, in their order in batches.

    Attributes:
        group: its name.
        prefix: what the keys of its columns begin with; empty if it is the only group of a batch.
        agents: their names.
    """

    group: str
    prefix: str
    agents: tuple[str, ...]


@dataclass(frozen=True)
class JointColumn(Column):
    """A column of a team.

    Attributes:
        team: the agents.
        inner: the column of each agent; None for the mask.
    """

    team: JointGroup
    inner: Column | None

    @staticmethod
    def of(team: JointGroup, name: str, inner: Column | None) -> JointColumn:
        """Return the column with an axis for the team's agents."""
        single = np.zeros(0, bool) if inner is None else inner.template
        for part, leaf in leaves(single, name):
            if None in leaf.shape:
                raise InvalidArgumentError(
                    f"joint=True needs values of one shape, but those of {part!r} differ in length. Load "
                    "them with agent=... or group=..., or name other columns with columns=[...]."
                )
        agents = len(team.agents)
        template = map_leaves(lambda leaf: np.zeros((0, agents, *leaf.shape[1:]), leaf.dtype), single)
        return JointColumn(f"{team.prefix}{name}", template, (), False, team, inner)

    def facts(self, snapshot: Snapshot, pointers: Pointers) -> dict[str, Any]:
        """See `Column`."""
        facts = super() if self.inner is None else self.inner
        joint = {"column": self.name, "joint": [self.team.group, *self.team.agents]}
        return {**facts.facts(snapshot, pointers), **joint}

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """Raise an error: the rows of a joint column are in no block."""
        raise TypeError("A joint column has no values of its own.")


@dataclass(frozen=True)
class JointSource(ColumnSource):
    """Joint columns of some episodes in the files of a store."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a decoded row, and of the agents' rows that it is made from."""
        return 2 * super().row_bytes

    def fill(self, arrays: Mapping[str, Tree], pool: Executor, *, thrifty: bool = False) -> None:
        """See `ColumnSource`.

        Raises:
            InvalidArgumentError: the agents act in turns.
            CorruptStoreError: a file is damaged.
        """
        teams: dict[JointGroup, list[JointColumn]] = {}
        for column in self.columns:
            assert isinstance(column, JointColumn)
            teams.setdefault(column.team, []).append(column)
        for team, columns in teams.items():
            fill = partial(ColumnSource.fill, pool=pool, thrifty=thrifty)
            self._fill_team(team, columns, arrays, fill)

    def _fill_team(
        self,
        team: JointGroup,
        columns: Sequence[JointColumn],
        arrays: Mapping[str, Tree],
        fill: Callable[[ColumnSource, Mapping[str, Tree]], None],
    ) -> None:
        snapshot, whole = self.blocks.snapshot, self.selection
        positions = whole.positions if whole.index.numbers is None else whole.positions[whole.index.numbers]
        parts = select(snapshot, positions, group=team.group)
        inner = (column.inner for column in columns if column.inner is not None)
        steps = _choose(snapshot, team, parts, [ENV_STEP])
        source = ColumnSource(self.blocks, parts, (*steps, *inner))
        agent_columns = empty_arrays(source.columns, parts.index.rows, large_pages)
        fill(source, agent_columns)
        rows = _joint_rows(self.index, parts.index, agent_columns[ENV_STEP])
        slots = np.array([team.agents.index(name) for name in parts.agents], np.int64)
        agents = np.repeat(slots[parts.index.agents], parts.index.lengths + 1)

        def place(into: np.ndarray, values: np.ndarray) -> None:
            into[...] = np.zeros((), into.dtype)
            into[rows, agents] = values

        for column in columns:
            values = parts.index.stepped if column.inner is None else agent_columns[column.inner.name]
            map_leaves(place, arrays[column.name], values)


def _joint_rows(index: EpisodeIndex, parts: EpisodeIndex, env_steps: np.ndarray) -> np.ndarray:
    """Return the joint row of each row of the agents: int64."""
    follows = np.ones(len(env_steps), bool)
    follows[parts.starts[:-1]] = False
    if (np.diff(env_steps, prepend=0)[follows] != 1).any():
        raise InvalidArgumentError(
            "joint=True needs agents that act at the same time, but those of this store act in turns. Load "
            "them with agent=... or group=...; the key env_step orders their turns."
        )
    counts = parts.lengths + 1
    if (env_steps < 0).any() or (env_steps > np.repeat(index.lengths[parts.numbers], counts)).any():
        raise CorruptStoreError("An agent has steps beyond the end of its episode. verify() names it.")
    return np.repeat(index.starts[parts.numbers], counts) + env_steps


def joint_source(source: ColumnSource, teams: Sequence[JointGroup], names: Sequence[str]) -> JointSource:
    """Return the source of joint columns.

    Args:
        source: the whole episodes, as `whole_episodes` gives them.
        teams: as `teams_of` gives them.
        names: of columns, with the prefixes of their teams.

    Raises:
        InvalidArgumentError: there is no such column.
    """
    snapshot, selection = source.blocks.snapshot, source.selection
    columns: list[Column] = []
    for name in names:
        team = next((team for team in teams if name.startswith(team.prefix)), None)
        if team is None:
            prefixes = ", ".join(team.prefix for team in teams)
            raise InvalidArgumentError(
                f"There is no column {name!r} to load: of several groups the columns begin with {prefixes}; "
                f"{teams[0].prefix}{name} is one of them."
            )
        own = name.removeprefix(team.prefix)
        inner = None if own == AGENT_MASK else _choose(snapshot, team, selection, [own])[0]
        columns.append(JointColumn.of(team, own, inner))
    return JointSource(source.blocks, selection, tuple(columns))


def _choose(
    snapshot: Snapshot, team: JointGroup, selection: Selection, names: Sequence[str]
) -> tuple[Column, ...]:
    groups = [group.name for group in snapshot.schema.groups]
    schema = snapshot.schema.parts[groups.index(team.group)]
    return choose_loaded(snapshot, replace(selection, schema=schema, agents=team.agents), names)


def teams_of(snapshot: Snapshot, positions: np.ndarray, group: str | None) -> tuple[JointGroup, ...]:
    """Return the agents of one group or of all: those of the store's manifest, then others by name.

    Raises:
        InvalidArgumentError: the store has a single agent, or no such group.
        CorruptStoreError: the episodes table is damaged.
    """
    groups = snapshot.schema.groups
    if not groups:
        raise InvalidArgumentError("joint=True, but the store has a single agent. Leave it out.")
    names = [each.name for each in groups] if group is None else [group]
    teams = []
    for name in names:
        check_chosen(snapshot.schema, None, name)
        number = [each.name for each in groups].index(name)
        declared = groups[number].agents
        present = select(snapshot, positions, group=name).agents
        agents = (*declared, *(agent for agent in present if agent not in declared))
        teams.append(JointGroup(name, column_prefix(groups, number) if len(names) > 1 else "", agents))
    return tuple(teams)


def joint_keys(teams: Sequence[JointGroup], units: Units) -> list[str]:
    """Return the default keys of joint units: those of the kind of unit, for each team, and the masks."""
    keys = units.default_keys
    own = [key for key in keys if not units.columns([key])]
    of_agents = [*(key for key in keys if key not in own), AGENT_MASK]
    return [*(f"{team.prefix}{key}" for team in teams for key in of_agents), *own]
