"""`episodelake diff`: two stores, or two versions of one, side by side; status 1 if they differ.

Rows of the small tables are joined by id. Steps are compared only where they may differ: segments that are
one file, or have the same bytes, are equal. For the others DuckDB computes a hash per episode and column, so
that no step is held in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import typer

from ..._store import EpisodeStore
from ...readers.amounts import counted
from ...readers.damaged_files import check_plan
from ...readers.sql.sources import run_interruptible, type_name
from ...readers.sql.text import quote
from ...store.common.compatibility import json_plan
from ...store.common.progress import progress_meter
from ...store.dynamic.column_groups import EXTRA, INFO, POLICY
from ...store.errors import CorruptStoreError
from ...store.files import Place
from ...store.layout import STEPS, TABLES
from ...store.maintenance.operation import Progress
from ..command import FAILED
from ..output.grid import Grid
from ..output.page import Page, write_object
from .opening import READING_ERRORS, interruptible, open_store_at, unchanged
from .store_figures import store_figures

#: The places of rows, which compaction changes.
PLACES = {"segment", "row_start", "row_count"}
_CHUNK = 1 << 22
#: JSON columns of steps, and the attributes of an episode with their values.
_JSON_VALUES = {
    INFO.json_column: "infos",
    POLICY.json_column: "policy",
    EXTRA.json_column: "extra",
}


def compare(
    first: EpisodeStore, second: EpisodeStore, *, steps: bool, progress: Progress | None = None
) -> dict[str, Any]:
    """Compare what two stores show.

    Args:
        first, second: the stores, each at its version.
        steps: compare steps too.
        progress: called with the segments that were looked at, and all of them.
    """
    columns = _columns(first, second)
    runs = _rows_compared(first.runs, second.runs, "run_id")
    episodes = _rows_compared(first.episodes, second.episodes, "episode_id")
    if steps:
        _add_steps(first, second, episodes, progress)
    spaces = _spaces(first, second)
    differs = any((spaces, columns, *(part[side] for part in (runs, episodes) for side in _SIDES)))
    return {
        "same": not differs,
        "a": _figures(first),
        "b": _figures(second),
        "spaces": spaces,
        "columns": columns,
        "runs": runs,
        "episodes": episodes,
        "steps_compared": steps,
    }


_SIDES = ("only_a", "only_b", "differing")


def _figures(store: EpisodeStore) -> dict[str, Any]:
    """Return the figures that are compared side by side."""
    figures = store_figures(store)
    means = [each["mean"] for each in figures.returns]
    return {
        "path": store.url,
        "version": store.version,
        "episodes": len(store),
        "transitions": sum(run["transitions"] for run in figures.runs),
        "mean_length": figures.lengths and figures.lengths["mean"],
        "mean_return": means if store.reward_shape else next(iter(means), None),
        "end_reasons": dict(sorted(figures.end_reasons.items())),
    }


def _spaces(first: EpisodeStore, second: EpisodeStore) -> list[dict[str, Any]]:
    sides = [_described(first), _described(second)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    return [
        {"name": name, "a": sides[0].get(name), "b": sides[1].get(name)}
        for name in names
        if sides[0].get(name) != sides[1].get(name)
    ]


def _described(store: EpisodeStore) -> dict[str, str]:
    found = {
        "observation": " ".join(str(store.observation_space).split()),
        "action": " ".join(str(store.action_space).split()),
        "reward_shape": str(store.reward_shape),
    }
    for group in store.agent_groups:
        found[f"agents of {group.name}"] = ", ".join(group.agents)
    return found


def _columns(first: EpisodeStore, second: EpisodeStore) -> list[dict[str, Any]]:
    """Return the columns that only one of them has, or that have another type."""
    rows = []
    for table in TABLES:
        sides = [
            {field.name: type_name(field.type) for field in store.selection().snapshot.shown_schema(table)}
            for store in (first, second)
        ]
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            types = [side.get(name) for side in sides]
            if types[0] != types[1]:
                rows.append({"table": table, "column": name, "a": types[0], "b": types[1]})
    return rows


def _rows_compared(first: pl.LazyFrame, second: pl.LazyFrame, key: str) -> dict[str, Any]:
    """Ids of rows that only one side has, and of those that differ, with the columns that do."""
    schemas = [frame.collect_schema() for frame in (first, second)]
    names = [
        name
        for name, kind in schemas[0].items()
        if name != key and name not in PLACES and schemas[1].get(name) == kind
    ]
    left = first.select(key, *names)
    right = second.select(key, *names)
    differs = [
        pl.col(name).ne_missing(pl.col(f"{name}_b")).fill_null(False).alias(f"{name}_differs")
        for name in names
    ]
    both = left.join(right, on=key, how="inner", suffix="_b").select(key, *differs).collect()
    changed = both.filter(pl.any_horizontal(f"{name}_differs" for name in names)) if names else both.head(0)
    return {
        "only_a": _only(left, right, key),
        "only_b": _only(right, left, key),
        "differing": [
            {"id": row[key], "columns": [name for name in names if row[f"{name}_differs"]]}
            for row in changed.sort(key).iter_rows(named=True)
        ],
        "same": both.height - changed.height,
    }


def _only(here: pl.LazyFrame, there: pl.LazyFrame, key: str) -> list[str]:
    found = here.select(key).join(there.select(key), on=key, how="anti").sort(key).collect()
    return found[key].to_list()


# Steps


def _add_steps(
    first: EpisodeStore, second: EpisodeStore, episodes: dict[str, Any], progress: Progress | None
) -> None:
    """Find the episodes of both whose steps differ, and count them among those that differ."""
    open_question = _possibly_different(first, second, progress)
    differing = _steps_differing(first, second, open_question)
    known = {each["id"]: each for each in episodes["differing"]}
    for identity, columns in differing.items():
        told = [f"steps.{name}" for name in columns]
        if identity in known:
            known[identity]["columns"] += told
        else:
            episodes["differing"].append({"id": identity, "columns": told})
            episodes["same"] -= 1
    episodes["differing"].sort(key=lambda each: each["id"])


def _possibly_different(first: EpisodeStore, second: EpisodeStore, progress: Progress | None) -> pl.DataFrame:
    """Ids of episodes of both that do not stand in the same rows of equal files."""
    pointers = ["episode_id", "segment", "row_start", "row_count"]
    both = (
        first.episodes.select(pointers)
        .join(second.episodes.select(pointers), on="episode_id", how="inner", suffix="_b")
        .collect()
    )
    snapshots = [store.selection().snapshot for store in (first, second)]
    alike = (pl.col("segment") == pl.col("segment_b")) & (pl.col("row_start") == pl.col("row_start_b"))
    shared = both.filter(alike)["segment"].unique().sort().to_list()
    equal = []
    for done, name in enumerate(shared, 1):
        for snapshot in snapshots:
            snapshot.check_segment(name)
        if _same_bytes(*(snapshot.segment_path(name) for snapshot in snapshots)):
            equal.append(name)
        if progress is not None:
            progress(done, len(shared))
    if _annotated(first) or _annotated(second):
        # Annotations lie in other files.
        equal = []
    return both.filter(~(alike & pl.col("segment").is_in(equal))).select("episode_id")


def _annotated(store: EpisodeStore) -> bool:
    return bool(store.selection().snapshot.annotation_files.annotations)


def _same_bytes(first: Place, second: Place) -> bool:
    """Return whether two files are one, or have the same bytes; files that are not on this machine may
    differ.
    """
    if str(first) == str(second):
        return True
    if first.local is None or second.local is None or first.size() != second.size():
        return False
    if first.local.samefile(second.local):
        return True
    with open(first.local, "rb") as left, open(second.local, "rb") as right:
        while chunk := left.read(_CHUNK):
            if chunk != right.read(_CHUNK):
                return False
    return True


def _steps_differing(first: EpisodeStore, second: EpisodeStore, ids: pl.DataFrame) -> dict[str, list[str]]:
    """By id the columns of steps that differ; `rows` where there are more or fewer of them."""
    if ids.is_empty():
        return {}
    schemas = [store.selection().snapshot.shown_schema(STEPS) for store in (first, second)]
    keys = [name for name, _ in first.selection().snapshot.schema.step_keys]
    names = [
        field.name
        for field in schemas[0]
        if field.name not in keys
        and field.name in schemas[1].names
        and schemas[1].field(field.name).type == field.type
    ]
    sums = [_sums(store, ids, keys, names) for store in (first, second)]
    joined = sums[0].join(sums[1], on="episode_id", how="inner", suffix="_b")
    found: dict[str, list[str]] = {}
    for name in ("rows", *names):
        changed = joined.filter(pl.col(name) != pl.col(f"{name}_b"))["episode_id"]
        for identity in changed.to_list():
            if name not in _JSON_VALUES or not _same_values(first, second, identity, _JSON_VALUES[name]):
                found.setdefault(identity, []).append(name)
    return found


def _same_values(first: EpisodeStore, second: EpisodeStore, identity: str, attribute: str) -> bool:
    """Return whether an episode gives the same infos, policy values or own columns in both stores.

    A JSON column may differ where values do not: it also has the integers of a column of doubles, and what
    goes there depends on which type a run recorded first.
    """
    sides = [getattr(store[identity], attribute) for store in (first, second)]
    return _canonical(sides[0]) == _canonical(sides[1])


def _canonical(value: Any) -> Any:
    """Return a value that equals that of the same content: with sorted keys, arrays as bytes, and NaN as
    text.
    """
    if isinstance(value, dict):
        return sorted((str(key), _canonical(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(_canonical, value)]
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    return (type(value).__name__, repr(value))


def _sums(store: EpisodeStore, ids: pl.DataFrame, keys: Sequence[str], names: Sequence[str]) -> pl.DataFrame:
    """Return a hash per episode and column over its values and their places."""
    place = ", ".join(quote(name) for name in keys if name != "episode_id")
    parts = ", ".join(f"bit_xor(hash({quote(name)}, {place})) AS {quote(name)}" for name in names)
    store.selection().snapshot.places(STEPS)
    connection = store.connect()
    try:
        connection.register("_asked", pa.table(ids.to_arrow()))
        text = f"""SELECT episode_id, count(*) AS rows{", " if parts else ""}{parts}
            FROM steps SEMI JOIN _asked USING (episode_id) GROUP BY episode_id"""
        relation = connection.sql(text)
        check_plan(store.selection().snapshot, json_plan(relation), [STEPS], None)
        found = run_interruptible(relation.pl, connection.interrupt)
    finally:
        connection.close()
    return found


IDS_SHOWN = 10


def compare_stores(
    sides: Sequence[tuple[str, str | None]],
    storage: Sequence[str] | None,
    *,
    steps: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare two stores, given by path and version; see `episodelake diff`."""
    page = Page()
    with interruptible(unchanged):
        first, second = (open_store_at(path, storage, version) for path, version in sides)
        with progress_meter(True, "Comparing", "files") as progress:
            try:
                report = compare(first, second, steps=steps, progress=progress)
            except READING_ERRORS as error:
                raise _damaged((first, second), error) from error
    if as_json:
        write_object(page, report)
    elif not quiet:
        _write(page, report)
    if not report["same"]:
        raise typer.Exit(FAILED)


