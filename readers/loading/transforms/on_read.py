"""Transforms on reading: applied to whole episodes before units are gathered from them.

A window that begins in the middle of an episode so has the return to the episode's end, and the frames before
its own beginning. They are pure functions of `StepArrays` that hold whole episodes, whether those are in
memory, mapped, or a block of a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....store.common.arguments import expect
from ....store.errors import InvalidArgumentError
from ...columns.specs import check_names
from ...columns.step_arrays import StepArrays
from ...columns.tree import Tree, leaves, map_leaves
from ..units import Batch, Units
from .torch_module import TorchModule

#: A transform of batches; the others are applied on reading.
BatchTransform = Callable[[Batch], Batch]


class EpisodeTransform(ABC):
    """A transform of rows."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it needs."""
        return ()

    @property
    def writes(self) -> tuple[str, ...]:
        """The columns that it adds or replaces; every batch has them."""
        return ()

    @property
    def needs_last(self) -> bool:
        """Whether a transition whose next observation is missing is of no use."""
        return False

    @abstractmethod
    def prepare(self, arrays: StepArrays) -> StepArrays:
        """Return the rows that units are gathered from, given the rows before.

        Args:
            arrays: whole episodes; not to be changed.
        """


class DerivedColumns(EpisodeTransform):
    """Columns that are derived from others, over whole episodes.

    A subclass names `reads` and `writes`, and gives `compute`. It must be picklable.
    """

    @abstractmethod
    def compute(self, arrays: StepArrays) -> Mapping[str, Tree]:
        """Return the new columns by name.

        Args:
            arrays: whole episodes with at least the columns of `reads`. Row t of an episode holds the
                observation at t and what was done there; its last row holds the last observation, and zeros
                in the columns of actions, rewards and flags. Not to be changed.

        Returns:
            Fresh arrays of shape (rows, ...), with zeros in the last row of each episode.
        """

    def prepare(self, arrays: StepArrays) -> StepArrays:
        """See `EpisodeTransform`.

        Raises:
            InvalidArgumentError: a column has another number of rows, or another name than `writes` says.
        """
        made = self.compute(arrays)
        if not isinstance(made, Mapping) or set(made) != set(self.writes):
            given = sorted(made) if isinstance(made, Mapping) else repr(made)[:200]
            raise InvalidArgumentError(f"{self!r} gave the columns {given}; it writes {self.writes}.")
        derived = {name: map_leaves(np.ascontiguousarray, tree) for name, tree in made.items()}
        for name, tree in derived.items():
            for part, leaf in leaves(tree, name):
                if len(leaf) != arrays.index.rows:
                    raise InvalidArgumentError(
                        f"{self!r} gave {len(leaf)} rows of {part!r}; expected {arrays.index.rows}: one for "
                        "every observation, the last one of each episode included."
                    )
        return StepArrays(arrays.index, {**arrays.columns, **derived})


