"""Column mappings: which columns of a table hold the observations, actions and the rest of an episode."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import pyarrow as pa

from ...errors import DatasetError, InvalidArgumentError
from ...plugin import suggest
from ...plugin.columns import (
    ACTION,
    EXTRA,
    OBSERVATION,
    TERMINATED,
    TRUNCATED,
    check_name,
    escape,
    escape_distinct,
    unescape,
)
from ...readers.exporting.tables import EXTRA_KEY

#: One column; several that make a vector; or columns by the keys of a Dict space.
Columns = str | Sequence[str] | Mapping[str, Any]
#: Columns by name, or a list of columns that keep theirs.
NamedColumns = Mapping[str, str] | Sequence[str]

#: The column with the name of the file of a row, of tables in files; as the `episode` of a mapping, each file
#: is an episode.
FILE = "filename"
#: The names of columns by their role, for tables without a mapping.
OBVIOUS = {
    OBSERVATION: (OBSERVATION, "observations", "obs"),
    "next_observation": ("next_observation", "next_observations", "next_obs"),
    ACTION: (ACTION, "actions"),
    "reward": ("reward", "rewards"),
    TERMINATED: (TERMINATED, "termination", "terminations", "terminals", "terminal"),
    TRUNCATED: (TRUNCATED, "truncation", "truncations", "timeouts", "timeout"),
    "done": ("done", "dones"),
    "episode": ("episode", "episode_id"),
    "step": ("t", "step"),
    "agent": ("agent", "agent_id"),
    "seed": ("seed",),
}
#: Arguments of a `ColumnMapping` that are no columns.
_FLAGS = ("action_leads_to",)
_NEEDED = (OBSERVATION, ACTION, "reward", "episode")
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """The columns of a table that `import_dataset` reads; each argument is the name of a column.

    An observation or action may have one column (a number, a text, a list, an array or a struct), a list of
    number columns that become a vector in that order, or a mapping of the keys of a Dict space to these. A
    name that is no column, `obs`, stands for the columns `obs_0`, `obs_1`, ... or `obs.x`, `obs.y`, ...

    Attributes:
        observation: the observation before the action of a row.
        action: the action.
        episode: the column, or columns, whose values name the episode of a row; neither NULL nor NaN.
            `el.FILE`: the column `filename`, which tables in files have for it; each file is an episode.
        reward: the reward; a list, or several columns, for several objectives. None: rewards are NaN.
        terminated, truncated: the flags: booleans, or 0 and 1.
        done: set where an episode ends for either reason. With one of the flags it gives the other; alone it
            does not tell why an episode ended, so that is "cut".
        step: the number or time by which the rows of an episode are ordered; whole numbers must go up by
            one. None: they stand in their order.
        agent: names the agent of a row; the rows of each agent become an episode of their own, with the
            metadata `agent`.
        next_observation: the observation after the action, as `observation`. Only that of the last
            transition of an episode is read.
        info: columns that came with the observation of their row: keys to columns, or a list of columns.
        policy: values of the policy at the observation of their row, in the same way.
        extra: columns that become step columns of your own: names to columns, or a list of columns.
        metadata: columns of the episode, in the same way; the first row of an episode counts.
        seed: the seed of the episode: the first row counts.
        action_leads_to: True where the action, reward and flags of a row led to its observation, as in time
            steps of dm_env. Those of the first row of an episode mean nothing, and its last row has the last
            observation; all other columns belong to the observation of their row.
    """

    observation: Columns
    action: Columns
    episode: str | Sequence[str]
    reward: Columns | None = None
    terminated: str | None = None
    truncated: str | None = None
    done: str | None = None
    step: str | None = None
    agent: str | None = None
    next_observation: Columns | None = None
    info: NamedColumns = ()
    policy: NamedColumns = ()
    extra: NamedColumns = ()
    metadata: NamedColumns = ()
    seed: str | None = None
    action_leads_to: bool = False


#: The arguments of a `ColumnMapping` that must be there, and the others.
NEEDED = tuple(each.name for each in fields(ColumnMapping) if each.default is MISSING)
OPTIONAL = tuple(each.name for each in fields(ColumnMapping) if each.default is not MISSING)


@dataclass(frozen=True)
class Leaf:
    """A column of ours, and where its values come from.

    Attributes:
        name: the name in `steps`.
        columns: the column, or the columns that make a vector.
        path: the fields of a struct column that lead to the values.
        vector: whether the columns make a vector.
    """

    name: str
    columns: tuple[str, ...]
    path: tuple[str, ...] = ()
    vector: bool = False

    def __str__(self) -> str:
        if self.vector:
            return ", ".join(self.columns)
        return ".".join((*self.columns, *self.path))


Tree = Leaf | Mapping[str, "Tree"]


@dataclass(frozen=True)
class ResolvedMapping:
    """A mapping whose columns are those of a table.

    Attributes:
        observation, action, reward, following: trees of leaves; following is the next observation.
        terminated, truncated, done, step, seed: columns.
        episode: the columns that name an episode, that of the agent included.
        agent: its column.
        passed: columns of `steps` that come over as they are, to columns of the table.
        metadata: keys to columns.
        action_leads_to: whether the action, reward and flags of a row led to its observation.
    """

    observation: Tree
    action: Tree
    reward: Tree | None
    following: Tree | None
    terminated: str | None
    truncated: str | None
    done: str | None
    step: str | None
    seed: str | None
    episode: tuple[str, ...]
    agent: str | None
    passed: Mapping[str, str]
    metadata: Mapping[str, str]
    action_leads_to: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns of the table that are read."""
        trees = (self.observation, self.action, self.reward, self.following)
        columns = [
            column for tree in trees if tree is not None for leaf in leaves(tree) for column in leaf.columns
        ]
        single = (self.terminated, self.truncated, self.done, self.step, self.seed)
        columns += [*self.episode, *(column for column in single if column is not None)]
        return list(dict.fromkeys([*columns, *self.passed.values(), *self.metadata.values()]))

    @property
    def led_columns(self) -> list[str]:
        """The columns whose values belong to the step that led to a row, where `action_leads_to`."""
        trees = [tree for tree in (self.action, self.reward) if tree is not None]
        columns = [column for tree in trees for leaf in leaves(tree) for column in leaf.columns]
        flags = (self.terminated, self.truncated, self.done)
        return list(dict.fromkeys([*columns, *(name for name in flags if name is not None)]))

    def described(self) -> dict[str, str]:
        """Return columns of ours and where they come from, for the report."""
        trees = (self.observation, self.action, self.reward, self.following)
        described = {leaf.name: str(leaf) for tree in trees if tree is not None for leaf in leaves(tree)}
        for name in (TERMINATED, TRUNCATED, "done", "step", "agent", "seed"):
            if (column := getattr(self, name)) is not None:
                described[name] = column
        if self.action_leads_to:
            led = (ACTION, "reward", TERMINATED, TRUNCATED, "done")
            for name in described:
                if name.partition(".")[0] in led:
                    described[name] += " of the next row"
        described["episode"] = ", ".join(self.episode)
        return (
            described
            | dict(self.passed)
            | {f"metadata.{key}": column for key, column in self.metadata.items()}
        )

    @classmethod
    def of(cls, mapping: Any, schema: pa.Schema, place: str, *, many: bool = False) -> ResolvedMapping:
        """Find the columns of a mapping in a table.

        Args:
            mapping: a `ColumnMapping`; None for the default.
            place: the table, for errors.
            many: as for `default_mapping`.

        Raises:
            InvalidArgumentError: `mapping` is something else, or one of its arguments is.
            DatasetError: a column is not there, or there is no default mapping for these columns.
        """
        if mapping is None:
            mapping, lacking = default_mapping(schema.names, many=many)
            if mapping is None:
                raise DatasetError(
                    f"{place} has no column for {', '.join(lacking)}; it has {_listed(schema.names)}. "
                    "Name them with mapping=el.ColumnMapping(observation=..., action=..., ...)."
                )
            # What an export to Parquet says of its columns.
            own = json.loads((schema.metadata or {}).get(EXTRA_KEY, b"[]"))
            mapping = replace(mapping, extra={name: name for name in own})
        mapping = column_mapping(mapping)
        find = _Finder(schema, place)
        episode = [mapping.episode] if isinstance(mapping.episode, str) else [*mapping.episode]
        episode += [mapping.agent] if mapping.agent is not None else []
        extra = find.named("extra", mapping.extra)
        for name in extra.keys() - {EXTRA.json_column}:
            check_name(name, {})
        passed = find.named("info", mapping.info, "info.") | find.named("policy", mapping.policy, "policy.")
        return ResolvedMapping(
            observation=find.tree(mapping.observation, OBSERVATION),
            action=find.tree(mapping.action, ACTION),
            reward=None if mapping.reward is None else find.tree(mapping.reward, "reward"),
            following=find.following(mapping),
            **{
                name: find.single(name, getattr(mapping, name))
                for name in (TERMINATED, TRUNCATED, "done", "step", "seed")
            },
            episode=tuple(find.column("episode", name) for name in episode),
            agent=find.single("agent", mapping.agent),
            passed=passed | extra,
            metadata=find.named("metadata", mapping.metadata),
            action_leads_to=mapping.action_leads_to,
        )

    @staticmethod
    def columns_of(tree: Tree | None) -> list[str]:
        """Return the columns of the leaves of a tree."""
        return [] if tree is None else [column for leaf in leaves(tree) for column in leaf.columns]


