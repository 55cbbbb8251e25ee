"""Run headers, and `RunOwner`, the base of recorders and writers."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata as packages
from types import ModuleType, TracebackType
from typing import Any, Generic, Self, TypeVar

from ...store.common.arguments import expect
from ...store.dynamic.values import dump_json, freeze
from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.journal.episodes import timestamp_now
from ...store.journal.records import RunHeader
from ...store.layout import time_ordered_suffix
from ...store.names import DEFAULT_RUN
from ...store.recovery.recovery import recover
from ...store.schema import OpenStore, StoreHandle
from .journal import NotCopyable, SessionOptions
from .row_source import RowSource
from .session import RunSession, finish_closing

Rows = TypeVar("Rows", bound=RowSource)


class RunOwner(NotCopyable, Generic[Rows]):
    """The base of all recorders and of `EpisodeWriter`."""

    _session: RunSession[Rows]

    def _open_run(
        self,
        store: OpenStore,
        header: RunHeader,
        options: SessionOptions | None,
        rows: Callable[[RunSession[Any]], Rows],
    ) -> Rows:
        """Seal the journals of dead writers, begin the run and return its row source."""
        store.handle.layout.root.check_exclusive()
        _recover_others(store.handle)
        self._session = RunSession(store.handle, header, options or SessionOptions(), rows, self)
        return self._session.rows

    @property
    def session(self) -> RunSession[Rows]:
        """The run that it writes."""
        return self._session

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._session.header.run_id

    def flush(self) -> None:
        """Bring everything recorded so far into the journal, as durably as `durability` says.

        With `durability="fsync"` it then survives a crash of the machine, otherwise the end of the process.

        Raises:
            StoreAccessError: the journal cannot be written; nothing is lost, call again.
            RecorderStateError: it is closed.
        """
        self._end_finished()
        self._session.flush()

    def seal(self) -> None:
        """Make all finished episodes visible to readers, and wait for it.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; nothing is lost, call again.
        """
        self._end_finished()
        self._session.seal()

    def close(self) -> None:
        """End open episodes, seal everything and finish the run; a second call does nothing.

        Raises:
            StoreAccessError, ConcurrentCommitError: sealing failed; the journal keeps everything, call again.
        """
        self._session.close()

    def _end_finished(self) -> None:
        """End episodes that have finished and that the session does not know as ended yet."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an exception from within the block passes on."""
        self.close()


def _recover_others(store: StoreHandle) -> None:
    """Seal the journals of dead writers; one that cannot be read must not stop this writer."""
    try:
        recover(store)
    except CorruptStoreError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=5)


def recover_unclosed(store: StoreHandle) -> None:
    """Commit the episodes of writers of this process that failed to close, and of dead writers.

    Raises:
        StoreAccessError, ConcurrentCommitError: that is not possible for now; nothing is lost, call again.
    """
    finish_closing(store)
    # Those that were given up have left their journals.
    with contextlib.suppress(CorruptStoreError):  # each new writer warns of it
        recover(store)


@dataclass(frozen=True)
class KeptEnv:
    """The environment in the row of a run: three JSON texts, None where there is nothing to say."""

    env_spec: str | None
    versions: str
    env_bundle: str | None


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 80


def new_run_id(name: str | None) -> str:
    """Return the run's name (or "run") with a short suffix that is unique and grows with time.

    The suffix lets any number of machines make ids without asking each other.
    """
    readable = _UNSAFE.sub("-", name or DEFAULT_RUN).strip(".-")[:_LONGEST_NAME] or DEFAULT_RUN
    return f"{readable}-{time_ordered_suffix()}"


def run_header(
    name: str | None, metadata: Mapping[str, Any] | None, kept: KeptEnv | None = None
) -> RunHeader:
    """Describe a run that begins now.

    Args:
        name: a readable name.
        metadata: what to keep with the run.
        kept: the record of its environment, from `keep_env`; None without an environment.

    Raises:
        InvalidArgumentError: the name is no text, or the metadata no mapping.
    """
    expect(isinstance(name, str | None), "run", name, "text, a readable name for the run")
    expect(isinstance(metadata, Mapping | None), "metadata", metadata, "a mapping")
    kept = kept or KeptEnv(None, json.dumps(versions_of((), (), ())), None)
    return RunHeader(
        run_id=new_run_id(name),
        name=name or DEFAULT_RUN,
        started_at=timestamp_now(),
        env_spec=kept.env_spec,
        versions=kept.versions,
        metadata=dump_json(freeze(metadata or {})),
        env_bundle=kept.env_bundle,
    )


_ALWAYS = ("episodelake", "gymnasium", "numpy")


def versions_of(classes: Iterable[type], modules: Iterable[str], extra: Sequence[str]) -> dict[str, str]:
    """Distribution to version: of Python, of these classes' modules and what they import, and of others.

    Args:
        classes: of the environment and its wrappers.
        modules: more modules, by their dotted names.
        extra: distributions or modules that the caller names.

    Raises:
        InvalidArgumentError: one that the caller names is not installed.
    """
    versions = {"python": platform.python_version()}
    tops = dict.fromkeys([*_ALWAYS, *(name.partition(".")[0] for name in modules), *_imported(classes)])
    for top in tops:
        if top not in sys.stdlib_module_names and top not in ("", "__main__"):
            versions.update(_installed(top))
    for name in extra:
        there = _installed(name) if isinstance(name, str) else ()
        if not there:
            raise InvalidArgumentError(
                f"packages={list(extra)!r}: {name!r} is not installed here. Name distributions as pip does."
            )
        versions.update(there)
    return versions


def _imported(classes: Iterable[type]) -> Iterator[str]:
    """Top-level packages of classes and their bases, and of modules that these import."""
    names = {base.__module__ for each in classes for base in each.__mro__}
    for name in sorted(names - {"__main__"}):
        yield name.partition(".")[0]
        for value in list(vars(sys.modules.get(name, object)).values()):
            if isinstance(value, ModuleType):
                yield value.__name__.partition(".")[0]


@cache
def _installed(name: str) -> tuple[tuple[str, str], ...]:
    """Name and version of the distribution of a name or of a module; nothing for a module of none."""
    try:
        there = packages.distribution(name)
    except (packages.PackageNotFoundError, ValueError):
        # Names differ (cv2, opencv-python): searching all distributions is slow, so it comes second.
        there = _owner(name) if name.isidentifier() else None
    return ((str(there.metadata["Name"]), str(there.version)),) if there else ()


def _owner(module: str) -> packages.Distribution | None:
    """Return the first distribution with a top-level module; `packages_distributions` reads them all."""
    listed = re.compile(rf"^{module}(/|(\.[^/,]*)?\.(py|so|pyd),)", re.MULTILINE)
    for there in packages.distributions():
        declared = (there.read_text("top_level.txt") or "").split()
        if module in declared if declared else listed.search(there.read_text("RECORD") or ""):
            return there
    return None
