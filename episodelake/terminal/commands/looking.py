"""Commands that look at episodes: `info | ls | head | show | stats | plot`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..arguments import (
    Chart,
    Columns,
    Condition,
    EpisodeKey,
    Over,
    StorageOptions,
    StorePath,
    Table,
    Trust,
    column_names,
    episode_key,
    step_range,
)
from ..command import LOOK, app, command
from ..completion import complete_columns
from ..result import AsJson, Report


@command(
    app,
    LOOK,
    """\
episodelake info data/cartpole
episodelake info data/cartpole@v1.0                  as it was when it was tagged
episodelake info data/cartpole --json | jq .episodes""",
)
def info(path: StorePath, storage: StorageOptions = None) -> Report:
    """Show a summary of a store.

    Amounts, spaces, runs, ends, and columns with their sizes on disk. No step is decoded. If a file is
    damaged, the rest is shown and the file is named.
    """
    from ..output.page import report_warning
    from ..reports.info import info_of, write_info
    from ..reports.open_store import explored

    (report, reported), _ = explored(
        path, storage, lambda opened: (info_of(opened), len(opened.damaged)), name_live=False
    )
    for each in report["damaged"][reported:]:
        report_warning(each)
    return Report(report, write_info)


@command(
    app,
    LOOK,
    """\
episodelake ls data/cartpole --order-by episode_return --descending
episodelake ls data/cartpole --filter "length < 15 AND end_reason = 'terminated'"
episodelake ls data/cartpole --columns length,metadata.policy,run.name --offset 100
episodelake ls data/cartpole --json | jq -r '.[].episode_id'""",
)
def ls(
    path: StorePath,
    condition: Condition = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort by this column of episodes, or run.KEY; NULLs come last.",
            autocompletion=complete_columns,
        ),
    ] = None,
    descending: Annotated[bool, typer.Option("--descending", "-d", help="The largest first.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Show this many episodes; 0 shows all. The default is a screenful, in a pipe 100, with "
            "--json all.",
        ),
    ] = None,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many episodes first.")] = 0,
    columns: Columns = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> Report:
    """List episodes: filtered, sorted, a page at a time.

    `show` takes the column position as well as the id.
    """
    from ..output.page import Page
    from ..reports.listing import Listing, row_limit, write_episodes
    from ..reports.open_store import explored

    count = row_limit(Page(), limit, as_json=as_json)
    names = Page().is_terminal and not as_json
    listing = Listing(condition, order_by, descending, offset, count, column_names(columns), names)
    (rows, total), _ = explored(path, storage, listing.rows)
    return Report(rows, partial(write_episodes, listing=listing, total=total))


@command(
    app,
    LOOK,
    """\
episodelake head data/cartpole
episodelake head data/cartpole runs
episodelake head data/cartpole transitions --limit 3 --columns t,action,reward""",
)
def head(
    path: StorePath,
    table: Annotated[Table, typer.Argument(metavar="TABLE", help="The table to show.")] = Table.STEPS,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Show this many rows.")] = 10,
    columns: Columns = None,
    storage: StorageOptions = None,
) -> Report:
    """Show the first rows of a table."""
    from ..reports.listing import first_rows
    from ..reports.open_store import explored

    names = column_names(columns)
    rows, status = explored(
        path, storage, lambda opened: first_rows(opened.store, table, limit, names), steps=True
    )
    return Report(rows, empty=f"The table {table} has no rows." if limit else "", status=status)


# An episode may be -1, which is no option.
@command(
    app,
    LOOK,
    """\
