"""Checks of single arguments and of flags, for all public functions, and suggestions for unknown names.

Scalars of numpy count as Python's.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..errors import InvalidArgumentError, SpaceMismatchError
from .habits import meant

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: No episode is as long; beyond it, sums of steps would no longer fit into 64 bits.
MOST_STEPS = 2**40


def expect(right: object, name: str, value: object, expected: str) -> None:
    """Refuse an argument that is not right.

    Args:
        right: true if it is.
        name: of the argument.
        value: what was passed.
        expected: what to pass instead.

    Raises:
        InvalidArgumentError: it is not right.
    """
    if not right:
        shown = repr(value).replace("\n", " ")
        raise InvalidArgumentError(f"{name}={shown:.200}: expected {expected}.")


def known_name(name: object, names: Iterable[str], problem: str, label: str = "There are") -> None:
    """Refuse a name that is none of some.

    Args:
        name: the name.
        names: those that there are.
        problem: a sentence on the name.
        label: what the message calls the names.

    Raises:
        InvalidArgumentError: it is unknown; the message has the problem, the nearest names, and all names.
    """
    names = list(names)
    if name not in names:
        listed = ", ".join(names) or "none"
        raise InvalidArgumentError(f"{problem}{suggest(str(name), names)} {label}: {listed}.")


def flag(name: str, value: Any) -> bool:
    """Return an argument that is True or False as a bool.

    Raises:
        InvalidArgumentError: it is neither True nor False.
    """
    expect(isinstance(value, bool | np.bool_), name, value, "True or False")
    return bool(value)


def integer(value: Any) -> int:
    """Return an integer, of whatever class but that of booleans.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, bool | np.bool_):
        raise TypeError("a boolean is no integer")
    return operator.index(value)


def is_integer(value: Any) -> bool:
    """Return whether it is a Python or numpy integer; booleans are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Return whether it is a Python or numpy number that is real; booleans are none."""
    return isinstance(value, float | np.floating) or is_integer(value)


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer of at least `least`, and at most `most` unless that is None.

    Raises:
        InvalidArgumentError: it is something else.
    """
    right = is_integer(value) and least <= value and (most is None or value <= most)
    span = f"from {least} on" if most is None else f"from {least} to {most}"
    expect(right, name, value, f"a whole number {span}")
    return int(value)


def step_count(name: str, value: Any, least: int) -> int:
    """Return a number of steps from `least` to `MOST_STEPS`.

    Raises:
        InvalidArgumentError: it is something else.
    """
    return whole_number(name, value, least, MOST_STEPS)


def real_number(name: str, value: Any, most: float = math.inf, least: float = 0) -> float:
    """Return a finite number from `least` to `most`.

    Raises:
        InvalidArgumentError: it is something else.
    """
    upper = "on" if math.isinf(most) else f"to {most:g}"
    span = "" if math.isinf(least) else f" from {least:g} {upper}"
    right = is_real(value) and least <= value <= most and not math.isinf(value)
    expect(right, name, value, f"a finite number{span}")
    return float(value)


def positive_number(name: str, value: Any, most: float = math.inf) -> float:
    """Return a number above 0, which may be infinite unless `most` is less.

    Raises:
        InvalidArgumentError: it is something else.
    """
    limit = "" if math.isinf(most) else f" of at most {most:g}"
    expect(is_real(value) and 0 < value <= most, name, value, f"a positive number{limit}")
    return float(value)


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return a text that is one of some.

    Raises:
        InvalidArgumentError: it is something else.
    """
    choices = tuple(choices)
    if isinstance(value, str) and value in choices:
        return choices[choices.index(value)]  # of members of enumerations, `str` returns something else
    shown = [*map(repr, choices)]
    expected = " or ".join(shown) if len(shown) < 3 else f"one of {', '.join(shown)}"
    raise InvalidArgumentError(f"{name}={value!r:.200} is unknown; expected {expected}.")


def discount_factor(name: str, value: Any) -> float:
    """Return a number from 0 to 1.

    Raises:
        InvalidArgumentError: it is something else.
    """
    return real_number(name, value, 1.0)


