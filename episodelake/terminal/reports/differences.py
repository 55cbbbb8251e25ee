"""`episodelake diff`: two stores, or two versions of one, side by side; status 1 if they differ.

Rows of the small tables are joined by id. Steps are compared only where they may differ: segments that are
one file, or have the same bytes, are equal. For the others DuckDB computes a hash per episode and column, so
that no step is held in memory.
"""

from __future__ import annotations

import filecmp
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from ... import EpisodeStore
from ...errors import CorruptStoreError
from ...plugin import Layout, collected, counted, progress_meter, quote, sql_type
from ...plugin.columns import EXTRA, INFO, POLICY
from ...plugin.files import Place
from ...types import Progress
from ..output.page import Page
from .open_store import open_store_at, reading_errors
from .store_figures import store_figures

#: The places of rows, which compaction changes.
PLACES = ("segment", "row_start", "row_count")
#: JSON columns of steps, and the attributes of an episode with their values.
_JSON_VALUES = {
    INFO.json_column: "infos",
    POLICY.json_column: "policy",
    EXTRA.json_column: "extra",
}
_SIDES = ("only_a", "only_b", "differing")


def compare(
    first: EpisodeStore, second: EpisodeStore, *, steps: bool, progress: Progress | None = None
) -> dict[str, Any]:
    """Compare the contents of two stores.

    Args:
        first, second: the stores, each at its version.
        steps: compare steps too.
        progress: called with the segments that were looked at, and all of them.
    """
    columns = [
        {"table": table, "column": name, "a": one, "b": other}
        for table in Layout.TABLES
        for name, one, other in _unequal(*(_types(store, table) for store in (first, second)))
    ]
    runs = _rows_compared(first.runs, second.runs, "run_id")
    episodes = _rows_compared(first.episodes, second.episodes, "episode_id")
    if steps:
        _add_steps(first, second, episodes, progress)
    spaces = [
        {"name": name, "a": one, "b": other} for name, one, other in _unequal(_spaces(first), _spaces(second))
    ]
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


