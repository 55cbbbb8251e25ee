"""Runs: their options and headers, and claims to the journal directory that only one live writer has.

Options say when rows reach the journal, when episodes become visible and which values are cast. `NotCopyable`
is the base of everything that holds an open run.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, SupportsIndex, TypedDict, get_args

from ...store.common.arguments import positive_number, whole_number
from ...store.common.suggestions import suggest
from ...store.dynamic.values import dump_json, freeze
from ...store.errors import CorruptStoreError, InvalidArgumentError, RecorderStateError
from ...store.files import guard_access, sync_path
from ...store.files.locks import FileLock, wait_for
from ...store.files.system import state_of
from ...store.handle import StoreHandle
from ...store.journal.episodes import timestamp_now
from ...store.journal.records import RunHeader
from ...store.journal.run_journal import check_journals, lock_path
from ...store.maintenance.operation import settle
from ...store.maintenance.recovery import recover
from ...store.names import DEFAULT_RUN, time_ordered_suffix
from ...store.spaces.coerce import Cast
from .environment import KeptEnv, keep_env

Durability = Literal["flush", "fsync", "none"]


class SessionKeywords(TypedDict, total=False):
    """The attributes of `SessionOptions` as keyword arguments of whatever opens a run."""

    durability: Durability
    flush_seconds: float
    flush_steps: int | None
    seal_seconds: float
    seal_steps: int | None
    seal_episodes: int | None
    segment_bytes: int
    cast: Cast


@dataclass(frozen=True)
class SessionOptions:
    """When a session writes to the disk, and which values it casts.

    Attributes:
        durability: "flush" (rows survive the process), "fsync" (rows survive the machine) or "none"
            (rows reach the journal when the row buffer is full or `flush_steps` asks, no sooner).
        flush_seconds: rows reach the journal after this time at the latest; not used with "none".
        flush_steps: rows reach the journal as soon as this many wait, before the call that brings the last of
            them returns. A reset is a row, and so is the arrival of each agent or sub-environment.
        seal_seconds: finished episodes become visible to readers after about this time at the latest.
        seal_steps, seal_episodes: finished episodes are sealed in the background as soon as they have this
            many steps, or are this many. While a segment is written they gather for the next.
        segment_bytes: finished episodes are sealed as soon as the journal holds about this much.
        cast: "no" takes arrays whose dtype the space's dtype holds exactly. "safe" and "same_kind" also take
            what `numpy.can_cast` allows by that rule, rounded to the space's dtype: float64 in a float32
            space with "same_kind". A number outside the range of the space's dtype is an error either way.
    """

    durability: Durability = "flush"
    flush_seconds: float = 1.0
    flush_steps: int | None = None
    seal_seconds: float = 60.0
    seal_steps: int | None = None
    seal_episodes: int | None = None
    segment_bytes: int = 64 << 20
    cast: Cast = "no"

    @staticmethod
    def of(given: Mapping[str, Any]) -> SessionOptions:
        """Return the options that keyword arguments state.

        Raises:
            InvalidArgumentError: one is unknown, or makes no sense.
        """
        names = list(SessionOptions.__annotations__)
        for name in given:
            if name not in names:
                raise InvalidArgumentError(
                    f"There is no option {name!r}.{suggest(name, names)} The options of a run are "
                    f"{', '.join(names)}; all other arguments are in the documentation of this call."
                )
        return SessionOptions(**given)

    @property
    def seals_by_count(self) -> bool:
        """Whether the number of finished episodes or their steps can cause a seal."""
        return self.seal_steps is not None or self.seal_episodes is not None

    def __post_init__(self) -> None:
        for name, choices in (("durability", Durability), ("cast", Cast)):
            value, known = getattr(self, name), get_args(choices)
            if not isinstance(value, str) or value not in known:
                expected = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
                raise InvalidArgumentError(f"{name}={value!r} is unknown; expected {expected}.")
        for name in ("flush_seconds", "seal_seconds"):
            object.__setattr__(self, name, positive_number(name, getattr(self, name)))
        for name in ("segment_bytes", "flush_steps", "seal_steps", "seal_episodes"):
            value = getattr(self, name)
            if value is not None or name == "segment_bytes":
                object.__setattr__(self, name, whole_number(name, value, 1))


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 80


def new_run_id(name: str | None) -> str:
    """Return the run's name (or "run") with a short suffix that is unique and grows with time.

    The suffix lets any number of machines make ids without asking each other.
    """
    readable = _UNSAFE.sub("-", name or DEFAULT_RUN).strip(".-")[:_LONGEST_NAME] or DEFAULT_RUN
    return f"{readable}-{time_ordered_suffix()}"


def run_header(
    name: str | None, metadata: Mapping[str, Any] | None, env: Any, kept: KeptEnv | None = None
) -> RunHeader:
    """Describe a run that begins now.

    Args:
        name: a readable name.
        metadata: what to keep with the run.
        env: its environment, of any kind; None without one.
        kept: what is kept of the environment, if that was worked out already.

    Raises:
        InvalidArgumentError: the name is no text, or the metadata no mapping.
    """
    if not isinstance(name, str | None):
        raise InvalidArgumentError(f"run={name!r}: expected text, a readable name for the run.")
    if not isinstance(metadata, Mapping | None):
        raise InvalidArgumentError(f"metadata={metadata!r}: expected a mapping.")
    kept = kept or keep_env(None, env)
    return RunHeader(
        run_id=new_run_id(name),
        name=name or DEFAULT_RUN,
        started_at=timestamp_now(),
        env_spec=kept.env_spec,
        versions=kept.versions,
        metadata=dump_json(freeze(metadata or {})),
        env_bundle=kept.env_bundle,
    )


#: Patient: a process that looks at a lock may be stopped while it has it.
_CLAIM_SECONDS = 30.0


def claim_run(directory: Path) -> FileLock:
    """Take the lock of a run, then make its journal directory.

    Raises:
        StoreAccessError: the directory cannot be made.
        RecorderStateError: another writer has it.
    """
    check_journals(directory.parent)
    with guard_access("create the journal", directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        # A recovery may hold the lock, to see if it is a stray one.
        lock = wait_for(lock_path(directory), _CLAIM_SECONDS)
        if lock is None:
            raise RecorderStateError(f"The run {directory.name!r} is being written already.")
        try:
            directory.mkdir()
            sync_path(directory.parent)
        except BaseException:
            # Recovery finds a directory that was made already by its lock.
            gone = False
            with contextlib.suppress(OSError):
                gone = state_of(directory, follow=False) is None
            lock.release(remove=gone)
            raise
    return lock


def recover_others(store: StoreHandle) -> None:
    """Seal what dead writers left; a journal that cannot be read must not keep this writer from working."""
    try:
        recover(store)
        settle(store)
    except CorruptStoreError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=6)


class NotCopyable:
    """The base of recorders, writers and sessions; `copy.copy`, `copy.deepcopy` and `pickle` raise."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            RecorderStateError: always.
        """
        raise RecorderStateError(
            f"Objects of type {type(self).__name__} cannot be copied or pickled: each holds a run's journal "
            "and lock. Open another one on the same store instead, in each process that records."
        )
