"""Ray Data writes steps into a store: tasks stage whole episodes, the driver brings them in by one commit.

Each task imports its rows, as `import_dataset` does, into a store of its own in the target's `.writing`. The
driver merges the stores of the tasks that succeeded. Runs of committed episodes name the write, so a
write that is repeated adds nothing.
"""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from ray.data import Dataset, Datasink
from ray.data.block import BlockAccessor
from ray.data.extensions import ArrowTensorType, ArrowTensorTypeV2, ArrowVariableShapedTensorType

from ... import EpisodeStore
from ... import open as open_store
from ...errors import ConcurrentCommitError, DatasetError, InvalidArgumentError, StoreNotFoundError
from ...exchange.table.mapping import ResolvedMapping
from ...plugin import ImportOptions, Layout, Losses, collected, expect
from ...plugin.engines import import_part, merge_stores, staging
from ...plugin.files import Place, is_folder, scratch, sync_path
from .datasource import check_path

_TENSORS = (ArrowTensorType, ArrowTensorTypeV2, ArrowVariableShapedTensorType)
#: What holds instead of an import's `on_error`.
_NO_SKIPPING = "write_steps skips no episode: repair such episodes in the dataset, or filter them out."
#: What to do where episodes are torn.
_TOGETHER = (
    "All rows of an episode have to be in one block of the dataset. Bring them together with "
    "dataset.repartition(blocks, keys=['episode_id']), with the columns that name your episodes."
)


@dataclass(frozen=True)
class WriteReport:
    """The result of a write.

    Attributes:
        episodes, steps: what was added, in episodes and transitions.
        present: episodes that an earlier write with the same id had added; then nothing was.
        lost: what did not come over: counts, by a sentence that says what.
    """

    episodes: int
    steps: int
    present: int
    lost: dict[str, int]


@dataclass(frozen=True)
class _Staged:
    """The episodes that a task staged.

    Attributes:
        place: of the task among all.
        path: its store; empty if it staged no episode.
        names: those of the episodes that it has rows of.
        lost: as for `WriteReport`.
    """

    place: int
    path: str
    names: list[str]
    lost: dict[str, int]


