"""A site: the report of some episodes and a page for each of them, as files that any web server hosts.

Like a report it has no scripts, and no page loads anything: a public demo needs no server of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np

from ...store.common.progress import Progress, progress_meter
from ...store.errors import StoreExistsError
from ...store.files import make_folder, names_in, user_path, write_file
from ..context import ReadContext
from ..episode_data import EpisodeData
from ..formatting import counted
from ..measures.health import HealthReport
from ..pictures.images import image_columns
from ..pictures.video import make_video
from . import html
from .cards import episode_card, view_card
from .plots import Plots
from .report import check_packages, full_page, report_page

#: So many episodes have a page, evenly spaced over those of the view.
MOST_EPISODES = 200
_CAMERAS = 4


def chosen_positions(count: int) -> np.ndarray:
    """Return the places of the episodes that have a page: int64, ascending, at most `MOST_EPISODES`."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_EPISODES)).round().astype(np.int64))


def write_site(
    context: ReadContext,
    plot: Plots,
    kind: str,
    health: Callable[[], HealthReport],
    folder: str | PathLike[str],
    episodes: Iterable[EpisodeData],
    progress: bool | Progress,
) -> Path:
    """Write the pages, `index.html` last, and return the folder; see `EpisodeView.report`."""
    check_packages("A site")
    path = user_path(folder)
    make_folder(path)
    present = names_in(path)
    if present:
        held = ", ".join(present[:3])
        raise StoreExistsError(f"The folder {path} is not empty: it holds {held}. Choose another.")
    make_folder(path / "episodes")
    # Not where the store is: visitors need not know the folders of this machine.
    name, rows = context.snapshot.layout.root.name or "store", []
    total = len(chosen_positions(len(context))) if len(context) else 0
    with progress_meter(progress, "Writing", "pages") as meter:
        for number, episode in enumerate(episodes):
            page = full_page(episode.id, _episode_page(episode, name, number, total))
            write_file(path / "episodes" / f"{number}.html", page.encode())
            rows.append(_row(episode, number))
            meter(number + 1, total)
    headers = ("episode", "position", "steps", "return", "its end")
    listed = html.table(headers, rows, (1, 2, 3))
    more = (
        ""
        if total == len(context)
        else f"<p>{total} of {counted(len(context), 'episode')}, evenly spaced.</p>"
    )
    card = view_card(context, kind, lambda: next(iter(episodes)), name)
    section = f'<h2>Episodes</h2>{more}<div class="episodelake-card">{listed}</div>' if rows else ""
    write_file(path / "index.html", report_page(context, plot, card, health, section).encode())
    return path


def _row(episode: EpisodeData, number: int) -> tuple[str, ...]:
    link = f'<a href="episodes/{number}.html">{html.text(episode.id)}</a>'
    numbers = map(html.number, (episode.position, episode.length, episode.episode_return))
    return (link, *numbers, html.text(episode.end_reason))


def _episode_page(episode: EpisodeData, name: str, number: int, total: int) -> str:
    """Return the body of an episode's page: links, its card, and a player for each camera."""
    links = [f'<a href="../index.html">{html.text(name)}</a>']
    links += [f'<a href="{number - 1}.html">previous</a>'] if number else []
    links += [f'<a href="{number + 1}.html">next</a>'] if number + 1 < total else []
    cameras = () if episode.agents else image_columns(episode._own_schema)[:_CAMERAS]
    players = [
        html.part(column, html.shown_part("The video", partial(_player, episode, column)))
        for column in cameras
    ]
    shown = f'<div class="episodelake-card">{"".join(players)}</div>' if players else ""
    return f"<nav>{' · '.join(links)}</nav>{episode_card(episode)}{shown}"


def _player(episode: EpisodeData, column: str) -> str:
    return make_video(episode, None, column, None, None, None)._repr_html_()
