"""Layouts of trees of arrays: which path holds what, in a group for each episode or in flat rows.

A format states its `TreeLayout`, which `GroupedTree` or `FlatTree` reads. Rewards that a tree lacks are NaN.
What has one row for each step, and no role, becomes a step column; other arrays are counted as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...store.errors import DatasetError
from ...store.names import RESERVED
from .flat import action_space_of, tree_leaves
from .formats import ForeignDataset, ImportOptions
from .hdf5 import space_of
from .trees import part_of

#: The path of an array or a group; of several arrays, joined into vectors; or these by the key of a part.
Paths = str | Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TreeLayout:
    """The paths of a tree by their role; those of an episode are relative to its group.

    A path of `reward`, the flags and `following` may be missing in a tree, unless all are `needed`.

    Attributes:
        episode: a pattern of the groups, `data/demo_*`, or "" where the tree is one episode; for flat rows
            the path of the ends of the episodes, or of the number of the episode of each row; None if only
            flags end them.
        observation, action, following: following is the next observation.
        reward, terminated, truncated, done: `done` is set where an episode ends for either reason; beside one
            of the two flags it gives the other, alone it leaves the episode cut.
        last: a flag of flat rows that hold the last observation of an episode.
        info: a group of infos.
        metadata: names to the arrays, groups of arrays and attributes that are facts of the episode.
        counted: an attribute with the number of steps.
        unused: arrays that other values repeat.
        extra: names to the arrays that become step columns; None for all that have no role.
        needed: whether every path must be there, as those that a caller names.
        swapped: whether encoded images have blue for red.
        hint: what to do where a tree has no observations or actions.
    """

    observation: Paths
    action: Paths
    episode: str | None = None
    following: Paths | None = None
    reward: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    done: str | None = None
    last: str | None = None
    info: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    counted: str | None = None
    unused: tuple[str, ...] = ()
    extra: Mapping[str, str] | None = None
    needed: bool = False
    swapped: bool = False
    hint: str = ""

    def described(self, tree: Any) -> dict[str, str]:
        """Return columns of ours and where they come from in a tree, for the report."""
        names = ("observation", "action", "reward", "terminated", "truncated", "done", "info", "following")
        given = {name: part for name in names if (part := self.there(name, tree)) is not None}
        return {"reward": "NaN"} | {
            "last observation" if name == "following" else name: shown(part) for name, part in given.items()
        }

    def there(self, role: str, tree: Any) -> Any:
        """Return the part of a role, or None if the tree has not all of it.

        Raises:
            DatasetError: it is missing, and needed.
        """
        part = getattr(self, role)
        lacking = [] if part is None else [path for path in paths_of(part) if path not in tree]
        if lacking and self.needed:
            raise DatasetError(
                f"There is no {', '.join(lacking)}, which the mapping names for {role}; there is "
                f"{', '.join(list(tree)[:20]) or 'nothing'}."
            )
        return None if lacking else part

    def check_named(self, paths: Mapping[str, Any], place: str, attributes: Iterable[str] = ()) -> None:
        """Refuse step columns and facts that a tree lacks.

        Args:
            paths: the arrays that have no role.
            attributes: those of the episode, which are metadata also without a name.

        Raises:
            DatasetError: one of them is missing, and needed.
        """
        if not self.needed:
            return
        stated = {*attributes}
        for name, named in self.metadata.items():
            if name != named and (name in stated or name in paths):
                raise DatasetError(
                    f"{place} has a {name!r} of its own; the mapping gives its {named} that name."
                )
        facts = (each for each in self.metadata.values() if each not in stated)
        for named in (*(self.extra or {}).values(), *facts):
            if not any(is_below(path, named) for path in paths):
                others = f", and the attributes {', '.join(sorted(stated))}" if stated else ""
                raise DatasetError(
                    f"{place} has no {named}, which the mapping names; it has {', '.join(paths)}{others}."
                )

    def fact_name(self, path: str) -> str:
        """Return the name of an array or attribute as metadata."""
        for name, named in self.metadata.items():
            if is_below(path, named):
                return name + path[len(named) :]
        return path

    def without_role(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays by path that have no role, and are in no group that has one."""
        roles = (self.observation, self.action, self.following, self.reward, self.terminated)
        roles += (self.truncated, self.done, self.last, self.info, self.episode, self.unused)
        taken = [each for role in roles if role for each in paths_of(role)]
        return {
            path: array for path, array in arrays.items() if not any(is_below(path, each) for each in taken)
        }


def paths_of(part: Paths) -> Iterator[str]:
    """Yield the paths of a part of a layout."""
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, Mapping) else part:
            yield from paths_of(each)


def shown(part: Paths) -> str:
    """Return the paths of a part, for messages."""
    return ", ".join(paths_of(part))


def is_below(path: str, group: str) -> bool:
    """Return whether a path is another, or in that group."""
    return path == group or path.startswith(f"{group}/")


class TreeDataset(ForeignDataset):
    """An open tree.

    Attributes:
        path: of the file or folder.
        file: the tree.
        layout: of it.
        own_name: of the format, before step columns whose names mean something else in a store.
    """

    own_name = "source"

    def __init__(self, path: Path, file: Any, options: ImportOptions, layout: TreeLayout) -> None:
        super().__init__()
        self.path, self.file, self.layout, self.options = path, file, layout, options

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def spaces_of(self, observations: Any, actions: Any) -> None:
        """Take the spaces of the options, or of arrays."""
        options = self.options
        self.observation_space = options.observation_space or space_of(observations, "observation_space")
        self.action_space = options.action_space or action_space_of(actions)

    def part(self, tree: Any, part: Paths, place: str) -> Any:
        """Return the array or the nested dict of arrays of a part.

        Raises:
            DatasetError: there is none.
        """
        try:
            arrays = part_of(tree, part, place, swapped=self.layout.swapped)
            if arrays == {}:
                raise DatasetError(f"{place}: {shown(part)} has no arrays.")
            return arrays
        except DatasetError as error:
            raise DatasetError(f"{error} {self.layout.hint}".rstrip()) from error


def leaves_of(tree: Any) -> list[Any]:
    """Return the arrays of nested dicts, or the only one."""
    if tree is None:
        return []
    return list(tree_leaves(tree).values()) if isinstance(tree, Mapping) else [tree]


def is_reserved(path: str) -> bool:
    """Return whether a step column of this name would mean something else in a store."""
    first = path.partition("/")[0]
    return first.casefold() in RESERVED or first.startswith("_")
