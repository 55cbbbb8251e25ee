"""The transitions of a view as flat arrays, as replay buffers hold them.

The rule of every buffer is that of loaders: `terminated` and `truncated` are those of the store, and the last
transition of an episode with neither flag (cut or interrupted) counts as truncated. Otherwise n-step returns
and slices would run on into the next episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from ...store.errors import DatasetError
from ...store.losses import Losses
from ...store.reserved import ACTION, END_REASON, EPISODE, FLAGS, NEXT_OBSERVATION, OBSERVATION, REWARD
from ..context import ReadContext
from ..frames import episodes_frame
from ..loading.feeding import FeedingView
from .target import LOST_TRANSITION

_KEYS = (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS, EPISODE, END_REASON)
#: Spaces whose values are one array.
SIMPLE_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
#: Cut and interrupted.
_UNFLAGGED = (3, 4)


@dataclass(frozen=True)
class FlatTransitions:
    """N transitions in the order of the view, in arrays that belong to the caller.

    Attributes:
        observation, action, next_observation: shape (N, ...), nested as the spaces are.
        reward: float64, shape (N,) or (N, k).
        terminated, truncated: bool, shape (N,).
        episode: int64, shape (N,): the episode's place in the view.
    """

    observation: Any
    action: Any
    reward: np.ndarray
    next_observation: Any
    terminated: np.ndarray
    truncated: np.ndarray
    episode: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def done(self) -> np.ndarray:
        """bool, shape (N,): whether an episode ends with the transition."""
        return self.terminated | self.truncated


def flat_transitions(view: FeedingView, losses: Losses) -> FlatTransitions:
    """Return the transitions of a view; what they lack is added to the losses.

    Raises:
        InvalidArgumentError: the view is empty, or a space has values without a fixed shape.
    """
    frame = episodes_frame(view.context.snapshot, view.context.all_positions)
    count = int(frame.select("length").sum().collect().item() or 0)
    (batch,) = view.loader(max(count, 1), columns=_KEYS)
    reasons = batch.pop(END_REASON)
    flat = FlatTransitions(**batch)
    losses.add(LOST_TRANSITION, count - len(flat))
    losses.add(
        "that an episode was cut or interrupted, not truncated", int(np.isin(reasons, _UNFLAGGED).sum())
    )
    # An episode without its last transition ends with the one before.
    ends = np.append(flat.episode[1:] != flat.episode[:-1], True)
    flat.truncated[ends & ~flat.terminated] = True
    return flat


def refuse_agents(context: ReadContext, target: str) -> None:
    """Refuse a store of several agents."""
    agents = [agent for group in context.snapshot.schema.groups for agent in group.agents]
    if agents:
        raise DatasetError(
            f"{target} holds transitions of a single agent; the store has the agents "
            f"{', '.join(agents[:8])}. Write the episodes of one, `episode.agent(name)`, to a store of their "
            "own, and convert that."
        )


def refuse_vector_rewards(context: ReadContext, target: str) -> None:
    """Refuse rewards that are not a number."""
    shape = context.snapshot.manifest.reward_shape
    if shape:
        raise DatasetError(
            f"{target} holds one number as a reward; the store has rewards of shape {shape}. Combine the "
            "objectives into one number, write the episodes with it to another store, and convert that."
        )


def refuse_spaces(target: str, column: str, space: spaces.Space, allowed: tuple[type, ...]) -> None:
    """Refuse a space, or a part of a Dict, that is of none of these types."""
    parts = space.spaces if isinstance(space, spaces.Dict) and spaces.Dict in allowed else {"": space}
    simple = tuple(each for each in allowed if each is not spaces.Dict)
    for key, part in parts.items():
        if not isinstance(part, simple):
            name = f"{column}.{key}" if key else column
            kinds = ", ".join(each.__name__ for each in allowed)
            raise DatasetError(f"{target} cannot hold {name!r}, a {type(part).__name__}; it holds {kinds}.")
