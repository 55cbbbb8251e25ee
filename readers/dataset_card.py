"""Dataset cards of exports and published versions: `README.md` with YAML front matter.

The front matter has a key in each line, and its values are JSON, which is YAML as well. Its keys are those of
https://github.com/huggingface/hub-docs/blob/main/datasetcard.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ..store.card import known_entries
from ..store.manifest import Manifest
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


def card_text(front: Mapping[str, Any], lines: Sequence[str]) -> str:
    """Return a dataset card of a front matter and the lines of its text."""
    return "\n".join(
        ["---", *(f"{key}: {_json(value)}" for key, value in front.items()), "---", "", *lines, ""]
    )


def _json(value: Any) -> str:
    """Return JSON on one line without characters that YAML refuses."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08X}" for each in text)


def common_front(card: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return what the front matter of each card of ours has.

    Args:
        card: of the store.
        rows: how many the dataset has.
    """
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


def shown_entries(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the entries of a store's card for the table of figures."""
    entries = {
        key: value for key, value in known_entries(card).items() if key not in ("title", "description")
    }
    if "env_spec" in entries:
        entries["env_spec"] = _environment(entries["env_spec"])
    return list(entries.items())


def spaces_text(manifest: Manifest) -> list[str]:
    """Return the lines about the spaces."""
    return [
        "## Spaces",
        "",
        f"- observation: `{manifest.observation_space}`",
        f"- action: `{manifest.action_space}`",
        "",
    ]


def episode_figures(context: ReadContext) -> list[tuple[str, str]]:
    """Return how many episodes there are, how they ended and what they returned."""
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
    return [(key, number_text(value)) for key, value in row.items() if value is not None]


def number_text(value: float) -> str:
    """Return a number with separators of thousands."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _environment(spec: str) -> str:
    """Return the id of an environment, given that or the JSON of its spec."""
    try:
        environment = json.loads(spec)
    except ValueError:
        return spec
    return str(environment.get("id", spec)) if isinstance(environment, dict) else spec


def markdown_table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of a table with two columns."""
    return [_row(cells) for cells in (head, ("---", "---"), *rows)]


def _row(cells: Sequence[str]) -> str:
    inner = " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {inner} |"
