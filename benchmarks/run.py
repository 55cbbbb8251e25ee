"""Run the benchmarks: `python benchmarks/run.py [NAME ...] [--quick] [--markdown FILE]`.

Prints a table for each question that a reader has: record, read, train, ask, import and export.

Peers get virtual environments of their own, made on the first run in `.venv` beside this file. Those of
`sampling-peers` and `exchange-peers` take some gigabytes, the data of `exchange-memory` 25 GB, and `scale`
and `billion` a quarter of an hour to hours, so these run only where they are named.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import bulk_writing
import collecting
import commit_latency
import compaction
import constants
import cookbook
import exchange
import exchange_memory
import exchange_peers
import exploring
import filtering
import growth
import iteration
import lakes
import many_writers
import object_stores
import opening
import recording
import recovery_speed
import rollouts
import sampling
import scale
import size
import sql
import startup
import vector_recording
import video
from measure import Row
from peer_process import TIANSHOU, Peer
from report import markdown, print_table
from scale_work import WORKS
from setting import Growth, Setting

QUESTIONS = {
    "Record": {
        "recording": recording.run,
        "vector-recording": vector_recording.run,
        "collecting": collecting.run,
        "bulk-writing": bulk_writing.run,
        "size": size.run,
        "commit-latency": commit_latency.run,
        "many-writers": many_writers.run,
        "recovery": recovery_speed.run,
        "compaction": compaction.run,
    },
    "Read": {
        "iteration": iteration.run,
        "filtering": filtering.run,
        "opening": opening.run,
        "startup": startup.run,
        "video": video.run,
        "growth": growth.run,
        "scale": scale.run,
        "billion": scale.run_billion,
        "constants": constants.run,
        "object-stores": object_stores.run,
    },
    "Train": {
        "sampling": sampling.run,
        "sampling-peers": sampling.run_peers,
        "rollouts": rollouts.run,
    },
    "Ask": {
        "sql": sql.run,
        "cookbook": cookbook.run,
        "lakes": lakes.run,
        "exploring": exploring.run,
    },
    "Import and export": {
        "exchange": exchange.run,
        "exchange-peers": exchange_peers.run,
        "exchange-memory": exchange_memory.run,
    },
}
BENCHMARKS = {name: run for group in QUESTIONS.values() for name, run in group.items()}
ON_REQUEST = {
    "billion",
    "constants",
    "exchange-peers",
    "exchange-memory",
    "object-stores",
    "sampling-peers",
    "scale",
}
WIDTH_OF_A_FILE = 170
ENVIRONMENTS = Path(__file__).resolve().parent / ".venv"


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Which to run: {', '.join(BENCHMARKS)}.")] = None,
    quick: Annotated[bool, typer.Option(help="Small sizes, to see that everything works.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each side is measured.")] = 5,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the table and the machine to this file too.")
    ] = None,
    environments: Annotated[Path, typer.Option(help="Where peers' environments are kept.")] = ENVIRONMENTS,
    steps: Annotated[
        list[float] | None, typer.Option(help="Of scale and billion: sizes, such as 1e7.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Of scale and billion: keep stores and results, and go on from them.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Of scale and billion: {', '.join(WORKS)}.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Of scale and billion: work to leave out.")] = None,
    seconds: Annotated[float, typer.Option(help="Of scale and billion: what any work may take.")] = 3600.0,
) -> None:
    """Measure Episodelake beside Minari, pyarrow and DuckDB, and print both sides and their ratio."""
    unknown = set(names or ()) - BENCHMARKS.keys()
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    if strange := {*(only or ()), *(skip or ())} - WORKS.keys():
        raise typer.BadParameter(f"unknown work: {', '.join(sorted(strange))}; there is {', '.join(WORKS)}")
    growth = Growth(
        tuple(int(size) for size in steps or ()),
        folder.resolve() if folder is not None else None,
        tuple(only or ()),
        tuple(skip or ()),
        seconds,
    )
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_A_FILE)
    target_file = markdown_file.resolve() if markdown_file is not None else None
    place = environments.resolve()
    tables: dict[str, list[Row]] = {}
    # MuJoCo leaves its log in the current folder, so the run happens in the scratch folder.
    with tempfile.TemporaryDirectory(prefix="episodelake-benchmarks-") as scratch, contextlib.chdir(scratch):
        peer = Peer(place, Path(scratch))
        tianshou = Peer(place, Path(scratch), TIANSHOU)
        setting = Setting(Path(scratch), repeats, quick, peer, tianshou, place, growth)
        try:
            for name in names or [name for name in BENCHMARKS if name not in ON_REQUEST]:
                console.print(f"[dim]running {name}[/dim]")
                question = next(question for question, group in QUESTIONS.items() if name in group)
                tables.setdefault(question, []).extend(BENCHMARKS[name](setting))
            if target_file is not None:
                words = f"{repeats} repeats{', small sizes (--quick)' if quick else ''}."
                target_file.write_text(markdown(tables, peer.versions() | tianshou.versions(), words))
        finally:
            peer.close()
            tianshou.close()
            for question, rows in tables.items():
                print_table(question, rows, console)


if __name__ == "__main__":
    typer.run(main)
