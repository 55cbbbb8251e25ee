"""`map_episodes`: values of a function of episodes become annotations, computed on an engine, committed once.

Each group of neighbouring episodes gives a file in a staging folder; one commit takes them all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ..readers.context import SqlCondition
from ..readers.episode import Episode, MultiAgentEpisode
from ..readers.frames import collected
from ..readers.tasks import Address
from ..readers.view import ReadView
from ..store.annotations.annotations import (
    annotate_episodes,
    annotate_steps,
    check_new,
    storable_type,
    widened,
)
from ..store.common.arguments import expect, one_of
from ..store.common.engines import Engine
from ..store.common.progress import Progress
from ..store.errors import (
    ComputationError,
    InvalidArgumentError,
    StoreAccessError,
)
from ..store.files import Place
from ..store.files.local import LocalPlace
from ..store.layout import EPISODES, STEPS
from ..store.names import AGENT_ID
from ..store.schema import StoreHandle
from ..store.segments.seal import Tables
from ..store.staging import staging

Of = Literal["step", "episode"]
OnError = Literal["raise", "skip"]
_ID = "episode_id"
#: At most so many groups; they have so many rows at least, unless there are fewer groups than this.
_GROUPS, _GROUP_ROWS, _FEW_GROUPS = 200, 16_384, 16
_SKIPPED = b"skipped"
_EMPTY_LIST = pa.list_(pa.null())


@dataclass(frozen=True)
class MapReport:
    """The result of `map_episodes`.

    Attributes:
        episodes: how many have got values.
        resumed: how many of them an interrupted call had computed.
        present: whether an earlier call with this `job_id` had committed; then nothing was computed.
        skipped: for `on_error="skip"`, the ids of the episodes without values, and why.
    """

    episodes: int
    resumed: int = 0
    present: bool = False
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class EpisodeMap:
    """A function over episodes of one version, for groups of them; it is pickled for tasks.

    Attributes:
        function: gets an episode, or one agent of it where there are several and steps get values.
        names: of the annotations.
        single: whether the function returns the values themselves, and no mapping of names.
        of: "step" or "episode".
        skip: whether episodes whose values fail are left out.
    """

    function: Callable[[Episode], Any]
    names: tuple[str, ...]
    single: bool
    of: Of
    skip: bool
    address: Address

    def __call__(self, positions: np.ndarray) -> pa.Table:
        """Return keys and values of the episodes at these positions; the metadata has those left out."""
        tables: list[pa.Table] = []
        skipped: list[tuple[str, str]] = []
        for episode in ReadView(self.address.open().context.choose(positions)):
            try:
                tables += self._values_of(episode)
            except StoreAccessError:
                raise  # reading failed for now, which is no reason to leave the episode out
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".rstrip(".")
                if not self.skip:
                    raise ComputationError(
                        f"The function failed for the episode {episode.id!r}: {reason}. "
                        "Nothing was committed."
                    ) from error
                skipped.append((episode.id, reason))
        return joined(tables).replace_schema_metadata({_SKIPPED: json.dumps(skipped)})

    def _values_of(self, episode: Episode) -> list[pa.Table]:
        if self.of == "episode":
            values = self._named(self.function(episode))
            return [pa.table({_ID: [episode.id]} | {name: _cell(name, values[name]) for name in values})]
        if isinstance(episode, MultiAgentEpisode):
            members = map(episode.agent, episode.agents)
            return [self._steps_of(member, {AGENT_ID: member.agent_id}) for member in members]
        return [self._steps_of(episode, {})]

    def _steps_of(self, episode: Episode, agent: dict[str, str]) -> pa.Table:
        values = self._named(self.function(episode))
        count = len(episode) + 1
        keys = {name: pa.repeat(pa.scalar(key), count) for name, key in {_ID: episode.id, **agent}.items()}
        columns = {name: _column(name, values[name], count) for name in values}
        return pa.table(keys | {"t": pa.array(np.arange(count))} | columns)

    def _named(self, result: Any) -> dict[str, Any]:
        if self.single:
            return {self.names[0]: result}
        if not isinstance(result, Mapping) or set(result) != set(self.names):
            shown = list(result) if isinstance(result, Mapping) else type(result).__name__
            raise InvalidArgumentError(f"it returned {shown}; expected a dict of {', '.join(self.names)}")
        return {name: result[name] for name in self.names}


def _column(name: str, values: Any, count: int) -> pa.Array:
    """Return the values of the T + 1 rows of an episode; NULL in the last one if there are T."""
    array = _array(values)
    if len(array) not in (count - 1, count):
        raise InvalidArgumentError(
            f"{name!r} has {len(array)} values; expected {count - 1} (one for each transition) or {count} "
            "(one for each observation)"
        )
    array = _storable(name, array)
    return pa.concat_arrays([array, pa.nulls(count - len(array), array.type)])


def _cell(name: str, value: Any) -> pa.Array:
    """Return the value of an episode: a scalar, or a list of them."""
    if value is None or isinstance(value, str):
        return _storable(name, _array([value]))
    if np.ndim(value) == 0:
        return _storable(name, _array([value.item() if hasattr(value, "item") else value]))
    flat = _array(value)
    return _storable(name, pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat))


def _array(values: Any) -> pa.Array:
    """Return values along their first axis; those of two axes are lists."""
    if isinstance(values, pl.Series):
        values = values.to_arrow()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, list | tuple):
        return pa.array(values)
    array = np.asarray(values)
    if not 1 <= array.ndim <= 2:
        raise InvalidArgumentError(
            f"it returned {type(values).__name__} of the shape {array.shape}; a step has a number, "
            "a text or a vector"
        )
    masked = np.ma.getmaskarray(values).reshape(-1) if isinstance(values, np.ma.MaskedArray) else None
    flat = pa.array(np.ascontiguousarray(array).reshape(-1), mask=masked)
    if array.ndim == 1:
        return flat
    return pa.ListArray.from_arrays(pa.array(np.arange(len(array) + 1) * array.shape[1], pa.int32()), flat)


def _storable(name: str, array: pa.Array) -> pa.Array:
    return array if _is_untyped(array.type) else array.cast(storable_type(name, array.type))


def _is_untyped(kind: pa.DataType) -> bool:
    """Return whether values are None, or lists without any value."""
    return pa.types.is_null(kind) or kind == _EMPTY_LIST


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of tables; integers become doubles where others of their column are.

    Raises:
        InvalidArgumentError: a column has two types, or an integer is not exact.
    """
    if not tables:
        return pa.table({_ID: pa.array([], pa.string())})
    types = _Types()
    for table in tables:
        types.add(table)
    schema = pa.schema([(field.name, types.common(field.name) or field.type) for field in tables[0].schema])
    try:
        return pa.concat_tables([table.cast(schema) for table in tables])
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            f"The values have integers and doubles, and not all integers are exact as doubles: {error}. "
            "Nothing was committed. Return one type."
        ) from error


