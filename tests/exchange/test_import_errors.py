"""Errors of the system during an import, and the reasons why sources are refused."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from gymnasium.spaces import Box
from typer.testing import CliRunner

import episodelake as el
from effort import some, with_folders
from episodelake.terminal.app import app
from episodelake.testing.adapters import case
from episodelake.writers.importing.boundary import located, reading
from episodelake.writers.importing.hdf5 import member, members
from episodelake.writers.importing.npy import NpzFile, is_zip

h5py = pytest.importorskip("h5py")

#: A file of which every read fails with EIO.
UNREADABLE = Path("/proc/self/mem")


def test_errors_are_passing_denied_or_damage() -> None:
    """An error of a library becomes one of ours that names the place."""
    cases: list[Any] = [
        (OSError(errno.EIO, os.strerror(errno.EIO)), el.errors.StoreUnavailableError),
        (OSError("Unable to read (file read failed) [Errno 5]"), el.errors.StoreUnavailableError),
        (pa.ArrowInvalid("Could not read: [errno 24] Too many open files"), el.errors.StoreUnavailableError),
        (
            duckdb.IOException('IO Error: Could not read from file "x": Input/output error'),
            el.errors.StoreUnavailableError,
        ),
        (
            RuntimeError("Unable to check link existence (file read failed: errno = 5, error message = 'x')"),
            el.errors.StoreUnavailableError,
        ),
        (OSError("Unable to open file (can't retrieve stat info for file)"), el.errors.StoreUnavailableError),
        (
            duckdb.IOException(f'IO Error: No files found that match the pattern "{__file__}"'),
            el.errors.StoreUnavailableError,
        ),
        (
            duckdb.IOException(f'IO Error: No files found that match the pattern "{__file__}.none"'),
            el.errors.DatasetError,
        ),
        (TimeoutError(), el.errors.StoreUnavailableError),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), el.errors.StoreAccessError),
        (OSError("Truncated file"), el.errors.DatasetError),
        (pa.ArrowInvalid("Parquet magic bytes not found in footer"), el.errors.DatasetError),
        (RecursionError("too deep"), el.errors.DatasetError),
        (MemoryError("Unable to allocate 1.00 TiB"), el.errors.DatasetError),
    ]
    for error, expected in cases:
        with case((error, expected)):
            with pytest.raises(expected, match=r"rows\.csv cannot be read") as raised, reading("rows.csv"):
                raise error
            assert type(raised.value) is expected


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_only_eperm_may_come_from_the_content_of_a_file(tmp_path: Path, number: int) -> None:
    """FFmpeg reports damaged frames with it, where the file can be read; it has no such use of EACCES."""
    (tmp_path / "video.mp4").touch()
    expected = el.errors.StoreAccessError if number == errno.EACCES else el.errors.DatasetError
    with pytest.raises(expected), reading(tmp_path / "video.mp4"):
        raise OSError(number, os.strerror(number))


def test_a_zip_file_that_cannot_be_read_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`zipfile` calls it no zip file, whatever the system says."""
    path = tmp_path / "rows.npz"
    np.savez(path, rows=np.zeros(3))
    assert is_zip(path) and not is_zip(Path(__file__))

    def failing(_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(zipfile, "_EndRecData", failing)
    with pytest.raises(el.errors.StoreUnavailableError, match=r"rows\.npz cannot be read"):
        is_zip(path)
    with pytest.raises(el.errors.StoreUnavailableError, match=r"rows\.npz cannot be read"):
        NpzFile(path)


def test_a_group_of_hdf5_hides_nothing_that_cannot_be_read(tmp_path: Path) -> None:
    """`get` of h5py returns None for it; an item that is not there, also behind a link, is None."""

    class Failing(dict[str, int]):
        def get(self, name: str, default: Any = None) -> Any:
            return None

        def __getitem__(self, name: str) -> int:
            raise KeyError("Unable to synchronously open object (file read failed: errno = 5)")

    with pytest.raises(el.errors.StoreUnavailableError), reading(tmp_path):
        members(Failing(rows=1))
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["rows"], file["dangling"] = [1, 2], h5py.SoftLink("/none")
        file.attrs["title"] = "x"
        assert member(file, "rows").shape == (2,)
        assert member(file, "none") is None and members(file)["dangling"] is None
        assert members(file.attrs) == {"title": "x"}


@pytest.mark.parametrize("below", ["", "store"])
def test_a_circle_of_links_is_an_error_of_access(tmp_path: Path, below: str) -> None:
    """With the path and a hint, wherever a path is given; within a source it counts for nothing."""
    box = Box(-1, 1, (2,), np.float32)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    path = tmp_path / "a" / below
    calls: list[Callable[[], object]] = [
        lambda: el.open(path),
        lambda: el.create(path, observation_space=box, action_space=box),
        lambda: el.recover(path),
        lambda: el.lake(path).stores(),
        lambda: el.import_dataset(rows(), path),
        lambda: el.import_dataset(path, tmp_path / "new"),
        lambda: el.import_dataset(str(path), tmp_path / "new"),
        lambda: store.copy(path),
    ]
    for call in calls:
        with pytest.raises(el.errors.StoreAccessError, match=f"{path}.*Links in it lead in a circle"):
            call()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "up").symlink_to("up")
    rows().write_csv(tmp_path / "source" / "rows.csv")
    assert el.import_dataset(tmp_path / "source", tmp_path / "new").episodes == 2


