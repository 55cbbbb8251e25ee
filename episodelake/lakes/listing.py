"""Read the stores of a lake: those that have changed since, and what a row of `stores()` says of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from ..errors import (
    CorruptStoreError,
    EpisodelakeError,
    InvalidArgumentError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from ..plugin import Layout, QuerySession, RunEnv, Snapshot
from ..plugin.files import Place, access_error, is_passing, read_manifest
from .tables import STORE, LakeSnapshot, connect
from .walk import mapping

#: The year 10000, in milliseconds.
_LATEST = 253_402_300_800_000
_MOMENT = pl.Datetime("ms", "UTC")
_COLUMNS: dict[str, Any] = {
    STORE: pl.String,
    "url": pl.String,
    "version": pl.Int64,
    "episodes": pl.Int64,
    "steps": pl.Int64,
    "env_ids": pl.List(pl.String),
    "created": _MOMENT,
    "updated": _MOMENT,
    "bytes": pl.Int64,
    "error": pl.String,
}


def lake_layout(root: Place) -> Layout:
    """Return the layout of a lake's folder, which is no store and has no journals."""
    return Layout(root, root.local or Path())


@dataclass(frozen=True)
class Entry:
    """A store of a lake as it was when the lake was last looked at.

    Attributes:
        snapshot: its newest version; None if it cannot be read.
        steps: its transitions.
        env_ids: the ids of the environments of its runs.
        error: why it cannot be read.
    """

    snapshot: Snapshot | None = None
    steps: int = 0
    env_ids: tuple[str, ...] = ()
    error: str | None = None

    def row(self, name: str, url: str) -> tuple[Any, ...]:
        """Return its row of `stores()`.

        Raises:
            CorruptStoreError: its logs list impossible files, or it has no time of creation.
        """
        # Names of folders need not be text.
        shown = [each.encode("utf-8", "backslashreplace").decode() for each in (name, url)]
        if self.snapshot is None:
            return (*shown, *[None] * 7, self.error)
        created, size = _created(self.snapshot), self.snapshot.table_bytes
        dated = (*self.snapshot.episode_files, *self.snapshot.run_files)
        last = max((file.moment for file in dated), default=0)
        if not 0 <= last < _LATEST or not 0 <= size < 2**63:
            raise CorruptStoreError(
                f"The logs of {self.snapshot.layout.root} list files of {size} bytes, the last one added "
                f"{last} ms after 1970. They are damaged: restore them from a copy."
            )
        return (
            *shown,
            self.snapshot.version,
            self.snapshot.episode_count,
            self.steps,
            list(self.env_ids),
            created,
            max(created, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=last)),
            size,
            None,
        )


def look(
    root: Place,
    problems: Mapping[str, str | None],
    url_of: Callable[[str], str],
    options: Mapping[str, str] | None,
    before: Mapping[str, Entry],
) -> dict[str, Entry]:
    """Return the stores of a lake by name; only changed ones are read.

    A store that is gone when it is read is left out; one that cannot be read has an error. What the system
    could not read, for now, says nothing about a store and is raised.

    Args:
        root: the lake's.
        problems: the names of its stores, sorted, each with what is wrong with its folder.
        url_of: returns where a store can be read.
        options: how to reach an object store.
        before: what was there at the last look.

    Raises:
        StoreUnavailableError: the system could not read a store, for now.
    """

    def opened(name: str) -> Entry | None:
        if problems[name] is not None:
            return Entry(error=problems[name])
        try:
            entry = _opened(url_of(name), options, before.get(name))
            if entry is not before.get(name):
                # One that no row can be made of must not fail the rows of all.
                entry.row(name, "")
            return entry
        except StoreNotFoundError:
            return None
        except StoreUnavailableError:
            raise
        except EpisodelakeError as error:
            return Entry(error=str(error))

    with mapping(root) as in_turn:
        entries = dict(zip(problems, in_turn(opened, problems), strict=True))
    known = {name: entry for name, entry in entries.items() if entry is not None}
    new = [name for name, each in known.items() if each is not before.get(name) and each.snapshot is not None]
    return {**known, **_counted(lake_layout(root), {name: known[name] for name in new})}


