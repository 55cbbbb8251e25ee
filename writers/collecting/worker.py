"""A worker of `collect`, and the episodes of one that died, read from the episodes table."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import polars as pl

from ...store.delta.version import TableVersion
from ...store.layout import EPISODES, Layout
from ...store.manifest import read_manifest
from ...store.parquet.files import open_parquet
from ...store.schema import StoreHandle
from ..recorders.choice import EnvSource, make
from .actor import PolicyConfig
from .collection import Collection, RecordingOptions, opened
from .display import Display, StopSignal
from .goal import Goal, Resets
from .loop import Hooks, OnEpisode, OnStep
from .stats import CollectStats, episode_schema
from .unrecorded import Opened


def recorded_episodes(layout: Layout, run_id: str, reward_shape: tuple[int, ...]) -> pl.DataFrame:
    """Return the episodes of a run that readers can see now, in the order of their ends.

    Returns:
        A frame with the columns of `CollectStats.ended`.

    Raises:
        CorruptStoreError: a file of the table is damaged.
    """
    schema = {**episode_schema(reward_shape), "ended_at": pl.Datetime("us", "UTC")}
    frames = [pl.DataFrame(schema=schema)]
    for file in TableVersion(layout.table(EPISODES)).files():
        if file.may_hold_run(run_id):
            parquet = open_parquet(layout.table(EPISODES) / file.name)
            names = [name for name in parquet.schema_arrow.names if name in schema]
            rows = pl.DataFrame(parquet.read(columns=["run_id", *names])).filter(pl.col("run_id") == run_id)
            frames.append(rows.select(pl.col(name).cast(schema[name]) for name in names))
    return pl.concat(frames, how="diagonal").sort("ended_at", maintain_order=True).drop("ended_at")


@dataclass(frozen=True)
class WorkerConfig:
    """Settings that all workers share.

    Attributes:
        url, storage_options: the store.
        make_env: makes the environment.
        policy: the source of actions; each worker has another seed.
        on_step, on_episode: hooks; they run in the worker.
        render: the pause after each rendered step; None for no rendering.
        recording: options of the recorder.
        progress: whether to report progress.
    """

    url: str
    storage_options: dict[str, str] | None
    make_env: EnvSource
    policy: PolicyConfig
    on_step: OnStep | None
    on_episode: OnEpisode | None
    render: float | None
    recording: RecordingOptions
    progress: bool


@dataclass(frozen=True)
class Share:
    """The task of one worker.

    Attributes:
        index: counts the workers from 0.
        goal: its part.
        resets: seeds and options of its environment.
        policy_seed: of its sampling and its policy; None for none.
    """

    index: int
    goal: Goal
    resets: Resets
    policy_seed: int | None


def work_share(
    report: Callable[[str, Any], Any], config: bytes, share: Share, stop: StopSignal
) -> CollectStats | str:
    """Do a share of a collection.

    Args:
        report: called with ("run", its id), and then with ("progress", a `CollectProgress`).
        config: a pickled `WorkerConfig`.
        share: what to do.
        stop: asks for an early end.

    Returns:
        The result, or the traceback of what was raised.
    """
    try:
        return _work(report, _unpickled(config), share, stop)
    except BaseException:
        return traceback.format_exc()


def _unpickled(config: bytes) -> WorkerConfig:
    """Unpickle a config; the error of a function of the main script says where it may be defined."""
    try:
        return pickle.loads(config)
    except AttributeError as error:
        if "main__'" in str(error):
            error.add_note(
                "Workers import the main script without what is below `if __name__ == '__main__':`, and know "
                "nothing that was defined at a prompt or in a notebook. Define what `collect` is given above "
                "that line, or in a module."
            )
        raise


def _work(
    report: Callable[[str, Any], Any], config: WorkerConfig, share: Share, stop: StopSignal
) -> CollectStats:
    display = Display(partial(report, "progress") if config.progress else False)
    hooks = Hooks(config.on_step, config.on_episode, display, config.render)
    policy = replace(config.policy, seed=share.policy_seed)
    collection = Collection(share.goal, policy, hooks, share.resets, stop)
    store = Opened(open_handle(config.url, config.storage_options))
    env = make(config.make_env)
    try:
        collection = collection.fitted(env, store)
        recorder = opened(env, store, cast(RecordingOptions, _recording(config.recording, share.index)))
        report("run", recorder.run_id)
        return collection.with_new(recorder, store)
    finally:
        env.close()


def _recording(recording: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the recorder's options, with the worker's number in the run's name and metadata."""
    metadata = {"worker": index, **(recording.get("metadata") or {})}
    return {**recording, "run": f"{recording.get('run') or 'run'}-w{index}", "metadata": metadata}


def open_handle(url: str, storage_options: Mapping[str, str] | None) -> StoreHandle:
    """Return an open store, without a reader."""
    layout = Layout.at(url, storage_options)
    manifest = read_manifest(layout)
    return StoreHandle(layout.of_store(manifest.store_id), manifest)
