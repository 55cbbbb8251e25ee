"""The prompt of `episodelake sql`: queries over several lines until a semicolon, completed and remembered.

Ctrl-C at the prompt drops what was typed; while a query runs it stops the query, and the prompt stays. All
candidates of completion come from the connection, so a query can use each of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition as When
from prompt_toolkit.filters import completion_is_selected
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from ... import EpisodeStore
from ...plugin import QuerySession, counted, quote
from ..command import message_of
from ..output.page import Page, report_error

_LEAVE = ("exit", "quit", ".exit", ".quit")


def run_prompt(page: Page, store: EpisodeStore, run: Callable[[str], object]) -> None:
    """Ask for queries until the user leaves.

    Args:
        page: the output.
        store: the store, for completion.
        run: runs a query and writes its result.
    """
    page.line(f"{store.url}, version {store.version}, {counted(len(store), 'episode')}.", "bold")
    page.note("End a query with a semicolon. SHOW TABLES; lists the tables. Tab completes, Ctrl-D leaves.")
    with contextlib.closing(QuerySession(store.context)) as names:
        completer = SqlCompleter(names.connection)
    session: PromptSession[str] = PromptSession(
        history=_history(),
        lexer=PygmentsLexer(SqlLexer),
        completer=completer,
        complete_while_typing=True,
        auto_suggest=AutoSuggestFromHistory(),
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=_continuation,
        enable_open_in_editor=True,
    )
    while True:
        try:
            text = session.prompt(FormattedText([("bold ansicyan", "sql> ")])).strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.rstrip("; ").lower() in _LEAVE:
            return
        if text.strip("; \n"):
            _answer(page, text, run)


def _answer(page: Page, text: str, run: Callable[[str], object]) -> None:
    """Run a query, and report an error in place of its result."""
    start = time.perf_counter()
    try:
        run(text)
    except KeyboardInterrupt:
        report_error("Interrupted.")
    except Exception as error:
        message = message_of(error)
        if message is None:
            raise
        report_error(message)
    else:
        page.note(f"{time.perf_counter() - start:.3f} s")


def _history() -> History:
    """Kept in the user's data folder; where that cannot be written, only in memory."""
    folder = Path(os.environ.get("EPISODELAKE_DATA") or platformdirs.user_data_dir("episodelake"))
    file = folder / "sql_history"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def _keys() -> KeyBindings:
    """Enter runs what is complete: it ends with a semicolon, or leaves."""
    keys = KeyBindings()

    @keys.add("enter", filter=When(_is_complete) & ~completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return keys


def _is_complete() -> bool:
    # The application of the prompt that is shown.
    from prompt_toolkit.application import get_app

    text = get_app().current_buffer.text.strip()
    return not text or text.endswith(";") or text.lower() in _LEAVE


def _continuation(width: int, line: int, wrapped: int) -> FormattedText:
    return FormattedText([("ansibrightblack", "...> ".rjust(width))])


#: A name, or the beginning of one in quotes.
_WORD = re.compile(r'"[^"]*$|\w*$')
_AFTER_TABLE = re.compile(r"\b(?:from|join|describe|summarize)\s+\w*$", re.IGNORECASE)


class SqlCompleter(Completer):
    """Offers columns, tables, functions and keywords that begin like the word at the cursor.

    Args:
        connection: the source of the names.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        tables, functions = QuerySession.names(connection)
        keywords = connection.execute(
            "SELECT upper(keyword_name) FROM duckdb_keywords() ORDER BY 1"
        ).fetchall()
        self._names: dict[str, tuple[str, str]]
        self._names = {keyword: (keyword, "keyword") for (keyword,) in keywords}
        self._names |= {name: (f"{name}(", kind) for name, kind in functions.items()}
        self._names |= {name: (name, "table") for name in tables}
        for columns in tables.values():
            self._names |= {name: (quote(name, always=False), kind) for name, kind in columns.items()}

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield candidates for the cursor's place: tables where one is named, else columns first."""
        tables_only = _AFTER_TABLE.search(document.text_before_cursor) is not None
        match = _WORD.search(document.text_before_cursor)
        word = match[0] if match else ""
        if word or complete_event.completion_requested:
            start = word.removeprefix('"').lower()
            for name, (text, kind) in reversed(self._names.items()):
                if name.lower().startswith(start) and (kind == "table" or not tables_only):
                    yield Completion(text, -len(word), display=name, display_meta=kind)
