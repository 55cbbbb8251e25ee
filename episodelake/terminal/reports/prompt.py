"""The prompt of `episodelake sql`: queries over several lines until a semicolon, completed and remembered.

Ctrl-C at the prompt drops what was typed; while a query runs it stops the query, and the prompt stays. All
candidates of completion come from the connection, so a query can use each of them.
"""

from __future__ import annotations

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
from ..output.exporting import FORMATS, Export, write_result
from ..output.page import Page, report_error, report_warning
from .open_store import reading_errors

HELP = (
    ("QUERY ;", "run a query; it may have several lines"),
    ("SHOW TABLES ;", "list the tables"),
    ("DESCRIBE TABLE ;", "list the columns of a table with their types"),
    (".save FILE", "write all rows of the last query to a .csv, .json or .parquet file"),
    (".refresh", "go to the newest version of the store"),
    (".exit", "leave; so does Ctrl-D"),
)


def run_prompt(page: Page, store: EpisodeStore, limit: int) -> None:
    """Ask for queries and write their results until the user leaves.

    Args:
        page: the output.
        store: the store that queries read.
        limit: the most rows of a result to show; 0 for all.
    """
    prompt = Prompt(page, store, limit)
    page.line(f"{store.url}, version {store.version}, {counted(len(store), 'episode')}.", "bold")
    page.note("End a query with a semicolon. Tab completes, .help tells more, Ctrl-D leaves.")
    session: PromptSession[str] = PromptSession(
        history=_history(),
        lexer=PygmentsLexer(SqlLexer),
        completer=prompt.completer,
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
        if not prompt.answer(text):
            return


class Prompt:
    """Answers the lines of a prompt."""

    def __init__(self, page: Page, store: EpisodeStore, limit: int) -> None:
        self._page, self._store, self._limit = page, store, limit
        self._last = ""
        self._session = QuerySession(store.context)
        self.completer = SqlCompleter(self._session.connection)
        self._commands: dict[str, Callable[[str], None]] = {
            ".help": self._help,
            "help": self._help,
            ".save": self._save,
            ".refresh": self._refresh,
        }

    def answer(self, text: str) -> bool:
        """Run a line; return False if the user leaves."""
        name, _, rest = text.rstrip(";").partition(" ")
        if name.lower() in (".exit", ".quit", "exit", "quit"):
            return False
        if not text.strip("; \n"):
            return True
        try:
            if text.startswith(".") or name.lower() == "help":
                self._command(name.lower(), rest.strip())
            else:
                self._query(text)
        except KeyboardInterrupt:
            report_error("Interrupted.")
        except Exception as error:
            message = message_of(error)
            if message is None:
                raise
            report_error(message)
        return True

    def _query(self, text: str) -> None:
        start = time.perf_counter()
        try:
            write_result(self._page, self._session, text, self._limit)
        except reading_errors():
            # Retry without the damaged files, which stay left out until `.refresh`.
            damaged = self._store.leave_out_damaged(steps=True)
            if not damaged:
                raise
            for each in damaged:
                report_warning(each)
            self._reconnect()
            write_result(self._page, self._session, text, self._limit)
        self._last = text
        self._page.note(f"{time.perf_counter() - start:.3f} s")

    def _command(self, name: str, rest: str) -> None:
        if name in self._commands:
            self._commands[name](rest)
        else:
            known = [each for each in self._commands if each.startswith(".")]
            report_error(f"There is no {name}; there are {', '.join(known)} and .exit.")

    def _help(self, _: str) -> None:
        self._page.pairs(HELP)

    def _save(self, file: str) -> None:
        path = Path(file).expanduser()
        format = path.suffix.removeprefix(".").lower()
        if not self._last:
            report_error("There is no result yet.")
            return
        if format not in FORMATS:
            report_error(f"{file!r}: expected a name that ends in .csv, .json or .parquet.")
            return
        relation = self._session.bind(self._last)
        rows = self._session.carry_out(lambda: Export(format, path).write(self._page, relation))
        self._page.note(f"{counted(rows, 'row')} in {path}.")

    def _refresh(self, _: str) -> None:
        self._store.refresh()
        self._reconnect()
        self._page.note(f"Version {self._store.version}, {counted(len(self._store), 'episode')}.")

    def _reconnect(self) -> None:
        self._session.close()
        self._session = QuerySession(self._store.context)
        self.completer.look_up(self._session.connection)


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
    """Enter runs what is complete: it ends with a semicolon, or is a command."""
    keys = KeyBindings()

    @keys.add("enter", filter=When(_is_complete) & ~completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return keys


def _is_complete() -> bool:
    # The application of the prompt that is shown.
    from prompt_toolkit.application import get_app

    text = get_app().current_buffer.text.strip()
    return not text or text.endswith(";") or text.startswith(".") or text.lower() in ("exit", "quit", "help")


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
        self._names: dict[str, tuple[str, str]] = {}
        self.look_up(connection)

    def look_up(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Read the names of a connection."""
        tables, functions = QuerySession.names(connection)
        keywords = connection.execute(
            "SELECT upper(keyword_name) FROM duckdb_keywords() ORDER BY 1"
        ).fetchall()
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
