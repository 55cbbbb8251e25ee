"""Charts of `view.plot` and `episode.plot`, adapted to the page.

Their specifications get a brush that chooses episodes, or a cursor at t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..readers.episode import Episode
from ..readers.sql.text import quote
from ..readers.view import EpisodeView
from .colors import SeriesColors

CURSOR = "cursor"
BRUSH = "brush"
#: Beside the panels of an episode a legend would take the room of the lines.
_LEGEND_ABOVE = {"orient": "top", "title": None, "offset": 2, "symbolSize": 60, "columnPadding": 12}
_OF_A_LAYER = ("mark", "encoding", "data", "transform", "name")


@dataclass(frozen=True)
class Overview:
    """A chart over all runs.

    Attributes:
        label: its name on the page.
        draw: makes the chart of a view.
        columns: which column of `episodes` a brush over a field of the chart chooses by.
    """

    label: str
    draw: Callable[[EpisodeView], Any]
    columns: dict[str, str]


OVERVIEWS = {
    "returns": Overview(
        "Returns",
        lambda view: view.plot.returns(),
        {"x": "number", "value": "episode_return", "low": "episode_return"},
    ),
    "histogram": Overview(
        "Return histogram", lambda view: view.plot.return_histogram(), {"from": "episode_return"}
    ),
    "lengths": Overview("Lengths", lambda view: view.plot.lengths(), {"from": "length"}),
    "lengths over time": Overview(
        "Lengths over episodes",
        lambda view: view.plot.lengths(over="episodes"),
        {"x": "number", "value": "length", "low": "length"},
    ),
}


def overview_spec(name: str, view: EpisodeView, colors: SeriesColors) -> dict[str, Any]:
    """Return the specification of a chart over all runs, with a brush in place of zooming.

    Args:
        name: one of `OVERVIEWS`.
        view: the episodes to draw.
        colors: those that runs have on the page.

    Raises:
        NothingToDrawError: the view has no episodes.
    """
    specification = colors.recoloured(_compact(OVERVIEWS[name].draw(view).to_dict()))
    brushed = _brushed(specification) if _brushable(view) else specification
    return {**brushed, "usermeta": {"brush": _brushable(view)}}


def _brushable(view: EpisodeView) -> bool:
    """Return whether an interval of returns is a condition: not for several objectives, nor for several
    agents.
    """
    columns = view.episodes.collect_schema()
    return not columns["episode_return"].is_nested() and "agents" not in columns


def _brushed(part: Any) -> Any:
    """Return the specification with a brush in place of zooming by dragging."""
    if isinstance(part, list):
        return [_brushed(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("name") == "zoom" and "select" in part:
        encodings = part["select"].get("encodings") if isinstance(part["select"], dict) else None
        chosen = {"type": "interval", "encodings": encodings or ["x", "y"]}
        rest = {key: value for key, value in part.items() if key not in ("bind", "value")}
        return {**rest, "name": BRUSH, "select": chosen}
    return {key: value if key in ("data", "datasets") else _brushed(value) for key, value in part.items()}


def _compact(specification: dict[str, Any]) -> dict[str, Any]:
    """Remove titles, which the page shows, and limit heights."""
    kept = {key: value for key, value in specification.items() if key != "title"}
    return {**_resized(kept, 170), "padding": 4}


def _resized(part: Any, height: int) -> Any:
    if isinstance(part, list):
        return [_resized(each, height) for each in part]
    if not isinstance(part, dict):
        return part
    found = {
        key: value if key in ("data", "datasets") else _resized(value, height) for key, value in part.items()
    }
    if ("layer" in part or "mark" in part) and isinstance(part.get("height"), int):
        found["height"] = min(part["height"], height)
    return found


def conditions_of(name: str, chosen: dict[str, tuple[float, float]]) -> list[str]:
    """Return the intervals of a brush over a chart as SQL conditions.

    >>> conditions_of("returns", {"x": (10.2, 20.0)})
    ['"number" BETWEEN 10.2 AND 20']
    """
    columns = OVERVIEWS[name].columns
    found = {}
    for field, (low, high) in chosen.items():
        if field in columns:
            found[columns[field]] = f"{quote(columns[field])} BETWEEN {low:.9g} AND {high:.9g}"
    return list(found.values())


def episode_spec(episode: Episode) -> dict[str, Any]:
    """Return the specification of an episode over time, with a cursor at the signal `cursor` in every panel.

    Args:
        episode: all panels go to its last t, so that the cursor stands at one place in them.

    Raises:
        NothingToDrawError: nothing of it is a few numbers at every step.
    """
    specification = _compact(episode.plot().to_dict())
    across = {
        "field": "t",
        "type": "quantitative",
        "scale": {"domain": [0, max(episode.length, 1)], "nice": False},
    }
    rule = {
        "data": {"values": [{}]},
        "transform": [{"calculate": CURSOR, "as": "t"}],
        "mark": {"type": "rule", "color": "#e0524c", "strokeWidth": 1.5, "clip": True},
        "encoding": {"x": {**across, "title": None}},
    }
    alone = "vconcat" not in specification
    panels = [_layered(panel) for panel in specification.get("vconcat", [specification])]
    for panel in panels:
        for layer in panel["layer"]:
            encoding = layer.get("encoding", {})
            x = encoding.get("x", {})
            if encoding.get("color", {}).get("legend"):
                encoding["color"]["legend"]["title"] = None
            if x.get("field") == "t":
                x["scale"] = {**x.get("scale", {}), **across["scale"]}
        panel["layer"] = [*panel["layer"], rule]
        panel["height"] = 76 if len(panels) > 2 else 110
    specification = panels[0] if alone else {**specification, "vconcat": panels}
    if "vconcat" in specification:
        specification.setdefault("resolve", {}).setdefault("scale", {})["color"] = "independent"
    legend = {**specification.get("config", {}).get("legend", {}), **_LEGEND_ABOVE}
    specification["config"] = {**specification.get("config", {}), "legend": legend}
    params = [*specification.get("params", []), {"name": CURSOR, "value": 0}]
    return {**specification, "params": params, "usermeta": {"cursor": True}}


def _layered(panel: dict[str, Any]) -> dict[str, Any]:
    """Return a chart of one layer as one of layers, so that another can stand over it."""
    if "layer" in panel:
        return panel
    inside = {key: value for key, value in panel.items() if key in _OF_A_LAYER}
    return {**{key: value for key, value in panel.items() if key not in _OF_A_LAYER}, "layer": [inside]}
