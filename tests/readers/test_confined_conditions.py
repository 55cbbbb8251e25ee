"""SQL conditions reach nothing but the store, wherever they are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import episodelake as el
from episodelake.explorer.listing import Choice, EpisodeList
from real_environments import numbered_store

ESCAPES = (
    "(select content from read_text('{file}')) <> ''",
    "exists (from read_blob('{file}'))",
    "exists (from read_csv('{file}'))",
    "exists (from read_json('{file}'))",
    "exists (from sniff_csv('{file}'))",
    "exists (from '{file}')",
    "exists (from glob('{folder}/*'))",
    "exists (from read_parquet('{folder}/*.parquet'))",
    "exists (from parquet_metadata('{folder}/other.parquet'))",
    "exists (from query('from read_text(''{file}'')'))",
    "exists (from read_text('{folder}/store/store.json'))",
    "exists (from 'https://example.com/data.parquet')",
    "exists (from duckdb_secrets())",
    "exists (from local_frame)",
    "getenv('HOME') <> ''",
    "true) or exists (from read_text('{file}')",
    "true; copy (select 1) to '{folder}/written'",
    "exists (with gone as (delete from runs returning *) from gone)",
)
ENTRANCES: dict[str, Callable[[el.EpisodeStore, str], Any]] = {
    "filter": lambda store, text: store.filter(text),
    "filter of a view": lambda store, text: store[:1].filter(text),
    "delete": lambda store, text: store.delete(text),
    "explorer": lambda store, text: EpisodeList(store).positions(Choice(conditions=(text,))),
    "read-only query": lambda store, text: store.query(f"from episodes where {text}", read_only=True),
    "read-only connection": lambda store, text: (
        store.connect(read_only=True).execute(f"from episodes where {text}").fetchall()
    ),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_conditions_reach_no_file(tmp_path: Path, entrance: str) -> None:
    """No condition reads a file, an environment variable or a variable of Python, nor writes anything."""
    store = numbered_store(tmp_path / "store", [3, 4])
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    duckdb.sql("select 1 as a").write_parquet(str(tmp_path / "other.parquet"))
    local_frame = store.episodes.collect()
    before = sorted(tmp_path.iterdir())
    for text in ESCAPES:
        condition = text.format(file=tmp_path / "secret.csv", folder=tmp_path)
        with pytest.raises((el.errors.QueryError, duckdb.Error)):
            ENTRANCES[entrance](store, condition)
    assert sorted(tmp_path.iterdir()) == before
    assert len(el.open(store.path)) == len(local_frame)


def test_conditions_still_see_the_store(tmp_path: Path) -> None:
    """Subqueries over runs, episodes and steps, and macros, work in conditions as ever."""
    store = numbered_store(tmp_path / "store", [3, 4])
    assert len(store.filter("run_id in (select run_id from runs)")) == 2
    assert len(store.filter("length = (select max(length) from episodes)")) == 1
    assert len(store.filter("episode_id in (select episode_id from steps where t = 4)")) == 1
