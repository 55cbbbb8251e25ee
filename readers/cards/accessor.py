"""`_repr_html_` of stores, views and episodes: what a notebook shows of them."""

from __future__ import annotations

from typing import Any


class CardedView:
    """The part of a view that shows itself in a notebook."""

    def _repr_html_(self) -> str:
        """A card: how much there is, how episodes ended, their returns, runs and spaces."""
        from .view_card import view_card

        view: Any = self
        return view_card(view)


class CardedEpisode:
    """The part of an episode that shows itself in a notebook."""

    def _repr_html_(self) -> str:
        """A card: what is known of the episode, its signals, and some frames of images."""
        from .episode_card import episode_card

        episode: Any = self
        return episode_card(episode)
