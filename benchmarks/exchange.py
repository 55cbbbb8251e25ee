"""Import and export beside the bare work on the same files.

The bare side of an import reads everything in the source with the library of its files (h5py, pyarrow,
msgpack, PyAV) and writes the columns of our steps with `write_table`. That of an export reads the files of
our steps with pyarrow and writes everything in the target with that library; both sides of the bare work are
from memory, and making their arrays and tables is not timed. The sources are those that we export.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import episodelake as el
from bare_files import files_of
from bulk_writing import table_and_options
from foreign_files import (
    ARROW,
    CSV,
    HDF5,
    LEROBOT,
    MSGPACK,
    PARQUET,
    TAR,
    TFRECORD,
    Container,
)
from measure import Row, interleave, scaled
from setting import Setting, create, write_all
from trajectories import Trajectories, control, pictures

TARGET = 2.0
CONTROL, PICTURES = "17 floats", "84x84x3 frames"
BOTH = (CONTROL, PICTURES)
#: A million steps, beside which the fixed cost of an import is small.
MILLION = "17 floats, a million steps"


@dataclass(frozen=True)
class Form:
    """A form of a format.

    Attributes:
        format: as `import_dataset` and `export` take it.
        container: of its files.
        options: of the export.
        data: the data that it takes.
        suffix: of a file; "" for a folder.
        imported: whether the import is measured too.
    """

    format: str
    container: Container
    options: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = BOTH
    suffix: str = ""
    imported: bool = True

    @property
    def name(self) -> str:
        """Its name in the table."""
        return " ".join([self.format, *map(str, self.options.values())])


FORMS = (
    Form("minari", HDF5),
    Form("minari", ARROW, {"data_format": "arrow"}, (CONTROL,)),
    Form("d4rl", HDF5, data=(*BOTH, MILLION), suffix=".hdf5"),
    Form("d3rlpy", HDF5, suffix=".h5"),
    Form("robomimic", HDF5, suffix=".hdf5"),
    Form("lerobot", LEROBOT),
    Form("rlds", TFRECORD, data=(CONTROL,)),
    Form("rllib", PARQUET, {"kind": "rows"}, (CONTROL,)),
    Form("rllib", MSGPACK, {"kind": "episodes"}),
    Form("webdataset", TAR, imported=False),
    Form("huggingface", PARQUET, data=(CONTROL, MILLION)),
    Form("parquet", PARQUET, data=(*BOTH, MILLION), suffix=".parquet"),
    Form("csv", CSV, data=(CONTROL,), suffix=".csv"),
)


def run(setting: Setting) -> list[Row]:
    """Measure every form of every format."""
    made = {
        CONTROL: control(episodes=setting.choose(500, 20), length=200),
        MILLION: control(episodes=setting.choose(5000, 20), length=200),
        PICTURES: pictures(episodes=setting.choose(20, 4), length=100),
    }
    rows: list[Row] = []
    for name, data in made.items():
        path = setting.fresh(f"exchanged-{data.kind}-{len(data)}")
        write_all(create(path, data.kind), data)
        for form in FORMS:
            if name in form.data:
                rows += _measure(setting, form, name, data, path)
    return rows


def _measure(setting: Setting, form: Form, name: str, data: Trajectories, store: Path) -> list[Row]:
    source = setting.fresh(f"source{form.suffix}")
    export_to(form, store, source, data)
    content = form.container.read(source)
    target = setting.folder / f"exported{form.suffix}"
    sides = {
        "export": lambda: cost(lambda: export_to(form, store, target, data)),
        "bare export": lambda: cost(lambda: _bare_export(setting, form, store, content)),
    }
    if form.imported:
        table, options = table_and_options(import_from(setting, form, source, data))
        sides["import"] = lambda: cost(lambda: import_from(setting, form, source, data))
        sides["bare import"] = lambda: cost(lambda: _bare_import(setting, form, source, table, options))
    measured = interleave(sides, setting.repeats)
    rows: list[Row] = []
    for work, peer in (("import", "bare read, write_table"), ("export", "pyarrow read, bare write")):
        if work in measured:
            what = f"{work} {form.name}, {name}"
            rows += _rows(what, peer, measured[work], measured[f"bare {work}"], data.steps)
    return rows


def _rows(what: str, peer: str, ours: Sequence[Any], bare: Sequence[Any], steps: int) -> list[Row]:
    """Return a row of the time and one of the processor time."""
    rows = []
    for index, suffix in enumerate(("", ", processor time")):
        both = [scaled([cost[index] for cost in costs], 1e6 / steps) for costs in (ours, bare)]
        rows.append(Row(what + suffix, "us/step", both[0], peer, both[1], ratio_target=TARGET))
    return rows


def cost(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds and the processor seconds of all threads that a piece of work takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def import_from(setting: Setting, form: Form, source: Path, data: Trajectories) -> Path:
    """Import a source into a new store and return its path."""
    target = setting.fresh("imported")
    known = "table" if form.format in ("huggingface", "parquet", "csv") else form.format
    _check(el.import_dataset(source, target, format=known), data)
    return target


def export_to(form: Form, store: Path, target: Path, data: Trajectories) -> None:
    """Export a store to a path, in place of what is there."""
    _check(el.open(store).export(target, format=form.format, overwrite=True, **form.options), data)


def _check(report: Any, data: Trajectories) -> None:
    """Raise unless all steps are there, or all but the last of each episode."""
    if report.episodes != len(data) or report.steps not in (data.steps, data.steps - len(data)):
        raise AssertionError(f"{report} Expected {len(data)} episodes with {data.steps} steps.")


def _bare_import(setting: Setting, form: Form, source: Path, table: Any, options: dict[str, Any]) -> None:
    form.container.read(source)
    pq.write_table(table, setting.folder / "bare.parquet", **options)


def _bare_export(setting: Setting, form: Form, store: Path, content: Any) -> None:
    for file in files_of(store, "steps"):
        pq.read_table(file)
    target = setting.fresh("bare-exported")
    target.unlink(missing_ok=True)
    form.container.write(content, target)