class StoreDatasink(Datasink):
    """Brings the rows of a dataset into a store, all or none.

    Args:
        store: the target.
        staging: the folder for the tasks.
        write_id: names the write.
        mapping, last_observation: as for `import_dataset`.
    """

    def __init__(
        self,
        store: EpisodeStore,
        staging: Place,
        write_id: str,
        mapping: Any,
        last_observation: Literal["drop", "repeat", "missing"],
    ) -> None:
        root = store.handle.layout.root
        self._target, self._storage_options = str(root), root.options
        self._staging, self._name = staging, f"ray {write_id}"
        spaces = store.observation_space, store.action_space
        self._options = ImportOptions(mapping, *spaces, last_observation, "auto", trust=False)
        self.report: WriteReport | None = None

    def get_name(self) -> str:
        """Return the name of the tasks."""
        return "Episodelake"

    def write(self, blocks: Iterable[Any], ctx: Any) -> _Staged | None:
        """Stage the episodes of a task.

        Raises:
            DatasetError: the rows do not make whole episodes.
            SpaceMismatchError: a value does not fit the spaces of the store.
            StoreNotFoundError: this machine does not see the folder.
        """
        tables = [BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [table for table in tables if table.num_rows]
        if not tables:
            return None
        if self._staging.local is not None and not is_folder(self._staging.local):
            raise StoreNotFoundError(
                f"This machine does not see {self._staging}. Every machine of the cluster writes there: the "
                "store has to be on a file system that all share, or on an object store."
            )
        rows = pa.concat_tables(map(_plain_columns, tables), promote_options="default")
        mapping = ResolvedMapping.of(self._options.mapping, rows.schema, "The dataset")
        rows = _with_nulls(rows, mapping, tables[0].schema)
        named = rows.group_by(list(mapping.episode)).aggregate([]).to_pylist()
        # A task that is tried again, while the first attempt may live, has a folder of its own.
        place = self._staging / f"{ctx.task_idx:06}-{uuid.uuid4().hex}"
        try:
            with TemporaryDirectory(prefix="episodelake-") as folder:
                into = place.local or Path(folder, "store")
                with scratch(into):
                    report = import_part(rows, into, self._name, self._options)
                if place.local is None and report.episodes:
                    _upload(into, place)
                elif report.episodes:
                    _sync_segments(into)
        except DatasetError as error:
            error.add_note(f"{_NO_SKIPPING} {_TOGETHER}")
            raise
        names = [", ".join(map(str, row.values())) for row in named]
        return _Staged(ctx.task_idx, str(place) if report.episodes else "", names, dict(report.lost))

    def on_write_complete(self, write_result: Any) -> None:
        """Bring the staged episodes into the store, in one commit, in the order of the tasks.

        Raises:
            DatasetError: an episode has rows in several tasks; nothing was committed.
        """
        staged = sorted(
            (each for each in write_result.write_returns if each is not None), key=lambda each: each.place
        )
        counts = Counter(name for each in staged for name in each.names)
        torn = sorted(name for name, count in counts.items() if count > 1)
        if torn:
            raise DatasetError(
                f"Nothing was written: episodes have rows in several blocks ({len(torn)}), such as "
                f"{torn[0]}. {_TOGETHER}"
            )
        views = [self._opened(each.path) for each in staged if each.path]
        if views:
            target = self._opened(self._target).handle
            merge_stores(target, [view.selection() for view in views], check=self._check_absent)
        steps = sum(int(collected(view.episodes.select(pl.col("length").sum())).item()) for view in views)
        lost = Losses()
        for each in staged:
            lost.merge(each.lost)
        self.report = WriteReport(sum(map(len, views)), steps, 0, dict(lost))

    def _check_absent(self) -> None:
        if self.present():
            raise ConcurrentCommitError(
                f"Another process committed the same write ({self._name!r}) into {self._target} meanwhile; "
                "this one was not applied."
            )

    def _opened(self, path: str) -> EpisodeStore:
        return open_store(path, storage_options=self._storage_options)

    def present(self) -> int:
        """Return how many episodes of this write the newest version of the store has."""
        store = self._opened(self._target)
        runs = collected(store.runs)
        if "metadata.imported_from" not in runs.columns:
            return 0
        identity = f"table:{quote(self._name, ' ')}"
        ids = runs.filter(pl.col("metadata.imported_from") == identity)["run_id"].to_list()
        own = pl.col("run_id").is_in(ids)
        return int(collected(store.episodes.select(own.sum())).item())


def _sync_segments(folder: Path) -> None:
    """Make the files durable that the driver links into the target; the others are read and deleted."""
    for file in sorted((folder / "steps").glob("*.parquet")):
        sync_path(file)


def _upload(folder: Path, place: Place) -> None:
    """Copy a closed store into an object store; the file that makes it a store comes last."""
    layout = Layout.at(folder)
    root, journals = layout.root, f"{layout.journals.name}/"
    names = [entry.name for entry in root.entries(deep=True) if not entry.name.startswith(journals)]
    for name in sorted(names, key=Layout.MANIFEST.__eq__):
        (place / name).copy_from(root / name)


def _plain_columns(table: pa.Table) -> pa.Table:
    """Return a block with lists in place of Ray's tensors, nested as the tensors are."""
    for place, field in enumerate(table.schema):
        if isinstance(field.type, _TENSORS):
            values = table.column(place).combine_chunks()
            values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            table = table.set_column(place, field.name, _nested(values.to_numpy(zero_copy_only=False)))
    return table


def _nested(values: np.ndarray) -> pa.Array:
    """Return an array of shape (n, ...) as nested lists of fixed sizes."""
    if values.dtype == object:
        return pa.array([value.tolist() for value in values])
    nested = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        nested = pa.FixedSizeListArray.from_arrays(nested, size)
    return nested


def _with_nulls(rows: pa.Table, mapping: ResolvedMapping, blocks: pa.Schema) -> pa.Table:
    """Return rows with NULL again where tensors of Ray, which have none, are zero for it.

    That is in rows of last observations: they have neither reward nor flags, as far as these are columns that
    can be NULL.

    Args:
        rows: with lists in place of tensors.
        mapping: of their columns.
        blocks: the columns of the blocks.

    Raises:
        DatasetError: rewards have NaN for NULL.
    """
    rewards = mapping.columns_of(mapping.reward)
    tensors = [
        name
        for name in [*rewards, *mapping.columns_of(mapping.action)]
        if isinstance(blocks.field(name).type, _TENSORS)
    ]
    flags = [name for name in (mapping.terminated, mapping.truncated, mapping.done) if name is not None]
    telling = [name for name in (*rewards, *flags) if name not in tensors]
    _check_no_nan(rows, [name for name in rewards if name not in tensors], flags)
    if not telling:
        return rows
    unacted = np.logical_and.reduce([rows.column(name).is_null().to_numpy() for name in telling])
    if not unacted.any():
        return rows
    for name in tensors:
        column = rows.column(name).combine_chunks()
        values = column.filter(pa.array(unacted))
        while pa.types.is_nested(values.type):
            values = values.flatten()
        zero = ~values.to_numpy(zero_copy_only=False).reshape(int(unacted.sum()), -1).any(axis=1)
        mask = unacted.copy()
        mask[unacted] = zero
        column = pc.call_function("if_else", [pa.array(mask), pa.scalar(None, column.type), column])
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _check_no_nan(rows: pa.Table, rewards: Sequence[str], flags: Sequence[str]) -> None:
    """Refuse rows of last observations (by their flags) with NaN where the reward was NULL.

    Raises:
        DatasetError: there are such rows; the message names the column.
    """
    for name in rewards:
        column = rows.column(name)
        if not (flags and pa.types.is_floating(column.type)):
            continue
        last = np.logical_and.reduce([rows.column(flag).is_null().to_numpy() for flag in flags])
        if (np.isnan(column.to_numpy()) & ~column.is_null().to_numpy() & last).any():
            raise DatasetError(
                f"The column {name!r} has NaN in rows of last observations, where it was NULL: batches of "
                "NumPy have no NULL. Change rows with map_batches(..., batch_format='pyarrow'), or 'pandas'."
            )


def write_steps(
    dataset: Dataset,
    path: str | PathLike[str],
    *,
    write_id: str,
    mapping: Any = None,
    last_observation: Literal["drop", "repeat", "missing"] = "missing",
    storage_options: Mapping[str, str] | None = None,
    **write_options: Any,
) -> WriteReport:
    """Write the rows of a dataset into a store as episodes, in one commit.

    Rows are those of a table of steps, as `import_dataset` takes them: `episode_id` and `t` name the episode
    and the step, `observation`, `action`, `reward`, `terminated` and `truncated` are values, `seed` and
    `metadata.<key>` those of the episode, whose first row counts; other names come by a mapping. All rows of
    an episode are in one block of the dataset, as `read_steps` gives them;
    `dataset.repartition(blocks, keys=["episode_id"])` brings them together. In a block, rows may have any
    order if they have `t`. Change rows with `batch_format="pyarrow"`: NumPy has no NULL, which the row of a
    last observation has.

    Nothing is visible before the commit. A write that failed, or whose driver was killed, is repeated with
    the same id: it adds nothing if the first one had been committed. What a killed driver left goes with that
    call, or with `vacuum`.

    Args:
        dataset: the rows.
        path: the store's URL, or its folder on a file system that all machines of the cluster share. The
            store has to exist, since its spaces decide.
        write_id: names this write among all into the store, such as the name of the job with its date.
        mapping, last_observation: as for `import_dataset`.
        storage_options: how to reach an object store; every task gets them.
        write_options: those of `Dataset.write_datasink`, such as `concurrency`.

    Raises:
        StoreNotFoundError: there is no store at `path`.
        InvalidArgumentError: an argument is not valid, or the store has several agents.
        ConcurrentCommitError: another driver runs the same write now, or has committed it meanwhile.
        DatasetError, SpaceMismatchError: rows do not make whole episodes, or do not fit the spaces; a task's
            error comes as one of Ray that is also of this class. Nothing was written.
    """
    valid = isinstance(write_id, str) and write_id and write_id.encode(errors="ignore").decode() == write_id
    expect(valid, "write_id", write_id, "text that names the write")
    expected = "one of Ray Data, as read_steps, ray.data.from_arrow and ray.data.from_pandas return it"
    expect(isinstance(dataset, Dataset), "dataset", dataset, expected)
    check_path(path)
    store = open_store(path, storage_options=storage_options)
    layout = store.handle.layout
    if store.handle.schema.groups:
        raise InvalidArgumentError(f"{store.url} is a store of several agents; rows make episodes of one.")
    name = hashlib.sha256(write_id.encode()).hexdigest()[:12]
    if layout.root.local is None:
        # No lock keeps another driver away.
        name += f"-{uuid.uuid4().hex}"
    with staging(layout, name) as place:
        sink = StoreDatasink(store, place, write_id, mapping, last_observation)
        present = sink.present()
        if present:
            return WriteReport(0, 0, present, {})
        dataset.write_datasink(sink, **write_options)
        return sink.report or WriteReport(0, 0, 0, {})
