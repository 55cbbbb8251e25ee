"""First screen of a store: contents, learning curves and runs, health, outliers, ends and distributions."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from nicegui import run, ui

from ..errors import EpisodelakeError
from ..plugin import RunEnv, counted, literal, size_text
from ..readers.charts.series import LENGTH, POLICY, RETURN, RUN, numeric_columns, values_of_episodes
from ..readers.charts.theme import END_COLORS
from ..types import Finding
from .charts import DISTRIBUTIONS, Curve, curve_spec, distribution_spec, interval_condition, to_extremes
from .checkup import SEVERE, Checkup, name_of
from .listing import Choice, column_sql
from .live.watch import Shown
from .moments import NOTHING, text_of
from .panes.run_pictures import RunPictures
from .runs_pane import RunsPane
from .widgets import Drawing, PageOwner, note

_POLL = 0.3
_PAUSE = 4.0
_FACTS = ["run_id", "length", "episode_return", "end_reason", "started_at", "ended_at"]
#: More findings wait behind a button.
_MOST_FINDINGS = 6
_MOST_OUTLIERS = 12
_OVER = {"episodes": "Episode", "steps": "Step", "time": "Time"}
_WHAT = {RETURN: "Return", LENGTH: "Length"}
#: More parts of a reward have no room.
_MOST_VALUES = 8
_BANDS = {"episodes": "All episodes", "runs": "Run by run"}


class OverviewPane:
    """The overview of a store, or of the episodes that the list shows.

    Args:
        page: the page that it is part of.

    Attributes:
        choice: the choice of the list that it follows.
    """

    def __init__(self, page: PageOwner) -> None:
        self.page = page
        self.curve = Curve()
        self._drawn = 0.0
        self._all_findings = False
        self._checked: tuple[Any, ...] = ()
        self.choice = Choice()
        with ui.element("div").classes("pane scrolling overview-page"):
            with ui.element("section").classes("card part about-store").mark("about-store"):
                self._facts = ui.element("div").classes("about-facts")
                # In a place of its own: what is below must not move while runs are ticked.
                with ui.element("div").classes("part-of").mark("part-of") as self._part_of:
                    self._part = ui.label().classes("grow")
                    ui.button("Whole store", on_click=page.show_whole).props("dense no-caps outline")
                self._part_of.set_visibility(False)
            with ui.element("div").classes("overview-grid"):
                with ui.element("div").classes("overview-column"):
                    self._curve_part()
                    self._runs = RunsPane(page)
                    self._pictures = RunPictures(page)
                with ui.element("div").classes("overview-column beside-curve"):
                    with _part("Health"):
                        self._health = ui.element("div").classes("findings").mark("health")
                    with _part("Episodes that stand out") as self._outliers_part:
                        self._outliers = ui.element("div").classes("outliers").mark("outliers")
                    with _part("How episodes end"):
                        self._ends = ui.element("div").classes("ends").mark("ends")
                    self._places = {name: self._distribution(name) for name in DISTRIBUTIONS}
        self._show_figures(self._figures())
        self._look_at_health()
        ui.timer(_POLL, self._look_at_health)
        ui.timer(0.05, self.draw, once=True)

    # Layout

    def _curve_part(self) -> None:
        with _part("Learning curve"):
            with ui.element("div").classes("bar wrapping"):
                self._by = ui.select(self._groups(), value=RUN, label="Colour", on_change=self._changed)
                self._by.props("outlined dense options-dense").classes("w-32").mark("curve-by")
                self._toggles = {
                    name: ui.toggle(options, value=getattr(self.curve, name), on_change=self._changed)
                    for name, options in self._options().items()
                }
                for name, toggle in self._toggles.items():
                    toggle.props("dense no-caps unelevated flat").mark(f"curve-{name}")
                with ui.element("div").classes("smoothing"):
                    ui.label("Smoothing").classes("muted")
                    self._smooth = ui.slider(min=0, max=20, value=0).props('dense aria-label="Smoothing"')
                    self._smooth.on("change", self._changed)
            self._drawing = Drawing().mark("curve").style("min-height: 292px")
            self._caption = note("caption")

    def _distribution(self, name: str) -> tuple[Drawing, ui.label]:
        with _part(name).classes(f"distribution {name.lower()}"):
            drawing = Drawing(partial(self._brushed, name), partial(self._draw_distribution, name))
            return drawing.style("min-height: 225px"), note("caption")

    async def _brushed(self, name: str, chosen: dict[str, tuple[float, float]]) -> None:
        """List the episodes of an interval of a distribution."""
        column, frame = DISTRIBUTIONS[name].columns["from"], self.page.shown.episodes.frame
        if chosen:
            drawing, _ = self._places[name]
            interval = to_extremes(chosen["from"], drawing.specification, frame[column])
            await self.page.narrow(column_sql(column), interval_condition(column, interval))

    def _options(self) -> dict[str, dict[str, str]]:
        """Return what can be chosen for a curve: of rollouts also policy versions and parts of rewards."""
        snapshot = self.page.shown.store.selection().snapshot
        parts = {name: text_of(name, 30) for name in values_of_episodes(snapshot)[:_MOST_VALUES]}
        policy = {"policy": "Policy version"} if POLICY in numeric_columns(snapshot) else {}
        return {"what": parts | _WHAT, "over": _OVER | policy, "band": _BANDS}

    def _groups(self) -> list[str]:
        """Return what curves can be grouped by: all that has few values."""
        return [RUN, *self.page.shown.episodes.groups]

    # Showing

    async def _follow_facts(self) -> None:
        """Show the facts of the choice, or its error, unless another one follows meanwhile."""
        shown, choice = self.page.shown, self.choice
        try:
            figures = await run.io_bound(self._figures)
        except EpisodelakeError as error:
            self._part_of.set_visibility(True)
            self._part.set_text(str(error))
            return
        if figures is not None and shown is self.page.shown and choice == self.choice:
            self._show_figures(figures)

    def _show_figures(self, figures: _Figures) -> None:
        shown, count = self.page.shown, figures.count
        self._part_of.set_visibility(bool(self.choice.where))
        amounts = f"{count:,} of {counted(len(shown.episodes), 'episode')}"
        self._part.set_text(f"Filtered as the list is: {amounts}. Health is that of the whole store.")
        self._facts.clear()
        with self._facts:
            for name, (value, more) in (figures.facts | _disk_facts(shown)).items():
                with ui.element("div"):
                    ui.label(value).classes("figure-value")
                    ui.label(name).classes("figure-name")
                    if more:
                        ui.label(more).classes("figure-name")
            if not self.choice.where:
                self._show_spaces()
        self._ends.clear()
        with self._ends:
            for reason, number in figures.ends:
                share = number / max(count, 1)
                choose = partial(self.page.narrow, "end_reason", f"end_reason = {literal(reason)}")
                with ui.element("button").classes("end-row").on("click", choose):
                    ui.label(text_of(reason)).classes("end-name")
                    with ui.element("span").classes("end-track"):
                        color = END_COLORS.get(reason, "#7d8794")
                        ui.element("span").style(f"width: {share:.2%}; background: {color}")
                    ui.label(f"{number:,}").classes("end-count")
                    ui.label(f"{share:.1%}").classes("end-count muted")

    def _show_spaces(self) -> None:
        with ui.element("dl").classes("facts spaces"):
            for name, value in _spaces(self.page.shown).items():
                with ui.element("dt"):
                    ui.label(name)
                with ui.element("dd") as place:
                    ui.label(text_of(value, 160))
                place.props["title"] = text_of(value)

    def _figures(self) -> _Figures:
        """Return the figures of the episodes that the list's filter keeps."""
        episodes, choice = self.page.shown.episodes, self.choice

        def made() -> _Figures:
            mask, frame = episodes.mask(choice), episodes.frame.select(_FACTS)
            return _figures_of(frame if mask is None else frame.filter(mask))

        return episodes.cached(("figures", choice.in_order), made)

    async def follow(self, choice: Choice) -> None:
        """Show the episodes of a choice of the list."""
        if choice.in_order != self.choice.in_order:
            self.choice = choice
            await self._follow_facts()
            await self.draw()

    def _look_at_health(self) -> None:
        """Show how far the checkup is, or what it found, if that changed."""
        checkup = self.page.watch.checkup()
        state = (checkup.report, checkup.problem, round(checkup.share, 2), self._all_findings)
        if state == self._checked:
            return
        self._checked = state
        self._health.clear()
        with self._health:
            self._show_health(checkup)
        self._show_outliers(checkup)

    def _show_health(self, checkup: Checkup) -> None:
        if checkup.problem:
            ui.label(checkup.problem).classes("problem w-full")
        if checkup.report is None:
            if not checkup.problem:
                ui.label(f"Checking … {checkup.share:.0%}").classes("muted")
            return
        findings = sorted(checkup.report.findings, key=lambda each: each.kind not in SEVERE)
        if not findings:
            text = f"No findings in {counted(checkup.report.count, 'episode')}"
            ui.label(text).classes("finding fine")
        for finding in findings if self._all_findings else findings[:_MOST_FINDINGS]:
            self._show_finding(finding)
        if len(findings) > _MOST_FINDINGS and not self._all_findings:
            more = ui.button(f"{len(findings) - _MOST_FINDINGS} more", on_click=self._show_all)
            more.props("dense no-caps flat")

    def _show_finding(self, finding: Finding) -> None:
        classes = f"finding {'severe' if finding.kind in SEVERE else 'hint'}"
        if len(finding.positions):
            button = ui.element("button").classes(classes)
            button.on("click", partial(self.page.show_finding, name_of(finding)))
        else:
            button = ui.element("span").classes(classes)
        with button:
            ui.label(finding.kind.replace("_", " ")).classes("finding-kind")
            ui.label(text_of(finding.message)).classes("reasons")

    def _show_outliers(self, checkup: Checkup) -> None:
        """List episodes with the reasons; a click opens one at the step of the first reason."""
        listed = [] if checkup.report is None else checkup.report.outliers(_MOST_OUTLIERS).to_dicts()
        self._outliers_part.set_visibility(bool(listed))
        self._outliers.clear()
        with self._outliers:
            for each in listed:
                name = self.page.shown.episodes.short_id(each["episode_id"])
                open_it = partial(self.page.show_reason, each["episode_id"], None, each["t"])
                with ui.element("button").classes("outlier").on("click", open_it):
                    ui.label(text_of(name)).classes("mono")
                    ui.label(text_of("; ".join(each["reasons"]), 300)).classes("reasons")

    def _show_all(self) -> None:
        self._all_findings = True
        self._look_at_health()

    async def draw(self) -> None:
        """Draw the charts of the version that is shown."""
        self._drawn = time.monotonic()
        await self._runs.show(self.choice)
        await self._draw_curve()
        for name in self._places:
            await self._draw_distribution(name)

    async def _draw_distribution(self, name: str) -> None:
        drawing, caption = self._places[name]
        await self._draw_into(drawing, caption, partial(distribution_spec, scale=drawing.scale), name)

    async def _draw_curve(self) -> None:
        await self._draw_into(self._drawing, self._caption, curve_spec, self.curve)

    async def _draw_into(self, drawing: Drawing, caption: ui.label, make: Any, what: Any) -> None:
        """Draw a chart of the choice, made once for all tabs."""
        episodes, choice, colors = self.page.shown.episodes, self.choice, self.page.watch.colors
        scale = drawing.scale

        def made() -> Any:
            return episodes.cached(
                ("chart", what, scale, choice.in_order), lambda: make(what, episodes.chosen(choice), colors)
            )

        await drawing.draw(caption, made)

    # Events

    async def _changed(self) -> None:
        chosen = {name: toggle.value for name, toggle in self._toggles.items()}
        await self.choose(
            replace(self.curve, by=self._by.value, smooth=int(self._smooth.value or 0), **chosen)
        )

    async def choose(self, curve: Curve) -> None:
        """Draw another learning curve."""
        if curve == self.curve:
            return
        self.curve = curve
        self._by.value, self._smooth.value = curve.by, curve.smooth
        for name, toggle in self._toggles.items():
            toggle.value = getattr(curve, name)
        await self._draw_curve()

    async def renew(self) -> None:
        """Show a newer version."""
        self._pictures.show()
        await self._follow_facts()
        self._by.set_options(self._groups(), value=self._by.value)
        for name, options in self._options().items():
            self._toggles[name].set_options(options, value=self._toggles[name].value)
        if time.monotonic() - self._drawn > _PAUSE:
            await self.draw()


