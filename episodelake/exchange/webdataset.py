"""WebDataset: tar files `shard-000000.tar`, a sample for each episode or for each transition.

The members of a sample have its key and then what they hold, such as `00000007.observation.arm.npy`; see
https://github.com/webdataset/webdataset. Arrays are `.npy`, and single frames `.png`; texts are `.json` where
there is one for each step, else `.txt`. The member `.json` has everything else, like JSON columns of a store:
arrays, tuples and numbers that JSON lacks are tagged.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .. import Episode
from ..plugin import (
    Export,
    Holds,
    Option,
    dump_json,
    export_format,
    space_to_json,
)
from ..plugin.columns import EXTRA, INFO, POLICY, escape
from ..readers.exporting.images import image_bytes
from ..readers.exporting.shards import ShardWriter, is_image, write_json
from ..readers.exporting.step_arrays import StepColumns, by_key, check_space, leaves, text_keys

_OF_STEPS = ("length", "has_last_observation")


def _holds(options: Mapping[str, Any]) -> Holds:
    """Return everything; transitions have two observations."""
    whole = options["layout"] == "episodes"
    return Holds.all_but(ends={}, last_observation="kept" if whole else "needed")


@export_format(
    "webdataset",
    folder=True,
    holds=_holds,
    layout=Option.choice(
        "a sample for each of episodes, the default, or of transitions", "episodes", "transitions"
    ),
    images=Option.choice(
        "png, the default, or raw, for frames of transitions; png needs 'episodelake[explore]'", "png", "raw"
    ),
    shard_bytes=Option.count(
        "the size of a file, which only a single larger sample exceeds; 256 MiB by default", 256 << 20
    ),
    shard_episodes=Option.count("how many episodes a file has at most; no limit by default"),
)
def write_webdataset(export: Export, target: Path) -> None:
    """Write the folder of tar files."""
    layout, images = export.options["layout"], export.options["images"]
    limit, episodes = export.options["shard_bytes"], export.options["shard_episodes"]
    manifest = export.context.snapshot.manifest
    check_space(manifest.observation_space, "observation", "WebDataset")
    check_space(manifest.action_space, "action", "WebDataset")
    target.mkdir(parents=True)
    columns = StepColumns(export)
    with tar_shards(target, limit) as shards:
        for number, episode in enumerate(export.episodes()):
            if episodes is not None and number and not number % episodes:
                shards.close()
            if layout == "episodes":
                append_sample(shards, f"{number:08d}", _episode(episode, columns, export))
            else:
                for key, members in _transitions(episode, export, images == "png"):
                    append_sample(shards, f"{number:08d}-{key:08d}", members)
    ours = {
        "layout": layout,
        "observation_space": space_to_json(manifest.observation_space),
        "action_space": space_to_json(manifest.action_space),
        "card": export.card,
        "samples": shards.counts,
    }
    write_json(target / "episodelake.json", ours)


def _episode(episode: Episode, columns: StepColumns, export: Export) -> Iterator[tuple[str, bytes]]:
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
    yield "json", dump_json(_facts(episode, export) | ({"steps": others} if others else {})).encode()


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


def _facts(episode: Episode, export: Export) -> dict[str, Any]:
    return {
        "length": episode.length,
        "end_reason": episode.end_reason,
        "has_last_observation": episode.has_last_observation,
        "seed": episode.seed,
        "options": episode.options,
        "metadata": export.metadata(episode),
    }


def _names(paths: list[tuple[str, ...]]) -> list[str]:
    """Return names of members, also different for readers that ignore case."""
    taken: set[str] = set()
    members = []
    for first, *rest in paths:
        name = ".".join(escape(key).replace("/", "%2F") for key in (first, *rest))
        if name.lower() in taken:
            name = ".".join([first, *("".join(f"%{byte:02X}" for byte in key.encode()) for key in rest)])
        taken.add(name.lower())
        members.append(name)
    return members


def _transitions(
    episode: Episode, export: Export, pictures: bool
) -> Iterator[tuple[int, list[tuple[str, bytes]]]]:
    """Yield the number of each transition with its members."""
    count = export.transitions_of(episode)
    if not count:
        return
    arrays = {("observation", *path): values for path, values in leaves(episode.observations)}
    arrays |= {("action", *path): values for path, values in leaves(episode.actions)}
    arrays["reward",] = episode.rewards
    columns = [
        (name, *_rows(values, pictures))
        for name, values in zip(_names(list(arrays)), arrays.values(), strict=True)
    ]
    seen = [column for column, (side, *_) in zip(columns, arrays, strict=True) if side == "observation"]
    columns += [(f"next_{name}", suffix, rows[1:]) for name, suffix, rows in seen]
    infos, policy, extra = (episode._dynamic(group) for group in (INFO, POLICY, EXTRA))
    for group, rows in ((POLICY, policy), (EXTRA, extra)):
        for column in rows[-1] if episode.has_last_observation else ():
            export.losses.add(f"{group.column((column,))} at the last observation")
    for row in policy:
        # As `Episode.policy` has them.
        row.update((key, _positional(row[key])) for key in ("state", "raw_action") if key in row)
    texts = [[dump_json(row) for row in rows] for rows in (infos, policy, extra)]
    facts = dump_json({key: value for key, value in _facts(episode, export).items() if key not in _OF_STEPS})
    ends = zip(episode.terminations.tolist(), episode.truncations.tolist(), strict=True)
    flags = [[str(flag).lower() for flag in both] for both in ends]
    for t in range(count):
        facts_of_step = (
            f'{{"t":{t},"terminated":{flags[t][0]},"truncated":{flags[t][1]},"info":{texts[0][t]},'
            f'"next_info":{texts[0][t + 1]},"policy":{texts[1][t]},"extra":{texts[2][t]},{facts[1:]}'
        )
        members = [(f"{name}.{suffix}", contents[t]) for name, suffix, contents in columns]
        yield t, [*members, ("json", facts_of_step.encode())]


def _positional(value: Any) -> Any:
    """Return dicts with the keys "0", "1", ... as tuples, at every depth."""
    if isinstance(value, list):
        return [_positional(item) for item in value]
    if not isinstance(value, dict):
        return value
    parts = {key: _positional(part) for key, part in value.items()}
    places = [str(place) for place in range(len(parts))]
    return tuple(parts[place] for place in places) if parts and set(parts) == set(places) else parts


def _rows(values: Any, pictures: bool) -> tuple[str, list[bytes]]:
    """Return the suffix of a column's members, and the content of each."""
    if isinstance(values, list):
        return "txt", [text.encode() for text in values]
    if pictures and is_image(values.dtype, values.shape[1:]):
        return "png", image_bytes(values)
    head, data, size = npy_head(values.dtype, values.shape[1:]), values.tobytes(), values[:1].nbytes
    return "npy", [head + data[t * size : (t + 1) * size] for t in range(len(values))]


