"""`episodelake sql`: one query from the command line, a file or a pipe; without one, a prompt.

A query runs on a connection that sees nothing but the store, in a thread of its own, so that Ctrl-C stops it
at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from ...readers.amounts import counted
from ...readers.sql.session import QuerySession
from ...store.errors import QueryError
from ..output.exporting import Export, check_target, write_result
from ..output.page import Page
from .opening import Explored, end, explored_steps, interruptible, open_store_at, unchanged

SHOWN = 100


def run_query(
    path: str, storage: Sequence[str] | None, query: str | None, limit: int | None, export: Export | None
) -> None:
    """Run a query, or open a prompt; see `episodelake sql`.

    Args:
        path, storage: the store.
        query: the query; None or "-" for standard input or a prompt.
        limit: the most rows; None for the default of the output.
        export: the format and file of the result; None for a table.
    """
    if export is not None and export.file is not None:
        check_target(export.file)
    page = Page()
    # Read before the store is opened: another program may still be writing to the pipe.
    text = _query_text(query, prompt_fits=export is None)
    if text is None:
        # Slow to import.
        from .prompt import run_prompt

        run_prompt(page, open_store_at(path, storage), SHOWN if limit is None else limit)
        return
    with interruptible(unchanged):
        if export is None:
            rows = SHOWN if limit is None else limit
            _, complete = explored_steps(
                path, storage, lambda opened: write_result(page, _session(opened), text, rows)
            )
        else:
            complete = _exported(page, path, storage, text, Export(export.format, export.file, limit or 0))
    end(complete)


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


def _session(opened: Explored) -> QuerySession:
    return QuerySession(opened.store.context, keep_rows=False)


def _exported(page: Page, path: str, storage: Sequence[str] | None, text: str, export: Export) -> bool:
    """Write the result; whether it has all steps that it was to have."""

    def written(opened: Explored) -> int:
        session = _session(opened)
        relation = session.bind(text)
        if export.limit:
            relation = relation.limit(export.limit)
        return session.carry_out(lambda: export.write(page, relation))

    rows, complete = explored_steps(path, storage, written)
    if export.file is not None:
        page.note(f"{counted(rows, 'row')} in {export.file}.")
    return complete
