"""`collect`: let a policy play, and record it. The door of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ...store.handle import OpenStore
from .actor import Acting, Explore, MapAction, derived_seed
from .bar import Display, Tell
from .batch import Start
from .collection import Collection
from .goal import Goal
from .loop import OnEpisode, OnStep, Watching
from .outputs import Policy
from .recorders import RecordingOptions, check_options, check_store
from .stats import CollectStats

_POLICY_SEED = 1


def collect(
    env_or_envs: Any,
    policy: Policy | None,
    store: OpenStore,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    unbiased: bool = False,
    seed: int | Sequence[int | None] | None = None,
    options: Mapping[str, Any] | None = None,
    policy_seed: int | None = None,
    initial_state: Any = None,
    record_state: bool = False,
    explore: Explore | None = None,
    map_action: MapAction | None = None,
    on_step: OnStep | None = None,
    on_episode: OnEpisode | None = None,
    progress: bool | Tell = False,
    **recording: Unpack[RecordingOptions],
) -> CollectStats:
    """Let a policy play in an environment and record every transition.

    The policy is called as `policy(observation, info, state)` and returns `action`, `(action, extras)` or
    `(action, extras, state)`, or an `episodelake.PolicyOutput`. For a vector environment the observation, the
    info and the answer are batches, as `gymnasium.vector.VectorEnv` has them. `extras` is a mapping; each key
    becomes the column `policy.<key>` of the row of the observation. `state` is given back at the next step;
    it is None, or the initial state, at the first step of an episode. Where actions are tuples (Tuple
    spaces and the like), a plain tuple is an action, and extras need a `PolicyOutput`.

    An environment is recorded as a run of its own, begins with a reset, is left open, and what was recorded
    is sealed when the call returns. A recorder of yours goes on where the last call with `steps` ended, and
    is sealed when you say so. Ctrl-C ends the call after the step in hand, seals, and returns what there is.
    An exception of the environment or of the policy passes on; what was recorded before is kept.

    Args:
        env_or_envs: an environment, a vector environment, a recorder of one of them, or what an environment
            is
            made from and which is closed afterwards: an id, a spec, a function without arguments.
        policy: the policy; None samples the action space.
        store: where to, as `episodelake.create` and `episodelake.open` give it.
        steps: record exactly so many transitions.
        episodes: record exactly so many episodes. It begins with a reset, and what is unfinished when the
            last one ends is not stored.
        unbiased: give each environment a quota of the episodes beforehand. Otherwise the first ones to end
            count, and of environments that run side by side these are the short ones.
        seed, options: of the first reset; giving one resets a recorder whose episode would go on.
        policy_seed: of the sampling, of `explore`, and of a policy that has a method `seed`; follows from
            `seed` if it is not given.
        initial_state: the state at the first step of an episode; for a vector environment a batch of them.
        record_state: record the state that the policy was given, as `policy.state`.
        explore: called with the policy's action and a numpy generator; returns the action to take.
        map_action: called with that action; returns the environment's. With one of these two hooks the
            policy's own action is recorded as `policy.raw_action`.
        on_step: called with a `CollectStep` after every step.
        on_episode: called with an `EpisodeSummary` after every episode that ends and is recorded.
        progress: True for a bar on the terminal, or a function that is called with a `CollectProgress` a few
            times a second.
        recording: options of `EpisodeStore.record` for the recorder that is opened.

    Raises:
        InvalidArgumentError: not exactly one of steps and episodes; a count below 1; an unknown option; an
            answer of the policy that has extras which are no mapping.
        SpaceMismatchError: the spaces are not the store's; an action or an observation does not fit; the
            policy answered for another number of environments.
        RecorderStateError: the recorder or the vector environment is closed.
        StoreAccessError: the store cannot be written; what was recorded is in the journal.
    """
    check_options(recording)
    check_store(store)
    goal = Goal.of(steps, episodes, unbiased)
    if policy_seed is None:
        policy_seed = derived_seed(seed, _POLICY_SEED)
    acting = Acting(policy, policy_seed, initial_state, record_state, explore, map_action)
    watching = Watching(on_step, on_episode, Display(progress))
    anew = goal.episodes is not None or seed is not None or options is not None
    start = Start(seed, None if options is None else dict(options), anew)
    return Collection(goal, acting, watching, start).run(env_or_envs, store, recording)
