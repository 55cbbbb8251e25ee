"""Positions of loaders, and their states: small dicts that JSON can hold."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from ...store.errors import LoaderStateError

_FORMAT = 1


def make_state(identity: Mapping[str, Any], epoch: int, position: int) -> dict[str, Any]:
    """Return the state at a position of an epoch."""
    return {"format": _FORMAT, "identity": dict(identity), "epoch": epoch, "position": position}


def read_state(
    state: Mapping[str, Any], identity: Mapping[str, Any], length: float, kind: str = "loader"
) -> tuple[int, int]:
    """Return the epoch and the position of a state.

    Args:
        state: as `make_state` returned it.
        identity: the identity that the state must have.
        length: the last position of an epoch.
        kind: the kind of loader that the state must belong to, for messages.

    Raises:
        LoaderStateError: it is of another identity, or is no state.
    """
    try:
        form, own = state["format"], dict(state["identity"])
        epoch, position = operator.index(state["epoch"]), operator.index(state["position"])
    except (TypeError, KeyError, ValueError) as error:
        raise LoaderStateError(
            f"This is no state of a {kind}: {state!r:.200}. Expected the result of state_dict()."
        ) from error
    other = [name for name in identity if own.get(name) != identity[name]]
    if other:
        differences = "; ".join(f"{name}: {own.get(name)!r} there, {identity[name]!r} here" for name in other)
        raise LoaderStateError(
            f"The state is that of another {kind} ({differences}). Open the same version of the store, and "
            f"make the {kind} with the same arguments."
        )
    if form != _FORMAT or epoch < 0 or not 0 <= position <= length:
        raise LoaderStateError(
            f"The state has format {form!r}, epoch {epoch} and position {position}; expected format "
            f"{_FORMAT}, an epoch from 0 on, and a position from 0 to {length}."
        )
    return epoch, position


class EpochPosition:
    """The position of a loader or a mixture in its epochs."""

    _epoch = _position = 0
    #: Counts the moves, so that an iteration notices that its loader was moved.
    _moves = 0

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, counted from 0."""
        return self._epoch

    def _move_to(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._moves += 1

    def _check_unmoved(self, moves: int, kind: str) -> None:
        if moves != self._moves:
            raise LoaderStateError(
                f"The {kind} was moved, or another iteration began, during this iteration. Begin a new one: "
                f"it continues from the {kind}'s position."
            )
