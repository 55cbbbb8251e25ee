"""Make the committed store of format 1, and beside it, as JSON, what a reader must find in it.

Run by hand, once per format: `python tests/make_committed_store.py`. The store `tests/data/format-1/store` is
what stores of this format look like for ever after, so it is made again only while the format has not been
published. `expected.json` is written from what was handed to the library, never from what it gives back.

The store has two runs: `first` wrote two segments and closed; `killed` died with one finished and one
unfinished episode in its journal, which a recovery must find.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import episodelake as el
from waiting import wait_for_journal

FOLDER = Path(__file__).parent / "data" / "format-1"
OBSERVATION = spaces.Dict(
    {
        "body": spaces.Tuple([spaces.Discrete(5, start=-2), spaces.MultiBinary(3)]),
        "frame": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "half": spaces.Box(-np.inf, np.inf, (2,), np.float16),
        "position": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
        "steps.left": spaces.Box(0, 4_000_000_000, (), np.uint32),
        "word": spaces.Text(8, charset="abcdefüß日"),
        "trail": spaces.Sequence(spaces.Box(-1, 1, (2,), np.float64)),
    }
)
ACTION = spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (3,), np.float64)])
LENGTHS = [3, 1, 6, 4]
CARD = {"description": "The committed store of format 1: größe, 日本", "scores": {"random": 0.25}}


def made_observation(number: int, t: int) -> dict[str, Any]:
    """Give observation t of an episode, by a rule."""
    bits = [(number + t) % 2, t % 2, 1]
    position = np.array([[number, t], [-t / 3, np.nan if t == 1 else np.inf]], np.float32)
    return {
        "body": ((number + t) % 5 - 2, np.array(bits, np.int8)),
        "frame": ((np.arange(60).reshape(4, 5, 3) * (number + 1) + t) % 256).astype(np.uint8),
        "half": np.array([t / 3, -0.0], np.float16),
        "position": position,
        "steps.left": np.array(4_000_000_000 - t, np.uint32),
        "word": ["", "abc", "üß日"][(number + t) % 3],
        "trail": tuple(np.array([index / 7, -t / 9]) for index in range((number + t) % 3)),
    }


def made_action(number: int, t: int) -> tuple[int, np.ndarray]:
    """Give action t of an episode, by a rule."""
    return (number + t) % 4, np.array([t / 7, -number / 9, 0.5])


def made_info(number: int, t: int) -> dict[str, Any]:
    """Give info t of an episode: keys come and go, and from episode 2 on one changes its type."""
    info: dict[str, Any] = {"speed": t / 3, "a.b": t}
    if t % 2:
        info |= {"name": "ü" * t, "nothing": None, "mask": np.array([t, 0, 1], np.int8)}
    if number >= 2:
        info |= {"speed": f"fast {t}"} if t == 2 else {"nested": {"deep": [t, "x"]}}
    return info


def write(writer: el.EpisodeWriter, number: int, steps: int) -> el.types.OpenEpisode:
    """Write the first steps of an episode; the last step of its whole length sets a flag."""
    metadata = {"level": number, "tags": ["a", "b"], "note": "größe" if number else None}
    episode = writer.begin(
        made_observation(number, 0),
        made_info(number, 0),
        seed=2**63 + number if number == 2 else number,
        options={"low": -0.5} if number == 1 else None,
        metadata=metadata,
        extra={"height": 0.0},
    )
    for t in range(steps):
        last = t == LENGTHS[number] - 1
        episode.append(
            made_action(number, t),
            number + t / 4,
            made_observation(number, t + 1),
            terminated=last and number == 0,
            truncated=last and number == 1,
            info=made_info(number, t + 1),
            policy={"log_prob": -t / 5, "logits": np.array([t, 1.5], np.float32)},
            extra={"height": (t + 1) / 6},
        )
    return episode


def plain(value: Any) -> Any:
    """Turn a value into JSON that keeps dtype, shape and exact numbers; floats are written in hexadecimal."""
    match value:
        case np.ndarray():
            return {
                "dtype": str(value.dtype),
                "shape": list(value.shape),
                "values": plain(value.ravel().tolist()),
            }
        case float():
            return {"float": value.hex()}
        case dict():
            return {"dict": {key: plain(one) for key, one in value.items()}}
        case list() | tuple():
            return [plain(one) for one in value]
    return value


def stacked(items: list[Any]) -> Any:
    """Stack values of the two spaces as an episode gives them: arrays of leaves, lists of ragged ones."""
    match items[0]:
        case dict():
            return {key: stacked([item[key] for item in items]) for key in items[0]}
        case str():
            return items
        case tuple() if all(isinstance(part, np.ndarray) for item in items for part in item):
            return [list(item) for item in items]
        case tuple():
            return [stacked([item[index] for item in items]) for index in range(len(items[0]))]
    return np.stack([np.asarray(item) for item in items])


def expected_episode(number: int, steps: int, end_reason: str) -> dict[str, Any]:
    """Say what must come back of an episode, from the rules alone."""
    rewards = [number + t / 4 for t in range(steps)]
    return {
        "number": number,
        "seed": 2**63 + number if number == 2 else number,
        "options": {"low": -0.5} if number == 1 else None,
        "end_reason": end_reason,
        "episode_return": sum(rewards),
        "metadata": plain({"level": number, "tags": ["a", "b"], "note": "größe" if number else None}),
        "observations": plain(stacked([made_observation(number, t) for t in range(steps + 1)])),
        "actions": plain(stacked([made_action(number, t) for t in range(steps)])),
        "rewards": plain(np.array(rewards)),
        "infos": plain([made_info(number, t) for t in range(steps + 1)]),
        "height": plain(np.array([0.0, *((t + 1) / 6 for t in range(steps))])),
        "log_prob": plain(np.array([-t / 5 for t in range(steps)])),
        "logits": plain(np.array([[t, 1.5] for t in range(steps)], np.float32)),
    }


def make_store(path: Path) -> None:
    """Write the run that closed, then die in the middle of the second one."""
    store = el.create(path, observation_space=OBSERVATION, action_space=ACTION, card=CARD)
    with store.writer(run="first", metadata={"algorithm": "rule"}) as writer:
        write(writer, 0, LENGTHS[0]).end()
        write(writer, 1, LENGTHS[1]).end({"score": 1.5})
        writer.seal()
        write(writer, 2, LENGTHS[2]).end()
    killed = store.writer(run="killed", durability="fsync", flush_seconds=0.01, seal_seconds=1e6)
    write(killed, 0, LENGTHS[0]).end()
    write(killed, 3, 2)
    wait_for_journal(path / "journal" / killed.run_id, LENGTHS[0] + 2, ended=1)
    os._exit(0)


def main() -> None:
    """Make the store in a process of its own, since one of its writers must die, and write what it holds."""
    if len(sys.argv) == 2:
        make_store(Path(sys.argv[1]))
    # A fixed folder, since Delta writes the folder's first path into its log.
    folder = Path(tempfile.gettempdir()) / "episodelake-format-1"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, __file__, str(folder / "store")], check=True)
    sealed = [(0, "terminated"), (1, "truncated"), (2, "cut")]
    content = {
        "card": CARD,
        "first": [expected_episode(number, LENGTHS[number], reason) for number, reason in sealed],
        "killed": [expected_episode(0, LENGTHS[0], "terminated"), expected_episode(3, 2, "interrupted")],
    }
    content["first"][1]["metadata"]["dict"]["score"] = plain(1.5)
    write_expected(folder, content, FOLDER)


def write_expected(folder: Path, content: dict[str, Any], place: Path) -> None:
    """Write what a store holds beside it, and move both to where they are committed."""
    (folder / "expected.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", "utf-8")
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, place)


if __name__ == "__main__":
    main()
