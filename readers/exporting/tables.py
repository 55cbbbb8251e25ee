"""The rows of a view as one table: transitions with their next observations, or `steps`.

Every row has `episode`, the number of its episode in the view, and the episode's `seed` and `metadata.*`.
Rows come in the order of the view, a few megabytes at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.dynamic.column_groups import EXTRA, INFO, METADATA, POLICY
from ...store.dynamic.logical_types import with_kind
from ...store.dynamic.values import dump_json, load_json
from ...store.names import EPISODE, next_name
from ...store.spaces import space_to_json
from ..blocks import Block
from ..episodes import iterate_blocks
from ..frames import collected, episodes_frame
from .capabilities import Holds, int64, nothing
from .target import Export, Option

#: The key of the spaces, as JSON, in the metadata of a Parquet file that was exported.
SPACES_KEY = b"episodelake.spaces"
#: The key of the names of the user's own step columns there, as JSON.
EXTRA_KEY = b"episodelake.extra"
#: The key of the card of the store there, as JSON.
CARD_KEY = b"episodelake.card"
#: The key of what a store of rollouts declares there, as JSON.
ROLLOUTS_KEY = b"episodelake.rollouts"
_BATCH_BYTES = 16 << 20
_SEED = "seed"
_HIDDEN = "{} of a run, since metadata of episodes have this key"
#: The option of formats that write tables.
LAYOUT = Option.choice(
    "transitions, with the next observation of each (the default), or the rows of steps",
    "transitions",
    "steps",
)
#: What tables hold, with spaces and the card beside them.
TABLES = Holds.all_but(seed=int64, options=nothing, annotations=True, last_observation="kept")
#: What they hold alone.
BARE_TABLES = replace(TABLES, spaces=None, card=nothing)


class TableExport:
    """The table of an export.

    Args:
        export: of the episodes.
        encode: replaces columns of `steps` with others of the same names, once for each row that is read.
        layout: "transitions" or "steps".
        encoded: columns of frames to leave as they are stored, with the layout "steps".

    Attributes:
        schema: of the table.
        extra: the names of your own step columns, annotations among them.
        dynamic: your own step columns without those, and the columns of infos, policy values and metadata.
    """

    def __init__(
        self,
        export: Export,
        encode: Callable[[pa.Table], pa.Table] | None = None,
        *,
        layout: str,
        encoded: Collection[str] = (),
    ) -> None:
        self._export = export
        self._video = [each for each in export.context.snapshot.schema.video if each.name not in encoded]
        self._snapshot = snapshot = export.context.snapshot
        self._transitions = layout == "transitions"
        added = snapshot.annotation_files.annotations
        self._steps = [field for field in snapshot.shown_schema("steps") if field.name != "episode_id"]
        self._stored = [field for field in self._steps if field.name not in added]
        self.extra = [field.name for field in self._steps if EXTRA.owns(field) or field.name in added]
        shown = snapshot.shown_schema("episodes")
        self._own = [field for field in shown if field.name == _SEED or METADATA.owns(field)]
        self._runs = _RunColumns(export, self._own)
        self._facts = [*self._own, *self._runs.fields]
        self.dynamic = [
            field.name
            for field in (*self._steps, *self._facts)
            if any(group.owns(field) for group in (INFO, POLICY, EXTRA, METADATA))
        ]
        self._following: dict[str, str] = {}
        if self._transitions:
            names = [field.name for field in self._stored if not POLICY.owns(field)]
            self._following = {name: after for name in names if (after := next_name(name)) is not None}
            own = {name: f"next_{name}" for name in self.extra}
            taken = {field.name for field in self._steps}
            self._following |= {name: after for name, after in own.items() if after not in taken}
        self._encode = encode
        written = pa.schema([pa.field(field.name, field.type) for field in self._steps])
        if encode is not None:
            written = encode(written.empty_table()).schema
        # With the kinds of dynamic columns: the shapes and dtypes of arrays.
        of_steps = {field.name: with_kind(written.field(field.name), field) for field in self._steps}
        self.schema = pa.schema(
            [
                pa.field(EPISODE, pa.int64()),
                *of_steps.values(),
                *(of_steps[name].with_name(after) for name, after in self._following.items()),
                *(with_kind(field, field) for field in self._facts),
            ]
        )

    @property
    def file_metadata(self) -> dict[bytes, str]:
        """The metadata of a Parquet file, for an import: spaces, card, own step columns, and rollouts."""
        manifest = self._snapshot.manifest
        spaces = [space_to_json(manifest.observation_space), space_to_json(manifest.action_space)]
        values = {SPACES_KEY: spaces, CARD_KEY: self._export.card, EXTRA_KEY: self.extra}
        if manifest.rollouts is not None:
            values[ROLLOUTS_KEY] = dict(manifest.rollouts)
        return {key: json.dumps(value) for key, value in values.items()}

    def batches(self) -> Iterator[pa.Table]:
        """Yield the rows.

        Raises:
            CorruptStoreError: a file of the store is damaged.
        """
        held: list[pa.Table] = []
        size = done = 0
        for block, members in iterate_blocks(self._export.context):
            rows = self._rows(block, members, done)
            done += len(members)
            held.append(rows)
            size += rows.nbytes
            if size >= _BATCH_BYTES:
                yield pa.concat_tables(held)
                held, size = [], 0
            self._export.progress(done)
        if held:
            yield pa.concat_tables(held)

    def _rows(self, block: Block, members: Sequence[tuple[int, int, int]], done: int) -> pa.Table:
        """Return the rows of some episodes of a block.

        Args:
            members: position, first row and number of rows of each.
            done: the number of the first episode.
        """
        counts = np.array([count for _, _, count in members])
        order = np.concatenate([np.arange(start, start + count) for _, start, count in members])
        owners = np.repeat(np.arange(len(members)), counts)
        steps = self._block_rows(block)
        if self._transitions:
            self._count_last(steps, [start + count - 1 for _, start, count in members])
        if self._encode is not None:
            steps, order = self._encode(steps.take(pa.array(order))), np.arange(len(order))
        if self._transitions:
            acted = np.ones(len(order), bool)
            acted[np.cumsum(counts) - 1] = False
            order, owners = order[acted], owners[acted]
        rows = steps.take(pa.array(order))
        columns: dict[str, Any] = {EPISODE: pa.array(done + owners)}
        columns |= {field.name: rows.column(field.name) for field in self._steps}
        if self._following:
            after = steps.select(list(self._following)).take(pa.array(order + 1))
            columns |= {name: after.column(column) for column, name in self._following.items()}
        if self._facts:
            facts = self._episodes([position for position, _, _ in members]).take(pa.array(owners))
            columns |= {field.name: facts.column(field.name) for field in self._facts}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def _count_last(self, rows: pa.Table, lasts: Sequence[int]) -> None:
        """Count the values of last observations for which a transition has no column."""
        for field in self._steps:
            if POLICY.owns(field) or (field.name in self.extra and field.name not in self._following):
                values = rows.column(field.name).take(pa.array(lasts, pa.int64()))
                what = f"{field.name} at the last observation"
                self._export.losses.add(what, len(values) - values.null_count)

    def _block_rows(self, block: Block) -> pa.Table:
        table = block.shown(self._stored, self._snapshot.overflow("steps"), 0, block.count)
        for video in self._video:
            table = video.decoded(table)
        for name, annotation in self._snapshot.annotation_files.annotations.items():
            table = table.append_column(name, block.added(self._snapshot, annotation, 0, block.count))
        return table

    def _episodes(self, positions: Sequence[int]) -> pa.Table:
        names = [field.name for field in self._own]
        wanted = episodes_frame(self._snapshot, np.array(positions, np.int64))
        frame = collected(wanted.select(*names, "run_id", "wide_seed"))
        self._export.losses.add("a seed beyond 64 bits", frame["wide_seed"].count())
        own = frame.select(names).to_arrow().cast(pa.schema(self._own))
        return self._runs.join(own, frame["run_id"].to_list())


class _RunColumns:
    """The facts of runs as columns of metadata.

    Args:
        export: of the episodes.
        own: the columns of these, which win.

    Attributes:
        fields: the columns that the episodes lack.
    """

    def __init__(self, export: Export, own: Sequence[pa.Field]) -> None:
        facts, self._losses = export.runs.by_run, export.losses
        columns = METADATA.columns_of([*facts.values()])
        types = {field.name: field.type for field in own}
        self._places = {run_id: place for place, run_id in enumerate(facts)}
        self._columns: dict[str, pa.Array] = {}
        for name, (_, values) in columns.items():
            if types.get(name, values.type) == values.type:
                self._columns[name] = values
            else:
                self._losses.add(_HIDDEN.format(name), len(export.context))
        self.fields = [
            pa.field(name, values.type) for name, values in self._columns.items() if name not in types
        ]

    def join(self, own: pa.Table, runs: Sequence[str]) -> pa.Table:
        """Return columns of episodes with those of their runs."""
        places = pa.array([self._places[run] for run in runs], pa.int64())
        for name, values in self._columns.items():
            taken = values.take(places)
            if name not in own.column_names:
                own = own.append_column(name, taken)
                continue
            column = own.column(name).combine_chunks()
            if name != METADATA.json_column:
                both = pc.call_function("and", [column.is_valid(), taken.is_valid()])
                self._losses.add(_HIDDEN.format(name), both.true_count)
            joined = _merged(column, taken) if name == METADATA.json_column else column.fill_null(taken)
            own = own.set_column(own.column_names.index(name), name, joined)
        return own


def _merged(own: pa.Array, other: pa.Array) -> pa.Array:
    """Return JSON objects with the entries of others that they lack."""
    pairs = zip(own.to_pylist(), other.to_pylist(), strict=True)
    read = [[load_json(text, METADATA.json_column) for text in pair if text is not None] for pair in pairs]
    return pa.array(
        [dump_json(objects[-1] | objects[0]) if objects else None for objects in read], pa.string()
    )