_BLOCK = tarfile.BLOCKSIZE
#: What a header's fields for the name, size and checksum can hold.
_NAME, _SIZE = 100, 8**11 - 1


class TarFile(io.BufferedWriter):
    """A tar file that is written as it is."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))

    def close(self) -> None:
        """End the archive with two empty blocks."""
        try:
            if not self.closed:
                self.write(bytes(2 * _BLOCK))
        finally:  # also where the disk is full
            super().close()


def tar_shards(target: Path, limit: int) -> ShardWriter:
    """Return files `shard-000000.tar` with samples: members of one key, which stay together.

    Args:
        target: the folder.
        limit: the size of a file, which only a single larger sample exceeds.
    """
    return ShardWriter(lambda number: target / f"shard-{number:06d}.tar", TarFile, limit - 2 * _BLOCK)


def append_sample(shards: ShardWriter, key: str, members: Iterable[tuple[str, bytes]]) -> None:
    """Append a sample.

    Args:
        shards: as `tar_shards` gives them.
        key: without a dot, in ASCII.
        members: what follows the dot after the key, and the content.
    """
    encoded = key.encode()
    total = sum(encoded)
    parts: list[bytes] = []
    for name, content in members:
        size = len(content)
        head = _member_header(len(encoded), name, size)
        if head is None:
            parts.append(_long_header(f"{key}.{name}", size))
        else:
            parts += (encoded, head[0], b"%06o" % (total + head[2]), head[1])
        parts += (content, bytes(-size % _BLOCK))
    shards.file_for(sum(map(len, parts))).writelines(parts)


@lru_cache(1 << 12)
def _member_header(key: int, name: str, size: int) -> tuple[bytes, bytes, int] | None:
    """Return the header of a member after its key, up to the checksum and from there; and a checksum.

    That lacks the bytes of the key. None if the old fields cannot hold the name or the size.

    Args:
        key: its length.
    """
    if key + 1 + len(name) > _NAME or size > _SIZE or not name.isascii():
        return None
    info = tarfile.TarInfo("\1" * key + "." + name)
    info.size = size
    header = info.tobuf(tarfile.USTAR_FORMAT)
    return header[key:148], header[154:], int(header[148:154], 8) - key


def _long_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


@lru_cache
def npy_head(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of a `.npy` file for an array in C order."""
    target = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        target, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return target.getvalue()
