"""Trees of arrays with a group for each episode, or a tree for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ...store.errors import DatasetError, SpaceMismatchError
from ...store.spaces.codec import slice_batch
from .boundary import check_bytes, reading
from .columns import nested
from .episode_rows import completed, count_differing, is_left, padded, with_last
from .formats import NO_REWARDS, ForeignEpisode, ImportOptions, Part
from .hdf5 import as_flags, card_values, check_lengths, member, members, plain, whole
from .layouts import TreeDataset, TreeLayout, is_below, is_reserved, leaves_of, shown
from .trees import OpenedGroup, is_group, natural

_SINGLE = ("reward", "terminated", "truncated", "done")


class GroupedTree(TreeDataset):
    """A dataset of one tree, with a group for each episode; or with one episode, where `episode` is "".

    Attributes:
        one_episode: whether the tree is one.
        groups: those of the episodes, by name.

    Raises:
        DatasetError: it has no such group, or the first lacks its observations or actions.
    """

    def __init__(self, path: Path, file: Any, options: ImportOptions, layout: TreeLayout) -> None:
        super().__init__(path, file, options, layout)
        self.one_episode = not layout.episode
        with reading(path):
            self.groups = dict(
                sorted(groups_of(file, layout.episode or ""), key=lambda each: natural(each[0]))
            )
            if not self.groups:
                raise DatasetError(f"{path} has no groups {layout.episode}.")
            name, first = next(iter(self.groups.items()))
            place = f"{path}: {name}" if name else str(path)
            self.spaces_of(*(self.part(first, part, place) for part in (layout.observation, layout.action)))
            self.card = self.card_of()
            self.mapping = layout.described(first)
        self.count = len(self.groups)

    def card_of(self) -> dict[str, Any]:
        """Return what the tree states of all its episodes."""
        return {} if self.one_episode else plain(members(self.file.attrs))

    def facts_of(self, name: str, group: Any) -> dict[str, Any]:
        """Return the metadata of an episode beside its arrays."""
        layout = self.layout
        return {
            layout.fact_name(key): plain(value)
            for key, value in members(group.attrs).items()
            if key != layout.counted
        }

    def seed_of(self, name: str) -> int | None:
        """Return the seed of an episode, if the tree states one."""
        return None

    def parts(self) -> Iterator[Part]:
        """Yield a part for each episode."""
        for name in self.groups:
            yield Part((name or self.path.name,), partial(self._load, name))

    def _load(self, name: str) -> ForeignEpisode | None:
        layout, group = self.layout, OpenedGroup(self.groups[name])
        place = f"{self.path}: {name}" if name else str(self.path)
        with reading(place):
            rest = layout.without_role(group.arrays())
            flags = {role: group[path] for role in _SINGLE if (path := layout.there(role, group)) is not None}
            action = self.part(group, layout.action, place)
            observed = self.part(group, layout.observation, place)
            following = layout.there("following", group)
            after = None if following is None else self.part(group, following, place)
        some = [*flags.values(), *leaves_of(action), *leaves_of(observed), *leaves_of(after)]
        self._check_size(place, [*some, *rest.values()])
        total, stands = _rows(place, flags, action, observed, some)
        if not stands and after is None and not is_left(total, self.options, self.losses):
            return None
        self._check_counted(group, total, place)
        layout.check_named(rest, place, group.attrs)
        terminated, truncated = self._ends(flags, total, place)
        extra, metadata = self._others(rest, total, stands, place)
        where = f"{place}: {shown(layout.observation)}"
        episode = ForeignEpisode(
            self.chosen(_whole(observed, place), self.observation_space, where),
            _whole(action, place),
            self._rewards(flags.get("reward"), total, place),
            terminated,
            truncated,
            extra=extra or None,
            seed=self.seed_of(name),
            metadata=metadata | self.facts_of(name, group),
        )
        if stands:
            return episode
        if after is None:
            return completed(episode, self.options, self.losses)
        where = f"{place}: {shown(layout.following or '')}"
        values = self.chosen(_whole(after, place), self.observation_space, where)
        with reading(where):
            count_differing(values, episode.observations, self.losses)
            return with_last(episode, slice_batch(values, total - 1, total))

    def _rewards(self, array: Any, total: int, place: str) -> np.ndarray:
        """Return the rewards; NaN, counted as lost, where there are none."""
        if array is None:
            self.losses.add(NO_REWARDS, total)
            return np.full(total, np.nan)
        where = f"{place}: {self.layout.reward}"
        rewards = whole(array, where)
        if rewards.size != total:
            raise DatasetError(
                f"{where} has shape {rewards.shape}; expected a number for each of {total} steps. "
                "`store.write_episodes` writes episodes with vectors of rewards."
            )
        return rewards.reshape(total)

    def _check_counted(self, group: Any, total: int, place: str) -> None:
        counted = self.layout.counted
        claimed = None if counted is None else member(group.attrs, counted)
        if claimed is not None and int(claimed) != total:
            raise DatasetError(f"{place} has {total} rows; its {counted} is {claimed}.")

    def _check_size(self, place: str, arrays: Sequence[Any]) -> None:
        check_bytes(place, sum(math.prod(array.shape or ()) * array.dtype.itemsize for array in arrays))

    def _ends(self, flags: Mapping[str, Any], total: int, place: str) -> tuple[bool, bool]:
        """Return whether an episode is terminated, and truncated; count flags before its last row."""
        ended = {}
        for role in ("terminated", "truncated", "done"):
            if role in flags:
                path = getattr(self.layout, role)
                values = as_flags(whole(flags[role], f"{place}: {path}"), f"{place}: {path}")
                self.losses.add(f"{path} before the last row", int(values[:-1].sum()))
                ended[role] = bool(values[-1:].any())
        other = ended.get("done", False) and len(ended) == 2
        terminated = ended.get("terminated", other and not ended.get("truncated", False))
        return terminated, ended.get("truncated", other and not terminated)

    def _others(
        self, rest: Mapping[str, Any], total: int, stands: bool, place: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the step columns and the metadata of the arrays without a role; count those left out."""
        layout, extra, facts = self.layout, {}, {}
        names = None if layout.extra is None else {path: name for name, path in layout.extra.items()}
        for path, array in sorted(rest.items(), key=lambda item: item[0]):
            if not array.shape or any(is_below(path, each) for each in layout.metadata.values()):
                facts[layout.fact_name(path)] = array
            elif names is not None and path not in names:
                self.losses.add(f"{path}, which the mapping does not name")
            elif len(array) != total and not (stands and len(array) == total + 1):
                self.losses.add(f"{path}, which has not a row for each step")
            else:
                extra[path if names is None else names[path]] = _values(array, f"{place}: {path}")
        columns = {
            f"{self.own_name}/{path}" if is_reserved(path) else path: array for path, array in extra.items()
        }
        kept, large = card_values(facts)
        for path in large:
            self.losses.add(f"{path}, which is too large for metadata")
        tree = nested(columns, "/")
        return (_level(tree, total + stands) if stands else tree), nested(kept, "/")

    def chosen(self, values: Any, space: Space, place: str) -> Any:
        """Return the observations of the space, which may be fewer than those of the tree.

        Raises:
            SpaceMismatchError: the space has an array where the tree has a group.
            DatasetError: the tree lacks observations of the space.
        """
        if not isinstance(values, Mapping):
            return values
        if not isinstance(space, spaces.Dict):
            raise SpaceMismatchError(
                f"{place} is a group with {', '.join(values)}; its space is {space}. Pass a Dict space with "
                "the names of the group."
            )
        lacking = [name for name in space.spaces if name not in values]
        if lacking:
            raise DatasetError(f"{place} has no {', '.join(lacking)}; it has {', '.join(values)}.")
        prefix = shown(self.layout.observation)
        for name in sorted(set(values) - set(space.spaces)):
            self.losses.add(f"{prefix}/{name}, which the observation space does not have")
        return {
            name: self.chosen(values[name], part, f"{place}/{name}") for name, part in space.spaces.items()
        }