def _created(snapshot: Snapshot) -> datetime:
    """Return when a store was created, in UTC.

    Raises:
        CorruptStoreError: `store.json` has no such time.
    """
    try:
        moment = datetime.fromisoformat(snapshot.manifest.created_at)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise CorruptStoreError(
            f"{snapshot.layout.manifest} says that the store was created at "
            f"{snapshot.manifest.created_at!r:.100}; expected a time such as '2026-01-31T12:00:00+00:00'. "
            "Restore the file from a copy."
        ) from error


def _opened(url: str, options: Mapping[str, str] | None, before: Entry | None) -> Entry:
    """Return the newest version of a store; the same entry if nothing was committed."""
    known = None if before is None else before.snapshot
    if before is not None and known is not None and str(known.layout.root) == url:
        try:
            newest = Snapshot(known.layout, known.manifest, after=known)
            return before if newest.commits == known.commits else Entry(newest)
        except StoreNotFoundError:
            pass  # another store may have taken its place
    layout = Layout.at(url, options)
    manifest = read_manifest(layout)
    return Entry(Snapshot(layout.of_store(manifest.store_id), manifest))


def _counted(layout: Layout, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return some entries with their steps and environments, or with the error of their files."""
    snapshots = {name: each.snapshot for name, each in entries.items() if each.snapshot is not None}
    if not snapshots:
        return {}
    try:
        steps, envs = _figures(LakeSnapshot(layout, snapshots))
    except (duckdb.Error, pa.ArrowException, OSError, EpisodelakeError) as error:
        # An option of the call says nothing about a store.
        if isinstance(error, StoreUnavailableError | InvalidArgumentError):
            raise
        if is_passing(error):
            raise access_error(f"Could not read the stores of {layout.root}", error, layout.root) from error
        if len(entries) == 1:
            ((name, snapshot),) = snapshots.items()
            return {name: Entry(error=_reason(snapshot, error))}
        names = list(entries)
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        return {
            name: entry
            for half in halves
            for name, entry in _counted(layout, {each: entries[each] for each in half}).items()
        }
    return {
        name: replace(entry, steps=steps.get(name, 0), env_ids=tuple(envs.get(name, ())))
        for name, entry in entries.items()
    }


def _figures(lake: LakeSnapshot) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the steps and the ids of environments of stores, from two small columns of all of them."""
    agents = "coalesce(len(agents), 1)" if "agents" in lake.shown_schema("episodes").names else "1"
    with connect(lake, read_only=False) as connection:
        counted = connection.sql(f"SELECT store, sum(row_count - {agents})::BIGINT FROM episodes GROUP BY 1")
        steps = dict(counted.fetchall())
        envs: dict[str, list[str]] = {}
        for store, spec in connection.sql(
            "SELECT DISTINCT store, env_spec FROM runs ORDER BY ALL"
        ).fetchall():
            ids = envs.setdefault(store, [])
            env_id = RunEnv("", None, spec, None, None).env_id
            ids += [env_id] if env_id is not None and env_id not in ids else []
    return steps, envs


def _reason(snapshot: Snapshot, error: Exception) -> str:
    """Return why a store cannot be read, with the damaged file where there is one."""
    try:
        of_engine = error if isinstance(error, duckdb.Error) else None
        QuerySession.name_damaged(snapshot, of_engine, ("episodes", "runs"))
    except EpisodelakeError as named:
        return str(named)
    return str(error)


def checked(root: Place, entries: Mapping[str, Entry], *, pages: bool = False) -> dict[str, Entry]:
    """Return entries after a comparison of their files of episodes and runs with the logs, which engines do
    not make; stores with damaged files have an error.

    Args:
        root: the lake's.
        entries: the stores.
        pages: compare every page with its checksum, too.
    """

    def check(entry: Entry) -> Entry:
        if entry.snapshot is not None:
            try:
                for table in ("episodes", "runs"):
                    entry.snapshot.places(table, pages=pages)
            except StoreUnavailableError:
                raise
            except EpisodelakeError as error:
                return Entry(error=str(error))
        return entry

    with mapping(root) as in_turn:
        return dict(zip(entries, in_turn(check, entries.values()), strict=True))


def stores_frame(root: Place, entries: Mapping[str, Entry]) -> pl.DataFrame:
    """Return one row per store."""
    rows: Sequence[tuple[Any, ...]] = [entry.row(name, str(root / name)) for name, entry in entries.items()]
    return pl.DataFrame(rows, _COLUMNS, orient="row")
