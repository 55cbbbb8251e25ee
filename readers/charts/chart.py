"""Charts of Altair that save themselves as files which need no network.

This module imports Altair, so it is imported by need.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import altair as alt

from ...store.common.arguments import one_of
from ...store.common.optional_packages import require
from ...store.errors import InvalidArgumentError
from ...store.files import user_path, write_file
from .theme import END_COLORS, INK, PALETTE, THEMES, config, shown

_FORMATS = ("html", "svg", "png", "json")
#: A page follows the reader's choice of a dark or light screen; so does a drawing that stands in one.
_PAGE_STYLE = "<style>:root { color-scheme: light dark } body { margin: 24px }</style>"
_DRAWING_STYLE = (
    "<style>svg { color: #1f2328 } @media (prefers-color-scheme: dark) { svg { color: #e6e6e6 } }</style>"
)


class _Saved:
    """Adds `save` to a chart of Altair; saved files need no network."""

    def to_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Return the specification, as charts of Altair do."""
        specification: dict[str, Any] = super().to_dict(*arguments, **options)  # type: ignore[misc]
        if "datasets" in specification:
            data = specification["datasets"]
            specification["datasets"] = {name: list(rows) for name, rows in data.items()}
        return specification

    def save(self, fp: Any, format: str | None = None, *, theme: str | None = None, **options: Any) -> None:
        """Write the chart into a file.

        Args:
            fp: its path; the suffix says what it becomes: `.html` (interactive, with all JavaScript inside),
                `.svg`, `.png` or `.json` (the Vega-Lite specification). Or an open file, and then `format`.
            format: the same, by name.
            theme: "light" or "dark": the ink and the background of the picture. None: a page and a drawing
                follow the reader's screen, and a PNG is light.
            options: as the function of vl-convert takes them that makes this format, such as `scale` of a PNG
                (2 if it is not given).

        Raises:
            InvalidArgumentError: there is no such format or theme.
            MissingPackageError: vl-convert-python is not installed.
            StoreAccessError: the file cannot be written.
        """
        kind = _format_of(fp, format)
        if theme is not None:
            one_of("theme", theme, THEMES)
        content = _content(self, kind, theme, options)
        if hasattr(fp, "write"):
            fp.write(content)
            return
        path = user_path(fp)
        write_file(path, content.encode() if isinstance(content, str) else content)


class Chart(_Saved, alt.Chart):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A single chart."""


class LayerChart(_Saved, alt.LayerChart):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Layers over each other."""


class FacetChart(_Saved, alt.FacetChart):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A panel for each part."""


class VConcatChart(_Saved, alt.VConcatChart):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Charts one under the other."""


_SAVED = {
    alt.Chart: Chart,
    alt.LayerChart: LayerChart,
    alt.FacetChart: FacetChart,
    alt.VConcatChart: VConcatChart,
}
AnyChart = Chart | LayerChart | FacetChart | VConcatChart


def finished(chart: Any, title: str, subtitle: Sequence[str] = ()) -> AnyChart:
    """Return a chart of Altair with its title and our colours, as one that saves itself."""
    lines = [shown(line) for line in subtitle if line]
    # As SVG the ink takes the colour of the text around it; on a canvas it would be black on black.
    titled = chart.properties(
        title=alt.Title(shown(title), subtitle=lines), usermeta={"embedOptions": {"renderer": "svg"}}
    )
    dressed = titled.configure(**config())
    # Altair keeps attributes that are set as parts of the specification, hence the way around.
    object.__setattr__(dressed, "__class__", _SAVED[type(dressed)])
    return dressed


def _format_of(fp: Any, format: str | None) -> str:
    named = isinstance(fp, str | PathLike)
    kind = format or (Path(fp).suffix.removeprefix(".").lower() if named else "")
    if kind not in _FORMATS:
        raise InvalidArgumentError(
            f"{fp!s} names no format that a chart can have; expected a suffix (or format=) out of "
            f"{', '.join(_FORMATS)}."
        )
    return kind


