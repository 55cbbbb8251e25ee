"""Which keys of the environment's infos a recorder stores: the argument `record_infos`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...store.dynamic.rows import owned
from ...store.errors import InvalidArgumentError

RecordInfos = bool | Collection[str]


@dataclass(frozen=True)
class InfoChoice:
    """The keys to store.

    Attributes:
        keys: keys at the top of infos; None for all.
    """

    keys: frozenset[str] | None

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

    def owned(self, info: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return the chosen entries of an info; the caller cannot change them later.

        Raises:
            SpaceMismatchError: the info is no mapping.
        """
        if self.keys is not None and isinstance(info, Mapping):
            info = {key: value for key, value in info.items() if key in self.keys}
        return owned(info)
