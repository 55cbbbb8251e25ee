"""`README.md` of a published version: a dataset card with sizes and how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plugin import DatasetCard, ReadContext, size_text
from .contents import Contents


def readme(context: ReadContext, card: Mapping[str, Any], contents: Contents, address: str) -> str:
    """Return the text of the card.

    Args:
        context: the published episodes.
        card: of the store.
        contents: what is published.
        address: where it will be: `hf://` of a dataset with its tag, a URL, or a path to fill in.
    """
    configs = [
        {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/*.parquet"}]}
        for name in ("episodes", "steps", "runs")
    ]
    configs[0]["default"] = True
    about = DatasetCard(context, card, contents.steps)
    about.front["configs"] = configs
    return about.text(
        [
            f"Version `{contents.tag}` of episodes of reinforcement learning, published from a store of "
            "Episodelake: one row per episode in `episodes`, per step (T+1 for T transitions) in `steps`, "
            "per run in `runs`.",
            "",
            *about.figures([("size of the files", size_text(contents.size))]),
            "",
            *about.spaces(),
            *_loading(address, contents.tag),
        ]
    )


def _loading(address: str, tag: str) -> list[str]:
    hub = address.startswith("hf://")
    name = address.removeprefix("hf://").partition("@")[0]
    files = f"hf://datasets/{name}@{tag}" if hub else address
    dataset = f'"{name}", "episodes", revision="{tag}"' if hub else f'"{address}", "episodes"'
    opened = f'el.pull("{address}", "data")' if hub else f'el.open("{address}")'
    return [
        "## Loading",
        "",
        "```python",
        "import episodelake as el",
        "",
        f"store = {opened}  # whole episodes with their spaces, SQL, loaders",
        "```",
        "",
        "```python",
        "import datasets, duckdb, polars as pl",
        "",
        f'episodes = pl.read_parquet("{files}/episodes/*.parquet")',
        f"duckdb.sql(\"select avg(episode_return) from '{files}/episodes/*.parquet'\")",
        f'episodes = datasets.load_dataset({dataset})  # or "steps"',
        "```",
        "",
        "`checksums.json` lists the SHA-256 of every file; `el.pull` verifies them.",
    ]
