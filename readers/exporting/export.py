"""`export_view`: write a view as a dataset of another library, atomically."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...store.common.arguments import suggest
from ...store.common.exchange import Losses, entries, find_format, formats
from ...store.common.progress import Progress, progress_meter
from ...store.errors import DatasetError, EpisodelakeError, InvalidArgumentError
from ...store.files import guard_access, is_file, user_path
from ..context import ReadContext
from .atomic import atomic_target
from .capabilities import LOST_EPISODE, LOST_TRANSITION
from .target import Export, ExportFormat, TargetFormat, refuse_agents

#: The target cannot be written, whatever file the system says it of.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        format: the name of the format.
        target: the file or folder.
        episodes, steps: what was written, in episodes and transitions.
        files: the files, relative to the target; the name of the target if that is a single file.
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


def target_formats() -> Mapping[str, TargetFormat]:
    """Return the formats by name."""
    return formats("targets")


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
    if isinstance(chosen, ExportFormat):
        options = chosen.checked(options)
    path = user_path(target).absolute()
    context.check_not_empty("to export")
    losses, holds = Losses(), chosen.holds(options)
    total = len(context)
    if not chosen.agents:
        refuse_agents(context, chosen.name)
    with (
        progress_meter(progress, "Exporting", "episodes") as meter,
        atomic_target(path, chosen.name, folder=chosen.folder, overwrite=overwrite) as draft,
    ):
        export = Export(context, losses, options, lambda done: meter(done, total), holds, path)
        export.count_losses()
        lost = losses.get(LOST_EPISODE, 0)
        if lost == total:
            raise DatasetError(
                f"{chosen.name} can hold none of the {total:,} episodes: each has one transition, whose next "
                "observation is missing. Nothing was written."
            )
        with _writing(draft, path, chosen.name):
            chosen.write(export, draft)
        if strict and losses:
            raise DatasetError(
                f"{chosen.name} cannot hold everything: {'; '.join(losses.lines())}. Nothing was written; "
                "leave out strict=True to write the rest."
            )
        with guard_access("read", path):
            files = _files(draft, path)
        steps = int(export.ends["length"].sum()) - lost - losses.get(LOST_TRANSITION, 0)
    return ExportReport(chosen.name, path, total - lost, steps, files, losses)


def _chosen(name: str, options: dict[str, Any]) -> TargetFormat:
    chosen = find_format("targets", name) if isinstance(name, str) else None
    if chosen is None:
        known = target_formats()
        in_memory = isinstance(name, str) and name in entries("conversions")
        hint = f" view.to.{name}() returns an object in memory." if in_memory else ""
        raise InvalidArgumentError(
            f"format={name!r} is unknown.{suggest(str(name), list(known))} Formats of export: "
            f"{', '.join(known)}.{hint}"
        )
    for option in options:
        if option not in chosen.options:
            options_text = (
                ", ".join(f"{key} ({meaning})" for key, meaning in chosen.options.items()) or "none"
            )
            raise InvalidArgumentError(f"{name} has no option {option!r}; its options: {options_text}.")
    return chosen


@contextmanager
def _writing(draft: Path, path: Path, name: str) -> Iterator[None]:
    """Tell a place that cannot be written from other failures of a format, such as those of a codec."""
    try:
        yield
    except (EpisodelakeError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and (error.errno in _FULL or str(draft) in str(error)):
            with guard_access("write", path):
                raise
        raise DatasetError(
            f"The export to {name} failed: {type(error).__name__}: {error}. Nothing was written."
        ) from error


def _files(draft: Path, path: Path) -> tuple[str, ...]:
    if is_file(draft):
        return (path.name,)
    return tuple(sorted(str(file.relative_to(draft)) for file in draft.rglob("*") if is_file(file)))
