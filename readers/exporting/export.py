"""`export_view`: write a view as a dataset of another library, whole or not at all."""

from __future__ import annotations

import errno
import importlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import polars as pl

from ...store.errors import DatasetError, EpisodelakeError, InvalidArgumentError, StoreExistsError
from ...store.files import guard_access
from ...store.losses import Losses
from ...store.progress import Progress, progress_meter
from ...store.suggestions import suggest
from ..context import ReadContext
from ..frames import episodes_frame
from .target import LOST_EPISODE, LOST_TRANSITION, Export, TargetFormat

#: Names of formats of import that are methods of `view.to`.
_ONLY_IN_MEMORY = ("tianshou", "sb3", "torchrl", "imitation")
#: The module of each format of ours.
_MODULES = (
    "minari",
    "d4rl",
    "d3rlpy",
    "robomimic",
    "parquet",
    "csv",
    "huggingface.format",
    "lerobot",
    "rlds.format",
    "rllib",
    "rerun",
    "webdataset.format",
)
#: Other packages register an object like `TargetFormat` under a name in this group of entry points.
ENTRY_POINTS = "episodelake.formats"
#: The target cannot be written, whatever file the system says it of.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        format: the name of the format.
        target: the file or folder.
        episodes, steps: what was written, in episodes and transitions.
        files: the files, relative to the target if that is a folder.
        lost: what the format cannot hold: counts, by a sentence that says what.
    """

    format: str
    target: Path
    episodes: int
    steps: int
    files: tuple[str, ...]
    lost: Mapping[str, int]

    def __str__(self) -> str:
        lines = [f"{self.episodes:,} episodes with {self.steps:,} steps in {self.target} ({self.format})"]
        return "\n".join([*lines, *(f"lost: {what}: {count:,}" for what, count in self.lost.items())])


@cache
def target_formats() -> Mapping[str, TargetFormat]:
    """Return the formats by name: ours, then those of other packages, which cannot replace ours."""
    ours = [importlib.import_module(f".{module}", __package__).FORMAT for module in _MODULES]
    formats: dict[str, TargetFormat] = {each.name: each for each in ours}
    for entry in entry_points(group=ENTRY_POINTS):
        found = entry.load()
        if hasattr(found, "write"):
            formats.setdefault(entry.name, found)
    return formats


def export_view(
    context: ReadContext,
    target: str | os.PathLike[str],
    format: str,
    *,
    overwrite: bool,
    strict: bool,
    progress: bool | Progress,
    options: dict[str, Any],
) -> ExportReport:
    """Write the episodes of a view; see `EpisodeView.export`."""
    chosen = _chosen(format, options)
    path = Path(target).expanduser().absolute()
    if not overwrite and os.path.lexists(path):
        raise StoreExistsError(
            f"{path} is there already. Choose another path, or replace it with overwrite=True (--overwrite)."
        )
    _check_apart(path, context)
    context.check_not_empty("to export")
    losses = Losses()
    total = len(context)
    if context.snapshot.schema.groups and not chosen.agents:
        raise DatasetError(_agents_message(chosen.name, context))
    with progress_meter(progress, "Exporting", "episodes") as tell, _drafted(path) as draft:
        export = Export(context, losses, options, lambda done: tell(done, total), path)
        export.lose_annotations(of_steps=not getattr(chosen, "annotations", False))
        with _writing(draft, path, chosen.name):
            chosen.write(export, draft)
        lost = losses.get(LOST_EPISODE, 0)
        if lost == total:
            raise DatasetError(
                f"{chosen.name} can hold none of the {total:,} episodes: each has one transition, whose next "
                "observation is missing. Nothing was written."
            )
        if strict and losses:
            raise DatasetError(
                f"{chosen.name} cannot hold everything: {'; '.join(losses.lines())}. Nothing was written; "
                "leave out strict=True to write the rest."
            )
        files = _files(draft)
    steps = (
        episodes_frame(context.snapshot, context.all_positions)
        .select(pl.col("length").sum())
        .collect()
        .item()
    )
    written = int(steps or 0) - lost - losses.get(LOST_TRANSITION, 0)
    return ExportReport(chosen.name, path, total - lost, written, files, losses)


def _check_apart(path: Path, context: ReadContext) -> None:
    """Refuse a target that would replace the store, or lie in it."""
    store = context.snapshot.layout.root.local
    if store is None:
        return
    real, root = path.resolve(), store.resolve()
    if real == root or real in root.parents or root in real.parents:
        raise InvalidArgumentError(
            f"{path} contains the store {store}, or lies in it: the export would replace episodes. Choose a "
            "path beside the store."
        )


def _in_memory(name: str) -> str:
    return f" view.to.{name}() returns an object in memory." if name in _ONLY_IN_MEMORY else ""


def _chosen(name: str, options: dict[str, Any]) -> TargetFormat:
    formats = target_formats()
    if name not in formats:
        raise InvalidArgumentError(
            f"format={name!r} is unknown.{suggest(str(name), list(formats))} Formats of export: "
            f"{', '.join(formats)}.{_in_memory(name)}"
        )
    chosen = formats[name]
    for option in options:
        if option not in chosen.options:
            known = ", ".join(f"{key} ({meaning})" for key, meaning in chosen.options.items()) or "none"
            raise InvalidArgumentError(f"{name} has no option {option!r}; its options: {known}.")
    return chosen


def _agents_message(name: str, context: ReadContext) -> str:
    agents = [agent for group in context.snapshot.schema.groups for agent in group.agents]
    return (
        f"{name} holds episodes of a single agent; the store has the agents {', '.join(agents[:8])}. Read an "
        "agent's episodes with `episode.agent(name)`, write them to a store of their own, and export that."
    )


@contextmanager
def _writing(draft: Path, path: Path, name: str) -> Iterator[None]:
    """Tell a place that cannot be written from other failures of a format, such as those of a codec."""
    try:
        yield
    except (EpisodelakeError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and (error.errno in _FULL or draft.name in str(error)):
            with guard_access("write", path):
                raise
        raise DatasetError(
            f"The export to {name} failed: {type(error).__name__}: {error}. Nothing was written."
        ) from error


@contextmanager
def _drafted(path: Path) -> Iterator[Path]:
    """Yield a path beside the target, which takes its place when the block ends without an error."""
    draft = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.exporting")
    try:
        with guard_access("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        with guard_access("write", path):
            if path.is_dir() and not path.is_symlink():
                former = draft.with_suffix(".replaced")
                try:
                    path.rename(former)
                    draft.rename(path)
                except BaseException:
                    if former.exists() and not path.exists():
                        former.rename(path)
                    raise
                shutil.rmtree(former)
            else:
                draft.replace(path)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _files(draft: Path) -> tuple[str, ...]:
    if draft.is_file():
        return (".",)
    return tuple(sorted(str(file.relative_to(draft)) for file in draft.rglob("*") if file.is_file()))
