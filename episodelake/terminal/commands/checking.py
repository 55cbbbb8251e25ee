"""Commands that compare and check: `replay | diff | verify | health | report`."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments import (
    AsJson,
    Condition,
    EpisodeKey,
    StorageOptions,
    StorePath,
    WritablePath,
    column_names,
    episode_key,
)
from ..command import CHECK, FAILED, app, command
from ..completion import complete_stores, complete_tags

if TYPE_CHECKING:
    from ...readers.measures.health import HealthReport


# An episode may be -1, which is no option.
@command(
    app,
    CHECK,
    """\
episodelake replay data/cartpole 0
episodelake replay data/cartpole -1 --rtol 1e-6""",
    context_settings={"ignore_unknown_options": True},
)
def replay(
    path: StorePath,
    episode: EpisodeKey,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the modules that the store names: you trust its author.")
    ] = False,
    rtol: Annotated[float, typer.Option(min=0, help="Relative tolerance of numbers.")] = 0.0,
    atol: Annotated[float, typer.Option(min=0, help="Absolute tolerance of numbers.")] = 0.0,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Replay one episode in the environment of its run.

    The exit status is 1 if it differs.
    """
    from ..output.page import Page, emit
    from ..reports.episode_report import find_episode, write_replay
    from ..reports.opening import Explored, open_store_at

    store = open_store_at(path, storage)
    recorded = find_episode(Explored(store), episode_key(episode))
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", RuntimeWarning)
        env = store.make_env(recorded.run_id, trust=trust)
    for warning in () if as_json else noted:
        Page().note(str(warning.message))
    with contextlib.closing(env):
        report = recorded.replay(env, rtol=rtol, atol=atol)
    facts = {"same": report.same, "environment": str(env), **vars(report)}
    emit(facts, lambda page, _: write_replay(page, report, str(env)), as_json=as_json)
    if not report.same:
        raise typer.Exit(FAILED)


@command(
    app,
    CHECK,
    """\
episodelake diff data/cartpole backup/cartpole
episodelake diff data/cartpole@v1.0 data/cartpole
episodelake diff data/cartpole --version-a 3 --version-b 7
episodelake diff data/cartpole backup/cartpole --quiet || echo "the backup is old"

Exit statuses: 0 the same, 1 they differ, 2 something went wrong.""",
)
def diff(
    path: StorePath,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="[OTHER]",
            help="The other store; without it, the same store (see --version-a and --version-b).",
            autocompletion=complete_stores,
        ),
    ] = None,
    version_a: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Version or tag of the first.", autocompletion=complete_tags),
    ] = None,
    version_b: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Version or tag of the second.", autocompletion=complete_tags),
    ] = None,
    episodes_only: Annotated[
        bool, typer.Option("--episodes-only", help="Do not compare steps: only episodes, runs and columns.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; only set the exit status.")
    ] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Compare two stores, or two versions of one.

    The exit status is 1 if they differ.

    Episodes are matched by id. Their places in files do not matter. Steps are compared if the files differ:
    files with the same bytes hold the same steps.
    """
    if other is None and version_a is None and version_b is None:
        raise typer.BadParameter("give another store, or --version-a or --version-b.", param_hint="OTHER")
    from ..output.page import emit
    from ..reports.differences import compared, write_comparison
    from ..reports.opening import interruptible

    sides = ((path, version_a), (path if other is None else other, version_b))
    with interruptible():
        report = compared(sides, storage, steps=not episodes_only)
    if as_json or not quiet:
        emit(report, write_comparison, as_json=as_json)
    if not report["same"]:
        raise typer.Exit(FAILED)


@command(
    app,
    CHECK,
    """\
episodelake verify data/cartpole
episodelake verify data/cartpole --json | jq .faults""",
)
def verify(
    path: WritablePath,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="How many processes read.", show_default="this one")
    ] = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Read everything and check it against everything else.

    Each fault is named with its file. The exit status is 1 if faults remain.
    """
    from ..output.page import emit
    from ..reports.maintenance import write_faults
    from ..reports.opening import interruptible, open_newest, unchanged

    mended = "What was mended stays mended; call again to go on."
    with interruptible((lambda: mended) if repair else unchanged):
        report = open_newest(path, storage).verify(repair=repair, workers=workers, progress=True)
        emit(
            {"ok": report.ok, **vars(report)},
            lambda page, _: write_faults(page, report, repair=repair),
            as_json=as_json,
        )
    if not report.ok:
        raise typer.Exit(FAILED)


@command(
    app,
    CHECK,
    """\
episodelake health data/cartpole
episodelake health data/cartpole --ignore cut,gap --threshold 0.01
episodelake health data/cartpole --json | jq -r '.findings[].episode_ids[]'""",
)
def health(
    path: StorePath,
    condition: Condition = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="KINDS", help="Kinds of findings to leave out, separated by commas."),
    ] = None,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="The share of episodes that may have findings.")
    ] = 0.0,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Look for values and episodes that look wrong.

    That is NaN, dead sensors, saturated actions, outliers, repetitions and broken episodes. Each finding
    counts its episodes. The exit status is 1 if a larger share of the episodes than the threshold has one, or
    if a finding concerns no episode, such as a journal that waits for recovery.
    """
    from ..output.page import emit
    from ..reports.maintenance import health_facts, write_health
    from ..reports.opening import explored_steps

    def report(found: HealthReport) -> None:
        emit(health_facts(found), lambda page, _: write_health(page, found), as_json=as_json)
        if found.share > threshold or found.unplaced:
            raise typer.Exit(FAILED)

    explored_steps(
        path,
        storage,
        lambda opened: opened.chosen(condition).health(ignore=column_names(ignore) or (), progress=True),
        report,
    )


@command(
    app,
    CHECK,
    """\
episodelake report data/cartpole --filter "number > 900" -o late.html
episodelake report data/cartpole -o report.html""",
)
def report(
    path: StorePath,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The HTML file; one that is there is replaced."),
    ],
    condition: Condition = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Write a report: one HTML file with figures, health and charts.

    It has no scripts and loads nothing, so it can be sent to others.
    """
    from ..output.exporting import check_target, report_file
    from ..reports.opening import explored_steps

    check_target(output)
    explored_steps(
        path,
        storage,
        lambda opened: opened.chosen(condition).report(output, progress=True),
        lambda written: report_file("The report is in", written, {}, as_json=as_json),
    )
