"""A column of the rows that a loader reads: how a block's cells become arrays.

A column of a transition (action, reward, flags, policy values) has no value in an episode's last row; there
its array has zeros, so that all arrays of a loader have the same rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Dict, Space, Tuple

from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.frames import VideoColumn
from ...store.names import FLAGS, OBSERVATION_PRESENT, is_observation
from ...store.snapshot import Snapshot
from ...store.spaces import SpaceCodec
from ...store.tables.table_files import Pointers
from ..blocks import Block, SegmentFile
from .encoded_rows import RowsToFill
from .ragged import Ragged, RaggedToFill
from .selection import Selection
from .tree import Tree, leaves, map_leaves, row_bytes


@dataclass(frozen=True)
class Column(ABC):
    """A column of the rows.

    Attributes:
        name: its key in a batch.
        template: its arrays with no rows: dtypes and shapes.
        fields: the columns of steps files that it is made from.
        of_transitions: whether an episode's last row has no value.
        value_bytes: about how many bytes the values of a row take, where rows differ in length.
    """

    name: str
    template: Tree
    fields: tuple[str, ...]
    of_transitions: bool
    value_bytes: float = field(default=0, kw_only=True)

    def facts(self, snapshot: Snapshot, pointers: Pointers) -> dict[str, Any]:
        """Return the values by which a cache distinguishes columns, beside the rows; JSON can hold them."""
        return {"column": self.name, "annotation": None}

    def check(self, snapshot: Snapshot, selection: Selection) -> None:
        """Check that a batch can have its values in further episodes, which came after it was chosen.

        Raises:
            InvalidArgumentError: a row has a value of another kind or shape.
        """
        return

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row takes in memory."""
        return row_bytes(self.template) + math.ceil(self.value_bytes)

    @property
    def is_ragged(self) -> bool:
        """Whether rows differ in length, in some part at least."""
        return any(isinstance(leaf, Ragged) for _, leaf in leaves(self.template))

    def measured(self, files: Sequence[SegmentFile]) -> Column:
        """Return the column with the sizes of values in some files, at least one, by their footers."""
        rows = max(1, sum(int(file.starts[-1]) for file in files))
        ragged = [part for part in self.parts if part.is_ragged]
        total = sum(_stored_bytes(part, file) for part in ragged for file in files)
        return replace(self, value_bytes=total / rows) if ragged else self

    @cached_property
    def parts(self) -> tuple[Column, ...]:
        """A column for each part that is no Dict or Tuple."""
        return (self,)

    def divided(self, into: Tree) -> list[tuple[Column, Tree]]:
        """Return each of `parts` with its part of a tree that is nested as the template is."""
        return [(self, into)]

    def composed(self, parts: Sequence[Tree]) -> Tree:
        """Return the tree that `divided` divides into these."""
        return parts[0]

    def empty(self, new: Callable[[np.ndarray], np.ndarray], rows: int) -> Tree:
        """Return what the values of so many rows are written into.

        Args:
            new: makes an array for a leaf of the template.
            rows: how many.
        """
        return map_leaves(lambda leaf: _empty(leaf, new, rows), self.template)

    @abstractmethod
    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """Return its arrays for a block: one row per row or, of a column of transitions, per transition.

        They may share the block's memory.

        Raises:
            CorruptStoreError: a cell cannot be what the store's schema says.
        """

    def write(
        self, block: Block, snapshot: Snapshot, into: Tree, rows: Sequence[tuple[int, int, int]]
    ) -> None:
        """Copy stretches of a block's rows into the arrays of all rows.

        Args:
            block: the block.
            snapshot: what it belongs to.
            into: arrays of shape (n, ...).
            rows: for each stretch its first row in the block, how many there are, and where they go.

        Raises:
            CorruptStoreError: see `values`.
        """
        valid = block.stepped if self.of_transitions else self.observed(block, snapshot, rows)
        copy = _copy_rows(rows) if valid is None else _copy_valid(valid, rows)
        map_leaves(copy, into, self.values(block, snapshot))

    def observed(
        self, block: Block, snapshot: Snapshot, rows: Sequence[tuple[int, int, int]]
    ) -> np.ndarray | None:
        """Return which rows of a block `values` has, bool; None for all.

        Raises:
            CorruptStoreError: a row lacks a value that it must have.
        """
        return None


