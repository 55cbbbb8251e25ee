"""Dataset cards of exports and published versions: `README.md` with YAML front matter.

The front matter has a key in each line, and its values are JSON, which is YAML as well. Its keys are those of
https://github.com/huggingface/hub-docs/blob/main/datasetcard.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ..store.card import CardEntries
from .context import ReadContext
from .frames import collected, episodes_frame

#: Licences that the Hub knows by their id.
_LICENSES = frozenset(
    (
        *("apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "gpl-2.0", "gpl-3.0", "lgpl-3.0"),
        *("mpl-2.0", "unlicense", "cc", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0"),
        *("cc-by-nd-4.0", "cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0", "odbl", "odc-by", "pddl", "openrail"),
    )
)
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
_LARGER = ((10**7, "1M<n<10M"), (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"))


class DatasetCard:
    """The parts of `README.md` of an export or a published version.

    Args:
        context: the episodes.
        card: of their store.
        rows: how many rows the dataset has.

    Attributes:
        front: the front matter; add what the dataset needs beside it.
    """

    def __init__(self, context: ReadContext, card: Mapping[str, Any], rows: int) -> None:
        self._context, self._card = context, card
        self.front: dict[str, Any] = _front(card, rows)

    def text(self, lines: Sequence[str]) -> str:
        """Return the card: the front matter, title and description, then lines of Markdown."""
        about = [str(self._card["description"]), ""] if self._card.get("description") else []
        front = (f"{key}: {_json(value)}" for key, value in self.front.items())
        title = f"# {self._card.get('title', 'Episodes')}"
        return "\n".join(["---", *front, "---", "", title, "", *about, *lines, ""])

    def figures(self, others: Sequence[tuple[str, str]]) -> list[str]:
        """Return the lines of a table: how many episodes there are, how they ended and what they returned.

        Args:
            others: names and values of further figures. The entries of the store's card follow them.
        """
        rows = [*_episode_figures(self._context), *others, *_shown_entries(self._card)]
        return self.table(("what", "value"), rows)

    @staticmethod
    def table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
        """Return the lines of a table with two columns."""
        return [_row(cells) for cells in (head, ("---", "---"), *rows)]

    def spaces(self) -> list[str]:
        """Return the lines about the spaces."""
        manifest = self._context.snapshot.manifest
        return [
            "## Spaces",
            "",
            f"- observation: `{manifest.observation_space}`",
            f"- action: `{manifest.action_space}`",
            "",
        ]


def _json(value: Any) -> str:
    """Return JSON on one line without characters that YAML refuses."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08X}" for each in text)


def _front(card: Mapping[str, Any], rows: int) -> dict[str, Any]:
    front: dict[str, Any] = {"pretty_name": card["title"]} if card.get("title") else {}
    if license := card.get("license"):
        known = str(license).lower().replace(" ", "-")
        front |= (
            {"license": known} if known in _LICENSES else {"license": "other", "license_name": str(license)}
        )
    return {
        **front,
        "task_categories": ["reinforcement-learning"],
        "tags": ["reinforcement-learning", "offline-rl", "gymnasium", "episodelake"],
        "size_categories": [
            next((name for limit, name in (*_SIZES, *_LARGER) if rows < limit), "10B<n<100B")
        ],
    }


def _shown_entries(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    entries = CardEntries(card).texts()
    for key in ("title", "description"):
        entries.pop(key, None)
    if "env_spec" in entries:
        entries["env_spec"] = _environment(entries["env_spec"])
    return list(entries.items())


def _episode_figures(context: ReadContext) -> list[tuple[str, str]]:
    frame = episodes_frame(context.snapshot, context.all_positions)
    value, length = pl.col("episode_return"), pl.col("length")
    wanted = [pl.len().alias("episodes"), length.sum().alias("transitions")]
    wanted += [length.mean().alias("mean length")]
    for name in ("terminated", "truncated"):
        wanted.append((pl.col("end_reason") == name).sum().alias(f"{name} episodes"))
    if not context.snapshot.schema.reward_shape:
        for name in ("mean", "std", "min", "max"):
            wanted.append(getattr(value, name)().alias(f"{name} return"))
    (row,) = collected(frame.select(wanted)).to_dicts()
    return [(key, _number_text(value)) for key, value in row.items() if value is not None]


def _number_text(value: float) -> str:
    """Return a number with separators of thousands."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _environment(spec: str) -> str:
    """Return the id of an environment, given that or the JSON of its spec."""
    try:
        environment = json.loads(spec)
    except ValueError:
        return spec
    return str(environment.get("id", spec)) if isinstance(environment, dict) else spec


def _row(cells: Sequence[str]) -> str:
    inner = " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {inner} |"
