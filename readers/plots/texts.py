"""Text from a store, made fit for charts and pages.

A chart's specification is put as JSON into a script of a page, so a text that closes the script would become
part of the page. Titles, labels and values of charts all pass here.
"""

from __future__ import annotations

import unicodedata

_JOINER = "\u2060"
LONGEST = 200


def shown(text: object, longest: int = LONGEST) -> str:
    """Return a text as charts may show it: without control characters, not too long, and unable to end a
    script.

    An invisible word joiner follows each `<`, so that it opens no tag; the text reads as before.

    >>> shown("ppo")
    'ppo'
    >>> "</script" in shown("</script>")
    False
    """
    return plain(text, longest).replace("<", "<" + _JOINER)


def plain(text: object, longest: int) -> str:
    """Return a text without control characters, cut if it is long."""
    kept = "".join(" " if unicodedata.category(each) in ("Cc", "Cf", "Cs") else each for each in str(text))
    return kept if len(kept) <= longest else kept[: longest - 1] + "\u2026"