class _Types:
    """The types of the values so far, each with the first episode that has it."""

    def __init__(self) -> None:
        self._first: dict[str, dict[pa.DataType, str]] = {}

    def add(self, table: pa.Table) -> None:
        """Note the types of the values of some episodes.

        Raises:
            InvalidArgumentError: they and those before have no type in common.
        """
        for field in table.schema if table.num_rows else ():
            if not pa.types.is_null(field.type):
                own = self._first.setdefault(field.name, {})
                own.setdefault(field.type, table.column(_ID)[0].as_py())
                self.common(field.name)

    def common(self, name: str) -> pa.DataType | None:
        """Return the type for all values of a column; None if all are None."""
        first = dict(self._first.get(name, {}))
        if any(kind != _EMPTY_LIST and pa.types.is_list(kind) for kind in first):
            first.pop(_EMPTY_LIST, None)
        kind = widened(list(first)) if first else None
        if first and kind is None:
            (one, here), (other, there), *_ = first.items()
            raise InvalidArgumentError(
                f"The values of {name!r} have the type {one} in the episode {here!r}, and {other} in "
                f"{there!r}. Nothing was committed. Return one type."
            )
        return kind


def _check_types(table: pa.Table, known: Mapping[str, pa.DataType]) -> None:
    """Refuse values that do not fit the annotations that are there.

    Raises:
        InvalidArgumentError: one has another type.
    """
    for name, kind in known.items() if table.num_rows else ():
        given = table.schema.field(name).type
        if not _is_untyped(given) and widened([kind, given]) != kind:
            raise InvalidArgumentError(
                f"The annotation {name!r} has the type {kind}; the function gives {given} for the episode "
                f"{table.column(_ID)[0].as_py()!r} and its neighbours. Nothing was committed. Return {kind}, "
                f"or drop_annotation({name!r}) first, or choose another name."
            )


