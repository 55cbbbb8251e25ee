"""The formats that can be imported, and the one that a source has."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from typing import Any

from ...store.errors import DatasetError, InvalidArgumentError
from ...store.suggestions import suggest
from .dataset import Match, SourceFormat

#: The module of each format of ours, in the order in which they are tried.
_MODULES = (
    "minari",
    "d4rl",
    "d3rlpy",
    "robomimic",
    "tianshou",
    "sb3",
    "torchrl",
    "imitation.format",
    "ogbench",
    "dopamine.format",
    "lerobot.format",
    "rlds.format",
    "rllib.format",
    "table.format",
)
#: Names of kinds of table, which stand for `table`: it reads all of them.
TABLES = ("parquet", "csv", "arrow", "delta", "huggingface")
#: Other packages register an object like `SourceFormat` under a name in this group of entry points.
ENTRY_POINTS = "episodelake.formats"


@cache
def source_formats() -> Mapping[str, SourceFormat]:
    """Return the formats by name: ours, then those of other packages, which cannot replace ours."""
    ours = [importlib.import_module(f".{module}", __package__).FORMAT for module in _MODULES]
    formats: dict[str, SourceFormat] = {each.name: each for each in ours}
    for entry in entry_points(group=ENTRY_POINTS):
        found = entry.load()
        if hasattr(found, "open"):
            formats.setdefault(entry.name, found)
    return formats


def chosen_format(source: Any, name: str | None) -> tuple[SourceFormat, str]:
    """Return the format of a source, and why.

    Args:
        name: as the caller says; None to detect it.

    Raises:
        InvalidArgumentError: there is no format of this name.
        DatasetError: the source has no known format, or several.
    """
    formats = source_formats()
    if name is not None:
        found = formats.get("table" if name in TABLES else name)
        if found is None:
            known = [*formats, *TABLES]
            raise InvalidArgumentError(
                f"format={name!r} is unknown.{suggest(str(name), known)} Formats of import: "
                f"{', '.join(known)}."
            )
        return found, "as asked"
    if isinstance(source, str | PathLike) and "://" not in str(source) and not Path(source).exists():
        raise DatasetError(f"There is no file or folder {source} to import. Check the path.")
    if isinstance(source, str | PathLike) and Path(source).is_file() and not Path(source).stat().st_size:
        raise DatasetError(f"{source} is empty: it has 0 bytes. Copy or download it again.")
    if isinstance(source, str | PathLike) and os.access(source, os.R_OK) and _is_empty_folder(source):
        raise DatasetError(f"{source} is an empty folder. Check the path.")
    found = {name: each.detect(source) for name, each in formats.items()}
    matches = [name for name, match in found.items() if match.lacks == 0]
    if len(matches) == 1:
        return formats[matches[0]], found[matches[0]].reason
    if matches:
        raise DatasetError(
            f"{source!s:.200} fits several formats: {', '.join(matches)}. Choose one with format= (--format)."
        )
    raise DatasetError(_unknown(source, found))


def _is_empty_folder(path: str | PathLike[str]) -> bool:
    return os.path.isdir(path) and not os.listdir(path)


def _unknown(source: Any, found: Mapping[str, Match]) -> str:
    nearest = sorted((name for name in found if found[name].related), key=lambda name: found[name].lacks)[:3]
    reasons: dict[str, list[str]] = {}
    for name in nearest:
        reasons.setdefault(found[name].reason, []).append(name)
    tried = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    shown = str(source) if isinstance(source, str | PathLike) else type(source).__name__
    return (
        f"{shown} has no known format{f' ({tried})' if tried else ''}. Formats: {', '.join(found)}. Name one "
        "with format= (--format), or describe columns of a table with mapping=el.ColumnMapping(...) (--map)."
    )
