"""Commands that compare and check: `replay | diff | verify | health | report`."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Annotated

import typer

from ..arguments import (
    Condition,
    EpisodeKey,
    StorageOptions,
    StorePath,
    WritablePath,
    column_names,
    episode_key,
)
from ..command import CHECK, FAILED, app, command
from ..result import AsJson, Report


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
) -> Report:
    """Replay one episode in the environment of its run.

    The exit status is 1 if it differs.
    """
    from ..output.page import Page
    from ..reports.episode_report import find_episode, write_replay
    from ..reports.open_store import Explored, open_store_at

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
    status = 0 if report.same else FAILED
    return Report(facts, lambda page, _: write_replay(page, report, str(env)), status=status)


@command(
    app,
    CHECK,
    """\
episodelake diff data/cartpole backup/cartpole
episodelake diff data/cartpole@v1.0 data/cartpole
episodelake diff data/cartpole@3 data/cartpole@7
episodelake diff data/cartpole backup/cartpole --quiet || echo "the backup is old"

Exit statuses: 0 the same, 1 they differ, 2 something went wrong.""",
)
def diff(
    path: StorePath,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The other store, or another version.")],
    episodes_only: Annotated[
        bool, typer.Option("--episodes-only", help="Do not compare steps: only episodes, runs and columns.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; only set the exit status.")
    ] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> Report:
    """Compare two stores, or two versions of one.

    The exit status is 1 if they differ.

    Episodes are matched by id. Their places in files do not matter. Steps are compared if the files differ:
    files with the same bytes hold the same steps.
    """
    if quiet and as_json:
        raise typer.BadParameter("it does not go with --json.", param_hint="--quiet")
    from ..reports.differences import compared, write_comparison

    report = compared((path, other), storage, steps=not episodes_only)
    write = (lambda page, _: None) if quiet else write_comparison
    return Report(report, write, status=0 if report["same"] else FAILED)


@command(
    app,
    CHECK,
    """\
episodelake verify data/cartpole
episodelake verify data/cartpole --json | jq .faults""",
    interrupted="The store is as it was, but for what was mended; call again to go on.",
)
def verify(
    path: WritablePath,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired.")] = False,
    storage: StorageOptions = None,
) -> Report:
    """Read everything and check it against everything else.

    Each fault is named with its file. The exit status is 1 if faults remain.
    """
    from ..reports.maintenance import write_faults
    from ..reports.open_store import open_newest

    report = open_newest(path, storage).verify(repair=repair, progress=True)
    status = 0 if report.ok else FAILED
    value = {"ok": report.ok, **vars(report)}
    return Report(value, lambda page, _: write_faults(page, report, repair=repair), status=status)


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
    storage: StorageOptions = None,
) -> Report:
    """Look for values and episodes that look wrong.

    That is NaN, dead sensors, saturated actions, outliers, repetitions and broken episodes. Each finding
    counts its episodes. The exit status is 1 if a larger share of the episodes than the threshold has one, or
    if a finding concerns no episode, such as a journal that waits for recovery.
    """
    from ..reports.maintenance import health_facts, write_health
    from ..reports.open_store import explored

    kinds = column_names(ignore) or ()
    health, status = explored(
        path,
        storage,
        lambda opened: opened.chosen(condition).health(ignore=kinds, progress=True),
        steps=True,
    )
    if health.share > threshold or health.unplaced:
        status = FAILED
    return Report(health_facts(health), lambda page, _: write_health(page, health), status=status)


@command(
    app,
    CHECK,
    """\
episodelake report data/cartpole --filter "number > 900" -o late.html
episodelake report data/cartpole -o report.html
episodelake report data/cartpole --site -o public""",
)
def report(
    path: StorePath,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The HTML file; one that is there is replaced."),
    ],
    condition: Condition = None,
    site: Annotated[
        bool, typer.Option("--site", help="Write a folder with a page for each of up to 200 episodes.")
    ] = False,
    storage: StorageOptions = None,
) -> Report:
    """Write a report: one HTML file with figures, health and charts.

    It has no scripts and loads nothing, so it can be sent to others. With --site it is a folder that any web
    server hosts: it needs no server of ours, and visitors can change nothing.
    """
    from ..output.exporting import check_outside_stores, check_target, file_report
    from ..reports.open_store import explored

    (check_outside_stores if site else check_target)(output)
    written, status = explored(
        path,
        storage,
        lambda opened: opened.chosen(condition).report(output, site=site, progress=True),
        steps=True,
    )
    if site:
        return file_report(
            f"The site is in {written}; it begins with", written / "index.html", {}, status=status
        )
    return file_report("The report is in", written, {}, status=status)
