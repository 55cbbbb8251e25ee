"""Addresses of the page: the state of a tab as the query of its URL, and as code to copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlencode

from .. import EpisodeStore
from ..plugin import literal
from ..readers.charts.overlay import START
from .charts import Curve
from .listing import POSITION, Choice, EpisodeList, column_sql

OVERVIEW, EPISODES, COMPARE, SQL = "overview", "episodes", "compare", "sql"
PANES = (OVERVIEW, EPISODES, COMPARE, SQL)
_MOST_PARTS = 200
_SEVERAL = ("brush", "chips", "facets", "runs", "signals", "compared", "overlaid")
_CURVE = {each.name: each.default for each in fields(Curve)}


@dataclass(frozen=True)
class Address:
    """State of a tab, as its URL has it.

    Attributes:
        pane: one of `PANES`.
        where: the typed condition.
        brush: conditions of the chart's brush.
        chips: conditions of the facets.
        facets: the columns that are facets; empty for the usual ones, `NO_FACETS` for none.
        runs: the ids of the chosen runs.
        finding: the name of the finding whose episodes are listed.
        sort: the column to sort by, with a minus for largest first.
        gallery: whether the list is a grid of pictures.
        episode, beside: the ids of the open episodes.
        t: the step that is shown.
        signals: what is drawn of them.
        compared: the ids of the episodes that are compared.
        align, overlaid: where they are aligned, and their signals that are drawn.
        query: the text of the SQL box.
        curve: the learning curve.
    """

    pane: str = OVERVIEW
    where: str = ""
    brush: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    facets: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    finding: str = ""
    sort: str = f"-{POSITION}"
    gallery: bool = False
    episode: str = ""
    beside: str = ""
    t: int = 0
    signals: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    align: str = START
    overlaid: tuple[str, ...] = ()
    query: str = ""
    curve: Curve = field(default_factory=Curve)

    @property
    def text(self) -> str:
        """The query of the URL; what has its default is left out.

        >>> Address(pane="episodes", where="length > 3", t=7).text
        'pane=episodes&where=length+%3E+3&t=7'
        """
        own = {each.name: getattr(self, each.name) for each in fields(self)[:-1]}
        plain = {name: value for name, value in own.items() if value != getattr(_PLAIN, name)}
        curve = {name: value for name, value in asdict(self.curve).items() if value != _CURVE[name]}
        return urlencode({**plain, **curve}, doseq=True)

    @classmethod
    def of(cls, query: Mapping[str, list[str]]) -> Address:
        """Return the address of a parsed query; what has no meaning is left out."""
        known = {name: values[:_MOST_PARTS] for name, values in query.items() if values}
        several: dict[str, Any] = {name: tuple(known[name]) for name in _SEVERAL if name in known}
        texts = ("where", "finding", "sort", "episode", "beside", "align", "query")
        single: dict[str, Any] = {name: known[name][0] for name in texts if name in known}
        pane = known.get("pane", [OVERVIEW])[0]
        curve: dict[str, Any] = {
            name: _number(known[name][0]) if name == "smooth" else known[name][0]
            for name in _CURVE
            if name in known
        }
        return cls(
            pane=pane if pane in PANES else OVERVIEW,
            t=(_step if "compared" in known else _number)(known.get("t", ["0"])[0]),
            gallery="gallery" in known,
            curve=Curve(**curve),
            **single,
            **several,
        )

    @property
    def choice(self) -> Choice:
        """The choice of the list, without the episodes of a finding."""
        conditions = (self.where,) if self.where else ()
        sort = self.sort.removeprefix("-")
        return Choice(conditions, self.runs, sort, self.sort.startswith("-"), chips=self.chips)

    @property
    def _where(self) -> str:
        """The condition of the overview; that of a finding needs its episodes and is left out."""
        return replace(self.choice, chips=(*self.chips, *self.brush)).where

    def python(self, listed: EpisodeList) -> str:
        """Return Python that gives what the pane shows: of the list, a loader that a learner can take.

        Args:
            listed: all episodes of the version.
        """
        lines = ["import episodelake as el", "", f"store = el.open({listed.store.url!r})"]
        if self.pane == OVERVIEW:
            # Of the whole store, as on the page.
            lines += ["print(store.health())", *self._selected(listed.labels)]
            curve = ", ".join(f"{key}={value!r}" for key, value in asdict(self.curve).items())
            lines.append(f"episodes.plot.learning_curve({curve})")
        elif self.pane == SQL:
            lines.append(f"store.sql({self.query!r}).pl()")
        elif self.pane == COMPARE:
            ids = ", ".join(map(literal, self.compared))
            lines.append(f"episodes = store.filter({f'episode_id IN ({ids})'!r})")
            lines.append(f"episodes.plot.overlay({[*self.overlaid] or None!r}, align={self.align!r})")
        else:
            lines += [*self._selected(listed.labels), ""]
            lines += [f"episode = store[{self.episode!r}]  # the open one", ""] if self.episode else []
            lines += _training(listed.store)
        return "\n".join(lines) + "\n"

    def _selected(self, labels: Mapping[str, str]) -> list[str]:
        """Return Python that chooses the listed episodes out of `store`, in the order of the list."""
        lines, source = [], "store"
        if self.finding:
            kind, _, of = self.finding.partition(":")
            extreme = next((each for each in ("smallest", "largest") if of.startswith(f"{each} ")), "")
            wanted = (kind, of.removeprefix(extreme).strip(), extreme)
            lines.append(f"wanted = {wanted!r}  # a kind of finding, its column, and which extreme")
            lines.append(
                "(finding,) = (f for f in store.health().findings if (f.kind, f.column, f.extreme) == wanted)"
            )
            source = "store[finding.positions]"
        conditions = [each for each in (self.where, *self.brush, *self.chips) if each]
        if self.runs:
            names = [labels.get(run_id, run_id) for run_id in self.runs]
            column, values = ("run_id", self.runs) if {*names} & {*self.runs} else ("run.name", names)
            listed = ", ".join(map(literal, values))
            conditions.append(f"{column} = {listed}" if len(values) == 1 else f"{column} IN ({listed})")
        calls = [f".filter({condition!r})" for condition in conditions]
        column = self.sort.removeprefix("-")
        if column != POSITION:
            calls.append(f".sort({column_sql(column)!r}, descending={self.sort.startswith('-')})")
        if len(calls) < 2:
            return [*lines, f"episodes = {source}{''.join(calls)}"]
        return [
            *lines,
            "episodes = (",
            f"    {source}{calls[0]}",
            *(f"    {call}" for call in calls[1:]),
            ")",
        ]

    def sql(self, sql: str) -> str:
        """Return SQL for what the pane shows, with the query of the list."""
        if self.pane == OVERVIEW:
            return (
                "SELECT end_reason, count(*) AS episodes, median(episode_return) AS median_return,\n"
                "    median(length) AS median_length\nFROM episodes"
                + (f"\nWHERE {self._where}\n" if self._where else " ")
                + "GROUP BY ALL ORDER BY episodes DESC\n"
            )
        return self.query if self.pane == SQL else f"{sql}\n"

    def command(self, url: str, sql: str) -> str:
        """Return a command line for what the pane shows; see `python`."""
        words = ["episodelake", "sql", url, self.sql(sql).strip()]
        if self.pane == OVERVIEW:
            words = ["episodelake", "health", url]
        if self.pane == EPISODES and not (self.finding or self.runs or self.brush):
            words = ["episodelake", "ls", url]
            where = self.choice.where
            words += ["--filter", where] if where else []
            sort = self.sort.removeprefix("-")
            words += ["--order-by", sort] if sort != POSITION else []
            words += ["--descending"] if sort != POSITION and self.sort.startswith("-") else []
        lines = [shlex.join(words)]
        if self.pane == EPISODES and self.episode:
            lines.append(shlex.join(["episodelake", "show", url, self.episode]))
        return "\n".join(lines) + "\n"


_PLAIN = Address()


def _training(store: EpisodeStore) -> list[str]:
    """Return Python that feeds `episodes` to a learner."""
    snapshot = store.context.snapshot
    arguments, what = (
        "256",
        'batch["reward"], batch["action"], batch["observation"]: a row for each transition',
    )
    if snapshot.manifest.rollouts is not None:
        arguments, what = "units=el.Packed(8192)", 'batch["input_ids"], batch["loss_mask"]: packed branches'
    elif snapshot.schema.groups:
        arguments += f", group={snapshot.schema.groups[0].name!r}"
    return [
        f"loader = episodes.loader({arguments}, shuffle=True, seed=0)",
        "for batch in loader:",
        f"    ...  # {what}",
    ]


def _step(text: str) -> int:
    """Return a step, which is negative before the one at which episodes are aligned."""
    return -_number(text[1:]) if text.startswith("-") else _number(text)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
