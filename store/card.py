"""The keys of a dataset card that have a meaning; any other key may hold any JSON.

`env_spec` and `eval_env_spec` are ids of environments, or JSON texts from `EnvSpec.to_json` of Gymnasium.
`expert_policy` is a reference, such as the URL of a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, ClassVar

from .errors import InvalidArgumentError
from .layout import CHECKSUM, checked_json

MIN_SCORE, MAX_SCORE = "ref_min_score", "ref_max_score"

_TEXT, _NUMBER, _COUNT = (str,), (int, float), (int,)
_TEXTS = "a text or a list of texts"
_KINDS = {_TEXT: "a text", _NUMBER: "a number", _COUNT: "a whole number"}

#: In the order in which they are shown.
CARD_KEYS: dict[str, tuple[type, ...] | str] = {
    "title": _TEXT,
    "description": _TEXT,
    "author": _TEXTS,
    "author_email": _TEXTS,
    "license": _TEXT,
    "citation": _TEXT,
    "code_permalink": _TEXT,
    "algorithm": _TEXT,
    "env_spec": _TEXT,
    "eval_env_spec": _TEXT,
    "expert_policy": _TEXT,
    MIN_SCORE: _NUMBER,
    MAX_SCORE: _NUMBER,
    "num_episodes_average_score": _COUNT,
    "requirements": _TEXTS,
}


def check_card(card: Mapping[str, Any]) -> None:
    """Compare the keys that have a meaning with what they may hold.

    Raises:
        InvalidArgumentError: a value is of another kind, or the scores are in the wrong order.
    """
    for key, expected in CARD_KEYS.items():
        value = card.get(key)
        if value is None:
            continue
        if isinstance(expected, str):
            fits = isinstance(value, str) or (
                isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
            )
        else:
            fits = isinstance(value, expected) and not isinstance(value, bool)
        if not fits:
            kind = expected if isinstance(expected, str) else _KINDS[expected]
            raise InvalidArgumentError(
                f"The card has {key!r}: {str(value)[:80]!r} ({type(value).__name__}); expected {kind}."
            )
    low, high = card.get(MIN_SCORE), card.get(MAX_SCORE)
    if low is not None and high is not None and not low < high:
        raise InvalidArgumentError(f"The card has {MIN_SCORE} {low} and {MAX_SCORE} {high}: swap them.")


class CardEntries(dict[str, Any]):
    """The entries of a dataset card."""

    KEYS: ClassVar[Collection[str]] = CARD_KEYS.keys()

    @staticmethod
    def to_bytes(card: Mapping[str, Any]) -> bytes:
        """Return the content of the file `card.json`.

        Raises:
            InvalidArgumentError: the card is no mapping of plain JSON, a key with a meaning (see `KEYS`)
                holds something else, or it has the key of the checksum.
        """
        if not isinstance(card, Mapping):
            raise InvalidArgumentError(
                f"The card must be a mapping such as {{'title': 'Pong'}}, got {type(card).__name__}."
            )
        check_card(card)
        if CHECKSUM in card:
            raise InvalidArgumentError(
                f"The card has the key {CHECKSUM!r}, under which card.json keeps its checksum. Rename it."
            )
        try:
            return checked_json(card)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"The card is not plain JSON: {error}. Use text, numbers, lists and mappings with text as "
                "keys."
            ) from error

    def reference_scores(self) -> tuple[float, float] | None:
        """Return the returns of a random and of an expert policy; None unless the card has both."""
        low, high = self.get(MIN_SCORE), self.get(MAX_SCORE)
        return None if low is None or high is None else (float(low), float(high))

    def dimension_names(self, column: str, size: int) -> tuple[str, ...] | None:
        """Return the names that the card gives to the numbers of a column of steps; None if it gives none.

        They are in `names` by column, or where an import from LeRobot left those of its features.

        Args:
            column: the column.
            size: how many numbers the column has; names of another count are not its own.

        >>> CardEntries(names={"action": ["left", "right"]}).dimension_names("action", 2)
        ('left', 'right')
        """
        lerobot = self.get("lerobot")
        for names in (self.get("names"), lerobot.get("names") if isinstance(lerobot, dict) else None):
            if not isinstance(names, dict):
                continue
            # A single part of the observation is no dict: LeRobot's observation.state is `observation`.
            parts = [name for name in names if name == column or name.startswith(f"{column}.")]
            if column not in names and len(parts) != 1:
                continue
            given = names[column if column in names else parts[0]]
            if isinstance(given, dict) and len(given) == 1:
                (given,) = given.values()
            if isinstance(given, list) and len(given) == size:
                return tuple(map(str, given))
        return None

    def texts(self, *, others: bool = False) -> dict[str, str]:
        """Return the entries as texts for people: lists of texts with commas, other values as JSON.

        Args:
            others: return also the entries whose keys have no meaning, after those of `KEYS` in their order.
        """
        keys = [key for key in CARD_KEYS if self.get(key) is not None]
        if others:
            keys += [key for key in self if key not in CARD_KEYS]
        return {key: _text(self[key]) for key in keys}


def _text(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Writing:
    """Methods that change a dict or list; each writes the card afterwards.

    If the write fails, the content is what it was before. Copies and pickles are plain dicts and lists.
    """

    _save: Callable[[], None]

    def __init_subclass__(cls, base: type, changes: str) -> None:
        super().__init_subclass__()
        cls._base: Any = base
        for name in changes.split():
            setattr(cls, name, _writing(base, name))

    def __init__(self, content: Any, save: Callable[[], None]) -> None:
        self._base.__init__(self, content)
        self._save = save
        self._track()

    def _track(self) -> None:
        """Let what is nested write the card too."""
        parts = self.items() if isinstance(self, dict) else enumerate(self)  # type: ignore[arg-type]
        for key, value in list(parts):
            kind = _Entries if isinstance(value, dict) else _Items if isinstance(value, list) else None
            if kind is not None and getattr(value, "_save", None) is not self._save:
                self._base.__setitem__(self, key, kind(value, self._save))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._base, (self.copy(),)

    def copy(self) -> Any:
        """Return a plain copy, of what is nested too."""
        return _plain(self)


def _writing(base: Any, name: str) -> Any:
    change = getattr(base, name)

    @wraps(change)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "setdefault" and args and args[0] in self:
            return self[args[0]]
        before = base(self)
        try:
            result = change(self, *args, **kwargs)
            self._track()
            self._save()
        except BaseException:
            base.clear(self)
            getattr(base, "update" if base is dict else "extend")(self, before)
            raise
        return self[args[0]] if name == "setdefault" else result

    return changed


def _plain(value: Any) -> Any:
    """Return JSON as plain dicts and lists."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


class _Entries(
    _Writing,
    dict[str, Any],
    base=dict,
    changes="__setitem__ __delitem__ __ior__ update setdefault pop popitem clear",
):
    """A nested dict of a card."""


class _Items(
    _Writing,
    list[Any],
    base=list,
    changes="__setitem__ __delitem__ __iadd__ __imul__ append extend insert pop remove clear sort reverse",
):
    """A nested list of a card."""


class Card(CardEntries, _Entries, base=dict, changes=""):
    """A store's card as it was when it was read; changing it, or what is nested in it, writes all of it.

    Args:
        card: the entries.
        write: writes a card.
    """

    def __init__(self, card: Mapping[str, Any], write: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(card, lambda: write(_plain(self)))
