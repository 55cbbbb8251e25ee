"""Datasets whose episodes are spans of rows: neighbours are read together, a few megabytes at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from .formats import ForeignDataset, ForeignTable, Part


class Span(Protocol):
    """The rows of an episode."""

    @property
    def name(self) -> str:
        """The key of the episode within the dataset."""
        ...

    @property
    def length(self) -> int:
        """How many rows there are."""
        ...

    def joins(self, before: Any) -> bool:
        """Return whether it may be read together with the span before it."""
        ...


AnySpan = TypeVar("AnySpan", bound=Span)


class SpanDataset(ForeignDataset, Generic[AnySpan]):
    """A dataset whose episodes are spans of rows."""

    @abstractmethod
    def spans(self) -> Iterable[AnySpan]:
        """Return the spans of episodes that have a transition; others are counted as lost."""

    @abstractmethod
    def part_rows(self) -> int:
        """Return about how many rows to read together."""

    @abstractmethod
    def load_spans(self, spans: Sequence[AnySpan]) -> ForeignTable:
        """Read some neighbours.

        Raises:
            DatasetError: one of them is damaged.
        """

    def parts(self) -> Iterator[Part]:
        """Yield parts of neighbours that may be read together, or of one episode."""
        some: list[AnySpan] = []
        count, most = 0, self.part_rows()
        for span in self.spans():
            if some and (count + span.length > most or not span.joins(some[-1])):
                yield self._part(some)
                some, count = [], 0
            some.append(span)
            count += span.length
        if some:
            yield self._part(some)

    def _part(self, spans: Sequence[AnySpan]) -> Part:
        return Part(
            tuple(span.name for span in spans),
            partial(self.load_spans, spans),
            lambda: (self._part([span]) for span in spans),
            tuple(getattr(span, "source_key", None) for span in spans),
        )