def _part(title: str) -> ui.element:
    part = ui.element("section").classes("card part")
    with part, ui.element("h2").classes("part-title"):
        ui.label(title)
    return part


@dataclass(frozen=True)
class _Figures:
    """Figures of some episodes: how many, values by name each with a line below it, and counts of ends."""

    count: int
    facts: dict[str, tuple[str, str]]
    ends: list[tuple[str, int]]


def _figures_of(frame: pl.DataFrame) -> _Figures:
    facts = {
        "episodes": (f"{len(frame):,}", counted(frame["run_id"].n_unique(), "run")),
        "steps": (f"{frame['length'].sum():,}", f"median length {text_of(frame['length'].median())}"),
    }
    middle = _quantiles(frame["episode_return"])
    if middle:
        facts["median return"] = (middle[1], f"10 % to 90 %: {middle[0]} to {middle[2]}")
    first, last = frame["started_at"].min(), frame["ended_at"].max()
    if last is not None:
        facts["last episode"] = (f"{last:%Y-%m-%d}", f"{last:%H:%M} UTC, the first {first:%Y-%m-%d %H:%M}")
    return _Figures(len(frame), facts, frame["end_reason"].value_counts(sort=True).rows())


def _disk_facts(shown: Shown) -> dict[str, tuple[str, str]]:
    snapshot = shown.store.context.snapshot
    files = [*snapshot.episode_files, *snapshot.step_files, *snapshot.run_files]
    return {"on disk": (size_text(sum(file.size for file in files)), counted(len(files), "file"))}


def _quantiles(returns: pl.Series) -> list[str]:
    """Return the 10 %, 50 % and 90 % quantiles of finite returns; none of several objectives."""
    if returns.dtype.is_nested():
        return []
    finite = returns.filter(returns.is_finite()).to_numpy()
    return [text_of(each) for each in np.quantile(finite, (0.1, 0.5, 0.9)).tolist()] if len(finite) else []


def _spaces(shown: Shown) -> dict[str, str]:
    snapshot = shown.store.context.snapshot
    titles = dict.fromkeys(env.title for env in RunEnv.of_runs(snapshot).values() if env.spec is not None)
    facts = {"environment": ", ".join(titles) or NOTHING}
    schema = snapshot.schema
    if schema.groups:
        for group in schema.groups:
            facts[f"observation of {group.name}"] = str(group.observation_space)
            facts[f"action of {group.name}"] = str(group.action_space)
    else:
        facts |= {"observation": str(schema.observation_space), "action": str(schema.action_space)}
    return {name: " ".join(value.split()) for name, value in facts.items()} | {
        key: value for key, value in shown.card.items() if key in ("title", "description")
    }
