"""The first screen of a store: what it holds, how healthy it is, learning curves, ends and distributions."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from nicegui import ui

from ..readers.amounts import counted, size_text
from ..readers.charts.series import LENGTH, RETURN, RUN
from ..readers.charts.theme import END_COLORS
from ..readers.measures.health import Finding
from ..readers.replaying.run_envs import run_envs
from ..readers.sql.text import literal
from .charts import DISTRIBUTIONS, Curve, curve_spec, distribution_spec
from .checkup import Checkup, name_of
from .listing import EpisodeList
from .live.watch import Shown
from .moments import NOTHING, text_of
from .widgets import Drawing, PageOwner, draw_into, note

_POLL = 0.3
_PAUSE = 4.0
#: More findings wait behind a button.
_MOST_FINDINGS = 8
#: Findings that spoil an episode; others are hints.
_SEVERE = ("nan", "infinite", "missing_observation", "interrupted", "unsealed")
_OVER = {"episodes": "Episode", "steps": "Step", "time": "Time"}
_WHAT = {RETURN: "Return", LENGTH: "Length"}
_BANDS = {"episodes": "All episodes", "runs": "Run by run"}


class OverviewPane:
    """The overview of a store.

    Args:
        page: the page that it is part of.
    """

    def __init__(self, page: PageOwner) -> None:
        self.page = page
        self.curve = Curve()
        self._drawn = 0.0
        self._all_findings = False
        self._checked: tuple[Any, ...] = ()
        with ui.element("div").classes("pane scrolling overview-page"):
            with ui.element("section").classes("card part about-store").mark("about-store"):
                self._facts = ui.element("div").classes("about-facts")
            with _part("Health"):
                self._health = ui.element("div").classes("findings").mark("health")
            with ui.element("div").classes("overview-grid"):
                self._curve_part()
                with ui.element("div").classes("beside-curve"):
                    with _part("How episodes end"):
                        self._ends = ui.element("div").classes("ends").mark("ends")
                    self._places = {name: self._distribution(name) for name in DISTRIBUTIONS}
        self._show_facts()
        self._look_at_health()
        ui.timer(_POLL, self._look_at_health)
        ui.timer(0.05, self.draw, once=True)

    # Layout

    def _curve_part(self) -> None:
        with _part("Learning curve"):
            with ui.element("div").classes("bar wrapping"):
                self._by = ui.select(self._groups(), value=RUN, label="Colour", on_change=self._changed)
                self._by.props("outlined dense options-dense").classes("w-36").mark("curve-by")
                self._toggles = {
                    name: ui.toggle(options, value=getattr(self.curve, name), on_change=self._changed)
                    for name, options in (("what", _WHAT), ("over", _OVER), ("band", _BANDS))
                }
                for name, toggle in self._toggles.items():
                    toggle.props("dense no-caps unelevated flat").mark(f"curve-{name}")
                with ui.element("div").classes("smoothing"):
                    ui.label("Smoothing").classes("muted")
                    self._smooth = ui.slider(min=0, max=20, value=0).props('dense aria-label="Smoothing"')
                    self._smooth.on("change", self._changed)
            self._drawing = Drawing().mark("curve").style("min-height: 380px")
            self._caption = note("caption")

    def _distribution(self, name: str) -> tuple[Drawing, ui.label]:
        with _part(name):
            return Drawing().style("min-height: 225px"), note("caption")

    def _groups(self) -> list[str]:
        """Return what curves can be grouped by: all that has few values."""
        return [RUN, *self.page.shown.episodes.groups]

    # Showing

    def _show_facts(self) -> None:
        shown = self.page.shown
        self._facts.clear()
        with self._facts:
            for name, (value, more) in _facts(shown).items():
                with ui.element("div"):
                    ui.label(value).classes("figure-value")
                    ui.label(name).classes("figure-name")
                    if more:
                        ui.label(more).classes("figure-name")
            with ui.element("dl").classes("facts spaces"):
                for name, value in _spaces(shown).items():
                    with ui.element("dt"):
                        ui.label(name)
                    with ui.element("dd"):
                        ui.label(text_of(value, 160))
        self._ends.clear()
        ends = shown.episodes.frame["end_reason"].value_counts(sort=True)
        with self._ends:
            for reason, count in ends.iter_rows():
                share = count / max(len(shown.episodes), 1)
                condition = f"end_reason = {literal(reason)}"
                with (
                    ui.element("button")
                    .classes("end-row")
                    .on("click", partial(self.page.show_where, condition))
                ):
                    ui.label(text_of(reason)).classes("end-name")
                    with ui.element("span").classes("end-track"):
                        color = END_COLORS.get(reason, "#7d8794")
                        ui.element("span").style(f"width: {share:.2%}; background: {color}")
                    ui.label(f"{count:,}").classes("end-count")
                    ui.label(f"{share:.1%}").classes("end-count muted")

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

    def _show_health(self, checkup: Checkup) -> None:
        if checkup.problem:
            ui.label(checkup.problem).classes("problem w-full")
        if checkup.report is None:
            if not checkup.problem:
                ui.label(f"Checking … {checkup.share:.0%}").classes("muted")
            return
        findings = sorted(checkup.report.findings, key=lambda each: each.kind not in _SEVERE)
        if not findings:
            text = f"No findings in {counted(checkup.report.count, 'episode')}"
            ui.label(text).classes("finding fine")
        for finding in findings if self._all_findings else findings[:_MOST_FINDINGS]:
            self._show_finding(finding)
        if len(findings) > _MOST_FINDINGS and not self._all_findings:
            more = ui.button(f"{len(findings) - _MOST_FINDINGS} more", on_click=self._show_all)
            more.props("dense no-caps flat")

    def _show_finding(self, finding: Finding) -> None:
        classes = f"finding {'severe' if finding.kind in _SEVERE else 'hint'}"
        if len(finding.positions):
            button = ui.element("button").classes(classes)
            button.on("click", partial(self.page.show_finding, name_of(finding)))
        else:
            button = ui.element("span").classes(classes)
        with button:
            ui.label(finding.kind.replace("_", " ")).classes("finding-kind")
            ui.label(text_of(finding.message))

    def _show_all(self) -> None:
        self._all_findings = True
        self._look_at_health()

    async def draw(self) -> None:
        """Draw the charts of the version that is shown."""
        self._drawn = time.monotonic()
        await self._draw_curve()
        view, colors = self.page.shown.store, self.page.watch.colors
        for name, (drawing, caption) in self._places.items():
            await draw_into(drawing, caption, distribution_spec, name, view, colors)

    async def _draw_curve(self) -> None:
        view, colors = self.page.shown.store, self.page.watch.colors
        await draw_into(self._drawing, self._caption, curve_spec, self.curve, view, colors)

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
        self._show_facts()
        self._by.set_options(self._groups(), value=self._by.value)
        if time.monotonic() - self._drawn > _PAUSE:
            await self.draw()


def _part(title: str) -> ui.element:
    part = ui.element("section").classes("card part")
    with part, ui.element("h2").classes("part-title"):
        ui.label(title)
    return part


def _facts(shown: Shown) -> dict[str, tuple[str, str]]:
    """Return the figures of a store by name: a value, and a line below it."""
    episodes, snapshot = shown.episodes, shown.store.context.snapshot
    files = [*snapshot.episode_files, *snapshot.step_files, *snapshot.run_files]
    frame = episodes.frame
    facts = {
        "episodes": (f"{len(episodes):,}", counted(len(episodes.runs), "run")),
        "steps": (f"{frame['length'].sum():,}", f"median length {text_of(frame['length'].median())}"),
    }
    middle = _quantiles(episodes)
    if middle:
        facts["median return"] = (middle[1], f"10 % to 90 %: {middle[0]} to {middle[2]}")
    facts["on disk"] = (size_text(sum(file.size for file in files)), counted(len(files), "file"))
    first, last = frame["started_at"].min(), frame["ended_at"].max()
    if last is not None:
        facts["last episode"] = (f"{last:%Y-%m-%d}", f"{last:%H:%M} UTC, the first {first:%Y-%m-%d %H:%M}")
    return facts


def _quantiles(episodes: EpisodeList) -> list[str]:
    """Return the 10 %, 50 % and 90 % quantiles of finite returns; none of several objectives."""
    returns = episodes.frame["episode_return"]
    if returns.dtype.is_nested():
        return []
    finite = returns.filter(returns.is_finite())
    return [text_of(finite.quantile(q, "linear")) for q in (0.1, 0.5, 0.9)] if len(finite) else []


def _spaces(shown: Shown) -> dict[str, str]:
    snapshot = shown.store.context.snapshot
    titles = dict.fromkeys(env.title for env in run_envs(snapshot).values() if env.spec is not None)
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
