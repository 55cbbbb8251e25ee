"""Losses of an import or export, counted by sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Losses(Mapping[str, int]):
    """Counts of what was lost, by a sentence that names it; in the order of first occurrence.

    Two exchanges of the same data give equal losses.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count something that was lost; a count of 0 adds nothing."""
        if count:
            self._counts[what] = self._counts.get(what, 0) + count

    def take_back(self, what: str, count: int) -> None:
        """Undo an `add`."""
        self._counts[what] -= count
        if not self._counts[what]:
            del self._counts[what]

    def restore(self, before: Mapping[str, int]) -> None:
        """Undo all that was added since some earlier counts."""
        self._counts = dict(before)

    @contextmanager
    def attempt(self) -> Iterator[dict[str, int]]:
        """Yield the counts before the block, which are restored if the block fails."""
        before = dict(self._counts)
        try:
            yield before
        except BaseException:
            self._counts = before
            raise

    def since(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return what was added since some earlier counts."""
        return {
            what: count - before.get(what, 0) for what, count in self.items() if count != before.get(what)
        }

    def __getitem__(self, what: str) -> int:
        return self._counts[what]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return repr(self._counts)

    def lines(self) -> list[str]:
        """Return a line of text for each loss."""
        return [f"{what} ({count:,})" for what, count in self._counts.items()]
