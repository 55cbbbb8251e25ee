"""How commands write amounts: in full for scripts, shortened for people."""

from __future__ import annotations

from ..readers.amounts import size_text
from .page import Page


def count_text(page: Page, number: int) -> str:
    """A number of things."""
    return f"{number:,}" if page.is_terminal else str(number)


def bytes_text(page: Page, size: int) -> str:
    """A number of bytes, in full for scripts."""
    return size_text(size) if page.is_terminal else f"{size} bytes"
