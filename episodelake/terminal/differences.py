"""`episodelake diff`: two stores, or two versions of one, side by side; status 1 when they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from episodelake_command.folders import complete_stores

from .._store import EpisodeStore
from ..readers.amounts import counted
from ..store.errors import CorruptStoreError
from .arguments import AsJson, StorageOptions, StorePath, open_store_at
from .commands import CHECK, FAILED, command
from .comparison import compare
from .exploring import READING_ERRORS
from .grid import Grid, number_text
from .json_text import write_object
from .page import Page
from .progress import interruptible, progress_bar, unchanged
from .texts import count_text

IDS_SHOWN = 10

EXAMPLES = """\
episodelake diff data/cartpole backup/cartpole
episodelake diff data/cartpole@v1.0 data/cartpole
episodelake diff data/cartpole --version-a 3 --version-b 7
episodelake diff data/cartpole backup/cartpole --quiet || echo "the backup is old"

Exit statuses: 0 the same, 1 they differ, 2 something went wrong."""


def add_to(app: typer.Typer) -> None:
    """Add the command to the program."""
    command(app, CHECK, EXAMPLES)(diff)


def diff(
    path: StorePath,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="[OTHER]",
            help="The other store; left out, the same store (see --version-a and --version-b).",
            show_default=False,
            autocompletion=complete_stores,
        ),
    ] = None,
    version_a: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Version or tag of the first.", show_default=False)
    ] = None,
    version_b: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Version or tag of the second.", show_default=False)
    ] = None,
    episodes_only: Annotated[
        bool, typer.Option("--episodes-only", help="Do not compare steps: only episodes, runs and columns.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; the status tells.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Compare two stores, or two versions of one.

    The exit status is 1 if they differ.

    Episodes belong together by their ids. Where they lie in files does not count. Steps are compared where
    the files differ: those in files with the same bytes are the same.
    """
    if other is None and version_a is None and version_b is None:
        raise typer.BadParameter("give another store, or --version-a or --version-b.", param_hint="OTHER")
    page = Page()
    with interruptible(unchanged):
        first = open_store_at(path, storage, version_a)
        second = open_store_at(other if other is not None else path, storage, version_b)
        with progress_bar("Comparing", "files") as progress:
            try:
                report = compare(first, second, steps=not episodes_only, progress=progress)
            except READING_ERRORS as error:
                raise _damaged((first, second), error) from error
    if as_json:
        write_object(page, report)
    elif not quiet:
        _write(page, report)
    if not report["same"]:
        raise typer.Exit(FAILED)


def _damaged(stores: Sequence[EpisodeStore], error: Exception) -> Exception:
    """What is wrong with the files that ended a comparison: an engine may not have said which they are."""
    told = [each for store in stores for each in store.leave_out_damaged(steps=True)]
    return CorruptStoreError(" ".join(dict.fromkeys(told))) if told else error


def _write(page: Page, report: Mapping[str, Any]) -> None:
    if report["same"]:
        page.line(f"No difference in {counted(report['episodes']['same'], 'episode')}.", "bold green")
        return
    _write_figures(page, report["a"], report["b"])
    if report["spaces"]:
        page.heading("Spaces")
        _write_sides(page, "space", report["spaces"], "name")
    if report["columns"]:
        page.heading("Columns")
        rows = [{**each, "name": f"{each['table']}.{each['column']}"} for each in report["columns"]]
        _write_sides(page, "column", rows, "name")
    for kind in ("runs", "episodes"):
        _write_ids(page, kind, report[kind])


def _write_figures(page: Page, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    sides = [_labelled(side) for side in (first, second)]
    rows = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        left, right = (_figure(page, side.get(name)) for side in sides)
        rows.append((name, left, right, "" if left == right else "differs"))
    page.table(Grid.of(("", "A", "B", "difference"), rows))


def _labelled(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures by the words that people read; a list has a line for each of its values."""
    told: dict[str, Any] = {}
    for name, value in figures.items():
        label = name.replace("_", " ")
        if name == "end_reasons":
            told |= {f"ended: {reason}": count for reason, count in value.items()}
        elif isinstance(value, list):
            told |= {f"{label}[{index}]": each for index, each in enumerate(value)}
        else:
            told[label] = value
    return told


def _figure(page: Page, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return number_text(value) if page.is_terminal else repr(value)
    return count_text(page, value) if isinstance(value, int) else str(value)


def _write_sides(page: Page, title: str, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    cells = [(row[name], _side(row["a"]), _side(row["b"])) for row in rows]
    page.table(Grid.of((title, "A", "B"), cells))


def _side(value: Any) -> str:
    return "-" if value is None else str(value)


def _write_ids(page: Page, kind: str, report: Mapping[str, Any]) -> None:
    told = {"only in A": report["only_a"], "only in B": report["only_b"]}
    rows = [(where, identity, "") for where, ids in told.items() for identity in _first(page, ids)]
    differing = report["differing"]
    rows += [
        ("differs", each["id"], ", ".join(each["columns"]))
        for each in (differing[:IDS_SHOWN] if page.is_terminal else differing)
    ]
    if not rows:
        return
    page.heading(kind.capitalize())
    page.table(Grid.of(("where", "id", "columns that differ"), rows))
    counts = ", ".join(f"{len(ids):,} {where}" for where, ids in told.items())
    page.note(f"{counts}, {len(differing):,} differ, {report['same']:,} the same.")


def _first(page: Page, ids: Sequence[str]) -> Sequence[str]:
    return ids[:IDS_SHOWN] if page.is_terminal else ids
