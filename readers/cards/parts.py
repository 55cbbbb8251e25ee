"""Shared parts of cards: isolated failures, formatted numbers, frames as embedded images."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from ...store.errors import MissingPackageError
from ...store.optional_packages import EXPLORE, require
from ..episode_data import EpisodeData
from ..pictures.video import make_video
from .html import fault, part, text

_FRAMES = 6
_FRAME_HEIGHT = 110


def shown_part(what: str, make: Callable[[], str]) -> str:
    """Return a part of a card, or its error as text: a damaged file must not stop a notebook."""
    try:
        return make()
    except Exception as error:
        return fault(what, error)


def number(value: Any) -> str:
    """Return a number for people; NULL where there is none.

    >>> number(1234567), number(0.123456), number(None)
    ('1,234,567', '0.1235', 'NULL')
    """
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(number, value)) + "]"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a time for people: thousandths of a second below one second.

    >>> duration(0.0003), duration(0.25), duration(75.5)
    ('0.3 ms', '250 ms', '75.500 s')
    """
    return f"{seconds * 1000:.3g} ms" if 0 <= seconds < 0.9995 else f"{seconds:,.3f} s"


def frames_part(episode: EpisodeData, column: str, title: str) -> str:
    """Return some evenly spaced frames of an episode's images; a word where Pillow is not installed."""
    steps = np.unique(np.linspace(0, episode._observation_count - 1, _FRAMES).round().astype(int)).tolist()
    try:
        images: Any = require("PIL.Image", "Frames in a card", EXPLORE)
    except MissingPackageError as error:
        return part(title, f'<span class="el-dim">{text(error)}</span>')
    pictures = []
    for t, frame in make_video(episode, steps, column, None, None, None):
        written = io.BytesIO()
        images.fromarray(frame).save(written, format="png")
        content = base64.b64encode(written.getvalue()).decode()
        pictures.append(
            f'<figure><img alt="frame {t}" height="{_FRAME_HEIGHT}" style="height:{_FRAME_HEIGHT}px" '
            f'src="data:image/png;base64,{content}">'
            f"<figcaption>t = {t:,}</figcaption></figure>"
        )
    return part(title, f'<div class="el-row" style="gap:6px 10px">{"".join(pictures)}</div>')
