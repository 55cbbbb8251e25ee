"""Actions of every kind of space pass a vector recorder: environments get them, the store keeps them."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from gymnasium.vector import SyncVectorEnv

import episodelake as el

SPACES = {
    "Discrete": Discrete(3, start=-1),
    "Box": Box(-1, 1, (2,), np.float32),
    "MultiDiscrete": MultiDiscrete([[2, 3], [4, 5]]),
    "MultiBinary": MultiBinary(3),
    "Dict": Dict(a=Discrete(2), b=Box(0, 1, (2,))),
    "Tuple": Tuple((Discrete(2), Box(0, 1, (1,)))),
    "Text": Text(5),
    "Sequence": Sequence(Discrete(3)),
    "OneOf": OneOf((Discrete(2), Box(0, 1, (1,)))),
    "Graph": Graph(Box(0, 1, (2,)), Discrete(2)),
}


class Keeping(gymnasium.Env):
    """Keeps the actions that it was given."""

    observation_space = Discrete(2)

    def __init__(self, action_space: gymnasium.Space) -> None:
        self.action_space = action_space
        self.given: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        """Keep the action."""
        assert self.action_space.contains(action)
        self.given.append(action)
        return 1, 0.0, False, False, {}


@pytest.mark.parametrize("kind", SPACES)
def test_actions_of_every_space_are_kept(tmp_path: Path, kind: str) -> None:
    """What each environment of a vector was given is what its episode has."""
    space = SPACES[kind]
    alone = [Keeping(space), Keeping(space)]
    envs = SyncVectorEnv([lambda env=env: env for env in alone])
    store = el.create(tmp_path / "store", Keeping(space))
    stats = el.collect(envs, None, store, steps=12, seed=0)
    assert stats.steps == 12
    for episode in store.refresh():
        given = alone[episode.env_index].given
        assert episode.length == len(given) == 6
        for t, action in enumerate(given):
            kept = action_at(episode.actions, t)
            assert space.contains(kept)
            assert space.to_jsonable([kept]) == space.to_jsonable([action])


def action_at(actions: Any, t: int) -> Any:
    """One of the actions of an episode, which are stacked by leaf where they can be."""
    if isinstance(actions, dict):
        return {key: action_at(part, t) for key, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(action_at(part, t) for part in actions)
    return actions[t]


class Sharing(gymnasium.vector.VectorEnv):
    """Tells one number of numpy of all its environments at once, without a mask."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self) -> None:
        self.num_envs = 2
        self.single_observation_space = self.single_action_space = Discrete(2)
        self.observation_space = self.action_space = MultiDiscrete([2, 2])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin."""
        return np.zeros(2, np.int64), {"level": np.float32(0.5)}

    def step(self, actions: Any) -> Any:
        """Go on, for ever."""
        never = np.zeros(2, bool)
        return np.zeros(2, np.int64), np.zeros(2), never, never, {"level": np.int16(3)}


def test_a_number_that_all_share_is_a_number(tmp_path: Path) -> None:
    """A numpy scalar in the infos comes back as a Python number, as it does from a single environment."""
    store = el.create(tmp_path / "store", Sharing())
    el.collect(Sharing(), None, store, steps=4, seed=0)
    for episode in store.refresh():
        assert episode.infos == [{"level": 0.5}, {"level": 3}, {"level": 3}]
        assert [type(info["level"]) for info in episode.infos] == [float, int, int]
