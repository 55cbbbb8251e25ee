"""Translates advice of the library for the command line.

The library's errors end with hints for Python, such as `store.make_env(trust=True)`. Users of the shell see
the option with the same effect, or that the advice needs Python.
"""

from __future__ import annotations

import re

_TRUSTED = 'Then: episode.video(env=store.make_env(trust=True, render_mode="rgb_array")).'
#: Patterns in messages, and their replacements.
_WORDS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"Create one with episodelake\.create\.",
            "Check the path; `episodelake demo` makes stores.",
        ),
        (r", or create a store with episodelake\.create\.", "."),
        (r"refresh\(\) moves to version (\d+)", r"version \1 is newer, which the path without @ shows"),
        (r"call make_env\(trust=True\) and pass the environment on; or make it yourself\.", "add --trust."),
        (rf" {re.escape(_TRUSTED)}", ""),
        (r"Make the environment yourself, and pass it where one is needed: ", "In Python make it yourself: "),
        (r"To replay it in one of your own: ", "In Python it can be replayed in one of your own: "),
        (
            r"Choose one, episode\.agent\((['\"])(.+?)\1\)\.video\(\), or replay .*$",
            r"Choose one: --agent \2.",
        ),
        (r"replay the episode in an environment of PettingZoo, (store\[)", r"in Python, replay all with \1"),
        (r"\bcolumn=(['\"])(.+?)\1", r"--column \2"),
        (r"with column=:", "with --column:"),
        (
            r"For images, look at episode\.video\(\)\.",
            "For images: `show PATH EPISODE --frames FILE`.",
        ),
        (r"store\.filter\(\"(.+?)\"\)", r'--filter "\1"'),
        (
            r"Use a connection of your own, from connect\(\), for other statements\.",
            "`episodelake sql` only asks, and changes nothing.",
        ),
        (
            r"this connection, read_only=True, sees nothing else\. Without read_only a query may read other "
            r"files too\.",
            "`episodelake sql` sees nothing else. In Python store.query(...) may read other files too; or "
            "write the result with --output, and ask DuckDB itself.",
        ),
        (r"\bthe view (is empty|has (?:no|\d+) episodes)", r"the store \1"),
        (r"\bverify\(\) names", "`episodelake verify` names"),
        (r"Run verify\.", "Run `episodelake verify`."),
        (r"\bits storage_options\b", "its --storage-option"),
        (r"^storage_options: ", "--storage-option: "),
    )
)


def for_shell(message: str) -> str:
    """Return a message with advice for a shell.

    >>> for_shell("There are several images. Name one with column=: a, b.")
    'There are several images. Name one with --column: a, b.'
    """
    for pattern, replacement in _WORDS:
        message = pattern.sub(replacement, message)
    return message
