"""The dataset card of a folder for Hugging Face: `README.md` with YAML front matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plugin import DatasetCard, Export, size_text


@dataclass(frozen=True)
class SplitSizes:
    """A split: its rows, and their bytes in memory and in files."""

    name: str
    rows: int
    memory: int
    files: int


def write_card(export: Export, path: Path, features: Mapping[str, Any], splits: Sequence[SplitSizes]) -> None:
    """Write `README.md`."""
    card = DatasetCard(export.context, export.card, sum(split.rows for split in splits))
    card.front |= _front(features, splits)
    path.write_text(card.text(_lines(export, card, features, splits)), encoding="utf-8")


def _front(features: Mapping[str, Any], splits: Sequence[SplitSizes]) -> dict[str, Any]:
    return {
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


def _lines(
    export: Export, card: DatasetCard, features: Mapping[str, Any], splits: Sequence[SplitSizes]
) -> list[str]:
    steps = export.options["layout"] == "steps"
    row = "step: T+1 of them for T transitions" if steps else "transition"
    sizes = [(f"rows of the split `{each.name}`", f"{each.rows:,}") for each in splits if len(splits) > 1]
    sizes += [("size of the files", size_text(sum(each.files for each in splits)))]
    return [
        f"Episodes of reinforcement learning, exported from a store of Episodelake. Each row is a {row}.",
        "",
        *card.figures(sizes),
        "",
        *card.spaces(),
        "## Columns",
        "",
        *card.table(
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


def _lost(export: Export) -> list[str]:
    lines = [f"- {line}" for line in export.losses.lines()]
    return ["", "## Not included", "", *lines] if lines else []


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
