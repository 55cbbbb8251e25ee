"""Results of queries: a table on the page, or CSV, JSON or Parquet to standard output or into a file.

Rows of files, CSV and JSON are streamed in batches, so a result may be larger than memory. Files are replaced
atomically.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import duckdb
import pyarrow as pa
import typer

from ...errors import QueryError, StoreAccessError
from ...plugin import QuerySession, counted, size_text
from ...plugin.files import check_outside_stores, exists, file_state, is_file, is_folder, replacing
from ..result import Report
from .cells import clean, writer
from .json_text import json_of
from .page import Page

BATCH_ROWS = 20_000
FORMATS = ("csv", "json", "parquet")


@dataclass(frozen=True)
class Export:
    """The target of a result.

    Attributes:
        format: one of `FORMATS`.
        file: the file; None for standard output.
        limit: the most rows; 0 for all.
    """

    format: str
    file: Path | None
    limit: int = 0

    def write(self, page: Page, relation: duckdb.DuckDBPyRelation) -> int:
        """Write all rows of a relation, and return their number.

        Raises:
            StoreAccessError: the file cannot be written; an earlier file stays unchanged.
            QueryError: it failed after rows had gone to standard output.
        """
        batches = relation.to_arrow_reader(BATCH_ROWS)
        if self.file is None:
            return self._write_text(_Stream(batches), page.console.file)
        with replaced(self.file) as draft:
            if self.format == "parquet":
                return _write_parquet(batches, draft)
            with open(draft, "w", encoding="utf-8", newline="") as file:
                return self._write_text(batches, file)

    def _write_text(self, batches: pa.RecordBatchReader | _Stream, file: IO[str]) -> int:
        return _write_csv(batches, file) if self.format == "csv" else _write_json(batches, file)


class _Stream:
    """Batches on their way to standard output.

    The first is read at once: an error before any row is printed can be retried without a damaged file, a
    later one cannot.
    """

    def __init__(self, batches: pa.RecordBatchReader) -> None:
        self.schema = batches.schema
        self._batches = iter(batches)
        self._first = next(self._batches, None)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            QueryError: one after the first cannot be read.
        """
        if self._first is None:
            return
        yield self._first
        try:
            yield from self._batches
        except (duckdb.Error, pa.ArrowException) as error:
            raise QueryError(
                f"The query failed after some of its rows were printed: {error}. `episodelake verify` shows "
                "whether a file is damaged; with --output FILE you get all that can be read."
            ) from error


def chosen_export(
    *, csv: bool, as_json: bool, parquet: Path | None, output: Path | None, limit: int
) -> Export | None:
    """Return the target that the options name; None for a table on the page."""
    wanted = [name for name, given in (("csv", csv), ("json", as_json), ("parquet", parquet)) if given]
    if len(wanted) > 1:
        raise typer.BadParameter("give only one of --csv, --json and --parquet.")
    if parquet is not None and output is not None:
        raise typer.BadParameter("--parquet names the file already.", param_hint="--output")
    if output is None:
        return Export(wanted[0], parquet, limit) if wanted else None
    format = wanted[0] if wanted else output.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise typer.BadParameter(
            f"{str(output)!r} does not say the format; expected a name that ends in .csv, .json or .parquet.",
            param_hint="--output",
        )
    return Export(format, output, limit)


def check_target(file: Path) -> None:
    """Refuse a target that cannot become a file, before any work is done for it.

    Raises:
        StoreAccessError: it is a folder, a device, or below a folder that is not there.
    """
    check_outside_stores(file)
    if is_folder(file):
        reason = f"it is a folder. Name a file in it, such as {file / 'result'}{file.suffix or '.csv'}."
    elif not is_folder(file.parent):
        reason = f"the folder {file.parent} does not exist. Create it, or choose another."
    elif exists(file) and not is_file(file):
        reason = "it is no ordinary file. Leave it out and redirect the output: ... --csv > FILE."
    else:
        return
    raise StoreAccessError(f"Could not write the result at {file}: {reason}")


def file_report(
    beginning: str, file: Path, facts: Mapping[str, Any], *, status: int = 0, error: str = ""
) -> Report:
    """Report the file that a command wrote: facts and the file as JSON, or a sentence with this beginning."""
    size = file_state(file).st_size
    sentence = f"{beginning} {file} ({size_text(size)})."
    value = {**facts, "file": file, "bytes": size}
    return Report(value, lambda page, _: page.note(sentence), status=status, error=error)


@contextlib.contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """Provide a draft beside a file, which takes its place on success.

    Raises:
        StoreAccessError: the folder cannot be written, or the file cannot be replaced.
    """
    check_target(file)
    with replacing(file, file.suffix) as draft:
        draft.touch(exist_ok=False)
        yield draft


def _write_csv(batches: pa.RecordBatchReader | _Stream, file: IO[str]) -> int:
    """CSV (RFC 4180) with a header; NULL is empty, and lists and structs are JSON."""
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(batches.schema.names)
    # No text of a store may control a terminal.
    shown = clean if file.isatty() else str
    write = [_cell_writer(field.type) for field in batches.schema]
    rows = 0
    for batch in batches:
        columns = [
            [shown(cell(value)) for value in column.to_pylist()]
            for cell, column in zip(write, batch.columns, strict=True)
        ]
        lines.writerows(zip(*columns, strict=True))
        rows += batch.num_rows
    return rows


def _cell_writer(kind: pa.DataType) -> Any:
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: "" if value is None else json_of(value).strip('"')
    write = writer(kind, exact=True)
    return lambda value: "" if value is None else write(value)


def _write_json(batches: pa.RecordBatchReader | _Stream, file: IO[str]) -> int:
    rows, before = 0, "["
    for batch in batches:
        for row in batch.to_pylist():
            file.write(before + json_of(row))
            before = ",\n "
        rows += batch.num_rows
    file.write("[]\n" if not rows else "]\n")
    return rows


def _write_parquet(batches: pa.RecordBatchReader, draft: Path) -> int:
    # Slow to import.
    import pyarrow.parquet as pq

    rows = 0
    with pq.ParquetWriter(draft, batches.schema, compression="zstd") as parquet:
        for batch in batches:
            parquet.write_batch(batch)
            rows += batch.num_rows
    return rows


def write_result(page: Page, session: QuerySession, text: str, limit: int, export: Export | None) -> None:
    """Carry out a query; write its result to its target, or as a table of at most `limit` rows (0: all)."""
    relation = session.bind(text)
    if export is not None:
        limited = relation.limit(export.limit) if export.limit else relation
        written = session.carry_out(lambda: export.write(page, limited))
        if export.file is not None:
            page.note(f"{counted(written, 'row')} in {export.file}.")
        return
    # One row more tells whether there are more.
    rows = session.carry_out((relation.limit(limit + 1) if limit else relation).to_arrow_table)
    page.frame(rows.slice(0, limit) if limit else rows)
    if limit and rows.num_rows > limit:
        page.note("There are more rows; show more with --limit N, all with --limit 0.")
