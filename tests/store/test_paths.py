"""Where a store may lie: odd names of folders work from creation to vacuum, or are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import polars as pl
import pytest

import episodelake as el
from effort import some, with_folders
from episodelake.testing.adapters import case

WORKING = [
    *("with space", "hash#x", "q?x", "glob*[a]", "quo'te", 'double"quote', "ünï", "plus+", "amp&", "semi;"),
    *(
        "colon:x",
        "brace{a}",
        "emoji😀",
        "dollar$x",
        "~tilde",
        "a=b",
        "comma,x",
        "trail ",
        "dot.",
        "@x",
        "x@3",
    ),
]
REFUSED = ["per%20cent", "per%cent", "new\nline", "back\\slash", "tab\tx", "return\r", "delete\x7f"]


@pytest.mark.parametrize("cases", some(WORKING, 2))
def test_a_store_works_in_a_folder_of_any_name(tmp_path: Path, cases: Any) -> None:
    """Recording, SQL, frames, episodes, loaders, annotations and maintenance."""
    for folder, name in with_folders(cases, tmp_path):
        with case(name):
            path = folder / name
            env = gymnasium.make("CartPole-v1")
            store = el.create(path, env)
            el.collect(env, None, store, episodes=2, seed=0)
            rows = store.refresh().steps.collect().height
            assert rows == store.query("select count(*) from steps").item()
            assert rows == store.query("select count(*) from steps", read_only=True).item()
            assert (
                len(store.filter("length > 0")) == len(store.filter(pl.col("length") > 0)) == len(store) == 2
            )
            assert len(store[0].observations) == len(store[0]) + 1
            assert next(iter(store.loader(4, cache="stream")))["reward"].shape == (4,)
            store.annotate(
                store.steps.select("episode_id", "t", pl.lit(1.0).alias("one")), on=("episode_id", "t")
            )
            assert store.steps.select(pl.col("one").sum()).collect().item() == rows
            store.copy(f"{path}-copy")
            store.delete("number = 0")
            store.compact()
            store.vacuum()
            assert store.verify().ok and len(el.open(path)) == 1 and len(el.open(f"{path}-copy")) == 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_tables_cannot_have_is_refused(name: str, tmp_path: Path) -> None:
    """The message shows the character, and no folder is made; copies are refused as well."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "plain", env)
    for attempt in (lambda: el.create(tmp_path / name, env), lambda: store.copy(tmp_path / name)):
        with pytest.raises(el.errors.InvalidArgumentError, match="holds"):
            attempt()
    assert os.listdir(tmp_path) == ["plain"]


def test_a_tilde_is_the_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every function that takes a path, as text or as a path object; no folder `~` is made."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    store = el.create("~/store", gymnasium.make("CartPole-v1"))
    assert Path(str(store.path)) == home / "store"
    assert el.open(Path("~/store")).copy("~/copy").verify().ok and (home / "copy").is_dir()
    assert el.recover("~/store") == [] and os.listdir(here) == []
