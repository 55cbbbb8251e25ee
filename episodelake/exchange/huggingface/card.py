"""The dataset card of a folder for Hugging Face: `README.md` with YAML front matter.

The front matter has a key in each line, and its values are JSON, which is YAML as well. Its keys are those of
https://github.com/huggingface/hub-docs/blob/main/datasetcard.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ...readers.amounts import size_text
from ...readers.context import ReadContext
from ...readers.exporting.target import Export
from ...readers.frames import episodes_frame
from ...store.card import known_entries
from ...store.manifest import Manifest

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


@dataclass(frozen=True)
class SplitSizes:
    """A split: its rows, and their bytes in memory and in files."""

    name: str
    rows: int
    memory: int
    files: int


def write_card(export: Export, path: Path, features: Mapping[str, Any], splits: Sequence[SplitSizes]) -> None:
    """Write `README.md`."""
    text = card_text(_front(export, features, splits), _text(export, features, splits))
    path.write_text(text, encoding="utf-8")


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


def _front(export: Export, features: Mapping[str, Any], splits: Sequence[SplitSizes]) -> dict[str, Any]:
    return {
        **common_front(export.card, sum(split.rows for split in splits)),
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": each.name, "path": f"data/{each.name}-*"} for each in splits],
            }
        ],
        "dataset_info": {
            "features": yaml_features(features),
            "splits": [
                {"name": each.name, "num_bytes": each.memory, "num_examples": each.rows} for each in splits
            ],
            "download_size": sum(each.files for each in splits),
            "dataset_size": sum(each.memory for each in splits),
        },
    }


def _text(export: Export, features: Mapping[str, Any], splits: Sequence[SplitSizes]) -> list[str]:
    card = export.card
    steps = export.options["layout"] == "steps"
    row = "step: T+1 of them for T transitions" if steps else "transition"
    space = export.context.snapshot.manifest
    return [
        f"# {card.get('title', 'Episodes')}",
        "",
        *([str(card["description"]), ""] if card.get("description") else []),
        f"Episodes of reinforcement learning, exported from a store of Episodelake. Each row is a {row}.",
        "",
        *markdown_table(("what", "value"), [*_figures(export, splits), *shown_entries(card)]),
        "",
        *spaces_text(space),
        "## Columns",
        "",
        *markdown_table(
            ("column", "type"), [(f"`{name}`", f"`{_kind(kind)}`") for name, kind in features.items()]
        ),
        "",
        "`episode` numbers the episodes, and `t` the steps of each. `terminated` and `truncated` are "
        "Gymnasium's: where the last transition has neither, the episode was cut.",
        "",
        "## Loading",
        "",
        "```python",
        "import datasets",
        "",
        'dataset = datasets.load_dataset("PATH OR NAME OF THE DATASET").with_format("numpy")',
        "```",
        "",
        "```python",
        "import episodelake as el",
        "",
        'el.import_dataset("PATH OF THE FOLDER", "store")  # whole episodes with their spaces',
        "```",
        *_lost(export),
    ]


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


def _lost(export: Export) -> list[str]:
    lines = [f"- {line}" for line in export.losses.lines()]
    return ["", "## Not included", "", *lines] if lines else []


def _figures(export: Export, splits: Sequence[SplitSizes]) -> list[tuple[str, str]]:
    figures = episode_figures(export.context)
    if len(splits) > 1:
        figures += [(f"rows of the split `{each.name}`", _number(each.rows)) for each in splits]
    return [*figures, ("size of the files", size_text(sum(each.files for each in splits)))]


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
    (row,) = frame.select(wanted).collect().to_dicts()
    return [(key, _number(value)) for key, value in row.items() if value is not None]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _environment(spec: str) -> str:
    """Return the id of an environment, given that or the JSON of its spec."""
    try:
        environment = json.loads(spec)
    except ValueError:
        return spec
    return str(environment.get("id", spec)) if isinstance(environment, dict) else spec


def _kind(feature: Mapping[str, Any]) -> str:
    match feature.get("_type"):
        case "Value":
            return str(feature["dtype"])
        case "List" | "LargeList":
            length = f"[{feature['length']}]" if "length" in feature else ""
            return f"list{length} of {_kind(feature['feature'])}"
        case None:
            return "struct"
        case kind:
            shape = f" {tuple(feature['shape'])} of {feature['dtype']}" if "shape" in feature else ""
            return f"{kind}{shape}"


def markdown_table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of a table with two columns."""
    return [_row(cells) for cells in (head, ("---", "---"), *rows)]


def _row(cells: Sequence[str]) -> str:
    inner = " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {inner} |"


def yaml_features(features: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return features as the front matter of a dataset card has them."""
    return [{"name": name, **_yaml_feature(feature)} for name, feature in features.items()]


def _yaml_feature(feature: Any) -> dict[str, Any]:
    match feature.get("_type"):
        case "Value":
            return {"dtype": feature["dtype"]}
        case "Image":
            return {"dtype": "image"}
        case "List" | "LargeList" as kind:
            inner = _yaml_feature(feature["feature"])
            described = inner.get("dtype", inner.get("struct", inner)) if len(inner) == 1 else inner
            length = {"length": feature["length"]} if "length" in feature else {}
            return {"list" if kind == "List" else "large_list": described, **length}
        case str(kind):
            name = kind.lower().replace("d", "_d")
            return {"dtype": {name: {"shape": feature["shape"], "dtype": feature["dtype"]}}}
    return {"struct": yaml_features(feature)}
