"""A report: one HTML file with the card, the health and the charts of some episodes.

It has no scripts and loads nothing, so it can be sent by mail or kept beside a paper.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ...store.common.optional_packages import require
from ...store.errors import NothingToDrawError
from ...store.files import guard_access, real_path, replacing, user_path
from ..context import ReadContext
from ..measures.health import HealthReport
from . import html
from .plots import Plots

if TYPE_CHECKING:
    from .chart import AnyChart

_STYLE = """<style>
:root { color-scheme: light dark }
body { margin: 24px auto; max-width: 928px; padding: 0 16px; background: Canvas; color: CanvasText;
  font: 14px/1.5 system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif }
h1 { font-size: 22px; overflow-wrap: anywhere } h2 { font-size: 17px; margin-top: 28px }
figure { margin: 12px 0; overflow-x: auto } figure svg { overflow: visible }
</style>"""


def write_report(
    context: ReadContext,
    plot: Plots,
    card: str,
    health: Callable[[], HealthReport],
    file: str | PathLike[str],
) -> Path:
    """Write the page, with a card as HTML, and return its path; see `EpisodeView.report`."""
    check_packages("A report")
    path = user_path(file)
    with guard_access("write the report", path):
        path.parent.stat()  # a folder that is missing is reported before the work, not after it
        target = real_path(path)
    page = report_page(context, plot, card, health).encode()
    with replacing(target, ".html") as draft:
        draft.write_bytes(page)
    return path


def check_packages(purpose: str) -> None:
    """Refuse to begin without the packages that draw charts."""
    require("altair", purpose)
    require("vl_convert", purpose)


def report_page(
    context: ReadContext, plot: Plots, card: str, health: Callable[[], HealthReport], more: str = ""
) -> str:
    """Return the page of a report; `more` is HTML at its end."""
    snapshot = context.snapshot
    name = str(snapshot.layout.root.name or snapshot.layout.root)
    charts: tuple[tuple[str, Callable[[], AnyChart]], ...] = (
        ("The learning curve", plot.learning_curve),
        ("The returns", plot.returns),
        ("The distribution of returns", plot.return_histogram),
        ("The lengths", plot.lengths),
        ("The actions", plot.actions),
        ("The visited states", plot.visitation),
    )
    body = [
        f"<h1>{html.text(name)}</h1>",
        card,
        "<h2>Health</h2>",
        html.shown_part("The health", lambda: _health(health())),
        "<h2>Charts</h2>",
        *(
            html.shown_part(what, lambda draw=draw, number=number: _figure(draw, number))
            for number, (what, draw) in enumerate(charts)
        ),
        more,
    ]
    return full_page(name, "".join(body))


def full_page(title: str, body: str) -> str:
    """Return a document with a title, which is plain text, and a body of HTML."""
    name = html.text(title)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}{_STYLE}</head><body>{body}</body></html>\n'


def _figure(draw: Callable[[], AnyChart], number: int) -> str:
    """Return a chart as inline SVG; nothing where there is nothing to draw."""
    try:
        chart = draw()
    except NothingToDrawError:
        return ""
    drawing = io.StringIO()
    chart.save(drawing, "svg")
    # Every drawing names its clips clip0, clip1 and so on; in one page they must differ.
    own = re.sub(r'(\bid="|url\(#)', rf"\1chart{number}-", drawing.getvalue())
    return f"<figure>{own}</figure>"


def _health(report: HealthReport) -> str:
    if report.ok:
        return f"<p>{html.text(report)}</p>"
    rows = [
        (
            html.code(row["kind"]),
            html.text(row["message"]),
            html.number(row["episodes"]),
            html.code(row["first"]) if row["first"] else "",
        )
        for row in report.frame().iter_rows(named=True)
    ]
    share = f"<p>{html.text(report.summary)}</p>"
    listed = html.table(("kind", "finding", "episodes", "first episode"), rows, (2,))
    meanings = {each.kind: each.meaning for each in report.findings}
    kinds = html.facts((kind, html.text(meaning)) for kind, meaning in meanings.items())
    return f'{share}<div class="episodelake-card">{listed}{html.part("Kinds of findings", kinds)}</div>'