def _unequal(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the names with other values in one mapping than in the other, and both values."""
    pairs = [(name, first.get(name), second.get(name)) for name in {**first, **second}]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _types(store: EpisodeStore, table: str) -> dict[str, str]:
    schema = store.selection().snapshot.shown_schema(table)
    return {field.name: sql_type(field.type) for field in schema}


def _spaces(store: EpisodeStore) -> dict[str, str]:
    return {
        "observation": " ".join(str(store.observation_space).split()),
        "action": " ".join(str(store.action_space).split()),
        "reward_shape": str(store.reward_shape),
        **{f"agents of {group.name}": ", ".join(group.agents) for group in store.agent_groups},
    }


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


def _rows_compared(first: pl.LazyFrame, second: pl.LazyFrame, key: str) -> dict[str, Any]:
    """Ids of rows that only one side has, and of those that differ, with the columns that do."""
    kinds = second.collect_schema()
    names = [
        name
        for name, kind in first.collect_schema().items()
        if name not in (key, *PLACES) and kinds.get(name) == kind
    ]
    left, right = (frame.select(key, *names) for frame in (first, second))
    both = collected(left.join(right, on=key, suffix="_b").select(key, columns=_changed_columns(names)))
    changed = both.filter(pl.col("columns").list.len() > 0).sort(key)
    return {
        "only_a": _only(left, right, key),
        "only_b": _only(right, left, key),
        "differing": [{"id": identity, "columns": columns} for identity, columns in changed.iter_rows()],
        "same": both.height - changed.height,
    }


def _changed_columns(names: Sequence[str]) -> pl.Expr:
    """Return the names of the columns that differ from those of the other side, which end in _b."""
    differing = [pl.when(pl.col(name).ne_missing(pl.col(f"{name}_b"))).then(pl.lit(name)) for name in names]
    return pl.concat_list(differing).list.drop_nulls()


def _only(here: pl.LazyFrame, there: pl.LazyFrame, key: str) -> list[str]:
    ids = collected(here.select(key).join(there.select(key), on=key, how="anti").sort(key))
    return ids[key].to_list()


# Steps


def _add_steps(
    first: EpisodeStore, second: EpisodeStore, episodes: dict[str, Any], progress: Progress | None
) -> None:
    """Find the episodes of both whose steps differ, and count them among those that differ."""
    known = {each["id"]: each["columns"] for each in episodes["differing"]}
    for identity, columns in _steps_differing(first, second, _candidates(first, second, progress)):
        if identity not in known:
            episodes["same"] -= 1
        known.setdefault(identity, []).extend(f"steps.{name}" for name in columns)
    episodes["differing"] = [{"id": identity, "columns": known[identity]} for identity in sorted(known)]


def _candidates(first: EpisodeStore, second: EpisodeStore, progress: Progress | None) -> pl.Series:
    """Return the ids of episodes of both that are not in the same rows of equal files."""
    rows = [store.episodes.select("episode_id", "segment", "row_start") for store in (first, second)]
    both = collected(rows[0].join(rows[1], on="episode_id", suffix="_b"))
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
    if any(snapshot.annotation_files.annotations for snapshot in snapshots):
        # Annotations are in other files.
        equal = []
    return both.filter(~(alike & pl.col("segment").is_in(equal)))["episode_id"]


def _same_bytes(first: Place, second: Place) -> bool:
    """Return whether two files are one, or have the same bytes; False if they are not on this machine."""
    if str(first) == str(second):
        return True
    if first.local is None or second.local is None:
        return False
    return first.local.samefile(second.local) or filecmp.cmp(first.local, second.local, shallow=False)


def _steps_differing(
    first: EpisodeStore, second: EpisodeStore, ids: pl.Series
) -> list[tuple[str, list[str]]]:
    """Return ids with the columns of steps that differ; `rows` where there are more or fewer of them."""
    if ids.is_empty():
        return []
    kinds = [
        {field.name: field.type for field in store.selection().snapshot.shown_schema("steps")}
        for store in (first, second)
    ]
    keys = [name for name, _ in first.selection().snapshot.schema.step_keys]
    names = [name for name, kind in kinds[0].items() if name not in keys and kinds[1].get(name) == kind]
    left, right = (_sums(store, ids, keys, names) for store in (first, second))
    both = left.join(right, on="episode_id", suffix="_b")
    changed = both.select("episode_id", _changed_columns(["rows", *names])).rows()
    differing = [
        (identity, [name for name in columns if not _same_values(first, second, identity, name)])
        for identity, columns in changed
    ]
    return [(identity, columns) for identity, columns in differing if columns]


def _same_values(first: EpisodeStore, second: EpisodeStore, identity: str, column: str) -> bool:
    """Return whether an episode gives the same infos, policy values or own columns in both stores.

    A JSON column may differ where values do not: it also has the integers of a column of doubles, and what
    goes there depends on which type a run recorded first. Other columns hold the values themselves.
    """
    if column not in _JSON_VALUES:
        return False
    one, other = (_canonical(getattr(store[identity], _JSON_VALUES[column])) for store in (first, second))
    return one == other


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


def _sums(store: EpisodeStore, ids: pl.Series, keys: Sequence[str], names: Sequence[str]) -> pl.DataFrame:
    """Return a hash per episode and column over its values and their places."""
    place = ", ".join(quote(name) for name in keys if name != "episode_id")
    sums = [f"bit_xor(hash({quote(name)}, {place})) AS {quote(name)}" for name in names]
    chosen = store.filter(pl.col("episode_id").is_in(ids.implode()))
    columns = ", ".join(["episode_id", "count(*) AS rows", *sums])
    return chosen.query(f"SELECT {columns} FROM steps GROUP BY episode_id")


# The page


IDS_SHOWN = 10


def compared(paths: Sequence[str], storage: Sequence[str] | None, *, steps: bool) -> dict[str, Any]:
    """Compare two stores, each a PATH, with a meter.

    Raises:
        CorruptStoreError: files that are needed are damaged; it names them.
    """
    stores = [open_store_at(path, storage, beside=paths) for path in paths]
    with progress_meter(True, "Comparing", "files") as progress:
        try:
            return compare(stores[0], stores[1], steps=steps, progress=progress)
        except reading_errors() as error:
            # An engine may not have named the files.
            damaged = dict.fromkeys(each for store in stores for each in store.leave_out_damaged(steps=True))
            raise (CorruptStoreError(" ".join(damaged)) if damaged else error) from error


def write_comparison(page: Page, report: Mapping[str, Any]) -> None:
    """Write the differences: figures, spaces and columns side by side, then ids."""
    if report["same"]:
        page.line(f"No difference in {counted(report['episodes']['same'], 'episode')}.", "bold green")
        return
    _write_figures(page, report["a"], report["b"])
    tables = {
        "Spaces": [{"space": row["name"], **_sides(row)} for row in report["spaces"]],
        "Columns": [
            {"column": f"{row['table']}.{row['column']}", **_sides(row)} for row in report["columns"]
        ],
    }
    for title, rows in tables.items():
        if rows:
            page.heading(title)
            page.table(rows)
    for kind in ("runs", "episodes"):
        _write_ids(page, kind, report[kind])


def _write_figures(page: Page, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    one, other = (_labelled(side) for side in (first, second))
    rows = []
    for name in {**one, **other}:
        left, right = ("-" if side.get(name) is None else page.text(side[name]) for side in (one, other))
        rows.append({"": name, "A": left, "B": right, "difference": "" if left == right else "differs"})
    page.table(rows)


def _sides(row: Mapping[str, Any]) -> dict[str, Any]:
    return {side.upper(): "-" if row[side] is None else row[side] for side in ("a", "b")}


def _labelled(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures by the words that people read; a list has a line for each of its values."""
    labelled: dict[str, Any] = {}
    for name, value in figures.items():
        label = name.replace("_", " ")
        if name == "end_reasons":
            labelled |= {f"ended: {reason}": count for reason, count in value.items()}
        elif isinstance(value, list):
            labelled |= {f"{label}[{index}]": each for index, each in enumerate(value)}
        else:
            labelled[label] = value
    return labelled


def _write_ids(page: Page, kind: str, report: Mapping[str, Any]) -> None:
    parts = {
        "only in A": [(identity, "") for identity in report["only_a"]],
        "only in B": [(identity, "") for identity in report["only_b"]],
        "differs": [(each["id"], ", ".join(each["columns"])) for each in report["differing"]],
    }
    shown = IDS_SHOWN if page.is_terminal else None
    rows = [
        {"where": where, "id": identity, "columns that differ": columns}
        for where, part in parts.items()
        for identity, columns in part[:shown]
    ]
    if not rows:
        return
    page.heading(kind.capitalize())
    page.table(rows)
    one, other, differing = map(len, parts.values())
    page.note(f"{one:,} only in A, {other:,} only in B, {differing:,} differ, {report['same']:,} the same.")