def groups_of(group: Any, pattern: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names of the groups that match a pattern, without its fixed beginning, and the groups."""
    first, _, rest = pattern.partition("/")
    if not first:
        yield path, group
        return
    fixed = first in group
    for name in [first] if fixed else [name for name in group if fnmatchcase(name, first)]:
        inner = group[name]
        if is_group(inner):
            yield from groups_of(inner, rest, path if fixed else f"{path}/{name}".lstrip("/"))


def _rows(
    place: str, flags: Mapping[str, Any], action: Any, observed: Any, some: Sequence[Any]
) -> tuple[int, bool]:
    """Return the transitions of an episode, and whether its observations have one more.

    Raises:
        DatasetError: arrays have other lengths.
    """

    def length(arrays: Sequence[Any]) -> int:
        return check_lengths(place, {_name(array): array for array in arrays})

    total = length([*flags.values(), *leaves_of(action)])
    stands = length(leaves_of(observed)) == total + 1
    if not stands:
        length(some)
    return total, stands


def _name(array: Any) -> str:
    return str(array.name).rpartition("/")[2]


def _whole(tree: Any, place: str) -> Any:
    if isinstance(tree, Mapping):
        return {name: _whole(part, f"{place}/{name}") for name, part in tree.items()}
    return whole(tree, place)


def _values(array: Any, place: str) -> Any:
    """Return rows of numbers as an array; texts and lists as a list."""
    values = whole(array, place)
    return values if values.dtype.kind in "biuf" else plain(values.tolist())


def _level(columns: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return step columns with a row more, without a value, where one lacks it."""
    return {
        name: _level(part, rows)
        if isinstance(part, Mapping)
        else part
        if len(part) == rows
        else (padded({name: part}) or {})[name]
        for name, part in columns.items()
    }
