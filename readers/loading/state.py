"""The state of a loader: where it stands, as a small dict that JSON can hold, and what it must fit."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from ...store.errors import LoaderStateError

_FORMAT = 1


def make_state(identity: Mapping[str, Any], epoch: int, position: int) -> dict[str, Any]:
    """The state at a position of an epoch."""
    return {"format": _FORMAT, "identity": dict(identity), "epoch": epoch, "position": position}


def read_state(state: Mapping[str, Any], identity: Mapping[str, Any], length: int) -> tuple[int, int]:
    """The epoch and the position of a state.

    Args:
        state: what `make_state` gave.
        identity: whose state it is to be.
        length: units of an epoch.

    Raises:
        LoaderStateError: it is of another identity, or is no state.
    """
    try:
        form, own = state["format"], dict(state["identity"])
        epoch, position = operator.index(state["epoch"]), operator.index(state["position"])
    except (TypeError, KeyError, ValueError) as error:
        raise LoaderStateError(
            f"This is no state of a loader: {state!r:.200}. Expected what state_dict() gave."
        ) from error
    if form != _FORMAT or epoch < 0 or not 0 <= position <= length:
        raise LoaderStateError(
            f"The state has format {form!r}, epoch {epoch} and position {position}; expected format "
            f"{_FORMAT}, an epoch from 0 on, and a position from 0 to {length}."
        )
    other = [name for name in identity if own.get(name) != identity[name]]
    if other:
        told = "; ".join(f"{name}: {own.get(name)!r} there, {identity[name]!r} here" for name in other)
        raise LoaderStateError(
            f"The state is that of another loader ({told}). Open the same version of the store, and make "
            "the loader with the same arguments."
        )
    return epoch, position
