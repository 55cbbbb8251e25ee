"""Column names: escaping, joining, and telling keys apart that differ only in case."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import looped
from episodelake.store import names
from episodelake.store.errors import InvalidArgumentError
from episodelake.testing.adapters import case

FORBIDDEN = set(" ,;{}()=.") | {chr(code) for code in range(32)} | {chr(127)}


@given(st.text())
def test_escape_round_trips(key: str) -> None:
    """Any key comes back from its segment."""
    assert names.unescape(names.escape(key)) == key


@given(st.text())
def test_escape_leaves_no_forbidden_character(key: str) -> None:
    """A segment is not empty, and holds no dot and nothing that Delta forbids."""
    segment = names.escape(key)
    assert segment
    assert not FORBIDDEN & set(segment)


def test_escape_examples() -> None:
    """The escaping is the documented one, character by character."""
    cases: list[Any] = [
        ("x_position", "x_position"),
        ("a.b", "a%2Eb"),
        ("100%", "100%25"),
        ("", "%"),
        ("%", "%25"),
        ("a b,c;d{e}f(g)h=i", "a%20b%2Cc%3Bd%7Be%7Df%28g%29h%3Di"),
        ("\t\n\x7f\x00", "%09%0A%7F%00"),
        ("größe/日本", "größe/日本"),
    ]
    for key, segment in cases:
        with case((key, segment)):
            assert names.escape(key) == segment


@looped("segment", ["%4", "a%", "%zz", "% 1", "%+1", "%FF", "%C3"])
def test_unescape_refuses_what_escape_cannot_have_made(segment: str) -> None:
    """A segment with a broken encoding is an error that shows the segment."""
    with pytest.raises(InvalidArgumentError, match="segment"):
        names.unescape(segment)


@given(st.lists(st.text(), min_size=1))
def test_join_and_split_are_inverse(keys: list[str]) -> None:
    """A path of keys comes back from its column name."""
    assert names.split(names.join(*keys)) == tuple(keys)


@given(st.lists(st.text(alphabet="aAbB%.ßsSẞİi\u0307\u0131I\u03c3\u03c2Σ4162ecEC")))
def test_distinct_segments_are_unique_ignoring_case(keys: list[str]) -> None:
    """No two keys share a segment, even ignoring case, and each segment gives its key back."""
    segments = names.escape_distinct(keys)
    assert list(segments) == list(dict.fromkeys(keys))
    assert len({segment.casefold() for segment in segments.values()}) == len(segments)
    assert len({segment.lower() for segment in segments.values()}) == len(segments)
    assert all(names.unescape(segment) == key for key, segment in segments.items())


def test_distinct_segments_change_only_the_later_key() -> None:
    """The first key keeps its name; upper-case letters of a later one that clashes are encoded, as UTF-8."""
    assert names.escape_distinct(["a", "A", "ä", "Ä", "b"]) == {
        "a": "a",
        "A": "%41",
        "ä": "ä",
        "Ä": "%C3%84",
        "b": "b",
    }


def test_has_utf8_finds_lone_surrogates() -> None:
    """A key with a lone surrogate cannot be stored; any other can."""
    assert names.has_utf8("😀 größe")
    assert names.has_utf8("")
    assert not names.has_utf8("a\ud800")
