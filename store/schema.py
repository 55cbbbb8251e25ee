"""The schemas of the three tables and of the journal, and `StoreHandle`: a store with its schemas.

A *journal row* is an arrival: what one `reset` or one `step` brought. Row 0 of an episode holds the first
observation; the row of step k holds the action, reward and flags of transition k and the observation that
came back. It is complete the moment `step` returns, so every row that reaches the disk is whole. A *steps
row* pairs observation t with the action taken there; sealing shifts the action side by one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import gymnasium
import numpy as np
import pyarrow as pa

from .agents import AgentGroup, GroupedCodec, column_prefix
from .dynamic import logical_types as kinds
from .dynamic.column_groups import POLICY
from .errors import CorruptStoreError, SpaceMismatchError
from .frames import ImageShape, Video, VideoColumn
from .layout import Layout
from .manifest import Manifest
from .names import ACTION, AGENT_ID, ENV_STEP, FLAGS, OBSERVATION, REWARD, check_name
from .spaces import SpaceCodec
from .spaces.arrow import STORED_TYPES, inner_type
from .spaces.coerce import Cast

TIMESTAMP = pa.timestamp("us", "UTC")

#: The arrival of a journal row: the first observation, a step, or values logged after the last step.
RESET_ROW, STEP_ROW, LATE_ROW = 0, 1, 2

JOURNAL_NUMBER = pa.field("_number", pa.int64())
JOURNAL_KIND = pa.field("_kind", pa.int16())
#: Of a multi-agent store: counts the agents of an episode in the order in which they appeared.
JOURNAL_AGENT = pa.field("_agent", pa.int32())


@dataclass(frozen=True)
class StepSchema:
    """The columns of a step that the store's spaces decide.

    Attributes:
        observation_space, action_space: the store's spaces.
        reward_shape: () for a scalar reward, (k,) for a vector of k objectives.
        groups: the groups of agents of a multi-agent store; else empty.
        prefix: what the names of observation and action columns begin with.
        cast: which conversions of dtype values to write may need; see `SessionOptions`.
        annotated: the names of annotations of steps.
        encodings: how frames are encoded, by column.
    """

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_shape: tuple[int, ...] = field(default=())
    groups: tuple[AgentGroup, ...] = field(default=())
    prefix: str = field(default="")
    cast: Cast = field(default="no")
    annotated: frozenset[str] = field(default=frozenset(), compare=False)
    encodings: Mapping[str, Video] = field(default_factory=dict)

    @staticmethod
    def of(manifest: Manifest, cast: Cast = "no", annotated: frozenset[str] = frozenset()) -> StepSchema:
        """Return the schema that a store's identity file describes."""
        spaces = (manifest.observation_space, manifest.action_space)
        return StepSchema(
            *spaces,
            manifest.reward_shape,
            manifest.groups,
            cast=cast,
            annotated=annotated,
            encodings=manifest.encodings,
        )

    @cached_property
    def video(self) -> tuple[VideoColumn, ...]:
        """The columns of frames that are encoded."""
        leaves = {leaf.column: leaf for part in self.parts for leaf in part.observation.leaves}
        return tuple(
            VideoColumn(column, ImageShape(leaves[column].shape), encoding)
            for column, encoding in self.encodings.items()
        )

    def check_extra(self, extra: Mapping[str, Any]) -> None:
        """Refuse step columns of a user's own whose name means something else already.

        Raises:
            SpaceMismatchError: it is no mapping.
            InvalidArgumentError: a key is no text, or its name is taken; the message has a free one.
        """
        if not isinstance(extra, Mapping):
            raise SpaceMismatchError(
                f"extra is {type(extra).__name__}; expected a mapping from column names."
            )
        # The same few names come with every step.
        if not self._free.issuperset(extra):
            for name in extra:
                check_name(
                    name, self.taken | dict.fromkeys(map(str.casefold, self.annotated), "an annotation")
                )
            self._free.update(extra)

    @cached_property
    def _free(self) -> set[str]:
        """The names of user's own columns that were checked."""
        return set()

    @cached_property
    def taken(self) -> dict[str, str]:
        """Names that the store uses already, columns and groups, by their lower case."""
        groups = {group.name.casefold(): "a group of agents" for group in self.groups}
        return groups | {name.casefold(): "a column of steps" for name in self.steps.names}

    @cached_property
    def parts(self) -> tuple[StepSchema, ...]:
        """The columns of each group of agents as those of a single agent; of other stores, this schema."""
        if not self.groups:
            return (self,)
        return tuple(
            StepSchema(
                group.observation_space,
                group.action_space,
                self.reward_shape,
                prefix=column_prefix(self.groups, index),
                cast=self.cast,
            )
            for index, group in enumerate(self.groups)
        )

    @cached_property
    def observation(self) -> SpaceCodec:
        """Columns of the observation."""
        if len(self.groups) > 1:
            codecs = [part.observation for part in self.parts]
            return GroupedCodec(self.observation_space, OBSERVATION, codecs)
        return SpaceCodec(self.observation_space, f"{self.prefix}{OBSERVATION}", self.cast)

    @cached_property
    def action(self) -> SpaceCodec:
        """Columns of the action."""
        if len(self.groups) > 1:
            return GroupedCodec(self.action_space, ACTION, [part.action for part in self.parts])
        return SpaceCodec(self.action_space, f"{self.prefix}{ACTION}", self.cast)

    @cached_property
    def reward(self) -> SpaceCodec:
        """The reward's column: double, or a list of doubles for several objectives."""
        space = gymnasium.spaces.Box(-np.inf, np.inf, self.reward_shape, np.float64)
        codec = SpaceCodec(space, REWARD, self.cast)
        (leaf,) = codec.leaves
        leaf.coerce = replace(leaf.coerce, one_item=True)
        return codec

    @cached_property
    def flag_fields(self) -> tuple[pa.Field, ...]:
        """`terminated` and `truncated`, NULL on the last row of an episode."""
        return tuple(pa.field(name, pa.bool_()) for name in FLAGS)

    @cached_property
    def outcome_fields(self) -> tuple[pa.Field, ...]:
        """Action, reward and flags: the columns that belong to a transition."""
        return (*self.action.fields, *self.reward.fields, *self.flag_fields)

    @cached_property
    def journal(self) -> pa.Schema:
        """A journal row without dynamic columns."""
        agent = [JOURNAL_AGENT, pa.field(ENV_STEP, pa.int64())] if self.groups else []
        return pa.schema(
            [JOURNAL_NUMBER, JOURNAL_KIND, *agent, *self.observation.fields, *self.outcome_fields]
        )

    @cached_property
    def journal_row_bytes(self) -> int:
        """About how many bytes a journal row takes, without dynamic columns."""
        return self.observation.row_bytes + self.action.row_bytes + 32

    @cached_property
    def steps(self) -> pa.Schema:
        """The steps table without dynamic columns."""
        columns = [*self.observation.fields, *self.outcome_fields]
        keys = [pa.field(name, kind) for name, kind in self.step_keys]
        step = [pa.field(ENV_STEP, pa.int64())] if self.groups else []
        return pa.schema([*keys, *step, *columns])

    @property
    def step_keys(self) -> tuple[tuple[str, pa.DataType], ...]:
        """The columns that name a row of steps: the episode, the agent where there are many, and t."""
        agent = ((AGENT_ID, pa.string()),) if self.groups else ()
        return (("episode_id", pa.string()), *agent, ("t", pa.int64()))

    @property
    def runs(self) -> pa.Schema:
        """The runs table without dynamic columns."""
        return RUNS_SCHEMA

    @cached_property
    def episodes(self) -> pa.Schema:
        """The episodes table without dynamic columns."""
        returned = pa.list_(pa.float64()) if self.reward_shape else pa.float64()
        columns = [(name, returned if name == "episode_return" else kind) for name, kind in _EPISODES]
        if self.groups:
            columns += _AGENTS
            columns.append(("agent_returns", pa.list_(returned)))
        return pa.schema(columns)

    def is_outcome(self, column: str) -> bool:
        """Return whether a steps column belongs to the transition (and not to the observation) of its row."""
        return column in self._outcome_names or column.startswith(POLICY.prefix)

    @cached_property
    def _outcome_names(self) -> frozenset[str]:
        return frozenset(column.name for column in self.outcome_fields)


