"""The keys of a batch of token sequences: own ones, and columns of messages and rollouts by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidArgumentError
from ..plugin import ReadContext, suggest
from ..plugin.columns import EPISODE, REWARD
from ..readers.columns.episode_columns import EpisodeColumn, choose_loaded, episode_fields
from ..readers.columns.selection import whole_episodes
from ..readers.columns.specs import PRESENT, dynamic_fields
from ..readers.loading.config import LoaderConfig
from ..readers.loading.units import Units
from .sequences import numbers_in
from .tokens import PER_SAMPLED, TOKEN_MASK, TOKENS

POSITION_IDS, SEQUENCE_LENGTHS, ATTENTION_MASK = "position_ids", "sequence_lengths", "attention_mask"


@dataclass(frozen=True)
class BatchKeys:
    """The keys of a batch.

    Attributes:
        names: all of them, in order.
        numbers: those with a number for each token, which are columns of messages.
        facts: by key those with a value for each sequence: that of its rollout, shape (E,).
    """

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    facts: Mapping[str, np.ndarray]

    @staticmethod
    def of(context: ReadContext, config: LoaderConfig) -> BatchKeys:
        """Return the keys that a loader asks for; by default all but further columns.

        Args:
            context: the rollouts.
            config: the arguments of the loader.

        Raises:
            InvalidArgumentError: there is no such key or column, or it has values that no batch can have.
        """
        there = numbers_in(context)
        usual = (*config.units.default_keys, *there, SEQUENCE_LENGTHS, EPISODE)
        if config.columns is None:
            return BatchKeys(usual, tuple(there), {})
        named = [name for name in config.keys if name not in usual]
        of_messages = [*dynamic_fields(context.snapshot), REWARD]
        of_messages = [name for name in of_messages if name not in (*PER_SAMPLED, TOKENS, TOKEN_MASK)]
        of_rollouts = episode_fields(context.snapshot)
        for name in named:
            if name not in of_messages and name.removesuffix(PRESENT) not in of_rollouts:
                raise _unknown(name, config.units, usual, (*of_messages, *of_rollouts))
        columns = choose_loaded(
            context.snapshot, whole_episodes(context.snapshot, context.all_positions), named
        )
        facts = {
            column.name: column.cells[np.searchsorted(column.positions, context.all_positions)]
            for column in columns
            if isinstance(column, EpisodeColumn)
        }
        numbers = [name for name in config.keys if name in there or (name in named and name not in facts)]
        return BatchKeys(config.keys, tuple(numbers), facts)


def _unknown(name: str, units: Units, keys: Sequence[str], further: Sequence[str]) -> InvalidArgumentError:
    if name in PER_SAMPLED:
        return InvalidArgumentError(
            f"columns has {name!r}, but no rollout of the store has {name}.",
            hint=f"Write rollouts with write_rollout(..., {name}=...).",
        )
    return InvalidArgumentError(
        f"columns has {name!r}, which is no key of a batch of {units}: it has {', '.join(keys)}."
        f"{suggest(name, (*keys, *further))}",
        hint=f"Columns of messages and rollouts are keys too, if they are named: {', '.join(further)}.",
    )
