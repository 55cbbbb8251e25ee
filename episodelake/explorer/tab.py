"""A tab of the browser: its colours, and its state in the address."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, quote

from nicegui import ui
from nicegui.events import GenericEventArguments

from .address import Address
from .live.watch import PAUSE
from .sql_pane import SqlPane
from .widgets import icon_button

#: Only the browser knows whether the page is dark, since it may follow the system.
_TELL_DARK = """
let sent = null;
const tell = () => {
  const dark = document.body.classList.contains("body--dark");
  if (dark !== sent) emitEvent("dark", (sent = dark));
};
new MutationObserver(tell).observe(document.body, { attributeFilter: ["class"] });
tell();
"""
#: Cells of NiceGUI's slots are made anew with each change, which would take the focus from their buttons.
#: After a click of the mouse they have none, so that Space plays: only keys click without a detail.
_KEEP_FOCUS = """
let kept = null;
addEventListener("click", ({ detail, target }) => {
  if (detail && target.closest?.("[data-keep]")) (kept = null), document.activeElement.blur();
}, true);
addEventListener("focusin", (event) => (kept = event.target.dataset.keep ?? null));
new MutationObserver(() => {
  if (kept && document.activeElement === document.body)
    document.querySelector(`[data-keep="${CSS.escape(kept)}"]`)?.focus();
}).observe(document.body, { childList: true, subtree: true });
"""
#: Quasar's bar of requests that are under way has no name for screen readers.
_NAME_BAR = "document.querySelector('.q-loading-bar')?.setAttribute('aria-label', 'Loading')"
_STYLE = Path(__file__).with_name("style.css")
_COLORS = {
    "primary": "#0b625b",
    "secondary": "#475569",
    "accent": "#0b625b",
    "positive": "#2f9e5f",
    "negative": "#e0524c",
    "warning": "#e07b1a",
    "dark": "#16181d",
    "dark_page": "#0f1115",
}


class Tab:
    """A browser tab: its colours, light or dark, and its state as the browser's address has it.

    Attributes:
        name: of the store in a lake, which the address has, too.
        sql: the pane of its SQL tab; None until that is opened.
    """

    name = ""
    sql: SqlPane | None = None

    def __init__(self) -> None:
        self.is_dark = False
        self.dark = ui.dark_mode(None)
        ui.colors(**_COLORS)
        ui.add_css(_STYLE)
        ui.on("dark", self.darkened)
        ui.run_javascript(_TELL_DARK)
        ui.run_javascript(_KEEP_FOCUS)
        ui.run_javascript(_NAME_BAR)

    def dark_button(self) -> None:
        """Add the button that makes the page dark or light."""
        icon_button("dark_mode", "Light or dark", self._toggle_dark).mark("dark")

    def _toggle_dark(self) -> None:
        self.dark.value = not self.is_dark

    def darkened(self, event: GenericEventArguments) -> None:
        """Redraw after the page became dark or light, by its button or with the system."""
        self.is_dark = bool(event.args)
        if self.sql is not None:
            self.sql.recolour()

    def close(self) -> None:
        """Stop background work when the tab closes."""
        if self.sql is not None:
            self.sql.close()

    @property
    def address(self) -> Address:
        """State of this tab."""
        raise NotImplementedError

    async def show_address(self, address: Address) -> None:
        """Show what an address says. What is not there any more is left out."""
        raise NotImplementedError

    def begin(self) -> None:
        """Show what the address says that was asked for, and follow it; and let it follow this tab."""
        self._address: Address | None = None
        # The address that was asked for last, and the lock of the one that is being shown.
        self._wanted, self._going = Address(), asyncio.Lock()
        request = ui.context.client.request
        first = Address.of(parse_qs(request.url.query if request else ""))
        if first == Address():
            # On a slow machine a click may come before the timer, which would undo it.
            self._address = self.address
        else:
            ui.timer(0.05, partial(self.go, first), once=True)
        ui.timer(PAUSE / 8, self.keep_address)
        ui.on("moved", lambda event: self.go(Address.of(parse_qs(str(event.args)[1:]))))
        ui.run_javascript("addEventListener('popstate', () => emitEvent('moved', location.search))")

    async def go(self, address: Address) -> None:
        """Show what an address says, unless a later one has come."""
        self._wanted = address
        async with self._going:
            if self._wanted is not address:
                return
            self._address = None
            try:
                await self.show_address(address)
            finally:
                self._address = self.address

    def keep_address(self) -> None:
        """Write what the tab shows into the address bar. A new step alone adds nothing to go back to."""
        now, last = self.address, self._address
        if last is None or now == last:
            return
        self._address = now
        way = "replaceState" if replace(now, t=last.t) == last else "pushState"
        query = "&".join(filter(None, (self.name and f"name={quote(self.name, safe='')}", now.text)))
        ui.run_javascript(
            f"history.{way}(null, '', location.pathname + {json.dumps('?' + query if query else '')})"
        )
