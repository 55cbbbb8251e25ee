"""The losses of an unfinished import, in a file beside its episodes, so that its report survives a crash."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...store.files import guard_access


class LossLedger:
    """The losses of each part of a source that was read.

    A part gets its line before its episodes are written, so a written episode without one is that of a
    crashed machine. The importer then reads the part again.

    Args:
        path: the file; what an interrupted import left there counts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, int], dict[str, int]] = {}
        if not path.exists():
            return
        with guard_access("read the losses", path):
            lines = path.read_text("utf-8", errors="replace").splitlines()
        for line in lines:
            try:
                first, count, losses = json.loads(line)
            except ValueError:  # blank, or torn by a crash
                continue
            self._known[first, count] = losses

    @property
    def resumes(self) -> bool:
        """Whether an interrupted import had read parts."""
        return bool(self._known)

    def find(self, keys: Sequence[str]) -> Mapping[str, int] | None:
        """Return the losses of a part with these episodes; None if an interrupted import did not read it."""
        return self._known.get((keys[0], len(keys)))

    def add(self, keys: Sequence[str], losses: Mapping[str, int]) -> None:
        """Keep the losses of a part.

        Raises:
            StoreAccessError: the file cannot be written, as on a full disk.
        """
        with guard_access("write the losses", self._path), self._path.open("a", encoding="utf-8") as file:
            # First the end of a line that a crash tore.
            file.write(f"\n{json.dumps([keys[0], len(keys), losses])}")
