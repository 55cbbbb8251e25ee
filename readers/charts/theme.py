"""Colours and sizes of charts, and text from a store, made fit for charts and pages.

Charts have no background, so that they are readable on white and on black. A chart's specification is put as
JSON into a script of a page, so a text that closes the script would become part of the page: titles, labels
and values of charts all pass here.
"""

from __future__ import annotations

import unicodedata
from typing import Any

#: Twelve colours of middle lightness, far apart for most kinds of colour vision in the order of use.
PALETTE = (
    *("#3b82f6", "#e07b1a", "#2f9e5f", "#c2559d", "#1b9aaa", "#e0524c"),
    *("#8b6fe0", "#98901f", "#a9764b", "#6b8e9f", "#d4699a", "#7d8794"),
)
#: None of the palette, so that an end reason is not taken for a run.
END_COLORS = {
    "terminated": "#5b5bd6",
    "truncated": "#b98900",
    "cut": "#8f8f8f",
    "interrupted": "#c22f4f",
}
#: Takes the colour of the text around it, whether that is dark or light.
INK = "currentColor"
GRID = "#88888833"
WIDTH = 560
HEIGHT = 260

#: Values of `INK` and of the background in a picture without surroundings.
LIGHT = {"ink": "#1f2328", "background": "#ffffff"}
DARK = {"ink": "#e6e6e6", "background": "#16181d"}
THEMES = {"light": LIGHT, "dark": DARK}


def config() -> dict[str, Any]:
    """Return the configuration of every chart, as `configure` of Altair takes it."""
    words = {"labelColor": INK, "titleColor": INK, "labelFontSize": 11, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif",
        "view": {"stroke": None},
        "axis": {
            **words,
            "titleFontWeight": "normal",
            "gridColor": GRID,
            "domainColor": "#888888",
            "tickColor": "#888888",
            "titlePadding": 8,
            # The reader's font may be wider than the one that a saved picture was measured with.
            "labelSeparation": 8,
        },
        "legend": {**words, "titleFontWeight": "normal", "symbolOpacity": 1, "labelLimit": 240},
        "header": {**words, "titleFontWeight": "normal", "labelFontWeight": 600},
        "title": {
            **{"color": INK, "subtitleColor": INK, "anchor": "start", "fontSize": 15, "fontWeight": 600},
            **{"subtitleFontSize": 11, "subtitlePadding": 4, "offset": 12},
        },
        "range": {"category": list(PALETTE)},
        "text": {"color": INK},
        "rule": {"color": "#888888"},
    }


_JOINER = "\u2060"
LONGEST = 200


def shown(text: object, longest: int = LONGEST) -> str:
    """Return a text as charts may show it: without control characters, not too long, and unable to end a
    script.

    An invisible word joiner follows each `<`, so that it opens no tag; the text reads as before.

    >>> shown("ppo")
    'ppo'
    >>> "</script" in shown("</script>")
    False
    """
    return plain(text, longest).replace("<", "<" + _JOINER)


def plain(text: object, longest: int) -> str:
    """Return a text without control characters, cut if it is long."""
    kept = "".join(" " if unicodedata.category(each) in ("Cc", "Cf", "Cs") else each for each in str(text))
    return kept if len(kept) <= longest else kept[: longest - 1] + "\u2026"
