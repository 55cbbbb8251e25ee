"""`episodelake sql`: one query from the command line, a file or a pipe; without one, a prompt.

A query runs on a connection that sees nothing but the store. It is carried out beside the main thread, so
that Ctrl-C reaches DuckDB at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .arguments import AsJson, StorageOptions, StorePath, open_store_at
from .commands import LOOK, command
from .exporting import Export, chosen_export
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
    page = Page()
    # Asked before the store is opened: a query may come from a pipe that another program is still writing to.
    text = _query_text(query, prompt_fits=export is None)
    store = open_store_at(path, storage)
    if text is None:
        # Imported where it is wanted: no other command waits for it.
        from .prompt import run_prompt

        run_prompt(page, store, SHOWN if limit is None else limit)
        return
    with interruptible(unchanged):
        run = QueryRun(store.connect(read_only=True), store)
        if export is None:
            write_result(page, run, text, SHOWN if limit is None else limit)
        else:
            _export(page, run, text, export, limit or 0)


def _query_text(query: str | None, *, prompt_fits: bool) -> str | None:
    """The query; None if it is to be asked for at a prompt."""
    if query not in (None, "-"):
        return query
    if query is None and sys.stdin.isatty():
        if prompt_fits and sys.stdout.isatty():
            return None
        raise typer.BadParameter("it is missing; - reads it from standard input.", param_hint="QUERY")
    text = sys.stdin.read()
    if not text.strip():
        raise typer.BadParameter("it is missing, and standard input is empty.", param_hint="QUERY")
    return text


def _export(page: Page, run: QueryRun, text: str, export: Export, limit: int) -> None:
    relation = run.bind(text)
    if limit:
        relation = relation.limit(limit)
    rows = run.carry_out(lambda: export.write(page, relation))
    if export.file is not None:
        page.note(f"{rows:,} {'row' if rows == 1 else 'rows'} in {export.file}.")
