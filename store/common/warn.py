"""Warnings at the line of the caller's code that led to them."""

from __future__ import annotations

import sys
import warnings

_OURS = ("episodelake", "contextlib", "functools")


def warn_caller(text: str) -> None:
    """Give a `RuntimeWarning` at the innermost line that is not the library's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)
