"""`episodelake sql`: one query from the command line, a file or a pipe; without one, a prompt.

A query runs on a connection that sees nothing but the store. It is carried out beside the main thread, so
that Ctrl-C reaches DuckDB at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..readers.amounts import counted
from ..store.errors import QueryError
from .arguments import AsJson, StorageOptions, StorePath, open_store_at
from .commands import LOOK, command
from .exploring import Explored, end, explored_steps
from .exporting import Export, check_target, chosen_export
from .page import Page
from .progress import interruptible, unchanged
from .query_runs import QueryRun, write_result

SHOWN = 100

EXAMPLES = """\
episodelake sql data/cartpole "SELECT end_reason, count(*) FROM episodes GROUP BY 1"
episodelake sql data/cartpole "FROM episodes" --csv > episodes.csv
episodelake sql data/cartpole "FROM transitions WHERE reward < 0" --parquet bad.parquet
episodelake sql data/cartpole < question.sql
episodelake sql data/cartpole                     a prompt, with completion and history"""


def add_to(app: typer.Typer) -> None:
    """Add the command to the program."""
    command(app, LOOK, EXAMPLES)(sql)


def sql(
    path: StorePath,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="A DuckDB query over the tables runs, episodes, steps and transitions; - reads it from "
            "standard input, as does a pipe. Without it, a terminal gets a prompt.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"At most so many rows; 0 for all. Else {SHOWN} in a table, all in files, CSV and JSON.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the result to a Parquet file.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the result to a file: .csv, .json or .parquet.",
            show_default=False,
        ),
    ] = None,
    storage: StorageOptions = None,
) -> None:
    """Run an SQL query; without one, open a prompt.

    The result is printed, or written to a file.

    Column names with a dot need double quotes: SELECT "info.x" FROM steps.
    Where the output is not a terminal, cells are separated by tabs and numbers are written in full.
    """
    export = chosen_export(csv=csv, as_json=as_json, parquet=parquet, output=output)
    if export is not None and export.file is not None:
        check_target(export.file)
    page = Page()
    # Asked before the store is opened: a query may come from a pipe that another program is still writing to.
    text = _query_text(query, prompt_fits=export is None)
    if text is None:
        # Imported where it is wanted: no other command waits for it.
        from .prompt import run_prompt

        run_prompt(page, open_store_at(path, storage), SHOWN if limit is None else limit)
        return
    with interruptible(unchanged):
        if export is None:
            rows = SHOWN if limit is None else limit
            _, complete = explored_steps(
                path, storage, lambda opened: write_result(page, QueryRun.once(opened.store), text, rows)
            )
        else:
            complete = _exported(page, path, storage, text, Export(export.format, export.file, limit or 0))
    end(complete)


def _query_text(query: str | None, *, prompt_fits: bool) -> str | None:
    """The query; None if it is to be asked for at a prompt.

    Raises:
        QueryError: what standard input gives is no text.
    """
    if query not in (None, "-"):
        return query
    if query is None and sys.stdin.isatty():
        if prompt_fits and sys.stdout.isatty():
            return None
        raise typer.BadParameter("it is missing; - reads it from standard input.", param_hint="QUERY")
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise QueryError(f"The query is no text in UTF-8: {error}. Give it as UTF-8.") from error
    if not text.strip():
        raise typer.BadParameter("it is missing, and standard input is empty.", param_hint="QUERY")
    return text


def _exported(page: Page, path: str, storage: Sequence[str] | None, text: str, export: Export) -> bool:
    """Write the result; whether it has all steps that it was to have."""

    def written(opened: Explored) -> int:
        run = QueryRun.once(opened.store)
        relation = run.bind(text)
        if export.limit:
            relation = relation.limit(export.limit)
        return run.carry_out(lambda: export.write(page, relation))

    rows, complete = explored_steps(path, storage, written)
    if export.file is not None:
        page.note(f"{counted(rows, 'row')} in {export.file}.")
    return complete
