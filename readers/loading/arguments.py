"""Checks of single arguments, shared by loaders, units and transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ...store.errors import InvalidArgumentError
from ...store.suggestions import suggest

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: No episode is as long; beyond it, sums of steps would no longer fit into 64 bits.
MOST_STEPS = 2**40


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number of at least `least`, and at most `most` unless that is None.

    Raises:
        InvalidArgumentError: it is something else.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        span = f"from {least} on" if most is None else f"from {least} to {most}"
        raise InvalidArgumentError(f"{name}={value!r}: expected a whole number {span}.")
    return int(value)


def step_count(name: str, value: Any, least: int) -> int:
    """Return a number of steps from `least` to `MOST_STEPS`.

    Raises:
        InvalidArgumentError: it is something else.
    """
    return whole_number(name, value, least, MOST_STEPS)


def real_number(name: str, value: Any, most: float = math.inf) -> float:
    """Return a finite number from 0 to `most`.

    Raises:
        InvalidArgumentError: it is something else.
    """
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not real or not 0 <= value <= most or math.isinf(value):
        span = "from 0 on" if math.isinf(most) else f"from 0 to {most:g}"
        raise InvalidArgumentError(f"{name}={value!r}: expected a number {span}.")
    return float(value)


def discount_factor(name: str, value: Any) -> float:
    """Return a number from 0 to 1.

    Raises:
        InvalidArgumentError: it is something else.
    """
    return real_number(name, value, 1.0)


def removed_keywords(
    table: Mapping[str, str],
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Make a function refuse keywords that it does not have, with an error that gives the right spelling.

    Args:
        table: by removed keyword, the new spelling; `{}` in it is replaced by the given value.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        known = [name for name in signature(function).parameters if name != "self"]

        @wraps(function)
        def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for name in kwargs.keys() & table.keys():
                value = f"{kwargs[name]!r:.200}"
                raise InvalidArgumentError(
                    f"{function.__name__}() has no argument {name} any more. Instead of {name}={value} write "
                    f"{table[name].format(value)}."
                )
            for name in kwargs.keys() - set(known):
                raise InvalidArgumentError(
                    f"{function.__name__}() has no argument {name}.{suggest(name, known)} Its arguments: "
                    f"{', '.join(known)}."
                )
            return function(*args, **kwargs)

        return checked

    return decorate
