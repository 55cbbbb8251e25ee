"""`Drawing`: a chart of Altair on the page; and the bundle of Vega that draws it, out of vl-convert."""

from __future__ import annotations

import functools
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from ..store.optional_packages import EXPLORE, require

BUNDLE_PATH = "/vega.js"


@functools.cache
def bundle() -> bytes:
    """Return the JavaScript of Vega, Vega-Lite and vega-embed. The first call takes a second.

    Raises:
        MissingPackageError: vl-convert-python is not installed.
    """
    return require("vl_convert", "The explorer", EXPLORE).javascript_bundle().encode()


class Drawing(ui.element, component="vega.js"):
    """A chart as wide as the room for it.

    Args:
        on_brush: called with the interval of a brush by field of the chart's data; empty for none.
    """

    def __init__(self, on_brush: Any = None) -> None:
        super().__init__()
        self._props["bundle"] = BUNDLE_PATH.removeprefix("/")
        self._props["spec"] = None
        self._props["cursor"] = None
        self.classes("w-full")
        if on_brush is not None:
            self.on("brush", lambda event: on_brush(_chosen(event)))

    def show(self, specification: dict[str, Any] | None) -> None:
        """Draw a specification; None for nothing."""
        self._props["spec"] = specification
        self.update()

    def point_at(self, t: int) -> None:
        """Move the cursor of a chart over time."""
        # A changed property would send the whole specification and draw the chart again.
        with self._props.suspend_updates():
            self._props["cursor"] = t
        self.run_method("pointAt", t)


def _chosen(event: GenericEventArguments) -> dict[str, tuple[float, float]]:
    """Return the intervals of numbers of a brush."""
    found = {}
    for name, value in (event.args or {}).items():
        if isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value):
            found[name] = (float(min(value)), float(max(value)))
    return found
