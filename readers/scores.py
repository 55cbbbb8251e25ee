"""`normalised_score`: returns on the scale from a random to an expert policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.card import MAX_SCORE, MIN_SCORE, reference_scores
from ..store.errors import InvalidArgumentError
from ..store.manifest import read_card
from .view import EpisodeView


def normalised_score(view: EpisodeView, returns: Any = None) -> np.ndarray:
    """Place returns on a scale where a random policy has 0 and an expert policy has 1.

    That is `(return - ref_min_score) / (ref_max_score - ref_min_score)` with the scores of the card, as
    in D4RL and Minari.

    Args:
        view: a store, or a view of it.
        returns: what to place; None for the undiscounted return of every episode of the view, in its order.

    Returns:
        float64, shaped like `returns`.

    Raises:
        InvalidArgumentError: the card lacks the scores, or the store has several objectives and no returns
            are given.
    """
    scores = reference_scores(read_card(view.context.snapshot.layout))
    if scores is None:
        raise InvalidArgumentError(
            f"The card has no {MIN_SCORE} and {MAX_SCORE}. Set them: store.card = {{**store.card, "
            f"{MIN_SCORE!r}: ..., {MAX_SCORE!r}: ...}}."
        )
    if returns is None:
        if view.context.snapshot.schema.reward_shape:
            raise InvalidArgumentError("The episodes have several returns each: pass the ones to place.")
        returns = view.episodes.select("episode_return").collect().to_series()
    low, high = scores
    return (np.asarray(returns, np.float64) - low) / (high - low)
