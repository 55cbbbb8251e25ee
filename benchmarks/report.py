"""Tables of measured rows, on the terminal and as Markdown, and a description of the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from measure import Row, Samples

HEADINGS = ("work", "unit", "Episodelake", "peer", "peer's", "ratio", "target", "reached")
PACKAGES = (
    "episodelake",
    "numpy",
    "pyarrow",
    "polars",
    "duckdb",
    "deltalake",
    "gymnasium",
    "mujoco",
    "ale-py",
)


def print_table(title: str, rows: Sequence[Row], console: Console) -> None:
    """Print the rows on the terminal; a missed target is red."""
    table = Table(title=f"{title} (smaller is better; a ratio is Episodelake over the peer)")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("work", "peer") else "right")
    for row in rows:
        style = "red" if row.reached is False else None
        table.add_row(*cells(row), style=style)
    console.print(table)


def markdown(tables: Mapping[str, Sequence[Row]], peer_versions: dict[str, str], settings: str) -> str:
    """Return missed targets, a table for each question, and the description of the machine as Markdown."""
    missed = [row for rows in tables.values() for row in rows if row.reached is False]
    others = {
        question: [row for row in rows if row.reached is not False] for question, rows in tables.items()
    }
    lines = []
    for heading, rows in {"Missed": missed, **others}.items():
        if rows:
            lines += [f"### {heading}", "", f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}"]
            lines += [*(f"| {' | '.join(cells(row))} |" for row in rows), ""]
    words = "Medians with the smallest and the largest value in brackets; smaller is better, and a ratio is "
    words += f"Episodelake over the peer, of medians. {settings}"
    return "\n".join([*lines, words, "", *describe_machine(peer_versions), ""])


def cells(row: Row) -> tuple[str, ...]:
    """Return the text of a row's cells, in the order of `HEADINGS`."""
    return (
        row.work,
        row.unit,
        _samples(row.ours),
        row.peer or "-",
        _samples(row.theirs) if row.theirs is not None else "-",
        f"{row.ratio:.3g}" if row.ratio is not None else "-",
        _target(row),
        {None: "-", True: "yes", False: "no"}[row.reached],
    )


def describe_machine(peer_versions: dict[str, str]) -> list[str]:
    """Return Markdown lines on the machine and the packages: no names of hosts, no paths."""
    ours = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    theirs = ", ".join(f"{name} {number}" for name, number in peer_versions.items())
    return [
        f"- Machine: {_cpu_model()}, {len(os.sched_getaffinity(0))} cores, "
        f"{_memory_gib():.0f} GiB of memory, {platform.system()}, shared with other work.",
        f"- Python {platform.python_version()}; {ours}.",
        f"- The peers' environments: {theirs}." if theirs else "- No peer was run.",
    ]


def _samples(samples: Samples) -> str:
    if len(samples.values) == 1:
        return _number(samples.median)
    return f"{_number(samples.median)} ({_number(samples.low)} to {_number(samples.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _target(row: Row) -> str:
    if row.limit is not None:
        return f"{_number(row.limit)} {row.unit}"
    return f"{row.ratio_target:.3g}" if row.ratio_target is not None else "-"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
