"""The runs of the overview: a row each, with its curve; the ones that are ticked filter the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from nicegui import run, ui

from ..errors import EpisodelakeError
from ..plugin import collected, counted
from ..readers.charts.bins import usual_ends
from ..readers.charts.theme import shown
from .facets_pane import label_of
from .listing import RUN_KEY, Choice, EpisodeList
from .moments import NOTHING, text_of
from .widgets import DataTable, PageOwner, note, spark

#: The points of a curve.
_PLACES = 24
#: The newest runs are shown, and so many of the keys of their metadata that differ.
MOST_RUNS, _MOST_KEYS = 500, 8
_ROWS = 50


@dataclass(frozen=True)
class RunFacts:
    """A run, or the part of it that a filter keeps.

    Attributes:
        run_id: its id.
        curve: means of finite returns over its episodes in equal parts, None where there is none.
        final: the mean return of its last tenth, at least one episode; None without finite ones.
        best: the largest finite return.
        episodes: how many there are.
        began, ended: its first and its last episode; None if it is not known.
    """

    run_id: str
    curve: tuple[float | None, ...]
    final: float | None
    best: float | None
    episodes: int
    began: datetime | None
    ended: datetime | None


def run_facts(frame: pl.DataFrame, most: int = MOST_RUNS) -> list[RunFacts]:
    """Return the runs of some episodes, those that began last first.

    Args:
        frame: rows of the list, in the order of positions.
        most: the most runs to return.
    """
    value = pl.col("episode_return")
    value = pl.lit(None, pl.Float64) if frame["episode_return"].dtype.is_nested() else value.cast(pl.Float64)
    # As in learning curves: those that the recorder ended are no results, unless there are no others.
    unfinished = pl.col("end_reason").is_in(("cut", "interrupted"))
    ended = ~unfinished | unfinished.all().over("run_id")
    numbers = ended.cast(pl.Int64)
    at, count = (numbers.cum_sum() - 1).clip(0).over("run_id"), numbers.sum().over("run_id")
    late = pl.col("at") >= pl.col("count") - (pl.col("count") // 10).clip(1)
    parts = (
        frame.lazy()
        .select(
            "run_id",
            "started_at",
            "ended_at",
            value=pl.when(value.is_finite() & ended).then(value),
            at=at,
            count=count,
        )
        .group_by("run_id", place=pl.col("at") * _PLACES // pl.col("count"))
        .agg(
            pl.len(),
            pl.col("value").mean(),
            best=pl.col("value").max(),
            late=pl.col("value").filter(late).sum(),
            lates=pl.col("value").filter(late).count(),
            began=pl.col("started_at").min(),
            ended=pl.col("ended_at").max(),
        )
    )
    runs = collected(
        parts.group_by("run_id")
        .agg(
            pl.struct("place", "value").alias("curve"),
            final=pl.col("late").sum() / pl.col("lates").sum(),
            best=pl.col("best").max(),
            episodes=pl.col("len").sum(),
            began=pl.col("began").min(),
            ended=pl.col("ended").max(),
        )
        .sort("began", "run_id", descending=True, nulls_last=True)
        .head(most)
    )
    facts = []
    for row in runs.iter_rows(named=True):
        # Of few episodes the places are far apart, and nothing lies between them.
        curve = tuple(each["value"] for each in sorted(row.pop("curve"), key=lambda each: each["place"]))
        final = row.pop("final")
        facts.append(RunFacts(curve=curve, final=final if final == final else None, **row))
    return facts


class RunsPane:
    """The table of runs.

    Args:
        page: the page that it is part of.
    """

    def __init__(self, page: PageOwner) -> None:
        self.page = page
        self._choice = Choice()
        with ui.element("section").classes("card part runs-part"):
            with ui.element("div").classes("bar"):
                with ui.element("h2").classes("part-title"):
                    ui.label("Runs")
                self._note = note("caption grow")
                self._clear = ui.button("All runs", on_click=lambda: page.choose_runs(()))
                self._clear.props("dense no-caps outline").mark("all-runs")
            self._table = DataTable(
                rows=[],
                columns=[],
                row_key="_id",
                selection="multiple",
                pagination={"rowsPerPage": _ROWS},
                on_select=lambda event: page.choose_runs([row["_id"] for row in event.selection]),
            )
            self._table.classes("runs-table").mark("runs-table").props('no-data-label="No runs"')
            self._table.on("rowClick", self._clicked, [[], ["_id"], None])

    async def show(self, choice: Choice) -> None:
        """Show the runs of a choice, and those that it has chosen as ticked."""
        self._choice = choice
        episodes, all_runs = self.page.shown.episodes, replace(choice, run_ids=()).in_order

        def made() -> list[RunFacts]:
            mask = episodes.mask(all_runs)
            return run_facts(episodes.frame if mask is None else episodes.frame.filter(mask))

        try:
            facts = await run.io_bound(episodes.cached, ("run facts", all_runs), made)
        except EpisodelakeError:
            return  # The overview shows the error.
        if facts is not None and choice == self._choice and episodes is self.page.shown.episodes:
            self._fill(episodes, facts, choice)

    def _fill(self, episodes: EpisodeList, facts: Sequence[RunFacts], choice: Choice) -> None:
        metadata = {row["run_id"]: row for row in episodes.run_metadata.iter_rows(named=True)}
        keys = _keys(episodes.run_metadata)
        labels = episodes.labels
        values = np.array([value for each in facts for value in each.curve if value is not None])
        limits = usual_ends(values) if len(values) else None
        names = [labels[each.run_id] for each in facts]
        colors = dict(zip(names, self.page.watch.colors.of([*map(shown, names)]), strict=True))
        rows = [
            _row(each, labels[each.run_id], colors, limits, {key: metadata[each.run_id][key] for key in keys})
            for each in facts
        ]
        columns = dict.fromkeys(("run", "curve", "final", "best", "episodes", "duration"), "right")
        columns |= dict.fromkeys(keys, "left") | {"run": "left", "curve": "left"}
        self._table.columns = [
            {
                **{"name": name, "field": name, "label": label_of(name.removeprefix(RUN_KEY))},
                **{"align": align, "sortable": name != "curve"},
            }
            for name, align in columns.items()
        ]
        self._table.rows = rows
        self._table.selected = [row for row in rows if row["_id"] in choice.run_ids]
        self._table.props["hide-pagination"] = len(rows) <= _ROWS
        self._table.update()
        left = len(episodes.runs) - len(facts)
        caption = f"the {MOST_RUNS} that began last" if len(facts) == MOST_RUNS and left else ""
        if choice.run_ids:
            caption = f"{counted(len(choice.run_ids), 'run')} chosen: the page shows their episodes"
        self._note.set_text(caption)
        self._clear.set_visibility(bool(choice.run_ids))

    async def _clicked(self, event: Any) -> None:
        """Show a run alone; again, all of them."""
        run_id = event.args[1]["_id"]
        await self.page.choose_runs(() if self._choice.run_ids == (run_id,) else (run_id,))


def _keys(metadata: pl.DataFrame) -> list[str]:
    """Return the keys whose values differ, or all of them if none does."""
    keys = metadata.columns[1:]
    return ([key for key in keys if metadata[key].n_unique() > 1] or keys)[:_MOST_KEYS]


def _row(
    facts: RunFacts,
    label: str,
    colors: dict[str, str],
    limits: tuple[float, float] | None,
    metadata: dict[str, Any],
) -> dict[str, Any]:
    seconds = None
    if facts.began is not None and facts.ended is not None:
        seconds = (facts.ended - facts.began).total_seconds()
    numbers = {"final": facts.final, "best": facts.best, "episodes": facts.episodes, "duration": seconds}
    texts = {name: text_of(value) for name, value in (numbers | metadata).items()}
    texts["episodes"] = f"{facts.episodes:,}"
    texts["duration"] = NOTHING if seconds is None else duration_text(seconds)
    plain = {key: each if isinstance(each, int | float) else text_of(each) for key, each in metadata.items()}
    return {
        **{"run": text_of(label), "curve": spark(facts.curve, limits), **numbers, **plain},
        **{"_texts": texts, "_id": facts.run_id, "_color": colors[label]},
    }


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> duration_text(0.4), duration_text(75), duration_text(7_300), duration_text(180_000)
    ('0.4 s', '1 min 15 s', '2 h 1 min', '2 d 2 h')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    whole = timedelta(seconds=round(seconds))
    hours, rest = divmod(whole.seconds, 3600)
    parts = ((whole.days, "d"), (hours, "h"), (rest // 60, "min"), (rest % 60, "s"))
    first = next(place for place, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2] if amount)
