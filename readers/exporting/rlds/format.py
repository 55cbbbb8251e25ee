"""RLDS datasets: the folder of a TFDS dataset with TFRecord files, written without TensorFlow.

T transitions are T+1 steps: the last one (`is_last`) has the last observation, and zeros for action and
reward (https://github.com/google-research/rlds#dataset-format). `is_terminal` there means terminated; any
other end is a last step without it. An episode that lacks its last observation ends with a transition.
Numbers that an `Example` would round are stored as bytes (`encoding="bytes"`), so each reads as recorded.

Our import also reads spaces and the card from `episodelake.json`, and the seed, options and metadata of an
episode from the text `episode_metadata/episodelake`. TFDS takes no notice of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ....store import names
from ....store.dynamic.column_groups import EXTRA, INFO, POLICY
from ....store.dynamic.values import dump_json
from ....store.errors import InvalidArgumentError
from ....store.optional_packages import EXPLORE
from ....store.spaces import space_to_json
from ....store.tfrecord import write_example
from ...episode import Episode
from ..step_arrays import StepColumns, check_space, leaves, shard_bytes, text_keys
from ..target import Export
from .files import Features, Shards, write_features, write_json

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_FLAGS = ("is_first", "is_last", "is_terminal")
_SCALARS = {bool: np.bool_, int: np.int64, float: np.float64}


class _Format:
    name = "rlds"
    extra = EXPLORE
    folder = True
    agents = False
    options: ClassVar[dict[str, str]] = {
        "images": "png, which is lossless, the default; or raw, which needs no Pillow",
        "name": "of the dataset; by default that of the folder, or NAME for a folder NAME/1.0.0",
        "version": "that of the folder by default, or 1.0.0",
        "shard_bytes": "the size of a file, which only a single larger episode exceeds; 256 MiB by default",
    }

    def write(self, export: Export, target: Path) -> None:
        """Write the folder of a version of the dataset."""
        images = export.options.get("images", "png")
        if images not in ("png", "raw"):
            raise InvalidArgumentError(f"images={images!r} is unknown; expected 'png' or 'raw'.")
        name, version = _named(export)
        manifest = export.context.snapshot.manifest
        check_space(manifest.observation_space, "observation", "RLDS")
        check_space(manifest.action_space, "action", "RLDS")
        columns = StepColumns(export)
        steps, episodes = Features(images == "png"), Features(False)
        target.mkdir(parents=True)
        with Shards(target, f"{name}-train.tfrecord", shard_bytes(export)) as shards:
            for episode in export.episodes():
                shards.append(_record(episode, columns, export, steps, episodes), episode)
        for what, count in steps.lost().items():
            column = what.replace("/", ".")
            own = "" if column.startswith((INFO.prefix, POLICY.prefix)) else "the column "
            export.losses.add(
                f"{own}{column}, which is not a number, image or text of one form at every step", count
            )
        write_features(target / "features.json", steps, episodes)
        card = export.card
        told = {key: card[key] for key in ("description", "citation") if isinstance(card.get(key), str)}
        info = {"name": name, "version": version, "fileFormat": "tfrecord", "moduleName": "episodelake"}
        write_json(target / "dataset_info.json", {**info, **told, "splits": [shards.split()]})
        ours = {
            "observation_space": space_to_json(manifest.observation_space),
            "action_space": space_to_json(manifest.action_space),
            "reward_shape": list(manifest.reward_shape),
            "card": card,
        }
        write_json(target / "episodelake.json", ours)


def _named(export: Export) -> tuple[str, str]:
    """Return the name and version of the dataset."""
    folder = export.target or Path("episodes")
    versioned = _VERSION.fullmatch(folder.name)
    version = export.options.get("version", folder.name if versioned else "1.0.0")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise InvalidArgumentError(f"version={version!r}: expected three numbers, such as '1.0.0'.")
    name = export.options.get("name")
    if name is None:
        name = re.sub(r"\W", "_", (folder.parent if versioned else folder).name, flags=re.ASCII)
        name = name if name[:1].isalpha() else f"dataset_{name}"
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise InvalidArgumentError(f"name={name!r}: expected a letter, then letters, digits and underscores.")
    return name, version


def _record(
    episode: Episode, columns: StepColumns, export: Export, steps: Features, episodes: Features
) -> bytes:
    """Return the record of an episode."""
    reason = episode.end_reason
    _lose_ending(episode, reason, export)
    found = dict(_steps(episode, terminated=reason == "terminated"))
    taken = {name.partition("/")[0] for name in found} | {"info", "policy"}
    for group, path, values in columns.of(episode):
        if group is EXTRA and path[0] in taken:
            export.losses.add(f"the column {path[0]}, whose name RLDS has for something else")
            continue
        if group is POLICY and values is not None and len(values) > episode.length:
            export.losses.add(f"{POLICY.column(path)} at the last observation")
            values = values[: episode.length]
        root = (group.prefix[:-1],) if group.prefix else ()
        found[_name(*root, *text_keys(path))] = _padded(values, episode._observation_count)
    content = {f"steps/{name}": values for name, values in steps.take(found).items()}
    facts = episodes.take(dict(_facts(episode)))
    return write_example(content | {f"episode_metadata/{name}": values for name, values in facts.items()})


def _lose_ending(episode: Episode, reason: str, export: Export) -> None:
    if reason not in ("terminated", "truncated"):
        export.losses.add(f"that an episode was {reason}, not truncated")
    elif reason == "terminated" and episode.truncated:
        export.losses.add("that an episode that terminated was truncated as well")
    if not episode.has_last_observation:
        export.losses.add("that an episode lacks its last observation: it ends with a transition")


def _steps(episode: Episode, *, terminated: bool) -> Iterator[tuple[str, Any]]:
    """Yield the features that every RLDS dataset has."""
    rows = episode._observation_count
    for side, stacked in (("observation", episode.observations), ("action", episode.actions)):
        for path, values in leaves(stacked):
            yield _name(side, *path), _padded(values, rows)
    yield "reward", _padded(episode.rewards, rows)
    discount = np.ones(episode.length, np.float32)
    discount[-1] = not terminated
    yield "discount", _padded(discount, rows)
    place = np.arange(rows)
    for name, values in zip(_FLAGS, (place == 0, place == rows - 1, place == rows - 1), strict=True):
        yield name, values & (name != "is_terminal" or terminated)


def _padded(values: Any, rows: int) -> Any:
    """Return T values, and zero or an empty text at a last observation."""
    if values is None or len(values) == rows:
        return values
    if isinstance(values, list):
        return [*values, ""]
    return np.concatenate([values, np.zeros((1, *values.shape[1:]), values.dtype)])


def _facts(episode: Episode) -> Iterator[tuple[str, Any]]:
    """Yield the features of an episode, each with a single value."""
    seed = episode.seed
    told = {"seed": seed, "options": episode.options, "metadata": episode.metadata}
    if episode._observation_count == episode.length:
        told["last_observation"] = "missing"
    yield "episodelake", [dump_json(told)]
    found: list[tuple[tuple[Any, ...], Any]] = [(("seed",), seed)]
    found += [each for each in leaves_of(episode.metadata) if each[0] not in (("seed",), ("episodelake",))]
    for path, value in found:
        if isinstance(value, str):
            yield _name(*path), [value]
        elif type(value) in _SCALARS and (not isinstance(value, int) or abs(value) < 1 << 63):
            yield _name(*path), np.array([value], _SCALARS[type(value)])


def leaves_of(values: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in nested mappings whose keys are texts, with their paths."""
    for key, value in values.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            yield from leaves_of(value, (*path, key))
        elif isinstance(key, str):
            yield (*path, key), value


def _name(*path: str) -> str:
    """Return the name of a feature."""
    return "/".join(names.escape(key).replace("/", "%2F") for key in path)


FORMAT = _Format()
