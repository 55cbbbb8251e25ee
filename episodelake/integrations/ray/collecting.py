"""Actors of Ray that play in environments and record, or record for others.

collect        -> ActorPool -> the worker code of `episodelake.collect` in each actor
recorder_actor -> RecorderActor: a writer whose methods return when their rows are durable
"""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false, reportCallIssue=false

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import ray
from ray.cloudpickle import dumps as dumps_by_value
from ray.exceptions import OutOfMemoryError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ... import collect as collect_locally
from ... import open as open_store
from ...errors import InvalidArgumentError
from ...plugin import whole_number
from ...plugin.engines import Share, StopSignal, Worker, WorkerPool, work_share
from ...types import CollectStats
from .datasource import check_path

_PAUSE = 0.1
_GRACE_SECONDS = 10.0


class _WorkerActor:
    """The other end of a `_RemoteWorker`; its three methods run side by side."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._stop = StopSignal()

    def work(self, config: bytes, share: Share) -> None:
        """Do a share of a collection."""
        self._messages.put(("node", ray.get_runtime_context().get_node_id()))
        result = work_share(lambda *message: self._messages.put(message), config, share, self._stop)
        self._messages.put(("done", result))

    def receive(self) -> list[tuple[str, Any]]:
        """Wait for messages, and return them."""
        messages = [self._messages.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                messages.append(self._messages.get_nowait())
        return messages

    def stop(self) -> None:
        """Ask for an early end."""
        self._stop.ask()


def _out_of_memory(error: OutOfMemoryError) -> str:
    """Return the first line of Ray's message, which lists the programs of the node, and what helps."""
    return (
        f"Ray killed it for memory: {_first_line(error).rstrip('.')}. Use fewer actors, or reserve memory "
        "for each, such as actor_options={'memory': 4 << 30}."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@dataclass
class _RemoteWorker(Worker):
    """An actor that collects, seen from the driver.

    Attributes:
        actor: the actor; None once it has ended.
        pending: its next messages.
        node: the id of its node.
        loss: how Ray lost it.
    """

    actor: Any = None
    pending: Any = None
    node: str | None = None
    loss: str = ""

    @property
    def running(self) -> bool:
        """See `Worker`."""
        return self.actor is not None

    def end(self) -> str:
        """See `Worker`."""
        return self.loss

    def receive(self) -> None:
        """Take the messages that came; let an actor go that has ended, so that another takes its place."""
        try:
            for kind, content in ray.get(self.pending):
                if kind == "node":
                    self.node = content
                else:
                    self.take(kind, content)
        except RayError as error:
            self.loss = _out_of_memory(error) if isinstance(error, OutOfMemoryError) else str(error)
            ray.kill(self.actor)  # one that cannot be reached may live
        if self.loss or self.failure or self.stats is not None:
            self.actor = self.pending = None
        else:
            self.pending = self.actor.receive.remote()


class _ActorPool(WorkerPool):
    """Actors of Ray as workers.

    Args:
        count: how many.
        options: those of the actors.
    """

    dumps = staticmethod(dumps_by_value)
    limits = "Actors get functions and classes of a script by their code, and import those of modules."
    depth = 1

    def __init__(self, count: int, options: Mapping[str, Any]) -> None:
        super().__init__(count)
        if "max_concurrency" in options:
            raise InvalidArgumentError(
                "actor_options has 'max_concurrency': collecting decides how many calls an actor takes at "
                "once."
            )
        self._options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **options, "max_concurrency": 3}

    def start(self, config: bytes, shares: Sequence[Share]) -> None:
        """See `WorkerPool`."""
        kind, payload = ray.remote(_WorkerActor).options(**self._options), ray.put(config)
        for share in shares:
            actor = kind.remote()
            actor.work.remote(payload, share)
            self.workers.append(_RemoteWorker(share, actor=actor, pending=actor.receive.remote()))

    def poll(self) -> None:
        """See `WorkerPool`."""
        waited = {worker.pending: worker for worker in self.workers if worker.running}
        for pending in ray.wait(list(waited), num_returns=1, timeout=_PAUSE)[0]:
            waited[pending].receive()

    def request_stop(self) -> None:
        """See `WorkerPool`."""
        for worker in self.workers:
            if worker.running:
                worker.actor.stop.remote()

    def kill(self) -> None:
        """See `WorkerPool`."""
        for worker in self.workers:
            if worker.running:
                ray.kill(worker.actor)

    def __exit__(self, *_: object) -> None:
        """See `WorkerPool`."""
        self.request_stop()
        latest = time.monotonic() + _GRACE_SECONDS
        while any(worker.running for worker in self.workers):
            if time.monotonic() > latest:
                self.kill()
            self.poll()

    def recover(self, store: Any) -> None:
        """Recover what dead actors left, each on its node: the journal of an object store is local there."""
        dead = [worker for worker in self.workers if worker.stats is None]
        root, task = store.layout.root, ray.remote(_recover_there)
        for node in {worker.node for worker in dead if worker.node is not None}:
            runs = self.runs_of([worker for worker in dead if worker.node == node])
            pinned = NodeAffinitySchedulingStrategy(node, soft=False)
            there = task.options(num_cpus=0, scheduling_strategy=pinned)
            try:
                self._mark(*ray.get(there.remote(str(root), root.options, runs)))
            except RayError as error:
                if root.local is not None:
                    self._mark(*self.recover_runs(store, runs))
                else:
                    trouble = f"\nIts journal is on the node {node}, which cannot be reached: {error}"
                    self._mark(dict.fromkeys(runs, False), trouble)


def _recover_there(
    url: str, options: dict[str, str] | None, runs: dict[str, bool]
) -> tuple[dict[str, bool], str]:
    return WorkerPool.recover_at(url, options, runs)


def collect(
    make_env: Any,
    policy: Any,
    path: str | PathLike[str],
    *,
    actors: int,
    storage_options: Mapping[str, str] | None = None,
    actor_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> CollectStats:
    """Let a policy play in actors of Ray, on all machines of the cluster, and record every transition.

    The episodes are those of `episodelake.collect(..., workers=actors)` with the same arguments: the goal is
    split alike, and seeds follow alike from `seed` and the actor's number. An actor that dies is named by a
    warning and in `CollectStats.workers`, its journal is recovered, and the others go on. Actors for which
    there is no room wait until others have ended.

    Args:
        make_env: an environment's id or spec, or a function without arguments that makes one.
        policy: as for `episodelake.collect`. Functions need not be importable.
        path: the store's folder, on a file system that all machines share, or its URL on an object store.
        actors: how many actors, each with a run and an environment of its own.
        storage_options: how to reach an object store.
        actor_options: those of the actors, such as `num_cpus` (1 by default), `num_gpus`, `resources` and
            `runtime_env`.
        options: further arguments of `episodelake.collect`: `steps` or `episodes`, `seed`, hooks, `progress`,
            and those of the recorder. Hooks run in the actors.

    Raises:
        StoreNotFoundError: there is no store at `path`.
        InvalidArgumentError: an argument is not valid or cannot be pickled; or no actor could begin, with the
            traceback of the first.
        KeyboardInterrupt: as for `episodelake.collect`.
    """
    check_path(path)
    if "workers" in options:
        raise InvalidArgumentError(f"workers={options['workers']!r}: here actors= says how many collect.")
    store = open_store(path, storage_options=storage_options)
    pool = _ActorPool(whole_number("actors", actors, 1), actor_options or {})
    return collect_locally(make_env, policy, store, workers=pool, **options)