def _content(chart: Any, kind: str, theme: str | None, options: dict[str, Any]) -> str | bytes:
    specification = chart.to_dict()
    if kind == "json":
        return json.dumps(specification, indent=2, ensure_ascii=False)
    drawing: Any = require("vl_convert", f"A chart as {kind.upper()}")
    chosen = theme or ("light" if kind == "png" else None)
    if chosen is not None:
        specification = themed(specification, chosen)
    language = "_".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    if kind == "png":
        return drawing.vegalite_to_png(specification, language, **{"scale": 2, **options})
    if kind == "html":
        page = drawing.vegalite_to_html(specification, language, bundle=True, renderer="svg", **options)
        return page if theme is not None else page.replace("<head>", f"<head>{_PAGE_STYLE}", 1)
    text = drawing.vegalite_to_svg(specification, language, **options)
    return text if theme is not None else text.replace(">", f">{_DRAWING_STYLE}", 1)


def themed(specification: Any, theme: str) -> Any:
    """Return a specification with the ink and the background of a theme, for pictures without
    surroundings.
    """
    colors = THEMES[theme]

    def painted(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: painted(value) for key, value in part.items()}
        if isinstance(part, list):
            return [painted(value) for value in part]
        return colors["ink"] if part == INK else part

    inside = specification.get("config", {})
    own = {**painted(inside), "background": colors["background"]}
    return {**specification, "title": painted(specification.get("title")), "config": own}


#: Fields that are numbers, and how they are written; all others are texts.
_NUMBERS = {
    **dict.fromkeys(("length", "episodes", "transitions", "visits", "t"), ","),
    "value": ".6~g",
    "share": ".2%",
}


def values_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows as the data of a chart; their texts are from a store and are made fit for it.

    A plain dictionary, since `alt.InlineData` checks every row against the schema of Vega-Lite, which takes
    longer than all the rest of a chart. A tuple of rows, since Altair copies lists when it combines charts.
    """
    return {"values": tuple({key: _plain(value) for key, value in row.items()} for row in rows)}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def color_channel(field: str, title: str, names: Sequence[str]) -> Any:
    """Return a colour for each of some names, in their order, with a legend where there are several.

    End reasons have colours of their own, so a single one has a legend too.
    """
    labels = [shown(name) for name in names]
    colors = [PALETTE[index % len(PALETTE)] for index in range(len(names))]
    reasons = bool(names) and set(names) <= set(END_COLORS)
    if reasons:
        colors = [END_COLORS[name] for name in names]
    legend = alt.Legend(title=shown(title)) if reasons or len(labels) > 1 else None
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=labels, range=colors), legend=legend)


def tooltip_of(*fields: tuple[str, str]) -> list[alt.Tooltip]:
    """Lines of a tooltip: fields of the data and their titles."""
    return [
        alt.Tooltip(f"{field}:Q", title=shown(title), format=_NUMBERS[field])
        if field in _NUMBERS
        else alt.Tooltip(f"{field}:N", title=shown(title))
        for field, title in fields
    ]


def title_of(by: str) -> str:
    """Return the title of what distinguishes series.

    >>> title_of("end_reason"), title_of("metadata.my_key")
    ('end reason', 'metadata.my_key')
    """
    return by if "." in by else by.replace("_", " ")


def only(rows: Sequence[dict[str, Any]], panel: str) -> list[dict[str, Any]]:
    """Return the rows of one panel."""
    return [row for row in rows if row["panel"] == panel]


def stacked(panels: Sequence[Any], *, own_colors: bool = False) -> Any:
    """Panels one under the other; a single one as it is. Selections of one name are one selection.

    Args:
        own_colors: each panel has a legend of its own.
    """
    if len(panels) == 1:
        return panels[0]
    # Altair would do the same, and warn of every selection that two panels share.
    together = alt.vconcat(*panels, params=_lifted(panels)).resolve_scale(xOffset="independent")
    return together.resolve_scale(color="independent") if own_colors else together


def _lifted(panels: Sequence[Any]) -> list[alt.TopLevelSelectionParameter]:
    """Take the selections out of panels; those of one name become one, over the views that had it."""
    lifted: dict[str, dict[str, Any]] = {}
    for index, panel in enumerate(panels):
        for view in _selecting(panel):
            view.name = f"panel_{index}"
        for param in panel.params:
            own = param.to_dict()
            lifted.setdefault(own["name"], {**own, "views": []})["views"].append(f"panel_{index}")
        panel.params = alt.Undefined
    return [alt.TopLevelSelectionParameter(**each) for each in lifted.values()]


def _selecting(panel: Any) -> list[Any]:
    """Return the views that have the selections of a panel: itself, or the layers to which Altair gave
    names.
    """
    if not isinstance(panel, alt.LayerChart):
        return [panel]
    return [layer for layer in panel.layer if layer.name is not alt.Undefined]
