"""Pieces that charts share: inline data, colours of series, tooltips, panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from .texts import shown
from .theme import END_COLORS, PALETTE

#: Fields that are numbers, and how they are written; all others are texts.
_NUMBERS = {
    **dict.fromkeys(("length", "episodes", "transitions", "visits", "t"), ","),
    "value": ".6~g",
    "share": ".2%",
}


def values_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows as the data of a chart; their texts are from a store and are made fit for it.

    A plain dictionary, since `alt.InlineData` checks every row against the schema of Vega-Lite, which takes
    longer than all the rest of a chart.
    """
    return {"values": [{key: _plain(value) for key, value in row.items()} for row in rows]}


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
    told = [shown(name) for name in names]
    colors = [PALETTE[index % len(PALETTE)] for index in range(len(names))]
    reasons = bool(names) and set(names) <= set(END_COLORS)
    if reasons:
        colors = [END_COLORS[name] for name in names]
    legend = alt.Legend(title=shown(title)) if reasons or len(told) > 1 else None
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=told, range=colors), legend=legend)


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
    found: dict[str, dict[str, Any]] = {}
    for index, panel in enumerate(panels):
        for view in _selecting(panel):
            view.name = f"panel_{index}"
        for param in panel.params:
            own = param.to_dict()
            found.setdefault(own["name"], {**own, "views": []})["views"].append(f"panel_{index}")
        panel.params = alt.Undefined
    return [alt.TopLevelSelectionParameter(**each) for each in found.values()]


def _selecting(panel: Any) -> list[Any]:
    """Return the views that have the selections of a panel: itself, or the layers to which Altair gave
    names.
    """
    if not isinstance(panel, alt.LayerChart):
        return [panel]
    return [layer for layer in panel.layer if layer.name is not alt.Undefined]
