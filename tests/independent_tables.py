"""`store.json`, the logs of the tables and their Parquet files, read by docs/format.md alone.

The lowest part of `independent_reader.py`. Nothing is taken without its checksum.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


class Refused(Exception):
    """Something that the page says a reader must refuse."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file, compared with its checksum if it has one."""
    text = path.read_bytes()
    found = re.fullmatch(rb'(.*"crc32": )"([0-9a-f]{8})"\n}', text, re.DOTALL)
    if found is not None and int(found[2], 16) != zlib.crc32(found[1]):
        raise Refused(f"{path.name} does not match its checksum")
    return json.loads(text)


def read_card(store: Path) -> dict[str, Any]:
    """The card without its checksum."""
    return {key: value for key, value in read_json(store / "card.json").items() if key != "crc32"}


def tagged_version(store: Path, tag: str) -> int:
    """The version of `episodes` that a tag names."""
    content = read_json(store / "tags" / f"{tag}.json")
    if content.get("tag", tag) != tag:
        raise Refused(f"the tag {tag} is the file of {content['tag']}")
    return content["version"]


def read_manifest(store: Path) -> dict[str, Any]:
    """`store.json`, checked."""
    manifest = read_json(store / "store.json")
    if manifest["format"] > 1:
        raise Refused(f"format {manifest['format']}")
    return manifest


@dataclass
class Table:
    """One version of a table: its files and their actions, its columns, its properties, its transactions."""

    path: Path
    version: int = -1
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    fields: list[dict[str, Any]] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)

    def apply(self, action: Mapping[str, Any]) -> None:
        """Take one action of the log."""
        if action.get("protocol") and action["protocol"]["minReaderVersion"] > 1:
            raise Refused("a newer reader is needed")
        if action.get("metaData"):
            self.fields = json.loads(action["metaData"]["schemaString"])["fields"]
            self.properties = dict(action["metaData"]["configuration"])
        if action.get("add"):
            self.files[action["add"]["path"]] = action["add"]
        if action.get("remove"):
            self.files.pop(action["remove"]["path"], None)
        if action.get("txn"):
            self.applied[action["txn"]["appId"]] = action["txn"]["version"]

    def ordered(self) -> list[dict[str, Any]]:
        """Its files in the order that positions count in."""
        return sorted(self.files.values(), key=lambda add: (add["modificationTime"], add["path"]))

    def kinds(self) -> dict[str, str]:
        """The dynamic columns and their kinds."""
        found = {column["name"]: column["metadata"].get("kind") for column in self.fields}
        return {name: kind for name, kind in found.items() if kind is not None}

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of one of its files; columns that the file lacks are None."""
        tags = self.files.get(name, {}).get("tags")
        columns = read_parquet(self.path / name, dict(tags or ()).get("episodelake.footer"))
        nothing = [None] * len(next(iter(columns.values()), []))
        cells = {column["name"]: columns.get(column["name"], nothing) for column in self.fields}
        return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]


def read_table(store: Path, name: str, version: int | None = None) -> Table:
    """Play the log of a table, from its last checkpoint or its first commit, up to a version."""
    table = Table(store / name)
    log = table.path / "_delta_log"
    commits = sorted(int(path.stem) for path in log.glob("*.json") if re.fullmatch(r"\d{20}", path.stem))
    table.version = commits[-1] if version is None else version
    summed_up = [int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")]
    start = max((found for found in summed_up if found <= table.version), default=-1)
    fits = []
    if start >= 0:
        checkpoint = f"{start:020d}.checkpoint.parquet"
        data = (log / checkpoint).read_bytes()
        fits.append(_checkpoint_fits(f"{name}/{checkpoint}", data))
        for action in pq.read_table(io.BytesIO(data)).to_pylist():
            table.apply(action)
    for number in range(start + 1, table.version + 1):
        commit = f"{number:020d}.json"
        if number not in commits:
            raise Refused(f"the commit {number} of {name} is not there, nor a checkpoint behind it")
        data = (log / commit).read_bytes()
        fits.append(_commit_fits(f"{name}/{commit}", data))
        try:
            for line in data.decode().split("\n"):
                table.apply(json.loads(line))
        except ValueError as error:
            raise Refused(f"{commit} is damaged: {error}") from error
    if table.properties.get("episodelake.sums") == "1" and not all(fits):
        raise Refused(f"a file of the log of {name} does not fit its sum")
    return table


def _commit_fits(name: str, data: bytes) -> bool:
    found = re.fullmatch(rb'(.*"episodelake\.crc32": ")([0-9a-f]{8})"\}\}', data, re.DOTALL)
    return found is not None and int(found[2], 16) == zlib.crc32(found[1], zlib.crc32(name.encode()))


def _checkpoint_fits(name: str, data: bytes) -> bool:
    mark, found = struct.unpack("<4sI", data[-16:-8])
    return mark == b"ELC1" and found == zlib.crc32(data[:-16], zlib.crc32(name.encode()))


def read_parquet(path: Path, listed: str | None = None) -> dict[str, list[Any]]:
    """The columns of a Parquet file as lists of Python values, its footer checked; its sum may be listed."""
    data = path.read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    if footer[-8:-4] == b"ELF1" and struct.unpack("<I", footer[-4:])[0] != zlib.crc32(footer[:-8]):
        raise Refused(f"the footer of {path.name} does not fit its sum")
    if listed not in (None, f"{zlib.crc32(footer[:-8]):08x}"):
        raise Refused(f"the footer of {path.name} is not the one that is listed")
    table = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()
    return {name: table.column(name).to_pylist() for name in table.column_names}
