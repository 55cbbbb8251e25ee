"""Which keys of the environment's infos a recorder stores: the argument `record_infos`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...store.dynamic.rows import owned
from ...store.errors import InvalidArgumentError
from ...store.suggestions import suggest

RecordInfos = bool | Collection[str]
#: So many keys of infos are remembered for the warning about keys that never came.
_REMEMBERED = 100


@dataclass(frozen=True)
class InfoChoice:
    """The keys to store.

    Attributes:
        keys: keys at the top of infos; None for all.
    """

    keys: frozenset[str] | None
    _missing: set[str] = field(init=False, repr=False, compare=False, default_factory=set)
    _others: dict[str, None] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._missing.update(self.keys or ())

    @staticmethod
    def of(record_infos: RecordInfos) -> InfoChoice:
        """Read the argument `record_infos`.

        Raises:
            InvalidArgumentError: it is neither True, False nor a collection of keys.
        """
        if isinstance(record_infos, bool):
            return InfoChoice(None if record_infos else frozenset())
        keys = record_infos if isinstance(record_infos, Collection) else None
        if keys is None or isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
            raise InvalidArgumentError(
                f"record_infos={record_infos!r}: expected True, False, or the keys to record, such as "
                "('cost', 'success')."
            )
        return InfoChoice(frozenset(keys))

    @property
    def none(self) -> bool:
        """Whether no info is stored."""
        return self.keys is not None and not self.keys

    def note(self, keys: Iterable[Any]) -> None:
        """Remember which keys infos have, until each of the chosen ones was among them."""
        if self._missing:
            self._missing.difference_update(keys)
            if len(self._others) < _REMEMBERED:
                # Vector environments have a mask `_key` for each key.
                self._others.update((key, None) for key in keys if str(key)[:1] != "_")

    def warn_of_missing(self) -> None:
        """Warn of chosen keys that no info of the run had, if infos had others."""
        others = [str(key) for key in self._others]
        for key in sorted(self._missing) if others else ():
            warnings.warn(
                f"record_infos: no info of this run had the key {key!r}, so nothing was stored for it."
                f"{suggest(key, others)} The infos had: {', '.join(others)}.",
                RuntimeWarning,
                stacklevel=4,
            )

    def owned(self, info: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return the chosen entries of an info; the caller cannot change them later.

        Raises:
            SpaceMismatchError: the info is no mapping.
        """
        if self.keys is not None and isinstance(info, Mapping):
            self.note(info)
            info = {key: value for key, value in info.items() if key in self.keys}
        return owned(info)
