"""What a vector recorder must have recorded: one-by-one rollouts of the same seeded environments.

`alone` plays each environment by itself, with the actions that it gets in the vector environment and reset
where the autoreset mode resets it. `together` plays them as a vector environment through a recorder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

import episodelake as el
from nasty_environments import Rollout, advance, assert_recorded

Maker = Callable[[], gym.Env]
MODES = list(AutoresetMode)


def batches(envs: VectorEnv, steps: int, seed: int = 0) -> list[Any]:
    """Return one batch of actions for each step."""
    envs.action_space.seed(seed)
    return [copy.deepcopy(envs.action_space.sample()) for _ in range(steps)]


def alone(
    makers: Sequence[Maker], taken: list[Any], mode: AutoresetMode, space: gym.Space
) -> list[list[Rollout]]:
    """Play each environment by itself, seeded with its index plus 10; leave out episodes without a step."""
    singles = [list(iterate(space, actions)) for actions in taken]
    return [
        _played(make(), 10 + index, [actions[index] for actions in singles], mode)
        for index, make in enumerate(makers)
    ]


def _played(env: gym.Env, seed: int, actions: list[Any], mode: AutoresetMode) -> list[Rollout]:
    def begin(**arguments: Any) -> Rollout:
        observation, info = env.reset(**arguments)
        return Rollout([copy.deepcopy(observation)], [copy.deepcopy(info)])

    found = [begin(seed=seed)]
    for action in actions:
        if _ended(found[-1]):
            found.append(begin())
            if mode is AutoresetMode.NEXT_STEP:
                continue
        advance(env, found[-1], action)
    return [rollout for rollout in found if rollout.actions]


def _ended(rollout: Rollout) -> bool:
    return bool(rollout.actions) and (rollout.terminations[-1] or rollout.truncations[-1])


def together(
    recorder: el.types.VectorRecorder, taken: list[Any], mode: AutoresetMode, **arguments: Any
) -> list[tuple[Any, ...]]:
    """Play a recorder and return copies of all that it returned."""
    seen = [copy.deepcopy(recorder.reset(**({"seed": 10} | arguments)))]
    for actions in taken:
        result = recorder.step(copy.deepcopy(actions))
        seen.append(copy.deepcopy(result))
        done = result[2] | result[3]
        if mode is AutoresetMode.DISABLED and done.any():
            seen.append(copy.deepcopy(recorder.reset(options={"reset_mask": done})))
    return seen


def assert_all(
    store: el.EpisodeStore, plain: list[list[Rollout]], env: gym.Env, first_seed: int | None = 10
) -> None:
    """Fail unless the store holds exactly these episodes, each under the index of its environment."""
    store.refresh()
    episodes = sorted(store, key=lambda episode: episode.number)
    assert len(episodes) == sum(map(len, plain))
    for index, rollouts in enumerate(plain):
        own = [episode for episode in episodes if episode.env_index == index]
        assert len(own) == len(rollouts)
        for place, (episode, rollout) in enumerate(zip(own, rollouts, strict=True)):
            assert_recorded(episode, rollout, env)
            assert episode.seed == (first_seed + index if first_seed is not None and place == 0 else None)
    assert store.verify().faults == ()