@dataclass(frozen=True)
class SpaceColumn(Column):
    """Observations, actions or rewards, or a part of a Dict or Tuple: `observation.camera`."""

    codec: SpaceCodec

    @staticmethod
    def of(name: str, codec: SpaceCodec, *, ragged: bool = False) -> SpaceColumn:
        """Return the column of a space.

        Args:
            name: its key in a batch.
            codec: of the space.
            ragged: allow rows of different lengths.

        Raises:
            InvalidArgumentError: its values have no fixed shape, or with `ragged` no arrays at all.
        """
        own, stepped = tuple(field.name for field in codec.fields), not is_observation(name)
        template = _space_template(codec, ragged=ragged)
        return SpaceColumn(name, template, (*own, FLAGS[0]) if stepped else own, stepped, codec)

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        return map_leaves(Ragged.of, block.columns_of(self.codec, of_transitions=self.of_transitions))

    def observed(
        self, block: Block, snapshot: Snapshot, rows: Sequence[tuple[int, int, int]]
    ) -> np.ndarray | None:
        """See `Column`."""
        observed = block.observed(self.codec)
        if observed is None:
            return None
        wanted = np.concatenate([np.arange(start, start + count) for start, count, _ in rows])
        lacking = wanted[~observed[wanted]] + block.first
        if not np.isin(lacking, snapshot.rows_without_observation(block.file.path.name)).all():
            raise CorruptStoreError(
                f"{block.file.path} lacks observations of episodes that have all of them by the table "
                "episodes. verify() names them."
            )
        return observed

    @cached_property
    def parts(self) -> tuple[SpaceColumn, ...]:
        """See `Column`."""
        return tuple(
            SpaceColumn(
                codec.root,
                _space_template(codec, ragged=True),
                tuple(field.name for field in codec.fields),
                self.of_transitions,
                codec,
            )
            for codec in self.codec.parts
        )

    def divided(self, into: Tree) -> list[tuple[Column, Tree]]:
        """See `Column`."""
        parts: list[Tree] = []
        _mapped_parts(self.codec.space, parts.append, into)
        return list(zip(self.parts, parts, strict=True))

    def composed(self, parts: Sequence[Tree]) -> Tree:
        """See `Column`."""
        given = iter(parts)
        return _mapped_parts(self.codec.space, lambda _: next(given), self.template)


@dataclass(frozen=True)
class EncodedColumn(SpaceColumn):
    """Observations whose frames stay encoded in memory, and are decoded when rows are taken.

    Attributes:
        video: the columns of these frames.
        frame_bytes: about how many bytes a frame of each takes, encoded.
    """

    video: tuple[VideoColumn, ...]
    frame_bytes: tuple[float, ...]

    @staticmethod
    def of_video(column: SpaceColumn, video: Sequence[VideoColumn]) -> SpaceColumn:
        """Return a column with its frames encoded; the column itself if it has no such frames."""
        own = tuple(each for each in video if each.name in column.fields)
        if not own:
            return column
        sizes = tuple(each.frame_bytes for each in own)
        return EncodedColumn(
            column.name, column.template, column.fields, column.of_transitions, column.codec, own, sizes
        )

    def measured(self, files: Sequence[SegmentFile]) -> Column:
        """See `Column`; also the sizes of frames."""
        rows = max(1, sum(int(file.starts[-1]) for file in files))
        sizes = (sum(file.stored_bytes(each.name) for file in files) / rows for each in self.video)
        return replace(super().measured(files), frame_bytes=tuple(sizes))

    @property
    def row_bytes(self) -> int:
        """See `Column`."""
        raw = sum(each.image.size for each in self.video)
        # The place of each cell is kept beside it.
        return super().row_bytes - raw + math.ceil(sum(self.frame_bytes)) + 8 * len(self.video)

    def empty(self, new: Callable[[np.ndarray], np.ndarray], rows: int) -> Tree:
        """See `Column`."""
        video = {each.name: each for each in self.video}
        parts = (
            RowsToFill(part.name, video[part.name].image, rows)
            if part.name in video
            else part.empty(new, rows)
            for part in self.parts
        )
        return self.composed(list(parts))

    def write(
        self, block: Block, snapshot: Snapshot, into: Tree, rows: Sequence[tuple[int, int, int]]
    ) -> None:
        """See `Column`."""
        self.observed(block, snapshot, rows)
        for part, own in self.divided(into):
            if isinstance(own, RowsToFill):
                own.put(block.cells(own.name), rows)
            else:
                part.write(block, snapshot, own, rows)


@dataclass(frozen=True)
class ObservedColumn(Column):
    """Whether a row has its observation: False for a last one that is missing."""

    codec: SpaceCodec

    @staticmethod
    def of(codec: SpaceCodec) -> ObservedColumn:
        """Return the column for the observations of a codec."""
        fields = tuple(field.name for field in codec.fields)
        return ObservedColumn(OBSERVATION_PRESENT, np.zeros(0, bool), fields, False, codec)

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        observed = block.observed(self.codec)
        return np.ones(block.count, bool) if observed is None else observed


