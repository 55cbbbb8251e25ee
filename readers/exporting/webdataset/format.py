"""WebDataset: tar files `shard-000000.tar`, a sample for each episode or for each transition.

The members of a sample have its key and then what they hold, such as `00000007.observation.arm.npy`; see
https://github.com/webdataset/webdataset. Arrays are `.npy`, and single frames `.png`; texts are `.json` where
there is one for each step, else `.txt`. The member `.json` has everything else, like JSON columns of a store:
arrays, tuples and numbers that JSON lacks are tagged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ....store import names
from ....store.dynamic.column_groups import EXTRA, INFO, POLICY, merge_rows
from ....store.dynamic.values import dump_json
from ....store.errors import InvalidArgumentError
from ....store.reserved import POSITIONAL
from ....store.spaces import space_to_json
from ...episode import Episode
from ...episode_data import positional
from ...pictures.writing import image_bytes
from ..rlds.files import write_json
from ..step_arrays import (
    StepColumns,
    by_key,
    check_space,
    is_picture,
    leaves,
    shard_bytes,
    text_keys,
)
from ..target import LOST_EPISODE, Export
from .tar_files import TarShards, npy_head

_LAYOUTS = ("episodes", "transitions")
_OF_STEPS = ("length", "has_last_observation")


class _Format:
    name = "webdataset"
    extra = None
    folder = True
    agents = False
    options: ClassVar[dict[str, str]] = {
        "layout": "a sample for each of episodes, the default, or of transitions",
        "images": "png, the default, or raw, for frames of transitions; png needs 'episodelake[explore]'",
        "shard_bytes": "the size of a file, which only a single larger sample exceeds; 256 MiB by default",
        "shard_episodes": "how many episodes a file has at most; no limit by default",
    }

    def write(self, export: Export, target: Path) -> None:
        """Write the folder of tar files."""
        layout, images = export.options.get("layout", _LAYOUTS[0]), export.options.get("images", "png")
        if layout not in _LAYOUTS:
            raise InvalidArgumentError(f"layout={layout!r} is unknown; expected 'episodes' or 'transitions'.")
        if images not in ("png", "raw"):
            raise InvalidArgumentError(f"images={images!r} is unknown; expected 'png' or 'raw'.")
        limit = shard_bytes(export)
        episodes = export.options.get("shard_episodes")
        if episodes is not None and (type(episodes) is not int or episodes < 1):
            raise InvalidArgumentError(f"shard_episodes={episodes!r}: expected a whole number above 0.")
        manifest = export.context.snapshot.manifest
        check_space(manifest.observation_space, "observation", "WebDataset")
        check_space(manifest.action_space, "action", "WebDataset")
        target.mkdir(parents=True)
        columns = StepColumns(export)
        with TarShards(target, limit) as shards:
            for number, episode in enumerate(export.episodes()):
                if episodes is not None and number and not number % episodes:
                    shards.close()
                if layout == "episodes":
                    shards.append(f"{number:08d}", _episode(episode, columns))
                else:
                    for key, members in _transitions(episode, export, images == "png"):
                        shards.append(f"{number:08d}-{key:08d}", members)
        ours = {
            "layout": layout,
            "observation_space": space_to_json(manifest.observation_space),
            "action_space": space_to_json(manifest.action_space),
            "card": export.card,
            "samples": shards.samples,
        }
        write_json(target / "episodelake.json", ours)


def _episode(episode: Episode, columns: StepColumns) -> Iterator[tuple[str, bytes]]:
    """Yield the members of an episode: T+1 rows of observations and infos, T of everything else."""
    arrays: dict[tuple[str, ...], Any] = {}
    for side, stacked in (("observation", episode.observations), ("action", episode.actions)):
        arrays.update(((side, *path), values) for path, values in leaves(stacked))
    arrays |= {("reward",): episode.rewards}
    arrays |= {("terminated",): episode.terminations, ("truncated",): episode.truncations}
    others: dict[str, Any] = {}
    for group, path, values in columns.of(episode):
        if values is None:
            others[group.column(text_keys(path))] = _at(by_key(episode, group), path)
        else:
            root = (group.prefix[:-1],) if group.prefix else ()
            arrays[*root, *path] = values
    for name, values in zip(_names(list(arrays)), arrays.values(), strict=True):
        if isinstance(values, list):
            yield f"{name}.json", dump_json(values).encode()
        else:
            yield f"{name}.npy", npy_head(values.dtype, values.shape) + values.tobytes()
    yield "json", dump_json(_facts(episode) | ({"steps": others} if others else {})).encode()


def _at(values: Any, path: tuple[str, ...]) -> Any:
    """Return a column of nested ones: a list for each step, also where only some steps have its mapping."""
    for key in path:
        if isinstance(values, Mapping):
            values = values.get(key)
        elif isinstance(values, tuple):
            values = values[int(key)]
        else:
            values = [each.get(key) if isinstance(each, Mapping) else None for each in values]
    return values


def _facts(episode: Episode) -> dict[str, Any]:
    return {
        "length": episode.length,
        "end_reason": episode.end_reason,
        "has_last_observation": episode.has_last_observation,
        "seed": episode.seed,
        "options": episode.options,
        "metadata": episode.metadata,
    }


def _names(paths: list[tuple[str, ...]]) -> list[str]:
    """Return names of members, also different for readers that ignore case."""
    taken: set[str] = set()
    found = []
    for first, *rest in paths:
        name = ".".join(names.escape(key).replace("/", "%2F") for key in (first, *rest))
        if name.lower() in taken:
            name = ".".join([first, *("".join(f"%{byte:02X}" for byte in key.encode()) for key in rest)])
        taken.add(name.lower())
        found.append(name)
    return found


def _transitions(
    episode: Episode, export: Export, pictures: bool
) -> Iterator[tuple[int, list[tuple[str, bytes]]]]:
    """Yield the number of each transition with its members."""
    if episode._observation_count < 2:
        export.losses.add(LOST_EPISODE)
        return
    count = export.transitions_of(episode)
    arrays = {("observation", *path): values for path, values in leaves(episode.observations)}
    arrays |= {("action", *path): values for path, values in leaves(episode.actions)}
    arrays["reward",] = episode.rewards
    columns = [
        (name, *_rows(values, pictures))
        for name, values in zip(_names(list(arrays)), arrays.values(), strict=True)
    ]
    seen = [column for column, (side, *_) in zip(columns, arrays, strict=True) if side == "observation"]
    columns += [(f"next_{name}", suffix, rows[1:]) for name, suffix, rows in seen]
    infos, policy, extra = (merge_rows(group, episode._dynamic(group)) for group in (INFO, POLICY, EXTRA))
    for column in policy[-1]:
        export.losses.add(f"{POLICY.column((column,))} at the last observation")
    for row in policy:
        row.update((key, positional(row[key])) for key in POSITIONAL if key in row)
    texts = [[dump_json(row) for row in rows] for rows in (infos, policy, extra)]
    facts = dump_json({key: value for key, value in _facts(episode).items() if key not in _OF_STEPS})
    ends = zip(episode.terminations.tolist(), episode.truncations.tolist(), strict=True)
    flags = [[str(flag).lower() for flag in both] for both in ends]
    for t in range(count):
        told = (
            f'{{"t":{t},"terminated":{flags[t][0]},"truncated":{flags[t][1]},"info":{texts[0][t]},'
            f'"next_info":{texts[0][t + 1]},"policy":{texts[1][t]},"extra":{texts[2][t]},{facts[1:]}'
        )
        members = [(f"{name}.{suffix}", contents[t]) for name, suffix, contents in columns]
        yield t, [*members, ("json", told.encode())]


def _rows(values: Any, pictures: bool) -> tuple[str, list[bytes]]:
    """Return the suffix of a column's members, and the content of each."""
    if isinstance(values, list):
        return "txt", [text.encode() for text in values]
    if pictures and is_picture(values):
        return "png", image_bytes(values)
    head, data, size = npy_head(values.dtype, values.shape[1:]), values.tobytes(), values[:1].nbytes
    return "npy", [head + data[t * size : (t + 1) * size] for t in range(len(values))]


FORMAT = _Format()
