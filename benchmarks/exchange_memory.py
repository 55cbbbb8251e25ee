"""Memory of imports and exports of one and of ten gigabytes, each in a process of its own.

`python exchange_memory.py WORK FORMAT SMALL LARGE TARGET` imports or exports a small source first, so that
code and thread pools are loaded, and then LARGE. It prints JSON: bytes at the peak above what the process
had before. Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import episodelake as el
from measure import Row, Samples
from memory import memory_of
from setting import Setting

LENGTH, WIDTH = 200, 110
#: Bytes of a step of the sources: two observations, an action, a reward and the flags.
STEP_BYTES = 2 * WIDTH * 4 + 8 * 4 + 8 + 2
TARGET = 1.25
IMPORTS, EXPORTS = ("d4rl", "table"), ("d4rl", "parquet")


def run(setting: Setting) -> list[Row]:
    """Measure imports and exports of large data beside those of a tenth of it."""
    sizes = [setting.choose(10_000, 200), setting.choose(1_000, 100), 2]
    rows: list[Row] = []
    for name in IMPORTS:
        small = _source(setting, name, sizes[2])
        peaks = {}
        for size in sizes[:2]:
            large = _source(setting, name, size)
            peaks[size] = _peak(setting, "import", name, small, large, setting.fresh("store"))
            large.unlink()
        rows.append(_row("import", name, sizes, peaks))
    for name in EXPORTS:
        small, peaks = setting.folder / "store-small", {}
        for size in sizes[:2]:
            store = setting.fresh("store-large")
            for path, megabytes in ((small, sizes[2]), (store, size)):
                if not path.exists():
                    source = _source(setting, "d4rl", megabytes)
                    el.import_dataset(source, path)
                    source.unlink()
            peaks[size] = _peak(setting, "export", name, small, store, setting.folder / "target")
        rows.append(_row("export", name, sizes, peaks))
    return rows


def _row(work: str, name: str, sizes: list[int], peaks: dict[int, Samples]) -> Row:
    large, small = (f"{size / 1000:g} GB" for size in sizes[:2])
    return Row(
        f"{work} {name} of {large}: memory",
        "MB at the peak",
        peaks[sizes[0]],
        f"of {small}",
        peaks[sizes[1]],
        TARGET,
    )


def _peak(setting: Setting, work: str, name: str, small: Path, large: Path, target: Path) -> Samples:
    arguments = [work, name, str(small), str(large), str(target)]
    done = subprocess.run(
        [sys.executable, __file__, *arguments], cwd=setting.folder, stdout=subprocess.PIPE, check=True
    )
    return Samples((json.loads(done.stdout)["peak"] / 1e6,))


def _source(setting: Setting, name: str, megabytes: int) -> Path:
    """Write a source of so many megabytes and return its path."""
    episodes = max(1, megabytes * 1_000_000 // (STEP_BYTES * LENGTH))
    path = setting.folder / f"{name}-{megabytes}"
    _WRITERS[name](path, episodes)
    return path


def _chunks(episodes: int) -> Any:
    """Yield columns of a hundred episodes at a time: zeros with noise in a tenth of the rows."""
    generator = np.random.default_rng(0)
    for start in range(0, episodes, 100):
        count = min(100, episodes - start) * LENGTH
        observations = np.zeros((count, WIDTH), np.float32)
        observations[::10] = generator.standard_normal((len(observations[::10]), WIDTH))
        yield {
            "observations": observations,
            "next_observations": np.roll(observations, -1, axis=0),
            "actions": np.zeros((count, 8), np.float32),
            "rewards": np.ones(count),
            "terminals": np.zeros(count, bool),
            "timeouts": np.arange(count) % LENGTH == LENGTH - 1,
        }


def _write_hdf5(path: Path, episodes: int) -> None:
    with h5py.File(path, "w") as file:
        for columns in _chunks(episodes):
            for name, values in columns.items():
                if name not in file:
                    shape = values.shape[1:]
                    file.create_dataset(name, (0, *shape), values.dtype, maxshape=(None, *shape))
                file[name].resize(len(file[name]) + len(values), axis=0)
                file[name][-len(values) :] = values


def _write_table(path: Path, episodes: int) -> None:
    """Write a Parquet file without compression or dictionaries."""
    writer, done = None, 0
    for columns in _chunks(episodes):
        arrays = {
            name: pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
            if values.ndim > 1
            else pa.array(values)
            for name, values in columns.items()
        }
        numbers = done + np.arange(len(columns["rewards"])) // LENGTH
        table = pa.table({"episode": numbers, **arrays})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False)
        writer.write_table(table)
        done = int(numbers[-1]) + 1
    if writer is not None:
        writer.close()


_WRITERS: dict[str, Callable[[Path, int], None]] = {"d4rl": _write_hdf5, "table": _write_table}


def _exchange(work: str, name: str, source: str, target: str) -> None:
    if work == "import":
        el.import_dataset(source, target, format=name)
    else:
        el.open(source).export(target, format=name, overwrite=True)


def main() -> None:
    """Import or export both sources and print the memory of the second one."""
    work, name, small, large, target = sys.argv[1:]
    _exchange(work, name, small, f"{target}-warm-up")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is held now
    before = memory_of("VmRSS")
    _exchange(work, name, large, target)
    print(json.dumps({"peak": memory_of("VmHWM") - before}))


if __name__ == "__main__":
    main()
