"""Button that copies what a tab shows: as Python, SQL, a command or a link."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nicegui import ui

from .address import Address
from .listing import Choice, EpisodeList

_KINDS = ("Python", "SQL", "Command", "Link")


def copy_menu(state: Callable[[], tuple[Address, Choice, EpisodeList]]) -> None:
    """Add the button.

    Args:
        state: returns the address of the tab, the choice of its list, and all episodes.
    """

    def copy(kind: str) -> None:
        if kind == "Link":
            ui.run_javascript("navigator.clipboard.writeText(location.href)")
        else:
            ui.clipboard.write(code(kind, *state()))
        ui.notify("Copied", timeout=1000)

    with ui.button("Copy as", icon="content_copy").props("flat dense no-caps").mark("copy-as"), ui.menu():
        for kind in _KINDS:
            ui.menu_item(kind, partial(copy, kind)).props("role=menuitem")


def code(kind: str, address: Address, choice: Choice, episodes: EpisodeList) -> str:
    """Return what a tab shows as Python, SQL or a command."""
    match kind:
        case "Python":
            return address.python(episodes)
        case "SQL":
            return address.sql(choice.sql)
        case _:
            return address.command(episodes.store.url, choice.sql)