def _damaged(stores: Sequence[EpisodeStore], error: Exception) -> Exception:
    """Return what is wrong with the files that ended a comparison: an engine may not have said which they
    are.
    """
    told = [each for store in stores for each in store.leave_out_damaged(steps=True)]
    return CorruptStoreError(" ".join(dict.fromkeys(told))) if told else error


def _write(page: Page, report: Mapping[str, Any]) -> None:
    if report["same"]:
        page.line(f"No difference in {counted(report['episodes']['same'], 'episode')}.", "bold green")
        return
    _write_figures(page, report["a"], report["b"])
    if report["spaces"]:
        page.heading("Spaces")
        _write_sides(page, "space", report["spaces"], "name")
    if report["columns"]:
        page.heading("Columns")
        rows = [{**each, "name": f"{each['table']}.{each['column']}"} for each in report["columns"]]
        _write_sides(page, "column", rows, "name")
    for kind in ("runs", "episodes"):
        _write_ids(page, kind, report[kind])


def _write_figures(page: Page, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    sides = [_labelled(side) for side in (first, second)]
    rows = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        left, right = (_figure(page, side.get(name)) for side in sides)
        rows.append((name, left, right, "" if left == right else "differs"))
    page.table(Grid.of(("", "A", "B", "difference"), rows))


def _labelled(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures by the words that people read; a list has a line for each of its values."""
    told: dict[str, Any] = {}
    for name, value in figures.items():
        label = name.replace("_", " ")
        if name == "end_reasons":
            told |= {f"ended: {reason}": count for reason, count in value.items()}
        elif isinstance(value, list):
            told |= {f"{label}[{index}]": each for index, each in enumerate(value)}
        else:
            told[label] = value
    return told


def _figure(page: Page, value: Any) -> str:
    return "-" if value is None else page.number(value)


def _write_sides(page: Page, title: str, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    cells = [(row[name], _side(row["a"]), _side(row["b"])) for row in rows]
    page.table(Grid.of((title, "A", "B"), cells))


def _side(value: Any) -> str:
    return "-" if value is None else str(value)


def _write_ids(page: Page, kind: str, report: Mapping[str, Any]) -> None:
    told = {"only in A": report["only_a"], "only in B": report["only_b"]}
    rows = [(where, identity, "") for where, ids in told.items() for identity in _first(page, ids)]
    differing = report["differing"]
    rows += [
        ("differs", each["id"], ", ".join(each["columns"]))
        for each in (differing[:IDS_SHOWN] if page.is_terminal else differing)
    ]
    if not rows:
        return
    page.heading(kind.capitalize())
    page.table(Grid.of(("where", "id", "columns that differ"), rows))
    counts = ", ".join(f"{len(ids):,} {where}" for where, ids in told.items())
    page.note(f"{counts}, {len(differing):,} differ, {report['same']:,} the same.")


def _first(page: Page, ids: Sequence[str]) -> Sequence[str]:
    return ids[:IDS_SHOWN] if page.is_terminal else ids
