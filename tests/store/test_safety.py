"""Hostile stores: whatever stands in a store's files, reading it runs no code and stays inside the store.

Each case takes a small store with every kind of column and puts something into it that no writer would. A
child process with bounded memory and time reads everything, through episodes, Polars, DuckDB and recovery.
Each way must give the right data or an error of the tree. Beside the store lies a folder with valid files for
which the hostile names ask; the kernel reports any attempt to open them, by whatever library.

`connect(read_only=True)` is tested here too: what it must refuse, and what it must not.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pickle
import resource
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import episodelake as el
from episodelake.store.journal import records as journal_records
from episodelake.terminal.app import app
from episodelake.testing.adapters import case as named
from log_edits import read_actions, write_actions
from test_fuzzing import Workers, examine, make_store, workers

__all__ = ["workers"]

MOST_RESIDENT = 1 << 30
READERS = ["episodes", "filters", "polars", "duckdb", "confined", "recover"]
#: Where only some ways of reading come near a kind of case.
NEAR = {
    "store.json": ["episodes", "recover"],
    "options": ["episodes"],
    "info": ["episodes"],
    "journal": ["recover"],
}
WATCHED = 0x20 | 0x1 | 0x2 | 0x100 | 0x200  # IN_OPEN, IN_ACCESS, IN_MODIFY, IN_CREATE, IN_DELETE
FORBIDDEN = (
    "pickle.find_class",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.",
)

Case = Callable[[Path, Path], None]
CASES: dict[str, Case] = {}
HARMLESS: set[str] = set()


def case(name: str, *, harmless: bool = False) -> Callable[[Case], Case]:
    """Add a case; a harmless one may also be read as if nothing were there."""

    def add(change: Case) -> Case:
        assert name not in CASES
        CASES[name] = change
        if harmless:
            HARMLESS.add(name)
        return change

    return add


# Files of a store, rewritten as one who knows the format would


def edit_log(path: Path, table: str, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change every action of a table's log in place; an action for which `edit` gives False goes."""
    for file in sorted((path / table / "_delta_log").glob("*.json")):
        write_actions(file, [action for action in read_actions(file) if edit(action) is not False])


