"""One moment of an episode: its row and facts as texts.

One row is read at a time, without columns of images.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from .. import Episode
from ..errors import CorruptStoreError
from ..readers.charts.signals import row_values

LONGEST_TEXT = 400
#: The text of a missing value.
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Moment:
    """The row t of an episode, in texts for people.

    Attributes:
        t: 0..T.
        step: action, reward, flags and the narrow parts of the observation, by column.
        infos: the infos that came with the observation.
        others: policy outputs, own columns and annotations of the step.
    """

    t: int
    step: dict[str, str]
    infos: dict[str, str]
    others: dict[str, str]


#: The card's names of numbers by column, which a step has no time to read again.
_NAMES: weakref.WeakKeyDictionary[Any, dict[str, tuple[str, ...] | None]] = weakref.WeakKeyDictionary()


def moment_of(episode: Episode, t: int) -> Moment:
    """Return the row t of an episode; of several agents, take one agent's episode.

    Raises:
        CorruptStoreError: the steps are damaged; the message names the file.
    """
    step, infos, others = row_values(episode, t)
    names = _NAMES.setdefault(episode._rows.snapshot, {})
    for column, value in step.items():
        if isinstance(value, list):
            if column not in names:
                names[column] = _names_of(episode, column, len(value))
            named = dict(zip(names[column] or (), value, strict=False))
            step[column] = named if len(named) == len(value) else value
    return Moment(t, dict(sorted(_texts(step).items(), key=_in_order)), _texts(infos), _texts(others))


def _names_of(episode: Episode, column: str, size: int) -> tuple[str, ...] | None:
    try:
        return episode._rows.snapshot.card.dimension_names(column, size)
    except CorruptStoreError:
        return None


def _texts(values: Mapping[Any, Any]) -> dict[str, str]:
    return {text_of(key): text_of(value) for key, value in values.items()}


def _in_order(item: tuple[str, str]) -> tuple[int, str]:
    """Return the sort key of a value: action and reward before the observation."""
    roots = ("action", "reward", "terminated", "truncated", "observation")
    name = item[0]
    number = next(
        (index for index, root in enumerate(roots) if name == root or name.startswith(f"{root}.")), len(roots)
    )
    return number, "" if number < len(roots) else name


def text_of(value: Any, longest: int = LONGEST_TEXT) -> str:
    """Return a value for people: numbers with six digits, long lists and texts cut, only printable signs.

    >>> text_of(0.1 + 0.2), text_of(True), text_of([1.0, 2.5])
    ('0.3', 'true', '[1, 2.5]')
    """
    text = _text(value)
    text = "".join(
        sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text
    )
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return f"{float(value):.6g}" if math.isfinite(value) else str(float(value))
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, np.ndarray):
        return _text(value[:64].tolist()) if value.size > 64 and value.ndim == 1 else _text(value.tolist())
    if isinstance(value, list | tuple):
        shown = ", ".join(_text(part) for part in value[:64])
        return f"[{shown}{', …' if len(value) > 64 else ''}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_text(part)}" for key, part in list(value.items())[:64]) + "}"
    return str(value)


def summary_of(episode: Episode) -> dict[str, str]:
    """Return the facts about an episode without its steps."""
    facts = {
        "episode": episode.id,
        "run": episode.run_id,
        "position": str(episode.position),
        "return": text_of(episode.episode_return),
        "steps": text_of(episode.length),
        "end": episode.end_reason,
        "terminated": text_of(episode.terminated),
        "truncated": text_of(episode.truncated),
        "seed": NOTHING if episode.seed is None else str(episode.seed),
        "options": text_of(episode.options),
        "started": text_of(episode.started_at) + " UTC",
        "ended": text_of(episode.ended_at) + " UTC",
    }
    if episode.env_index is not None:
        facts["environment"] = str(episode.env_index)
    if episode.agents:
        facts["agents"] = ", ".join(map(text_of, episode.agents))
    return facts


def metadata_of(episode: Episode) -> dict[str, str]:
    """Return the episode's metadata and annotations."""
    return _texts({**episode.metadata, **episode.annotations})
