"""Commands that look at episodes: `info | ls | head | show | stats | plot | sql | explore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..arguments import (
    AsJson,
    Columns,
    Condition,
    EpisodeKey,
    StorageOptions,
    StorePath,
    Trust,
    column_names,
    episode_key,
    step_range,
)
from ..choices import Chart, Table
from ..command import LOOK, app, command
from ..completion import complete_columns, complete_measured


@command(
    app,
    LOOK,
    """\
episodelake info data/cartpole
episodelake info data/cartpole@v1.0                  as it was when it was tagged
episodelake info data/cartpole --json | jq .episodes""",
)
def info(path: StorePath, as_json: AsJson = False, storage: StorageOptions = None) -> None:
    """Show what a store is and what it holds.

    Amounts, spaces, runs, ends, and columns with their sizes on disk. No step is decoded. If a file is
    damaged, the rest is shown and the file is named.
    """
    from ..reports.info import show_store

    show_store(path, storage, as_json=as_json)


@command(
    app,
    LOOK,
    """\
episodelake ls data/cartpole --order-by episode_return --descending
episodelake ls data/cartpole --filter "length < 15 AND end_reason = 'terminated'"
episodelake ls data/cartpole --columns length,metadata.policy --offset 100
episodelake ls data/cartpole --json | jq -r '.[].episode_id'""",
)
def ls(
    path: StorePath,
    condition: Condition = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort by this column of episodes; NULLs come last.",
            show_default=False,
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
            show_default=False,
        ),
    ] = None,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many episodes first.")] = 0,
    columns: Columns = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """List episodes: filtered, sorted, a page at a time.

    `show` takes the column position as well as the id.
    """
    from ..reports.listing import list_episodes

    order, part = (order_by, descending), (offset, limit)
    list_episodes(path, storage, condition, order, part, column_names(columns), as_json=as_json)


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
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Show the first rows of a table."""
    from ..reports.listing import list_rows

    list_rows(path, storage, table, limit, column_names(columns), as_json=as_json)


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
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO:STRIDE",
            help="With --frames: only these steps, such as 100:200 or ::4.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this agent of several.", show_default=False)
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --frames: the images of this column.", show_default=False),
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Show one episode, or write its frames to a file.

    A summary, its first and last rows, and a line for reward, action and each observation.

    Frames are those of image observations, or else those of a replay in the environment of its run.
    """
    key, part = episode_key(episode), step_range(steps)
    for name, given in (("--steps", steps), ("--column", column)):
        if frames is None and given is not None:
            raise typer.BadParameter("it needs --frames FILE.", param_hint=name)
    from ..reports.showing import Film, show_episode

    film = None if frames is None else Film(frames, part, column, trust)
    show_episode(path, storage, key, agent, film, as_json=as_json)


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
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--columns",
            "-c",
            metavar="NAMES",
            help="Columns of steps to measure, or elements such as observation[2], separated by commas; may "
            "be repeated.",
            show_default=False,
            autocompletion=complete_measured,
        ),
    ] = None,
    condition: Condition = None,
    episodes_only: Annotated[
        bool, typer.Option("--episodes-only", help="Read no step: only lengths and returns.")
    ] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Measure returns and lengths by run, and every column.

    All numbers are exact. The measurements of a column are cached on this machine.
    """
    from ..reports.statistics import show_statistics

    wanted = [] if episodes_only else column_names(columns)
    show_statistics(path, storage, condition, wanted, as_json=as_json)


@command(
    app,
    LOOK,
    """\
episodelake plot data/cartpole returns
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
            help="returns and lengths over time by run, histogram of returns, actions taken, or visitation "
            "of observations.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the chart to a .svg, .png or .html file; needs episodelake[explore].",
            show_default=False,
        ),
    ] = None,
    condition: Condition = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Draw returns, lengths, actions or visited observations.

    To a file, or without one with characters.
    """
    from ..reports.plotting import draw_chart

    draw_chart(path, storage, kind, output, condition, as_json=as_json)


@command(
    app,
    LOOK,
    """\
episodelake sql data/cartpole "SELECT end_reason, count(*) FROM episodes GROUP BY 1"
episodelake sql data/cartpole "FROM episodes" --csv > episodes.csv
episodelake sql data/cartpole "FROM transitions WHERE reward < 0" --parquet b.parquet
episodelake sql data/cartpole < question.sql
episodelake sql data/cartpole                   a prompt, with completion and history""",
)
def sql(
    path: StorePath,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="A DuckDB query over the tables runs, episodes, steps and transitions; - reads it from "
            "standard input, as does a pipe. Without it, a terminal gets a prompt.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="At most this many rows; 0 for all. The default is 100 in a table, all in files, CSV and "
            "JSON.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the result to a Parquet file.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the result to a file: .csv, .json or .parquet.",
            show_default=False,
        ),
    ] = None,
    storage: StorageOptions = None,
) -> None:
    """Run an SQL query; without one, open a prompt.

    The result is printed, or written to a file.

    Column names with a dot need double quotes: SELECT "info.x" FROM steps.
    If the output is not a terminal, cells are separated by tabs and numbers are written in full.
    """
    from ..output.exporting import chosen_export
    from ..reports.querying import run_query

    export = chosen_export(csv=csv, as_json=as_json, parquet=parquet, output=output)
    run_query(path, storage, query, limit, export)


@command(
    app,
    LOOK,
    """\
episodelake explore data/cartpole
episodelake explore data/cartpole@v1.0 --no-browser --port 9000""",
)
def explore(
    path: StorePath,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Beyond 127.0.0.1, others reach the page too.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port; 0 for any free one.",
            show_default="8642, or any free one",
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="EPISODELAKE_TOKEN",
            show_envvar=True,
            help="The secret that opens the page; at least 16 letters and digits.",
            show_default="a new one each time",
        ),
    ] = None,
    storage: StorageOptions = None,
) -> None:
    """Explore a store in the browser, on this machine.

    Filter episodes, step through them, chart runs, ask in SQL, export a selection. The page reads the
    store and changes nothing. It follows running writers, unless PATH names a version or a tag.
    Ctrl-C ends it.
    """
    from ..reports.explore import open_explorer

    open_explorer(path, storage, host, port, browser=browser, token=token)