def edit_adds(path: Path, table: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the body of every add action of a table."""

    def change(action: dict[str, Any]) -> None:
        if "add" in action:
            edit(action["add"])

    edit_log(path, table, change)


def edit_fields(path: Path, table: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change every field of every schema in a table's log."""

    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for field in schema["fields"]:
                edit(field)
            action["metaData"]["schemaString"] = json.dumps(schema)

    edit_log(path, table, change)


def rewrite(path: Path, table: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    """Rewrite every Parquet file of a table, and its size in the log."""
    for file in sorted((path / table).glob("*.parquet")):
        changed = change(pq.ParquetFile(file).read())
        file.unlink()
        pq.write_table(changed, file, store_schema=False, **options)

    def relist(add: dict[str, Any]) -> None:
        file = path / table / add["path"]
        if file.exists():
            add["size"] = file.stat().st_size

    edit_adds(path, table, relist)


def with_column(name: str, cells: Callable[[pa.Table], Any]) -> Callable[[pa.Table], pa.Table]:
    """A change that puts other cells into a column, with the type that they have or that it had."""

    def change(table: pa.Table) -> pa.Table:
        if name not in table.column_names:
            return table
        found = cells(table)
        if not isinstance(found, pa.Array | pa.ChunkedArray):
            found = pa.array(found, table.schema.field(name).type)
        return table.set_column(table.column_names.index(name), name, found)

    return change


def every(value: Any) -> Callable[[pa.Table], list[Any]]:
    """The same cell on every row."""
    return lambda table: [value] * table.num_rows


# store.json


def add_manifest_case(name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Add a case that writes what `change` makes of the content: JSON, or the text itself."""

    def write(path: Path, outside: Path) -> None:
        content = json.loads((path / "store.json").read_text())
        found = change(content)
        (path / "store.json").write_text(found if isinstance(found, str) else json.dumps(found))

    case(f"store.json: {name}")(write)


def with_observation(description: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A change that sets the description of the observation space; a function makes a large one late."""

    def change(content: dict[str, Any]) -> dict[str, Any]:
        observation = description() if callable(description) else description
        return content | {"spaces": content["spaces"] | {"observation": observation}}

    return change


def box(**changes: Any) -> dict[str, Any]:
    """The description of a Box, with changes."""
    return {"type": "Box", "dtype": "float32", "shape": [3], "low": 0, "high": 1} | changes


def text(**changes: Any) -> dict[str, Any]:
    """The description of a Text, with changes."""
    return {"type": "Text", "min_length": 0, "max_length": 12, "charset": "abc"} | changes


DISCRETE = {"type": "Discrete", "n": 3, "start": 0, "dtype": "int64"}


def nested(levels: int) -> str:
    """The text of Tuples in Tuples."""
    return '{"type": "Tuple", "spaces": [' * levels + json.dumps(DISCRETE) + "]}" * levels


def sequences(levels: int) -> Any:
    """Stacked Sequences of Sequences."""
    found: Any = box(shape=[1000])
    for _ in range(levels):
        found = {"type": "Sequence", "space": found, "stack": True}
    return found


SPACES: dict[str, Any] = {
    "a Box of 10^18 elements": box(shape=[10**18]),
    "a Box of 10^18 elements in two dimensions": box(shape=[10**9, 10**9]),
    "a Box of a shape that overflows": box(shape=[2**32, 2**32]),
    "a Box of no elements and 10^18 columns": box(shape=[0, 10**18]),
    "a Box of 4 GB": box(shape=[2**30]),
    "a Box of a huge size": box(shape=[10**4000]),
    "a Box of a negative shape": box(shape=[-3]),
    "a Box of 65 dimensions": box(shape=[1] * 65),
    "a Box of a text for a shape": box(shape="3"),
    "a Box of objects": box(dtype="object"),
    "a Box of a dtype that is an expression": box(dtype="__import__('os').abort()"),
    "a Box of records": box(dtype="i4,O"),
    "a Box of a huge dtype": box(dtype="V2000000000"),
    "a Box of huge bounds": box(low=-(10**400), high=10**400),
    "a Discrete of 10^30": DISCRETE | {"n": 10**30},
    "a Discrete of minus one": DISCRETE | {"n": -1},
    "a Discrete from a huge start": DISCRETE | {"start": 2**63 - 1},
    "a MultiBinary of 10^18": {"type": "MultiBinary", "n": 10**18},
    "a MultiBinary of 10^18 in two dimensions": {"type": "MultiBinary", "n": [10**9, 10**9]},
    "a MultiDiscrete of huge numbers": {
        "type": "MultiDiscrete",
        "dtype": "int64",
        "shape": [2],
        "nvec": 10**30,
        "start": 0,
    },
    "a Text of 10^30 characters": text(max_length=10**30),
    "a Text of a negative length": text(min_length=-1),
    "a Text of two million kinds of characters": lambda: text(charset=[65] * 2_000_000),
    "a Text of characters that there are not": text(charset=[2**40]),
    "a thousand million stacked sequences": sequences(60),
    "a Dict of a million keys": lambda: {
        "type": "Dict",
        "spaces": [[str(key), DISCRETE] for key in range(1_000_000)],
    },
    "a Tuple of a million spaces": lambda: {"type": "Tuple", "spaces": [DISCRETE] * 1_000_000},
    "a Dict of one key twice": {"type": "Dict", "spaces": [["a", DISCRETE], ["a", DISCRETE]]},
    "a class to import": {"type": "custom", "name": "subprocess.Popen", "spec": {"args": "id"}},
    "a class to import by its type": {"type": "subprocess.Popen", "args": "id"},
}
for title, description in SPACES.items():
    add_manifest_case(title, with_observation(description))
for levels in (65, 900, 100_000, 1_000_000):
    add_manifest_case(
        f"{levels} nested Tuples",
        lambda content, levels=levels: json.dumps(with_observation("HERE")(content)).replace(
            '"HERE"', nested(levels)
        ),
    )
add_manifest_case("a huge reward shape", lambda content: content | {"reward_shape": [10**12]})
add_manifest_case("a key twice", lambda content: json.dumps(content)[:-1] + ', "format": 1}')
add_manifest_case("200 MB of blanks", lambda content: " " * 200_000_000 + json.dumps(content))
add_manifest_case("a text of 200 MB", lambda content: content | {"created_at": "x" * 200_000_000})


@case("store.json: a link to another store's")
def _link_manifest(path: Path, outside: Path) -> None:
    shutil.copy(path / "store.json", outside / "store.json")
    (path / "store.json").unlink()
    (path / "store.json").symlink_to(outside / "store.json")


# Names of files: in the episodes table, in the logs, and as links

NAMES = {
    "parent": "../outside/{name}",
    "grandparent": "sub/../../outside/{name}",
    "absolute": "{outside}/{name}",
    "file URL": "file://{outside}/{name}",
    "escaped dots": "%2e%2e/outside/{name}",
    "escaped slash": "..%2Foutside%2F{name}",
    "escaped twice": "%252e%252e/outside/{name}",
    "backslashes": "..\\outside\\{name}",
    "star": "*",
    "star of Parquet": "*.parquet",
    "brackets": "[a-z]*.parquet",
    "two stars": "**",
    "question marks": "?{rest}",
    "web": "http://127.0.0.1:9/{name}",
    "object store": "s3://bucket/{name}",
    "scheme": "http:",
    "drive": "C:{name}",
    "dot": ".",
    "dots": "..",
    "empty": "",
    "NUL": "{name}\0",
    "newline": "{name}\n",
    "quote": "' || '{name}",
    "very long": "x" * 100_000,
    "other table": "../episodes/{name}",
    "log": "_delta_log/00000000000000000000.json",
}


def put_outside(path: Path, outside: Path, table: str) -> None:
    """Copy the files of a table to where the hostile names lead."""
    for file in (path / table).glob("*.parquet"):
        shutil.copy(file, outside / file.name)


def add_name_cases(kind: str, form: str) -> None:
    """Add the cases of one kind of name."""

    def hostile(name: str, outside: Path) -> str:
        return form.format(name=name, outside=outside, rest=name[1:])

    @case(f"segment: {kind}")
    def _segment(path: Path, outside: Path) -> None:
        put_outside(path, outside, "steps")
        names = with_column(
            "segment", lambda table: [hostile(n, outside) for n in table["segment"].to_pylist()]
        )
        rewrite(path, "episodes", names)

    for table in ("episodes", "steps", "runs"):

        @case(f"{table} log: {kind}", harmless=table != "episodes")
        def _add(path: Path, outside: Path, table: str = table) -> None:
            put_outside(path, outside, table)

            def change(add: dict[str, Any]) -> None:
                add["path"] = hostile(add["path"], outside)

            edit_adds(path, table, change)


for kind, form in NAMES.items():
    add_name_cases(kind, form)

for linked in ("episodes", "steps", "runs"):

    @case(f"{linked}: files that are links", harmless=linked == "runs")
    def _link_files(path: Path, outside: Path, table: str = linked) -> None:
        put_outside(path, outside, table)
        for file in (path / table).glob("*.parquet"):
            file.unlink()
            file.symlink_to(outside / file.name)

    @case(f"{linked}: a folder that is a link")
    def _link_folder(path: Path, outside: Path, table: str = linked) -> None:
        shutil.move(path / table, outside / table)
        (path / table).symlink_to(outside / table)

    @case(f"{linked}: a log that is a link")
    def _link_log(path: Path, outside: Path, table: str = linked) -> None:
        shutil.move(path / table / "_delta_log", outside / "log")
        (path / table / "_delta_log").symlink_to(outside / "log")


# The logs


def add_log_case(
    name: str, table: str, edit: Callable[[dict[str, Any]], Any], *, harmless: bool = False
) -> None:
    """Add a case that edits every action of a log."""
    case(f"{table} log: {name}", harmless=harmless)(lambda path, outside: edit_log(path, table, edit))


def in_add(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """An edit that changes keys of add actions."""
    return lambda action: action["add"].update(changes) if "add" in action else None


def in_statistics(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """An edit that changes keys of the statistics of add actions."""

    def edit(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["stats"] = json.dumps(json.loads(action["add"]["stats"]) | changes)

    return edit


def in_metadata(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """An edit that changes keys of metadata actions."""
    return lambda action: action["metaData"].update(changes) if "metaData" in action else None


def in_protocol(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """An edit that changes keys of the protocol action."""
    return lambda action: action["protocol"].update(changes) if "protocol" in action else None


DELETED = {
    "storageType": "p",
    "pathOrInlineDv": "/etc/passwd",
    "offset": 1,
    "sizeInBytes": 40,
    "cardinality": 6,
}
FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["deletionVectors"]}
for table in ("episodes", "steps"):
    for rows in (10**18, 10**12, 2**63, -5, 1.5, "many", None):
        add_log_case(f"{rows} rows", table, in_statistics(numRecords=rows), harmless=True)
    for size in (10**18, -1, 0, "big", None):
        add_log_case(f"{size} bytes", table, in_add(size=size), harmless=True)
    add_log_case("statistics that nest", table, in_add(stats="[" * 100_000), harmless=True)
    add_log_case(
        "statistics of a million columns",
        table,
        in_statistics(nullCount={str(n): 0 for n in range(100_000)}),
        harmless=True,
    )
    add_log_case("a moment far away", table, in_add(modificationTime=2**63 - 1), harmless=True)
    add_log_case("partition values", table, in_add(partitionValues={"t": "7", "../..": "x"}), harmless=True)
    add_log_case("partition columns", table, in_metadata(partitionColumns=["episode_id"]), harmless=True)
    add_log_case(
        "a deletion vector that it may have",
        table,
        lambda action: (
            in_add(deletionVector=DELETED)(action),
            in_protocol(**FEATURES, readerFeatures=["deletionVectors"])(action),
        ),
    )
    add_log_case("a later reader version", table, in_protocol(minReaderVersion=99))
    add_log_case(
        "column mapping",
        table,
        in_metadata(configuration={"delta.columnMapping.mode": "name"}),
        harmless=True,
    )
    add_log_case("a schema that nests", table, in_metadata(schemaString='{"a":' * 50_000))
    add_log_case("an empty schema", table, in_metadata(schemaString='{"type": "struct", "fields": []}'))
    add_log_case(
        "another format", table, in_metadata(format={"provider": "csv", "options": {}}), harmless=True
    )


def add_field_case(title: str, table: str, column: str, *, harmless: bool = False, **changes: Any) -> None:
    """Add a case that changes one field of a table's schema."""

    def edit(field: dict[str, Any]) -> None:
        if field["name"] == column:
            field.update(changes)

    case(f"{table} schema: {title}", harmless=harmless)(lambda path, outside: edit_fields(path, table, edit))


LISTED = {"type": "array", "elementType": "double", "containsNull": True}
add_field_case("t is a text", "steps", "t", type="string")
add_field_case("the flags are numbers", "steps", "terminated", type="long")
add_field_case(
    "the observation is a map",
    "steps",
    "observation.word",
    type={
        "type": "map",
        "keyType": "string",
        "valueType": "string",
        "valueContainsNull": True,
    },
)
add_field_case("the return is a list", "episodes", "episode_return", type=LISTED)
add_field_case("the segment is a number", "episodes", "segment", type="long")
add_field_case("a name of the operating system", "steps", "observation.word", name="../../etc/passwd")
KINDS = [
    "array:object:*",
    "array:object:2,2",
    "array:float64:99999999999",
    "array:float64:9999999,9999999,9999999",
    "array:float64:-1",
    "array:float64:" + "9" * 5000,
    "array:V2000000000:*",
    "array:float64:__import__('os').abort()",
    "array:(2,2)f8:*",
    "array:int8:" + ",".join(["1"] * 200),
    "list:object",
    "list:list:int",
    "pickle",
    "",
    "json",
    "x" * 1_000_000,
    5,
    None,
]
for kind in KINDS:
    add_field_case(f"the kind {str(kind)[:40]!r}", "steps", "info.mask", metadata={"kind": kind})
for kind in ("array:object:*", "pickle", "json"):
    # Single episodes ask for neither, files of the column's own kind not for the former one.
    for mark in ("overflow", "former"):
        marked = {"kind": "array:int8:*", mark: kind}
        add_field_case(f"the {mark} {kind!r}", "steps", "info.mask", harmless=True, metadata=marked)
add_field_case(
    "an extension type",
    "steps",
    "info.mask",
    harmless=True,
    metadata={
        "kind": "array:int8:*",
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": "gASVIwAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAhleGl0IDEyM5SFlFKULg==",
    },
)
for name in ("info." + ".".join("a" * 5000), "info.%zz", "info.mask.0", "info._json", "info."):
    add_field_case(f"a dynamic column named {name[:20]}", "steps", "info.name", name=name)


# Row pointers


def add_pointer_case(
    name: str, column: str, cells: Callable[[pa.Table], Any], *, harmless: bool = False
) -> None:
    """Add a case that puts other cells into a column of the episodes."""
    change = with_column(column, cells)
    case(f"pointer: {name}", harmless=harmless)(lambda path, outside: rewrite(path, "episodes", change))


for value in (-1, 10**6, 10**18, 2**63 - 1, None):
    add_pointer_case(f"row_start {value}", "row_start", every(value))
for value in (-1, 0, 1, 10**6, 10**18, 2**63 - 1, None):
    add_pointer_case(f"row_count {value}", "row_count", every(value))
add_pointer_case("one row more", "row_count", lambda table: [n + 1 for n in table["row_count"].to_pylist()])
add_pointer_case("one row less", "row_count", lambda table: [n - 1 for n in table["row_count"].to_pylist()])
add_pointer_case(
    "overlapping episodes", "row_start", lambda table: [n // 2 for n in table["row_start"].to_pylist()]
)
add_pointer_case("lengths that are not there", "length", every(10**18))
add_pointer_case("negative lengths", "length", every(-1))
add_pointer_case("one id for all", "episode_id", every("x/000000"), harmless=True)
add_pointer_case("no ids", "episode_id", every(None))
add_pointer_case("ids of 10 MB", "episode_id", every("x" * 10_000_000), harmless=True)
add_pointer_case("pointers as texts", "row_start", lambda table: table["row_start"].cast(pa.string()))
add_pointer_case("pointers as floats", "row_start", lambda table: table["row_start"].cast(pa.float64()))
add_pointer_case("segments as numbers", "segment", lambda table: table["row_start"])
add_pointer_case("segments as bytes", "segment", lambda table: table["segment"].cast(pa.binary()))
add_pointer_case("no segment", "segment", every(None))
add_pointer_case(
    "returns as texts", "episode_return", lambda table: table["episode_return"].cast(pa.string())
)
add_pointer_case("moments as numbers", "started_at", lambda table: table["started_at"].cast(pa.int64()))
add_pointer_case("wide seeds that are no numbers", "wide_seed", every("__import__('os')"))
add_pointer_case("wide seeds of a million digits", "wide_seed", every("9" * 1_000_000))


# Values


def array_text(code: str, shape: list[Any], data: bytes = b"") -> str:
    """Tagged JSON of an array."""
    return json.dumps({"$array": [code, shape, base64.b64encode(data).decode()]})


PICKLED = base64.b64encode(pickle.dumps(os.system)).decode()
VALUES = {
    "nesting": "[" * 100_000 + "]" * 100_000,
    "300 levels": "[" * 300 + "]" * 300,
    "nesting objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "nesting tags": '{"$tuple":[' * 200 + "]}" * 200,
    "a huge array": array_text("<f8", [10**18]),
    "an array of huge elements": array_text("V2000000000", [1]),
    "an array of a negative shape": array_text("<f8", [-5]),
    "an array of objects": array_text("|O", [1], b"12345678"),
    "an array of records of objects": array_text("i4,O", [1], b"123456789012"),
    "an array of an expression": array_text("(" * 10_000 + "2" + ")" * 10_000 + "f8", [1]),
    "an array of an array": array_text("(1000,1000,1000)f8", [1]),
    "an array of a code without end": array_text("f8," * 100_000, [1]),
    "an array that is no base64": '{"$array": ["<f8", [1], "€"]}',
    "an array without parts": '{"$array": []}',
    "an array of numbers": '{"$array": 5}',
    "a pickle": json.dumps({"$pickle": PICKLED, "$object": ["os.system", "id"]}),
    "a huge integer": '{"$int": "0x' + "f" * 100_000 + '"}',
    "a long decimal": "9" * 100_000,
    "an integer that is a list": '{"$int": [1]}',
    "a float of a huge integer": '{"$float": 1' + "0" * 400 + "}",
    "a float that is a list": '{"$float": [1]}',
    "a complex of three": '{"$complex": [1, 2, 3]}',
    "a complex of huge integers": '{"$complex": [1' + "0" * 400 + ", 1]}",
    "a set of lists": '{"$set": [[1]]}',
    "a dict of lists": '{"$dict": [[[1], 2]]}',
    "a dict of no pairs": '{"$dict": [1, 2]}',
    "an object without parts": '{"$object": []}',
    "bytes that are none": '{"$bytes": "%%%"}',
    "no JSON": "{'a': __import__('os')}",
    "infinity": "1e999",
    "a lone surrogate": '"\\ud800"',
    "nothing": "",
}

#: Unusual, and yet values that can be read, and cannot be bare infos.
ODD_VALUES = {"nesting tags", "a pickle", "a huge integer", "infinity", "a lone surrogate"}


def add_value_case(name: str, value: str) -> None:
    """Add cases that put a text into the options, and into a key of the JSON columns."""
    harmless = name in ODD_VALUES
    options = with_column("options", every(value))
    case(f"options: {name}", harmless=harmless)(lambda path, outside: rewrite(path, "episodes", options))
    inner = with_column("info._json", every(f'{{"odd": {value}}}'))
    case(f"info: {name}", harmless=harmless)(lambda path, outside: rewrite(path, "steps", inner))
    bare = with_column("info._json", every(value))
    case(f"info itself: {name}", harmless=name == "a pickle")(
        lambda path, outside: rewrite(path, "steps", bare)
    )


for name, value in VALUES.items():
    add_value_case(name, value)


def add_step_case(name: str, column: str, cells: Callable[[pa.Table], Any], **options: Any) -> None:
    """Add a case that puts other cells into a column of the steps."""
    change = with_column(column, cells)
    case(f"steps: {name}")(lambda path, outside: rewrite(path, "steps", change, **options))


def all_but_first(table: pa.Table, column: str) -> list[Any]:
    """The cells of a column, all moved by one row."""
    return [*table[column].to_pylist()[1:], None]


add_step_case("frames too short", "observation.frame", every(b"x" * 47))
add_step_case("frames too long", "observation.frame", every(b"x" * 49))
add_step_case("frames of nothing", "observation.frame", every(b""))
add_step_case("no frames", "observation.frame", every(None))
add_step_case("frames as texts", "observation.frame", lambda table: pa.array(["x" * 48] * table.num_rows))
add_step_case("vectors too short", "observation.position", every([1.0]))
add_step_case("vectors of NULL", "observation.position", every([None] * 3))
add_step_case("vectors as texts", "observation.position", lambda table: pa.array(["x"] * table.num_rows))
add_step_case(
    "vectors of vectors", "observation.position", lambda table: pa.array([[[1.0]]] * table.num_rows)
)
add_step_case("sequences cut elsewhere", "observation.trail", every([[1.0]]))
add_step_case("words as numbers", "observation.word", lambda table: table["t"])
add_step_case("flags as numbers", "terminated", lambda table: table["t"])
add_step_case("flags on every row", "terminated", every(True))
add_step_case("flags on no row", "terminated", every(None))
add_step_case("rewards as texts", "reward", lambda table: table["reward"].cast(pa.string()))
add_step_case("rewards on other rows", "reward", lambda table: all_but_first(table, "reward"))
add_step_case("actions on other rows", "action.0", lambda table: all_but_first(table, "action.0"))
add_step_case("masks out of range", "info.mask", every([1000]))
add_step_case("masks of NULL", "info.mask", every([None]))
add_step_case("grids of another shape", "info.grid", every([1.0] * 5))
add_step_case("counts as texts", "info.count", lambda table: table["info.name"])


# Pages that say they unpack to more than they do


@case("steps: a page that declares 2 GB")
def _declared(path: Path, outside: Path) -> None:
    """Page headers begin a column chunk: compact Thrift, type in field 1, uncompressed size in field 2."""
    for file in (path / "steps").glob("*.parquet"):
        data = bytearray(file.read_bytes())
        metadata = pq.read_metadata(file)
        columns = [metadata.row_group(0).column(index) for index in range(metadata.num_columns)]
        (column,) = [column for column in columns if column.path_in_schema == "reward"]
        start = column.dictionary_page_offset or column.data_page_offset
        assert data[start : start + 1] == b"\x15"
        size = start + 3
        old = 1 + next(index for index in range(9) if not data[size + index] & 0x80)
        declared = bytes([0x80] * (old - 1) + [0x7F])
        data[size : size + old] = declared
        file.write_bytes(data)


# Journals


def journal_of(path: Path) -> Path:
    """The dead run's last part."""
    return sorted(path.glob("journal/dead-*/*.frames"))[-1]


def frames_of(part: Path) -> list[journal_records.PartRecord]:
    """The whole frames of a part."""
    data, found, at = memoryview(part.read_bytes()), [], 0
    while (frame := journal_records.decode(data, at)) is not None:
        found.append(frame)
        at = frame.stop
    return found


def write_frames(part: Path, frames: list[tuple[bytes, int, int, bytes, bytes]]) -> None:
    """Write frames with right sums."""
    part.write_bytes(b"".join(bytes(piece) for frame in frames for piece in journal_records.encode(*frame)))


def add_frame_case(
    name: str, edit: Callable[[bytes, bytes, bytes], tuple[bytes, bytes]], *, harmless: bool = False
) -> None:
    """Add a case that changes events and body of every frame of the journal; the sums stay right."""

    def change(path: Path, outside: Path) -> None:
        for part in path.glob("journal/dead-*/*.frames"):
            frames = []
            for frame in frames_of(part):
                events, body = edit(frame.kind, bytes(frame.events), bytes(frame.body))
                frames.append((frame.kind, frame.first, frame.schema, events, body))
            write_frames(part, frames)

    case(f"journal: {name}", harmless=harmless)(change)


def in_batches(edit: Callable[[bytes], bytes]) -> Callable[[bytes, bytes, bytes], tuple[bytes, bytes]]:
    """Change the bodies of batches only."""
    return lambda kind, events, body: (events, edit(body) if kind == journal_records.BATCH else body)


def in_events(text: str) -> Callable[[bytes, bytes, bytes], tuple[bytes, bytes]]:
    """Give every batch other events."""
    return lambda kind, events, body: (text.encode() if kind == journal_records.BATCH else events, body)


def overwritten(body: bytes, value: int) -> bytes:
    """A batch in which every offset that looks like one is another number."""
    message = pa.ipc.read_message(pa.py_buffer(body))
    start = len(body) - message.body.size
    numbers = np.frombuffer(body[start : len(body) - (len(body) - start) % 4], np.int32).copy()
    numbers[(numbers > 0) & (numbers < 10_000)] = value
    return body[:start] + numbers.tobytes()


def packed(body: bytes, schema: pa.Schema) -> bytes:
    """A batch that declares zstd and unpacks to much."""
    columns = [pa.nulls(5_000_000, field.type) for field in schema]
    batch = pa.record_batch(columns, schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return messages[-1].serialize().to_pybytes()


for value in (-1, 2**31 - 1, 10_000_000, -(2**31)):
    add_frame_case(f"offsets of {value}", in_batches(lambda body, value=value: overwritten(body, value)))
for cut in (1, 8, 64, 200):
    add_frame_case(f"batches cut by {cut}", in_batches(lambda body, cut=cut: body[:-cut]))
add_frame_case("empty batches", in_batches(lambda body: b""))
add_frame_case("batches of noise", in_batches(lambda body: np.random.default_rng(0).bytes(len(body))))
for at in range(8, 160, 8):
    add_frame_case(
        f"heads with a number at {at}",
        in_batches(lambda body, at=at: body[:at] + b"\xff" * 8 + body[at + 8 :]),
        harmless=True,
    )
for events in (
    "5", "[5]", "{}", "[{}]", "[" * 100_000, '[{"event": "begin"}]', '[{"event": "begin", "number": "x"}]',
    '[{"event": "begin", "number": -1}]', '[{"event": "begin", "number": 1e30}]', "[]x", "\x00",
    '[{"event": "begin", "number": 2, "metadata": 5}]', '[{"event": "begin", "number": 2, "options": []}]',
    '[{"event": "end", "number": 0, "reason": "x", "ended_at": 5}]',
    '[{"event": "begin", "number": 2, "metadata": "[5]", "started_at": 5}]',
    '[{"event": "begin", "number": 2, "metadata": "[", "started_at": 5}]',
    '[{"event": "begin", "number": 2, "seed": "x", "started_at": 5}]',
    '[{"event": "begin", "number": 2, "started_at": 99999999999999999999}]',
    '[{"event": "begin", "number": 99999999999999999999, "started_at": 5}]',
):  # fmt: skip
    add_frame_case(f"events {events[:70]}", in_events(events))


def reschemed(
    change: Callable[[pa.Schema], pa.Schema],
) -> Callable[[bytes, bytes, bytes], tuple[bytes, bytes]]:
    """Change the schemas of a journal."""

    def edit(kind: bytes, events: bytes, body: bytes) -> tuple[bytes, bytes]:
        if kind != journal_records.SCHEMA:
            return events, body
        return events, change(pa.ipc.read_schema(pa.py_buffer(body))).serialize().to_pybytes()

    return edit


def with_header(**changes: Any) -> Callable[[pa.Schema], pa.Schema]:
    """Change the run's header in a schema."""

    def change(schema: pa.Schema) -> pa.Schema:
        header = json.loads(schema.metadata[b"episodelake.run"]) | changes
        return schema.with_metadata({b"episodelake.run": json.dumps(header).encode()})

    return change


def typed(name: str, kind: pa.DataType) -> Callable[[pa.Schema], pa.Schema]:
    """Give a column another type."""
    return lambda schema: schema.set(schema.names.index(name), pa.field(name, kind))


EXTENSION = {
    "ARROW:extension:name": "arrow.py_extension_type",
    "ARROW:extension:metadata": pickle.dumps(os.system),
}
add_frame_case(
    "an extension type",
    reschemed(lambda schema: schema.append(pa.field("info.x", pa.binary(), metadata=EXTENSION))),
)
add_frame_case("a dictionary", reschemed(typed("observation.word", pa.dictionary(pa.int32(), pa.string()))))
add_frame_case("a union", reschemed(typed("observation.word", pa.sparse_union([pa.field("a", pa.int64())]))))
add_frame_case("a view", reschemed(typed("observation.word", pa.string_view())))
add_frame_case("a number for a text", reschemed(typed("observation.word", pa.int64())))
add_frame_case("a text for a number", reschemed(typed("reward", pa.string())))
add_frame_case("no reward", reschemed(lambda schema: schema.remove(schema.names.index("reward"))))
add_frame_case("no number", reschemed(lambda schema: schema.remove(schema.names.index("_number"))))
add_frame_case("a column twice", reschemed(lambda schema: schema.append(schema.field("reward"))))
add_frame_case("another run", reschemed(with_header(run_id="../../outside/run")))
add_frame_case("a run that is a number", reschemed(with_header(run_id=5)))
add_frame_case("a name that is a list", reschemed(with_header(name=[1])))
add_frame_case("a moment that is a text", reschemed(with_header(started_at="x")))
add_frame_case("a moment far away", reschemed(with_header(started_at=10**30)))
add_frame_case("metadata that is no text", reschemed(with_header(metadata=5)))
add_frame_case("metadata that is no object", reschemed(with_header(metadata="[5]")))
add_frame_case("one key more", reschemed(with_header(other=1)))
add_frame_case(
    "a kind of objects",
    reschemed(
        lambda schema: schema.set(
            schema.names.index("info.mask"),
            pa.field("info.mask", pa.list_(pa.int16()), metadata={"kind": "array:object:*"}),
        )
    ),
)


@case("journal: packed batches")
def _packed(path: Path, outside: Path) -> None:
    for part in path.glob("journal/dead-*/*.frames"):
        frames, schema = [], None
        for frame in frames_of(part):
            body = bytes(frame.body)
            if frame.kind == journal_records.SCHEMA:
                schema = pa.ipc.read_schema(pa.py_buffer(body))
            elif frame.kind == journal_records.BATCH:
                assert schema is not None
                body = packed(body, schema)
            frames.append((frame.kind, frame.first, frame.schema, bytes(frame.events), body))
        write_frames(part, frames)


@case("journal: heads that declare 2^60 bytes", harmless=True)
def _declared_frames(path: Path, outside: Path) -> None:
    part = journal_of(path)
    head = b"ELJ1" + bytes(4) + struct.pack("<c7xQQQQ16x", b"B", 2**60, 2**60, 0, 1)
    part.write_bytes(part.read_bytes() + head * 100)


@case("journal: a hundred thousand heads that each claim the rest", harmless=True)
def _quadratic(path: Path, outside: Path) -> None:
    part, count = journal_of(path), 100_000
    heads = [
        b"ELJ1" + bytes(4) + struct.pack("<c7xQQQQ16x", b"B", 0, 64 * (count - number - 1), 0, 1)
        for number in range(count)
    ]
    part.write_bytes(part.read_bytes() + b"".join(heads))


@case("journal: a row number that jumps", harmless=True)
def _jump(path: Path, outside: Path) -> None:
    part = journal_of(path)
    frames = [(f.kind, 2**63, f.schema, bytes(f.events), bytes(f.body)) for f in frames_of(part)]
    write_frames(part, frames)


@case("journal: a part that is a link")
def _link_part(path: Path, outside: Path) -> None:
    part = journal_of(path)
    shutil.move(part, outside / part.name)
    part.symlink_to(outside / part.name)


@case("journal: a folder that is a link", harmless=True)
def _link_run(path: Path, outside: Path) -> None:
    folder = journal_of(path).parent
    shutil.move(folder, outside / "run")
    folder.symlink_to(outside / "run")


@case("journal: a pipe for a part")
def _pipe(path: Path, outside: Path) -> None:
    part = journal_of(path)
    part.unlink()
    os.mkfifo(part)


@case("store.json: a pipe")
def _manifest_pipe(path: Path, outside: Path) -> None:
    (path / "store.json").unlink()
    os.mkfifo(path / "store.json")


for shown in ("steps", "episodes"):

    @case(f"{shown}: pipes for files")
    def _pipes(path: Path, outside: Path, table: str = shown) -> None:
        for file in (path / table).glob("*.parquet"):
            file.unlink()
            os.mkfifo(file)


# Running the cases


class Watch:
    """What happened to files of a folder, whichever library did it, as the kernel tells."""

    def __init__(self, folder: Path) -> None:
        self._c = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._c.inotify_init1(os.O_NONBLOCK)
        for each in [folder, *(entry for entry in folder.rglob("*") if entry.is_dir())]:
            added = self._c.inotify_add_watch(self._descriptor, os.fsencode(each), WATCHED)
            assert added >= 0, os.strerror(ctypes.get_errno())

    def seen(self) -> list[str]:
        """The names of the files concerned, in order."""
        found = []
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return []
        while data:
            _, mask, _, size = struct.unpack_from("iIII", data)
            if not mask & 0x40000000:  # IN_ISDIR: a folder that is listed tells nothing
                found.append(data[16 : 16 + size].rstrip(b"\0").decode())
            data = data[16 + size :]
        return found


def attack(template: Path, name: str, readers: list[str]) -> dict[str, Any]:
    """Make a store hostile, read all of it, and say what was found and what was touched."""
    with tempfile.TemporaryDirectory(dir=template.parent) as folder:
        path, outside = Path(folder) / "store", Path(folder) / "outside"
        shutil.copytree(template, path)
        outside.mkdir()
        if name:
            CASES[name](path, outside)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        watch, events = Watch(outside), []

        def listen(event: str, arguments: tuple[Any, ...]) -> None:
            if event.startswith(FORBIDDEN):
                events.append(event)

        sys.addaudithook(listen)
        found = examine(path, readers)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return {"found": found, "opened": watch.seen(), "events": events, "grown": after - before}


@pytest.fixture(scope="module")
def template(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that is made hostile."""
    path = tmp_path_factory.mktemp("safety") / "template"
    assert workers.run(make_store, path)["ended"] == 0
    return path


def test_the_store_itself_is_read(workers: Workers, template: Path) -> None:
    """As it is, the store is read in every way, and the watch on the other folder sees nothing."""
    answer = workers.run(attack, template, "", READERS)
    assert problems(answer, "") == ["went unnoticed"], answer
    assert {outcome for outcome, _ in answer["found"]["found"].values()} == {"value"}, answer


def problems(answer: dict[str, Any], name: str) -> list[str]:
    """What a hostile store achieved."""
    if answer["ended"]:
        return [f"the process ended with {answer['ended']}: {answer['found']}"]
    what = answer["found"]
    opened, events = sorted(set(what["opened"])), sorted(set(what["events"]))
    found = [f"touched {len(opened)} files outside, as {opened[0]}"] if opened else []
    found += [f"did {event}" for event in events]
    if what["grown"] > MOST_RESIDENT:
        found.append(f"took {what['grown'] >> 20} MB")
    outcomes = what["found"]
    found += [f"{reader}: {result}" for reader, (outcome, result) in outcomes.items() if outcome == "stray"]
    if name not in HARMLESS:
        if name.startswith("journal"):
            refused = outcomes["recover"][0] != "value" or outcomes["recover"][1]["told"]
        else:
            refused = outcomes["episodes"][0] != "value"
        found += [] if refused else ["went unnoticed"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_hostile_store_gives_an_error_and_reaches_nothing(
    workers: Workers, template: Path, part: int
) -> None:
    """A hostile store is refused with an error of the tree; memory is bounded, nothing outside is touched."""
    for name in [*CASES][part::10]:
        with named(name):
            near = NEAR.get(name.partition(":")[0].partition(" ")[0], READERS)
            assert problems(workers.run(attack, template, name, near), name) == []


# A connection that may only read

SMALL = spaces.Box(-1, 1, (2,), np.float32)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of two episodes, beside files that are none of its business."""
    folder = tmp_path_factory.mktemp("read-only")
    store = el.create(folder / "store", observation_space=SMALL, action_space=SMALL)
    with store.writer() as writer:
        for number in range(2):
            episode = writer.begin(np.zeros(2, np.float32))
            for _ in range(3):
                episode.append(np.ones(2, np.float32), number + 1.0, np.ones(2, np.float32))
            episode.end({"note": "a"})
    (folder / "secret.csv").write_text("word\nsecret\n")
    pq.write_table(pa.table({"word": ["secret"]}), folder / "secret.parquet")
    (folder / "secret.json").write_text('{"word": "secret"}')
    duckdb.connect(str(folder / "secret.duckdb")).close()
    return folder


REFUSED = {
    "copy to a file": "COPY episodes TO '{folder}/out.csv'",
    "copy to Parquet": "COPY (FROM steps) TO '{folder}/out.parquet' (FORMAT parquet)",
    "copy into the store": "COPY episodes TO '{folder}/store/steps/out.parquet' (FORMAT parquet)",
    "copy over a file of the store": "COPY episodes TO '{folder}/store/store.json'",
    "copy to the terminal": "COPY episodes TO '/dev/stdout'",
    "copy from a file": "CREATE TEMP TABLE a (word VARCHAR); COPY a FROM '{folder}/secret.csv'",
    "export": "EXPORT DATABASE '{folder}/out'",
    "import": "IMPORT DATABASE '{folder}/out'",
    "attach": "ATTACH '{folder}/secret.duckdb' AS other",
    "attach a new file": "ATTACH '{folder}/new.duckdb' AS other",
    "attach a file of the store": "ATTACH '{folder}/store/store.json' AS other",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "load a file": "LOAD '{folder}/secret.duckdb'",
    "read_csv": "FROM read_csv('{folder}/secret.csv')",
    "read_csv_auto": "FROM read_csv_auto('{folder}/secret.csv')",
    "read_parquet": "FROM read_parquet('{folder}/secret.parquet')",
    "parquet_scan": "FROM parquet_scan('{folder}/secret.parquet')",
    "parquet_metadata": "FROM parquet_metadata('{folder}/secret.parquet')",
    "parquet_schema": "FROM parquet_schema('{folder}/secret.parquet')",
    "read_json": "FROM read_json('{folder}/secret.json')",
    "read_text": "FROM read_text('{folder}/secret.csv')",
    "read_blob": "FROM read_blob('/etc/passwd')",
    "read_blob of the store": "FROM read_blob('{folder}/store/store.json')",
    "sniff_csv": "FROM sniff_csv('{folder}/secret.csv')",
    "glob": "SELECT error('se' || 'en') FROM glob('{folder}/*')",
    "glob of the root": "SELECT error('se' || 'en') FROM glob('/*')",
    "a file by its name": "FROM '{folder}/secret.csv'",
    "a Parquet file by its name": "FROM '{folder}/secret.parquet'",
    "a relative file": "FROM '../secret.csv'",
    "the web": "FROM read_parquet('http://127.0.0.1:9/a.parquet')",
    "the web by its name": "FROM 'https://127.0.0.1:9/a.csv'",
    "an object store": "FROM read_parquet('s3://bucket/a.parquet')",
    "delta_scan": "FROM delta_scan('{folder}/store/steps')",
    "a variable of Python": "FROM hidden",
    "a global of Python": "FROM HIDDEN_TABLE",
    "opening access again": "SET enable_external_access = true",
    "unlocking": "SET lock_configuration = false",
    "replacements again": "SET python_enable_replacements = true",
    "resetting": "RESET enable_external_access",
    "memory": "SET memory_limit = '1TB'",
    "a folder to spill to": "SET temp_directory = '{folder}'",
    "allowed paths": "SET allowed_paths = ['{folder}/secret.csv']",
    "allowed directories": "SET allowed_directories = ['{folder}']",
    "a log": "SET log_query_path = '{folder}/log'",
    "a profile": "PRAGMA profiling_output = '{folder}/profile'",
    "an extension folder": "SET extension_directory = '{folder}'",
    "unsigned extensions": "SET allow_unsigned_extensions = true",
    "a secret": "CREATE PERSISTENT SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "a view on a file": "CREATE TEMP VIEW a AS FROM read_csv('{folder}/secret.csv'); FROM a",
    "a prepared copy": "PREPARE p AS COPY episodes TO '{folder}/out.csv'; EXECUTE p",
    "a text that is run": "FROM query($$COPY episodes TO '{folder}/out.csv'$$)",
    "a table by its text": "FROM query_table('{folder}/secret.csv')",
    "the environment": "SELECT getenv('PATH')",
}
HIDDEN_TABLE = pa.table({"word": ["secret"]})


def content_of(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every file below a folder, with its size and when it was changed."""
    return {entry: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in folder.rglob("*")}


@pytest.fixture(scope="module")
def confined(small: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that may only read, for all that it refuses and answers: no refusal changes it."""
    with el.open(small / "store").connect(read_only=True) as connection:
        yield connection


def test_a_read_only_connection_refuses(small: Path, confined: duckdb.DuckDBPyConnection) -> None:
    """What would write, load, or read anything but the store is refused, and leaves nothing behind."""
    for name in REFUSED:
        with named(name), pytest.MonkeyPatch.context() as monkeypatch:
            hidden = HIDDEN_TABLE
            monkeypatch.chdir(small / "store")
            before = content_of(small)
            with pytest.raises(duckdb.Error) as caught:
                confined.execute(REFUSED[name].format(folder=small)).fetchall()
            assert "seen" not in str(caught.value)
            assert confined.execute("SELECT count(*) FROM episodes").fetchall() == [(2,)]
            assert hidden.num_rows == 1
            assert content_of(small) == before


QUERIES: dict[str, list[tuple[Any, ...]]] = {
    "SELECT count(*), sum(length) FROM episodes": [(2, 6)],
    "SELECT count(*) FROM steps": [(8,)],
    "SELECT count(*), sum(reward) FROM transitions": [(6, 9.0)],
    "SELECT count(*) FROM runs": [(1,)],
    "SELECT max(t) FROM steps WHERE reward IS NULL": [(3,)],
    'SELECT "metadata.note" FROM episodes LIMIT 1': [("a",)],
    "SELECT sum(observation[1]) FROM steps JOIN episodes USING (episode_id) WHERE episode_return > 4": [
        (3.0,)
    ],
    "WITH a AS (FROM steps) SELECT count(*) FROM a": [(8,)],
    "SELECT sum(n) FROM (SELECT row_number() OVER (PARTITION BY episode_id) AS n FROM steps)": [(20,)],
    "SELECT count(*) FROM (PIVOT steps ON t USING count(*) GROUP BY episode_id)": [(2,)],
    "SELECT count(*) > 6 FROM (SUMMARIZE steps)": [(True,)],
    "SELECT count(*) FROM (DESCRIBE runs)": [(6,)],
    "SELECT [x * 2 FOR x IN [1, 2]], strftime(TIMESTAMP '2020-01-01', '%Y')": [([2, 4], "2020")],
    "SELECT count(*) FROM range(1000000)": [(1_000_000,)],
}


def test_a_read_only_connection_answers(confined: duckdb.DuckDBPyConnection) -> None:
    """Ordinary queries work on a connection that may only read."""
    for query in QUERIES:
        with named(query):
            assert confined.execute(query).fetchall() == QUERIES[query]


@pytest.mark.parametrize("read_only", [False, True])
def test_long_queries_print_nothing(small: Path, read_only: bool) -> None:
    """DuckDB's progress bar would stand among the output of a script whose query takes two seconds."""
    connection = el.open(small / "store").connect(read_only=read_only)
    setting = "select current_setting('enable_progress_bar')"
    assert connection.sql(setting).fetchall() == [(False,)]


def test_a_read_only_connection_does_not_spill(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no folder to which a large query could write, and none can be named."""
    monkeypatch.chdir(small / "store")
    before = content_of(small)
    with el.open(small / "store").connect(read_only=True) as connection:
        assert connection.execute("SELECT current_setting('temp_directory')").fetchone() in [("",), (None,)]
        connection.execute("SELECT count(*) FROM (FROM range(3000000) ORDER BY hash(range))").fetchall()
    assert content_of(small) == before


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", ["copy into the store", "read_csv", "glob", "opening access again", "attach", "a view on a file"]
)
def test_the_command_line_refuses_too(small: Path, name: str) -> None:
    """The command `sql` runs on such a connection."""
    text = REFUSED[name].format(folder=small)
    before = content_of(small)
    answer = CliRunner().invoke(app, ["sql", str(small / "store"), text])
    assert answer.exit_code != 0
    assert not {"secret\n", "seen"} & set(answer.output.split(" "))
    assert isinstance(answer.exception, SystemExit)
    assert content_of(small) == before
