"""Refusing to record a step twice: an environment that a recorder below other wrappers records already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...store.errors import InvalidArgumentError
from ...store.handle import StoreHandle
from ..session import RunSession

#: Where wrappers keep what they wrap.
_INNER = ("env", "pool", "aec_env", "par_env")


def check_unrecorded(env: Any, store: StoreHandle) -> None:
    """Refuse an environment whose steps are recorded into the same store already; into another is fine.

    Raises:
        InvalidArgumentError: a recorder of this store stands below.
    """
    for inner in _chain(env):
        session = vars(inner).get("_session")
        if not isinstance(session, RunSession) or session.closed:
            continue
        if str(session.store.layout.root) == str(store.layout.root):
            raise InvalidArgumentError(
                f"This environment is recorded into {store.layout.root} already, by a "
                f"{type(inner).__name__} below {type(env).__name__}: each step would be there twice. Step "
                "that recorder, or give collect() the recorder itself, outside all other wrappers."
            )


def _chain(env: Any) -> Iterator[Any]:
    """Yield the environment and everything that it wraps."""
    seen: set[int] = set()
    while hasattr(env, "__dict__") and id(env) not in seen:
        yield env
        seen.add(id(env))
        held = vars(env)
        env = next((held[name] for name in _INNER if name in held), None)
