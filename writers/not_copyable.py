"""`NotCopyable`: refuse to copy or pickle what holds an open run.

A copy would write into the same journal as the original, under a lock that only the original holds.
"""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from ..store.errors import RecorderStateError


class NotCopyable:
    """The base of recorders, writers and sessions; `copy.copy`, `copy.deepcopy` and `pickle` raise."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            RecorderStateError: always.
        """
        raise RecorderStateError(
            f"Objects of type {type(self).__name__} cannot be copied or pickled: each holds a run's journal "
            "and lock. Open another one on the same store instead, in each process that records."
        )
