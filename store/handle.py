"""Handle of an open store: its layout, manifest and schema, for writers and readers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from .layout import Layout
from .manifest import Manifest
from .schema import StepSchema
from .spaces.coerce import Cast


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
    """Anything that stands for an open store, such as `episodelake.EpisodeStore`."""

    @property
    def handle(self) -> StoreHandle:
        """The store behind it."""
        ...