@dataclass(frozen=True)
class FlagColumn(Column):
    """`terminated` or `truncated`."""

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        return block.flags(self.name)


def _space_template(codec: SpaceCodec, *, ragged: bool) -> Tree:
    arrays = [pa.nulls(0, field.type) for field in codec.fields]
    template = map_leaves(Ragged.of, codec.decode_columns(arrays))
    for name, leaf in leaves(template, codec.root):
        if not ragged and not isinstance(leaf, np.ndarray):
            raise InvalidArgumentError(
                f"The values of {name!r} have no fixed shape ({codec.space}), so they do not fit into a "
                "batch of arrays. Name the columns to load with columns=[...], or read episode by episode."
            )
        if not isinstance(_innermost(leaf), np.ndarray):
            raise InvalidArgumentError(
                f"The values of {name!r} are no arrays, of one length or of different ones ({codec.space}). "
                "Name the columns to load with columns=[...], or read episode by episode."
            )
    for part in codec.parts:
        own = part.decode_columns([pa.nulls(0, field.type) for field in part.fields])
        if not any(True for _ in leaves(own)):
            raise InvalidArgumentError(
                f"The values of {part.root!r} have no arrays ({part.space}). Name the columns to load with "
                "columns=[...], or read episode by episode."
            )
    return template


def _stored_bytes(column: Column, file: SegmentFile) -> int:
    """Return about how many bytes the values of a column in a file take in memory."""
    total = 0
    # One column of the file for each leaf; further ones, such as the flags, come after these.
    for name, (_, leaf) in zip(column.fields, leaves(column.template), strict=False):
        count, stored = file.stored_values(name)
        # Of texts and frames, bytes, a file counts only how many there are.
        total += stored if leaf.dtype == np.uint8 else count * leaf.dtype.itemsize
    return total


def _innermost(leaf: Any) -> Any:
    while isinstance(leaf, Ragged):
        leaf = leaf.values
    return leaf


def _empty(leaf: Any, new: Callable[[np.ndarray], np.ndarray], rows: int) -> Any:
    return RaggedToFill(leaf, rows) if isinstance(leaf, Ragged) else new(leaf)


def _mapped_parts(space: Space, function: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """Apply a function to the parts of a tree that belong to no Dict or Tuple space, in order."""
    if isinstance(space, Dict) and isinstance(tree, dict):
        return {key: _mapped_parts(space[key], function, part) for key, part in tree.items()}
    if isinstance(space, Tuple) and isinstance(tree, tuple):
        return tuple(_mapped_parts(own, function, part) for own, part in zip(space, tree, strict=True))
    return function(tree)


def _copy_rows(rows: Sequence[tuple[int, int, int]]) -> Callable[[Any, Any], None]:
    def copy(into: Any, values: Any) -> None:
        if isinstance(into, RaggedToFill):
            into.put(values, rows)
            return
        for start, count, place in rows:
            into[place : place + count] = values[start : start + count]

    return copy


#: Episodes of fewer rows are copied by a mask, longer ones one by one.
_SHORT = 32


def _copy_valid(valid: np.ndarray, rows: Sequence[tuple[int, int, int]]) -> Callable[[Any, Any], None]:
    """Copy values to the rows that have one, and zeros to the others."""

    def copy(into: Any, values: Any) -> None:
        if isinstance(into, RaggedToFill):
            into.put(values, rows, valid)
            return
        if len(values) != np.count_nonzero(valid):
            raise CorruptStoreError(
                f"{np.count_nonzero(valid)} rows have a transition or an observation, but {len(values)} have "
                "a value of it. The store's steps are damaged: verify() names the file."
            )
        done, seen = 0, 0
        for start, count, place in sorted(rows):
            here = valid[start : start + count]
            # A stretch may begin within the one before it.
            first = seen + np.count_nonzero(valid[done:start]) - np.count_nonzero(valid[start:done])
            done, seen = start + count, first + np.count_nonzero(here)
            target, given = into[place : place + count], values[first:seen]
            blanks = np.flatnonzero(~here)
            if len(blanks) * _SHORT > count:
                target[here] = given
            else:
                for number, (low, stop) in enumerate(pairwise([-1, *blanks.tolist(), count])):
                    target[low + 1 : stop] = given[low + 1 - number : stop - number]
            target[blanks] = 0

    return copy