def is_image(kind: pa.DataType) -> bool:
    """Return whether a column has images as `datasets` of Hugging Face keep them."""
    return (
        pa.types.is_struct(kind)
        and {each.name for each in kind} == {"bytes", "path"}
        and kind.field("bytes").type in (pa.binary(), pa.large_binary(), pa.binary_view())
    )


def leaves(tree: Tree) -> Iterator[Leaf]:
    """Yield the leaves of a tree in order."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        for part in tree.values():
            yield from leaves(part)


def default_mapping(columns: Sequence[str], *, many: bool = False) -> tuple[ColumnMapping | None, list[str]]:
    """Return the mapping of a table with the columns of `steps`, or obvious names.

    Args:
        many: whether it has several files; each is an episode then if no column names these.

    Returns:
        The mapping, or None; and what is lacking, each with the names that would do.
    """
    roles: dict[str, Any] = {}
    for role, names in OBVIOUS.items():
        chosen = next((name for name in names if _family(name, columns) is not None), None)
        if chosen is not None:
            roles[role] = chosen
    if many and FILE in columns:
        roles.setdefault("episode", FILE)
    lacking = [f"{role} ({' or '.join(OBVIOUS[role])})" for role in _NEEDED if role not in roles]
    if lacking:
        return None, lacking
    if TERMINATED in roles and TRUNCATED in roles:
        roles.pop("done", None)
    groups = {
        group: {name.partition(".")[2]: name for name in columns if name.startswith(f"{group}.")}
        for group in ("info", "metadata", "policy")
    }
    roles.update(groups)
    return ColumnMapping(**roles), []


def column_mapping(mapping: Any) -> ColumnMapping:
    """Return a mapping, or a dict of its arguments, as one.

    Raises:
        InvalidArgumentError: it is something else, or lacks what must be there.
    """
    if isinstance(mapping, Mapping):
        mapping = _from_mapping(mapping)
    if not isinstance(mapping, ColumnMapping):
        raise InvalidArgumentError(
            f"mapping is {type(mapping).__name__}; expected an el.ColumnMapping, or a dict of its arguments."
        )
    for name in NEEDED:
        if getattr(mapping, name) is None:
            raise InvalidArgumentError(f"ColumnMapping.{name} is None; expected columns.")
    if not isinstance(mapping.action_leads_to, bool):
        raise InvalidArgumentError(
            f"ColumnMapping.action_leads_to is {mapping.action_leads_to!r}; expected True or False."
        )
    if mapping.action_leads_to and mapping.next_observation is not None:
        raise InvalidArgumentError(
            "ColumnMapping has action_leads_to=True and next_observation. Rows whose action led to their "
            "observation have the next observation in the next row: leave next_observation out."
        )
    return mapping


def _from_mapping(given: Mapping[str, Any]) -> ColumnMapping:
    """Return the `ColumnMapping` of a dict of its arguments.

    Raises:
        InvalidArgumentError: a key is unknown, or one that is needed is missing.
    """
    known = [*NEEDED, *OPTIONAL]
    for key in given:
        if key not in known:
            raise InvalidArgumentError(
                f"mapping (--map) has the unknown key {key!r}.{suggest(str(key), known)} "
                f"Keys: {', '.join(known)}."
            )
    lacking = [name for name in NEEDED if name not in given]
    if lacking:
        raise InvalidArgumentError(
            f"mapping (--map) lacks {' and '.join(lacking)}; it has {', '.join(given) or 'no keys'}. "
            f"It must name the columns of {', '.join(NEEDED)}."
        )
    # On the command line it is a text.
    texts = {"true": True, "false": False}
    flags = {name: texts.get(str(given[name]).lower(), given[name]) for name in _FLAGS if name in given}
    return ColumnMapping(**{**given, **flags})


class _Finder:
    def __init__(self, schema: pa.Schema, place: str) -> None:
        self._schema = schema
        self._names = schema.names
        self._place = place

    def column(self, role: str, name: Any) -> str:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"ColumnMapping.{role} has {name!r}; expected the name of a column.")
        if self._names.count(name) == 1:
            return name
        if name in self._names:
            raise DatasetError(f"{self._place} has {self._names.count(name)} columns {name!r}. Rename them.")
        raise DatasetError(
            f"{self._place} has no column {name!r}, which the mapping names for {role}."
            f"{suggest(name, self._names)} Columns: {_listed(self._names)}."
        )

    def single(self, role: str, name: str | None) -> str | None:
        return None if name is None else self.column(role, name)

    def named(self, role: str, columns: NamedColumns, prefix: str = "") -> dict[str, str]:
        if isinstance(columns, str):
            columns = [columns]
        if not isinstance(columns, Mapping):
            columns = {escape(name): name for name in columns}
        return {f"{prefix}{key}": self.column(role, name) for key, name in columns.items()}

    def following(self, mapping: ColumnMapping) -> Tree | None:
        if mapping.next_observation is None:
            return None
        tree = self.tree(mapping.next_observation, "next_observation")
        now = self.tree(mapping.observation, OBSERVATION)
        expected = {f"next_{leaf.name}" for leaf in leaves(now)}
        given = {leaf.name for leaf in leaves(tree)}
        if expected != given:
            raise DatasetError(
                f"{self._place}: next_observation gives {sorted(given)}; expected {sorted(expected)}, as "
                "the observation has."
            )
        return tree

    def tree(self, columns: Any, name: str) -> Tree:
        if isinstance(columns, str):
            family = _family(columns, self._names)
            if family is None or family == columns:
                return self._column_tree(self.column(name, columns), (), name)
            columns = family
        if isinstance(columns, Mapping):
            segments = escape_distinct(columns)
            return {key: self.tree(part, f"{name}.{segments[key]}") for key, part in columns.items()}
        if not isinstance(columns, Sequence) or not columns:
            raise InvalidArgumentError(
                f"ColumnMapping.{name} is {columns!r}; expected a column, a list of columns, or a mapping of "
                "keys to these."
            )
        return Leaf(name, tuple(self.column(name, column) for column in columns), vector=True)

    def _column_tree(self, column: str, path: tuple[str, ...], name: str) -> Tree:
        kind = self._schema.field(column).type
        for key in path:
            kind = kind.field(key).type
        if not pa.types.is_struct(kind) or is_image(kind):
            return Leaf(name, (column,), path)
        segments = escape_distinct([each.name for each in kind])
        return {
            key: self._column_tree(column, (*path, key), f"{name}.{segment}")
            for key, segment in segments.items()
        }


def _family(name: str, columns: Sequence[str]) -> Columns | None:
    """Return the columns that a name means: the column; `name_0`, `name_1`, ...; or `name.x`, `name.y` by
    key.
    """
    if name in columns:
        return name
    numbered = re.compile(re.escape(name) + r"_(\d+)")
    numbers = sorted(int(match[1]) for column in columns if (match := numbered.fullmatch(column)))
    if numbers and numbers == list(range(len(numbers))):
        return [f"{name}_{number}" for number in numbers]
    parts: dict[str, Any] = {}
    for column in columns:
        if column.startswith(f"{name}."):
            segment = re.sub(r"_\d+$", "", rest) if "." not in (rest := column[len(name) + 1 :]) else rest
            segment = segment.partition(".")[0]
            part = f"{name}.{segment}"
            chosen = part if _family(part, columns) is not None else column
            parts.setdefault(unescape(chosen[len(name) + 1 :]), chosen)
    return parts or None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
