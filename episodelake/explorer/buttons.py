"""Buttons that show an icon alone: each has a name, for those who point at it and for screen readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui


def icon_button(icon: str, name: str, on_click: Callable[..., Any] | None = None) -> ui.button:
    """Return a round button.

    Args:
        icon: of Material Icons.
        name: what it does, in a few words without quotes.
        on_click: called when it is clicked.
    """
    button = ui.button(icon=icon, on_click=on_click).props("flat dense round")
    button.props["aria-label"] = name
    with button:
        ui.tooltip(name)
    return button
