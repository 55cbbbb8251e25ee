"""Changing a table's log as one who knows the format would: with the sum that fits the change."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from episodelake.store.delta.log import commit_text


def read_actions(commit: Path) -> list[dict[str, Any]]:
    """The actions of a commit."""
    return [json.loads(line) for line in commit.read_text().splitlines()]


def write_actions(commit: Path, actions: Sequence[dict[str, Any]]) -> None:
    """Put actions in the place of those of a commit, and sum it up."""
    commit.write_bytes(commit_of(commit, actions))


def append_actions(table: Path, actions: Sequence[dict[str, Any]]) -> None:
    """Commit actions to a table."""
    log = table / "_delta_log"
    version = 1 + max(int(path.stem) for path in log.glob("*.json"))
    write_actions(log / f"{version:020d}.json", actions)


def add_action(file: Path, statistics: dict[str, Any]) -> dict[str, Any]:
    """The action that lists a file in its table."""
    moment = int(time.time() * 1000)
    add = {"path": file.name, "size": file.stat().st_size, "partitionValues": {}, "modificationTime": moment}
    return {"add": {**add, "dataChange": True, "stats": json.dumps(statistics)}}


def commit_of(commit: Path, actions: Sequence[dict[str, Any]]) -> bytes:
    """A commit with these actions; one without information gets some."""
    information = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    rest = [action for action in actions if "commitInfo" not in action]
    return commit_text(commit.parent.parent.name, int(commit.stem), rest, information)