def test_a_pattern_leaves_out_no_folder_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`glob` does; the source would be smaller than it is. Links that lead upwards end."""
    for name, episode in (("first", "a"), ("second", "b")):
        (tmp_path / "logs" / name).mkdir(parents=True)
        rows(episode=[episode] * 4, terminated=[False, False, False, True]).write_csv(
            tmp_path / "logs" / name / "rows.csv"
        )
    (tmp_path / "logs" / "first" / "up").symlink_to("..")
    for pattern in ("logs/*/*.csv", "logs/**/*.csv"):
        report = el.import_dataset(str(tmp_path / pattern), tmp_path / "store", dry_run=True)
        assert report.mapping and report.preview is not None
        assert [path.parent.name for path in located(str(tmp_path / pattern)).paths] == ["first", "second"]
    listed = os.listdir

    def failing(path: Any) -> list[str]:
        if str(path).endswith("second"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", failing)
    with pytest.raises(el.errors.StoreAccessError, match=r"Could not list .*second"):
        el.import_dataset(str(tmp_path / "logs/*/*.csv"), tmp_path / "store")


@pytest.mark.skipif(not UNREADABLE.exists(), reason="there is no /proc")
def test_errors_of_the_disk_below_hdf5_are_passing() -> None:
    """HDF5 reads by itself, and quotes the number of the system's error."""
    with pytest.raises(el.errors.StoreUnavailableError, match="mem cannot be read"), reading(UNREADABLE):
        h5py.File(UNREADABLE)


def test_recognition_does_not_hide_why_a_source_is_refused(tmp_path: Path) -> None:
    """A limit that a file exceeds is the error itself, whole, not a remark of "no known format"."""
    with h5py.File(tmp_path / "big.hdf5", "w") as file:
        file.create_dataset("observations", (1 << 40,), "f8", chunks=(1 << 10,))
    np.savez(tmp_path / "big.npz", **{"episode": np.zeros(9_000_000), "observation": np.zeros(9_000_000)})
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(el.errors.DatasetError, match=r"observations claims .* pass max_bytes= ") as error:
        el.import_dataset(tmp_path / "big.hdf5", tmp_path / "store")
    assert "no known format" not in str(error.value)
    with pytest.raises(
        el.errors.DatasetError, match=r"takes 72,000,000 bytes .* max_bytes=72000000 .* or more"
    ):
        el.import_dataset(tmp_path / "big.npz", tmp_path / "store", max_bytes=1 << 20)
    with pytest.raises(
        el.errors.DatasetError, match=r"damaged\.parquet cannot be read as a table: ArrowInvalid"
    ):
        el.import_dataset(tmp_path / "damaged.parquet", tmp_path / "store")


def rows(**changes: Any) -> pl.DataFrame:
    """Two episodes of two transitions, `a` and `b`."""
    table: dict[str, Any] = {
        "episode": ["a", "a", "b", "b"],
        "observation": [1.0, 2.0, 3.0, 4.0],
        "action": [0, 1, 0, 1],
        "reward": [0.5, 0.25, 0.0, 1.0],
        "terminated": [False, True, False, True],
    }
    return pl.DataFrame(table | changes, strict=False)


