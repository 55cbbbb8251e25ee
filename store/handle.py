"""What writers and readers need to know of an open store, whoever opened it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from .layout import Layout
from .manifest import Manifest
from .schema import StepSchema


@dataclass(frozen=True)
class StoreHandle:
    """Where a store is and what it holds."""

    layout: Layout
    manifest: Manifest

    @cached_property
    def schema(self) -> StepSchema:
        """The step columns that the store's spaces decide."""
        return StepSchema.of(self.manifest)


class OpenStore(Protocol):
    """Anything that stands for an open store, such as `episodelake.EpisodeStore`."""

    @property
    def handle(self) -> StoreHandle:
        """The store behind it."""
        ...
