"""Bring a lab's folder of datasets into one lake, whatever their formats.

python examples/lab_to_lake.py lab lake          # after an interrupt or a failure, call it again: it goes on
python examples/lab_to_lake.py lab lake --again  # adds new and corrected episodes of what is there, too

Copy this file and change `facts_of` and `OPTIONS`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import episodelake as el

#: Each match is a dataset, a file or a folder; it becomes the store of this path in the lake.
LAYOUT = "*/*/*"
#: What the import of some datasets needs, by a pattern of their paths.
OPTIONS: dict[str, dict[str, Any]] = {
    # Replay buffers of Stable-Baselines3 are pickles: reading one runs its code.
    "*.pkl": {"trust": True},
    # The lab's own logger.
    "*.csv": {
        "mapping": {
            "observation": ["x", "v"],
            "action": "force",
            "reward": "gain",
            "episode": "rollout",
            "step": "tick",
            "terminated": "fell",
            "truncated": "timeout",
        }
    },
}


def facts_of(path: PurePath) -> tuple[str, dict[str, Any]]:
    """Return the id of a dataset's environment, and the metadata of its run, from its path in the lab."""
    environment, algorithm, name = path.parts
    return environment, {"algo": algorithm, "dataset": name}


def migrate(
    lab: Path, lake: el.types.Lake, *, again: bool = False
) -> Iterator[tuple[str, el.types.ImportReport | el.EpisodelakeError | None]]:
    """Import all datasets of a lab, and yield each with its report, or with the error; None if it was there.

    A store appears when all episodes of its dataset are in it.

    Args:
        lab: the folder.
        lake: where the stores are made.
        again: read datasets whose stores are there, too; that adds new episodes and replaces changed ones.
    """
    for source in sorted(lab.glob(LAYOUT)):
        path = source.relative_to(lab)
        name = path.as_posix()
        if any(part.startswith(".") for part in path.parts):
            continue
        if name in lake and not again:
            yield name, None
            continue
        environment, metadata = facts_of(path)
        options = {key: value for each in OPTIONS if path.match(each) for key, value in OPTIONS[each].items()}
        try:
            yield (
                name,
                el.import_dataset(
                    source,
                    f"{lake.url}/{name}",
                    env=environment,
                    metadata=metadata,
                    on_changed="replace",
                    **options,
                ),
            )
        except el.EpisodelakeError as error:
            yield name, error


def main(arguments: list[str] | None = None) -> int:
    """Migrate, and return how many datasets failed."""
    parser = argparse.ArgumentParser(description="Bring a folder of datasets into one lake.")
    parser.add_argument("lab", type=Path)
    parser.add_argument("lake")
    parser.add_argument("--again", action="store_true", help="also compare datasets that are in the lake")
    given = parser.parse_args(arguments)
    failed = {}
    for name, outcome in migrate(given.lab, el.lake(given.lake), again=given.again):
        if outcome is None:
            print(f"{name}: there already")
        elif isinstance(outcome, el.EpisodelakeError):
            failed[name] = outcome
            print(f"{name}: failed")
        else:
            print(f"{name}: {outcome.format}, {outcome.episodes} episodes added, {outcome.present} present")
            for what, count in outcome.lost.items():
                print(f"    lost: {what}: {count:,}")
    for name, error in failed.items():
        print(f"{name}: {error}", *getattr(error, "__notes__", ()), file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