episodelake show data/cartpole 0
episodelake show data/cartpole -1 --json
episodelake show data/pong ppo-01m808c5aj5vtzk/000007 --frames pong.mp4
episodelake show data/cartpole -1 --frames sheet.png --steps ::10""",
    context_settings={"ignore_unknown_options": True},
)
def show(
    path: StorePath,
    episode: EpisodeKey,
    frames: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write its frames to this file: .png for a contact sheet, .gif or .mp4 for a film.",
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO:STRIDE", help="With --frames: only these steps, such as 100:200 or ::4."
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only this agent of several.")] = None,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --frames: the images of this column.")
    ] = None,
    trust: Trust = False,
    whole: Annotated[bool, typer.Option("--all", help="Of a rollout: long messages as a whole.")] = False,
    storage: StorageOptions = None,
) -> Report:
    """Show one episode, or write its frames to a file.

    A summary, its first and last rows, and a line for reward, action and each observation; a rollout as a
    conversation.

    Frames are those of image observations, or else those of a replay in the environment of its run.
    """
    key, part = episode_key(episode), step_range(steps)
    for name, given in (("--steps", steps), ("--column", column), ("--trust", trust or None)):
        if frames is None and given is not None:
            raise typer.BadParameter("it needs --frames FILE.", param_hint=name)
    from ..reports.episode_report import EpisodeLook, Film, episode_report, find_episode, write_episode
    from ..reports.open_store import explored

    if frames is not None:
        return Film(frames, part, column, trust).save(path, storage, key, agent)
    look, _ = explored(path, storage, lambda opened: EpisodeLook.of(opened, find_episode(opened, key, agent)))
    error = str(look.lost) if look.lost else ""
    report = episode_report(look, agent)
    return Report(report, lambda page, value: write_episode(page, look, value, whole), error=error)


@command(
    app,
    LOOK,
    """\
episodelake stats data/cartpole
episodelake stats data/cartpole --columns observation,reward
episodelake stats data/cartpole --filter "run_id LIKE 'ppo-%'" --json""",
)
def stats(
    path: StorePath,
    columns: Columns = None,
    condition: Condition = None,
    episodes_only: Annotated[
        bool, typer.Option("--episodes-only", help="Read no step: only lengths and returns.")
    ] = False,
    storage: StorageOptions = None,
) -> Report:
    """Measure returns and lengths by run, and every column.

    All numbers are exact. Columns are those of steps; what is measured is cached on this machine.
    """
    from ..reports.open_store import explored
    from ..reports.statistics import measured, write_statistics
    from ..reports.store_figures import run_labels

    if episodes_only and columns:
        raise typer.BadParameter("it does not go with --episodes-only.", param_hint="--columns")
    wanted = [] if episodes_only else column_names(columns)
    (report, labels), status = explored(
        path,
        storage,
        lambda opened: (measured(opened, condition, wanted), run_labels(opened.store)),
        steps=True,
    )
    return Report(report, partial(write_statistics, labels=labels), status=status)


@command(
    app,
    LOOK,
    """\
episodelake plot data/cartpole returns
episodelake plot data/cartpole learning --by run.algo --smooth 2
episodelake plot data/cartpole returns --output returns.svg
episodelake plot data/cartpole histogram --filter "length > 9" -o returns.html
episodelake plot data/cartpole visitation --output visited.png""",
)
def plot(
    path: StorePath,
    kind: Annotated[
        Chart,
        typer.Argument(
            metavar="KIND",
            help="returns and lengths over time by run, histogram of returns, learning curves, actions "
            "taken, or visitation of observations.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the chart to a .svg, .png or .html file; needs episodelake[explore].",
        ),
    ] = None,
    over: Annotated[Over | None, typer.Option(help="What the x axis counts; of learning, episodes.")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="A line for each value of this column of episodes, or of run.KEY.",
            autocompletion=complete_columns,
        ),
    ] = None,
    smooth: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of learning: the mean with so many neighbours on each side."),
    ] = None,
    condition: Condition = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> Report:
    """Draw returns, learning curves, lengths or actions.

    To a file, or without one with characters.
    """
    from ..reports.open_store import explored
    from ..reports.plotting import Wanted, drawn, save_chart

    wanted = Wanted(str(kind), over, by, smooth)
    if output is not None:
        return save_chart(path, storage, wanted, output, condition)
    drawing, status = explored(
        path, storage, lambda opened: drawn(opened.chosen(condition), wanted, as_json=as_json), steps=True
    )
    return Report(drawing.rows, drawing.write, status=status)
