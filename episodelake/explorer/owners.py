"""`PageOwner`: the page as its parts see it, so that parts and page do not import each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..readers.episode import Episode
from .watching import Shown, Watch


class PageOwner(Protocol):
    """The page of one browser tab.

    Attributes:
        watch: the store.
        shown: the version that the page shows.
        exports: the folder below which new stores may be written.
        is_dark: whether its colours are dark.
    """

    watch: Watch
    shown: Shown
    exports: Path
    is_dark: bool

    def open_episode(self, position: int, *, beside: bool = False) -> None:
        """Show an episode of the list, alone or beside the one that is shown."""
        ...

    def closed_episode(self) -> None:
        """Take note that the player has closed an episode."""
        ...

    def reopened(self, episode_id: str) -> Episode | None:
        """Return an episode of the version that is shown now; None if it is gone."""
        ...

    def look_at_player(self) -> None:
        """Scroll a narrow page to the player, which stands below the list there."""
        ...

    def show_list(self) -> None:
        """Open the tab with the list."""
        ...

    def show_ids(self, ids: Sequence[str]) -> None:
        """Let the list show some episodes, by id."""
        ...
