"""How much a run does: examples of a test in each profile of `conftest.py`, and cases of one that loops."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings


def examples(count: int) -> int:
    """`count` in the profiles `full` and `long`, and its share in `ordinary`, but two at least."""
    return max(2, count * min(settings().max_examples, 100) // 100)


def some(cases: Iterable[Any], count: int = 0) -> list[Any]:
    """Two lists of cases, to loop over: one for `make test`, and the others for `make test-cases`.

    Args:
        cases: each one a value, or a tuple of several.
        count: of the first list, which has the first and the last case; 0 for each value of a tuple once.
    """
    every = list(cases)
    tuples = [case if isinstance(case, tuple) else (case,) for case in every]
    values = [{(place, id(value)) for place, value in enumerate(case)} for case in tuples]
    ordinary = spread(len(every), count) if count else each_value_once(values)
    parts = [
        [case for place, case in enumerate(every) if (place in ordinary) is wanted]
        for wanted in (True, False)
    ]
    marked = [
        pytest.param(parts[0], id="some"),
        pytest.param(parts[1], id="others", marks=pytest.mark.further),
    ]
    return marked if parts[1] else marked[:1]


def looped(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each value in one go, with the same fixtures; the message of a failure names the value.

    Args:
        names: an argument of the test, or several.
        values: each one a value, or a tuple of one for each name.
    """
    words, every = (names,) if isinstance(names, str) else names, list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def loop(**fixtures: Any) -> None:
            from episodelake.testing.adapters import case

            for value in every:
                own = (value,) if isinstance(names, str) else value
                with case(value):
                    test(**fixtures, **dict(zip(words, own, strict=True)))

        signature = inspect.signature(test)
        rest = [each for name, each in signature.parameters.items() if name not in words]
        loop.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return loop

    return decorate


def with_folders(cases: Iterable[Any], folder: Path) -> Iterator[tuple[Path, Any]]:
    """Cases to loop over, each behind an empty folder of its own below a folder."""
    for number, each in enumerate(cases):
        (own := folder / str(number)).mkdir()
        yield own, each


def spread(length: int, count: int) -> set[int]:
    """`count` places of `length`, the first and the last among them."""
    return {round(place * (length - 1) / max(count - 1, 1)) for place in range(count)}


def each_value_once(cases: Sequence[set[tuple[Any, int]]]) -> set[int]:
    """Places of cases that have each value of each parameter: first those where all are new."""
    seen: set[tuple[Any, int]] = set()
    chosen: set[int] = set()
    for enough in (set.isdisjoint, lambda new, old: not new <= old):
        for place, new in enumerate(cases):
            if enough(new, seen):
                chosen.add(place)
                seen |= new
    return chosen