def test_empty_sources_are_named(tmp_path: Path) -> None:
    """Not taken for the working folder, nor for a table that lacks columns."""
    cases: list[Any] = [
        (lambda folder: [], "The source is an empty list"),
        (lambda folder: {}, "The source is an empty dict"),
        (lambda folder: "", "The source is an empty text"),
        (lambda folder: folder / "zero.csv", "zero.csv is empty: it has 0 bytes"),
        (lambda folder: folder / "some", "some/b.csv is empty: it has 0 bytes"),
        (lambda folder: [folder / "some/a.csv", folder / "zero.csv"], "zero.csv is empty: it has 0 bytes"),
        (lambda folder: str(folder / "some/*.csv"), "some/b.csv is empty: it has 0 bytes"),
        (lambda folder: folder / "none", "none is an empty folder"),
    ]
    for here, (make, message) in with_folders(cases, tmp_path):
        with case((make, message)):
            (here / "some").mkdir()
            (here / "none").mkdir()
            rows().write_csv(here / "some" / "a.csv")
            for name in ("zero.csv", "some/b.csv"):
                (here / name).touch()
            with pytest.raises(el.errors.DatasetError, match=message):
                el.import_dataset(make(here), here / "store")
            assert not (here / "store").exists()


_INTEGERS_ARE_EXACT_OR_REFUSED: Any = [
    *itertools.product(["csv", "jsonl"], [2**53 + 1, -(2**53) - 1, 2**60 + 1, 10**40])
]


@pytest.mark.parametrize("cases", some(_INTEGERS_ARE_EXACT_OR_REFUSED))
def test_integers_are_exact_or_refused(tmp_path: Path, cases: Any) -> None:
    """DuckDB reads a column with fractions as doubles, which hold no other integers beyond 53 bits."""
    for folder, (suffix, integer) in with_folders(cases, tmp_path):
        with case((suffix, integer)):
            for exact, value in ((False, integer), (True, 2**53), (True, 2**60)):
                table = rows().to_dicts()
                for row, given in zip(table, [value, 1.5, 2, 3], strict=True):
                    row["id"] = given
                path = folder / f"{exact}-{value}.{suffix}"
                lines = [",".join(table[0])] if suffix == "csv" else []
                for row in table:
                    lines.append(",".join(map(str, row.values())) if suffix == "csv" else json.dumps(row))
                path.write_text("\n".join(lines))
                mapping = {name: name for name in rows().columns} | {"extra": ["id"]}
                options: Any = {"mapping": mapping, "last_observation": "missing"}
                if exact:
                    el.import_dataset(path, folder / path.stem, **options)
                    assert el.open(folder / path.stem).steps.collect()["id"][0] == value
                    continue
                with pytest.raises(
                    el.errors.DatasetError, match=f"{path.stem}.*`id` has the integer {integer}, which would"
                ):
                    el.import_dataset(path, folder / path.stem, **options)