_EPISODES: tuple[tuple[str, pa.DataType], ...] = (
    ("episode_id", pa.string()),
    ("run_id", pa.string()),
    ("number", pa.int64()),
    ("env_index", pa.int64()),
    ("started_at", TIMESTAMP),
    ("ended_at", TIMESTAMP),
    ("length", pa.int64()),
    ("episode_return", pa.float64()),
    ("terminated", pa.bool_()),
    ("truncated", pa.bool_()),
    ("end_reason", pa.string()),
    ("seed", pa.int64()),
    ("wide_seed", pa.string()),
    ("options", pa.string()),
    ("segment", pa.string()),
    ("row_start", pa.int64()),
    ("row_count", pa.int64()),
)

#: Of a multi-agent store: one entry per agent in the order in which they appeared.
_AGENTS: tuple[tuple[str, pa.DataType], ...] = (
    ("agents", pa.list_(pa.string())),
    ("agent_groups", pa.list_(pa.string())),
    ("agent_lengths", pa.list_(pa.int64())),
    ("agent_terminations", pa.list_(pa.bool_())),
    ("agent_truncations", pa.list_(pa.bool_())),
)

RUNS_SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("name", pa.string()),
        ("started_at", TIMESTAMP),
        ("ended_at", TIMESTAMP),
        ("env_spec", pa.string()),
        ("versions", pa.string()),
    ]
)