def refuse_mask(value: Any, place: str) -> None:
    """Refuse an array, or a nest of lists with one, some of whose elements are masked: no column keeps masks.

    Raises:
        SpaceMismatchError: an element is masked.
    """
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise SpaceMismatchError(
                f"{place}: got a masked array with {np.ma.count_masked(value)} masked elements, which no "
                "column can hold. Fill them with .filled(...), and record the mask under a name of its own."
            )
    elif isinstance(value, list | tuple) and any(
        issubclass(kind, list | tuple | np.ma.MaskedArray) for kind in set(map(type, value))
    ):
        for item in value:
            refuse_mask(item, place)


def as_flag(name: str, value: Any) -> bool:
    """Return a flag of one transition as a bool.

    Args:
        name: named in the error.
        value: a bool, or 0 or 1 of any type of number, or an array or tensor with one of them.

    Raises:
        SpaceMismatchError: it is something else.
    """
    if value is True or value is False:
        return value
    refuse_mask(value, name)
    item = getattr(value, "item", None)
    try:
        plain = item() if callable(item) else value
    except (ValueError, TypeError, RuntimeError):  # more than one element
        plain = None
    if isinstance(plain, bool | int | float) and plain in (0, 1):
        return bool(plain)
    raise SpaceMismatchError(f"{name} is {value!r:.200}; expected True or False, or 0 or 1.")


def as_flags(name: str, values: np.ndarray) -> np.ndarray:
    """Return flags of many transitions as bool, of the same shape; it may be the array itself.

    Raises:
        SpaceMismatchError: one is neither a boolean nor 0 or 1.
    """
    if values.dtype == bool:
        return values
    # Not np.isin, which sorts.
    numbers = values.dtype.kind in "iuf"
    right = (values == 0) | (values == 1) if numbers else np.zeros(values.shape, bool)
    if not right.all():
        wrong = values[~right].flat[0]
        raise SpaceMismatchError(f"{name} has the value {wrong!r:.200}; expected booleans, or 0 and 1.")
    return values.astype(bool)


_PARTS = re.compile(r"[._]")


def suggest(wrong: str, names: Sequence[str], place: str = "") -> str:
    """Return the end of a message about an unknown name: " Did you mean x or y?", or "" if none is like it.

    Args:
        wrong: the name.
        names: those that there are.
        place: where it was used, for the names of other libraries; see `habits`.

    >>> suggest("lenght", ["length", "seed"])
    ' Did you mean length?'
    """
    same = meant(place, wrong)
    near = [same] if same else near_names(wrong, names, 3)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def missing_attribute(owner: object, name: str, place: str = "") -> AttributeError:
    """Return the error for an attribute that an object lacks, with the public names most like it.

    Args:
        owner: the object.
        name: of the attribute.
        place: as for `suggest`.
    """
    message = f"{type(owner).__name__!r} object has no attribute {name!r}."
    if not name.startswith("_"):
        public = [each for each in dir(type(owner)) if not each.startswith("_")]
        message += suggest(name, public, place)
    return AttributeError(message, name=name, obj=owner)


def argument_names(function: Callable[..., Any]) -> list[str]:
    """Return the names by which a function takes arguments, for the hint on an unknown one."""
    parameters = inspect.signature(function).parameters.values()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [each.name for each in parameters if each.kind not in variable and each.name != "self"]


def naming_arguments(function_name: str | None = None, /) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Name the argument that was meant, in the TypeError for one that a function lacks.

    Args:
        function_name: the public name, where it is not that of the function.
    """

    def decorated(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = inspect.signature(function).parameters.keys()
        shown = function_name or function.__name__

        @functools.wraps(function)
        def checked(*arguments: _P.args, **named: _P.kwargs) -> _R:
            for name in named:
                if name not in known:
                    hint = suggest(name, list(known), f"{shown}()")
                    raise TypeError(f"{shown}() has no argument {name!r}.{hint}")
            return function(*arguments, **named)

        return checked

    return decorated


def near_names(wrong: str, names: Sequence[str], shown: int = 4) -> list[str]:
    """Return the names most like a wrong one, best first."""
    folded = wrong.casefold()

    def likeness(name: str) -> float:
        other = name.casefold()
        whole = difflib.SequenceMatcher(None, folded, other).ratio()
        parts = [difflib.SequenceMatcher(None, folded, part).ratio() for part in _PARTS.split(other)]
        shorter, longer = sorted((folded, other), key=len)
        within = len(shorter) > 2 and shorter in longer
        return max(whole, 0.9 * max(parts), 0.75 if within else 0)

    ranked = sorted(dict.fromkeys(names), key=likeness, reverse=True)
    return [name for name in ranked if likeness(name) >= 0.6][:shown]