def test_nested_integers_are_exact_or_refused(tmp_path: Path) -> None:
    """Those in lists and objects too; digits within texts are none."""
    mapping = {name: name for name in rows().columns} | {"extra": ["id"]}
    for number, values in enumerate(
        (
            [[1.5, 2**60 + 1], [1.0], [], []],
            [{"a": {"b": [0.5]}}, {"a": {"b": [2**53 + 1]}}, None, None],
            [{"a": 1e300, "text": '9007199254740993" 9007199254740993'}, {"a": 0.5, "text": ""}, None, None],
        )
    ):
        lines = [json.dumps(row | {"id": id}) for row, id in zip(rows().to_dicts(), values, strict=True)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
        expectation: Any = pytest.raises(el.errors.DatasetError, match="the column `id` has the integer")
        with expectation if number < 2 else contextlib.nullcontext():
            el.import_dataset(
                tmp_path / f"{number}.jsonl",
                tmp_path / str(number),
                mapping=mapping,
                last_observation="missing",
            )


def test_an_error_names_what_it_leaves_behind(tmp_path: Path) -> None:
    """The folder with the episodes before it, from which the import goes on."""
    el.import_dataset(rows(), tmp_path / "store", name="rows", last_observation="repeat")
    changed = pl.concat([rows(observation=[1.0, 2.0, 3.0, 9.0]), rows(episode=["c", "c", "d", "d"])])
    with pytest.raises(el.errors.DatasetError) as error:
        el.import_dataset(changed, tmp_path / "store", name="rows", last_observation="repeat")
    (left,) = tmp_path.glob(".store.importing-*")
    assert str(left) in error.value.__notes__[0]


def test_errors_name_the_source_and_the_episode_by_one_name(tmp_path: Path) -> None:
    """Alone or as one of the episodes that are left out."""
    rows(terminated=[0, 2, 0, 1]).write_csv(tmp_path / "flags.csv")
    with pytest.raises(el.errors.DatasetError, match="The flag `terminated` has the value 2") as error:
        el.import_dataset(tmp_path / "flags.csv", tmp_path / "store")
    assert any("flags.csv" in note for note in error.value.__notes__)
    odd = rows(observation=[1.0, 2.0, None, 4.0])
    options: Any = {"last_observation": "repeat"}
    with pytest.raises(el.errors.SpaceMismatchError, match="Episode b, row 0"):
        el.import_dataset(odd, tmp_path / "raised", **options)
    report = el.import_dataset(odd, tmp_path / "skipped", on_error="skip", **options)
    (skipped,) = report.skipped
    assert skipped[0] == "b" and skipped[1].startswith("Episode b, row 0")


def test_rows_of_a_list_are_cut_at_their_flags(tmp_path: Path) -> None:
    """Where no key names the episode; without flags nothing tells the episodes apart."""
    given = rows().drop("episode").to_dicts()
    report = el.import_dataset(given, tmp_path / "store", last_observation="repeat")
    assert (report.episodes, report.steps) == (2, 4)
    assert [len(episode) for episode in el.open(tmp_path / "store")] == [2, 2]
    unflagged = rows().drop("episode", "terminated").to_dicts()
    with pytest.raises(el.errors.DatasetError, match="it has no column for episode"):
        el.import_dataset(unflagged, tmp_path / "other")


def test_the_command_takes_files_and_refuses_unknown_words(tmp_path: Path) -> None:
    """Several files are one source; a word that an option does not know is an error of usage."""
    runner = CliRunner()
    for name in ("a", "b"):
        rows().drop("episode").head(2).write_csv(tmp_path / f"{name}.csv")
    files = [str(tmp_path / f"{name}.csv") for name in ("a", "b")]
    done = runner.invoke(app, ["import", *files, str(tmp_path / "store"), "--last-observation", "repeat"])
    assert done.exit_code == 0, done.output
    assert len(el.open(tmp_path / "store")) == 2
    for option in ("--on-changed", "--last-observation", "--cast"):
        refused = runner.invoke(app, ["import", files[0], str(tmp_path / "other"), option, "nope"])
        assert (refused.exit_code, "'nope' is not one of" in refused.output) == (2, True)


def test_an_unreadable_file_beside_a_table_hides_no_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format whose files may not be read is out of the question; another one may match."""
    rows = pl.DataFrame(
        {"episode": [1, 1], "observation": [0.0, 1.0], "action": [0, 1], "reward": [1.0, 1.0]}
    )
    (tmp_path / "data").mkdir()
    rows.write_parquet(tmp_path / "data" / "part.parquet")
    (tmp_path / "data" / "a_notes.json").write_text("{}")
    refused = Path.open

    def open_most(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "a_notes.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return refused(path, *args, **options)

    monkeypatch.setattr(Path, "open", open_most)
    assert el.import_dataset(tmp_path / "data", tmp_path / "store", last_observation="missing").steps == 2


def test_a_mapping_with_other_keys_is_named() -> None:
    """A mapping none of whose keys is known says which keys a table's mapping has."""
    mapping = {"obsrvation": "x", "acton": "y"}
    with pytest.raises(el.errors.InvalidArgumentError, match="unknown key 'obsrvation'") as caught:
        el.import_dataset({"x": [1.0], "y": [2.0]}, "memory://misspelt", mapping=mapping)
    assert "Keys: observation, action, episode" in str(caught.value)
