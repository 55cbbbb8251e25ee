"""`collect`: let a policy play, and record it. The entry point of this package."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Literal, Unpack

from ...store.common.arguments import argument_names, expect, flag, whole_number
from ...store.schema import OpenStore
from .actor import AnyPolicy, Policy, PolicyConfig, derived_seed
from .collection import Collection, RecordingOptions, check_options, check_store
from .display import Callback, Display, checked_pause
from .goal import Goal, ResetOptions, Resets, Seeds, checked_seed
from .loop import Hooks, OnEpisode, OnStep
from .processes import ProcessPool
from .stats import CollectStats
from .unrecorded import options_without_store, temporary_store
from .worker import WorkerConfig
from .workers import WorkerPool, check_source, collect_in_workers

_POLICY_SEED = 1


def collect(
    env_or_envs: Any,
    policy: Policy | AnyPolicy | None,
    store: OpenStore | None = None,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    quotas: bool = False,
    workers: int | WorkerPool | None = None,
    seed: Seeds | None = None,
    options: ResetOptions | None = None,
    policy_seed: int | None = None,
    random: bool = False,
    on_step: OnStep | None = None,
    on_episode: OnEpisode | None = None,
    progress: bool | Callback = False,
    render: bool | float = False,
    on_interrupt: Literal["raise", "return"] = "raise",
    **recording: Unpack[RecordingOptions],
) -> CollectStats:
    """Let a policy play in an environment and record every transition; without a store only count.

    The policy is called as `policy(observation, info, state)` and returns `action`, `(action, extras)` or
    `(action, extras, state)`, or an `episodelake.PolicyOutput`. For a vector environment the observation, the
    info and the answer are batches, as `gymnasium.vector.VectorEnv` has them. `extras` is a mapping; each key
    becomes the column `policy.<key>` of the row of the observation. `state` is given back at the next step,
    its tensors detached from their graph; it is None, or that of a `Policy`, at the first step of an episode.
    Where actions are tuples (Tuple spaces and the like), a plain tuple is an action, and extras need a
    `PolicyOutput`. A `torch.nn.Module`, or a method of one, is called under `torch.no_grad()`.

    Of a pool the batch has the environments that are ready, as `recv` returned them, and states are kept by
    environment. For an environment of PettingZoo the policy is a mapping from agents, or groups of the store,
    to policies, each for one agent. A callable is one policy for all agents: observation, info, state and
    answer are mappings by agent, of those that act now. A step is one of the environment, or one turn.

    An environment is recorded as a run of its own, begins with a reset, is left open, and what was recorded
    is sealed when the call returns. Your own recorder continues after the last call with `steps`;
    seal it yourself. Ctrl-C ends the call after the current step, seals, and raises
    KeyboardInterrupt. An exception of the environment or of the policy passes on; what was recorded before
    is kept.

    Args:
        env_or_envs: an environment, a vector environment, a pool, an environment of PettingZoo, a recorder of
            one of them, or what an environment is made from, which is closed afterwards: an id, a spec, a
            function without arguments.
        policy: the policy; `episodelake.Policy` gives it an initial state, noise, or a mapping of actions.
            None samples the action space.
        store: where to, as `episodelake.create` and `episodelake.open` give it. None keeps nothing and
            returns the statistics, such as those of an evaluation: episodes go to a temporary folder, which
            is deleted. Of a recorder None stands for its store.
        steps: record so many transitions; of a vector environment or a pool up to the end of the batch that
            reaches them.
        episodes: record exactly so many episodes, those that begin first, so that long ones count as much
            as short ones. It begins with a reset.
        quotas: give each environment an equal share of the episodes beforehand, so that quick ones do not
            begin more of them. A pool always has quotas.
        workers: collect in so many processes at once, each with a run and an environment of its own, which
            it makes from an id, a spec or a function; the goal is split between them. Seeds follow from
            `seed` and the worker's number. The policy, the function and the hooks are pickled; hooks run in
            the workers. A worker that dies is named by a warning and in `CollectStats.workers`; its journal
            is recovered, and the others go on.
        seed, options: a number and a mapping are for the first reset. A list has one for each episode, None
            where there is none, in the order in which they begin; environments that begin in the same step
            count in the order of their indices. A function is called with the episode's number, from 0. With
            `episodes` each value is used once. A list of as many seeds as a vector environment has
            environments is for the first reset, unless `episodes` asks for no more. Worker w of W plays the
            episodes w, w + W, ... All but a function reset a recorder whose episode would go on; a function's
            numbers go on too.
        policy_seed: of the sampling, of `explore`, and of a policy that has a method `seed`; follows from
            `seed`, unless that is a function, if it is not given.
        random: sample the action space instead of asking the policy, as without one.
        on_step: called with a `CollectStep` after every step.
        on_episode: called with an `EpisodeSummary` after every episode that ends and is recorded.
        progress: True for a bar on the terminal, or a function that is called with a `CollectProgress` a few
            times a second.
        render: call the environment's `render()` after every step; a number is the seconds to wait then.
        on_interrupt: "raise" KeyboardInterrupt after Ctrl-C, or "return" the statistics; their `interrupted`
            is then True.
        recording: options of `EpisodeStore.record` for the recorder that is opened. Without a store
            `autoreset_mode`, `step_callback`, `episode_callback` and `cast`.

    Raises:
        InvalidArgumentError: not exactly one of steps and episodes; a count below 1; an unknown option,
            or one without effect; an answer of the policy that has extras which are no mapping; a list of
            seeds or options that is too short (with `steps`, when the episode begins that has none); seeds or
            options for every episode and a vector environment that is neither a SyncVectorEnv nor an
            AsyncVectorEnv; a seed or options for a pool; a mapping by agent that lacks an agent, or for an
            environment without several; `render` and a pool, or an environment without a render mode.
        SpaceMismatchError: the spaces are not the store's; an action or an observation does not fit; the
            policy answered for another number of environments.
        RecorderStateError: the recorder or the vector environment is closed.
        StoreAccessError: the store cannot be written; what was recorded is in the journal.
        KeyboardInterrupt: Ctrl-C was pressed. What was recorded is sealed, and the attribute `stats` of the
            exception has the `CollectStats` so far; it has none if a second Ctrl-C interrupted the sealing.
    """
    expect(on_interrupt in ("raise", "return"), "on_interrupt", on_interrupt, "'raise' or 'return'")
    if recording:
        check_options(recording, argument_names(collect))
    check_store(store)
    policy_seed = checked_seed("policy_seed", policy_seed)
    goal = Goal.of(steps, episodes, quotas)
    pool = (
        workers
        if isinstance(workers, WorkerPool | None)
        else ProcessPool(whole_number("workers", workers, 1))
    )
    resets = Resets.of(seed, options, goal)
    chosen = PolicyConfig.of(policy, policy_seed)
    if flag("random", random):
        chosen = replace(chosen, policy=None)
    hooks = Hooks(on_step, on_episode, Display(progress), checked_pause(render))
    if pool is not None:
        stats = _in_workers(pool, goal, chosen, hooks, resets, env_or_envs, store, recording)
    else:
        if policy_seed is None:
            chosen = replace(chosen, seed=derived_seed(resets.seed, _POLICY_SEED))
        stats = Collection(goal, chosen, hooks, resets).run(env_or_envs, store, recording)
    if stats.interrupted and on_interrupt == "raise":
        # Of this very class: the interpreter ends by the signal only for it, which stops a shell's loop too.
        interrupt = KeyboardInterrupt(stats)
        interrupt.stats = stats  # type: ignore[attr-defined]
        raise interrupt
    return stats


def _in_workers(
    pool: WorkerPool,
    goal: Goal,
    chosen: PolicyConfig,
    hooks: Hooks,
    resets: Resets,
    make_env: Any,
    store: OpenStore | None,
    recording: RecordingOptions,
) -> CollectStats:
    """Collect in workers, and warn of each that died."""
    if store is None:
        check_source(make_env)
        with temporary_store(make_env) as own:
            kept: Any = options_without_store(recording)
            return _in_workers(pool, goal, chosen, hooks, resets, make_env, own, kept).unrecorded()
    root = store.handle.layout.root
    config = WorkerConfig(
        url=str(root),
        storage_options=root.options,
        make_env=make_env,
        policy=chosen,
        on_step=hooks.on_step,
        on_episode=hooks.on_episode,
        render=hooks.render,
        recording=recording,
        progress=hooks.display.wanted,
    )
    return _warned(collect_in_workers(pool, resets, goal, config, hooks.display, store), pool.depth)


def _warned(stats: CollectStats, depth: int) -> CollectStats:
    """Warn the caller of `collect` of each worker that died."""
    for report in stats.failures:
        recovered = " Its journal was recovered." if report.recovered else ""
        run = report.run_id or "no run yet"
        code = "" if report.exit_code is None else f" with exit code {report.exit_code}"
        warnings.warn(
            f"Worker {report.index} of {len(stats.workers)} ({run}) died{code}."
            f"{recovered} {report.steps} steps of it are in the store.\n{report.failure}",
            RuntimeWarning,
            stacklevel=4 + depth,
        )
    return stats
