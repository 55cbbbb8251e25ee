"""SQL of the page: one query at a time, with limits of time and rows; and exports of a selection."""

from __future__ import annotations

import csv
import io
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import EpisodeStore
from ..errors import InvalidArgumentError, QueryError, StoreExistsError
from ..plugin import QuerySession, literal, one_of, quote
from ..plugin.files import exists, real_path
from ..types import Lake

MOST_ROWS = 1_000


@dataclass(frozen=True)
class Result:
    """Result of a query.

    Attributes:
        table: its first rows, at most as many as were asked for.
        complete: whether these are all.
        seconds: how long it took.
    """

    table: pa.Table
    complete: bool
    seconds: float


class Queries:
    """Queries over one version of a store, or over the stores of a lake; closed with it.

    Args:
        opened: a store, pinned at the version, or a lake.
    """

    def __init__(self, opened: EpisodeStore | Lake) -> None:
        lake = isinstance(opened, Lake)
        self._session = opened.new_session() if lake else QuerySession(opened.context)
        self._busy = threading.Lock()
        #: Held while the connection is used: a query waits for the completions, which take a moment.
        self._using = threading.Lock()

    def run(self, text: str, stopped: threading.Event, most: int = MOST_ROWS) -> Result:
        """Run a query and return its first rows. Called in a thread of its own.

        Args:
            text: the query.
            stopped: stops the query when it is set, also before its start.
            most: the most rows to return.

        Raises:
            QueryError: it is invalid, failed, was stopped, or another query of this page is running.
            CorruptStoreError: a file is damaged; the message names it.
        """
        if not self._busy.acquire(blocking=False):
            raise QueryError("A query is running. Wait for it, or stop it.")
        try:
            with self._using:
                started = time.perf_counter()
                table = self._session.first_rows(text, most + 1, stopped)
            return Result(table.slice(0, most), table.num_rows <= most, time.perf_counter() - started)
        finally:
            self._busy.release()

    def completions(self) -> list[dict[str, Any]]:
        """Return the tables, columns and functions of a query, as the editor's completion takes them."""
        with self._using:
            tables, functions = QuerySession.names(self._session.connection)
        columns: dict[str, str] = {}
        for each in tables.values():
            columns |= each
        kinds = (("property", columns, 3), ("class", dict.fromkeys(tables, "table"), 2))
        offered = [
            {
                "label": name,
                "apply": quote(name, always=False),
                "type": icon,
                "detail": detail,
                "boost": boost,
            }
            for icon, names, boost in kinds
            for name, detail in names.items()
        ]
        return offered + [
            {"label": name, "apply": f"{name}(", "type": "function", "detail": kind, "boost": 1}
            for name, kind in functions.items()
        ]

    def close(self) -> None:
        """Close the connection, once no query runs."""
        with self._using:
            self._session.close()


FORMATS = ("txt", "csv", "json")
_COLUMNS = ("episode_id", "run_id", "episode_return", "length", "end_reason", "seed")


def ids_as(rows: Sequence[dict[str, Any]], kind: str) -> str:
    """Episodes as a text: `txt` an id a line, `csv` with what matters most, `json` a list of objects.

    Args:
        rows: rows of the list.
        kind: one of `FORMATS`.
    """
    one_of("kind", kind, FORMATS)
    if kind == "txt":
        return "".join(f"{row['episode_id']}\n" for row in rows)
    kept = [{name: row[name] for name in _COLUMNS if name in row} for row in rows]
    if kind == "json":
        return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.DictWriter(
        text, [name for name in _COLUMNS if not kept or name in kept[0]], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in kept)
    return text.getvalue()


def _safe(value: Any) -> Any:
    """Return a text that a spreadsheet does not take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def sql_of_ids(ids: Sequence[str]) -> str:
    """Return the query for single episodes that were ticked."""
    listed = ",\n  ".join(map(literal, ids))
    return f"SELECT * FROM episodes\nWHERE episode_id IN (\n  {listed}\n)"


def export_folder(name: str, below: Path) -> Path:
    """Return the folder for a store that the page writes.

    Args:
        name: a relative path, as someone typed it.
        below: the folder that it must lie in, links followed.

    Raises:
        InvalidArgumentError: it is empty or leads out of `below`.
        StoreExistsError: something is there already; nothing is ever written over.
        StoreAccessError: there can be no such folder, as its name is too long.
    """
    text = name.strip()
    if not text or "\0" in text:
        raise InvalidArgumentError("Name a folder for the new store, such as 'best-episodes'.")
    base = real_path(below)
    target = real_path(base / text)
    taken = exists(target)
    if Path(text).is_absolute() or target == base or not target.is_relative_to(base):
        raise InvalidArgumentError(f"{text!r} does not lie below {base}. Give a relative path without '..'.")
    if taken:
        raise StoreExistsError(
            f"{target} is there already, and nothing is written over. Choose another name."
        )
    return target
