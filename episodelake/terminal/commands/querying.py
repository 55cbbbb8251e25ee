"""Commands that ask: `sql`, with a query from the command line, a file, a pipe or a prompt; `lake`, of many
stores; and `explore`.

A query runs on a connection that sees nothing but the store, in a thread of its own, so that Ctrl-C stops it
at once.
"""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import QueryError
from ..arguments import StorageOptions, StorePath
from ..command import LOOK, app, command
from ..result import AsJson, Report

if TYPE_CHECKING:
    from ..reports.open_store import Explored

SHOWN = 100
Limit = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="At most this many rows; 0 for all. The default is 100 in a table, all in files, CSV and JSON.",
    ),
]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Parquet = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result to a Parquet file.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the result to a file: .csv, .json or .parquet."
    ),
]
_EXPOSED = (
    "Warning: the page listens on {host}, so other machines can reach it. Anyone with the address and its "
    "token can read the store and write new stores below the current folder, and the traffic is not "
    "encrypted. An SSH tunnel to 127.0.0.1 is safer."
)


@command(
    app,
    LOOK,
    """\
episodelake sql data/cartpole "SELECT end_reason, count(*) FROM episodes GROUP BY 1"
episodelake sql data/cartpole "FROM episodes" --csv > episodes.csv
episodelake sql data/cartpole "FROM transitions WHERE reward < 0" --parquet b.parquet
episodelake sql data/cartpole < question.sql
episodelake sql data/cartpole                   a prompt, with completion and history""",
)
def sql(
    path: StorePath,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="A DuckDB query over the tables runs, episodes, steps and transitions; - reads it from "
            "standard input, as does a pipe. Without it, a terminal gets a prompt.",
        ),
    ] = None,
    limit: Limit = None,
    csv: Csv = False,
    as_json: AsJson = False,
    parquet: Parquet = None,
    output: Output = None,
    storage: StorageOptions = None,
) -> None:
    """Run an SQL query; without one, open a prompt.

    The result is printed, or written to a file.

    Column names with a dot need double quotes: SELECT "info.x" FROM steps.
    If the output is not a terminal, cells are separated by tabs and numbers are written in full.
    """
    from ...plugin import QuerySession
    from ..output.exporting import check_target, chosen_export, write_result
    from ..output.page import Page
    from ..reports.open_store import explored, open_store_at

    export = chosen_export(csv=csv, as_json=as_json, parquet=parquet, output=output, limit=limit or 0)
    if export is not None and export.file is not None:
        check_target(export.file)
    page, rows = Page(), SHOWN if limit is None else limit
    # Read before the store is opened: another program may still be writing to the pipe.
    text = _query_text(query, prompt_fits=export is None)

    def run(text: str, *, name_live: bool = False) -> int:
        """Write the result, and return the exit status."""

        def answered(opened: Explored) -> None:
            with closing(QuerySession(opened.store.context, keep_rows=False)) as session:
                write_result(page, session, text, rows, export)

        return explored(path, storage, answered, steps=True, name_live=name_live)[1]

    if text is not None:
        raise typer.Exit(run(text, name_live=True))
    # Slow to import.
    from ..reports.prompt import run_prompt

    run_prompt(page, open_store_at(path, storage), run)


@command(
    app,
    LOOK,
    """\
episodelake lake data
episodelake lake s3://bucket/group --storage-option aws_region=eu-central-1
episodelake lake data --sql "SELECT store, avg(length) FROM episodes GROUP BY 1"
episodelake lake data --sql "FROM runs" --csv > runs.csv""",
)
def lake(
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="A folder of stores, or a URL (s3://...) with a prefix.")
    ],
    query: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="QUERY",
            help="A DuckDB query over the tables episodes, runs and stores of all stores.",
        ),
    ] = None,
    limit: Limit = None,
    csv: Csv = False,
    as_json: AsJson = False,
    parquet: Parquet = None,
    output: Output = None,
    storage: StorageOptions = None,
) -> Report | None:
    """List the stores below a folder, or query all of them.

    A store that cannot be read is named in a warning, and queries leave it out.
    """
    from ..output.exporting import check_target, chosen_export
    from ..output.page import Page
    from ..reports.lakes import answer, open_lake, write_stores

    opened = open_lake(root, storage)
    if query is None and not (csv or parquet or output or limit is not None):
        return Report(opened.stores(), partial(write_stores, url=opened.url))
    export = chosen_export(csv=csv, as_json=as_json, parquet=parquet, output=output, limit=limit or 0)
    if export is not None and export.file is not None:
        check_target(export.file)
    answer(Page(), opened, query or "FROM stores", export, SHOWN if limit is None else limit)
    return None


@command(
    app,
    LOOK,
    """\
episodelake explore data/cartpole
episodelake explore data
episodelake explore data/cartpole@v1.0 --no-browser --port 9000""",
)
def explore(
    path: StorePath,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Beyond 127.0.0.1, others reach the page too.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="The port; 0 for any free one.", show_default="8642, or any free one"
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    write: Annotated[
        bool, typer.Option("--write", help="Let the page label episodes: good, bad, and a note.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="EPISODELAKE_TOKEN",
            show_envvar=True,
            help="The secret that opens the page; at least 16 letters and digits.",
            show_default="a new one each time",
        ),
    ] = None,
    storage: StorageOptions = None,
) -> None:
    """Explore a store, or a folder of stores, in the browser.

    Filter episodes, step through them, chart runs, ask in SQL, export a selection. The page is this
    machine's, reads the store, and without --write changes nothing. It follows running writers, unless PATH
    names a version or a tag. Ctrl-C ends it.
    """
    from ..output.cells import clean

    if sys.stderr.isatty():
        # Loading the server may take seconds.
        print(f"Opening {clean(path)} ...", file=sys.stderr, flush=True)
    from ...explorer.server import serve_explorer
    from ...plugin import require
    from ..output.page import Page
    from ..reports.lakes import open_store_or_lake
    from ..reports.open_store import split_version

    # It asks for more of the extra once the store is open.
    require("nicegui", "The explorer")
    pinned = split_version(path)[1] is not None
    if pinned and write:
        raise typer.BadParameter("labels are written to the newest version alone.", param_hint="--write")
    opened = open_store_or_lake(path, storage)
    page = Page()

    def ready(url: str, exposed: bool) -> None:
        page.line(f"Exploring {opened.url}")
        page.line(url)
        if exposed:
            page.note(_EXPOSED.format(host=host))
        page.note("Ctrl-C ends it.")
        page.console.file.flush()

    serve_explorer(
        opened,
        ready,
        host=host,
        port=port,
        token=token,
        browser=browser,
        pinned=pinned,
        writable=write,
    )
    page.note("The explorer has ended.")


def _query_text(query: str | None, *, prompt_fits: bool) -> str | None:
    """Return the query; None if it is to be asked for at a prompt.

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
