"""Tables in many files, and files that become Parquet: CSV, JSON Lines, and the arrays of `.npz`.

DuckDB and pyarrow take names for patterns, URLs or partitions; here a name is a name, and only the source
itself may be a pattern, `located` of `boundary.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import DatasetError
from ...plugin.files import is_file, walk
from ...writers.importing.boundary import Files, check_not_empty
from ...writers.importing.npy import NpzFile
from .arrays import table_of_arrays
from .mapping import FILE

_FILE = "__episodelake_file"
_ARROW_MAGIC = b"ARROW1"
_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".npz": "npz",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "ipc",
}
_COMPRESSED = (".gz", ".zst")
#: DATE is none of them, since DuckDB takes a column of "inf" for dates.
_CSV_TYPES = ["BOOLEAN", "BIGINT", "HUGEINT", "DOUBLE", "TIMESTAMP", "VARCHAR"]
#: DuckDB writes these to Parquet as doubles.
_HUGE = re.compile(r"\bU?HUGEINT\b")
#: Lists of numbers without spaces, at any depth.
_NUMBER = r"[-+]?(\d+\.?\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|nan|NaN|inf|Infinity)"
_FLAT = rf"\[+({_NUMBER}(,{_NUMBER})*)?\]+"
_LISTS = rf"{_FLAT}(,{_FLAT})*"
#: Types that DuckDB sees in texts of JSON, which stay texts.
_NOT_IN_JSON = re.compile(r"\b(UUID|DATE|TIME|TIMESTAMP|INTERVAL)\b")
EXPECTED = (
    "Expected Parquet, CSV, JSON Lines, .npz or Arrow files (one, a folder, a list or a pattern), a Delta "
    "table, a data frame of Polars, pandas, DuckDB, pyarrow or `datasets`, a dict of arrays, or a list of "
    "dicts."
)


def kind_of_file(path: Path) -> str | None:
    """Return "parquet", "csv", "json", "npz" or "ipc" by the first bytes or the suffix; None for others."""
    if not is_file(path):
        return None
    with path.open("rb") as file:
        magic = file.read(6)
    if magic == _ARROW_MAGIC:
        return "ipc"
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] in _COMPRESSED
    if packed:
        suffixes.pop()
    kind = "parquet" if magic[:4] == b"PAR1" else _SUFFIXES.get(suffixes[-1]) if suffixes else None
    return None if packed and kind not in ("csv", "json") else kind


def files_in(folder: Path) -> Files:
    """Return the files of a folder and the folders in it that are tables, in order; others are left out."""
    files = [
        path
        for path in sorted(Path(base, name) for base, _, names in walk(folder) for name in names)
        if not _SUFFIXES.keys().isdisjoint(suffix.lower() for suffix in path.suffixes[-2:])
        and is_file(path)
        and not any(part[0] in "._" for part in path.relative_to(folder).parts)
    ]
    return Files(tuple(path for path in files if kind_of_file(path) is not None), folder)


def kind_of_files(files: Files) -> str | None:
    """Return the kind that all of some files have; None where one is no table, or there is none.

    Raises:
        DatasetError: they have several kinds, or one is empty.
    """
    kinds = {kind_of_file(path): path.name for path in files.paths}
    if None not in kinds:
        for path in files.paths:
            check_not_empty(path)
    if len(kinds) > 1 and None not in kinds:
        each = ", ".join(f"{kind} ({name})" for kind, name in sorted(kinds.items(), key=str))
        raise DatasetError(f"{files} has files of several kinds: {each}. Give a list of those of one kind.")
    return next(iter(kinds), None)


def columns_of_files(files: Files) -> list[str]:
    """Return the columns of the first file, with those that are added."""
    first = Files(files.paths[:1], files.base)
    kind = kind_of_files(files)
    if kind == "npz":
        return next(npz_tables(first)).column_names
    with duckdb.connect() as connection:
        return connection.sql(query_of(connection, kind, first, 20480)).columns


def query_of(connection: duckdb.DuckDBPyConnection, kind: str | None, files: Files, sample: int = -1) -> str:
    """Return the query that reads CSV files or JSON Lines, with the column `FILE` unless they have one.

    Args:
        sample: how many rows decide the types; -1 for all, since a later row may have another type.
    """
    call = f"read_{'csv' if kind == 'csv' else 'json'}([{', '.join(map(_quoted, files.paths))}], "
    call += f"hive_partitioning=false, union_by_name=true, filename='{_FILE}', sample_size={sample}, "
    call += f"auto_type_candidates={_CSV_TYPES}" if kind == "csv" else "format='newline_delimited'"
    try:
        relation = connection.sql(f"FROM {call})")
    except duckdb.InvalidInputException:
        if kind == "csv":
            _check_line_ends(files)
        raise
    types = dict(zip(relation.columns, map(str, relation.types), strict=True))
    if kind != "csv":
        texts = {name: _NOT_IN_JSON.sub("VARCHAR", each) for name, each in types.items() if name != _FILE}
        columns = ", ".join(f"{literal(name)}: {literal(each)}" for name, each in texts.items())
        call = call.replace("sample_size=-1, ", "") + f", columns={{{columns}}}"
    casts = _exact(connection, call, types)
    if kind == "csv" and sample == -1:
        casts |= _lists(connection, call, types)
    replaced = ", ".join(f"{value} AS {_identifier(name)}" for name, value in casts.items())
    columns = f"* EXCLUDE ({_FILE})" + (f" REPLACE ({replaced})" if casts else "")
    if FILE in types:
        return f"SELECT {columns} FROM {call})"
    start = len(str(files.base.absolute())) + 2
    return f"SELECT {columns}, substr({_FILE}, {start}) AS {FILE} FROM {call})"


def _check_line_ends(files: Files) -> None:
    """Refuse CSV files that mix line ends; DuckDB only reports that it detects no dialect.

    Raises:
        DatasetError: names the first file and line that differs.
    """
    for path in files.paths:
        with open(path, "rb") as lines:
            first = next(lines, b"").endswith(b"\r\n")
            for number, line in enumerate(lines, 2):
                if line.endswith(b"\n") and line.endswith(b"\r\n") != first:
                    before, here = ("CRLF", "LF") if first else ("LF", "CRLF")
                    raise DatasetError(
                        f"{path}: line {number} ends with {here}, the lines before with {before}. Write one "
                        "of them throughout, as `dos2unix` does."
                    )


def check_rounded(connection: duckdb.DuckDBPyConnection, kind: str, files: Files, written: str) -> None:
    """Refuse integers beside numbers with a fraction that a double does not hold.

    Args:
        kind: of the files, "csv" or "json".
        written: what DuckDB wrote of them; its footer shows whether there can be such integers.

    Raises:
        DatasetError: names the column and the integer.
    """
    file = pq.ParquetFile(written)
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    if not any(_is_wide(group.column(each)) for group in groups for each in range(group.num_columns)):
        return
    doubles = [field.name for field in file.schema_arrow if "double" in str(field.type)]
    types = ", ".join(f"{literal(name)}: '{'VARCHAR' if kind == 'csv' else 'JSON'}'" for name in doubles)
    call = f"read_{'csv' if kind == 'csv' else 'json'}([{', '.join(map(_quoted, files.paths))}], "
    call += f"hive_partitioning=false, union_by_name=true, {'types' if kind == 'csv' else 'columns'}="
    call += f"{{{types}}}"
    exact = "TRY_CAST(TRY_CAST(number AS DOUBLE) AS HUGEINT) = TRY_CAST(number AS HUGEINT)"
    rounded = f"lambda number: regexp_full_match(number, '-?[0-9]{{16,}}') AND NOT coalesce({exact}, false)"
    examples = []
    for name in doubles:
        values = f"CAST({_identifier(name)} AS VARCHAR)"
        if kind != "csv":
            # Texts in JSON may hold digits.
            values = f"""regexp_replace({values}, '"(?:[^"\\\\]|\\\\.)*"', '""', 'g')"""
        numbers = f"regexp_extract_all({values}, '-?[0-9][-+0-9.eE]*')"
        examples.append(f"any_value(list_filter({numbers}, {rounded})[1])")
    # One pass over the files for all columns.
    (row,) = connection.sql(f"SELECT {', '.join(examples)} FROM {call})").fetchall()
    for name, number in zip(doubles, row, strict=True):
        if number is not None:
            raise DatasetError(
                f"{files}: the column `{name}` has the integer {number}, which would be rounded: the column "
                "also has numbers with a fraction, or integers beyond 128 bits. Write its values as text."
            )


def _is_wide(column: pq.ColumnChunkMetaData) -> bool:
    """Return whether a column may have doubles beyond the integers that doubles hold exactly."""
    if column.physical_type != "DOUBLE":
        return False
    limits = column.statistics
    return limits is None or not limits.has_min_max or max(abs(limits.min), abs(limits.max)) >= 2**53


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _lists(connection: duckdb.DuckDBPyConnection, call: str, types: dict[str, str]) -> dict[str, str]:
    """Return the casts of columns of texts that are lists of numbers, as pandas writes lists and arrays."""
    texts = {
        name: _list_text(_identifier(name))
        for name, each in types.items()
        if each == "VARCHAR" and name != _FILE
    }
    if not texts:
        return {}
    measured = []
    for text in texts.values():
        # An empty list may be one of any depth.
        depth = f"length(regexp_extract(nullif({text}, '[]'), '^\\[*'))"
        # NULL where one has more than 128 bits.
        numbers = f"TRY_CAST(regexp_extract_all({text}, '[-+]?[0-9]+') AS HUGEINT[])"
        measured += [
            f"coalesce(min({depth}), 1)",
            f"coalesce(max({depth}), 1)",
            f"bool_and(regexp_full_match({text}, '{_LISTS}'))",
            f"bool_and(regexp_full_match({text}, '[-+0-9,\\[\\]]*'))",
            f"min(list_min({numbers}))",
            f"max(list_max({numbers}))",
            f"bool_and(len({numbers}) = list_aggregate({numbers}, 'count'))",
        ]
    ((*values,),) = connection.sql(f"SELECT {', '.join(measured)} FROM {call})").fetchall()
    casts = {}
    for index, (name, text) in enumerate(texts.items()):
        least, most, lists, whole, *limits = values[7 * index : 7 * index + 7]
        if lists and least and least == most:
            casts[name] = f"CAST({text} AS {_integers(*limits) if whole else 'DOUBLE'}{'[]' * least})"
    return casts


def _list_text(column: str) -> str:
    """Return the expression of lists with commas alone; arrays are printed with spaces and line breaks."""
    text = f"regexp_replace({column}, '\\s+', ' ', 'g')"
    text = f"regexp_replace({text}, ' ?([\\[\\],]) ?', '\\1', 'g')"
    return f"replace(replace({text}, '][', '],['), ' ', ',')"


def _integers(least: int | None, most: int | None, all_within: bool | None) -> str:
    """Return the type that holds some integers; `check_rounded` refuses those that a double does not."""
    if least is None or most is None:
        return "BIGINT" if all_within else "DOUBLE"
    if all_within and least >= -(2**63) and most < 2**64:
        return "BIGINT" if most < 2**63 else "UBIGINT" if least >= 0 else "DECIMAL(38, 0)"
    return "DECIMAL(38, 0)" if all_within and max(-least, most) < 10**38 else "DOUBLE"


def _exact(connection: duckdb.DuckDBPyConnection, call: str, types: dict[str, str]) -> dict[str, str]:
    """Return the casts of integers beyond 64 bits with a sign to types that Parquet holds exactly."""
    huge = {name: each for name, each in types.items() if _HUGE.search(each)}
    whole = [name for name, each in huge.items() if _HUGE.fullmatch(each)]
    unsigned: set[str] = set()
    if whole:
        facts = (f"bool_and({_identifier(name)} BETWEEN 0 AND 18446744073709551615)" for name in whole)
        (row,) = connection.sql(f"SELECT {', '.join(facts)} FROM {call})").fetchall()
        unsigned = {name for name, each in zip(whole, row, strict=True) if each}
    kinds = {
        name: "UBIGINT" if name in unsigned else _HUGE.sub("DECIMAL(38, 0)", huge[name]) for name in huge
    }
    return {name: f"{_identifier(name)}::{kind}" for name, kind in kinds.items()}


def _quoted(path: Path) -> str:
    return literal(re.sub(r"[*?\[]", r"[\g<0>]", str(path.absolute())))


def literal(text: str) -> str:
    """Return a text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def npz_tables(files: Files) -> Iterator[pa.Table]:
    """Yield the arrays of each `.npz` file as a table with the column `FILE`.

    Raises:
        DatasetError: a file is damaged or holds pickles, or its arrays have other lengths.
    """
    for path in files.paths:
        file = NpzFile(path)
        try:
            arrays = {name: file.open(name)[()] for name in file.names}
        finally:
            file.close()
        name = path.relative_to(files.base).as_posix()
        table, _ = table_of_arrays(arrays, 0, str(path), name)
        if FILE not in table.column_names:
            table = table.append_column(FILE, pa.repeat(name, len(table)))
        yield table
