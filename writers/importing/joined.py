"""Several files that are one dataset: each has a format of its own, and episodes of the same spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from gymnasium import Space, spaces

from ...store.common.arguments import one_of
from ...store.dynamic.column_groups import METADATA
from ...store.errors import DatasetError
from .boundary import Files, closed_on_error
from .columns import discrete_space
from .formats import ForeignDataset, ForeignEpisode, ForeignTable, Format, ImportOptions, Match, Part
from .trees import KINDS, looked_into_tree, names_of, open_tree, trees_of

_Open = Callable[[Path, ImportOptions], ForeignDataset]


class JoinedFiles(ForeignDataset):
    """The episodes of several files, one open at a time.

    The key of an episode begins with the path of its file below `base`. What all files state goes to the
    card, and the rest to the metadata of the episodes.

    Raises:
        DatasetError: a file cannot be opened, or its spaces differ from those of the others.
    """

    def __init__(self, paths: list[Path], base: Path, open_one: _Open, options: ImportOptions) -> None:
        super().__init__()
        self._paths, self._base, self._open, self._options = paths, base, open_one, options
        self._opened: ForeignDataset | None = None
        self._cards: dict[Path, dict[str, Any]] = {}
        counts: list[int | None] = []
        for path in paths:
            with closing(open_one(path, options)) as dataset:
                self._cards[path] = dataset.card
                counts.append(dataset.count)
                self._join(dataset, path)
        self.count = None if None in counts else sum(count or 0 for count in counts)
        first = self._cards[paths[0]]
        same = [key for key, value in first.items() if all(c.get(key) == value for c in self._cards.values())]
        self.card = {key: first[key] for key in same}

    def _join(self, dataset: ForeignDataset, path: Path) -> None:
        if path == self._paths[0]:
            self.observation_space, self.action_space = dataset.observation_space, dataset.action_space
            self.reward_shape, self.mapping = dataset.reward_shape, dataset.mapping
            return
        if self.reward_shape != dataset.reward_shape:
            raise DatasetError(f"{path} has rewards of another shape than {self._paths[0]}.")
        place = f"{self._paths[0]} and {path}"
        self.observation_space = joined_space(self.observation_space, dataset.observation_space, place)
        self.action_space = joined_space(self.action_space, dataset.action_space, place)

    def parts(self) -> Iterator[Part]:
        """Yield the parts of each file."""
        for path in self._paths:
            self.close()
            dataset = self._opened = self._open(path, self._options)
            dataset.observation_space, dataset.action_space = self.observation_space, self.action_space
            self.losses.merge(dataset.losses)
            dataset.losses = self.losses
            own = {key: value for key, value in dataset.card.items() if key not in self.card}
            name = path.relative_to(self._base).as_posix()
            one = getattr(dataset, "one_episode", False)
            for part in dataset.parts():
                yield self._named(part, name, own, one=one)

    def _named(self, part: Part, name: str, own: Mapping[str, Any], *, one: bool) -> Part:
        keys = (name,) if one else tuple(f"{name}/{key}" for key in part.keys)
        singles = part.singles
        return replace(
            part,
            keys=keys,
            load=partial(_with_facts, part.load, own),
            singles=None
            if singles is None
            else lambda: (self._named(each, name, own, one=one) for each in singles()),
        )

    def close(self) -> None:
        """Close the file that is open."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _with_facts(
    load: Callable[[], ForeignEpisode | ForeignTable | None], own: Mapping[str, Any]
) -> ForeignEpisode | ForeignTable | None:
    loaded = load()
    if loaded is None or not own:
        return loaded
    if isinstance(loaded, ForeignEpisode):
        return replace(loaded, metadata={**own, **loaded.metadata})
    episodes = loaded.episodes
    for key, value in own.items():
        episodes = episodes.append_column(METADATA.column((key,)), pa.array([value] * episodes.num_rows))
    return replace(loaded, episodes=episodes)


def joined_space(first: Space, second: Space, place: str) -> Space:
    """Return the space of the values of two: of the same arrays, or of all the actions of two Discrete ones.

    Raises:
        DatasetError: they are of other kinds or shapes.
    """
    if first == second:
        return first
    if isinstance(first, spaces.Discrete) and isinstance(second, spaces.Discrete):
        least, most = min(first.start, second.start), max(int(s.start + s.n) for s in (first, second))
        return discrete_space(int(least), most - 1)
    if isinstance(first, spaces.Dict) and isinstance(second, spaces.Dict) and first.keys() == second.keys():
        parts = first.spaces.items()
        return spaces.Dict({key: joined_space(part, second.spaces[key], place) for key, part in parts})
    raise DatasetError(
        f"{place} have the spaces {first!s:.300} and {second!s:.300}: import files of another kind into "
        "another store."
    )


def tree_format(
    name: str,
    kinds: Sequence[str],
    extra: str | None,
    rule: str,
    look: Callable[[Any], Match],
    open_as: Callable[[Path, Any, ImportOptions], ForeignDataset],
    *,
    checked: bool = True,
    **choices: Any,
) -> Format:
    """Return a format of trees: one file or zarr store, or a folder, list or pattern of them.

    Args:
        kinds: of its trees: "hdf5", "zarr", "npz".
        look: compares an open tree with the format.
        open_as: called with the path, the open tree and the options; returns the dataset, which closes the
            tree.
        checked: whether a tree must have the format to be opened.
        choices: further arguments of `Format`.
    """
    of_kinds = [KINDS[one_of("kinds", each, KINDS)] for each in kinds]

    def open_one(path: Path, options: ImportOptions) -> ForeignDataset:
        file = open_tree(path, of_kinds)
        with closed_on_error(file):
            if checked:
                look(file).check(f"{path} is no {name} dataset")
            return open_as(path, file, options)

    def open_all(source: Any, options: ImportOptions) -> ForeignDataset:
        paths = list(trees_of(source, of_kinds))
        if not paths:
            raise DatasetError(f"{source} is no {names_of(of_kinds)}, so it is no {name} dataset.")
        base = source.base if isinstance(source, Files) else Path(source)
        if paths == [base]:
            return open_one(base, options)
        return JoinedFiles(paths, base, open_one, options)

    detect = partial(looked_into_tree, look=look, kinds=of_kinds)
    return Format(name, extra, rule, detect, open_all, **choices)
