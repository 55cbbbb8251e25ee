"""The bare files of other libraries: their contents read into memory and written again without Episodelake.

A `Container` is a kind of file. `read` returns everything in the files at a path, decoded, and `write` writes
it to another path with the compression of those files.
"""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import h5py
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from episodelake.exchange.rlds.tfrecord import masked_crc
from episodelake.readers.pictures.writing import _encoding as video_encoding


@dataclass(frozen=True)
class Container:
    """A kind of file."""

    read: Callable[[Path], Any]
    write: Callable[[Any, Path], None]


def _read_hdf5(path: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[()]

    for place in _files(path, ".hdf5", ".h5"):
        with h5py.File(place) as file:
            file.visititems(take)
    return arrays


def _write_hdf5(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values


def _read_parquet(path: Path) -> list[tuple[pa.Table, str]]:
    """Return the tables with their compression."""
    found = []
    for place in _files(path, ".parquet"):
        file = pq.ParquetFile(place)
        found.append((file.read(), file.metadata.row_group(0).column(0).compression.lower()))
    return found


def _write_parquet(tables: list[tuple[pa.Table, str]], path: Path) -> None:
    path.mkdir()
    for number, (table, compression) in enumerate(tables):
        pq.write_table(table, path / f"{number}.parquet", compression=compression)


def _read_arrow(path: Path) -> list[pa.Table]:
    return [pa.ipc.open_file(place).read_all() for place in _files(path, ".arrow")]


def _write_arrow(tables: list[pa.Table], path: Path) -> None:
    path.mkdir()
    for number, table in enumerate(tables):
        with pa.ipc.new_file(path / f"{number}.arrow", table.schema) as writer:
            writer.write_table(table)


def _read_csv(path: Path) -> pa.Table:
    return pyarrow.csv.read_csv(path)


def _write_csv(table: pa.Table, path: Path) -> None:
    pyarrow.csv.write_csv(table, path)


def _read_msgpack(path: Path) -> list[Any]:
    """Read a column of packed items; arrays stay bytes, which is how msgpack gives them."""
    tables = [pq.read_table(place) for place in _files(path, ".parquet")]
    return [
        msgpack.unpackb(item, strict_map_key=False)
        for table in tables
        for item in table.column(0).to_pylist()
    ]


def _write_msgpack(items: list[Any], path: Path) -> None:
    packed = pa.array([msgpack.packb(item) for item in items], pa.binary())
    pq.write_table(pa.table({"item": packed}), path)


def _read_lerobot(path: Path) -> tuple[list[tuple[pa.Table, str]], list[np.ndarray]]:
    videos = []
    for place in _files(path, ".mp4"):
        with av.open(str(place)) as video:
            video.streams.video[0].thread_type = "AUTO"
            videos.append(np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]))
    return _read_parquet(path), videos


def _write_lerobot(content: tuple[list[tuple[pa.Table, str]], list[np.ndarray]], path: Path) -> None:
    _write_parquet(content[0], path)
    # The settings of our files, so that both sides encode alike.
    codec, pixels, options = video_encoding(av, lossless=False)
    for number, frames in enumerate(content[1]):
        with av.open(str(path / f"{number}.mp4"), "w") as video:
            stream = video.add_stream(codec, rate=30, options={**options, "g": "2"})
            stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pixels
            for each in frames:
                video.mux(stream.encode(av.VideoFrame.from_ndarray(each, format="rgb24")))
            video.mux(stream.encode(None))


def _read_tfrecord(path: Path) -> list[bytes]:
    """Return the records, compared with their checksums but not parsed: less than any reader does."""
    records = []
    for place in path.rglob("*.tfrecord-*"):
        data, start = place.read_bytes(), 0
        while start < len(data):
            (length,) = struct.unpack_from("<Q", data, start)
            stop = start + 12 + length
            records.append(data[start + 12 : stop])
            if struct.unpack_from("<I", data, stop)[0] != masked_crc(records[-1]):
                raise AssertionError(f"the record at byte {start} of {place} is damaged")
            start = stop + 4
    return records


def _write_tfrecord(records: list[bytes], path: Path) -> None:
    with path.open("wb") as file:
        for record in records:
            file.write(record)


def _read_tar(path: Path) -> dict[str, np.ndarray | bytes]:
    """Return the members of all shards by name: arrays, and other files as bytes."""
    found: dict[str, np.ndarray | bytes] = {}
    for place in _files(path, ".tar"):
        with tarfile.open(place) as shard:
            for member in shard:
                file = shard.extractfile(member)
                assert file is not None
                content = file.read()
                is_array = member.name.endswith(".npy")
                found[member.name] = np.load(io.BytesIO(content)) if is_array else content
    return found


def _write_tar(members: Mapping[str, np.ndarray | bytes], path: Path) -> None:
    with tarfile.open(path, "w") as shard:
        for name, content in members.items():
            file = io.BytesIO(content) if isinstance(content, bytes) else io.BytesIO()
            if isinstance(content, np.ndarray):
                np.save(file, content)
            member = tarfile.TarInfo(name)
            member.size = file.seek(0, io.SEEK_END)
            file.seek(0)
            shard.addfile(member, file)


def _files(path: Path, *endings: str) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(place for place in path.rglob("*") if place.name.endswith(endings))


HDF5 = Container(_read_hdf5, _write_hdf5)
PARQUET = Container(_read_parquet, _write_parquet)
ARROW = Container(_read_arrow, _write_arrow)
CSV = Container(_read_csv, _write_csv)
MSGPACK = Container(_read_msgpack, _write_msgpack)
LEROBOT = Container(_read_lerobot, _write_lerobot)
TFRECORD = Container(_read_tfrecord, _write_tfrecord)
TAR = Container(_read_tar, _write_tar)