@dataclass(frozen=True)
class MapJob:
    """The arguments of `map_episodes`, checked.

    Attributes:
        store: where the annotations go.
        of, names, where: as for `EpisodeMap` and the call.
        job_id: names the job; None for one that is not resumed.
    """

    store: StoreHandle
    of: Of
    names: tuple[str, ...]
    where: Any
    job_id: str | None

    @cached_property
    def _transaction(self) -> str | None:
        """The transaction that commits the job once."""
        if self.job_id is None:
            return None
        where = self.where
        if isinstance(where, pl.Expr):
            # Its text leaves values out.
            where = hashlib.sha256(where.meta.serialize()).hexdigest()
        elif where is not None:
            where = str(where)
        identity = json.dumps([self.job_id, self.of, self.names, where])
        return f"map.{hashlib.sha256(identity.encode()).hexdigest()[:12]}"

    def run(
        self, function: Callable[[Address], EpisodeMap], version: int, engine: Engine, progress: Progress
    ) -> MapReport:
        """Compute, and commit; see `EpisodeStore.map_episodes`.

        Args:
            function: returns the map for the address of a version.
            version: the newest one.
        """
        with self._staged() as folder:
            tables = Tables.open(self.store.layout)
            if self._transaction and tables.episodes.applied(self._transaction) >= 0:
                return MapReport(0, present=True)
            known_types = check_new(self.store, STEPS if self.of == "step" else EPISODES, self.names)
            address = self._address(folder, version)
            groups = self._groups(address.open())
            known = set(folder.names())
            names = [f"{group[0]}-{group[-1]}.arrow" for group in groups]
            missing = [place for place, name in enumerate(names) if name not in known]
            types = _Types()
            for name in known.intersection(names):
                types.add(_read(folder / name))
            total = sum(map(len, groups))
            done = resumed = total - sum(len(groups[place]) for place in missing)
            progress(done, total)
            for place, table in engine.run(function(address), [groups[each] for each in missing]):
                _check_types(table, known_types)
                types.add(table)
                _write(folder / names[missing[place]], table)
                done += len(groups[missing[place]])
                progress(done, total)
            return self._commit([_read(folder / name) for name in names], address.version, resumed)

    def _address(self, folder: Place, version: int) -> Address:
        """Return the address of the version that the job began with, which is now unless it waits there."""
        note = folder / "version"
        if note.exists():
            version = int(note.read())
        else:
            note.write(str(version).encode())
        return Address.of(self.store.layout, version)

    def _groups(self, view: ReadView) -> list[np.ndarray]:
        chosen = view if self.where is None else view.filter(self.where)
        rows = view.context.snapshot.pointers.row_count[chosen.positions]
        total = int(rows.sum())
        size = max(total // _GROUPS, min(_GROUP_ROWS, total // _FEW_GROUPS), 1)
        return [chosen.positions[group] for group in Address.groups(rows, size)]

    def _commit(self, tables: list[pa.Table], version: int, resumed: int) -> MapReport:
        skipped = [(key, why) for table in tables for key, why in json.loads(table.schema.metadata[_SKIPPED])]
        table = joined([table for table in tables if table.num_rows])
        for name in self.names if table.num_rows else ():
            if _is_untyped(table.schema.field(name).type):
                raise InvalidArgumentError(
                    f"{name!r} is None or an empty list in every episode. Does the function lack a return? "
                    "Nothing was committed."
                )
        newest = Address.of(self.store.layout, Tables.open(self.store.layout).episodes.version)
        if newest.version != version and table.num_rows:
            # Episodes that were deleted meanwhile have no use for their values.
            ids = collected(newest.open().episodes.select(_ID)).to_arrow().column(_ID).cast(pa.string())
            there = pc.call_function("is_in", [table.column(_ID)], pc.SetLookupOptions(ids.combine_chunks()))
            table = table.filter(there)
        if table.num_rows:
            annotate = annotate_steps if self.of == "step" else annotate_episodes
            annotate(self.store, table, self._transaction)
        return MapReport(len(table.column(_ID).unique()), resumed, skipped=tuple(skipped))

    @contextlib.contextmanager
    def _staged(self) -> Iterator[Place]:
        """Yield the folder for what is computed; that of a job stays after an error."""
        if self._transaction is None:
            with TemporaryDirectory(prefix="episodelake-") as path:
                yield LocalPlace(Path(path))
            return
        with staging(self.store.layout, self._transaction, resume=True) as folder:
            try:
                yield folder
            except Exception as error:
                error.add_note(
                    f"The values computed so far wait in {folder}: the same call with this job_id goes on "
                    "from there. Choose another job_id if you change the function. vacuum() deletes them."
                )
                raise


def _write(place: Place, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    place.write(sink.getvalue().to_pybytes())


def _read(place: Place) -> pa.Table:
    return pa.ipc.open_stream(place.read()).read_all()


def map_episodes(
    store: Any,
    function: Callable[[Episode], Any],
    into: str | Sequence[str],
    of: Of,
    where: pl.Expr | str | SqlCondition | None,
    engine: Engine,
    job_id: str | None,
    on_error: OnError,
    progress: Progress,
) -> MapReport:
    """Compute annotations by a function of an episode; see `EpisodeStore.map_episodes`."""
    single = isinstance(into, str)
    names = (into,) if single else tuple(into) if isinstance(into, Iterable) else ()
    valid = names and len(set(names)) >= len(names)
    expect(valid, "into", into, "the name of an annotation, or several different ones")
    expect(callable(function), "function", function, "a function of an episode")
    one_of("of", of, get_args(Of))
    one_of("on_error", on_error, get_args(OnError))
    expect(
        job_id is None or (isinstance(job_id, str) and job_id), "job_id", job_id, "text that names the job"
    )
    store.refresh()
    job = MapJob(store.handle, of, names, where, job_id)
    mapped = partial(EpisodeMap, function, names, single, of, on_error == "skip")
    return job.run(mapped, store.context.snapshot.version, engine, progress)
