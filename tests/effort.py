"""How many examples a test with few of them draws in each profile of `conftest.py`."""

from hypothesis import settings


def examples(count: int) -> int:
    """`count` in the profiles `full` and `long`, and its share in `ordinary`, but two at least."""
    return max(2, count * min(settings().max_examples, 100) // 100)
