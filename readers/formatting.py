"""Amounts in words, for charts, cards and the command line."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number of things with their name.

    >>> counted(1, "episode"), counted(2000, "episode")
    ('1 episode', '2,000 episodes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(size: float) -> str:
    """Return a number of bytes for people, in decimal units.

    >>> size_text(999), size_text(1_234_567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
