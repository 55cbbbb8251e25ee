"""`RenameKeys`: other names for the keys of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....store.errors import InvalidArgumentError
from ..units.unit import Batch


@dataclass(frozen=True)
class RenameKeys:
    """Gives keys of a batch other names; the order stays.

    Args:
        names: new names by old ones. Each key by itself; for parts of nested values see `SelectKeys`.
    """

    names: Mapping[str, str]

    def __post_init__(self) -> None:
        """Check the arguments."""
        names = dict(self.names)
        if len(set(names.values())) < len(names):
            raise InvalidArgumentError(f"{names}: two keys would get the same name.")
        object.__setattr__(self, "names", names)

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with other keys.

        Raises:
            InvalidArgumentError: there is no such key, or two would have the same name.
        """
        lost = [key for key in self.names if key not in batch]
        if lost:
            raise InvalidArgumentError(f"There is no {lost[0]!r} to rename. There are: {', '.join(batch)}.")
        renamed = {self.names.get(key, key): value for key, value in batch.items()}
        if len(renamed) < len(batch):
            raise InvalidArgumentError(f"{self!r}: a new name is that of another key: {', '.join(batch)}.")
        return renamed
