"""`SeriesColors`: runs keep their colours while the explorer runs, whichever of them a chart shows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ..readers.plots.texts import shown
from ..readers.plots.theme import END_COLORS, PALETTE
from .listing import Run

#: Beyond the palette its colours come again, nearer to white or to black by this share.
_NEARER = 0.35


class SeriesColors:
    """A colour for each series: for runs in the order in which they are met, for others as charts show them.

    End reasons have their colours of the library's charts. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._taken = 0
        self._lock = threading.Lock()

    def meet(self, runs: Sequence[Run]) -> None:
        """Give new runs their colours. A run whose label changed keeps its colour."""
        with self._lock:
            for run in runs:
                self._places[shown(run.label)] = self._place(shown(run.run_id))

    def knows(self, name: str) -> bool:
        """Return whether a series has a colour already, by the name that a chart has for it."""
        with self._lock:
            return name in END_COLORS or name in self._places

    def of(self, names: Sequence[str]) -> list[str]:
        """Return the colours of series, by the names that a chart has for them; new ones get the next
        colours.
        """
        if set(names) <= set(END_COLORS):
            return [END_COLORS[name] for name in names]
        with self._lock:
            return [_color(self._place(name)) for name in names]

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = self._taken
            self._taken += 1
        return self._places[name]

    def recoloured(self, part: Any) -> Any:
        """Return the same specification, with these colours wherever `series` has one."""
        if isinstance(part, list):
            return [self.recoloured(each) for each in part]
        if not isinstance(part, dict):
            return part
        if part.get("field") == "series" and "domain" in part.get("scale", {}):
            return {**part, "scale": {**part["scale"], "range": self.of(part["scale"]["domain"])}}
        return {
            key: value if key in ("data", "datasets") else self.recoloured(value)
            for key, value in part.items()
        }


def _color(place: int) -> str:
    again, index = divmod(place, len(PALETTE))
    color = PALETTE[index]
    if not again % 3:
        return color
    goal = 255 if again % 3 == 1 else 0
    mixed = (round(int(color[at : at + 2], 16) * (1 - _NEARER) + goal * _NEARER) for at in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in mixed)
