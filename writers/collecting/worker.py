"""A worker of `collect`, and the episodes of one that died, read from the episodes table."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
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


#: How long a worker whose parent is dead may still take to end by itself.
_LAST_SECONDS = 30.0
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerConfig:
    """Settings that all workers share.

    Attributes:
        url, storage_options: the store.
        make_env: makes the environment.
        acting: how actions come about; each worker has another seed.
        on_step, on_episode: hooks; they run in the worker.
        render: the pause after each rendered step; None for no rendering.
        recording: options of the recorder.
        progress: whether to tell how far it is.
    """

    url: str
    storage_options: dict[str, str] | None
    make_env: EnvSource
    acting: PolicyConfig
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


@dataclass(frozen=True)
class _Opened:
    """An open store, as recorders want it."""

    handle: StoreHandle


def work(channel: Connection, orders: bytes, share: Share) -> None:
    """Do a share of a collection and tell the parent; the main function of a worker process."""
    stop, finished = StopSignal(), threading.Event()
    threading.Thread(target=_listen, args=(channel, stop, finished), daemon=True).start()

    def send(*message: Any) -> None:
        with contextlib.suppress(OSError):  # the parent is dead; the recording still counts
            channel.send(message)

    try:
        done = work_share(send, orders, share, stop)
    finally:
        finished.set()
    if not done:
        sys.exit(1)


def _listen(channel: Connection, stop: StopSignal, finished: threading.Event) -> None:
    """Wait until the parent wants the end, or is dead."""
    parent = os.getppid()
    with contextlib.suppress(EOFError, OSError):
        # Whatever the parent forks may keep the channel open after its death, so its id is looked at too.
        while os.getppid() == parent:
            if channel.poll(_LOOK_SECONDS):
                channel.recv()
                stop.ask()
    stop.ask()
    if not finished.wait(_LAST_SECONDS):
        os._exit(1)  # the environment or the policy hangs, and the parent is gone


def work_share(send: Callable[..., Any], orders: bytes, share: Share, stop: StopSignal) -> bool:
    """Do a share of a collection.

    Args:
        send: called with each message: ("run", its id), ("progress", a `CollectProgress`), and at the end
            ("done", a `CollectStats`) or ("failed", a traceback).
        orders: a pickled `WorkerConfig`.
        share: what to do.
        stop: asks for an early end.

    Returns:
        Whether it was done.
    """
    try:
        send("done", _work(send, pickle.loads(orders), share, stop))
    except BaseException:
        send("failed", traceback.format_exc())
        return False
    return True


def _work(send: Callable[..., Any], orders: WorkerConfig, share: Share, stop: StopSignal) -> CollectStats:
    display = Display(partial(send, "progress") if orders.progress else False)
    watching = Hooks(orders.on_step, orders.on_episode, display, orders.render)
    acting = replace(orders.acting, seed=share.policy_seed)
    collection = Collection(share.goal, acting, watching, share.resets, stop)
    store = _Opened(open_handle(orders.url, orders.storage_options))
    env = make(orders.make_env)
    try:
        collection = collection.fitted(env, store)
        recorder = opened(env, store, cast(RecordingOptions, _recording(orders.recording, share.index)))
        send("run", recorder.run_id)
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
