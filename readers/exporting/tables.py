"""Rows of a view as one table: its transitions with their next observations, or the rows of `steps`.

Every row has `episode`, the number of its episode in the view, and the episode's `seed` and `metadata.*`.
Rows come in the order of the view, a few megabytes at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ...store.dynamic.column_groups import EXTRA, INFO, METADATA, POLICY
from ...store.errors import InvalidArgumentError
from ...store.layout import EPISODES, STEPS
from ...store.reserved import EPISODE, EPISODE_ID, next_name
from ..blocks import Block
from ..frames import episodes_frame
from ..iteration import iterate_blocks
from .target import Export

_LAYOUTS = ("transitions", "steps")
_BATCH_BYTES = 16 << 20
_SEED = "seed"
LOST_CARD = "entries of the card"
#: The options of formats that write tables.
OPTIONS = {"layout": "transitions, with the next observation of each (the default), or the rows of steps"}


class TableExport:
    """The table of an export.

    Attributes:
        schema: of the table.
        extra: the names of your own step columns.
        dynamic: those, and the columns of infos, policy values and metadata.
    """

    def __init__(
        self,
        export: Export,
        encode: Callable[[pa.Table], pa.Table] | None = None,
        layout: str | None = None,
    ) -> None:
        """Check the options, and count what no table holds.

        Args:
            encode: replaces columns of `steps` with others of the same names, once for each row that is read.
            layout: "transitions" or "steps"; None for that of the options.

        Raises:
            InvalidArgumentError: the layout is unknown.
        """
        layout = layout or export.options.get("layout", _LAYOUTS[0])
        if layout not in _LAYOUTS:
            raise InvalidArgumentError(
                f"layout={layout!r} is unknown; expected {' or '.join(map(repr, _LAYOUTS))}."
            )
        self._export = export
        self._snapshot = snapshot = export.context.snapshot
        self._transitions = layout == "transitions"
        added = snapshot.annotation_files.annotations
        self._steps = [field for field in snapshot.shown_schema(STEPS) if field.name != EPISODE_ID]
        self._stored = [field for field in self._steps if field.name not in added]
        self.extra = [field.name for field in self._steps if EXTRA.owns(field)]
        shown = snapshot.shown_schema(EPISODES)
        self._facts = [field for field in shown if field.name == _SEED or METADATA.owns(field)]
        self.dynamic = [
            field.name
            for field in (*self._steps, *self._facts)
            if any(group.owns(field) for group in (INFO, POLICY, EXTRA, METADATA))
        ]
        self._following: dict[str, str] = {}
        if self._transitions:
            names = [field.name for field in self._steps if not POLICY.owns(field)]
            self._following = {name: after for name in names if (after := next_name(name)) is not None}
            own = {name: f"next_{name}" for name in self.extra}
            self._following |= {name: after for name, after in own.items() if after not in names}
        self._encode = encode
        encoded = pa.schema([pa.field(field.name, field.type) for field in self._steps])
        if encode is not None:
            encoded = encode(encoded.empty_table()).schema
        types = dict(zip(encoded.names, encoded.types, strict=True))
        self.schema = pa.schema(
            [
                pa.field(EPISODE, pa.int64()),
                *encoded,
                *(pa.field(after, types[name]) for name, after in self._following.items()),
                *(pa.field(field.name, field.type) for field in self._facts),
            ]
        )
        self._count_losses()

    def _count_losses(self) -> None:
        context, losses = self._export.context, self._export.losses
        frame = episodes_frame(self._snapshot, context.positions)
        counted = frame.select(
            (pl.col("end_reason") == "interrupted").sum().alias("interrupted"),
            pl.col("options").is_not_null().sum().alias("options"),
            pl.col("wide_seed").is_not_null().sum().alias("seeds"),
        ).collect()
        losses.add("that an episode was interrupted, not cut", int(counted["interrupted"][0]))
        losses.add("options of the reset", int(counted["options"][0]))
        losses.add("seeds beyond 64 bits", int(counted["seeds"][0]))
        losses.add(LOST_CARD, len(self._export.card))

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
            self._export.tell(done)
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
        found = self._block_rows(block)
        if self._transitions:
            self._count_last(found, [start + count - 1 for _, start, count in members])
        if self._encode is not None:
            found, order = self._encode(found.take(pa.array(order))), np.arange(len(order))
        if self._transitions:
            acted = np.ones(len(order), bool)
            acted[np.cumsum(counts) - 1] = False
            order, owners = order[acted], owners[acted]
        rows = found.take(pa.array(order))
        columns: dict[str, Any] = {EPISODE: pa.array(done + owners)}
        columns |= {field.name: rows.column(field.name) for field in self._steps}
        if self._following:
            after = found.select(list(self._following)).take(pa.array(order + 1))
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
        table = block.shown(self._stored, self._snapshot.overflow(STEPS), 0, block.count)
        for name, annotation in self._snapshot.annotation_files.annotations.items():
            table = table.append_column(name, block.added(self._snapshot, annotation, 0, block.count))
        return table

    def _episodes(self, positions: Sequence[int]) -> pa.Table:
        names = [field.name for field in self._facts]
        frame = episodes_frame(self._snapshot, np.array(positions, np.int64)).select(names).collect()
        schema = pa.schema(self._facts)
        return frame.to_arrow().cast(schema)
