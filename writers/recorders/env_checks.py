"""Whether a recorder takes an environment: it has the spaces of the store, and no recorder below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium

from ...store.errors import InvalidArgumentError, SpaceMismatchError
from ...store.handle import StoreHandle
from ...store.schema import StepSchema
from ..session import RunSession

#: Where wrappers keep what they wrap.
_INNER = ("env", "pool", "aec_env", "par_env")


def check_spaces(schema: StepSchema, given: Mapping[str, gymnasium.Space]) -> None:
    """Compare the two spaces of an environment, observation and action, with the store's.

    Args:
        given: the spaces under their names, for the message.

    Raises:
        SpaceMismatchError: one is another.
    """
    for (name, space), expected in zip(
        given.items(), (schema.observation_space, schema.action_space), strict=True
    ):
        if space != expected:
            raise SpaceMismatchError(
                f"The environment's {name} is {space}; the store's is {expected}. Record into a store that "
                "was created with this environment's spaces."
            )


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