@dataclass(frozen=True)
class TransformPipeline:
    """A loader's transforms, by when they are applied.

    Attributes:
        on_read: to rows, in turn.
        on_batch: to batches, in turn.
        modules: to batches when they are taken, in turn.
    """

    on_read: tuple[EpisodeTransform, ...]
    on_batch: tuple[BatchTransform, ...]
    modules: tuple[TorchModule, ...] = ()

    @staticmethod
    def of(transforms: Sequence[Any]) -> TransformPipeline:
        """Sort transforms by when they are applied.

        Raises:
            InvalidArgumentError: an item is no transform, or would be applied before an earlier item.
        """
        valid = not isinstance(transforms, EpisodeTransform) and isinstance(transforms, Sequence)
        expect(valid, "transforms", transforms, "a list of transforms")
        on_read: list[EpisodeTransform] = []
        on_batch: list[Any] = []
        modules: list[TorchModule] = []
        for transform in transforms:
            if isinstance(transform, EpisodeTransform):
                if on_batch or modules:
                    raise InvalidArgumentError(
                        f"{transform!r} is applied when episodes are read, before "
                        f"{[*on_batch, *modules][0]!r}, which gets batches. Put it first in the list."
                    )
                on_read.append(transform)
            elif isinstance(transform, TorchModule):
                modules.append(transform)
            elif modules:
                raise InvalidArgumentError(
                    f"{transform!r} is applied when batches are made, before {modules[0]!r}, which runs when "
                    "they are taken. Put the module last, or change the batch in your loop."
                )
            elif callable(transform) and not isinstance(transform, type):
                on_batch.append(transform)
            else:
                raise InvalidArgumentError(
                    f"{transform!r} is no transform. Expected one of Episodelake's, or a function that gets "
                    "a batch and gives a batch."
                )
        return TransformPipeline(tuple(on_read), tuple(on_batch), tuple(modules))

    @property
    def writes(self) -> tuple[str, ...]:
        """The columns that are added or replaced, in order."""
        return tuple(dict.fromkeys(name for transform in self.on_read for name in transform.writes))

    def keys(self, units: Units, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Return the keys of a batch: those asked for, or the usual ones, and what is added on reading.

        Raises:
            InvalidArgumentError: the columns are no list of names, or there is none; or a key that the kind
                of unit makes itself would be written.
        """
        if columns is not None:
            check_names(columns)
        taken = [name for name in self.writes if units.columns([name]) != [name]]
        if taken:
            raise InvalidArgumentError(
                f"A transform writes {taken[0]!r}, which {units} gives already. Give it another key."
            )
        asked = units.default_keys if columns is None else columns
        keys = tuple(dict.fromkeys((*units.required_keys, *asked, *self.writes)))
        if not keys:
            raise InvalidArgumentError("columns=[]: a batch needs a key. Name one, or leave columns out.")
        return keys

    def columns(self, units: Units, keys: Sequence[str]) -> list[str]:
        """Return the columns of the store that units with such keys need."""
        wanted: list[str] = []
        written: set[str] = set()
        for transform in self.on_read:
            wanted += [name for name in transform.reads if name not in written]
            written.update(transform.writes)
        wanted += [name for name in units.columns(keys) if name not in written]
        return list(dict.fromkeys(wanted))

    def prepare(self, arrays: StepArrays, kept: Sequence[str]) -> StepArrays:
        """Apply those of rows: first what derives columns, from the rows as they are stored; then the rest.

        Args:
            arrays: whole episodes, with the columns that `columns` names. Where they pickle in a way of
                their own (mapped ones are mapped again), so does the result.
            kept: the columns that units are gathered from; others are let go.
        """
        return self.stack(self.derive(arrays, kept))

    def derive(self, arrays: StepArrays, kept: Sequence[str]) -> StepArrays:
        """Only derive columns; plain arrays stay plain."""
        derived = tuple(each for each in self.on_read if isinstance(each, DerivedColumns))
        prepared = _applied(derived, arrays, kept)
        return (
            StepArrays(prepared.index, prepared.columns)
            if derived and type(arrays) is StepArrays
            else prepared
        )

    def stack(self, arrays: StepArrays) -> StepArrays:
        """Only apply the transforms that change how rows are gathered, not the rows."""
        rest = tuple(each for each in self.on_read if not isinstance(each, DerivedColumns))
        return _applied(rest, arrays, tuple(arrays.columns))


def _applied(transforms: tuple[EpisodeTransform, ...], arrays: StepArrays, kept: Sequence[str]) -> StepArrays:
    if not transforms:
        return arrays
    prepared = arrays
    for transform in transforms:
        prepared = transform.prepare(prepared)
    columns = {name: prepared.columns[name] for name in kept}
    return PreparedArrays(arrays.index, columns, arrays, TransformPipeline(transforms, ()), tuple(kept))


@dataclass(frozen=True)
class PreparedArrays(StepArrays):
    """Transformed columns; unpickling transforms their source again.

    Attributes:
        source: what they were made from; it knows how to be pickled.
        pipeline: what made them.
        kept: which columns.
    """

    source: StepArrays
    pipeline: TransformPipeline
    kept: tuple[str, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the source and apply the transforms again."""
        return self.pipeline.prepare, (self.source, self.kept)
