"""Exports of a selection: its ids, the SQL that finds it, a store of its own."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..readers.sql.text import literal
from ..store.errors import InvalidArgumentError, StoreExistsError
from ..store.files import guard_access

FORMATS = ("txt", "csv", "json")
_COLUMNS = ("episode_id", "run_id", "episode_return", "length", "end_reason", "seed")


def ids_as(rows: Sequence[dict[str, Any]], kind: str) -> str:
    """Episodes as a text: `txt` an id a line, `csv` with what matters most, `json` a list of objects.

    Args:
        rows: rows of the list.
        kind: one of `FORMATS`.
    """
    if kind == "txt":
        return "".join(f"{row['episode_id']}\n" for row in rows)
    kept = [{name: row[name] for name in _COLUMNS if name in row} for row in rows]
    if kind == "json":
        return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    if kind != "csv":
        raise InvalidArgumentError(f"{kind!r} is no format of ids; expected one of {', '.join(FORMATS)}.")
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
    with guard_access("look", below / text):
        base = below.resolve()
        target = (base / text).resolve()
        taken = target.exists()
    if Path(text).is_absolute() or target == base or not target.is_relative_to(base):
        raise InvalidArgumentError(f"{text!r} does not lie below {base}. Give a relative path without '..'.")
    if taken:
        raise StoreExistsError(
            f"{target} is there already, and nothing is written over. Choose another name."
        )
    return target