#: A column that `episodes` gets with the first episode whose source lacked its last observation: `MISSING`
#: there, NULL for every other episode. In row T of such an episode the observation is NULL.
LAST_OBSERVATION = pa.field("last_observation", pa.string())
MISSING = "missing"

#: A column that `runs` gets with the first run that has a bundle; stores of earlier writers lack it.
ENV_BUNDLE = pa.field("env_bundle", pa.string())


def check_stored_type(table: object, column: pa.Field) -> None:
    """Refuse a column of a type that no store has, such as a date.

    Raises:
        CorruptStoreError: it has one.
    """
    if inner_type(column.type) not in STORED_TYPES:
        expected = ", ".join(map(str, STORED_TYPES))
        raise CorruptStoreError(
            f"The table {table} has {column.type} as its column {column.name!r}, which no store has. "
            f"Its log is damaged, or another program wrote it. Expected {expected}, or lists of them: keep "
            "other values as an annotation of such a type."
        )


#: Schemas that `checked_schema` has compared with a standard, by identity.
_checked: dict[int, tuple[pa.Schema, pa.Schema]] = {}
_MOST_CHECKED = 256


def checked_schema(table: object, schema: pa.Schema, standard: pa.Schema) -> pa.Schema:
    """Return the columns of a table.

    Args:
        table: named in errors.
        schema: the columns that its log has.
        standard: those that it must have.

    Raises:
        CorruptStoreError: a standard column is missing or has another type; a column has a type that no store
            has; a kind does not fit its type.
    """
    # Stores with the same columns share the object of them; a lake has thousands.
    done = _checked.get(id(schema))
    if done is not None and done[0] is schema and done[1].equals(standard, check_metadata=True):
        return schema
    known = {column.name: column.type for column in schema}
    for column in standard:
        if known.get(column.name) != column.type:
            raise CorruptStoreError(
                f"The table {table} has {known.get(column.name, 'nothing')} as its column "
                f"{column.name!r}; expected {column.type}. Its log is damaged."
            )
    for column in schema:
        check_stored_type(table, column)
        kind = kinds.field_kind(column)
        if kind is not None and kinds.physical_type(kind) != column.type:
            raise CorruptStoreError(
                f"The column {column.name!r} of {table} has the type {column.type}, but its kind "
                f"{kind!r} has {kinds.physical_type(kind)}. The table's log is damaged."
            )
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    _checked[id(schema)] = schema, standard
    return schema


@dataclass(frozen=True)
class StoreHandle:
    """The layout and the identity of a store.

    Attributes:
        cast: which conversions of dtype values to write may need; see `SessionOptions`.
        annotated: the names of annotations of steps, which nothing recorded may have; for writers.
    """

    layout: Layout
    manifest: Manifest
    cast: Cast = "no"
    annotated: frozenset[str] = frozenset()

    @cached_property
    def schema(self) -> StepSchema:
        """The columns of steps that follow from the store's spaces."""
        return StepSchema.of(self.manifest, self.cast, self.annotated)


class OpenStore(Protocol):
    """Anything with the handle of an open store, such as `episodelake.EpisodeStore`."""

    @property
    def handle(self) -> StoreHandle:
        """The store behind it."""
        ...
